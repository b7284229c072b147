"""When to rebase: rent until the rent paid equals the price of moving (ski rental); at once when the cache is cold,
or when the next request could not fit anyway.
"""

from __future__ import annotations

import msgspec

from quire.assemble.policy import Policy

# A cold cache is worth a cut that frees this share of what would be kept.
COLD_SHARE = 0.05
# With less room than this, or this share of the budget, the next request cannot fit: an answer and what is said
# to it take more.
BRIM = 64
BRIM_SHARE = 1 / 62
# Cutting one request early spares what is new in it a second writing, unless there is no next one: two to one.
LAST = 0.5
# After a rebase that freed less than this share, only the budget itself may ask for the next.
BREAKER = 0.10


class Moment(msgspec.Struct, frozen=True):
    """What the rule looks at, at one request, all in tokens."""

    fits: bool
    kept: int
    removed: int
    # Of what would be kept behind the first changed byte, how much the provider still has cached.
    cached: int
    # What no request has held before, and what is left of the budget.
    new: int
    room: int
    cold: bool
    rent: float
    broken: bool = False


def rent_after(moment: Moment, policy: Policy) -> float:
    """The rent paid so far, this request's share for what could be gone included."""
    return moment.rent + policy.read * moment.removed


def reason_to_cut(moment: Moment, policy: Policy) -> str:
    """Why to cut now, or '': 'budget', 'cold', 'rent' or 'brim'."""
    if not moment.fits:
        return "budget"
    if policy.when == "full" or moment.removed <= 0 or moment.broken:
        return ""
    if moment.cold:
        return "cold" if moment.removed >= COLD_SHARE * moment.kept else ""
    price = (policy.write - policy.read) * moment.cached
    if rent_after(moment, policy) >= price:
        return "rent"
    spared = (policy.write - policy.read) * moment.new + policy.read * moment.removed
    return "brim" if moment.room < min(BRIM, BRIM_SHARE * policy.limit) and spared >= LAST * price else ""
