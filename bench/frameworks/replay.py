"""A recorded conversation that a framework's agent goes through again.

The parent process plays the model (the emulator answers with what was recorded), a runner plays the user, and the
tools give what they gave. `python run_langchain.py URL BUDGET quire` reads the conversation from standard input.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import defaultdict
from typing import Any, NamedTuple

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}
SYSTEM = "You are a coding agent. You work in a shell and edit files."
MODELS = {
    "anthropic": "claude-opus-5-5",
    "openai": "gpt-6-sol",
    "openai-chat": "gpt-5",
    "gemini": "gemini-3.8-flash",
    "bedrock": "anthropic.claude-opus-5-5",
}


def key(name: str, args: Any) -> str:
    return json.dumps([name, args], sort_keys=True)


class Replay(NamedTuple):
    """What the user says, turn by turn, the tools there are, and what each call gave, in order."""

    turns: list[str]
    tools: list[str]
    results: dict[str, list[str]]

    def result(self, name: str, args: Any) -> str:
        return self.results[key(name, args)].pop(0)


class Asked(NamedTuple):
    """How a runner is called: where the emulator is, the budget, and who keeps to it."""

    url: str
    budget: int
    who: str

    @property
    def by_quire(self) -> bool:
        return self.who == "quire"


def show(page: str) -> None:
    """Run the Python of a page, as a reader would."""
    with open(page, encoding="utf-8") as file:
        blocks = re.findall(r"^```python\n(.*?)^```$", file.read(), re.M | re.S)
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": "__docs__"})


EPOCHS: list[int] = []


def read() -> tuple[Asked, Replay]:
    """The command line, and the conversation from standard input; from here on epochs are noted."""
    from quire.adapters import Fitters

    plain = Fitters.fit

    def noted(self: Fitters, *given: Any) -> Any:
        out = plain(self, *given)
        EPOCHS.append(self.newest.built.epoch)
        return out

    if page := os.environ.get("PAGE"):
        show(page)
    Fitters.fit = noted
    url, budget, who = sys.argv[1:]
    return Asked(url, int(budget), who), Replay(**json.load(sys.stdin))


def report() -> None:
    """Tell the parent the epoch of each request."""
    print(json.dumps(EPOCHS))


def replayable(messages: list[dict[str, Any]], most: int = 200) -> list[dict[str, Any]]:
    """Recorded messages as a live agent makes them: turns of a user's words, calls with results, a last word.

    Aborted answers, empty messages and calls without a result go; neighbours of one speaker are one message; a turn
    that was broken off behind a result ends with "Stopped.".
    """
    given = {message["tool_call_id"] for message in messages if message["role"] == "tool"}
    out: list[dict[str, Any]] = []
    for message in messages:
        role, text = message["role"], message.get("content") or ""
        calls = [call for call in message.get("tool_calls") or () if call["id"] in given]
        if role == "system" or (role == "assistant" and not text.strip() and not calls):
            continue
        if role == "user" and out and out[-1]["role"] == "tool":
            out.append({"role": "assistant", "content": "Stopped."})
        if out and out[-1]["role"] == role and role != "tool" and not out[-1].get("tool_calls"):
            before = out.pop()
            text = "\n\n".join(filter(None, (before["content"], text)))
        kept = (
            {"tool_calls": calls} if calls else {"tool_call_id": message.get("tool_call_id")} if role == "tool" else {}
        )
        out.append({"role": role, "content": text, **kept})
    last = next(n for n in range(min(most, len(out)) - 1, 0, -1) if out[n]["role"] == "assistant")
    return [*out[:last], {"role": "assistant", "content": out[last]["content"] or "Stopped."}]


def taken_apart(messages: list[dict[str, Any]]) -> tuple[Replay, list[dict[str, Any]]]:
    """What a runner replays, and what the emulator answers."""
    results: dict[str, list[str]] = defaultdict(list)
    answers, called, names = [], {}, {}
    for message in messages:
        if message["role"] == "assistant":
            calls = []
            for call in message.get("tool_calls") or ():
                name, args = call["function"]["name"], json.loads(call["function"]["arguments"] or "{}")
                called[call["id"]] = key(name, args)
                calls.append({"name": name, "args": args})
                names[name] = True
            answers.append({"text": message["content"], "calls": calls})
        elif message["role"] == "tool":
            results[called[message["tool_call_id"]]].append(message["content"] or "(no output)")
    turns = [message["content"] for message in messages if message["role"] == "user"]
    return Replay(turns, list(names), dict(results)), answers
