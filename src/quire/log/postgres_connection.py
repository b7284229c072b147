"""Reaching a PostgreSQL server: shared connections, a tenant's transactions, retries, notices of changes, the tables.

Each transaction sets its role and its tenant itself, so that no connection carries one tenant's rights to another.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

import psycopg
from psycopg import errors, generators, pq
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import ConnectionPool, PoolClosed, PoolTimeout

from quire.errors import CallError, ConflictError, QuireError, VersionError
from quire.log import was_closed
from quire.log.connection import ReadOnly, sql

Connection: TypeAlias = psycopg.Connection[Any]
_Result = TypeVar("_Result")

# The most connections that one process opens, besides one to listen and one for turns.
CONNECTIONS: Final = 16
# How long to wait for a server that went away, for one that is starting, and for a row that another transaction locks.
RECONNECT_S: Final = 30.0
STARTING_S: Final = 10.0
LOCK_S: Final = 60
CHANNEL: Final = "quire"
# How often to look for changes whose notice got lost.
LOOK_S: Final = 1.0
# The least time between two notices of one process: under load one tells of many changes.
NOTICES_S: Final = 0.05

# The role under which all work in the tables is done.
ROLE: Final = "quire_tenant"

_logger = logging.getLogger("quire")
# Without a handler psycopg would print each lost connection to stderr, although it is replaced here.
logging.getLogger("psycopg").addHandler(logging.NullHandler())
_AS = f"select set_config('role', '{ROLE}', true), set_config('quire.tenant', %s, true)"
_SETTINGS = f"""
select set_config('lock_timeout', '{LOCK_S}s', false),
    set_config('idle_in_transaction_session_timeout', '{LOCK_S}s', false),
    -- What is acknowledged is on the disk, whatever the server's setting.
    case when current_setting('synchronous_commit') = 'off' then set_config('synchronous_commit', 'on', false) end
"""
# A notice need not be on the disk: the change that it announces is.
_NOTIFY = f"""
select set_config('synchronous_commit', 'off', true), pg_notify('{CHANNEL}', notice)
from unnest($1::text[]) as said (notice)
""".encode()
_NOT_PREPARED = b"26000"
# Looked up once, since access to members of an enumeration is slow.
_HAS_ROWS: Final = pq.ExecStatus.TUPLES_OK
_IS_IDLE: Final = pq.TransactionStatus.IDLE
# The server's numbers of types.
_BIGINT: Final = 20
BYTEA: Final = 17
TEXT: Final = 25
# Errors that go away when the server is back.
_PASSING = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.TooManyConnections,
    errors.IdleInTransactionSessionTimeout,
    PoolTimeout,
)


class LostConnection(QuireError):
    """The server went away; it is not known whether what was being written is stored."""

    retryable = True
    hint = "Try again when the server is there; whatever was acknowledged is kept."


def without_password(url: str) -> str:
    """An address without its password: postgresql://user@host:5432/name."""
    try:
        parts = conninfo_to_dict(url)
        host, port, name = (str(parts.get(part) or "") for part in ("host", "port", "dbname"))
        if "@" in host[1:] + name or not f"0{port}".replace(",", "").isdecimal():
            raise psycopg.ProgrammingError  # a password with a reserved character was split wrongly
    except psycopg.ProgrammingError:  # its message would show the password
        raise CallError(
            "the address of the PostgreSQL server cannot be read",
            hint="Write postgresql://user:password@host:5432/name, a sign like @ or a space as %40, %20.",
        ) from None
    user = f"{parts['user']}@" if parts.get("user") else ""
    return f"postgresql://{user}{host}{port and f':{port}'}/{name}"


