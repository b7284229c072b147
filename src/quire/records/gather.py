"""The records that a configuration's sources name, each once, with how much they matter.

Messages come as exchanges: a question with its answer, and what was said between two that were found.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import Final, TypeAlias

import msgspec

from quire.errors import BudgetError
from quire.formats import clean
from quire.formats.clean import Clean, CleanTool, Detail
from quire.records.config import RecordSource, Selector
from quire.records.record import SPOKEN, Record, Shape, number, role, session
from quire.records.store import Records
from quire.tokens import count
from quire.values import JsonObject

RECENT: Final = 10
MOST: Final = 1000
# Between two messages that were found, at most this many others are shown with them.
BRIDGE: Final = 2


class ContextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a context is for: the request, the message that makes it, and the record that set things going."""

    request: str
    message: Record | None = None
    trigger: Record | None = None
    may_show: Callable[[Record], bool] = bool

    def allows(self, record: Record) -> bool:
        """Whether a record may stand beside the request: not the request itself, nothing said after the trigger."""
        if record.id in {source.id for source in (self.message, self.trigger) if source}:
            return False
        last = self.trigger or self.message
        said_later = last is not None and bool(role(record)) and number(record.id) > number(last.id)
        return not said_later and self.may_show(record)

    @property
    def session(self) -> str:
        last = self.trigger or self.message
        return session(last) if last else ""


class PickedRecord(msgspec.Struct, frozen=True):
    """A record, its weight from 0 to 1, and the group that it is shown or left out with."""

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
    """What all sources give, in the order of creation; a record that several give keeps its greatest weight."""
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
    """The records nearest to the request: at most nn, none below the floor, messages with their exchange."""
    hits = records.near(ask.request, selector, keep=ask.allows, now=now)
    near = [hit for hit in hits if hit.share > 0 and hit.share >= source.floor][: source.nn]
    picked = [PickedRecord(hit.record, hit.share, hit.record.id, source.role) for hit in near]
    if not source.exchanges:
        return picked

    def beside(record: Record, step: int) -> Record | None:
        """The message next to one in its conversation."""
        spoken = Selector(schemas=tuple(dict.fromkeys((*SPOKEN, record.schema_name))))
        neighbour = records.beside(record, step, spoken, session(record), now=now)
        return neighbour if neighbour and role(neighbour) and ask.allows(neighbour) else None

    return _bridged(_paired(picked, beside), beside)


def _paired(picked: list[PickedRecord], beside: Callable[[Record, int], Record | None]) -> list[PickedRecord]:
    """Each question with the answer directly behind it, each answer with the question directly before it."""
    out = {pick.record.id: pick for pick in picked}
    for pick in picked:
        speaker = role(pick.record)
        partner = beside(pick.record, 1 if speaker == "user" else -1) if speaker else None
        if partner and role(partner) != speaker:
            out.setdefault(partner.id, PickedRecord(partner, pick.weight, pick.group))
    return sorted(out.values(), key=lambda pick: pick.place)


def _bridged(picked: list[PickedRecord], beside: Callable[[Record, int], Record | None]) -> list[PickedRecord]:
    """With what was said between two messages that stand close: 'Where exactly is that?' says nothing alone."""
    out = list(picked)
    for first, second in pairwise([pick for pick in picked if role(pick.record)]):
        weight = min(first.weight, second.weight)
        out += [PickedRecord(record, weight, first.group) for record in _between(first.record, second.record, beside)]
    return out


def _between(first: Record, second: Record, beside: Callable[[Record, int], Record | None]) -> list[Record]:
    """The messages between two of one conversation, if they are few; else none."""
    between: list[Record] = []
    after = beside(first, 1) if session(first) == session(second) else None
    while after and after.id != second.id and len(between) < BRIDGE:
        between.append(after)
        after = beside(after, 1)
    return between if after and after.id == second.id else []


# Which texts say the same: by the cosine of their embeddings where there is an embedder, else by shared words.
#
# Texts that differ in a number, a code or a 'not' are never the same, however alike they look.

_WORD = re.compile(r"\w+(?:['’]\w+)?")
_FACT = re.compile(r"\S*\d\S*")
_NOT = re.compile(r"\b(?:not?|never|none|cannot|without|nothing)\b|n['’]t\b", re.IGNORECASE)

Embed: TypeAlias = Callable[[Sequence[str]], Iterable[Iterable[float]]]
Alike: TypeAlias = Callable[[int, int], float]


def repeated(
    texts: Sequence[str],
    threshold: float,
    embed: Embed | None = None,
    pinned: Iterable[int] = (),
    places: Sequence[str] | None = None,
) -> dict[int, int]:
    """The texts that repeat another, each with the one that stays: the pinned, else the later.

    ["a b", "c", "a b"] -> {0: 2}. `places` says what each text answers: equal words in different places differ.
    """
    columns = [texts] if places is None else [texts, places]
    alike = [by_meaning(column, embed) if embed else by_words(column) for column in columns]
    facts = [tuple(map(_facts, row)) for row in zip(*columns, strict=True)]
    staying, dropped = list(dict.fromkeys(pinned)), dict[int, int]()

    def say_the_same(first: int, second: int) -> bool:
        return facts[first] == facts[second] and all(near(first, second) >= threshold for near in alike)

    for at in reversed([at for at in range(len(texts)) if at not in staying]):
        same = next((earlier for earlier in staying if say_the_same(earlier, at)), None)
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
    """What must agree: every word that holds a digit, and whether something is denied."""
    return frozenset(fact.strip(".,;:!?()") for fact in _FACT.findall(text.casefold())), bool(_NOT.search(text))


