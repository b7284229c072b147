"""Vectors in the file of the log: of entries and of words, in half precision, by the model that made them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import numpy as np

from quire.log.branches import Piece
from quire.recall.arrays import Floats
from quire.recall.embed import Embedder

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


def of_piece(conn: sqlite3.Connection, embedder: Embedder, piece: Piece) -> tuple[list[str], Floats]:
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
