"""Gemini's explicit caches: made when missing one has cost as much as making it, kept while it pays."""

import msgspec
import pytest

from quire.providers.gemini_cache import CacheStep, LiveCache, plan
from quire.providers.models import ModelInfo, Prices
from toolbox import model_info, sha256_hex

PRO = model_info("gemini:gemini-2.5-pro")
HOUR = 3_600_000


def every(minutes: float, hours: float = 1.0) -> list[int]:
    return [int(n * minutes * 60_000) for n in range(int(hours * 60 / minutes))]


def kept(tokens: int = 20_000, prefix: bytes = b"head", expires_ms: int = 2 * HOUR) -> LiveCache:
    return LiveCache("cachedContents/a", len(prefix), sha256_hex(prefix), tokens, expires_ms)


def decide(
    held: LiveCache | None = None,
    tokens: int = 20_000,
    missed: int = 0,
    minutes: float = 2,
    prefix: bytes = b"head and more",
    info: ModelInfo = PRO,
    hits: float = 0.0,
) -> CacheStep:
    return plan(held, prefix, tokens, info, HOUR, every(minutes), missed, hits)


@pytest.mark.proves("gemini", "cache marks")
@pytest.mark.parametrize(
    ("made", "action"),
    [
        (decide(), "none"),
        (decide(missed=22_000), "none"),
        (decide(missed=23_000), "create"),
        (decide(missed=10**9, minutes=30), "none"),
        (decide(missed=10**9, tokens=1000), "none"),
        (decide(missed=10**9, hits=0.95), "none"),
        (decide(kept()), "reuse"),
        (decide(kept(expires_ms=HOUR + 60_000)), "extend"),
        (decide(kept(expires_ms=HOUR), missed=10**9), "create"),
        (decide(kept(), prefix=b"changed"), "drop"),
        (decide(kept(), prefix=b"changed", missed=30_000), "replace"),
        (decide(kept(), tokens=60_000, missed=30_000), "reuse"),
        (decide(kept(), tokens=60_000, missed=70_000), "replace"),
        (decide(kept(), minutes=30), "drop"),
    ],
)
def test_an_explicit_cache_is_made_kept_and_dropped_as_it_pays(made: CacheStep, action: str) -> None:
    assert made.action == action
    assert bool(made.drop) is (action in ("drop", "replace"))
    assert bool(made.ttl_s) is (action in ("create", "extend", "replace"))
    assert made.reason


def test_without_a_price_nothing_is_bought() -> None:
    unknown = msgspec.structs.replace(PRO, prices=Prices())
    assert decide(info=unknown, missed=10**9) == CacheStep("none", "prices are not known")
    assert decide(kept(), info=unknown).action == "drop"


def test_following_the_plan_over_a_growing_thread_costs_little_more_than_a_cache_that_makes_itself() -> None:
    step, tokens, missed, paid, uncached = 3_000, 8_000, 0, 0.0, 0
    held: LiveCache | None = None
    best = 0.0
    times: list[int] = []
    for number in range(60):
        at_ms = number * 60_000
        tokens += step
        prefix = b"x" * tokens
        choice = plan(held, prefix, tokens, PRO, at_ms, times, missed)
        if choice.action in ("create", "replace"):
            held = LiveCache(f"c{number}", tokens, sha256_hex(prefix), tokens, at_ms + HOUR)
            paid += tokens
            missed = 0
        elif choice.action == "drop":
            held = None
        covered = held.tokens if held else 0
        paid += covered * PRO.r + (tokens - covered)
        missed += tokens - covered
        uncached += tokens
        # Each token paid in full once, then read from a cache that nobody has to make.
        best += step + (tokens - step) * PRO.r
        times.append(at_ms)
    assert best < paid < 3 * best
    assert paid < uncached / 2
