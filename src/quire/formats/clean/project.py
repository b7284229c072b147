"""From a thread or from JSON to what a clean text shows. What is left out here:

messages with no content, times and ids, a tool's parameters; with detail 'short' also its category,
output and example. Of a thread: system, notes, thinking and attachments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from quire.formats.clean.value import DETAILS, Clean, Detail, Message, Tool, ToolResult
from quire.formats.pairing import Exchange, paired
from quire.log.hashing import canonical
from quire.log.inputs import checked
from quire.log.shapes import ANYTHING, BOOLEAN, NULL, OBJECT, STRING, Fields, Listed, Plain, either, one_of
from quire.values import Entry, Json, JsonObject

NO_OUTPUT = "No output"

_TEXT = either(STRING, NULL)
_STRINGS = Plain(
    "a list of strings",
    {"type": "array", "items": {"type": "string"}},
    lambda v: v is None or (isinstance(v, list) and all(isinstance(field, str) for field in v)),
)
_TOOL = Fields(
    {"name": STRING},
    {
        "description": _TEXT,
        "category": _TEXT,
        "output": _STRINGS,
        "example": _TEXT,
        "parameters": either(OBJECT, NULL),
        "idempotent": BOOLEAN,
    },
)
_MESSAGE = Fields({"role": STRING, "content": _TEXT}, {"id": ANYTHING, "timestamp": ANYTHING})
_RESULT = Fields({"tool": STRING}, {"output": ANYTHING, "id": ANYTHING, "timestamp": ANYTHING})
INPUT = Fields(
    {},
    {
        "tools": Listed(_TOOL),
        "conversation": Listed(_MESSAGE),
        "tool_results": Listed(_RESULT),
        "request": _TEXT,
        "detail": one_of(DETAILS),
    },
)


def read(data: Json) -> Clean:
    """The value of the JSON object that `quire format clean` takes."""
    return project(**checked(INPUT, data))


def to_json(value: Clean) -> JsonObject:
    """A value as JSON that `read` takes back."""
    out: JsonObject = msgspec.to_builtins(value)
    return out


def project(
    tools: Iterable[JsonObject] = (),
    conversation: Iterable[JsonObject] = (),
    tool_results: Iterable[JsonObject] = (),
    request: str | None = "",
    detail: Detail = "full",
) -> Clean:
    """What is shown of tools, messages and results given as JSON objects, in the order given."""
    shown = tuple(_tool(tool, detail) for tool in tools)
    messages = (_message(message) for message in conversation)
    return Clean(
        shown,
        tuple(message for message in messages if message.content),
        tuple(ToolResult(result["tool"], output_text(result.get("output"))) for result in tool_results),
        request or "",
        detail if shown else "full",
    )


def project_thread(entries: Iterable[Entry], detail: Detail = "full") -> Clean:
    """A thread's newest tools, its conversation and results, and the last user entry as the request."""
    kept = list(entries)
    tools = next((entry.tools for entry in reversed(kept) if entry.kind == "tools"), [])
    request = next((at for at in reversed(range(len(kept))) if kept[at].kind == "user"), len(kept))
    spoken = (entry for at, entry in enumerate(kept) if entry.kind in _SHOWN and at != request)
    return project(
        tools,
        ({"role": entry.kind, "content": entry.text} for entry in spoken),
        (_result(event) for event in paired(kept) if isinstance(event, Exchange)),
        "".join(entry.text for entry in kept[request : request + 1]),
        detail,
    )


_SHOWN = ("user", "respond")


def _result(exchange: Exchange) -> JsonObject:
    said = (exchange.outcome, exchange.content)
    return {"tool": exchange.name, "output": "\n\n".join(part for part in said if part)}


def output_text(output: Json) -> str:
    """A tool's output as text: strings as they are, other values as compact JSON, nothing as 'No output'."""
    if output is None or output == "":
        return NO_OUTPUT
    return output if isinstance(output, str) else canonical(output).decode()


def _tool(tool: Mapping[str, Json], detail: Detail) -> Tool:
    name, description = tool["name"], tool.get("description") or ""
    if detail == "short":
        return Tool(name, description)
    category = tool.get("category")
    return Tool(
        name,
        description,
        "general" if category is None else category,
        tuple(tool.get("output") or ()),
        tool.get("example") or "",
    )


def _message(message: Mapping[str, Json]) -> Message:
    return Message("user" if message["role"] == "user" else "assistant", message["content"] or "")
