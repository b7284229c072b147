"""Which documents hold a word, and how often: an inverted index that grows at the end.

Most of it lies sorted by word in three arrays; what came since is kept per word and merged now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from quire.recall.arrays import Array, Bools, Ints
from quire.recall.columns import Column
from quire.recall.words import stem

_MERGE_AT_LEAST = 50_000
# So many documents at once are worth sorting straight into place.
_MANY = 256


class Postings:
    """Rows and counts per stem; stems have numbers in the order of their first appearance."""

    def __init__(self) -> None:
        self.stems: dict[str, int] = {}
        # Words as they are written: their place here, the number of their stem, and how often they were used.
        self._words: dict[str, int] = {}
        self._stem_of, self._uses = Column(np.int64), Column(np.int64)
        self._starts: Array = np.zeros(1, np.int64)
        self._rows: Array = np.zeros(0, np.int32)
        self._counts: Array = np.zeros(0, np.float32)
        self._new: dict[int, tuple[list[int], list[int]]] = {}
        self._new_size = 0

    def add(self, first_row: int, bags: Sequence[Sequence[str]]) -> None:
        """Index documents by their words, in consecutive rows; rows only ever grow."""
        self._meet(set(chain.from_iterable(bags)))
        sizes = [len(bag) for bag in bags]
        words = np.fromiter(map(self._words.__getitem__, chain.from_iterable(bags)), np.int64, sum(sizes))
        self._uses.all[:] += np.bincount(words, minlength=len(self._words))
        span = first_row + len(bags)
        # One key per stem and row, so that repeats of a word in a document fall together.
        keys = self._stem_of.all[words] * span + np.repeat(np.arange(first_row, span), sizes)
        keys, counts = np.unique(keys, return_counts=True)
        if len(bags) >= _MANY:
            self._merge(keys // span, keys % span, counts, None)
        else:
            self._keep(keys // span, keys % span, counts)

    def _keep(self, numbers: Ints, rows: Ints, counts: Ints) -> None:
        for number, row, count in zip(numbers.tolist(), rows.tolist(), counts.tolist(), strict=True):
            new_rows, new_counts = self._new.setdefault(number, ([], []))
            new_rows.append(row)
            new_counts.append(count)
        self._new_size += len(numbers)

    def _meet(self, words: set[str]) -> None:
        """Number words that were never seen before, and their stems."""
        fresh = sorted(words.difference(self._words))
        numbers = [self.stems.setdefault(stemmed, len(self.stems)) for stemmed in stem(fresh)]
        self._words.update((word, at) for at, word in enumerate(fresh, len(self._words)))
        self._stem_of.extend(numbers)
        self._uses.extend(np.zeros(len(fresh), np.int64))

    def of(self, number: int) -> tuple[Array, Array]:
        """The rows that hold a stem, and its counts there."""
        known = number + 1 < len(self._starts)
        low, high = (self._starts[number], self._starts[number + 1]) if known else (0, 0)
        rows, counts = self._rows[low:high], self._counts[low:high]
        if number in self._new:
            new_rows, new_counts = self._new[number]
            rows = np.concatenate([rows, np.array(new_rows, np.int32)])
            counts = np.concatenate([counts, np.array(new_counts, np.float32)])
        return rows, counts

    def holders(self, number: int) -> int:
        """How many rows hold a stem."""
        return len(self.of(number)[0])

    def settle(self, alive: Bools) -> None:
        """Merge what came since the last time once it is an eighth of the whole; the dead are dropped then."""
        if self._new_size < max(_MERGE_AT_LEAST, len(self._rows) // 8):
            return
        sizes = [len(rows) for rows, _ in self._new.values()]
        numbers = np.repeat(np.fromiter(self._new, np.int64, len(self._new)), sizes)
        rows = np.concatenate([np.array(rows, np.int64) for rows, _ in self._new.values()])
        counts = np.concatenate([np.array(counts, np.float32) for _, counts in self._new.values()])
        self._new, self._new_size = {}, 0
        self._merge(numbers, rows, counts, alive)

    def _merge(self, numbers: Ints, rows: Ints, counts: Array, alive: Bools | None) -> None:
        old = np.repeat(np.arange(len(self._starts) - 1), np.diff(self._starts))
        numbers = np.concatenate([old, numbers])
        rows = np.concatenate([self._rows, rows.astype(np.int32)])
        counts = np.concatenate([self._counts, counts.astype(np.float32)])
        if alive is not None:
            kept = alive[rows]
            numbers, rows, counts = numbers[kept], rows[kept], counts[kept]
        order = np.argsort(numbers, kind="stable")
        self._rows, self._counts = rows[order], counts[order]
        sizes = np.bincount(numbers, minlength=len(self.stems))
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

    def usual(self, limit: int) -> list[tuple[int, str]]:
        """The most used stems by number, each with its usual form; at most `limit`."""
        words, uses, stem_of = list(self._words), self._uses.all, self._stem_of.all
        total = np.bincount(stem_of, uses, minlength=len(self.stems))
        # By stem, then the most used form; the first of each stem is its usual one.
        order = np.lexsort((-uses, stem_of))
        first = order[np.flatnonzero(np.diff(stem_of[order], prepend=-1))]
        best = np.argsort(-total[stem_of[first]], kind="stable")[:limit]
        return [(int(stem_of[at]), words[at]) for at in first[best].tolist()]

    @property
    def bytes(self) -> int:
        """Memory of the sorted part."""
        return self._starts.nbytes + self._rows.nbytes + self._counts.nbytes
