"""The rows behind records: writing a version, and asking the indexes; each call belongs to a transaction of its caller."""

from __future__ import annotations

import heapq
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from quire.errors import CallError, ConflictError, DamageError, NotFound
from quire.log.connection import is_damage, migrate, transaction, translate
from quire.records.record import Record, decode, encode
from quire.records.selector import Selector
from quire.values import Entry


def number(id: str) -> int:
    """The number in a record's id: rec-7 -> 7."""
    head, _, digits = id.partition("-")
    if head != "rec" or not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise CallError(f"{id!r} is not the id of a record", hint="Ids look like rec-1.")
    return int(digits)


def insert(conn: sqlite3.Connection, record: Record, text: str) -> Record:
    query = "INSERT INTO records (schema_name, version, change, body) VALUES (?, 1, 0, '')"
    n = conn.execute(query, (record.schema_name,)).lastrowid
    return write(conn, msgspec.structs.replace(record, id=f"rec-{n}"), text)


def write(conn: sqlite3.Connection, record: Record, text: str) -> Record:
    """Note the change, make it the current version, and let it be found by `text`."""
    n, body = number(record.id), encode(record)
    change = conn.execute(
        "INSERT INTO record_changes (n, version, body) VALUES (?, ?, ?)", (n, record.version, body)
    ).lastrowid
    conn.execute(
        "UPDATE records SET version = ?, change = ?, expires_at = ?, body = ? WHERE n = ?",
        (record.version, change, record.expires_at, body, n),
    )
    conn.execute("DELETE FROM record_tags WHERE n = ?", (n,))
    conn.executemany("INSERT INTO record_tags VALUES (?, ?)", [(tag, n) for tag in record.tags])
    conn.execute("DELETE FROM record_words WHERE rowid = ?", (n,))
    conn.execute("INSERT INTO record_words (rowid, text) VALUES (?, ?)", (n, text))
    # What is handed back is what is there: tuples are lists now, keys are strings.
    return decode(body)


def remove(conn: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Delete records with all that was derived from them."""
    conn.executemany("DELETE FROM record_words WHERE rowid = ?", [(n,) for n in numbers])
    for table in ("record_vectors", "record_tags", "record_changes", "records"):
        conn.executemany(f"DELETE FROM {table} WHERE n = ?", [(n,) for n in numbers])
    if numbers:
        # The index of words marks what is deleted; only merging its parts takes the words out of the file.
        conn.execute("INSERT INTO record_words (record_words) VALUES ('optimize')")


def where(selector: Selector, now: int | None) -> tuple[str, list[object]]:
    """The part of a selector that the indexes can answer."""
    parts, values = ["1"], list[object]()
    if selector.schemas:
        parts.append(f"schema_name IN ({', '.join('?' * len(selector.schemas))})")
        values += selector.schemas
    for tag in selector.all_tags:
        parts.append("n IN (SELECT n FROM record_tags WHERE tag = ?)")
        values.append(tag)
    if now is not None:
        parts.append("(expires_at IS NULL OR expires_at > ?)")
        values.append(now)
    return " AND ".join(parts), values


def count(conn: sqlite3.Connection, where: str, values: Sequence[object]) -> int:
    return int(conn.execute(f"SELECT count(*) FROM records WHERE {where}", values).fetchone()[0])


def matching(
    conn: sqlite3.Connection, words: Sequence[str], where: str, values: Sequence[object], most: int
) -> list[str]:
    """The bodies of the records that share a word with a query, the best first."""
    if not words:
        return []
    query = f"""
        SELECT body FROM record_words CROSS JOIN records ON n = record_words.rowid
        WHERE record_words MATCH ? AND {where} ORDER BY bm25(record_words), n LIMIT ?
    """
    any_of = " OR ".join(f'"{word}"' for word in words)
    return [body for (body,) in conn.execute(query, (any_of, *values, most))]


def frequencies(conn: sqlite3.Connection, words: Sequence[str]) -> dict[str, int]:
    """In how many records each word stands."""
    query = "SELECT count(*) FROM record_words WHERE record_words MATCH ?"
    return {word: int(conn.execute(query, (f'"{word}"',)).fetchone()[0]) for word in words}


def texts(conn: sqlite3.Connection, records: Sequence[Record]) -> list[str]:
    """What each record is found by, as it was when its current version was written."""
    numbers = [number(record.id) for record in records]
    query = "SELECT rowid, text FROM record_words WHERE rowid IN (SELECT value FROM json_each(?))"
    found = dict(conn.execute(query, (json.dumps(numbers),)))
    return [found.get(n, "") for n in numbers]


def by_creation(conn: sqlite3.Connection, selector: Selector, now: int | None) -> Iterator[str]:
    """The bodies that the indexes find for a selector, oldest first."""
    wanted, values = where(selector, now)
    return (body for (body,) in conn.execute(f"SELECT body FROM records WHERE {wanted} ORDER BY n", values))


def by_change(conn: sqlite3.Connection, selector: Selector, now: int | None) -> Iterator[str]:
    """The same, the last changed first; read only as far as they are taken."""
    single = [msgspec.structs.replace(selector, schemas=(schema,)) for schema in selector.schemas] or [
        selector
    ]
    cursors = []
    for one in single:
        wanted, values = where(one, now)
        query = f"SELECT change, body FROM records WHERE {wanted} ORDER BY change DESC"
        cursors.append(conn.execute(query, values))
    return (body for _, body in heapq.merge(*cursors, key=lambda row: -row[0]))


# The tables of records, in the file that holds the threads. Every version is kept until its record is deleted.

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


# The file that records share with a log store: its connection, its errors in our words, the record as it stands.

CONFLICT_HINT = "Read the record again, then update it with the version it has now."


class RecordStore(Protocol):
    """A log store that lets others keep tables in its file."""

    @property
    def path(self) -> str | Path: ...

    def connection(self) -> sqlite3.Connection: ...


class RecordFile:
    """The tables of records in a store's file; they are there from the first use on."""

    def __init__(self, store: RecordStore) -> None:
        self.store = store
        with self.guard() as conn:
            migrate(conn, store.path, [(TABLES.name, TABLES.migrations)])

    @contextmanager
    def guard(self) -> Iterator[sqlite3.Connection]:
        """The connection; whatever goes wrong with it is one of our errors."""
        try:
            yield self.store.connection()
        except sqlite3.Error as error:
            if is_damage(error):
                raise DamageError(f"the records of {self.store.path} cannot be read: {error}") from error
            raise translate(error, self.store.path) from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The same, for changes: all of them or none."""
        with self.guard() as conn, transaction(conn):
            yield conn

    def wipe(self) -> None:
        """Take what was deleted out of the write-ahead log too; a busy reader may put this off."""
        with self.guard() as conn:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def current(self, id: str, now: int | None) -> Record:
        """A record at its newest version, if there is one and its time has not passed."""
        with self.guard() as conn:
            row = conn.execute("SELECT body FROM records WHERE n = ?", (number(id),)).fetchone()
        if row is None:
            raise NotFound(f"there is no record {id!r}", hint="`quire record list` shows them.")
        record = decode(row[0])
        if record.expired(now):
            raise NotFound(f"record {id!r} has expired", hint="`quire record purge` removes what has.")
        return record

    def seen(self, id: str, version: int, now: int | None) -> Record:
        """The record, if it still is the version that the caller saw."""
        record = self.current(id, now)
        if record.version != version:
            raise ConflictError(
                f"{id} is at version {record.version} ({record.title or record.schema_name}), not {version}",
                hint=CONFLICT_HINT,
            )
        return record
