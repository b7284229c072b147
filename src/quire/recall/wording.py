"""BM25 in which a document's words are its own and, weighed, those of its neighbours and their kin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from quire.recall.arrays import Array, Bools, Floats, Ints
from quire.recall.columns import Column
from quire.recall.neighbours import REACH, Neighbours
from quire.recall.postings import Postings, weighed
from quire.recall.question import Asked

K1, B = 1.2, 0.5


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

    def settle(self, rows: Ints) -> None:
        """Bring up to date what depends on the surroundings of these rows."""
        if len(rows):
            touched = self.neighbours.around(rows, REACH)
            self.neighbours.settle(touched)
            self._wide.all[touched] = self.neighbours.gathered(touched, self._own.all)

    def scores(self, asked: Asked, kin: Mapping[str, list[tuple[int, float]]], alive: Bools) -> Floats:
        """How well each row and its surroundings answer the query's words."""
        out = np.zeros(len(alive), np.float64)
        documents = int(np.count_nonzero(alive))
        norm = self._norm(alive)
        for word, stemmed, weight in asked.words:
            counts, holders = self._counts(stemmed, kin.get(word, []), alive)
            hits = np.flatnonzero(counts)
            rarity = np.log1p((documents - holders + 0.5) / (holders + 0.5))
            found = counts[hits]
            out[hits] += weight * rarity * found * (K1 + 1) / (found + norm[hits])
        return out.astype(np.float32)

    def _norm(self, alive: Bools) -> Floats:
        wide = self._wide.all
        mean = float(wide[alive].mean()) if alive.any() else 1.0
        return np.asarray(K1 * (1 - B + B * wide / max(mean, 1.0)))

    def _counts(self, stemmed: str, kin: list[tuple[int, float]], alive: Bools) -> tuple[Array, int]:
        """How often each row and its surroundings hold a word or its kin; in how many the word itself stands."""
        number = self.postings.stems.get(stemmed)
        exact = self._spread([] if number is None else [(number, 1.0)], alive)
        more = self._spread([one for one in kin if one[0] != number], alive)
        holds = np.zeros(len(alive), np.bool_)
        holds[(more if number is None else exact)[0]] = True
        counts = np.bincount(exact[0], exact[1], minlength=len(alive)).astype(np.float64, copy=False)
        if len(more[0]):
            counts += np.bincount(more[0], more[1], minlength=len(alive))
        return counts, int(np.count_nonzero(holds))

    def _spread(self, terms: list[tuple[int, float]], alive: Bools) -> tuple[Array, Floats]:
        rows, values = weighed([(*self.postings.of(number), near) for number, near in terms])
        kept = alive[rows]
        if not kept.all():
            rows, values = rows[kept], values[kept]
        return self.neighbours.spread(rows, values)
