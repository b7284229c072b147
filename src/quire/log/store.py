"""What a log store can do, whatever it is made of; the only state there is.

Three protocols: `Store` holds the threads, `Index` the words and vectors derived from their entries, `RecordTable` the
rows of records. `quire.log.sqlite` is all of them in one file or in memory, `quire.log.postgres` on a server.
"""

from __future__ import annotations

import json
import logging  # noqa: F401  # a fork asks for its lock behind ours, in the opposite order: who is waited for may log
import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import ClassVar, NoReturn, Protocol, Self

import msgspec

from quire.errors import CallError, ConflictError, DamageError, NotFound
from quire.log.entries import encode_body
from quire.log.shapes import short
from quire.values import Entry, Json, canonical, sha256_hex


class ThreadInfo(msgspec.Struct, frozen=True):
    """A thread at a glance; `parent` and `forked_at` say which thread it was forked from, and behind which entry."""

    name: str
    seq: int
    id: str
    parent: str = ""
    forked_at: int = 0


class Verification(msgspec.Struct, frozen=True):
    """What verify() re-derived: every one of these entries and records hashes to what was noted of it."""

    threads: int
    entries: int
    records: int = 0


class Change(msgspec.Struct, frozen=True):
    """One entry of the change feed: `n` grows with every append, whichever thread it went to."""

    n: int
    thread: str
    entry: Entry


class Stretch(msgspec.Struct, frozen=True):
    """The entries low < seq <= high of one branch; a thread is a row of stretches, oldest first."""

    branch: int
    low: int
    high: int


class EntryWords(msgspec.Struct, frozen=True):
    """What of an entry is searched; `rules` numbers the rules by which the words were found."""

    entry: str
    kind: str
    rules: int
    speaker: str
    session: str
    call_id: str
    at: int | None
    asks: bool
    person: float
    times: int
    length: int
    words: str
    names: int


class Index(Protocol):
    """Words and vectors beside a store's entries. All of it is derived: cleared, it is made again from the log."""

    # Whether a thread indexes the words of the entries that it appends; else a search, or a server, does.
    kept_by_writers: ClassVar[bool]

    def snapshot(self) -> AbstractContextManager[object]:
        """One view of the store for everything that is read inside."""

    def stretches(self, thread: str | None) -> list[Stretch]:
        """Where a thread's entries are, or those of all threads, each once however many forks share it."""

    def entries(self, stretch: Stretch) -> list[Entry]:
        """The entries of a stretch."""

    def holder(self, branch: int, seq: int) -> str:
        """The oldest thread that holds an entry; empty when none does any more."""

    def changed(self, after: int, limit: int) -> list[tuple[int, str]]:
        """The first changes behind number `after`, without their entries: number and thread."""

    def add(self, words: Iterable[EntryWords]) -> None:
        """Keep the words of entries, in place of those that were there; of entries that are gone meanwhile, none."""

    def words(self, stretch: Stretch) -> list[tuple[int, str, EntryWords | None]]:
        """The seq, id and words of each entry of a stretch; None where there are no words."""

    def without_words(self, after: int, rules: int, limit: int) -> list[Change]:
        """The first entries behind number `after` that have no words by these rules."""

    def add_vectors(self, model: str, dimensions: int, vectors: Mapping[str, bytes]) -> None:
        """Keep the vectors of entries, those of one in a row, by its id; of entries that are gone meanwhile, none."""

    def vectors(self, model: str, after: int = 0, of: Stretch | None = None) -> list[tuple[str, bytes]]:
        """The entries' ids and vectors with a number above `after`, oldest first, or those of a stretch."""

    def vectors_of(self, model: str, entries: Sequence[str]) -> list[tuple[str, bytes]]:
        """The vectors of these entries, as far as there are any."""

    def nearest(self, model: str, dimensions: int, vector: bytes, most: int) -> list[str] | None:
        """The entries whose vectors come nearest to one; None where a store has no index of that, and all are compared."""

    def newest_vector(self) -> int:
        """The number of the newest vector; later ones have higher numbers."""

    def without_vectors(self, model: str, after: int, limit: int | None) -> list[tuple[int, str]]:
        """The numbers and ids of the first entries with words, behind number `after`, that have no vector."""

    def state(self, key: str, parts: Sequence[str]) -> dict[str, bytes]:
        """Those of these parts that were kept under a key."""

    def save_state(self, key: str, parts: Mapping[str, bytes]) -> None:
        """Keep what a search holds ready, in place of what was kept; a deletion throws it away."""

    def clear(self) -> None:
        """Throw all words and vectors away."""


