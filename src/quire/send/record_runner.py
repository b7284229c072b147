"""The runner over records: builds a clean context, reads the model's answer as `agent.response.v1`, runs its tools.

A request holds the newest turn only: the system prompt, the context that the builder found, and the turn's messages.
Messages and tool results are stored as records, each once: a record's tag names its entry.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

import msgspec

from quire import providers, values
from quire.assemble.user_message import block, user_text
from quire.errors import CallError, ConflictError, NotFound
from quire.formats import clean
from quire.formats.clean import ToolResult
from quire.log import now_ms, off_loop
from quire.log.store import Store
from quire.providers.convert import image
from quire.providers.incoming import recordable
from quire.providers.models import split_target
from quire.providers.rules import require
from quire.records import (
    RESPONSE,
    RESPONSE_SCHEMA,
    Builder,
    Config,
    Record,
    Records,
    Selector,
    catalog,
    config,
    configured,
    parse_reply,
    react,
    response_context,
)
from quire.records.builder import built_by
from quire.records.record import USER, draft, shape, view
from quire.send.text_protocol import RereadStream, with_shorter_result
from quire.send.tools import Tool, Toolbox, in_thread, tool
from quire.send.turn import (
    Limits,
    Runner,
    Turn,
    TurnThread,
    attached_items,
    is_opening,
    newest_turn,
    read_head,
    without_cut,
)
from quire.tokens import IMAGE_TOKENS, counter
from quire.values import Entry, Image, JsonObject, Message, Prompt, Reply, Request, Text

SYSTEM: Final = """You are a helpful AI assistant integrated with the RCRT system.

You receive pre-assembled context that includes:
- Relevant conversation history (vector-searched for semantic similarity)
- Available tools and their usage
- Recent tool results

The context is already optimized and formatted. Just focus on:
1. Understanding the user's request
2. Using available tools when helpful
3. Providing clear, concise responses

To invoke tools, respond with:
{
  "action": "create",
  "breadcrumb": {
    "schema_name": "agent.response.v1",
    "title": "Chat Response",
    "tags": ["agent:response", "chat:output"],
    "context": {
      "message": "Your response to the user",
      "tool_requests": [
        {"tool": "tool-name", "input": {...}, "requestId": "unique-id"}
      ]
    }
  }
}

