"""A note in passages: by its sections, long ones by their paragraphs; each knows the headings above it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from quire.send.tools.cuts import heading_lines

SIZE = 1_600
_HEADING = re.compile(r"(#{1,6}) +(.*?)(?: +#+)?$")


class Chunk(msgspec.Struct, frozen=True):
    """A passage: its first line counted from 1, the headings above it, its text."""

    line: int
    heading: str
    text: str


def chunks(text: str, size: int = SIZE) -> list[Chunk]:
    """The passages of a note, in order; together they hold every word of it."""
    return [
        Chunk(line + offset, heading, part)
        for line, heading, section in _sections(text)
        for offset, part in _parts(section, size)
        if part.strip()
    ]


def _sections(text: str) -> Iterator[tuple[int, str, str]]:
    """(first line, headings joined with >, text) of each section."""
    lines = text.split("\n")
    headings = set(heading_lines(lines))
    starts = sorted({0, *headings})
    above: list[tuple[int, str]] = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        match = _HEADING.match(lines[start]) if start in headings else None
        if match is not None:
            level = len(match[1])
            above = [one for one in above if one[0] < level] + [(level, match[2])]
        yield start + 1, " > ".join(name for _, name in above), "\n".join(lines[start:end])


def _parts(section: str, size: int) -> Iterator[tuple[int, str]]:
    """A section, or its paragraphs gathered up to `size`; (lines before it, text)."""
    if len(section) <= size:
        yield 0, section.strip("\n")
        return
    gathered: list[str] = []
    line = begin = used = 0
    for paragraph in re.split(r"(?<=\n)(?=\n*\S)(?<=\n\n)", section):
        for piece in _pieces(paragraph, size):
            if gathered and used + len(piece) > size:
                yield begin, "".join(gathered).strip("\n")
                gathered, used, begin = [], 0, line
            gathered.append(piece)
            used += len(piece)
            line += piece.count("\n")
    yield begin, "".join(gathered).strip("\n")


def _pieces(paragraph: str, size: int) -> Iterator[str]:
    """A paragraph, or whole words of it at a time."""
    while len(paragraph) > size:
        space = max(paragraph.rfind(" ", 0, size), paragraph.rfind("\n", 0, size))
        end = space + 1 if space > 0 else size
        yield paragraph[:end]
        paragraph = paragraph[end:]
    yield paragraph
