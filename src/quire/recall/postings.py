"""Which documents hold a word, and how often: an inverted index that grows at the end.

Most of it lies sorted by word in three arrays; what came since is kept per word and merged now and then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from quire.recall.arrays import Array, Bools, Floats, Ints
from quire.recall.words import stem

_MERGE_AT_LEAST = 50_000
# So many documents at once are worth sorting straight into place.
_MANY = 256


class Postings:
    """Rows and counts per stem; stems have numbers in the order of their first appearance."""

    def __init__(self) -> None:
        self.stems: dict[str, int] = {}
        # Words as they stand in documents -> the number of their stem.
        self._words: dict[str, int] = {}
        # How often each word was written, to know the usual form of a stem.
        self._uses: Counter[str] = Counter()
        self._starts: Array = np.zeros(1, np.int64)
        self._rows: Array = np.zeros(0, np.int32)
        self._counts: Array = np.zeros(0, np.float32)
        self._new: dict[int, tuple[list[int], list[int]]] = {}
        self._new_size = 0

    def add(self, first_row: int, bags: Sequence[Sequence[str]]) -> None:
        """Index documents by their words, in consecutive rows; rows only ever grow."""
        self._meet(bags)
        self._uses.update(word for bag in bags for word in bag)
        if len(bags) >= _MANY:
            self._add_many(first_row, bags)
            return
        for row, bag in enumerate(bags, first_row):
            for number, count in Counter(map(self._words.__getitem__, bag)).items():
                rows, counts = self._new.setdefault(number, ([], []))
                rows.append(row)
                counts.append(count)
                self._new_size += 1

    def _meet(self, bags: Sequence[Sequence[str]]) -> None:
        """Number the stems of words that were never seen before."""
        fresh = sorted({word for bag in bags for word in bag}.difference(self._words))
        for word, stemmed in zip(fresh, stem(fresh), strict=True):
            self._words[word] = self.stems.setdefault(stemmed, len(self.stems))

    def _add_many(self, first_row: int, bags: Sequence[Sequence[str]]) -> None:
        span = first_row + len(bags)
        flat = np.fromiter(map(self._words.__getitem__, (word for bag in bags for word in bag)), np.int64)
        rows = np.repeat(np.arange(first_row, span), [len(bag) for bag in bags])
        # One key per stem and row, so that repeats of a word in a document fall together.
        keys, counts = np.unique(flat * span + rows, return_counts=True)
        self._merge(keys // span, keys % span, counts, None)

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
        forms: dict[int, tuple[int, str]] = {}
        total: Counter[int] = Counter()
        for word, uses in sorted(self._uses.items()):
            number = self._words[word]
            total[number] += uses
            if uses > forms.get(number, (0, ""))[0]:
                forms[number] = (uses, word)
        best = sorted(total, key=lambda number: (-total[number], number))[:limit]
        return [(number, forms[number][1]) for number in best]

    @property
    def bytes(self) -> int:
        """Memory of the sorted part."""
        return self._starts.nbytes + self._rows.nbytes + self._counts.nbytes


def weighed(parts: Sequence[tuple[Array, Array, float]]) -> tuple[Array, Floats]:
    """Several postings as one, each with its weight."""
    if not parts:
        return np.zeros(0, np.int32), np.zeros(0, np.float32)
    rows = np.concatenate([rows for rows, _, _ in parts])
    return rows, np.concatenate([counts * np.float32(weight) for _, counts, weight in parts])
