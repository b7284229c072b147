"""What a turn has used so far, by its log, and which of its limits that meets."""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.errors import CallError
from quire.providers.prices import cost
from quire.send.runner import Limits
from quire.send.standing import Standing
from quire.values import Usage

Met = Literal["steps", "tokens", "money"]


def usage_of(turn: Standing) -> Usage:
    """All requests of a turn together, questions beside the conversation included."""
    totals: dict[str, int] = {}
    for _, usage in turn.usages:
        for field, value in msgspec.to_builtins(usage).items():
            totals[field] = totals.get(field, 0) + value
    return Usage(**totals)


def usd_of(turn: Standing) -> float | None:
    """What they cost; None where a price is not known."""
    amounts = [cost(usage, target).amount_usd for target, usage in turn.usages]
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if len(known) == len(amounts) else None


def limit_met(turn: Standing, limits: Limits) -> Met | None:
    """The limit that forbids another request."""
    used = usage_of(turn)
    if turn.steps >= limits.steps:
        return "steps"
    if limits.tokens is not None and used.input_total + used.output >= limits.tokens:
        return "tokens"
    if limits.usd is not None and (usd_of(turn) or 0.0) >= limits.usd:
        return "money"
    return None


def check_prices(limits: Limits, target: str) -> None:
    """A limit in money that could not be held is an error before anything is spent."""
    if limits.usd is not None and not cost(Usage(1, output=1), target).known:
        raise CallError(
            f"a limit in money needs prices, and those of {target} are not known",
            hint="Limit tokens or steps instead.",
        )
