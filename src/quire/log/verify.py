"""Re-deriving every hash of a store, and naming the first entry that does not match. Never repairs.

Works on an ordinary connection and, for a file that SQLite itself refuses, on one that reads what is left of it.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from quire.errors import DamageError, FormatError, NotFound
from quire.log.connection import OWNERS, DamagedConnection, connect_to_read_damaged, migrate
from quire.log.entries import Row, bad_entry, body_of, encode_body, encode_row
from quire.log.store import Stretch, Verification
from quire.log.tables import BODY, HOLDERS, PIECES, damage_error, sound_body
from quire.values import Entry, entry_id

# Reads the rows of a stretch; the thread's name is for the error if one cannot be read.
ReadRows: TypeAlias = Callable[[Stretch, str], Iterator[Row]]

ROWS = """
SELECT seq, CAST (id AS BLOB), CAST (body AS BLOB), crc FROM entries
WHERE branch = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?
"""

# The same without the index, for a file whose index is damaged: rows are in the order in which they were appended.
SCAN = ROWS.replace("FROM entries", "FROM entries NOT INDEXED").replace("ORDER BY seq", "")

_PIECES = PIECES.format(tables="", owner="") + "SELECT branch, low, high FROM piece ORDER BY low, high"
_HOLDERS = HOLDERS.format(tables="", branch="?", seq="?")


def holder_of(conn: sqlite3.Connection, branch: int, seq: int) -> str:
    """The oldest thread that holds this entry; empty if there is none."""
    row = conn.execute(_HOLDERS, (branch, seq)).fetchone()
    return row[0] if row else ""


def pieces_of(conn: sqlite3.Connection, thread: str) -> list[Stretch]:
    """The stretches of a thread, oldest first; [] if there is no such thread."""
    return [Stretch(*row) for row in conn.execute(_PIECES, (thread,))]


def _holder_if_readable(conn: sqlite3.Connection, branch: int, seq: int) -> str:
    try:
        return holder_of(conn, branch, seq)
    except sqlite3.DatabaseError:  # go on without the name: the entries may still be readable
        return ""


def verify_thread(conn: sqlite3.Connection, thread: str) -> Verification:
    """Re-derive the hashes of one thread."""
    tip = conn.execute("SELECT tip FROM threads JOIN branches USING (branch) WHERE name = ?", (thread,)).fetchone()
    return verify_pieces(pieces_of(conn, thread), thread, tip[0], partial(_rows, conn))


def verify_all(conn: sqlite3.Connection) -> Verification:
    """Re-derive the hashes of the whole file, and check the file's own structure."""
    rows = conn.execute("SELECT branch, parent, at_seq, seq, tip FROM branches ORDER BY branch").fetchall()
    count = verify_branches(rows, partial(_holder_if_readable, conn), partial(_rows, conn))
    problem = conn.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem != "ok":
        raise DamageError(f"every entry holds, but the file's structure is damaged: {_line(problem)}")
    records = verify_records(conn.execute)
    _check_structure(conn)
    threads = conn.execute("SELECT count(*) FROM threads").fetchone()[0]
    return Verification(threads, count, records)


def verify_pieces(pieces: Iterable[Stretch], thread: str, tip: str, read: ReadRows) -> Verification:
    """Re-derive the hashes of a thread's stretches; its last entry must have the id `tip`."""
    end, seq = "", 0
    for entry in _verified_entries(pieces, thread, read):
        end, seq = entry.id, entry.seq
    _check_tip(tip, end, thread, seq)
    return Verification(threads=1, entries=seq)


def _verified_entries(pieces: Iterable[Stretch], thread: str, read: ReadRows) -> Iterator[Entry]:
    """The entries of a thread, each re-derived; a DamageError at the first bad one."""
    parent, seq = "", 0
    for piece in pieces:
        if piece.low != seq:
            raise bad_entry(thread, seq + 1, "it is missing")
        for entry in _entries_of(piece, parent, thread, read):
            parent, seq = entry.id, entry.seq
            yield entry


