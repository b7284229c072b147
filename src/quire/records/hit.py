"""What finds records: words always, meaning where there is an embedder; and what it found."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quire.records.record import Record, view
from quire.records.relevance import relevance
from quire.records.shape import searchable
from quire.records.similar import Embed
from quire.values import JsonObject

PREVIEW = 80


class Finder:
    """Scores records against a query, from 0 to 1."""

    embed: Embed | None = None

    def score(self, query: str, records: Sequence[Record]) -> list[float]:
        return relevance(query, [searchable(one) for one in records])


class Hit(msgspec.Struct, frozen=True):
    """A record that was found, and how near it comes, from 0 to 1."""

    record: Record
    score: float

    @property
    def preview(self) -> str:
        """The beginning of what it says, on one line."""
        text = " ".join(searchable(self.record).split())
        return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"

    def to_json(self, include_context: bool = False) -> JsonObject:
        """The record's head and score; its context as its hints show it when wanted."""
        seen = view(self.record)
        shown: JsonObject = {
            "id": seen.id,
            "schema_name": seen.schema_name,
            "title": seen.title,
            "tags": list(seen.tags),
            "version": seen.version,
            "score": round(self.score, 4),
        }
        if not include_context:
            return shown
        return {**shown, "context": seen.context, **({"error": seen.error} if seen.error else {})}
