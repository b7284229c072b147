"""The routes of threads: what the library's own vocabulary is over HTTP."""

from __future__ import annotations

from typing import Annotated

import msgspec

from quire.errors import CallError, ConflictError
from quire.log.entries import check
from quire.log.hashing import chain
from quire.log.store import ThreadInfo
from quire.server.routes import Call, Count, EntryJson, Refusal, Route, ThreadName
from quire.server.service import exists
from quire.values import Entry, JsonObject


class Threads(msgspec.Struct):
    threads: list[ThreadInfo]


class NewThread(msgspec.Struct, forbid_unknown_fields=True):
    """A new thread; with `fork_of` one that shares another's entries up to `at_seq` (default: all)."""

    name: ThreadName
    fork_of: ThreadName | None = None
    at_seq: Count | None = None


class NewEntries(msgspec.Struct, forbid_unknown_fields=True):
    """Entries for a thread's end; with `expected_seq` only if it still ends there."""

    entries: Annotated[list[EntryJson], msgspec.Meta(max_length=10_000)]
    expected_seq: Count | None = None


class Page(msgspec.Struct, forbid_unknown_fields=True):
    after: Count = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1000


class Entries(msgspec.Struct):
    """Entries in order, each with its `seq` and `id`, and where their thread ends now."""

    entries: list[EntryJson]
    thread: ThreadInfo


def list_threads(call: Call) -> Threads:
    """All threads, oldest first."""
    return Threads(call.store.threads())


def create_thread(call: Call) -> ThreadInfo:
    """Make an empty thread, or a fork of another."""
    new: NewThread = call.body
    try:
        if new.fork_of is None:
            call.store.create(new.name)
        else:
            end = call.store.info(new.fork_of).seq
            call.store.fork(new.fork_of, end if new.at_seq is None else new.at_seq, new.name)
    except CallError as error:
        if exists(call.store, new.name):
            raise Refusal(
                409, str(error), hint=error.hint, state=state_of(call.store.info(new.name))
            ) from error
        raise
    return call.store.info(new.name)


def show_thread(call: Call) -> ThreadInfo:
    """Where a thread stands now."""
    return call.store.info(call.name)


def delete_thread(call: Call) -> None:
    """Remove a thread; what a fork still uses stays."""
    call.store.delete(call.name)


def read_entries(call: Call) -> Entries:
    """A page of a thread's entries: those behind `after`, in order."""
    page: Page = call.query
    found = call.store.read(call.name, page.after, page.limit)
    return Entries(list(map(entry_json, found)), call.store.info(call.name))


def append_entries(call: Call) -> Entries:
    """Append entries, all or none, durably; where `expected_seq` is not the end, 409 says what is."""
    new: NewEntries = call.body
    redact = call.service.redactor.entry
    entries = [redact(check(body)) for body in new.entries]
    try:
        kept = _append(call, entries, new.expected_seq)
    except ConflictError as error:
        state = state_of(call.store.info(call.name)) if exists(call.store, call.name) else None
        raise Refusal(409, str(error), hint=error.hint, state=state) from error
    return Entries(list(map(entry_json, kept)), call.store.info(call.name))


def _append(call: Call, entries: list[Entry], expected: int | None) -> list[Entry]:
    """Append; with an Idempotency-Key the log itself tells whether an earlier attempt did."""
    if call.remember is None:
        return call.store.append(call.name, entries, expected)
    if call.began is not None:
        seq, last = call.began["seq"], call.began["id"]
        found = call.store.read(call.name, seq, len(entries)) if exists(call.store, call.name) else []
        if found and found[-1].id == last:
            return found
    while True:
        tip = call.store.info(call.name) if exists(call.store, call.name) else ThreadInfo(call.name, 0, "")
        made = list(chain(entries, tip.id, tip.seq))
        call.begin({"seq": tip.seq, "id": made[-1].id if made else ""})
        try:
            return call.store.append(call.name, entries, tip.seq if expected is None else expected)
        except ConflictError:
            if expected is not None:
                raise


def entry_json(entry: Entry) -> JsonObject:
    """An entry as JSON, with the place it has in its log."""
    return {**entry.body, "seq": entry.seq, "id": entry.id}


def state_of(info: ThreadInfo) -> JsonObject:
    """How a thread stands, for whoever expected it otherwise."""
    made: JsonObject = msgspec.to_builtins(info)
    return made


ROUTES = (
    Route("GET", "/api/threads", list_threads, Threads),
    Route("POST", "/api/threads", create_thread, ThreadInfo, NewThread, status=201, errors=(404,)),
    Route("GET", "/api/threads/{name}", show_thread, ThreadInfo),
    Route("DELETE", "/api/threads/{name}", delete_thread),
    Route("GET", "/api/threads/{name}/entries", read_entries, Entries, query=Page),
    Route("POST", "/api/threads/{name}/entries", append_entries, Entries, NewEntries, status=201),
)
