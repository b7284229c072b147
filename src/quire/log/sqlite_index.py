"""The words and vectors of entries, in the SQLite file of their log.

Words are made by the first search that needs them, or by an indexer, vectors by an indexer; both are deleted with their
entry.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, ClassVar

import msgspec

from quire.errors import NotFound
from quire.log import branches
from quire.log.branches import ROWS, entries_of
from quire.log.store import Change, EntryWords, Stretch
from quire.values import Entry

if TYPE_CHECKING:
    from quire.log.sqlite import SqliteFile

_FIRST = """
CREATE TABLE recall_entries (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    entry TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    -- The rules by which the words were found; rows of older rules are made again.
    rules INTEGER NOT NULL,
    speaker TEXT NOT NULL,
    session TEXT NOT NULL,
    call_id TEXT NOT NULL,
    at INTEGER,
    asks INTEGER NOT NULL,
    person REAL NOT NULL,
    times INTEGER NOT NULL,
    length INTEGER NOT NULL,
    words TEXT NOT NULL
);
CREATE TABLE recall_vectors (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Always 'entry', and which one.
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    -- Half-precision floats, little endian.
    vector BLOB NOT NULL,
    UNIQUE (owner, key, model)
);
"""

# How many names an entry holds; the rows that were there are of older rules, so they are made again.
_NAMES = "ALTER TABLE recall_entries ADD COLUMN names INTEGER NOT NULL DEFAULT 0"

OWNER = "recall"
# Vectors of single words went; long entries have several, so the one they had is made again with the others.
_SEVERAL = """
DELETE FROM recall_vectors
WHERE owner != 'entry' OR key IN (SELECT entry FROM recall_entries WHERE length > 150)
"""
# What a search holds ready, as arrays, so that the next process need not make it from the words.
_STATE = """
CREATE TABLE recall_state (
    scope TEXT NOT NULL,
    part TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (scope, part)
)
"""
MIGRATIONS: tuple[str, ...] = (_FIRST, _NAMES, _SEVERAL, _STATE)

_INSERT = f"INSERT OR REPLACE INTO recall_entries VALUES (NULL{', ?' * 13})"
_GONE = "NOT EXISTS (SELECT 1 FROM entries WHERE entries.id = "
_WORDS = """
SELECT e.seq, e.id, r.entry, r.kind, r.rules, r.speaker, r.session, r.call_id, r.at, r.asks, r.person, r.times,
    r.length, r.words, r.names
FROM entries e LEFT JOIN recall_entries r ON r.entry = e.id
WHERE e.branch = ? AND e.seq > ? AND e.seq <= ? ORDER BY e.seq
"""
_UNWORDED = """
SELECT e.n, e.branch, e.seq, CAST (e.id AS BLOB), CAST (e.body AS BLOB), e.crc FROM entries e
WHERE e.n > ? AND NOT EXISTS (SELECT 1 FROM recall_entries r WHERE r.entry = e.id AND r.rules = ?)
ORDER BY e.n LIMIT ?
"""
_UNMEANT = """
SELECT r.n, r.entry FROM recall_entries r WHERE r.n > ? AND r.kind != 'call' AND NOT EXISTS (
    SELECT 1 FROM recall_vectors v WHERE v.owner = 'entry' AND v.key = r.entry AND v.model = ?)
