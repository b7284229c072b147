"""Clean sections from their value; continuation lines are indented, so no content looks like a heading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from quire.formats.clean.value import (
    CONVERSATION,
    REQUEST,
    RESULTS,
    TOOLS,
    Clean,
    Detail,
    Message,
    Tool,
    ToolResult,
)
from quire.formats.text import well_formed


def render(value: Clean) -> str:
    """The whole text; the renderer adds no newline behind the request."""
    return with_request(formatted_context(value), value.request)


def formatted_context(value: Clean) -> str:
    """The text without its last section, for a consumer that appends the request itself."""
    return "\n\n".join(render_sections(value))


def with_request(context: str, request: str) -> str:
    """Append the request to a formatted context: the same bytes as rendering both at once."""
    section = f"{REQUEST}\n{request}" if request else ""
    return well_formed("\n\n".join(part for part in (context, section) if part))


def render_sections(value: Clean) -> tuple[str, ...]:
    """The sections before the request, in order, without the empty ones."""
    parts = (
        tools_section(value.tools, value.detail),
        conversation_section(value.conversation),
        results_section(value.tool_results),
    )
    return tuple(part for part in parts if part)


def tools_section(tools: Sequence[Tool], detail: Detail = "full") -> str:
    return f"{TOOLS}\n{tool_list(tools, detail)}" if tools else ""


def tool_list(tools: Sequence[Tool], detail: Detail = "full") -> str:
    """The section's text below its heading; the catalog's `tool_list`."""
    head = f"You have access to {len(tools)} tool{'s' if len(tools) != 1 else ''}:"
    if detail == "short":
        return "\n".join([head, *(f"• {_escape(tool.name)}: {_indent(tool.description)}" for tool in tools)])
    return "\n\n".join([head, *(_tool_entry(tool) for tool in tools)])


def conversation_section(messages: Iterable[Message]) -> str:
    lines = [f"{message.role.capitalize()}: {_indent(message.content, 2)}" for message in messages]
    return "\n".join([CONVERSATION, *lines]) if lines else ""


def results_section(results: Iterable[ToolResult]) -> str:
    lines = [f"• {_escape(result.tool)}: {_indent(result.output)}" for result in results]
    return "\n".join([RESULTS, *lines]) if lines else ""


def _tool_entry(tool: Tool) -> str:
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
