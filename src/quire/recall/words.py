"""BM25 over a document's own words and, at less weight, the words of its neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from quire.recall.document import QueryTerms
from quire.recall.languages import FORM, PREFIXES, WHOLE, is_sign

# Names for numpy arrays by their elements, for the reader: numpy's own type stubs are stricter than its rules.

Array: TypeAlias = NDArray[Any]
Floats: TypeAlias = NDArray[Any]
Ints: TypeAlias = NDArray[Any]
Bools: TypeAlias = NDArray[Any]


class Column:
    """A growing numpy array, one element a document; `all` is a view of the part in use."""

    def __init__(self, dtype: Any, width: int | None = None) -> None:
        self._room: Array = np.zeros(_shape(64, width), dtype)
        self._width = width
        self.size = 0

    @property
    def packed(self) -> bytes:
        """The part in use as bytes, to be stored."""
        return self.all.tobytes()

    def restore(self, data: bytes, fixed: bool = False) -> None:
        """Replace the values with stored ones; `fixed` ones are not copied, because they are never written to."""
        values = np.frombuffer(data, self._room.dtype).reshape(_shape(-1, self._width))
        self._room, self.size = values if fixed else values.copy(), len(values)

    @property
    def all(self) -> Array:
        return self._room[: self.size]

    def extend(self, values: Sequence[Any] | Array) -> None:
        """Append values; capacity doubles when it is used up."""
        end = self.size + len(values)
        if end > len(self._room):
            self._grow(end)
        if len(values):
            self._room[self.size : end] = values
        self.size = end

    def lengthen(self, rows: int) -> None:
        """Append rows of zeros."""
        if self.size + rows > len(self._room):
            self._grow(self.size + rows)
        self._room[self.size : self.size + rows] = 0
        self.size += rows

    def _grow(self, least: int) -> None:
        grown = np.zeros(_shape(max(least, 2 * len(self._room)), self._width), self._room.dtype)
        grown[: self.size] = self.all
        self._room = grown


def _shape(rows: int, width: int | None) -> tuple[int, ...]:
    return (rows,) if width is None else (rows, width)


# Neighbours: rows of one session in order, and how much the words of each count for those beside it.
#
# An answer is also found by the words of its question, and a turn of a dialogue by the words around it. The words of
# neighbours count little where one speaker speaks alone, and where the neighbour is long.

REACH = 5
# The weight of words of the entry before (if it is a question, or not), of earlier ones, and of later ones.
_ASKED, _BEFORE = 1.0, 0.3
_BACK = 0.6
_AHEAD = 0.3
# The words of a text with more words than this count proportionally less for its neighbours.
_LENDS_WHOLE = 20
_BACK_SHARES = tuple(np.float32(_BACK**distance) for distance in range(2, REACH + 1))
_AHEAD_SHARES = tuple(np.float32(_AHEAD * _BACK ** (distance - 1)) for distance in range(1, REACH + 1))
# What remains of these weights where the speaker never changes.
ALONE = 0.2
# Cosines are averaged over fewer neighbours.
_MEANING_REACH = 2
_MEANING = 0.3


class Neighbours:
    """Links between the rows of a session, and weights that depend on who speaks; computed again when rows change."""

    def __init__(self, sessions: Ints, speakers: Ints, asks: Bools, lengths: Floats, inside: Bools) -> None:
        """Rows that are `inside` and have a session (0 is none) are linked in their order."""
        rows = np.flatnonzero(inside & (sessions != 0))
        rows = rows[np.argsort(sessions[rows], kind="stable")]
        together = sessions[rows[1:]] == sessions[rows[:-1]]
        # One element more than there are rows: -1 (no neighbour) refers to it, and it has no neighbours itself.
        self._before, self._behind = np.full((2, len(sessions) + 1), -1, np.int64)
        self._before[rows[1:][together]] = rows[:-1][together]
        self._behind[rows[:-1][together]] = rows[1:][together]
        self._asks = asks
        self.rows = max(1, int(np.count_nonzero(inside)))
        # Each row's length relative to the mean, with one element more for missing neighbours.
        usual = max(1.0, float(lengths[inside].mean())) if inside.any() else 1.0
        self.long = np.append(lengths, 0) / np.float32(usual)
        self.norm = np.float32(K1) * (1 - np.float32(B) + np.float32(B) * np.minimum(self.long, np.float32(_LONG)))
        self._lends = np.float32(_LENDS_WHOLE) / np.maximum(lengths, np.float32(_LENDS_WHOLE))
        self.dialogue = self._shares(speakers)
        self._takes = np.append(ALONE + (1 - ALONE) * self.dialogue, 0).astype(np.float32)

    def _shares(self, speakers: Ints) -> Floats:
        """How much of a dialogue surrounds each row: 0 where one speaker speaks alone, 1 where speakers take turns."""
        before, behind = self._before, self._behind
        linked = before >= 0
        changed = linked & (np.append(speakers, -1) != np.append(speakers, -1)[before])
        rows = np.arange(len(speakers))
        around = (rows, before[rows], behind[rows], behind[behind[rows]])
        changes, links = (sum(signs[at].astype(np.float32) for at in around) for signs in (changed, linked))
        return np.asarray(changes / np.maximum(links, 1), np.float32)

    def spread(self, rows: Ints, counts: Floats, wide: Floats) -> Ints:
        """Add `counts` to rows in `wide` and, weighted, to their neighbours; returns the rows that were added to.

        The extra last element of `wide` stands for missing neighbours; nothing is added to it.
        """
        touched, given = [rows], [counts]
        lent = counts * self._lends[rows]
        first = np.where(self._asks[rows], np.float32(_ASKED), np.float32(_BEFORE))
        ways: tuple[tuple[Ints, tuple[Any, ...]], ...] = (
            (self._behind, (first, *_BACK_SHARES)),
            (self._before, _AHEAD_SHARES),
        )
        for step, shares in ways:
            reached = rows
            for share in shares:
                reached = step[reached]
                touched.append(reached)
                given.append(lent * share)
        reached = np.concatenate(touched)
        amounts = np.concatenate(given)
        amounts[len(rows) :] *= self._takes[reached[len(rows) :]]
        np.add.at(wide, reached, amounts)
        return reached

    def around(self, rows: Ints) -> Ints:
        """The rows and the neighbours whose cosines are averaged with theirs, in order, each once."""
        mask = np.zeros(len(self._before), np.bool_)
        for step in (self._before, self._behind):
            reached = rows
            for _ in range(_MEANING_REACH + 1):
                mask[reached] = True
                reached = step[reached]
        return np.flatnonzero(mask[:-1])

    def smooth(self, rows: Ints, values: Floats) -> Floats:
        """Each row's value averaged with its neighbours', weighted by distance."""
        total, weight = values[rows].astype(np.float32), np.ones(len(rows), np.float32)
        for step in (self._before, self._behind):
            reached, share = rows, self._takes[rows]
            for _ in range(_MEANING_REACH):
                reached = step[reached]
                share = np.where(reached >= 0, share * np.float32(_MEANING), np.float32(0))
                total += np.where(reached >= 0, share * values[reached], np.float32(0))
                weight += share
        return total / weight

    def line(self, row: int, count: int) -> list[int]:
        """A row with up to `count` rows on each side, in order."""
        before: list[int] = []
        behind: list[int] = []
        for step, side in ((self._before, before), (self._behind, behind)):
            neighbour = int(step[row])
            while neighbour >= 0 and len(side) < count:
                side.append(neighbour)
                neighbour = int(step[neighbour])
        return [*reversed(before), row, *behind]


# Postings: which documents hold a word, and how often, in sorted runs that are merged as they grow.

_PAIR = np.uint64(0x9E3779B97F4A7C15)
_MOST = 255


@lru_cache(maxsize=100_000)
def _number(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")


def key(term: str) -> Any:
    """The number by which a word, or a pair of adjacent words, is looked up."""
    first, _, second = term.partition(" ")
    if not second:
        return np.uint64(_number(first))
    return (np.array([_number(first)], np.uint64) * _PAIR + np.uint64(_number(second)))[0]


class PostingRun(msgspec.Struct, frozen=True):
    """The words of consecutive rows: sorted keys, where each key's rows begin, the rows, and the counts."""

    keys: Array
    starts: Array
    rows: Array
    counts: Array


