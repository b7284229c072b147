"""Arrays that grow at the end: one column of facts, one row a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# numpy's arrays by what they hold; the element type is for the reader, numpy's own stubs are stricter than its rules.

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[Any]
Ints: TypeAlias = NDArray[Any]
Bools: TypeAlias = NDArray[Any]


class Column:
    """A numpy array with room behind it; `all` is the part in use, as a view."""

    def __init__(self, dtype: Any, width: int | None = None) -> None:
        self._room: Array = np.zeros(_shape(64, width), dtype)
        self._width = width
        self.size = 0

    @property
    def packed(self) -> bytes:
        """The part in use, to be kept."""
        return self.all.tobytes()

    def restore(self, kept: bytes, fixed: bool = False) -> None:
        """Begin with what was kept; `fixed` values are never written again, so they need no copy."""
        found = np.frombuffer(kept, self._room.dtype).reshape(_shape(-1, self._width))
        self._room, self.size = found if fixed else found.copy(), len(found)

    @property
    def all(self) -> Array:
        return self._room[: self.size]

    def padded(self, value: Any) -> Array:
        """The part in use and one place behind it that holds `value`; for reading only."""
        if self.size == len(self._room):
            self._grow(self.size + 1)
        self._room[self.size] = value
        return self._room[: self.size + 1]

    def extend(self, values: Sequence[Any] | Array) -> None:
        """Append values; the room doubles, so that growing costs the same per row at any size."""
        end = self.size + len(values)
        if end > len(self._room):
            self._grow(end)
        if len(values):
            self._room[self.size : end] = values
        self.size = end

    def lengthen(self, rows: int) -> None:
        """Append rows of zeros."""
        if self.size + rows > len(self._room):
            self._grow(self.size + rows)
        self._room[self.size : self.size + rows] = 0
        self.size += rows

    def _grow(self, least: int) -> None:
        grown = np.zeros(_shape(max(least, 2 * len(self._room)), self._width), self._room.dtype)
        grown[: self.size] = self.all
        self._room = grown


def _shape(rows: int, width: int | None) -> tuple[int, ...]:
    return (rows,) if width is None else (rows, width)
