"""The records that a configuration's sources name, each once, with how much they matter.

Messages come as exchanges: a question with its answer, and what was said between two that were found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Final

import msgspec

from quire.records.config import Source
from quire.records.record import Record, session
from quire.records.rows import number
from quire.records.selector import Selector
from quire.records.shape import SPOKEN, role
from quire.records.store import Records

RECENT: Final = 10
MOST: Final = 1000
# Between two messages that were found, at most this many others are shown with them.
BRIDGE: Final = 2


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a context is for: the request, the message that makes it, and the record that set things going."""

    request: str
    message: Record | None = None
    trigger: Record | None = None
    may_show: Callable[[Record], bool] = bool

    def allows(self, record: Record) -> bool:
        """Whether a record may stand beside the request: not the request itself, nothing said after the trigger."""
        if record.id in {one.id for one in (self.message, self.trigger) if one}:
            return False
        last = self.trigger or self.message
        said_later = last is not None and bool(role(record)) and number(record.id) > number(last.id)
        return not said_later and self.may_show(record)

    @property
    def session(self) -> str:
        last = self.trigger or self.message
        return session(last) if last else ""


class Picked(msgspec.Struct, frozen=True):
    """A record, its weight from 0 to 1, and the group that it is shown or left out with."""

    record: Record
    weight: float
    group: str
    role: str = ""

    @property
    def place(self) -> int:
        return number(self.record.id)


def gather(records: Records, sources: Iterable[Source], ask: Ask, now: int | None) -> list[Picked]:
    """What all sources give, in the order of creation; a record that several give keeps its greatest weight."""
    picked: dict[str, Picked] = {}
    for source in sources:
        for one in _from(records, source, ask, now):
            if one.record.id not in picked or picked[one.record.id].weight < one.weight:
                picked[one.record.id] = one
    return sorted(picked.values(), key=lambda one: one.place)


def _from(records: Records, source: Source, ask: Ask, now: int | None) -> list[Picked]:
    selector = source.selector
    if source.current_session and ask.session:
        selector = msgspec.structs.replace(selector, all_tags=(*selector.all_tags, ask.session))
    if source.method == "vector":
        return _nearest(records, source, selector, ask, now)
    most = 1 if source.method == "latest" else source.limit or (RECENT if source.method == "recent" else MOST)
    found = records.select(selector, newest=most, keep=ask.allows, now=now)
    return [Picked(one, (at + 1) / len(found), one.id, source.role) for at, one in enumerate(found)]


def _nearest(records: Records, source: Source, selector: Selector, ask: Ask, now: int | None) -> list[Picked]:
    """The records nearest to the request: at most nn, none below the floor, messages with their exchange."""
    hits = records.near(ask.request, selector, keep=ask.allows, now=now)
    near = [hit for hit in hits if hit.relevance > 0 and hit.relevance >= source.floor][: source.nn]
    picked = [Picked(hit.record, hit.relevance, hit.record.id, source.role) for hit in near]
    if not source.exchanges:
        return picked

    def beside(record: Record, step: int) -> Record | None:
        """The message next to one in its conversation."""
        spoken = Selector(schemas=tuple(dict.fromkeys((*SPOKEN, record.schema_name))))
        found = records.beside(record, step, spoken, session(record), now=now)
        return found if found and role(found) and ask.allows(found) else None

    return _bridged(_paired(picked, beside), beside)


def _paired(picked: list[Picked], beside: Callable[[Record, int], Record | None]) -> list[Picked]:
    """Each question with the answer directly behind it, each answer with the question directly before it."""
    out = {one.record.id: one for one in picked}
    for one in picked:
        speaker = role(one.record)
        partner = beside(one.record, 1 if speaker == "user" else -1) if speaker else None
        if partner and role(partner) != speaker:
            out.setdefault(partner.id, Picked(partner, one.weight, one.group))
    return sorted(out.values(), key=lambda one: one.place)


def _bridged(picked: list[Picked], beside: Callable[[Record, int], Record | None]) -> list[Picked]:
    """With what was said between two messages that stand close: 'Where exactly is that?' says nothing alone."""
    out = list(picked)
    for first, second in pairwise([one for one in picked if role(one.record)]):
        weight = min(first.weight, second.weight)
        out += [Picked(one, weight, first.group) for one in _between(first.record, second.record, beside)]
    return out


def _between(first: Record, second: Record, beside: Callable[[Record, int], Record | None]) -> list[Record]:
    """The messages between two of one conversation, if they are few; else none."""
    between: list[Record] = []
    after = beside(first, 1) if session(first) == session(second) else None
    while after and after.id != second.id and len(between) < BRIDGE:
        between.append(after)
        after = beside(after, 1)
    return between if after and after.id == second.id else []
