"""Records in a store: all versions of each, listed, and found by words and by meaning.

Each call is one transaction: a process that is killed leaves the record as it was before or after the call.
Time is an argument (`now`, Unix milliseconds); without it nothing expires and no time is noted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from math import log
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from quire.errors import CallError, ConflictError, DamageError, NotFound, needs_extra
from quire.log.store import RecordFilter, RecordRow, RecordTable, Store
from quire.records.record import (
    Record,
    Selector,
    View,
    check_record,
    decode,
    draft,
    encode,
    expiry,
    number,
    role,
    searchable,
    session,
    tag_list,
    view,
)
from quire.values import JsonObject

if TYPE_CHECKING:
    from quire.recall.document import Document
    from quire.recall.meaning import Embedder


# The length of a hit's preview, in characters.
PREVIEW = 80


class RecordHit(msgspec.Struct, frozen=True):
    """A record that a search found.

    `score` decides the order and is the sum of `parts`; `relevance` is the score as a share of the best one's;
    `share` is how much of the query the record itself holds, from 0 to 1.
    """

    record: Record
    score: float
    relevance: float
    share: float
    parts: dict[str, float] = {}
    view: View | None = None
    # By what it was found, as in `quire.recall.Hit`.
    by: str = "words"

    @property
    def preview(self) -> str:
        """The beginning of its text, on one line."""
        text = " ".join((searchable(self.record).strip() or self.record.title).split())
        return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"

    def to_json(self) -> JsonObject:
        """The record's id, schema, title, tags and scores; with its context where that was asked for."""
        fields: JsonObject = {
            "id": self.record.id,
            "schema_name": self.record.schema_name,
            "title": self.record.title,
            "tags": list(self.record.tags),
            "version": self.record.version,
            "score": round(self.score, 4),
            "relevance": round(self.relevance, 4),
            "parts": {part: round(value, 4) for part, value in self.parts.items() if value},
        }
        if self.view is not None:
            fields["context"] = self.view.context
            fields |= {"error": self.view.error} if self.view.error else {}
        return fields


# Searching by meaning. A vector is stored with the version of the record that it was made of, when it is first
# needed; in small transactions, so that a killed process loses few.

# How many vectors of other texts (requests, texts compared for repeats) are kept in memory.
TEXTS_REMEMBERED: Final = 2000
BATCH: Final = 32
# Reports progress: (vectors made, vectors to be made).
Progress: TypeAlias = Callable[[int, int], None]


class RecordMeaning:
    """An embedder with a cache of its vectors in memory, which stores those of records with them."""

    def __init__(self, embedder: Embedder, progress: Progress | None = None) -> None:
        self.embedder, self.progress = embedder, progress
        self.name, self.dimensions = embedder.name, embedder.dimensions
        self._cache: dict[str, Any] = {}

    def encode(self, texts: Sequence[str]) -> Any:
        """A vector for each text, computed once, as one array."""
        import numpy

        new = [text for text in dict.fromkeys(texts) if text not in self._cache]
        if len(self._cache) + len(new) > TEXTS_REMEMBERED:
            self._cache.clear()
            new = list(dict.fromkeys(texts))
        if new:
            from quire.recall.meaning import encode_texts

            self._cache.update(zip(new, encode_texts(self.embedder, new), strict=True))
        known = [self._cache[text] for text in texts]
        return numpy.stack(known) if known else numpy.empty((0, self.dimensions), numpy.float32)

    def cosines(self, query: str, vectors: Sequence[Any]) -> list[float]:
        query_vector = self.encode([query])[0]
        return [float(vector @ query_vector) for vector in vectors]

    def vectors(self, table: RecordTable, records: Sequence[Record], texts: Sequence[str]) -> tuple[list[Any], int]:
        """The vector of each record, and how many were missing and so were made and stored now."""
        from quire.recall.meaning import encode_texts

        vectors = self._stored_vectors(table, records) if records else {}
        missing = [(record, text) for record, text in zip(records, texts, strict=True) if record.id not in vectors]
        if self.progress and missing:
            self.progress(0, len(missing))
        for at in range(0, len(missing), BATCH):
            batch = missing[at : at + BATCH]
            made = encode_texts(self.embedder, [text for _, text in batch])
            rows = [
                (number(record.id), record.version, vector.tobytes())
                for (record, _), vector in zip(batch, made, strict=True)
            ]
            table.add_vectors(self.name, rows)
            vectors |= {record.id: vector for (record, _), vector in zip(batch, made, strict=True)}
            if self.progress:
                self.progress(at + len(batch), len(missing))
        return [vectors[record.id] for record in records], len(missing)

    def _stored_vectors(self, table: RecordTable, records: Sequence[Record]) -> dict[str, Any]:
        import numpy

        numbers = [number(record.id) for record in records]
        rows = table.vectors(self.name, min(numbers), max(numbers))
        by_version = {(f"rec-{n}", version): vector for n, version, vector in rows}
        return {
            record.id: numpy.frombuffer(by_version[record.id, record.version], dtype=numpy.float32)
            for record in records
            if (record.id, record.version) in by_version
        }


