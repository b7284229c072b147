"""How near records come to a text: by its words, and by its meaning where there is an embedder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import log
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from quire.errors import needed
from quire.log.store import RecordTable
from quire.records.record import Record, View, number, role, searchable, session, view
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

    @property
    def preview(self) -> str:
        """The beginning of what it says, on one line."""
        text = " ".join((searchable(self.record).strip() or self.record.title).split())
        return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"

    def with_context(self) -> RecordHit:
        return msgspec.structs.replace(self, view=view(self.record))

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
REMEMBERED: Final = 2000
BATCH: Final = 32
# Called with how many vectors are made, and how many will be.
Progress: TypeAlias = Callable[[int, int], None]


class RecordMeaning:
    """How near texts come to each other in meaning: an embedder that remembers, and keeps vectors with records."""

    def __init__(self, embedder: Embedder, progress: Progress | None = None) -> None:
        self.embedder, self.progress = embedder, progress
        self.name, self.dimensions = embedder.name, embedder.dimensions
        self._cache: dict[str, Any] = {}

    def embed(self, texts: Sequence[str]) -> list[Any]:
        """A vector for each text, computed once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._cache]
        if len(self._cache) + len(new) > REMEMBERED:
            self._cache.clear()
            new = list(dict.fromkeys(texts))
        if new:
            self._cache.update(zip(new, self.embedder.encode(new), strict=True))
        return [self._cache[text] for text in texts]

    def encode(self, texts: Sequence[str]) -> Any:
        """The vectors of texts as one array."""
        import numpy

        return numpy.stack(self.embed(texts)) if texts else numpy.empty((0, self.dimensions), numpy.float32)

    def cosines(self, query: str, vectors: Sequence[Any]) -> list[float]:
        """The cosine of the query with each vector."""
        query_vector = self.embed([query])[0]
        return [float(vector @ query_vector) for vector in vectors]

    def vectors(self, table: RecordTable, records: Sequence[Record], texts: Sequence[str]) -> list[Any]:
        """The vector of each record; those that are missing are made first."""
        import numpy

        self.keep(table, records, texts)
        stored = self._stored(table, records) if records else {}
        # A record that changed meanwhile has no vector yet; it is near to nothing this once.
        none = numpy.zeros(self.dimensions, numpy.float32)
        return [stored.get(record.id, none) for record in records]

    def keep(self, table: RecordTable, records: Sequence[Record], texts: Sequence[str]) -> int:
        """Make and store the vectors that are missing; returns how many there were."""
        stored = self._stored(table, records) if records else {}
        missing = [(record, text) for record, text in zip(records, texts, strict=True) if record.id not in stored]
        stored_count = 0
        if self.progress and missing:
            self.progress(0, len(missing))
        for batch in [missing[at : at + BATCH] for at in range(0, len(missing), BATCH)]:
            vectors = self.embedder.encode([text for _, text in batch])
            rows = [
                (number(record.id), record.version, vector.astype("float32").tobytes())
                for (record, _), vector in zip(batch, vectors, strict=True)
            ]
            table.add_vectors(self.name, rows)
            stored_count += len(batch)
            if self.progress:
                self.progress(stored_count, len(missing))
        return len(missing)

    def _stored(self, table: RecordTable, records: Sequence[Record]) -> dict[str, Any]:
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
UNRELATED: Final = 0.25


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
    from quire.recall.languages import WHOLE, terms

    return frozenset(term for term in terms(text) if term[0] != WHOLE)


def by_words(query: str, texts: Sequence[str], corpus: Corpus | None = None) -> list[float]:
    """The share of the query's words in each text, weighed by how few texts hold them."""
    query_words, word_sets = sorted(terms_of(query)), [terms_of(text) for text in texts]
    if corpus is None:
        size, holding = (
            len(word_sets),
            dict(Counter(word for words in word_sets for word in query_words if word in words)),
        )
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
    near = _shares([cosine if cosine >= UNRELATED else 0.0 for cosine in cosines])
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
UNNAMED: Final = "session:"


def ranked(
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
    best = max((hit.score for hit in hits), default=0.0) or 1.0
    return [RecordHit(by_id[hit.id], round(hit.score, 6), hit.score / best, near[hit.id], hit.parts) for hit in hits]


def _collection(
    records: Sequence[Record], texts: Sequence[str], meaning: RecordMeaning | None, vectors: Sequence[Any] | None
) -> Any:
    with needed("searching records needs numpy and PyStemmer", "records"):
        import numpy

        from quire.recall.document import Document
        from quire.recall.rank import Collection

    def document(record: Record, text: str) -> Document:
        speaker = role(record)
        place = session(record) or UNNAMED if speaker else ""
        return Document(record.id, text, speaker=speaker, session=place)

    collection = Collection(meaning)
    collection.upsert(document(*pair) for pair in zip(records, texts, strict=True))
    if vectors:
        collection.put_vectors([record.id for record in records], numpy.stack(vectors))
    return collection


# Up to FEW records are compared one by one; of more, the MOST that share words with the query.
FEW: Final = 2000
MOST: Final = 500
