"""Clean sections back to their value, section by section; the request is the rest, verbatim."""

from __future__ import annotations

import re

from quire.formats.clean.render import render
from quire.formats.clean.value import (
    CONVERSATION,
    REQUEST,
    RESULTS,
    TOOLS,
    Clean,
    Detail,
    Message,
    Role,
    Tool,
    ToolResult,
)
from quire.formats.text import exact, fault, seen, well_formed

_NAME = r"([^\\():,\n]*(?:\\[\\():,n][^\\():,\n]*)*)"
_TEXT_2 = r"([^\n]*(?:\n  [^\n]*)*)"
_TEXT_4 = r"([^\n]*(?:\n    [^\n]*)*)"
_HEAD = re.compile(r"You have access to [1-9][0-9]* tools?:\n(\n?)")
_FULL = re.compile(rf"• {_NAME} \({_NAME}\): {_TEXT_4}(?:\n  Output: ([^\n]*))?(?:\n  Example: {_TEXT_4})?")
_PAIR = re.compile(rf"• {_NAME}: {_TEXT_4}")
_MESSAGE = re.compile(rf"(User|Assistant): {_TEXT_2}")
_FIELD = re.compile(rf"{_NAME}(, |\Z)")


def parse(text: str) -> Clean:
    """The value of a rendered text; anything else is an error that says where."""
    reader = _Reader(well_formed(text))
    tools, detail = reader.tools()
    conversation = tuple(
        Message(_role(m[1]), _dedent(m[2], 2)) for m in reader.section(CONVERSATION, _MESSAGE)
    )
    results = tuple(ToolResult(_unescape(m[1]), _dedent(m[2])) for m in reader.section(RESULTS, _PAIR))
    value = Clean(tools, conversation, results, reader.request(), detail)
    exact(text, render(value))
    return value


def _role(word: str) -> Role:
    return "user" if word == "User" else "assistant"


def _full_tool(found: re.Match[str]) -> Tool:
    name, category, description, output, example = found.groups()
    return Tool(
        _unescape(name),
        _dedent(description),
        _unescape(category),
        () if output is None else _fields(output),
        _dedent(example or ""),
    )


def _fields(line: str) -> tuple[str, ...]:
    """The fields of an Output line: 'a, b\\\\, c' -> ('a', 'b, c'). An empty line is one empty field."""
    fields: list[str] = []
    at = 0
    while found := _FIELD.match(line, at):
        fields.append(_unescape(found[1]))
        at = found.end()
        if not found[2]:
            break
    return tuple(fields)


class _Reader:
    """A place in the text; each method reads one section if it stands there."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def tools(self) -> tuple[tuple[Tool, ...], Detail]:
        if not self._heading(TOOLS):
            return (), "full"
        head = _HEAD.match(self.text, self.at)
        if not head:
            raise self._fault("'You have access to N tools:'")
        self.at = head.end()
        if head[1]:
            return tuple(map(_full_tool, self._entries(_FULL, "\n\n"))), "full"
        return tuple(Tool(_unescape(m[1]), _dedent(m[2])) for m in self._entries(_PAIR, "\n")), "short"

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
        """One or more entries; one more follows wherever the separator and an entry's beginning stand."""
        more = tuple(between + first for first in ("• ", "User: ", "Assistant: "))
        found: list[re.Match[str]] = []
        while not found or self.text.startswith(more, self.at):
            self.at += len(between) if found else 0
            match = entry.match(self.text, self.at)
            if not match:
                raise self._fault("an entry of this section")
            found.append(match)
            self.at = match.end()
        return found

    def _fault(self, wanted: str) -> Exception:
        return fault(
            self.text,
            self.at,
            f"expected {wanted}, found {seen(self.text, self.at)}",
            "A clean text is made of the sections "
            + ", ".join((TOOLS, CONVERSATION, RESULTS, REQUEST))
            + ".",
        )


_ESCAPED = re.compile(r"\\(.)")


def _unescape(name: str) -> str:
    return _ESCAPED.sub(lambda m: "\n" if m[1] == "n" else m[1], name)


def _dedent(text: str, spaces: int = 4) -> str:
    return text.replace("\n" + " " * spaces, "\n")
