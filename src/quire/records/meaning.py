"""Records by meaning: an embedder's vectors, kept with the version they were made of, and their cosines.

Vectors are derived and made when first needed, in small transactions: what was made before a kill stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from quire.log.connect import transaction
from quire.records.record import Record
from quire.records.rows import number

if TYPE_CHECKING:
    from quire.recall.embed import Embedder

# How many texts are remembered besides the stored vectors: those of requests and of de-duplication.
REMEMBERED: Final = 2000
BATCH: Final = 32
# Called with how many vectors are made, and how many will be.
Progress: TypeAlias = Callable[[int, int], None]


class Meaning:
    """How near texts come to each other in meaning: an embedder that remembers, and keeps vectors with records."""

    def __init__(self, embedder: Embedder, progress: Progress | None = None) -> None:
        self.embedder, self.progress = embedder, progress
        self.name, self.dimensions = embedder.name, embedder.dimensions
        self._seen: dict[str, Any] = {}

    def embed(self, texts: Sequence[str]) -> list[Any]:
        """A vector for each text, computed once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._seen]
        if len(self._seen) + len(new) > REMEMBERED:
            self._seen.clear()
            new = list(dict.fromkeys(texts))
        if new:
            self._seen.update(zip(new, self.embedder.encode(new), strict=True))
        return [self._seen[text] for text in texts]

    def encode(self, texts: Sequence[str]) -> Any:
        """The vectors of texts as one array."""
        import numpy

        return numpy.stack(self.embed(texts)) if texts else numpy.empty((0, self.dimensions), numpy.float32)

    def cosines(self, query: str, vectors: Sequence[Any]) -> list[float]:
        """The cosine of the query with each vector."""
        asked = self.embed([query])[0]
        return [float(vector @ asked) for vector in vectors]

    def vectors(self, conn: Any, records: Sequence[Record], texts: Sequence[str]) -> list[Any]:
        """The vector of each record; those that are missing are made first."""
        import numpy

        self.keep(conn, records, texts)
        stored = self._stored(conn, records) if records else {}
        # A record that changed meanwhile has no vector yet; it is near to nothing this once.
        none = numpy.zeros(self.dimensions, numpy.float32)
        return [stored.get(one.id, none) for one in records]

    def keep(self, conn: Any, records: Sequence[Record], texts: Sequence[str]) -> int:
        """Make and store the vectors that are missing; returns how many there were."""
        there = self._stored(conn, records) if records else {}
        missing = [(one, text) for one, text in zip(records, texts, strict=True) if one.id not in there]
        done = 0
        for batch in _batches(missing):
            vectors = self.embedder.encode([text for _, text in batch])
            with transaction(conn):
                for (record, _), vector in zip(batch, vectors, strict=True):
                    self._keep(conn, record, vector)
            done += len(batch)
            if self.progress:
                self.progress(done, len(missing))
        return len(missing)

    def _stored(self, conn: Any, records: Sequence[Record]) -> dict[str, Any]:
        import numpy

        numbers = [number(record.id) for record in records]
        query = "SELECT n, version, vector FROM record_vectors WHERE model = ? AND n BETWEEN ? AND ?"
        found = {
            (f"rec-{n}", version): vector
            for n, version, vector in conn.execute(query, (self.name, min(numbers), max(numbers)))
        }
        return {
            record.id: numpy.frombuffer(found[record.id, record.version], dtype=numpy.float32)
            for record in records
            if (record.id, record.version) in found
        }

    def _keep(self, conn: Any, record: Record, vector: Any) -> None:
        """Store a vector, unless its record has changed or gone meanwhile."""
        conn.execute(
            "INSERT OR REPLACE INTO record_vectors SELECT n, ?, version, ? FROM records WHERE n = ? AND version = ?",
            (self.name, vector.astype("float32").tobytes(), number(record.id), record.version),
        )


def _batches(pairs: Sequence[tuple[Record, str]]) -> list[Sequence[tuple[Record, str]]]:
    return [pairs[at : at + BATCH] for at in range(0, len(pairs), BATCH)]
