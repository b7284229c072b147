"""The file that records share with a log store: its connection, its errors in our words, the record as it stands."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from quire.errors import ConflictError, DamageError, NotFound
from quire.log.connect import is_damage, transaction, translate
from quire.log.migrations import migrate
from quire.records.record import Record, decode
from quire.records.rows import number
from quire.records.tables import TABLES

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
