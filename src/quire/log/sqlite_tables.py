"""The tables in the SQLite file of a log: where entries are, their words and vectors, and the rows of records.

Words are made by the first search that needs them, or by an indexer, vectors by an indexer; both are deleted with their
entry. Every version of a record is kept until the record is deleted.
"""

from __future__ import annotations

import heapq
import json
import sqlite3
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from quire.errors import DamageError
from quire.log.connection import transaction
from quire.log.entries import Row, entries_of, entry_of
from quire.log.store import HOLDERS, PIECES, BranchIndex, Change, EntryWords, RecordFilter, RecordRow, Stretch, Tables
from quire.values import Entry, sha256_hex

if TYPE_CHECKING:
    from quire.log.sqlite import SqliteFile


# What a JSON list names.
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


# Where a thread's entries are. A branch begins behind an entry of its parent; a thread is a name for a branch, and owns
# what leads to its end.

ROWS = """
SELECT seq, CAST (id AS BLOB), CAST (body AS BLOB), crc FROM entries
WHERE branch = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?
"""

# The same without the index, for a file whose index is damaged; rows lie in the order they were appended.
SCAN = ROWS.replace("FROM entries", "FROM entries NOT INDEXED").replace("ORDER BY seq", "")

_PIECES = PIECES.format(tables="", owner="") + "SELECT branch, low, high FROM piece ORDER BY low, high"
_HOLDERS = HOLDERS.format(tables="", branch="?", seq="?")


def holder_of(conn: sqlite3.Connection, branch: int, seq: int) -> str:
    """A thread that holds this entry, the oldest first; empty when there is none."""
    row = conn.execute(_HOLDERS, (branch, seq)).fetchone()
    return row[0] if row else ""


def pieces_of(conn: sqlite3.Connection, thread: str) -> list[Stretch]:
    """The pieces of a thread, oldest first; none when there is no such thread."""
    return [Stretch(*row) for row in conn.execute(_PIECES, (thread,))]


def last_number(conn: sqlite3.Connection) -> int:
    """The number of the newest entry that there ever was; numbers are not given twice."""
    query = "SELECT max(last, coalesce((SELECT max(n) FROM entries), 0)) FROM numbers"
    return int(conn.execute(query).fetchone()[0])


def changes_of(conn: sqlite3.Connection, rows: Iterable[tuple[int, int, int, bytes, bytes, int]]) -> list[Change]:
    """Changes from the number, branch and row of each entry, each with the oldest thread that holds it."""
    changes = []
    # A branch that has a name is older than all its forks; only entries of one without are looked up one by one.
    named = dict(conn.execute("SELECT branch, name FROM threads"))
    for n, branch, seq, id, body, crc in rows:
        thread = named.get(branch) or holder_of(conn, branch, seq)
        changes.append(Change(n, thread, entry_of(thread, (seq, id, body, crc))))
    return changes


def rows_of(conn: sqlite3.Connection, thread: str, after: int, count: int) -> list[Row]:
    """The rows of a thread behind seq `after`, piece by piece, so that a page costs only its own rows."""
    rows: list[Row] = []
    for piece in pieces_of(conn, thread):
        if piece.high > after and len(rows) < count:
            bounds = (piece.branch, max(piece.low, after), piece.high, count - len(rows))
            rows += conn.execute(ROWS, bounds).fetchall()
    return rows


# The words and vectors of entries.

_WORDS_AND_VECTORS = """
CREATE TABLE recall_entries (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    entry TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    -- The rules by which the words were found; rows of older rules are made again.
    rules INTEGER NOT NULL,
    speaker TEXT NOT NULL,
    session TEXT NOT NULL,
    call_id TEXT NOT NULL,
    at INTEGER,
    asks INTEGER NOT NULL,
    person REAL NOT NULL,
    times INTEGER NOT NULL,
    length INTEGER NOT NULL,
    words TEXT NOT NULL
);
CREATE TABLE recall_vectors (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Always 'entry', and which one.
    owner TEXT NOT NULL,
    key TEXT NOT NULL,
    model TEXT NOT NULL,
    -- Half-precision floats, little endian.
    vector BLOB NOT NULL,
    UNIQUE (owner, key, model)
);
"""

# How many names an entry holds; the rows that were there are of older rules, so they are made again.
_NAMES = "ALTER TABLE recall_entries ADD COLUMN names INTEGER NOT NULL DEFAULT 0"

# Vectors of single words went; long entries have several, so the one they had is made again with the others.
_SEVERAL = """
DELETE FROM recall_vectors
WHERE owner != 'entry' OR key IN (SELECT entry FROM recall_entries WHERE length > 150)
"""
# What a search holds ready, as arrays, so that the next process need not make it from the words.
_STATE = """
CREATE TABLE recall_state (
    scope TEXT NOT NULL,
    part TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (scope, part)
)
"""
INDEX_MIGRATIONS: tuple[str, ...] = (_WORDS_AND_VECTORS, _NAMES, _SEVERAL, _STATE)

