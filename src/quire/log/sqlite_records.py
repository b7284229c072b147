"""The rows of records, in the SQLite file of a log. Every version is kept until its record is deleted."""

from __future__ import annotations

import heapq
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from quire.entry import sha256_hex
from quire.errors import DamageError
from quire.log.store import RecordFilter, RecordRow

if TYPE_CHECKING:
    from quire.log.sqlite import SqliteFile

_FIRST = """
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

OWNER = "records"
MIGRATIONS: tuple[str, ...] = (_FIRST, _HASHES)

# A record's number, its body as bytes because damaged text could not be read otherwise, and the body's hash.
_BODY = "n, CAST (body AS BLOB), sha256"
_HINT = "Restore the file from a copy; `quire log verify` names the first record that does not hold."


def damaged(n: int, problem: str) -> DamageError:
    return DamageError(f"record rec-{n} is damaged: {problem}", hint=_HINT)


def _sound(row: tuple[int, bytes, str]) -> str:
    """A stored body; a DamageError when it is not what was written."""
    n, body, sha256 = row
    if not isinstance(body, bytes) or sha256_hex(body) != sha256:
        raise damaged(n, "its stored bytes have changed (checksum)")
    return body.decode()


class SqliteRecords:
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
            if _version(conn, row.n) != seen:
                return False
            _write(conn, row)
        return True

    def remove(self, n: int, seen: int | None = None) -> bool:
        with self._file.transaction() as conn:
            version = _version(conn, n)
            if version is None or seen not in (None, version):
                return False
            _remove(conn, [n])
        self._file.wipe()
        return True

    def purge(self, now: int) -> int:
        with self._file.transaction() as conn:
            past = conn.execute("SELECT n FROM records WHERE expires_at <= ?", (now,)).fetchall()
            _remove(conn, [n for (n,) in past])
        self._file.wipe()
        return len(past)

    def newest(self, n: int) -> str | None:
        with self._file.guard() as conn:
            row = conn.execute(f"SELECT {_BODY} FROM records WHERE n = ?", (n,)).fetchone()
        return _sound(row) if row else None

    def versions(self, n: int) -> list[str]:
        with self._file.guard() as conn:
            query = f"SELECT {_BODY} FROM record_changes WHERE n = ? ORDER BY version"
            return [_sound(row) for row in conn.execute(query, (n,)).fetchall()]

    def select(self, wanted: RecordFilter, newest_first: bool = False) -> Iterator[str]:
        with self._file.guard() as conn:
            if newest_first:
                yield from _by_change(conn, wanted)
                return
            where, values = _where(wanted)
            for row in conn.execute(f"SELECT {_BODY} FROM records WHERE {where} ORDER BY n", values):
                yield _sound(row)

    def beside(self, n: int, step: int, wanted: RecordFilter) -> str | None:
        where, values = _where(wanted)
        side = "n > ? ORDER BY n" if step > 0 else "n < ? ORDER BY n DESC"
        query = f"SELECT {_BODY} FROM records WHERE {where} AND {side} LIMIT 1"
        with self._file.guard() as conn:
            row = conn.execute(query, [*values, n]).fetchone()
        return _sound(row) if row else None

    def count(self, wanted: RecordFilter) -> int:
        where, values = _where(wanted)
        with self._file.guard() as conn:
            return int(conn.execute(f"SELECT count(*) FROM records WHERE {where}", values).fetchone()[0])

    def matching(self, words: Sequence[str], wanted: RecordFilter, most: int) -> list[str]:
        if not words:
            return []
        where, values = _where(wanted)
        query = f"""
            SELECT {_BODY} FROM record_words CROSS JOIN records ON n = record_words.rowid
            WHERE record_words MATCH ? AND {where} ORDER BY bm25(record_words), n LIMIT ?
        """
        any_of = " OR ".join(f'"{word}"' for word in words)
        with self._file.guard() as conn:
            return [_sound(row) for row in conn.execute(query, (any_of, *values, most))]

    def frequencies(self, words: Sequence[str]) -> dict[str, int]:
        query = "SELECT count(*) FROM record_words WHERE record_words MATCH ?"
        with self._file.guard() as conn:
            return {word: int(conn.execute(query, (f'"{word}"',)).fetchone()[0]) for word in words}

    def texts(self, numbers: Sequence[int]) -> list[str]:
        query = "SELECT rowid, text FROM record_words WHERE rowid IN (SELECT value FROM json_each(?))"
        with self._file.guard() as conn:
            texts = dict(conn.execute(query, (json.dumps(list(numbers)),)))
        return [texts.get(n, "") for n in numbers]

    def add_vectors(self, model: str, vectors: Sequence[tuple[int, int, bytes]]) -> None:
        query = """
            INSERT OR REPLACE INTO record_vectors SELECT n, ?, version, ? FROM records WHERE n = ? AND version = ?
        """
        with self._file.transaction() as conn:
            conn.executemany(query, [(model, vector, n, version) for n, version, vector in vectors])

    def vectors(self, model: str, low: int, high: int) -> list[tuple[int, int, bytes]]:
        query = "SELECT n, version, vector FROM record_vectors WHERE model = ? AND n BETWEEN ? AND ?"
        with self._file.guard() as conn:
            return conn.execute(query, (model, low, high)).fetchall()

    def clear_vectors(self) -> None:
        with self._file.transaction() as conn:
            conn.execute("DELETE FROM record_vectors")


def _version(conn: sqlite3.Connection, n: int) -> int | None:
    row = conn.execute("SELECT version FROM records WHERE n = ?", (n,)).fetchone()
    return int(row[0]) if row else None


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


def _remove(conn: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Delete records with all that was derived from them."""
    conn.executemany("DELETE FROM record_words WHERE rowid = ?", [(n,) for n in numbers])
    for table in ("record_vectors", "record_tags", "record_changes", "records"):
        conn.executemany(f"DELETE FROM {table} WHERE n = ?", [(n,) for n in numbers])
    if numbers:
        # The index of words marks what is deleted; only merging its parts takes the words out of the file.
        conn.execute("INSERT INTO record_words (record_words) VALUES ('optimize')")


