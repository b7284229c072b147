"""A turn: the protocols of its thread and runner, its state as read from its entries, its usage and limits."""

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
    """The part of a thread that a turn needs; `quire.thread.Thread` documents each method."""

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


# The form of requests and replies: role messages, or (quire.send.text_protocol) one text.


class ModelProtocol(Protocol):
    """Makes requests and their `sent` entries from a log, and readers of their replies.

    A reader has feed(event) -> entries, live() -> text, partial() and reply().
    """

    def request(self, thread: TurnThread, target: str, options: JsonObject) -> Request: ...
    def sent_entry(self, thread: TurnThread, request: Request, reply: Reply | None = None) -> Entry: ...
    def reader(self, thread: TurnThread, target: str, names: Iterable[str]) -> Any: ...


class Messages(msgspec.Struct, frozen=True):
    """Role messages in the provider's own format."""

    def request(self, thread: TurnThread, target: str, options: JsonObject) -> Request:
        """The thread's next request, checked against the provider's rules."""
        return thread.request(target, **providers.request_options(options))

    def sent_entry(self, thread: TurnThread, request: Request, reply: Reply | None = None) -> Entry:
        return thread.sent_entry(request, reply)

    def reader(self, thread: TurnThread, target: str, names: Iterable[str]) -> Any:
        return providers.stream(target, names)


MESSAGES = Messages()


# Runners: values that hold the tools, limits and preparations of turns.


class ToolRunner(Protocol):
    """Runs the calls of a cycle."""

    def definitions(self) -> Sequence[JsonObject]:
        """The tools that are offered, as in a `tools` entry; those with `idempotent: true` may run again."""

    async def run(self, call: Entry) -> Entry:
        """Return the result of a call; failures are results too. `call.id` is the same where a call runs again."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that end a turn; tokens and money count the whole turn, also before it was resumed."""

    steps: int = 50
    tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None
    # How often a request is sent where its reply breaks off.
    attempts: int = 3


class Turn(msgspec.Struct, frozen=True):
    """A turn, as a runner's `prepare` and `keep` receive it."""

    thread: TurnThread
    target: str
    transport: Transport
    runner: Runner
    user: Entry


# Returns entries to append before the model is asked; called once in a turn. Calls with meta.placement="context" are
# run, and their results are shown in the user's message.
Prepare: TypeAlias = Callable[[Turn], Awaitable[Sequence[Entry]]]

Keep: TypeAlias = Callable[[Turn], Awaitable[None]]