class RecordRow(msgspec.Struct, frozen=True):
    """One version of a record as a table keeps it: its JSON, what it is chosen by, and the text it is found by."""

    n: int
    version: int
    body: str
    schema: str
    tags: tuple[str, ...]
    expires_at: int | None
    text: str


class RecordFilter(msgspec.Struct, frozen=True):
    """Of these schemas (any when empty), with all of these tags, not expired at `now`, with no tag that begins so."""

    schemas: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    now: int | None = None
    no_tag: str = ""


class RecordTable(Protocol):
    """The rows of records in a store; each call is one transaction. A row that was changed is a DamageError."""

    def insert(self, rows: Sequence[Callable[[int], RecordRow]]) -> list[str]:
        """Keep new records, all or none: each is made for the number it gets. Returns their bodies."""

    def update(self, row: RecordRow, seen: int) -> bool:
        """Make this the newest version, if version `seen` still is; whether it was."""

    def remove(self, n: int, seen: int | None = None) -> bool:
        """Remove a record with all its versions, if it is there (and at version `seen`); whether it was."""

    def purge(self, now: int) -> int:
        """Remove what has expired; how many."""

    def newest(self, n: int) -> str | None:
        """The body of a record's newest version."""

    def versions(self, n: int) -> list[str]:
        """The bodies of all versions, oldest first."""

    def select(self, wanted: RecordFilter, newest_first: bool = False) -> Iterator[str]:
        """Bodies in the order of creation, or the last changed first; read only as far as they are taken."""

    def beside(self, n: int, step: int, wanted: RecordFilter) -> str | None:
        """The body of the next (step 1) or previous (-1) record."""

    def count(self, wanted: RecordFilter) -> int: ...

    def matching(self, words: Sequence[str], wanted: RecordFilter, most: int) -> list[str]:
        """The bodies of records that share a word with these, the best first."""

    def frequencies(self, words: Sequence[str]) -> dict[str, int]:
        """In how many records each word stands."""

    def texts(self, numbers: Sequence[int]) -> list[str]:
        """What each record is found by."""

    def add_vectors(self, model: str, vectors: Sequence[tuple[int, int, bytes]]) -> None:
        """Keep the vectors of records by number and version; of a record that changed meanwhile, none."""

    def vectors(self, model: str, low: int, high: int) -> list[tuple[int, int, bytes]]:
        """The number, version and vector of records from number `low` to `high`."""

    def clear_vectors(self) -> None: ...


