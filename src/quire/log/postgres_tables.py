"""The words and vectors of entries, and the rows of records, in a PostgreSQL database."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import msgspec

from quire.errors import DamageError
from quire.log import verify
from quire.log.entries import Row, entries_of, entry_of
from quire.log.postgres_connection import Connection, TenantSession
from quire.log.store import Change, EntryWords, RecordFilter, RecordRow, Stretch
from quire.log.tables import HOLDERS, BranchIndex, RecordQueries, Tables, sound_body
from quire.values import Entry, sha256_hex

# The columns of an `entries.Row`.
ROW = "e.seq, convert_to('sha256:' || encode(e.id, 'hex'), 'UTF8'), convert_to(e.body, 'UTF8'), e.crc"
_ROWS = f"""
select {ROW} from quire.entries e where e.branch = %s and e.seq > %s and e.seq <= %s order by e.seq limit %s
"""
_CHANGES = f"""
select e.n, coalesce(({HOLDERS.format(tables="quire.", branch="e.branch", seq="e.seq")}), ''), {ROW}
from quire.entries e where %s order by e.n limit %%(limit)s
"""
_NEXT = "update quire.tenants set derived = derived + %s returning derived"
# The tenant's row stays locked until the numbers are visible. Here and below a row is looked up by a subquery of its own: a
# join would be planned before the tables have statistics, and would then read all rows of the tenant.
_ADD = """
with counted as (update quire.tenants set derived = derived + %s returning derived)
insert into quire.words
select current_setting('quire.tenant'), given.entry, counted.derived + 1 - given.back, given.kind, given.rules, given.packed
from counted, unnest(%b::bytea[], %b::bigint[], %b::text[], %b::integer[], %b::bytea[])
    as given (entry, back, kind, rules, packed)
where (select true from quire.entries e where e.id = given.entry limit 1)
on conflict (tenant, entry) do update
set n = excluded.n, kind = excluded.kind, rules = excluded.rules, packed = excluded.packed
"""
_UNWORDED = "e.n > %(after)s and not exists (select from quire.words r where r.entry = e.id and r.rules = %(rules)s)"
_UNMEANT = """
select r.n, r.entry from quire.words r where r.n > %s and r.kind <> 'call' and not exists (
    select from quire.vectors v where v.entry = r.entry and v.model = %s)
order by r.n limit %s
"""
_OF_STRETCH = """
select e.seq, e.id, v.vector from quire.entries e join quire.vectors v on v.entry = e.id and v.model = %s
where e.branch = %s and e.seq > %s and e.seq <= %s order by e.seq, v.piece
"""


def digest(id: str) -> bytes:
    """An entry's id as it is stored: 'sha256:0a…' -> b'\\n…'."""
    return bytes.fromhex(id[7:])


def written_id(data: bytes) -> str:
    """The id of a stored one, '' for b'': b'\\n…' -> 'sha256:0a…'."""
    return f"sha256:{data.hex()}" if data else ""


def nearest_query(dimensions: int) -> str:
    """The query for nearest vectors, written like the index of that size so that PostgreSQL uses it."""
    apart = f"vector::public.halfvec({dimensions}) operator(public.<=>) %s::public.halfvec({dimensions})"
    return f"""
        select entry, 1 - ({apart}) as cosine from quire.vectors where dimensions = {dimensions} and model = %s
        order by {apart} limit %s
    """


class PostgresTables(Tables):
    """Tables of one tenant in the database of a PostgresStore."""

    tables, owner = "quire.", "tenant, "
    _session: TenantSession

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        return self._session.rows(query.replace("?", "%s"), values)

    def _write(self, query: str, values: Sequence[object] = (), durable: bool = True) -> list[Any]:
        return self._session.rows(query.replace("?", "%s"), values, durable)

    def _transaction(self) -> AbstractContextManager[Connection]:
        return self._session.transaction()


