"""`clean`: tools, relevant conversation, tool results and the request as plain sections, without repetition."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import msgspec

from quire.errors import CallError
from quire.formats import CallPair, exact, excerpt, fault, pair_results, well_formed
from quire.log.shapes import (
    ANYTHING,
    BOOLEAN,
    NULL,
    OBJECT,
    STRING,
    Fields,
    ListShape,
    Scalar,
    check_shape,
    either,
    one_of,
)
from quire.values import Entry, Json, JsonObject, canonical

Role = Literal["user", "assistant"]
Detail = Literal["full", "short"]
DETAILS: tuple[str, ...] = get_args(Detail)

TOOLS = "# Available Tools"
CONVERSATION = "# Relevant Conversation"
RESULTS = "# Recent Tool Results"
REQUEST = "# Current Request"


class CleanTool(msgspec.Struct, frozen=True):
    name: str
    description: str = ""
    category: str = "general"
    output: tuple[str, ...] = ()
    example: str = ""

    @property
    def is_short(self) -> bool:
        """Whether the tool has only a name and a description."""
        return self == CleanTool(self.name, self.description)


class CleanMessage(msgspec.Struct, frozen=True):
    role: Role
    content: str


class ToolResult(msgspec.Struct, frozen=True):
    tool: str
    output: str


class Clean(msgspec.Struct, frozen=True):
    """What the text shows; an empty part has no section."""

    tools: tuple[CleanTool, ...] = ()
    conversation: tuple[CleanMessage, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    request: str = ""
    detail: Detail = "full"

    def __post_init__(self) -> None:
        if self.detail == "short" and not (self.tools and all(tool.is_short for tool in self.tools)):
            raise CallError(
                "detail 'short' shows names and descriptions alone, but this value holds more (or no tools)",
                hint="Use clean.project(..., detail='short'), which leaves the rest out.",
            )


# Rendering: continuation lines are indented, so that no content looks like a heading.


def render(value: Clean) -> str:
    """The whole text, without a newline behind the request."""
    return with_request(formatted_context(value), value.request)


def formatted_context(value: Clean) -> str:
    """The text without the request, for callers that append it themselves; empty sections are left out."""
    tools = f"{TOOLS}\n{tool_list(value.tools, value.detail)}" if value.tools else ""
    lines = [f"{message.role.capitalize()}: {_indent(message.content, 2)}" for message in value.conversation]
    conversation = "\n".join([CONVERSATION, *lines]) if lines else ""
    return "\n\n".join(part for part in (tools, conversation, results_section(value.tool_results)) if part)


def with_request(context: str, request: str) -> str:
    """Append the request to a formatted context: the same bytes as rendering both at once."""
    section = f"{REQUEST}\n{request}" if request else ""
    return well_formed("\n\n".join(part for part in (context, section) if part))


def tool_list(tools: Sequence[CleanTool], detail: Detail = "full") -> str:
    """The tools section below its heading; also the `tool_list` of a record of tools."""
    head = f"You have access to {len(tools)} tool{'s' if len(tools) != 1 else ''}:"
    if detail == "short":
        return "\n".join([head, *(f"• {_escape(tool.name)}: {_indent(tool.description)}" for tool in tools)])
    return "\n\n".join([head, *(_tool_entry(tool) for tool in tools)])


def results_section(results: Iterable[ToolResult]) -> str:
    lines = [f"• {_escape(result.tool)}: {_indent(result.output)}" for result in results]
    return "\n".join([RESULTS, *lines]) if lines else ""


def _tool_entry(tool: CleanTool) -> str:
    lines = [f"• {_escape(tool.name)} ({_escape(tool.category)}): {_indent(tool.description)}"]
    if tool.output:
        lines.append("  Output: " + ", ".join(map(_escape, tool.output)))
    if tool.example:
        lines.append("  Example: " + _indent(tool.example))
    return "\n".join(lines)


def _indent(text: str, spaces: int = 4) -> str:
    return text.replace("\n", "\n" + " " * spaces)


_SPECIAL = re.compile(r"[\\():,\n]")


def _escape(name: str) -> str:
    """A name, category or output field on one line: 'a(b)' -> 'a\\(b\\)'."""
    return _SPECIAL.sub(lambda m: "\\n" if m[0] == "\n" else "\\" + m[0], name)


# Parsing, section by section; the request is the rest, verbatim.

_NAME = r"([^\\():,\n]*(?:\\[\\():,n][^\\():,\n]*)*)"
_TEXT_2 = r"([^\n]*(?:\n  [^\n]*)*)"
_TEXT_4 = r"([^\n]*(?:\n    [^\n]*)*)"
_HEAD = re.compile(r"You have access to [1-9][0-9]* tools?:\n(\n?)")
_FULL = re.compile(rf"• {_NAME} \({_NAME}\): {_TEXT_4}(?:\n  Output: ([^\n]*))?(?:\n  Example: {_TEXT_4})?")
_PAIR = re.compile(rf"• {_NAME}: {_TEXT_4}")
_MESSAGE = re.compile(rf"(User|Assistant): {_TEXT_2}")
_FIELD = re.compile(rf"{_NAME}(, |\Z)")


def parse(text: str) -> Clean:
    """The value of a rendered text; for any other text the error says where it differs."""
    reader = _CleanReader(well_formed(text))
    tools, detail = reader.tools()
    conversation = tuple(
        CleanMessage("user" if m[1] == "User" else "assistant", _dedent(m[2], 2))
        for m in reader.section(CONVERSATION, _MESSAGE)
    )
    results = tuple(ToolResult(_unescape(m[1]), _dedent(m[2])) for m in reader.section(RESULTS, _PAIR))
    value = Clean(tools, conversation, results, reader.request(), detail)
    exact(text, render(value))
    return value


def _full_tool(match: re.Match[str]) -> CleanTool:
    name, category, description, output, example = match.groups()
    fields = () if output is None else _fields(output)
    return CleanTool(_unescape(name), _dedent(description), _unescape(category), fields, _dedent(example or ""))


def _fields(line: str) -> tuple[str, ...]:
    """The fields of an Output line: 'a, b\\\\, c' -> ('a', 'b, c'). An empty line is one empty field."""
    fields: list[str] = []
    at = 0
    while match := _FIELD.match(line, at):
        fields.append(_unescape(match[1]))
        at = match.end()
        if not match[2]:
            break
    return tuple(fields)


class _CleanReader:
    """A position in the text; each method reads one section if it begins there."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def tools(self) -> tuple[tuple[CleanTool, ...], Detail]:
        if not self._heading(TOOLS):
            return (), "full"
        head = _HEAD.match(self.text, self.at)
        if not head:
            raise self._fault("'You have access to N tools:'")
        self.at = head.end()
        if head[1]:
            return tuple(map(_full_tool, self._entries(_FULL, "\n\n"))), "full"
        return tuple(CleanTool(_unescape(m[1]), _dedent(m[2])) for m in self._entries(_PAIR, "\n")), "short"

    def section(self, heading: str, entry: re.Pattern[str]) -> list[re.Match[str]]:
        return self._entries(entry, "\n") if self._heading(heading) else []

    def request(self) -> str:
        if self._heading(REQUEST):
            return self.text[self.at :]
        if self.at < len(self.text):
            raise self._fault("a section's heading")
        return ""

    def _heading(self, heading: str) -> bool:
        line = ("\n\n" if self.at else "") + heading + "\n"
        if not self.text.startswith(line, self.at):
            return False
        self.at += len(line)
        return True

    def _entries(self, entry: re.Pattern[str], between: str) -> list[re.Match[str]]:
        """One or more entries; another follows wherever the separator and the beginning of an entry are found."""
        more = tuple(between + first for first in ("• ", "User: ", "Assistant: "))
        matches: list[re.Match[str]] = []
        while not matches or self.text.startswith(more, self.at):
            self.at += len(between) if matches else 0
            match = entry.match(self.text, self.at)
            if not match:
                raise self._fault("an entry of this section")
            matches.append(match)
            self.at = match.end()
        return matches

    def _fault(self, expected: str) -> Exception:
        return fault(
            self.text,
            self.at,
            f"expected {expected}, found {excerpt(self.text, self.at)}",
            "A clean text is made of the sections " + ", ".join((TOOLS, CONVERSATION, RESULTS, REQUEST)) + ".",
        )


