"""The log in one SQLite file: durable appends, shared history, several processes at once.

The words and vectors of an entry are deleted with it.
"""

from __future__ import annotations

import heapq
import json
import os
import sqlite3
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from quire.errors import QuireError
from quire.log import LOCKS_FILES, TURNS_HELD, check_turn, file_at, file_lock, hold_turn, is_held, verify
from quire.log.connection import BUSY_TIMEOUT_S, OWNERS, SILENT_S, connect, is_damage, migrate, transaction, translate
from quire.log.entries import Row, check_entry, encode_row, entries_of, entry_of
from quire.log.store import (
    FORK_LOCK,
    Change,
    EntryWords,
    Forking,
    RecordFilter,
    RecordRow,
    Store,
    Stretch,
    Verification,
    check_expected,
    check_page,
    look_for_change,
)
from quire.log.tables import BODY, BranchIndex, BranchStore, RecordQueries, Tables, sound_body
from quire.log.verify import ROWS, holder_of, pieces_of
from quire.values import Entry, chain, sha256_hex

# The file: a connection for each OS thread, transactions, SQLite's errors as Quire's.


class _ThreadConnection:
    """A connection that closes with the OS thread that opened it, or with its store, whichever ends first."""

    conn: sqlite3.Connection | None = None
    close: weakref.finalize[[sqlite3.Connection, threading.RLock], _ThreadConnection]
    # How many nested uses of it are under way.
    uses = 0

    def __init__(self) -> None:
        # Held while the connection is used: closing one that is in use crashes the process.
        self.in_use = threading.RLock()


def _close(conn: sqlite3.Connection, in_use: threading.RLock) -> None:
    held = FORK_LOCK.acquire(timeout=SILENT_S)  # with a timeout: a forking OS thread may be waiting for this one
    try:
        if in_use.acquire(timeout=SILENT_S):  # a daemon may still use it when the process ends
            conn.close()
            in_use.release()
    finally:
        if held:
            FORK_LOCK.release()


class SqliteFile(Forking):
    """The file at `path`, migrated when it is opened; ":memory:" is a database of this object alone."""

    def __init__(self, path: str | Path) -> None:
        # A database in memory has one connection, which OS threads use in turns.
        self.in_memory = str(path) == ":memory:"
        # Absolute, so that every OS thread opens the same file even after the process changed its working folder.
        self._given_path = os.path.abspath(path)
        # Without symbolic links: the write-ahead log lies beside the real file.
        self.path = path if self.in_memory else os.path.realpath(path)
        self._file_identity: tuple[int, int] | None = None
        self._only = _ThreadConnection() if self.in_memory else None
        self._outlive_forks()
        with self.guard():
            pass

    def _begin_anew(self) -> None:
        self._local = threading.local()
        self._opened = weakref.WeakSet[_ThreadConnection]()
        self._held_over_fork: list[_ThreadConnection] = []
        if self._only is not None:
            self._only.in_use = threading.RLock()
            self._opened.add(self._only)

    def _before_fork(self) -> None:
        """Close and hold the connections of other OS threads once they are idle; one that is used here stays open."""
        mine = getattr(self._local, "opened", None)
        wait_s = BUSY_TIMEOUT_S if mine is None or not mine.uses else 0
        for opened in self._opened:
            if opened.in_use.acquire(timeout=wait_s):
                self._held_over_fork.append(opened)
                if opened.conn is not None and opened.close.alive and not (opened.uses or self.in_memory):
                    opened.close()
                    opened.conn = None

    def _after_fork(self) -> None:
        while self._held_over_fork:
            self._held_over_fork.pop().in_use.release()

    def _opened_here(self) -> _ThreadConnection:
        opened: _ThreadConnection | None = self._only or getattr(self._local, "opened", None)
        if opened is None:
            with FORK_LOCK:
                opened = self._local.opened = _ThreadConnection()
                self._opened.add(opened)
        return opened

    def _open(self, opened: _ThreadConnection) -> sqlite3.Connection:
        """The connection, opened if it is not; an error if the file was replaced, since a write to it would be lost."""
        if opened.uses == 1 and self._file_identity not in (None, file_at(self._given_path)):
            hint = f"Put it back beside {self.path}-wal, which may hold what was written last, or open it anew."
            raise QuireError(f"{self._given_path} was moved, deleted or replaced while it was open", hint=hint)
        if opened.conn is None:
            conn = connect(self.path)
            try:
                migrate(conn, self.path, OWNERS)
            except BaseException:  # also an interrupt: nobody else knows this connection
                conn.close()
                raise
            # Not __del__: the garbage collector may reach the connection first, which then warns that it was left open.
            opened.conn, opened.close = conn, weakref.finalize(opened, _close, conn, opened.in_use)
            self._file_identity = None if self.in_memory else file_at(self._given_path)
        return opened.conn

    @contextmanager
    def guard(self) -> Iterator[sqlite3.Connection]:
        """The connection; SQLite's errors become Quire's, and for damage the error names the first bad entry."""
        try:
            opened = self._opened_here()
            with opened.in_use:
                opened.uses += 1
                try:
                    yield self._open(opened)
                finally:
                    opened.uses -= 1
        except sqlite3.Error as error:
            if is_damage(error):
                raise verify.diagnose(self.path, str(error)) from error
            raise translate(error, self.path) from error

    @contextmanager
    def transaction(self, how: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """The connection within a transaction."""
        with self.guard() as conn, transaction(conn, how):
            yield conn

    def wipe(self) -> None:
        """Remove deleted data from the write-ahead log too; a busy reader may delay this."""
        until = time.monotonic() + BUSY_TIMEOUT_S
        with self.guard() as conn:
            # Nobody can write while a checkpoint waits for readers, so each try is short.
            while conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] and time.monotonic() < until:
                time.sleep(SILENT_S)

    def close(self) -> None:
        """Close each connection once it is idle; one that stays in use closes with its OS thread."""
        with FORK_LOCK:
            all_opened = list(self._opened)
        for opened in all_opened:
            if opened.in_use.acquire(timeout=BUSY_TIMEOUT_S):
                try:
                    if opened.conn is not None:
                        opened.close.detach()
                        opened.conn.close()
                finally:
                    opened.in_use.release()


