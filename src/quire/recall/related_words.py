"""Words of like meaning: which words of a collection a query's word also stands for, and how nearly.

"pet" finds "dog" and "kitten". Only the most used words have kin, so the cost does not grow with the
collection; where words have no vectors, search goes by stems alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from quire.recall.columns import Bools, Column, Floats, Ints
from quire.recall.words import StemTable

# The most used words that can be found through their kin.
WORDS = 3_000
_COUNT = 20
# Cosines of single words are crowded; the power keeps near synonyms and silences the rest.
_POWER = 6
_LEAST = 0.4
_LONGEST = 60
# Vectors of queries' own words that are kept.
_REMEMBERED = 1_000

Encode = Callable[[Sequence[str]], Floats]


class RelatedWords:
    """Vectors of words; `of` gives a word's kin among the usual forms of a vocabulary's stems."""

    def __init__(self, vocabulary: StemTable, dimensions: int) -> None:
        self._vocabulary, self._edition = vocabulary, -1
        self._vectors = Column(np.float32, dimensions)
        # By the number of a word: the place of its vector and one more, 0 where there is none.
        self._place = Column(np.int64)
        # The usual forms, those of them that have vectors, and whether a word is one of these.
        self._usual: Ints = np.zeros(0, np.int64)
        self._among: Ints = np.zeros(0, np.int64)
        self._chosen: Bools = np.zeros(0, np.bool_)
        # Kin found among these; and vectors of words that only queries use, which no change makes wrong.
        self._found: dict[str, list[tuple[int, float]]] = {}
        self._strange: dict[str, Floats] = {}

    def lacks(self) -> list[str]:
        """Of the usual forms, those without a vector."""
        self._follow()
        lacking = self._usual[self._place.all[self._usual] == 0].tolist()
        return [word for number in lacking if can_have_kin(word := self._vocabulary.written[number])]

    def put(self, words: Sequence[str], vectors: Floats) -> None:
        """Learn the vectors of words that the vocabulary knows."""
        self._follow()
        first = self._vectors.size + 1
        numbers = [self._vocabulary.words[word] for word in words]
        self._place.all[numbers] = np.arange(first, first + len(words))
        self._vectors.extend(vectors)
        self._choose()

    def of(self, words: Iterable[str], encode: Encode) -> dict[str, list[tuple[int, float]]]:
        """Numbers of stems and nearness of the kin of each word; what was asked before is remembered."""
        self._follow()
        wanted = [word for word in words if can_have_kin(word)]
        unknown = [word for word in wanted if word not in self._found]
        if unknown and len(self._among):
            cosines = self._vectors_of(unknown, encode) @ self._vectors.all.T
            places = self._place.all[self._among] - 1
            for word, row in zip(unknown, cosines[:, places], strict=True):
                self._found[word] = self._nearest(row)
        return {word: self._found.get(word, []) for word in wanted}

    def _follow(self) -> None:
        """Keep up with the words that are there now."""
        if self._edition != self._vocabulary.edition:
            self._edition = self._vocabulary.edition
            self._place.lengthen(len(self._vocabulary.written) - self._place.size)
            self._usual = self._vocabulary.usual(WORDS)
            self._choose()

    def _choose(self) -> None:
        among = self._usual[self._place.all[self._usual] > 0]
        if not np.array_equal(among, self._among):
            self._among, self._found = among, {}
            self._chosen = np.zeros(self._place.size, np.bool_)
            self._chosen[among] = True

    def _vectors_of(self, words: Sequence[str], encode: Encode) -> Floats:
        """Vectors of a query's words: those of usual forms as they are kept, others made now."""
        strange = [word for word in words if self._kept(word) is None]
        lacking = [word for word in strange if word not in self._strange]
        if len(self._strange) + len(lacking) > _REMEMBERED:
            self._strange, lacking = {}, strange
        if lacking:
            self._strange.update(zip(lacking, encode(lacking), strict=True))
        return np.stack([self._strange[word] if (one := self._kept(word)) is None else one for word in words])

    def _kept(self, word: str) -> Floats | None:
        number = self._vocabulary.words.get(word, len(self._chosen))
        if number >= len(self._chosen) or not self._chosen[number]:
            return None
        kept: Floats = self._vectors.all[self._place.all[number] - 1]
        return kept

    def _nearest(self, cosines: Floats) -> list[tuple[int, float]]:
        """The nearest forms by their stems' numbers; equals by the alphabet, so in every collection the same."""
        likely = np.flatnonzero(cosines >= _LEAST)
        words = self._among[likely]
        near = [
            (-round(float(cosine), 6), self._vocabulary.written[word], stem)
            for cosine, word, stem in zip(
                cosines[likely], words, self._vocabulary.stems_of(words).tolist(), strict=True
            )
        ]
        return [(stem, min(-cosine, 1.0) ** _POWER) for cosine, _, stem in sorted(near)[:_COUNT]]

    @property
    def bytes(self) -> int:
        return self._vectors.all.nbytes


def can_have_kin(word: str) -> bool:
    """Numbers and codes stand for themselves alone, and so do runs of letters that are longer than words."""
    return word.isalpha() and len(word) <= _LONGEST
