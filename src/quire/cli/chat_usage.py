"""What a thread has used so far, from its `sent` entries."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quire.cli.reach import is_embedded
from quire.providers.prices import cost
from quire.values import Entry, Usage


class Asked(msgspec.Struct, frozen=True):
    """One request that was answered: to whom, what it used, what it cost (None: not known)."""

    target: str
    usage: Usage
    usd: float | None
    purpose: str = ""

    @property
    def reported(self) -> bool:
        """Whether the provider said what was used; a reply that was stopped did not come as far."""
        return bool(self.usage.input_total or self.usage.output)


class Totals(msgspec.Struct, frozen=True):
    """All requests of a thread together, and the newest one."""

    requests: tuple[Asked, ...]
    last: Usage
    usd: float | None


def totals(entries: Iterable[Entry]) -> Totals:
    """The requests of a thread with what they used; money is known only when every price is."""
    asked = tuple(_asked(entry) for entry in entries if entry.kind == "sent" and "usage" in entry.body)
    amounts = [one.usd for one in asked if one.reported]
    usd = sum(one for one in amounts if one is not None) if None not in amounts else None
    own = [one for one in asked if not one.purpose and one.reported] or list(asked)
    return Totals(asked, own[-1].usage if own else Usage(), usd)


def _asked(entry: Entry) -> Asked:
    target = f"{entry.body['provider']}:{entry.body['model']}"
    usage = msgspec.convert(entry.body["usage"], Usage, strict=False)
    usd = 0.0 if is_embedded(target) else cost(usage, target, entry.at).amount_usd
    return Asked(target, usage, usd, str(entry.meta.get("aside") or ""))


def money(usd: float | None, reported: bool = True) -> str:
    """An amount for people."""
    if not reported:
        return "not reported"
    return "price not known" if usd is None else f"${usd:.4f}" if usd else "$0"