# The relevance of texts to a query, from 0 to 1.
#
# By words: the share of the query's words in a text, where rare words count more. By meaning: the cosine as a share
# of the best one. Words count 0.7 of the sum (the best of 0.5 to 0.9 on recorded conversations), less where no text
# holds a fifth of the query's words, and nothing where no text holds any.

WORDS: Final = 0.7
ENOUGH: Final = 0.2
# The cosine of texts that have nothing to do with each other.
UNRELATED_COSINE: Final = 0.25


class Corpus(msgspec.Struct, frozen=True):
    """How many texts there are in all, and how many of them hold each word of the query."""

    size: int
    holding: dict[str, int]


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text without function words, each once: 'The API keys' -> ('api', 'keys')."""
    from quire.recall.languages import FUNCTION_WORDS, tokens

    return tuple(dict.fromkeys(word for word in tokens(text) if word not in FUNCTION_WORDS["english"]))


@lru_cache(maxsize=8192)
def terms_of(text: str) -> frozenset[str]:
    """The words of a text without their endings: 'The API keys' -> {'api', 'key'}."""
    from quire.recall.languages import PREFIXES, terms

    return frozenset(term for term in terms(text) if term[0] not in PREFIXES)


@lru_cache(maxsize=8192)
def _lookups(text: str) -> set[str]:
    from quire.recall.languages import lookups

    return lookups(text)


def by_words(query: str, texts: Sequence[str], corpus: Corpus | None = None) -> list[float]:
    """The share of the query's words in each text, weighted by how few texts hold them."""
    query_words, word_sets = sorted(terms_of(query)), [_lookups(text) for text in texts]
    if corpus is None:
        size = len(word_sets)
        holding = dict(Counter(word for words in word_sets for word in query_words if word in words))
    else:
        size = corpus.size
        holding = {term: number for word, number in corpus.holding.items() for term in terms_of(word)}
    held_by = {word: min(holding.get(word, 0), size) for word in query_words}
    weight = {word: log(1 + (size - number + 0.5) / (number + 0.5)) for word, number in held_by.items()}
    whole = sum(weight.values()) or 1.0
    return [sum(weight[word] for word in query_words if word in words) / whole for words in word_sets]


def relevance(
    query: str, texts: Sequence[str], cosines: Sequence[float] | None = None, corpus: Corpus | None = None
) -> list[float]:
    """Words and meaning together, each as a share of the best."""
    words = by_words(query, texts, corpus)
    if cosines is None:
        return _shares(words)
    near = _shares([cosine if cosine >= UNRELATED_COSINE else 0.0 for cosine in cosines])
    trust = WORDS * min(max(words, default=0.0) / ENOUGH, 1.0)
    return [trust * word + (1 - trust) * close for word, close in zip(_shares(words), near, strict=True)]


def _shares(values: Sequence[float]) -> list[float]:
    best = max(values, default=0.0)
    return [max(value, 0.0) / best if best > 0 else 0.0 for value in values]


# Ranking. The order comes from recall's hybrid index, which also considers the messages around a message; `share`
# only considers the record itself, so that a neighbour of an answer is not taken for the answer.

# The session of messages without one: they count as one conversation.
UNNAMED_SESSION: Final = "session:"


def rank(
    query: str,
    records: Sequence[Record],
    texts: Sequence[str],
    *,
    meaning: RecordMeaning | None = None,
    vectors: Sequence[Any] | None = None,
    corpus: Corpus | None = None,
) -> list[RecordHit]:
    """The records that are at all relevant to the query, the best first."""
    cosines = meaning.cosines(query, vectors) if meaning and vectors else None
    shares = relevance(query, texts, cosines, corpus)
    # The vector of an empty text is near to everything, but the record holds nothing.
    near = {
        record.id: share if text.strip() else 0.0 for record, text, share in zip(records, texts, shares, strict=True)
    }
    if not any(near.values()):
        return []
    hits = _collection(records, texts, meaning, vectors).search(query, len(records))
    by_id = {record.id: record for record in records}
    # Scores can be zero or negative, where they give no share: then the best hits count 1, others 0.
    best = max((hit.score for hit in hits), default=0.0)
    shares = [max(hit.score, 0.0) / best if best > 0 else float(hit.score == best) for hit in hits]
    pairs = zip(hits, shares, strict=True)
    return [
        RecordHit(by_id[hit.id], round(hit.score, 6), part, near[hit.id], hit.parts, by=hit.by) for hit, part in pairs
    ]


