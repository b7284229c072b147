"""The words of every entry, kept in the file of the log by the transactions that append and delete entries.

Derived: whatever is missing here is made from the log again. Vectors lie beside the words, made later.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Final

from quire.errors import MissingPart
from quire.recall.document import KINDS, document, indexed
from quire.recall.query import VERSION, stem
from quire.values import Entry

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
    -- 'entry' or 'word', and which one.
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

_INSERT = f"INSERT OR REPLACE INTO recall_entries VALUES (NULL{', ?' * 13})"
_GONE = "NOT EXISTS (SELECT 1 FROM entries WHERE entries.id = "


class WordsHook:
    """Keeps recall's tables in step with the log."""

    name: str = "recall"
    migrations: tuple[str, ...] = (_FIRST, _NAMES)

    def appended(self, conn: Any, thread: str, entries: Sequence[Entry]) -> None:
        """Make entries searchable by words; without the stemmer they wait for `quire index`."""
        if can_stem():
            keep_words(conn, entries)

    def deleted(self, conn: Any, thread: str) -> None:
        """Nothing of an entry stays that no thread holds."""
        conn.execute(f"DELETE FROM recall_entries WHERE {_GONE}recall_entries.entry)")
        conn.execute(f"DELETE FROM recall_vectors WHERE owner = 'entry' AND {_GONE}recall_vectors.key)")
        _forget_words(conn)


def _forget_words(conn: sqlite3.Connection) -> None:
    """Drop the vectors of words that no entry holds any more."""
    known = {word for (word,) in conn.execute("SELECT key FROM recall_vectors WHERE owner = 'word'")}
    if known:
        for (words,) in conn.execute("SELECT words FROM recall_entries"):
            known.difference_update(words.split())
        gone = [(word,) for word in known]
        conn.executemany("DELETE FROM recall_vectors WHERE owner = 'word' AND key = ?", gone)


HOOK: Final = WordsHook()


def words_hook() -> WordsHook:
    """What a store is opened with to be searchable: SqliteStore(path, hooks=(words_hook(),))."""
    return HOOK


def keep_words(conn: sqlite3.Connection, entries: Iterable[Entry]) -> None:
    """Write the words of entries that can be searched."""
    conn.executemany(_INSERT, [_row(entry) for entry in entries if entry.kind in KINDS])


def _row(entry: Entry) -> tuple[Any, ...]:
    kept = indexed(document(entry))
    said = kept.speech
    return (
        entry.id,
        entry.kind,
        VERSION,
        kept.speaker,
        str(entry.meta.get("session") or ""),
        entry.call_id,
        # A time beyond what a column holds is none that a search could use.
        entry.at if entry.at is not None and abs(entry.at) < 2**63 else None,
        said.asks,
        said.person,
        said.times,
        said.length,
        kept.words,
        said.names,
    )


def can_stem() -> bool:
    """Whether the parts for searching by words are installed."""
    try:
        stem(())
    except MissingPart:
        return False
    return True
