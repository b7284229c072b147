"""BM25 in which a document's words are its own and, weighed, those of its neighbours and their kin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from quire.recall.columns import Array, Bools, Column, Floats, Ints
from quire.recall.neighbours import REACH, Neighbours
from quire.recall.query import QueryTerms, stem

# The words of the documents that are there: numbers of stems, how often each form is written, the usual forms.
#
# A document that goes takes its words along, so nothing here tells of what is no longer there.


class StemTable:
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


# Which documents hold a word, and how often: an inverted index that grows at the end.
#
# Most of it lies sorted by word in three arrays; what came since is kept per word and merged now and then.

_MERGE_AT_LEAST = 50_000
# So many documents at once are worth sorting straight into place.
_MANY = 256


class Postings:
    """Rows and counts per stem, by the stem's number."""

    def __init__(self) -> None:
        self.vocabulary = StemTable()
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


K1, B = 1.2, 0.5
# Above this many documents, words that tell less than this part of what the most telling one does are passed over.
_LARGE = 20_000
_TELLING = 0.08


class WordIndex:
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

    def scores(self, asked: QueryTerms, kin: Mapping[str, list[tuple[int, float]]], alive: Bools) -> Floats:
        """How well each row and its surroundings answer the query's words."""
        out, room = np.zeros(len(alive), np.float32), Scratch(len(alive))
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

    def _worth_it(self, asked: QueryTerms, documents: int) -> list[tuple[str, str, float, float]]:
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
            counts = self._spread(terms, Scratch(len(counts)), alive)
        holders = int(np.count_nonzero(counts))
        documents = len(counts) if alive is None else int(np.count_nonzero(alive))
        return float(np.log1p((documents - holders + 0.5) / (holders + 0.5)))

    def _norm(self, alive: Bools) -> Floats:
        wide = self._wide.all
        mean = float(wide[alive].mean()) if alive.any() else 1.0
        return np.asarray(K1 * (1 - B + B * wide / max(mean, 1.0)), np.float32)

    def _spread(self, terms: list[tuple[int, float]], room: Scratch, alive: Bools | None) -> Floats:
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


class Scratch:
    """Space for sums over all rows, used again for every word: taking it anew costs more than the sums."""

    def __init__(self, rows: int) -> None:
        self.own, self.spare = np.empty(rows, np.float32), np.empty(rows, np.float32)
        self.taken = np.empty(rows + 1, np.float32)
