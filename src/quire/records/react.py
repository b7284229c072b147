"""When records change, the contexts of the consumers they concern are built anew; and that comes to an end.

A consumer's own context never triggers it, and each context built from another counts one generation more:
the rounds made here count, whatever the records themselves say.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quire.errors import NotFound, QuireError
from quire.records.builder import Builder
from quire.records.config import SCHEMA, Config, of_record
from quire.records.record import Record
from quire.records.selector import Selector
from quire.records.store import Records


class Reaction(msgspec.Struct, frozen=True):
    """The contexts that are new, and the configurations that could not be carried out."""

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
    rounds = 0
    while changed:
        rounds += 1
        made: list[Record] = []
        for one in _configs(records, now):
            try:
                config = of_record(one)
                if rounds <= config.max_generation:
                    made += _renewed(records, Builder(config), changed, now)
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
