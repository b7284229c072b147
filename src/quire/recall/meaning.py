"""Vectors of documents and the nearest to a query: every one below a stated size, the likely ones above it.

Above it, rows are kept in cells around centres found among them; a query looks into the nearest cells and
into all that came since. Made anew from the vectors at any time, the same way each time.
"""

from __future__ import annotations

import math

import numpy as np

from quire.recall.arrays import Array, Bools, Floats, Ints
from quire.recall.columns import Column

# Up to this many vectors every one is compared; above, the cells nearest to the query.
APPROXIMATE_ABOVE = 30_000
# A share of the cells, never fewer rows than this.
_LOOK_AT_LEAST = 4_000
_LOOK_SHARE = 0.04
_SAMPLE_PER_CENTRE = 40
_ROUNDS = 4
_BLOCK = 4096


class Meaning:
    """One vector a row, zero where there is none yet."""

    def __init__(self, dimensions: int, approximate_above: int = APPROXIMATE_ABOVE) -> None:
        self._vectors = Column(np.float32, dimensions)
        self._known = Column(np.bool_)
        self._cells: _Cells | None = None
        self._above = approximate_above

    def grow(self, rows: int) -> None:
        """Make room for rows whose vectors are not known yet."""
        self._vectors.extend(np.zeros((rows, self._vectors.all.shape[1]), np.float32))
        self._known.extend(np.zeros(rows, np.bool_))

    def put(self, rows: Ints, vectors: Floats) -> None:
        """Set the vectors of rows."""
        self._vectors.all[rows] = vectors
        self._known.all[rows] = True
        if self._cells is not None:
            self._cells.late = np.union1d(self._cells.late, rows)

    def forget(self, row: int) -> None:
        self._vectors.all[row] = 0
        self._known.all[row] = False

    @property
    def known(self) -> Bools:
        return self._known.all

    def cosines(self, query: Floats, rows: Ints) -> Floats:
        """The cosine of the query with each of these rows."""
        found: Floats = self._vectors.all[rows] @ query
        return found

    def near(self, query: Floats) -> tuple[Array, Floats]:
        """Rows that may be nearest, with their cosines; all of them while they are few."""
        if self._vectors.size <= self._above:
            return np.arange(self._vectors.size), self._vectors.all @ query
        if self._cells is None or len(self._cells.late) > len(self._cells.order) // 8:
            self._cells = _Cells(self._vectors.all)
        return self._cells.near(self._vectors.all, query)

    @property
    def bytes(self) -> int:
        return self._vectors.all.nbytes + (self._cells.bytes if self._cells else 0)


class _Cells:
    """Rows sorted by their nearest centre, with their vectors side by side for quick reading."""

    def __init__(self, vectors: Floats) -> None:
        self.centres = _centres(vectors)
        nearest = _nearest(vectors, self.centres)
        self.order = np.argsort(nearest, kind="stable").astype(np.int32)
        self.starts = np.searchsorted(nearest[self.order], np.arange(len(self.centres) + 1))
        self.late: Array = np.zeros(0, np.int32)

    def near(self, vectors: Floats, query: Floats) -> tuple[Array, Floats]:
        wanted = max(_LOOK_AT_LEAST, int(_LOOK_SHARE * len(self.order)))
        cells = np.argsort(-(self.centres @ query), kind="stable")
        seen = np.cumsum(self.starts[cells + 1] - self.starts[cells])
        looked = cells[: int(np.searchsorted(seen, wanted)) + 1]
        parts = [self.order[self.starts[cell] : self.starts[cell + 1]] for cell in looked]
        rows = np.concatenate(parts)
        if len(self.late):
            rows = np.union1d(rows, self.late)
        return rows, vectors[rows] @ query

    @property
    def bytes(self) -> int:
        return int(self.centres.nbytes + self.order.nbytes + self.starts.nbytes)


def _centres(vectors: Floats) -> Floats:
    """Centres by a few rounds of k-means over an evenly spaced sample: no chance, so always the same."""
    count = max(16, int(math.sqrt(len(vectors))))
    step = max(1, len(vectors) // (count * _SAMPLE_PER_CENTRE))
    sample = vectors[::step]
    centres = sample[:: max(1, len(sample) // count)][:count].copy()
    for _ in range(_ROUNDS):
        nearest = _nearest(sample, centres)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, sample)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(lengths > 0, sums / np.maximum(lengths, 1e-12), centres)
    return centres


def _nearest(vectors: Floats, centres: Floats) -> Array:
    """The centre nearest to each vector, block by block to keep memory small."""
    out = np.empty(len(vectors), np.int32)
    for begin in range(0, len(vectors), _BLOCK):
        out[begin : begin + _BLOCK] = (vectors[begin : begin + _BLOCK] @ centres.T).argmax(axis=1)
    return out