def verify_branches(
    branches: Sequence[tuple[int, int | None, int, int, str]], holder: Callable[[int, int], str], read: ReadRows
) -> int:
    """Re-derive the hashes of all branches (number, parent, at_seq, seq, tip); how many entries they hold.

    Shared history is verified once.
    """
    # (branch, seq) at which a fork begins -> the id of that entry, filled in when the branch is verified.
    starts = {(parent, at_seq): "" for _, parent, at_seq, _, _ in branches if parent}
    count = 0
    for branch, parent, at_seq, seq, tip in branches:
        thread = holder(branch, seq)
        end = starts[parent, at_seq] if parent else ""
        if parent and not end:
            raise bad_entry(thread, at_seq, "it is missing")
        for entry in _entries_of(Stretch(branch, at_seq, seq), end, thread, read):
            end, count = entry.id, count + 1
            if (branch, entry.seq) in starts:
                starts[branch, entry.seq] = end
        _check_tip(tip, end, thread, seq)
    return count


def _entries_of(piece: Stretch, parent: str, thread: str, read: ReadRows) -> Iterator[Entry]:
    """The entries of a stretch behind the entry with id `parent`, each re-derived."""
    seq = piece.low
    for row in read(piece, thread):
        seq += 1
        entry = _verify_row(row, parent, thread, seq)
        parent = entry.id
        yield entry
    if seq != piece.high:
        raise bad_entry(thread, seq + 1, "it is missing")


def _rows(conn: sqlite3.Connection, piece: Stretch, thread: str) -> Iterator[Row]:
    """The rows of a stretch; if SQLite cannot read on, the entry where it stopped is the bad one."""
    if not isinstance(conn, DamagedConnection):
        yield from conn.execute(ROWS, (piece.branch, piece.low, piece.high, -1))
        return
    seq, cause = piece.low, None
    for query in (ROWS, SCAN):
        try:
            for row in conn.execute(query, (piece.branch, seq, piece.high, -1)):
                yield row
                seq += 1
            return
        except sqlite3.DatabaseError as error:
            cause = error
    raise bad_entry(thread, seq + 1, f"it cannot be read: {_line(str(cause))}") from cause


def _verify_row(row: Row, parent: str, thread: str, seq: int) -> Entry:
    stored_seq, id, body, crc = row
    if stored_seq != seq:
        raise bad_entry(thread, seq, "it is missing")
    try:
        value = body_of(body, crc)
        real = entry_id(parent, value)
        if body not in (encode_row(value).encode(), encode_body(value).encode()):
            raise ValueError("its stored bytes have changed")
    except (ValueError, FormatError, RecursionError) as error:
        raise bad_entry(thread, seq, str(error)) from error
    if id != real.encode():
        raise bad_entry(thread, seq, f"its id is {_printable(id)}, but its content gives {real}")
    return Entry(value["kind"], value, seq, real)


def _printable(stored: object) -> str:
    """A stored id, perhaps damaged, on one line."""
    return repr(stored).removeprefix("b").strip("'\"")


def _check_tip(tip: str, end: str, thread: str, seq: int) -> None:
    if tip != end:
        noted, actual = _printable(tip) or "nothing", end or "nothing"
        raise bad_entry(thread, seq, f"the thread is noted to end with {noted}, but this is {actual}")


def verify_records(ask: Callable[..., Iterable[Any]], tables: str = "", body: str = BODY) -> int:
    """Re-derive the hash of every record's versions, and check the columns it is selected by; how many records."""
    held = f"EXISTS (SELECT 1 FROM {tables}records r WHERE r.n = c.n)"
    for (n,) in ask(f"SELECT n FROM {tables}record_changes c WHERE NOT {held} ORDER BY n LIMIT 1"):
        raise damage_error(n, "its newest version is missing")
    count = 0
    chosen_by = f"SELECT version, schema_name, expires_at, {body} FROM {tables}records ORDER BY n"
    for version, schema, expires_at, *row in ask(chosen_by):
        n, count = row[0], count + 1
        stored = ask(f"SELECT version, {body} FROM {tables}record_changes WHERE n = ? ORDER BY version", (n,))
        newest = _verify_versions(n, version, stored)
        if newest != sound_body(row):
            raise damage_error(n, f"it is not its version {version}")
        fields = json.loads(newest)
        tags = {tag for (tag,) in ask(f"SELECT tag FROM {tables}record_tags WHERE n = ?", (n,))}
        if (schema, expires_at, tags) != (fields["schema_name"], fields["expires_at"], set(fields["tags"])):
            raise damage_error(n, "its schema, tags or expiry are noted other than it says")
    return count


