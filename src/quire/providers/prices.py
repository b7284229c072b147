"""Money from usage: dated prices, by tier; a price that is not known is said, never guessed."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from quire.providers.models import ModelInfo, Tier, model_info
from quire.values import Usage

_MILLION = 1_000_000
_LAST_MS = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp() * 1000)


class Money(msgspec.Struct, frozen=True):
    """What a call cost in USD: None when a part of it has no known price; `unknown` names those parts."""

    amount_usd: float | None
    known: bool
    # plain, read, write_5m, write_1h, output -> USD; parts without a known price are missing.
    parts: dict[str, float]
    unknown: tuple[str, ...] = ()
    as_of: str = ""
    source: str = ""

    def __str__(self) -> str:
        if self.amount_usd is None:
            return "price not known" + (f" ({', '.join(self.unknown)})" if self.unknown else "")
        return f"${self.amount_usd:.6f}"


def cost(usage: Usage, target: str | ModelInfo, at: int | None = None) -> Money:
    """What a call costs, at the prices of `at` (ms): 1,000 tokens in on anthropic:claude-opus-5-5 are $0.004."""
    info = _at(model_info(target) if isinstance(target, str) else target, at)
    tier = info.prices.tier(usage.input_total)
    amounts = _amounts(usage)
    prices = _per_token(tier, info)
    parts = {
        name: tokens * price / _MILLION
        for name, tokens in amounts.items()
        if (price := prices[name]) is not None
    }
    unknown = tuple(name for name, tokens in amounts.items() if tokens and prices[name] is None)
    known = bool(info.prices.tiers) and not unknown
    return Money(
        amount_usd=sum(parts.values()) if known else None,
        known=known,
        parts=parts,
        unknown=unknown,
        as_of=info.prices.as_of,
        source=info.prices.source,
    )


def _at(info: ModelInfo, at: int | None) -> ModelInfo:
    """The model with the prices of a moment; without one, those of the data's own date."""
    if at is None or not info.prices.changes:
        return info
    # A clock that counts from its own beginning is before every change, one beyond all dates behind them.
    day = datetime.fromtimestamp(min(max(at, 0), _LAST_MS) / 1000, UTC).date().isoformat()
    return msgspec.structs.replace(info, prices=info.prices.on(day))


def storage(tokens: int, hours: float, target: str | ModelInfo, at: int | None = None) -> Money:
    """What keeping `tokens` in an explicit cache for `hours` costs (Gemini); nothing where storage is free."""
    info = _at(model_info(target) if isinstance(target, str) else target, at)
    price = info.prices.storage_per_hour
    if price is None:
        free = info.engine != "gemini"
        return Money(
            0.0 if free else None,
            free,
            {},
            () if free else ("storage",),
            info.prices.as_of,
            info.prices.source,
        )
    amount = tokens * price * hours / _MILLION
    return Money(amount, True, {"storage": amount}, (), info.prices.as_of, info.prices.source)


def _amounts(usage: Usage) -> dict[str, int]:
    written = usage.cache_write_5m + usage.cache_write_1h
    return {
        "plain": max(0, usage.input_total - usage.cache_read - written),
        "read": usage.cache_read,
        "write_5m": usage.cache_write_5m,
        "write_1h": usage.cache_write_1h,
        "output": usage.output,
    }


def _per_token(tier: Tier, info: ModelInfo) -> dict[str, float | None]:
    """USD per million tokens; providers that do not charge for writing bill them as input."""
    free_writes = tier.input if info.cache.write_x == 1.0 else None
    return {
        "plain": tier.input,
        "read": tier.read,
        "write_5m": tier.write_5m if tier.write_5m is not None else free_writes,
        "write_1h": tier.write_1h if tier.write_1h is not None else free_writes,
        "output": tier.output,
    }
