"""SQLite's errors in Quire's words, for those who read the file of a store themselves."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from quire.log.branches import bad_entry
from quire.log.connect import is_damage, translate
from quire.log.sqlite import SqliteStore
from quire.log.verify import body_of, diagnose
from quire.values import Entry


@contextmanager
def reading(store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """This Python thread's connection; damage names the first bad entry."""
    try:
        yield store.connection()
    except sqlite3.Error as error:
        if is_damage(error):
            raise diagnose(store.path, str(error)) from error
        raise translate(error, store.path) from error


def stored_entry(id: str, seq: int, body: bytes, crc: int) -> Entry:
    """An entry from its row; one that changed since it was written is an error that names it."""
    try:
        value = body_of(body, crc)
        return Entry(value["kind"], value, seq, id)
    except (ValueError, KeyError) as error:
        raise bad_entry("", seq, str(error)) from error
