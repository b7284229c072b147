"""One path for every runner, against every provider's strict stand-in."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from send_parts import WAYS, Noted, Stopping, answered, new_thread, one_turn, ten_calls, tool

from quire import Entry, Thread, values
from quire.errors import CallError, ProviderError
from quire.send.cycle import run
from quire.send.events import Event
from quire.send.text_protocol import TextTools
from quire.send.turn import MESSAGES, Limits, Messages, Turn, ask_aside
from quire.testing import Cut, Refuse, emulator
from quire.values import Call, Text, Think
from toolbox import TARGETS, Runner, carry_out, close, transport_for


@pytest.mark.parametrize(("provider", "via"), WAYS)
def test_a_turn_with_calls_is_streamed_stored_and_answered(provider: str, via: str, thread: Thread) -> None:
    tools, events = Noted(), list[Event]()
    said = [[Think("hm"), Text("Let me see."), Call("c1", "append", {"line": 3})], [Text("It is three.")]]
    with emulator(provider, said, piece=4, chunk_bytes=7) as server:
        thread.user("Three?")
        outcome = carry_out(thread, TARGETS[provider], server.url, Runner(tools=tools), via=via, on_event=events.append)
        assert [received.status for received in server.requests] == [200, 200]
    assert (outcome.stop, outcome.text, outcome.steps) == ("answered", "It is three.", 2)
    assert outcome.usage.output > 0
    assert [call.args for call in tools.calls] == [{"line": 3}]
    kinds = [entry.kind for entry in thread.store.read("t") if entry.kind != "think"]
    assert kinds == ["user", "tools", "sent", "respond", "call", "sent", "result", "sent", "respond", "sent"]
    # Whoever prints every event's text has printed what the model said, once.
    assert "".join(event.text for event in events if event.kind == "respond") == "Let me see.It is three."
    assert any(":" in event.id for event in events)
    assert thread.store.verify().entries == len(thread.store.read("t"))


def test_every_entry_is_in_the_log_before_it_is_acted_on(tmp_path: Path) -> None:
    thread, seen = new_thread(tmp_path / "t.db"), list[list[str]]()

    class Watching(Noted):
        async def run(self, call: Entry) -> Entry:
            seen.append([entry.kind for entry in thread.store.read("t")][-3:])
            return await super().run(call)

    def reply(body: dict[str, Any]) -> list[Any]:
        seen.append([entry.kind for entry in thread.store.read("t")][-2:])
        return ten_calls(body)

    one_turn(thread, "Write ten lines.", reply, Runner(tools=Watching()))
    assert seen[:3] == [["tools", "sent"], ["respond", "call", "sent"], ["result", "sent"]]
    assert len(seen) == 21


@pytest.mark.parametrize(
    ("limits", "stop", "steps"),
    [(Limits(steps=3), "steps", 3), (Limits(tokens=200), "tokens", 2), (Limits(usd=0.0005), "money", 1)],
)
def test_a_limit_ends_the_turn_between_requests(limits: Limits, stop: str, steps: int, thread: Thread) -> None:
    with emulator("anthropic", ten_calls) as server:
        thread.user("Write ten lines.")
        runner = Runner(tools=Noted(), limits=limits)
        outcome = carry_out(thread, TARGETS["anthropic"], server.url, runner)
        assert outcome.stop == stop
        assert outcome.steps == steps == len(server.requests)
        # What the turn has used is in the log: asking again grants nothing new.
        assert carry_out(thread, TARGETS["anthropic"], server.url, runner).steps == steps
        more = Runner(tools=Noted(), limits=Limits(steps=steps + 1))
        assert carry_out(thread, TARGETS["anthropic"], server.url, more).steps == steps + 1


def test_a_limit_in_seconds_stops_a_tool_that_hangs(thread: Thread) -> None:
    class Hanging(Noted):
        async def run(self, call: Entry) -> Entry:
            await asyncio.Event().wait()
            raise AssertionError

    runner = Runner(tools=Hanging(), limits=Limits(seconds=1))
    assert one_turn(thread, "Write ten lines.", ten_calls, runner)[0].stop == "seconds"
    assert thread.store.read("t")[-1].kind == "sent"


def test_a_limit_in_money_needs_a_price(thread: Thread) -> None:
    thread.user("Hello")
    with pytest.raises(CallError, match="prices"):
        carry_out(thread, "vllm:mine", "http://127.0.0.1:9", Runner(limits=Limits(usd=1.0)))


def test_a_reply_that_breaks_off_is_asked_for_again_and_the_cut_part_is_left_out(thread: Thread) -> None:
    whole = [Text("First."), Call("c1", "append", {"line": 1})]
    replies = [Cut(whole, 1500), whole, "Done."]
    outcome, (first, again, last) = one_turn(thread, "Write a line.", replies, Runner(tools=Noted()))
    assert outcome.text == "Done."
    assert first == again
    assert [message["role"] for message in last["messages"]] == ["user", "assistant", "user"]
    spoken = [entry.text for entry in thread.store.read("t") if entry.kind == "respond"]
    assert spoken == ["First.", "First.", "Done."]
    left = thread.build(TARGETS["anthropic"]).left_out
    assert {one.reason for one in left} == {"cut off; the request was sent again"}


def test_a_reply_that_keeps_breaking_off_is_an_error_that_can_be_resumed(thread: Thread) -> None:
    with emulator("anthropic", [Cut("A long answer.", 900)] * 3 + ["A long answer."]) as server:
        thread.user("Hello")
        with pytest.raises(ProviderError) as broken:
            carry_out(thread, TARGETS["anthropic"], server.url)
        assert broken.value.retryable
        assert len(server.requests) == 3
        assert carry_out(thread, TARGETS["anthropic"], server.url).text == "A long answer."
        assert len({str(received.body) for received in server.requests}) == 1


def test_what_a_provider_refuses_is_not_asked_for_again(thread: Thread) -> None:
    with emulator("anthropic", [Refuse(401, "no such key"), "Hello."]) as server:
        thread.user("Hello")
        with pytest.raises(ProviderError, match="401: no such key") as refused:
            carry_out(thread, TARGETS["anthropic"], server.url)
        assert "ANTHROPIC_API_KEY" in refused.value.hint
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("provider", "speech"),
    [("anthropic", MESSAGES), ("openai-chat", MESSAGES), ("gemini", MESSAGES), ("openai-chat", TextTools())],
)
def test_what_came_before_the_user_stopped_is_kept_and_marked(provider: str, speech: Messages, thread: Thread) -> None:
    with emulator(provider, ["One two three four five.", "Six."], piece=4) as server:
        thread.user("Count.")

        async def main() -> None:
            transport = transport_for(TARGETS[provider], server.url, "key", via="http")
            try:
                await run(thread, TARGETS[provider], Stopping(transport, 5), Runner(speech=speech))
            finally:
                await close(transport)

        with pytest.raises(asyncio.CancelledError):
            asyncio.run(main())
        kept = thread.store.read("t")[-2:]
        assert [(entry.kind, entry.meta["stopped"]) for entry in kept] == [("respond", True), ("sent", True)]
        assert "One two three four five.".startswith(kept[0].text)
        assert kept[0].text
        # Stopped means stopped: nothing is asked until the user speaks again, and what came is still said.
        assert carry_out(thread, TARGETS[provider], server.url).stop == "stopped"
        thread.user("Go on.")
        assert carry_out(thread, TARGETS[provider], server.url).text == "Six."
        assert kept[0].text in str(server.requests[-1].body)


def test_harmless_calls_run_side_by_side_and_others_one_at_a_time(thread: Thread) -> None:
    running, most = list[str](), dict[str, int]()

    class Slow(Noted):
        async def run(self, call: Entry) -> Entry:
            running.append(call.name)
            most[call.name] = max(most.get(call.name, 0), len(running))
            await asyncio.sleep(0)
            running.remove(call.name)
            return answered(call)

    calls = [Call(f"r{n}", "read", {"line": n}) for n in range(3)]
    calls += [Call(f"w{n}", "write", {"line": n}) for n in range(2)]
    tools = Slow(tool("read", idempotent=True), tool("write"))
    assert one_turn(thread, "Go.", [calls, "Done."], Runner(tools=tools))[0].text == "Done."
    assert most == {"read": 3, "write": 1}


@pytest.mark.moves_prefix(
    reason="the plan is asked for before what it leads to joins the user's message", everywhere=True
)
def test_a_runner_prepares_its_turn_once_and_its_calls_stand_in_the_users_message(thread: Thread) -> None:
    asked: list[str] = []

    async def prepare(turn: Turn) -> Sequence[Entry]:
        asked.append(turn.user.text)
        plan = await ask_aside(turn, turn.thread.request(turn.target, max_tokens=50), "plan")
        assert plan.entries[0].text == "a plan"
        return [values.call("k1", "append", {"line": 7}, meta={"placement": "context"})]

    runner = Runner(name="planned", prepare=prepare, tools=Noted(), system="Be brief.")
    outcome, bodies = one_turn(thread, "Which line?", ["a plan", "Seven."], runner, "openai-chat")
    messages = bodies[-1]["messages"]
    assert (outcome.text, outcome.steps, asked) == ("Seven.", 1, ["Which line?"])
    assert [message["role"] for message in messages] == ["system", "user"]
    assert "<append>\nline 7 is written\n</append>" in messages[1]["content"]
    # The question beside the conversation is paid for, and moves nothing.
    aside = next(entry for entry in thread.store.read("t") if entry.meta.get("aside"))
    assert outcome.usage.input_total > aside.body["usage"]["input_total"]


def test_a_call_of_a_tool_nobody_has_becomes_an_error_result(thread: Thread) -> None:
    assert one_turn(thread, "Fly.", [[Call("c1", "fly", {})], "I cannot."])[0].text == "I cannot."
    (told,) = [entry for entry in thread.store.read("t") if entry.kind == "result"]
    assert told.body["error"]
    assert "'fly'" in told.body["outcome"]


def test_a_tool_that_answers_another_call_is_run_once(thread: Thread) -> None:
    class Confused(Noted):
        async def run(self, call: Entry) -> Entry:
            assert not self.calls, "it was run again"
            self.calls.append(call)
            return values.result(call.id, "done")

    with pytest.raises(CallError, match="call_1") as caught:
        one_turn(thread, "Write ten lines.", ten_calls, Runner(tools=Confused()))
    assert "call_id" in caught.value.hint


def test_a_request_is_sent_at_least_once(thread: Thread) -> None:
    outcome, bodies = one_turn(thread, "Hello", ["Hello."], Runner(limits=Limits(attempts=0, seconds=30)))
    assert (outcome.text, len(bodies)) == ("Hello.", 1)
