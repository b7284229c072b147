"""Reading what is sound in a damaged file: the entries before the first bad one, and nothing behind it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from quire.errors import NotFound
from quire.log import verify
from quire.log.branches import pieces
from quire.log.connect import connect_to_read_damaged
from quire.values import Entry


def salvage(path: str | Path, thread: str) -> Iterator[Entry]:
    """The verified entries of a thread; ends with a DamageError that names the first bad one, if there is one."""
    try:
        conn = connect_to_read_damaged(path)
    except sqlite3.Error as error:
        raise NotFound(f"cannot open {path}: {error}", hint="Check the path.") from error
    try:
        yield from _sound(conn, thread)
    except sqlite3.DatabaseError as error:
        raise verify.diagnose(path, str(error)) from error
    finally:
        conn.close()


def _sound(conn: sqlite3.Connection, thread: str) -> Iterator[Entry]:
    if not pieces(conn, thread):
        raise NotFound(
            f"no thread {thread!r} can be read",
            hint="Only threads whose name is still readable can be salvaged.",
        )
    yield from verify.verified_entries(conn, thread)
