"""The routes of threads: what the library's own vocabulary is over HTTP."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from quire import providers
from quire.archive.stored_conversations import is_body
from quire.assemble import Built
from quire.audit import audit, call_of
from quire.errors import CallError, ConflictError, FormatError, NotFound
from quire.log.entries import check
from quire.log.shapes import Contradiction
from quire.log.store import ThreadInfo
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
    Route,
    RouteCall,
    ThreadName,
    TurnNumber,
    entry_json,
    whole_numbers,
)
from quire.server.figures import SentRow, Spending, kept_entries, sent_row, spending
from quire.server.remote_store import in_held_turn
from quire.server.turns import exists, tip_of
from quire.values import Entry, Item, ItemType, JsonObject, Request, RequestOptions, chain


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


class Page(msgspec.Struct, forbid_unknown_fields=True):
    after: Count = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 1000


class Entries(msgspec.Struct):
    """Entries in order, each with its `seq` and `id`, and where their thread ends now."""

    entries: list[EntryJson]
    thread: ThreadInfo


def list_threads(call: RouteCall) -> Threads:
    """All threads, oldest first."""
    return Threads(call.store.threads())


def create_thread(call: RouteCall) -> ThreadInfo:
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
            raise HttpRefusal(409, str(error), hint=error.hint, state=call.store.info(new.name)) from error
        raise
    return call.store.info(new.name)


def show_thread(call: RouteCall) -> ThreadInfo:
    """Where a thread stands now."""
    return call.store.info(call.name)


def delete_thread(call: RouteCall) -> None:
    """Remove a thread; what a fork still uses stays."""
    call.store.delete(call.name)


def read_entries(call: RouteCall) -> Entries:
    """A page of a thread's entries: those behind `after`, in order."""
    page: Page = call.query
    entries = call.store.read(call.name, page.after, page.limit)
    return Entries(list(map(entry_json, entries)), call.store.info(call.name))


def append_entries(call: RouteCall) -> Entries:
    """Append entries, all or none, durably; where `expected_seq` is not the end, 409 says what is."""
    new: NewEntries = call.body
    redact = call.service.redactor.entry
    entries = [redact(_checked(body, at)) for at, body in enumerate(new.entries)]
    try:
        with in_held_turn(call, new.turn):
            appended = _append(call, entries, new.expected_seq)
    except ConflictError as error:
        state = call.store.info(call.name) if exists(call.store, call.name) else None
        raise HttpRefusal(409, str(error), hint=error.hint, state=state) from error
    return Entries(list(map(entry_json, appended)), call.store.info(call.name))


def _checked(body: JsonObject, at: int) -> Entry:
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
        seq, last = call.began["seq"], call.began["id"]
        stored = call.store.read(call.name, seq, len(entries)) if exists(call.store, call.name) else []
        if stored and stored[-1].id == last:
            return stored
        if tip_of(call.store, call.name).seq < seq:
            hint = "Make a new key to begin the thread anew."
            raise HttpRefusal(409, "the thread was deleted since this Idempotency-Key was first used", hint=hint)
    while True:
        tip = tip_of(call.store, call.name)
        chained = list(chain(entries, tip.id, tip.seq))
        call.begin({"seq": tip.seq, "id": chained[-1].id if chained else ""})
        try:
            return call.store.append(call.name, entries, tip.seq if expected is None else expected)
        except ConflictError:
            # Tried again only where somebody else appended meanwhile.
            if expected is not None or not exists(call.store, call.name):
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


class ForModel(msgspec.Struct, forbid_unknown_fields=True):
    model: Model


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


def assemble_request(call: RouteCall) -> MadeRequest:
    """The next request of a thread; a rebase that is due is recorded first, as the library does."""
    new: NewRequest = call.body
    thread = call.tenant.thread(call.name)
    with thread.lock:
        request = thread.request(known_model(new.model), check=new.check, **new.options)
        assert isinstance(request.layers, LayerHashes)
        return _request_json(request, request.layers.built, dict(request.layers) if new.layers else {})


def render_request(call: RouteCall) -> MadeRequest:
    """The next request for any model, without recording anything."""
    target = known_model(call.query.model)
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


def list_requests(call: RouteCall) -> SentRequests:
    """A page of what was sent, with usage and money: of the entries behind `after`."""
    page: Page = call.query
    entries = call.store.read(call.name, page.after, page.limit)
    rows = [sent_row(entry) for entry in entries if entry.kind == "sent" and isinstance(entry.body.get("usage"), dict)]
    return SentRequests(rows, entries[-1].seq if len(entries) == page.limit and entries else None)


def show_usage(call: RouteCall) -> Spending:
    """What a thread's requests used and cost."""
    return spending(call.store.read(call.name))


def show_all_usage(call: RouteCall) -> Spending:
    """What the requests of all threads used and cost."""
    return spending(kept_entries(call.store))


# Recall, the window, records, models, audit: as the library has them.


