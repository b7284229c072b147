"""The only state: threads of entries, appended to and never changed.

Nothing waits for the disk on the event loop: work that does runs in an OS thread, and runs to its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from quire.errors import CallError

_Made = TypeVar("_Made")


def now_ms() -> int:
    """The time in Unix milliseconds, as entries and records are stamped with; it orders nothing."""
    return time.time_ns() // 1_000_000


async def off_loop(work: Callable[..., _Made], *args: Any, **named: Any) -> _Made:
    """Call `work` in another OS thread; see `to_the_end`."""
    import asyncio  # here and below: who only prints a command's help need not load it

    return await to_the_end(asyncio.to_thread(work, *args, **named))


async def to_the_end(work: Coroutine[Any, Any, _Made]) -> _Made:
    """Await work that cancelling does not cut off: what is being written is written whole, then the cancel goes on."""
    import asyncio

    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
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
