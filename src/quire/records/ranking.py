"""Records in the order in which they answer a query, by recall's hybrid index; and how relevant each is.

The index decides the order: it also hears what was said around a message. Relevance says how much of the query a
record holds itself, so that what merely stands beside an answer does not pass for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from quire.errors import MissingPart
from quire.records.hit import Hit
from quire.records.record import Record, session
from quire.records.relevance import Corpus, relevance
from quire.records.shape import role

if TYPE_CHECKING:
    from quire.recall.document import Document
    from quire.records.meaning import Meaning

# The session of messages that name none: they stand beside each other all the same.
UNNAMED: Final = "session:"


def ranked(
    query: str,
    records: Sequence[Record],
    texts: Sequence[str],
    *,
    meaning: Meaning | None = None,
    vectors: Sequence[Any] | None = None,
    corpus: Corpus | None = None,
) -> list[Hit]:
    """Those of the records that have anything to do with the query, the best first."""
    cosines = meaning.cosines(query, vectors) if meaning and vectors else None
    shares = relevance(query, texts, cosines, corpus)
    # No text is near to everything by its vector, and says nothing.
    near = {
        one.id: share if text.strip() else 0.0
        for one, text, share in zip(records, texts, shares, strict=True)
    }
    if not any(near.values()):
        return []
    found = _collection(records, texts, meaning, vectors).search(query, len(records))
    by_id = {one.id: one for one in records}
    return [Hit(by_id[one.id], round(one.score, 6), near[one.id], one.parts) for one in found]


def _collection(
    records: Sequence[Record], texts: Sequence[str], meaning: Meaning | None, vectors: Sequence[Any] | None
) -> Any:
    try:
        import numpy

        from quire.recall.collection import Collection
        from quire.recall.document import Document
    except ImportError as error:
        raise MissingPart(
            "searching records needs numpy and PyStemmer", hint="pip install 'quire[records]'"
        ) from error

    def document(record: Record, text: str) -> Document:
        speaker = role(record)
        place = session(record) or UNNAMED if speaker else ""
        return Document(record.id, text, speaker=speaker, session=place)

    collection = Collection(meaning)
    collection.upsert(document(*pair) for pair in zip(records, texts, strict=True))
    if vectors:
        collection.put_vectors([one.id for one in records], numpy.stack(vectors))
    return collection
