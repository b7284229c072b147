"""The log on a PostgreSQL server: many processes on many machines; no tenant can reach another's rows.

A tenant's appends are numbered and committed one after the other, as in a file; concurrent appends of one process share
a commit. Tenants do not wait for each other.
"""

from __future__ import annotations

import hashlib
import os
import queue
import random
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
import psycopg

from quire.errors import CallError, ConflictError
from quire.log import busy, hold_turn, new_fence, own_fence, taken_over, verify
from quire.log.entries import Row, check_entry, encode_row, entries_of
from quire.log.postgres_connection import (
    BYTEA,
    LOOK_S,
    RECONNECT_S,
    TEXT,
    Connection,
    LostConnection,
    Statement,
    TenantSession,
    bytes_array,
    holder_name,
    number_array,
    receive,
    send,
    translate,
)
from quire.log.postgres_tables import ROW, PostgresIndex, PostgresRecords, PostgresTables, digest, written_id
from quire.log.store import Change, Store, Stretch, Verification, check_expected, check_name, check_page, no_thread
from quire.log.tables import PIECES, BranchStore, Tip
from quire.values import Entry, chain

_TIP_ID = "coalesce('sha256:' || encode(nullif(b.tip, ''), 'hex'), '')"
# Read stretch by stretch, so that a page costs only its own rows; a thread without entries gives one row of nulls.
_READ = f"""
{PIECES.format(tables="quire.", owner="tenant, ")}
select (select max(high) from piece), e.*
from (values (1)) as one (row) left join (
    select e.* from (select * from piece order by low, high) p cross join lateral (
        select {ROW} from quire.entries e
        where e.branch = p.branch and e.seq > greatest(p.low, ?) and e.seq <= p.high
        order by e.seq limit ?
    ) e order by e.seq limit ?
) e on true order by e.seq
"""
_APPEND_ONE = b"select quire.append_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
_APPEND = b"select quire.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
# Every transaction that appends, forks or deletes locks its tenant's row.
_HOLD = "select change, branch from quire.tenants for update"
_UNLOCK = "select pg_advisory_unlock(%s)"
_IS_LOCKED = """
select 1 from pg_locks l join pg_database d on d.oid = l.database
where l.locktype = 'advisory' and l.objsubid = 1 and d.datname = current_database()
    and (l.classid::bigint << 32) | l.objid::bigint = %s
"""
_NEW_BRANCH = """
with made as (update quire.tenants set branch = branch + 1 returning tenant, branch)
insert into quire.branches (tenant, branch, parent, at_seq, seq, tip)
select tenant, branch, ?::bigint, ?::bigint, ?::bigint, ?::bytea from made returning branch
"""
_TRIES: Final = 1000
_dice = random.Random(secrets.randbits(128))
_PAGE: Final = 2000


class _Append:
    """One append: entries behind `tip`, and their bodies as rows store them.

    Unless `fixed`, it is moved behind the end that this process knows when it is sent.
    """

    def __init__(
        self, thread: str, entries: Sequence[Entry], bodies: Sequence[bytes], tip: Tip, fence: int, fixed: bool
    ) -> None:
        self.thread, self.bodies, self.fence, self.fixed = thread, bodies, fence, fixed
        self.token = _dice.getrandbits(62)
        self._unchained = entries
        self.stand_behind(tip)

    def stand_behind(self, tip: Tip) -> None:
        self.tip = tip
        self.entries = list(chain(self._unchained, tip.id, tip.seq))
        self.end = Tip(tip.branch, self.entries[-1].seq, self.entries[-1].id) if self.entries else tip


# Whether an append was stored (None: refused because the turn is another's), and where its thread ends now, if known.
_Answer: TypeAlias = tuple[bool | None, Tip | None]
# A commit: sent by the first step of the generator, its answers read by the second.
_Commit: TypeAlias = Generator[None, None, list[_Answer]]


