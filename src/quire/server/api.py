"""The routes of threads: what the library's own vocabulary is over HTTP."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from quire import providers
from quire.archive.stored_conversations import is_body
from quire.assemble import Built
from quire.audit import audit, call_of
from quire.errors import CallError, ConflictError, FormatError, NotFound
from quire.items import ThreadWindow
from quire.log.entries import check
from quire.log.shapes import Contradiction
from quire.log.store import ThreadInfo, has_thread
from quire.observe import LayerHashes
from quire.providers.models import known_models, split_target
from quire.providers.wires import wire_of
from quire.records import Record, Records
from quire.records.record import number
from quire.server import (
    Count,
    EntryJson,
    HttpRefusal,
    Model,
    RouteCall,
    ThreadName,
    TurnNumber,
    entry_json,
    route,
    whole_numbers,
)
from quire.server.figures import SentRow, Spending, kept_entries, sent_rows, spending
from quire.server.remote_store import in_held_turn
from quire.server.turns import check_not_deleted, note_entries, note_made, stored_before
from quire.values import Entry, Item, ItemType, JsonObject, Request, RequestOptions


class Threads(msgspec.Struct):
    threads: list[ThreadInfo]


class NewThread(msgspec.Struct, forbid_unknown_fields=True):
    """A new thread; with `fork_of` one that shares another's entries up to `at_seq` (default: all)."""

    name: ThreadName
    fork_of: ThreadName | None = None
    at_seq: Count | None = None


class NewEntries(msgspec.Struct, forbid_unknown_fields=True):
    """Entries for a thread's end; with `expected_seq` only if it still ends there, with `turn` only while it is held."""

    entries: list[EntryJson]
    expected_seq: Count | None = None
    turn: TurnNumber | None = None


PageSize = Annotated[int, msgspec.Meta(ge=0, le=10_000)]


class Entries(msgspec.Struct):
    """Entries in order, each with its `seq` and `id`, and where their thread ends now."""

    entries: list[EntryJson]
    thread: ThreadInfo


def list_threads(call: RouteCall) -> Threads:
    """All threads, oldest first."""
    return Threads(call.store.threads())


def create_thread(call: RouteCall, body: NewThread) -> ThreadInfo:
    """Make an empty thread, or a fork of another."""
    try:
        if body.fork_of is None:
            call.store.create(body.name)
        else:
            end = call.store.info(body.fork_of).seq
            call.store.fork(body.fork_of, end if body.at_seq is None else body.at_seq, body.name)
    except CallError as error:
        if has_thread(call.store, body.name):
            raise HttpRefusal(409, str(error), hint=error.hint, state=call.store.info(body.name)) from error
        raise
    return call.store.info(body.name)


def show_thread(call: RouteCall) -> ThreadInfo:
    """Where a thread stands now."""
    return call.store.info(call.name)


def delete_thread(call: RouteCall) -> None:
    """Remove a thread; what a fork still uses stays."""
    call.store.delete(call.name)


def read_entries(call: RouteCall, after: Count = 0, limit: PageSize = 1000) -> Entries:
    """A page of a thread's entries: those behind `after`, in order."""
    entries = call.store.read(call.name, after, limit)
    return Entries(list(map(entry_json, entries)), call.store.info(call.name))


def append_entries(call: RouteCall, body: NewEntries) -> Entries:
    """Append entries, all or none, durably; where `expected_seq` is not the end, 409 says what is."""
    redact = call.service.redactor.entry
    entries = [redact(_check_entry(entry, at)) for at, entry in enumerate(body.entries)]
    try:
        with in_held_turn(call, body.turn):
            appended = _append(call, entries, body.expected_seq)
    except ConflictError as error:
        state = call.store.info(call.name) if has_thread(call.store, call.name) else None
        raise HttpRefusal(409, str(error), hint=error.hint, state=state) from error
    return Entries(list(map(entry_json, appended)), call.store.info(call.name))


def _check_entry(body: JsonObject, at: int) -> Entry:
    """The entry at a place of the body; what its schema forbids is refused as what any route's types forbid."""
    try:
        try:
            return check(body)
        except FormatError:
            if not any(isinstance(value, float) for value in body.values()):
                raise
            return check(whole_numbers(body, 0))
    except FormatError as error:
        status = 409 if isinstance(error.__cause__, Contradiction) else 422
        raise HttpRefusal(status, f"{error} - at `$.entries[{at}]`", hint=error.hint) from error


def _append(call: RouteCall, entries: list[Entry], expected: int | None) -> list[Entry]:
    """Append; with an Idempotency-Key the log itself tells whether an earlier attempt did."""
    if call.remember is None:
        return call.store.append(call.name, entries, expected)
    if call.began is not None:
        if stored := stored_before(call, len(entries)):
            return stored
        check_not_deleted(call)
    while True:
        tip = note_entries(call, entries)
        try:
            appended = call.store.append(call.name, entries, tip.seq if expected is None else expected)
            if appended:
                note_made(call)
            return appended
        except ConflictError:
            # Tried again only where somebody else appended meanwhile.
            if expected is not None or not has_thread(call.store, call.name):
                raise
            if call.store.info(call.name).seq == tip.seq:
                raise


