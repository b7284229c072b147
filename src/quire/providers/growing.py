"""One value along a row that grows: what stands as it stood in the row before is not looked at again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from operator import is_
from typing import Generic, TypeVar

Thing = TypeVar("Thing")
Value = TypeVar("Value")


def leading(old: Sequence[object], new: Sequence[object]) -> int:
    """How many leading things are the very same objects, found at the speed of C: [a, b, c], [a, b, d] -> 2."""
    parted = bytes(map(is_, old, new)).find(0)
    return parted if parted >= 0 else min(len(old), len(new))


class Growing(Generic[Thing, Value]):
    """One value for each thing of a row, made of the value before it and the thing itself.

    Things must be frozen: one that is the same object as before is taken to be what it was.
    """

    def __init__(self) -> None:
        self._row: Sequence[Thing] = ()
        self._values: list[Value] = []
        self._ground: object = None

    def along(
        self, row: Sequence[Thing], start: Value, step: Callable[[Value, Thing], Value], ground: object = None
    ) -> list[Value]:
        """The values of a row; `ground` is what start and step rest on besides, all is made anew when it changes."""
        same = leading(self._row, row) if ground == self._ground else 0
        values = self._values[:same]
        values += islice(accumulate(row[same:], step, initial=values[-1] if values else start), 1, None)
        self._row, self._values, self._ground = row, values, ground
        return values
