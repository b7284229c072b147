"""The rows behind records: writing a version, and asking the indexes; each call belongs to a transaction of its caller."""

from __future__ import annotations

import heapq
import json
import sqlite3
from collections.abc import Iterator, Sequence

import msgspec

from quire.errors import CallError
from quire.records.record import Record, decode, encode
from quire.records.selector import Selector


def number(id: str) -> int:
    """The number in a record's id: rec-7 -> 7."""
    head, _, digits = id.partition("-")
    if head != "rec" or not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise CallError(f"{id!r} is not the id of a record", hint="Ids look like rec-1.")
    return int(digits)


def insert(conn: sqlite3.Connection, record: Record, text: str) -> Record:
    query = "INSERT INTO records (schema_name, version, change, body) VALUES (?, 1, 0, '')"
    n = conn.execute(query, (record.schema_name,)).lastrowid
    return write(conn, msgspec.structs.replace(record, id=f"rec-{n}"), text)


def write(conn: sqlite3.Connection, record: Record, text: str) -> Record:
    """Note the change, make it the current version, and let it be found by `text`."""
    n, body = number(record.id), encode(record)
    change = conn.execute(
        "INSERT INTO record_changes (n, version, body) VALUES (?, ?, ?)", (n, record.version, body)
    ).lastrowid
    conn.execute(
        "UPDATE records SET version = ?, change = ?, expires_at = ?, body = ? WHERE n = ?",
        (record.version, change, record.expires_at, body, n),
    )
    conn.execute("DELETE FROM record_tags WHERE n = ?", (n,))
    conn.executemany("INSERT INTO record_tags VALUES (?, ?)", [(tag, n) for tag in record.tags])
    conn.execute("DELETE FROM record_words WHERE rowid = ?", (n,))
    conn.execute("INSERT INTO record_words (rowid, text) VALUES (?, ?)", (n, text))
    # What is handed back is what is there: tuples are lists now, keys are strings.
    return decode(body)


def remove(conn: sqlite3.Connection, numbers: Sequence[int]) -> None:
    """Delete records with all that was derived from them."""
    conn.executemany("DELETE FROM record_words WHERE rowid = ?", [(n,) for n in numbers])
    for table in ("record_vectors", "record_tags", "record_changes", "records"):
        conn.executemany(f"DELETE FROM {table} WHERE n = ?", [(n,) for n in numbers])
    if numbers:
        # The index of words marks what is deleted; only merging its parts takes the words out of the file.
        conn.execute("INSERT INTO record_words (record_words) VALUES ('optimize')")


def where(selector: Selector, now: int | None) -> tuple[str, list[object]]:
    """The part of a selector that the indexes can answer."""
    parts, values = ["1"], list[object]()
    if selector.schemas:
        parts.append(f"schema_name IN ({', '.join('?' * len(selector.schemas))})")
        values += selector.schemas
    for tag in selector.all_tags:
        parts.append("n IN (SELECT n FROM record_tags WHERE tag = ?)")
        values.append(tag)
    if now is not None:
        parts.append("(expires_at IS NULL OR expires_at > ?)")
        values.append(now)
    return " AND ".join(parts), values


def count(conn: sqlite3.Connection, where: str, values: Sequence[object]) -> int:
    return int(conn.execute(f"SELECT count(*) FROM records WHERE {where}", values).fetchone()[0])


def matching(
    conn: sqlite3.Connection, words: Sequence[str], where: str, values: Sequence[object], most: int
) -> list[str]:
    """The bodies of the records that share a word with a query, the best first."""
    if not words:
        return []
    query = f"""
        SELECT body FROM record_words CROSS JOIN records ON n = record_words.rowid
        WHERE record_words MATCH ? AND {where} ORDER BY bm25(record_words), n LIMIT ?
    """
    any_of = " OR ".join(f'"{word}"' for word in words)
    return [body for (body,) in conn.execute(query, (any_of, *values, most))]


def frequencies(conn: sqlite3.Connection, words: Sequence[str]) -> dict[str, int]:
    """In how many records each word stands."""
    query = "SELECT count(*) FROM record_words WHERE record_words MATCH ?"
    return {word: int(conn.execute(query, (f'"{word}"',)).fetchone()[0]) for word in words}


def texts(conn: sqlite3.Connection, records: Sequence[Record]) -> list[str]:
    """What each record is found by, as it was when its current version was written."""
    numbers = [number(record.id) for record in records]
    query = "SELECT rowid, text FROM record_words WHERE rowid IN (SELECT value FROM json_each(?))"
    found = dict(conn.execute(query, (json.dumps(numbers),)))
    return [found.get(n, "") for n in numbers]


def by_creation(conn: sqlite3.Connection, selector: Selector, now: int | None) -> Iterator[str]:
    """The bodies that the indexes find for a selector, oldest first."""
    wanted, values = where(selector, now)
    return (body for (body,) in conn.execute(f"SELECT body FROM records WHERE {wanted} ORDER BY n", values))


def by_change(conn: sqlite3.Connection, selector: Selector, now: int | None) -> Iterator[str]:
    """The same, the last changed first; read only as far as they are taken."""
    single = [msgspec.structs.replace(selector, schemas=(schema,)) for schema in selector.schemas] or [
        selector
    ]
    cursors = []
    for one in single:
        wanted, values = where(one, now)
        query = f"SELECT change, body FROM records WHERE {wanted} ORDER BY change DESC"
        cursors.append(conn.execute(query, values))
    return (body for _, body in heapq.merge(*cursors, key=lambda row: -row[0]))
