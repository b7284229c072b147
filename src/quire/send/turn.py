"""A turn: what carrying one out needs of a thread and a runner, and where it stands by its entries alone."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Literal, Protocol, TypeAlias, Unpack

import msgspec

from quire import providers, values
from quire.assemble import Built
from quire.assemble.fit import system_text
from quire.assemble.messages import merge_tools
from quire.assemble.summary import Summarise
from quire.errors import CallError
from quire.log import off_loop
from quire.log.store import Store
from quire.providers.gemini_cache import Served
from quire.providers.usage import cost, sent_usage
from quire.send.tools import Toolbox
from quire.send.transport import Transport
from quire.values import COUNTS, SPOKEN, Entry, JsonObject, Prompt, Reply, Request, RequestOptions, Usage, read_early


class TurnThread(Protocol):
    """A thread as a turn needs it; `quire.thread.Thread` says what each of these does."""

    summarise: Summarise

    @property
    def name(self) -> str: ...
    @property
    def store(self) -> Store: ...
    def append(self, *entries: Entry) -> list[Entry]: ...
    def request(self, target: str, **options: Unpack[RequestOptions]) -> Request: ...
    def build(self, target: str) -> Built: ...
    def room(self, target: str) -> int: ...
    def so_far(self, target: str) -> Prompt: ...
    def recall_result(self, call: Entry) -> Entry: ...
    def recall_unasked(self, target: str, share: float) -> list[Entry]: ...
    def reported(self, request: Request, reply: Reply, *, served: Served | None = None) -> object: ...
    def learn_window(self, target: str, window: int, counted: int) -> None: ...
    def sent_entry(self, request: Request, reply: Reply | None = None) -> Entry: ...


# How a cycle talks to an engine: in role messages, or (quire.send.text_protocol) in one text.


class ModelProtocol(Protocol):
    """Requests out of a log, the log's line for each, and a reader for what comes back.

    A reader takes the stream's events: feed(event) -> entries, live() -> text, partial(), reply().
    """

    def request(self, thread: TurnThread, target: str, options: JsonObject) -> Request: ...
    def sent_entry(self, thread: TurnThread, request: Request, reply: Reply | None = None) -> Entry: ...
    def reader(self, thread: TurnThread, target: str, names: Iterable[str]) -> Any: ...


class Messages(msgspec.Struct, frozen=True):
    """Role messages in the provider's own format, checked against its rules before they are sent."""

    def request(self, thread: TurnThread, target: str, options: JsonObject) -> Request:
        """The thread's next request; one that the provider would refuse is an error here."""
        return thread.request(target, **providers.request_options(options))

    def sent_entry(self, thread: TurnThread, request: Request, reply: Reply | None = None) -> Entry:
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
    # Who tells what a rebase takes away: the model, asked on the prefix that it has cached, or the built-in rule. A
    # thread's own summariser goes before both.
    summary: Literal["model", "built-in"] = "built-in"
    # Role messages, or quire.send.text_protocol.Completion() for an engine that continues a text.
    speech: ModelProtocol = MESSAGES

    def equip(self, system: str, memory: str | None, limits: Limits | None, options: JsonObject) -> Runner:
        """This runner with what every caller may give one; its own limits hold where none are given."""
        limits = limits or self.limits
        return msgspec.structs.replace(self, system=system, memory=memory, limits=limits, options=options)


# Of the budget, what the chat and the agent runner bring back unasked.
RECALL_SHARE = 0.1
CHAT = Runner(recall=RECALL_SHARE, summary="model")


def may_run_again(runner: Runner, call: Entry) -> bool:
    """Whether a call does no harm when it runs twice: its tool says so, or whoever made the call did."""
    if call.meta.get("idempotent") or call.name == "recall":
        return True
    return bool((defined_tool(runner, call.name) or {}).get("idempotent"))


def defined_tool(runner: Runner, name: str) -> JsonObject | None:
    """How a tool that a runner runs is defined; the model may not have been told of it."""
    tools = runner.tools or Toolbox()
    listed = [tool.definition() for tool in tools] if isinstance(tools, Toolbox) else tools.definitions()
    return next((tool for tool in listed if tool["name"] == name), None)


# Where a turn stands, read from its entries alone: what is still to be asked, run or answered.


Next = Literal["nothing", "ask", "run", "done"]


def is_aside(entry: Entry) -> bool:
    """Whether a `sent` entry belongs to a question beside the conversation (a plan, a summary)."""
    return entry.kind == "sent" and bool(entry.meta.get("aside"))


def is_opening(entry: Entry) -> bool:
    """Whether a `sent` entry stands in front of a streamed reply; what it used comes behind it."""
    return entry.kind == "sent" and "usage" not in entry.body


