"""Records in the file of a log store: create, read, update by version, delete, list, and every version kept.

Each call is one transaction: a kill leaves the record before it or after it, never between.
Time is an argument (`now`, Unix milliseconds); without one nothing expires and no time is noted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import msgspec

from quire.errors import CallError, ConflictError, DamageError, NotFound
from quire.log.connect import is_damage, transaction, translate
from quire.log.migrations import migrate
from quire.records import rows
from quire.records.hit import Hit
from quire.records.meaning import Meaning, Progress
from quire.records.ranking import ranked
from quire.records.record import Record, View, checked, decode, draft, expiry, tag_list, view
from quire.records.relevance import Corpus, words_of
from quire.records.rows import number
from quire.records.selector import Selector
from quire.records.shape import searchable
from quire.records.tables import TABLES
from quire.values import JsonObject

if TYPE_CHECKING:
    from quire.recall.embed import Embedder

# `Records.list` hides the built-in name inside the class.
Found: TypeAlias = list[Record]
Hits: TypeAlias = list[Hit]
# Up to FEW records are compared one by one; of more, the MOST that share words with the query.
FEW: Final = 2000
MOST: Final = 500
CONFLICT_HINT = "Read the record again, then update it with the version it has now."


class RecordStore(Protocol):
    """A log store that lets others keep tables in its file."""

    @property
    def path(self) -> str | Path: ...

    def connection(self) -> sqlite3.Connection: ...


class Records:
    """The records of one store: `Records(store).create("note.v1", {"text": "…"})`."""

    def __init__(
        self, store: RecordStore, embedder: Embedder | None = None, progress: Progress | None = None
    ) -> None:
        self.store = store
        self.meaning = Meaning(embedder, progress) if embedder else None
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
        found_by = [(one, searchable(one)) for one in drafts]
        with self._transaction() as conn:
            return [rows.insert(conn, one, text) for one, text in found_by]

    def read(self, id: str, *, now: int | None = None) -> View:
        """A record as a model sees it: with its hints applied."""
        return view(self.read_full(id, now=now))

    def read_full(self, id: str, *, version: int | None = None, now: int | None = None) -> Record:
        """All of a record; an older version of it when one is named."""
        record = self._current(self.store.connection(), id, now)
        if version is None or version == record.version:
            return record
        asked = version if 0 < version < record.version else 0  # no number is too large to ask for
        with self._guard():
            row = (
                self.store.connection()
                .execute("SELECT body FROM record_changes WHERE n = ? AND version = ?", (number(id), asked))
                .fetchone()
            )
        if row is None:
            raise NotFound(
                f"{id} has versions 1 to {record.version}, not {version}",
                hint="`quire record history` lists them.",
            )
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
        seen = self._seen(self.store.connection(), id, version, now)
        made = checked(msgspec.structs.replace(seen, version=version + 1, **changes))
        # Showing a record may take its time (a jq rule), so that comes before the lock, and a second look behind it.
        text = searchable(made)
        with self._transaction() as conn:
            self._seen(conn, id, version, now)
            return rows.write(conn, made, text)

    def delete(self, id: str, version: int | None = None, *, now: int | None = None) -> None:
        """Remove a record and all its versions; with a version, only if it still is the one."""
        with self._transaction() as conn:
            if version is not None:
                self._seen(conn, id, version, now)
            self._current(conn, id, None)
            rows.remove(conn, [number(id)])
        self._wipe()

    def search(
        self,
        q: str,
        *,
        nn: int = 5,
        tag: str | Sequence[str] = (),
        schema_name: str = "",
        include_context: bool = False,
        now: int | None = None,
    ) -> Hits:
        """The nn records nearest to q, nearest first; none that has nothing to do with it."""
        if nn < 1:
            raise CallError(f"nn is at least 1, not {nn}")
        tags = (tag,) if isinstance(tag, str) else tuple(tag)
        selector = Selector(schemas=(schema_name,) if schema_name else (), all_tags=tags)
        hits = [hit for hit in self.near(q, selector, now=now) if hit.relevance > 0][:nn]
        return [hit.with_context() for hit in hits] if include_context else hits

    def near(
        self, q: str, selector: Selector, *, keep: Callable[[Record], bool] = bool, now: int | None = None
    ) -> Hits:
        """What a selector means and has anything to do with q, best first, the older first among equals.

        Beyond a few thousand records only those that share a word with q are looked at.
        """
        conn, asked = self.store.connection(), words_of(q)
        where, values = rows.where(selector, now)
        with self._guard():
            total = rows.count(conn, where, values)
            few = total <= FEW
            bodies = [] if few else rows.matching(conn, asked, where, values, MOST)
            corpus = None if few else Corpus(total, rows.frequencies(conn, asked))
        found = self.select(selector, keep=keep, now=now) if few else self._kept(bodies, selector, keep)
        with self._guard():
            texts = rows.texts(conn, found)
            vectors = self.meaning.vectors(conn, found, texts) if self.meaning else None
        return ranked(q, found, texts, meaning=self.meaning, vectors=vectors, corpus=corpus)

    def index(self, *, rebuild: bool = False, now: int | None = None) -> int:
        """Make the vectors that are missing (or all anew), so that no search has to; returns how many."""
        if self.meaning is None:
            raise CallError("there is no embedder to index by", hint="Records(store, embedder=minilm()).")
        if rebuild:
            with self._transaction() as conn:
                conn.execute("DELETE FROM record_vectors")
        found = self.select(Selector(), now=now)
        conn = self.store.connection()
        with self._guard():
            return self.meaning.keep(conn, found, rows.texts(conn, found))

    def _kept(self, bodies: Iterable[str], selector: Selector, keep: Callable[[Record], bool]) -> Found:
        return [one for one in map(decode, bodies) if selector.matches(one) and keep(one)]

    def purge(self, now: int) -> int:
        """Remove every record whose time has passed; returns how many."""
        with self._transaction() as conn:
            past = conn.execute("SELECT n FROM records WHERE expires_at <= ?", (now,)).fetchall()
            rows.remove(conn, [n for (n,) in past])
        self._wipe()
        return len(past)

    def history(self, id: str, *, now: int | None = None) -> Found:
        """All versions of a record, oldest first."""
        self._current(self.store.connection(), id, now)
        query = "SELECT body FROM record_changes WHERE n = ? ORDER BY version"
        with self._guard():
            found = self.store.connection().execute(query, (number(id),)).fetchall()
        return [decode(body) for (body,) in found]

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
        found: Found = []
        with self._guard():
            conn = self.store.connection()
            order = rows.by_creation if newest is None else rows.by_change
            for body in order(conn, selector, now):
                if len(found) == newest:
                    break
                record = decode(body)
                if selector.matches(record) and keep(record):
                    found.append(record)
        return found if newest is None else sorted(found, key=lambda record: number(record.id))

    def beside(
        self, record: Record, step: int, selector: Selector, session: str = "", *, now: int | None = None
    ) -> Record | None:
        """The next (step 1) or previous (-1) record of the same session; without a session, of those that name none."""
        where, values = rows.where(selector, now)
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

    def _wipe(self) -> None:
        """Take what was deleted out of the write-ahead log too; a busy reader may put this off."""
        with self._guard():
            self.store.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

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