class Store(Protocol):
    """Threads of entries: appended to, read, forked, verified; never changed. OS threads may share one."""

    # Where it is: turns are held by this and the thread's name.
    place: str

    @property
    def index(self) -> Index:
        """The words and vectors of the entries."""

    @property
    def records(self) -> RecordTable:
        """The rows of the records that lie beside the threads."""

    def create(self, thread: str) -> None:
        """Make an empty thread; a CallError when the name is taken."""

    def append(self, thread: str, entries: Iterable[Entry], expected_seq: int | None = None) -> list[Entry]:
        """Append all or nothing, durably; a new thread is made when there is none of that name."""

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """The entries with seq > after, in order; a damaged one is an error that names it."""

    def info(self, thread: str) -> ThreadInfo:
        """Where a thread stands now."""

    def threads(self) -> list[ThreadInfo]:
        """All threads, oldest first."""

    def fork(self, thread: str, at_seq: int, name: str | None = None) -> str:
        """A new thread that shares everything up to at_seq without a copy; its name, thread@at_seq if none is given."""

    def delete(self, thread: str) -> None:
        """Remove a thread; what a fork still uses stays. The only way anything disappears."""

    def verify(self, thread: str | None = None) -> Verification:
        """Re-derive every hash; a DamageError names the first bad entry or record."""

    def find(self, entry_id: str) -> tuple[str, Entry] | None:
        """An entry by its id or a unique beginning of it, with the oldest thread that has it."""

    def changes(self, after: int = 0, limit: int | None = None) -> list[Change]:
        """What was appended behind change `after`, to whichever thread, in order; what was deleted is not told."""

    def last_change(self) -> int:
        """The number of the newest change there ever was, 0 when there was none."""

    def wait_for_change(self, after: int, timeout_s: float) -> bool:
        """Wait until there is a change behind number `after`, whoever makes it; whether there is one."""

    def window(self, thread: str) -> Json:
        """The item window saved with a thread, None when there is none."""

    def save_window(self, thread: str, window: Json, expected: str | None = None) -> None:
        """Keep a thread's item window; the thread is made when there is none.

        `expected`: the `saved_digest` of the window that this one takes the place of; a ConflictError where it is another.
        """

    def get_state(self, thread: str, key: str) -> Json:
        """Derived state that may be thrown away at any time; None when absent."""

    def set_state(self, thread: str, key: str, value: Json) -> None: ...

    def checkpoint(self, thread: str) -> bytes | None:
        """A thread's state as it was last saved: derived, so None where there is none or it does not hold."""

    def save_checkpoint(self, thread: str, state: bytes) -> None: ...

    def turn_lock(self, thread: str) -> AbstractContextManager[None]:
        """Hold a thread while its turn is carried out; a ConflictError when another cycle, anywhere, holds it.

        Appends inside are fenced: once another process has taken the turn over, they are refused.
        """

    def turn_held(self, thread: str) -> bool:
        """Whether a cycle, anywhere, holds a thread now; looking is in nobody's way."""

    def before_close(self, end: Callable[[], None]) -> None:
        """Have `end` called before the store closes: whoever works in another OS thread has to stop first."""

    def close(self) -> None:
        """Close what is open, for every OS thread."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *raised: object) -> None: ...


def has_thread(store: Store, thread: str) -> bool:
    """Whether a store has a thread of this name."""
    try:
        store.info(thread)
    except NotFound:
        return False
    return True


def tip_of(store: Store, thread: str) -> ThreadInfo:
    """Where a thread ends; one that is not there yet ends at nothing."""
    return store.info(thread) if has_thread(store, thread) else ThreadInfo(thread, 0, "")


# How stores and threads end, and outlive a fork.


class Closing:
    """What is closed at the end of a `with` block, however that ends."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class ClosingStore(Closing):
    """What every store does at its end: background work that uses it stops first. No copy of it is made."""

    def __init__(self) -> None:
        self._workers: list[Callable[[], None]] = []

    def before_close(self, end: Callable[[], None]) -> None:
        self._workers.append(end)

    def close(self) -> None:
        """End background work, then what the store holds open; safe to call twice."""
        while self._workers:
            self._workers.pop()()
        self._end()

    def _end(self) -> None:
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        raise TypeError("a store or a thread cannot be pickled: hand over its path and name, and call quire.open there")


# Forks. SQLite's locks are not the child's, a connection would be spoken on by both processes, and what another OS
# thread held stays held in the child for ever: so no file is open while a process forks, and the child begins anew.

_FORKING: weakref.WeakSet[Forking] = weakref.WeakSet()
# Held from before a fork until behind it: no store or OS thread comes meanwhile, and no connection ends.
FORK_LOCK = threading.RLock()


class Forking:
    """What outlives a fork: it may let go before one and go on behind it, and begins anew in the child."""

    def _outlive_forks(self) -> None:
        self._begin_anew()
        with FORK_LOCK:
            _FORKING.add(self)

    def _begin_anew(self) -> None: ...
    def _before_fork(self) -> None: ...
    def _after_fork(self) -> None: ...


def _tell_all(act: str) -> None:
    with ExitStack() as calls:  # an interrupt in one keeps none from being called
        if act == "_before_fork":
            FORK_LOCK.acquire()
        else:
            calls.callback(FORK_LOCK.release)
        for part in list(_FORKING):
            calls.callback(getattr(part, act))


if hasattr(os, "register_at_fork"):
    _before, _in_parent, _in_child = (partial(_tell_all, act) for act in ("_before_fork", "_after_fork", "_begin_anew"))
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


# What all stores do alike: checks, errors, names, what is kept with a thread.

MAX_NAME = 200
# The tenant of a store that was opened without naming one.
DEFAULT_TENANT = "default"
_TENANT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?\Z")
_ID = re.compile(r"(?:sha256:)?([0-9a-f]{1,64})\Z")