class PostgresIndex(PostgresTables, BranchIndex):
    """An `Index` in the database of a PostgresStore."""

    kept_by_writers: ClassVar[bool] = False

    def __init__(self, session: TenantSession) -> None:
        self._session = session

    def snapshot(self) -> AbstractContextManager[object]:
        return self._session.transaction("isolation level repeatable read read only")

    def rows(self, stretch: Stretch, limit: int | None = None) -> list[Row]:
        """The rows of a stretch, at most `limit` of them."""
        return self._session.rows(_ROWS, (stretch.branch, stretch.low, stretch.high, limit))

    def entries(self, stretch: Stretch) -> list[Entry]:
        rows = self.rows(stretch)
        try:
            return entries_of("", rows, stretch.low, len(rows))
        except DamageError:  # only now look up the thread's name for the message
            return entries_of(self.holder(stretch.branch, stretch.high), rows, stretch.low, len(rows))

    def changes_where(self, where: str, values: dict[str, Any]) -> list[Change]:
        """Entries as changes, in the order of their numbers."""
        rows = self._session.rows(_CHANGES % where, values)
        return [Change(row[0], row[1], entry_of(row[1], row[2:])) for row in rows]

    def add(self, words: Iterable[EntryWords]) -> None:
        rows = list({row.entry: row for row in words}.values())
        if not rows:
            return
        columns = (
            [digest(row.entry) for row in rows],
            list(range(len(rows), 0, -1)),
            [row.kind for row in rows],
            [row.rules for row in rows],
            [msgspec.msgpack.encode(row) for row in rows],
        )
        self._session.rows(_ADD, (len(rows), *columns), durable=False)

    def words(self, stretch: Stretch) -> list[tuple[int, str, EntryWords | None]]:
        query = """
            select e.seq, e.id, (select packed from quire.words r where r.entry = e.id) from quire.entries e
            where e.branch = %s and e.seq > %s and e.seq <= %s order by e.seq
        """
        rows = self._session.rows(query, (stretch.branch, stretch.low, stretch.high))
        read = msgspec.msgpack.Decoder(EntryWords).decode
        return [(seq, written_id(id), read(packed) if packed is not None else None) for seq, id, packed in rows]

    def without_words(self, after: int, rules: int, limit: int) -> list[Change]:
        return self.changes_where(_UNWORDED, {"after": after, "rules": rules, "limit": limit})

    def add_vectors(self, model: str, dimensions: int, vectors: Mapping[str, bytes]) -> None:
        query = "select distinct id from quire.entries where id = any(%s)"
        insert = "insert into quire.vectors values (current_setting('quire.tenant'), %s, %s, %s, %s, %s, %s)"
        with self._session.transaction(durable=False) as conn:
            ids = {row[0] for row in conn.execute(query, ([digest(key) for key in vectors],))}
            pairs = [(digest(key), data) for key, data in vectors.items() if digest(key) in ids]
            if not pairs:
                return
            first = _last(conn, len(pairs)) - len(pairs) + 1
            conn.execute("delete from quire.vectors where model = %s and entry = any(%s)", (model, list(ids)))
            rows = [
                (entry, model, piece, n, dimensions, text)
                for n, (entry, data) in enumerate(pairs, first)
                for piece, text in enumerate(_vectors(data, dimensions))
            ]
            conn.cursor().executemany(insert, rows)

    def vectors(self, model: str, after: int = 0, of: Stretch | None = None) -> list[tuple[str, bytes]]:
        if of is not None:
            return _join_vectors(self._session.rows(_OF_STRETCH, (model, of.branch, of.low, of.high)))
        since = "select n, entry, vector from quire.vectors where n > %s and model = %s order by n, piece"
        return _join_vectors(self._session.rows(since, (after, model)))

    def vectors_of(self, model: str, entries: Sequence[str]) -> list[tuple[str, bytes]]:
        query = "select n, entry, vector from quire.vectors where entry = any(%s) and model = %s order by n, piece"
        return _join_vectors(self._session.rows(query, ([digest(id) for id in entries], model)))

    def nearest(self, model: str, dimensions: int, vector: bytes, most: int) -> list[str] | None:
        text = next(_vectors(vector, dimensions))
        with self._session.transaction("read only") as conn:
            # The index finds the nearest of all tenants: iterate until enough of them are this tenant's.
            conn.execute("set local hnsw.iterative_scan = strict_order")
            rows = conn.execute(nearest_query(dimensions), (text, model, text, 2 * most)).fetchall()
        # A long entry may come several times.
        return list(dict.fromkeys(written_id(entry) for entry, _ in rows))[:most]

    def newest_vector(self) -> int:
        return int(self._session.rows("select coalesce(max(n), 0) from quire.vectors")[0][0])

    def without_vectors(self, model: str, after: int, limit: int | None) -> list[tuple[int, str]]:
        rows = self._session.rows(_UNMEANT, (after, model, limit))
        return [(n, written_id(entry)) for n, entry in rows]

    def state(self, key: str, parts: Sequence[str]) -> dict[str, bytes]:
        query = "select part, data from quire.scopes where scope = %s and part = any(%s)"
        return dict(self._session.rows(query, (key, list(parts))))

    def save_state(self, key: str, parts: Mapping[str, bytes]) -> None:
        with self._session.transaction(durable=False) as conn:
            _last(conn, 0)  # locks the tenant's row: two savers of the same parts would deadlock
            conn.execute("delete from quire.scopes where scope = %s", (key,))
            conn.cursor().executemany(
                "insert into quire.scopes values (current_setting('quire.tenant'), %s, %s, %s)",
                [(key, part, data) for part, data in parts.items()],
            )

    def clear(self) -> None:
        with self._session.transaction() as conn:
            _last(conn, 0)
            for table in ("words", "vectors", "scopes"):
                conn.execute(f"delete from quire.{table}")


