"""The log in one SQLite file: durable appends, shared history, several processes at once.

A thread is a name for a branch; a branch is a stretch of entries behind some entry of its parent branch.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from quire.errors import CallError, ConflictError, DamageError, NotFound
from quire.log import branches, connection, verify
from quire.log.branches import TIP, Row, Tip, bad_entry
from quire.log.connection import connect, is_damage, transaction, translate
from quire.log.entries import check_entry, encode_body
from quire.log.hashing import canonical, chain
from quire.log.store import Hook, Store, ThreadInfo, Verified
from quire.log.turn_lock import hold_turn
from quire.values import Entry, Json

# What a thread may be called, and how an entry's id may be shortened.

MAX_NAME = 200
_ID = re.compile(r"(?:sha256:)?([0-9a-f]{1,64})\Z")


def check_name(name: str) -> None:
    """A CallError unless a name can stand on one line of a table and be typed again."""
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= MAX_NAME
        or not name.isprintable()
        or name != name.strip()
    ):
        raise CallError(
            f"{name!r} cannot be a thread's name",
            hint=f"Use 1 to {MAX_NAME} printable characters, no space at either end.",
        )


def id_range(prefix: str) -> tuple[str, str] | None:
    """The ids that begin so, as a range low <= id < high; None for what no id begins with: 'ab' -> 'sha256:ab' …."""
    match = _ID.match(prefix)
    if match is None:
        return None
    low = f"sha256:{match[1]}"
    return low, low + "g"  # behind every hexadecimal digit


_INFO = """
SELECT t.name, b.seq, b.tip, coalesce(p.name, ''), b.at_seq
FROM threads t JOIN branches b USING (branch) LEFT JOIN threads p ON p.branch = b.parent
"""


class _Opened:
    """A connection that closes with the OS thread that opened it, or with its store, whichever ends first."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self.conn = conn

    def __del__(self) -> None:
        self.conn.close()


