"""The tables of records, in the file that holds the threads. Every version is kept until its record is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from quire.values import Entry

_FIRST = """
CREATE TABLE records (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    schema_name TEXT NOT NULL,
    version INTEGER NOT NULL,
    -- The number of its newest change: the order of 'recent' and 'latest', whatever clocks say.
    change INTEGER NOT NULL,
    expires_at INTEGER,
    body TEXT NOT NULL
);
CREATE INDEX records_by_schema ON records (schema_name, n);
CREATE INDEX records_by_schema_change ON records (schema_name, change);
CREATE INDEX records_by_change ON records (change);
CREATE INDEX records_by_expiry ON records (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE record_tags (
    tag TEXT NOT NULL,
    n INTEGER NOT NULL REFERENCES records (n) ON DELETE CASCADE,
    PRIMARY KEY (tag, n)
) WITHOUT ROWID;
CREATE INDEX record_tags_by_record ON record_tags (n);
CREATE TABLE record_changes (
    change INTEGER PRIMARY KEY AUTOINCREMENT,
    n INTEGER NOT NULL,
    version INTEGER NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (n, version)
);
-- What each record is found by; both are derived, and written with the record or from it.
CREATE VIRTUAL TABLE record_words USING fts5 (text, tokenize = 'porter unicode61 remove_diacritics 2');
CREATE TABLE record_vectors (
    n INTEGER NOT NULL REFERENCES records (n) ON DELETE CASCADE,
    model TEXT NOT NULL,
    version INTEGER NOT NULL,
    vector BLOB NOT NULL,
    PRIMARY KEY (n, model)
) WITHOUT ROWID;
"""


class RecordTables:
    """The hook that gives a store its record tables; threads are none of its business."""

    name: str = "records"
    migrations: tuple[str, ...] = (_FIRST,)

    def appended(self, conn: Any, thread: str, entries: Sequence[Entry]) -> None:
        """Records do not follow from entries."""

    def deleted(self, conn: Any, thread: str) -> None:
        """Records outlive threads."""


TABLES: Final = RecordTables()


def records_hook() -> RecordTables:
    """What a store is opened with to hold records: SqliteStore(path, hooks=(records_hook(),))."""
    return TABLES
