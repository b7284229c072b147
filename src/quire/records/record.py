"""A record (a breadcrumb): a stored document with tags, a version and hints on how a model should see it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from quire.entry import canonical
from quire.errors import CallError, DamageError
from quire.formats import clean
from quire.formats.clean import CleanMessage, CleanTool, ToolResult
from quire.records.hints import apply_hints, check_hints
from quire.records.paths import as_text, check_depth
from quire.values import Json, JsonObject

# What a catalog of tools shows when it brings no hints of its own.
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
    """Everything that is kept of one version; times are Unix milliseconds, None where no clock was given."""

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
        """Whether its time had passed at `now`; without a `now` nothing expires."""
        return now is not None and self.expires_at is not None and self.expires_at <= now


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A record as a model sees it: its hints applied, or `error` and the context as it is."""

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
    """As JSON, fields in their order, without those that hold nothing."""
    fields: JsonObject = msgspec.to_builtins(value)
    return {key: item for key, item in fields.items() if item is not None and not (key == "owner" and item == "")}


def encode(record: Record) -> str:
    return json.dumps(msgspec.to_builtins(record), ensure_ascii=False, separators=(",", ":"))


def decode(body: str) -> Record:
    """A record from its stored JSON; a DamageError when that is none."""
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
    """A record that is not kept yet, checked; some schemas bring hints when none are given."""
    return checked(
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
    """When a time to live that begins now ends: 10, 1000 -> 11000."""
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


def checked(record: Record) -> Record:
    """The record, if all of it is what it should be; the first thing that is not is the error."""
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


# What a record is in a clean text: tools, a line of conversation, or a result; by its schema, else by its fields.

USER: Final = "user.message.v1"
AGENT: Final = "agent.response.v1"
# Records of these schemas are the lines of conversations.
SPOKEN: Final = (USER, AGENT)
_TEXT_KEYS = ("content", "message", "text")
_TOOL_KEYS = ("tool", "tool_name", "name")
_OUTPUT_KEYS = ("output", "result", "content")


class Shape(msgspec.Struct, frozen=True):
    """The part of a clean text that one record gives; `text` is what it says, for searching and comparing."""

    section: Literal["tools", "conversation", "results"]
    text: str
    tools: tuple[CleanTool, ...] = ()
    message: CleanMessage | None = None
    result: ToolResult | None = None


def role(record: Record) -> str:
    """Who speaks in a record: 'user', 'assistant', or '' where nobody does."""
    if record.schema_name == USER:
        return "user"
    if record.schema_name == AGENT:
        return "assistant"
    named = record.context.get("role")
    says = any(isinstance(record.context.get(key), str) for key in _TEXT_KEYS)
    return ("user" if named == "user" else "assistant") if isinstance(named, str) and says else ""


def shape(record: Record, speaker: str = "") -> Shape:
    """What a record is, as its hints show it; `speaker` makes a line of conversation of any record."""
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
    """What a record is found by: a message by what it says, anything else by its title and all of its strings."""
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
    """A tool's response by its tool and output; any other record by its title and what its hints show."""
    fields: JsonObject = context if isinstance(context, dict) else {}
    tool = next((fields[key] for key in _TOOL_KEYS if isinstance(fields.get(key), str)), "")
    if not record.schema_name.startswith("tool.response") or not tool:
        return ToolResult(record.title or record.schema_name, context_text(context) or clean.output_text(None))
    outputs = [key for key in _OUTPUT_KEYS if key in fields]
    if not outputs and fields.get("error") is not None:
        return ToolResult(tool, f"Error: {as_text(fields['error'])}")
    return ToolResult(tool, clean.output_text(fields[outputs[0]] if outputs else None))