IMPORTANT: The context you receive is already filtered for relevance. Trust it."""

# The name of the call whose result is the built context; the model cannot make this call.
CONTEXT: Final = "context-builder"
# The key of a thread's state: the last entry that was stored as a record.
STATE: Final = "records"
_MESSAGES = ["user.message.v1", "agent.response.v1"]
# The sources of a consumer without a configuration: messages near to the request, and the latest ones.
_SOURCES: Final[list[JsonObject]] = [
    {"schema_name": _MESSAGES, "method": "vector", "nn": 5, "conversation_scope": "current"},
    {"schema_name": _MESSAGES, "method": "recent", "limit": 4, "conversation_scope": "current"},
    {"schema_name": RESPONSE, "method": "recent", "limit": 3, "conversation_scope": "current"},
]


def records(
    kept: Records,
    tools: Toolbox | Iterable[Tool | Callable[..., Any]] | None = None,
    *,
    consumer: str = "chat",
    system: str = "",
    memory: str | None = None,
    limits: Limits | None = None,
    clock: Callable[[], int] = now_ms,
    **options: Any,
) -> Runner:
    """A runner that shows the model a context built from records; it asks for tools as `agent.response.v1`.

    `consumer` names the `context.config.v1` record to use; without such a record, the conversation's own messages are
    searched. By default the `tools` are those that read and write records. `system` replaces SYSTEM.
    """
    chosen = record_tools(kept, clock=clock) if tools is None else tools
    box = Toolbox(*chosen, offered=False)
    build = partial(_context, kept, consumer, [_catalog_entry(tool.definition()) for tool in box], clock)

    async def prepare(turn: Turn) -> Sequence[Entry]:
        return await off_loop(build, turn)

    async def keep(turn: Turn) -> None:
        await off_loop(keep_records, kept, turn.thread.store, turn.thread.name, clock())

    own = Limits(steps=25)
    runner = Runner(name="records", tools=box, prepare=prepare, keep=keep, limits=own, speech=AgentResponses())
    return runner.equip(system or SYSTEM, memory, limits, options)


def _catalog_entry(definition: JsonObject) -> JsonObject:
    """A tool for the catalog, which shows no schemas: the description also lists the parameters."""
    schema = definition.get("parameters") or {}
    needed = schema.get("required") or ()
    parameters = [name if name in needed else f"{name} (optional)" for name in schema.get("properties") or ()]
    about = " ".join(str(definition["description"]).split())
    return {**definition, "description": f"{about} Input: {', '.join(parameters)}" if parameters else about}


def _context(
    store: Records, consumer: str, tools: Sequence[JsonObject], clock: Callable[[], int], turn: Turn
) -> list[Entry]:
    """The turn's context as a call and its result, so that it is in the log and the same in all requests of the turn."""
    now, thread = clock(), turn.thread
    keep_records(store, thread.store, thread.name, now)
    trigger = next(iter(_newest_record(store, _tags(thread.name, turn.user), now)), None)
    count = counter(split_target(turn.target)[1]).count
    room = thread.room(turn.target) - count(turn.runner.system) - _SPARE
    config = _config(store, consumer, now)
    limits = [most for most in (config.formatting.max_tokens, room) if most is not None]
    formatting = msgspec.structs.replace(config.formatting, max_tokens=max(1, min(limits)))
    builder = Builder(msgspec.structs.replace(config, formatting=formatting))
    listed = catalog(tools) if tools else None
    request = None if trigger is not None else turn.user.text
    built = builder.build(store, trigger=trigger, request=request, catalog=listed, now=now)
    builder.keep(store, built, now=now)
    meta: JsonObject = {"placement": "context", "idempotent": True}
    context_call = values.call(f"context-{turn.user.seq}", CONTEXT, {"consumer": consumer}, meta=meta)
    return [context_call, values.result(context_call.call_id, None, built.formatted_context)]


# Tokens reserved for the wrappers of two messages, and for differences in counting.
_SPARE = 64


def _config(store: Records, consumer: str, now: int) -> Config:
    try:
        return configured(store, consumer, now=now)
    except NotFound:
        return config({"consumer_id": consumer, "sources": _SOURCES})


# Tools to read and write records; both may run again, since a call that runs twice writes no second record.

RecordAction = Literal["create", "update", "delete"]
_ENTRY = "entry:"


def entry_tag(entry: Entry) -> str:
    """The tag of a record that names its entry, by the first twelve digits of the entry's hash."""
    return f"{_ENTRY}{entry.id.removeprefix('sha256:')[:12]}"


def record_tools(records: Records, *, clock: Callable[[], int] = now_ms) -> list[Tool]:
    """`find_records` and `change_record`; a change also rebuilds the contexts that it triggers."""
    functions = RecordFunctions(records, clock)
    finding = tool(
        idempotent=True,
        category="system",
        output=("count", "records"),
        example='{"query": "API key"} finds by meaning, {"id": "rec-3"} reads one, {"tag": "work"} lists the newest.',
    )
    changing = tool(
        idempotent=True,
        category="system",
        output=("done", "record"),
        example='{"action": "create", "schema_name": "note.v1", "title": "Plan", "context": {"text": "Ship it"}}; '
        '{"action": "update", "id": "rec-3", "version": 1, "context": {"text": "Ship on Monday"}}',
    )
    return [finding(functions.find_records), changing(functions.change_record)]


