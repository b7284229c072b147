"""A store that is a service elsewhere, both ends of it: `quire.connect(url, "demo")` is a Thread like any other.

The same Thread code runs at the caller's; what it asks of its store goes over HTTP, by the names and types of
`quire.log.store`: `POST /api/store/index.words` with the arguments by name gives what `store.index.words(…)` gives.
Entries are appended and read by the routes of threads. Writes carry an Idempotency-Key, so that one whose answer was
lost is sent again without being carried out twice.
"""

from __future__ import annotations

import asyncio
import collections.abc
import contextlib
import inspect
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, cast, get_args, get_origin, get_type_hints
from urllib.parse import quote

import msgspec

from quire import errors, log
from quire.errors import CallError, NotFound, QuireError, needs_extra
from quire.log import in_turn, own_fence
from quire.log.entries import check_entry
from quire.log.store import ClosingStore, Index, RecordRow, RecordTable, Store, check_name, check_page, look_for_change
from quire.records.record import decode
from quire.records.store import number_record
from quire.send.transport import is_base_url
from quire.server import EVENTS, HttpRefusal, RouteCall, TurnNumber, arguments_type, route
from quire.server.follow import ALIVE, named_bytes
from quire.values import Entry, Json, JsonObject, canonical, sha256_hex

if TYPE_CHECKING:
    import httpx


_PARTS: dict[str, Any] = {"": Store, "index.": Index, "records.": RecordTable}
# Methods that are no plain remote call, or the caller's own affair: who waits at the service keeps an OS thread there.
_APART = {"append", "read", "wait_for_change", "turn_lock", "before_close", "close"}
_APART |= {"index", "records", "index.snapshot"}


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
    calls = {}
    for part, protocol in _PARTS.items():
        for name, method in vars(protocol).items():
            if not name.startswith("_") and f"{part}{name}" not in _APART and inspect.isfunction(method):
                types = {argument: _plain(hint) for argument, hint in get_type_hints(method).items()}
                gives = types.pop("return")
                calls[f"{part}{name}"] = StoreCall(f"{part}{name}", arguments_type(method, name, types), gives)
    return calls


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


# Methods whose arguments are redacted.
_REDACTED = ("records.insert", "records.update", "save_window")


def call_store(call: RouteCall, body: Arguments) -> Given:
    """Call a method of the store: what the library's own client does."""
    store_call = CALLS.get(call.path["call"])
    if store_call is None:
        raise HttpRefusal(404, f"a store has no {call.path['call']!r}", hint=f"It has: {', '.join(CALLS)}.")
    raw_arguments = body.arguments
    if store_call.name in _REDACTED:
        raw_arguments = call.service.redactor.value(raw_arguments)
    try:
        arguments = msgspec.convert(raw_arguments, store_call.arguments)
    except msgspec.ValidationError as error:
        raise HttpRefusal(422, f"in the arguments of {store_call.name}: {error}") from error
    values = [getattr(arguments, name) for name in arguments.__struct_fields__]
    if store_call.name == "records.insert":
        # Built for number 0, they are rebuilt for the numbers they get.
        values = [[number_record(decode(row.body), row.text) for row in values[0]]]
    try:
        gave = store_call.method(call.store)(*values)
    except OverflowError as error:  # a number that no database holds
        raise HttpRefusal(422, f"in the arguments of {store_call.name}: {error}") from error
    return Given(list(gave) if isinstance(gave, collections.abc.Iterator) else gave)


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
                    # The former holder may still be committing.
                    call.store.append(call.name, [], call.store.info(call.name).seq)
                # The store's own fence, by which every replica can tell who holds the turn.
                self.id = str(own_fence(call.store.place, call.name))
                call.tenant.held_turns[self.id] = self
                self._loop.call_soon_threadsafe(self._tell, None)
                self._let_go.wait()
        except Exception as error:  # whatever it is: somebody waits for the turn
            self._loop.call_soon_threadsafe(self._tell, error)
        finally:
            call.tenant.held_turns.pop(self.id, None)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self.given_back.set)

    def _tell(self, error: Exception | None) -> None:
        if not self.taken.done():
            self.taken.set_result(None) if error is None else self.taken.set_exception(error)

    async def give_back(self) -> None:
        self._let_go.set()
        await self.given_back.wait()


def in_held_turn(call: RouteCall, turn: str | None) -> contextlib.AbstractContextManager[None]:
    """Inside, what the holder of a turn asks for is done; an append says in its transaction if the turn was lost."""
    return in_turn(call.store.place, call.name, int(turn)) if turn is not None else contextlib.nullcontext()


