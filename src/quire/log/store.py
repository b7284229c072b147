"""What a log store can do, whatever it is made of; the only state there is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self

import msgspec

from quire.values import Entry, Json


class ThreadInfo(msgspec.Struct, frozen=True):
    """A thread at a glance; `parent` and `forked_at` say which thread it was forked from, and behind which entry."""

    name: str
    seq: int
    id: str
    parent: str = ""
    forked_at: int = 0


class Verified(msgspec.Struct, frozen=True):
    """What verify() re-derived: every one of these entries hashes to its id."""

    threads: int
    entries: int


class Hook(Protocol):
    """Someone else's tables in the same file, kept in step inside the same transactions.

    `migrations` are SQL scripts numbered from 1 in the hook's own namespace, applied once, in order.
    """

    name: str
    migrations: tuple[str, ...]

    def appended(self, conn: Any, thread: str, entries: Sequence[Entry]) -> None: ...

    def deleted(self, conn: Any, thread: str) -> None: ...


class Store(Protocol):
    """Threads of entries: appended to, read, forked, verified; never changed."""

    def create(self, thread: str) -> None:
        """Make an empty thread; a CallError when the name is taken."""

    def append(self, thread: str, entries: Iterable[Entry], expected_seq: int | None = None) -> list[Entry]:
        """Append all or nothing, durably; a new thread is made when there is none of that name."""

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """The entries with seq > after, in order."""

    def info(self, thread: str) -> ThreadInfo:
        """Where a thread stands now."""

    def threads(self) -> list[ThreadInfo]:
        """All threads, oldest first."""

    def fork(self, thread: str, at_seq: int, name: str | None = None) -> str:
        """A new thread that shares everything up to at_seq without copying it; returns its name."""

    def delete(self, thread: str) -> None:
        """Remove a thread; what a fork still uses stays. The only way anything disappears."""

    def verify(self, thread: str | None = None) -> Verified:
        """Re-derive every hash; a DamageError names the first bad entry."""

    def find(self, entry_id: str) -> tuple[str, Entry] | None:
        """An entry by its id or a unique beginning of it, with a thread that has it."""

    def window(self, thread: str) -> Json:
        """The item window saved with a thread, None when there is none."""

    def save_window(self, thread: str, window: Json) -> None: ...

    def get_state(self, thread: str, key: str) -> Json:
        """Derived state that may be thrown away at any time; None when absent."""

    def set_state(self, thread: str, key: str, value: Json) -> None: ...

    def turn_lock(self, thread: str) -> AbstractContextManager[None]:
        """Hold a thread while its turn is carried out; a ConflictError when another cycle, anywhere, holds it."""

    def close(self) -> None:
        """Close what is open, for every OS thread."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
