"""Opening the SQLite file durably, transactions, and SQLite's errors in Quire's words."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from quire.errors import CallError, ConflictError, QuireError, VersionError
from quire.log import OWNER_ALONE, was_closed
from quire.values import sha256_hex

BUSY_TIMEOUT_S = 60.0
# SQLite itself waits this long, without reacting to signals; a longer wait is logged.
SILENT_S = 1.0
# The pause between tries.
RETRY_S = 0.005
# No database is shorter than its header. SQLite would treat a file of one byte as empty and overwrite it.
HEADER_BYTES = 100
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# Beginnings of messages about damage that come without an error code: Python's about text, SQLite's about a header.
_DAMAGED_SAYS = ("Could not decode to UTF-8", "unsupported file format")


_logger = logging.getLogger("quire")
_Kind = TypeVar("_Kind", bound=sqlite3.Connection)
_UNWRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)


def connect(path: str | Path) -> sqlite3.Connection:
    """A connection whose commits are on the disk when they return; a read-only one if nothing can be written."""
    log_left = has_log(path)  # ask first: another process that makes the file writes to it before it has a log
    size = _size(path)
    if 0 < size < HEADER_BYTES:
        raise BrokenFile(f"it is {size} bytes long")
    if log_left and not size:  # SQLite would delete the log and with it acknowledged entries
        raise CallError(
            f"{path} is gone, and its write-ahead log {path}-wal is left, which holds what was written last",
            hint="Put the file back beside it; or remove the log to begin anew.",
        )
    try:
        return _connect_to_write(path)
    except sqlite3.OperationalError as error:
        if _code(error) not in _UNWRITABLE or not os.path.isfile(path) or may_write(path):
            raise
    return _connect_to_read(path)


def may_write(path: str | Path) -> bool:
    """Whether the file may be changed and its write-ahead log created beside it."""
    return all(_allows(place, os.W_OK) for place in (path, os.path.dirname(os.path.abspath(path))))


def _allows(path: str | Path, access: int) -> bool:
    return os.access(path, access, effective_ids=os.access in os.supports_effective_ids)


def _connect_to_write(path: str | Path) -> sqlite3.Connection:
    if str(path) != ":memory:":
        with suppress(OSError):  # it exists, or SQLite will say why it cannot be created
            Path(path).touch(OWNER_ALONE, exist_ok=False)  # its write-ahead log gets the same mode
    # isolation_level=None is autocommit: every transaction is begun and ended explicitly.
    conn = sqlite3.connect(path, timeout=SILENT_S, isolation_level=None, check_same_thread=False)
    try:
        # When several processes switch a new file to WAL at once, SQLite refuses all but one without waiting.
        _insist(conn, "PRAGMA journal_mode = WAL")
        conn.execute("PRAGMA synchronous = FULL")
        conn.execute("PRAGMA foreign_keys = ON")
        conn.execute("PRAGMA secure_delete = ON")
    except BaseException as error:  # also an interrupt: nobody else knows this connection
        conn.close()
        if isinstance(error, UnicodeDecodeError):  # SQLite quotes a broken schema, and Python cannot decode it
            raise BrokenFile("malformed database schema") from error
        raise
    return conn


class ReadingConnection(sqlite3.Connection):
    """A connection to a file in a place where nothing can be written."""


def _connect_to_read(path: str | Path) -> ReadingConnection:
    """A read-only connection to the file and the write-ahead log beside it."""
    conn = _reading(path, "mode=ro", ReadingConnection)
    try:
        conn.execute("PRAGMA schema_version").fetchone()
        return conn
    except sqlite3.OperationalError:
        conn.close()
        # SQLite can read a log only with an index beside it; to ignore the log would hide its entries.
        if has_log(path):
            raise
    return _reading(path, "mode=ro&immutable=1", ReadingConnection)


def has_log(path: str | Path) -> bool:
    """Whether there is a non-empty write-ahead log beside a database."""
    return _size(f"{path}-wal") > 0


def _size(path: str | Path) -> int:
    try:
        return os.path.getsize(path) if os.path.isfile(path) else 0
    except OSError:  # gone meanwhile
        return 0


def _reading(path: str | Path, mode: str, kind: type[_Kind]) -> _Kind:
    uri = f"{Path(path).absolute().as_uri()}?{mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=kind)


def _insist(conn: sqlite3.Connection, statement: str) -> None:
    """Retry a statement while other processes hold the lock; a long wait is logged and can be interrupted."""
    begin, warned = time.monotonic(), False
    while True:
        try:
            conn.execute(statement)
            return
        except sqlite3.OperationalError as error:
            waited = time.monotonic() - begin
            if _code(error) not in _BUSY or waited > BUSY_TIMEOUT_S:
                raise
            if waited > SILENT_S and not warned:
                file, warned = conn.execute("PRAGMA database_list").fetchone()[2], True
                _logger.warning(
                    "waiting for %s: another process is writing to it (at most %.0f s)", file, BUSY_TIMEOUT_S
                )
        time.sleep(RETRY_S)


class BrokenFile(sqlite3.DatabaseError):
    """Damage that SQLite itself does not report as such."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