async def hold_turn(call: RouteCall) -> Any:
    """Hold a thread's turn while this answer is being read; 409 where another cycle holds it."""
    turn = HeldTurn(call)
    try:
        await turn.taken
        return call.service.stream(call, _hold_events(call, turn))
    except BaseException:  # also a cancelled request: nobody would read the answer that holds the turn
        await turn.give_back()
        raise


async def _hold_events(call: RouteCall, turn: HeldTurn) -> AsyncGenerator[bytes, None]:
    try:
        yield named_bytes("held", Hold(turn.id))
        while not (call.service.ending.is_set() or turn.given_back.is_set()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(turn.given_back.wait(), 1)
            yield ALIVE
    finally:
        # Whoever sees the stream end finds the turn free.
        await turn.give_back()


async def release_turn(call: RouteCall, body: Hold) -> None:
    """Give a turn back that is held; one that is not held here is given back when its connection ends."""
    turn = call.tenant.held_turns.get(body.hold)
    if turn is not None:
        await turn.give_back()


ROUTES = (
    route("POST", "/api/store/{call}", call_store, redacted=False),
    route("POST", "/api/threads/{name}/hold", hold_turn, gives=str, media=EVENTS),
    route("POST", "/api/threads/{name}/release", release_turn),
)

# The caller's end.


# How often and how long apart what got no answer is sent again.
_WAITS_S = (0.1, 0.3, 1.0, 2.0)
_PAGE = 1000
_LOOK_S = 0.25  # how often a change is looked for
# Writes that would show if they were carried out twice.
_ONCE = frozenset({"create", "fork", "delete", "save_window", "records.insert", "records.update", "records.remove"})


class _Part:
    """The methods of a store, of its `index` or its `records` that are calls and nothing else."""

    def __init__(self, call: Callable[..., Any], prefix: str) -> None:
        self._call, self._prefix = call, prefix

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if f"{self._prefix}{name}" not in CALLS:
            raise AttributeError(name)
        return lambda *values, **named: self._call(f"{self._prefix}{name}", *values, **named)


class _RemoteIndex(_Part):
    kept_by_writers: ClassVar[bool] = False

    def snapshot(self) -> AbstractContextManager[None]:
        """Each call sees the store as it is then."""
        return nullcontext()


class _RemoteRecords(_Part):
    def insert(self, rows: Sequence[Callable[[int], RecordRow]]) -> list[str]:
        """The service makes them for the numbers they get."""
        bodies: list[str] = self._call("records.insert", [row(0) for row in rows])
        return bodies

    def select(self, *filters: Any, **options: Any) -> Iterator[str]:
        return iter(self._call("records.select", *filters, **options))


class HttpStore(ClosingStore, _Part, log.store.Forking):
    """A `Store` behind the routes of a service at `url`; `key` is the API key, where it demands one."""

    _prefix = ""

    def __init__(self, url: str, key: str = "", timeout_s: float = 60.0) -> None:
        super().__init__()
        with needs_extra("the client is not installed", "send"):
            import httpx
        if not is_base_url(url):
            raise CallError(f"{url!r} is no address of a service", hint="Write http://127.0.0.1:8765")
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._connect = partial(httpx.Client, base_url=self.url, headers=headers, timeout=timeout_s)
        self._outlive_forks()
        self.place = f"{self.url} {sha256_hex(key)[:12]}"
        self._index = _RemoteIndex(self._call, "index.")
        self._records = _RemoteRecords(self._call, "records.")

    def _begin_anew(self) -> None:
        self._client = self._connect()

    @property
    def index(self) -> Index:
        return self._index

    @property
    def records(self) -> RecordTable:
        return self._records

    def wait_for_change(self, after: int, timeout_s: float) -> bool:
        return look_for_change(cast(Store, self), after, timeout_s, _LOOK_S)

    def append(self, thread: str, entries: Iterable[Entry], expected_seq: int | None = None) -> list[Entry]:
        check_name(thread)
        bodies = [check_entry(entry).body for entry in entries]
        sent: JsonObject = {"entries": bodies}
        if expected_seq is not None:
            sent["expected_seq"] = expected_seq
        if fence := own_fence(self.place, thread):
            sent["turn"] = str(fence)
        return _entries(self._ask("POST", f"/api/threads/{quote(thread, safe='')}/entries", sent, once=True))

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        check_name(thread)
        check_page(after, limit)
        entries: list[Entry] = []
        while True:
            page_size = _PAGE if limit is None else min(_PAGE, limit - len(entries))
            path = f"/api/threads/{quote(thread, safe='')}/entries?after={after}&limit={page_size}"
            page = _entries(self._ask("GET", path))
            entries += page
            if len(page) < page_size or len(entries) == limit:
                return entries
            after = page[-1].seq

    def _call(self, name: str, *values: Any, **named: Any) -> Any:
        store_call = CALLS[name]
        names = store_call.arguments.__struct_fields__
        arguments = {**dict(zip(names, values, strict=False)), **named}
        for argument in ("thread", "name"):
            if isinstance(arguments.get(argument), str):
                check_name(arguments[argument])
        if name in ("save_window", "set_state"):
            canonical(arguments)  # refuses what is not JSON, which would arrive as something else
        answer = self._ask("POST", f"/api/store/{name}", {"arguments": arguments}, once=name in _ONCE)
        return msgspec.convert(answer["value"], store_call.gives, strict=False)

    def _ask(self, method: str, path: str, body: JsonObject | None = None, once: bool = False) -> Any:
        """Ask, and ask again where no answer came."""
        import httpx

        content = msgspec.json.encode(body, enc_hook=list) if body is not None else None  # any iterable is a list
        headers = {"content-type": "application/json"} if content is not None else {}
        if once:
            headers["idempotency-key"] = str(uuid.uuid4())
        for wait_s in (*_WAITS_S, None):
            try:
                reply = self._open_client.request(method, path, content=content, headers=headers)
                # An earlier attempt may still be carried out, or too many came at once.
                under_way = reply.status_code == 409 and "Idempotency-Key is under way" in reply.text
                if wait_s is None or not (reply.status_code == 429 or under_way):
                    break
            except httpx.HTTPError as error:
                if wait_s is None:
                    raise self._no_answer(error) from error
            time.sleep(wait_s)
        if reply.status_code >= 400:
            raise error_of(reply)
        try:
            return msgspec.json.decode(reply.content) if reply.content else None
        except msgspec.DecodeError as error:
            raise self._no_answer(error) from error

    @property
    def _open_client(self) -> httpx.Client:
        if self._client.is_closed:
            raise log.was_closed(self.url)
        return self._client

    def _no_answer(self, error: Exception) -> QuireError:
        problem = f"{self.url} does not answer: {str(error) or type(error).__name__}"
        return QuireError(problem, hint="Is `quire serve` running there?")

    def turn_lock(self, thread: str) -> AbstractContextManager[None]:
        check_name(thread)
        return log.hold_turn(self.place, thread, self._lock(thread))

    @contextmanager
    def _lock(self, thread: str) -> Iterator[int]:
        """Hold the thread at the service, which takes it back, too, when this connection ends."""
        import httpx

        path = f"/api/threads/{quote(thread, safe='')}"
        with ExitStack() as held:
            try:
                reply = held.enter_context(self._open_client.stream("POST", f"{path}/hold"))
                if reply.status_code >= 400:
                    reply.read()
                    raise error_of(reply)
                # Held in a variable: thrown away, it would end the connection, and the turn with it.
                lines = reply.iter_lines()
                data = next((line for line in lines if line.startswith("data: ")), "data: {}")
                turn = msgspec.json.decode(data[6:], type=Hold)
            except (httpx.HTTPError, msgspec.DecodeError) as error:
                raise self._no_answer(error) from error
            try:
                yield int(turn.hold)
            finally:
                # A service that does not answer any more holds nothing, or will see the connection end.
                with suppress(QuireError):
                    self._ask("POST", f"{path}/release", {"hold": turn.hold})

    def _end(self) -> None:
        """Close the connections; what the service holds stays."""
        self._client.close()


def _entries(answer: JsonObject) -> list[Entry]:
    places = [(body.pop("seq"), body.pop("id")) for body in answer["entries"]]
    return [Entry(body["kind"], body, seq, id) for body, (seq, id) in zip(answer["entries"], places, strict=True)]


def error_of(reply: httpx.Response) -> QuireError:
    """A problem as the error it was at the service."""
    try:
        problem: JsonObject = msgspec.json.decode(reply.content)
        kind = str(problem.get("type", "")).rpartition(":")[2]
        message, hint = str(problem.get("detail") or problem["title"]), str(problem.get("hint", ""))
    except (msgspec.DecodeError, KeyError, AttributeError, TypeError):
        kind, message, hint = "", f"the service answered {reply.status_code}", "Is this a Quire service?"
    error_class = getattr(errors, kind, None)
    if isinstance(error_class, type) and issubclass(error_class, QuireError):
        return error_class(message, hint=hint)
    return {404: errors.NotFound, 409: errors.ConflictError, 422: CallError}.get(reply.status_code, QuireError)(
        message, hint=hint
    )
