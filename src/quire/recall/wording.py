"""BM25 in which a document's words are its own and, weighed, those of its neighbours and their kin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from quire.recall.arrays import Bools, Floats, Ints
from quire.recall.columns import Column
from quire.recall.neighbours import REACH, Neighbours
from quire.recall.postings import Postings
from quire.recall.question import Asked

K1, B = 1.2, 0.5
# Above this many documents, words that tell less than this part of what the most telling one does are passed over.
_LARGE = 20_000
_TELLING = 0.08


class Wording:
    """Postings, surroundings and lengths of all rows."""

    def __init__(self) -> None:
        self.postings, self.neighbours = Postings(), Neighbours()
        # Words of a document, and of a document with its surroundings.
        self._own, self._wide = Column(np.float32), Column(np.float32)

    def add(self, first_row: int, bags: Sequence[Sequence[str]], alive: Bools) -> None:
        """Index consecutive rows; their neighbours are linked before."""
        lengths = [len(bag) for bag in bags]
        self._own.extend(lengths)
        self._wide.extend(lengths)
        self.postings.add(first_row, bags)
        self.postings.settle(alive)
        self.settle(np.arange(first_row, first_row + len(bags)))

    def remove(self, row: int) -> Ints:
        """Take a row out; returns the rows whose surroundings changed, to be settled."""
        self.postings.remove(row)
        return self.neighbours.remove(row)

    def settle(self, rows: Ints) -> None:
        """Bring up to date what depends on the surroundings of these rows."""
        if len(rows):
            touched = self.neighbours.around(rows, REACH)
            self.neighbours.settle(touched)
            self._wide.all[touched] = self.neighbours.gathered(touched, self._own.all)

    def scores(self, asked: Asked, kin: Mapping[str, list[tuple[int, float]]], alive: Bools) -> Floats:
        """How well each row and its surroundings answer the query's words."""
        out, room = np.zeros(len(alive), np.float32), Room(len(alive))
        documents, norm, dead = int(np.count_nonzero(alive)), self._norm(alive), not alive.all()
        for word, stemmed, weight, likely in self._worth_it(asked, documents):
            number = self.postings.vocabulary.find(stemmed)
            own = [] if number is None else [(number, 1.0)]
            others = [one for one in kin.get(word, ()) if one[0] != number]
            counts = self._spread(own + others, room, alive if dead else None)
            rarity = likely or self._rarity(own or others, own + others, counts, alive if dead else None)
            # Over all rows at once: picking out those that count takes longer than the sum.
            np.add(counts, norm, out=room.spare)
            counts /= room.spare
            counts *= np.float32(weight * rarity * (K1 + 1))
            out += counts
        return out

    def _worth_it(self, asked: Asked, documents: int) -> list[tuple[str, str, float, float]]:
        """The query's words; in a large collection with their likely rarity, without those that tell nothing."""
        if documents <= _LARGE:
            return [(*word, 0.0) for word in asked.words]
        rarity = [self._likely_rarity(stemmed, documents) for _, stemmed, _ in asked.words]
        least = _TELLING * max(rarity, default=0.0)
        return [(*word, value) for word, value in zip(asked.words, rarity, strict=True) if value >= least]

    def _likely_rarity(self, stemmed: str, documents: int) -> float:
        """What a word's rarity would be if its holders stood apart, each lending it to all within reach."""
        number = self.postings.vocabulary.find(stemmed)
        share = min(1.0, self.postings.holders(number) / documents) if number is not None else 0.0
        wide = 1 - (1 - share) ** (2 * REACH + 1)
        return float(np.log1p((1 - wide + 0.5 / documents) / (wide + 0.5 / documents)))

    def _rarity(
        self,
        terms: list[tuple[int, float]],
        counted: list[tuple[int, float]],
        counts: Floats,
        alive: Bools | None,
    ) -> float:
        """How few rows and surroundings hold a word itself, its kin left aside where it stands anywhere."""
        if terms != counted:
            counts = self._spread(terms, Room(len(counts)), alive)
        holders = int(np.count_nonzero(counts))
        documents = len(counts) if alive is None else int(np.count_nonzero(alive))
        return float(np.log1p((documents - holders + 0.5) / (holders + 0.5)))

    def _norm(self, alive: Bools) -> Floats:
        wide = self._wide.all
        mean = float(wide[alive].mean()) if alive.any() else 1.0
        return np.asarray(K1 * (1 - B + B * wide / max(mean, 1.0)), np.float32)

    def _spread(self, terms: list[tuple[int, float]], room: Room, alive: Bools | None) -> Floats:
        """How often each row and its surroundings hold any of these stems, each with its weight."""
        own = room.own
        own.fill(0)
        for number, near in terms:
            rows, counts = self.postings.of(number)
            own[rows] += counts * np.float32(near)
        if alive is not None:
            own *= alive
        self.neighbours.spread(own, np.flatnonzero(own > 0), room.taken)
        return own


class Room:
    """Space for sums over all rows, used again for every word: taking it anew costs more than the sums."""

    def __init__(self, rows: int) -> None:
        self.own, self.spare = np.empty(rows, np.float32), np.empty(rows, np.float32)
        self.taken = np.empty(rows + 1, np.float32)
