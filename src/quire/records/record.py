"""A record (a breadcrumb): a stored document with tags, a version and hints on how a model should see it.

Also selectors of records, and a consumer's configuration of its context (`context.config.v1`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Final, Literal, get_args

import msgspec

from quire.errors import CallError, DamageError
from quire.formats import clean
from quire.formats.clean import CleanMessage, CleanTool, Detail, ToolResult
from quire.records.hints import apply_hints, check_hints
from quire.records.paths import MISSING, HintLimits, Meter, as_text, check_depth, extract, look_up
from quire.values import Json, JsonObject, canonical

# The hints of a tool catalog that has none of its own.
CATALOG_HINTS: Final[JsonObject] = {
    "mode": "merge",
    "transform": {
        "tool_list": {"type": "tools", "tools": "$.tools"},
        "available_tools": {"type": "extract", "value": "$.tools[*].name", "many": True},
    },
}
DEFAULT_HINTS: Final[dict[str, JsonObject]] = {"tool.catalog.v1": CATALOG_HINTS}
MAX_BYTES: Final = 4 * 1024 * 1024
MAX_DEPTH: Final = 100


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a record; times are Unix milliseconds, None where the caller gave no time."""

    id: str = ""
    schema_name: str
    title: str = ""
    tags: tuple[str, ...] = ()
    context: JsonObject = {}
    llm_hints: JsonObject | None = None
    version: int = 1
    owner: str = ""
    created_at: int | None = None
    updated_at: int | None = None
    expires_at: int | None = None

    def expired(self, now: int | None) -> bool:
        """Whether it has expired at `now`; without a `now` nothing expires."""
        return now is not None and self.expires_at is not None and self.expires_at <= now


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A record as a model sees it: with its hints applied, or with an `error` and the unchanged context."""

    id: str
    schema_name: str
    title: str
    tags: tuple[str, ...]
    context: Json
    version: int
    updated_at: int | None = None
    error: str | None = None


def view(record: Record) -> View:
    """Apply the record's hints."""
    context, error = apply_hints(record.context, record.llm_hints)
    same = {name: getattr(record, name) for name in ("id", "schema_name", "title", "tags", "version", "updated_at")}
    return View(context=context, error=error, **same)


def session(record: Record) -> str:
    """The tag of the conversation that a record belongs to, '' where it names none."""
    return next((tag for tag in record.tags if tag.startswith("session:")), "")


def to_json(value: Record | View) -> JsonObject:
    """As JSON, without empty fields."""
    fields: JsonObject = msgspec.to_builtins(value)
    return {key: item for key, item in fields.items() if item is not None and not (key == "owner" and item == "")}


def encode(record: Record) -> str:
    return json.dumps(msgspec.to_builtins(record), ensure_ascii=False, separators=(",", ":"))


def decode(body: str) -> Record:
    """A record from its stored JSON; a DamageError where that cannot be read."""
    try:
        fields = json.loads(body)
        return Record(**{**fields, "tags": tuple(fields["tags"])})
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DamageError(f"a stored record cannot be read: {error}") from error


def number(id: str) -> int:
    """The number in a record's id: rec-7 -> 7."""
    head, _, digits = id.partition("-")
    if head != "rec" or not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise CallError(f"{id!r} is not the id of a record", hint="Ids look like rec-1.")
    return int(digits)


def draft(
    schema_name: str,
    context: JsonObject,
    *,
    title: str = "",
    tags: Iterable[str] = (),
    llm_hints: JsonObject | None = None,
    ttl_s: float | None = None,
    owner: str = "",
    now: int | None = None,
) -> Record:
    """A new record, checked but not stored; some schemas have hints where none are given."""
    return check_record(
        Record(
            schema_name=schema_name,
            title=title,
            tags=tag_list(tags),
            context=context,
            llm_hints=DEFAULT_HINTS.get(schema_name) if llm_hints is None else None if llm_hints == {} else llm_hints,
            owner=owner,
            created_at=now,
            updated_at=now,
            expires_at=expiry(ttl_s, now),
        )
    )


def expiry(ttl_s: float | None, now: int | None) -> int | None:
    """The end of a time to live that begins now: 10, 1000 -> 11000."""
    if ttl_s is None:
        return None
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not 0 < ttl_s < 1e12:
        raise CallError(
            f"ttl_s is a positive number of seconds, not {ttl_s!r}",
            hint="3600 is an hour; leave it out to keep the record.",
        )
    if now is None:
        raise CallError(f"a TTL of {ttl_s} s needs the time it begins", hint="Pass now, in Unix milliseconds.")
    return now + round(ttl_s * 1000)


