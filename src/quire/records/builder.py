"""The context builder: from a consumer's configuration and the records to the text that its model receives.

`build` reads and decides, `update` keeps the result as a record, `react` does so for every consumer that a
record concerns. The direct path is `build(...).text`; the record's `formatted_context` with the request
appended gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quire.errors import CallError, ConflictError, NotFound, QuireError
from quire.formats import clean
from quire.records.config import SCHEMA, Config, of_record
from quire.records.config import config as read_config
from quire.records.fit import Part, fit
from quire.records.gather import Picked, gather, session
from quire.records.record import Record
from quire.records.rows import number
from quire.records.selector import Selector
from quire.records.shape import SPOKEN, USER, role, said, shape
from quire.records.similar import Embed, repeated
from quire.records.store import Records
from quire.values import Json, JsonObject

# What a model is shown of a built context; the rest explains it.
OUTPUT_HINTS: JsonObject = {"include": ["consumer_id", "formatted_context", "request", "trigger"]}
ATTEMPTS = 5


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """A context: its text without and with the request, what it shows, and what it leaves out and why."""

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


class Builder:
    """Builds one consumer's context: `Builder(config).build(records, trigger=message).text`."""

    def __init__(self, config: Config | JsonObject) -> None:
        self.config = config if isinstance(config, Config) else read_config(config)

    def triggered_by(self, record: Record) -> bool:
        """Whether a record's creation or change calls for a new context."""
        return any(one.matches(record) for one in self.config.update_triggers) and not self.refusal(record)

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
        now: int | None = None,
    ) -> Built:
        """The context for a request, or for the record that triggers it; nothing is written."""
        if trigger is not None and self.refusal(trigger):
            raise CallError(self.refusal(trigger), hint="Contexts built from contexts would never end.")
        asked = self._request(records, trigger, now) if request is None else request
        trigger = trigger or self._just_said(records, asked, now)
        picked = self._picked(records, asked, trigger, now)
        parts, repeats = self._distinct(
            picked, asked, trigger, records.meaning.embed if records.meaning else None
        )
        fitted = fit(parts, asked, self.config.formatting.max_tokens, self.config.formatting.detail)
        shown = dict.fromkeys(fitted.shown)
        return Built(
            consumer_id=self.config.consumer_id,
            formatted_context=clean.formatted_context(fitted.value),
            request=asked,
            tokens=fitted.tokens,
            trigger=trigger,
            sources=tuple(one.record for one in picked if one.record.id in shown),
            left_out=(*repeats, *fitted.left_out),
            generation=1 + (generation(trigger) if trigger else 0),
        )

    def update(self, records: Records, trigger: Record, *, now: int | None = None) -> Record:
        """Build, and keep the result as the consumer's context record."""
        return self.keep(records, self.build(records, trigger=trigger, now=now), now=now)

    def keep(self, records: Records, built: Built, *, now: int | None = None) -> Record:
        """Create or update the consumer's context record; the same context makes no new version."""
        context, output = as_context(built), self.config.output
        for _ in range(ATTEMPTS):
            there = self.output(records, now=now)
            if there is None:
                return records.create(
                    output.schema_name,
                    context,
                    title=f"Context for {self.config.consumer_id}",
                    tags=self.config.tags,
                    llm_hints=OUTPUT_HINTS,
                    ttl_s=output.ttl_s,
                    now=now,
                )
            if there.context == context and not output.ttl_s:
                return there
            try:
                return records.update(there.id, there.version, context=context, ttl_s=output.ttl_s, now=now)
            except (ConflictError, NotFound):
                continue  # another process was faster: its version is the one to replace
        raise ConflictError(
            f"the context of {self.config.consumer_id!r} changed {ATTEMPTS} times while it was kept"
        )

    def output(self, records: Records, *, now: int | None = None) -> Record | None:
        """The consumer's context record, if there is one."""
        wanted = Selector(
            schemas=(self.config.output.schema_name,), all_tags=(f"consumer:{self.config.consumer_id}",)
        )
        found = [one for one in records.select(wanted, now=now) if built_by(one) == self.config.consumer_id]
        return found[-1] if found else None

    def _request(self, records: Records, trigger: Record | None, now: int | None) -> str:
        """What is asked: the trigger's words, else the newest message of a user (of the trigger's session)."""
        if trigger is not None and role(trigger) == "user":
            return said(trigger.context)
        tags = (session(trigger),) if session(trigger) else ()
        newest = records.select(Selector(schemas=(USER,), all_tags=tags), newest=1, now=now)
        return said(newest[0].context) if newest else ""

    def _just_said(self, records: Records, request: str, now: int | None) -> Record | None:
        """The record of a request that was stored before it was asked for: the last thing said, in the same words."""
        last = records.select(Selector(schemas=SPOKEN), newest=1, now=now)
        return last[0] if last and role(last[0]) == "user" and said(last[0].context) == request else None

    def _picked(
        self, records: Records, request: str, trigger: Record | None, now: int | None
    ) -> list[Picked]:
        """What the sources give, without contexts that would feed on themselves and without the request itself."""
        named = {schema for source in self.config.sources for schema in source.selector.schemas}
        picked = gather(records, self.config.sources, request, trigger, now)
        if trigger is not None and role(trigger) != "user":
            picked = [one for one in picked if one.record.id != trigger.id]
            picked = sorted(
                [*picked, Picked(trigger, 1.0, trigger.id)], key=lambda one: number(one.record.id)
            )
        return [one for one in picked if self._may_show(one.record, named)]

    def _may_show(self, record: Record, named: set[str]) -> bool:
        maker = built_by(record)
        return not maker or (maker != self.config.consumer_id and record.schema_name in named)

    def _distinct(
        self, picked: Sequence[Picked], request: str, trigger: Record | None, embed: Embed | None
    ) -> tuple[list[Part], list[JsonObject]]:
        """One part for each record, without those that say again what a later one says."""
        pin = trigger.id if trigger else ""
        parts = [
            Part(one.record.id, shape(one.record, one.role), one.weight, one.group, one.record.id == pin)
            for one in picked
        ]
        threshold = self.config.formatting.deduplication_threshold
        if threshold is None:
            return parts, []
        dropped: dict[str, str] = {}
        for section in ("user", "assistant", "results"):
            dropped |= self._repeats(
                [part for part in parts if kind(part) == section], section, request, threshold, embed
            )
        reasons = [{"record": id, "reason": f"says the same as {other}"} for id, other in dropped.items()]
        return [part for part in parts if part.id not in dropped], reasons

    def _repeats(
        self, parts: Sequence[Part], section: str, request: str, threshold: float, embed: Embed | None
    ) -> dict[str, str]:
        """Which parts of one kind repeat another, or the request itself."""
        texts = [part.shape.text for part in parts]
        names = [part.id for part in parts]
        pinned = [at for at, part in enumerate(parts) if part.pinned]
        if section == "user" and request:
            texts, names, pinned = [*texts, request], [*names, "the request"], [*pinned, len(texts)]
        if len(texts) < 2:
            return {}
        return {names[at]: names[same] for at, same in repeated(texts, threshold, embed, pinned).items()}


