"""Gemini's explicit caches: whether keeping one pays, decided from sizes, rates and prices alone.

A cache saves the difference between plain and cached tokens on each request that the implicit cache would have
missed, and costs its making once and its storage by the hour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from quire.providers.incoming import iso_ms
from quire.providers.models import ModelInfo
from quire.providers.prefix import prefix_bytes, prefix_parts
from quire.providers.simulate import Simulator
from quire.values import Json, JsonObject, Usage, sha256_hex

Action = Literal["none", "create", "reuse", "extend", "replace", "drop"]

_HOUR_MS = 3_600_000
# Shorter lives are not worth the calls that renew them.
_LEAST_TTL_S = 300
# A cache is renewed so many usual pauses ahead: pauses vary, and one that expired has to be paid for again.
_MARGIN = 1.5


class LiveCache(msgspec.Struct, frozen=True):
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


class CacheStep(msgspec.Struct, frozen=True):
    """What to do before the next request; `drop` names a cache to delete, `ttl_s` is for one made or extended."""

    action: Action
    reason: str
    ttl_s: int = 0
    drop: str = ""


def plan(
    cache: LiveCache | None,
    prefix: bytes,
    tokens: int,
    info: ModelInfo,
    at_ms: int,
    times: Sequence[int],
    missed_tokens: int,
    implicit_hits: float = 0.0,
) -> CacheStep:
    """Decide about an explicit cache for a request whose lasting part is `prefix`, `tokens` long.

    `times` are the thread's requests so far (ms). `missed_tokens` were paid in full since the cache was made (or
    the thread began) although a cache of all that lasts would have held them: once they have cost as much as
    making that cache, it is made, so regret is bounded and no future need be guessed. `implicit_hits` is the
    share of a prefix that the implicit cache reads anyway.
    """
    per_hour = _per_hour(times, at_ms)
    if cache is not None and at_ms >= cache.expires_ms:
        cache = None
    saves = _saves(info, per_hour, implicit_hits)
    if saves is None:
        return _without(cache, "prices are not known")
    if tokens < info.min_cache_tokens:
        return _without(cache, f"{tokens:,} tokens are under the minimum of {info.min_cache_tokens:,}")
    if saves <= 0:
        return _without(cache, f"{per_hour:.1f} requests an hour do not repay storage")
    ttl_s = max(_LEAST_TTL_S, min(3600, int(2 * 3600 / per_hour)))
    if missed_tokens * (1 - info.r) >= tokens:
        if cache is None:
            return CacheStep("create", "what was missed so far would have repaid it", ttl_s)
        return CacheStep("replace", "what the old one missed would have repaid a new one", ttl_s, cache.name)
    if cache is None or not cache.begins(prefix):
        return _without(cache, "too little was missed so far to repay making one")
    # Renewed when it would end before the request after this one.
    if cache.expires_ms - at_ms < _MARGIN * _HOUR_MS / per_hour:
        return CacheStep("extend", "it would end before the next request", ttl_s)
    return CacheStep("reuse", "it holds this prefix")


def _saves(info: ModelInfo, per_hour: float, implicit_hits: float) -> float | None:
    """USD an hour that a cached token saves, its storage paid; None where a price is missing."""
    tier = info.prices.tier(0)
    stored = info.prices.storage_per_hour
    if tier.input is None or tier.read is None or stored is None:
        return None
    return (per_hour * (1 - implicit_hits) * (tier.input - tier.read) - stored) / 1_000_000


def _without(cache: LiveCache | None, reason: str) -> CacheStep:
    return CacheStep("none", reason) if cache is None else CacheStep("drop", reason, drop=cache.name)


def _per_hour(times: Sequence[int], at_ms: int) -> float:
    """How often this thread asks: over all its requests, the silence until now included."""
    if not times:
        return 0.0
    span_ms = max(at_ms - min(times), 60_000)
    return len(times) * _HOUR_MS / span_ms


# A thread's explicit Gemini cache from its creation to its end: the calls to make, and requests without what it holds.
#
# Sends nothing. Before a request `due` says which calls to make; their replies go into `done`; `behind` gives the
# request to send, and `answered` takes what the reply used, from which the next decision is made.

# Fields that a cache holds besides the conversation: a request that names the cache leaves them out.
_HEAD = ("systemInstruction", "tools", "toolConfig")


class CacheCall(msgspec.Struct, frozen=True):
    """One call to make: POST cachedContents, PATCH or DELETE cachedContents/NAME."""

    method: Literal["POST", "PATCH", "DELETE"]
    path: str
    body: JsonObject = {}
    provider: str = "gemini"


class CacheKeeper:
    """Decides about one cache for one thread and model."""

    def __init__(self, info: ModelInfo) -> None:
        self.info = info
        self.cache: LiveCache | None = None
        # The cache that was there before, until another is made or a request has gone out without it.
        self._lost: Served | None = None
        self.plan = CacheStep("none", "nothing was asked yet")
        self._times: list[int] = []
        self._lasting: JsonObject = {}
        self._tokens = self._missed = 0
        # Of requests without a cache: the tokens that came again, and how many of these the implicit cache read.
        self._offered = self._read = 0
        self._counter = Simulator(info)

    def due(self, body: JsonObject, at_ms: int) -> list[CacheCall]:
        """The calls to make before this request."""
        self._lasting = lasting(body)
        self._tokens = self._counter.count(self._lasting)
        prefix, hits = prefix_bytes(self._lasting, "gemini"), self._read / self._offered if self._offered else 0.0
        if not self.info.features.explicit_cache:
            return []
        if self.cache is not None and at_ms >= self.cache.expires_ms:
            past_s = (at_ms - self.cache.expires_ms) // 1000
            self._lose("expired", f"{self.cache.name} had expired {past_s:,} s before")
        self.plan = plan(self.cache, prefix, self._tokens, self.info, at_ms, self._times, self._missed, hits)
        self._times.append(at_ms)
        return list(self._calls())

    def _calls(self) -> Iterator[CacheCall]:
        ttl = {"ttl": f"{self.plan.ttl_s}s"}
        if self.plan.drop:
            yield CacheCall("DELETE", self.plan.drop)
        if self.plan.action in ("create", "replace"):
            yield CacheCall(
                "POST",
                "cachedContents",
                {"model": f"models/{self.info.model.removeprefix('models/')}", **self._lasting, **ttl},
            )
        elif self.plan.action == "extend" and self.cache is not None:
            yield CacheCall("PATCH", self.cache.name, ttl)

    def done(self, call: CacheCall, reply: Json, at_ms: int) -> None:
        """The provider's answer to a call; None where it failed: then the thread goes on without a cache."""
        if call.method == "DELETE" or not isinstance(reply, dict) or not reply.get("name"):
            how = self.plan.reason if call.method == "DELETE" else "it could not be prolonged"
            self._lose("dropped", f"{call.path} was given up: {how}")
            return
        expires_ms = iso_ms(reply.get("expireTime")) or at_ms + self.plan.ttl_s * 1000
        if call.method == "PATCH" and self.cache is not None:
            self.cache = msgspec.structs.replace(self.cache, expires_ms=expires_ms)
            return
        prefix = prefix_bytes(self._lasting, "gemini")
        self.cache = LiveCache(str(reply["name"]), len(prefix), sha256_hex(prefix), self._tokens, expires_ms)
        self._missed, self._lost = 0, None

    def behind(self, body: JsonObject) -> JsonObject:
        """The request without what the cache holds of it; the request itself where there is none for it."""
        if self.cache is None or not self.cache.begins(prefix_bytes(body, "gemini")):
            return body
        cached_count = _contents_within(body, self.cache.length)
        rest = {key: value for key, value in body.items() if key not in _HEAD}
        return {**rest, "contents": body["contents"][cached_count:], "cachedContent": self.cache.name}

    def served(self, sent: JsonObject) -> Served | None:
        """What a cache did for the request that was sent just now; None where there never was one."""
        if self.cache is not None and sent.get("cachedContent") == self.cache.name:
            return Served(self.cache.tokens)
        lost, self._lost = self._lost, None
        return lost

    def answered(self, used: Usage) -> None:
        """Take in what a reply read from the cache: the other tokens that came again were missed."""
        self._missed += max(0, self._tokens - used.cache_read)
        if self.cache is None:
            self._offered += self._tokens
            self._read += min(used.cache_read, self._tokens)

    def forget(self) -> None:
        """The provider no longer knows the cache (403): send the request as it is."""
        if self.cache is not None:
            self._lose("gone", f"the provider no longer knew {self.cache.name}")

    def _lose(self, ended: Literal["expired", "gone", "dropped"], note: str) -> None:
        if self.cache is not None:
            self._lost = Served(self.cache.tokens, ended, note)
        self.cache = None


def lasting(body: JsonObject) -> JsonObject:
    """The part of a request that the next one repeats: everything before the user's latest words."""
    contents = body.get("contents") or []
    user_places = [place for place, content in enumerate(contents) if _asks(content)]
    head = {name: body[name] for name in _HEAD if body.get(name)}
    before = contents[: user_places[-1]] if user_places else []
    return {**head, "contents": before} if before else head


def _asks(content: JsonObject) -> bool:
    """Whether the user speaks in a content: in front of it a cut separates no call from its response."""
    parts = content.get("parts") or []
    return content.get("role", "user") == "user" and not any("functionResponse" in part for part in parts)


def _contents_within(body: JsonObject, length: int) -> int:
    """How many contents stand in the first bytes of a request's prefix."""
    parts = prefix_parts(body, "gemini")
    head, end, count = len(parts) - len(body["contents"]), 0, 0
    for place, part in enumerate(parts):
        end += len(part)
        if end > length:
            break
        count += place >= head
    return count