_INSERT = f"INSERT OR REPLACE INTO recall_entries VALUES (NULL{', ?' * 13})"
_GONE = "NOT EXISTS (SELECT 1 FROM entries WHERE entries.id = "
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
_SAVE = "INSERT OR REPLACE INTO recall_vectors (owner, key, model, vector) VALUES ('entry', ?, ?, ?)"
_STORED = "SELECT 1 FROM entries WHERE id = ? LIMIT 1"


def forget_deleted(conn: sqlite3.Connection) -> None:
    """Remove the words and vectors of entries that no thread holds."""
    conn.execute("DELETE FROM recall_state")
    conn.execute(f"DELETE FROM recall_entries WHERE {_GONE}recall_entries.entry)")
    conn.execute(f"DELETE FROM recall_vectors WHERE {_GONE}recall_vectors.key)")


class SqliteIndex(SqliteTables, BranchIndex):
    """An `Index` in the file of a SqliteStore."""

    kept_by_writers: ClassVar[bool] = True

    def __init__(self, file: SqliteFile) -> None:
        self._file = file

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._file.transaction("DEFERRED"):
            yield

    def entries(self, stretch: Stretch) -> list[Entry]:
        with self._file.guard() as conn:
            bounds = (stretch.branch, stretch.low, stretch.high, -1)
            rows = conn.execute(ROWS, bounds).fetchall()
            thread = holder_of(conn, stretch.branch, stretch.high)
        return entries_of(thread, rows, stretch.low, len(rows))

    def add(self, words: Iterable[EntryWords]) -> None:
        rows = list(words)
        if not rows:
            return
        with self._file.transaction() as conn:
            # An entry may have been deleted meanwhile.
            stored = [row for row in rows if conn.execute(_STORED, (row.entry,)).fetchone()]
            conn.executemany(_INSERT, map(msgspec.structs.astuple, stored))

    def words(self, stretch: Stretch) -> list[tuple[int, str, EntryWords | None]]:
        rows = self._rows(_WORDS, (stretch.branch, stretch.low, stretch.high))
        return [(row[0], row[1], EntryWords(*row[2:]) if row[2] is not None else None) for row in rows]

    def without_words(self, after: int, rules: int, limit: int) -> list[Change]:
        with self._file.guard() as conn:
            return changes_of(conn, conn.execute(_UNWORDED, (after, rules, limit)).fetchall())

    def add_vectors(self, model: str, dimensions: int, vectors: Mapping[str, bytes]) -> None:
        with self._file.transaction() as conn:
            rows = [(key, model, vector) for key, vector in vectors.items() if conn.execute(_STORED, (key,)).fetchone()]
            conn.executemany(_SAVE, rows)

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

_RECORDS = """
CREATE TABLE records (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    schema_name TEXT NOT NULL,
    version INTEGER NOT NULL,
    -- The number of its newest change: the order of 'recent' and 'latest', whatever clocks say.
    change INTEGER NOT NULL,
    expires_at INTEGER,
    body TEXT NOT NULL
);
CREATE INDEX records_by_schema ON records (schema_name, n);
CREATE INDEX records_by_schema_change ON records (schema_name, change);
CREATE INDEX records_by_change ON records (change);
CREATE INDEX records_by_expiry ON records (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE record_tags (
    tag TEXT NOT NULL,
    n INTEGER NOT NULL REFERENCES records (n) ON DELETE CASCADE,
    PRIMARY KEY (tag, n)
) WITHOUT ROWID;
CREATE INDEX record_tags_by_record ON record_tags (n);
CREATE TABLE record_changes (
    change INTEGER PRIMARY KEY AUTOINCREMENT,
    n INTEGER NOT NULL,
    version INTEGER NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (n, version)
);
-- What each record is found by; both are derived, and written with the record or from it.
CREATE VIRTUAL TABLE record_words USING fts5 (text, tokenize = 'porter unicode61 remove_diacritics 2');
CREATE TABLE record_vectors (
    n INTEGER NOT NULL REFERENCES records (n) ON DELETE CASCADE,
    model TEXT NOT NULL,
    version INTEGER NOT NULL,
    vector BLOB NOT NULL,
    PRIMARY KEY (n, model)
) WITHOUT ROWID;
"""

# The hash of each body, so that one that was changed does not read as true.
_HASHES = """
ALTER TABLE records ADD COLUMN sha256 TEXT NOT NULL DEFAULT '';
ALTER TABLE record_changes ADD COLUMN sha256 TEXT NOT NULL DEFAULT '';
UPDATE records SET sha256 = quire_sha256(body);
UPDATE record_changes SET sha256 = quire_sha256(body);
"""