def translate(error: psycopg.Error, name: str) -> QuireError:
    """An error of the server as one of ours with a hint."""
    text = (error.diag.message_primary or str(error)).strip().split("\n")[0]
    if is_lost(error):
        return LostConnection(f"{name}: the connection was lost: {text}")
    if isinstance(error, errors.LockNotAvailable | errors.DeadlockDetected | errors.SerializationFailure):
        return ConflictError(f"{name}: another transaction was in the way: {text}", hint="Try again when it has ended.")
    if isinstance(error, errors.QueryCanceled):
        hint = "Ask again; where `statement_timeout` ended it, raise that for this login. Nothing of it was kept."
        return QuireError(f"{name}: {text}", hint=hint)
    if isinstance(error, psycopg.DataError):
        return CallError(f"{name}: {text}", hint="PostgreSQL keeps no text with a NUL character; leave it out.")
    if isinstance(error, errors.ReadOnlySqlTransaction):
        return ReadOnly(f"{name} is read-only: {text}", hint="Connect to the primary, not to a read replica.")
    if isinstance(error, errors.InsufficientPrivilege):
        return CallError(f"{name}: {text}", hint=f"The login must be a member of the role {ROLE}.")
    return QuireError(f"{name}: {text}", hint="Check the server's disk and its log; nothing half-written was kept.")


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection failed and not the statement."""
    if isinstance(error, _PASSING):
        return True
    # Raised by the client library: it has no error code of the server.
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and error.sqlstate is None


class Database:
    """The connections of this process to one database, shared by the stores of all its tenants."""

    # Keyed by process too: a forked child may use neither the parent's connections nor its locks.
    _open: ClassVar[dict[tuple[int, str], Database]] = {}
    _opening: ClassVar[dict[int, threading.Lock]] = {}

    def __init__(self, url: str) -> None:
        self.url, self.name, self.process = url, without_password(url), os.getpid()
        self._migrate()
        self.pool = ConnectionPool(
            url,
            min_size=1,
            max_size=CONNECTIONS,
            kwargs={"autocommit": True, "application_name": "quire"},
            configure=_configure,
            timeout=RECONNECT_S,
            reconnect_timeout=RECONNECT_S,
            open=True,
        )
        self.news = News(self)
        # The connection of the last append: taking one from the pool would take longer than sending an append.
        self._spare: list[Connection] = []
        self._users = 0
        self._turns: Connection | None = None
        self._turns_lock = threading.Lock()

    def _migrate(self) -> None:
        until = time.monotonic() + STARTING_S
        while True:
            try:
                connect = partial(psycopg.connect, self.url, autocommit=True, connect_timeout=10)
                with connect() as conn, connect() as other:
                    if _backend(conn) == _backend(other):
                        hint = "Connect directly, or set `pool_mode = session`: locks and notices belong to a session."
                        raise CallError(f"{self.name} is a pooler in transaction mode", hint=hint)
                    migrate(conn, self.name)
                return
            except psycopg.Error as error:
                # A server that is starting will be there in a moment; connection errors have no code, so compare texts.
                signs = ("is starting up", "is shutting down", "in recovery mode")
                if not any(sign in str(error) for sign in signs) or time.monotonic() > until:
                    # Of several lines the last that is not indented: below it libpq asks what may be wrong.
                    lines = (error.diag.message_primary or str(error)).strip().split("\n")
                    message = next((line for line in reversed(lines) if not line.startswith("\t")), "")
                    hint = "Check the address, the login, and that the server is running."
                    raise CallError(f"cannot open {self.name}: {message}", hint=hint) from error
            time.sleep(0.2)

    @classmethod
    def shared(cls, url: str) -> Database:
        """The database at an address, opened once in this process."""
        key = os.getpid(), url
        with cls._opening.setdefault(os.getpid(), threading.Lock()):
            if key not in cls._open:
                cls._open[key] = cls(url)
            database = cls._open[key]
            database._users += 1
            return database

    def close(self) -> None:
        """Close the connections when no store uses them any more."""
        with self._opening[self.process]:
            self._users -= 1
            if self._users:
                return
            self._open.pop((self.process, self.url), None)
        self.news.close()
        with self._turns_lock:
            if self._turns is not None:
                self._turns.close()
        while self._spare:
            self.pool.putconn(self._spare.pop())
        self.pool.close()

    def check_process(self) -> None:
        """Raise a CallError in a child of the process that opened the connections."""
        if self.process != os.getpid():
            hint = "Open it behind the fork, in each process."
            raise CallError(f"the store at {self.name} was opened before this process was forked", hint=hint)

    @contextmanager
    def turns(self) -> Iterator[Connection]:
        """The one connection that holds this process's turn locks: the server releases them when it ends."""
        self.check_process()
        with self._turns_lock:
            if not self._users:
                raise was_closed(self.name)
            if self._turns is None or self._turns.closed:
                self._turns = psycopg.connect(
                    self.url, autocommit=True, connect_timeout=5, application_name="quire turns"
                )
                _configure(self._turns)
            yield self._turns

    def take_connection(self) -> Connection:
        """A connection for an append; the caller returns it with `give_back`."""
        try:
            return self._spare.pop()
        except IndexError:
            return self.again(lambda conn: conn, keep=True)

    def give_back(self, conn: Connection) -> None:
        if self._spare or conn.pgconn.transaction_status != _IS_IDLE:
            self.pool.putconn(conn)
        else:
            self._spare.append(conn)

    def again(self, work: Callable[[Connection], _Result], keep: bool = False) -> _Result:
        """Do work that may be repeated; it is, on a new connection, if the server ended the connection.

        With `keep` the caller gets the connection and returns it with `pool.putconn`.
        """
        until = time.monotonic() + RECONNECT_S
        wait_s = 0.0
        while True:
            try:
                return self._once(work, keep)
            except psycopg.Error as error:
                if not is_lost(error) or time.monotonic() + wait_s > until:
                    raise translate(error, self.name) from error
            time.sleep(wait_s)
            # The first retry is immediate: every connection from before a restart fails once.
            wait_s = min(1.0, max(0.02, 2 * wait_s))

    def _once(self, work: Callable[[Connection], _Result], keep: bool) -> _Result:
        try:
            conn = self.pool.getconn()
        except PoolClosed as error:
            raise was_closed(self.name) from error
        try:
            result = work(conn)
        except BaseException:  # also an interrupt: the pool would miss the connection
            self.pool.putconn(conn)
            raise
        if not keep:
            self.pool.putconn(conn)
        return result


