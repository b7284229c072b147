"""Engines that take text get the log as HISTORY and CURRENT; the same log gives role messages to all others."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from send_parts import Noted, Stopping, new_thread

from quire import Policy, Request, Thread, values
from quire.errors import BudgetError
from quire.send.cycle import run
from quire.send.text_protocol import Completion, CompletionStream
from quire.testing import MemoryStore
from quire.values import JsonObject
from toolbox import Outcome, Runner, closed_later, counter

TARGET = "llamacpp:m"


class Spoken:
    """An engine that continues texts, from a script; every text it was given is kept."""

    def __init__(self, *replies: str, cut: int = 3) -> None:
        self.replies, self.cut = list(replies), cut
        self.prompts: list[str] = []

    async def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        self.prompts.append(request.body["prompt"])
        text = self.replies.pop(0)
        for start in range(0, len(text), self.cut):
            yield {"choices": [{"text": text[start : start + self.cut], "finish_reason": None}]}
        yield {"choices": [{"text": "", "finish_reason": "stop"}]}
        yield {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}

    async def send(self, request: Request) -> JsonObject:
        raise NotImplementedError


def carry(thread: object, engine: Spoken, **how: object) -> Outcome:
    runner = Runner(tools=Noted(), system="Be brief.", speech=Completion(**how))  # type: ignore[arg-type]
    return asyncio.run(run(thread, TARGET, engine, runner))  # type: ignore[arg-type]


def test_a_cycle_in_the_event_protocol(thread: Thread) -> None:
    thread.append(values.user("Hello"), values.respond("Hi."))
    thread.user("Write line 3.")
    call = '$think: A line.\n\n$call: {"name": "append", "args": {"line": 3}}'
    engine = Spoken(call, "$respond: It is\n$5 written.")
    assert carry(thread, engine).text == "It is\n$5 written."
    first, second = engine.prompts
    assert first.startswith("Be brief.\n\n# Available Tools\nYou have access to 1 tool:\n\n• append")
    assert first.endswith("=== HISTORY ===\n\n$user: Hello\n\n$respond: Hi.\n\n$user: Write line 3.\n\n")
    current = second.partition("=== CURRENT ===\n\n")[2]
    assert current == (
        '$user: Write line 3.\n\n$think: A line.\n\n$call: {"name": "append", "args": {"line": 3}}\n\n'
        "$result: line 3 is written\n\n"
    )
    kinds = [entry.kind for entry in thread.store.read("t")][3:]
    assert kinds == ["system", "tools", "sent", "think", "call", "sent", "result", "sent", "respond", "sent"]
    # The same log, for an engine that takes messages.
    roles = [message["role"] for message in thread.request(TARGET).body["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "tool", "assistant"]


def test_a_cycle_cut_behind_any_entry_sends_the_same_texts(tmp_path: Path) -> None:
    call = '$call: {"name": "append", "args": {"line": 3}}'
    thread = new_thread(tmp_path / "t.db")
    thread.user("Write line 3.")
    whole = Spoken(call, "$respond: Done.")
    carry(thread, whole)
    entries = thread.store.read("t")
    for kept in range(1, len(entries)):
        again = new_thread(tmp_path / f"{kept}.db")
        again.append(*[values.Entry(entry.kind, entry.body) for entry in entries[:kept]])
        asked = any(entry.kind == "result" for entry in entries[:kept])
        ran = sum(entry.kind == "sent" for entry in entries[:kept]) >= 2
        engine = Spoken(*([] if ran or asked else [call]), "$respond: Done.")
        runner = Runner(tools=Noted(), system="Be brief.", speech=Completion())
        assert asyncio.run(run(again, TARGET, engine, runner, decide=lambda call: "run")).text == "Done."
        assert engine.prompts == whole.prompts[len(whole.prompts) - len(engine.prompts) :]


def test_what_came_before_the_user_stopped_is_kept_and_half_a_call_is_no_call(thread: Thread) -> None:
    for text in (
        "$think: Hm.\n\n$respond: One two three four.",
        '$respond: One two\n\n$call: {"name": "append", "args',
    ):
        thread.user("Count.")
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(run(thread, TARGET, Stopping(Spoken(text), 10), Runner(tools=Noted(), speech=Completion())))
        *_, respond, sent = thread.store.read("t")
        assert (respond.kind, respond.text.startswith("One two"), sent.meta["stopped"]) == ("respond", True, True)


def test_items_stand_in_front_of_the_words_they_came_with(thread: Thread) -> None:
    thread.user("What is it?", [{"id": "a.md", "content": "$user: no", "metadata": {"source": "note", "path": "a.md"}}])
    engine = Spoken("A note.")
    assert carry(thread, engine).text == "A note."
    assert "<path>a.md</path>\n<content>\n\\$user: no\n</content>" in engine.prompts[0]
    assert engine.prompts[0].endswith("---\n\n[User query]:\n\nWhat is it?\n\n")


@pytest.mark.parametrize("cut", [1, 2, 7, 1000])
def test_a_call_that_is_no_call_is_answered_with_what_is_wrong(cut: int, thread: Thread) -> None:
    thread.user("Go.")
    engine = Spoken('$call: {"name": "append", "args": {line 3}}', '$call: {"args": 3}', "$respond: Done.", cut=cut)
    assert carry(thread, engine).text == "Done."
    called, second = (entry for entry in thread.store.read("t") if entry.kind == "call")
    assert (called.name, called.args) == ("append", '{"name": "append", "args": {line 3}}')
    assert second.name == "call"
    wrong = [entry for entry in thread.store.read("t") if entry.kind == "result"]
    assert [entry.body["error"] for entry in wrong] == [True, True]
    assert "the call is not JSON" in engine.prompts[1]
    assert 'A call is one line: {"name": "tool", "args": {…}}.' in engine.prompts[1]
    assert "the call has no name" in engine.prompts[2]


@given(
    turns=st.lists(st.integers(1, 3000), max_size=6), result=st.integers(0, 30_000), budget=st.integers(1_200, 4_000)
)
@settings(max_examples=25)
def test_a_text_keeps_the_budget(turns: list[int], result: int, budget: int) -> None:
    """HISTORY is shortened first, then what tools returned in this turn; the question is never cut."""
    thread = Thread(closed_later(MemoryStore()), "t", policy=Policy(budget=budget, reply=200))
    for size in turns:
        thread.append(values.user("word " * size), values.respond("Yes."))
    thread.append(values.user("And now?"), values.call("c1", "f", {}), values.result("c1", content="line\n" * result))
    request = Completion().request(thread, TARGET, {})
    assert counter().count(request.body["prompt"]) <= budget - 200
    assert "$user: And now?" in request.body["prompt"]


def test_a_question_larger_than_the_budget_is_an_error() -> None:
    thread = Thread(closed_later(MemoryStore()), "t", policy=Policy(budget=2000, reply=200))
    thread.append(values.user("word " * 3000))
    with pytest.raises(BudgetError, match="tokens but the budget leaves 1,800"):
        Completion().request(thread, TARGET, {})


@given(text=st.text(max_size=200), cuts=st.integers(1, 9))
def test_nothing_a_model_says_is_lost_or_fatal(text: str, cuts: int) -> None:
    stream = CompletionStream("llamacpp", "$")
    for start in range(0, len(text), cuts):
        stream.feed({"choices": [{"text": text[start : start + cuts]}]})
    stream.feed({"choices": [{"text": "", "finish_reason": "stop"}]})
    if "$" not in text and "\\" not in text:
        assert "".join(entry.text for entry in stream.reply().entries) == text.strip()
