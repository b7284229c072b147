"""Words of like meaning: which words of a collection a query's word also stands for, and how nearly.

"pet" finds "dog" and "kitten". Only the most used words have kin, so the cost does not grow with the
collection; where words have no vectors, search goes by stems alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from quire.recall.arrays import Floats, Ints
from quire.recall.columns import Column

# The most used words that can be found through their kin.
WORDS = 3_000
_COUNT = 20
# Cosines of single words are crowded; the power keeps near synonyms and silences the rest.
_POWER = 6
_LEAST = 0.4
# Vectors of queries' own words that are kept.
_REMEMBERED = 1_000

Encode = Callable[[Sequence[str]], Floats]


class Kin:
    """Vectors of words; `of` gives a word's kin among the usual forms of a collection's stems."""

    def __init__(self, dimensions: int) -> None:
        self._vectors = Column(np.float32, dimensions)
        self._place: dict[str, int] = {}
        self._usual: Sequence[tuple[int, str]] = ()
        # The usual forms that have vectors: (form, its stem's number), and the places of their vectors.
        self._among: list[tuple[str, int]] = []
        self._forms: frozenset[str] = frozenset()
        self._places: Ints = np.zeros(0, np.int64)
        # Kin found among these; and vectors of words that only queries use, which no change makes wrong.
        self._found: dict[str, list[tuple[int, float]]] = {}
        self._strange: dict[str, Floats] = {}

    def choose(self, usual: Sequence[tuple[int, str]]) -> None:
        """Look for kin among these stems (by number) and their usual forms from now on."""
        self._usual = usual
        among = [(word, number) for number, word in usual if word in self._place]
        if among != self._among:
            self._among, self._found = among, {}
            self._forms = frozenset(word for word, _ in among)
            self._places = np.array([self._place[word] for word, _ in among], np.int64)

    def lacks(self) -> list[str]:
        """Of the usual forms, those without a vector."""
        return [word for _, word in self._usual if word not in self._place and can_have_kin(word)]

    def put(self, words: Sequence[str], vectors: Floats) -> None:
        """Learn the vectors of words."""
        self._place.update((word, at) for at, word in enumerate(words, self._vectors.size))
        self._vectors.extend(vectors)
        self.choose(self._usual)

    def of(self, words: Iterable[str], encode: Encode) -> dict[str, list[tuple[int, float]]]:
        """Numbers and nearness of the kin of each word; what was asked before is remembered."""
        wanted = [word for word in words if can_have_kin(word)]
        unknown = [word for word in wanted if word not in self._found]
        if unknown and self._among:
            cosines = self._vectors_of(unknown, encode) @ self._vectors.all.T
            for word, row in zip(unknown, cosines[:, self._places], strict=True):
                self._found[word] = self._nearest(row)
        return {word: self._found.get(word, []) for word in wanted}

    def _vectors_of(self, words: Sequence[str], encode: Encode) -> Floats:
        """Vectors of a query's words: those of usual forms as they are kept, others made now."""
        strange = [word for word in words if word not in self._forms]
        lacking = [word for word in strange if word not in self._strange]
        if len(self._strange) + len(lacking) > _REMEMBERED:
            self._strange, lacking = {}, strange
        if lacking:
            self._strange.update(zip(lacking, encode(lacking), strict=True))
        kept = self._vectors.all
        return np.stack(
            [kept[self._place[word]] if word in self._forms else self._strange[word] for word in words]
        )

    def _nearest(self, cosines: Floats) -> list[tuple[int, float]]:
        """The nearest forms by their stems' numbers; equals by the alphabet, so in every collection the same."""
        likely = [
            (-round(float(cosines[at]), 6), *self._among[at]) for at in np.flatnonzero(cosines >= _LEAST)
        ]
        return [(number, min(-cosine, 1.0) ** _POWER) for cosine, _, number in sorted(likely)[:_COUNT]]

    @property
    def bytes(self) -> int:
        return self._vectors.all.nbytes


def can_have_kin(word: str) -> bool:
    """Numbers and codes stand for themselves alone."""
    return word.isalpha()
