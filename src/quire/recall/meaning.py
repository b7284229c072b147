"""Vectors of documents, several of a long one, and the nearest to a query.

Every one is compared while they are few; of many, those whose signs agree with the query's most often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from quire.recall.columns import Array, Bools, Column, Floats, Ints

# Among up to so many vectors every one is compared; among more, so many whose signs are the nearest.
_FEW = 4_000
_COMPARED = 1_200
MEANING_PARTS = ("vectors", "signs", "owner", "known")


class Meaning:
    """Vectors by the row of their document, in half precision; a document is as near as the nearest of its own."""

    def __init__(self, dimensions: int) -> None:
        self._vectors = Column(np.float16, dimensions)
        self._signs = Column(np.uint64, max(1, dimensions // 64))
        # The row each vector belongs to; -1 when it is gone.
        self._owner = Column(np.int64)
        self._known = Column(np.bool_)

    def grow(self, rows: int) -> None:
        """Make room for rows whose vectors are not known yet."""
        self._known.lengthen(rows)

    def put(self, rows: Ints, vectors: Array) -> None:
        """Set the vectors of rows, in place of those they had; a row may come several times."""
        for row in np.unique(rows[self._known.all[rows]]).tolist():
            self.forget(row)
        half = vectors.astype(np.float16)
        self._vectors.extend(half)
        self._signs.extend(_signs(half, self._signs.all.shape[1]))
        self._owner.extend(rows)
        self._known.all[rows] = True

    def forget(self, row: int) -> None:
        """A row that is gone is near to nothing."""
        if self._known.all[row]:
            self._owner.all[self._owner.all == row] = -1
            self._known.all[row] = False

    @property
    def known(self) -> Bools:
        return self._known.all

    def near(self, query: Floats, allowed: Bools) -> tuple[Ints, Floats]:
        """The nearest rows that are allowed, in order, with their cosines; all of them while they are few."""
        places = self._places(allowed)
        if len(places) > _FEW:
            signs = self._signs.all if len(places) == self.size else self._signs.all[places]
            differ = np.zeros(len(places), np.uint16)
            for at, sign in enumerate(_signs(query[None], signs.shape[1])[0]):
                differ += np.bitwise_count(signs[:, at] ^ sign)
            places = np.sort(places[np.argpartition(differ, _COMPARED)[:_COMPARED]])
        best = self._best(query, places)
        rows = np.flatnonzero(best > -np.inf)
        return rows, best[rows]

    def cosines(self, query: Floats, rows: Ints) -> Floats:
        """The cosine of the query with each of these rows; minus infinity where there is no vector."""
        wanted = np.zeros(self._known.size, np.bool_)
        wanted[rows] = True
        return self._best(query, self._places(wanted))[rows]

    def _places(self, rows: Bools) -> Ints:
        """Where the vectors of rows stand."""
        return np.flatnonzero(np.append(rows, False)[self._owner.all])

    def _best(self, query: Floats, places: Ints) -> Floats:
        best = np.full(self._known.size, -np.inf, np.float32)
        cosines = self._vectors.all[places].astype(np.float32) @ query
        np.maximum.at(best, self._owner.all[places], cosines)
        return best

    @property
    def size(self) -> int:
        """How many vectors there are, those of rows that are gone included."""
        return self._owner.size

    def state(self) -> dict[str, bytes]:
        """Everything but the vectors of rows that are gone, to be kept."""
        there = self._owner.all >= 0
        kept = {name: getattr(self, f"_{name}").all[there] for name in MEANING_PARTS[:-1]}
        return {name: some.tobytes() for name, some in {**kept, "known": self._known.all}.items()}

    def restore(self, kept: Mapping[str, bytes]) -> None:
        """Begin with what was kept."""
        for name in MEANING_PARTS:
            getattr(self, f"_{name}").restore(kept[name], fixed=name in ("vectors", "signs"))


def _signs(vectors: Array, words: int) -> Array:
    """The signs of vectors, 64 to a number."""
    bits = np.packbits(vectors[:, : 64 * words] > 0, axis=1)
    padded = np.zeros((len(vectors), 8 * words), np.uint8)
    padded[:, : bits.shape[1]] = bits
    return padded.view(np.uint64)


# Vectors as a store keeps them: in half precision, those of one text in a row, by the model that made them.


def packed(made: Floats) -> bytes:
    """The vectors of one text, to be kept."""
    return made.astype("<f2").tobytes()


def unpacked(kept: Sequence[tuple[str, bytes]], dimensions: int) -> tuple[list[str], Array]:
    """Keys and their vectors, a key once for each; what has another size is of another model."""
    found = [row for row in kept if row[1] and len(row[1]) % (2 * dimensions) == 0]
    joined = np.frombuffer(b"".join(vector for _, vector in found), "<f2").reshape(-1, dimensions)
    return [key for key, vector in found for _ in range(len(vector) // (2 * dimensions))], joined