def _backend(conn: Connection) -> Any:
    """The process of the server that works for a connection."""
    return conn.execute("select pg_backend_pid()").fetchone()


def _configure(conn: Connection) -> None:
    conn.execute(_SETTINGS)


class Statement(NamedTuple):
    """A statement, prepared once for each connection, and its values in the form in which they are sent."""

    query: bytes
    values: Sequence[bytes]
    binary: bool = False

    @property
    def name(self) -> bytes:
        return self.query[:60]


def send(conn: Connection, statement: Statement) -> None:
    """Send a prepared statement without a cursor, which would take three times as long."""
    formats = [pq.Format.BINARY] * len(statement.values) if statement.binary else None
    conn.pgconn.send_query_prepared(statement.name, statement.values, formats)


def receive(conn: Connection, statement: Statement) -> bytes:
    """Wait for the first cell of a statement's result."""
    result = _result(conn)
    if result.status != _HAS_ROWS and result.error_field(pq.DiagnosticField.SQLSTATE) == _NOT_PREPARED:
        # Not prepared yet on this connection, or discarded by a rollback.
        conn.pgconn.prepare(statement.name, statement.query)
        send(conn, statement)
        result = _result(conn)
    if result.status != _HAS_ROWS:
        if conn.pgconn.status == pq.ConnStatus.BAD:
            raise psycopg.OperationalError(result.get_error_message() or "the connection ended")
        raise errors.error_from_result(result)
    return result.get_value(0, 0) or b""


def _result(conn: Connection) -> pq.abc.PGresult:
    """The result of the one statement that was sent; psycopg's own waiting takes twice as long."""
    sent = conn.pgconn
    if sys.platform == "win32" or sent.flush():  # Windows has no poll; flush() is 1 if the socket did not take all
        last: pq.abc.PGresult = conn.wait(generators.execute(sent))[-1]
        return last
    ready = select.poll()
    ready.register(sent.socket, select.POLLIN)
    while sent.is_busy():
        ready.poll()
        sent.consume_input()
    result = sent.get_result()
    assert result is not None
    while sent.get_result() is not None:
        pass
    return result