def _where(criteria: RecordFilter) -> tuple[str, list[object]]:
    parts, values = ["1"], list[object]()
    if criteria.schemas:
        parts.append(f"schema_name IN ({', '.join('?' * len(criteria.schemas))})")
        values += criteria.schemas
    for tag in criteria.tags:
        parts.append("n IN (SELECT n FROM record_tags WHERE tag = ?)")
        values.append(tag)
    if criteria.no_tag:
        parts.append("n NOT IN (SELECT n FROM record_tags WHERE tag >= ? AND tag < ?)")
        values += [criteria.no_tag, criteria.no_tag[:-1] + chr(ord(criteria.no_tag[-1]) + 1)]
    if criteria.now is not None:
        parts.append("(expires_at IS NULL OR expires_at > ?)")
        values.append(criteria.now)
    return " AND ".join(parts), values


def _by_change(conn: sqlite3.Connection, criteria: RecordFilter) -> Iterator[str]:
    """The last changed first: one cursor a schema, so that each can use the index."""
    schemas: Iterable[tuple[str, ...]] = [(schema,) for schema in criteria.schemas] or [()]
    cursors = []
    for names in schemas:
        where, values = _where(msgspec.structs.replace(criteria, schemas=names))
        query = f"SELECT change, {_BODY} FROM records WHERE {where} ORDER BY change DESC"
        cursors.append(conn.execute(query, values))
    for _, *row in heapq.merge(*cursors, key=lambda row: -row[0]):
        yield _sound((row[0], row[1], row[2]))


def verify_records(conn: sqlite3.Connection) -> int:
    """Re-derive the hash of every version of every record, and what records are chosen by; how many there are."""
    lost = "SELECT n FROM record_changes WHERE n NOT IN (SELECT n FROM records) ORDER BY n LIMIT 1"
    for (n,) in conn.execute(lost):
        raise damaged(n, "its newest version is missing")
    count = 0
    for n, version, schema, expires_at, *row in conn.execute(
        f"SELECT n, version, schema_name, expires_at, {_BODY} FROM records ORDER BY n"
    ):
        newest = _verify_versions(conn, n, version)
        if newest != _sound((row[0], row[1], row[2])):
            raise damaged(n, f"it is not its version {version}")
        fields = json.loads(newest)
        tags = {tag for (tag,) in conn.execute("SELECT tag FROM record_tags WHERE n = ?", (n,))}
        if (schema, expires_at, tags) != (fields["schema_name"], fields["expires_at"], set(fields["tags"])):
            raise damaged(n, "its schema, tags or expiry are noted other than it says")
        count += 1
    return count


def _verify_versions(conn: sqlite3.Connection, n: int, newest: int) -> str:
    """Check versions 1 to `newest` of a record; the body of the last."""
    body = ""
    rows = conn.execute(f"SELECT version, {_BODY} FROM record_changes WHERE n = ? ORDER BY version", (n,))
    count = 0
    for count, (version, *row) in enumerate(rows.fetchall(), 1):
        body = _sound((row[0], row[1], row[2]))
        says = fields_of(n, body)
        if version != count or (says["id"], says["version"]) != (f"rec-{n}", count):
            raise damaged(n, f"its version {count} is missing")
    if count != newest:
        raise damaged(n, f"its version {count + 1} is missing" if count < newest else "it has too many versions")
    return body


def fields_of(n: int, body: str) -> dict[str, object]:
    try:
        fields = json.loads(body)
        return {key: fields[key] for key in ("id", "version", "schema_name", "expires_at", "tags")}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise damaged(n, "it is not a record") from error
