"""What a builder makes: the text, what explains it, and the record that keeps it."""

from __future__ import annotations

from typing import Final

import msgspec

from quire.formats import clean
from quire.records.record import Record
from quire.values import Json, JsonObject

# What a model is shown of a built context; the rest explains it.
OUTPUT_HINTS: Final[JsonObject] = {"include": ["consumer_id", "formatted_context", "request", "trigger"]}


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """A context: its text without the request, what it shows, and what it leaves out and why."""

    consumer_id: str
    formatted_context: str
    request: str
    tokens: int
    trigger: Record | None = None
    sources: tuple[Record, ...] = ()
    left_out: tuple[JsonObject, ...] = ()
    generation: int = 1

    @property
    def text(self) -> str:
        """What the model receives."""
        return clean.with_request(self.formatted_context, self.request)

    @property
    def context(self) -> JsonObject:
        """The context of the consumer's record."""
        trigger = {"id": self.trigger.id, "version": self.trigger.version} if self.trigger else None
        return {
            "consumer_id": self.consumer_id,
            "formatted_context": self.formatted_context,
            "request": self.request,
            "trigger": trigger,
            "tokens": self.tokens,
            "sources": [{"id": one.id, "version": one.version} for one in self.sources],
            "left_out": list(self.left_out),
            "built": {"by": self.consumer_id, "generation": self.generation},
        }


def built_by(record: Record) -> str:
    """The consumer whose builder made a record, '' for any other record."""
    return str(_built(record).get("by", ""))


def generation(record: Record) -> int:
    """How many builders stand between a record and what was said: 0 for what no builder made."""
    number = _built(record).get("generation", 0)
    return max(0, number) if isinstance(number, int) else 0


def _built(record: Record) -> JsonObject:
    made: Json = record.context.get("built")
    return made if isinstance(made, dict) and isinstance(made.get("by"), str) else {}
