"""Re-deriving every hash of a file, and naming the first entry that does not hold. Never repairs.

Works on a sound connection and, for a file that SQLite itself refuses, on one that reads what is left.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from quire.errors import DamageError, FormatError
from quire.log.connect import connect_to_read_damaged
from quire.log.entries import encode_body
from quire.log.hashing import entry_id
from quire.log.store import Verified
from quire.values import JsonObject

Row: TypeAlias = tuple[int, bytes, bytes, int]


class Piece(msgspec.Struct, frozen=True):
    """The entries low < seq <= high of one branch; a thread is a row of pieces, oldest first."""

    branch: int
    low: int
    high: int


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

# The threads that hold entry `seq` of a branch: its own, or those of forks taken at or behind it.
_HOLDERS = """
WITH RECURSIVE holder (branch) AS (
    VALUES (:branch)
    UNION
    SELECT b.branch FROM holder JOIN branches b ON b.parent = holder.branch AND b.at_seq >= :seq
)
SELECT t.name FROM holder JOIN threads t USING (branch) ORDER BY t.branch LIMIT 1
"""


def holder(conn: sqlite3.Connection, branch: int, seq: int) -> str:
    """A thread that holds this entry, the oldest first; empty when there is none."""
    found = conn.execute(_HOLDERS, {"branch": branch, "seq": seq}).fetchone()
    return found[0] if found else ""


def _holder_if_readable(conn: sqlite3.Connection, branch: int, seq: int) -> str:
    try:
        return holder(conn, branch, seq)
    except sqlite3.DatabaseError:  # the entries may still be readable, and the first bad one found
        return ""


def body_of(body: bytes, crc: int) -> JsonObject:
    """A stored body as JSON; a ValueError says how it differs from what was written."""
    if not isinstance(body, bytes) or zlib.crc32(body) != crc:
        raise ValueError("its stored bytes have changed (checksum)")
    value = json.loads(body)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def pieces(conn: sqlite3.Connection, thread: str) -> list[Piece]:
    """The pieces of a thread, oldest first; none when there is no such thread."""
    rows = conn.execute(PIECES + "SELECT branch, low, high FROM piece ORDER BY low, high", {"thread": thread})
    return [Piece(*row) for row in rows]


def verify_thread(conn: sqlite3.Connection, thread: str) -> Verified:
    """Re-derive the hashes of one thread."""
    parent, entries = "", 0
    for piece in pieces(conn, thread):
        if piece.low != entries:
            raise bad_entry(thread, entries + 1, "it is missing")
        parent = _verify_piece(conn, piece, parent, thread)
        entries += piece.high - piece.low
    tip = conn.execute(
        "SELECT tip FROM threads JOIN branches USING (branch) WHERE name = ?", (thread,)
    ).fetchone()
    _check_tip(tip[0], parent, thread, entries)
    return Verified(threads=1, entries=entries)


def verify_all(conn: sqlite3.Connection) -> Verified:
    """Re-derive the hashes of the whole file, shared history once, and check the file's own structure."""
    tips: dict[tuple[int, int], str] = {}
    entries = 0
    rows = conn.execute("SELECT branch, parent, at_seq, seq, tip FROM branches ORDER BY branch").fetchall()
    forked_at = {(parent, at_seq) for _, parent, at_seq, _, _ in rows if parent is not None}
    for branch, parent, at_seq, seq, tip in rows:
        thread = _holder_if_readable(conn, branch, seq)
        if parent is not None and (parent, at_seq) not in tips:
            raise bad_entry(thread, at_seq, "it is missing")
        start = "" if parent is None else tips[parent, at_seq]
        end = _verify_piece(conn, Piece(branch, at_seq, seq), start, thread, forked_at, tips)
        _check_tip(tip, end, thread, seq)
        entries += seq - at_seq
    _check_structure(conn)
    return Verified(threads=conn.execute("SELECT count(*) FROM threads").fetchone()[0], entries=entries)


def _verify_piece(
    conn: sqlite3.Connection,
    piece: Piece,
    parent: str,
    thread: str,
    forked_at: set[tuple[int, int]] = frozenset(),  # type: ignore[assignment]  # read only
    tips: dict[tuple[int, int], str] | None = None,
) -> str:
    """Check a piece behind `parent`; returns the id of its last entry, and notes the ids where forks begin."""
    seq = piece.low
    for row in _rows(conn, piece, thread):
        seq += 1
        parent = _verify_row(row, parent, thread, seq)
        if tips is not None and (piece.branch, seq) in forked_at:
            tips[piece.branch, seq] = parent
    if seq != piece.high:
        raise bad_entry(thread, seq + 1, "it is missing")
    return parent


def _rows(conn: sqlite3.Connection, piece: Piece, thread: str) -> Iterator[Row]:
    """The rows of a piece; where SQLite cannot go on, the entry it stopped at is the bad one."""
    seq = piece.low
    try:
        for row in conn.execute(ROWS, (piece.branch, piece.low, piece.high, -1)):
            yield row
            seq += 1
    except sqlite3.DatabaseError as error:
        raise bad_entry(thread, seq + 1, f"it cannot be read: {error}") from error


def _verify_row(row: Row, parent: str, thread: str, seq: int) -> str:
    found, id, body, crc = row
    if found != seq:
        raise bad_entry(thread, seq, "it is missing")
    try:
        value = body_of(body, crc)
        real = entry_id(parent, value)
        if encode_body(value).encode() != body:
            raise ValueError("its stored bytes have changed")
    except (ValueError, FormatError, RecursionError) as error:
        raise bad_entry(thread, seq, str(error)) from error
    if id != real.encode():
        raise bad_entry(thread, seq, f"its id is {_printable(id)}, but its content gives {real}")
    return real


def _printable(id: bytes) -> str:
    return id.decode(errors="backslashreplace") if isinstance(id, bytes) else repr(id)


def _check_tip(tip: str, end: str, thread: str, seq: int) -> None:
    if tip != end:
        raise bad_entry(
            thread, seq, f"the thread is noted to end with {tip or 'nothing'}, but this is {end or 'nothing'}"
        )


def _check_structure(conn: sqlite3.Connection) -> None:
    """What SQLite itself knows to be wrong outside of the entries' bytes."""
    problem = conn.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem != "ok":
        raise DamageError(f"the file's structure is damaged, though every entry holds: {problem}")
    broken = conn.execute("PRAGMA foreign_key_check").fetchone()
    if broken:
        raise DamageError(f"row {broken[1]} of {broken[0]} belongs to nothing in {broken[2]}")


def bad_entry(thread: str, seq: int, problem: str) -> DamageError:
    """The error that names an entry."""
    where = f"entry {seq} of thread {thread!r}" if thread else f"entry {seq} of a thread that cannot be named"
    return DamageError(f"{where} is damaged: {problem}", thread=thread, seq=seq)


def diagnose(path: str | Path, cause: str) -> DamageError:
    """Name the first bad entry of a file that SQLite refuses, as far as it can still be read."""
    try:
        conn = connect_to_read_damaged(path)
    except sqlite3.Error:
        return _unreadable(path, cause)
    try:
        verify_all(conn)
    except DamageError as damage:
        return DamageError(f"{path}: {damage} (the file: {cause})", thread=damage.thread, seq=damage.seq)
    except sqlite3.Error:
        return _unreadable(path, cause)
    finally:
        conn.close()
    return DamageError(f"{path} is damaged: {cause}")


def _unreadable(path: str | Path, cause: str) -> DamageError:
    return DamageError(
        f"{path} is damaged from entry 1 on, its list of threads cannot be read: {cause}", seq=1
    )
