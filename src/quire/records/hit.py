"""A record that a search found, and how it is shown."""

from __future__ import annotations

import msgspec

from quire.records.record import Record, View, view
from quire.records.shape import searchable
from quire.values import JsonObject

PREVIEW = 80


class Hit(msgspec.Struct, frozen=True):
    """A record that was found: its score (what the order goes by, the sum of `parts`), how much of the query it
    holds itself from 0 to 1, and, where asked for, what its hints show of it.
    """

    record: Record
    score: float
    relevance: float
    parts: dict[str, float] = {}
    view: View | None = None

    @property
    def preview(self) -> str:
        """The beginning of what it says, on one line."""
        text = " ".join((searchable(self.record).strip() or self.record.title).split())
        return text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"

    def with_context(self) -> Hit:
        return msgspec.structs.replace(self, view=view(self.record))

    def to_json(self) -> JsonObject:
        """The record's head and score; with its context where that was asked for."""
        shown: JsonObject = {
            "id": self.record.id,
            "schema_name": self.record.schema_name,
            "title": self.record.title,
            "tags": list(self.record.tags),
            "version": self.record.version,
            "score": round(self.score, 4),
            "relevance": round(self.relevance, 4),
            "parts": {part: round(value, 4) for part, value in self.parts.items() if value},
        }
        if self.view is not None:
            shown["context"] = self.view.context
            shown |= {"error": self.view.error} if self.view.error else {}
        return shown
