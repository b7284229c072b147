"""A store that is a service elsewhere: `quire.connect(url, "demo")` is a Thread like any other.

The same Thread code runs here; what it asks of its store goes over HTTP. Writes carry an Idempotency-Key, so that one
whose answer was lost is sent again without being carried out twice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import msgspec

from quire import errors
from quire.entry import canonical, sha256_hex
from quire.errors import CallError, MissingPart, QuireError
from quire.log.entries import check_entry
from quire.log.store import Index, RecordRow, RecordTable, Store, check_name, check_page
from quire.log.turn_lock import hold_turn, own_fence
from quire.server.store_calls import CALLS
from quire.values import Entry, Json, JsonObject

if TYPE_CHECKING:
    import httpx

# How often and how long apart what got no answer is sent again.
_WAITS_S = (0.1, 0.3, 1.0, 2.0)
_PAGE = 1000
# Writes that would show if they were carried out twice.
_ONCE = frozenset({"create", "fork", "delete", "records.insert", "records.update", "records.remove"})


class _Part:
    """The methods of `store.index` or `store.records`, each a call."""

    def __init__(self, call: Callable[..., Any], prefix: str) -> None:
        self._call, self._prefix = call, prefix

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if f"{self._prefix}{name}" not in CALLS:
            raise AttributeError(name)
        return lambda *values, **named: self._call(f"{self._prefix}{name}", *values, **named)


class _RemoteIndex(_Part):
    def snapshot(self) -> AbstractContextManager[None]:
        """Each call sees the store as it is then."""
        return nullcontext()


class _RemoteRecords(_Part):
    def insert(self, rows: Sequence[Callable[[int], RecordRow]]) -> list[str]:
        """The service makes them for the numbers they get."""
        made: list[str] = self._call("records.insert", [row(0) for row in rows])
        return made

    def select(self, *wanted: Any, **how: Any) -> Iterator[str]:
        return iter(self._call("records.select", *wanted, **how))


class HttpStore:
    """A `Store` behind the routes of a service at `url`; `key` is the API key, where it demands one."""

    def __init__(self, url: str, key: str = "", timeout_s: float = 60.0) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingPart("the client is not installed", hint="pip install 'quire[send]'") from error
        if not url.startswith(("http://", "https://")):
            raise CallError(f"{url!r} is no address of a service", hint="Write http://127.0.0.1:8765")
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s)
        self.place = f"{self.url} {sha256_hex(key)[:12]}"
        self._index = _RemoteIndex(self._call, "index.")
        self._records = _RemoteRecords(self._call, "records.")
        self._workers: list[Callable[[], None]] = []

    if TYPE_CHECKING:  # the methods that are calls and nothing else
        create: Any
        info: Any
        threads: Any
        fork: Any
        delete: Any
        verify: Any
        find: Any
        changes: Any
        last_change: Any
        wait_for_change: Any
        window: Any
        save_window: Any
        get_state: Any
        set_state: Any
        checkpoint: Any
        save_checkpoint: Any
    else:

        def __getattr__(self, name: str) -> Callable[..., Any]:
            if name not in CALLS:
                raise AttributeError(name)
            return lambda *values, **named: self._call(name, *values, **named)

    @property
    def index(self) -> Index:
        """The words and vectors of the entries."""
        return self._index

    @property
    def records(self) -> RecordTable:
        """The rows of the records that lie beside the threads."""
        return self._records

    def append(self, thread: str, entries: Iterable[Entry], expected_seq: int | None = None) -> list[Entry]:
        """Append all or nothing, durably; a new thread is made when there is none of that name."""
        check_name(thread)
        bodies = [check_entry(entry).body for entry in entries]
        sent: JsonObject = {"entries": bodies}
        if expected_seq is not None:
            sent["expected_seq"] = expected_seq
        if fence := own_fence(self.place, thread):
            sent["turn"] = str(fence)
        return _entries(self._ask("POST", f"/api/threads/{quote(thread, safe='')}/entries", sent, once=True))

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """The entries with seq > after, in order."""
        check_name(thread)
        check_page(after, limit)
        found: list[Entry] = []
        while True:
            wanted = _PAGE if limit is None else min(_PAGE, limit - len(found))
            path = f"/api/threads/{quote(thread, safe='')}/entries?after={after}&limit={wanted}"
            page = _entries(self._ask("GET", path))
            found += page
            if len(page) < wanted or len(found) == limit:
                return found
            after = page[-1].seq

    def _call(self, name: str, *values: Any, **named: Any) -> Any:
        made = CALLS[name]
        names = made.arguments.__struct_fields__
        arguments = {**dict(zip(names, values, strict=False)), **named}
        for each in ("thread", "name"):
            if isinstance(arguments.get(each), str):
                check_name(arguments[each])
        if name in ("save_window", "set_state"):
            canonical(arguments)  # refuses what is not JSON, which would arrive as something else
        listed = {key: _as_json(value) for key, value in arguments.items()}
        given = self._ask("POST", f"/api/store/{name}", {"arguments": listed}, once=name in _ONCE)
        return msgspec.convert(given["value"], made.gives, strict=False)

    def _ask(self, method: str, path: str, body: JsonObject | None = None, once: bool = False) -> Any:
        """Ask, and ask again where no answer came."""
        content = msgspec.json.encode(body) if body is not None else None
        headers = {"content-type": "application/json"} if content is not None else {}
        if once:
            headers["idempotency-key"] = str(uuid.uuid4())
        for wait_s in (*_WAITS_S, None):
            reply = self._sent(method, path, content, headers, last=wait_s is None)
            if reply is not None and (wait_s is None or not _is_busy(reply)):
                break
            time.sleep(wait_s or 0)
        assert reply is not None  # the last attempt answers or raises
        if reply.status_code >= 400:
            raise error_of(reply)
        return msgspec.json.decode(reply.content) if reply.content else None

    def _sent(
        self, method: str, path: str, content: bytes | None, headers: dict[str, str], last: bool
    ) -> httpx.Response | None:
        import httpx

        try:
            return self._client.request(method, path, content=content, headers=headers)
        except httpx.HTTPError as error:
            if last:
                raise QuireError(
                    f"{self.url} does not answer: {str(error) or type(error).__name__}",
                    hint="Is `quire serve` running there?",
                ) from error
            return None

    def turn_lock(self, thread: str) -> AbstractContextManager[None]:
        """Hold a thread while its turn is carried out; a ConflictError when another cycle, anywhere, holds it."""
        check_name(thread)
        return hold_turn(self.place, thread, self._lock(thread))

    @contextmanager
    def _lock(self, thread: str) -> Iterator[int]:
        """Hold the thread at the service, which takes it back, too, when this connection ends."""
        path = f"/api/threads/{quote(thread, safe='')}"
        with self._client.stream("POST", f"{path}/hold") as reply:
            if reply.status_code >= 400:
                reply.read()
                raise error_of(reply)
            lines = reply.iter_lines()  # were it thrown away, the connection would end, and the turn with it
            data = next(line for line in lines if line.startswith("data: "))
            turn = msgspec.json.decode(data[6:])
            try:
                yield int(turn["hold"])
            finally:
                # A service that does not answer any more holds nothing, or will see the connection end.
                with suppress(QuireError):
                    self._ask("POST", f"{path}/release", turn)

    def before_close(self, end: Callable[[], None]) -> None:
        """Have `end` called before the store closes: whoever works in another OS thread has to stop first."""
        self._workers.append(end)

    def close(self) -> None:
        """Close the connections; what the service holds stays."""
        while self._workers:
            self._workers.pop()()
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _entries(given: JsonObject) -> list[Entry]:
    return [
        Entry(
            body["kind"],
            {key: value for key, value in body.items() if key not in ("seq", "id")},
            body["seq"],
            body["id"],
        )
        for body in given["entries"]
    ]


def _as_json(value: Any) -> Json:
    """An argument as JSON takes it: any iterable is a list."""
    if isinstance(value, str | bytes | dict | list | tuple) or not isinstance(value, Iterable):
        return value
    return list(value)


def _is_busy(reply: httpx.Response) -> bool:
    """Whether another attempt may do: an earlier one is still being carried out, or too many came at once."""
    return reply.status_code == 429 or (
        reply.status_code == 409 and "Idempotency-Key is under way" in reply.text
    )


def error_of(reply: httpx.Response) -> QuireError:
    """A problem as the error it was at the service."""
    try:
        said: JsonObject = msgspec.json.decode(reply.content)
        kind = str(said.get("type", "")).rpartition(":")[2]
        message, hint = str(said.get("detail") or said["title"]), str(said.get("hint", ""))
    except (msgspec.DecodeError, KeyError, AttributeError, TypeError):
        kind, message, hint = "", f"the service answered {reply.status_code}", "Is this a Quire service?"
    made = getattr(errors, kind, None)
    if isinstance(made, type) and issubclass(made, QuireError):
        return made(message, hint=hint)
    return {404: errors.NotFound, 409: errors.ConflictError, 422: CallError}.get(
        reply.status_code, QuireError
    )(message, hint=hint)


if TYPE_CHECKING:  # the type checker holds that this is a Store
    _: Store = HttpStore("")