# Requests: what would be sent, and what was.


class NewRequest(msgspec.Struct, forbid_unknown_fields=True):
    """For which model, with which fields of its body; `check` false leaves the provider's rules to the provider.

    `layers` true tells the hash of each layer, too.
    """

    model: Model
    options: RequestOptions = {}
    check: bool = True
    layers: bool = False


class MadeRequest(msgspec.Struct):
    """A request as its provider takes it, what a cache compares of it (`sha256`), and what it does not show."""

    provider: str
    model: str
    body: JsonObject
    headers: dict[str, str]
    sha256: str
    tokens: int
    epoch: int
    left_out: list[JsonObject]
    layers: dict[str, str] = {}


class SentRequests(msgspec.Struct):
    requests: list[SentRow]
    # Behind which entry the next page begins; null where there is none.
    next: int | None


def assemble_request(call: RouteCall, body: NewRequest) -> MadeRequest:
    """The next request of a thread; a rebase that is due is recorded first, as the library does."""
    thread = call.tenant.thread(call.name)
    with thread.lock:
        request = thread.request(known_model(body.model), check=body.check, **body.options)
        assert isinstance(request.layers, LayerHashes)
        return _request_json(request, request.layers.built, dict(request.layers) if body.layers else {})


def render_request(call: RouteCall, model: Model) -> MadeRequest:
    """The next request for any model, without recording anything."""
    target = known_model(model)
    thread = call.tenant.thread(call.name)
    with thread.lock:
        built = thread.build(target)
    return _request_json(providers.render(built.prompt, target, cache=True, key=call.name), built)


def _request_json(request: Request, built: Built, layers: dict[str, str] | None = None) -> MadeRequest:
    left_out = [{"entry": row.entry, "reason": row.reason} for row in built.left_out]
    left_out += list(request.left_out) if layers is None else []
    return MadeRequest(
        request.provider,
        request.model,
        request.body,
        request.headers,
        request.lines.sha256,
        built.tokens,
        built.epoch,
        left_out,
        layers or {},
    )


def known_model(target: str) -> str:
    """A model that requests can be made for; a provider that nobody knows is not found."""
    try:
        wire_of(split_target(target)[0])
    except CallError as error:
        raise NotFound(str(error), hint=error.hint) from error
    return target


def list_requests(call: RouteCall, after: Count = 0, limit: PageSize = 1000) -> SentRequests:
    """A page of what was sent, with usage and money: of the entries behind `after`."""
    entries = call.store.read(call.name, after, limit)
    return SentRequests(list(sent_rows(entries)), entries[-1].seq if len(entries) == limit and entries else None)


def show_usage(call: RouteCall) -> Spending:
    """What a thread's requests used and cost."""
    return spending(call.store.read(call.name))


def show_all_usage(call: RouteCall) -> Spending:
    """What the requests of all threads used and cost."""
    return spending(kept_entries(call.store))


# Recall, the window, records, models, audit: as the library has them.


class FoundRow(msgspec.Struct):
    """An entry that was found: where it stands, and what it was found by."""

    thread: str
    entry: EntryJson
    score: float
    relevance: float
    by: str


class Hits(msgspec.Struct):
    hits: list[FoundRow]


def recall_entries(
    call: RouteCall,
    q: Annotated[str, msgspec.Meta(min_length=1, max_length=10_000)],
    k: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5,
    scope: Literal["thread", "threads"] = "thread",
) -> Hits:
    """Older entries that have to do with a question, by words and, where the model is installed, by meaning.

    What the next request shows anyway is left out.
    """
    hits = call.tenant.thread(call.name).recall(q, k, scope=scope)
    return Hits([FoundRow(hit.thread, entry_json(hit.entry), hit.score, hit.relevance, hit.by) for hit in hits])


class KeptWindow(msgspec.Struct):
    """The items that join every turn, oldest first, and those that are never evicted."""

    items: list[Item]
    pinned: list[str]


class NewItem(msgspec.Struct, forbid_unknown_fields=True):
    content: str
    type: ItemType = "text"
    metadata: JsonObject | None = None


def show_window(call: RouteCall) -> KeptWindow:
    """The items at hand."""
    window = call.tenant.thread(call.name).window
    return KeptWindow(list(window), window.pinned)


def keep_item(call: RouteCall, body: NewItem) -> Item:
    """Put an item into the window: it joins every turn until it is removed or evicted."""
    redactor = call.service.redactor
    content, metadata = redactor.text(body.content), redactor.value(body.metadata)
    window = ThreadWindow(call.store, call.name)
    return window.change(lambda window: window.put(content, type=body.type, metadata=metadata))


