"""The cycle of every runner: ask the model, store its reply as it streams in, run its calls, ask again, until it has none.

Everything is stored before it takes effect: a request before it is sent, a call before it runs, a result before the next
request. So the log of an interrupted process shows what is still to be done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from itertools import count, takewhile
from typing import Any, Literal, TypeAlias, cast

import msgspec

from quire import providers, values
from quire.assemble.summary import extract
from quire.errors import CallError, ProviderError
from quire.log import lock_turn, off_loop, refuse_loop, to_the_end
from quire.log.shapes import short
from quire.log.store import Store
from quire.providers.incoming import BlockDelta
from quire.send.connect import transport_for
from quire.send.events import Event, Growing, Journal, OnEvent, entry_event, event_id
from quire.send.runners import ByModel
from quire.send.transport import Transport, close, named_window, served
from quire.send.turn import (
    CHAT,
    MESSAGES,
    Next,
    Runner,
    Turn,
    TurnState,
    TurnThread,
    check_prices,
    defined_tool,
    head_entries,
    is_aside,
    limit_met,
    may_run_again,
    newest_first,
    read_head,
    standing,
    usage_of,
    usd_of,
)
from quire.values import INTERRUPTED, Entry, Reply, Request, Usage

Stop = Literal["answered", "stopped", "steps", "tokens", "money", "seconds"]
# What to do with a call that may have run already: run it again, record it as interrupted, or record this result.
Decision: TypeAlias = Literal["run", "interrupted"] | Entry
Decide: TypeAlias = Callable[[Entry], Decision]


class Outcome(msgspec.Struct, frozen=True):
    """How a turn ended, and its usage, side requests included."""

    stop: Stop
    text: str
    steps: int
    usage: Usage
    usd: float | None
    entries: tuple[Entry, ...] = ()


def interrupted(call: Entry) -> Decision:
    """The cautious decision: a call that may have run is not run again."""
    return "interrupted"


async def run(
    thread: TurnThread,
    target: str,
    transport: Transport,
    runner: Runner = CHAT,
    *,
    on_event: OnEvent | None = None,
    decide: Decide = interrupted,
) -> Outcome:
    """Carry out the newest turn of a thread, from its present state until it is answered or a limit is met."""
    return await Cycle(thread, target, transport, runner, on_event, decide).run()


def run_sync(thread: TurnThread, target: str, transport: Transport, runner: Runner = CHAT, **how: Any) -> Outcome:
    """`run` for callers without an event loop; Ctrl-C stores what has arrived and raises KeyboardInterrupt."""
    refuse_loop("await run(thread, …)")
    return asyncio.run(_then_closed(run(thread, target, transport, runner, **how), transport))


async def _then_closed(carried: Awaitable[Outcome], transport: Transport | None) -> Outcome:
    try:
        return await carried
    finally:
        if transport is not None:
            await close(transport)


class Cycle:
    """One turn being carried out."""

    def __init__(
        self,
        thread: TurnThread,
        target: str,
        transport: Transport,
        runner: Runner,
        on_event: OnEvent | None,
        decide: Decide,
    ) -> None:
        self.thread, self.target, self.transport, self.runner = thread, target, transport, runner
        self._on_event, self._decide = on_event, decide
        self._speech = runner.speech
        self._tools = [dict(tool) for tool in runner.tools.definitions()] if runner.tools else []
        self._journal = Journal(thread.store, thread.name)
        self._growing = Growing()
        self._began = False
        self._learned = False
        self._turn, self._last_seq = TurnState(), 0
        self._tip: Entry | None = None
        self._new_entries: list[Entry] = []
        # Calls may run in parallel, but their results are stored one by one.
        self._writing = asyncio.Lock()

    async def run(self) -> Outcome:
        """Run the cycle; the limit of seconds is for this run, the other limits for the turn."""
        async with lock_turn(self.thread.store.turn_lock(self.thread.name)):
            self._last_seq = (await off_loop(self.thread.store.info, self.thread.name)).seq
            self._turn = await off_loop(standing, self.thread.store, self.thread.name)
            if self._turn.user is None:
                raise CallError(f"thread {self.thread.name!r} has no user entry to answer", hint="Append one first.")
            check_prices(self.runner.limits, self.target)
            stop = await self._within_seconds()
            await self._keep_besides()
            text = "".join(entry.text for entry in self._turn.answer if entry.kind == "respond")
            used, usd = usage_of(self._turn), usd_of(self._turn)
            return Outcome(stop, text, self._turn.steps, used, usd, tuple(self._new_entries))

    async def _within_seconds(self) -> Stop:
        try:
            async with asyncio.timeout(self.runner.limits.seconds) as limit:
                return await self._go()
        except TimeoutError:
            if not limit.expired():
                raise
            return "seconds"

    async def _go(self) -> Stop:
        if ended := self._stop_reason():
            return ended
        await self._settle_doubts()
        await self._ensure_head()
        await self._prepare()
        while True:
            await self._run_calls()
            if ended := self._stop_reason():
                return ended
            if reached := limit_met(self._turn, self.runner.limits):
                return reached
            await self._keep_besides()
            await self._recall_unasked()
            await self._ask()

    def _stop_reason(self) -> Stop | None:
        if self._turn.next != "done":
            return None
        return "stopped" if self._turn.stopped else "answered"

    # The log

    async def _append(self, *entries: Entry) -> None:
        """Append to the log, then report the events; not interrupted in between."""
        await to_the_end(self._append_and_tell(entries))

    async def _append_and_tell(self, entries: Sequence[Entry]) -> None:
        async with self._writing:
            before, stored = await off_loop(self._store, entries)
            for entry in [*before, *stored]:
                self._turn.take(entry)
            self._new_entries += [*before, *stored]
            self._tip, self._last_seq = stored[-1], stored[-1].seq
            self._tell([*(entry_event(entry) for entry in before), *self._growing.finish(stored)])

    def _store(self, entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
        """(entries that others appended meanwhile: a rebase, a side request; the given entries as stored)."""
        stored = self.thread.append(*entries)
        others = stored[0].seq - self._last_seq - 1
        before = self.thread.store.read(self.thread.name, after=self._last_seq, limit=others) if others else []
        return before, stored

    def _tell(self, events: Sequence[Event]) -> None:
        if self._on_event is not None:
            for event in events:
                self._on_event(event)

    async def _ensure_head(self) -> None:
        """Append the runner's memory, system prompt and tools where the thread lacks them."""
        if not (self.runner.system or self.runner.memory is not None or self._tools):
            return
        thread_head = await off_loop(read_head, self.thread.store, self.thread.name)
        if head := head_entries(thread_head, self.runner.system, self.runner.memory):
            await self._append(*head)
        if new := [tool for tool in self._tools if thread_head.tools.get(str(tool["name"])) != tool]:
            await self._append(values.tools(new))

    async def _prepare(self) -> None:
        if self.runner.prepare is None or not self._turn.fresh:
            return
        if entries := await self.runner.prepare(self._as_turn()):
            await self._append(*entries)

    async def _keep_besides(self) -> None:
        if self.runner.keep is not None:
            await self.runner.keep(self._as_turn())

    def _as_turn(self) -> Turn:
        assert self._turn.user is not None  # run() asked
        return Turn(self.thread, self.target, self.transport, self.runner, self._turn.user)

    # Calls

    async def _settle_doubts(self) -> None:
        """Decide on the call that was running when an earlier process ended: it may have taken effect."""
        for call in _doubtful(self._turn, self.runner):
            if (decision := self._decide(call)) != "run":
                await self._answer(call, interrupted_result(call) if decision == "interrupted" else decision)

    async def _answer(self, call: Entry, result: object) -> None:
        """Append a call's result; anything else is an error, since the call would stay open and run again."""
        if not (isinstance(result, Entry) and result.kind == "result" and result.call_id == call.call_id):
            raise CallError(
                f"{short(result)} is no result of the call {call.call_id!r}",
                hint='Give quire.result(call.call_id, …); of a call in doubt also "run" or "interrupted".',
            )
        await self._append(result)

    async def _run_calls(self) -> None:
        """Run the open calls: those that may run again in parallel, all others one by one."""
        while pending := self._turn.pending:
            together = list(takewhile(lambda call: may_run_again(self.runner, call), pending)) or pending[:1]
            await asyncio.gather(*(self._run_call(call) for call in together))

    async def _run_call(self, call: Entry) -> None:
        if wrong := call.meta.get("malformed"):
            await self._append(values.result(call.call_id, str(wrong), error=True))
            return
        # Where the runner has no tool `recall`, the thread answers: handles in a request offer it to the model.
        if call.name == "recall" and defined_tool(self.runner, "recall") is None:
            await self._append(await off_loop(self.thread.recall_result, call))
            return
        if self.runner.tools is None:
            await self._append(values.result(call.call_id, f"there is no tool {call.name!r}", error=True))
            return
        assert self._turn.user is not None  # run() asked
        # For tools that number their documents: the turn, and the numbers that it uses already.
        meta = {**call.meta, "turn": self._turn.user.id, "sources": list(self._turn.sources)}
        named = msgspec.structs.replace(call, body={**call.body, "meta": meta})
        await self._answer(call, await self.runner.tools.run(named))

    # Requests

    async def _recall_unasked(self) -> None:
        """Append recalled entries: ones that were left out and that the turn refers to again."""
        if self._speech is not MESSAGES:
            return
        entries = await off_loop(self.thread.recall_unasked, self.target, self.runner.recall)
        if entries:
            await self._append(*entries)

    async def _ask(self) -> None:
        """Send the next request; where its reply breaks off, send it again: the first part no longer counts."""
        request = await self._request()
        for attempt in count(1):
            self._growing, self._began = Growing(), False
            await self._append(self._speech.sent_entry(self.thread, request))
            names = [*(str(tool["name"]) for tool in self._tools), "recall"]
            stream = await off_loop(self._speech.reader, self.thread, self.target, names)
            try:
                await self._receive(request, stream)
            except ProviderError as error:
                if await self._learns_window(error):
                    await self._ask()
                    return
                # Where no reply began, the transport has retried already.
                if not (error.retryable and self._began and attempt < self.runner.limits.attempts):
                    raise
            else:
                return

    async def _request(self) -> Request:
        """The next request; where a rebase is due, the model writes its summary first."""
        thread, given = self.thread, self.thread.summarise
        if given is extract and self.runner.summary == "model" and self._speech is MESSAGES:
            rebase = (await off_loop(thread.build, self.target)).rebase
            # Not for a rebase because of a cold cache: asking would read the whole uncached history.
            if rebase is not None and rebase["reason"] != "cold":
                thread.summarise = ByModel()
                self._tell([Event(event_id(self._last_seq), "summary")])
        try:
            if (prepare := getattr(thread.summarise, "prepare", None)) is not None:
                await prepare(self._as_turn())
            return await off_loop(self._speech.request, thread, self.target, self.runner.options)
        finally:
            thread.summarise = given

    async def _learns_window(self, error: ProviderError) -> bool:
        """Whether a refusal names the model's real window; then the thread stays within it from now on."""
        window = named_window(error)
        if window is None or self._learned:
            return False
        self._learned = True
        await off_loop(self.thread.learn_window, self.target, *window)
        return True

    async def _receive(self, request: Request, stream: Any) -> None:
        finished: Sequence[Entry] = ()
        try:
            async with aclosing(cast(Any, self.transport.stream(request))) as events:
                async for event in events:
                    self._began = True
                    finished = stream.feed(event)
                    await self._grow(stream.live())
                    if finished:
                        stored, finished = finished, ()
                        await self._append(*stored)
        except asyncio.CancelledError:
            if finished:
                await self._append(*finished)
            await self._keep(request, stream.partial())
            raise
        reply = stream.reply()
        await self._append(self._speech.sent_entry(self.thread, request, reply))
        if self._speech is MESSAGES:
            await off_loop(self.thread.reported, request, reply, served=served(self.transport, request))

    async def _grow(self, deltas: list[BlockDelta]) -> None:
        assert self._tip is not None  # `_ask` appended the request's `sent` entry
        if events := self._growing.add(deltas, self._tip.seq):
            self._tell(events)
            if self._journal.is_due():
                await off_loop(self._journal.keep, self._growing.texts(), self._tip)

    async def _keep(self, request: Request, partial: providers.Partial) -> None:
        """Store a reply that the user stopped: its texts, marked as stopped, without unfinished calls."""
        makers = {"respond": values.respond, "think": values.think}
        spoken = [
            makers[piece["kind"]](piece["text"], meta={"stopped": True})
            for piece in partial.unfinished
            if piece["kind"] in makers and piece["text"].strip()
        ]
        reply = Reply((), partial.usage, "stopped")
        sent = self._speech.sent_entry(self.thread, request, reply).body
        await self._append(*spoken, Entry("sent", {**sent, "meta": {**sent.get("meta", {}), "stopped": True}}))


