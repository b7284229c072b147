"""The SQLite file of a store: a connection for each OS thread, transactions, errors in Quire's words."""

from __future__ import annotations

import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from quire.log import verify
from quire.log.connection import connect, is_damage, migrate, transaction, translate


class _Opened:
    """A connection that closes with the OS thread that opened it, or with its store, whichever ends first."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self.conn = conn
        # Not __del__: the collector may come upon the connection first, and it warns of being left open.
        weakref.finalize(self, conn.close)


class SqliteFile:
    """The file at `path`, brought up to date when it is opened; ":memory:" is a database of this object alone."""

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self._local = threading.local()
        self._opened: weakref.WeakSet[_Opened] = weakref.WeakSet()
        # A database in memory has one connection, which OS threads take in turns.
        self.in_memory = str(path) == ":memory:"
        self._only: _Opened | None = None
        self._turns = threading.RLock() if self.in_memory else nullcontext()
        with self.guard():
            pass

    def connection(self) -> sqlite3.Connection:
        """This OS thread's connection."""
        if self._only is not None:
            return self._only.conn
        opened: _Opened | None = getattr(self._local, "opened", None)
        if opened is None:
            opened = self._local.opened = self._open()
            if self.in_memory:
                self._only = opened  # another connection would be another, empty database
        return opened.conn

    def _open(self) -> _Opened:
        conn = connect(self.path)
        try:
            migrate(conn, self.path, verify.OWNERS)
        except BaseException:
            conn.close()
            raise
        opened = _Opened(conn)
        self._opened.add(opened)
        return opened

    @contextmanager
    def guard(self) -> Iterator[sqlite3.Connection]:
        """The connection; whatever goes wrong with it is one of our errors, and damage names the first bad entry."""
        try:
            with self._turns:
                yield self.connection()
        except sqlite3.Error as error:
            if is_damage(error):
                raise verify.diagnose(self.path, str(error)) from error
            raise translate(error, self.path) from error

    @contextmanager
    def transaction(self, how: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """The same, all or nothing."""
        with self.guard() as conn, transaction(conn, how):
            yield conn

    def wipe(self) -> None:
        """Take what was deleted out of the write-ahead log too; a busy reader may put this off."""
        with self.guard() as conn:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        for opened in list(self._opened):
            opened.conn.close()