class RecordFunctions:
    """The functions of the record tools; calls run one by one, so that each sees what earlier ones wrote."""

    def __init__(self, records: Records, clock: Callable[[], int]) -> None:
        self._records, self._clock = records, clock
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def _in_order(self, work: Callable[[int], JsonObject]) -> JsonObject:
        now = self._clock()
        async with self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            return dict(await in_thread(lambda: work(now)))

    async def find_records(
        self, query: str = "", id: str = "", schema_name: str = "", tag: str = "", k: int = 5
    ) -> JsonObject:
        """Search, read or list records.

        Args:
            query: What to look for, in plain words.
            id: The one record to read.
            schema_name: Only records of this schema.
            tag: Only records with this tag.
            k: At most so many.
        """
        most = max(1, min(k, 50))
        selector = Selector(schemas=(schema_name,) if schema_name else (), all_tags=(tag,) if tag else ())

        def find(now: int) -> JsonObject:
            matching: Sequence[Record]
            if id:
                matching = [self._records.read_full(id, now=now)]
            elif query.strip():
                near = self._records.near(query, selector, keep=lambda record: not built_by(record), now=now)
                matching = [hit.record for hit in near if hit.share > 0][:most]
            else:
                matching = self._records.select(
                    selector, newest=most, keep=lambda record: not built_by(record), now=now
                )
            return {"count": len(matching), "records": [_record_json(record) for record in matching]}

        return await self._in_order(find)

    async def change_record(
        self,
        action: RecordAction,
        call: Entry,
        id: str = "",
        version: int = 0,
        schema_name: str = "",
        title: str | None = None,
        tags: list[str] | None = None,
        context: dict[str, Any] | None = None,
    ) -> JsonObject:
        """Create, update or delete a record. An update or a deletion names the id and the version that was seen.

        Args:
            action: create, update or delete.
            id: The record to update or delete.
            version: The version of it that was seen.
            schema_name: What a new record is, such as note.v1.
            title: What it is called.
            tags: All of its tags.
            context: What it holds, a JSON object.
        """
        fields = {"title": title, "tags": tags, "context": context}
        changes = {name: value for name, value in fields.items() if value is not None}

        if action == "create":
            return await self._in_order(lambda now: self._create(call, schema_name, changes, now))
        if not (id and version):
            raise CallError(f"to {action} a record, name its id and version", hint="find_records shows both.")
        if action == "update":
            return await self._in_order(lambda now: self._update(id, version, changes, now))
        return await self._in_order(lambda now: self._delete(id, version, now))

    def _report(self, verb: str, record: Record, now: int) -> JsonObject:
        react(self._records, record, now=now)
        return {"done": f"{record.id} is {verb}", "record": _record_json(record)}

    def _create(self, call: Entry, schema_name: str, fields: JsonObject, now: int) -> JsonObject:
        if not schema_name:
            raise CallError("a new record needs a schema_name", hint="Such as note.v1.")
        tag = entry_tag(call)
        # Where the call ran before an interruption, its record is there already.
        old = self._records.select(Selector(all_tags=(tag,), schemas=(schema_name,)), newest=1, now=now)
        tags, context, title = [*fields.get("tags", ()), tag], fields.get("context", {}), fields.get("title", "")
        new = old or [self._records.create(schema_name, context, title=title, tags=tags, now=now)]
        return self._report("created", new[0], now)

    def _update(self, id: str, version: int, fields: JsonObject, now: int) -> JsonObject:
        try:
            record = self._records.update(id, version, **fields, now=now)
        except ConflictError:
            # Where the call ran before an interruption, the record is as it asked for already.
            record = self._records.read_full(id, now=now)
            same = all(json.dumps(getattr(record, name)) == json.dumps(value) for name, value in fields.items())
            if record.version != version + 1 or not same:
                raise
        return self._report("updated", record, now)

    def _delete(self, id: str, version: int, now: int) -> JsonObject:
        try:
            self._records.delete(id, version, now=now)
        except NotFound:
            return {"done": f"there is no record {id} any more"}
        return {"done": f"{id} is deleted"}


def _record_json(record: Record) -> JsonObject:
    """A record as the model sees it: its main fields, and the context that its hints show."""
    head = {"id": record.id, "version": record.version, "schema_name": record.schema_name}
    tags = [tag for tag in record.tags if not tag.startswith(_ENTRY)]
    return {**head, "title": record.title, "tags": tags, "context": view(record).context}


# Storing a conversation as records: the user's messages, the model's replies, the tools' results.


