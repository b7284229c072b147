"""Audit recorded requests: group them into conversations, and explain each loss of the provider's cache."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from quire.archive.sessions import FilePart, files_under, parts, sent_calls
from quire.archive.stored_conversations import SentCall, call_of, is_body
from quire.audit.causes import CAUSES, Verdict, verdict
from quire.audit.first_difference import summed_up, units_of
from quire.audit.what_if import POLICIES, PolicyOutcome, what_if
from quire.errors import QuireError, needs_extra
from quire.providers.prefix import Unit
from quire.providers.simulate.blocks import blocks_of, continues
from quire.providers.usage import known_cost
from quire.tokens import counter
from quire.values import JsonObject

__all__ = [
    "POLICIES", "AuditReport", "Grouping", "PolicyOutcome", "SentCall", "Verdict", "WatchedConversation",
    "audit", "call_of", "file_parts", "is_body", "read_calls", "what_if",
]  # fmt: skip


# Of each conversation only the first and the newest request stay in memory: logs may be larger than that.

ConversationKind = Literal["main", "side", "agent"]


class AuditTotals(msgspec.Struct):
    """Tokens and money of some requests; `lost` could have been read from the cache and was not."""

    requests: int = 0
    input: int = 0
    read: int = 0
    written: int = 0
    lost: int = 0
    usd: float = 0.0
    lost_usd: float = 0.0
    # Requests without usage, which count in no other figure, and requests without a known price.
    untold: int = 0
    unpriced: int = 0
    # Replies that a store holds again in a copy of their session; only the first counts.
    copies: int = 0

    @property
    def reuse(self) -> float:
        """Tokens read from the cache, as a share of those that could have been read; 1 where there were none."""
        return self.read / (self.read + self.lost) if self.read + self.lost else 1.0

    def __iadd__(self, other: AuditTotals) -> AuditTotals:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def as_json(self) -> JsonObject:
        return {**msgspec.to_builtins(self), "reuse": round(self.reuse, 4)}


class WatchedConversation:
    """One conversation's requests in the order they were sent, with their totals and losses."""

    def __init__(self, name: str, session: str, kind: ConversationKind = "main") -> None:
        self.name, self.session, self.kind = name, session, kind
        self.spent = AuditTotals()
        self.verdicts: list[Verdict] = []
        # Whether the log holds bodies of requests, or only their usage.
        self.bodies = False
        # The hashes of its messages.
        self.messages: set[str] = set()
        self.has_tools = False
        # The first request, by which this joins the conversation of an earlier part of the log.
        self.first: SentCall | None = None
        # The first request with usage: `join` compares it with the last request of the earlier part.
        self.first_counted: SentCall | None = None
        self._before: tuple[SentCall, tuple[Unit, ...]] | None = None
        self._sizes: dict[str, int] = {}

    def add(self, call: SentCall, units: tuple[Unit, ...]) -> Verdict | None:
        """Add the next request; return its loss against the one before it, if there is one."""
        self.first = self.first or call
        self.first_counted = self.first_counted or (call if call.usage is not None else None)
        self.spent += _totals(call)
        self.bodies = self.bodies or bool(call.body)
        self.has_tools = self.has_tools or any(unit.section == "tools" for unit in units)
        if call.usage is None:
            return None
        loss = self._judge(call, units)
        self._before = call, units
        return loss

    def _judge(self, call: SentCall, units: tuple[Unit, ...]) -> Verdict | None:
        if self._before is None:
            return None
        loss = verdict(self._before[0], call, (self._before[1], units), self._size)
        if loss is not None:
            self.verdicts.append(loss)
            self.spent.lost += loss.lost
            self.spent.lost_usd += loss.usd or 0.0
        return loss

    def join(self, later: WatchedConversation) -> None:
        """Append the continuation from a part that was read separately, as if its requests had been added here."""
        first_counted = later.first_counted
        if first_counted is not None:
            self._judge(first_counted, units_of(first_counted))
        self.spent += later.spent
        self.verdicts += later.verdicts
        self.messages |= later.messages
        self.bodies, self.has_tools = self.bodies or later.bodies, self.has_tools or later.has_tools
        self._before = later._before or self._before
        self.first_counted = self.first_counted or first_counted

    def __getstate__(self) -> dict[str, Any]:
        """The state for another process, without what it can compute again."""
        before = self._before and self._before[0]
        return {**self.__dict__, "_before": before, "_sizes": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        before = state["_before"]
        self.__dict__.update(state, _before=before and (before, units_of(before)))

    def goes_on(self, units: tuple[Unit, ...]) -> bool:
        """Whether a request continues the newest one here, even where some of its bytes changed."""
        if self._before is None:
            return True
        old, new = ([block for unit in row for block in blocks_of(unit)] for row in (self._before[1], units))
        return continues(old, new)

    def summed_up_by(self, units: tuple[Unit, ...]) -> bool:
        """Whether a request replaces the messages of the newest one here by a summary."""
        return self._before is not None and summed_up(self._before[1], units)

    def _size(self, unit: Unit) -> int:
        """About how many tokens a unit has; equal units are counted once."""
        key = "".join(unit.hashes)
        if key not in self._sizes:
            self._sizes[key] = counter().count(b"".join(unit.lines).decode())
        return self._sizes[key]


def _messages(call: SentCall, units: Iterable[Unit]) -> list[str]:
    """The hashes of a call's messages; of a call that the proxy changed, as the application sent them."""
    as_given = units_of(call, call.given) if call.given else units
    return [hash for unit in as_given if unit.section == "messages" for hash in unit.hashes]


class Grouping:
    """Groups calls into conversations; side requests (for a title, for a summary) are conversations of their own."""

    def __init__(self) -> None:
        self._by_number: dict[int, WatchedConversation] = {}
        # How many conversations there were, and the totals of the forgotten ones.
        self.count, self.forgotten = 0, AuditTotals()
        # Numbers of conversations: those that hold a message (by hash), the one to which calls without a body belong
        # (by session and agent), and all of a session.
        self._holders: dict[str, list[int]] = {}
        self._by_session: dict[tuple[str, str], int] = {}
        self._of_session: dict[str, list[int]] = {}
        # Counted replies, each with its conversation: stores copy sessions when they are resumed, forked or archived.
        self._replies: dict[tuple[str, int], int] = {}

    @property
    def conversations(self) -> list[WatchedConversation]:
        return list(self._by_number.values())

    @property
    def total(self) -> AuditTotals:
        total = AuditTotals()
        for spent in (self.forgotten, *(conversation.spent for conversation in self._by_number.values())):
            total += spent
        return total

    def forget(self, conversation: WatchedConversation) -> None:
        """Forget a conversation that seems to be over; should it continue, that counts as a new one."""
        at = next(at for at, other in self._by_number.items() if other is conversation)
        del self._by_number[at]
        self.forgotten += conversation.spent
        self._of_session[conversation.session].remove(at)
        if not self._of_session[conversation.session]:
            del self._of_session[conversation.session]
        self._by_session = {key: other for key, other in self._by_session.items() if other != at}
        for hash in conversation.messages:
            self._holders[hash].remove(at)
            if not self._holders[hash]:
                del self._holders[hash]

    def add(self, call: SentCall) -> tuple[WatchedConversation, Verdict | None]:
        """Add a call to its conversation, or begin one; return the conversation and the call's loss."""
        reply = call.id, call.usage.input_total if call.usage else 0
        if call.id and not call.body and reply in self._replies:
            counted_in = self._by_number[self._replies[reply]]
            counted_in.spent.copies += 1
            return counted_in, None
        units = units_of(call)
        messages = _messages(call, units)
        at = self._place(call, messages, units)
        if at is None:
            at = self._begin(
                WatchedConversation(call.session or call.source, call.session, self._kind(call, units)), call
            )
        if call.id and not call.body:
            self._replies[reply] = at
        self._index_messages(at, messages)
        return self._by_number[at], self._by_number[at].add(call, units)

    def join(self, part: Grouping, calls: Iterable[SentCall] = ()) -> None:
        """Add the conversations of a part that was read separately, and its calls without bodies."""
        for later in part.conversations:
            first = later.first
            assert first is not None
            units = units_of(first)
            at = self._place(first, _messages(first, units), units)
            if at is None:
                later.kind = self._kind(first, units)
                at = self._begin(later, first)
                self._index_messages(at, later.messages, indexed=False)
            else:
                self._index_messages(at, later.messages)
                self._by_number[at].join(later)
        for call in calls:
            self.add(call)

    def _begin(self, conversation: WatchedConversation, call: SentCall) -> int:
        at, self.count = self.count, self.count + 1
        self._by_number[at] = conversation
        self._of_session.setdefault(conversation.session, []).append(at)
        if not call.body:
            self._by_session[call.session, call.agent] = at
        return at

    def _index_messages(self, at: int, messages: Iterable[str], indexed: bool = True) -> None:
        hashes = self._by_number[at].messages
        for hash in set(messages) - hashes if indexed else messages:
            self._holders.setdefault(hash, []).append(at)
        hashes.update(messages)

    def _place(self, call: SentCall, messages: list[str], units: tuple[Unit, ...]) -> int | None:
        """The number of the conversation that shares most messages with a call, among those that share enough."""
        if not call.body:
            return self._by_session.get((call.session, call.agent))
        votes = Counter(at for hash in dict.fromkeys(messages) for at in self._holders.get(hash, ())[-8:])
        same = {at: count for at, count in votes.items() if self._by_number[at].session == call.session}
        # A request for a title also repeats the user's first message, so one shared message needs a closer look.
        several = [at for at in same if same[at] > 1]
        going_on = several or [at for at in same if self._by_number[at].goes_on(units)]
        found = max(
            (at for at in going_on if self._shares_enough(at, same[at], messages, units)),
            key=lambda at: (same[at], at),
            default=None,
        )
        return self._summed_up(call, units) if found is None else found

    def _summed_up(self, call: SentCall, units: tuple[Unit, ...]) -> int | None:
        """The conversation of the same named session that a request continues with nothing but a summary of it."""
        if not call.session or call.agent:
            return None
        has_tools = any(unit.section == "tools" for unit in units)
        session = ((at, self._by_number[at]) for at in self._of_session.get(call.session, ()))
        return max(
            (at for at, other in session if other.has_tools == has_tools and other.summed_up_by(units)),
            key=lambda at: (self._by_number[at].goes_on(units), self._by_number[at].kind == "main", at),
            default=None,
        )

    def _shares_enough(self, at: int, shared: int, messages: list[str], units: tuple[Unit, ...]) -> bool:
        """One shared message among several is a coincidence ("continue", a greeting), unless it is long."""
        candidate = self._by_number[at]
        if shared >= min(2, len(set(messages))) or len(candidate.messages) <= 2:
            return True
        in_both = (
            unit for unit in units if unit.section == "messages" and not candidate.messages.isdisjoint(unit.hashes)
        )
        return any(unit.size > 100 for unit in in_both) and candidate.goes_on(units)

    def _kind(self, call: SentCall, units: tuple[Unit, ...]) -> ConversationKind:
        """What a new conversation is in its session: the main one, a side request, or another agent's work."""
        if call.agent:
            return "agent"
        others = [self._by_number[at] for at in self._of_session.get(call.session, ())] if call.session else []
        if not others:
            return "main"
        has_tools = any(unit.section == "tools" for unit in units)
        if has_tools and all(len(other.messages) <= 2 and not other.has_tools for other in others):
            # A title may be asked for before the conversation that it names begins.
            for other in others:
                other.kind = "side"
            return "main"
        asks_once = sum(unit.section == "messages" for unit in units) <= 2 and not has_tools
        return "side" if asks_once and any(conversation.has_tools for conversation in others) else "agent"


def _totals(call: SentCall) -> AuditTotals:
    if call.usage is None:
        return AuditTotals(requests=1, untold=1)
    used, money = call.usage, known_cost(call.usage, call.target, call.at_ms)
    written = used.cache_write_5m + used.cache_write_1h
    spent = AuditTotals(1, used.input_total, used.cache_read, written)
    spent.usd, spent.unpriced = money or 0.0, int(money is None)
    return spent


# The report: totals by conversation and by cause, in tokens and in money.

Argument = TypeVar("Argument")
Output = TypeVar("Output")


def file_parts(path: str | Path) -> Iterator[FilePart]:
    """The files at a path, long logs in parts."""
    for file in files_under(Path(path)):
        yield from parts(file)


def read_calls(path: str | Path) -> Iterator[SentCall]:
    """The requests of a file, or of all files in a folder, in order; an unknown file format is an error."""
    for part in file_parts(path):
        yield from sent_calls(part.open())


class AuditReport(msgspec.Struct, frozen=True):
    """The result of an audit; the conversations that lost most come first."""

    total: AuditTotals
    conversations: tuple[WatchedConversation, ...]

    @property
    def by_cause(self) -> dict[str, AuditTotals]:
        """The losses of each cause, the most expensive first."""
        out: dict[str, AuditTotals] = {}
        for audited in self.conversations:
            for loss in audited.verdicts:
                row = out.setdefault(loss.cause, AuditTotals())
                row += AuditTotals(1, lost=loss.lost, lost_usd=loss.usd or 0.0)
        return dict(sorted(out.items(), key=lambda item: (-item[1].lost_usd, -item[1].lost)))

    def as_json(self) -> JsonObject:
        causes = [
            {"cause": cause, "what": CAUSES[cause][0], "fix": CAUSES[cause][1], **spent.as_json()}
            for cause, spent in self.by_cause.items()
        ]
        rows = [
            {
                "name": audited.name,
                "kind": audited.kind,
                "bodies": audited.bodies,
                **audited.spent.as_json(),
                "losses": [msgspec.to_builtins(loss) for loss in audited.verdicts],
            }
            for audited in self.conversations
        ]
        return {"total": self.total.as_json(), "causes": causes, "conversations": rows}


def audit(calls: Iterable[SentCall]) -> AuditReport:
    """Report what recorded calls lost of the provider's cache, and why."""
    grouping = Grouping()
    for call in calls:
        grouping.add(call)
    return report_of(grouping)


def report_of(grouping: Grouping) -> AuditReport:
    worst = sorted(grouping.conversations, key=lambda audited: (-audited.spent.lost_usd, -audited.spent.lost))
    return AuditReport(grouping.total, tuple(worst))


# Files, and parts of long files, are read independently and joined in order: the report does not depend on how many
# processes read them.


class PartOfAudit(msgspec.Struct, frozen=True):
    """The result of one file, or a part of one: its conversations, and its calls without bodies."""

    part: FilePart
    grouping: Grouping
    usage_only: tuple[SentCall, ...] = ()
    problem: QuireError | None = None


def audit_part(part: FilePart) -> PartOfAudit:
    """Read one file; the result depends on nothing else, so any process can do it."""
    grouping, usage_only, problem = Grouping(), list[SentCall](), None
    try:
        for call in sent_calls(part.open()):
            grouping.add(call) if call.body else usage_only.append(call)
    except QuireError as error:
        problem = error
    return PartOfAudit(part, grouping, tuple(usage_only), problem)


def audit_files(
    files: Iterable[FilePart],
    run: Callable[[Callable[[FilePart], PartOfAudit], Iterable[FilePart]], Iterator[PartOfAudit]] = map,
    on_part: Callable[[PartOfAudit], None] = lambda part: None,
) -> AuditReport:
    """The report over files; `run` reads the parts (`map`, `on_cores`, `on_ray`), `on_part` is called with each."""
    grouping = Grouping()
    for part in run(audit_part, files):
        on_part(part)
        grouping.join(part.grouping, part.usage_only)
    return report_of(grouping)


def on_cores(count: int) -> Callable[[Callable[[Argument], Output], Iterable[Argument]], Iterator[Output]]:
    """`map` on `count` processes, in order; arguments are read only a little ahead of the results."""

    # Not a pool of concurrent.futures: that waits for ever where a process is killed while it sends its result.
    def run(function: Callable[[Argument], Output], arguments: Iterable[Argument]) -> Iterator[Output]:
        from multiprocessing import connection, get_context

        context = get_context("spawn")
        with ExitStack() as stack:
            idle: list[Any] = []
            for _ in range(count):
                ours, theirs = context.Pipe()
                idle.append(stack.enter_context(ours))
                with theirs, _defer_ctrl_c():
                    worker = context.Process(target=_work, args=(theirs, function), daemon=True)
                    worker.start()
                    stack.callback(worker.join)
                    stack.callback(worker.kill)
            begun = enumerate(arguments)
            at_work: dict[Any, int] = {}
            done: dict[int, Output] = {}
            given = 0
            while True:
                room = 2 * count - len(at_work) - len(done)
                for pipe, (number, argument) in zip(idle[:room], begun, strict=False):
                    at_work[pipe] = number
                    with suppress(BrokenPipeError):  # the process has ended: `_answer` will say so
                        pipe.send(argument)
                idle = [pipe for pipe in idle if pipe not in at_work]
                if not at_work:
                    return
                for pipe in connection.wait(list(at_work)):
                    done[at_work.pop(pipe)] = _answer(pipe)
                    idle.append(pipe)
                while given in done:
                    yield done.pop(given)
                    given += 1

    return run


def _answer(pipe: Any) -> Any:
    """A worker's result; what it raised is raised here."""
    try:
        is_right, value = pipe.recv()
    except (EOFError, OSError) as error:
        raise QuireError(
            "a process that reads was stopped", hint="Is there memory enough? --jobs 1 takes less."
        ) from error
    if not is_right:
        raise value
    return value


def _work(pipe: Any, function: Callable[[Any], Any]) -> None:
    """Run the function for each argument from the pipe. Ends with the parent process; leaves Ctrl-C to that one."""

    def end_with_parent() -> None:
        parent_process().join()  # type: ignore[union-attr]  # this runs in a child
        os._exit(1)

    from multiprocessing import parent_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):  # the parent has closed the pipe
        while True:
            argument = pipe.recv()
            try:
                answer = True, function(argument)
            except Exception as error:  # whatever it is, it is raised where the work was asked for
                error.add_note(traceback.format_exc())  # a traceback cannot be sent
                answer = False, error
            pipe.send(answer)


@contextmanager
def _defer_ctrl_c() -> Iterator[None]:
    """Handle Ctrl-C only after the block, so that a process that is starting is never left behind and prints nothing."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # starting it later would unblock Ctrl-C
    pressed: list[int] = []
    usual = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the started process inherits the block
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, usual)
    if pressed:
        signal.raise_signal(signal.SIGINT)


def on_ray(address: str) -> Callable[[Callable[[Argument], Output], Iterable[Argument]], Iterator[Output]]:
    """`map` on a Ray cluster whose nodes see the same files; in order, two parts ahead for each core."""

    def run(function: Callable[[Argument], Output], arguments: Iterable[Argument]) -> Iterator[Output]:
        with needs_extra("Ray is not installed", "ray"):
            import ray
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
        try:
            most = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
            ahead: deque[Any] = deque()
            for work in map(ray.remote(num_cpus=1)(function).remote, arguments):
                ahead.append(work)
                if len(ahead) > most:
                    yield ray.get(ahead.popleft())
            yield from map(ray.get, ahead)
        finally:
            ray.shutdown()

    return run