def interrupted_result(call: Entry) -> Entry:
    """The result of a call that was interrupted, with the text that rendering uses for a missing result."""
    return values.result(call.call_id, INTERRUPTED, error=True, meta={"interrupted": True})


# The notes that ask the model to continue a stopped answer, or one that was stopped before its first word.
GO_ON = "Your answer above was interrupted. Go on where it ends, without repeating it."
BEGIN = "You were interrupted before you answered. Answer now."


def going_on(turn: TurnState) -> Entry:
    """The note that asks the model to continue an answer that the user stopped."""
    spoke = any(entry.kind == "respond" and entry.text.strip() for entry in turn.answer)
    return values.note(GO_ON if spoke else BEGIN, meta={"resumed": True})


# Resuming an interrupted turn.


class InterruptedTurn(msgspec.Struct, frozen=True):
    """The state that resuming starts from: the model asked last, the next step, and the calls to run.

    `doubtful` calls may have run already; `waiting` calls have not run, or may run again.
    """

    target: str
    next: Next
    doubtful: tuple[Entry, ...] = ()
    waiting: tuple[Entry, ...] = ()
    # Whether the user stopped its answer; resuming asks the model to continue it.
    stopped: bool = False


def look(store: Store, thread: str, runner: Runner = CHAT) -> InterruptedTurn:
    """The state of a thread's newest turn; nothing is changed."""
    turn = standing(store, thread)
    doubtful = _doubtful(turn, runner)
    waiting = tuple(turn.pending[len(doubtful) :])
    stopped = turn.next == "done" and turn.stopped
    next: Next = "ask" if stopped else turn.next
    return InterruptedTurn(last_target(store, thread), next, doubtful, waiting, stopped)


