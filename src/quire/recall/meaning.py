"""Vectors of documents and the nearest to a query: every one below a stated size, by a graph above it.

The graph (usearch, HNSW) is made from the vectors in the order of rows, on one thread, so always the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from quire.recall.columns import Bools, Column, Floats, Ints

# Among up to this many vectors every one is compared; among more, those that the graph leads to.
APPROXIMATE_ABOVE = 50_000
_CONNECTIVITY = 16
_EXPANSION = 64
# The graph keeps vectors in 8 bits; asking it for more than wanted makes up for that.
_SPARE = 2


class Meaning:
    """One vector a row, zero where there is none yet."""

    def __init__(self, dimensions: int, approximate_above: int = APPROXIMATE_ABOVE) -> None:
        self._dimensions, self._above = dimensions, approximate_above
        self._vectors = Column(np.float32, dimensions)
        self._known = Column(np.bool_)
        self._graph: Any = None

    def grow(self, rows: int) -> None:
        """Make room for rows whose vectors are not known yet."""
        self._vectors.lengthen(rows)
        self._known.lengthen(rows)

    def put(self, rows: Ints, vectors: Floats) -> None:
        """Set the vectors of rows."""
        if self._graph is not None:
            for row in rows[self._known.all[rows]].tolist():
                self._graph.remove(row)
            self._graph.add(rows, vectors, threads=1)
        self._vectors.all[rows] = vectors
        self._known.all[rows] = True

    def forget(self, row: int) -> None:
        """A row that is gone is near to nothing."""
        if self._graph is not None and self._known.all[row]:
            self._graph.remove(row)
        self._vectors.all[row] = 0
        self._known.all[row] = False

    @property
    def known(self) -> Bools:
        return self._known.all

    def cosines(self, query: Floats, rows: Ints) -> Floats:
        """The cosine of the query with each of these rows."""
        found: Floats = self._vectors.all[rows] @ query
        return found

    def near(self, query: Floats, allowed: Bools, count: int) -> tuple[Ints, Floats]:
        """At least the `count` nearest rows that are allowed, with their cosines; all of them while they are few."""
        wanted = allowed & self._known.all
        size = int(np.count_nonzero(wanted))
        graph = self._grown() if size > self._above else None
        if graph is None:
            rows = np.flatnonzero(wanted)
            if 2 * size > len(wanted):
                # Multiplying by all is quicker than picking out most of them.
                return rows, (self._vectors.all @ query)[rows]
        else:
            # What is not allowed takes up room among the nearest in proportion.
            asked = int(_SPARE * count * np.count_nonzero(self._known.all) / size)
            found = graph.search(query, asked, threads=1).keys.astype(np.int64)
            rows = np.sort(found[wanted[found]])
        return rows, self.cosines(query, rows)

    def _grown(self) -> Any:
        """The graph, made when it is first needed; None where its package is not installed."""
        if self._graph is None:
            graph = _new_graph(self._dimensions)
            if graph is not None:
                rows = np.flatnonzero(self._known.all)
                graph.add(rows, self._vectors.all[rows], threads=1)
            self._graph = graph
        return self._graph

    @property
    def bytes(self) -> int:
        return self._vectors.all.nbytes + (self._graph.memory_usage if self._graph is not None else 0)


def _new_graph(dimensions: int) -> Any:
    # onnxruntime 1.31 crashes the process when it is imported behind usearch 2.26; in front of it, both work.
    with suppress(ImportError):
        import onnxruntime  # noqa: F401
    try:
        from usearch.index import Index
    except ImportError:
        return None
    return Index(
        ndim=dimensions, metric="ip", dtype="i8", connectivity=_CONNECTIVITY, expansion_add=_EXPANSION
    )


# Vectors as a store keeps them: in half precision, by the model that made them.


def packed(made: Floats) -> list[bytes]:
    """Vectors to be kept, one a row."""
    return [row.tobytes() for row in made.astype("<f2")]


def unpacked(kept: Sequence[tuple[str, bytes]], dimensions: int) -> tuple[list[str], Floats]:
    """Keys and their vectors; what has another size is of another model."""
    found = [row for row in kept if len(row[1]) == 2 * dimensions]
    joined = np.frombuffer(b"".join(vector for _, vector in found), "<f2")
    return [key for key, _ in found], joined.reshape(-1, dimensions).astype(np.float32)
