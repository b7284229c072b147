"""One cycle at a time: whoever carries a thread's turn out holds it. The end of its process lets go."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeAlias

from quire.errors import ConflictError
from quire.log.hashing import sha256_hex
from quire.log.store import Store

if sys.platform != "win32":
    import fcntl

Key: TypeAlias = tuple[str, str]
# What this process holds, and what the code that is running now holds: that may claim it once more.
_held: dict[Key, object] = {}
_own: ContextVar[frozenset[Key]] = ContextVar("claimed", default=frozenset())


@contextmanager
def claimed(store: Store, thread: str) -> Iterator[None]:
    """Hold a thread while its turn is carried out; one that another cycle holds is an error."""
    place = str(getattr(store, "path", ":memory:"))
    key = (f"memory-{id(store)}" if place == ":memory:" else os.path.realpath(place), thread)
    if key in _own.get():
        yield
        return
    token = object()
    if _held.setdefault(key, token) is not token:
        raise _busy(thread, os.getpid())
    try:
        lock = None if place == ":memory:" else _lock(_file(*key), thread)
        before = _own.set(_own.get() | {key})
        try:
            yield
        finally:
            _own.reset(before)
            _unlock(lock, _file(*key))
    finally:
        del _held[key]


def _file(database: str, thread: str) -> Path:
    return Path(f"{database}-turn-{sha256_hex(thread)[:12]}")


def _lock(file: Path, thread: str) -> int | None:
    """A lock that the system takes back from a process that was killed; its file is there while it is held."""
    if sys.platform == "win32":
        return None
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 20)
            os.close(handle)
            raise _busy(thread, int(holder or 0)) from None
        if _is(handle, file):
            os.truncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
            return handle
        os.close(handle)  # whoever held it before has just taken the file away


def _is(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), file.stat())
    except FileNotFoundError:
        return False


def _unlock(handle: int | None, file: Path) -> None:
    if handle is not None:
        file.unlink(missing_ok=True)
        os.close(handle)


def _busy(thread: str, process: int) -> ConflictError:
    by = f"by process {process}" if process else "elsewhere"
    return ConflictError(
        f"a turn of thread {thread!r} is being carried out {by}",
        hint="Wait until it has ended; what it stores is kept.",
    )