def number_array(numbers: Sequence[int]) -> bytes:
    """Numbers in the binary form of a bigint[]."""
    cells = [part for number in numbers for part in (8, number)]
    return struct.pack(">iiiii" + len(numbers) * "iq", 1, 0, _BIGINT, len(numbers), 1, *cells)


def bytes_array(cells: Sequence[bytes], of: int) -> bytes:
    """Cells in the binary form of an array of TEXT or BYTEA."""
    parts = [struct.pack(">iiiii", 1, 0, of, len(cells), 1)]
    for cell in cells:
        parts += len(cell).to_bytes(4), cell
    return b"".join(parts)


def _rows(cursor: psycopg.Cursor[Any]) -> list[Any]:
    """The rows of a statement, [] if it gives none; `cursor.description` would be built again at each access."""
    result = cursor.pgresult
    return cursor.fetchall() if result is not None and result.nfields else []


class TenantSession:
    """One tenant's access to the database; calls inside a transaction of the same OS thread are part of it."""

    def __init__(self, url: str, tenant: str) -> None:
        self.database = Database.shared(url)
        self.tenant = tenant
        self._local = threading.local()
        self.place = f"{self.database.name}#{tenant}"
        self.is_closed = False
        # On a read replica nothing can be inserted.
        if not self.rows("select 1 from quire.tenants join quire.record_numbers using (tenant)"):
            for table in ("tenants", "record_numbers"):
                self.rows(f"insert into quire.{table} (tenant) values (%s) on conflict do nothing", (tenant,))

    def close(self) -> None:
        self.is_closed = True
        self.database.close()

    def check_open(self) -> None:
        """Raise a CallError if the store was closed, or opened by the parent of this process."""
        self.database.check_process()
        if self.is_closed:
            raise was_closed(self.database.name)

    def rows(self, query: str, values: Sequence[Any] | dict[str, Any] = (), durable: bool = True) -> list[Any]:
        """The rows of one statement, in its own transaction and one round trip; it may be repeated."""
        open_conn: Connection | None = getattr(self._local, "conn", None)
        if open_conn is not None:
            return _rows(open_conn.execute(query, values, binary=True))

        def ask(conn: Connection) -> list[Any]:
            with conn.pipeline():
                self.enter(conn, durable)
                cursor = conn.execute(query, values, binary=True)
            return _rows(cursor)

        self.check_open()
        return self.database.again(ask)

    def enter(self, conn: Connection, durable: bool = True) -> None:
        """Make a connection work for this tenant until its transaction ends; a crash may lose it unless `durable`."""
        conn.execute(_AS, (self.tenant,))
        if not durable:
            conn.execute("set local synchronous_commit = off")

    @contextmanager
    def transaction(self, how: str = "", durable: bool = True) -> Iterator[Connection]:
        """All or nothing; `how` is added to BEGIN. A nested one is part of the outer one."""
        outer: Connection | None = getattr(self._local, "conn", None)
        if outer is not None:
            yield outer
            return
        self.check_open()
        conn = self.database.again(lambda conn: self._begin(conn, how, durable), keep=True)
        self._local.conn = conn
        try:
            yield conn
            conn.execute("commit")
        except BaseException as error:  # also an interrupt: all or nothing
            with suppress(psycopg.Error):
                conn.execute("rollback")
            if isinstance(error, psycopg.Error):
                raise translate(error, self.database.name) from error
            raise
        finally:
            self._local.conn = None
            self.database.pool.putconn(conn)

    def _begin(self, conn: Connection, how: str, durable: bool) -> Connection:
        with conn.pipeline():
            conn.execute(f"begin {how}")
            self.enter(conn, durable)
        return conn


