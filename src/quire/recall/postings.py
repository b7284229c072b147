"""Which documents hold a word, and how often: an inverted index that grows at the end.

Most of it lies sorted by word in three arrays; what came since is kept per word and merged now and then.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.recall.arrays import Array, Bools, Ints
from quire.recall.columns import Column
from quire.recall.vocabulary import Vocabulary

_MERGE_AT_LEAST = 50_000
# So many documents at once are worth sorting straight into place.
_MANY = 256


class Postings:
    """Rows and counts per stem, by the stem's number."""

    def __init__(self) -> None:
        self.vocabulary = Vocabulary()
        # How many rows that are alive hold each stem.
        self._holders = Column(np.int64)
        self._starts: Array = np.zeros(1, np.int64)
        self._rows: Array = np.zeros(0, np.int32)
        self._counts: Array = np.zeros(0, np.float32)
        self._new: dict[int, tuple[list[int], list[int]]] = {}
        self._new_size = 0

    def add(self, first_row: int, bags: Sequence[Sequence[str]]) -> None:
        """Index documents by their words, in consecutive rows; rows only ever grow."""
        stems = self.vocabulary.add(bags)
        span = first_row + len(bags)
        # One key per stem and row, so that repeats of a word in a document fall together.
        keys = stems * span + np.repeat(np.arange(first_row, span), [len(bag) for bag in bags])
        keys, counts = np.unique(keys, return_counts=True)
        numbers, rows = keys // span, keys % span
        self._holders.lengthen(len(self.vocabulary.stems) - self._holders.size)
        np.add.at(self._holders.all, numbers, 1)
        if len(bags) >= _MANY:
            self._merge(numbers, rows, counts, None)
        else:
            self._keep(numbers, rows, counts)

    def remove(self, row: int) -> None:
        """Forget a row that died; it is left out of `holders` now and of the arrays at the next merging."""
        self._holders.all[np.unique(self.vocabulary.remove(row))] -= 1

    def _keep(self, numbers: Ints, rows: Ints, counts: Ints) -> None:
        for number, row, count in zip(numbers.tolist(), rows.tolist(), counts.tolist(), strict=True):
            new_rows, new_counts = self._new.setdefault(number, ([], []))
            new_rows.append(row)
            new_counts.append(count)
        self._new_size += len(numbers)

    def of(self, number: int) -> tuple[Array, Array]:
        """The rows that hold a stem, and its counts there; some may be dead."""
        known = number + 1 < len(self._starts)
        low, high = (self._starts[number], self._starts[number + 1]) if known else (0, 0)
        rows, counts = self._rows[low:high], self._counts[low:high]
        if number in self._new:
            new_rows, new_counts = self._new[number]
            rows = np.concatenate([rows, np.array(new_rows, np.int32)])
            counts = np.concatenate([counts, np.array(new_counts, np.float32)])
        return rows, counts

    def holders(self, number: int) -> int:
        """How many rows that are alive hold a stem."""
        return int(self._holders.all[number])

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
        sizes = np.bincount(numbers, minlength=len(self.vocabulary.stems))
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

    @property
    def bytes(self) -> int:
        """Memory of the sorted part and of the words of each row."""
        return self._starts.nbytes + self._rows.nbytes + self._counts.nbytes + self.vocabulary.bytes