class Runner(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn is carried out; `options` go into every request's body (max_tokens, temperature, …)."""

    name: str = "chat"
    system: str = ""
    # What is known of the user: stands before the system prompt in L1; a later change is appended as a note.
    memory: str | None = None
    tools: ToolRunner | None = None
    prepare: Prepare | None = None
    # Called before each request, and at the end, when everything so far is in the log.
    keep: Keep | None = None
    limits: Limits = Limits()
    options: JsonObject = {}
    # The share of the budget for entries that are recalled automatically.
    recall: float = 0.0
    # What writes the summary of a rebase: the model (asked on its cached prefix), or the built-in rule; a thread's own
    # summariser takes precedence.
    summary: Literal["model", "built-in"] = "built-in"
    # Role messages, or quire.send.text_protocol.Completion() for an engine that continues a text.
    speech: ModelProtocol = MESSAGES

    def equip(self, system: str, memory: str | None, limits: Limits | None, options: JsonObject) -> Runner:
        """This runner with these settings; without `limits`, its own."""
        limits = limits or self.limits
        return msgspec.structs.replace(self, system=system, memory=memory, limits=limits, options=options)


# The share of the budget for automatic recall in the chat and agent runners.
RECALL_SHARE = 0.1
CHAT = Runner(recall=RECALL_SHARE, summary="model")


def may_run_again(runner: Runner, call: Entry) -> bool:
    """Whether a call may run twice: its tool or the call itself is marked as idempotent."""
    if call.meta.get("idempotent") or call.name == "recall":
        return True
    return bool((defined_tool(runner, call.name) or {}).get("idempotent"))


def defined_tool(runner: Runner, name: str) -> JsonObject | None:
    """The definition of a runner's tool, also of one that is not offered to the model."""
    tools = runner.tools or Toolbox()
    listed = [tool.definition() for tool in tools] if isinstance(tools, Toolbox) else tools.definitions()
    return next((tool for tool in listed if tool["name"] == name), None)


# The state of a turn, read from its entries alone.

Next = Literal["nothing", "ask", "run", "done"]


def is_aside(entry: Entry) -> bool:
    """Whether a `sent` entry belongs to a side request (for a plan, for a summary)."""
    return entry.kind == "sent" and bool(entry.meta.get("aside"))


def is_opening(entry: Entry) -> bool:
    """Whether a `sent` entry marks the beginning of a streamed reply; another one with the usage follows the reply."""
    return entry.kind == "sent" and "usage" not in entry.body


class TurnState:
    """The state of the newest turn, updated entry by entry."""

    def __init__(self) -> None:
        self.user: Entry | None = None
        self.answer: list[Entry] = []
        self.usages: list[tuple[str, Usage]] = []
        self.steps = 0
        self.stopped = False
        # The documents that this turn's searches found, with their numbers.
        self.sources: list[JsonObject] = []
        # Whether the turn has only its user entry so far.
        self.fresh = True
        self._open = False
        self._waiting = False
        self._spoken: list[Entry] = []
        self._pending: list[Entry] = []

    def take(self, entry: Entry) -> None:
        if entry.kind == "user":
            self.__init__()  # type: ignore[misc]  # a new turn starts from the initial state
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
            # The unfinished reply before it is void, and its calls were never run.
            self._pending = [call for call in self._pending if call not in self._spoken]
            self._spoken, self._open, self.fresh = [], True, False
            return
        self.usages.append((f"{entry.body['provider']}:{entry.body['model']}", sent_usage(entry)))
        if not is_aside(entry):
            # Without an opening, this entry precedes a reply that was not streamed.
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
        """The calls to run, in order, without those of an unfinished reply."""
        return [] if self._open else list(self._pending)

    @property
    def next(self) -> Next:
        """The next step."""
        if self.user is None:
            return "nothing"
        if self._open:
            return "ask"
        if self._pending:
            return "run"
        return "ask" if self._waiting else "done"


def standing(store: Store, thread: str) -> TurnState:
    """The state of a stored thread's newest turn; only the end of the thread is read."""
    out = TurnState()
    for entry in newest_turn(store, thread):
        out.take(entry)
    return out


def newest_turn(store: Store, thread: str) -> list[Entry]:
    """The entries from the last user entry on; all entries where there is none."""
    turn: list[Entry] = []
    for entry in newest_first(store, thread):
        turn.append(entry)
        if entry.kind == "user":
            break
    return turn[::-1]


def newest_first(store: Store, thread: str, end: int | None = None) -> Iterator[Entry]:
    """The entries of a thread (up to seq `end`) from the last to the first, read in pages as they are taken."""
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
    """Entries without the parts of replies that broke off and were asked for again (or, if `asking`, are about to be)."""
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


# The usage of a turn, and its limits.

Met = Literal["steps", "tokens", "money"]


def usage_of(turn: TurnState) -> Usage:
    """The usage of all requests of a turn, side requests included."""
    used = [usage for _, usage in turn.usages]
    besides = dict.fromkeys(kind for usage in used for kind in usage.besides)
    totals = {name: sum(getattr(usage, name) for usage in used) for name in COUNTS}
    return Usage(**totals, besides=tuple(besides))


def usd_of(turn: TurnState) -> float | None:
    """The cost of all requests of a turn; None where a price is unknown."""
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
    # Parts without a known price count nothing.
    spent = sum(sum(cost(usage, target).parts.values()) for target, usage in turn.usages)
    if limits.usd is not None and spent >= limits.usd:
        return "money"
    return None


def check_prices(limits: Limits, target: str) -> None:
    """Raise for a limit in money that cannot be checked because prices are unknown."""
    if limits.usd is not None and not cost(Usage(1, output=1), target).known:
        raise CallError(
            f"a limit in money needs prices, and those of {target} are not known", hint="Limit tokens or steps instead."
        )


# The system prompts and tools of a thread.

# The key under which the store keeps them, so that a long thread is not read again for every turn.
STATE = "head"
# They are stored again after this many new entries.
_FAR = 200


@read_early
class ThreadHead(msgspec.Struct):
    """What a thread holds besides the conversation, up to entry `seq`.

    Its system prompts with (`systems`) and without (`prompts`) the memory before them, its notes with their seqs, the
    latest memory of the user, and its tools by name.
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
    """The head of a thread, up to its last entry."""
    state = store.get_state(thread, STATE)
    head = msgspec.convert(state, ThreadHead) if state else ThreadHead()
    start = head.seq
    for entry in store.read(thread, after=start):
        head.take(entry)
    if head.seq - start >= _FAR:
        store.set_state(thread, STATE, msgspec.to_builtins(head))
    return head


def head_entries(head: ThreadHead, prompt: str, memory: str | None) -> list[Entry]:
    """The entries to append for a prompt and a memory that the thread lacks; a changed memory is a note."""
    new = bool(prompt) and prompt not in (*head.prompts, *head.systems)
    if memory and not head.memory and (new or not head.systems):
        return [values.system(system_text(prompt, memory), meta={"memory": memory})]
    entries = [values.system(prompt)] if new else []
    if memory is None or memory.splitlines() == head.memory.splitlines():
        return entries
    return [*entries, values.note(memory_change(head.memory, memory), meta={"memory": memory})]


def memory_change(old: str, new: str) -> str:
    """The text of a note about a changed memory: the lines that were removed and added."""
    if not old or not new:
        return f"What is known of the user:\n{new}" if new else "Forget what you were told of the user."
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm=""))[2:]
    removed, added = ([line[1:] for line in lines if line.startswith(sign)] for sign in "-+")
    parts = ["What is known of the user has changed."]
    parts += ["No longer:", *removed] if removed else []
    parts += ["New:", *added] if added else []
    return "\n".join(parts)


# Side requests (a plan, a summary): their usage is recorded, but not their answers.


async def ask_aside(turn: Turn, request: Request, purpose: str) -> Reply:
    """Send a side request; its `sent` entry is marked, so that it does not count as the turn's answer."""
    reply = providers.parse_reply(turn.target, await turn.transport.send(request))
    sent = turn.thread.sent_entry(request, reply)
    entry = Entry("sent", {**sent.body, "meta": {**sent.meta, "aside": purpose}})
    await off_loop(turn.thread.append, entry)
    return reply