def _verify_versions(n: int, newest: int, stored: Iterable[Any]) -> str:
    """Check versions 1 to `newest` of a record and give the body of the last."""
    body, count = "", 0
    for count, (version, *row) in enumerate(stored, 1):
        body = sound_body(row)
        says = _fields_of(n, body)
        if version != count or (says["id"], says["version"]) != (f"rec-{n}", count):
            raise damage_error(n, f"its version {count} is missing")
    if count != newest:
        raise damage_error(n, f"its version {count + 1} is missing" if count < newest else "it has too many versions")
    return body


def _fields_of(n: int, body: str) -> dict[str, object]:
    """The fields of a record's body that are checked; a DamageError if it is not a record."""
    try:
        fields = json.loads(body)
        return {key: fields[key] for key in ("id", "version", "schema_name", "expires_at", "tags")}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise damage_error(n, "it is not a record") from error


def _check_structure(conn: sqlite3.Connection) -> None:
    """Raise a DamageError for rows whose parent is missing, and for changed tables, indexes or triggers."""
    broken = conn.execute("PRAGMA foreign_key_check").fetchone()
    if broken:
        raise DamageError(f"every entry holds, but row {broken[1]} of {broken[0]} belongs to nothing in {broken[2]}")
    schema = _schema(conn)
    for name, sql in _expected_schema().items():
        if schema.get(name) != sql:
            raise DamageError(f"every entry holds, but {name!r} was changed or removed from the file's schema")


def _line(text: str) -> str:
    """A message of SQLite on one line, printable even if it quotes damaged text."""
    words = " ".join(text.removeprefix("*** in database main ***").split())
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in words)


def _schema(conn: sqlite3.Connection) -> dict[str, bytes]:
    """The SQL of every table, index and trigger, without comments, which differ between versions of Quire."""
    made = conn.execute("SELECT name, CAST (sql AS BLOB) FROM sqlite_schema WHERE sql IS NOT NULL")
    return {name: re.sub(rb"\s*--[^\n]*", b"", sql) for name, sql in made}


@cache
def _expected_schema() -> dict[str, bytes]:
    conn = sqlite3.connect(":memory:", isolation_level=None)
    migrate(conn, ":memory:", OWNERS)
    schema = _schema(conn)
    conn.close()
    return schema


def diagnose(path: str | Path, cause: str) -> DamageError:
    """The error for a file that SQLite refuses: it names the first bad entry, as far as the file can be read."""
    try:
        conn = connect_to_read_damaged(path)
    except sqlite3.Error:
        return _unreadable(path, cause)
    try:
        verify_all(conn)
    except DamageError as damage:
        return DamageError(f"{path}: {damage}", thread=damage.thread, seq=damage.seq)
    except sqlite3.Error:
        return _unreadable(path, cause)
    finally:
        conn.close()
    return DamageError(f"{path}: every entry holds, but the file is damaged: {_line(cause)}")


def _unreadable(path: str | Path, cause: str) -> DamageError:
    hint = "Nothing was changed. Name a database of Quire's with --db or QUIRE_DB; if this was one, restore it from a backup."
    problem = f"{path} is damaged from entry 1 on, its list of threads cannot be read: {_line(cause)}"
    return DamageError(problem, seq=1, hint=hint)


# Reading a damaged file: the entries before the first bad one, and none behind it.


def salvage(path: str | Path, thread: str) -> Iterator[Entry]:
    """The verified entries of a thread; at the first bad one a DamageError that names it."""
    try:
        conn = connect_to_read_damaged(path)
    except sqlite3.Error as error:
        raise NotFound(f"cannot open {path}: {error}", hint="Check the path.") from error
    try:
        stretches = pieces_of(conn, thread)
        if not stretches:
            raise NotFound(
                f"no thread {thread!r} can be read", hint="Only threads whose name is still readable can be salvaged."
            )
        yield from _verified_entries(stretches, thread, partial(_rows, conn))
    except sqlite3.DatabaseError as error:
        raise diagnose(path, str(error)) from error
    finally:
        conn.close()