ORDER BY r.n LIMIT ?
"""
_SINCE = "SELECT key, vector FROM recall_vectors WHERE n > ? AND model = ? ORDER BY n"
_OF_STRETCH = """
SELECT e.id, v.vector FROM entries e
JOIN recall_vectors v ON v.owner = 'entry' AND v.key = e.id AND v.model = ?
WHERE e.branch = ? AND e.seq > ? AND e.seq <= ?
"""
_SAVE = "INSERT OR REPLACE INTO recall_vectors (owner, key, model, vector) VALUES ('entry', ?, ?, ?)"
_STORED = "SELECT 1 FROM entries WHERE id = ? LIMIT 1"


def forget_deleted(conn: sqlite3.Connection) -> None:
    """Remove the words and vectors of entries that no thread holds."""
    conn.execute("DELETE FROM recall_state")
    conn.execute(f"DELETE FROM recall_entries WHERE {_GONE}recall_entries.entry)")
    conn.execute(f"DELETE FROM recall_vectors WHERE {_GONE}recall_vectors.key)")


class SqliteIndex:
    """An `Index` in the file of a SqliteStore."""

    kept_by_writers: ClassVar[bool] = True

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def snapshot(self) -> AbstractContextManager[None]:
        return self._snapshot()

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        with self._file.transaction("DEFERRED"):
            yield

    def stretches(self, thread: str | None) -> list[Stretch]:
        with self._file.guard() as conn:
            if thread is None:
                rows = conn.execute("SELECT branch, at_seq, seq FROM branches ORDER BY branch")
                return [Stretch(*row) for row in rows]
            pieces = branches.pieces(conn, thread)
        if not pieces:
            raise NotFound(f"there is no thread {thread!r}", hint="`quire log list` shows the threads.")
        return pieces

    def entries(self, stretch: Stretch) -> list[Entry]:
        with self._file.guard() as conn:
            bounds = (stretch.branch, stretch.low, stretch.high, -1)
            rows = conn.execute(ROWS, bounds).fetchall()
            thread = branches.holder(conn, stretch.branch, stretch.high)
        return entries_of(thread, rows, stretch.low, len(rows))

    def holder(self, branch: int, seq: int) -> str:
        with self._file.guard() as conn:
            return branches.holder(conn, branch, seq)

    def changed(self, after: int, limit: int) -> list[tuple[int, str]]:
        query = """
            SELECT n, coalesce(name, '') FROM entries LEFT JOIN threads USING (branch) WHERE n > ? ORDER BY n LIMIT ?
        """
        with self._file.guard() as conn:
            return conn.execute(query, (after, limit)).fetchall()

    def add(self, words: Iterable[EntryWords]) -> None:
        rows = list(words)
        if not rows:
            return
        with self._file.transaction() as conn:
            # An entry may have been deleted meanwhile.
            stored = [row for row in rows if conn.execute(_STORED, (row.entry,)).fetchone()]
            conn.executemany(_INSERT, map(msgspec.structs.astuple, stored))

    def words(self, stretch: Stretch) -> list[tuple[int, str, EntryWords | None]]:
        with self._file.guard() as conn:
            rows = conn.execute(_WORDS, (stretch.branch, stretch.low, stretch.high)).fetchall()
        return [(row[0], row[1], EntryWords(*row[2:]) if row[2] is not None else None) for row in rows]

    def without_words(self, after: int, rules: int, limit: int) -> list[Change]:
        with self._file.guard() as conn:
            return branches.changes_of(conn, conn.execute(_UNWORDED, (after, rules, limit)).fetchall())

    def add_vectors(self, model: str, dimensions: int, vectors: Mapping[str, bytes]) -> None:
        with self._file.transaction() as conn:
            rows = [(key, model, vector) for key, vector in vectors.items() if conn.execute(_STORED, (key,)).fetchone()]
            conn.executemany(_SAVE, rows)

    def vectors(self, model: str, after: int = 0, of: Stretch | None = None) -> list[tuple[str, bytes]]:
        with self._file.guard() as conn:
            if of is None:
                return conn.execute(_SINCE, (after, model)).fetchall()
            return conn.execute(_OF_STRETCH, (model, of.branch, of.low, of.high)).fetchall()

    def vectors_of(self, model: str, entries: Sequence[str]) -> list[tuple[str, bytes]]:
        query = "SELECT vector FROM recall_vectors WHERE owner = 'entry' AND key = ? AND model = ?"
        with self._file.guard() as conn:
            rows = {key: conn.execute(query, (key, model)).fetchone() for key in entries}
        return [(key, row[0]) for key, row in rows.items() if row is not None]

    def nearest(self, model: str, dimensions: int, vector: bytes, most: int) -> list[str] | None:
        return None

    def newest_vector(self) -> int:
        with self._file.guard() as conn:
            return int(conn.execute("SELECT coalesce(max(n), 0) FROM recall_vectors").fetchone()[0])

    def without_vectors(self, model: str, after: int, limit: int | None) -> list[tuple[int, str]]:
        with self._file.guard() as conn:
            return conn.execute(_UNMEANT, (after, model, -1 if limit is None else limit)).fetchall()

    def state(self, key: str, parts: Sequence[str]) -> dict[str, bytes]:
        query = "SELECT data FROM recall_state WHERE scope = ? AND part = ?"
        with self._file.guard() as conn:
            rows = {part: conn.execute(query, (key, part)).fetchone() for part in parts}
        return {part: row[0] for part, row in rows.items() if row is not None}

    def save_state(self, key: str, parts: Mapping[str, bytes]) -> None:
        with self._file.transaction() as conn:
            conn.execute("DELETE FROM recall_state WHERE scope = ?", (key,))
            rows = [(key, part, data) for part, data in parts.items()]
            conn.executemany("INSERT INTO recall_state VALUES (?, ?, ?)", rows)

    def clear(self) -> None:
        with self._file.transaction() as conn:
            conn.execute("DELETE FROM recall_entries")
            conn.execute("DELETE FROM recall_vectors")
            conn.execute("DELETE FROM recall_state")
