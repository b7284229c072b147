"""What every log store can do.

Three protocols: `Store` holds the threads, `Index` the words and vectors derived from their entries, `RecordTable` the
rows of records. `quire.log.sqlite` is all of them in one file or in memory, `quire.log.postgres` on a server.
"""

from __future__ import annotations

import json
import logging  # noqa: F401  # loaded first, so that a fork takes its lock after FORK_LOCK: code we wait for may log
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
    """How much verify() re-derived: each of these entries and records has the hash that was stored with it."""

    threads: int
    entries: int
    records: int = 0


class Change(msgspec.Struct, frozen=True):
    """One entry of the change feed: `n` grows with every append, whichever thread it went to."""

    n: int
    thread: str
    entry: Entry


class Stretch(msgspec.Struct, frozen=True):
    """The entries low < seq <= high of one branch; a thread is a sequence of stretches, oldest first."""

    branch: int
    low: int
    high: int


class EntryWords(msgspec.Struct, frozen=True):
    """The words by which an entry is found; `rules` is the version of the rules that made them."""

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
    """Words and vectors of a store's entries. All of it is derived: cleared, it is made again from the log."""

    # Whether a Thread indexes the words of the entries that it appends; if not, the first search does.
    kept_by_writers: ClassVar[bool]

    def snapshot(self) -> AbstractContextManager[object]:
        """One consistent view of the store for everything that is read in the block."""

    def stretches(self, thread: str | None) -> list[Stretch]:
        """Where a thread's entries are; for None those of all threads, each stretch once although forks share it."""

    def entries(self, stretch: Stretch) -> list[Entry]:
        """The entries of a stretch."""

    def holder(self, branch: int, seq: int) -> str:
        """The oldest thread that holds an entry; empty if none does any more."""

    def changed(self, after: int, limit: int) -> list[tuple[int, str]]:
        """The first changes behind number `after`, without their entries: (number, thread)."""

    def add(self, words: Iterable[EntryWords]) -> None:
        """Store the words of entries, replacing earlier ones; entries deleted meanwhile are skipped."""

    def words(self, stretch: Stretch) -> list[tuple[int, str, EntryWords | None]]:
        """The seq, id and words of each entry of a stretch; None for an entry without words."""

    def without_words(self, after: int, rules: int, limit: int) -> list[Change]:
        """The first entries behind number `after` that have no words by these rules."""

    def add_vectors(self, model: str, dimensions: int, vectors: Mapping[str, bytes]) -> None:
        """Store the vectors of entries by id, those of one entry joined; entries deleted meanwhile are skipped."""

    def vectors(self, model: str, after: int = 0, of: Stretch | None = None) -> list[tuple[str, bytes]]:
        """The ids and vectors with a number above `after`, oldest first, or those of a stretch."""

    def vectors_of(self, model: str, entries: Sequence[str]) -> list[tuple[str, bytes]]:
        """The vectors of those of these entries that have any."""

    def nearest(self, model: str, dimensions: int, vector: bytes, most: int) -> list[str] | None:
        """The entries whose vectors are nearest to this one; None if the store has no such index: then compare all."""

    def newest_vector(self) -> int:
        """The number of the newest vector; later ones have higher numbers."""

    def without_vectors(self, model: str, after: int, limit: int | None) -> list[tuple[int, str]]:
        """The numbers and ids of the first entries with words, behind number `after`, that have no vector."""

    def state(self, key: str, parts: Sequence[str]) -> dict[str, bytes]:
        """Those of these parts that are stored under a key."""

    def save_state(self, key: str, parts: Mapping[str, bytes]) -> None:
        """Store what a search wants to find again, replacing what was there; deleting a thread removes it."""

    def clear(self) -> None:
        """Delete all words and vectors."""


class RecordRow(msgspec.Struct, frozen=True):
    """One version of a record as a table holds it: its JSON, the fields it is selected by, the text it is searched by."""

    n: int
    version: int
    body: str
    schema: str
    tags: tuple[str, ...]
    expires_at: int | None
    text: str


class RecordFilter(msgspec.Struct, frozen=True):
    """Records of these schemas (any if empty), with all these tags, unexpired at `now`, no tag beginning with `no_tag`."""

    schemas: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    now: int | None = None
    no_tag: str = ""


