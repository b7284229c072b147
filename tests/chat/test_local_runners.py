"""Runners that call tools, with the real local model; where it is too small to choose, its words are constrained."""

from typing import Any, Literal

import pytest

from quire import Thread
from quire.send.builtin import builtin
from quire.send.local import LocalServer
from quire.send.runners import agent, planned
from quire.send.tools import tool
from quire.send.turn import Limits
from toolbox import carry_out

pytestmark = pytest.mark.xdist_group("llama")

TARGET = "llamacpp:smollm2"
SHORT: dict[str, Any] = {"max_tokens": 16, "temperature": 0}


def test_planned_is_held_to_the_tools_schemas(thread: Thread, engine: LocalServer) -> None:
    @tool
    def mood(word: Literal["happy", "sad"]) -> str:
        """Note the user's mood."""
        return f"noted: {word}"

    thread.user("I am happy today!")
    done = carry_out(thread, TARGET, engine.url, planned([mood], **SHORT))
    assert done.stop == "answered"
    calls = [one for one in done.entries if one.kind == "call"]
    # Whether it plans anything is the small model's affair; what it plans can be run.
    assert all(one.name == "mood" and one.args["word"] in ("happy", "sad") for one in calls)
    assert all(not one.body.get("error") for one in done.entries if one.kind == "result")
    assert done.entries[0].meta == {"aside": "plan"}


def test_agent_calls_a_real_tool_and_answers(thread: Thread, engine: LocalServer) -> None:
    thread.user("What is 6 * 7? Use calculate.")
    grammar = r"""root ::= "$call: {\"name\": \"calculate\", \"args\": {\"expression\": \"6 * 7\"}}" """
    calling = agent(builtin(), native=False, limits=Limits(steps=1), max_tokens=48, temperature=0, grammar=grammar)
    first = carry_out(thread, TARGET, engine.url, calling)
    assert first.stop == "steps"
    assert [one.body.get("content") for one in first.entries if one.kind == "result"] == ["42"]
    answering = agent(builtin(), native=False, **SHORT, grammar='root ::= "It is 42" [.!]')
    done = carry_out(thread, TARGET, engine.url, answering)
    assert (done.stop, done.steps) == ("answered", 2)
    assert done.text[:8] == "It is 42"
