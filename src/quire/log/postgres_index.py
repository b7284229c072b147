"""The words and vectors of entries, beside them in the PostgreSQL database of their log."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

import msgspec

from quire.errors import DamageError, NotFound
from quire.log.branches import entries_of, entry_of
from quire.log.postgres_connection import Connection, TenantSession
from quire.log.store import Change, EntryWords, Stretch
from quire.values import Entry

# Where a thread's entries are: its own branch, then the part of each ancestor that it shares.
PIECES = """
with recursive piece (branch, low, high, parent) as (
    select b.branch, b.at_seq, b.seq, b.parent
    from quire.threads t join quire.branches b using (tenant, branch) where t.name = %(thread)s
    union all
    select b.branch, b.at_seq, piece.low, b.parent from piece join quire.branches b on b.branch = piece.parent
)
"""
# The threads that hold entry `seq` of a branch: its own, or those of forks taken at or behind it.
_HOLDERS = """
with recursive holder (branch) as (
    select {branch}
    union
    select b.branch from holder join quire.branches b on b.parent = holder.branch and b.at_seq >= {seq}
)
select t.name from holder join quire.threads t using (branch) order by t.branch limit 1
"""
_CHANGES = f"""
select e.n, e.seq, e.id, e.body, e.crc, coalesce(({_HOLDERS.format(branch="e.branch", seq="e.seq")}), '')
from quire.entries e where %s order by e.n limit %%(limit)s
"""
_NEXT = "update quire.tenants set derived = derived + %s returning derived"
# The tenant's row is held until the numbers can be seen. Here and below a row is looked up by a query of its own: a join
# would be planned before anything is known of the tables, and then reads all that the tenant has.
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
    """An entry's id as it is kept: 'sha256:0a…' -> b'\\n…'."""
    return bytes.fromhex(id[7:])


def written_id(data: bytes) -> str:
    """The other way; nothing for nothing."""
    return f"sha256:{data.hex()}" if data else ""


def holder(conn: Connection, branch: int, seq: int) -> str:
    """A thread that holds this entry, the oldest first; empty when there is none."""
    query = _HOLDERS.format(branch="%(branch)s::bigint", seq="%(seq)s")
    row = conn.execute(query, {"branch": branch, "seq": seq}).fetchone()
    return str(row[0]) if row else ""


def nearest_query(dimensions: int) -> str:
    """Written as the index of that size is, so that it is used."""
    apart = f"vector::public.halfvec({dimensions}) operator(public.<=>) %s::public.halfvec({dimensions})"
    return f"""
        select entry, 1 - ({apart}) as cosine from quire.vectors where dimensions = {dimensions} and model = %s
        order by {apart} limit %s
    """


class PostgresIndex:
    """An `Index` in the database of a PostgresStore."""

    kept_by_writers: ClassVar[bool] = False

    def __init__(self, session: TenantSession) -> None:
        self._session = session

    def snapshot(self) -> AbstractContextManager[None]:
        return self._snapshot()

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        with self._session.transaction("isolation level repeatable read read only"):
            yield

    def stretches(self, thread: str | None) -> list[Stretch]:
        if thread is None:
            rows = self._session.rows("select branch, at_seq, seq from quire.branches order by branch")
            return [Stretch(*row) for row in rows]
        query = f"{PIECES} select branch, low, high from piece order by low, high"
        pieces = self._session.rows(query, {"thread": thread})
        if not pieces:
            raise NotFound(f"there is no thread {thread!r}", hint="`quire log list` shows the threads.")
        return [Stretch(*row) for row in pieces]

    def entries(self, stretch: Stretch) -> list[Entry]:
        query = """
            select seq, id, body, crc from quire.entries where branch = %s and seq > %s and seq <= %s order by seq
        """
        stored = self._session.rows(query, (stretch.branch, stretch.low, stretch.high))
        rows = [(seq, written_id(id).encode(), body.encode(), crc) for seq, id, body, crc in stored]
        try:
            return entries_of("", rows, stretch.low, len(rows))
        except DamageError:  # asked for the thread's name only where it is told
            return entries_of(self.holder(stretch.branch, stretch.high), rows, stretch.low, len(rows))

    def holder(self, branch: int, seq: int) -> str:
        query = _HOLDERS.format(branch="%(branch)s::bigint", seq="%(seq)s")
        rows = self._session.rows(query, {"branch": branch, "seq": seq})
        return str(rows[0][0]) if rows else ""

    def changed(self, after: int, limit: int) -> list[tuple[int, str]]:
        query = """
            select e.n, coalesce((select name from quire.threads t where t.branch = e.branch), '') from quire.entries e
            where e.n > %s order by e.n limit %s
        """
        return self._session.rows(query, (after, limit))

    def changes_where(self, where: str, values: dict[str, Any]) -> list[Change]:
        """Entries as changes, in the order of their numbers."""
        rows = self._session.rows(_CHANGES % where, values)
        return [
            Change(n, thread, entry_of(thread, (seq, written_id(id).encode(), body.encode(), crc)))
            for n, seq, id, body, crc, thread in rows
        ]

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
            return _joined(self._session.rows(_OF_STRETCH, (model, of.branch, of.low, of.high)))
        since = "select n, entry, vector from quire.vectors where n > %s and model = %s order by n, piece"
        return _joined(self._session.rows(since, (after, model)))

    def vectors_of(self, model: str, entries: Sequence[str]) -> list[tuple[str, bytes]]:
        query = "select n, entry, vector from quire.vectors where entry = any(%s) and model = %s order by n, piece"
        return _joined(self._session.rows(query, ([digest(id) for id in entries], model)))

    def nearest(self, model: str, dimensions: int, vector: bytes, most: int) -> list[str] | None:
        text = next(_vectors(vector, dimensions))
        with self._session.transaction("read only") as conn:
            # The index gives the nearest of all tenants; it must go on until enough of them are this one's.
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
            _last(conn, 0)  # two that save the same would be in each other's way
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
    """The last of so many new numbers; the tenant's row is held until they can be seen."""
    row = conn.execute(_NEXT, (count,)).fetchone()
    assert row is not None
    return int(row[0])


def _vectors(data: bytes, dimensions: int) -> Iterator[str]:
    """Packed vectors of half precision, each as the database reads it: '[0.5,1.0]'."""
    for at in range(0, len(data), 2 * dimensions):
        yield str(list(struct.unpack(f"<{dimensions}e", data[at : at + 2 * dimensions])))


def _joined(rows: Iterable[tuple[int, bytes, bytes]]) -> list[tuple[str, bytes]]:
    """Rows of one number are the vectors of one entry, in a row."""
    together: dict[tuple[int, bytes], list[bytes]] = {}
    for number, entry, vector in rows:
        together.setdefault((number, entry), []).append(_packed(vector))
    return [(written_id(entry), b"".join(some)) for (_, entry), some in together.items()]


def _packed(vector: bytes) -> bytes:
    """A vector as the database sends it (how long it is, then half floats, the high byte first), packed."""
    halves = array("H", vector[4:])
    halves.byteswap()
    return halves.tobytes()
