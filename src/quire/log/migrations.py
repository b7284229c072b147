"""The tables of the log, as numbered migrations, and the rule that no old program opens a newer file.

Every owner of tables in the file (the log itself, and each hook) counts its own migrations from 1.
A released migration never changes; the next one is appended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from quire.errors import CallError, VersionError
from quire.log.connect import BrokenFile, ReadingConnection, transaction

OWNER = "log"
# "QUIR": tells a Quire file from any other SQLite database.
APPLICATION_ID = 0x51554952

_FIRST = """
CREATE TABLE branches (
    -- A stretch of entries. A fork is a branch that begins behind at_seq of its parent, so history is shared.
    branch INTEGER PRIMARY KEY AUTOINCREMENT,
    parent INTEGER REFERENCES branches (branch),
    at_seq INTEGER NOT NULL DEFAULT 0,
    -- Where the branch ends: kept by a trigger, so that a lost tail does not go unseen.
    seq INTEGER NOT NULL DEFAULT 0,
    tip TEXT NOT NULL DEFAULT ''
);
CREATE INDEX branches_by_parent ON branches (parent);
CREATE TABLE threads (
    name TEXT PRIMARY KEY,
    branch INTEGER NOT NULL UNIQUE REFERENCES branches (branch)
);
CREATE TABLE entries (
    n INTEGER PRIMARY KEY,
    branch INTEGER NOT NULL REFERENCES branches (branch),
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    -- The entry's JSON in the order given; crc is over these bytes, the id over their canonical form.
    body TEXT NOT NULL,
    crc INTEGER NOT NULL,
    UNIQUE (branch, seq)
);
CREATE INDEX entries_by_id ON entries (id);
CREATE TABLE windows (
    branch INTEGER PRIMARY KEY REFERENCES branches (branch) ON DELETE CASCADE,
    body TEXT NOT NULL
);
CREATE TABLE state (
    branch INTEGER NOT NULL REFERENCES branches (branch) ON DELETE CASCADE,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (branch, key)
) WITHOUT ROWID;
CREATE TABLE deleting (
    -- Deleting a thread declares here which entries go (seq > keep), and takes it back in the same transaction.
    branch INTEGER PRIMARY KEY,
    keep INTEGER NOT NULL
);
CREATE TRIGGER entries_never_change BEFORE UPDATE ON entries BEGIN
    SELECT RAISE (ABORT, 'entries never change');
END;
CREATE TRIGGER entries_never_go_alone BEFORE DELETE ON entries
WHEN NOT EXISTS (SELECT 1 FROM deleting WHERE branch = OLD.branch AND OLD.seq > keep) BEGIN
    SELECT RAISE (ABORT, 'entries go only with their thread');
END;
-- INSERT OR REPLACE would remove a row without asking the trigger above, so nothing may be inserted over another.
CREATE TRIGGER entries_only_at_the_end BEFORE INSERT ON entries
WHEN NEW.seq IS NOT (SELECT seq + 1 FROM branches WHERE branch = NEW.branch)
    OR EXISTS (SELECT 1 FROM entries WHERE n = NEW.n) BEGIN
    SELECT RAISE (ABORT, 'entries are only appended');
END;
CREATE TRIGGER entries_move_the_tip AFTER INSERT ON entries BEGIN
    UPDATE branches SET seq = NEW.seq, tip = NEW.id WHERE branch = NEW.branch;
END;
"""

MIGRATIONS: tuple[str, ...] = (_FIRST,)


def statements(script: str) -> Iterator[str]:
    """The single statements of a script: sqlite3's own executescript would commit before it begins."""
    begun = ""
    for part in script.split(";"):
        begun += part + ";"
        if sqlite3.complete_statement(begun):
            if begun.strip() != ";":
                yield begun
            begun = ""


def migrate(
    conn: sqlite3.Connection, path: str | Path, owners: Sequence[tuple[str, tuple[str, ...]]]
) -> None:
    """Bring the file up to date for each owner, in one transaction; refuse a newer or a foreign file."""
    with transaction(conn, "DEFERRED"):  # one view of the file, whatever other processes do meanwhile
        pending = _pending(conn, path, owners)
    if not pending:
        return
    if isinstance(conn, ReadingConnection):
        raise CallError(
            f"{path} was written by an older Quire ({pending[0][0]} lacks version {pending[0][1]}), "
            "and cannot be brought up to date where it lies: it is read-only",
            hint="Copy it to a folder that you may write, and name the copy with --db or QUIRE_DB.",
        )
    with transaction(conn):
        # Another process may have migrated between the look and the lock.
        for owner, number, script in _pending(conn, path, owners):
            _apply(conn, owner, number, script)


def _apply(conn: sqlite3.Connection, owner: str, number: int, script: str) -> None:
    if owner == OWNER and number == 1:
        conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        conn.execute("CREATE TABLE versions (owner TEXT PRIMARY KEY, version INTEGER NOT NULL)")
    for statement in statements(script):
        conn.execute(statement)
    conn.execute("INSERT OR REPLACE INTO versions VALUES (?, ?)", (owner, number))
    if owner == OWNER:  # also where every SQLite tool looks for a version
        conn.execute(f"PRAGMA user_version = {number}")


def _pending(
    conn: sqlite3.Connection, path: str | Path, owners: Sequence[tuple[str, tuple[str, ...]]]
) -> list[tuple[str, int, str]]:
    found = _versions(conn, path)
    out = []
    for owner, scripts in owners:
        version = found.get(owner, 0)
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
        found: dict[str, int] = dict(conn.execute("SELECT owner, version FROM versions").fetchall())
        return {**found, OWNER: max(found.get(OWNER, 0), _pragma(conn, "user_version"))}
    tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if tables >= {"versions", "branches", "threads", "entries"}:
        raise BrokenFile(f"its header calls it {application:#010x}, which is not Quire's")
    if application or tables:
        raise CallError(
            f"{path} is another program's database, not a Quire file",
            hint="Choose another path with --db or QUIRE_DB.",
        )
    return {}


def _pragma(conn: sqlite3.Connection, name: str) -> int:
    return int(conn.execute(f"PRAGMA {name}").fetchone()[0])
