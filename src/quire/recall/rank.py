"""Hybrid search over documents held in memory: by words with their surroundings, and by meaning.

Knows nothing of threads or records; whoever owns the documents adds, replaces and deletes them here.
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

# Several reasons to one order: words and meaning standardised over the candidates and added, with small priors.
#
# Priors that need people talking to each other are scaled by how much of a dialogue a row stands in,
# and vanish in threads of user and assistant, logs of one speaker, and records.

# Candidates are so many of the best of each list, or twice as many as are wanted; of few rows, all are.
POOL = 200
_FEW = 1000
_ROUNDING = 1e-5
# What scores by words differ at least by, as shares of what a row that holds all words would have: in any collection, and
# more where only few rows hold any. Not in languages of which the model knows little: there words tell more than meaning.
_LEAST_SPREAD, _SPARSE_SPREAD = 0.03, 0.05


class Weights(msgspec.Struct, frozen=True):
    """What each reason counts, in standard deviations of the words' score."""

    words: float = 1.0
    meaning: float = 1.0
    speaker: float = 1.6
    asks: float = -1.2
    person: float = 1.0
    # What a tool returned, beside the talk about it.
    result: float = 0.5
    time: float = 0.7
    name: float = 1.0


WEIGHTS = Weights()
# What shares no word with a question is relevant where its cosine is at least this, and stands out from all others by so many
# deviations more than the nearest of that many would by chance.
_LEAST_LIKE, _MORE_THAN_CHANCE = 0.4, 0.5
PARTS = ("words", "meaning", "speaker", "speech", "time", "name")


def standard(values: Floats, least: float = 0.0) -> Floats:
    """Standard scores: mean 0, deviation 1, or less where they deviate by less than `least`; all 0 where nothing differs."""
    if not len(values):
        return values
    values = values.astype(np.float64)
    spread = values.std()
    # Less than rounding can make is no difference; it would be blown up to a whole deviation.
    differs = spread > _ROUNDING * max(1.0, np.abs(values).max())
    return ((values - values.mean()) / max(spread, least) if differs else np.zeros(len(values))).astype(np.float32)


def standard_words(scores: Floats, ideal: float) -> Floats:
    """Standard scores by words: one word of many that a row holds by chance is no great matter where no other row does."""
    sparse = np.count_nonzero(scores == 0) / max(1, len(scores))
    return standard(scores, ideal * (_LEAST_SPREAD + _SPARSE_SPREAD * sparse))


def standard_by(values: Floats, apart: Bools) -> Floats:
    """Standard scores among their own kind: a tool's output never reads like speech, however near it is."""
    out = np.zeros(len(values), np.float32)
    for group in (apart, ~apart):
        out[group] = standard(values[group])
    return out


def pool(words: Floats, near: Ints, cosines: Floats, allowed: Bools, size: int) -> Ints:
    """The rows worth ranking: all that are allowed while they are few, else the best by words and by meaning."""
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
    """The rows with the highest scores, at most `size`; among equals the oldest."""
    if len(rows) <= size:
        return rows
    least = np.partition(scores, -size)[-size]
    above = rows[scores > least]
    return np.concatenate([above, rows[scores == least][: size - len(above)]])


def order(scores: Floats, rows: Ints) -> Ints:
    """Positions from the highest score to the lowest; equals keep the order of rows."""
    return np.lexsort((rows, -scores))


# Who said it and how: the small reasons to prefer one turn of a dialogue to another.
#
# Those that need people talking to each other are silent in logs of one speaker and in records.


_MANNER_PARTS = ("speakers", "asks", "_said", "_person", "_times", "_names", "_returned")


