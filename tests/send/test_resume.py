"""A turn that was interrupted anywhere goes on from the log, and sends what it would have sent."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from send_parts import Noted, new_thread, one_turn, ten_calls, tool

from quire import Entry, Policy, Thread, values
from quire.errors import CallError, ProviderError
from quire.send.cycle import last_target, look
from quire.send.tools import Toolbox
from quire.send.tools import tool as make_tool
from quire.send.turn import Limits, standing, without_cut
from quire.testing import Emulator, MemoryStore, assert_valid, emulator
from quire.values import Call, Text
from toolbox import TARGETS, Runner, carry_out, transport_for

PROVIDERS = ["anthropic", "openai-chat"]
# Small enough that the ten calls rebase on the way: decisions must come out the same after a crash.
SMALL = Policy(budget=1300, floor=0.4)
SAID = [(values.user(f"Question {turn}. " * 40), values.respond(f"Answer {turn}. " * 30)) for turn in range(4)]
OLD = [entry for pair in SAID for entry in pair]


def runner(tools: Noted | None = None) -> Runner:
    return Runner(tools=tools or Noted(tool("append", idempotent=True)), system="Write lines. " * 20)


@pytest.fixture(scope="module", params=PROVIDERS)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[str, Emulator]]:
    with emulator(request.param, ten_calls, piece=8) as running:
        yield TARGETS[request.param], running


def whole_run(target: str, server: Emulator, path: Path) -> tuple[list[Entry], list[Any]]:
    """The uninterrupted run: its entries and the bodies it sent."""
    before = len(server.requests)
    thread = new_thread(path, policy=SMALL)
    thread.append(*OLD, values.user("Write ten lines, please."))
    assert carry_out(thread, target, server.url, runner()).text == "All ten lines are written."
    with thread.store as store:
        return store.read("t"), [received.body for received in server.requests[before:]]


@pytest.mark.moves_prefix(reason="a small budget rebases on the way")
def test_a_cycle_cut_behind_any_entry_sends_the_very_requests_of_the_whole_run(
    server: tuple[str, Emulator], tmp_path: Path
) -> None:
    target, running = server
    entries, bodies = whole_run(target, running, tmp_path / "whole.db")
    assert len(bodies) == 11
    assert any(entry.kind == "rebase" for entry in entries)
    for kept in range(len(OLD) + 1, len(entries)):
        before = len(running.requests)
        # To the end now and then, else two steps on: what follows them is what follows a later cut.
        answered = sum(entry.kind == "sent" and "usage" in entry.body for entry in entries[:kept])
        last = 11 if kept % 5 == 0 else min(answered + 2, 11)
        carried = msgspec.structs.replace(runner(), limits=Limits(steps=last))
        with MemoryStore() as store:
            store.append("t", [Entry(entry.kind, entry.body) for entry in entries[:kept]])
            outcome = carry_out(Thread(store, "t", SMALL), target, running.url, carried)
            store.verify()
        assert outcome.text == "All ten lines are written." or last < 11
        sent = [received.body for received in running.requests[before:]]
        # Byte for byte, cache marks included.
        assert sent == bodies[last - len(sent) : last], f"cut behind entry {kept} ({entries[kept - 1].kind})"
        assert outcome.steps == last


def test_finished_results_are_used_and_never_run_again(thread: Thread) -> None:
    with emulator("anthropic", ten_calls) as server:
        thread.user("Write ten lines.")
        first, second = Noted(tool("append")), Noted(tool("append"))
        carry_out(thread, TARGETS["anthropic"], server.url, Runner(tools=first, limits=Limits(steps=4)))
        transport = transport_for(TARGETS["anthropic"], server.url, "key", via="http")
        assert thread.resume(transport, runner=Runner(tools=second)).stop == "answered"
    lines = [call.args["line"] for call in [*first.calls, *second.calls]]
    assert lines == list(range(1, 11))
    assert [call.args["line"] for call in first.calls] == [1, 2, 3, 4]


def in_doubt(path: Path, *calls: Call) -> Thread:
    """A thread whose reply has ended and whose calls have no result."""
    thread = new_thread(path)
    thread.append(values.user("Do it."), values.tools([tool("write"), tool("read", idempotent=True)]))
    request = thread.request(TARGETS["anthropic"])
    said = [values.call(one.call_id, one.name, one.args) for one in calls]
    thread.append(thread.sent_entry(request), *said)
    usage = {"usage": {"input_total": 10, "output": 2}, "stop": "tool_use"}
    thread.append(Entry("sent", {**thread.sent_entry(request).body, **usage}))
    return thread


def test_a_call_that_may_have_run_is_listed_and_answered_as_interrupted(tmp_path: Path) -> None:
    write = (Call("w1", "write", {"line": 1}), Call("w2", "write", {"line": 2}))
    thread = in_doubt(tmp_path / "t.db", *write)
    tools = Noted(tool("write"), tool("read", idempotent=True))
    found = look(thread.store, "t", Runner(tools=tools))
    assert [call.call_id for call in found.doubtful] == ["w1"]
    assert [call.call_id for call in found.waiting] == ["w2"]
    assert (found.next, found.target) == ("run", TARGETS["anthropic"])
    _, (body,) = one_turn(thread, "", ["I see."], Runner(tools=tools))
    results = body["messages"][-1]["content"]
    # The second of two calls that run one at a time has certainly not begun.
    assert [call.call_id for call in tools.calls] == ["w2"]
    told = [(one["content"], one.get("is_error")) for one in results]
    assert told == [("(interrupted: no result was recorded)", True), ("line 2 is written", None)]


def test_an_idempotent_call_runs_again(tmp_path: Path) -> None:
    thread = in_doubt(tmp_path / "t.db", Call("r1", "read", {"line": 1}), Call("w1", "write", {"line": 2}))
    tools = Noted(tool("write"), tool("read", idempotent=True))
    assert look(thread.store, "t", Runner(tools=tools)).doubtful == ()
    one_turn(thread, "", ["I see."], Runner(tools=tools))
    assert [call.call_id for call in tools.calls] == ["r1", "w1"]


@pytest.mark.parametrize("decision", ["run", "result"])
def test_the_caller_decides_what_becomes_of_a_call_in_doubt(decision: str, tmp_path: Path) -> None:
    thread, tools = in_doubt(tmp_path / "t.db", Call("w1", "write", {"line": 1})), Noted(tool("write"))

    def decide(call: Entry) -> Any:
        return "run" if decision == "run" else values.result(call.call_id, "it had run")

    one_turn(thread, "", ["I see."], Runner(tools=tools), decide=decide)
    told = [entry.body["outcome"] for entry in thread.store.read("t") if entry.kind == "result"]
    assert told == (["line 1 is written"] if decision == "run" else ["it had run"])
    assert len(tools.calls) == (decision == "run")


@pytest.mark.parametrize("decision", [None, "skip", values.result("another", "it had run"), values.respond("It had.")])
def test_what_is_no_decision_runs_nothing(decision: Any, tmp_path: Path) -> None:
    thread, tools = in_doubt(tmp_path / "t.db", Call("w1", "write", {"line": 1})), Noted(tool("write"))
    before = thread.entries
    with pytest.raises(CallError, match="w1") as caught:
        one_turn(thread, "", ["I see."], Runner(tools=tools), decide=lambda call: decision)
    assert "interrupted" in caught.value.hint
    assert (tools.calls, thread.entries) == ([], before)


def test_calls_of_a_reply_that_broke_off_are_not_run(thread: Thread) -> None:
    thread.append(values.user("Do it."), values.tools([tool("write")]))
    request = thread.request(TARGETS["anthropic"])
    thread.append(thread.sent_entry(request), values.call("w1", "write", {"line": 1}))
    assert look(thread.store, "t").next == "ask"
    assert look(thread.store, "t").doubtful == ()
    tools = Noted(tool("write"))
    assert one_turn(thread, "", ["Never mind."], Runner(tools=tools))[1] == [{**request.body, "stream": True}]
    assert tools.calls == []
    shown = [entry.kind for entry in without_cut(thread.store.read("t")) if entry.kind != "sent"]
    assert shown == ["user", "tools", "respond"]


def test_a_turn_that_is_over_is_left_alone(thread: Thread) -> None:
    with emulator("anthropic", ["Hello."]) as server:
        thread.user("Hello")
        carry_out(thread, TARGETS["anthropic"], server.url)
        before = thread.store.read("t")
        transport = transport_for(TARGETS["anthropic"], server.url, "key", via="http")
        assert thread.resume(transport).text == "Hello."
        assert thread.store.read("t") == before


@pytest.mark.moves_prefix(reason="old turns are cut on the way")
def test_a_pause_of_days_moves_no_byte_of_the_turn_at_hand(tmp_path: Path) -> None:
    """Only a new turn may find the cache cold; within one, the log decides and not the clock."""
    now = [1_700_000_000_000]
    policy = Policy(budget=3000, ttl_s=300)
    with emulator("anthropic", ten_calls, clock=lambda: now[0]) as server:
        bodies = []
        for name, pause in (("straight", 0), ("paused", 86_400_000)):
            thread = new_thread(tmp_path / f"{name}.db", policy=policy, clock=lambda: now[0])
            thread.append(values.user("Long ago. " * 300, at=now[0]), values.respond("So it was. " * 200))
            thread.append(values.user("Write ten lines.", at=now[0]))
            for steps in range(1, 13):
                how = Runner(tools=Noted(tool("append", idempotent=True)), limits=Limits(steps=steps))
                carry_out(thread, TARGETS["anthropic"], server.url, how)
                now[0] += pause
            bodies.append([received.body for received in server.requests[-11:]])
    assert bodies[0] == bodies[1]


def test_the_model_that_was_asked_last_is_asked_again(thread: Thread) -> None:
    thread.user("Hello")
    assert last_target(thread.store, "t") == ""
    with pytest.raises(CallError, match="never sent"):
        thread.resume()
    thread.append(thread.sent_entry(thread.request(TARGETS["anthropic"])))
    assert last_target(thread.store, "t") == TARGETS["anthropic"]
    with pytest.raises(ProviderError, match="no API key for anthropic"):
        thread.resume()


def test_a_reply_of_parallel_calls_in_any_state_obeys_the_rules(thread: Thread) -> None:
    """Cut behind every entry, and the user goes on instead: what is sent is legal all the same."""
    calls = [Call(f"c{n}", "read", {"line": n}) for n in range(3)]
    tools = Noted(tool("read", idempotent=True))
    one_turn(thread, "Read three lines.", [[Text("All three."), *calls], "Done."], Runner(tools=tools))
    entries = thread.store.read("t")
    for kept in range(1, len(entries)):
        name = f"cut-{kept}"
        thread.store.append(name, [Entry(entry.kind, entry.body) for entry in entries[:kept]])
        again = Thread(thread.store, name)
        again.user("Never mind. What is two and two?")
        for target in TARGETS.values():
            assert_valid(again.request(target))
        assert standing(thread.store, name).next == "ask"


def test_tools_the_model_was_not_told_of_run_again_all_the_same(thread: Thread) -> None:
    """A search that was chosen before the model spoke, and a call in words, know their tool."""

    @make_tool(idempotent=True)
    def search(line: int) -> str:
        """Look it up."""
        return f"found {line}"

    thread.append(values.user("Look it up."))
    thread.append(values.call("k1", "search", {"line": 1}, meta={"placement": "context"}))
    runner = Runner(tools=Toolbox(search).hidden())
    assert look(thread.store, "t", runner).doubtful == ()
    assert "found 1" in str(one_turn(thread, "", ["I see."], runner)[1][0]["messages"])
