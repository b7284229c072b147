"""The words of the documents that are there: numbers of stems, how often each form is written, the usual forms.

A document that goes takes its words along, so nothing here tells of what is no longer there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from quire.recall.arrays import Array, Ints
from quire.recall.columns import Column
from quire.recall.words import stem


class Vocabulary:
    """Stems and words have numbers in the order of their first appearance; documents come as bags of words."""

    def __init__(self) -> None:
        self.stems: dict[str, int] = {}
        # Raised by every change, for those who remember what followed from the words.
        self.edition = 0
        # Words by number, and as they are written.
        self.words: dict[str, int] = {}
        self.written: list[str] = []
        self._stem_of, self._uses = Column(np.int64), Column(np.int64)
        # By stem: the uses of all forms together, the words that are its forms, and the most used of them.
        self._total = Column(np.int64)
        self._forms: list[list[int]] = []
        self._usual = Column(np.int64)
        self._changed: set[int] = set()
        # Every document's words in one row, and where each document ends.
        self._bags, self._ends = Column(np.int32), Column(np.int64)

    def add(self, bags: Sequence[Sequence[str]]) -> Ints:
        """Take in documents; the stems of all their words in order, by number."""
        self._meet(set(chain.from_iterable(bags)))
        sizes = [len(bag) for bag in bags]
        words = np.fromiter(map(self.words.__getitem__, chain.from_iterable(bags)), np.int64, sum(sizes))
        self._ends.extend(self._bags.size + np.cumsum(sizes, dtype=np.int64))
        self._bags.extend(words)
        return self._count(words, 1)

    def remove(self, row: int) -> Ints:
        """Forget a document, by the order of adding; returns the stems of its words."""
        begin = self._ends.all[row - 1] if row else 0
        return self._count(self._bags.all[begin : self._ends.all[row]], -1)

    def _count(self, words: Array, step: int) -> Ints:
        stems: Ints = self._stem_of.all[words]
        np.add.at(self._uses.all, words, step)
        np.add.at(self._total.all, stems, step)
        self._changed.update(np.unique(stems).tolist())
        self.edition += 1
        return stems

    def _meet(self, words: set[str]) -> None:
        """Number words that were never seen before, and their stems."""
        fresh = sorted(words.difference(self.words))
        numbers = [self.stems.setdefault(stemmed, len(self.stems)) for stemmed in stem(fresh)]
        new_stems = len(self.stems) - len(self._forms)
        self._forms += ([] for _ in range(new_stems))
        self._usual.lengthen(new_stems)
        self._total.lengthen(new_stems)
        for at, number in enumerate(numbers, len(self.words)):
            self._forms[number].append(at)
        self.words.update((word, at) for at, word in enumerate(fresh, len(self.words)))
        self.written += fresh
        self._stem_of.extend(numbers)
        self._uses.lengthen(len(fresh))

    def find(self, stemmed: str) -> int | None:
        """The number of a stem that some document holds."""
        number = self.stems.get(stemmed)
        return number if number is not None and self._total.all[number] else None

    def usual(self, limit: int) -> Ints:
        """The usual forms of the most used stems, as numbers of words; at most `limit`, equals by the alphabet."""
        for number in self._changed:
            self._usual.all[number] = min(self._forms[number], key=self._rank)
        self._changed.clear()
        used = np.flatnonzero(self._total.all)
        forms: Ints = self._usual.all[used]
        if len(forms) <= limit:
            return forms
        total = self._total.all[used]
        least = np.partition(total, -limit)[-limit]
        above, even = forms[total > least], forms[total == least].tolist()
        even.sort(key=self.written.__getitem__)
        return np.concatenate([above, np.array(even[: limit - len(above)], np.int64)])

    def stems_of(self, words: Ints) -> Ints:
        """The numbers of the stems of words."""
        stems: Ints = self._stem_of.all[words]
        return stems

    def _rank(self, word: int) -> tuple[int, str]:
        return -int(self._uses.all[word]), self.written[word]

    @property
    def bytes(self) -> int:
        """Memory of the bags, by far the largest part."""
        return self._bags.all.nbytes + self._ends.all.nbytes
