"""An earlier summary, read back: what was listed, what was named, and how much went unlisted even then."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

SPEAKERS = ("User", "Assistant")
_LINE = re.compile(r"(User|Assistant): (.*)")
_LABEL = re.compile(r"(User|Assistant|Named|Not listed): ")
_UNLISTED = re.compile(r"Not listed: (\d{1,9}) requests, (\d{1,9}) decisions")
_NAMED = "Named: "


class Line(msgspec.Struct, frozen=True):
    """One request or decision, on one line."""

    who: str
    text: str


class Earlier(msgspec.Struct, frozen=True):
    """The parts of a summary; a model's own words are prose."""

    lines: tuple[Line, ...]
    named: tuple[str, ...]
    prose: str
    requests: int
    decisions: int


def written(lines: Sequence[Line]) -> list[str]:
    """One line each; who speaks is said where it changes, and where the words could be taken for a label."""
    before = [None, *(one.who for one in lines)]
    return [
        f"{one.who}: {one.text}" if one.who != who or _LABEL.match(one.text) else one.text
        for one, who in zip(lines, before, strict=False)
    ]


def unlisted(requests: int, decisions: int) -> str:
    """Says how many lines had to go, if any."""
    told = f"Not listed: {requests} requests, {decisions} decisions"
    return told if requests or decisions else ""


def earlier(text: str) -> Earlier:
    """The parts of a summary that the built-in one, or another, has written."""
    lines, named, prose, before = list[Line](), list[str](), list[str](), (0, 0)
    who = ""
    for line in text.split("\n"):
        if told := _LINE.fullmatch(line):
            who = told[1]
            lines.append(Line(who, told[2]))
        elif line.startswith(_NAMED):
            named += line.removeprefix(_NAMED).replace(",", " ").split()
        elif counted := _UNLISTED.fullmatch(line):
            before = before[0] + int(counted[1]), before[1] + int(counted[2])
        elif who:
            lines.append(Line(who, line))
        else:
            prose.append(line)
    return Earlier(tuple(lines), tuple(named), "\n".join(prose).strip(), *before)
