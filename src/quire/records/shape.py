"""What a record is in a clean text: tools, a line of conversation, or a result; by its schema, else by its fields."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from quire.formats import clean
from quire.formats.clean import CleanMessage, CleanTool, ToolResult
from quire.records.paths import as_text
from quire.records.record import Record, view
from quire.values import Json, JsonObject

USER: Final = "user.message.v1"
AGENT: Final = "agent.response.v1"
# Records of these schemas are the lines of conversations.
SPOKEN: Final = (USER, AGENT)
_TEXT_KEYS = ("content", "message", "text")
_TOOL_KEYS = ("tool", "tool_name", "name")
_OUTPUT_KEYS = ("output", "result", "content")

Section = Literal["tools", "conversation", "results"]


class Shape(msgspec.Struct, frozen=True):
    """The part of a clean text that one record gives; `text` is what it says, for searching and comparing."""

    section: Section
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
    shown = view(record).context
    speaker = speaker or role(record)
    if speaker:
        text = said(shown)
        return Shape(
            "conversation", text, message=CleanMessage("user" if speaker == "user" else "assistant", text)
        )
    if record.schema_name in ("tool.catalog.v1", "tool.v1"):
        return _tools(record)
    result = _result(record, shown)
    return Shape("results", f"{result.tool}: {result.output}", result=result)


def said(context: Json) -> str:
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
    shown = view(record).context
    if role(record):
        return said(shown)
    return "\n".join(dict.fromkeys(text for text in (record.title, *_strings(shown)) if text))


def _strings(value: Json) -> list[str]:
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inner for text in _strings(each)]


def _tools(record: Record) -> Shape:
    listed = record.context.get("tools") if record.schema_name == "tool.catalog.v1" else [record.context]
    named = [tool for tool in listed or () if isinstance(tool, dict) and isinstance(tool.get("name"), str)]
    tools = clean.project(tools=named).tools
    return Shape("tools", "\n".join(f"{tool.name}: {tool.description}" for tool in tools), tools=tools)


def _result(record: Record, shown: Json) -> ToolResult:
    """A tool's response by its tool and output; any other record by its title and what its hints show."""
    fields: JsonObject = shown if isinstance(shown, dict) else {}
    tool = next((fields[key] for key in _TOOL_KEYS if isinstance(fields.get(key), str)), "")
    if not record.schema_name.startswith("tool.response") or not tool:
        return ToolResult(record.title or record.schema_name, said(shown) or clean.output_text(None))
    found = [key for key in _OUTPUT_KEYS if key in fields]
    if not found and fields.get("error") is not None:
        return ToolResult(tool, f"Error: {as_text(fields['error'])}")
    return ToolResult(tool, clean.output_text(fields[found[0]] if found else None))