class News:
    """Wakes those who wait for changes: after appends of this process, and after notices (NOTIFY) of others.

    A notice names a tenant and its newest change. It is sent after the commit, since PostgreSQL commits transactions with
    notices one at a time; a lost one is made up for by looking every LOOK_S seconds.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._newest: dict[str, int] = {}
        # Locked directly, not through the condition, in whose Python code an interrupt would leave it locked.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        # The speaker is woken by the first unsent change, not by every append.
        self._unsent: dict[str, int] = {}
        self._has_unsent: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._listener: threading.Thread | None = None
        self._speaker: threading.Thread | None = None
        self._closed = False

    def tell(self, tenant: str, change: int) -> None:
        """Note a tenant's newest change and wake those who wait for it."""
        with self._lock:
            if change > self._newest.get(tenant, 0):
                self._newest[tenant] = change
                self._changed.notify_all()

    def announce(self, tenant: str, change: int) -> None:
        """Tell of a change that this process committed; a background OS thread notifies other processes."""
        with self._lock:
            self.tell(tenant, change)
            if self._speaker is None and not self._closed:
                self._speaker = threading.Thread(target=self._speak, name="quire-notices", daemon=True)
                self._speaker.start()
            if not self._unsent:
                self._has_unsent.put(None)
            self._unsent[tenant] = change

    def _speak(self) -> None:
        """Send notices of each tenant's newest change, at most one for many changes in NOTICES_S seconds."""
        closed = False
        while not closed:
            self._has_unsent.get()
            with self._lock:
                unsent, self._unsent, closed = self._unsent, {}, self._closed
            if not unsent:  # woken by close()
                continue
            # Errors are ignored: a reader who misses the notice finds the entries when it looks by itself.
            with suppress(psycopg.Error, PoolClosed), self._database.pool.connection(timeout=LOOK_S) as conn:
                notices = [f"{tenant} {change}".encode() for tenant, change in unsent.items()]
                statement = Statement(_NOTIFY, [bytes_array(notices, TEXT)], binary=True)
                send(conn, statement)
                receive(conn, statement)
            self._ended.wait(NOTICES_S)

    def wait(self, tenant: str, after: int, timeout_s: float) -> bool:
        """Wait for a change behind `after`; whether there was one."""
        with self._lock:
            if self._listener is None and not self._closed:
                self._listener = threading.Thread(target=self._listen, name="quire-news", daemon=True)
                self._listener.start()
            return (
                self._changed.wait_for(lambda: self._closed or self._newest.get(tenant, 0) > after, timeout_s)
                and not self._closed
            )

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        self._ended.set()
        self._has_unsent.put(None)
        for thread in (self._listener, self._speaker):
            if thread is not None:
                thread.join()

    def _listen(self) -> None:
        while not self._closed:
            try:
                with psycopg.connect(self._database.url, autocommit=True, application_name="quire news") as conn:
                    conn.execute(f"listen {CHANNEL}")
                    while not self._closed:
                        for notice in conn.notifies(timeout=LOOK_S / 2):
                            tenant, _, change = notice.payload.rpartition(" ")
                            if change.isdigit():
                                self.tell(tenant, int(change))
            except psycopg.Error as error:
                _logger.debug("%s: no news: %s", self._database.name, error)
                with self._lock:
                    self._changed.wait_for(lambda: self._closed, LOOK_S)


def holder_name() -> str:
    """This process's name, for other processes' error messages."""
    return f"process {os.getpid()} on {socket.gethostname()}"


# The tables as numbered migrations. All work is done as the role `quire_tenant`, which PostgreSQL's row-level security keeps
# from seeing or writing rows of any tenant but the one that the transaction names.

# The key ("QUIR") of the advisory lock that is held during migrations, so that replicas migrate one after the other.
MIGRATING = 0x51554952
# Large tables are partitioned by tenant into this many parts, and each of these by thread.
_TENANT_PARTS, _THREAD_PARTS = 4, 4
# Vectors of these sizes have an index; others are compared one by one.
_INDEXED_DIMENSIONS = (256, 384, 512, 768, 1024, 1536)
# Roles belong to the whole server: another database on it may have made this one already.
_MAKE_ROLE = f"""
do $$ begin
    create role {ROLE} nologin nosuperuser nobypassrls;
exception when duplicate_object or unique_violation then null;
end $$
"""


