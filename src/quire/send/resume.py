"""Going on where a cycle was interrupted: finished results are used, calls in doubt are named first."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from quire.errors import CallError
from quire.log.store import Store
from quire.send.connect import transport_for
from quire.send.cycle import Outcome, run
from quire.send.runner import CHAT, Runner, may_run_again
from quire.send.standing import Next, is_aside, newest_turn, standing
from quire.send.thread import Log
from quire.send.transport import Transport, close
from quire.values import Entry


class Interrupted(msgspec.Struct, frozen=True):
    """What resuming would find: the model asked last, what is to be done next, and which calls to run.

    `doubtful` are calls that may or may not have run; `waiting` are calls that have certainly not run, or
    may run again.
    """

    target: str
    next: Next
    doubtful: tuple[Entry, ...] = ()
    waiting: tuple[Entry, ...] = ()


def look(store: Store, thread: str, runner: Runner = CHAT) -> Interrupted:
    """How the newest turn of a thread stands; nothing is changed."""
    turn = standing(store, thread)
    # Calls that may change something run one at a time, so only the first unanswered one is in doubt.
    doubtful = tuple(call for call in turn.pending[:1] if not may_run_again(runner, call))
    return Interrupted(last_target(store, thread), turn.next, doubtful, tuple(turn.pending[len(doubtful) :]))


def last_target(store: Store, thread: str) -> str:
    """The "provider:model" that was asked last; empty when none was."""
    for entries in (newest_turn(store, thread), store.read(thread)):
        for entry in reversed(entries):
            if entry.kind == "sent" and not is_aside(entry):
                return f"{entry.body['provider']}:{entry.body['model']}"
    return ""


async def resume(
    thread: Log, transport: Transport | None = None, runner: Runner = CHAT, *, target: str = "", **how: Any
) -> Outcome:
    """Continue the newest turn from the log; `decide(call)` settles a call that may or may not have run.

    Without a transport the model that was asked last is reached at its own address, the local one started.
    """
    asked = target or last_target(thread.store, thread.name)
    if not asked:
        raise CallError(
            f"thread {thread.name!r} was never sent anywhere", hint="Name a target: provider:model."
        )
    if transport is not None:
        return await run(thread, asked, transport, runner, **how)
    own = _reached(asked)
    try:
        return await run(thread, asked, own, runner, **how)
    finally:
        await close(own)


def _reached(target: str) -> Transport:
    from quire.send.local import TARGET, local_target

    return transport_for(target, local_target().base_url if target == TARGET else None)


def resume_sync(
    thread: Log, transport: Transport | None = None, runner: Runner = CHAT, **how: Any
) -> Outcome:
    """`resume` for callers without an event loop."""

    async def main() -> Outcome:
        try:
            return await resume(thread, transport, runner, **how)
        finally:
            if transport is not None:
                await close(transport)

    return asyncio.run(main())
