"""Turns carried out by the service: begun, followed, stopped, resumed; what its process leaves behind, another goes on with."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import msgspec

from quire import values
from quire.errors import CallError, ConflictError
from quire.log import lock_turn, off_loop
from quire.log.store import ThreadInfo, has_thread, tip_of
from quire.providers.models import is_embedded, named_target, split_target
from quire.providers.wires import wire_of
from quire.send.connect import Via, transport_for
from quire.send.cycle import Cycle, Decision, going_on, interrupted_result, last_target
from quire.send.events import event_id, read_id
from quire.send.transport import Transport, address_for, close, endpoint_for, key_for
from quire.send.turn import RECALL_SHARE, Limits, Runner, standing, usage_of, usd_of
from quire.server import EVENTS, EntryJson, HttpRefusal, Model, RouteCall, entry_json, problem_of, route
from quire.server.follow import ALIVE, OPENING, event_bytes, named_bytes
from quire.values import Entry, Item, JsonObject, RequestOptions, chain

if TYPE_CHECKING:
    from quire.log.store import Store
    from quire.server.service import Service, Tenant

# Where it is asked for that a turn which another process carries out shall stop: the id of its user entry.
_STOP = "stop"
_LOOK_S = 0.25


class TurnLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a turn ends by itself."""

    steps: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50
    tokens: Annotated[int, msgspec.Meta(ge=1, le=10**12)] | None = None
    usd: Annotated[float, msgspec.Meta(ge=0, le=10**6)] | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0, le=86_400)] | None = None


class NewTurn(msgspec.Struct, forbid_unknown_fields=True):
    """What the user says, and to which model; without one, the thread's last, else the service's own.

    `stream` false answers once, when the turn has ended.
    """

    text: Annotated[str, msgspec.Meta(min_length=1)]
    model: Model | None = None
    attach: Annotated[list[Item], msgspec.Meta(max_length=1000)] = []
    options: RequestOptions = {}
    limits: TurnLimits = TurnLimits()
    stream: bool = True


class CallResult(msgspec.Struct, forbid_unknown_fields=True):
    """The result of a call that the caller ran, or says was interrupted."""

    call_id: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    content: str = ""
    error: bool = False
    interrupted: bool = False


class Resumed(msgspec.Struct, forbid_unknown_fields=True):
    """How an open turn goes on: results for calls that wait, or may have run already."""

    results: Annotated[list[CallResult], msgspec.Meta(max_length=1000)] = []
    model: Model | None = None
    options: RequestOptions = {}
    limits: TurnLimits = TurnLimits()
    stream: bool = True


class TurnOutcome(msgspec.Struct):
    """How a turn ended: "calls" where the caller has to run some, "failed" with the problem where the model's side did."""

    stop: str
    text: str
    model: str
    steps: int
    usage: JsonObject
    usd: float | None
    seq: int
    calls: list[EntryJson] = []
    problem: JsonObject | None = None


class TurnStanding(msgspec.Struct):
    """How the newest turn stands: what is next, who has to do it, and the calls that wait."""

    next: Literal["nothing", "ask", "run", "done"]
    running: bool
    model: str
    seq: int
    calls: list[EntryJson]


class Stopped(msgspec.Struct):
    """Whether a turn was under way; where another process carries it out, it stops within a second."""

    stopped: bool


class _CallsWait(Exception):
    """The model called tools, and whoever asked runs them."""


class _CallerRuns:
    """The service runs no tools: a turn ends where the model calls one, and goes on with its result."""

    def definitions(self) -> Sequence[JsonObject]:
        return ()

    async def run(self, call: Entry) -> Entry:
        raise _CallsWait


def _leave_to_caller(call: Entry) -> Decision:
    raise _CallsWait


class RunningTurn(NamedTuple):
    """A turn under way in this process: the user's entry, once it is stored, and the outcome."""

    began: asyncio.Future[Entry]
    task: asyncio.Task[TurnOutcome]


def _options(target: str) -> JsonObject:
    """What requests to the embedded model need besides; others need nothing."""
    from quire.send.local import OPTIONS

    return OPTIONS if is_embedded(target) else {}


