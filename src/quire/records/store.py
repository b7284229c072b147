"""Records in the file of a log store: create, read, update by version, delete, list, and every version kept.

Each call is one transaction: a kill leaves the record before it or after it, never between.
Time is an argument (`now`, Unix milliseconds); without one nothing expires and no time is noted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from quire.errors import CallError, ConflictError, DamageError, NotFound
from quire.log.connect import is_damage, transaction, translate
from quire.log.migrations import migrate
from quire.records.finder import Finder, Hit
from quire.records.record import Record, View, checked, decode, draft, encode, expiry, tag_list, view
from quire.records.selector import Selector
from quire.records.tables import TABLES
from quire.values import JsonObject

# `Records.list` hides the built-in name inside the class.
Found: TypeAlias = list[Record]
Hits: TypeAlias = list[Hit]
CONFLICT_HINT = "Read the record again, then update it with the version it has now."


class RecordStore(Protocol):
    """A log store that lets others keep tables in its file."""

    @property
    def path(self) -> str | Path: ...

    def connection(self) -> sqlite3.Connection: ...


class Records:
    """The records of one store: `Records(store).create("note.v1", {"text": "…"})`."""

    def __init__(self, store: RecordStore, finder: Finder | None = None) -> None:
        self.store, self.finder = store, finder or Finder()
        with self._guard():
            migrate(store.connection(), store.path, [(TABLES.name, TABLES.migrations)])

    def create(
        self,
        schema_name: str,
        context: JsonObject,
        *,
        title: str = "",
        tags: Iterable[str] = (),
        llm_hints: JsonObject | None = None,
        ttl_s: float | None = None,
        owner: str = "",
        now: int | None = None,
    ) -> Record:
        """Keep a new record, at version 1."""
        made = draft(
            schema_name,
            context,
            title=title,
            tags=tags,
            llm_hints=llm_hints,
            ttl_s=ttl_s,
            owner=owner,
            now=now,
        )
        return self.create_all([made])[0]

    def create_all(self, drafts: Iterable[Record]) -> Found:
        """Keep many new records (see `draft`) in one transaction: all of them or none."""
        with self._transaction() as conn:
            return [_insert(conn, one) for one in drafts]

    def read(self, id: str, *, now: int | None = None) -> View:
        """A record as a model sees it: with its hints applied."""
        return view(self.read_full(id, now=now))

    def read_full(self, id: str, *, version: int | None = None, now: int | None = None) -> Record:
        """All of a record; an older version of it when one is named."""
        record = self._current(self.store.connection(), id, now)
        if version is None or version == record.version:
            return record
        with self._guard():
            row = (
                self.store.connection()
                .execute("SELECT body FROM record_changes WHERE n = ? AND version = ?", (number(id), version))
                .fetchone()
            )
        if row is None:
            raise NotFound(f"{id} has versions 1 to {record.version}, not {version}")
        return decode(row[0])

    def update(
        self,
        id: str,
        version: int,
        *,
        title: str | None = None,
        tags: Iterable[str] | None = None,
        context: JsonObject | None = None,
        llm_hints: JsonObject | None = None,
        ttl_s: float | None = None,
        owner: str | None = None,
        now: int | None = None,
    ) -> Record:
        """Change what is given of a record that still is at `version`; the rest stays. `{}` takes hints away."""
        given = {
            "title": title,
            "tags": None if tags is None else tag_list(tags),
            "context": context,
            "llm_hints": llm_hints,
            "owner": owner,
            "expires_at": expiry(ttl_s, now),
            "updated_at": now,
        }
        changes: JsonObject = {name: value for name, value in given.items() if value is not None}
        if changes.get("llm_hints") == {}:
            changes["llm_hints"] = None
        with self._transaction() as conn:
            seen = self._seen(conn, id, version, now)
            return _write(conn, checked(msgspec.structs.replace(seen, version=version + 1, **changes)))

    def delete(self, id: str, version: int | None = None, *, now: int | None = None) -> None:
        """Remove a record and all its versions; with a version, only if it still is the one."""
        with self._transaction() as conn:
            if version is not None:
                self._seen(conn, id, version, now)
            self._current(conn, id, None)
            _remove(conn, [number(id)])

    def search(
        self,
        q: str,
        *,
        nn: int = 5,
        tag: str | Sequence[str] = (),
        schema_name: str = "",
        now: int | None = None,
    ) -> Hits:
        """The nn records nearest to q, nearest first; none that has nothing to do with it."""
        if nn < 1:
            raise CallError(f"nn is at least 1, not {nn}")
        found = self.list(schema_name=schema_name, tag=tag, now=now)
        hits = [
            Hit(one, score)
            for one, score in zip(found, self.finder.score(q, found), strict=True)
            if score > 0
        ]
        return sorted(hits, key=lambda hit: (-hit.score, number(hit.record.id)))[:nn]

    def purge(self, now: int) -> int:
        """Remove every record whose time has passed; returns how many."""
        with self._transaction() as conn:
            rows = conn.execute("SELECT n FROM records WHERE expires_at <= ?", (now,)).fetchall()
            _remove(conn, [n for (n,) in rows])
        return len(rows)

    def history(self, id: str, *, now: int | None = None) -> Found:
        """All versions of a record, oldest first."""
        self._current(self.store.connection(), id, now)
        query = "SELECT body FROM record_changes WHERE n = ? ORDER BY version"
        with self._guard():
            rows = self.store.connection().execute(query, (number(id),)).fetchall()
        return [decode(body) for (body,) in rows]

    def list(
        self,
        *,
        schema_name: str = "",
        tag: str | Sequence[str] = (),
        owner: str = "",
        limit: int | None = None,
        now: int | None = None,
    ) -> Found:
        """Records of a schema and with all of the tags, in the order of creation; the last `limit` of them."""
        tags = (tag,) if isinstance(tag, str) else tuple(tag)
        found = self.select(
            Selector(schemas=(schema_name,) if schema_name else (), all_tags=tags, owner=owner), now=now
        )
        if limit is not None and limit < 0:
            raise CallError(f"limit is at least 0, not {limit}")
        return found if limit is None else found[len(found) - min(limit, len(found)) :]

    def select(
        self,
        selector: Selector,
        *,
        newest: int | None = None,
        keep: Callable[[Record], bool] = bool,
        now: int | None = None,
    ) -> Found:
        """What a selector means (and `keep` lets through), in the order of creation.

        With `newest`, that many, the most recently changed ones.
        """
        where, values = _where(selector, now)
        order = "change DESC" if newest is not None else "n"
        found: Found = []
        with self._guard():
            rows = self.store.connection().execute(
                f"SELECT body FROM records WHERE {where} ORDER BY {order}", values
            )
            for (body,) in rows:
                if len(found) == newest:
                    break
                record = decode(body)
                if selector.matches(record) and keep(record):
                    found.append(record)
        return sorted(found, key=lambda record: number(record.id)) if newest is not None else found

    def beside(
        self, record: Record, step: int, selector: Selector, session: str = "", *, now: int | None = None
    ) -> Record | None:
        """The next (step 1) or previous (-1) record of the same session; without a session, of those that name none."""
        where, values = _where(selector, now)
        if session:
            where += " AND n IN (SELECT n FROM record_tags WHERE tag = ?)"
            values.append(session)
        else:
            where += " AND n NOT IN (SELECT n FROM record_tags WHERE tag >= 'session:' AND tag < 'session;')"
        side = "n > ? ORDER BY n" if step > 0 else "n < ? ORDER BY n DESC"
        query = f"SELECT body FROM records WHERE {where} AND {side} LIMIT 1"
        with self._guard():
            row = self.store.connection().execute(query, [*values, number(record.id)]).fetchone()
        return decode(row[0]) if row else None

    def change(self) -> int:
        """The number of the newest change to any record: the same number, the same records."""
        with self._guard():
            row = self.store.connection().execute(
                "SELECT seq FROM sqlite_sequence WHERE name = 'record_changes'"
            )
            return int((row.fetchone() or (0,))[0])

    def _current(self, conn: sqlite3.Connection, id: str, now: int | None) -> Record:
        with self._guard():
            row = conn.execute("SELECT body FROM records WHERE n = ?", (number(id),)).fetchone()
        if row is None:
            raise NotFound(f"there is no record {id!r}", hint="`quire record list` shows them.")
        record = decode(row[0])
        if record.expired(now):
            raise NotFound(f"record {id!r} has expired", hint="`quire record purge` removes what has.")
        return record

    def _seen(self, conn: sqlite3.Connection, id: str, version: int, now: int | None) -> Record:
        """The record, if it still is the version that the caller saw."""
        record = self._current(conn, id, now)
        if record.version != version:
            raise ConflictError(
                f"{id} is at version {record.version} ({record.title or record.schema_name}), not {version}",
                hint=CONFLICT_HINT,
            )
        return record

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if is_damage(error):
                raise DamageError(f"the records of {self.store.path} cannot be read: {error}") from error
            raise translate(error, self.store.path) from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._guard():
            conn = self.store.connection()
            with transaction(conn):
                yield conn


def number(id: str) -> int:
    """The number in a record's id: rec-7 -> 7."""
    head, _, digits = id.partition("-")
    if head != "rec" or not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise CallError(f"{id!r} is not the id of a record", hint="Ids look like rec-1.")
    return int(digits)


def _insert(conn: sqlite3.Connection, record: Record) -> Record:
    query = "INSERT INTO records (schema_name, version, change, body) VALUES (?, 1, 0, '')"
    n = conn.execute(query, (record.schema_name,)).lastrowid
    return _write(conn, msgspec.structs.replace(record, id=f"rec-{n}"))


def _write(conn: sqlite3.Connection, record: Record) -> Record:
    """Note the change, and make it the current version."""
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
    return record


def _remove(conn: sqlite3.Connection, numbers: Sequence[int]) -> None:
    for table in ("record_tags", "record_changes", "records"):
        conn.executemany(f"DELETE FROM {table} WHERE n = ?", [(n,) for n in numbers])


def _where(selector: Selector, now: int | None) -> tuple[str, list[object]]:
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
