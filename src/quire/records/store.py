"""Records in the file of a log store: create, read, update by version, delete, list, and every version kept.

Each call is one transaction: a kill leaves the record before it or after it, never between.
Time is an argument (`now`, Unix milliseconds); without one nothing expires and no time is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from quire.errors import CallError, NotFound
from quire.records import find, rows
from quire.records.find import Progress, RecordHit, RecordMeaning
from quire.records.record import Record, View, checked, decode, draft, expiry, tag_list, view
from quire.records.rows import RecordFile, RecordStore, number
from quire.records.selector import Selector
from quire.records.shape import searchable
from quire.values import JsonObject

if TYPE_CHECKING:
    from quire.recall.embed import Embedder

# `Records.list` hides the built-in name inside the class.
Found: TypeAlias = list[Record]
Hits: TypeAlias = list[RecordHit]


class Records:
    """The records of one store: `Records(store).create("note.v1", {"text": "…"})`."""

    def __init__(
        self, store: RecordStore, embedder: Embedder | None = None, progress: Progress | None = None
    ) -> None:
        self.store = store
        self.meaning = RecordMeaning(embedder, progress) if embedder else None
        self._file = RecordFile(store)

    # Keeping them

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
        with self._file.transaction() as conn:
            return [rows.insert(conn, one, text) for one, text in found_by]

    def read(self, id: str, *, now: int | None = None) -> View:
        """A record as a model sees it: with its hints applied."""
        return view(self.read_full(id, now=now))

    def read_full(self, id: str, *, version: int | None = None, now: int | None = None) -> Record:
        """All of a record; an older version of it when one is named."""
        record = self._file.current(id, now)
        if version is None or version == record.version:
            return record
        asked = version if 0 < version < record.version else 0  # no number is too large to ask for
        query = "SELECT body FROM record_changes WHERE n = ? AND version = ?"
        with self._file.guard() as conn:
            row = conn.execute(query, (number(id), asked)).fetchone()
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
        seen = self._file.seen(id, version, now)
        made = checked(msgspec.structs.replace(seen, version=version + 1, **changes))
        # Showing a record may take its time (a jq rule), so that comes before the lock, and a second look behind it.
        text = searchable(made)
        with self._file.transaction() as conn:
            self._file.seen(id, version, now)
            return rows.write(conn, made, text)

    def delete(self, id: str, version: int | None = None, *, now: int | None = None) -> None:
        """Remove a record and all its versions; with a version, only if it still is the one."""
        with self._file.transaction() as conn:
            if version is not None:
                self._file.seen(id, version, now)
            self._file.current(id, None)
            rows.remove(conn, [number(id)])
        self._file.wipe()

    def purge(self, now: int) -> int:
        """Remove every record whose time has passed; returns how many."""
        with self._file.transaction() as conn:
            past = conn.execute("SELECT n FROM records WHERE expires_at <= ?", (now,)).fetchall()
            rows.remove(conn, [n for (n,) in past])
        self._file.wipe()
        return len(past)

    def history(self, id: str, *, now: int | None = None) -> Found:
        """All versions of a record, oldest first."""
        self._file.current(id, now)
        query = "SELECT body FROM record_changes WHERE n = ? ORDER BY version"
        with self._file.guard() as conn:
            found = conn.execute(query, (number(id),)).fetchall()
        return [decode(body) for (body,) in found]

    # Finding them

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
        return find.near(self._file, self.meaning, q, selector, keep, now)

    def index(self, *, rebuild: bool = False, now: int | None = None) -> int:
        """Make the vectors that are missing (or all anew), so that no search has to; returns how many."""
        if self.meaning is None:
            raise CallError("there is no embedder to index by", hint="Records(store, embedder=minilm()).")
        if rebuild:
            with self._file.transaction() as conn:
                conn.execute("DELETE FROM record_vectors")
        found = self.select(Selector(), now=now)
        with self._file.guard() as conn:
            return self.meaning.keep(conn, found, rows.texts(conn, found))

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
        return find.select(self._file, selector, newest, keep, now)

    def beside(
        self, record: Record, step: int, selector: Selector, session: str = "", *, now: int | None = None
    ) -> Record | None:
        """The next (step 1) or previous (-1) record of the same session; without a session, of those that name none."""
        return find.beside(self._file, record, step, selector, session, now)
