"""Hybrid search over documents in memory: by their words and those of their neighbours, and by meaning.

Knows nothing of threads or records; callers add, replace and delete documents.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from quire.errors import CallError, MissingPart
from quire.recall.document import (
    EARLIER,
    FLOOR,
    TOOL,
    USUAL_COSINE,
    Document,
    DocumentTerms,
    Found,
    Query,
    QueryTerms,
    ask,
    index_terms,
    is_name,
    pieces,
)
from quire.recall.languages import PREFIXES
from quire.recall.meaning import MEANING_PARTS, RETRY_S, Embedder, Meaning, encode_texts
from quire.recall.words import Array, Bools, Column, Floats, Ints, Neighbours, Postings, posting_run, scores
from quire.values import whole_characters

_logger = logging.getLogger("quire")

# A document's score is the sum of several parts: its standard scores by words and by meaning, and small priors.
#
# Priors that make sense only where people talk to each other are scaled by how much of a dialogue surrounds a row. They
# vanish in threads of user and assistant, in logs of one speaker, and in records.

# Candidates are this many of the best by words and by meaning, or twice as many as asked for; of few rows, all.
POOL = 200
_FEW = 1000
_ROUNDING = 1e-5
# The least deviation assumed of scores by words, as shares of the score of a row that holds all words: in any collection,
# and more where few rows hold any word. Only in the embedding model's language: in others, words count more than meaning.
_LEAST_SPREAD, _SPARSE_SPREAD = 0.03, 0.05


class Weights(msgspec.Struct, frozen=True):
    """The weight of each part, in standard deviations of the score by words."""

    words: float = 1.0
    meaning: float = 1.0
    speaker: float = 1.6
    asks: float = -1.2
    person: float = 1.0
    # For what a tool returned, to prefer it to the talk about it.
    result: float = 0.5
    time: float = 0.7
    name: float = 1.0


WEIGHTS = Weights()
# A document without a word of the query is relevant where its cosine is at least `_LEAST_LIKE` and exceeds the mean by
# `_MORE_THAN_CHANCE` deviations more than the highest of that many random cosines would.
_LEAST_LIKE, _MORE_THAN_CHANCE = 0.4, 0.5
PARTS = ("words", "meaning", "speaker", "speech", "time", "name")


def standard(values: Floats, least: float = 0.0) -> Floats:
    """Standard scores: mean 0 and deviation 1; smaller where the deviation is below `least`, 0 where all values are equal."""
    if not len(values):
        return values
    values = values.astype(np.float64)
    spread = values.std()
    # Differences as small as rounding errors are ignored; scaling would blow them up to a whole deviation.
    differs = spread > _ROUNDING * max(1.0, np.abs(values).max())
    return ((values - values.mean()) / max(spread, least) if differs else np.zeros(len(values))).astype(np.float32)


def standard_words(scores: Floats, ideal: float) -> Floats:
    """Standard scores by words, damped where few rows hold any word, so that one word by chance does not decide."""
    sparse = np.count_nonzero(scores == 0) / max(1, len(scores))
    return standard(scores, ideal * (_LEAST_SPREAD + _SPARSE_SPREAD * sparse))


def standard_by(values: Floats, apart: Bools) -> Floats:
    """Standard scores within each of two groups: what tools returned is never as similar to a question as speech is."""
    out = np.zeros(len(values), np.float32)
    for group in (apart, ~apart):
        out[group] = standard(values[group])
    return out


def pool(words: Floats, near: Ints, cosines: Floats, allowed: Bools, size: int) -> Ints:
    """The candidates: all allowed rows while they are few, else the best by words and the best by meaning."""
    if np.count_nonzero(allowed) <= _FEW:
        return np.flatnonzero(allowed)
    by_words = np.flatnonzero(allowed & (words > 0))
    is_allowed = allowed[near]
    by_meaning, cosines = near[is_allowed], cosines[is_allowed]
    chosen = np.zeros(len(allowed), np.bool_)
    chosen[_best(by_words, words[by_words], size)] = True
    chosen[_best(by_meaning, cosines, size)] = True
    return np.flatnonzero(chosen)


def _best(rows: Ints, scores: Floats, size: int) -> Ints:
    """The rows with the highest scores, at most `size`; of equal ones the oldest."""
    if len(rows) <= size:
        return rows
    least = np.partition(scores, -size)[-size]
    above = rows[scores > least]
    return np.concatenate([above, rows[scores == least][: size - len(above)]])


def order(scores: Floats, rows: Ints) -> Ints:
    """Positions from the highest score to the lowest; equals keep the order of rows."""
    return np.lexsort((rows, -scores))


_SPEAKER_PARTS = ("speakers", "asks", "_said", "_person", "_times", "_names", "_returned")


class SpeakerPriors:
    """Small preferences between rows by who said them and how (`SpeechSigns`)."""

    def __init__(self) -> None:
        # The number of each speaker, how many rows each has, and the words by which they can be named.
        self._numbers: dict[str, int] = {}
        self._said = Column(np.int64)
        self._people: dict[str, int] | None = None
        self.speakers, self.asks = Column(np.int32), Column(np.bool_)
        self._person, self._times, self._names = Column(np.float32), Column(np.float32), Column(np.float32)
        self._returned = Column(np.bool_)

    def add(self, documents: Sequence[DocumentTerms]) -> None:
        """Add a row for each document."""
        speakers = [self._numbers.setdefault(document.speaker, len(self._numbers)) for document in documents]
        self._said.lengthen(len(self._numbers) - self._said.size)
        self._count(np.array(speakers, np.int64), 1)
        speech = [document.speech for document in documents]
        self.speakers.extend(speakers)
        self._returned.extend([document.speaker == TOOL for document in documents])
        self.asks.extend([signs.asks for signs in speech])
        self._person.extend([signs.person for signs in speech])
        self._times.extend([signs.times for signs in speech])
        self._names.extend([signs.names for signs in speech])

    def state(self) -> dict[str, bytes]:
        """All columns as bytes, to be stored; `restore` reads them."""
        columns = {name: getattr(self, name).packed for name in _SPEAKER_PARTS}
        return {**columns, "speaker_names": msgspec.msgpack.encode(list(self._numbers))}

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Replace the state with a stored one."""
        for name in _SPEAKER_PARTS:
            getattr(self, name).restore(state[name])
        names = msgspec.msgpack.decode(state["speaker_names"], type=list[str])
        self._numbers = {name: number for number, name in enumerate(names)}

    def forget(self, row: int) -> None:
        """Take a deleted row off its speaker's count."""
        self._count(self.speakers.all[row : row + 1], -1)

    def _count(self, speakers: Ints, step: int) -> None:
        before = np.count_nonzero(self._said.all)
        np.add.at(self._said.all, speakers, step)
        if np.count_nonzero(self._said.all) != before:
            self._people = None

    def returned(self, rows: Ints) -> Bools:
        """Which rows were returned by tools."""
        mask: Bools = self._returned.all[rows]
        return mask

    def people(self) -> dict[str, int]:
        """The words that name exactly one speaker; a word in two speakers' names is left out."""
        if self._people is None:
            named = [
                (word, number)
                for speaker, number in self._numbers.items()
                if is_name(speaker) and self._said.all[number]
                for word in dict.fromkeys(speaker.lower().split())
            ]
            shared = Counter(word for word, _ in named)
            self._people = {word: number for word, number in named if shared[word] == 1}
        return self._people

    def speaker(self, query: QueryTerms, rows: Ints) -> Floats:
        """Prefer what was said by the person the query is about."""
        is_subject = self.speakers.all[rows] == query.subject
        return np.where(is_subject, np.float32(WEIGHTS.speaker if query.subject >= 0 else 0), np.float32(0))

    def speech(self, rows: Ints, dialogue: Floats) -> Floats:
        """Prefer rows in which speakers talk about themselves to questions and cheers; and what tools returned."""
        returned = self._returned.all[rows]
        prior = WEIGHTS.asks * self.asks.all[rows] + WEIGHTS.person * (self._person.all[rows] - np.float32(0.5))
        return np.asarray(np.where(returned, WEIGHTS.result, dialogue * prior), np.float32)

    def time(self, query: QueryTerms, rows: Ints) -> Floats:
        """Prefer rows that mention a time where the query asks for one."""
        return np.asarray(self._times.all[rows] * np.float32(WEIGHTS.time if query.when else 0), np.float32)

    def name(self, query: QueryTerms, rows: Ints) -> Floats:
        """Prefer rows with a name where the query asks for one; not tool results, which nearly always hold names."""
        names = self._names.all[rows] * ~self._returned.all[rows]
        return np.asarray(names * np.float32(WEIGHTS.name if query.name else 0), np.float32)