def keep_records(records: Records, store: Store, thread: str, now: int | None = None) -> list[Record]:
    """Store a thread's new entries as records; none is lost or stored twice where the process is killed meanwhile."""
    begin = int((store.get_state(thread, STATE) or {}).get("seq", 0))
    new = store.read(thread, after=begin)
    # Without an unfinished reply, which may be asked for again.
    begins = [place for place, entry in enumerate(new) if entry.kind == "sent"]
    entries = new[: begins[-1]] if begins and is_opening(new[begins[-1]]) else new
    calls = {call.call_id: call for call in [*newest_turn(store, thread), *entries] if call.kind == "call"}
    # `without_cut` needs all of `new`: only the next request shows that a reply broke off.
    spoken = [entry for entry in without_cut(new) if entries and entry.seq <= entries[-1].seq]
    drafts = [draft for entry in spoken if (draft := _draft(entry, calls, thread, now))]
    created = records.create_all(draft for draft in drafts if not _newest_record(records, draft.tags, now))
    if entries:
        store.set_state(thread, STATE, {"seq": entries[-1].seq})
    react(records, *created, now=now)
    return created


def _draft(entry: Entry, calls: Mapping[str, Entry], thread: str, now: int | None) -> Record | None:
    """The record of an entry; None for a kind that is not stored."""
    tags = _tags(thread, entry)
    if entry.kind == "user":
        return draft(USER, {"content": entry.text}, tags=tags, now=now)
    if entry.kind in ("respond", "call") and (entry.kind == "respond" or "reply" in entry.meta):
        fields = parse_reply(reply_text(entry)).fields()
        return draft(fields.pop("schema_name"), **{**fields, "tags": [*fields["tags"], *tags]}, now=now)
    call = calls.get(entry.call_id) if entry.kind == "result" else None
    if call is None or call.name == CONTEXT:
        return None
    context = response_context(call.name, str(call.meta.get("requestId") or call.call_id), entry)
    return draft(RESPONSE, context, tags=tags, now=now)


def _tags(thread: str, entry: Entry) -> tuple[str, str]:
    """The tags of a record: its conversation and its entry."""
    return f"session:{thread}", entry_tag(entry)


def _newest_record(store: Records, tags: Sequence[str], now: int | None) -> list[Record]:
    return store.select(Selector(all_tags=tuple(tags[-2:])), newest=1, now=now)


# Requests: one system message, one message with the context, then replies and results in turn.


class AgentResponses(msgspec.Struct, frozen=True):
    """Requests that hold the newest turn only; replies are read as `agent.response.v1`."""

    def request(self, thread: TurnThread, target: str, options: JsonObject) -> Request:
        """The turn so far, within the budget: where it is too long, the longest results are cut."""
        entries = without_cut(newest_turn(thread.store, thread.name), asking=True)
        items = attached_items(thread.store, thread.name, entries[0])
        head = read_head(thread.store, thread.name)
        # Notes of earlier turns belong to the system prompt; those of this turn stand at their place.
        system = "\n\n".join([*head.systems, *(text for seq, text in head.notes if seq < entries[0].seq)])
        count, room = counter(split_target(target)[1]).count, thread.room(target)
        messages = _messages(entries, items)
        while (over := count(system) + 4 + _size(messages, count) - room) > 0:
            entries = with_shorter_result(entries, over, room)
            messages = _messages(entries, items)
        prompt = Prompt(system, "", (), messages)
        request = providers.render(prompt, target, cache=True, key=thread.name, **options)
        require(request)
        return request

    def sent_entry(self, thread: TurnThread, request: Request, reply: Reply | None = None) -> Entry:
        """The `sent` entry, marked because the request was not rendered from the thread."""
        body = thread.sent_entry(request, reply).body
        return Entry("sent", {**body, "meta": {**body.get("meta", {}), "layout": "records"}})

    def reader(self, thread: TurnThread, target: str, names: Iterable[str]) -> RereadStream:
        call_ids = {entry.call_id for entry in thread.store.read(thread.name) if entry.kind == "call"}
        return RereadStream(providers.stream(target, names), partial(reply_entries, ids=call_ids))


