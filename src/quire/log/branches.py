"""Branches: the stretches of entries that threads are made of and forks share.

A branch begins behind an entry of its parent; a thread is a name for a branch, and owns what leads to its end.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count
from typing import TypeAlias

import msgspec

from quire.entry import canonical
from quire.errors import DamageError
from quire.log.entries import decode_row, encode_body
from quire.log.store import Change, Stretch
from quire.values import Entry, Json, JsonObject

# seq, id, body, crc; id and body as bytes, because damaged text could not be read otherwise.
Row: TypeAlias = tuple[int, bytes, bytes, int]


# A thread's branch, and the seq and id of its last entry.
Tip: TypeAlias = tuple[int, int, str]
TIP = "SELECT b.branch, b.seq, b.tip FROM threads t JOIN branches b USING (branch) WHERE t.name = ?"


# Where a thread's entries are: its own branch, then the part of each ancestor that it shares.
PIECES = """
WITH RECURSIVE piece (branch, low, high, parent) AS (
    SELECT b.branch, b.at_seq, b.seq, b.parent FROM threads t JOIN branches b USING (branch) WHERE t.name = :thread
    UNION ALL
    SELECT b.branch, b.at_seq, piece.low, b.parent FROM piece JOIN branches b ON b.branch = piece.parent
)
"""

ROWS = """
SELECT seq, CAST (id AS BLOB), CAST (body AS BLOB), crc FROM entries
WHERE branch = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?
"""

# The same without the index, for a file whose index is damaged; rows lie in the order they were appended.
SCAN = ROWS.replace("FROM entries", "FROM entries NOT INDEXED").replace("ORDER BY seq", "")

# The threads that hold entry `seq` of a branch: its own, or those of forks taken at or behind it.
_HOLDERS = """
WITH RECURSIVE holder (branch) AS (
    VALUES (:branch)
    UNION
    SELECT b.branch FROM holder JOIN branches b ON b.parent = holder.branch AND b.at_seq >= :seq
)
SELECT t.name FROM holder JOIN threads t USING (branch) ORDER BY t.branch LIMIT 1
"""


def bad_entry(thread: str, seq: int, problem: str) -> DamageError:
    """The error that names an entry."""
    where = f"entry {seq} of thread {thread!r}" if thread else f"entry {seq} of a thread that cannot be named"
    return DamageError(f"{where} is damaged: {problem}", thread=thread, seq=seq)


def holder(conn: sqlite3.Connection, branch: int, seq: int) -> str:
    """A thread that holds this entry, the oldest first; empty when there is none."""
    row = conn.execute(_HOLDERS, {"branch": branch, "seq": seq}).fetchone()
    return row[0] if row else ""


def pieces(conn: sqlite3.Connection, thread: str) -> list[Stretch]:
    """The pieces of a thread, oldest first; none when there is no such thread."""
    rows = conn.execute(PIECES + "SELECT branch, low, high FROM piece ORDER BY low, high", {"thread": thread})
    return [Stretch(*row) for row in rows]


def last_number(conn: sqlite3.Connection) -> int:
    """The number of the newest entry that there ever was; numbers are not given twice."""
    query = "SELECT max(last, coalesce((SELECT max(n) FROM entries), 0)) FROM numbers"
    return int(conn.execute(query).fetchone()[0])


def body_of(body: bytes, crc: int) -> JsonObject:
    """A stored body as JSON; a ValueError says how it differs from what was written."""
    if not isinstance(body, bytes) or zlib.crc32(body) != crc:
        raise ValueError("its stored bytes have changed (checksum)")
    try:
        return decode_row(msgspec.json.decode(body))
    except msgspec.DecodeError:
        return decode_row(json.loads(body))  # which takes what other versions of Quire may have written


def entries_of(thread: str, rows: Sequence[Row], after: int, count: int) -> list[Entry]:
    """Entries from their rows; one that is missing or changed is an error that names it."""
    out = []
    for seq, row in enumerate(rows, after + 1):
        if row[0] != seq:
            raise bad_entry(thread, seq, "it is missing")
        out.append(entry_of(thread, row))
    if len(out) != count:
        raise bad_entry(thread, after + len(out) + 1, "it is missing")
    return out


def entry_of(thread: str, row: Row) -> Entry:
    """An entry from its row; one that was changed is an error that names it."""
    seq, id, body, crc = row
    try:
        value = body_of(body, crc)
        return Entry(value["kind"], value, seq, id.decode())
    except (ValueError, KeyError, AttributeError) as error:
        raise bad_entry(thread, seq, str(error)) from error


def changes_of(conn: sqlite3.Connection, rows: Iterable[tuple[int, int, int, bytes, bytes, int]]) -> list[Change]:
    """Changes from the number, branch and row of each entry, each with the oldest thread that holds it."""
    changes = []
    # A branch that has a name is older than all its forks; only entries of one without are looked up one by one.
    named = dict(conn.execute("SELECT branch, name FROM threads"))
    for n, branch, seq, id, body, crc in rows:
        thread = named.get(branch) or holder(conn, branch, seq)
        changes.append(Change(n, thread, entry_of(thread, (seq, id, body, crc))))
    return changes


def rows_of(conn: sqlite3.Connection, thread: str, after: int, count: int) -> list[Row]:
    """The rows of a thread behind seq `after`, piece by piece, so that a page costs only its own rows."""
    rows: list[Row] = []
    for piece in pieces(conn, thread):
        if piece.high > after and len(rows) < count:
            bounds = (piece.branch, max(piece.low, after), piece.high, count - len(rows))
            rows += conn.execute(ROWS, bounds).fetchall()
    return rows


def new_branch(conn: sqlite3.Connection, parent: int | None = None, at_seq: int = 0, tip: str = "") -> int:
    """A branch behind entry at_seq of its parent, whose id is `tip`."""
    row = (parent, at_seq, at_seq, tip)
    cursor = conn.execute("INSERT INTO branches (parent, at_seq, seq, tip) VALUES (?, ?, ?, ?)", row)
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def source(conn: sqlite3.Connection, thread: str, at_seq: int) -> tuple[int | None, int, str]:
    """The branch that itself holds entry at_seq of a thread, at_seq, and that entry's id."""
    query = (
        "SELECT branch, seq, id FROM piece JOIN entries USING (branch) WHERE seq = :seq AND low < seq AND seq <= high"
    )
    place: tuple[int, int, str] | None = conn.execute(PIECES + query, {"thread": thread, "seq": at_seq}).fetchone()
    if at_seq and place is None:
        raise bad_entry(thread, at_seq, "it is missing")
    return place or (None, 0, "")


