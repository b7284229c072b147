"""The context builder: makes the text that a consumer's model receives, from its configuration and the records.

It gathers the records that the sources select (messages with the question or answer beside them), drops repeats, and
cuts to the budget. `build` only reads; `update` stores the result as the consumer's record. `build(...).text` and the
record's `formatted_context` with the request appended are the same bytes.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import Final, TypeAlias

import msgspec

from quire.errors import BudgetError, CallError, ConflictError, NotFound
from quire.formats import clean
from quire.formats.clean import Clean, CleanTool, Detail
from quire.records.record import (
    SPOKEN,
    USER,
    Config,
    Record,
    RecordSource,
    Selector,
    Shape,
    context_text,
    number,
    role,
    session,
    shape,
)
from quire.records.record import config as read_config
from quire.records.store import Records
from quire.tokens import count
from quire.values import Json, JsonObject

RECENT: Final = 10
MOST: Final = 1000
# The most messages that are added between two found messages of a conversation.
BRIDGE: Final = 2


class ContextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a context is built for: the request's text, the message that holds it, and the record that triggered it."""

    request: str
    message: Record | None = None
    trigger: Record | None = None
    may_show: Callable[[Record], bool] = bool

    def allows(self, record: Record) -> bool:
        """Whether a record may be shown: not the message or trigger itself, and no message that came after them."""
        if record.id in {source.id for source in (self.message, self.trigger) if source}:
            return False
        last = self.trigger or self.message
        is_later = last is not None and bool(role(record)) and number(record.id) > number(last.id)
        return not is_later and self.may_show(record)

    @property
    def session(self) -> str:
        last = self.trigger or self.message
        return session(last) if last else ""


class PickedRecord(msgspec.Struct, frozen=True):
    """A record with its weight from 0 to 1; the records of a `group` are shown or left out together."""

    record: Record
    weight: float
    group: str
    role: str = ""

    @property
    def place(self) -> int:
        return number(self.record.id)


def gather(
    records: Records, sources: Iterable[RecordSource], ask: ContextRequest, now: int | None
) -> list[PickedRecord]:
    """The records of all sources, in the order of creation; a record of several sources has its greatest weight."""
    picked: dict[str, PickedRecord] = {}
    for source in sources:
        for pick in _picked_from(records, source, ask, now):
            if pick.record.id not in picked or picked[pick.record.id].weight < pick.weight:
                picked[pick.record.id] = pick
    return sorted(picked.values(), key=lambda pick: pick.place)


def _picked_from(records: Records, source: RecordSource, ask: ContextRequest, now: int | None) -> list[PickedRecord]:
    selector = source.selector
    if source.current_session and ask.session:
        selector = msgspec.structs.replace(selector, all_tags=(*selector.all_tags, ask.session))
    if source.method == "vector":
        return _nearest(records, source, selector, ask, now)
    most = 1 if source.method == "latest" else source.limit or (RECENT if source.method == "recent" else MOST)
    chosen = records.select(selector, newest=most, keep=ask.allows, now=now)
    return [PickedRecord(record, (at + 1) / len(chosen), record.id, source.role) for at, record in enumerate(chosen)]


def _nearest(
    records: Records, source: RecordSource, selector: Selector, ask: ContextRequest, now: int | None
) -> list[PickedRecord]:
    """The records nearest to the request: at most `nn`, none below `floor`, messages with those beside them."""
    hits = records.near(ask.request, selector, keep=ask.allows, now=now)
    near = [hit for hit in hits if hit.share > 0 and hit.share >= source.floor][: source.nn]
    picked = [PickedRecord(hit.record, hit.share, hit.record.id, source.role) for hit in near]
    if not source.exchanges:
        return picked

    def beside(record: Record, step: int) -> Record | None:
        """The next (1) or previous (-1) message of the same conversation."""
        spoken = Selector(schemas=tuple(dict.fromkeys((*SPOKEN, record.schema_name))))
        neighbour = records.beside(record, step, spoken, session(record), now=now)
        return neighbour if neighbour and role(neighbour) and ask.allows(neighbour) else None

    return _bridge(_pair(picked, beside), beside)


