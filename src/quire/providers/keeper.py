"""A thread's explicit Gemini cache over its life: which calls are due, and the request behind what is kept.

Sends nothing. Before a request `due` says which calls to make; their replies go into `done`; `behind` gives the
request to send, and `answered` takes what the reply used, from which the next decision is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

import msgspec

from quire.log.hashing import sha256_hex
from quire.providers.explicit import Kept, Plan, Served, plan
from quire.providers.models import ModelInfo
from quire.providers.prefix import prefix_bytes, prefix_parts
from quire.providers.simulate import Simulator
from quire.values import Json, JsonObject, Usage

# What a cache holds besides the conversation, and what therefore is not sent behind one.
_HEAD = ("systemInstruction", "tools", "toolConfig")


class Errand(msgspec.Struct, frozen=True):
    """One call to make: POST cachedContents, PATCH or DELETE cachedContents/NAME."""

    method: Literal["POST", "PATCH", "DELETE"]
    path: str
    body: JsonObject | None = None


class Keeper:
    """Decides about one cache for one thread and model."""

    def __init__(self, info: ModelInfo) -> None:
        self.info = info
        self.kept: Kept | None = None
        # The cache that was there before, until another is made or a request has gone out without it.
        self._lost: Served | None = None
        self.plan = Plan("none", "nothing was asked yet")
        self._times: list[int] = []
        self._lasting: JsonObject = {}
        self._tokens = self._missed = 0
        # Of requests without a cache: what lasted, and what the implicit cache read of it.
        self._offered = self._read = 0
        self._counter = Simulator(info)

    def due(self, body: JsonObject, at_ms: int) -> list[Errand]:
        """The calls to make before this request."""
        self._lasting = lasting(body)
        self._tokens = self._counter.count(self._lasting)
        prefix, hits = self._prefix(self._lasting), self._read / self._offered if self._offered else 0.0
        if not self.info.features.explicit_cache:
            return []
        if self.kept is not None and at_ms >= self.kept.expires_ms:
            past_s = (at_ms - self.kept.expires_ms) // 1000
            self._lose("expired", f"{self.kept.name} had expired {past_s:,} s before")
        self.plan = plan(self.kept, prefix, self._tokens, self.info, at_ms, self._times, self._missed, hits)
        self._times.append(at_ms)
        return list(self._errands())

    def _errands(self) -> Iterator[Errand]:
        ttl = {"ttl": f"{self.plan.ttl_s}s"}
        if self.plan.drop:
            yield Errand("DELETE", self.plan.drop)
        if self.plan.action in ("create", "replace"):
            yield Errand(
                "POST",
                "cachedContents",
                {"model": f"models/{self.info.model.removeprefix('models/')}", **self._lasting, **ttl},
            )
        elif self.plan.action == "extend" and self.kept is not None:
            yield Errand("PATCH", self.kept.name, ttl)

    def done(self, errand: Errand, reply: Json, at_ms: int) -> None:
        """The provider's answer to a call; None where it failed: then the thread goes on without a cache."""
        if errand.method == "DELETE" or not isinstance(reply, dict) or not reply.get("name"):
            how = self.plan.reason if errand.method == "DELETE" else "it could not be prolonged"
            self._lose("dropped", f"{errand.path} was given up: {how}")
            return
        expires_ms = _ms(reply.get("expireTime")) or at_ms + self.plan.ttl_s * 1000
        if errand.method == "PATCH" and self.kept is not None:
            self.kept = msgspec.structs.replace(self.kept, expires_ms=expires_ms)
            return
        prefix = self._prefix(self._lasting)
        self.kept = Kept(str(reply["name"]), len(prefix), sha256_hex(prefix), self._tokens, expires_ms)
        self._missed, self._lost = 0, None

    def behind(self, body: JsonObject) -> JsonObject:
        """The request without what the cache holds of it; the request itself where there is none for it."""
        if self.kept is None or not self.kept.begins(self._prefix(body)):
            return body
        held = _contents_within(body, self.kept.length)
        rest = {key: value for key, value in body.items() if key not in _HEAD}
        return {**rest, "contents": body["contents"][held:], "cachedContent": self.kept.name}

    def served(self, sent: JsonObject) -> Served | None:
        """What a cache did for the request that was sent just now; None where there never was one."""
        if self.kept is not None and sent.get("cachedContent") == self.kept.name:
            return Served(self.kept.tokens)
        lost, self._lost = self._lost, None
        return lost

    def answered(self, used: Usage) -> None:
        """What the reply says was read: the rest of what lasts was missed."""
        self._missed += max(0, self._tokens - used.cache_read)
        if self.kept is None:
            self._offered += self._tokens
            self._read += min(used.cache_read, self._tokens)

    def forget(self) -> None:
        """The provider no longer knows the cache (403): send the request as it is."""
        if self.kept is not None:
            self._lose("gone", f"the provider no longer knew {self.kept.name}")

    def _lose(self, ended: Literal["expired", "gone", "dropped"], note: str) -> None:
        if self.kept is not None:
            self._lost = Served(self.kept.tokens, ended, note)
        self.kept = None

    def _prefix(self, body: JsonObject) -> bytes:
        return prefix_bytes(body, "gemini")


def lasting(body: JsonObject) -> JsonObject:
    """What of a request comes again in the next: all of it before the user's latest words."""
    contents = body.get("contents") or []
    asked = [place for place, content in enumerate(contents) if _asks(content)]
    held = {name: body[name] for name in _HEAD if body.get(name)}
    before = contents[: asked[-1]] if asked else []
    return {**held, "contents": before} if before else held


def _asks(content: JsonObject) -> bool:
    """A cut before a user's words separates no call from its response."""
    parts = content.get("parts") or []
    return content.get("role", "user") == "user" and not any("functionResponse" in part for part in parts)


def _contents_within(body: JsonObject, length: int) -> int:
    """How many contents stand in the first bytes of a request's prefix."""
    parts = prefix_parts(body, "gemini")
    head, done, count = len(parts) - len(body["contents"]), 0, 0
    for place, part in enumerate(parts):
        done += len(part)
        if done > length:
            break
        count += place >= head
    return count


def _ms(time: Json) -> int:
    """Milliseconds of "2026-11-15T08:00:00Z"; 0 where there is no time."""
    try:
        return round(datetime.fromisoformat(str(time)).timestamp() * 1000)
    except ValueError:
        return 0