def prune(conn: sqlite3.Connection, branch: int | None) -> None:
    """Remove what no thread reaches any more: from a branch that lost its name upwards."""
    while branch is not None and not _is_named(conn, branch):
        used = conn.execute("SELECT max(at_seq) FROM branches WHERE parent = ?", (branch,)).fetchone()[0]
        parent, begin = conn.execute("SELECT parent, at_seq FROM branches WHERE branch = ?", (branch,)).fetchone()
        _cut(conn, branch, begin if used is None else used)
        if used is not None:
            return
        conn.execute("DELETE FROM branches WHERE branch = ?", (branch,))
        branch = parent


def _is_named(conn: sqlite3.Connection, branch: int) -> bool:
    return conn.execute("SELECT 1 FROM threads WHERE branch = ?", (branch,)).fetchone() is not None


def _cut(conn: sqlite3.Connection, branch: int, keep: int) -> None:
    """Delete the entries of a branch behind seq `keep`; a trigger refuses every deletion that was not announced."""
    named = {"branch": branch, "keep": keep}
    conn.execute("UPDATE numbers SET last = ?", (last_number(conn),))
    conn.execute("INSERT INTO deleting VALUES (:branch, :keep)", named)
    conn.execute("DELETE FROM entries WHERE branch = :branch AND seq > :keep", named)
    conn.execute("DELETE FROM deleting WHERE branch = :branch", named)
    tip = "coalesce((SELECT id FROM entries WHERE branch = :branch AND seq = :keep), '')"
    conn.execute(f"UPDATE branches SET seq = :keep, tip = {tip} WHERE branch = :branch", named)


def first_holder(conn: sqlite3.Connection, id: str) -> tuple[str, int]:
    """The oldest thread that holds the entry of this id, and its seq."""
    for branch, seq in conn.execute("SELECT branch, seq FROM entries WHERE id = ? ORDER BY branch", (id,)):
        thread = holder(conn, branch, seq)
        if thread:
            return thread, seq
    raise DamageError(f"entry {id} belongs to no thread")


# What every store does alike.


def free_name(base: str, is_taken: Callable[[str], bool]) -> str:
    """This name, or with the first number behind it that no thread has."""
    numbered = (f"{base}.{number}" for number in count(2))
    return next(name for name in chain([base], numbered) if not is_taken(name))


def saved_text(value: Json) -> str:
    """A window or a state as it is kept with a thread; what is not JSON is an error."""
    canonical(value)
    return encode_body(value)


def read_saved(stored: str | bytes | None, label: str, thread: str) -> Json:
    """What was kept; a DamageError says what cannot be read."""
    try:
        return json.loads(stored) if stored is not None else None
    except (ValueError, TypeError, RecursionError) as error:
        raise DamageError(f"{label} saved with thread {thread!r} is damaged: {error}", thread=thread) from error
