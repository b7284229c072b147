"""What a runner is: a value that says with which tools, limits and preparations a turn is carried out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from quire.send.speech import MESSAGES, Speech
from quire.send.thread import Log
from quire.send.tools import Toolbox
from quire.send.transport import Transport
from quire.values import Entry, JsonObject


class Tools(Protocol):
    """Where a cycle's calls are run."""

    def definitions(self) -> Sequence[JsonObject]:
        """The tools the model is told of, as a `tools` entry holds them; `idempotent: true` may run again."""

    async def run(self, call: Entry) -> Entry:
        """The result of a call: failures are results too. `call.id` is the same in every retry of it."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Where a turn ends by itself; tokens and money count what the turn has used so far, resumed or not."""

    steps: int = 50
    tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None
    # How often a request is sent when its reply breaks off.
    attempts: int = 3


class Turn(msgspec.Struct, frozen=True):
    """A turn that is about to be carried out, for a runner's preparation."""

    thread: Log
    target: str
    transport: Transport
    runner: Runner
    user: Entry


# Entries to put into the log before the model is asked: calls marked meta.placement="context" are run and
# their results stand in the user's message. Called once a turn, while nothing but the user has spoken.
Prepare: TypeAlias = Callable[[Turn], Awaitable[Sequence[Entry]]]


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn is carried out; `options` go into every request's body (max_tokens, temperature, …)."""

    name: str = "chat"
    system: str = ""
    tools: Tools | None = None
    prepare: Prepare | None = None
    limits: Limits = Limits()
    options: JsonObject = {}
    # Role messages, or quire.send.text.Text() for an engine that continues a text.
    speech: Speech = MESSAGES


CHAT = Runner()


def may_run_again(runner: Runner, call: Entry) -> bool:
    """Whether a call does no harm when it runs twice: its tool says so, or whoever made the call did."""
    if call.meta.get("idempotent"):
        return True
    if isinstance(runner.tools, Toolbox):
        # The model may not have been told of them.
        found = runner.tools.get(call.name)
        return found is not None and found.idempotent
    defined = runner.tools.definitions() if runner.tools is not None else ()
    return any(tool["name"] == call.name and tool.get("idempotent") for tool in defined)
