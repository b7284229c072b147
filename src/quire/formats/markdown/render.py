"""A context as markdown. A fence is longer than any in the content, so nothing in it can end it."""

from __future__ import annotations

import re

from quire.formats.markdown.value import HEADING, REQUEST, Block, Markdown, Profile
from quire.formats.text import well_formed

OPEN, CLOSE = "<context-from-manager>\n", "</context-from-manager>"
USER_OPEN, USER_CLOSE = "<user>\n", "\n</user>"
# A message that stands alone must not read as a context.
ALONE = re.compile(rf"\\*(?:{HEADING.rstrip()}|{OPEN}{HEADING.rstrip()}\n)")

_RUN = re.compile("`+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]|\\(?=x[0-9A-Fa-f]{2})")
_LINES = re.compile(r":(?=[0-9]+-[0-9]+\Z)")


def render(value: Markdown, profile: Profile = "quire") -> str:
    """The text; under profile agent-q every fence is three backticks and lisp, and nothing is escaped."""
    blocks = [block_text(block, profile) for block in value.items]
    if value.wrap == "tags":
        return well_formed(_tagged(blocks, value.request))
    context = HEADING + "".join(f"{block}\n" for block in blocks)
    if value.request is None:
        return well_formed(context)
    return well_formed(context + REQUEST + value.request if blocks else _alone(value.request, profile))


def block_text(block: Block, profile: Profile = "quire") -> str:
    """One item: heading, fence, content, fence, each line ended."""
    escaped = profile == "quire"
    heading = "### " + block.type.title() + _annotation(block, escaped)
    fence = _fence(block.content) if escaped else "```"
    tag = block.tag if escaped else "lisp"
    return f"{heading}\n{fence}{tag}\n{block.content}\n{fence}\n"


def _tagged(blocks: list[str], request: str | None) -> str:
    context = OPEN + (HEADING + "\n".join(blocks) if blocks else HEADING[:-1]) + CLOSE
    return context if request is None else f"{context}\n\n{USER_OPEN}{request}{USER_CLOSE}"


def _alone(request: str, profile: Profile) -> str:
    return "\\" + request if profile == "quire" and ALONE.match(request) else request


def _annotation(block: Block, escaped: bool) -> str:
    if block.filename is None:
        return ""
    name = escape_name(block.filename) if escaped else block.filename
    lines = "" if block.start_line is None else f":{block.start_line}-{block.end_line}"
    return f" (from {name}{lines})"


def _fence(content: str) -> str:
    longest = max((len(run) for run in _RUN.findall(content)), default=0)
    return "`" * max(3, longest + 1)


def escape_name(name: str) -> str:
    """A name on one line that ends where it ends: 'a:1-2' -> 'a\\x3a1-2'."""
    name = _CONTROL.sub(lambda m: f"\\x{ord(m[0]):02x}", name)
    return _LINES.sub(r"\\x3a", name)
