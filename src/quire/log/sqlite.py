"""The log in one SQLite file: durable appends, shared history, several processes at once."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quire.log import LOCKS_FILES, TURNS_HELD, check_turn, file_lock, hold_turn, verify
from quire.log.connection import BUSY_TIMEOUT_S, connect, is_damage, migrate, transaction, translate, waiting
from quire.log.entries import check_entry, encode_row, entries_of
from quire.log.sqlite_tables import (
    SqliteIndex,
    SqliteRecords,
    SqliteTables,
    changes_of,
    forget_deleted,
    last_number,
    rows_of,
)
from quire.log.store import BranchStore, Change, Store, Verified, check_expected, check_page
from quire.values import Entry, chain

# Other processes' changes are found by looking, so often.
LOOK_S = 0.05


class SqliteStore(SqliteTables, BranchStore):
    """A `Store` in the file at `path`.

    Each OS thread has its own connection, closed when that thread ends, so a store may be shared between threads.
    """

    branch_query = "INSERT INTO branches (parent, at_seq, seq, tip) VALUES (?, ?, ?, ?) RETURNING branch"

    def __init__(self, path: str | Path) -> None:
        super().__init__()
        self.path = path
        self._file = SqliteFile(path)
        # By what turns are held.
        self.place = f"memory-{id(self)}" if self._file.in_memory else os.path.realpath(path)
        self._holds_files = LOCKS_FILES and not self._file.in_memory
        self.index, self.records = SqliteIndex(self._file), SqliteRecords(self._file)

    def connection(self) -> sqlite3.Connection:
        """This OS thread's connection, to look into the file; nothing in Quire asks for it."""
        return self._file.connection()

    def _end(self) -> None:
        self._file.close()

    def append(self, thread: str, entries: Iterable[Entry], expected_seq: int | None = None) -> list[Entry]:
        checked = [check_entry(entry) for entry in entries]
        with self._file.transaction() as conn:
            if TURNS_HELD.get():
                check_turn(self.place, thread, self._holds_files)
            branch, seq, tip = self._find_tip(thread)
            if not branch:
                branch = self._new_branch()
                self._name(thread, branch)
            check_expected(thread, expected_seq, seq, tip)
            chained = list(chain(checked, parent=tip, seq=seq))
            _insert(conn, branch, chained)
        return chained

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        check_page(after, limit)
        # A thread that has nothing new, which is what most readers find, costs one statement.
        if limit is None and self._tip(thread).seq == after:
            return []
        with self._file.transaction("DEFERRED") as conn:
            end = self._tip(thread).seq
            count = max(end - after, 0) if limit is None else max(min(limit, end - after), 0)
            rows = rows_of(conn, thread, after, count)
        return entries_of(thread, rows, after, count)

    def delete(self, thread: str) -> None:
        with self._file.transaction() as conn:
            branch, _, _ = self._tip(thread)
            conn.execute("DELETE FROM threads WHERE name = ?", (thread,))
            conn.execute("DELETE FROM windows WHERE branch = ?", (branch,))
            conn.execute("DELETE FROM state WHERE branch = ?", (branch,))
            conn.execute("DELETE FROM checkpoints WHERE branch = ?", (branch,))
            _prune(conn, branch)
            forget_deleted(conn)
        self._file.wipe()

    def verify(self, thread: str | None = None) -> Verified:
        with self._file.transaction("DEFERRED") as conn:
            if thread is None:
                return verify.verify_all(conn)
            self._tip(thread)
            return verify.verify_thread(conn, thread)

    def changes(self, after: int = 0, limit: int | None = None) -> list[Change]:
        check_page(after, limit)
        query = """
            SELECT n, branch, seq, CAST (id AS BLOB), CAST (body AS BLOB), crc FROM entries
            WHERE n > ? ORDER BY n LIMIT ?
        """
        with self._file.transaction("DEFERRED") as conn:
            rows = conn.execute(query, (after, -1 if limit is None else limit)).fetchall()
            return changes_of(conn, rows)

    def last_change(self) -> int:
        with self._file.guard() as conn:
            return last_number(conn)

    def wait_for_change(self, after: int, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while self.last_change() <= after:
            if (remaining_s := until - time.monotonic()) <= 0:
                return False
            time.sleep(min(remaining_s, LOOK_S))
        return True

    def turn_lock(self, thread: str) -> AbstractContextManager[None]:
        return hold_turn(self.place, thread, file_lock(self.place, thread) if self._holds_files else None)


if TYPE_CHECKING:  # the type checker holds that this is a Store
    _: Store = SqliteStore("")


# The file: a connection for each OS thread, transactions, errors in Quire's words.


class _ThreadConnection:
    """A connection that closes with the OS thread that opened it, or with its store, whichever ends first."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self.conn = conn
        # Held while it is used: SQLite ends the process where a connection is closed under somebody's hands.
        self.in_use = threading.RLock()
        # Not __del__: the collector may come upon the connection first, and it warns of being left open.
        weakref.finalize(self, conn.close)


class SqliteFile:
    """The file at `path`, brought up to date when it is opened; ":memory:" is a database of this object alone."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self._local = threading.local()
        self._opened: weakref.WeakSet[_ThreadConnection] = weakref.WeakSet()
        # A database in memory has one connection, which OS threads take in turns.
        self.in_memory = str(path) == ":memory:"
        self._only: _ThreadConnection | None = None
        with self.guard():
            pass

    def connection(self) -> sqlite3.Connection:
        """This OS thread's connection."""
        return self._opened_here().conn

    def _opened_here(self) -> _ThreadConnection:
        if self._only is not None:
            return self._only
        opened: _ThreadConnection | None = getattr(self._local, "opened", None)
        if opened is None:
            opened = self._local.opened = self._open()
            if self.in_memory:
                self._only = opened  # another connection would be another, empty database
        return opened

    def _open(self) -> _ThreadConnection:
        conn = connect(self.path)
        try:
            migrate(conn, self.path, verify.OWNERS)
        except BaseException:
            conn.close()
            raise
        opened = _ThreadConnection(conn)
        self._opened.add(opened)
        return opened

    @contextmanager
    def guard(self) -> Iterator[sqlite3.Connection]:
        """The connection; whatever goes wrong with it is one of our errors, and damage names the first bad entry."""
        try:
            opened = self._opened_here()
            with opened.in_use:
                yield opened.conn
        except sqlite3.Error as error:
            if is_damage(error):
                raise verify.diagnose(self.path, str(error)) from error
            raise translate(error, self.path) from error

    @contextmanager
    def transaction(self, how: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """The connection within a transaction: all that is done with it, or nothing."""
        with self.guard() as conn, transaction(conn, how):
            yield conn

    def wipe(self) -> None:
        """Take what was deleted out of the write-ahead log too; a busy reader may put this off."""
        with self.guard() as conn, waiting(conn):
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        """Close each connection once its OS thread is done with it; one that stays in use closes with that thread."""
        for opened in list(self._opened):
            if opened.in_use.acquire(timeout=BUSY_TIMEOUT_S):
                try:
                    opened.conn.close()
                finally:
                    opened.in_use.release()


def _insert(conn: sqlite3.Connection, branch: int, entries: Sequence[Entry]) -> None:
    """Write chained entries at the end of a branch; a trigger refuses any other place."""
    rows = []
    for n, entry in enumerate(entries, last_number(conn) + 1):
        body = encode_row(entry.body)
        rows.append((n, branch, entry.seq, entry.id, body, zlib.crc32(body.encode())))
    conn.executemany("INSERT INTO entries (n, branch, seq, id, body, crc) VALUES (?, ?, ?, ?, ?, ?)", rows)


# Branches removed.


def _prune(conn: sqlite3.Connection, branch: int | None) -> None:
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
