"""Where what was recalled stands, and what joins a turn: only what the next request does not show."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from hashed_words import HashedWords
from quire import Assembly, Entry, Policy, Reply, Thread, Usage, values
from quire.assemble.messages import handle_of
from quire.errors import CallError
from quire.formats import clean
from quire.recall import RECALL_TOOL, Hit, Indexer, Recall, place, placement, recall_tool, relevant
from quire.recall.placement import VisibleEntries, in_prompt, shown_ahead, standing
from quire.send.builtin import recall_tool as built_in
from toolbox import Store, chain, check, counter

count = counter().count


def hit(entry: Entry, seq: int, score: float = 1.0, tool: str = "") -> Hit:
    made = Entry(entry.kind, entry.body, seq, f"sha256:{seq:064x}")
    return Hit("t", seq, made.id, score, {}, made, (), tool)


def test_sections_stand_in_the_order_of_the_log_whatever_the_scores() -> None:
    hits = [
        hit(values.respond("Keys start with\nsk-or-v1-"), 6, 3.0),
        hit(values.result("c", outcome="ok", content='{"n": 1}'), 4, 2.0, "get_key"),
        hit(values.user("What is the format?"), 5, 1.0),
    ]
    placed = place(hits, 1000)
    assert placed.text == (
        "# Relevant Conversation\nUser: What is the format?\nAssistant: Keys start with\n  sk-or-v1-\n\n"
        '# Recent Tool Results\n• get_key: ok\n    \n    {"n": 1}'
    )
    assert placed.ids == (hits[1].id, hits[2].id, hits[0].id)
    assert placed.tokens == count(placed.text)
    assert placed.meta == {"recalled": placed.text, "recalled_ids": list(placed.ids)}


def test_what_still_stands_above_is_named_and_not_repeated() -> None:
    hits = [hit(values.user("old question"), 2), hit(values.respond("new answer"), 9)]
    placed = place(hits, 1000, standing={hits[0].id})
    assert placed.text == (
        "# Relevant Conversation\nAssistant: new answer\n\n"
        "Context attached:\n- User: old question\nFind them above in this conversation."
    )
    assert (placed.ids, placed.named_ids) == ((hits[1].id,), (hits[0].id,))


def test_notes_and_items_are_left_out_with_a_reason() -> None:
    placed = place([hit(values.note("be brief"), 3)], 1000)
    assert (placed.text, placed.meta) == ("", {})
    assert placed.left_out[0].entry == 3
    assert "note" in placed.left_out[0].reason


TEXTS = st.lists(st.tuples(st.sampled_from(["user", "respond", "result"]), st.text(max_size=300)), max_size=6)


@given(TEXTS, st.integers(0, 120))
def test_the_share_is_never_exceeded_and_nothing_disappears(texts: list[tuple[str, str]], share: int) -> None:
    hits = []
    for seq, (kind, text) in enumerate(texts, 1):
        entry = values.result("c", content=text) if kind == "result" else Entry(kind, {"kind": kind, "text": text})  # type: ignore[arg-type]
        hits.append(hit(entry, seq, score=float(seq % 3), tool="t"))
    placed = place(hits, share)
    assert count(placed.text) <= share
    assert len(placed.ids) + len(placed.left_out) == len(hits)
    shown = clean.parse(placed.text) if placed.text else clean.Clean()
    roles = [hit.entry.kind for hit in hits if hit.id in placed.ids and hit.entry.text]
    assert [message.role for message in shown.conversation] == ["user" if k == "user" else "assistant" for k in roles]


def test_a_long_result_is_cut_and_does_not_keep_the_others_out() -> None:
    hits = [hit(values.result("c", content="word " * 5000), 1, 9.0, "big"), hit(values.user("a short one"), 2, 1.0)]
    placed = place(hits, 400)
    assert placed.left_out == ()
    assert "..." in placed.text
    assert "User: a short one" in placed.text


LONG = "id,name,code\n" + "\n".join(f"{n},item {n},filler" for n in range(400))


def test_of_a_long_text_the_passage_that_was_asked_for_is_shown() -> None:
    text = LONG.replace("211,item 211,filler", "211,quokka,zanzibar")
    for entry in (values.result("c", content=text), values.user(text), values.user(text.replace("\n", " "))):
        placed = place([hit(entry, 1, tool="read")], 300, query="which quokka has zanzibar?").text
        wanted = ("id,name,code", "211,quokka,zanzibar", "210,item 210", "212,item 212")
        assert [words for words in wanted if words not in placed] == []
        assert placed.count("...") == 2
    # What the query does not hold is shown from the beginning.
    assert "zanzibar" not in place([hit(values.user(text), 1)], 300, query="walrus").text


def test_a_long_text_is_named_only_where_the_same_passage_stands_above() -> None:
    text = LONG.replace("211,item", "211,quokka").replace("77,item", "77,walrus")
    one = hit(values.result("c", content=text), 1, tool="read")
    first = place([one], 300, query="quokka")
    above = standing(chain([values.user("q", meta=first.meta)]), {1})
    again = place([one], 300, above, query="quokka")
    assert (again.ids, again.named_ids) == ((), (one.id,))
    assert again.text == ("Context attached:\n- read: id,name,code ...\nFind them above in this conversation.")
    assert "• read: id,name,code ...\n" in first.text
    assert "walrus" in place([one], 300, above, query="walrus").text


def test_only_what_the_prompt_does_not_show_is_searched_for(store: Store) -> None:
    log = list(chain([values.user("red hat"), values.respond("blue hat"), values.user("which hat?")]))
    store.append("t", log)
    assembly = Assembly(Policy())
    assembly.extend(log)
    shown = in_prompt(assembly.request().prompt, (), {})
    assert shown == {1, 2, 3}
    recall = Recall(store)
    assert recall.search("hat", thread="t", exclude=shown) == []
    assert [hit.seq for hit in recall.search("hat", thread="t", exclude=shown - {1})] == [1]


def test_what_a_turn_recalled_stands_as_long_as_the_turn_does() -> None:
    log = list(chain([values.user("q", meta={"recalled": "…", "recalled_ids": ["a", "b"]}), values.user("r")]))
    assert standing(log, {1, 2}) == {"a": "\n…", "b": "\n…"}
    assert standing(log, {2}) == {}


def test_recalled_text_becomes_part_of_its_turn() -> None:
    placed = place([hit(values.user("old words"), 1)], 100)
    assembly = Assembly(Policy())
    assembly.extend(chain([values.user("now?", meta=placed.meta)]))
    said = assembly.request().prompt.messages[-1].parts[0].text  # type: ignore[union-attr]
    assert said == f"{placed.text}\n\n---\n\n[User query]:\n\nnow?"


def test_the_tool_definition_is_a_valid_tools_entry_and_schema() -> None:
    Draft202012Validator.check_schema(RECALL_TOOL["parameters"])
    check({"kind": "tools", "tools": [json.loads(json.dumps(RECALL_TOOL))]})


def test_a_model_can_ask_for_what_it_no_longer_sees(store: Store) -> None:
    store.append("t", [values.user("the code is 4711"), values.respond("noted"), values.user("and the weather?")])
    run = recall_tool(Recall(store), "t", shown=lambda: [3])
    assert run("which code", k=1) == "# Relevant Conversation\nUser: the code is 4711"
    assert run("zebra") == "Nothing was found that is not shown already."
    with pytest.raises(CallError):
        run("  ")


def test_the_tool_gives_the_original_behind_a_handle_like_the_built_in_one(store: Store) -> None:
    (kept,) = store.append("t", [values.user("first line\nsecond line")])
    run = recall_tool(Recall(store), "t")
    assert run(handle=handle_of(kept.id)) == "first line\nsecond line"
    assert run(handle=handle_of(kept.id), start=2) == "second line"
    assert Draft202012Validator(RECALL_TOOL["parameters"]).is_valid({"handle": handle_of(kept.id), "start": 2})
    assert built_in(store, "t").definition() == RECALL_TOOL


def test_the_end_of_a_line_too_long_for_one_piece_can_be_read(store: Store) -> None:
    (kept,) = store.append("t", [values.user("x" * 100 + "the end")])
    run = recall_tool(Recall(store), "t", share_tokens=10)
    assert run(handle=kept.id).endswith("[… 2 more lines; recall again with start=2 …]")
    assert run(handle=kept.id, start=3).endswith("the end")


TARGET = "openai-chat:gpt-4.1"
FILLER = "\n".join(f"row {n} ordinary filler text about inventory" for n in range(40))


def small(store: Store) -> Thread:
    """A thread that soon has to leave out what it was told."""
    return Thread(store, "t", Policy(budget=900, summary=0, handles=0, unused_turns=1), clock=lambda: 0)


def answered(thread: Thread, question: str) -> None:
    thread.user(question)
    sent = thread.sent_entry(thread.request(TARGET), Reply((), Usage(), "stop"))
    thread.append(sent, values.respond("fine"))


def handled(store: Store) -> Thread:
    """A thread whose older results stand in its prompt as handles."""
    thread = Thread(store, "t", Policy(budget=4000, floor=0.25, handles=0.5, summary=0), clock=lambda: 0)
    for n in range(8):
        found = f"{FILLER}\nthe zanzibar passphrase number {n} is quokka{chr(97 + n)}\n{FILLER}"
        thread.append(values.user(f"please do step {n}"), values.call(f"c{n}", "read", {"n": n}))
        thread.append(values.result(f"c{n}", None, found))
        request = thread.request(TARGET)
        usage = Usage(input_total=thread.build(TARGET).tokens, output=3)
        thread.append(thread.sent_entry(request, Reply((), usage, "stop")), values.respond(f"done {n}"))
    return thread


@pytest.mark.moves_prefix(reason="a small budget, so that results become handles")
def test_what_a_handle_cut_away_is_recalled_and_what_stands_whole_is_not(store: Store) -> None:
    thread = handled(store)
    prompt = str(thread.build(TARGET).prompt.messages)
    assert "recall with handle" in prompt
    assert "quokkae" not in prompt
    assert "quokkah" in prompt
    asked = thread.user("what is the zanzibar passphrase number 4?", recall=8)
    found = {store.find(id)[1].seq for id in asked.meta["recalled_ids"]}  # type: ignore[index]
    texts = {seq: entry.body.get("content", "") for seq, entry in enumerate(store.read("t"), 1)}
    assert any("quokkae" in texts[seq] for seq in found)
    assert not any("quokkah" in texts[seq] for seq in found)


@pytest.mark.moves_prefix(reason="a small budget, so that results become handles")
def test_a_thread_recalls_what_its_next_request_does_not_show_unless_told_otherwise(store: Store) -> None:
    thread = handled(store)
    question = thread.user("what is the zanzibar passphrase number 4?")
    found = thread.recall(question.text, k=20)
    assert found[0].entry.body["content"].count("quokkae") == 1
    assert question.seq not in {hit.seq for hit in found}
    assert question.seq in {hit.seq for hit in thread.recall(question.text, k=20, exclude=())}
    assert question.seq not in {hit.seq for hit in thread.recall(question.text, k=20, scope="threads")}


def test_a_thread_that_is_opened_again_recalls_for_the_model_it_was_last_sent_to(store: Store) -> None:
    thread, target = Thread(store, "t"), "local:a-small-one"
    thread.user("what is the zanzibar passphrase?")
    sent = thread.sent_entry(thread.request(target), Reply((), Usage(input_total=20, output=3), "stop"))
    thread.append(sent, values.respond(f"quokka is the zanzibar passphrase {FILLER}"))
    for n in range(40):  # more than it takes
        thread.append(values.user(f"step {n}"), values.respond(FILLER))
    question = "which zanzibar passphrase was it?"
    found = [hit.seq for hit in thread.recall(question)]
    assert found
    assert [hit.seq for hit in Thread(store, "t").recall(question)] == found


@pytest.mark.moves_prefix(reason="a small budget, so that notes and items leave the prompt")
def test_all_of_a_turns_places_go_to_what_can_stand_there(store: Store) -> None:
    thread = small(store)
    thread.append(values.user("the walrus code is 7719"), values.respond("noted the walrus code"))
    for n in range(30):
        thread.append(values.note(f"walrus code rule {n}: mention the walrus code politely"))
        text = f"walrus code guide number {n}: the walrus code"
        source = {"source": "note", "path": f"w{n}.md"}
        thread.append(values.attach({"id": f"w{n}.md", "type": "text", "content": text, "metadata": source}))
        answered(thread, f"filler {n} blah")
    assert "note" in {hit.entry.kind for hit in thread.recall("what is the walrus code?", k=3)}
    assert len(thread.user("what is the walrus code?", recall=3).meta["recalled_ids"]) == 3


def test_a_turn_that_nothing_answers_is_given_nothing(store: Store) -> None:
    thread = small(store)
    thread.append(values.user("the walrus code is 7719"), values.respond("noted"))
    for n in range(30):
        answered(thread, f"tell me about page {n} of the long report please. " * 5)
    unanswered = "which violins did the carpenter report to customs?"
    nearest = thread.recall(unanswered, 5)
    assert nearest
    assert not relevant(nearest)
    assert "recalled" not in thread.user(unanswered, recall=5).meta
    assert recall_tool(Recall(store), "t")(unanswered) == "Nothing was found that is not shown already."
    assert relevant(thread.recall("what is the walrus code?", 5))
    assert "7719" in thread.user("what is the walrus code?", recall=5).meta["recalled"]


def test_a_thread_searches_by_meaning_where_a_model_is_installed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "installed", HashedWords)
    thread = Thread(store, "t")
    thread.append(values.user("the walrus code is 7719"))
    Indexer(store, HashedWords()).run()
    assert [hit.by for hit in thread.recall("walrus", exclude=())] == ["words and meaning"]
    thread.embedder = None
    assert [hit.by for hit in thread.recall("walrus", exclude=())] == ["words"]


def test_what_is_shown_is_read_from_the_checkpoint_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = small(store)
    for n in range(100):
        answered(thread, f"tell me about page {n} of the long report please. " * 5)
    read, begun = store.read, []
    monkeypatch.setattr(
        store, "read", lambda name, after=0, limit=None: begun.append((after, limit)) or read(name, after, limit)
    )
    shown = VisibleEntries(store, "t")()
    assert shown
    assert (0, None) not in begun
    assert max(after for after, limit in begun if limit is None) >= 100
    assert shown == shown_ahead(thread._assembly_for(TARGET))
