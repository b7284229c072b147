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

Encode = Callable[[Sequence[str]], Floats]


class Kin:
    """Vectors of words by the number of their stem; `of` gives a word's kin among them."""

    def __init__(self, dimensions: int) -> None:
        self._numbers = Column(np.int64)
        self._known: set[int] = set()
        self._words: dict[str, int] = {}
        self._vectors = Column(np.float32, dimensions)
        self._found: dict[str, list[tuple[int, float]]] = {}

    def lacks(self, usual: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
        """Of these stems and their usual forms, the ones without a vector."""
        return [(number, word) for number, word in usual if number not in self._known and can_have_kin(word)]

    def put(self, usual: Sequence[tuple[int, str]], vectors: Floats) -> None:
        """Learn the vectors of stems by their usual forms."""
        self._words.update((word, at) for at, (_, word) in enumerate(usual, self._vectors.size))
        self._known.update(number for number, _ in usual)
        self._numbers.extend([number for number, _ in usual])
        self._vectors.extend(vectors)
        self._found = {}

    def of(self, words: Iterable[str], encode: Encode) -> dict[str, list[tuple[int, float]]]:
        """Numbers and nearness of the kin of each word; what was asked before is remembered."""
        wanted = [word for word in words if can_have_kin(word)]
        unknown = [word for word in wanted if word not in self._found]
        if unknown and self._known:
            cosines = self._vectors_of(unknown, encode) @ self._vectors.all.T
            for word, row in zip(unknown, cosines, strict=True):
                self._found[word] = _nearest(self._numbers.all, row)
        return {word: self._found.get(word, []) for word in wanted}

    def _vectors_of(self, words: Sequence[str], encode: Encode) -> Floats:
        """Vectors of a query's words: known ones as they are, others made now."""
        strange = [word for word in words if word not in self._words]
        made = dict(zip(strange, encode(strange), strict=True)) if strange else {}
        return np.stack(
            [made[word] if word in made else self._vectors.all[self._words[word]] for word in words]
        )

    @property
    def bytes(self) -> int:
        return self._vectors.all.nbytes


def _nearest(numbers: Ints, cosines: Floats) -> list[tuple[int, float]]:
    likely = np.flatnonzero(cosines >= _LEAST)
    best = likely[np.argsort(-cosines[likely], kind="stable")[:_COUNT]]
    return [(int(numbers[at]), float(min(cosines[at], 1.0) ** _POWER)) for at in best]


def can_have_kin(word: str) -> bool:
    """Numbers and codes stand for themselves alone."""
    return word.isalpha()
