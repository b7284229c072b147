"""Vectors of documents and the nearest to a query: every one below a stated size, by a graph above it.

The graph (usearch, HNSW) is made from the vectors in the order of rows, on one thread, so always the same way.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from quire.log.branches import Stretch
from quire.recall.columns import Bools, Column, Floats, Ints
from quire.recall.embed import Embedder

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


# Vectors in the file of the log: of entries and of words, in half precision, by the model that made them.

_SINCE = "SELECT key, vector FROM recall_vectors WHERE n > ? AND owner = ? AND model = ? ORDER BY n"
_PIECE = """
SELECT e.id, v.vector FROM entries e
JOIN recall_vectors v ON v.owner = 'entry' AND v.key = e.id AND v.model = ?
WHERE e.branch = ? AND e.seq > ? AND e.seq <= ?
"""
_SAVE = "INSERT OR REPLACE INTO recall_vectors (owner, key, model, vector) VALUES (?, ?, ?, ?)"
_AT_ONCE = 500


def newest(conn: sqlite3.Connection) -> int:
    """The number of the newest vector; later ones have higher numbers."""
    return int(conn.execute("SELECT coalesce(max(n), 0) FROM recall_vectors").fetchone()[0])


def since(conn: sqlite3.Connection, embedder: Embedder, owner: str, seen: int) -> tuple[list[str], Floats]:
    """The keys and vectors that came behind number `seen`."""
    return _split(conn.execute(_SINCE, (seen, owner, embedder.name)), embedder.dimensions)


def of_piece(conn: sqlite3.Connection, embedder: Embedder, piece: Stretch) -> tuple[list[str], Floats]:
    """The vectors of the entries of a piece, as far as they are made."""
    rows = conn.execute(_PIECE, (embedder.name, piece.branch, piece.low, piece.high))
    return _split(rows, embedder.dimensions)


def of_words(conn: sqlite3.Connection, embedder: Embedder, words: Sequence[str]) -> dict[str, Floats]:
    """The vectors of words, as far as they are made."""
    found: dict[str, Floats] = {}
    for begin in range(0, len(words), _AT_ONCE):
        some = words[begin : begin + _AT_ONCE]
        marks = ", ".join("?" * len(some))
        query = (
            f"SELECT key, vector FROM recall_vectors WHERE owner = 'word' AND model = ? AND key IN ({marks})"
        )
        keys, made = _split(conn.execute(query, (embedder.name, *some)), embedder.dimensions)
        found.update(zip(keys, made, strict=True))
    return found


def save(conn: sqlite3.Connection, embedder: Embedder, owner: str, keys: Sequence[str], made: Floats) -> None:
    """Keep vectors, in the caller's transaction."""
    halves = made.astype("<f2")
    rows = [(owner, key, embedder.name, halves[at].tobytes()) for at, key in enumerate(keys)]
    conn.executemany(_SAVE, rows)


def _split(rows: Iterable[tuple[str, bytes]], dimensions: int) -> tuple[list[str], Floats]:
    found = [row for row in rows if len(row[1]) == 2 * dimensions]
    joined = np.frombuffer(b"".join(vector for _, vector in found), "<f2")
    return [key for key, _ in found], joined.reshape(-1, dimensions).astype(np.float32)