def _parts() -> str:
    """The partitions of the large tables: by tenant, those of the entries also by thread."""
    statements = []
    for table in ("entries", "words", "vectors"):
        for tenant in range(_TENANT_PARTS):
            part = f"quire.{table}_{tenant}"
            by = " partition by hash (branch)" if table == "entries" else ""
            with_ = f"with (modulus {_TENANT_PARTS}, remainder {tenant})"
            statements.append(f"create table {part} partition of quire.{table} for values {with_}{by};")
            for thread in range(_THREAD_PARTS if by else 0):
                with_ = f"with (modulus {_THREAD_PARTS}, remainder {thread})"
                statements.append(f"create table {part}_{thread} partition of {part} for values {with_};")
    return "\n".join(statements)


def _near() -> str:
    """An index of nearest vectors for each usual size."""
    return "\n".join(
        f"create index on quire.vectors using hnsw ((vector::public.halfvec({size})) public.halfvec_cosine_ops) "
        f"where dimensions = {size};"
        for size in _INDEXED_DIMENSIONS
    )


# A released migration never changes; the next one is appended. Early versions used the numbers 2 and 3 for changes of
# functions only, so what is now the second migration is repeated as the fourth.
MIGRATIONS: tuple[str, ...] = (
    "\n".join((sql("tables"), _parts(), _near(), sql("owners"))),
    sql("nameless"),
    "",
    sql("nameless"),
)


def migrate(conn: Connection, name: str, scripts: tuple[str, ...] = MIGRATIONS) -> None:
    """Bring a database up to date in one transaction, while other replicas wait; a newer one is refused."""
    if _schema_version(conn, name, scripts) == len(scripts):
        return
    try:
        with conn.transaction():
            conn.execute("select pg_advisory_xact_lock(%s)", (MIGRATING,))
            version = _schema_version(conn, name, scripts)
            if version == len(scripts):
                return
            _prepare(conn, name)
            for number, script in enumerate(scripts[version:], version + 1):
                conn.execute(script)
                conn.execute("insert into quire.versions (version) values (%s)", (number,))
            conn.execute(sql("functions"))
    except errors.InsufficientPrivilege as error:
        raise CallError(
            f"{name}: the tables cannot be made or brought up to date: {error.diag.message_primary}",
            hint="Open it once with a login that may create roles and extensions, or have one made: docs/postgres.md.",
        ) from error


def _schema_version(conn: Connection, name: str, scripts: tuple[str, ...]) -> int:
    # Look for a row in the catalog: a session caches that a table was missing, even after the lock was taken.
    table = "select from pg_catalog.pg_tables where schemaname = 'quire' and tablename = 'versions'"
    if conn.execute(table).fetchone() is None:
        return 0
    row = conn.execute("select coalesce(max(version), 0) from quire.versions").fetchone()
    version = int(row[0]) if row else 0
    if version > len(scripts):
        raise VersionError(f"{name} was written by a newer Quire (version {version}, this one knows {len(scripts)})")
    return version


def _prepare(conn: Connection, name: str) -> None:
    """Prepare what the tables need: check for UTF-8, make the extension `vector`, the role and the schema."""
    encoding = conn.execute("show server_encoding").fetchone()
    if encoding and encoding[0] != "UTF8":
        raise CallError(f"{name} keeps text as {encoding[0]}", hint="Make a database with encoding UTF8.")
    try:
        with conn.transaction():
            conn.execute("create extension if not exists vector with schema public")
    except (errors.FeatureNotSupported, errors.UndefinedFile) as error:
        raise CallError(
            f"{name} has no pgvector: {error.diag.message_primary}",
            hint="Install the extension `vector` (pgvector 0.8 or newer) on the server.",
        ) from error
    conn.execute(_MAKE_ROLE)
    member = conn.execute("select pg_has_role(current_user, %s, 'set')", (ROLE,)).fetchone()
    if not member or not member[0]:
        conn.execute(f"grant {ROLE} to current_user")
    conn.execute("create schema if not exists quire")
    conn.execute(
        "create table if not exists quire.versions (version integer primary key, at timestamptz not null default now())"
    )