def check_record(record: Record) -> Record:
    """Return the record if it is valid, else raise for the first field that is not."""
    if not isinstance(record.schema_name, str) or not record.schema_name:
        raise CallError("a record needs a schema_name", hint='For example "user.message.v1".')
    for name in ("title", "owner"):
        if not isinstance(getattr(record, name), str):
            value = as_text(getattr(record, name))[:40]
            raise CallError(f"{name} is a string, not {value!r}", hint="Put it in quotes, or leave it out.")
    if not isinstance(record.context, dict):
        raise CallError(
            f"context is an object, not {as_text(record.context)[:40]!r}", hint='Put it under a name: {"text": …}.'
        )
    check_depth(record.context, MAX_DEPTH)
    if record.llm_hints is not None:
        check_hints(record.llm_hints)
        check_depth(record.llm_hints, MAX_DEPTH)
    size = len(canonical([record.schema_name, record.title, *record.tags, record.context, record.llm_hints]))
    if size > MAX_BYTES:
        raise CallError(f"the record has {size:,} bytes; at most {MAX_BYTES:,} are kept", hint="Split it.")
    return record


def tag_list(tags: Iterable[str]) -> tuple[str, ...]:
    """Tags in the order given, each once."""
    if isinstance(tags, str):
        raise CallError(f"tags is a list, not {tags!r}", hint=f"Write [{tags!r}].")
    if isinstance(tags, Mapping) or not isinstance(tags, Iterable):
        raise CallError(f"tags is a list, not {as_text(tags)[:40]!r}", hint='Write ["work", "session:1"].')
    listed = tuple(tags)
    for tag in listed:
        if not isinstance(tag, str) or not tag:
            hint = "Tags are words such as work or session:1."
            raise CallError(f"a tag is a non-empty string, not {as_text(tag)[:40]!r}", hint=hint)
    return tuple(dict.fromkeys(listed))


FIELDS: Final = ("schema_name", "title", "tags", "context", "llm_hints", "ttl_s", "owner")


def fields_of(value: Json) -> JsonObject:
    """The arguments of `create` or `update` from a JSON object; unknown fields are an error."""
    if not isinstance(value, Mapping):
        raise CallError(
            f"a record is a JSON object, not {as_text(value)[:40]!r}",
            hint='Write {"schema_name": "note.v1", "context": {…}}.',
        )
    unknown = [key for key in value if key not in FIELDS]
    if unknown:
        raise CallError(f"a record has no field {unknown[0]!r} to set", hint=f"Fields: {', '.join(FIELDS)}.")
    return dict(value)


# A record in the clean format: tools, a line of conversation, or a result; by its schema, else by its fields.

USER: Final = "user.message.v1"
AGENT: Final = "agent.response.v1"
# Records of these schemas are the lines of conversations.
SPOKEN: Final = (USER, AGENT)
_TEXT_KEYS = ("content", "message", "text")
_TOOL_KEYS = ("tool", "tool_name", "name")
_OUTPUT_KEYS = ("output", "result", "content")


class Shape(msgspec.Struct, frozen=True):
    """A record's part of a clean text; `text` is its content, for searching and comparing."""

    section: Literal["tools", "conversation", "results"]
    text: str
    tools: tuple[CleanTool, ...] = ()
    message: CleanMessage | None = None
    result: ToolResult | None = None


def role(record: Record) -> str:
    """The speaker of a record that is a message: 'user' or 'assistant'; '' for other records."""
    if record.schema_name == USER:
        return "user"
    if record.schema_name == AGENT:
        return "assistant"
    named = record.context.get("role")
    has_text = any(isinstance(record.context.get(key), str) for key in _TEXT_KEYS)
    return ("user" if named == "user" else "assistant") if isinstance(named, str) and has_text else ""


def shape(record: Record, speaker: str = "") -> Shape:
    """A record's part of a clean text, as its hints show it; with a `speaker`, any record is a line of conversation."""
    context = view(record).context
    speaker = speaker or role(record)
    if speaker:
        text = context_text(context)
        return Shape("conversation", text, message=CleanMessage("user" if speaker == "user" else "assistant", text))
    if record.schema_name in ("tool.catalog.v1", "tool.v1"):
        return _tools(record)
    result = _result(record, context)
    return Shape("results", f"{result.tool}: {result.output}", result=result)


