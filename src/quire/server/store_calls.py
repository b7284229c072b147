"""A store's own methods over HTTP, by their names and types in `quire.log.store`: what `quire.connect` is made of.

`POST /api/store/index.words` with the arguments by name gives what `store.index.words(…)` gives. Entries are appended
and read by the routes of threads.
"""

from __future__ import annotations

import asyncio
import collections.abc
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from quire.errors import NotFound, QuireError
from quire.log.store import Index, RecordRow, RecordTable, Store
from quire.log.turn_lock import in_turn, own_fence
from quire.records.record import decode, encode
from quire.server.follow import ALIVE, named_bytes
from quire.server.routes import EVENTS, HttpRefusal, Route, RouteCall, TurnNumber
from quire.values import Json, JsonObject

_PARTS: dict[str, Any] = {"": Store, "index.": Index, "records.": RecordTable}
# What needs more than a question and an answer, or is a matter of the caller's own process.
_APART = {"append", "read", "turn_lock", "before_close", "close", "index", "records", "index.snapshot"}


class StoreCall(msgspec.Struct, frozen=True):
    """One method of a store: its arguments, in order, as a type of their own, and what it gives."""

    name: str
    arguments: Any
    gives: Any

    def method(self, store: Any) -> Callable[..., Any]:
        part, _, name = self.name.rpartition(".")
        method: Callable[..., Any] = getattr(getattr(store, part) if part else store, name)
        return method


def _calls() -> dict[str, StoreCall]:
    found = {}
    for part, protocol in _PARTS.items():
        for name, method in vars(protocol).items():
            if not name.startswith("_") and f"{part}{name}" not in _APART and inspect.isfunction(method):
                hints = get_type_hints(method)
                gives = _plain(hints.pop("return"))
                fields = [
                    (each.name, _plain(hints[each.name]))
                    if each.default is inspect.Parameter.empty
                    else (each.name, _plain(hints[each.name]), each.default)
                    for each in list(inspect.signature(method).parameters.values())[1:]
                ]
                arguments = msgspec.defstruct(name, fields, forbid_unknown_fields=True)
                found[f"{part}{name}"] = StoreCall(f"{part}{name}", arguments, gives)
    return found


def _plain(hint: Any) -> Any:
    """A type as JSON has it: any iterable is a list; a record that is made for its number comes made for number 0."""
    origin, inner = get_origin(hint), tuple(map(_plain, get_args(hint) or ()))
    if origin is collections.abc.Callable:
        return RecordRow
    if origin in (collections.abc.Iterable, collections.abc.Iterator, collections.abc.Sequence):
        return list[inner[0]]  # type: ignore[valid-type]  # a type that is made here
    if origin is collections.abc.Mapping:
        return dict[inner[0], inner[1]]  # type: ignore[valid-type]  # the same
    return hint


CALLS = _calls()


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of a store's method, by name."""

    arguments: JsonObject = {}


class Given(msgspec.Struct):
    """What it gave."""

    value: Json = None


# Into these no secret gets.
_REDACTED = ("records.insert", "records.update", "save_window")


def call_store(call: RouteCall) -> Given:
    """Call a method of the store: what the library's own client does."""
    made = CALLS.get(call.path["call"])
    if made is None:
        raise HttpRefusal(404, f"a store has no {call.path['call']!r}", hint=f"It has: {', '.join(CALLS)}.")
    given = call.body.arguments
    if made.name in _REDACTED:
        given = call.service.redactor.value(given)
    try:
        arguments = msgspec.convert(given, made.arguments)
    except msgspec.ValidationError as error:
        raise HttpRefusal(422, f"in the arguments of {made.name}: {error}") from error
    values = [getattr(arguments, name) for name in arguments.__struct_fields__]
    if made.name == "records.insert":
        values = [[_numbered(row) for row in values[0]]]
    gave = made.method(call.store)(*values)
    return Given(list(gave) if isinstance(gave, collections.abc.Iterator) else gave)


def _numbered(row: RecordRow) -> Callable[[int], RecordRow]:
    """A record that came made for number 0, made for the number it gets."""
    record = decode(row.body)
    return lambda n: msgspec.structs.replace(
        row, n=n, body=encode(msgspec.structs.replace(record, id=f"rec-{n}"))
    )


# Holding a turn: as long as the caller's connection stands, it is the caller's.


class Hold(msgspec.Struct, forbid_unknown_fields=True):
    """What a turn is held by: the `hold` of the first event."""

    hold: TurnNumber


class HeldTurn:
    """A turn that is held for a caller, in an OS thread of its own: whoever takes a lock has to give it back."""

    def __init__(self, call: RouteCall) -> None:
        self.id, self.thread = "", call.name
        self._loop = asyncio.get_running_loop()
        self.taken: asyncio.Future[None] = self._loop.create_future()
        self.given_back = asyncio.Event()
        self._let_go = threading.Event()
        threading.Thread(target=self._hold, args=(call,), daemon=True).start()

    def _hold(self, call: RouteCall) -> None:
        try:
            with call.store.turn_lock(call.name):
                with contextlib.suppress(NotFound):
                    # Behind whatever the former holder is just committing.
                    call.store.append(call.name, [], call.store.info(call.name).seq)
                # The store's own fence, by which every replica can tell who holds the turn.
                self.id = str(own_fence(call.store.place, call.name))
                call.tenant.held[self.id] = self
                self._loop.call_soon_threadsafe(self._tell, None)
                self._let_go.wait()
        except QuireError as error:
            self._loop.call_soon_threadsafe(self._tell, error)
        finally:
            call.tenant.held.pop(self.id, None)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self.given_back.set)

    def _tell(self, error: QuireError | None) -> None:
        if not self.taken.done():
            self.taken.set_result(None) if error is None else self.taken.set_exception(error)

    def give_back(self) -> None:
        self._let_go.set()


def in_held_turn(call: RouteCall, turn: str | None) -> contextlib.AbstractContextManager[None]:
    """Inside, what the holder of a turn asks for is done; an append says in its transaction if the turn was lost."""
    return in_turn(call.store.place, call.name, int(turn)) if turn is not None else contextlib.nullcontext()


async def hold_turn(call: RouteCall) -> Any:
    """Hold a thread's turn while this answer is being read; 409 where another cycle holds it."""
    held = HeldTurn(call)
    try:
        await held.taken
    except BaseException:
        held.give_back()
        raise
    return call.service.readers.response(_while_read(call, held))


async def _while_read(call: RouteCall, held: HeldTurn) -> AsyncIterator[bytes]:
    try:
        yield named_bytes("held", Hold(held.id))
        while not (call.service.ending.is_set() or held.given_back.is_set()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(held.given_back.wait(), 1)
            yield ALIVE
    finally:
        held.give_back()


async def release_turn(call: RouteCall) -> None:
    """Give a turn back that is held; one that is not held here is given back when its connection ends."""
    held = call.tenant.held.get(call.body.hold)
    if held is not None:
        held.give_back()
        await held.given_back.wait()


ROUTES = (
    Route("POST", "/api/store/{call}", call_store, Given, Arguments, redacted=False),
    Route("POST", "/api/threads/{name}/hold", hold_turn, str, media=EVENTS),
    Route("POST", "/api/threads/{name}/release", release_turn, body=Hold),
)