def _pair(picked: list[PickedRecord], beside: Callable[[Record, int], Record | None]) -> list[PickedRecord]:
    """Add to each question the answer directly after it, and to each answer the question directly before it."""
    out = {pick.record.id: pick for pick in picked}
    for pick in picked:
        speaker = role(pick.record)
        partner = beside(pick.record, 1 if speaker == "user" else -1) if speaker else None
        if partner and role(partner) != speaker:
            out.setdefault(partner.id, PickedRecord(partner, pick.weight, pick.group))
    return sorted(out.values(), key=lambda pick: pick.place)


def _bridge(picked: list[PickedRecord], beside: Callable[[Record, int], Record | None]) -> list[PickedRecord]:
    """Add the few messages between two picked ones: 'Where exactly is that?' means nothing alone."""
    out = list(picked)
    for first, second in pairwise([pick for pick in picked if role(pick.record)]):
        weight = min(first.weight, second.weight)
        out += [PickedRecord(record, weight, first.group) for record in _between(first.record, second.record, beside)]
    return out


def _between(first: Record, second: Record, beside: Callable[[Record, int], Record | None]) -> list[Record]:
    """The messages between two of the same conversation, where there are at most `BRIDGE`; else none."""
    between: list[Record] = []
    after = beside(first, 1) if session(first) == session(second) else None
    while after and after.id != second.id and len(between) < BRIDGE:
        between.append(after)
        after = beside(after, 1)
    return between if after and after.id == second.id else []


# Repeated texts, by the cosine of their embeddings where there is an embedder, else by shared words. Texts that
# differ in a number, a code or a 'not' never repeat each other.

_WORD = re.compile(r"\w+(?:['’]\w+)?")
_FACT = re.compile(r"\S*\d\S*")
_NOT = re.compile(r"\b(?:not?|never|none|cannot|without|nothing)\b|n['’]t\b", re.IGNORECASE)

Embed: TypeAlias = Callable[[Sequence[str]], Iterable[Iterable[float]]]
Alike: TypeAlias = Callable[[int, int], float]


def find_repeats(
    texts: Sequence[str],
    threshold: float,
    embed: Embed | None = None,
    pinned: Iterable[int] = (),
    places: Sequence[str] | None = None,
) -> dict[int, int]:
    """The texts that repeat another, each with the one that stays (a pinned one, else the later one), by index.

    ["a b", "c", "a b"] -> {0: 2}. With `places` (what each text answers), repeats must have the same place too.
    """
    columns = [texts] if places is None else [texts, places]
    alike = [by_meaning(column, embed) if embed else by_words(column) for column in columns]
    facts = [tuple(map(_facts, row)) for row in zip(*columns, strict=True)]
    staying, dropped = list(dict.fromkeys(pinned)), dict[int, int]()

    def are_alike(first: int, second: int) -> bool:
        return facts[first] == facts[second] and all(near(first, second) >= threshold for near in alike)

    for at in reversed([at for at in range(len(texts)) if at not in staying]):
        same = next((other for other in staying if are_alike(other, at)), None)
        if same is None:
            staying.append(at)
        else:
            dropped[at] = same
    return dropped


def by_words(texts: Sequence[str]) -> Alike:
    """The cosine of two sets of single words and word pairs."""
    words = [_WORD.findall(text.casefold()) for text in texts]
    sets = [frozenset([*((word,) for word in row), *pairwise(row)]) for row in words]

    def alike(first: int, second: int) -> float:
        a, b = sets[first], sets[second]
        return len(a & b) / sqrt(len(a) * len(b)) if a and b else float(texts[first] == texts[second])

    return alike


def by_meaning(texts: Sequence[str], embed: Embed) -> Alike:
    """The cosine of two embeddings, which have length 1."""
    vectors = [tuple(map(float, vector)) for vector in embed(texts)]

    def alike(first: int, second: int) -> float:
        return sum(a * b for a, b in zip(vectors[first], vectors[second], strict=True))

    return alike


def _facts(text: str) -> tuple[frozenset[str], bool]:
    """What repeats must have in common: the words with a digit, and whether there is a negation."""
    return frozenset(fact.strip(".,;:!?()") for fact in _FACT.findall(text.casefold())), bool(_NOT.search(text))


# Cutting the picked records to the budget, in tokens of the rendered text; everything left out has a reason.


