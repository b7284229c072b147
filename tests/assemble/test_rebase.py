"""What one rebase does: floor, handles, summary, pins, the library, and the last resorts."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from quire import Assembly, Entry, Policy, Thread, render, requests, values
from quire.assemble import DROP_ONLY, reused_tokens
from quire.assemble.fit import enclose
from quire.assemble.messages import handle_of
from quire.assemble.rebase import PINNED_HEADING, SUMMARY_HEADING, Edit, Rebase
from quire.assemble.rebase_decision import Moment, Rent, reason_to_cut
from quire.assemble.summary import Leaving
from quire.errors import BudgetError, DataError
from quire.observe import chat_messages
from quire.tokens import tools_tokens
from quire.values import JsonObject, Result
from toolbox import Built, built, chain, counter, note, talk

pytestmark = pytest.mark.moves_prefix(reason="every test here makes a rebase")
LONG = "\n".join(f"row {n}: value {n * 7}" for n in range(60))


def first_cut(entries: Sequence[Entry], policy: Policy, **how: Any) -> Built:
    """The first request that a rebase stands in front of."""
    return next(one for one in built(entries, policy, **how) if one.rebase)


def read(n: int, args: JsonObject, found: str) -> list[Entry]:
    return [values.call(f"c{n}", "read", args), values.result(f"c{n}", None, found)]


def loop(calls: int) -> list[Entry]:
    out = [values.system("Help."), values.user("do it all")]
    for n in range(calls):
        out += read(n, {"n": n}, f"{n}\n{LONG}")
    return [*out, values.respond("done")]


def test_a_turn_of_500_calls_stays_in_budget_and_keeps_its_request() -> None:
    made = built(loop(500), Policy(budget=8_000))
    assert len(made) == 501
    assert all(one.tokens <= 8_000 for one in made)
    assert all(any("do it all" in str(m.parts) for m in one.prompt.messages) for one in made)
    assert len([one for one in made if one.rebase]) < 100


def test_the_newest_floor_stays_verbatim() -> None:
    policy = Policy(budget=4_000, ttl_s=None)
    entries = list(chain(talk(60)))
    whole = {m.seqs: m for one in [built(entries, Policy())[-1]] for m in one.prompt.messages}
    for one in built(entries, policy):
        room = policy.limit - one.head_tokens
        verbatim = 0
        for message, size in zip(reversed(one.prompt.messages), reversed(one.sizes), strict=True):
            if message.seqs not in whole or message != whole[message.seqs]:
                break
            verbatim += size
        assert verbatim >= min(policy.floor * room, sum(one.sizes)) - 1


def test_old_results_become_handles_that_name_their_original() -> None:
    entries = list(chain(loop(40)))
    rebased = first_cut(entries, Policy(budget=8_000, handles=0.2))
    edit = next(edit for edit in rebased.rebase["edits"] if edit["action"] == "handle")
    assert handle_of(entries[edit["entry"] - 1].id) in edit["replacement"]
    texts = [p.text for m in rebased.prompt.messages for p in m.parts if isinstance(p, Result)]
    assert edit["replacement"] in texts
    assert edit["freed"] > 0


@pytest.mark.parametrize(
    "end",
    ["ValueError: tenant 'kofi-9' has no plan", "==== 3 failed, 57 passed in 4.2s ====", "make: *** [all] Error 1"],
)
def test_a_handle_tells_that_what_it_stands_for_failed(end: str) -> None:
    entries = [values.user("Have the tests pass.")]
    for n in range(40):
        cases = "".join(f"tests/test_mod_{n}.py::test_case_{n}_{case} PASSED\n" for case in range(60))
        entries += read(n, {"path": str(n)}, cases + end)
    entries += [values.respond("done")]
    rebased = first_cut(list(chain(entries)), Policy(budget=16_000, handles=0.2))
    handles = [edit["replacement"] for edit in rebased.rebase["edits"] if edit["action"] == "handle"]
    assert handles
    assert [text for text in handles if not text.endswith(end)] == []


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_the_larger_the_results_the_deeper_the_cut_and_few_epochs_are_short(share: float) -> None:
    """Without a share for handles, as much is kept as lets an epoch last: less, the larger each result is."""
    budget = 24_000
    line = "river stone amber window engine ledger copper market winter signal garden harbor\n"
    many = round(6 / share)
    entries = [values.user("Read them all.")]
    for n in range(many):
        entries += read(n, {"path": str(n)}, line * int(share * budget / 14))
    entries += [values.respond("done")]
    chosen, full = (built(entries, Policy(budget=budget, handles=handles)) for handles in (None, 0.2))
    assert sum(one.rebase is not None for one in chosen) <= sum(one.rebase is not None for one in full)
    cut = [one for one in chosen if one.rebase]
    assert len(cut) <= many * share / 0.6 + 1
    assert share < 0.1 or not any(edit["action"] == "handle" for one in cut for edit in one.rebase["edits"])


def test_a_rebase_summarises_whole_turns_and_says_what_it_freed() -> None:
    entries = list(chain(talk(60)))
    rebased = first_cut(entries, Policy(budget=3_000, handles=0.2))
    assert rebased.rebase["freed"] > 0
    assert rebased.rebase["summary"]
    assert rebased.prompt.messages[0].parts[0].text.startswith(SUMMARY_HEADING)  # type: ignore[union-attr]
    gone = {edit["entry"] for edit in rebased.rebase["edits"] if edit["action"] == "drop"}
    assert gone == {entry.seq for entry in entries if 1 < entry.seq < rebased.rebase["before_seq"]}
    assert {left.entry for left in rebased.left_out} == gone


def test_pins_survive_every_rebase_verbatim() -> None:
    pinned = values.user("Never deploy on Fridays. " + "word " * 30, meta={"pin": "Never deploy on Fridays."})
    note = values.respond("The key is K-17.", meta={"pin": True})
    made = built([values.system("Help."), pinned, note, *talk(80)[1:]], Policy(budget=2_000))
    assert len([one for one in made if one.rebase]) > 2
    for words in ("Never deploy on Fridays.", "The key is K-17."):
        assert all(words in str(render(one.prompt, "openai-chat:").body["messages"]) for one in made[1:]), words
    assert PINNED_HEADING in str(made[-1].prompt.messages[0].parts)


def test_the_library_is_folded_and_kept_turns_refer_to_it() -> None:
    item = note("a.md", "alpha")
    chosen = {**note("a.md", "alpha", source="selection", start_line=1, end_line=2), "id": "s"}
    entries = [values.user("see", [item, chosen]), values.respond("ok"), *talk(30)[1:]]
    entries += [values.user("again", [item]), values.respond("ok")]
    last = built(entries, Policy(budget=2_000, unused_turns=100))[-1]
    assert "alpha" in last.prompt.l2
    assert [one.id for one in last.blocks] == ["a.md"]
    assert "Context attached:\n- a.md" in last.prompt.messages[-1].parts[0].text  # type: ignore[union-attr]


def test_an_item_not_referred_to_for_long_leaves_the_library() -> None:
    entries = [values.user("see", [note("a.md", "alpha")]), values.respond("ok"), *talk(60)[1:]]
    assert built(entries, Policy(budget=2_000, unused_turns=3))[-1].prompt.l2 == ""


@pytest.mark.parametrize("dense_first", [True, False])
def test_a_result_is_cut_until_it_fits_wherever_its_tokens_stand(dense_first: bool) -> None:
    """Of a text whose first lines hold more tokens than its last, so many characters are more tokens than on average."""
    dense, thin = "\n".join(f"{n}{{}}[]={n * 7:x}|~^%{n}" for n in range(400)), "\n".join(["no" + " " * 90] * 400)
    text = "\n".join((dense, thin) if dense_first else (thin, dense))
    entries = [values.system("Help."), values.user("do it"), *read(1, {}, text), values.respond("done")]
    for budget in range(1_000, 4_000, 250):
        assert all(one.tokens <= budget for one in built(entries, Policy(budget=budget)))


def test_a_huge_newest_result_is_cut_at_a_line() -> None:
    entries = [values.user("read"), values.call("c", "read", {}), values.result("c", None, LONG * 20)]
    last = built([*entries, values.respond("ok")], Policy(budget=1_000))[-1]
    text = last.prompt.messages[-1].parts[0].text  # type: ignore[union-attr]
    assert last.tokens <= 1_000
    assert "cut here" in text
    kept = text.split("\n[… cut")[0]
    assert (LONG * 20).startswith(kept + "\n")


@pytest.mark.parametrize("how", ["late", "context"])
def test_a_huge_result_is_cut_also_where_it_came_late_or_beside_the_users_words(how: str) -> None:
    beside = {"meta": {"placement": "context"}} if how == "context" else {}
    entries = [values.user("read"), values.call("c", "read", {}, **beside)]
    if how == "late":
        entries += [values.user("never mind"), values.respond("ok")]
    entries += [values.result("c", None, LONG * 20), values.respond("ok"), values.user("and now?")]
    numbered = list(chain([*entries, values.respond("ok")]))
    made = built(numbered, Policy(budget=1_000))
    cut = next(one for one in made if one.rebase)
    text = next(p.text for m in cut.prompt.messages for p in m.parts if "cut here" in p.text)  # type: ignore[union-attr]
    result = next(entry for entry in numbered if entry.kind == "result")
    assert handle_of(result.id) in text
    assert "row 0: value 0\nrow 1: value 7" in text
    assert result.seq not in {left.entry for left in cut.left_out}
    assert made[-1].tokens <= 1_000


def test_what_cannot_fit_is_refused_by_name() -> None:
    with pytest.raises(BudgetError, match=r"the user's message \d+"):
        Assembly(Policy(budget=200)).extend(chain([values.user("word " * 500)])).request()


def test_a_cold_cache_is_used_to_cut_early() -> None:
    entries = talk(30)
    timed = [Entry(e.kind, {**e.body, "at": n * (1_000 if n < 40 else 400_000)}) for n, e in enumerate(entries)]
    assert "cold" in [one.rebase["reason"] for one in built(timed, Policy(budget=4_000)) if one.rebase]


def test_drop_only_makes_no_handles_and_no_summary() -> None:
    made = built(loop(40), Policy(budget=8_000, handles=DROP_ONLY.handles, summary=DROP_ONLY.summary))
    actions = {edit["action"] for one in made if one.rebase for edit in one.rebase["edits"]}
    assert actions == {"drop"}
    assert not any("summary" in one.rebase for one in made if one.rebase)


def test_superseded_thinking_goes_at_a_rebase() -> None:
    entries = [values.system("Help.")]
    for n in range(40):
        entries += [values.user(f"q{n} " + "word " * 40), values.think(f"thought {n}"), values.respond("a " * 30)]
    rebased = first_cut(entries, Policy(budget=2_000, thinking=True))
    assert not any(type(part).__name__ == "Think" for m in rebased.prompt.messages for part in m.parts)


def test_a_superseded_version_leaves_the_turns_that_stay() -> None:
    entries = [*talk(30), values.user("old one", [note("a.md", "first version")]), values.respond("ok")]
    entries += [values.user("new one", [note("a.md", "second version")]), values.respond("ok"), *talk(12)[1:]]
    rebased = [one for one in built(entries, Policy(budget=2_000, ttl_s=None)) if one.rebase]
    kept = next(one for one in rebased if "second version" in one.prompt.l2)
    assert kept.prompt.l2.count("<note_context>") == 1
    assert "first version" not in str(kept.prompt)
    superseded = [edit for edit in kept.rebase["edits"] if edit["action"] == "supersede"]
    dropped = [edit for edit in kept.rebase["edits"] if edit["action"] == "drop"]
    old = next(entry.seq for entry in chain(entries) if entry.text == "old one")
    assert [edit["entry"] for edit in superseded] == [old] or old in [edit["entry"] for edit in dropped]


def test_a_repeated_read_is_shown_once() -> None:
    entries = [values.system("Help."), values.user("do it all")]
    for n in range(30):
        entries += read(n, {"path": "same.txt"}, LONG)
    rebased = first_cut([*entries, values.respond("done")], Policy(budget=8_000, handles=0.2))
    texts = {edit["replacement"] for edit in rebased.rebase["edits"] if edit["action"] == "handle"}
    assert texts == {"[read gave the same result again later; see there]"}


def test_layers_keep_their_shares() -> None:
    entries = [values.system("Help.")]
    for n in range(30):
        attached = note(f"{n}.md", f"note {n} " + "word " * 100)
        entries += [values.user(f"q{n}", [attached]), values.respond("a " * 60)]
    made = built(entries, Policy(budget=4_000, shares={"L2": 0.1, "L4": 0.5}, ttl_s=None))
    assert all(sum(one.sizes) <= 2_000 for one in made)
    assert made[-1].prompt.l2
    assert all(sum(len(b.text) for b in one.blocks) < 4_000 for one in made)
    with pytest.raises(BudgetError, match="L5 holds"):
        Assembly(Policy(budget=4_000, shares={"L5": 0.01})).extend(chain([values.user("word " * 90)])).request()


def test_the_floor_stays_even_where_handles_and_summary_have_to_go_for_it() -> None:
    entries = [values.user("do it")]
    for n, size in enumerate([50] * 10 + [480, 440, 5]):
        entries += read(n, {"n": n}, "word " * size)
    policy = Policy(budget=1_000, ttl_s=None, when="full", floor=0.5, handles=0.125, summary=0.0625)
    whole = built([*entries, values.respond("done")], Policy())[-1]
    last = built([*entries[:-2], values.respond("done")], policy)[-1]
    verbatim = [size for message, size in zip(last.prompt.messages, last.sizes, strict=True) if size > 400]
    assert last.rebase is not None
    assert len(verbatim) == 2
    assert sum(verbatim) >= 500
    assert {m.seqs for m in last.prompt.messages} <= {m.seqs for m in whole.prompt.messages} | {()}


def test_tools_in_front_of_a_changed_system_message_count_as_reused() -> None:
    tool = {"name": "read", "description": "reads", "parameters": {"type": "object", "properties": {}}}
    item = {"content": "A", "metadata": {"source": "note", "path": "a.md", "title": "a"}}
    entries = [values.system("S"), values.tools([tool]), values.user("q", [item]), values.respond("r")]
    first, second = built([*entries, values.user("q2"), values.respond("r2")], Policy(promote="each-turn"))
    assert first.prompt.system != second.prompt.system
    assert reused_tokens(first, second) == tools_tokens([tool])


def test_a_name_that_has_to_be_spelled_anew_is_within_the_count() -> None:
    entries = [values.user("q"), values.call("c", "read a file.now", {}), values.result("c", None, "x")]
    one = built([*entries, values.respond("r")], Policy())[-1]
    call = render(one.prompt, "openai-chat:").body["messages"][1]["tool_calls"][0]["function"]
    assert call["name"] != "read a file.now"
    assert one.sizes[1] >= 4 + counter().count(call["name"]) + counter().count(call["arguments"])


def test_a_rebase_that_names_content_nobody_attached_is_a_clear_error() -> None:
    library = [{"id": "a.md", "sha256": "a" * 64}]
    record = {"kind": "rebase", "reason": "x", "before_seq": 0, "library": library, "edits": [], "freed": 0}
    with pytest.raises(DataError, match=r"a\.md"):
        list(requests([values.user("q"), Entry("rebase", record), values.respond("r")], Policy()))


def test_a_request_that_leaves_no_room_for_another_cuts_before_what_is_new_is_written_twice() -> None:
    entries = [*talk(8), values.user("big " + "word " * 700), values.respond("ok"), *talk(8)[1:]]
    policy = Policy(budget=4_000, ttl_s=None, floor=0.2, handles=0.0, summary=0.0, read=0.0)
    whole = built(entries, Policy(budget=10**9, when="full"))
    # The large question is not cached yet, and an epoch that had little room left loses little.
    at = next(n for n, one in enumerate(whole) if "big " in one.query)
    for room, expected in ((10, "brim"), (1_500, "")):
        tight = msgspec.structs.replace(policy, budget=whole[at].tokens + room)
        made = built(entries, tight)
        assert (made[at].rebase or {"reason": ""})["reason"] == expected
        assert all(one.tokens <= tight.limit for one in made)


@pytest.mark.parametrize(("removed", "expected"), [(1_200, ""), (9_000, "rent")])
def test_a_cheap_moment_is_worth_no_more_than_what_would_go(removed: int, expected: str) -> None:
    usual = Rent(requests=8, cached_tokens=14_000, samples=40, remaining=15_000)
    moment = Moment(
        True, remaining=15_800, removed_tokens=removed, cached_tokens=7_000, room=8_000, cold=False, rent=usual
    )
    assert reason_to_cut(moment, Policy()) == expected


def _raises(error: Exception) -> Callable[[Leaving], str]:
    def summarise(gone: Leaving) -> str:
        raise error

    return summarise


async def _later(gone: Leaving) -> str:
    return "said later"


@pytest.mark.parametrize(
    ("summarise", "told"),
    [
        (_raises(RuntimeError("network down")), "summary failed: network down"),
        (_raises(TimeoutError()), "summary failed: TimeoutError"),
        (_later, "summary failed: returned a coroutine; pass a plain function"),
        (_raises(DataError("the model was away")), "summary failed: the model was away"),
        (lambda gone: "word " * gone.limit * 3, "summary was longer than allowed"),
        (lambda gone: "", "summary was empty"),
        (lambda gone: None, "summary was empty"),
        (lambda gone: " \n", "summary was empty"),
        (lambda gone: {"summary": "x"}, "summary was no text but dict"),
        (lambda gone: b"x", "summary was no text but bytes"),
        (lambda gone: True, "summary was no text but bool"),
        (lambda gone: "\ud800 hi", "summary was no valid text: surrogates not allowed"),
    ],
)
def test_a_bad_summary_gives_way_to_the_built_in_and_says_why(summarise: Callable[[Leaving], str], told: str) -> None:
    rebased = first_cut(talk(60), Policy(budget=3_000), summarise=summarise)
    assert rebased.rebase["summary"].startswith("User: question 0")
    assert rebased.rebase["meta"]["fallbacks"] == [told]


def test_a_summariser_is_asked_once_for_what_several_rungs_would_take_away() -> None:
    asked = list[Leaving]()
    entries = [*talk(12), values.user("look"), values.call("1", "read", {}), values.result("1", None, "line\n" * 900)]
    assembly = Assembly(Policy(budget=1_500), lambda gone: asked.append(gone) or "what went").extend(chain(entries))
    assert assembly.request().rebase
    assert len(asked) == 1


def test_pinned_calls_attachments_and_items_that_no_library_holds_stay_verbatim() -> None:
    pinned = {"meta": {"pin": True}}
    selected = note("s.md", "the SELECTED words", source="selection", start_line=1, end_line=2, pin=True)
    entries = [values.system("Help."), values.attach(note("a.md", "the ATTACHED words"), **pinned)]
    entries += [values.user("begin", [selected]), values.call("1", "lookup", {"x": "PLUMBAGO"}, **pinned)]
    entries += [values.result("1", None, "found")]
    entries += [values.user("keep 'no more than SEVEN', please", meta={"pin": "no such span"}), *talk(80)[1:]]
    made = built(entries, Policy(budget=2_000, unused_turns=3))
    assert sum(one.rebase is not None for one in made) > 2
    for words in ("the ATTACHED words", "the SELECTED words", "PLUMBAGO", "no more than SEVEN"):
        assert all(words in str(one.prompt) for one in made[2:]), words
    assert 'lookup {"x":"PLUMBAGO"}' in str(made[-1].prompt)
    assert not any("no such span" in str(one.prompt) for one in made)


def test_the_envelope_tells_this_turns_context_from_an_earlier_ones_after_a_rebase() -> None:
    entries = [values.system("S"), values.user("old " * 200), values.respond("x " * 200)]
    entries += [values.user("q1", [note("n1.md", "hi " * 30)]), values.respond("y " * 60)]
    entries += [values.user("plain question"), values.respond("z")]
    last = built(entries, Policy(budget=500, handles=0.0, summary=0.0))[-1]
    assert last.epoch == 2
    assert not enclose(last, chat_messages(last)).layers[2].segments


def test_the_envelope_finds_the_users_message_in_front_of_a_summary() -> None:
    last = built(loop(100), Policy(budget=8_000, opening=0.2), summarise=lambda gone: "what went")[-1]
    sealed = enclose(last, chat_messages(last))
    assert SUMMARY_HEADING in sealed.layers[3].text
    assert "do it all" not in sealed.layers[3].text
    assert sealed.layers[4].text == "do it all"


def test_an_item_that_leaves_the_library_is_explained_and_one_that_stays_is_not() -> None:
    entries = [values.system("S"), values.user("old " * 150), values.respond("x " * 150)]
    entries += [values.attach(note("n1.md", "SECRET1 " * 10)), values.user("q1"), values.respond("y")]
    for n in range(3, 12):
        entries += [values.user(f"q{n} " + "w " * 15), values.respond("a " * 15)]
    policy = Policy(budget=600, handles=0.0, summary=0.0, promote="each-turn", unused_turns=2, floor=0.6)
    made = built(entries, policy)
    assert any("SECRET1" in one.prompt.l2 for one in made)
    for one in made[2:]:
        reasons = [left.reason for left in one.left_out if left.entry == 4]
        assert bool(reasons) == ("SECRET1" not in str(one.prompt))


def test_the_librarys_share_is_kept_at_a_rebase_that_cuts_nothing() -> None:
    entries = [values.user("q1", [note("n.md", "word " * 300)]), values.respond("a")]
    entries += [values.user("q2"), values.respond("b")]
    policy = Policy(budget=1_000, shares={"L2": 0.05}, promote="each-turn")
    assert [one.prompt.l2 for one in built(entries, policy)] == ["", ""]


def test_an_answer_without_usage_that_was_spoken_to_has_ended() -> None:
    body = {"kind": "sent", "provider": "openai-chat", "model": "m", "request_sha256": "0" * 64, "segments": []}
    sent = Entry("sent", body)
    entries = [values.user("q"), sent, values.respond("first answer"), values.note("be brief")]
    made = built([*entries, sent, values.respond("second")], Policy())
    assert len(made) == 2
    assert "first answer" in str(made[1].prompt)
    assert not made[1].left_out


@pytest.mark.parametrize(
    "entry",
    [
        values.note("n", meta={"pins": 5}),
        values.note("n", meta={"pins": [[1]], "shown": 5}),
        values.attach({"id": "a", "type": "text", "content": "c", "metadata": {"source": ["x"]}}),
        Entry("rebase", {"kind": "rebase", "reason": "r", "before_seq": 0, "library": [], "freed": 0,
                         "edits": [{"entry": 2, "action": "handle", "replacement": None, "freed": 0}],
                         "meta": {"opening": "x", "pinned": [5]}}),
    ],
)  # fmt: skip
def test_free_fields_that_cannot_be_used_are_as_if_absent(entry: Entry) -> None:
    thread = chain([values.user("q"), values.respond("a"), entry, values.user("q2"), values.respond("b")])
    assert all(isinstance(one, Built) for one in requests(thread, Policy()))


@pytest.mark.parametrize("dropped", [True, False])
def test_thinking_in_front_of_an_open_call_stays_unless_the_recorded_rebase_dropped_it(
    thread: Thread, dropped: bool
) -> None:
    thread.user("Where?")
    thread.request("anthropic:claude-haiku-4-5")
    thought = {"type": "thinking", "thinking": "Hm, there.", "signature": "c2ln"}
    content = [thought, {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]
    recorded = thread.record({"type": "message", "role": "assistant", "content": content, "stop_reason": "tool_use"})
    seq = next(entry.seq for entry in recorded if entry.kind == "think")
    edits = (Edit(seq, "drop"),) if dropped else ()
    thread.append(values.result("toolu_1", content="seen"))
    thread.append(Entry("rebase", Rebase("tools moved", edits=edits).body()))
    request = thread.request("anthropic:claude-haiku-4-5", check=False)
    assert (request.epoch, "Hm, there." in str(request.body)) == (2, not dropped)
