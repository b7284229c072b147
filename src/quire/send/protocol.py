"""What a cycle needs of a thread; `quire.thread.Thread` is one, and this package does not know it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, Unpack

import msgspec

from quire import providers
from quire.assemble import Built
from quire.assemble.summary import Summarise
from quire.log.store import Store
from quire.providers.gemini_cache import Served
from quire.send.tools import Toolbox
from quire.send.transport import Transport
from quire.values import Entry, JsonObject, Prompt, Reply, Request, RequestOptions


class TurnThread(Protocol):
    """A thread: appended to, asked for its next request."""

    @property
    def name(self) -> str: ...

    @property
    def store(self) -> Store: ...

    @property
    def summarise(self) -> Summarise: ...

    def append(self, *entries: Entry) -> list[Entry]:
        """Put entries into the log, durably."""

    def request(self, target: str, **options: Unpack[RequestOptions]) -> Request:
        """The next request for "provider:model"; a rebase that is due is recorded first."""

    def build(self, target: str) -> Built:
        """What would be sent now, without recording anything."""

    def room(self, target: str) -> int:
        """How many tokens a request may take."""

    def so_far(self, target: str) -> Prompt:
        """The same as if no rebase were due."""

    def recall_result(self, call: Entry) -> Entry:
        """The result of a call of `recall`, which a request offers where a handle stands in it."""

    def recall_unasked(self, target: str, share: float) -> list[Entry]:
        """What the next request should bring back of what was left out, within a share of the budget."""

    def reported(self, request: Request, reply: Reply, *, served: Served | None = None) -> object:
        """A reply came: what it read from the cache is compared with what was predicted, or with an explicit cache."""

    def learn_window(self, target: str, window: int, counted: int) -> None:
        """A server takes `window` tokens, and counted so many in the request at hand: requests keep to that."""

    def sent_entry(self, request: Request, reply: Reply | None = None) -> Entry:
        """The log's line for a request."""


# How a cycle talks to an engine: in role messages, or (quire.send.text_protocol) in one text.


class ModelProtocol(Protocol):
    """Requests out of a log, and a reader for what comes back."""

    def request(self, thread: TurnThread, target: str, options: JsonObject) -> Request:
        """The next request."""

    def sent(self, thread: TurnThread, request: Request, reply: Reply | None = None) -> Entry:
        """The log's line for it."""

    def reader(self, thread: TurnThread, target: str, names: Iterable[str]) -> Any:
        """Something to feed the stream's events to: feed(event) -> entries, live() -> text, partial(), reply()."""


class Messages(msgspec.Struct, frozen=True):
    """Role messages in the provider's own format, checked against its rules before they are sent."""

    def request(self, thread: TurnThread, target: str, options: JsonObject) -> Request:
        """The thread's next request; one that the provider would refuse is an error here."""
        return thread.request(target, **providers.request_options(options))

    def sent(self, thread: TurnThread, request: Request, reply: Reply | None = None) -> Entry:
        return thread.sent_entry(request, reply)

    def reader(self, thread: TurnThread, target: str, names: Iterable[str]) -> Any:
        return providers.stream(target, names)


MESSAGES = Messages()


# What a runner is: a value that says with which tools, limits and preparations a turn is carried out.


class ToolRunner(Protocol):
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

    thread: TurnThread
    target: str
    transport: Transport
    runner: Runner
    user: Entry


# Entries to put into the log before the model is asked: calls marked meta.placement="context" are run and
# their results stand in the user's message. Called once a turn, while nothing but the user has spoken.
Prepare: TypeAlias = Callable[[Turn], Awaitable[Sequence[Entry]]]

Keep: TypeAlias = Callable[[Turn], Awaitable[None]]


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn is carried out; `options` go into every request's body (max_tokens, temperature, …)."""

    name: str = "chat"
    system: str = ""
    # What is known of the user: in front of the system prompt in L1; a later change of it is told as a note.
    memory: str | None = None
    tools: ToolRunner | None = None
    prepare: Prepare | None = None
    # Told before each request, and at the end, that everything so far is in the log.
    keep: Keep | None = None
    limits: Limits = Limits()
    options: JsonObject = {}
    # Of the budget, what may be brought back unasked of what was left out; 0 for nothing.
    recall: float = 0.0
    # Role messages, or quire.send.text_protocol.Completion() for an engine that continues a text.
    speech: ModelProtocol = MESSAGES


# Of the budget, what the chat and the agent runner bring back unasked.
RECALL_SHARE = 0.1
CHAT = Runner(recall=RECALL_SHARE)


def may_run_again(runner: Runner, call: Entry) -> bool:
    """Whether a call does no harm when it runs twice: its tool says so, or whoever made the call did."""
    if call.meta.get("idempotent") or call.name == "recall":
        return True
    if isinstance(runner.tools, Toolbox):
        # The model may not have been told of them.
        found = runner.tools.get(call.name)
        return found is not None and found.idempotent
    defined = runner.tools.definitions() if runner.tools is not None else ()
    return any(tool["name"] == call.name and tool.get("idempotent") for tool in defined)