class SpeakerPriors:
    """One row a document: its speaker and how it is said."""

    def __init__(self) -> None:
        # Speakers by number, how much each said that is still there, and what follows: who can be named.
        self._numbers: dict[str, int] = {}
        self._said = Column(np.int64)
        self._people: dict[str, int] | None = None
        self.speakers, self.asks = Column(np.int32), Column(np.bool_)
        self._person, self._times, self._names = Column(np.float32), Column(np.float32), Column(np.float32)
        self._returned = Column(np.bool_)

    def add(self, documents: Sequence[DocumentTerms]) -> None:
        """Note who said documents, and how."""
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
        columns = {name: getattr(self, name).packed for name in _MANNER_PARTS}
        return {**columns, "speaker_names": msgspec.msgpack.encode(list(self._numbers))}

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Begin with what was kept."""
        for name in _MANNER_PARTS:
            getattr(self, name).restore(state[name])
        names = msgspec.msgpack.decode(state["speaker_names"], type=list[str])
        self._numbers = {name: number for number, name in enumerate(names)}

    def forget(self, row: int) -> None:
        """A row that is gone was said by nobody."""
        self._count(self.speakers.all[row : row + 1], -1)

    def _count(self, speakers: Ints, step: int) -> None:
        before = np.count_nonzero(self._said.all)
        np.add.at(self._said.all, speakers, step)
        if np.count_nonzero(self._said.all) != before:
            self._people = None

    def returned(self, rows: Ints) -> Bools:
        """Which rows were returned by tools, not said by anyone."""
        mask: Bools = self._returned.all[rows]
        return mask

    def people(self) -> dict[str, int]:
        """The words that name one speaker each; one that is in two people's names says nothing about who is meant."""
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
        """Prefer turns of the one the query is about."""
        is_subject = self.speakers.all[rows] == query.subject
        return np.where(is_subject, np.float32(WEIGHTS.speaker if query.subject >= 0 else 0), np.float32(0))

    def speech(self, rows: Ints, dialogue: Floats) -> Floats:
        """Prefer turns that tell of the speaker to those that ask or cheer; and what tools returned."""
        returned = self._returned.all[rows]
        prior = WEIGHTS.asks * self.asks.all[rows] + WEIGHTS.person * (self._person.all[rows] - np.float32(0.5))
        return np.asarray(np.where(returned, WEIGHTS.result, dialogue * prior), np.float32)

    def time(self, query: QueryTerms, rows: Ints) -> Floats:
        """Prefer turns that speak of time when the query asks for one."""
        return np.asarray(self._times.all[rows] * np.float32(WEIGHTS.time if query.when else 0), np.float32)

    def name(self, query: QueryTerms, rows: Ints) -> Floats:
        """Prefer turns that name something when the query asks for what has a name; what tools return always does."""
        names = self._names.all[rows] * ~self._returned.all[rows]
        return np.asarray(names * np.float32(WEIGHTS.name if query.name else 0), np.float32)


_ROW_PARTS = ("_alive", "_lengths", "_sessions")


