"""recall: what left the prompt is found again, by words or by the handle that stands for it."""

import pytest
from running import run

from quire import Entry, Policy, Thread, values
from quire.assemble.messages import handle_of
from quire.send.builtin import builtin, recall_tool
from quire.send.tools import Tool
from toolbox import Store


def rebase(*gone: int) -> Entry:
    """A cut after which the prompt shows these entries no longer."""
    edits = [{"entry": seq, "action": "drop", "freed": 1} for seq in gone]
    body = {"kind": "rebase", "reason": "budget", "before_seq": 0, "library": [], "edits": edits, "freed": 1}
    return Entry("rebase", body)


@pytest.fixture
def store(store: Store) -> Store:
    text = "\n".join(f"line {n} of the long result" for n in range(1, 401))
    said = [values.user("Which key opens the greenhouse?"), values.respond("The brass key with the green ribbon.")]
    read = [values.call("c1", "read", {"path": "log.txt"}), values.result("c1", "log.txt, lines 1-400", text)]
    store.append("t", [*said, *read, rebase(1, 2)])
    store.append("other", [values.user("The greenhouse key is secret here.")])
    return store


@pytest.fixture
def recall(store: Store) -> Tool:
    return recall_tool(store, "t", limit=2000)


def test_earlier_words_are_found_in_this_thread_alone(recall: Tool) -> None:
    found = run(recall, {"query": "greenhouse key"})
    assert "brass key with the green ribbon" in found["content"]
    assert "secret" not in found["content"]


def test_what_the_next_request_shows_is_not_found_again(store: Store, recall: Tool) -> None:
    store.append("t", [values.user("the greenhouse key again?"), values.call("c2", "recall", {"query": "key"})])
    found = run(recall, {"query": "greenhouse key"})
    assert "Which key opens the greenhouse?" in found["content"]
    assert "again?" not in found["content"]
    assert "line 1 of" not in run(recall, {"query": "long result"})["content"]
    other = run(recall_tool(store, "other"), {"query": "greenhouse key"})
    assert (other.get("content"), other["outcome"]) == (None, "nothing was found that is not shown already")
    store.append("t", [rebase(4)])
    assert "line 1 of the long result" in run(recall, {"query": "long result"})["content"]


@pytest.mark.moves_prefix(reason="each turn's context leaves the prompt behind it")
def test_context_of_an_earlier_turn_is_found_where_only_its_query_stays(store: Store) -> None:
    thread, target = Thread(store, "e", Policy(promote="each-turn")), "openai-chat:gpt-4.1"
    beside = {"meta": {"placement": "context"}}
    thread.append(values.user("what of the harbour?"), values.call("c", "search", {}, **beside))
    thread.append(values.result("c", None, "the harbour opens at nine", **beside))
    thread.append(thread.sent_entry(thread.request(target)), values.respond("it opens then"))
    thread.user("and the mill?")
    thread.append(thread.sent_entry(thread.request(target)), values.call("r", "recall", {"query": "harbour"}))
    found = run(recall_tool(store, "e"), {"query": "harbour"})["content"]
    assert found == "# Recent Tool Results\n• search: the harbour opens at nine"


def test_a_handle_gives_the_whole_text_piece_by_piece(store: Store, recall: Tool) -> None:
    entry = store.read("t")[3]
    seen: list[str] = []
    start = 1
    for _ in range(20):
        result = run(recall, {"handle": handle_of(entry.id), "start": start})
        lines = result["content"].split("\n")
        more = lines[-1].startswith("[…")
        seen += lines[:-1] if more else lines
        if not more:
            break
        start = int(lines[-1].rpartition("start=")[2].split()[0])
    assert "\n".join(seen) == f"log.txt, lines 1-400\n\n{entry.body['content']}"
    assert result["outcome"].startswith("entry 4 (result), lines ")


def test_a_handle_of_another_thread_is_not_found_and_a_forks_is(store: Store, recall: Tool) -> None:
    other, own = store.read("other")[0], store.read("t")[1]
    assert run(recall, {"handle": handle_of(other.id)})["error"] is True
    assert run(recall, {"handle": "no digits"})["error"] is True
    fork = store.fork("t", 2)
    assert run(recall_tool(store, fork), {"handle": own.id})["content"] == own.text
    assert run(recall_tool(store, fork), {"handle": store.read("t")[3].id})["error"] is True


def test_a_call_without_anything_to_look_for_is_an_error(recall: Tool) -> None:
    for args in ({}, {"query": "  "}, {"query": "x", "k": 0}, {"handle": "0", "start": 0}):
        assert run(recall, args)["error"] is True


def test_recall_belongs_to_the_built_in_set_where_there_is_a_thread(store: Store) -> None:
    assert [one.name for one in builtin(None, store, "t")] == ["calculate", "recall"]