_TYPES: dict[str, Any] = {"keys": np.uint64, "starts": np.uint32, "rows": np.int32, "counts": np.uint8}


def posting_run(first_row: int, bags: Sequence[str]) -> PostingRun:
    """Index documents by their words and by pairs of adjacent words."""
    words = [bag.split() for bag in bags]
    every = list(chain.from_iterable(words))
    # Other forms of a word are looked up like any word.
    bare = (word[1:] if word[0] == FORM else word for word in every) if any(FORM in bag for bag in bags) else every
    keys = np.fromiter(map(_number, bare), np.uint64, len(every))
    rows = np.repeat(np.arange(first_row, first_row + len(bags), dtype=np.int32), [len(bag) for bag in words])
    plain = np.fromiter((word[0] not in PREFIXES for word in every), np.bool_, len(every))
    plain_keys, plain_rows = keys[plain], rows[plain]
    beside = plain_rows[1:] == plain_rows[:-1]
    pairs = (plain_keys[:-1] * _PAIR + plain_keys[1:])[beside]
    keys, rows = np.concatenate([keys, pairs]), np.concatenate([rows, plain_rows[1:][beside]])
    order = np.lexsort((rows, keys))
    keys, rows = keys[order], rows[order]
    # Repetitions of a word in a document become one posting with a count.
    new = np.ones(len(keys), np.bool_)
    new[1:] = (keys[1:] != keys[:-1]) | (rows[1:] != rows[:-1])
    at = np.flatnonzero(new)
    counts = np.minimum(np.diff(np.append(at, len(keys))), _MOST).astype(np.uint8)
    return _sort_run(keys[at], rows[at], counts)