class Turns:
    """The turns that this process carries out, one a thread."""

    def __init__(self, service: Service, model: str = "", base_url: str = "") -> None:
        self._service, self._model, self._base_url = service, model, base_url
        self._running: dict[tuple[str, str], RunningTurn] = {}

    def running(self, call: RouteCall) -> RunningTurn | None:
        return self._running.get((call.tenant.name, call.name))

    async def begin(self, call: RouteCall, entries: Sequence[Entry], body: NewTurn | Resumed) -> RunningTurn:
        """Carry the newest turn out, behind these entries; a ConflictError where one is under way."""
        if self._service.draining:
            raise HttpRefusal(
                503, "the service is ending", hint="Ask another, or in a moment.", headers={"retry-after": "2"}
            )
        key = (call.tenant.name, call.name)
        if key in self._running:
            raise ConflictError(
                f"a turn of thread {call.name!r} is being carried out", hint="Follow its events, or stop it."
            )
        began: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._carry_out(began, call, entries, body))
        turn = self._running[key] = RunningTurn(began, task)
        task.add_done_callback(lambda task: self._end(key, task))
        either: set[asyncio.Future[Any]] = {began, task}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not began.done():
            began.cancel()
            await task  # raises why it could not begin
        return turn

    def _end(self, key: tuple[str, str], task: asyncio.Task[TurnOutcome]) -> None:
        del self._running[key]
        if not task.cancelled():
            task.exception()  # the caller has received the error, or has left

    async def _carry_out(
        self, began: asyncio.Future[Entry], call: RouteCall, entries: Sequence[Entry], body: NewTurn | Resumed
    ) -> TurnOutcome:
        tenant, name = call.tenant, call.name
        async with lock_turn(tenant.store.turn_lock(name)):
            model = await off_loop(self._target, tenant, name, body.model)
            transport = await off_loop(self._transport_to, model)
            try:
                await off_loop(_forget_stop, tenant.store, name)
                thread = await off_loop(tenant.thread, name, create=bool(entries))
                if entries:
                    await off_loop(thread.append, *entries)
                user = (await off_loop(standing, tenant.store, name)).user
                if user is None:
                    raise CallError(f"thread {name!r} has no user entry to answer", hint="Begin a turn first.")
                began.set_result(user)
                limits = Limits(**msgspec.structs.asdict(body.limits))
                runner = Runner(
                    tools=_CallerRuns(),
                    limits=limits,
                    options=_options(model) | cast(JsonObject, body.options),
                    recall=RECALL_SHARE,
                    summary="model",
                )
                cycle = Cycle(thread, model, transport, runner, None, _leave_to_caller)
                return await self._until_stopped(tenant, name, user, cycle, model)
            finally:
                await close(transport)

    async def _until_stopped(self, tenant: Tenant, name: str, user: Entry, cycle: Cycle, model: str) -> TurnOutcome:
        """Run a cycle; a stop that was asked for in another process is looked for meanwhile."""
        work = asyncio.create_task(cycle.run())
        try:
            while not work.done():
                await asyncio.wait({work}, timeout=_LOOK_S)
                if not work.done() and await off_loop(tenant.store.get_state, name, _STOP) == user.id:
                    work.cancel()
        except asyncio.CancelledError:
            work.cancel()
        finally:
            await asyncio.wait({work})
        stop, problem = "stopped", None
        if not work.cancelled():
            error = work.exception()
            if error is None:
                stop = work.result().stop
            elif isinstance(error, _CallsWait):
                stop = "calls"
            elif isinstance(error, Exception):
                stop, problem = "failed", msgspec.to_builtins(problem_of(error))
        return await off_loop(_outcome, tenant, name, stop, model, problem)

    def _target(self, tenant: Tenant, name: str, model: str | None) -> str:
        target = model or (self.default_model(tenant.store, name) if has_thread(tenant.store, name) else self._model)
        if not target:
            raise CallError("no model is named", hint='Send "model": "provider:model", or start with --model.')
        return named_target(target)

    def default_model(self, store: Store, name: str) -> str:
        """The model of a turn that names none: the thread's last one, unless only the service's own has a key here."""
        last = last_target(store, name)
        lacks_key = last and endpoint_for(last).needs_key and not key_for(last, os.environ) and not self._url(last)
        return self._model if not last or (self._model and lacks_key) else last

    def _url(self, target: str) -> str:
        """The address that the service was given for this provider."""
        is_ours = not self._model or split_target(self._model)[0] == split_target(target)[0]
        return (self._base_url if is_ours else "") or address_for(target, os.environ) or ""

    def _transport_to(self, target: str) -> Transport:
        """The way to a model: the service's own keys and addresses, never the caller's."""
        provider = split_target(target)[0]
        url, key = self._url(target) or None, key_for(target, os.environ)
        if url is None and is_embedded(target):
            from quire.send.local import local_target

            url = local_target().base_url
        # Plain HTTP where there is a way: an SDK takes seconds to load.
        via: Via = "http" if wire_of(provider).call.path is not None else ""
        return transport_for(target, url, key, via=via, proxies=not url)

    async def stop(self, tenant: Tenant, name: str) -> bool:
        """Stop a thread's turn: what came is kept and marked."""
        turn = self._running.get((tenant.name, name))
        if turn is not None:
            turn.task.cancel()
            await asyncio.wait({turn.task})
            return True
        newest = await off_loop(standing, tenant.store, name)
        if newest.user is None or newest.next in ("done", "nothing"):
            return False
        await off_loop(tenant.store.set_state, name, _STOP, newest.user.id)
        return True

    async def drain(self, grace_s: float) -> None:
        """Let turns end by themselves for a while; then stop them, which records what came."""
        tasks = {turn.task for turn in self._running.values()}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)


