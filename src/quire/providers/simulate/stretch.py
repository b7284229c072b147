"""A stretch of a thread's bodies, tools or messages: units that are what they were in their place are not read again.

What was read is kept as a copy, because the caller may change its own in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import ne
from typing import TypeAlias

import msgspec

from quire.providers.simulate.blocks import Block
from quire.values import Json

Row: TypeAlias = list[Block]


class Stretch:
    """Units in a row, each with the blocks that were read of it."""

    def __init__(self) -> None:
        self._copies: list[Json] = []
        self._rows: list[Row] = []

    def read(self, units: Sequence[Json], read: Callable[[int], Iterable[Block]]) -> list[Row]:
        """The blocks of each unit; `read` is asked for those at places where a unit is new or has changed."""
        known, talk = len(self._rows), self._talk()
        self._take(units, read)
        if known and self._talk() != talk:
            # The conversation begins elsewhere, so instructions that were late may not be, or the other way round.
            self._copies, self._rows = [], []
            self._take(units, read)
        return self._rows

    def _take(self, units: Sequence[Json], read: Callable[[int], Iterable[Block]]) -> None:
        del self._copies[len(units) :], self._rows[len(units) :]
        known = len(self._copies)
        # Over all of them at the speed of C: nearly every unit stands as it stood.
        changed = list(compress(range(known), map(ne, self._copies, units)))
        for place in (*changed, *range(known, len(units))):
            self._copies[place : place + 1] = [_copied(units[place])]
            talking = self._talk(place) < place
            self._rows[place : place + 1] = [[_late(block) if talking else block for block in read(place)]]

    def _talk(self, before: int | None = None) -> int:
        """The place of the first unit that is part of the conversation; behind the last where none is."""
        rows = self._rows[:before]
        return next((at for at, row in enumerate(rows) if row and row[0].section == "messages"), len(rows))


def _late(block: Block) -> Block:
    """An instruction behind the first message is part of the conversation, not of the system prompt."""
    return block if block.section == "messages" else msgspec.structs.replace(block, section="messages")


class Written:
    """A value as it is written: 1, 1.0 and true are equal in Python and differ in JSON."""

    __slots__ = ("_text",)
    __hash__ = None  # type: ignore[assignment]  # it equals what has another hash

    def __init__(self, value: object) -> None:
        self._text = repr(value)

    def __eq__(self, other: object) -> bool:
        return repr(other) == self._text


def _copied(value: Json) -> Json:
    """A copy that shares the strings, and equals only what is the same JSON."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(_copied, value))
    if isinstance(value, str | bytes) or value is None:
        return value
    return Written(value)