class RecordTable(Protocol):
    """The rows of records in a store; each call is one transaction. A row changed on the disk raises a DamageError."""

    def insert(self, rows: Sequence[Callable[[int], RecordRow]]) -> list[str]:
        """Insert new records, all or none: each function makes its row from the number it gets. Returns their bodies."""

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
        """Bodies in the order of creation, or the last changed first; read lazily."""

    def beside(self, n: int, step: int, wanted: RecordFilter) -> str | None:
        """The body of the next (step 1) or previous (-1) record."""

    def count(self, wanted: RecordFilter) -> int: ...

    def matching(self, words: Sequence[str], wanted: RecordFilter, most: int) -> list[str]:
        """The bodies of records that share a word with these, the best first."""

    def frequencies(self, words: Sequence[str]) -> dict[str, int]:
        """In how many records each word occurs."""

    def texts(self, numbers: Sequence[int]) -> list[str]:
        """The text by which each record is searched."""

    def add_vectors(self, model: str, vectors: Sequence[tuple[int, int, bytes]]) -> None:
        """Store the vectors of records by number and version; records changed meanwhile are skipped."""

    def vectors(self, model: str, low: int, high: int) -> list[tuple[int, int, bytes]]:
        """The number, version and vector of records from number `low` to `high`."""

    def clear_vectors(self) -> None: ...


class Store(Protocol):
    """Threads of entries: appended to, read, forked, verified; never changed. OS threads may share one."""

    # Identifies the store: turns are locked by this and the thread's name.
    place: str

    @property
    def index(self) -> Index:
        """The words and vectors of the entries."""

    @property
    def records(self) -> RecordTable:
        """The rows of the records."""

    def create(self, thread: str) -> None:
        """Make an empty thread; a CallError when the name is taken."""

    def append(self, thread: str, entries: Iterable[Entry], expected_seq: int | None = None) -> list[Entry]:
        """Append all or nothing, durably; the thread is made if there is none of that name."""

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """The entries with seq > after, in order; a damaged one raises a DamageError that names it."""

    def info(self, thread: str) -> ThreadInfo:
        """Where a thread stands now."""

    def threads(self) -> list[ThreadInfo]:
        """All threads, oldest first."""

    def fork(self, thread: str, at_seq: int, name: str | None = None) -> str:
        """Make a thread that shares everything up to at_seq without copying it; returns its name (thread@at_seq)."""

    def delete(self, thread: str) -> None:
        """Delete a thread, except what a fork still uses. Nothing else ever removes entries."""

    def verify(self, thread: str | None = None) -> Verification:
        """Re-derive every hash; a DamageError names the first entry or record that does not match."""

    def find(self, entry_id: str) -> tuple[str, Entry] | None:
        """An entry by its id or a unique beginning of it, with the oldest thread that has it."""

    def changes(self, after: int = 0, limit: int | None = None) -> list[Change]:
        """What was appended to any thread behind change `after`, in order; deletions are not in it."""

    def last_change(self) -> int:
        """The number of the newest change there ever was, 0 when there was none."""

    def wait_for_change(self, after: int, timeout_s: float) -> bool:
        """Wait for a change behind number `after`, by any process; whether there is one."""

    def window(self, thread: str) -> Json:
        """The item window saved with a thread; None if there is none."""

    def save_window(self, thread: str, window: Json, expected: str | None = None) -> None:
        """Save a thread's item window; the thread is made if there is none.

        `expected` is the `saved_digest` of the window to replace; a ConflictError if another is there.
        """

    def get_state(self, thread: str, key: str) -> Json:
        """Derived state, which may be thrown away at any time; None if absent."""

    def set_state(self, thread: str, key: str, value: Json) -> None: ...

    def checkpoint(self, thread: str) -> bytes | None:
        """A thread's saved state: derived, so None if there is none or its hash does not match."""

    def save_checkpoint(self, thread: str, state: bytes) -> None: ...

    def turn_lock(self, thread: str) -> AbstractContextManager[None]:
        """Hold a thread while its turn is carried out; a ConflictError if another cycle, in any process, holds it.

        Appends inside are fenced: once another process has taken over the turn, they are refused.
        """

    def turn_held(self, thread: str) -> bool:
        """Whether a cycle, anywhere, holds a thread now; a cycle that takes it meanwhile is not disturbed."""

    def before_close(self, end: Callable[[], None]) -> None:
        """Have `end` called before the store closes, to stop work in another OS thread."""

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
    """Where a thread ends; seq 0 if there is none of this name yet."""
    return store.info(thread) if has_thread(store, thread) else ThreadInfo(thread, 0, "")