def check_name(name: str) -> None:
    """A CallError unless a name can stand on one line of a table, in the path of an address, and be typed again."""
    readable = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable() and name == name.strip()
    if not readable or name in (".", ".."):
        hint = f"Use 1 to {MAX_NAME} printable characters, no space at either end, and not . or .. alone."
        raise CallError(f"{short(name)} cannot be a thread's name", hint=hint)


def look_for_change(store: Store, after: int, timeout_s: float, every_s: float) -> bool:
    """Wait for a change behind number `after` by looking so often; whether there is one."""
    until = time.monotonic() + timeout_s
    while store.last_change() <= after:
        if (remaining_s := until - time.monotonic()) <= 0:
            return False
        time.sleep(min(remaining_s, every_s))
    return True


def tenant_file(file: Path, tenant: str) -> Path:
    """The file that is a tenant's: log.db -> log.db, or log.acme.db beside it for the tenant acme."""
    return file if tenant == DEFAULT_TENANT else file.with_name(f"{file.stem}.{tenant}{file.suffix}")


def check_tenant(name: str) -> str:
    """A CallError unless a tenant's name can be a part of a file's name."""
    if not _TENANT.match(name):
        raise CallError(
            f"{name!r} cannot be a tenant's name", hint="Use 1 to 40 of a-z, 0-9 and -, no - at either end."
        )
    return name


def is_server(place: str | Path) -> bool:
    """Whether a database is a server's, by its address, and not a file."""
    return isinstance(place, str) and place.startswith(("postgresql://", "postgres://"))


def id_range(prefix: str) -> tuple[str, str] | None:
    """The first and the last id that begins so; None for what no id begins with: 'ab' -> 'sha256:ab00…', 'sha256:abff…'."""
    match = _ID.match(prefix)
    return (f"sha256:{match[1]:0<64}", f"sha256:{match[1]:f<64}") if match else None


def check_page(after: int, limit: int | None) -> None:
    if after < 0 or (limit is not None and limit < 0):
        raise CallError(f"after is {after} and limit {limit}", hint="Give 0 or more; limit None for all.")


def check_expected(thread: str, expected: int | None, seq: int, tip: str) -> None:
    """A ConflictError unless the thread ends where the writer expects it to."""
    if expected is not None and expected != seq:
        now = f"is at seq {seq} ({tip})" if seq else "is empty (seq 0)"
        raise ConflictError(f"thread {thread!r} {now}, not at seq {expected}")


def check_fork(thread: str, at_seq: int, seq: int) -> None:
    if not 0 <= at_seq <= seq:
        raise CallError(
            f"cannot fork {thread!r} at seq {at_seq}: it ends at {seq}",
            hint="Name the last entry to share, or 0 for none.",
        )


def no_thread(thread: str) -> NotFound:
    return NotFound(
        f"there is no thread {thread!r}",
        hint="`quire log list` shows the threads, `quire log new` makes one; --db FILE reads another database.",
    )


def name_taken(thread: str) -> CallError:
    return CallError(f"thread {thread!r} exists already", hint="Choose another name, or append to it.")


def ambiguous(prefix: str, first: str, second: str) -> CallError:
    return CallError(f"{prefix!r} begins several ids ({first}, {second}, …)", hint="Give more of its digits.")


def free_name(base: str, is_taken: Callable[[str], bool]) -> str:
    """This name, or with the first number behind it that no thread has."""
    numbered = (f"{base}.{number}" for number in count(2))
    return next(name for name in chain([base], numbered) if not is_taken(name))


def saved_text(value: Json) -> str:
    """A window or a state as it is kept with a thread; what is not JSON is an error."""
    canonical(value)
    return encode_body(value)


def saved_digest(value: Json) -> str:
    """What tells one window from another, or from none."""
    return sha256_hex(saved_text(value)) if value is not None else ""


def read_saved(stored: str | bytes | None, label: str, thread: str) -> Json:
    """What was kept; a DamageError says what cannot be read."""
    try:
        return json.loads(stored) if stored is not None else None
    except (ValueError, TypeError, RecursionError) as error:
        raise DamageError(f"{label} saved with thread {thread!r} is damaged: {error}", thread=thread) from error