def _last(conn: Connection, count: int) -> int:
    """Reserve `count` new numbers and give the last; the tenant's row stays locked until they are visible."""
    row = conn.execute(_NEXT, (count,)).fetchone()
    assert row is not None
    return int(row[0])


def _vectors(data: bytes, dimensions: int) -> Iterator[str]:
    """Packed vectors of half precision, each as the database reads it: '[0.5,1.0]'."""
    for at in range(0, len(data), 2 * dimensions):
        yield str(list(struct.unpack(f"<{dimensions}e", data[at : at + 2 * dimensions])))


def _join_vectors(rows: Iterable[tuple[int, bytes, bytes]]) -> list[tuple[str, bytes]]:
    """The vectors of each entry, joined: rows with the same number belong to one entry."""
    together: dict[tuple[int, bytes], list[bytes]] = {}
    for number, entry, vector in rows:
        together.setdefault((number, entry), []).append(_pack(vector))
    return [(written_id(entry), b"".join(vectors)) for (_, entry), vectors in together.items()]


def _pack(vector: bytes) -> bytes:
    """A vector as the database sends it (a four-byte head, then big-endian half floats) in little-endian form."""
    halves = array("H", vector[4:])
    halves.byteswap()
    return halves.tobytes()


# Records.

_PAGE = 500
_BODY = "n, convert_to(body, 'UTF8'), sha256"
# Numbers are reserved before the rows are inserted, so that concurrent inserts need not wait for each other's commit.
_NUMBERS = """
update quire.record_numbers set record = record + %s, change = change + %s returning record, change
"""
# The stems of a text without stop words, as PostgreSQL's full-text search makes them.
_LEXEMES = "select lexeme from unnest(to_tsvector('english', %s))"
_WRITE = """
insert into quire.records values (current_setting('quire.tenant'), %s, %s, %s, %s, %s, %s, %s, %s)
on conflict (tenant, n) do update set schema_name = excluded.schema_name, version = excluded.version,
    change = excluded.change, expires_at = excluded.expires_at, body = excluded.body, sha256 = excluded.sha256,
    text = excluded.text
"""