def remove_item(call: RouteCall) -> None:
    """Take an item out of the window; what was sent of it stays in the log."""
    ThreadWindow(call.store, call.name).change(lambda window: window.remove(call.path["id"]))


Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class NewRecord(msgspec.Struct, forbid_unknown_fields=True):
    schema_name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    context: JsonObject
    title: str = ""
    tags: list[Tag] = []
    llm_hints: JsonObject | None = None
    ttl_s: Annotated[float, msgspec.Meta(gt=0, le=10**9)] | None = None


class ChangedRecord(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be another, and the version that was seen; 409 where it is not the newest any more."""

    version: Count
    title: str | None = None
    tags: list[Tag] | None = None
    context: JsonObject | None = None
    llm_hints: JsonObject | None = None


class RecordsFound(msgspec.Struct):
    records: list[Record]


def list_records(
    call: RouteCall,
    schema_name: str = "",
    tag: str = "",
    q: str = "",
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100,
) -> RecordsFound:
    """Records of a schema or with a tag, the newest; with `q` those that have to do with it, the nearest first."""
    records, tags, now = Records(call.store), tag or (), call.service.clock()
    if q:
        hits = records.search(q, nn=limit, tag=tags, schema_name=schema_name, now=now)
        return RecordsFound([hit.record for hit in hits])
    return RecordsFound(records.list(schema_name=schema_name, tag=tags, limit=limit, now=now))


def create_record(call: RouteCall, body: NewRecord) -> Record:
    """Keep a new record, at version 1."""
    new = call.service.redactor.value(msgspec.structs.asdict(body))
    return Records(call.store).create(**new, now=call.service.clock())


def show_record(call: RouteCall) -> Record:
    """A record at its newest version."""
    return Records(call.store).read_full(record_id(call), now=call.service.clock())


def update_record(call: RouteCall, body: ChangedRecord) -> Record:
    """Change a record that still is at the version that was seen."""
    new = call.service.redactor.value(msgspec.structs.asdict(body))
    return Records(call.store).update(record_id(call), new.pop("version"), **new, now=call.service.clock())


def delete_record(call: RouteCall) -> None:
    """Remove a record with all its versions."""
    Records(call.store).delete(record_id(call))


def record_id(call: RouteCall) -> str:
    """The record that the path names; what cannot be one's id is not found."""
    try:
        number(call.path["id"])
    except CallError as error:
        raise NotFound(str(error), hint=error.hint) from error
    return str(call.path["id"])


class Models(msgspec.Struct):
    models: list[JsonObject]


def list_models(call: RouteCall) -> Models:
    """What is known of each model: window, prices, cache, with the dates it was known."""
    return Models([msgspec.to_builtins(info) for info in known_models()])


class Recorded(msgspec.Struct, forbid_unknown_fields=True):
    """Requests as a proxy or an SDK recorded them, oldest first: {"request": {…}, "reply": {…}, "at": …}."""

    requests: Annotated[list[JsonObject], msgspec.Meta(min_length=1)]


class Audited(msgspec.Struct):
    """What was lost, by cause and by conversation; `skipped` are those that held no request."""

    skipped: int
    total: JsonObject
    causes: list[JsonObject]
    conversations: list[JsonObject]


def audit_requests(call: RouteCall, body: Recorded) -> Audited:
    """What recorded requests lost of the provider's cache, why, and what it cost."""
    calls = []
    for place, value in enumerate(body.requests, 1):
        request = value["request"] if isinstance(value.get("request"), dict) else value
        if is_body(request):
            calls.append(call_of(f"request {place}", value, request, value.get("reply")))
    return Audited(len(body.requests) - len(calls), **audit(calls).as_json())


_THREAD = "/api/threads/{name}"
ROUTES = (
    route("GET", "/api/threads", list_threads),
    route("POST", "/api/threads", create_thread, status=201, errors=(404,)),
    route("GET", _THREAD, show_thread),
    route("DELETE", _THREAD, delete_thread),
    route("GET", f"{_THREAD}/entries", read_entries),
    route("POST", f"{_THREAD}/entries", append_entries, status=201),
    route("POST", f"{_THREAD}/requests", assemble_request),
    route("GET", f"{_THREAD}/requests", list_requests),
    route("GET", f"{_THREAD}/render", render_request),
    route("GET", f"{_THREAD}/usage", show_usage),
    route("GET", f"{_THREAD}/recall", recall_entries),
    route("GET", f"{_THREAD}/window", show_window),
    route("POST", f"{_THREAD}/window", keep_item, status=201),
    route("DELETE", f"{_THREAD}/window/{{id}}", remove_item),
    route("GET", "/api/records", list_records),
    route("POST", "/api/records", create_record, status=201),
    route("GET", "/api/records/{id}", show_record),
    route("PUT", "/api/records/{id}", update_record),
    route("DELETE", "/api/records/{id}", delete_record),
    route("GET", "/api/models", list_models),
    route("GET", "/api/usage", show_all_usage),
    route("POST", "/api/audit", audit_requests),
)
