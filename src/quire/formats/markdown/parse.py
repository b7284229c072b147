"""A markdown context back to its value, block by block: fences delimit everything before the request."""

from __future__ import annotations

import re

from quire.errors import CallError
from quire.formats.markdown.render import ALONE, CLOSE, OPEN, USER_CLOSE, USER_OPEN, render
from quire.formats.markdown.value import HEADING, REQUEST, Block, Markdown, Profile
from quire.formats.text import exact, fault, seen, well_formed
from quire.values import ITEM_TYPES

_TYPES = {name.title(): name for name in ITEM_TYPES}
_HEAD = re.compile(
    rf"### ({'|'.join(map(re.escape, _TYPES))})(?: \(from ([^\n]*)\))?\n(`{{3,}})([A-Za-z0-9_+#.-]*)\n"
)
_LINES = re.compile(r":([0-9]{1,19})-([0-9]{1,19})\Z")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_HINT = "parse reads what `quire format markdown` writes; profile agent-q cannot be read back."


def parse(text: str, profile: Profile = "quire") -> Markdown:
    """The value of a rendered text; a text that is no context is a request alone."""
    if profile == "agent-q":
        raise CallError(
            "profile agent-q escapes nothing, so its text cannot be parsed", hint="Use --profile quire."
        )
    value = _value(well_formed(text))
    exact(text, render(value))
    return value


def _value(text: str) -> Markdown:
    if text.startswith(OPEN + HEADING[:-1]):
        return _tagged(text)
    if not text.startswith(HEADING.rstrip()):
        return Markdown(request=text[1:] if text.startswith("\\") and ALONE.match(text) else text)
    blocks, at = _blocks(text, len(HEADING))
    if at == len(text):
        return Markdown(blocks)
    if not text.startswith(REQUEST, at):
        raise fault(text, at, f"expected an item or '## Request', found {seen(text, at)}", _HINT)
    return Markdown(blocks, text[at + len(REQUEST) :])


def _tagged(text: str) -> Markdown:
    blocks, at = _blocks(
        text, len(OPEN + HEADING) if text.startswith(OPEN + HEADING) else len(OPEN + HEADING) - 1
    )
    if not text.startswith(CLOSE, at):
        raise fault(text, at, f"expected an item or {CLOSE}, found {seen(text, at)}", _HINT)
    rest = text[at + len(CLOSE) :]
    if not rest:
        return Markdown(blocks, None, "tags")
    if not blocks:
        raise fault(text, at + len(CLOSE), "a request without items stands alone and has no tags", _HINT)
    return Markdown(blocks, rest.removeprefix("\n\n" + USER_OPEN).removesuffix(USER_CLOSE), "tags")


def _blocks(text: str, at: int) -> tuple[tuple[Block, ...], int]:
    """All items from `at` on, and where they end."""
    blocks = []
    while text.startswith("### ", at):
        block, at = _block(text, at)
        blocks.append(block)
        at += text.startswith("\n", at)
    return tuple(blocks), at


def _block(text: str, at: int) -> tuple[Block, int]:
    head = _HEAD.match(text, at)
    if not head:
        raise fault(text, at, f"expected an item's heading and fence, found {seen(text, at)}", _HINT)
    type, name, fence, tag = head.groups()
    end = text.find(f"\n{fence}\n", head.end())
    if end < 0:
        raise fault(text, head.start(3), "the fence is never closed", _HINT)
    filename, start, stop = _annotation(name)
    block = Block(_TYPES[type], text[head.end() : end], filename, start, stop, tag)  # type: ignore[arg-type]  # of ITEM_TYPES
    return block, end + len(fence) + 2


def _annotation(name: str | None) -> tuple[str | None, int | None, int | None]:
    lines = _LINES.search(name) if name is not None else None
    if name is None or lines is None:
        return name if name is None else unescape_name(name), None, None
    return unescape_name(name[: lines.start()]), int(lines[1]), int(lines[2])


def unescape_name(name: str) -> str:
    return _ESCAPED.sub(lambda m: chr(int(m[1], 16)), name)