# How stores and threads are closed, and how they survive a fork of the process.


class Closing:
    """An object that a `with` block closes at its end."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class ClosingStore(Closing):
    """A store that stops background work before it closes, and that cannot be pickled."""

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


# Forks. A child inherits no SQLite locks, both processes would use the same connection, and a lock that another OS thread
# held stays locked in the child for ever. So files are closed before a process forks, and the child starts afresh.

_FORKING: weakref.WeakSet[Forking] = weakref.WeakSet()
# Held during a fork: meanwhile no store or OS thread is added, and no connection is closed.
FORK_LOCK = threading.RLock()


class Forking:
    """An object that survives a fork: it may release things before, take them back after, and resets in the child."""

    def _outlive_forks(self) -> None:
        self._begin_anew()
        with FORK_LOCK:
            _FORKING.add(self)

    def _begin_anew(self) -> None: ...
    def _before_fork(self) -> None: ...
    def _after_fork(self) -> None: ...


def _call_all(act: str) -> None:
    with ExitStack() as calls:  # an interrupt in one call does not skip the others
        if act == "_before_fork":
            FORK_LOCK.acquire()
        else:
            calls.callback(FORK_LOCK.release)
        for part in list(_FORKING):
            calls.callback(getattr(part, act))


if hasattr(os, "register_at_fork"):
    _before, _in_parent, _in_child = (partial(_call_all, act) for act in ("_before_fork", "_after_fork", "_begin_anew"))
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)


# What all stores share: checks, errors, names, JSON that is saved with a thread.

MAX_NAME = 200
# The tenant of a store that is opened without naming one.
DEFAULT_TENANT = "default"
_TENANT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?\Z")
_ID = re.compile(r"(?:sha256:)?([0-9a-f]{1,64})\Z")


def check_name(name: str) -> None:
    """A CallError unless a thread's name fits on one line of a table and into a URL's path, and can be typed."""
    readable = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable() and name == name.strip()
    if not readable or name in (".", ".."):
        hint = f"Use 1 to {MAX_NAME} printable characters, no space at either end, and not . or .. alone."
        raise CallError(f"{short(name)} cannot be a thread's name", hint=hint)


def look_for_change(store: Store, after: int, timeout_s: float, every_s: float) -> bool:
    """Wait for a change behind number `after`, looking every `every_s` seconds; whether there is one."""
    until = time.monotonic() + timeout_s
    while store.last_change() <= after:
        if (remaining_s := until - time.monotonic()) <= 0:
            return False
        time.sleep(min(remaining_s, every_s))
    return True


def tenant_file(file: Path, tenant: str) -> Path:
    """A tenant's file: log.db -> log.db, for the tenant acme log.acme.db beside it."""
    return file if tenant == DEFAULT_TENANT else file.with_name(f"{file.stem}.{tenant}{file.suffix}")


def check_tenant(name: str) -> str:
    """The name, or a CallError unless it can be part of a file's name."""
    if not _TENANT.match(name):
        raise CallError(
            f"{name!r} cannot be a tenant's name", hint="Use 1 to 40 of a-z, 0-9 and -, no - at either end."
        )
    return name


def is_server(place: str | Path) -> bool:
    """Whether a place is a server's address and not a file."""
    return isinstance(place, str) and place.startswith(("postgresql://", "postgres://"))


def id_range(prefix: str) -> tuple[str, str] | None:
    """The first and the last id with a prefix; None if no id begins so: 'ab' -> 'sha256:ab00…', 'sha256:abff…'."""
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
    """This name, or if it is taken the first of name.2, name.3, … that is not."""
    numbered = (f"{base}.{number}" for number in count(2))
    return next(name for name in chain([base], numbered) if not is_taken(name))


def saved_text(value: Json) -> str:
    """A window or state as the text that is saved; an error if it is not JSON."""
    canonical(value)
    return encode_body(value)


def saved_digest(value: Json) -> str:
    """The hash of a saved window; empty for none."""
    return sha256_hex(saved_text(value)) if value is not None else ""


def read_saved(stored: str | bytes | None, label: str, thread: str) -> Json:
    """The JSON that was saved; a DamageError says what cannot be read."""
    try:
        return json.loads(stored) if stored is not None else None
    except (ValueError, TypeError, RecursionError) as error:
        raise DamageError(f"{label} saved with thread {thread!r} is damaged: {error}", thread=thread) from error