class SqliteStore:
    """A `Store` in the file at `path`; hooks keep their own tables in step, in the same transactions.

    Each OS thread has its own connection, closed when that thread ends, so a store may be shared between threads.
    """

    def __init__(self, path: str | Path, hooks: Sequence[Hook] = ()) -> None:
        self.path = path
        self.hooks = tuple(hooks)
        self._local = threading.local()
        self._opened: weakref.WeakSet[_Opened] = weakref.WeakSet()
        # A database in memory has one connection, which OS threads take in turns.
        self._only: _Opened | None = None
        self._turns = threading.RLock() if str(path) == ":memory:" else nullcontext()
        self._workers: list[Callable[[], None]] = []
        with self._guard():
            self.connection()

    def _open(self) -> _Opened:
        conn = connect(self.path)
        owners = [(connection.OWNER, connection.MIGRATIONS)]
        owners += [(hook.name, hook.migrations) for hook in self.hooks]
        try:
            connection.migrate(conn, self.path, owners)
        except BaseException:
            conn.close()
            raise
        opened = _Opened(conn)
        self._opened.add(opened)
        return opened

    def connection(self) -> sqlite3.Connection:
        """This OS thread's connection, for the owners of hooks; they begin and end their own transactions."""
        if self._only is not None:
            return self._only.conn
        opened: _Opened | None = getattr(self._local, "opened", None)
        if opened is None:
            opened = self._local.opened = self._open()
            if str(self.path) == ":memory:":
                self._only = opened  # another connection would be another, empty database
        return opened.conn

    def before_close(self, end: Callable[[], None]) -> None:
        """Have `end` called before connections close: whoever works in another thread has to stop first."""
        self._workers.append(end)

    def close(self) -> None:
        while self._workers:
            self._workers.pop()()
        for opened in list(self._opened):
            opened.conn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """SQLite's errors in Quire's words: damage names the first bad entry."""
        try:
            with self._turns:
                yield
        except sqlite3.Error as error:
            if is_damage(error):
                raise verify.diagnose(self.path, str(error)) from error
            raise translate(error, self.path) from error

    @contextmanager
    def _transaction(self, how: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        with self._guard():
            conn = self.connection()
            with transaction(conn, how):
                yield conn

    def create(self, thread: str) -> None:
        """Make an empty thread; a CallError when the name is taken."""
        with self._transaction() as conn:
            self._name(conn, thread, branches.new_branch(conn))

    def append(self, thread: str, entries: Iterable[Entry], expected_seq: int | None = None) -> list[Entry]:
        """Append all or nothing, durably; a thread that does not exist yet is made."""
        checked = [check_entry(entry) for entry in entries]
        with self._transaction() as conn:
            branch, seq, tip = self._ensure(conn, thread)
            if expected_seq is not None and expected_seq != seq:
                now = f"is at seq {seq} ({tip})" if seq else "is empty (seq 0)"
                raise ConflictError(f"thread {thread!r} {now}, not at seq {expected_seq}")
            chained = list(chain(checked, parent=tip, seq=seq))
            branches.insert(conn, branch, chained)
            for hook in self.hooks:
                hook.appended(conn, thread, chained)
        return chained

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """The entries with seq > after, in order; a damaged one is an error that names it."""
        if after < 0 or (limit is not None and limit < 0):
            raise CallError(f"after is {after} and limit {limit}", hint="Give 0 or more; limit None for all.")
        # A thread that has nothing new, which is what most readers find, costs one statement.
        if limit is None and self._seq(thread) == after:
            return []
        with self._transaction("DEFERRED") as conn:
            _, end, _ = self._tip(conn, thread)
            wanted = max(end - after, 0) if limit is None else max(min(limit, end - after), 0)
            rows = branches.rows_of(conn, thread, after, wanted)
        return _entries(thread, rows, after, wanted)

    def _seq(self, thread: str) -> int:
        with self._guard():
            return self._tip(self.connection(), thread)[1]

    def info(self, thread: str) -> ThreadInfo:
        """Where a thread stands now."""
        with self._guard():
            self._tip(self.connection(), thread)
            row = self.connection().execute(_INFO + "WHERE t.name = ?", (thread,)).fetchone()
        return ThreadInfo(*row)

    def threads(self) -> list[ThreadInfo]:
        """All threads, oldest first."""
        with self._guard():
            rows = self.connection().execute(_INFO + "ORDER BY t.branch").fetchall()
        return [ThreadInfo(*row) for row in rows]

    def fork(self, thread: str, at_seq: int, name: str | None = None) -> str:
        """A new thread that shares everything up to at_seq without copying it; its name is thread@at_seq if not given."""
        with self._transaction() as conn:
            branch, seq, _ = self._tip(conn, thread)
            if not 0 <= at_seq <= seq:
                raise CallError(
                    f"cannot fork {thread!r} at seq {at_seq}: it ends at {seq}",
                    hint="Name the last entry to share, or 0 for none.",
                )
            name = name if name is not None else branches.free_name(conn, f"{thread}@{at_seq}")
            child = branches.new_branch(conn, *branches.source(conn, thread, at_seq))
            conn.execute("INSERT INTO windows SELECT ?, body FROM windows WHERE branch = ?", (child, branch))
            self._name(conn, name, child)
        return name

    def delete(self, thread: str) -> None:
        """Remove a thread and what no fork uses: the only way anything disappears."""
        with self._transaction() as conn:
            branch, _, _ = self._tip(conn, thread)
            conn.execute("DELETE FROM threads WHERE name = ?", (thread,))
            conn.execute("DELETE FROM windows WHERE branch = ?", (branch,))
            conn.execute("DELETE FROM state WHERE branch = ?", (branch,))
            branches.prune(conn, branch)
            for hook in self.hooks:
                hook.deleted(conn, thread)
        # What was deleted should not live on in the write-ahead log; a busy reader may put this off.
        with self._guard():
            self.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def verify(self, thread: str | None = None) -> Verified:
        """Re-derive every hash; a DamageError names the first bad entry."""
        with self._transaction("DEFERRED") as conn:
            if thread is None:
                return verify.verify_all(conn)
            self._tip(conn, thread)
            return verify.verify_thread(conn, thread)

    def find(self, entry_id: str) -> tuple[str, Entry] | None:
        """An entry by its id or a unique beginning of it, with the oldest thread that has it."""
        bounds = id_range(entry_id)
        if bounds is None:
            return None
        with self._transaction("DEFERRED") as conn:
            ids = conn.execute(
                "SELECT DISTINCT id FROM entries WHERE id >= ? AND id < ? LIMIT 2", bounds
            ).fetchall()
            if not ids:
                return None
            if len(ids) > 1:
                raise CallError(
                    f"{entry_id!r} begins several ids ({ids[0][0]}, {ids[1][0]}, …)",
                    hint="Give more of its digits.",
                )
            thread, seq = branches.first_holder(conn, ids[0][0])
        return thread, self.read(thread, after=seq - 1, limit=1)[0]

    def window(self, thread: str) -> Json:
        """The item window saved with a thread, None when there is none."""
        with self._guard():
            branch, _, _ = self._tip(self.connection(), thread)
            row = self.connection().execute("SELECT body FROM windows WHERE branch = ?", (branch,)).fetchone()
        try:
            return json.loads(row[0]) if row else None
        except ValueError as error:
            raise DamageError(
                f"the window saved with thread {thread!r} is damaged: {error}", thread=thread
            ) from error

    def save_window(self, thread: str, window: Json) -> None:
        """Keep a thread's item window with it; the thread is made when there is none."""
        with self._transaction() as conn:
            branch, _, _ = self._ensure(conn, thread)
            conn.execute("INSERT OR REPLACE INTO windows VALUES (?, ?)", (branch, _stored(window)))

    def get_state(self, thread: str, key: str) -> Json:
        """Derived state that may be thrown away at any time; None when absent."""
        with self._guard():
            branch, _, _ = self._tip(self.connection(), thread)
            query = "SELECT value FROM state WHERE branch = ? AND key = ?"
            row = self.connection().execute(query, (branch, key)).fetchone()
        return json.loads(row[0]) if row else None

    def set_state(self, thread: str, key: str, value: Json) -> None:
        """Keep derived state with a thread."""
        with self._transaction() as conn:
            branch, _, _ = self._tip(conn, thread)
            conn.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (branch, key, _stored(value)))

    def turn_lock(self, thread: str) -> AbstractContextManager[None]:
        """Hold a thread while its turn is carried out; a ConflictError when another cycle, anywhere, holds it."""
        if str(self.path) == ":memory:":
            return hold_turn(f"memory-{id(self)}", thread)
        place = os.path.realpath(self.path)
        return hold_turn(place, thread, place)

    def _tip(self, conn: sqlite3.Connection, thread: str) -> Tip:
        """A thread's branch, and the seq and id of its last entry."""
        found = _lookup(conn, thread)
        if found is None:
            raise _no_thread(thread)
        return found

    def _ensure(self, conn: sqlite3.Connection, thread: str) -> Tip:
        found = _lookup(conn, thread)
        if found is not None:
            return found
        branch = branches.new_branch(conn)
        self._name(conn, thread, branch)
        return branch, 0, ""

    def _name(self, conn: sqlite3.Connection, thread: str, branch: int) -> None:
        check_name(thread)
        if conn.execute("SELECT 1 FROM threads WHERE name = ?", (thread,)).fetchone():
            raise CallError(f"thread {thread!r} exists already", hint="Choose another name, or append to it.")
        conn.execute("INSERT INTO threads VALUES (?, ?)", (thread, branch))


def _stored(value: Json) -> str:
    canonical(value)  # refuses what is not JSON
    return encode_body(value)


def _lookup(conn: sqlite3.Connection, thread: str) -> Tip | None:
    check_name(thread)
    found: Tip | None = conn.execute(TIP, (thread,)).fetchone()
    return found


def _no_thread(thread: str) -> NotFound:
    return NotFound(
        f"there is no thread {thread!r}",
        hint="`quire log list` shows the threads; `quire log new` makes one.",
    )


def _entries(thread: str, rows: Sequence[Row], after: int, wanted: int) -> list[Entry]:
    """Entries from their rows; one that is missing or changed is an error that names it."""
    out = []
    for seq, (found, id, body, crc) in enumerate(rows, after + 1):
        if found != seq:
            raise bad_entry(thread, seq, "it is missing")
        try:
            value = verify.body_of(body, crc)
            out.append(Entry(value["kind"], value, seq, id.decode()))
        except (ValueError, KeyError, AttributeError) as error:
            raise bad_entry(thread, seq, str(error)) from error
    if len(out) != wanted:
        raise bad_entry(thread, after + len(out) + 1, "it is missing")
    return out


if TYPE_CHECKING:  # the type checker holds that this is a Store
    _: Store = SqliteStore("")