class PostgresStore(PostgresTables, BranchStore):
    """A `Store` of one tenant in the database at `url`; the first search of an entry makes its words."""

    raw_text, tip_id, branch_query, nameless = "{}", _TIP_ID, _NEW_BRANCH, ", nameless = true"
    _kept_id, _written_id = staticmethod(digest), staticmethod(written_id)
    index: PostgresIndex

    def __init__(self, url: str, tenant: str = "default") -> None:
        super().__init__()
        self.tenant, self._tenant_bytes = tenant, tenant.encode()
        self._session = TenantSession(url, tenant)
        # Turns are locked by `place` and the thread's name.
        self.path, self.place = self._session.database.name, self._session.place
        self.index, self.records = PostgresIndex(self._session), PostgresRecords(self._session)
        # Where threads ended when last seen: an append tries there without asking, and is refused if it is wrong.
        self._tips: dict[str, Tip] = {}
        self._commits = _SharedCommits(self._commit)

    def _end(self) -> None:
        """Release the process's connections, which close with the last store that uses them."""
        if not self._session.is_closed and self._session.database.process == os.getpid():
            self._commits.close()
            self._session.close()

    # Appending

    def append(self, thread: str, entries: Iterable[Entry], expected_seq: int | None = None) -> list[Entry]:
        check_name(thread)
        self._session.check_open()
        checked = [check_entry(entry) for entry in entries]
        bodies = [encode_row(entry.body).encode() for entry in checked]
        until = time.monotonic() + RECONNECT_S
        unanswered: list[_Append] = []
        tip = self._tips.get(thread)
        for _ in range(_TRIES):
            if tip is None or expected_seq not in (None, tip.seq):
                tip = self._find_tip(thread)
                check_expected(thread, expected_seq, tip.seq, tip.id)
            # An unanswered attempt may still be written at the end it expected, so this one must expect the same end.
            fixed = expected_seq is not None or bool(unanswered)
            attempt = _Append(thread, checked, bodies, tip, own_fence(self.place, thread), fixed)
            try:
                stored, tip = self._commits.ask(attempt)
            except LostConnection:
                unanswered.append(attempt)
                if time.monotonic() > until:
                    raise
                stored = False
            if unanswered and not stored:
                tip = self._find_tip(thread)
                if written := self._find_written(unanswered):
                    attempt, stored = written, True
                    self._note(thread, None)
                unanswered = [lost for lost in unanswered if lost.tip == tip]
            if stored is None:
                raise taken_over(thread)
            if stored:
                return attempt.entries
        raise ConflictError(f"thread {thread!r} is being appended to by others without a pause")

    def _find_written(self, unanswered: Sequence[_Append]) -> _Append | None:
        """The attempt that was written although its connection was lost, if any."""
        for attempt in unanswered:
            at = (attempt.thread, attempt.tip.seq + 1, attempt.token)
            if attempt.entries and self._rows(f"{self._place} AND e.token = ?", at):
                return attempt
        return None

    def _note(self, thread: str, tip: Tip | None) -> None:
        if tip is None:
            self._tips.pop(thread, None)
            return
        if len(self._tips) > 100_000:
            self._tips.clear()
        self._tips[thread] = tip

    def _commit(self, appends: Sequence[_Append]) -> _Commit:
        """Send several appends; when resumed, read their answers and notify listeners."""
        for append in appends:
            if not append.fixed and (tip := self._tips.get(append.thread, append.tip)) != append.tip:
                append.stand_behind(tip)
        is_single = len(appends) == 1 and appends[0].tip.branch and len(appends[0].entries) == 1
        statement = self._append_one(appends[0]) if is_single else self._append_any(appends)
        database = self._session.database
        conn = database.take_connection()
        try:
            send(conn, statement)
            yield
            cell = receive(conn, statement)
        except psycopg.Error as error:
            raise translate(error, database.name) from error
        finally:
            database.give_back(conn)
        newest, answers = (_read_one if is_single else _read_any)(cell, appends)
        for append, (_, end) in zip(appends, answers, strict=True):
            self._note(append.thread, end)
        if newest:
            database.news.announce(self.tenant, newest)
        return answers

    def _append_one(self, append: _Append) -> Statement:
        """The statement that appends one entry to an existing thread."""
        tip, id, body = append.tip, append.end.id, append.bodies[0]
        place = append.thread.encode(), b"%d" % tip.branch, b"%d" % tip.seq, b"\\x" + tip.id[7:].encode()
        entry = b"%d" % append.token, b"\\x" + id[7:].encode(), body, b"%d" % zlib.crc32(body)
        return Statement(_APPEND_ONE, (self._tenant_bytes, *place, b"%d" % append.fence, *entry))

    def _append_any(self, appends: Sequence[_Append]) -> Statement:
        """The statement that appends to several threads and makes missing ones."""
        entries = [(owner, entry) for owner, append in enumerate(appends, 1) for entry in append.entries]
        bodies = [body for append in appends for body in append.bodies]
        values = [
            self._tenant_bytes,
            bytes_array([append.thread.encode() for append in appends], TEXT),
            number_array([append.tip.branch for append in appends]),
            number_array([append.tip.seq for append in appends]),
            bytes_array([digest(append.tip.id) for append in appends], BYTEA),
            number_array([append.fence for append in appends]),
            number_array([append.token for append in appends]),
            number_array([append.end.seq for append in appends]),
            bytes_array([digest(append.end.id) for append in appends], BYTEA),
            number_array([owner for owner, _ in entries]),
            number_array([entry.seq for _, entry in entries]),
            bytes_array([digest(entry.id) for _, entry in entries], BYTEA),
            bytes_array(bodies, TEXT),
            number_array(list(map(zlib.crc32, bodies))),
        ]
        return Statement(_APPEND, values, binary=True)

    # Reading

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        check_page(after, limit)
        check_name(thread)
        page = self._rows(_READ, (thread, after, limit, limit))
        if page[0][0] is None:
            raise no_thread(thread)
        end = page[0][0]
        count = max(end - after, 0) if limit is None else max(min(limit, end - after), 0)
        return entries_of(thread, [row[1:] for row in page if row[1] is not None], after, count)

    def changes(self, after: int = 0, limit: int | None = None) -> list[Change]:
        check_page(after, limit)
        return self.index.changes_where("e.n > %(after)s", {"after": after, "limit": limit})

    def last_change(self) -> int:
        return int(self._session.rows("select change from quire.tenants")[0][0])

    def wait_for_change(self, after: int, timeout_s: float) -> bool:
        self._session.check_open()
        until = time.monotonic() + timeout_s
        news = self._session.database.news
        while (remaining_s := until - time.monotonic()) > 0:
            if news.wait(self.tenant, after, min(remaining_s, LOOK_S)):
                return True
            if (newest := self.last_change()) > after:
                news.tell(self.tenant, newest)
        return self.last_change() > after

    # Threads deleted

    def delete(self, thread: str) -> None:
        super().delete(thread)
        self._tips.pop(thread, None)

    def _forget(self, ids: list[bytes]) -> None:
        shared = {id for (id,) in self._rows("select id from quire.entries where id = any(?)", (ids,))}
        unheld = [id for id in ids if id not in shared]
        for table in ("words", "vectors"):
            self._write(f"delete from quire.{table} where entry = any(?)", (unheld,))
        self._write("delete from quire.scopes")

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        """A transaction during which no other one appends, forks or deletes."""
        with self._transaction() as conn:
            conn.execute(_HOLD)
            yield conn

    # Turns

    def turn_lock(self, thread: str) -> AbstractContextManager[None]:
        return hold_turn(self.place, thread, self._advisory_lock(thread))

    def turn_held(self, thread: str) -> bool:
        return bool(self._session.rows(_IS_LOCKED, (self._turn_key(thread),)))

    def _turn_key(self, thread: str) -> int:
        return int.from_bytes(hashlib.sha256(f"{self.tenant}\n{thread}".encode()).digest()[:8], signed=True)

    @contextmanager
    def _advisory_lock(self, thread: str) -> Iterator[int]:
        key, fence = self._turn_key(thread), new_fence()
        self._take(thread, key, fence)
        try:
            yield fence
        finally:
            # If the connection is gone or closed, so are its locks; in a forked child it is the parent's.
            with suppress(psycopg.Error, CallError), self._session.database.turns() as conn, conn.pipeline():
                conn.execute(_UNLOCK, (key,))  # first: it stands even where the rest fails
                self._session.enter(conn, durable=False)
                conn.execute("delete from quire.turns where thread = %s and fence = %s", (thread, fence))

    def _take(self, thread: str, key: int, fence: int) -> None:
        """Take the lock, which ends with the connection, and store the fence by which appends are checked."""
        self._session.check_open()
        database = self._session.database
        for may_retry in (True, False):
            try:
                with database.turns() as conn:
                    if self._lock(conn, thread, key, fence):
                        return
                break
            except psycopg.Error as error:
                # The connection may be from before a restart: retry once, at once, since an event loop may be waiting.
                if not may_retry:
                    raise translate(error, database.name) from error
        rows = self._session.rows("select holder from quire.turns where thread = %s", (thread,))
        raise busy(thread, f"by {rows[0][0]}" if rows else "elsewhere")

    def _lock(self, conn: Connection, thread: str, key: int, fence: int) -> bool:
        row = conn.execute("select pg_try_advisory_lock(%s)", (key,)).fetchone()
        if not (row and row[0]):
            return False
        try:
            self._fence(conn, thread, fence)
        except BaseException:  # also an interrupt: the connection lives on, and would hold the lock
            with suppress(psycopg.Error):
                conn.execute(_UNLOCK, (key,))
            raise
        return True

    def _fence(self, conn: Connection, thread: str, fence: int) -> None:
        query = """
            insert into quire.turns values (%s, %s, %s, %s)
            on conflict (tenant, thread) do update set fence = excluded.fence, holder = excluded.holder
        """
        with conn.pipeline():
            self._session.enter(conn, durable=False)
            conn.execute(_HOLD)  # waits for what the former holder is just committing
            conn.execute(query, (self.tenant, thread, fence, holder_name()))

    # Verifying

    def verify(self, thread: str | None = None) -> Verification:
        with self.index.snapshot():
            if thread is not None:
                tip = self._tip(thread)
                return verify.verify_pieces(self.index.stretches(thread), thread, tip.id, self._stored_rows)
            query = f"select branch, parent, at_seq, seq, {_TIP_ID} from quire.branches b order by branch"
            count = verify.verify_branches(self._session.rows(query), self.index.holder, self._stored_rows)
            threads = int(self._session.rows("select count(*) from quire.threads")[0][0])
            return Verification(threads, count, self.records.verify())

    def _stored_rows(self, piece: Stretch, thread: str) -> Iterator[Row]:
        """The rows of a piece, page by page."""
        while rows := self.index.rows(piece, _PAGE):
            yield from rows
            piece = msgspec.structs.replace(piece, low=rows[-1][0])


