"""Cutting text that is too large: whole lines only, and it says how much went."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec

from quire.values import JsonObject

_BREAK = re.compile("\n")


class Cut(msgspec.Struct, frozen=True):
    """What is left of a text, and how many lines and bytes went."""

    content: str
    lines: int
    bytes: int

    def noted(self, metadata: JsonObject | None) -> JsonObject:
        """The metadata with what went, for those who read it rather than the text."""
        return {**(metadata or {}), "truncated": {"lines": self.lines, "bytes": self.bytes}}


def cut(text: str, fits: Callable[[str], bool]) -> Cut:
    """The most leading lines that fit, and a last line that says what went (where one fits beside a line)."""
    ends = [0, *(found.end() for found in _BREAK.finditer(text) if found.end() < len(text))]
    noted = _last(ends, lambda end: fits(text[:end] + _notice(text[end:])))
    plain = None if noted else _last(ends, lambda end: fits(text[:end]))
    kept = noted or plain or 0
    rest = text[kept:]
    notice = _notice(rest) if noted is not None and not plain else ""
    return Cut(text[:kept] + notice, _lines(rest), len(rest.encode()))


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
