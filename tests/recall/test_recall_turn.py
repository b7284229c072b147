"""What joins a turn: only what the next request does not show, and as many as were asked for."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from quire import values
from quire.assemble import Policy
from quire.log.sqlite import SqliteStore
from quire.thread import Thread, open_store
from quire.values import Reply, Usage

TARGET = "openai-chat:gpt-4.1"
FILLER = "\n".join(f"row {n} ordinary filler text about inventory" for n in range(40))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with open_store(tmp_path / "quire.db") as made:
        yield made


def handled(store: SqliteStore) -> Thread:
    """A thread whose older results stand in its prompt as handles."""
    thread = Thread(store, "t", Policy(budget=4000, floor=0.25, handles=0.5, summary=0), clock=lambda: 0)
    for n in range(8):
        thread.append(
            values.user(f"please do step {n}"),
            values.call(f"c{n}", "read", {"n": n}),
            values.result(f"c{n}", None, f"{FILLER}\nthe zanzibar passphrase number {n} is quokka-{n}\n{FILLER}"),
        )
        request = thread.request(TARGET)
        usage = Usage(input_total=thread.build(TARGET).tokens, output=3)
        thread.append(thread.sent_entry(request, Reply((), usage, "stop")), values.respond(f"done {n}"))
    return thread


@pytest.mark.moves_prefix(reason="a small budget, so that results become handles")
def test_what_a_handle_cut_away_is_recalled_and_what_stands_whole_is_not(store: SqliteStore) -> None:
    thread = handled(store)
    prompt = str(thread.build(TARGET).prompt.messages)
    assert "recall with handle" in prompt
    assert "quokka-4" not in prompt
    assert "quokka-7" in prompt
    asked = thread.user("what is the zanzibar passphrase number 4?", recall=8)
    found = {store.find(id)[1].seq for id in asked.meta["recalled_ids"]}  # type: ignore[index]
    texts = {seq: entry.body.get("content", "") for seq, entry in enumerate(store.read("t"), 1)}
    assert any("quokka-4" in texts[seq] for seq in found)
    assert not any("quokka-7" in texts[seq] for seq in found)


@pytest.mark.moves_prefix(reason="a small budget, so that results become handles")
def test_a_thread_recalls_what_its_next_request_does_not_show_unless_told_otherwise(store: SqliteStore) -> None:
    thread = handled(store)
    question = thread.user("what is the zanzibar passphrase number 4?")
    found = thread.recall(question.text, k=20)
    assert found[0].entry.body["content"].count("quokka-4") == 1
    assert question.seq not in {hit.seq for hit in found}
    assert question.seq in {hit.seq for hit in thread.recall(question.text, k=20, exclude=())}
    assert question.seq not in {hit.seq for hit in thread.recall(question.text, k=20, scope="threads")}


@pytest.mark.moves_prefix(reason="a small budget, so that notes and items leave the prompt")
def test_all_of_a_turns_places_go_to_what_can_stand_there(store: SqliteStore) -> None:
    thread = Thread(store, "t", Policy(budget=900, summary=0, handles=0, unused_turns=1), clock=lambda: 0)
    thread.append(values.user("the walrus code is 7719"), values.respond("noted the walrus code"))
    for n in range(30):
        thread.append(values.note(f"walrus code rule {n}: mention the walrus code politely"))
        text = f"walrus code guide number {n}: the walrus code"
        source = {"source": "note", "path": f"w{n}.md"}
        thread.append(values.attach({"id": f"w{n}.md", "type": "text", "content": text, "metadata": source}))
        thread.user(f"filler {n} blah")
        request = thread.request(TARGET)
        thread.append(thread.sent_entry(request, Reply((), Usage(), "stop")), values.respond("fine"))
    assert "note" in {hit.entry.kind for hit in thread.recall("what is the walrus code?", k=3)}
    asked = thread.user("what is the walrus code?", recall=3)
    assert len(asked.meta["recalled_ids"]) == 3