def _sort_run(keys: Array, rows: Array, counts: Array) -> PostingRun:
    """A run of postings that are sorted by key."""
    new = np.ones(len(keys), np.bool_)
    new[1:] = keys[1:] != keys[:-1]
    at = np.flatnonzero(new)
    return PostingRun(keys[at], np.append(at, len(keys)).astype(np.uint32), rows, counts)


def merge_runs(runs: Sequence[PostingRun]) -> PostingRun:
    """Merge runs whose rows follow each other."""
    keys = np.concatenate([np.repeat(run.keys, np.diff(run.starts)) for run in runs])
    order = np.argsort(keys, kind="stable")
    rows, counts = (np.concatenate([getattr(run, part) for run in runs])[order] for part in ("rows", "counts"))
    return _sort_run(keys[order], rows, counts)


class Postings:
    """Which rows hold a word and how often, by its key: sorted runs, each larger than all later ones together."""

    def __init__(self) -> None:
        self.runs: list[PostingRun] = []

    def add(self, run: PostingRun) -> None:
        """Append a run, merged with the last ones that are not larger."""
        some = [run]
        while self.runs and len(self.runs[-1].rows) <= sum(len(other.rows) for other in some):
            some.insert(0, self.runs.pop())
        self.runs.append(merge_runs(some) if len(some) > 1 else run)

    def of(self, key: Any) -> tuple[Array, Array]:
        """The rows that hold a word, in order, and its counts there; deleted rows may be among them."""
        pieces = []
        for run in self.runs:
            at = int(np.searchsorted(run.keys, key))
            if at < len(run.keys) and run.keys[at] == key:
                part = slice(run.starts[at], run.starts[at + 1])
                pieces.append((run.rows[part], run.counts[part]))
        if not pieces:
            return np.zeros(0, np.int32), np.zeros(0, np.uint8)
        return np.concatenate([rows for rows, _ in pieces]), np.concatenate([counts for _, counts in pieces])

    def state(self) -> dict[str, bytes]:
        """All runs merged into one as bytes, to be stored."""
        if len(self.runs) > 1:
            self.runs = [merge_runs(self.runs)]
        run = self.runs[0] if self.runs else posting_run(0, [])
        return {name: getattr(run, name).tobytes() for name in _TYPES}

    def restore(self, state: Mapping[str, bytes]) -> None:
        """Replace the state with a stored one."""
        self.runs = [PostingRun(**{name: np.frombuffer(state[name], kind) for name, kind in _TYPES.items()})]


K1, B = 0.8, 0.4
# Texts longer than this many times the mean are not weighted down any further.
_LONG = 2.0
# In a collection of more rows than this, words that more than an eighth of them hold are ignored.
_LARGE = 20_000
_SOME = 200
# The score of a text of mean length that holds every word of the query itself is doubled; of a shorter one it grows more,
# of a longer one less, as in plain BM25.
_COMPLETE, _COMPLETE_B = 1.0, 0.75


def scores(
    postings: Postings, query: QueryTerms, neighbours: Neighbours, allowed: Bools
) -> tuple[Floats, Floats, float]:
    """For each allowed row with its neighbours, the score by words and the share of the query's words that it holds; and
    about the score of a row that would hold all of them."""
    documents, long = neighbours.rows, neighbours.long
    out, share, wide, direct = np.zeros((4, len(long)), np.float32)
    whole = complete = ideal = 0.0
    for term, weight in query.words:
        rows, counts = postings.of(key(term))
        inside = allowed[rows]
        rows, counts = rows[inside], counts[inside]
        # Words of the turn before (weight below 1) do not count for the share. In a small collection rarity is taken as in
        # one of `_SOME` rows.
        rare = _rarity(len(rows), max(documents, _SOME)) if weight == 1 else 0.0
        telling = rare if term[0] != WHOLE or is_sign(term[1:]) else 0.0
        whole += telling
        # A whole name counts where any row holds it; other words are in the index by their stems alone.
        complete += rare if len(rows) else telling
        direct[rows] += np.float32(rare)
        ideal += _rarity(len(rows), documents) if telling else 0.0
        if not len(rows) or (documents > _LARGE and 8 * len(rows) > documents):
            continue
        touched = neighbours.spread(rows, counts.astype(np.float32), wide)
        rarity = _rarity(int(np.count_nonzero(wide)), documents)
        # A row may occur twice in `touched`: it is then written twice with the same value.
        amount = wide[touched]
        out[touched] += np.float32(weight * rarity * (K1 + 1)) * amount / (amount + neighbours.norm[touched])
        share[touched] += np.float32(telling) * np.minimum(amount, np.float32(1))
        wide[touched] = 0
    holding = np.flatnonzero(direct >= np.float32(0.999 * complete or 1))
    out[holding] *= 1 + np.float32(_COMPLETE) / (np.float32(1 - _COMPLETE_B) + np.float32(_COMPLETE_B) * long[holding])
    return out[:-1], share[:-1] / np.float32(whole or 1), ideal


def _rarity(holders: int, documents: int) -> float:
    return float(np.log1p((documents - holders + 0.5) / (holders + 0.5)))
