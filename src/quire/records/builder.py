"""The context builder: from a consumer's configuration and the records to the text that its model receives.

`build` reads and decides, `update` keeps the result as the consumer's record. The direct path is
`build(...).text`; the record's `formatted_context` with the request appended gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from quire.errors import CallError, ConflictError, NotFound
from quire.formats import clean
from quire.records.config import Config, Selector
from quire.records.config import config as read_config
from quire.records.gather import ContextRequest, Embed, Exchange, Part, PickedRecord, exchanges, fit, gather, repeated
from quire.records.record import SPOKEN, USER, Record, context_text, role, session, shape
from quire.records.store import Records
from quire.values import Json, JsonObject

# What a builder makes: the text, what explains it, and the record that keeps it.

# What a model is shown of a built context; the rest explains it.
OUTPUT_HINTS: Final[JsonObject] = {"include": ["consumer_id", "formatted_context", "request", "trigger"]}


class BuiltContext(msgspec.Struct, frozen=True, kw_only=True):
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
            "sources": [{"id": source.id, "version": source.version} for source in self.sources],
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
    built: Json = record.context.get("built")
    return built if isinstance(built, dict) and isinstance(built.get("by"), str) else {}


ATTEMPTS: Final = 5
# The group of a catalog that is given.
CATALOG: Final = "catalog"


class Builder:
    """Builds one consumer's context: `Builder(config).build(records, request="…").text`."""

    def __init__(self, config: Config | JsonObject) -> None:
        self.config = config if isinstance(config, Config) else read_config(config)

    def triggered_by(self, record: Record) -> bool:
        """Whether a record's creation or change calls for a new context."""
        return any(trigger.matches(record) for trigger in self.config.update_triggers) and not self.refusal(record)

    def refusal(self, record: Record) -> str:
        """Why a record may not trigger this builder whatever its triggers say; '' where it may."""
        if built_by(record) == self.config.consumer_id:
            return f"{record.id} is this consumer's own context"
        if generation(record) >= self.config.max_generation:
            return f"{record.id} is a context of generation {generation(record)}, the last one allowed"
        return ""

    def build(
        self,
        records: Records,
        *,
        trigger: Record | None = None,
        request: str | None = None,
        catalog: Record | None = None,
        now: int | None = None,
    ) -> BuiltContext:
        """The context for a request, or for the record that triggers it; nothing is written.

        A `catalog` stands for the tools that can be run: no others are shown.
        """
        ask = self._ask(records, trigger, request, now)
        picked = gather(records, self.config.sources, ask, now)
        if trigger is not None and role(trigger) != "user":
            picked = sorted([*picked, PickedRecord(trigger, 1.0, trigger.id)], key=lambda pick: pick.place)
        parts, repeats = self._distinct(picked, ask, records.meaning.embed if records.meaning else None)
        if catalog is not None:
            others = [part for part in parts if part.shape.section != "tools"]
            parts = [Part(catalog.id, shape(catalog), 1.0, CATALOG), *others]
        fitted = fit(parts, ask.request, self.config.formatting.max_tokens, self.config.formatting.detail)
        return BuiltContext(
            consumer_id=self.config.consumer_id,
            formatted_context=clean.formatted_context(fitted.value),
            request=ask.request,
            tokens=fitted.tokens,
            trigger=trigger or ask.message,
            sources=tuple(pick.record for pick in picked if pick.record.id in fitted.shown),
            left_out=(*repeats, *fitted.left_out),
            generation=1 + (generation(trigger) if trigger else 0),
        )

    def update(self, records: Records, trigger: Record, *, now: int | None = None) -> Record:
        """Build, and keep the result as the consumer's context record."""
        return self.keep(records, self.build(records, trigger=trigger, now=now), now=now)

    def keep(self, records: Records, built: BuiltContext, *, now: int | None = None) -> Record:
        """Create or update the consumer's context record; the same context makes no new version."""
        output = self.config.output
        for _ in range(ATTEMPTS):
            existing = self.output(records, now=now)
            if existing is None:
                return self._create(records, built, now)
            if existing.context == built.context and not output.ttl_s:
                return existing
            try:
                return records.update(existing.id, existing.version, context=built.context, ttl_s=output.ttl_s, now=now)
            except (ConflictError, NotFound):
                continue  # another process was faster: its version is the one to replace
        raise ConflictError(
            f"the context of {self.config.consumer_id!r} changed {ATTEMPTS} times while it was kept", hint="Try again."
        )

    def _create(self, records: Records, built: BuiltContext, now: int | None) -> Record:
        return records.create(
            self.config.output.schema_name,
            built.context,
            title=f"Context for {self.config.consumer_id}",
            tags=self.config.tags,
            llm_hints=OUTPUT_HINTS,
            ttl_s=self.config.output.ttl_s,
            now=now,
        )

    def output(self, records: Records, *, now: int | None = None) -> Record | None:
        """The consumer's context record, if there is one."""
        consumer = self.config.consumer_id
        selector = Selector(schemas=(self.config.output.schema_name,), all_tags=(f"consumer:{consumer}",))
        contexts = records.select(selector, newest=1, keep=lambda record: built_by(record) == consumer, now=now)
        return contexts[0] if contexts else None

    def _ask(self, records: Records, trigger: Record | None, request: str | None, now: int | None) -> ContextRequest:
        """What is asked: in so many words, by the trigger, or else by the newest message of a user."""
        if trigger is not None and self.refusal(trigger):
            raise CallError(self.refusal(trigger), hint="Contexts built from contexts would never end.")
        if trigger is not None and role(trigger) == "user":
            message: Record | None = trigger
        elif request is None:
            # The newest thing a user said, in the trigger's session where it names one.
            tags = (session(trigger),) if trigger and session(trigger) else ()
            messages = records.select(Selector(schemas=(USER,), all_tags=tags), newest=1, now=now)
            message = messages[0] if messages else None
        else:
            message = self._stored_request(records, request, now)
        words = context_text(message.context) if request is None and message else request or ""
        return ContextRequest(request=words, message=message, trigger=trigger, may_show=self._may_show)

    def _stored_request(self, records: Records, request: str, now: int | None) -> Record | None:
        """The record of a request that was stored before it was asked: the last thing said, in the same words."""
        named = [schema for source in self.config.sources for schema in source.selector.schemas]
        spoken = Selector(schemas=tuple(dict.fromkeys((*SPOKEN, *named))))
        last = records.select(spoken, newest=1, keep=lambda record: bool(role(record)), now=now)
        return last[0] if last and role(last[0]) == "user" and context_text(last[0].context) == request else None

    def _may_show(self, record: Record) -> bool:
        """Not the consumer's own contexts; those of others only where a source names their schema."""
        maker = built_by(record)
        named = any(record.schema_name in source.selector.schemas for source in self.config.sources)
        return not maker or (maker != self.config.consumer_id and named)

    def _distinct(
        self, picked: Sequence[PickedRecord], ask: ContextRequest, embed: Embed | None
    ) -> tuple[list[Part], list[JsonObject]]:
        """One part for each record, without those that say again what a later one says."""
        pin = ask.trigger.id if ask.trigger else ""
        parts = [
            Part(pick.record.id, shape(pick.record, pick.role), pick.weight, pick.group, pick.record.id == pin)
            for pick in picked
        ]
        threshold = self.config.formatting.deduplication_threshold
        if threshold is None:
            return parts, []
        repeated_questions = _repeated_questions(parts, ask.request, threshold, embed)
        rest = [part for part in parts if part.id not in repeated_questions]
        sessions = {pick.record.id: session(pick.record) for pick in picked}
        dropped = repeated_questions | _repeats(exchanges(rest, sessions), threshold, embed)
        reasons = [{"record": id, "reason": f"says the same as {other}"} for id, other in dropped.items()]
        return [part for part in parts if part.id not in dropped], reasons


