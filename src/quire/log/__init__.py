"""The only state: threads of entries, appended to and never changed.

Here stands what every store shares. Nothing waits for the disk on the event loop: work that does runs in an OS thread,
and runs to its end. One cycle at a time: whoever carries a thread's turn out holds it, and the end of its process lets go.
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
# Who may read a file of what was said, where it is made: its owner.
OWNER_ALONE = 0o600


def now_ms() -> int:
    """The time in Unix milliseconds, as entries and records are stamped with; it orders nothing."""
    return time.time_ns() // 1_000_000


def was_closed(place: object) -> CallError:
    """What is said of a store that is used behind its end."""
    return CallError(f"{place} was closed here before", hint="Open it again: quire.open(…), or quire.connect(…).")


async def off_loop(work: Callable[..., _Made], *args: Any, **named: Any) -> _Made:
    """Call `work` in another OS thread; see `to_the_end`."""
    import asyncio  # here and below: who only prints a command's help need not load it

    # Not `to_thread`: its task would be cancelled with all others where a loop ends, and nobody would wait for the work.
    call = partial(copy_context().run, work, *args, **named)
    return await to_the_end(asyncio.get_running_loop().run_in_executor(None, call))


async def to_the_end(work: Awaitable[_Made]) -> _Made:
    """Await work that cancelling does not cut off: what is being written is written whole, then the cancel goes on."""
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
    """A CallError inside a running event loop, where blocking would stop everything else; says what to call."""
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise CallError("this call would block the event loop it is made in", hint=f"Call `{instead}` instead.")


# The lock of a turn.

# Windows has no flock: there a thread is held within its process alone.
LOCKS_FILES = sys.platform != "win32"
# A process, the place of a store, and a thread of it.
_Turn: TypeAlias = tuple[int, str, str]
# The turns that the code running now holds (`Store.turn_lock`), each with its fence.
TURNS_HELD: ContextVar[Mapping[_Turn, int]] = ContextVar("turns held", default={})  # noqa: B039  # nobody changes it
# Those that this process holds; code that runs inside one may take it again.
_fences: dict[_Turn, int] = {}


@contextmanager
def hold_turn(place: str, thread: str, lock: AbstractContextManager[int] | None = None) -> Iterator[None]:
    """Hold a thread of the store at `place`; a ConflictError when another cycle holds it.

    `lock` is what other processes see of it; it gives the fence, a number by which whoever lost the turn is told from
    its holder.
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
    """Within it the running code counts as the holder of a turn that another took for it."""
    before = TURNS_HELD.set({**TURNS_HELD.get(), (os.getpid(), place, thread): fence})
    try:
        yield
    finally:
        TURNS_HELD.reset(before)


@asynccontextmanager
async def lock_turn(lock: AbstractContextManager[None]) -> AsyncIterator[None]:
    """Within it the running code holds what `Store.turn_lock` gave; other OS threads wait for the lock, not the loop."""
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
    """The fence by which the running code holds a thread; 0 where it does not."""
    return TURNS_HELD.get().get((os.getpid(), place, thread), 0)


def new_fence() -> int:
    return secrets.randbits(59) + 1


def check_turn(place: str, thread: str, file: bool) -> None:
    """Refuse whoever took a thread's turn and lost it; asked by an append inside its transaction."""
    fence = own_fence(place, thread)
    local = _fences.get((os.getpid(), place, thread))
    if fence and fence != (_read_lock_file(_lock_file(place, thread))[1] if file else local):
        raise taken_over(thread)


@contextmanager
def file_lock(database: str, thread: str) -> Iterator[int]:
    """Hold a file beside a database; the system takes it back from a process that was killed."""
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
        with suppress(OSError):  # a file that stays behind is not locked
            if _read_lock_file(file) == (os.getpid(), fence):  # and in a child it is the parent's
                file.unlink(missing_ok=True)
        os.close(handle)


def is_held(place: str, thread: str, file: bool) -> bool:
    """Whether a cycle holds a thread; looking is in nobody's way."""
    if not file:
        return (os.getpid(), place, thread) in _fences
    lock_file = _lock_file(place, thread)
    if not _read_lock_file(lock_file)[0]:  # nobody does, or is just about to
        return False
    try:
        handle = os.open(lock_file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False  # its process was killed


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
            holder, _ = _read_lock_file(file)
            os.close(handle)
            raise busy(thread, f"by process {holder}" if holder else "elsewhere") from None
        except BaseException:
            os.close(handle)  # which lets go of the lock, too
            raise
        os.close(handle)  # the holder before has just removed the file


def _read_lock_file(file: Path) -> tuple[int, int]:
    """The process and the fence that a lock file names; zeros where something else stands, or nothing."""
    try:
        process, fence = file.read_bytes().split()
        return int(process), int(fence)
    except (OSError, ValueError):
        return 0, 0


def file_at(place: str | Path | int) -> tuple[int, int] | None:
    """Which file lies at a path or is open: device and number, no other's while it is open; None where there is none."""
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
