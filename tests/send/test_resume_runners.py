"""Every runner may be cut behind any entry: amid its plan, its search, its parallel calls, its summary."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from send_parts import tool_results

from quire import Entry, Policy, Thread, validate
from quire.notes import NoteIndex
from quire.notes.vault import Vault
from quire.send.cycle import look
from quire.send.runners import PLANNER, ByModel, agent, planned, qa
from quire.send.tools import tool
from quire.send.turn import Limits
from quire.testing import Emulator, MemoryStore, assert_valid, emulator
from quire.values import Call, JsonObject, Text
from toolbox import TARGETS, Outcome, Runner, Store, carry_out

TARGET = TARGETS["anthropic"]
ran: list[str] = []


@tool(idempotent=True)
def look_up(word: str) -> str:
    """Look a word up.

    word: which one
    """
    ran.append(f"look_up {word}")
    return f"{word}: a word"


@tool
def write(word: str) -> str:
    """Write a word down, for good.

    word: which one
    """
    ran.append(f"write {word}")
    return f"{word} is written"


TOOLS = (look_up, write)
PLAN = [{"tool": name, "args": {"word": word}} for name, word in (("look_up", "tea"), ("look_up", "cup"), ("write", "tea"))]  # fmt: skip


def planning(body: JsonObject) -> str:
    """A model that plans three calls, and answers when it is not asked for a plan."""
    return json.dumps(PLAN) if PLANNER[:40] in json.dumps(body) else "Planned and done."


def calling(body: JsonObject) -> list[Any]:
    """A model that calls four times at once, and then answers."""
    if tool_results(body):
        return [Text("Looked up and written.")]
    named = (("look_up", "tea"), ("look_up", "cup"), ("write", "tea"), ("look_up", "pot"))
    return [Text("All at once."), *(Call(f"c{n}", name, {"word": w}) for n, (name, w) in enumerate(named))]


def summing(body: JsonObject) -> str:
    last = json.dumps(body["messages"][-1])
    return "We spoke of the harbor." if "summarise our conversation" in last else "It stands. " * 12


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[NoteIndex]:
    (tmp_path / "vault").mkdir()
    (tmp_path / "vault" / "tea.md").write_text("Green tea needs water of 80 degrees, never more.")
    with NoteIndex(Vault(tmp_path / "vault"), tmp_path / "notes.db") as index:
        index.update()
        yield index


class Cut(msgspec.Struct, frozen=True):
    """A turn that ended behind some entry and was carried on."""

    entries: list[Entry]
    doubtful: tuple[Entry, ...]
    ran: list[str]
    results: list[str]


def cut_everywhere(
    server: Emulator, runner: Runner, begun: Callable[[Store], Thread], *questions: str
) -> Iterator[Cut]:
    """Carry turns out; then the last one again, from behind each of its entries."""
    with MemoryStore() as store:
        for question in questions:
            first = len(store.read("t")) + 1 if store.threads() else 1
            thread = begun(store)
            thread.user(question)
            whole, bodies = sent(server, thread, runner)
        entries = store.read("t")
    for kept in range(first, len(entries)):
        if in_one_step(entries[kept - 1], entries[kept]):
            continue
        ran.clear()
        with MemoryStore() as store:
            store.append("t", [Entry(entry.kind, entry.body) for entry in entries[:kept]])
            found = look(store, "t", runner).doubtful
            again, later = sent(server, begun(store), runner)
            results = [entry.call_id for entry in store.read("t") if entry.kind == "result"]
            store.verify()
        assert again.text == whole.text
        # A question beside the turn may be asked again; whatever is sent is what the whole run sent.
        assert all(body in bodies for body in later), f"behind {entries[kept - 1].kind} {kept}"
        assert later[-1:] in ([], bodies[-1:])
        yield Cut(entries[:kept], found, list(ran), results)


def in_one_step(entry: Entry, following: Entry) -> bool:
    """The calls of a plan go into the log together: nothing can come between them."""
    return all(one.kind == "call" and one.meta.get("placement") for one in (entry, following))


def sent(server: Emulator, thread: Thread, runner: Runner) -> tuple[Outcome, list[JsonObject]]:
    """Carry the newest turn on; how it ended, and the requests that this took."""
    before = len(server.requests)
    # As a careful caller decides who knows that the call in doubt had not begun.
    outcome = carry_out(thread, TARGET, server.url, runner, decide=lambda call: "run")
    bodies = [received.body for received in server.requests[before:]]
    assert all(validate(body, "anthropic", body["model"]) == [] for body in bodies)
    return outcome, bodies


@pytest.mark.parametrize("how", ["planned", "agent"])
@pytest.mark.moves_prefix(reason="every cut begins the turn again, and plans stand beside it")
def test_calls_side_by_side_are_neither_lost_nor_made_twice(how: str) -> None:
    runner, reply = (planned(TOOLS), planning) if how == "planned" else (agent(TOOLS), calling)
    calls = 3 if how == "planned" else 4
    with emulator("anthropic", reply, piece=16) as server:
        cuts = list(cut_everywhere(server, runner, lambda store: Thread(store, "t"), "Do it."))
    for cut in cuts:
        assert len(cut.results) == len(set(cut.results)) == calls
        # What had a result is not run again; everything else is run, once.
        assert len(cut.ran) == calls - sum(entry.kind == "result" for entry in cut.entries)
        # Only what may change something is in doubt, and only once everything in front of it is done.
        assert [call.name for call in cut.doubtful] in ([], ["write"])
    assert any(cut.doubtful for cut in cuts)
    assert any(0 < len(cut.ran) < calls for cut in cuts), "no cut came amid the calls"


@pytest.mark.moves_prefix(reason="every cut begins the turn again")
def test_a_search_that_was_cut_off_is_made_again(notes: NoteIndex) -> None:
    with emulator("anthropic", lambda body: "Eighty [^1].", piece=16) as server:
        cuts = list(cut_everywhere(server, qa(notes), lambda store: Thread(store, "t"), "How hot is tea?"))
    assert {cut.entries[-1].kind for cut in cuts} == {"user", "call", "result", "sent", "respond"}


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
def test_a_summary_that_was_cut_off_is_asked_for_again() -> None:
    policy = Policy(budget=900, floor=0.4, when="full", summary=0.2)
    questions = [f"Question {turn}: " + "what about the harbor? " * 14 for turn in range(8)]
    with emulator("anthropic", summing) as server:
        for turns in range(4, 9):
            made = lambda store: Thread(store, "t", policy, ByModel())  # noqa: E731
            cuts = list(cut_everywhere(server, Runner(), made, *questions[:turns]))
            asked = [cut for cut in cuts if cut.entries[-1].meta.get("aside") == "summary"]
            if asked:
                break
    assert [cut.entries[-1].kind for cut in cuts] == ["user", "sent", "rebase", "sent", "respond"]


def test_a_turn_may_go_on_with_another_model(store: Store) -> None:
    """Half a cycle with one provider, the rest with another: the log is the same, the bodies obey both."""
    ran.clear()
    thread = Thread(store, "t")
    thread.user("Do it.")
    with emulator("anthropic", calling) as server:
        one_step = msgspec.structs.replace(agent(TOOLS), limits=Limits(steps=1))
        assert carry_out(thread, TARGET, server.url, one_step).stop == "steps"
    with emulator("openai-chat", calling) as server:
        outcome = carry_out(Thread(store, "t"), TARGETS["openai-chat"], server.url, agent(TOOLS))
        (body,) = [received.body for received in server.requests]
    assert outcome.text == "Looked up and written."
    assert_valid(body, "openai-chat", body["model"])
    assert tool_results(body) == 4
    store.verify()
    assert sorted(ran) == ["look_up cup", "look_up pot", "look_up tea", "write tea"]