class Collection:
    """Documents by id; `search` ranks them. Deterministic: equals stand in the order they were added."""

    def __init__(self, embedder: Embedder | None = None) -> None:
        self.embedder = embedder
        self.ids: list[str] = []
        self._rows: dict[str, int] = {}
        self._alive, self._lengths, self._sessions = Column(np.bool_), Column(np.float32), Column(np.int64)
        self._session_numbers: dict[str, int] = {"": 0}
        self._postings, self._speakers = Postings(), SpeakerPriors()
        self.meaning = Meaning(embedder.dimensions if embedder else 0)
        # When the embedder is asked again, where it did not answer when it was asked last.
        self.away_until_s = 0.0
        # Made when it is first needed behind a change.
        self._neighbours: Neighbours | None = None
        # Texts whose vectors are not made yet.
        self._pending: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, id: str) -> bool:
        return id in self._rows

    def row(self, id: str) -> int:
        """A document's row; rows are numbered in the order of adding and never reused."""
        return self._rows[id]

    def upsert(self, documents: Iterable[Document]) -> None:
        """Add documents; one whose id is here already replaces the old one and counts as new."""
        self.add([index_terms(document) for document in documents])

    def add(self, documents: Sequence[DocumentTerms]) -> None:
        """Add documents that are reduced already."""
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
        """All but the vectors, to be kept; see `meaning` for those."""
        columns = {name: getattr(self, name).packed for name in _ROW_PARTS}
        lists = {"ids": self.ids, "session_names": list(self._session_numbers)}
        named = {name: msgspec.msgpack.encode(some) for name, some in lists.items()}
        return {**columns, **named, **self._postings.state(), **self._speakers.state()}

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Begin with what was kept, by the vectors too where they are there."""
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
        """Remove documents; ids that are not here are ignored."""
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
        """How many documents have no vector yet, so that only words find them."""
        return len(self) - int(np.count_nonzero(self.meaning.known)) if self.embedder else 0

    def pending(self) -> dict[str, str]:
        """The documents whose meaning is not known yet, and the text to embed."""
        return {self.ids[row]: text for row, text in self._pending.items()}

    def put_vectors(self, ids: Sequence[str], vectors: Array) -> None:
        """Give documents their vectors, one or several each; ids that are not here are ignored."""
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
        """A document and up to `count` on each side of it in its session, in order."""
        return [self.ids[row] for row in self._beside().line(self._rows[id], count)]

    def _beside(self) -> Neighbours:
        if self._neighbours is None:
            speakers, asks = self._speakers.speakers.all, self._speakers.asks.all
            self._neighbours = Neighbours(self._sessions.all, speakers, asks, self._lengths.all, self._alive.all)
        return self._neighbours

    def search(
        self, query: Query | str, k: int = 5, only: Iterable[str] | Bools | None = None, exclude: Iterable[str] = ()
    ) -> list[Found]:
        """The k best documents, best first; `only` names those that may be found, `exclude` those that may not."""
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
        parts += 0.0  # no negative zeros for the eye
        # Less than six places is rounding, not a difference.
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
        """The query's meaning."""
        return self._vector(ask(query if isinstance(query, Query) else Query(query), self._speakers.people()))

    def _vector(self, query: QueryTerms) -> Floats | None:
        """The query's meaning, with the turn before it at less weight; None without a text, or an embedder that answers."""
        texts = [whole_characters(text) for text in (query.meaning, query.earlier) if text]
        if self.embedder is None or not query.meaning or time.monotonic() < self.away_until_s:
            return None
        try:
            vectors = encode_texts(self.embedder, texts)
        except (CallError, MissingPart):
            raise
        except Exception as error:  # it is foreign code, and may be a service
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
        """Each reason's share of each row's score, in the order of PARTS."""
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
        """The cosines of these rows and of those around them; minus infinity where a meaning is not known."""
        every = np.full(len(self.ids), -np.inf, np.float32)
        if vector is not None:
            every[near] = cosines
            around = neighbours.around(rows)
            lacking = around[~np.isfinite(every[around])]
            every[lacking] = self.meaning.cosines(vector, lacking)
        return every

    def _outstanding(self, found: Floats, cosines: Floats, allowed: Bools) -> Floats:
        """The relevance of what stands out from all that was compared; 0 where that is not most of what may be found."""
        count = len(cosines)
        if count < 2 or 2 * count < np.count_nonzero(allowed):
            return np.zeros(len(found), np.float32)
        by_chance = np.sqrt(2 * np.log(count))
        deviations = (found - cosines.mean()) / max(float(cosines.std()), _ROUNDING)
        relevance = np.float32(FLOOR) * deviations / np.float32(by_chance + _MORE_THAN_CHANCE)
        return np.where(found >= np.float32(_LEAST_LIKE), relevance, np.float32(0))

    def _likeness(self, rows: Ints, every: Floats, neighbours: Neighbours) -> Floats:
        """Cosines averaged with those of neighbours, standardised; 0 where a meaning is not known."""
        out, has_cosine = np.zeros(len(rows), np.float32), np.isfinite(every[rows])
        if has_cosine.any():
            smooth = neighbours.smooth(rows[has_cosine], np.maximum(every, 0))
            out[has_cosine] = standard_by(smooth, self._speakers.returned(rows[has_cosine]))
        return out


_NOTHING: tuple[Ints, Floats] = (np.zeros(0, np.int64), np.zeros(0, np.float32))