def context_text(context: Json) -> str:
    """The text of a context: its content, message or text; else its only string; else all of it as JSON."""
    if not isinstance(context, dict):
        return as_text(context)
    for key in _TEXT_KEYS:
        if context.get(key) is not None:
            return as_text(context[key])
    strings = [value for value in context.values() if isinstance(value, str)]
    return strings[0] if len(strings) == 1 and len(context) == 1 else as_text(context) if context else ""


def searchable(record: Record) -> str:
    """The text by which a record is found: a message's text, else the title and all strings of the context."""
    context = view(record).context
    if role(record):
        return context_text(context)
    return "\n".join(dict.fromkeys(text for text in (record.title, *_strings(context)) if text))


def _strings(value: Json) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _strings(item)]


def _tools(record: Record) -> Shape:
    listed = record.context.get("tools") if record.schema_name == "tool.catalog.v1" else [record.context]
    named = [tool for tool in listed or () if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
    tools = clean.project(tools=named).tools
    return Shape("tools", "\n".join(f"{tool.name}: {tool.description}" for tool in tools), tools=tools)


def _result(record: Record, context: Json) -> ToolResult:
    """A tool's response as its tool and output; any other record as its title and what its hints show."""
    fields: JsonObject = context if isinstance(context, dict) else {}
    tool = next((fields[key] for key in _TOOL_KEYS if isinstance(fields.get(key), str)), "")
    if not record.schema_name.startswith("tool.response") or not tool:
        return ToolResult(record.title or record.schema_name, context_text(context) or clean.output_text(None))
    outputs = [key for key in _OUTPUT_KEYS if key in fields]
    if not outputs and fields.get("error") is not None:
        return ToolResult(tool, f"Error: {as_text(fields['error'])}")
    return ToolResult(tool, clean.output_text(fields[outputs[0]] if outputs else None))


# Selecting records: by schema, by any, all or none of some tags, and by values in their context.


def _ordering(compare: Callable[[Json, Json], bool]) -> Callable[[Json, Json], bool]:
    """A comparison that is false unless both sides are numbers, or both strings."""

    def holds(value: Json, operand: Json) -> bool:
        numbers = all(isinstance(side, int | float) and not isinstance(side, bool) for side in (value, operand))
        strings = isinstance(value, str) and isinstance(operand, str)
        return (numbers or strings) and compare(value, operand)

    return holds


def same(value: Json, operand: Json) -> bool:
    """Equal as JSON: true is not 1."""
    return isinstance(value, bool) == isinstance(operand, bool) and bool(value == operand)


def _contains(value: Json, operand: Json) -> bool:
    if isinstance(value, list):
        return any(same(member, operand) for member in value)
    return isinstance(operand, str) and isinstance(value, str | dict) and operand in value


OPERATORS: Final[dict[str, Callable[[Json, Json], bool]]] = {
    "eq": same,
    "ne": lambda value, operand: not same(value, operand),
    "gt": _ordering(lambda a, b: a > b),
    "gte": _ordering(lambda a, b: a >= b),
    "lt": _ordering(lambda a, b: a < b),
    "lte": _ordering(lambda a, b: a <= b),
    "in": lambda value, listed: isinstance(listed, list) and any(same(value, item) for item in listed),
    "contains": _contains,
    "contains_any": lambda value, listed: isinstance(listed, list) and any(_contains(value, item) for item in listed),
    "exists": lambda value, operand: bool(operand),
}


class Match(msgspec.Struct, frozen=True):
    """A condition on the context: (value at `path`, JSONPath or dotted) `op` `value`."""

    path: str
    op: str = "eq"
    value: Json = True

    def __post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise CallError(f"no operator {self.op!r}", hint=f"Use one of {', '.join(OPERATORS)}.")

    def holds(self, context: JsonObject) -> bool:
        """Whether any value at the path satisfies it; `ne` and `exists: false` also hold where there is none."""
        values = self._values(context)
        if self.op == "exists":
            return bool(values) == bool(self.value)
        if self.op == "ne":
            return all(OPERATORS["ne"](value, self.value) for value in values)
        return any(OPERATORS[self.op](value, self.value) for value in values)

    def _values(self, context: JsonObject) -> list[Json]:
        if self.path.startswith("$"):
            return extract(self.path, context, Meter(HintLimits()))
        value = look_up(context, self.path.split("."))
        return [] if value is MISSING else [value]


class Selector(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the records for which all conditions hold; an empty condition always does."""

    schemas: tuple[str, ...] = ()
    any_tags: tuple[str, ...] = ()
    all_tags: tuple[str, ...] = ()
    none_tags: tuple[str, ...] = ()
    context_match: tuple[Match, ...] = ()
    owner: str = ""

    def matches(self, record: Record) -> bool:
        tags = set(record.tags)
        return (
            (not self.schemas or record.schema_name in self.schemas)
            and self.owner in ("", record.owner)
            and (not self.any_tags or not tags.isdisjoint(self.any_tags))
            and tags.issuperset(self.all_tags)
            and tags.isdisjoint(self.none_tags)
            and all(match.holds(record.context) for match in self.context_match)
        )


_KEYS = ("schema_name", "tag", "any_tags", "all_tags", "none_tags", "context_match", "owner")


def selector(value: JsonObject, where: str = "selector") -> Selector:
    """Read a selector from JSON; `schema_name` may be a list, `tag` is added to `all_tags`."""
    _check_keys(value, where, _KEYS)
    tag = [value["tag"]] if value.get("tag") else []
    all_tags, schemas = value.get("all_tags") or [], value.get("schema_name")
    try:
        return msgspec.convert(
            {
                "schemas": (schemas,) if isinstance(schemas, str) and schemas else schemas or (),
                "any_tags": value.get("any_tags") or (),
                "all_tags": [*tag, *all_tags] if isinstance(all_tags, list | tuple) else all_tags,
                "none_tags": value.get("none_tags") or (),
                "context_match": _conditions(value.get("context_match")),
                "owner": value.get("owner") or "",
            },
            Selector,
        )
    except msgspec.ValidationError as error:
        raise CallError(f"{where}: {error}", hint="Tags and schemas are lists of strings.") from error


def _conditions(value: Json) -> list[Json]:
    """A list of {path, op, value}, or the short form {path: value} for equality."""
    if isinstance(value, dict):
        return [{"path": path, "op": "eq", "value": operand} for path, operand in value.items()]
    if value is None or isinstance(value, list):
        return value or []
    raise CallError(
        f"context_match is a list of conditions, not {as_text(value)[:40]!r}",
        hint='Write [{"path": "$.to", "op": "eq", "value": "chat"}].',
    )


# A consumer's configuration of its context (`context.config.v1`).

SCHEMA: Final = "context.config.v1"
Method = Literal["vector", "recent", "latest", "tagged", "all"]
# The most generations of contexts built from contexts: more than any intended chain needs.
Generations = Annotated[int, msgspec.Meta(ge=1, le=32)]
METHODS: Final[tuple[str, ...]] = get_args(Method)
_HINT = 'Write {"consumer_id": "chat", "sources": [{"schema_name": "user.message.v1", "method": "recent"}]}.'
_SOURCE_KEYS = ("method", "nn", "limit", "filters", "conversation_scope", "exchanges", "floor", "role")


class RecordSource(msgspec.Struct, frozen=True, kw_only=True):
    """Which records a context is built from, and by which method.

    `exchanges`: add to a message found by `vector` its question or answer, and the few messages between two found
    ones. `floor`: the least relevance of a hit as a share of the best one's, from 0 (any) to 1.
    """

    method: Method
    selector: Selector = Selector()
    nn: int = 5
    limit: int | None = None
    current_session: bool = False
    exchanges: bool = True
    floor: float = 0.6
    role: str = ""


class OutputRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record that the builder keeps up to date for its consumer."""

    schema_name: str = "agent.context.v1"
    tags: tuple[str, ...] = ()
    ttl_s: float | None = None


class Formatting(msgspec.Struct, frozen=True, kw_only=True):
    """How much is shown: at most so many o200k tokens in all; texts at least this similar are repeats."""

    max_tokens: int | None = 4000
    deduplication_threshold: float | None = 0.95
    detail: Detail = "full"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    consumer_id: str
    sources: tuple[RecordSource, ...] = ()
    update_triggers: tuple[Selector, ...] = ()
    output: OutputRecord = OutputRecord()
    formatting: Formatting = Formatting()
    # How many times contexts may be built from contexts.
    max_generation: int = 3

    @property
    def tags(self) -> tuple[str, ...]:
        """The output's tags: the configured ones and the consumer's own."""
        return tuple(dict.fromkeys((*(self.output.tags or ("agent:context",)), f"consumer:{self.consumer_id}")))


def config(value: Json) -> Config:
    """Read a configuration from JSON, the context of a `context.config.v1` record."""
    if not isinstance(value, dict):
        raise CallError(f"a configuration is a JSON object, not {as_text(value)[:40]!r}", hint=_HINT)
    if not isinstance(value.get("consumer_id"), str) or not value["consumer_id"]:
        raise CallError("a configuration needs a consumer_id", hint=_HINT)
    _check_keys(value, "the configuration", (*Config.__struct_fields__, "consumer_type", "metadata"))
    output = _object(value, "output")
    _check_keys(output, "output", ("schema_name", "tags", "ttl_s", "ttl_seconds"))
    ttl = {"ttl_s": output["ttl_seconds"]} if "ttl_seconds" in output else {}
    try:
        return Config(
            consumer_id=value["consumer_id"],
            sources=tuple(_source(source, n) for n, source in enumerate(_objects(value, "sources"), 1)),
            update_triggers=tuple(
                selector(row, f"update trigger {n}") for n, row in enumerate(_objects(value, "update_triggers"), 1)
            ),
            output=msgspec.convert({**output, **ttl}, OutputRecord),
            formatting=msgspec.convert(_formatting(_object(value, "formatting")), Formatting),
            max_generation=msgspec.convert(value.get("max_generation", 3), Generations),
        )
    except msgspec.ValidationError as error:
        raise CallError(f"the configuration of {value['consumer_id']!r}: {error}", hint=_HINT) from error


def of_record(record: Record) -> Config:
    """The configuration that a record holds."""
    if record.schema_name != SCHEMA:
        raise CallError(f"{record.id} is a {record.schema_name}, not a {SCHEMA}")
    return config(record.context)


def _objects(value: JsonObject, key: str) -> list[JsonObject]:
    listed = value.get(key) or []
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise CallError(f"{key} is a list of objects, not {as_text(listed)[:40]!r}", hint=_HINT)
    return listed


def _object(value: JsonObject, key: str) -> JsonObject:
    object = value.get(key) or {}
    if not isinstance(object, dict):
        raise CallError(f"{key} is an object, not {as_text(object)[:40]!r}", hint=_HINT)
    return object


def _source(value: JsonObject, number: int) -> RecordSource:
    """Read a source: its method and bounds, and its selector (beside them or under `filters`)."""
    where = f"source {number}"
    if value.get("method") not in METHODS:
        raise CallError(f"{where} has no method {value.get('method')!r}", hint=f"Use one of {', '.join(METHODS)}.")
    chosen = {key: item for key, item in value.items() if key not in _SOURCE_KEYS} | _object(value, "filters")
    fields = {key: value[key] for key in ("method", "nn", "limit", "exchanges", "floor", "role") if key in value}
    source = msgspec.convert(fields, RecordSource)
    for name, least in (("nn", 1), ("limit", 1), ("floor", 0)):
        if getattr(source, name) is not None and getattr(source, name) < least:
            raise CallError(f"{where}: {name} is at least {least}, not {getattr(source, name)}")
    if value.get("conversation_scope") not in (None, "all", "current"):
        raise CallError(f"{where}: conversation_scope is all or current, not {value['conversation_scope']!r}")
    return msgspec.structs.replace(
        source, selector=selector(chosen, where), current_session=value.get("conversation_scope") == "current"
    )


def _formatting(value: JsonObject) -> JsonObject:
    _check_keys(value, "formatting", (*Formatting.__struct_fields__, "include_metadata"))
    tokens, threshold = value.get("max_tokens", 1), value.get("deduplication_threshold", 1)
    if isinstance(tokens, int) and tokens < 1:
        raise CallError(f"max_tokens is at least 1, not {tokens}")
    if isinstance(threshold, int | float) and not 0 < threshold <= 1:
        raise CallError(f"deduplication_threshold lies above 0 and up to 1, not {threshold}")
    return value


def _check_keys(value: JsonObject, where: str, keys: tuple[str, ...]) -> None:
    unknown = [key for key in value if key not in keys and key != "comment"]
    if unknown:
        raise CallError(f"{where} has no {unknown[0]!r}", hint=f"Use {', '.join(keys)}.")