# Cut what was picked to a number of tokens, counted over the rendered text; everything left out has its reason.


class Part(msgspec.Struct, frozen=True):
    """One record's shape, how much it matters, and the group it stays or goes with; a pinned one never goes."""

    id: str
    shape: Shape
    weight: float
    group: str
    pinned: bool = False


class Exchange(msgspec.Struct, frozen=True):
    """What is repeated or not as a whole: a question with its answers, a lone line, or a tool's result."""

    parts: tuple[Part, ...]
    # The question that the assistant had put before, which gives a "Yes." its meaning.
    before: str = ""

    @property
    def kind(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(_speaker(part) for part in self.parts))

    @property
    def text(self) -> str:
        """What is said last: the answers, or the only line."""
        last = self.kind[-1]
        return "\n".join(part.shape.text for part in self.parts if _speaker(part) == last)

    @property
    def place(self) -> str:
        """What it is said to: the question, and what stood before it."""
        questions = [part.shape.text for part in self.parts if _speaker(part) != self.kind[-1]]
        return "\n".join([self.before, *questions] if self.before else questions)


def exchanges(parts: Sequence[Part], sessions: Mapping[str, str]) -> list[Exchange]:
    """Parts as they belong together: in each session an answer joins the question before it."""
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


class Fitted(msgspec.Struct, frozen=True):
    value: Clean
    shown: tuple[str, ...]
    tokens: int
    left_out: tuple[JsonObject, ...] = ()


def tokens_of(value: Clean) -> int:
    """The o200k tokens of everything rendered, the request included."""
    return count(clean.render(value)).tokens


def fit(parts: Sequence[Part], request: str, budget: int | None, detail: Detail = "full") -> Fitted:
    """All parts if they fit; else tools in at most half the budget, and of the rest what matters most."""
    everything = assembled(parts, request, detail)
    if budget is None or tokens_of(everything) <= budget:
        return Fitted(everything, tuple(part.id for part in parts), tokens_of(everything))
    pinned = [part for part in parts if part.pinned]
    least = tokens_of(assembled(pinned, request, "full"))
    if least > budget:
        subject = "the request and its trigger need" if pinned else "the request alone needs"
        raise BudgetError(f"{subject} {least:,} tokens, but max_tokens is {budget:,}")
    tools, detail, dropped = _fit_tools(parts, max(budget - least, 0) // 2, detail)
    fitting = _fit_groups([part for part in parts if part.shape.section != "tools"], tools, request, budget, detail)
    value = assembled(fitting, request, detail, tools)
    fitting_ids = tuple(part.id for part in parts if part in fitting or (part.shape.section == "tools" and tools))
    reason = f"over the budget of {budget:,} tokens"
    left_out = [{"record": part.id, "reason": reason} for part in parts if part.id not in fitting_ids]
    return Fitted(value, fitting_ids, tokens_of(value), (*dropped, *left_out))


def assembled(parts: Sequence[Part], request: str, detail: Detail, tools: Sequence[CleanTool] | None = None) -> Clean:
    """The clean value of some parts, in their order; a tool's name counts once, its last word wins."""
    chosen = listed(parts) if tools is None else tuple(tools)
    if detail == "short":
        chosen = tuple(CleanTool(tool.name, tool.description) for tool in chosen)
    return Clean(
        tools=chosen,
        conversation=tuple(part.shape.message for part in parts if part.shape.message and part.shape.message.content),
        tool_results=tuple(part.shape.result for part in parts if part.shape.result),
        request=request,
        detail=detail if chosen else "full",
    )


def listed(parts: Sequence[Part]) -> tuple[CleanTool, ...]:
    return tuple({tool.name: tool for part in parts for tool in part.shape.tools}.values())


def _fit_tools(
    parts: Sequence[Part], share: int, detail: Detail
) -> tuple[tuple[CleanTool, ...], Detail, list[JsonObject]]:
    """The tools within a share of the budget: in full, else short, else as many of them as fit."""
    tools = listed(parts)

    def fits(number: int, detail: Detail) -> bool:
        return tokens_of(assembled((), "", detail, tools[:number])) <= share

    if fits(len(tools), detail):
        return tools, detail, []
    most_tools = _most(len(tools), lambda number: fits(number, "short"))
    reason = "more tools than half the budget holds"
    return tools[:most_tools], "short", [{"tool": tool.name, "reason": reason} for tool in tools[most_tools:]]


def _fit_groups(
    parts: Sequence[Part], tools: tuple[CleanTool, ...], request: str, budget: int, detail: Detail
) -> list[Part]:
    """The groups that matter most, as many as fit, in the order they had; pinned parts first of all."""
    weights: dict[str, float] = {}
    for part in parts:
        weights[part.group] = max(weights.get(part.group, 0.0), part.weight)
    places = {part.group: at for at, part in enumerate(parts)}
    ranked = sorted(weights, key=lambda group: (-weights[group], -places[group]))

    def chosen_parts(number: int) -> list[Part]:
        chosen = set(ranked[:number])
        return [part for part in parts if part.pinned or part.group in chosen]

    def fits(number: int) -> bool:
        return tokens_of(assembled(chosen_parts(number), request, detail, tools)) <= budget

    return chosen_parts(_most(len(ranked), fits))


def _most(limit: int, fits: Callable[[int], bool]) -> int:
    """The greatest number up to `limit` that fits; 0 is taken to fit."""
    return bisect_left(range(1, limit + 1), True, key=lambda number: not fits(number))
