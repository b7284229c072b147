"""The records that a configuration's sources name, each once, with how much they matter and why they are there."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import msgspec

from quire.records.config import Source
from quire.records.record import Record
from quire.records.rows import number
from quire.records.selector import Selector
from quire.records.shape import SPOKEN, role
from quire.records.store import Records

RECENT: Final = 10
MOST: Final = 1000
# Between two messages that were found, at most this many others are shown with them.
BRIDGE: Final = 2


class Picked(msgspec.Struct, frozen=True):
    """A record, its weight from 0 to 1, and the group that it is shown or left out with."""

    record: Record
    weight: float
    group: str
    role: str = ""


def gather(
    records: Records,
    sources: Iterable[Source],
    request: str,
    trigger: Record | None,
    now: int | None,
) -> list[Picked]:
    """What all sources give, in the order of creation; a record that several give keeps its greatest weight."""
    picked: dict[str, Picked] = {}
    for source in sources:
        for one in _from(records, source, request, trigger, now):
            if one.record.id not in picked or picked[one.record.id].weight < one.weight:
                picked[one.record.id] = one
    return sorted(picked.values(), key=lambda one: number(one.record.id))


def session(record: Record | None) -> str:
    """The tag of the conversation that a record belongs to, '' where it names none."""
    return next((tag for tag in record.tags if tag.startswith("session:")), "") if record else ""


def _from(
    records: Records, source: Source, request: str, trigger: Record | None, now: int | None
) -> list[Picked]:
    selector = source.selector
    if source.current_session and session(trigger):
        selector = msgspec.structs.replace(selector, all_tags=(*selector.all_tags, session(trigger)))
    if source.method == "vector":
        return _nearest(records, source, selector, request, trigger, now)
    most = 1 if source.method == "latest" else source.limit or (RECENT if source.method == "recent" else MOST)
    found = records.select(selector, newest=most, keep=lambda one: _before(one, trigger), now=now)
    return [Picked(one, (at + 1) / len(found), one.id, source.role) for at, one in enumerate(found)]


def _before(record: Record, trigger: Record | None) -> bool:
    """Whether a record may stand beside a trigger: not itself, and nothing that was said after it."""
    if trigger is None:
        return True
    return number(record.id) < number(trigger.id) if role(record) else record.id != trigger.id


def _nearest(
    records: Records,
    source: Source,
    selector: Selector,
    request: str,
    trigger: Record | None,
    now: int | None,
) -> list[Picked]:
    """The records nearest to the request: at most nn, none further than the floor, messages with their exchange."""
    found = records.near(request, selector, keep=lambda one: _before(one, trigger), now=now)[: source.nn]
    hits = [hit for hit in found if hit.score > 0 and hit.score >= source.floor]
    picked = [Picked(hit.record, hit.score, hit.record.id, source.role) for hit in hits]
    if not source.exchanges:
        return picked
    before = number(trigger.id) if trigger else None
    return _bridged(records, _with_partners(records, picked, before, now), before, now)


def _with_partners(
    records: Records, picked: list[Picked], before: int | None, now: int | None
) -> list[Picked]:
    """Each question with the answer directly behind it, each answer with the question directly before it."""
    out = {one.record.id: one for one in picked}
    for one in picked:
        speaker = role(one.record)
        if not speaker:
            continue
        step = 1 if speaker == "user" else -1
        partner = _neighbour(records, one.record, step, before, now)
        if partner and role(partner) not in ("", speaker):
            out.setdefault(partner.id, Picked(partner, one.weight, one.group))
    return sorted(out.values(), key=lambda one: number(one.record.id))


def _bridged(records: Records, picked: list[Picked], before: int | None, now: int | None) -> list[Picked]:
    """With what was said between two messages that stand close: 'Where exactly is that?' says nothing alone."""
    out = list(picked)
    for first, second in pairwise(picked):
        if (
            not role(first.record)
            or not role(second.record)
            or session(first.record) != session(second.record)
        ):
            continue
        between, at = list[Record](), first.record
        while len(between) <= BRIDGE and (after := _neighbour(records, at, 1, before, now)):
            if after.id == second.record.id:
                weight = min(first.weight, second.weight)
                out += [Picked(one, weight, first.group) for one in between]
                break
            between.append(after)
            at = after
    return out


def _neighbour(
    records: Records, record: Record, step: int, before: int | None, now: int | None
) -> Record | None:
    """The message next to one in its conversation; nothing at or behind the trigger."""
    found = records.beside(record, step, Selector(schemas=_spoken(record)), session(record), now=now)
    return found if found and (before is None or number(found.id) < before) else None


def _spoken(record: Record) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*SPOKEN, record.schema_name)))
