"""Rows that grow: each knows how much of the row before it stands, and values along it are made for the rest only."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, islice
from operator import is_
from typing import Generic, TypeVar

Thing = TypeVar("Thing")
Value = TypeVar("Value")


class GrowingRow(list[Thing]):
    """A row that says how many of its first things are the very same objects as in the row before it."""

    __slots__ = ("__weakref__", "_before", "_same")

    def __init__(
        self, things: Iterable[Thing] = (), before: GrowingRow[Thing] | None = None, same: int = 0
    ) -> None:
        super().__init__(things)
        # A weak one, or every row would keep all rows before it.
        self._before = weakref.ref(before) if before is not None else None
        self._same = same

    def same_as(self, old: Sequence[object]) -> int | None:
        """How many leading things are those of `old`, where that is the row before; None where it is another."""
        return self._same if self._before is not None and self._before() is old else None


def leading(old: Sequence[object], new: Sequence[object]) -> int:
    """How many leading things are the very same objects: [a, b, c], [a, b, d] -> 2."""
    if isinstance(new, GrowingRow) and (same := new.same_as(old)) is not None:
        return same
    parted = bytes(map(is_, old, new)).find(0)
    return parted if parted >= 0 else min(len(old), len(new))


class GrowingValues(Generic[Thing, Value]):
    """One value for each thing of a row, made of the value before it and the thing itself.

    Things must be frozen: one that is the same object as before is taken to be what it was.
    """

    def __init__(self) -> None:
        self._row: Sequence[Thing] = ()
        self._values: list[Value] = []
        self._ground: object = None
        # How many of the newest row's first values were not made again.
        self.same = 0

    def along(
        self, row: Sequence[Thing], start: Value, step: Callable[[Value, Thing], Value], ground: object = None
    ) -> list[Value]:
        """The values of a row; `ground` is what start and step rest on besides, all is made anew when it changes."""
        self.same = same = leading(self._row, row) if ground == self._ground else 0
        values = self._values[:same]
        values += islice(accumulate(row[same:], step, initial=values[-1] if values else start), 1, None)
        self._row, self._values, self._ground = row, values, ground
        return values
