"""The only state: threads of entries, appended to and never changed.

This module holds what all stores share. Work that waits for the disk runs in an OS thread, not on the event loop, and is
never cut off. Whoever carries out a thread's turn holds its lock, which the system releases when that process ends.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from quire.errors import CallError, ConflictError, QuireError
from quire.values import sha256_hex

_Made = TypeVar("_Made")
# The mode of a new file that holds conversations: only its owner may read it.
OWNER_ALONE = 0o600


def now_ms() -> int:
    """The time in Unix milliseconds, as entries and records carry it; it decides no order."""
    return time.time_ns() // 1_000_000


def was_closed(place: object) -> CallError:
    """The error for a store that is used after it was closed."""
    return CallError(f"{place} was closed here before", hint="Open it again: quire.open(…), or quire.connect(…).")


async def off_loop(work: Callable[..., _Made], *args: Any, **named: Any) -> _Made:
    """Call `work` in another OS thread; see `to_the_end`."""
    import asyncio  # here and below: printing a command's help need not load it

    # Not `to_thread`: when a loop ends it cancels that task with all others, and nobody would wait for the work.
    call = partial(copy_context().run, work, *args, **named)
    return await to_the_end(asyncio.get_running_loop().run_in_executor(None, call))


async def to_the_end(work: Awaitable[_Made]) -> _Made:
    """Await work that cancelling does not cut off: it is finished first, so that no write is torn, then cancelled."""
    import asyncio

    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():  # however often it is cancelled
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # the caller was cancelled and does not hear of this error
        raise


def refuse_loop(instead: str) -> None:
    """Raise a CallError inside a running event loop, which a blocking call would stop; it names what to call instead."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise CallError("this call would block the event loop it is made in", hint=f"Call `{instead}` instead.")


# The lock of a turn.

# Windows has no flock: there a turn's lock only works within one process.
LOCKS_FILES = sys.platform != "win32"
# The id of a process, the place of a store, and the name of a thread in it.
_Turn: TypeAlias = tuple[int, str, str]
# The turns that the running code holds (`Store.turn_lock`), each with its fence: a random number that is checked at every
# append, so that a holder that lost the turn to another process can no longer write.
TURNS_HELD: ContextVar[Mapping[_Turn, int]] = ContextVar("turns held", default={})  # noqa: B039  # nobody changes it
# The turns that this process holds; code that runs inside one may take it again.
_fences: dict[_Turn, int] = {}


@contextmanager
def hold_turn(place: str, thread: str, lock: AbstractContextManager[int] | None = None) -> Iterator[None]:
    """Hold a thread of the store at `place`; a ConflictError if another cycle holds it.

    `lock` is the lock that other processes see; it gives the fence.
    """
    key = (os.getpid(), place, thread)
    if key in TURNS_HELD.get():
        yield
        return
    local_fence = new_fence()
    if _fences.setdefault(key, local_fence) is not local_fence:
        raise busy(thread, f"by process {os.getpid()}")
    try:
        with lock or nullcontext(local_fence) as fence, in_turn(place, thread, fence):
            yield
    finally:
        del _fences[key]


@contextmanager
def in_turn(place: str, thread: str, fence: int) -> Iterator[None]:
    """While the block runs, the running code counts as the holder of a turn that other code took for it."""
    before = TURNS_HELD.set({**TURNS_HELD.get(), (os.getpid(), place, thread): fence})
    try:
        yield
    finally:
        TURNS_HELD.reset(before)


@asynccontextmanager
async def lock_turn(lock: AbstractContextManager[None]) -> AsyncIterator[None]:
    """Hold a lock of `Store.turn_lock` while the block runs; another OS thread waits for it, not the event loop."""
    # Entered and left in two OS threads, but in one context.
    before, context, with_lock = TURNS_HELD.get(), copy_context(), ExitStack()
    try:
        await off_loop(context.run, with_lock.enter_context, lock)
        TURNS_HELD.set(context.get(TURNS_HELD, before))
        yield
    finally:
        TURNS_HELD.set(before)
        await off_loop(context.run, with_lock.close)


def own_fence(place: str, thread: str) -> int:
    """The fence with which the running code holds a thread; 0 if it does not."""
    return TURNS_HELD.get().get((os.getpid(), place, thread), 0)


def new_fence() -> int:
    return secrets.randbits(59) + 1


def check_turn(place: str, thread: str, file: bool) -> None:
    """Raise a ConflictError if the running code held a thread's turn and lost it; each append asks in its transaction."""
    fence = own_fence(place, thread)
    local = _fences.get((os.getpid(), place, thread))
    if fence and fence != (_read_lock_file(_lock_file(place, thread))[1] if file else local):
        raise taken_over(thread)


@contextmanager
def file_lock(database: str, thread: str) -> Iterator[int]:
    """Lock a file beside a database; the system releases the lock of a process that was killed."""
    file, fence = _lock_file(database, thread), new_fence()
    try:
        handle = _lock(file, thread, fence)
    except OSError as error:
        raise QuireError(
            f"cannot hold the turn of thread {thread!r} with {file}: {error.strerror}",
            hint="Check the disk's space, and that the file and its folder are yours to write.",
        ) from error
    try:
        yield fence
    finally:
        with suppress(OSError):  # a file that is left behind is not locked
            if _read_lock_file(file) == (os.getpid(), fence):  # in a forked child it belongs to the parent
                file.unlink(missing_ok=True)
        os.close(handle)


def is_held(place: str, thread: str, file: bool) -> bool:
    """Whether a cycle holds a thread; a cycle that takes it meanwhile is not disturbed."""
    if not file:
        return (os.getpid(), place, thread) in _fences
    try:
        handle = os.open(_lock_file(place, thread), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _is_free(handle)  # a process that was killed leaves the file behind, but no lock
    finally:
        os.close(handle)


def _is_free(handle: int) -> bool:
    """Whether no cycle holds a lock file; others may be finding this out at the same time."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(handle, fcntl.LOCK_UN)  # a child that was forked meanwhile would hold it on
    return True


def _lock_file(database: str, thread: str) -> Path:
    return Path(f"{database}-turn-{sha256_hex(thread)[:12]}")


def _lock(file: Path, thread: str, fence: int) -> int:
    import fcntl

    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if file_at(handle) == file_at(file):
                os.truncate(handle, 0)
                os.write(handle, f"{os.getpid()} {fence}".encode())
                return handle
        except BlockingIOError:
            if not _is_free(handle):
                holder, _ = _read_lock_file(file)
                os.close(handle)
                raise busy(thread, f"by process {holder}" if holder else "elsewhere") from None
        except BaseException:  # also an interrupt
            os.close(handle)  # also releases the lock
            raise
        os.close(handle)  # the previous holder has just removed this file, or `_is_free` locked it: try again


def _read_lock_file(file: Path) -> tuple[int, int]:
    """The process and the fence that a lock file names; zeros if it names none."""
    try:
        process, fence = file.read_bytes().split()
        return int(process), int(fence)
    except (OSError, ValueError):
        return 0, 0


def file_at(place: str | Path | int) -> tuple[int, int] | None:
    """The identity (device and inode) of the file at a path or of an open one; None if there is none."""
    try:
        found = os.stat(place)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def taken_over(thread: str) -> ConflictError:
    return ConflictError(
        f"the turn of thread {thread!r} was taken over by another process",
        hint="Leave it to the other; what it stores is kept.",
    )


def busy(thread: str, by: str) -> ConflictError:
    return ConflictError(
        f"a turn of thread {thread!r} is being carried out {by}",
        hint="Wait until it has ended; what it stores is kept.",
    )
