"""Cutting text that is too large: whole lines only, and it says how much went."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from quire.values import JsonObject

_BREAK = re.compile("\n")


class Shortened(msgspec.Struct, frozen=True):
    """What is left of a text, and how many lines and bytes went."""

    content: str
    lines: int
    bytes: int

    def noted(self, metadata: JsonObject | None) -> JsonObject:
        """The metadata with what went, for those who read it rather than the text."""
        return {**(metadata or {}), "truncated": {"lines": self.lines, "bytes": self.bytes}}


def cut(text: str, fits: Callable[[str], bool]) -> Shortened:
    """The most leading lines that fit, and a last line that says what went (where one fits beside a line)."""
    ends = [0, *(found.end() for found in _BREAK.finditer(text) if found.end() < len(text))]
    noted = _last(ends, lambda end: fits(text[:end] + _notice(text[end:])))
    plain = None if noted else _last(ends, lambda end: fits(text[:end]))
    kept = noted or plain or 0
    rest = text[kept:]
    notice = _notice(rest) if noted is not None and not plain else ""
    return Shortened(text[:kept] + notice, _lines(rest), len(rest.encode()))


def _last(ends: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The last end that fits, found by doubling so that little more is looked at than is kept."""
    if not fits(ends[0]):
        return None
    low, step = 0, 1
    while low + step < len(ends) and fits(ends[low + step]):
        low, step = low + step, step * 2
    high = min(low + step, len(ends))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(ends[middle]) else (low, middle)
    return ends[low]


def _lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n"))


def _notice(rest: str) -> str:
    lines, size = _lines(rest), len(rest.encode())
    return f"[... {lines:,} more {'line' if lines == 1 else 'lines'} omitted ({size:,} bytes) ...]"


# Where a tool's long output ends: behind whole lines, sections or hits, never in mid-word where there is a choice.

# (text, characters allowed) -> a shorter text that says what is missing.
Cutter: TypeAlias = Callable[[str, int], str]

_SPACE = re.compile(r"\s")


def head(text: str, limit: int) -> str:
    """The first whole lines; of one very long line, its first whole words."""
    if len(text) <= limit:
        return text
    if limit <= 0:
        return ""
    part = text[:limit]
    if text[limit] == "\n":
        return part
    end = part.rfind("\n")
    # A short first line must not be all that is left of a long second one.
    if end < limit // 2:
        spaces = [match.start() for match in _SPACE.finditer(part)]
        end = limit if _SPACE.match(text[limit]) else (spaces[-1] if spaces else 0)
    return part[:end].rstrip() if end > 0 else part


def at_lines(text: str, limit: int) -> str:
    """Whole lines, then how much is missing."""
    if len(text) <= limit:
        return text
    kept = head(text, limit)
    return f"{kept}\n[… {len(kept):,} of {len(text):,} characters shown …]"


_HEADING = re.compile(r"#{1,6} ")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def at_sections(text: str, limit: int) -> str:
    """Whole markdown sections, then how many are missing; a first section that is too long is cut at its lines."""
    if len(text) <= limit:
        return text
    lines = text.split("\n")
    starts = [n for n in heading_lines(lines) if n > 0]
    kept = [n for n in starts if len("\n".join(lines[:n])) <= limit]
    if not kept:
        return at_lines(text, limit)
    more = len(starts) - len(kept) + 1
    shown = "\n".join(lines[: kept[-1]]).rstrip()
    return f"{shown}\n\n[… {more} more section{'s' if more > 1 else ''} not shown …]"


def heading_lines(lines: Sequence[str]) -> list[int]:
    """The numbers, from 0, of the lines that are headings; a # line inside a code fence is none."""
    found, fence = [], ""
    for number, line in enumerate(lines):
        mark = _FENCE.match(line)
        if mark and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence and _HEADING.match(line):
            found.append(number)
    return found


def at_hits(hits: Sequence[str], limit: int, more: int = 0) -> str:
    """As many whole hits as fit, one a line, then how many are missing; the first is always shown in part."""
    shown: list[str] = []
    room = limit
    for hit in hits:
        if len(hit) + 1 > room:
            break
        shown.append(hit)
        room -= len(hit) + 1
    if hits and not shown:
        shown = [head(hits[0], limit)]
    more += len(hits) - len(shown)
    return "\n".join([*shown, f"[… {more:,} more hit{'s' if more > 1 else ''} not shown …]"] if more else shown)