def _read_one(cell: bytes, appends: Sequence[_Append]) -> tuple[int, list[_Answer]]:
    """The newest change and the answer; the cell is 0 if the append was refused, -1 if that was because of its turn."""
    newest = int(cell)
    if newest > 0:
        return newest, [(True, appends[0].end)]
    return 0, [(None if newest else False, None)]


def _read_any(cell: bytes, appends: Sequence[_Append]) -> tuple[int, list[_Answer]]:
    """The newest change and the answers; the cell lists the branch of each append unless all were stored as asked."""
    newest, *branches = [int(number) for number in cell[1:-1].split(b",")]
    answers: list[_Answer] = [(True, append.end) for append in appends]
    for at, branch in enumerate(branches):
        if branch > 0:
            answers[at] = True, appends[at].end._replace(branch=branch)
        else:
            answers[at] = (None if branch else False), None
    return newest, answers


if TYPE_CHECKING:  # lets the type checker verify that this is a Store
    _: Store = PostgresStore("")


# Concurrent appends of one process share a commit.
#
# An append that finds no other under way commits in its own OS thread. Those that come meanwhile are committed together by
# one worker OS thread. Signals interrupt only the main OS thread, so that one never commits for others or wakes them: an
# interrupt ends a single append.

# At most this many appends share a commit. If commits are slower than _SLOW_S, the worker waits a quarter of a commit's time
# for the appends that shared the last one to come again.
_TOGETHER: Final = 64
_SLOW_S: Final = 0.004
# A worker without work ends after this time.
_IDLE_S: Final = 10.0