def _doubtful(turn: TurnState, runner: Runner) -> tuple[Entry, ...]:
    """The call that may have run: the first open one, unless it may run again (such calls run one by one)."""
    return tuple(call for call in turn.pending[:1] if not may_run_again(runner, call))


def last_target(store: Store, thread: str) -> str:
    """The "provider:model" that was asked last; empty when none was."""
    sent = (entry.body for entry in newest_first(store, thread) if entry.kind == "sent" and not is_aside(entry))
    return next((f"{body['provider']}:{body['model']}" for body in sent), "")


async def resume(
    thread: TurnThread, transport: Transport | None = None, runner: Runner = CHAT, *, target: str = "", **how: Any
) -> Outcome:
    """Continue the newest turn from the log; `decide(call)` decides on a call that may have run already.

    Without a transport, one is made for the model that was asked last; the local model is started.
    """
    model = target or await off_loop(last_target, thread.store, thread.name)
    if not model:
        raise CallError(f"thread {thread.name!r} was never sent anywhere", hint="Name a model: provider:model.")
    async with lock_turn(thread.store.turn_lock(thread.name)):
        turn = await off_loop(standing, thread.store, thread.name)
        if turn.next == "done" and turn.stopped:
            await off_loop(thread.append, going_on(turn))
        if transport is not None:
            return await run(thread, model, transport, runner, **how)
        from quire.send.local import TARGET, local_target

        own_transport = transport_for(model, local_target().base_url if model == TARGET else None)
        return await _then_closed(run(thread, model, own_transport, runner, **how), own_transport)


def resume_sync(thread: TurnThread, transport: Transport | None = None, runner: Runner = CHAT, **how: Any) -> Outcome:
    """`resume` for callers without an event loop."""
    refuse_loop("await resume(thread, …)` or `await AsyncThread(thread).resume(…)")
    return asyncio.run(_then_closed(resume(thread, transport, runner, **how), transport))