class Question(msgspec.Struct, forbid_unknown_fields=True):
    """What is looked for: in this thread, or in all `threads`; what the next request shows anyway is left out."""

    q: Annotated[str, msgspec.Meta(min_length=1, max_length=10_000)]
    k: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5
    scope: Literal["thread", "threads"] = "thread"


class FoundRow(msgspec.Struct):
    """An entry that was found: where it stands, and what it was found by."""

    thread: str
    entry: EntryJson
    score: float
    relevance: float
    by: str


class Hits(msgspec.Struct):
    hits: list[FoundRow]


def recall_entries(call: RouteCall) -> Hits:
    """Older entries that have to do with a question, by words and, where the model is installed, by meaning."""
    question: Question = call.query
    hits = call.tenant.thread(call.name).recall(question.q, question.k, scope=question.scope)
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


def keep_item(call: RouteCall) -> Item:
    """Put an item into the window: it joins every turn until it is removed or evicted."""
    new: NewItem = call.body
    redactor, window = call.service.redactor, call.tenant.thread(call.name).window
    return window.put(redactor.text(new.content), type=new.type, metadata=redactor.value(new.metadata))


def remove_item(call: RouteCall) -> None:
    """Take an item out of the window; what was sent of it stays in the log."""
    call.tenant.thread(call.name).window.remove(call.path["id"])


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


class RecordQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which records: of a schema, with a tag, that have to do with `q`; the newest `limit` of them."""

    schema_name: str = ""
    tag: str = ""
    q: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class RecordsFound(msgspec.Struct):
    records: list[Record]


def list_records(call: RouteCall) -> RecordsFound:
    """Records of a schema or with a tag; with `q` those that have to do with it, the nearest first."""
    query: RecordQuery = call.query
    records, now = Records(call.store), call.service.clock()
    tags = (query.tag,) if query.tag else ()
    if query.q:
        hits = records.search(query.q, nn=query.limit, tag=tags, schema_name=query.schema_name, now=now)
        return RecordsFound([hit.record for hit in hits])
    return RecordsFound(records.list(schema_name=query.schema_name, tag=tags, limit=query.limit, now=now))


def create_record(call: RouteCall) -> Record:
    """Keep a new record, at version 1."""
    new = call.service.redactor.value(msgspec.structs.asdict(call.body))
    return Records(call.store).create(**new, now=call.service.clock())


def show_record(call: RouteCall) -> Record:
    """A record at its newest version."""
    return Records(call.store).read_full(record_id(call), now=call.service.clock())


def update_record(call: RouteCall) -> Record:
    """Change a record that still is at the version that was seen."""
    new = call.service.redactor.value(msgspec.structs.asdict(call.body))
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


def audit_requests(call: RouteCall) -> Audited:
    """What recorded requests lost of the provider's cache, why, and what it cost."""
    calls = []
    for place, value in enumerate(call.body.requests, 1):
        body = value["request"] if isinstance(value.get("request"), dict) else value
        if is_body(body):
            calls.append(call_of(f"request {place}", value, body, value.get("reply")))
    return Audited(len(call.body.requests) - len(calls), **audit(calls).as_json())


_THREAD = "/api/threads/{name}"
ROUTES = (
    Route("GET", "/api/threads", list_threads, Threads),
    Route("POST", "/api/threads", create_thread, ThreadInfo, NewThread, status=201, errors=(404,)),
    Route("GET", "/api/threads/{name}", show_thread, ThreadInfo),
    Route("DELETE", "/api/threads/{name}", delete_thread),
    Route("GET", "/api/threads/{name}/entries", read_entries, Entries, query=Page),
    Route("POST", "/api/threads/{name}/entries", append_entries, Entries, NewEntries, status=201),
    Route("POST", f"{_THREAD}/requests", assemble_request, MadeRequest, NewRequest),
    Route("GET", f"{_THREAD}/requests", list_requests, SentRequests, query=Page),
    Route("GET", f"{_THREAD}/render", render_request, MadeRequest, query=ForModel),
    Route("GET", f"{_THREAD}/usage", show_usage, Spending),
    Route("GET", f"{_THREAD}/recall", recall_entries, Hits, query=Question),
    Route("GET", f"{_THREAD}/window", show_window, KeptWindow),
    Route("POST", f"{_THREAD}/window", keep_item, Item, NewItem, status=201),
    Route("DELETE", f"{_THREAD}/window/{{id}}", remove_item),
    Route("GET", "/api/records", list_records, RecordsFound, query=RecordQuery),
    Route("POST", "/api/records", create_record, Record, NewRecord, status=201),
    Route("GET", "/api/records/{id}", show_record, Record),
    Route("PUT", "/api/records/{id}", update_record, Record, ChangedRecord),
    Route("DELETE", "/api/records/{id}", delete_record),
    Route("GET", "/api/models", list_models, Models),
    Route("GET", "/api/usage", show_all_usage, Spending),
    Route("POST", "/api/audit", audit_requests, Audited, Recorded),
)