def _repeated_questions(parts: Sequence[Part], request: str, threshold: float, embed: Embed | None) -> dict[str, str]:
    """Earlier messages of the user that say the same as the request, which itself is never dropped."""
    user = [part for part in parts if part.shape.message and part.shape.message.role == "user"]
    texts = [part.shape.text for part in user]
    if not request or not texts:
        return {}
    repeats = repeated([*texts, request], threshold, embed, pinned=[len(texts)])
    return {user[at].id: "the request" for at, same in repeats.items() if same == len(texts)}


def _repeats(units: Sequence[Exchange], threshold: float, embed: Embed | None) -> dict[str, str]:
    """Exchanges of one kind that say again, in the same place, what another says."""
    dropped: dict[str, str] = {}
    for kind in dict.fromkeys(unit.kind for unit in units):
        same_kind = [unit for unit in units if unit.kind == kind]
        repeats = repeated(
            [unit.text for unit in same_kind],
            threshold,
            embed,
            pinned=[at for at, unit in enumerate(same_kind) if any(part.pinned for part in unit.parts)],
            places=[unit.place for unit in same_kind],
        )
        for at, same in repeats.items():
            dropped |= {
                part.id: stays.id for part, stays in zip(same_kind[at].parts, same_kind[same].parts, strict=False)
            }
    return dropped