_ROW_PARTS = ("_alive", "_lengths", "_sessions")


class Collection:
    """Documents by id; `search` ranks them, equal ones in the order in which they were added."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        self.embedder = embedder
        self.ids: list[str] = []
        self._rows: dict[str, int] = {}
        self._alive, self._lengths, self._sessions = Column(np.bool_), Column(np.float32), Column(np.int64)
        self._session_numbers: dict[str, int] = {"": 0}
        self._postings, self._speakers = Postings(), SpeakerPriors()
        self.meaning = Meaning(embedder.dimensions if embedder else 0)
        # If the embedder failed, the time until which it is not asked again; otherwise 0.
        self.away_until_s = 0.0
        # Computed when first needed after a change.
        self._neighbours: Neighbours | None = None
        # Texts whose vectors have not been made yet, by row.
        self._pending: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, id: str) -> bool:
        return id in self._rows

    def row(self, id: str) -> int:
        """The number of a document's row: in the order of adding, never reused."""
        return self._rows[id]

    def upsert(self, documents: Iterable[Document]) -> None:
        """Add documents; one with a known id replaces the old one and becomes the newest."""
        self.add([index_terms(document) for document in documents])

    def add(self, documents: Sequence[DocumentTerms]) -> None:
        """Add documents that are already reduced to their terms."""
        latest = {document.id: document for document in documents}
        if not latest:
            return
        self.delete([id for id in latest if id in self._rows])
        first, new = len(self.ids), list(latest.values())
        numbers = self._session_numbers
        self._speakers.add(new)
        self._sessions.extend([numbers.setdefault(document.session, len(numbers)) for document in new])
        self._lengths.extend(
            [document.words.count(" ") + 1 - sum(map(document.words.count, PREFIXES)) for document in new]
        )
        self._alive.extend(np.ones(len(new), np.bool_))
        self._postings.add(posting_run(first, [document.words for document in new]))
        self.meaning.grow(len(new))
        self._neighbours = None
        self.ids += latest
        self._rows.update((id, row) for row, id in enumerate(latest, first))
        if self.embedder is not None:
            self._pending.update((row, document.meaning) for row, document in enumerate(new, first) if document.meaning)

    def state(self) -> dict[str, bytes]:
        """The state as bytes, to be stored, without the vectors (see `meaning`)."""
        columns = {name: getattr(self, name).packed for name in _ROW_PARTS}
        lists = {"ids": self.ids, "session_names": list(self._session_numbers)}
        named = {name: msgspec.msgpack.encode(some) for name, some in lists.items()}
        return {**columns, **named, **self._postings.state(), **self._speakers.state()}

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Replace the state with a stored one, with the vectors if they are in it."""
        for name in _ROW_PARTS:
            getattr(self, name).restore(state[name])
        self.ids = msgspec.msgpack.decode(state["ids"], type=list[str])
        # Of two rows with one id the later is alive.
        alive = np.flatnonzero(self._alive.all).tolist()
        self._rows = {self.ids[row]: row for row in alive}
        names = msgspec.msgpack.decode(state["session_names"], type=list[str])
        self._session_numbers = {name: number for number, name in enumerate(names)}
        self._postings.restore(state)
        self._speakers.restore(state)
        if MEANING_PARTS[0] in state:
            self.meaning.restore(state)
        else:
            self.meaning.grow(len(self.ids))

    def delete(self, ids: Iterable[str]) -> None:
        """Remove documents; unknown ids are ignored."""
        for id in ids:
            row = self._rows.pop(id, None)
            if row is not None:
                self._alive.all[row] = False
                self._speakers.forget(row)
                self._pending.pop(row, None)
                self.meaning.forget(row)
                self._neighbours = None

    @property
    def without_meaning(self) -> int:
        """How many documents have no vector yet and are found by words only."""
        return len(self) - int(np.count_nonzero(self.meaning.known)) if self.embedder else 0

    def pending(self) -> dict[str, str]:
        """The ids of documents without vectors, and their texts to embed."""
        return {self.ids[row]: text for row, text in self._pending.items()}

    def put_vectors(self, ids: Sequence[str], vectors: Array) -> None:
        """Set the vectors of documents, one or several each; unknown ids are ignored."""
        places = [(self._rows[id], at) for at, id in enumerate(ids) if id in self._rows]
        if places:
            rows, at = np.array(places, np.int64).T
            self.meaning.put(rows, vectors[at])
            for row in rows.tolist():
                self._pending.pop(row, None)

    def embed(self) -> None:
        """Make all vectors that are missing."""
        if self.embedder is not None and self._pending:
            texts = [(id, piece) for id, text in self.pending().items() for piece in pieces(text)]
            self.put_vectors([id for id, _ in texts], encode_texts(self.embedder, [piece for _, piece in texts]))

    def around(self, id: str, count: int) -> list[str]:
        """A document and up to `count` neighbours on each side in its session, in order."""
        return [self.ids[row] for row in self._beside().line(self._rows[id], count)]

    def _beside(self) -> Neighbours:
        if self._neighbours is None:
            speakers, asks = self._speakers.speakers.all, self._speakers.asks.all
            self._neighbours = Neighbours(self._sessions.all, speakers, asks, self._lengths.all, self._alive.all)
        return self._neighbours

    def search(
        self, query: Query | str, k: int = 5, only: Iterable[str] | Bools | None = None, exclude: Iterable[str] = ()
    ) -> list[Found]:
        """The k best documents, best first; limited to `only` where it is given, without `exclude`."""
        query_terms = ask(query if isinstance(query, Query) else Query(query), self._speakers.people())
        neighbours = self._beside()
        words, share, ideal = scores(self._postings, query_terms, neighbours, self._alive.all)
        vector = self._vector(query_terms)
        allowed = self._allowed_rows(only, exclude)
        near, cosines = _NOTHING if vector is None else self.meaning.near(vector, allowed)
        rows = pool(words, near, cosines, allowed, max(POOL, 2 * k))
        has_vector = self.meaning.known[rows] if vector is not None else False
        rows = rows[(words[rows] > 0) | has_vector]
        every = self._every_cosine(rows, vector, near, cosines, neighbours)
        likeness = self._likeness(rows, every, neighbours)
        by_words = standard_words(words[rows], ideal if vector is not None and query_terms.english else 0.0)
        parts = self._parts(query_terms, rows, by_words, likeness)
        parts += 0.0  # turns -0.0 into 0.0
        # Differences behind the sixth place are rounding errors.
        total = np.round(parts.sum(axis=0, dtype=np.float64), 6)
        best = order(total, rows)[: max(0, k)]
        has_cosine = np.isfinite(every[rows[best]])
        relevance = share[rows[best]] + np.where(has_cosine, every[rows[best]], np.float32(USUAL_COSINE))
        relevance = np.maximum(relevance, self._outstanding(every[rows[best]], cosines, allowed))
        relevances = np.round(relevance.astype(np.float64), 6).tolist()
        found = zip(best, parts[:, best].T.tolist(), relevances, has_cosine.tolist(), strict=True)
        return [
            Found(self.ids[rows[at]], float(total[at]), dict(zip(PARTS, reasons, strict=True)), near, by_meaning)
            for at, reasons, near, by_meaning in found
        ]

    def vector(self, query: Query | str) -> Floats | None:
        """The query's vector; see `_vector`."""
        return self._vector(ask(query if isinstance(query, Query) else Query(query), self._speakers.people()))

    def _vector(self, query: QueryTerms) -> Floats | None:
        """The query's vector plus that of the turn before at less weight; None without a text or if the embedder fails."""
        texts = [whole_characters(text) for text in (query.meaning, query.earlier) if text]
        if self.embedder is None or not query.meaning or time.monotonic() < self.away_until_s:
            return None
        try:
            vectors = encode_texts(self.embedder, texts)
        except (CallError, MissingPart):
            raise
        except Exception as error:  # an embedder is the user's code, and may call a service
            if not self.away_until_s:
                _logger.warning("recall goes by words alone: %s: %s", type(error).__name__, error)
            self.away_until_s = time.monotonic() + RETRY_S
            return None
        self.away_until_s = 0.0
        vector = vectors[0] + np.float32(EARLIER) * vectors[1] if len(texts) > 1 else vectors[0]
        length = np.linalg.norm(vector)
        return np.asarray(vector / length, np.float32) if length else None

    def _allowed_rows(self, only: Iterable[str] | Bools | None, exclude: Iterable[str]) -> Bools:
        allowed = self._alive.all.copy()
        if isinstance(only, np.ndarray):
            allowed &= only
        elif only is not None:
            chosen = np.zeros_like(allowed)
            chosen[[self._rows[id] for id in only if id in self._rows]] = True
            allowed &= chosen
        allowed[[self._rows[id] for id in exclude if id in self._rows]] = False
        return allowed

    def _parts(self, query: QueryTerms, rows: Ints, words: Floats, likeness: Floats) -> Array:
        """The parts of each row's score, in the order of PARTS."""
        speakers = self._speakers
        return np.stack(
            [
                WEIGHTS.words * words,
                WEIGHTS.meaning * likeness,
                speakers.speaker(query, rows),
                speakers.speech(rows, self._beside().dialogue[rows]),
                speakers.time(query, rows),
                speakers.name(query, rows),
            ]
        )

    def _every_cosine(
        self, rows: Ints, vector: Floats | None, near: Ints, cosines: Floats, neighbours: Neighbours
    ) -> Floats:
        """The cosines of these rows and their neighbours, by row; minus infinity where there is no vector."""
        every = np.full(len(self.ids), -np.inf, np.float32)
        if vector is not None:
            every[near] = cosines
            around = neighbours.around(rows)
            lacking = around[~np.isfinite(every[around])]
            every[lacking] = self.meaning.cosines(vector, lacking)
        return every

    def _outstanding(self, found: Floats, cosines: Floats, allowed: Bools) -> Floats:
        """The relevance of rows whose cosine stands out from all others; 0 where fewer than half of the allowed rows have one."""
        count = len(cosines)
        if count < 2 or 2 * count < np.count_nonzero(allowed):
            return np.zeros(len(found), np.float32)
        by_chance = np.sqrt(2 * np.log(count))
        deviations = (found - cosines.mean()) / max(float(cosines.std()), _ROUNDING)
        relevance = np.float32(FLOOR) * deviations / np.float32(by_chance + _MORE_THAN_CHANCE)
        return np.where(found >= np.float32(_LEAST_LIKE), relevance, np.float32(0))

    def _likeness(self, rows: Ints, every: Floats, neighbours: Neighbours) -> Floats:
        """Standard scores of the cosines, averaged with those of neighbours; 0 where there is no vector."""
        out, has_cosine = np.zeros(len(rows), np.float32), np.isfinite(every[rows])
        if has_cosine.any():
            smooth = neighbours.smooth(rows[has_cosine], np.maximum(every, 0))
            out[has_cosine] = standard_by(smooth, self._speakers.returned(rows[has_cosine]))
        return out


_NOTHING: tuple[Ints, Floats] = (np.zeros(0, np.int64), np.zeros(0, np.float32))