class DamagedConnection(sqlite3.Connection):
    """A connection to a file that SQLite refuses to work with."""


def connect_to_read_damaged(path: str | Path) -> DamagedConnection:
    """A read-only connection that reads what is left of a damaged file.

    SQLite refuses every query on a file that is shorter than its header says, unless the schema is declared
    writable; the connection is read-only, so nothing is written.
    """
    # Reading a write-ahead log leaves an index file behind; `immutable` avoids it when there is no log.
    mode = "mode=ro" if has_log(path) else "mode=ro&immutable=1"
    conn = _reading(path, mode, DamagedConnection)
    conn.execute("PRAGMA writable_schema = ON")
    conn.text_factory = lambda data: data.decode(errors="backslashreplace")
    return conn


@contextmanager
def transaction(conn: sqlite3.Connection, how: str = "IMMEDIATE") -> Iterator[None]:
    """All or nothing; IMMEDIATE takes the write lock at once, so that no later step fails because it is taken."""
    _insist(conn, f"BEGIN {how}")
    try:
        yield
        conn.execute("COMMIT")
    except BaseException:  # also an interrupt: all or nothing
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise


def is_damage(error: sqlite3.Error) -> bool:
    """Whether SQLite says that the file itself is broken."""
    return _code(error) in _DAMAGED or str(error).startswith(_DAMAGED_SAYS)


class ReadOnly(CallError):
    """Nothing can be written to this database now."""


def translate(error: sqlite3.Error, path: str | Path) -> QuireError:
    """An error of SQLite, other than damage, as one of ours with a hint."""
    if _code(error) in _BUSY:
        return ConflictError(
            f"{path} was locked by another process for {BUSY_TIMEOUT_S:.0f} s",
            hint="Try again when the other process has finished writing.",
        )
    if isinstance(error, sqlite3.ProgrammingError):
        return was_closed(path)
    if os.path.isfile(path) and not _allows(path, os.R_OK):
        return CallError(f"cannot read {path}: permission denied", hint="Check who may read it.")
    if _code(error) in _UNWRITABLE and os.path.isfile(path) and not may_write(path):
        copied = f"{path} and {path}-wal" if has_log(path) else "it"
        hint = f"Copy {copied} to a folder that you may write, and name the copy with --db or QUIRE_DB."
        return ReadOnly(f"{path} is read-only, or its folder or filesystem is", hint=hint)
    if _code(error) in _UNWRITABLE and not os.path.isdir(folder := os.path.dirname(os.path.abspath(path))):
        return CallError(f"cannot write {path}: there is no folder {folder}", hint="Make the folder first.")
    if _code(error) in _UNWRITABLE:
        return CallError(f"cannot write {path}: {error}", hint="Check that the path is a file you may write.")
    return QuireError(f"{path}: {error}", hint="Check the disk's space and health; nothing half-written was kept.")


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary error code; 0 for an error of Python's own layer."""
    code = getattr(error, "sqlite_errorcode", None)  # absent on errors that SQLite did not raise
    return (code or 0) & 0xFF


# The tables as numbered migrations; a file written by a newer Quire is refused.
#
# Every owner of tables in the file (the log, recall, records) counts its own migrations from 1. A released migration never
# changes; the next one is appended. They are scripts in the folder `sql`.