_ESCAPED = re.compile(r"\\(.)")


def _unescape(name: str) -> str:
    return _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], name)


def _dedent(text: str, spaces: int = 4) -> str:
    return text.replace("\n" + " " * spaces, "\n")


# Projection from a thread or from JSON. Left out are messages without content, times and ids, and a tool's parameters;
# with detail 'short' also its category, output and example; of a thread: system, notes, thinking and attachments.

NO_OUTPUT = "No output"

_TEXT = either(STRING, NULL)
_STRINGS = Scalar(
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
_MESSAGE_SHAPE = Fields({"role": STRING, "content": _TEXT}, {"id": ANYTHING, "timestamp": ANYTHING})
_RESULT = Fields({"tool": STRING}, {"output": ANYTHING, "id": ANYTHING, "timestamp": ANYTHING})
INPUT = Fields(
    {},
    {
        "tools": ListShape(_TOOL),
        "conversation": ListShape(_MESSAGE_SHAPE),
        "tool_results": ListShape(_RESULT),
        "request": _TEXT,
        "detail": one_of(DETAILS),
        "shown": BOOLEAN,
    },
)


def read(data: Json) -> Clean:
    """The value of the JSON object that `quire format clean` takes."""
    fields = dict(check_shape(INPUT, data))
    if fields.pop("shown", False):
        return msgspec.convert(fields, Clean)
    return project(**fields)


def to_json(value: Clean) -> JsonObject:
    """A value as JSON that `read` takes back."""
    out: JsonObject = msgspec.json.decode(msgspec.json.encode(value))  # lists, where the value has tuples
    # What projecting would leave out or fill in, such as an empty message, is taken as it stands.
    return out if project(**out) == value else {**out, "shown": True}


def project(
    tools: Iterable[JsonObject] = (),
    conversation: Iterable[JsonObject] = (),
    tool_results: Iterable[JsonObject] = (),
    request: str | None = "",
    detail: Detail = "full",
) -> Clean:
    """What is shown of tools, messages and results given as JSON objects, in the order given."""
    clean_tools = tuple(_tool(tool, detail) for tool in tools)
    messages = [message for message in conversation if message["content"]]
    return Clean(
        clean_tools,
        tuple(
            CleanMessage("user" if message["role"] == "user" else "assistant", message["content"])
            for message in messages
        ),
        tuple(ToolResult(result["tool"], output_text(result.get("output"))) for result in tool_results),
        request or "",
        detail if clean_tools else "full",
    )


def project_thread(entries: Iterable[Entry], detail: Detail = "full") -> Clean:
    """A thread's newest tools, its conversation and results, and the last user entry as the request."""
    listed = list(entries)
    tools = next((entry.tools for entry in reversed(listed) if entry.kind == "tools"), [])
    request = next((at for at in reversed(range(len(listed))) if listed[at].kind == "user"), len(listed))
    spoken = (entry for at, entry in enumerate(listed) if entry.kind in ("user", "respond") and at != request)
    pairs = [event for event in pair_results(listed) if isinstance(event, CallPair)]
    return project(
        tools,
        ({"role": entry.kind, "content": entry.text} for entry in spoken),
        ({"tool": pair.name, "output": "\n\n".join(filter(None, (pair.outcome, pair.content)))} for pair in pairs),
        "".join(entry.text for entry in listed[request : request + 1]),
        detail,
    )


def output_text(output: Json) -> str:
    """A tool's output as text: strings as they are, other values as compact JSON, nothing as 'No output'."""
    if output is None or output == "":
        return NO_OUTPUT
    return output if isinstance(output, str) else canonical(output).decode()


def _tool(tool: Mapping[str, Json], detail: Detail) -> CleanTool:
    name, description = tool["name"], tool.get("description") or ""
    if detail == "short":
        return CleanTool(name, description)
    category = "general" if tool.get("category") is None else tool["category"]
    return CleanTool(name, description, category, tuple(tool.get("output") or ()), tool.get("example") or "")