class TurnState:
    """The newest turn, folded entry by entry."""

    def __init__(self) -> None:
        self.user: Entry | None = None
        self.answer: list[Entry] = []
        self.usages: list[tuple[str, Usage]] = []
        self.steps = 0
        self.stopped = False
        # The documents that searches of this turn found, with the numbers they are cited by.
        self.sources: list[JsonObject] = []
        # Whether only the user has spoken in this turn.
        self.fresh = True
        self._open = False
        self._waiting = False
        self._spoken: list[Entry] = []
        self._pending: list[Entry] = []

    def take(self, entry: Entry) -> None:
        if entry.kind == "user":
            self.__init__()  # type: ignore[misc]  # a new turn knows nothing of the one before
            self.user, self._waiting = entry, True
        elif entry.kind == "sent":
            self._take_sent(entry)
        elif entry.kind == "note" and entry.meta.get("resumed") and self.stopped:
            self._waiting, self.stopped, self._spoken = True, False, []
        elif entry.kind == "result":
            self._take_result(entry)
        elif entry.kind in SPOKEN:
            self._take_spoken(entry)

    def _take_sent(self, entry: Entry) -> None:
        if is_opening(entry):
            # A reply that was cut off is void: its calls were never run.
            self._pending = [call for call in self._pending if call not in self._spoken]
            self._spoken, self._open, self.fresh = [], True, False
            return
        self.usages.append((f"{entry.body['provider']}:{entry.body['model']}", sent_usage(entry)))
        if not is_aside(entry):
            # Without an opening one it stands in front of a reply that came in one piece.
            self._spoken = self._spoken if self._open else []
            self.answer = self._spoken
            self._open, self._waiting, self.fresh = False, False, False
            self.steps += 1
            self.stopped = bool(entry.meta.get("stopped"))

    def _take_spoken(self, entry: Entry) -> None:
        self.fresh = False
        if entry.kind == "call":
            self._pending.append(entry)
        if entry.meta.get("placement") != "context":
            self._spoken.append(entry)
            self._waiting = False

    def _take_result(self, entry: Entry) -> None:
        self.sources += entry.meta.get("sources") or ()
        for place in range(len(self._pending) - 1, -1, -1):
            if self._pending[place].call_id == entry.call_id:
                del self._pending[place]
                self._waiting = True
                self._spoken = []
                return

    @property
    def pending(self) -> list[Entry]:
        """The calls to run, in order; those of a reply that has not ended are not among them."""
        return [] if self._open else list(self._pending)

    @property
    def next(self) -> Next:
        """What is to be done now."""
        if self.user is None:
            return "nothing"
        if self._open:
            return "ask"
        if self._pending:
            return "run"
        return "ask" if self._waiting else "done"


def standing(store: Store, thread: str) -> TurnState:
    """The newest turn of a stored thread; only its end is read."""
    out = TurnState()
    for entry in newest_turn(store, thread):
        out.take(entry)
    return out


def newest_turn(store: Store, thread: str) -> list[Entry]:
    """The entries from the last user entry on; all of them where no user has spoken."""
    turn: list[Entry] = []
    for entry in newest_first(store, thread):
        turn.append(entry)
        if entry.kind == "user":
            break
    return turn[::-1]


def newest_first(store: Store, thread: str, end: int | None = None) -> Iterator[Entry]:
    """The entries of a thread (up to seq `end`) from the last to the first, read only as far as they are taken."""
    end, page = store.info(thread).seq if end is None else end, 64
    while end > 0:
        begin = max(0, end - page)
        yield from reversed(store.read(thread, after=begin, limit=end - begin))
        end, page = begin, page * 4


def attached_items(store: Store, thread: str, user: Entry) -> list[JsonObject]:
    """The items of a turn: those attached since the turn before, and the user entry's own."""
    since = takewhile(lambda entry: entry.kind != "user", newest_first(store, thread, user.seq - 1))
    before = [item for entry in since if entry.kind == "attach" for item in entry.attached]
    return [*reversed(before), *user.attached]


def without_cut(entries: Iterable[Entry], asking: bool = False) -> list[Entry]:
    """A thread without the parts of replies that broke off and were asked for again, or are now (`asking`)."""
    log: list[Entry] = []
    begun: int | None = None
    for entry in entries:
        if entry.kind in ("user", "result"):
            begun = None
        elif entry.kind == "sent" and not is_aside(entry):
            if is_opening(entry) and begun is not None:
                log = _silent_from(log, begun)
            begun = len(log) if is_opening(entry) else None
        log.append(entry)
    return _silent_from(log, begun) if asking and begun is not None else log


def _silent_from(entries: list[Entry], place: int) -> list[Entry]:
    return entries[:place] + [entry for entry in entries[place:] if entry.kind not in SPOKEN]


# What a turn has used so far, by its log, and which of its limits that meets.

Met = Literal["steps", "tokens", "money"]