RECORD_MIGRATIONS: tuple[str, ...] = (_RECORDS, _HASHES)

# A record's number, its body as bytes because damaged text could not be read otherwise, and the body's hash.
BODY = "n, CAST (body AS BLOB), sha256"
_HINT = "Restore the file from a copy; `quire log verify` names the first record that does not hold."


def damaged(n: int, problem: str) -> DamageError:
    return DamageError(f"record rec-{n} is damaged: {problem}", hint=_HINT)


def sound_body(row: Sequence[Any]) -> str:
    """A stored body; a DamageError when it is not what was written."""
    n, body, sha256 = row
    if not isinstance(body, bytes) or sha256_hex(body) != sha256:
        raise damaged(n, "its stored bytes have changed (checksum)")
    return body.decode()


class RecordQueries(Tables):
    """What every database does alike with records."""

    # What `sound_body` reads, and what keeps a row from being changed by others.
    body: ClassVar = BODY
    lock: ClassVar = ""

    @abstractmethod
    def _remove(self, numbers: Sequence[int]) -> None:
        """Delete records with all that was derived from them."""

    def _wipe(self) -> None:
        """Leave nothing of what was deleted."""

    def _version(self, n: int) -> int | None:
        """A record's version; nobody changes it before this transaction ends."""
        rows = self._rows(f"SELECT version FROM {self.tables}records WHERE n = ?{self.lock}", (n,))
        return int(rows[0][0]) if rows else None

    def remove(self, n: int, seen: int | None = None) -> bool:
        with self._transaction():
            version = self._version(n)
            if version is None or seen not in (None, version):
                return False
            self._remove([n])
        self._wipe()
        return True

    def purge(self, now: int) -> int:
        with self._transaction():
            query = f"SELECT n FROM {self.tables}records WHERE expires_at <= ? ORDER BY n{self.lock}"
            past = [n for (n,) in self._rows(query, (now,))]
            self._remove(past)
        self._wipe()
        return len(past)

    def clear_vectors(self) -> None:
        self._write(f"DELETE FROM {self.tables}record_vectors")

    def newest(self, n: int) -> str | None:
        return next(
            map(sound_body, self._rows(f"SELECT {self.body} FROM {self.tables}records WHERE n = ?", (n,))), None
        )

    def versions(self, n: int) -> list[str]:
        query = f"SELECT {self.body} FROM {self.tables}record_changes WHERE n = ? ORDER BY version"
        return [sound_body(row) for row in self._rows(query, (n,))]

    def beside(self, n: int, step: int, wanted: RecordFilter) -> str | None:
        where, values = self._where(wanted)
        side = "n > ? ORDER BY n" if step > 0 else "n < ? ORDER BY n DESC"
        query = f"SELECT {self.body} FROM {self.tables}records WHERE {where} AND {side} LIMIT 1"
        return next(map(sound_body, self._rows(query, [*values, n])), None)

    def count(self, wanted: RecordFilter) -> int:
        where, values = self._where(wanted)
        return int(self._rows(f"SELECT count(*) FROM {self.tables}records WHERE {where}", values)[0][0])

    def vectors(self, model: str, low: int, high: int) -> list[tuple[int, int, bytes]]:
        query = f"SELECT n, version, vector FROM {self.tables}record_vectors WHERE model = ? AND n BETWEEN ? AND ?"
        return self._rows(query, (model, low, high))

    def _where(self, criteria: RecordFilter) -> tuple[str, list[object]]:
        parts, values, tagged = ["true"], list[object](), f"(SELECT n FROM {self.tables}record_tags WHERE tag"
        if criteria.schemas:
            parts.append(f"schema_name IN ({', '.join('?' * len(criteria.schemas))})")
            values += criteria.schemas
        for tag in criteria.tags:
            parts.append(f"n IN {tagged} = ?)")
            values.append(tag)
        if criteria.no_tag:
            parts.append(f"n NOT IN {tagged} >= ? AND tag < ?)")
            values += [criteria.no_tag, criteria.no_tag[:-1] + chr(ord(criteria.no_tag[-1]) + 1)]
        if criteria.now is not None:
            parts.append("(expires_at IS NULL OR expires_at > ?)")
            values.append(criteria.now)
        return " AND ".join(parts), values


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
        """The last changed first: one cursor a schema, so that each can use the index."""
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
            # The index of words marks what is deleted; only merging its parts takes the words out of the file.
            self._write("INSERT INTO record_words (record_words) VALUES ('optimize')")


def _write(conn: sqlite3.Connection, row: RecordRow) -> None:
    """Note the change, make it the current version, and let it be found by its text."""
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


def fields_of(n: int, body: str) -> dict[str, object]:
    try:
        fields = json.loads(body)
        return {key: fields[key] for key in ("id", "version", "schema_name", "expires_at", "tags")}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise damaged(n, "it is not a record") from error