class Part(msgspec.Struct, frozen=True):
    """One record as it is shown, with its weight; the parts of a group stay or go together, a pinned one stays."""

    id: str
    shape: Shape
    weight: float
    group: str
    pinned: bool = False


class Exchange(msgspec.Struct, frozen=True):
    """Parts that repeat others as a whole: a question with its answers, a single message, or a tool's result."""

    parts: tuple[Part, ...]
    # The assistant's question before it, which gives a "Yes." its meaning.
    before: str = ""

    @property
    def kind(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_speaker(part) for part in self.parts))

    @property
    def text(self) -> str:
        """The texts of the last speaker: the answers, or the only message."""
        last = self.kind[-1]
        return "\n".join(part.shape.text for part in self.parts if _speaker(part) == last)

    @property
    def place(self) -> str:
        """What `text` answers: the question, and the assistant's question before that."""
        questions = [part.shape.text for part in self.parts if _speaker(part) != self.kind[-1]]
        return "\n".join([self.before, *questions] if self.before else questions)


def exchanges(parts: Sequence[Part], sessions: Mapping[str, str]) -> list[Exchange]:
    """Parts as exchanges: in each session, an answer joins the question before it."""
    out: list[Exchange] = []
    newest: dict[str, int] = {}
    for part in parts:
        where = sessions.get(part.id, "")
        last = out[newest[where]] if where in newest else None
        if _speaker(part) == "assistant" and last is not None and last.kind[0] == "user":
            out[newest[where]] = msgspec.structs.replace(last, parts=(*last.parts, part))
            continue
        question = last.parts[-1].shape.text if last is not None and last.kind[-1] == "assistant" else ""
        out.append(Exchange((part,), question if question.rstrip().endswith("?") else ""))
        if part.shape.message is not None:
            newest[where] = len(out) - 1
    return [exchange for exchange in out if exchange.kind != ("tools",)]


def _speaker(part: Part) -> str:
    return part.shape.message.role if part.shape.message else part.shape.section


class FittedParts(msgspec.Struct, frozen=True):
    value: Clean
    shown_ids: tuple[str, ...]
    tokens: int
    left_out: tuple[JsonObject, ...] = ()


def tokens_of(value: Clean) -> int:
    """The o200k tokens of everything rendered, the request included."""
    return count(clean.render(value)).tokens


