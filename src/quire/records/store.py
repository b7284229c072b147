"""Records in the file of a log store: create, read, update by version, delete, list, and every version kept.

Each call is one transaction: a kill leaves the record before it or after it, never between.
Time is an argument (`now`, Unix milliseconds); without one nothing expires and no time is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from quire.errors import CallError, ConflictError, DamageError, NotFound
from quire.log.store import RecordFilter, RecordRow, Store
from quire.records import find
from quire.records.config import Selector
from quire.records.find import Progress, RecordHit, RecordMeaning
from quire.records.record import (
    Record,
    View,
    checked,
    decode,
    draft,
    encode,
    expiry,
    number,
    searchable,
    tag_list,
    view,
)
from quire.values import JsonObject

if TYPE_CHECKING:
    from quire.recall.meaning import Embedder

# `Records.list` hides the built-in name inside the class.
RecordList: TypeAlias = list[Record]
Hits: TypeAlias = list[RecordHit]


class Records:
    """The records of one store: `Records(store).create("note.v1", {"text": "…"})`."""

    def __init__(self, store: Store, embedder: Embedder | None = None, progress: Progress | None = None) -> None:
        self.store = store
        self.meaning = RecordMeaning(embedder, progress) if embedder else None
        self._table = store.records

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
        record = draft(
            schema_name, context, title=title, tags=tags, llm_hints=llm_hints, ttl_s=ttl_s, owner=owner, now=now
        )
        return self.create_all([record])[0]

    def create_all(self, drafts: Iterable[Record]) -> RecordList:
        """Keep many new records (see `draft`) in one transaction: all of them or none."""
        with_text = [(record, searchable(record)) for record in drafts]

        def numbered(record: Record, text: str) -> Callable[[int], RecordRow]:
            return lambda n: _row(msgspec.structs.replace(record, id=f"rec-{n}"), text)

        # Hand back what was stored: tuples are lists now, keys are strings.
        return [decode(body) for body in self._table.insert([numbered(*row) for row in with_text])]

    def read(self, id: str, *, now: int | None = None) -> View:
        """A record as a model sees it: with its hints applied."""
        return view(self.read_full(id, now=now))

    def read_full(self, id: str, *, version: int | None = None, now: int | None = None) -> Record:
        """All of a record; an older version of it when one is named."""
        record = self._current(id, now)
        if version is None or version == record.version:
            return record
        matching = [past for past in map(decode, self._table.versions(number(id))) if past.version == version]
        if not matching:
            raise NotFound(
                f"{id} has versions 1 to {record.version}, not {version}", hint="`quire record history` lists them."
            )
        return matching[0]

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
        fields = {
            "title": title,
            "tags": None if tags is None else tag_list(tags),
            "context": context,
            "llm_hints": llm_hints,
            "owner": owner,
            "expires_at": expiry(ttl_s, now),
            "updated_at": now,
        }
        changes: JsonObject = {name: value for name, value in fields.items() if value is not None}
        if changes.get("llm_hints") == {}:
            changes["llm_hints"] = None
        current = self._at_version(id, version, now)
        changed = checked(msgspec.structs.replace(current, version=version + 1, **changes))
        # Showing a record may take its time (a jq rule), so that comes before the table is locked.
        row = _row(changed, searchable(changed))
        if not self._table.update(row, version):
            raise self._other_version(id, version, now)
        return decode(row.body)

    def delete(self, id: str, version: int | None = None, *, now: int | None = None) -> None:
        """Remove a record and all its versions; with a version, only if it still is the one."""
        if version is not None:
            self._at_version(id, version, now)
        else:
            self._current(id, None)
        if not self._table.remove(number(id), version):
            raise self._other_version(id, version, now)

    def purge(self, now: int) -> int:
        """Remove every record whose time has passed; returns how many."""
        return self._table.purge(now)

    def history(self, id: str, *, now: int | None = None) -> RecordList:
        """All versions of a record, oldest first."""
        self._current(id, now)
        return [decode(body) for body in self._table.versions(number(id))]

    def _current(self, id: str, now: int | None) -> Record:
        """A record at its newest version, if there is one and its time has not passed."""
        body = self._table.newest(number(id))
        if body is None:
            raise NotFound(f"there is no record {id!r}", hint="`quire record list` shows them.")
        record = decode(body)
        if record.expired(now):
            raise NotFound(f"record {id!r} has expired", hint="`quire record purge` removes what has.")
        return record

    def _at_version(self, id: str, version: int, now: int | None) -> Record:
        """The record, if it still is the version that the caller saw."""
        record = self._current(id, now)
        if record.version != version:
            raise ConflictError(
                f"{id} is at version {record.version} ({record.title or record.schema_name}), not {version}",
                hint="Read the record again, then update it with the version it has now.",
            )
        return record

    def _other_version(self, id: str, version: int | None, now: int | None) -> DamageError:
        """Why a version that was there a moment ago is not: someone was quicker, or the record contradicts itself."""
        self._current(id, now) if version is None else self._at_version(id, version, now)
        return DamageError(f"record {id} is damaged: its version is noted other than it says")

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
        hits = [hit for hit in self.near(q, selector, now=now) if hit.share > 0][:nn]
        return [hit.with_context() for hit in hits] if include_context else hits

    def near(
        self, q: str, selector: Selector, *, keep: Callable[[Record], bool] = bool, now: int | None = None
    ) -> Hits:
        """What a selector means and has anything to do with q, best first, the older first among equals.

        Beyond a few thousand records only those that share a word with q are looked at.
        """
        query_words, filter = find.words_of(q), RecordFilter(selector.schemas, selector.all_tags, now)
        total = self._table.count(filter)
        if total <= find.FEW:
            corpus, records = None, self.select(selector, keep=keep, now=now)
        else:
            corpus = find.Corpus(total, self._table.frequencies(query_words))
            likely = map(decode, self._table.matching(query_words, filter, find.MOST))
            records = [record for record in likely if selector.matches(record) and keep(record)]
        texts = self._table.texts([number(record.id) for record in records])
        vectors = self.meaning.vectors(self._table, records, texts) if self.meaning else None
        return find.ranked(q, records, texts, meaning=self.meaning, vectors=vectors, corpus=corpus)

    def index(self, *, rebuild: bool = False, now: int | None = None) -> int:
        """Make the vectors that are missing (or all anew), so that no search has to; returns how many."""
        if self.meaning is None:
            raise CallError("there is no embedder to index by", hint="Records(store, embedder=minilm()).")
        if rebuild:
            self._table.clear_vectors()
        records = self.select(Selector(), now=now)
        texts = self._table.texts([number(record.id) for record in records])
        return self.meaning.keep(self._table, records, texts)

    def list(
        self,
        *,
        schema_name: str = "",
        tag: str | Sequence[str] = (),
        owner: str = "",
        limit: int | None = None,
        now: int | None = None,
    ) -> RecordList:
        """Records of a schema and with all of the tags, in the order of creation; the last `limit` of them."""
        tags = (tag,) if isinstance(tag, str) else tuple(tag)
        records = self.select(
            Selector(schemas=(schema_name,) if schema_name else (), all_tags=tags, owner=owner), now=now
        )
        if limit is not None and limit < 0:
            raise CallError(f"limit is at least 0, not {limit}")
        return records if limit is None else records[len(records) - min(limit, len(records)) :]

    def select(
        self,
        selector: Selector,
        *,
        newest: int | None = None,
        keep: Callable[[Record], bool] = bool,
        now: int | None = None,
    ) -> RecordList:
        """What a selector means (and `keep` lets through), in the order of creation; or the `newest` so many of it."""
        filter = RecordFilter(selector.schemas, selector.all_tags, now)
        rows = map(decode, self._table.select(filter, newest_first=newest is not None))
        records = [*islice((record for record in rows if selector.matches(record) and keep(record)), newest)]
        return records if newest is None else sorted(records, key=lambda record: number(record.id))

    def beside(
        self, record: Record, step: int, selector: Selector, session: str = "", *, now: int | None = None
    ) -> Record | None:
        """The next (step 1) or previous (-1) record of the same session; without a session, of those that name none."""
        tags = (*selector.all_tags, session) if session else selector.all_tags
        filter = RecordFilter(selector.schemas, tags, now, no_tag="" if session else find.UNNAMED)
        body = self._table.beside(number(record.id), step, filter)
        return decode(body) if body is not None else None


def _row(record: Record, text: str) -> RecordRow:
    """A version as a table keeps it, found by `text`."""
    return RecordRow(
        number(record.id), record.version, encode(record), record.schema_name, record.tags, record.expires_at, text
    )