# The values of a JSON list that is passed as one parameter.
_LISTED = "(SELECT value FROM json_each(?))"


class SqliteTables(Tables):
    """Tables in the file of a SqliteStore."""

    _file: SqliteFile

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        with self._file.guard() as conn:
            return conn.execute(query, values).fetchall()

    def _write(self, query: str, values: Sequence[object] = (), durable: bool = True) -> list[Any]:
        with self._file.guard() as conn, nullcontext() if conn.in_transaction else transaction(conn):
            return conn.execute(query, values).fetchall()

    def _transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        return self._file.transaction()


def last_number(conn: sqlite3.Connection) -> int:
    """The number of the newest entry there ever was, deleted or not; numbers are never reused."""
    query = "SELECT max(last, coalesce((SELECT max(n) FROM entries), 0)) FROM numbers"
    return int(conn.execute(query).fetchone()[0])


def changes_of(conn: sqlite3.Connection, rows: Iterable[tuple[int, int, int, bytes, bytes, int]]) -> list[Change]:
    """Changes from the number, branch and row of each entry, each with the oldest thread that holds it."""
    changes = []
    # A named branch is older than all its forks; only entries of an unnamed one need a query each.
    named = dict(conn.execute("SELECT branch, name FROM threads"))
    for n, branch, seq, id, body, crc in rows:
        thread = named.get(branch) or holder_of(conn, branch, seq)
        changes.append(Change(n, thread, entry_of(thread, (seq, id, body, crc))))
    return changes


def rows_of(conn: sqlite3.Connection, thread: str, after: int, count: int) -> list[Row]:
    """The first `count` rows of a thread behind seq `after`, read stretch by stretch, so that a page costs only its rows."""
    rows: list[Row] = []
    for piece in pieces_of(conn, thread):
        if piece.high > after and len(rows) < count:
            bounds = (piece.branch, max(piece.low, after), piece.high, count - len(rows))
            rows += conn.execute(ROWS, bounds).fetchall()
    return rows


# The words and vectors of entries.