def fit(parts: Sequence[Part], request: str, budget: int | None, detail: Detail = "full") -> FittedParts:
    """All parts if they fit; else tools in at most half the budget, and the other groups by their weight."""
    everything = assemble_parts(parts, request, detail)
    if budget is None or tokens_of(everything) <= budget:
        return FittedParts(everything, tuple(part.id for part in parts), tokens_of(everything))
    pinned = [part for part in parts if part.pinned]
    least = tokens_of(assemble_parts(pinned, request, "full"))
    if least > budget:
        subject = "the request and its trigger need" if pinned else "the request alone needs"
        raise BudgetError(f"{subject} {least:,} tokens, but max_tokens is {budget:,}")
    tools, detail, dropped = _fit_tools(parts, max(budget - least, 0) // 2, detail)
    fitting = _fit_groups([part for part in parts if part.shape.section != "tools"], tools, request, budget, detail)
    value = assemble_parts(fitting, request, detail, tools)
    fitting_ids = tuple(part.id for part in parts if part in fitting or (part.shape.section == "tools" and tools))
    reason = f"over the budget of {budget:,} tokens"
    left_out = [{"record": part.id, "reason": reason} for part in parts if part.id not in fitting_ids]
    return FittedParts(value, fitting_ids, tokens_of(value), (*dropped, *left_out))


def assemble_parts(
    parts: Sequence[Part], request: str, detail: Detail, tools: Sequence[CleanTool] | None = None
) -> Clean:
    """The clean value of some parts, in their order; of tools with the same name the last one counts."""
    chosen = list_tools(parts) if tools is None else tuple(tools)
    if detail == "short":
        chosen = tuple(CleanTool(tool.name, tool.description) for tool in chosen)
    return Clean(
        tools=chosen,
        conversation=tuple(part.shape.message for part in parts if part.shape.message and part.shape.message.content),
        tool_results=tuple(part.shape.result for part in parts if part.shape.result),
        request=request,
        detail=detail if chosen else "full",
    )


def list_tools(parts: Sequence[Part]) -> tuple[CleanTool, ...]:
    return tuple({tool.name: tool for part in parts for tool in part.shape.tools}.values())


def _fit_tools(
    parts: Sequence[Part], share: int, detail: Detail
) -> tuple[tuple[CleanTool, ...], Detail, list[JsonObject]]:
    """The tools within `share` tokens: in full, else short, else as many short ones as fit."""
    tools = list_tools(parts)

    def fits(number: int, detail: Detail) -> bool:
        return tokens_of(assemble_parts((), "", detail, tools[:number])) <= share

    if fits(len(tools), detail):
        return tools, detail, []
    most_tools = _most(len(tools), lambda number: fits(number, "short"))
    reason = "more tools than half the budget holds"
    return tools[:most_tools], "short", [{"tool": tool.name, "reason": reason} for tool in tools[most_tools:]]


def _fit_groups(
    parts: Sequence[Part], tools: tuple[CleanTool, ...], request: str, budget: int, detail: Detail
) -> list[Part]:
    """The pinned parts and as many groups as fit, by weight; in their original order."""
    weights: dict[str, float] = {}
    for part in parts:
        weights[part.group] = max(weights.get(part.group, 0.0), part.weight)
    places = {part.group: at for at, part in enumerate(parts)}
    ranked = sorted(weights, key=lambda group: (-weights[group], -places[group]))

    def chosen_parts(number: int) -> list[Part]:
        chosen = set(ranked[:number])
        return [part for part in parts if part.pinned or part.group in chosen]

    def fits(number: int) -> bool:
        return tokens_of(assemble_parts(chosen_parts(number), request, detail, tools)) <= budget

    return chosen_parts(_most(len(ranked), fits))


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The greatest number up to `limit` that fits, or 0."""
    return bisect_left(range(1, limit + 1), True, key=lambda number: not fits(number))


# The builder and its result.

# The fields of a stored context that a model sees; the others explain it.
OUTPUT_HINTS: Final[JsonObject] = {"include": ["consumer_id", "formatted_context", "request", "trigger"]}


class BuiltContext(msgspec.Struct, frozen=True, kw_only=True):
    """A context: its text without the request, its sources, and what was left out and why."""

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
        """The `context` field of the consumer's record."""
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
    """The consumer whose builder made a record; '' for a record that no builder made."""
    return str(_build(record).get("by", ""))


def generation(record: Record) -> int:
    """How many builds a record went through: 0 where no builder made it, 2 for a context built from a context."""
    number = _build(record).get("generation", 0)
    return max(0, number) if isinstance(number, int) else 0


def _build(record: Record) -> JsonObject:
    built: Json = record.context.get("built")
    return built if isinstance(built, dict) and isinstance(built.get("by"), str) else {}


ATTEMPTS: Final = 5
# The group of the `catalog` that a caller passes.
CATALOG: Final = "catalog"


class Builder:
    """Builds one consumer's context: `Builder(config).build(records, request="…").text`."""

    def __init__(self, config: Config | JsonObject) -> None:
        self.config = config if isinstance(config, Config) else read_config(config)

    def triggered_by(self, record: Record) -> bool:
        """Whether the creation or change of a record triggers a new context."""
        return any(trigger.matches(record) for trigger in self.config.update_triggers) and not self.refusal(record)

    def refusal(self, record: Record) -> str:
        """Why a record may never trigger this builder; '' where it may."""
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
        """Build the context for a request, or for the record that triggers it; nothing is written.

        With a `catalog`, only its tools are shown.
        """
        ask = self._ask(records, trigger, request, now)
        picked = gather(records, self.config.sources, ask, now)
        if trigger is not None and role(trigger) != "user":
            picked = sorted([*picked, PickedRecord(trigger, 1.0, trigger.id)], key=lambda pick: pick.place)
        parts, repeats = self._distinct(picked, ask, records.meaning.encode if records.meaning else None)
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
            sources=tuple(pick.record for pick in picked if pick.record.id in fitted.shown_ids),
            left_out=(*repeats, *fitted.left_out),
            generation=1 + (generation(trigger) if trigger else 0),
        )

    def update(self, records: Records, trigger: Record, *, now: int | None = None) -> Record:
        """Build, and store the result as the consumer's context record."""
        return self.keep(records, self.build(records, trigger=trigger, now=now), now=now)

    def keep(self, records: Records, built: BuiltContext, *, now: int | None = None) -> Record:
        """Create or update the consumer's context record; the same context makes no new version."""
        output = self.config.output
        for _ in range(ATTEMPTS):
            existing = self.output(records, now=now)
            if existing is None:
                return records.create(
                    output.schema_name,
                    built.context,
                    title=f"Context for {self.config.consumer_id}",
                    tags=self.config.tags,
                    llm_hints=OUTPUT_HINTS,
                    ttl_s=output.ttl_s,
                    now=now,
                )
            if existing.context == built.context and not output.ttl_s:
                return existing
            try:
                return records.update(existing.id, existing.version, context=built.context, ttl_s=output.ttl_s, now=now)
            except (ConflictError, NotFound):
                continue  # another process changed it meanwhile: replace that version
        raise ConflictError(
            f"the context of {self.config.consumer_id!r} changed {ATTEMPTS} times while it was kept", hint="Try again."
        )

    def output(self, records: Records, *, now: int | None = None) -> Record | None:
        """The consumer's context record, if there is one."""
        consumer = self.config.consumer_id
        selector = Selector(schemas=(self.config.output.schema_name,), all_tags=(f"consumer:{consumer}",))
        contexts = records.select(selector, newest=1, keep=lambda record: built_by(record) == consumer, now=now)
        return contexts[0] if contexts else None

    def _ask(self, records: Records, trigger: Record | None, request: str | None, now: int | None) -> ContextRequest:
        """What the context is for: the given request, the trigger's text, or else the newest message of a user."""
        if trigger is not None and self.refusal(trigger):
            raise CallError(self.refusal(trigger), hint="Contexts built from contexts would never end.")
        if trigger is not None and role(trigger) == "user":
            message: Record | None = trigger
        elif request is None:
            # In the trigger's session, where it has one.
            tags = (session(trigger),) if trigger and session(trigger) else ()
            messages = records.select(Selector(schemas=(USER,), all_tags=tags), newest=1, now=now)
            message = messages[0] if messages else None
        else:
            message = self._stored_request(records, request, now)
        words = context_text(message.context) if request is None and message else request or ""
        return ContextRequest(request=words, message=message, trigger=trigger, may_show=self._may_show)

    def _stored_request(self, records: Records, request: str, now: int | None) -> Record | None:
        """The newest message, if it is the user's and has the text of the request: then that is the request."""
        named = [schema for source in self.config.sources for schema in source.selector.schemas]
        spoken = Selector(schemas=tuple(dict.fromkeys((*SPOKEN, *named))))
        last = records.select(spoken, newest=1, keep=lambda record: bool(role(record)), now=now)
        return last[0] if last and role(last[0]) == "user" and context_text(last[0].context) == request else None

    def _may_show(self, record: Record) -> bool:
        """Whether a record may be shown: of built contexts only other consumers', and only if a source names their schema."""
        maker = built_by(record)
        named = any(record.schema_name in source.selector.schemas for source in self.config.sources)
        return not maker or (maker != self.config.consumer_id and named)

    def _distinct(
        self, picked: Sequence[PickedRecord], ask: ContextRequest, embed: Embed | None
    ) -> tuple[list[Part], list[JsonObject]]:
        """A part for each record without repeats, and what was left out as a repeat."""
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
    """The user's earlier messages that repeat the request (id -> what it repeats); the request itself stays."""
    user = [part for part in parts if part.shape.message and part.shape.message.role == "user"]
    texts = [part.shape.text for part in user]
    if not request or not texts:
        return {}
    repeats = find_repeats([*texts, request], threshold, embed, pinned=[len(texts)])
    return {user[at].id: "the request" for at, same in repeats.items() if same == len(texts)}


def _repeats(units: Sequence[Exchange], threshold: float, embed: Embed | None) -> dict[str, str]:
    """The records of exchanges that repeat another one of their kind (id -> id of the record that stays)."""
    dropped: dict[str, str] = {}
    for kind in dict.fromkeys(unit.kind for unit in units):
        same_kind = [unit for unit in units if unit.kind == kind]
        repeats = find_repeats(
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
