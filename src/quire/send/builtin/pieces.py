"""Where a file may be cut: before its definitions or its sections, at blank lines, at lines; in this order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

import msgspec

from quire.errors import QuireError
from quire.send.tools.cuts import head, heading_lines

_MARKDOWN = frozenset({".md", ".markdown", ".mdx", ".rst", ".txt"})
_PYTHON = frozenset({".py", ".pyi", ".pyw"})


class Piece(msgspec.Struct, frozen=True):
    """Lines start to end of a file, counted from 1; `whole` unless a line itself had to be cut."""

    text: str
    start: int
    end: int
    whole: bool = True


def piece(text: str, name: str, start: int, end: int, limit: int) -> Piece:
    """Lines start to end, or as many of them as fit: up to a definition or a section that begins there."""
    lines = text.removesuffix("\n").split("\n")[start - 1 : end]
    whole = "\n".join(lines)
    if len(whole) <= limit:
        return Piece(whole, start, start + len(lines) - 1)
    count = _cut_at(lines, limit, _levels(text, name, start, lines))
    if count == 0:
        return Piece(head(lines[0], limit), start, start, whole=False)
    return Piece("\n".join(lines[:count]).rstrip("\n"), start, start + count - 1)


def _cut_at(lines: Sequence[str], limit: int, levels: Sequence[set[int]]) -> int:
    """How many of the lines to keep: the last place of the highest level that keeps a quarter of what fits."""
    fitting, used = 0, 0
    for line in lines:
        used += len(line) + 1
        if used > limit + 1:
            break
        fitting += 1
    for level in levels:
        places = [place for place in level if 0 < place <= fitting]
        if places and sum(len(line) + 1 for line in lines[: max(places)]) * 4 >= min(used, limit):
            return max(places)
    return fitting


def _levels(text: str, name: str, start: int, lines: Sequence[str]) -> list[set[int]]:
    """Places to cut, counted in lines from `start`: outer ones, inner ones, then blank lines."""
    suffix = PurePosixPath(name).suffix.lower()
    blank = {number + 1 for number, line in enumerate(lines) if not line.strip()}
    if suffix in _MARKDOWN:
        return [set(heading_lines(lines)), blank]
    outer, inner = _definition_lines(text, name, suffix)
    return [{at - start for at in outer}, {at - start for at in inner}, blank]


def _definition_lines(text: str, name: str, suffix: str) -> tuple[set[int], set[int]]:
    """The first lines of top-level definitions, and of all; none where the language cannot be read."""
    try:
        if suffix in _PYTHON:
            from quire.items.python_tree import definitions as python_definitions

            found = python_definitions(text, name)
        else:
            from quire.items.grammar_tree import definitions as grammar_definitions

            found = grammar_definitions(text, suffix, name)
    except QuireError:
        return set(), set()
    return {one.start for one in found if len(one.path) == 1}, {one.start for one in found}
