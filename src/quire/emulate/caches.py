"""Gemini's `cachedContents`: made, read, listed, prolonged, deleted."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from quire.emulate.provider import Emulated, EmulatedReply
from quire.emulate.script import EmulatedRequest, Refusal
from quire.providers.rules import errors, validate
from quire.providers.simulate.prefix_caches import GeminiCache, seconds
from quire.values import JsonObject

_DEFAULT_TTL_S = 3600.0


class CachedContent(msgspec.Struct):
    """An explicit cache as its owner sees it."""

    name: str
    model: str
    display_name: str
    tokens: int
    created_ms: int
    updated_ms: int
    expires_ms: int


class EmulatedCaches:
    """The explicit caches of one emulated provider."""

    def __init__(self, emulated: Emulated) -> None:
        self._emulated = emulated
        self._stored: dict[str, CachedContent] = {}
        self._made = 0

    def create(self, received: EmulatedRequest) -> EmulatedReply:
        body: JsonObject = received.body
        model = str(body.get("model") or "").removeprefix("models/")
        found = errors(validate(body, "gemini", model, headers=received.headers))
        if found:
            return self._emulated.refused(received, "gemini", Refusal(found[0].status, found[0].message))
        self._made += 1
        name = f"cachedContents/emulated{self._made:04d}"
        ttl_s = seconds(body.get("ttl"), _DEFAULT_TTL_S)
        kept = {**body, "name": name, "ttl": f"{ttl_s:g}s"}
        received.predicted = self._emulated.simulator("gemini", model).step(received.at_ms, kept)
        at_ms = received.at_ms
        self._stored[name] = CachedContent(
            name,
            model,
            str(body.get("displayName", "")),
            received.predicted.total,
            at_ms,
            at_ms,
            at_ms + int(ttl_s * 1000),
        )
        return EmulatedReply(200, _shown(self._stored[name]))

    def get(self, received: EmulatedRequest, name: str) -> EmulatedReply:
        stored = self._alive(received, name)
        return EmulatedReply(200, _shown(stored)) if stored else self._missing(received, name)

    def list(self, received: EmulatedRequest) -> EmulatedReply:
        alive = [value for value in self._stored.values() if received.at_ms < value.expires_ms]
        return EmulatedReply(200, {"cachedContents": [_shown(each) for each in alive]})

    def update(self, received: EmulatedRequest, name: str) -> EmulatedReply:
        """Only the life of a cache can be changed."""
        stored = self._alive(received, name)
        if stored is None:
            return self._missing(received, name)
        ttl_s = seconds(received.body.get("ttl"), _DEFAULT_TTL_S)
        stored.updated_ms, stored.expires_ms = received.at_ms, received.at_ms + int(ttl_s * 1000)
        self._engine(stored).extend(name, received.at_ms, ttl_s)
        return EmulatedReply(200, _shown(stored))

    def delete(self, received: EmulatedRequest, name: str) -> EmulatedReply:
        stored = self._alive(received, name)
        if stored is None:
            return self._missing(received, name)
        del self._stored[name]
        self._engine(stored).drop(name, received.at_ms)
        return EmulatedReply(200, {})

    def refuses(self, received: EmulatedRequest) -> EmulatedReply | None:
        """The error of a request that names a cache which is not there."""
        body = received.body if isinstance(received.body, dict) else {}
        name = body.get("cachedContent")
        if not name or self._alive(received, str(name)):
            return None
        return self._missing(received, str(name))

    def _alive(self, received: EmulatedRequest, name: str) -> CachedContent | None:
        stored = self._stored.get(name)
        return stored if stored and received.at_ms < stored.expires_ms else None

    def _missing(self, received: EmulatedRequest, name: str) -> EmulatedReply:
        message = "CachedContent not found (or permission denied)"
        return self._emulated.refused(received, "gemini", Refusal(403, f"{message}: {name}"))

    def _engine(self, stored: CachedContent) -> GeminiCache:
        engine = self._emulated.simulator("gemini", stored.model).engine
        assert isinstance(engine, GeminiCache)
        return engine


def _shown(stored: CachedContent) -> JsonObject:
    return {
        "name": stored.name,
        "model": f"models/{stored.model}",
        "displayName": stored.display_name,
        "createTime": _time(stored.created_ms),
        "updateTime": _time(stored.updated_ms),
        "expireTime": _time(stored.expires_ms),
        "usageMetadata": {"totalTokenCount": stored.tokens},
    }


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