def _collection(
    records: Sequence[Record], texts: Sequence[str], meaning: RecordMeaning | None, vectors: Sequence[Any] | None
) -> Any:
    with needs_extra("searching records needs numpy and PyStemmer", "records"):
        import numpy

        from quire.recall.document import Document
        from quire.recall.rank import Collection

    def document(record: Record, text: str) -> Document:
        speaker = role(record)
        place = session(record) or UNNAMED_SESSION if speaker else ""
        return Document(record.id, text, speaker=speaker, session=place)

    collection = Collection(meaning)
    collection.upsert(document(*pair) for pair in zip(records, texts, strict=True))
    if vectors:
        collection.put_vectors([record.id for record in records], numpy.stack(vectors))
    return collection


# Up to FEW records are all compared with the query; of more, only the MOST that share words with it.
FEW: Final = 2000
MOST: Final = 500


# Aliases, because inside the class `list` is the method `Records.list`.
RecordList: TypeAlias = list[Record]
Hits: TypeAlias = list[RecordHit]


class Records:
    """The records of one store: `Records(store).create("note.v1", {"text": "…"})`."""

    def __init__(self, store: Store, embedder: Embedder | None = None, progress: Progress | None = None) -> None:
        self.store = store
        self.meaning = RecordMeaning(embedder, progress) if embedder else None
        self._table = store.records

    # Storing

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
        """Store a new record, at version 1."""
        record = draft(
            schema_name, context, title=title, tags=tags, llm_hints=llm_hints, ttl_s=ttl_s, owner=owner, now=now
        )
        return self.create_all([record])[0]

    def create_all(self, drafts: Iterable[Record]) -> RecordList:
        """Store many new records (see `draft`) in one transaction: all of them or none."""
        rows = [number_record(record, searchable(record)) for record in drafts]
        # Return them as stored: in JSON, tuples are lists and keys are strings.
        return [decode(body) for body in self._table.insert(rows)]

    def read(self, id: str, *, now: int | None = None) -> View:
        """A record as a model sees it: with its hints applied."""
        return view(self.read_full(id, now=now))

    def read_full(self, id: str, *, version: int | None = None, now: int | None = None) -> Record:
        """A record without its hints applied; with `version`, an older version."""
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
        """Change the given fields of a record that is still at `version`; `llm_hints={}` removes its hints."""
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
        changed = check_record(msgspec.structs.replace(current, version=current.version + 1, **changes))
        # Computed before the table is locked: applying hints may take long (a jq rule).
        row = _row(changed, searchable(changed))
        if not self._table.update(row, version):
            raise self._other_version(id, version, now)
        return decode(row.body)

    def delete(self, id: str, version: int | None = None, *, now: int | None = None) -> None:
        """Remove a record with all its versions; with `version`, only if it is still at that."""
        if version is not None:
            self._at_version(id, version, now)
        else:
            self._current(id, None)
        if not self._table.remove(number(id), version):
            raise self._other_version(id, version, now)

    def purge(self, now: int) -> int:
        """Remove every expired record; returns how many."""
        return self._table.purge(now)

    def history(self, id: str, *, now: int | None = None) -> RecordList:
        """All versions of a record, oldest first."""
        self._current(id, now)
        return [decode(body) for body in self._table.versions(number(id))]

    def _current(self, id: str, now: int | None) -> Record:
        """A record at its newest version; an error where there is none or it has expired."""
        body = self._table.newest(number(id))
        if body is None:
            raise NotFound(f"there is no record {id!r}", hint="`quire record list` shows them.")
        record = decode(body)
        if record.expired(now):
            raise NotFound(f"record {id!r} has expired", hint="`quire record purge` removes what has.")
        return record

    def _at_version(self, id: str, version: int, now: int | None) -> Record:
        """The record, if it is still at the version that the caller read; else an error."""
        record = self._current(id, now)
        if record.version != version:
            raise ConflictError(
                f"{id} is at version {record.version} ({record.title or record.schema_name}), not {version}",
                hint="Read the record again, then update it with the version it has now.",
            )
        return record

    def _other_version(self, id: str, version: int | None, now: int | None) -> DamageError:
        """Why a write did not find the version that was just read: another writer (raised), or a damaged record."""
        self._current(id, now) if version is None else self._at_version(id, version, now)
        return DamageError(f"record {id} is damaged: its version is noted other than it says")

    # Finding

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
        """The `nn` records most relevant to q, the best first; irrelevant ones are left out."""
        if nn < 1:
            raise CallError(f"nn is at least 1, not {nn}")
        hits = [hit for hit in self.near(q, _selector(schema_name, tag), now=now) if hit.share > 0][:nn]
        if include_context:
            return [msgspec.structs.replace(hit, view=view(hit.record)) for hit in hits]
        return hits

    def near(
        self, q: str, selector: Selector, *, keep: Callable[[Record], bool] = bool, now: int | None = None
    ) -> Hits:
        """The selected records that are relevant to q, the best first, among equals the older.

        Of more than a few thousand records, only those that share a word with q are compared.
        """
        query_words, filter = words_of(q), RecordFilter(selector.schemas, selector.all_tags, now)
        total = self._table.count(filter)
        if total <= FEW:
            corpus, records = None, self.select(selector, keep=keep, now=now)
        else:
            corpus = Corpus(total, self._table.frequencies(query_words))
            likely = map(decode, self._table.matching(query_words, filter, MOST))
            records = [record for record in likely if selector.matches(record) and keep(record)]
        texts = self._table.texts([number(record.id) for record in records])
        vectors = self.meaning.vectors(self._table, records, texts)[0] if self.meaning else None
        return rank(q, records, texts, meaning=self.meaning, vectors=vectors, corpus=corpus)

    def index(self, *, rebuild: bool = False, now: int | None = None) -> int:
        """Make the missing vectors now (with `rebuild` all of them) instead of at a search; returns how many."""
        if self.meaning is None:
            raise CallError("there is no embedder to index by", hint="Records(store, embedder=minilm()).")
        if rebuild:
            self._table.clear_vectors()
        records = self.select(Selector(), now=now)
        texts = self._table.texts([number(record.id) for record in records])
        return self.meaning.vectors(self._table, records, texts)[1]

    def list(
        self,
        *,
        schema_name: str = "",
        tag: str | Sequence[str] = (),
        owner: str = "",
        limit: int | None = None,
        now: int | None = None,
    ) -> RecordList:
        """The newest `limit` records with a schema, all of the tags and an owner, in the order of creation."""
        if limit is not None and limit < 0:
            raise CallError(f"limit is at least 0, not {limit}")
        return self.select(_selector(schema_name, tag, owner), newest=limit, now=now)

    def select(
        self,
        selector: Selector,
        *,
        newest: int | None = None,
        keep: Callable[[Record], bool] = bool,
        now: int | None = None,
    ) -> RecordList:
        """The selected records for which `keep` is true, in the order of creation; with `newest`, the last so many."""
        filter = RecordFilter(selector.schemas, selector.all_tags, now)
        rows = map(decode, self._table.select(filter, newest_first=newest is not None))
        records = [*islice((record for record in rows if selector.matches(record) and keep(record)), newest)]
        return records if newest is None else sorted(records, key=lambda record: number(record.id))

    def beside(
        self, record: Record, step: int, selector: Selector, session: str = "", *, now: int | None = None
    ) -> Record | None:
        """The next (step 1) or previous (-1) record of a session; with "", of the records without a session."""
        tags = (*selector.all_tags, session) if session else selector.all_tags
        filter = RecordFilter(selector.schemas, tags, now, no_tag="" if session else UNNAMED_SESSION)
        body = self._table.beside(number(record.id), step, filter)
        return decode(body) if body is not None else None


def _selector(schema_name: str, tag: str | Sequence[str], owner: str = "") -> Selector:
    tags = (tag,) if isinstance(tag, str) else tuple(tag)
    return Selector(schemas=(schema_name,) if schema_name else (), all_tags=tags, owner=owner)


def number_record(record: Record, text: str = "") -> Callable[[int], RecordRow]:
    """A function that makes the row of a new record from the number that the table gives it."""
    return lambda n: _row(msgspec.structs.replace(record, id=f"rec-{n}"), text)


def _row(record: Record, text: str) -> RecordRow:
    """A version as a table stores it; a search finds it by `text`."""
    return RecordRow(
        number(record.id), record.version, encode(record), record.schema_name, record.tags, record.expires_at, text
    )