def usage_of(turn: TurnState) -> Usage:
    """All requests of a turn together, questions beside the conversation included."""
    used = [usage for _, usage in turn.usages]
    besides = dict.fromkeys(kind for usage in used for kind in usage.besides)
    totals = {name: sum(getattr(usage, name) for usage in used) for name in COUNTS}
    return Usage(**totals, besides=tuple(besides))


def usd_of(turn: TurnState) -> float | None:
    """What they cost; None where a price is not known."""
    amounts = [cost(usage, target).amount_usd for target, usage in turn.usages]
    known_amounts = [amount for amount in amounts if amount is not None]
    return sum(known_amounts) if len(known_amounts) == len(amounts) else None


def limit_met(turn: TurnState, limits: Limits) -> Met | None:
    """The limit that forbids another request."""
    used = usage_of(turn)
    if turn.steps >= limits.steps:
        return "steps"
    if limits.tokens is not None and used.input_total + used.output >= limits.tokens:
        return "tokens"
    # Where a part has no known price, the rest of it counts.
    spent = sum(sum(cost(usage, target).parts.values()) for target, usage in turn.usages)
    if limits.usd is not None and spent >= limits.usd:
        return "money"
    return None


def check_prices(limits: Limits, target: str) -> None:
    """A limit in money that could not be held is an error before anything is spent."""
    if limits.usd is not None and not cost(Usage(1, output=1), target).known:
        raise CallError(
            f"a limit in money needs prices, and those of {target} are not known", hint="Limit tokens or steps instead."
        )


# Which system prompts and tools a thread has been given; read on from where the last look ended.

# Where the last look is kept, so that a long thread is not read again for every turn.
STATE = "head"
# How many entries may be read again before the place is saved.
_FAR = 200


@read_early
class ThreadHead(msgspec.Struct):
    """Up to entry `seq`: what a thread was told beside the conversation.

    Every system prompt, with and without the memory in front, late instructions with their place, the memory of the
    user as it was told last, and the tools by name.
    """

    seq: int = 0
    systems: list[str] = []
    prompts: list[str] = []
    notes: list[tuple[int, str]] = []
    memory: str = ""
    tools: dict[str, JsonObject] = {}

    def take(self, entry: Entry) -> None:
        self.seq = entry.seq
        if entry.kind == "system":
            self.systems = [*self.systems, entry.text]
            prompt = entry.text.removeprefix(f"{entry.meta.get('memory') or ''}\n")
            self.prompts = [*self.prompts, prompt if "memory" in entry.meta else entry.text]
        elif entry.kind == "tools":
            self.tools = merge_tools(self.tools, entry)
        elif entry.kind == "note" and not entry.meta.get("resumed"):
            self.notes = [*self.notes, (entry.seq, entry.text)]
        if entry.kind in ("system", "note") and isinstance(entry.meta.get("memory"), str):
            self.memory = entry.meta["memory"]


def read_head(store: Store, thread: str) -> ThreadHead:
    """What a thread has been given so far."""
    state = store.get_state(thread, STATE)
    head = msgspec.convert(state, ThreadHead) if state else ThreadHead()
    start = head.seq
    for entry in store.read(thread, after=start):
        head.take(entry)
    if head.seq - start >= _FAR:
        store.set_state(thread, STATE, msgspec.to_builtins(head))
    return head


def head_entries(head: ThreadHead, prompt: str, memory: str | None) -> list[Entry]:
    """The entries that a thread lacks before it is asked: memory and prompt in L1; later, what changed in the memory."""
    new = bool(prompt) and prompt not in (*head.prompts, *head.systems)
    if memory and not head.memory and (new or not head.systems):
        return [values.system(system_text(prompt, memory), meta={"memory": memory})]
    entries = [values.system(prompt)] if new else []
    if memory is None or memory.splitlines() == head.memory.splitlines():
        return entries
    return [*entries, values.note(memory_change(head.memory, memory), meta={"memory": memory})]


def memory_change(old: str, new: str) -> str:
    """What a model is told when the memory of its user is another: the lines that went and those that came."""
    if not old or not new:
        return f"What is known of the user:\n{new}" if new else "Forget what you were told of the user."
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[2:]
    removed, added = ([line[1:] for line in lines if line.startswith(sign)] for sign in "-+")
    parts = ["What is known of the user has changed."]
    parts += ["No longer:", *removed] if removed else []
    parts += ["New:", *added] if added else []
    return "\n".join(parts)


# Questions beside the conversation: a plan, a summary. What they used is recorded, their answers are not said.


async def ask_aside(turn: Turn, request: Request, purpose: str) -> Reply:
    """Send a side request; its `sent` entry is marked, so that no turn takes it for an answer."""
    reply = providers.parse_reply(turn.target, await turn.transport.send(request))
    sent = turn.thread.sent_entry(request, reply)
    entry = Entry("sent", {**sent.body, "meta": {**sent.meta, "aside": purpose}})
    await off_loop(turn.thread.append, entry)
    return reply
