"""What a markdown context shows: fenced items with their annotation, and the request behind them."""

from __future__ import annotations

import re
from typing import Literal, get_args

import msgspec

from quire.errors import CallError, FormatError
from quire.values import ItemType

Profile = Literal["quire", "agent-q"]
PROFILES: tuple[str, ...] = get_args(Profile)
Wrap = Literal["none", "tags"]
WRAPS: tuple[str, ...] = get_args(Wrap)

HEADING = "## Context\n\n"
REQUEST = "\n\n## Request\n\n"

_TAG = re.compile(r"[A-Za-z0-9_+#.-]*\Z")
MAX_LINE = 2**63 - 1


class Block(msgspec.Struct, frozen=True):
    """One item as shown; lines stand behind a filename and come in pairs."""

    type: ItemType
    content: str
    filename: str | None = None
    start_line: int | None = None
    end_line: int | None = None
    tag: str = ""

    def __post_init__(self) -> None:
        if not _TAG.match(self.tag):
            raise FormatError(
                f"{self.tag!r} cannot be the tag of a code fence",
                hint="A language has letters, digits and _ + # . - alone.",
            )
        lines = (self.start_line, self.end_line)
        if lines != (None, None) and (self.filename is None or None in lines):
            raise CallError(
                f"lines {lines[0]}-{lines[1]} cannot be shown without a filename and each other",
                hint="Use markdown.project(...), which leaves such lines out.",
            )
        for line in lines:
            if line is not None and not 0 <= line <= MAX_LINE:
                raise FormatError(f"{line} is no line number", hint="Lines are integers of at least 0.")


class Markdown(msgspec.Struct, frozen=True):
    """A context, and the prompt form when there is a request (None: the context alone)."""

    items: tuple[Block, ...] = ()
    request: str | None = None
    wrap: Wrap = "none"

    def __post_init__(self) -> None:
        if self.wrap == "tags" and self.request is not None and not self.items:
            raise CallError(
                "a request without items stands alone and has no tags",
                hint="Use markdown.project(...), or wrap='none'.",
            )
