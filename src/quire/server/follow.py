"""Following a thread over HTTP: its entries and what is being written, as server-sent events.

An event's id is the place its reader has reached (`quire.send.events`), so whoever comes back with Last-Event-ID, to
this process or to another on the same database, gets what it missed and nothing twice. A reader holds its place and
nothing else: what it has not taken yet stays in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from quire.errors import NotFound, QuireError
from quire.log import off_loop
from quire.log.store import Store
from quire.send.events import STATE, Event, missed, read_id
from quire.send.turn import is_opening
from quire.server import EVENTS, HttpRefusal, entry_json
from quire.values import Entry, Json

if TYPE_CHECKING:
    from starlette.responses import StreamingResponse

# How many entries a reader is told at a time, and how many of the newest are held for all readers of a thread.
_PAGE = 16
_TAIL = 100
# How often the database is asked for what other processes wrote, and how often a quiet connection is kept alive.
_LOOK_S = 0.1
# So many changes are looked through for the threads that are followed; behind more, each of those is looked at.
_CHANGES = 1000
_ALIVE_S = 15.0
# After this many seconds it is checked again whether a reader's key is valid.
ADMITTED_S = 10.0


class ThreadTail:
    """The newest entries of a followed thread and what is being written behind them, read once for all readers."""

    def __init__(self, name: str, off_loop: Callable[..., Awaitable[Any]]) -> None:
        self.name, self._off_loop = name, off_loop
        self.readers = 0
        self.entries: list[Entry] = []
        # Whether a reply may be streaming in: the newest request has no usage yet.
        self.is_written = False
        self.deleted = False
        self._partial: Json = None
        self._changed = asyncio.Event()
        self._looking = asyncio.Lock()

    async def look(self, store: Store) -> None:
        """Read on from what is known, one look at a time."""
        async with self._looking:
            newest = self.entries[-1] if self.entries else None
            try:
                entries, partial = await self._off_loop(self._read, store, newest)
            except NotFound:
                self.deleted = True
            else:
                if not entries and partial == self._partial:
                    return
                self.entries = [*self.entries, *entries][-_TAIL:]
                self._partial = partial
                sent = next((entry for entry in reversed(entries) if entry.kind == "sent"), None)
                self.is_written = is_opening(sent) if sent is not None else self.is_written
            self._changed.set()
            self._changed = asyncio.Event()

    def _read(self, store: Store, newest: Entry | None) -> tuple[list[Entry], Json]:
        # Read before the entries: text that belongs behind a newer entry is then found at the next look, not missed.
        partial = store.get_state(self.name, STATE)
        if newest is None:
            return store.read(self.name, max(0, store.info(self.name).seq - _TAIL)), partial
        # A thread that was made anew since has another entry in its place, or none.
        rows = store.read(self.name, newest.seq - 1)
        if not rows or rows[0].id != newest.id:
            raise NotFound(f"thread {self.name!r} was deleted")
        return rows[1:], partial

    def news(self) -> asyncio.Event:
        """Set when anything comes behind what is known now."""
        return self._changed

    def holds(self, seq: int) -> bool:
        """Whether everything behind entry `seq` is here."""
        return bool(self.entries) and self.entries[0].seq <= max(1, seq)

    # As events are made of it; see `quire.send.events.ThreadReader`.

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        return [entry for entry in self.entries if entry.seq > after][:limit]

    def get_state(self, thread: str, key: str) -> Json:
        return self._partial


class Follower:
    """All that is followed of one store."""

    def __init__(self, store: Store, ending: asyncio.Event) -> None:
        self._store, self._ending = store, ending
        self._tails: dict[str, ThreadTail] = {}
        self._watch: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._written: set[str] = set()
        self._notice: asyncio.Future[Any] | None = None
        # What is being read for readers, who may have gone meanwhile.
        self._reading: set[asyncio.Future[Any]] = set()

    def wrote(self, thread: str) -> None:
        """Wake the readers of a thread that this process wrote to, from any OS thread; they need not wait for the next look."""
        loop = self._loop
        if loop is not None and thread in self._tails:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._wake, thread)

    def _wake(self, thread: str) -> None:
        self._written.add(thread)
        self._woken.set()

    @contextlib.asynccontextmanager
    async def tail(self, name: str) -> AsyncIterator[ThreadTail]:
        """A thread's tail, kept up to date while anybody reads it."""
        self._loop = asyncio.get_running_loop()
        tail = self._tails.get(name)
        if tail is None:
            tail = self._tails[name] = ThreadTail(name, self._off_loop)
        tail.readers += 1
        try:
            await tail.look(self._store)
            if self._watch is None or self._watch.done():
                # Waits in an OS thread of its own: of those that all tenants share, waiting would leave none to work in.
                self._waiting = waiting = ThreadPoolExecutor(1, "quire-news")
                self._watch = asyncio.create_task(self._look())
                self._watch.add_done_callback(lambda _: waiting.shutdown(wait=False))
            yield tail
        finally:
            tail.readers -= 1
            if not tail.readers and self._tails.get(name) is tail:
                del self._tails[name]

    async def end(self) -> None:
        """Stop looking, once what is being read is read: a store that is closed meanwhile would end the process."""
        if self._watch is not None:
            self._watch.cancel()
        under_way = [task for task in (self._watch, self._notice, *self._reading) if task is not None]
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _off_loop(self, work: Callable[..., Any], *args: Any) -> Any:
        """Call `work` in another OS thread, to its end, which `end` waits for."""
        reading = asyncio.ensure_future(asyncio.to_thread(work, *args))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        return await asyncio.shield(reading)

    async def _look(self) -> None:
        """Look for news while anybody reads: at once for what this process wrote, else as often as the store tells."""
        last_change, due, checked = await off_loop(self._store.last_change), 0, 0.0
        while self._tails:
            await self._news(last_change)
            self._woken.clear()
            names, self._written = self._written, set()
            try:
                changes = await off_loop(self._store.index.changed, last_change, _CHANGES)
                if len(changes) == _CHANGES:
                    # Rather look at each thread that is followed than read what all others gained.
                    last_change = await off_loop(self._store.last_change)
                    names = set(self._tails)
                elif changes:
                    last_change = changes[-1][0]
                    names |= {thread for _, thread in changes}
                # Of a thread that was deleted, no change tells: each is looked at now and then.
                if time.monotonic() > checked + _LOOK_S:
                    due, checked = (due + 1) % max(1, len(self._tails)), time.monotonic()
                    names |= set(islice(self._tails, due, due + 1))
                for name, tail in list(self._tails.items()):
                    if name in names or tail.is_written:
                        await tail.look(self._store)
            except QuireError:
                await asyncio.sleep(1)  # the database is away; readers keep their places

    async def _news(self, last_change: int) -> None:
        """Wait until this process wrote, the store tells of a change, or it is time to look."""
        woken = asyncio.ensure_future(self._woken.wait())
        if self._notice is None or self._notice.done():
            self._notice = asyncio.get_running_loop().run_in_executor(self._waiting, _wait, self._store, last_change)
        waits: set[asyncio.Future[Any]] = {woken, self._notice}
        # Of what is being written behind the newest entry, no store tells.
        often = any(tail.is_written for tail in self._tails.values())
        await asyncio.wait(waits, timeout=_LOOK_S if often else 1.0, return_when=asyncio.FIRST_COMPLETED)
        woken.cancel()

    async def events(
        self, name: str, last: str, until: asyncio.Future[Any] | None = None
    ) -> AsyncGenerator[Event | None, None]:
        """All events behind `last`, then new ones as they come; None where nothing came for a while.

        Ends with the thread, with the service, or when `until` is done and all of it has been told.
        """
        async with self.tail(name) as tail:
            ends = {asyncio.ensure_future(self._ending.wait()), *([until] if until is not None else ())}
            try:
                ended = False
                while not (tail.deleted or self._ending.is_set()):
                    news = tail.news()
                    events = await self._missed_events(tail, last)
                    for event in events:
                        last = event.id
                        yield event
                        await asyncio.sleep(0)  # others want to be told, too
                    if events or news.is_set():
                        continue
                    if ended:
                        return
                    if until is not None and until.done():
                        # What it wrote last may not have been looked at yet.
                        ended = True
                        await tail.look(self._store)
                    elif not await _wait_for_news(news, ends):
                        yield None
            finally:
                for end in ends - {until}:
                    end.cancel()

    async def _missed_events(self, tail: ThreadTail, last: str) -> list[Event]:
        """The next events behind `last`: from what is held for all, else from the store."""
        if tail.holds(read_id(last)[0]):
            return missed(tail, tail.name, last, _PAGE)
        events: list[Event] = await self._off_loop(missed, self._store, tail.name, last, _PAGE)
        return events