def _forget_stop(store: Store, name: str) -> None:
    """A turn that goes on does so in spite of a stop that was asked for before."""
    if has_thread(store, name) and store.get_state(name, _STOP):
        store.set_state(name, _STOP, None)


def _outcome(tenant: Tenant, name: str, stop: str, model: str, problem: JsonObject | None) -> TurnOutcome:
    """How the newest turn stands, by its log alone."""
    turn = standing(tenant.store, name)
    text = "".join(entry.text for entry in turn.answer if entry.kind == "respond")
    used, calls, seq = usage_of(turn).as_json(), list(map(entry_json, turn.pending)), tenant.store.info(name).seq
    return TurnOutcome(stop, text, model, turn.steps, used, usd_of(turn), seq, calls, problem)


# The routes.


async def begin_turn(call: RouteCall, body: NewTurn) -> Any:
    """Say something and have it answered: events as they come, with the outcome at the end.

    The turn goes on where its caller goes away; `events` tells what it missed, `stop` ends it.
    """
    items = await off_loop(
        lambda: call.tenant.thread(call.name).kept_items() if has_thread(call.store, call.name) else []
    )
    user = values.user(body.text, [*items, *body.attach], at=call.service.clock())
    entry = call.service.redactor.entry(user)
    return await _answer(call, await _begin_or_join(call, [entry], body), body.stream)


async def resume_turn(call: RouteCall, body: Resumed) -> Any:
    """Go on with an open turn: with the results of calls that wait, from wherever the log ends."""
    if call.began and await off_loop(stored_before, call, call.began["count"]):
        # An earlier attempt stored the results; another process may have ended before the turn did.
        return await _answer(call, await _begin_or_join(call, [], body), body.stream)
    turn = await off_loop(standing, call.store, call.name)
    waiting = {entry.call_id: entry for entry in turn.pending}
    unknown = [result.call_id for result in body.results if result.call_id not in waiting]
    if unknown:
        raise HttpRefusal(
            409,
            f"no call {unknown[0]!r} waits for a result",
            hint="`GET …/turn` names the calls that wait.",
            state=show_turn(call),
        )
    entries = [
        interrupted_result(waiting[result.call_id])
        if result.interrupted
        else values.result(result.call_id, result.content, error=result.error)
        for result in body.results
    ]
    if turn.next == "done" and turn.stopped:
        entries.append(going_on(turn))
    return await _answer(call, await _begin_or_join(call, entries, body), body.stream)


async def _begin_or_join(call: RouteCall, entries: Sequence[Entry], body: NewTurn | Resumed) -> RunningTurn:
    """The turn, begun now; one that an earlier attempt with the same key began is gone on with instead."""
    turns = call.service.turns
    if call.remember is not None:
        before, running = call.began, turns.running(call)
        if before and await off_loop(stored_before, call, before["count"]):
            await off_loop(_check_newest, call, before)
            return running or await turns.begin(call, [], body)
        if before:
            await off_loop(check_not_deleted, call)
        await off_loop(note_entries, call, entries)
    turn = await turns.begin(call, entries, body)
    await off_loop(note_made, call)
    return turn


def stored_before(call: RouteCall, count: int) -> list[Entry]:
    """The entries that an earlier attempt with the same key stored; none where it came no further than its note."""
    seq, last = call.began["seq"], call.began["id"]
    entries = call.store.read(call.name, seq, count) if has_thread(call.store, call.name) else []
    return entries if entries and entries[-1].id == last else []


