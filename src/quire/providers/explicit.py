"""Gemini's explicit caches: whether keeping one pays, decided from sizes, rates and prices alone.

A cache saves the difference between plain and cached tokens on each request that the implicit cache would have
missed, and costs its making once and its storage by the hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from quire.log.hashing import sha256_hex
from quire.providers.models import ModelInfo

Action = Literal["none", "create", "reuse", "extend", "replace", "drop"]

_HOUR_MS = 3_600_000
# Shorter lives are not worth the calls that renew them.
_LEAST_TTL_S = 300
# Pauses vary, and a cache that ended has to be paid for again: renewed this many of them ahead.
_MARGIN = 1.5


class Kept(msgspec.Struct, frozen=True):
    """An explicit cache that exists: what it holds (length and hash of its prefix bytes), and until when."""

    name: str
    length: int
    sha256: str
    tokens: int
    expires_ms: int

    def begins(self, prefix: bytes) -> bool:
        """Whether a request with these prefix bytes can be sent behind this cache."""
        return sha256_hex(prefix[: self.length]) == self.sha256


class Served(msgspec.Struct, frozen=True):
    """What an explicit cache did for one request: it read these tokens, or would have if it had not ended."""

    tokens: int
    ended: Literal["", "expired", "gone", "dropped"] = ""
    # How it ended, for people.
    note: str = ""


class Plan(msgspec.Struct, frozen=True):
    """What to do before the next request; `drop` names a cache to delete, `ttl_s` is for one made or extended."""

    action: Action
    reason: str
    ttl_s: int = 0
    drop: str = ""
    # What holding the cache saves an hour, storage paid; negative when it does not pay.
    saves_usd_per_hour: float = 0.0


def plan(
    kept: Kept | None,
    prefix: bytes,
    tokens: int,
    info: ModelInfo,
    at_ms: int,
    times: Sequence[int],
    missed_tokens: int,
    implicit_hits: float = 0.0,
) -> Plan:
    """Decide about an explicit cache for a request whose lasting part is `prefix`, `tokens` long.

    `times` are the thread's requests so far (ms). `missed_tokens` were paid in full since the cache was made (or
    the thread began) although a cache of all that lasts would have held them: once they have cost as much as
    making that cache, it is made, so regret is bounded and no future need be guessed. `implicit_hits` is the
    share of a prefix that the implicit cache reads anyway.
    """
    per_hour = _per_hour(times, at_ms)
    if kept is not None and at_ms >= kept.expires_ms:
        kept = None
    saves = _saves(info, per_hour, implicit_hits)
    if saves is None:
        return _without(kept, "prices are not known")
    if tokens < info.min_cache_tokens:
        return _without(kept, f"{tokens:,} tokens are under the minimum of {info.min_cache_tokens:,}")
    if saves <= 0:
        return _without(kept, f"{per_hour:.1f} requests an hour do not repay storage", saves * tokens)
    ttl_s = max(_LEAST_TTL_S, min(3600, int(2 * 3600 / per_hour)))
    if missed_tokens * (1 - info.r) >= tokens:
        return _made(kept, saves * tokens, ttl_s)
    if kept is None or not kept.begins(prefix):
        return _without(kept, "too little was missed so far to repay making one", saves * tokens)
    return _used(kept, at_ms, per_hour, saves, ttl_s)


def _saves(info: ModelInfo, per_hour: float, implicit_hits: float) -> float | None:
    """USD an hour that a cached token saves, its storage paid; None where a price is missing."""
    tier = info.prices.tier(0)
    stored = info.prices.storage_per_hour
    if tier.input is None or tier.read is None or stored is None:
        return None
    return (per_hour * (1 - implicit_hits) * (tier.input - tier.read) - stored) / 1_000_000


def _made(kept: Kept | None, worth: float, ttl_s: int) -> Plan:
    if kept is None:
        return Plan("create", "what was missed so far would have repaid it", ttl_s, saves_usd_per_hour=worth)
    return Plan("replace", "what the old one missed would have repaid a new one", ttl_s, kept.name, worth)


def _used(kept: Kept, at_ms: int, per_hour: float, saves: float, ttl_s: int) -> Plan:
    """Use it; renew it when it would end before the request after this one."""
    worth = saves * kept.tokens
    if kept.expires_ms - at_ms < _MARGIN * _HOUR_MS / per_hour:
        return Plan("extend", "it would end before the next request", ttl_s, saves_usd_per_hour=worth)
    return Plan("reuse", "it holds this prefix", saves_usd_per_hour=worth)


def _without(kept: Kept | None, reason: str, worth: float = 0.0) -> Plan:
    if kept is None:
        return Plan("none", reason, saves_usd_per_hour=worth)
    return Plan("drop", reason, drop=kept.name, saves_usd_per_hour=worth)


def _per_hour(times: Sequence[int], at_ms: int) -> float:
    """How often this thread asks: over all its requests, the silence until now included."""
    if not times:
        return 0.0
    span_ms = max(at_ms - min(times), 60_000)
    return len(times) * _HOUR_MS / span_ms
