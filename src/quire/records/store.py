"""Records in the file of a log store: kept with every version, listed, and found by words and by meaning.

Each call is one transaction: a kill leaves the record before it or after it, never between.
Time is an argument (`now`, Unix milliseconds); without one nothing expires and no time is noted.
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


# A record that a search found, and how it is shown.

PREVIEW = 80


class RecordHit(msgspec.Struct, frozen=True):
    """A record that was found: its score (what the order goes by, the sum of `parts`), the same as a share of the
    best one's (`relevance`), how much of the query it holds itself from 0 to 1 (`share`), and, where asked for, what
    its hints show of it.
    """

    record: Record
    score: float
    relevance: float
    share: float
    parts: dict[str, float] = {}
    view: View | None = None
    # What it was found by, as a `quire.recall.Hit` says it.
    by: str = "words"

    @property
    def preview(self) -> str:
        """The beginning of what it says, on one line."""
        text = " ".join((searchable(self.record).strip() or self.record.title).split())
        return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"

    def to_json(self) -> JsonObject:
        """The record's head and score; with its context where that was asked for."""
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


# Records by meaning: an embedder's vectors, kept with the version they were made of, and their cosines.
#
# Vectors are derived and made when first needed, in small transactions: what was made before a kill stays.

# How many texts are remembered besides the stored vectors: those of requests and of de-duplication.
TEXTS_REMEMBERED: Final = 2000
BATCH: Final = 32
# Called with how many vectors are made, and how many will be.
Progress: TypeAlias = Callable[[int, int], None]


class RecordMeaning:
    """How near texts come to each other in meaning: an embedder that remembers, and keeps vectors with records."""

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
        """The vector of each record, and how many were missing: those are made and stored first."""
        from quire.recall.meaning import encode_texts

        vectors = self._store_vectors(table, records) if records else {}
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

    def _store_vectors(self, table: RecordTable, records: Sequence[Record]) -> dict[str, Any]:
        import numpy

        numbers = [number(record.id) for record in records]
        rows = table.vectors(self.name, min(numbers), max(numbers))
        by_version = {(f"rec-{n}", version): vector for n, version, vector in rows}
        return {
            record.id: numpy.frombuffer(by_version[record.id, record.version], dtype=numpy.float32)
            for record in records
            if (record.id, record.version) in by_version
        }


# How much texts have to do with a query, from 0 to 1, the best of them near 1.
#
# By words: the share of the query's words that a text holds, rare words counting more. By meaning, where cosines
# are given: how near a text comes to the nearest. Together words count 0.7 (of 0.5 to 0.9 the best on recorded
# conversations), less where no text holds a fifth of the query's words, and nothing where none holds any.

WORDS: Final = 0.7
ENOUGH: Final = 0.2
# The cosine of texts that have nothing to do with each other.
UNRELATED_COSINE: Final = 0.25


class Corpus(msgspec.Struct, frozen=True):
    """Of how many texts the ones at hand were taken, and in how many of them each word of the query stands."""

    size: int
    holding: dict[str, int]


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text that are worth searching, each once: 'The API keys' -> ('api', 'keys')."""
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
    """The share of the query's words in each text, weighed by how few texts hold them."""
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


# Records in the order in which they answer a query, by recall's hybrid index; and how relevant each is.
#
# The index decides the order, and it also uses the messages around one. The share says how much of the query a record
# holds itself, so that a neighbour of an answer is not taken for the answer.


# The session of messages that name none: they stand beside each other all the same.
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
    """Those of the records that have anything to do with the query, the best first."""
    cosines = meaning.cosines(query, vectors) if meaning and vectors else None
    shares = relevance(query, texts, cosines, corpus)
    # An empty text has a vector that is near to everything, yet says nothing.
    near = {
        record.id: share if text.strip() else 0.0 for record, text, share in zip(records, texts, shares, strict=True)
    }
    if not any(near.values()):
        return []
    hits = _collection(records, texts, meaning, vectors).search(query, len(records))
    by_id = {record.id: record for record in records}
    # Scores tell how far a hit stands above the others: below them, or with none beside it, they are no share.
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


# Up to FEW records are compared one by one; of more, the MOST that share words with the query.
FEW: Final = 2000
MOST: Final = 500


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
        rows = [number_record(record, searchable(record)) for record in drafts]
        # Hand back what was stored: tuples are lists now, keys are strings.
        return [decode(body) for body in self._table.insert(rows)]

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
        changed = check_record(msgspec.structs.replace(current, version=current.version + 1, **changes))
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
        hits = [hit for hit in self.near(q, _selector(schema_name, tag), now=now) if hit.share > 0][:nn]
        if include_context:
            return [msgspec.structs.replace(hit, view=view(hit.record)) for hit in hits]
        return hits

    def near(
        self, q: str, selector: Selector, *, keep: Callable[[Record], bool] = bool, now: int | None = None
    ) -> Hits:
        """What a selector means and has anything to do with q, best first, the older first among equals.

        Beyond a few thousand records only those that share a word with q are looked at.
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
        """Make the vectors that are missing (or all anew), so that no search has to; returns how many."""
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
        """Records of a schema and with all of the tags, in the order of creation; the last `limit` of them."""
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
        filter = RecordFilter(selector.schemas, tags, now, no_tag="" if session else UNNAMED_SESSION)
        body = self._table.beside(number(record.id), step, filter)
        return decode(body) if body is not None else None


def _selector(schema_name: str, tag: str | Sequence[str], owner: str = "") -> Selector:
    tags = (tag,) if isinstance(tag, str) else tuple(tag)
    return Selector(schemas=(schema_name,) if schema_name else (), all_tags=tags, owner=owner)


def number_record(record: Record, text: str = "") -> Callable[[int], RecordRow]:
    """A new record for the number that a table gives it; a search finds it by `text`."""
    return lambda n: _row(msgspec.structs.replace(record, id=f"rec-{n}"), text)


def _row(record: Record, text: str) -> RecordRow:
    """A version as a table keeps it, found by `text`."""
    return RecordRow(
        number(record.id), record.version, encode(record), record.schema_name, record.tags, record.expires_at, text
    )
