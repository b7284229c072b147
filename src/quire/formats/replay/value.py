"""What a replay shows: past events without thinking, and the whole current cycle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

import msgspec

from quire.errors import CallError
from quire.values import Json

Delimiter = Literal["$", "§"]
DELIMITERS: tuple[str, ...] = get_args(Delimiter)
MARK_KINDS = ("user", "respond", "think", "call", "result")
# Not events, but a line that begins so would read as a heading or a count.
GUARDED = ("===", "(showing last ")

HISTORY = "=== HISTORY ==="
CURRENT = "=== CURRENT ==="


class User(msgspec.Struct, frozen=True, tag="user"):
    text: str


class Think(msgspec.Struct, frozen=True, tag="think"):
    text: str


class Respond(msgspec.Struct, frozen=True, tag="respond"):
    text: str


class Exchange(msgspec.Struct, frozen=True, tag="exchange"):
    """A call and its result: one value, so that neither can be shown without the other."""

    name: str
    args: Json
    outcome: str
    content: str = ""


Event: TypeAlias = User | Think | Respond | Exchange


def count(events: Iterable[Event]) -> int:
    """How many events a reader sees: a call and its result are two."""
    return sum(2 if isinstance(event, Exchange) else 1 for event in events)


class Replay(msgspec.Struct, frozen=True):
    """HISTORY and CURRENT as shown; `left_out` is how many older history events are not."""

    history: tuple[Event, ...] = ()
    current: tuple[Event, ...] = ()
    left_out: int = 0
    delimiter: Delimiter = "$"

    def __post_init__(self) -> None:
        if problem := _problem(self):
            raise CallError(problem, hint="Use replay.project(entries), which keeps these rules.")


def _problem(value: Replay) -> str:
    """What no replay text could show; such a value would not come back from its own text."""
    first, rest = value.current[:1], value.current[1:]
    if any(isinstance(event, Think) for event in value.history):
        return "HISTORY shows no thinking, but this one holds a think event"
    if value.left_out < 0 or (value.left_out and not value.history):
        return f"left_out is {value.left_out}, but only an older part of a shown HISTORY can be left out"
    if first and not (isinstance(first[0], User) and rest and not any(isinstance(e, User) for e in rest)):
        return "CURRENT is one user event and what followed it, or absent"
    if value.delimiter != "$" and not (value.history or value.current):
        return "an empty replay shows no delimiter"
    return ""
