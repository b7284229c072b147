"""Gemini's two caches: the implicit one, any common prefix; and explicit `cachedContents`, paid for by the hour."""

from __future__ import annotations

from array import array

import msgspec

from quire.providers.models import ModelInfo
from quire.providers.simulate.seen import Cause, Seen, Shares
from quire.providers.simulate.steps import StepCache
from quire.values import JsonObject

_HOUR_MS = 3_600_000


class Stored(msgspec.Struct):
    """One explicit cache: its prompt, and until when it is kept and paid for."""

    ids: array[int]
    paid_ms: int
    expires_ms: int


class GeminiCache:
    """A request that names a cache reads all of it; any other reads what the implicit cache happens to have."""

    by_ids = True
    keeps_answers = False

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._implicit = StepCache(info)
        self._explicit: dict[str, Stored] = {}

    def look(self, at_ms: int, seen: Seen, began_ms: int | None = None) -> Shares:
        kept = self._kept_until(at_ms)
        if is_cache(seen.body):
            return self._create(at_ms, seen, kept)
        name = seen.body.get("cachedContent") or seen.body.get("cached_content")
        if not name:
            shares = self._implicit.look(at_ms, seen, began_ms)
            return msgspec.structs.replace(shares, storage_token_hours=kept)
        return self._read(str(name), at_ms, seen, kept)

    def answered(self, prompt: array[int], held: array[int], at_ms: int) -> None:
        """Answers are not cached."""

    def prompt(self, body: JsonObject, ids: array[int]) -> array[int]:
        """A request's whole prompt: what its cache holds, then its own."""
        stored = self._explicit.get(str(body.get("cachedContent") or body.get("cached_content") or ""))
        return stored.ids + ids if stored else ids

    def drop(self, name: str, at_ms: int) -> float:
        """Delete an explicit cache; the token hours it was kept since they were last paid."""
        stored = self._explicit.pop(name, None)
        return 0.0 if stored is None else _token_hours(stored, at_ms)

    def extend(self, name: str, at_ms: int, ttl_s: float) -> None:
        """Give an explicit cache a new life from now on."""
        if name in self._explicit:
            self._explicit[name].expires_ms = at_ms + int(ttl_s * 1000)

    def _create(self, at_ms: int, seen: Seen, kept: float) -> Shares:
        name = str(seen.body.get("name") or f"cachedContents/{len(self._explicit) + 1}")
        ttl_ms = int(seconds(seen.body.get("ttl"), self._info.cache.ttl_s[0]) * 1000)
        self._explicit[name] = Stored(seen.ids, at_ms, at_ms + ttl_ms)
        return Shares(cause="first", note=f"{name} created", storage_token_hours=kept)

    def _read(self, name: str, at_ms: int, seen: Seen, kept: float) -> Shares:
        stored = self._explicit.get(name)
        cause: Cause = "" if stored and at_ms < stored.expires_ms else "ttl" if stored else "first"
        read = len(stored.ids) if stored and not cause else 0
        note = "" if not cause else f"{name} has expired" if stored else f"{name} was never created"
        return Shares(read, cause=cause, note=note, storage_token_hours=kept)

    def _kept_until(self, at_ms: int) -> float:
        """Token hours of storage since the last request, over all explicit caches."""
        return sum(_token_hours(stored, at_ms) for stored in self._explicit.values())


def _token_hours(stored: Stored, at_ms: int) -> float:
    until = min(at_ms, stored.expires_ms)
    hours = max(0, until - stored.paid_ms) / _HOUR_MS
    stored.paid_ms = max(stored.paid_ms, until)
    return hours * len(stored.ids)


def is_cache(body: JsonObject) -> bool:
    """Whether a body creates an explicit cache rather than asks for an answer."""
    return "ttl" in body or "expireTime" in body or str(body.get("name", "")).startswith("cachedContents/")


def seconds(ttl: object, default: float) -> float:
    """A duration as Google writes it: "300s" -> 300.0."""
    text = str(ttl or "").removesuffix("s")
    return float(text) if text.replace(".", "", 1).isdigit() else default