def _check_newest(call: RouteCall, before: JsonObject) -> None:
    """A refusal where another turn came behind the one that a key began: it is not to be gone on with instead."""
    newest = standing(call.store, call.name).user
    if newest is not None and newest.seq > before["seq"] + before["count"]:
        raise HttpRefusal(
            409,
            "the turn of this Idempotency-Key is over, and another came behind it",
            hint="`GET …/entries` tells how it ended.",
            state=show_turn(call),
        )


def note_entries(call: RouteCall, entries: Sequence[Entry]) -> ThreadInfo:
    """Note which entries are about to be appended; where the thread ends before them."""
    tip = tip_of(call.store, call.name)
    chained = list(chain(entries, tip.id, tip.seq))
    call.begin({"seq": tip.seq, "count": len(chained), "id": chained[-1].id if chained else ""})
    return tip


def note_made(call: RouteCall) -> None:
    """Note that a thread was begun: once it is deleted, nothing else tells of it."""
    if call.began and not call.began["seq"]:
        call.begin({**call.began, "made": True})


def check_not_deleted(call: RouteCall) -> None:
    """A refusal where the thread that an earlier attempt with the same key wrote to is there no more."""
    if call.began.get("made") or tip_of(call.store, call.name).seq < call.began["seq"]:
        hint = "Make a new key to begin the thread anew."
        raise HttpRefusal(409, "the thread was deleted since this Idempotency-Key was first used", hint=hint)


async def _answer(call: RouteCall, turn: RunningTurn, stream: bool) -> Any:
    if stream:
        return call.service.stream(call, _events(call, turn))
    outcome = await asyncio.shield(turn.task)
    if outcome.problem is not None:
        problem = outcome.problem
        raise HttpRefusal(problem["status"], problem.get("detail", ""), hint=problem.get("hint", ""), state=outcome)
    return outcome


async def _events(call: RouteCall, behind: str | RunningTurn) -> AsyncGenerator[bytes, None]:
    """A thread's events behind one of them; or a turn's, from its user entry on, then its outcome."""
    last, turn = (behind, None) if isinstance(behind, str) else (event_id(behind.began.result().seq - 1), behind.task)
    redact = call.service.redactor.bytes
    yield OPENING
    async with contextlib.aclosing(call.tenant.follower.events(call.name, last, until=turn)) as events:
        async for event in events:
            yield ALIVE if event is None else redact(event_bytes(event))
    if turn is not None and turn.done() and not turn.cancelled():
        yield redact(named_bytes("outcome", turn.result()))


def show_turn(call: RouteCall) -> TurnStanding:
    """How the newest turn stands: done, to be asked, or waiting for results of calls."""
    turn = standing(call.store, call.name)
    running = call.service.turns.running(call) is not None
    running = running or (turn.next in ("ask", "run") and call.store.turn_held(call.name))
    model, seq = call.service.turns.default_model(call.store, call.name), call.store.info(call.name).seq
    return TurnStanding(turn.next, running, model, seq, list(map(entry_json, turn.pending)))


async def stop_turn(call: RouteCall) -> Stopped:
    """Stop the turn that is under way: what came is kept and marked, and `resume` goes on from there."""
    await off_loop(call.store.info, call.name)
    return Stopped(await call.service.turns.stop(call.tenant, call.name))


EventId = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,15}(:[0-9]{1,9}(,[0-9]{1,9})*)?$")]


async def follow_thread(call: RouteCall, last: EventId = "0") -> Any:
    """A thread's entries and what is being written, as they come; Last-Event-ID goes on where a reader was."""
    last = call.headers.get("last-event-id") or last
    info = await off_loop(call.store.info, call.name)
    try:
        msgspec.convert(last, EventId)
    except msgspec.ValidationError as error:
        raise HttpRefusal(422, f"{last[:80]!r} is no event's id", hint="Ids look like 17 or 17:40.") from error
    if read_id(last)[0] > info.seq:
        why = f"thread {call.name!r} ends at {info.seq}, before event {last}"
        raise HttpRefusal(409, why, hint="It was made anew since: read it from 0.", state=info)
    return call.service.stream(call, _events(call, last))


ROUTES = (
    route("POST", "/api/threads/{name}/turns", begin_turn, gives=TurnOutcome, errors=(502,), streams=True),
    route("GET", "/api/threads/{name}/turn", show_turn),
    route("POST", "/api/threads/{name}/resume", resume_turn, gives=TurnOutcome, errors=(502,), streams=True),
    route("POST", "/api/threads/{name}/stop", stop_turn),
    route("GET", "/api/threads/{name}/events", follow_thread, gives=str, media=EVENTS),
)