OWNER = "log"
# "QUIR": marks an SQLite database as a Quire file.
APPLICATION_ID = 0x51554952


def sql(name: str) -> str:
    """A script from the folder `sql`."""
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_text(encoding="utf-8")


def _migrations(name: str) -> tuple[str, ...]:
    """The parts of a script; each begins with the comment `-- Version N`."""
    return tuple(part.partition("\n")[2] for part in sql(name).split("-- Version ")[1:])


MIGRATIONS = _migrations("sqlite_log")
INDEX_MIGRATIONS, RECORD_MIGRATIONS = _migrations("sqlite_recall"), _migrations("sqlite_records")
# The owners of tables in a file, each with its migrations.
OWNERS = ((OWNER, MIGRATIONS), ("recall", INDEX_MIGRATIONS), ("records", RECORD_MIGRATIONS))


def statements(script: str) -> Iterator[str]:
    """The statements of a script one by one; sqlite3's `executescript` would commit the open transaction first."""
    begun = ""
    for part in script.split(";"):
        begun += part + ";"
        if sqlite3.complete_statement(begun):
            if begun.strip() != ";":
                yield begun
            begun = ""


def migrate(conn: sqlite3.Connection, path: str | Path, owners: Sequence[tuple[str, tuple[str, ...]]]) -> None:
    """Bring the file up to date for each owner, in one transaction; refuse a newer or a foreign file."""
    with transaction(conn, "DEFERRED"):  # one consistent view of the file
        pending = _pending(conn, path, owners)
    if not pending:
        return
    if isinstance(conn, ReadingConnection):
        raise CallError(
            f"{path} was written by an older Quire ({pending[0][0]} lacks version {pending[0][1]}), "
            "and cannot be brought up to date where it lies: it is read-only",
            hint="Copy it to a folder that you may write, and name the copy with --db or QUIRE_DB.",
        )
    conn.create_function("quire_sha256", 1, sha256_hex, deterministic=True)
    with transaction(conn):
        # Another process may have migrated before we got the lock.
        for owner, number, script in _pending(conn, path, owners):
            _apply(conn, owner, number, script)


def _apply(conn: sqlite3.Connection, owner: str, number: int, script: str) -> None:
    if owner == OWNER and number == 1:
        conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        conn.execute("CREATE TABLE versions (owner TEXT PRIMARY KEY, version INTEGER NOT NULL)")
    for statement in statements(script):
        conn.execute(statement)
    conn.execute("INSERT OR REPLACE INTO versions VALUES (?, ?)", (owner, number))
    if owner == OWNER:  # user_version is where SQLite tools look for a version
        conn.execute(f"PRAGMA user_version = {number}")


def _pending(
    conn: sqlite3.Connection, path: str | Path, owners: Sequence[tuple[str, tuple[str, ...]]]
) -> list[tuple[str, int, str]]:
    versions = _versions(conn, path)
    out = []
    for owner, scripts in owners:
        version = versions.get(owner, 0)
        if version > len(scripts):
            raise VersionError(
                f"{path} was written by a newer Quire ({owner} version {version}, this one knows {len(scripts)})"
            )
        out += [(owner, number, script) for number, script in enumerate(scripts, 1) if number > version]
    return out


def _versions(conn: sqlite3.Connection, path: str | Path) -> dict[str, int]:
    """The version of each owner's tables; none for an empty file."""
    application = _pragma(conn, "application_id")
    if application == APPLICATION_ID:
        versions: dict[str, int] = dict(conn.execute("SELECT owner, version FROM versions").fetchall())
        return {**versions, OWNER: max(versions.get(OWNER, 0), _pragma(conn, "user_version"))}
    tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if tables >= {"versions", "branches", "threads", "entries"}:
        raise BrokenFile(f"its header calls it {application:#010x}, which is not Quire's")
    if application or tables:
        raise CallError(
            f"{path} is another program's database, not a Quire file", hint="Choose another path with --db or QUIRE_DB."
        )
    return {}


def _pragma(conn: sqlite3.Connection, name: str) -> int:
    return int(conn.execute(f"PRAGMA {name}").fetchone()[0])