# Nothing derived is stored for an entry that was deleted meanwhile.
_STORED = "WHERE EXISTS (SELECT 1 FROM entries WHERE id = ?)"
_INSERT = f"INSERT OR REPLACE INTO recall_entries SELECT NULL{', ?' * 13} {_STORED}"
_WORDS = """
SELECT e.seq, e.id, r.entry, r.kind, r.rules, r.speaker, r.session, r.call_id, r.at, r.asks, r.person, r.times,
    r.length, r.words, r.names
FROM entries e LEFT JOIN recall_entries r ON r.entry = e.id
WHERE e.branch = ? AND e.seq > ? AND e.seq <= ? ORDER BY e.seq
"""
_UNWORDED = """
SELECT e.n, e.branch, e.seq, CAST (e.id AS BLOB), CAST (e.body AS BLOB), e.crc FROM entries e
WHERE e.n > ? AND NOT EXISTS (SELECT 1 FROM recall_entries r WHERE r.entry = e.id AND r.rules = ?)
ORDER BY e.n LIMIT ?
"""
_UNMEANT = """
SELECT r.n, r.entry FROM recall_entries r WHERE r.n > ? AND r.kind != 'call' AND NOT EXISTS (
    SELECT 1 FROM recall_vectors v WHERE v.owner = 'entry' AND v.key = r.entry AND v.model = ?)
ORDER BY r.n LIMIT ?
"""
_SINCE = "SELECT key, vector FROM recall_vectors WHERE n > ? AND model = ? ORDER BY n"
_OF_STRETCH = """
SELECT e.id, v.vector FROM entries e
JOIN recall_vectors v ON v.owner = 'entry' AND v.key = e.id AND v.model = ?
WHERE e.branch = ? AND e.seq > ? AND e.seq <= ?
"""
_SAVE = f"INSERT OR REPLACE INTO recall_vectors (owner, key, model, vector) SELECT 'entry', ?, ?, ? {_STORED}"


class SqliteIndex(SqliteTables, BranchIndex):
    """An `Index` in the file of a SqliteStore."""

    kept_by_writers: ClassVar[bool] = True

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def snapshot(self) -> AbstractContextManager[object]:
        return self._file.transaction("DEFERRED")

    def entries(self, stretch: Stretch) -> list[Entry]:
        with self._file.guard() as conn:
            bounds = (stretch.branch, stretch.low, stretch.high, -1)
            rows = conn.execute(ROWS, bounds).fetchall()
            thread = holder_of(conn, stretch.branch, stretch.high)
        return entries_of(thread, rows, stretch.low, len(rows))

    def add(self, words: Iterable[EntryWords]) -> None:
        if rows := [(*msgspec.structs.astuple(row), row.entry) for row in words]:
            with self._file.transaction() as conn:
                conn.executemany(_INSERT, rows)

    def words(self, stretch: Stretch) -> list[tuple[int, str, EntryWords | None]]:
        rows = self._rows(_WORDS, (stretch.branch, stretch.low, stretch.high))
        return [(row[0], row[1], EntryWords(*row[2:]) if row[2] is not None else None) for row in rows]

    def without_words(self, after: int, rules: int, limit: int) -> list[Change]:
        with self._file.guard() as conn:
            return changes_of(conn, conn.execute(_UNWORDED, (after, rules, limit)).fetchall())

    def add_vectors(self, model: str, dimensions: int, vectors: Mapping[str, bytes]) -> None:
        with self._file.transaction() as conn:
            conn.executemany(_SAVE, [(key, model, vector, key) for key, vector in vectors.items()])

    def vectors(self, model: str, after: int = 0, of: Stretch | None = None) -> list[tuple[str, bytes]]:
        if of is None:
            return self._rows(_SINCE, (after, model))
        return self._rows(_OF_STRETCH, (model, of.branch, of.low, of.high))

    def vectors_of(self, model: str, entries: Sequence[str]) -> list[tuple[str, bytes]]:
        query = f"SELECT key, vector FROM recall_vectors WHERE owner = 'entry' AND model = ? AND key IN {_LISTED}"
        return self._rows(query, (model, json.dumps(list(entries))))

    def nearest(self, model: str, dimensions: int, vector: bytes, most: int) -> list[str] | None:
        return None

    def newest_vector(self) -> int:
        return int(self._rows("SELECT coalesce(max(n), 0) FROM recall_vectors")[0][0])

    def without_vectors(self, model: str, after: int, limit: int | None) -> list[tuple[int, str]]:
        return self._rows(_UNMEANT, (after, model, -1 if limit is None else limit))

    def state(self, key: str, parts: Sequence[str]) -> dict[str, bytes]:
        query = f"SELECT part, data FROM recall_state WHERE scope = ? AND part IN {_LISTED}"
        return dict(self._rows(query, (key, json.dumps(list(parts)))))

    def save_state(self, key: str, parts: Mapping[str, bytes]) -> None:
        with self._file.transaction() as conn:
            conn.execute("DELETE FROM recall_state WHERE scope = ?", (key,))
            rows = [(key, part, data) for part, data in parts.items()]
            conn.executemany("INSERT INTO recall_state VALUES (?, ?, ?)", rows)

    def clear(self) -> None:
        with self._file.transaction() as conn:
            for table in ("recall_entries", "recall_vectors", "recall_state"):
                conn.execute(f"DELETE FROM {table}")


