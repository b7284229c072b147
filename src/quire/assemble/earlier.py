"""An earlier summary, read back: what was listed, what was named, and how much went unlisted even then."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

SPEAKERS = ("User", "Assistant")
_LINE = re.compile(r"(User|Assistant): (.*)")
_LABEL = re.compile(r"(User|Assistant|Named|Not listed): ")
_UNLISTED = re.compile(r"Not listed: (?=\d)(?:(\d{1,9}) requests)?(?:, )?(?:(\d{1,9}) decisions)?")
NAMED = "Named: "


class Line(msgspec.Struct, frozen=True):
    """One request or decision, on one line."""

    who: str
    text: str


class Missing(msgspec.Struct, frozen=True):
    """How many went that no line tells, or that a line tells for another."""

    requests: int = 0
    decisions: int = 0

    def and_also(self, lines: Iterable[Line]) -> Missing:
        """These, and the lines given."""
        speakers = [one.who for one in lines]
        return Missing(
            self.requests + speakers.count(SPEAKERS[0]), self.decisions + speakers.count(SPEAKERS[1])
        )


class Earlier(msgspec.Struct, frozen=True):
    """The parts of a summary; a model's own words are prose."""

    lines: tuple[Line, ...]
    named: tuple[str, ...]
    prose: str
    missing: Missing


def written(lines: Sequence[Line]) -> list[str]:
    """One line each; who speaks is said where it changes, and where the words could be taken for a label."""
    before = [None, *(one.who for one in lines)]
    return [
        f"{one.who}: {one.text}" if one.who != who or _LABEL.match(one.text) else one.text
        for one, who in zip(lines, before, strict=False)
    ]


def unlisted(missing: Missing) -> str:
    """Says how many requests and decisions no line tells, if any."""
    counts = ((missing.requests, "requests"), (missing.decisions, "decisions"))
    told = ", ".join(f"{number} {what}" for number, what in counts if number)
    return f"Not listed: {told}" if told else ""


def earlier(text: str) -> Earlier:
    """The parts of a summary that the built-in one, or another, has written."""
    lines, named, prose, missing = list[Line](), list[str](), list[str](), Missing()
    who = ""
    for line in text.split("\n"):
        if told := _LINE.fullmatch(line):
            who = told[1]
            lines.append(Line(who, told[2]))
        elif line.startswith(NAMED):
            named += line.removeprefix(NAMED).replace(",", " ").split()
        elif counted := _UNLISTED.fullmatch(line):
            requests, decisions = (int(number or 0) for number in counted.groups())
            missing = Missing(missing.requests + requests, missing.decisions + decisions)
        elif who:
            lines.append(Line(who, line))
        else:
            prose.append(line)
    return Earlier(tuple(lines), tuple(named), "\n".join(prose).strip(), missing)