def _messages(entries: Sequence[Entry], items: Sequence[JsonObject]) -> tuple[Message, ...]:
    """A turn as messages: the context with the request, then each reply as the model wrote it, and its results."""
    user, *rest = entries
    calls = {entry.call_id: entry.name for entry in rest if entry.kind == "call"}
    spoken: list[tuple[Literal["user", "assistant"], str | ToolResult]] = []
    context = ""
    for entry in _in_order(rest):
        if entry.kind == "result" and calls.get(entry.call_id) == CONTEXT:
            context = str(entry.body.get("content") or "")
        elif entry.kind == "result":
            projected = shape(Record(schema_name=RESPONSE, context=response_context(calls[entry.call_id], "", entry)))
            spoken += [("user", projected.result)] if projected.result else []
        elif entry.kind == "note":
            spoken.append(("user", entry.text))
        elif text := reply_text(entry):
            spoken.append(("assistant", text))
    blocks = [block(item) for item in items]
    words = user_text([described.text for described in blocks], user.text)
    pictures = [*(user.body.get("images") or ()), *(image for described in blocks for image in described.images)]
    images = map(image, pictures)
    spoken.insert(0, ("user", clean.with_request(context, words)))
    first, *others = (
        Message(who, (Text(_join_lines(text for _, text in lines)),)) for who, lines in groupby(spoken, itemgetter(0))
    )
    return (Message("user", (*images, *first.parts)), *others)


def _in_order(entries: Sequence[Entry]) -> Iterable[Entry]:
    """The entries, with results in the order of their calls: parallel calls end in any order."""
    place = {entry.call_id: at for at, entry in enumerate(entries) if entry.kind == "call"}
    for are_results, some in groupby(entries, lambda entry: entry.kind == "result"):
        listed = list(some)
        yield from sorted(listed, key=lambda entry: place[entry.call_id]) if are_results else listed


def _join_lines(lines: Iterable[str | ToolResult]) -> str:
    """The successive texts of one speaker joined; results are under one heading."""
    out: list[str] = []
    for are_results, some in groupby(lines, lambda line: isinstance(line, ToolResult)):
        listed = list(some)
        results = [part for part in listed if isinstance(part, ToolResult)]
        out += [clean.results_section(results)] if are_results else [str(part) for part in listed]
    return "\n\n".join(out)


def _size(messages: Sequence[Message], count: Callable[[str], int]) -> int:
    parts = [part for message in messages for part in message.parts]
    texts = sum(count(part.text) for part in parts if isinstance(part, Text))
    return texts + 4 * len(messages) + IMAGE_TOKENS * sum(isinstance(part, Image) for part in parts)


def reply_text(entry: Entry) -> str:
    """The model's reply that begins with this entry; "" for the reply's other entries."""
    if entry.kind not in ("respond", "call"):
        return ""
    return str(entry.meta.get("reply") or (entry.text if entry.kind == "respond" else ""))


def reply_entries(entry: Entry, ids: set[str]) -> list[Entry]:
    """A reply's message and calls as entries; the first one keeps the reply as the model wrote it."""
    if entry.kind != "respond":
        return [entry]
    reply = parse_reply(entry.text)
    problems = list(reply.problems)
    if not reply.structured:
        begins = entry.text.lstrip().startswith(("{", "```"))
        if not (begins and RESPONSE_SCHEMA in entry.text and '"tool_requests"' in entry.text):
            return [entry]
        # An invalid attempt to ask for tools: answered with an error.
        problems = [f"the reply is no valid JSON of {RESPONSE_SCHEMA}; nothing was run. Send all of it again."]
    answer = [values.respond(reply.message)] if reply.structured and reply.message else []
    calls = [
        values.call(
            _free(wanted_call.request_id, ids),
            wanted_call.tool,
            wanted_call.input,
            meta={"requestId": wanted_call.request_id},
        )
        for wanted_call in reply.tool_requests
    ]
    wrong = [
        values.call(_free("malformed", ids), "tool_requests", {}, meta={"malformed": problem, "idempotent": True})
        for problem in problems
    ]
    first, *others = [*answer, *calls, *wrong] or [values.respond("")]
    begun = Entry(first.kind, {**first.body, "meta": {**first.meta, "reply": entry.text}})
    return [recordable(reply_entry) for reply_entry in (begun, *others)]


def _free(id: str, ids: set[str]) -> str:
    """A call id that is new in the thread, since models tend to start again at 1."""
    free = next(name for n in range(1, len(ids) + 2) if (name := id if n == 1 else f"{id}-{n}") not in ids)
    ids.add(free)
    return free