# Records.


class SqliteRecords(SqliteTables, RecordQueries):
    """A `RecordTable` in the file of a SqliteStore."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    def insert(self, rows: Sequence[Callable[[int], RecordRow]]) -> list[str]:
        query = "INSERT INTO records (schema_name, version, change, body) VALUES ('', 1, 0, '')"
        with self._file.transaction() as conn:
            numbered = []
            for row in rows:
                n = conn.execute(query).lastrowid
                assert n is not None
                numbered.append(row(n))
                _write(conn, numbered[-1])
        return [row.body for row in numbered]

    def update(self, row: RecordRow, seen: int) -> bool:
        with self._file.transaction() as conn:
            if self._version(row.n) != seen:
                return False
            _write(conn, row)
        return True

    def select(self, wanted: RecordFilter, newest_first: bool = False) -> Iterator[str]:
        with self._file.guard() as conn:
            if newest_first:
                yield from self._by_change(conn, wanted)
                return
            where, values = self._where(wanted)
            for row in conn.execute(f"SELECT {BODY} FROM records WHERE {where} ORDER BY n", values):
                yield sound_body(row)

    def _by_change(self, conn: sqlite3.Connection, criteria: RecordFilter) -> Iterator[str]:
        """The last changed first: one cursor for each schema, so that each can use the index."""
        schemas: Iterable[tuple[str, ...]] = [(schema,) for schema in criteria.schemas] or [()]
        cursors = []
        for names in schemas:
            where, values = self._where(msgspec.structs.replace(criteria, schemas=names))
            query = f"SELECT change, {BODY} FROM records WHERE {where} ORDER BY change DESC"
            cursors.append(conn.execute(query, values))
        for _, *row in heapq.merge(*cursors, key=lambda row: -row[0]):
            yield sound_body(row)

    def matching(self, words: Sequence[str], wanted: RecordFilter, most: int) -> list[str]:
        if not words:
            return []
        where, values = self._where(wanted)
        query = f"""
            SELECT {BODY} FROM record_words CROSS JOIN records ON n = record_words.rowid
            WHERE record_words MATCH ? AND {where} ORDER BY bm25(record_words), n LIMIT ?
        """
        any_of = " OR ".join(f'"{word}"' for word in words)
        return [sound_body(row) for row in self._rows(query, (any_of, *values, most))]

    def frequencies(self, words: Sequence[str]) -> dict[str, int]:
        query = "SELECT count(*) FROM record_words WHERE record_words MATCH ?"
        return {word: int(self._rows(query, (f'"{word}"',))[0][0]) for word in words}

    def texts(self, numbers: Sequence[int]) -> list[str]:
        query = f"SELECT rowid, text FROM record_words WHERE rowid IN {_LISTED}"
        texts = dict(self._rows(query, (json.dumps(list(numbers)),)))
        return [texts.get(n, "") for n in numbers]

    def add_vectors(self, model: str, vectors: Sequence[tuple[int, int, bytes]]) -> None:
        query = """
            INSERT OR REPLACE INTO record_vectors SELECT n, ?, version, ? FROM records WHERE n = ? AND version = ?
        """
        with self._file.transaction() as conn:
            conn.executemany(query, [(model, vector, n, version) for n, version, vector in vectors])

    def _wipe(self) -> None:
        self._file.wipe()

    def _remove(self, numbers: Sequence[int]) -> None:
        listed = (json.dumps(list(numbers)),)
        self._write(f"DELETE FROM record_words WHERE rowid IN {_LISTED}", listed)
        for table in ("record_vectors", "record_tags", "record_changes", "records"):
            self._write(f"DELETE FROM {table} WHERE n IN {_LISTED}", listed)
        if numbers:
            # FTS5 only marks deleted words; `optimize` merges its parts and so removes them from the file.
            self._write("INSERT INTO record_words (record_words) VALUES ('optimize')")


def _write(conn: sqlite3.Connection, row: RecordRow) -> None:
    """Insert a version: into the changes, as the current version, and into the word index."""
    sha256 = sha256_hex(row.body)
    query = "INSERT INTO record_changes (n, version, body, sha256) VALUES (?, ?, ?, ?)"
    change = conn.execute(query, (row.n, row.version, row.body, sha256)).lastrowid
    conn.execute(
        "UPDATE records SET schema_name = ?, version = ?, change = ?, expires_at = ?, body = ?, sha256 = ? WHERE n = ?",
        (row.schema, row.version, change, row.expires_at, row.body, sha256, row.n),
    )
    conn.execute("DELETE FROM record_tags WHERE n = ?", (row.n,))
    conn.executemany("INSERT INTO record_tags VALUES (?, ?)", [(tag, row.n) for tag in row.tags])
    conn.execute("DELETE FROM record_words WHERE rowid = ?", (row.n,))
    conn.execute("INSERT INTO record_words (rowid, text) VALUES (?, ?)", (row.n, row.text))


# Threads of entries.

# How often to look for changes of other processes.
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
        # Turns are locked by this and the thread's name.
        self.place = f"memory-{id(self)}" if self._file.in_memory else os.path.realpath(path)
        self._holds_files = LOCKS_FILES and not self._file.in_memory
        self.index, self.records = SqliteIndex(self._file), SqliteRecords(self._file)

    def connection(self) -> sqlite3.Connection:
        """This OS thread's connection, for users who want to look into the file; Quire itself does not call this."""
        with self._file.guard() as conn:
            return conn

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
            rows = []
            for n, entry in enumerate(chained, last_number(conn) + 1):
                body = encode_row(entry.body)
                rows.append((n, branch, entry.seq, entry.id, body, zlib.crc32(body.encode())))
            # A trigger refuses any place but the end of the branch.
            conn.executemany("INSERT INTO entries (n, branch, seq, id, body, crc) VALUES (?, ?, ?, ?, ?, ?)", rows)
        return chained

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        check_page(after, limit)
        # Most reads find nothing new; they cost one statement.
        if limit is None and self._tip(thread).seq == after:
            return []
        with self._file.transaction("DEFERRED") as conn:
            end = self._tip(thread).seq
            count = max(end - after, 0) if limit is None else max(min(limit, end - after), 0)
            rows = rows_of(conn, thread, after, count)
        return entries_of(thread, rows, after, count)

    def delete(self, thread: str) -> None:
        super().delete(thread)
        self._file.wipe()

    def _cut(self, branch: int, keep: int) -> list[bytes]:
        # A trigger refuses every deletion that is not announced in the table `deleting`.
        self._write("UPDATE numbers SET last = ?", (self.last_change(),))
        self._write("INSERT INTO deleting VALUES (?, ?)", (branch, keep))
        ids = super()._cut(branch, keep)
        self._write("DELETE FROM deleting WHERE branch = ?", (branch,))
        return ids

    def _forget(self, ids: list[bytes]) -> None:
        unheld = "NOT EXISTS (SELECT 1 FROM entries WHERE entries.id = "
        self._write("DELETE FROM recall_state")
        self._write(f"DELETE FROM recall_entries WHERE {unheld}recall_entries.entry)")
        self._write(f"DELETE FROM recall_vectors WHERE {unheld}recall_vectors.key)")

    def verify(self, thread: str | None = None) -> Verification:
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
        return look_for_change(self, after, timeout_s, LOOK_S)

    def turn_lock(self, thread: str) -> AbstractContextManager[None]:
        return hold_turn(self.place, thread, file_lock(self.place, thread) if self._holds_files else None)

    def turn_held(self, thread: str) -> bool:
        return is_held(self.place, thread, self._holds_files)


if TYPE_CHECKING:  # lets the type checker verify that this is a Store
    _: Store = SqliteStore("")
