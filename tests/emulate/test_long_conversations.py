"""Long random conversations, through tool loops and from provider to provider: never refused, counted as predicted."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
from calling import call

from quire import Entry, Thread, render, result, user
from quire.providers import http_body, marked, parse_reply, prefix_bytes
from quire.providers.convert import project
from quire.providers.simulate import Simulator
from quire.providers.usage import usage
from quire.testing import Emulator
from quire.values import Call, JsonObject, Prompt, Text, Think
from toolbox import Clock, model_info

TOOL: JsonObject = {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}
SYSTEM = "word " * 1500
TARGETS = {
    "anthropic:claude-opus-5-5": "/v1/messages",
    "openai:gpt-6-sol": "/v1/responses",
    "openai-chat:gpt-6-sol": "/v1/chat/completions",
    "gemini:gemini-3.8-flash": "/v1beta/models/gemini-3.8-flash:generateContent",
    "bedrock:anthropic.claude-opus-5-5": "/model/anthropic.claude-opus-5-5/converse",
    "deepseek:deepseek-v4-pro": "/chat/completions",
    "mistral:mistral-large-latest": "/v1/chat/completions",
}


def spoken(chance: random.Random, body: JsonObject) -> list[Any]:
    """A random reply: thoughts, text, one or more calls."""
    parts: list[Any] = [Think(f"thought {chance.random()}")] if chance.random() < 0.5 else []
    calls = chance.choice([0, 0, 1, 2, 3])
    if not calls or chance.random() < 0.5:
        parts.append(Text("answer " * chance.randint(1, 40)))
    return [*parts, *(Call("", "look", {"n": n}) for n in range(calls))]


class Talk:
    """A thread without an engine: entries, a fold, and the emulators it talks to."""

    def __init__(self, servers: dict[str, Emulator], chance: random.Random) -> None:
        self.servers, self.chance = servers, chance
        self.entries: list[Entry] = [user("begin")]
        self.epoch, self.fold = 1, 0
        self.stable: dict[str, int] = {}

    def prompt(self, target: str) -> Prompt:
        numbered = [Entry(entry.kind, entry.body, seq) for seq, entry in enumerate(self.entries, 1)]
        messages = tuple(project(numbered))
        stable = self.stable.get(target, 0)
        self.stable[target] = len(messages)
        return Prompt(SYSTEM + str(self.epoch), "", (TOOL,), messages, epoch=self.epoch, fold=self.fold, stable=stable)

    def ask(self, target: str, clock: Clock) -> tuple[JsonObject, JsonObject]:
        """One request and its reply; what was called is answered, else the user speaks again."""
        request = render(self.prompt(target), target)
        body = http_body(marked(request, key="thread"))
        clock.now_ms += self.chance.choice([1000, 60_000, 400_000])
        answer = call(self.servers[target], TARGETS[target], body, headers=request.headers)
        assert answer.status == 200, answer.json
        reply = parse_reply(target, answer.json, names=["look"])
        self.entries += reply.entries
        calls = [entry for entry in reply.entries if entry.kind == "call"]
        self.entries += [result(one.call_id, content="seen " * self.chance.randint(0, 200)) for one in calls]
        if not calls:
            self.entries.append(user("more " * self.chance.randint(1, 100)))
        return body, answer.json

    def rebase(self) -> None:
        """A new epoch: everything so far is behind the fold, with another system prompt before it."""
        self.epoch += 1
        self.fold = len(self.prompt("").messages)


@contextlib.contextmanager
def emulators(targets: list[str], chance: random.Random, clock: Clock) -> Iterator[dict[str, Emulator]]:
    with contextlib.ExitStack() as stack:
        made = {
            name: Emulator(name.partition(":")[0], lambda body: spoken(chance, body), clock=clock) for name in targets
        }
        yield {name: stack.enter_context(server) for name, server in made.items()}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.moves_prefix(reason="a rebase moves it")
def test_a_long_conversation_is_never_refused_and_costs_what_was_predicted(target: str, seed: int) -> None:
    chance, clock = random.Random(f"{target}{seed}"), Clock()
    with emulators([target], chance, clock) as servers:
        talk = Talk(servers, chance)
        sent = []
        for turn in range(24):
            if turn and turn % 9 == 0:
                talk.rebase()
            sent.append(talk.ask(target, clock))
        received = servers[target].requests
    predicted = Simulator(target)
    for (body, reply), one in zip(sent, received, strict=True):
        reported = usage(model_info(target).provider, reply)
        shares = predicted.step(one.at_ms, body)
        assert (reported.input_total, reported.cache_read) == (shares.total, shares.read)
        assert (reported.cache_write_5m, reported.cache_write_1h) == (shares.write_5m, shares.write_1h)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.moves_prefix(reason="every provider has its own bytes, and a rebase moves them")
def test_a_conversation_may_move_from_provider_to_provider_in_the_middle_of_a_tool_loop(seed: int) -> None:
    chance, clock = random.Random(seed), Clock()
    with emulators(list(TARGETS), chance, clock) as servers:
        talk = Talk(servers, chance)
        target = "anthropic:claude-opus-5-5"
        for turn in range(40):
            if chance.random() < 0.4:
                target = chance.choice(list(TARGETS))
            if turn and turn % 13 == 0:
                talk.rebase()
            talk.ask(target, clock)
        assert sum(len(server.requests) for server in servers.values()) == 40


LATE = {"anthropic:claude-opus-5-5", "openai:gpt-6-sol"}


@pytest.mark.parametrize("target", [*TARGETS, "bedrock-anthropic:anthropic.claude-opus-5-5"])
@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.moves_prefix(reason="a rebase moves it, where late tools stand in front")
def test_tools_that_come_late_move_no_prefix_that_thinking_is_bound_to(
    target: str, asked: bool, thread: Thread
) -> None:
    """Within an epoch nothing moves, also where the user says nothing behind the tools."""
    clock = Clock()
    with Emulator(target.partition(":")[0], [[Think("Hm."), Text("one")], "two"], clock=clock) as server:
        thread.user("begin")
        first = thread.request(target)
        path = TARGETS.get(target, "/v1/messages")
        thread.record(call(server, path, http_body(first), headers=first.headers).json)
        thread.tools(TOOL)
        if asked:
            thread.user("more")
        second = thread.request(target)
        assert call(server, path, http_body(second), headers=second.headers).status == 200
    extends = prefix_bytes(second.body, target).startswith(prefix_bytes(first.body, target))
    assert (second.epoch, extends) == ((1, True) if target in LATE else (2, False))


ENABLED: JsonObject = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("anthropic:claude-haiku-4-5", "/v1/messages"),
        ("anthropic:claude-sonnet-4-6", "/v1/messages"),
        ("bedrock:anthropic.claude-haiku-4-5", "/model/anthropic.claude-haiku-4-5/converse"),
    ],
)
@pytest.mark.moves_prefix(reason="a rebase moves it")
def test_a_rebase_between_a_call_and_its_answer_keeps_the_thinking_in_front_of_the_call(
    target: str, path: str, thread: Thread
) -> None:
    asked = {"additionalModelRequestFields": ENABLED} if target.startswith("bedrock") else ENABLED
    script = [[Think("Where?"), Call("", "look", {})], [Think("There?"), Call("", "look", {})], "done"]
    with Emulator(target.partition(":")[0], script, clock=Clock(), lenient=True) as server:
        thread.tools(TOOL)
        thread.user("begin")
        for late in ("a", "b", "c"):
            request = thread.request(target, max_tokens=2000, extra=asked)
            answer = call(server, path, http_body(request), headers=request.headers)
            assert answer.status == 200, answer.json
            thread.results(thread.record(answer.json), lambda name, args: "seen")
            thread.tools({**TOOL, "name": late})
    assert request.epoch == 3
    assert "Where?" not in str(request.body["messages"])
    assert "There?" in str(request.body["messages"])