def kind(part: Part) -> str:
    """What a part is compared with: lines of the same speaker, results, tools."""
    return part.shape.message.role if part.shape.message else part.shape.section


def as_context(built: Built) -> JsonObject:
    """The context of the consumer's record."""
    trigger = {"id": built.trigger.id, "version": built.trigger.version} if built.trigger else None
    return {
        "consumer_id": built.consumer_id,
        "formatted_context": built.formatted_context,
        "request": built.request,
        "trigger": trigger,
        "tokens": built.tokens,
        "sources": [{"id": one.id, "version": one.version} for one in built.sources],
        "left_out": list(built.left_out),
        "built": {"by": built.consumer_id, "generation": built.generation},
    }


def _built(record: Record) -> JsonObject:
    made: Json = record.context.get("built")
    return made if isinstance(made, dict) and isinstance(made.get("by"), str) else {}


def built_by(record: Record) -> str:
    """The consumer whose builder made a record, '' for any other record."""
    return str(_built(record).get("by", ""))


def generation(record: Record) -> int:
    """How many builders stand between a record and what was said: 0 for what no builder made."""
    number = _built(record).get("generation", 0)
    return number if isinstance(number, int) else 0


class Reaction(msgspec.Struct, frozen=True):
    """The contexts that a record made new, and the configurations that could not be carried out."""

    outputs: tuple[Record, ...] = ()
    problems: tuple[str, ...] = ()


def configured(records: Records, consumer_id: str, *, now: int | None = None) -> Config:
    """The configuration that a consumer has among the records."""
    found = [one for one in _configs(records, now) if one.context.get("consumer_id") == consumer_id]
    if not found:
        raise NotFound(
            f"no {SCHEMA} record has the consumer_id {consumer_id!r}",
            hint="Create one, or pass --config FILE.",
        )
    return of_record(found[-1])


def react(records: Records, *changed: Record, now: int | None = None) -> Reaction:
    """Update the context of every consumer that a record triggers, and of those that these contexts trigger.

    Of several records at once, the last one that triggers a consumer counts.
    """
    outputs: list[Record] = []
    problems: list[str] = []
    while changed:
        made: list[Record] = []
        for one in _configs(records, now):
            try:
                made += _renewed(records, Builder(of_record(one)), changed, now)
            except QuireError as error:
                problems.append(f"{one.id}: {error}")
        outputs += made
        changed = tuple(made)
    return Reaction(tuple(outputs), tuple(dict.fromkeys(problems)))


def _renewed(records: Records, builder: Builder, changed: Sequence[Record], now: int | None) -> list[Record]:
    """The consumer's context, where one of the records makes it new."""
    trigger = next((one for one in reversed(changed) if builder.triggered_by(one)), None)
    if trigger is None:
        return []
    before = builder.output(records, now=now)
    made = builder.update(records, trigger, now=now)
    return [made] if made != before else []


def _configs(records: Records, now: int | None) -> list[Record]:
    """The newest configuration of each consumer."""
    found = records.select(Selector(schemas=(SCHEMA,)), now=now)
    return list({one.context.get("consumer_id", one.id): one for one in found}.values())