class PostgresRecords(PostgresTables, RecordQueries):
    """A `RecordTable` in the database of a PostgresStore."""

    body, lock = _BODY, " FOR UPDATE"

    def __init__(self, session: TenantSession) -> None:
        self._session = session

    def insert(self, rows: Sequence[Callable[[int], RecordRow]]) -> list[str]:
        if not rows:
            return []
        record, change = self._numbers(len(rows), len(rows))
        numbered = [row(n) for n, row in enumerate(rows, record - len(rows) + 1)]
        with self._session.transaction() as conn:
            for number, row in enumerate(numbered, change - len(rows) + 1):
                _write(conn, row, number)
        return [row.body for row in numbered]

    def _numbers(self, records: int, changes: int) -> tuple[int, int]:
        row = self._session.rows(_NUMBERS, (records, changes), durable=False)[0]
        return int(row[0]), int(row[1])

    def update(self, row: RecordRow, seen: int) -> bool:
        _, change = self._numbers(0, 1)
        with self._session.transaction() as conn:
            if self._version(row.n) != seen:
                return False
            for table in ("record_tags", "record_words"):
                conn.execute(f"delete from quire.{table} where n = %s", (row.n,))
            _write(conn, row, change)
        return True

    def _remove(self, numbers: Sequence[int]) -> None:
        for table in ("record_vectors", "record_words", "record_tags", "record_changes", "records"):
            self._write(f"delete from quire.{table} where n = any(?)", (list(numbers),))

    def select(self, wanted: RecordFilter, newest_first: bool = False) -> Iterator[str]:
        where, values = self._where(wanted)
        key, side, order = ("change", "<", "desc") if newest_first else ("n", ">", "asc")
        query = (
            f"select {key}, {_BODY} from quire.records where {where} and {key} {side} ? order by {key} {order} limit ?"
        )
        # Page by page, so that a caller who takes a few does not read all.
        at, page = (2**62 if newest_first else 0), 20
        while True:
            rows = self._rows(query, [*values, at, page])
            for row in rows:
                yield sound_body(row[1:])
            if len(rows) < page:
                return
            at, page = rows[-1][0], _PAGE

    def matching(self, words: Sequence[str], wanted: RecordFilter, most: int) -> list[str]:
        where, values = self._where(wanted)
        query = f"""
            with asked as (
                select lexeme, (select count(*) from quire.record_words w where w.word = lexeme) as holding
                from ({_LEXEMES}) found
            )
            select {_BODY} from quire.records join (
                select n, sum(1.0 / holding) as score from asked join quire.record_words on word = lexeme group by n
            ) scored using (n) where {where} order by score desc, n limit ?
        """
        return [sound_body(row) for row in self._rows(query, [" ".join(words), *values, most])]

    def frequencies(self, words: Sequence[str]) -> dict[str, int]:
        query = """
            select asked.word, (
                select count(distinct n) from quire.record_words w
                where w.word in (select lexeme from unnest(to_tsvector('english', asked.word)))
            ) from unnest(%s::text[]) as asked (word)
        """
        return dict(self._session.rows(query, (list(words),)))

    def texts(self, numbers: Sequence[int]) -> list[str]:
        texts = dict(self._session.rows("select n, text from quire.records where n = any(%s)", (list(numbers),)))
        return [texts.get(n, "") for n in numbers]

    def add_vectors(self, model: str, vectors: Sequence[tuple[int, int, bytes]]) -> None:
        query = """
            insert into quire.record_vectors
            select tenant, n, %s, version, %s from quire.records where n = %s and version = %s
            on conflict (tenant, n, model) do update set version = excluded.version, vector = excluded.vector
        """
        with self._session.transaction(durable=False) as conn:
            ordered = sorted(vectors)  # concurrent writers lock rows in the same order
            conn.cursor().executemany(query, [(model, vector, n, version) for n, version, vector in ordered])

    def verify(self) -> int:
        """Re-derive the hash of every version of every record; how many there are."""
        return verify.verify_records(self._rows, self.tables, self.body)


def _write(conn: Connection, row: RecordRow, change: int) -> None:
    """Insert a version: into the changes, as the current version, and into the word index."""
    sha256, text = sha256_hex(row.body), row.text.replace("\0", " ")
    insert = "insert into quire.record_changes values (current_setting('quire.tenant'), %s, %s, %s, %s)"
    tenant = "select current_setting('quire.tenant')"
    with conn.pipeline():
        conn.execute(insert, (row.n, row.version, row.body, sha256))
        conn.execute(_WRITE, (row.n, row.schema, row.version, change, row.expires_at, row.body, sha256, text))
        conn.execute(
            f"insert into quire.record_tags {tenant}, tag, %s from unnest(%s::text[]) as given (tag) on conflict do nothing",
            (row.n, list(row.tags)),
        )
        if text:
            conn.execute(f"insert into quire.record_words {tenant}, lexeme, %s from ({_LEXEMES}) found", (row.n, text))