def _wait(store: Store, last_change: int) -> None:
    with contextlib.suppress(QuireError):  # the database is away; the next look says so
        store.wait_for_change(last_change, 1.0)


async def _wait_for_news(news: asyncio.Event, ends: set[asyncio.Future[Any]]) -> bool:
    """Wait for news or an end; whether either came before the connection needs a sign of life."""
    waiting = asyncio.ensure_future(news.wait())
    try:
        finished, _ = await asyncio.wait({waiting, *ends}, timeout=_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return bool(finished)


# The events as they go over the wire.


class EventJson(msgspec.Struct, omit_defaults=True):
    """What the data of an event is: an entry, or a piece of one that is being written."""

    kind: str
    text: str = ""
    part: int = 0
    entry: Json = None


def event_bytes(event: Event) -> bytes:
    """An event of the stream: its id, its name (`entry` or `piece`) and its data as JSON."""
    name, entry = ("piece", None) if event.entry is None else ("entry", entry_json(event.entry))
    return f"id: {event.id}\n".encode() + named_bytes(name, EventJson(event.kind, event.text, event.part, entry))


def named_bytes(name: str, value: Any) -> bytes:
    """An event without a place of its own."""
    return f"event: {name}\ndata: ".encode() + msgspec.json.encode(value) + b"\n\n"


OPENING = b"retry: 500\n\n"
ALIVE = b": quiet\n\n"


class Readers:
    """How many read events at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._now: weakref.WeakSet[Any] = weakref.WeakSet()

    def response(
        self, pieces: AsyncGenerator[bytes, None], admits_still: Callable[[], Awaitable[bool]]
    ) -> StreamingResponse:
        """The pieces as a stream, made no faster than the reader takes them, and only while it is admitted."""
        from starlette.responses import StreamingResponse

        if len(self._now) >= self._most:
            raise HttpRefusal(
                503, f"{self._most} readers are connected", hint="Try again later.", headers={"retry-after": "5"}
            )

        async def counted() -> AsyncIterator[bytes]:
            """Make room when the reader leaves: the response itself may stay until garbage is collected."""
            asked = time.monotonic()
            try:
                async with contextlib.aclosing(pieces):
                    async for piece in pieces:
                        if time.monotonic() > asked + ADMITTED_S:
                            if not await admits_still():
                                return
                            asked = time.monotonic()
                        yield piece
            finally:
                self._now.discard(response)

        response = StreamingResponse(
            counted(), media_type=EVENTS, headers={"cache-control": "no-store", "x-accel-buffering": "no"}
        )
        self._now.add(response)
        return response