class _WaitingAppend:
    """An append that waits for its commit."""

    def __init__(self, append: _Append) -> None:
        self.append = append
        self.answer: _Answer | None = None
        self.error: Exception | None = None
        # Locked until there is an answer or an error.
        self.ready = threading.Lock()
        self.ready.acquire()
        # The append whose caller is to be woken by this one's caller.
        self.next: _WaitingAppend | None = None
        # Whether its caller was interrupted: then it is not stored unless its commit is under way already.
        self.is_abandoned = False
        self.is_interruptible = threading.current_thread() is threading.main_thread()


class _SharedCommits:
    """Commits of one store; `commit` sends appends of different threads and, when resumed, yields their answers."""

    def __init__(self, commit: Callable[[Sequence[_Append]], _Commit]) -> None:
        self._commit = commit
        # Held while a commit is under way.
        self._turn = threading.Lock()
        # Held while deciding whether an append commits alone, and while the worker starts or ends.
        self._lock = threading.Lock()
        self._alone: _Append | None = None
        self._worker: threading.Thread | None = None
        self._waiting: queue.SimpleQueue[_WaitingAppend | None] = queue.SimpleQueue()
        # How many appends shared the last commit, and how long it took.
        self._shared, self._took_s = 1, 0.0
        # While the worker waits for as many appends: released when they are there. Not an Event, in whose Python code an
        # interrupt could leave a lock held.
        self._as_many: threading.Lock | None = None

    def ask(self, append: _Append) -> _Answer:
        """Commit an append, by itself or with others."""
        asker: _WaitingAppend | None = None
        try:
            with self._lock:
                if self._alone is None and self._waiting.empty() and not self._turn.locked():
                    self._alone = append
                else:
                    asker = self._queue(append)
            if asker is None:
                with self._turn:
                    return _finish(self._commit([append]))[0]
        finally:
            # No function call here: an interrupt could come before it takes effect.
            if self._alone is append:
                self._alone = None
        try:
            asker.ready.acquire()
        except BaseException:  # an interrupt: whoever commits next is to leave it out
            asker.is_abandoned = True
            raise
        if asker.next is not None:
            asker.next.ready.release()
        if asker.error is not None:
            raise asker.error
        assert asker.answer is not None
        return asker.answer

    def _queue(self, append: _Append) -> _WaitingAppend:
        asker = _WaitingAppend(append)
        if self._worker is None:
            worker = threading.Thread(target=self._work, name="quire-commits", daemon=True)
            worker.start()
            self._worker = worker
        self._waiting.put(asker)
        as_many = self._as_many
        if as_many is not None and self._waiting.qsize() >= self._shared:
            self._as_many = None
            as_many.release()
        return asker

    def close(self) -> None:
        """End the worker once everything queued is committed."""
        with self._lock:
            worker = self._worker
            if worker is not None:
                self._waiting.put(None)
        if worker is not None:
            worker.join()

    def _work(self) -> None:
        while True:
            try:
                first = self._waiting.get(timeout=_IDLE_S)
            except queue.Empty:
                first = None
            if first is not None:
                with self._turn:
                    self._commit_all([first])
                continue
            with self._lock:
                if self._waiting.empty():
                    self._worker = None
                    return

    def _commit_all(self, waiting: list[_WaitingAppend]) -> None:
        """Commit as long as appends wait.

        If commits are quick, the next one is sent before the callers of the last are woken, so that the server is never
        idle; if they are slow, the callers are woken first, so that their next appends share the next commit.
        """
        answered: list[_WaitingAppend] = []
        while True:
            if self._took_s > _SLOW_S:
                _wake(answered)
                answered = []
            together, waiting = _one_a_thread(self._gather(waiting))
            if not together:
                break
            commit, began = self._answer(together), time.monotonic()
            next(commit, None)
            _wake(answered)
            for _ in commit:
                pass
            answered, self._shared, self._took_s = together, len(together), time.monotonic() - began
        _wake(answered)

    def _gather(self, waiting: list[_WaitingAppend]) -> list[_WaitingAppend]:
        """The appends that wait and those that were queued meanwhile."""
        if self._took_s > _SLOW_S and self._waiting.qsize() < self._shared:
            as_many = threading.Lock()
            as_many.acquire()
            self._as_many = as_many
            as_many.acquire(timeout=self._took_s / 4)
            self._as_many = None
        with suppress(queue.Empty):
            while len(waiting) < _TOGETHER:
                asker = self._waiting.get_nowait()
                if asker is None:
                    self._waiting.put(None)
                    break
                waiting.append(asker)
        return waiting

    def _answer(self, together: Sequence[_WaitingAppend]) -> Generator[None, None, None]:
        try:
            answers = yield from self._commit([asker.append for asker in together])
            for asker, answer in zip(together, answers, strict=True):
                asker.answer = answer
        except Exception as error:  # whatever it is, it belongs to those who asked, not to who commits for them
            if len(together) > 1 and not isinstance(error, LostConnection):
                for asker in together:  # one of them is at fault: commit each alone, so that only that one fails
                    yield from self._answer([asker])
            else:
                for asker in together:
                    asker.error = error


def _one_a_thread(waiting: Iterable[_WaitingAppend]) -> tuple[list[_WaitingAppend], list[_WaitingAppend]]:
    """The first append to each thread, and those that must wait for one of these."""
    first: dict[str, _WaitingAppend] = {}
    wanted = (asker for asker in waiting if not asker.is_abandoned)
    behind = [asker for asker in wanted if first.setdefault(asker.append.thread, asker) is not asker]
    return list(first.values()), behind


def _wake(answered: Iterable[_WaitingAppend]) -> None:
    """Wake the callers: only the first here, and each wakes the next, since all at once would wait for each other."""
    others: list[_WaitingAppend] = []
    for asker in answered:
        if asker.is_interruptible:
            asker.ready.release()
        else:
            others.append(asker)
    for asker, behind in pairwise(others):
        asker.next = behind
    if others:
        others[0].ready.release()


def _finish(commit: _Commit) -> list[_Answer]:
    """Resume a commit and return its answers."""
    try:
        while True:
            next(commit)
    except StopIteration as end:
        answers: list[_Answer] = end.value
        return answers
