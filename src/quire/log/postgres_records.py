"""The rows of records in a PostgreSQL database. Every version is kept until its record is deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from quire.entry import sha256_hex
from quire.log import verify
from quire.log.postgres_connection import Connection, TenantSession
from quire.log.sqlite_tables import RecordQueries, sound_body
from quire.log.store import RecordFilter, RecordRow

_PAGE = 500
_TABLES, _BODY = "quire.", "n, convert_to(body, 'UTF8'), sha256"
# Numbers are given before the rows that have them are made: whoever comes at the same time need not wait for the disk.
_NUMBERS = """
update quire.record_numbers set record = record + %s, change = change + %s returning record, change
"""
# As full-text search reads a text: words without endings, without those that say nothing.
_LEXEMES = "select lexeme from unnest(to_tsvector('english', %s))"
_WRITE = """
insert into quire.records values (current_setting('quire.tenant'), %s, %s, %s, %s, %s, %s, %s, %s)
on conflict (tenant, n) do update set schema_name = excluded.schema_name, version = excluded.version,
    change = excluded.change, expires_at = excluded.expires_at, body = excluded.body, sha256 = excluded.sha256,
    text = excluded.text
"""


class PostgresRecords(RecordQueries):
    """A `RecordTable` in the database of a PostgresStore."""

    tables, body = _TABLES, _BODY

    def __init__(self, session: TenantSession) -> None:
        self._session = session

    def _rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        return self._session.rows(query.replace("?", "%s"), values)

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
            if _version(conn, row.n) != seen:
                return False
            for table in ("record_tags", "record_words"):
                conn.execute(f"delete from quire.{table} where n = %s", (row.n,))
            _write(conn, row, change)
        return True

    def remove(self, n: int, seen: int | None = None) -> bool:
        with self._session.transaction() as conn:
            version = _version(conn, n)
            if version is None or seen not in (None, version):
                return False
            _remove(conn, [n])
        return True

    def purge(self, now: int) -> int:
        with self._session.transaction() as conn:
            query = "select n from quire.records where expires_at <= %s order by n for update"
            past = [n for (n,) in conn.execute(query, (now,))]
            _remove(conn, past)
        return len(past)

    def select(self, wanted: RecordFilter, newest_first: bool = False) -> Iterator[str]:
        where, values = self._where(wanted)
        key, side, order = ("change", "<", "desc") if newest_first else ("n", ">", "asc")
        query = (
            f"select {key}, {_BODY} from quire.records where {where} and {key} {side} ? order by {key} {order} limit ?"
        )
        # Page by page, so that whoever takes a few does not read all.
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
            ordered = sorted(vectors)  # two at once take the rows in one order
            conn.cursor().executemany(query, [(model, vector, n, version) for n, version, vector in ordered])

    def clear_vectors(self) -> None:
        self._session.rows("delete from quire.record_vectors")


def _version(conn: Connection, n: int) -> int | None:
    """A record's version; nobody changes it before this transaction ends."""
    row = conn.execute("select version from quire.records where n = %s for update", (n,)).fetchone()
    return int(row[0]) if row else None


def _write(conn: Connection, row: RecordRow, change: int) -> None:
    """Keep a version, make it the current one, and let it be found by its text."""
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


def _remove(conn: Connection, numbers: Sequence[int]) -> None:
    """Delete records with all that was derived from them."""
    for table in ("record_vectors", "record_words", "record_tags", "record_changes", "records"):
        conn.execute(f"delete from quire.{table} where n = any(%s)", (list(numbers),))


def verify_records(conn: Connection) -> int:
    """Re-derive the hash of every version of every record; how many there are."""
    return verify.verify_records(lambda query, *values: conn.execute(query.replace("?", "%s"), *values), _TABLES, _BODY)
