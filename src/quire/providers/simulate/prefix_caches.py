"""Automatic prefix caches that read whole steps: OpenAI up to GPT-5.5 (128 tokens), xAI, Groq, Mistral."""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, bisect_right, insort

import msgspec

from quire.providers.models import ModelInfo
from quire.providers.simulate.blocks import Cause, Engine, EngineView, Shares
from quire.providers.simulate.engine_caches import RadixTree, shared
from quire.values import JsonObject


class StepCache(Engine):
    """The longest stored prefix, rounded down to a step; lives end when a prefix goes unused too long."""

    by_ids = True

    def __init__(self, info: ModelInfo) -> None:
        self._cache = info.cache
        self._trees: dict[str, RadixTree] = {}
        # The lengths of the prompts that were seen, to tell one that was too short from one that differs.
        self._lengths: dict[str, set[int]] = {}

    def look(self, at_ms: int, request: EngineView, began_ms: int | None = None) -> Shares:
        """Requests with another key are served elsewhere, and share nothing."""
        key = str(request.setting(self._cache.key) or "") if self._cache.key else ""
        tree = self._trees.setdefault(key, RadixTree())
        life_ms = self._life_ms(request)
        stored = tree.match(request.ids)
        # What was stored at this very moment is not there yet.
        matched = tree.match(
            request.ids, lambda node: node.stored_ms < at_ms and (life_ms is None or at_ms - node.used_ms < life_ms)
        )
        read = self._rounded(matched)
        lengths = self._lengths.setdefault(key, set())
        cause, note = self._why(tree, stored, matched, len(request.ids), lengths)
        tree.insert(request.ids, at_ms)
        lengths.add(len(request.ids))
        return Shares(read, cause=cause, note=note)

    def _rounded(self, tokens: int) -> int:
        whole = tokens // self._cache.step * self._cache.step if self._cache.step else tokens
        return whole if whole >= max(1, self._cache.min_tokens) else 0

    def _life_ms(self, request: EngineView) -> int | None:
        """The idle life in force: `prompt_cache_retention` may ask for the longer one."""
        if not self._cache.ttl_s:
            return None
        longer = request.setting("prompt_cache_retention") == "24h"
        return self._cache.ttl_s[-1 if longer else 0] * 1000

    def _why(self, tree: RadixTree, stored: int, matched: int, total: int, lengths: set[int]) -> tuple[Cause, str]:
        if not tree.size:
            return "first", "nothing was stored before this request"
        if self._rounded(stored) > self._rounded(matched):
            return "ttl", f"{stored:,} tokens were stored, but unused for too long"
        if self._rounded(matched):
            return "", ""
        least = max(self._cache.min_tokens, self._cache.step)
        if total < least:
            return "minimum", f"prompts under {least:,} tokens are not cached"
        # All of an earlier prompt was found again, or none could be stored.
        if matched in lengths or max(lengths) < least:
            return "minimum", f"the requests before had less than {least:,} tokens to store"
        return "moved", "the prompt differs early from every earlier one"


# Gemini's two caches: the implicit one, any common prefix; and explicit `cachedContents`, paid for by the hour.

_HOUR_MS = 3_600_000


class ExplicitCache(msgspec.Struct):
    """One explicit cache: its prompt, and until when it is kept and paid for."""

    ids: array[int]
    paid_ms: int
    expires_ms: int


class GeminiCache(Engine):
    """A request that names a cache reads all of it; any other reads what the implicit cache happens to have."""

    by_ids = True

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._implicit = StepCache(info)
        self._explicit: dict[str, ExplicitCache] = {}

    def look(self, at_ms: int, request: EngineView, began_ms: int | None = None) -> Shares:
        # Token hours of storage since the last request, over all explicit caches.
        token_hours = sum(_token_hours(stored, at_ms) for stored in self._explicit.values())
        if is_cache(request.body):
            return self._create(at_ms, request, token_hours)
        name = request.body.get("cachedContent") or request.body.get("cached_content")
        if not name:
            shares = self._implicit.look(at_ms, request, began_ms)
            return msgspec.structs.replace(shares, storage_token_hours=token_hours)
        return self._read(str(name), at_ms, request, token_hours)

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

    def _create(self, at_ms: int, request: EngineView, token_hours: float) -> Shares:
        name = str(request.body.get("name") or f"cachedContents/{len(self._explicit) + 1}")
        ttl_ms = int(seconds(request.body.get("ttl"), self._info.cache.ttl_s[0]) * 1000)
        self._explicit[name] = ExplicitCache(request.ids, at_ms, at_ms + ttl_ms)
        return Shares(cause="first", note=f"{name} created", storage_token_hours=token_hours)

    def _read(self, name: str, at_ms: int, request: EngineView, token_hours: float) -> Shares:
        stored = self._explicit.get(name)
        cause: Cause = "" if stored and at_ms < stored.expires_ms else "ttl" if stored else "first"
        read = len(stored.ids) if stored and not cause else 0
        note = "" if not cause else f"{name} has expired" if stored else f"{name} was never created"
        return Shares(read, cause=cause, note=note, storage_token_hours=token_hours)


def _token_hours(stored: ExplicitCache, at_ms: int) -> float:
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


# DeepSeek's cache: whole stored units or nothing.
#
# Units end where a request's input ends, where its answer ends, where two requests were found to share a
# beginning, and every so many tokens of a long text (the interval is not published: by default none is assumed).


class Prefixes:
    """Hashes of the beginnings of a prompt; another prompt keeps those of the beginnings it shares."""

    def __init__(self) -> None:
        self._ids = array("i")
        self._ends = [0]
        self._at = {0: hashlib.sha256()}

    def follow(self, ids: array[int]) -> int:
        """Go over to another prompt; how much of it is the one before's."""
        same = shared(self._ids, ids)
        valid = bisect_right(self._ends, same)
        for end in self._ends[valid:]:
            del self._at[end]
        del self._ends[valid:]
        self._ids = ids
        return same

    def digest(self, length: int) -> bytes:
        """The hash of the first so many ids, made from the nearest beginning that was hashed before."""
        if length not in self._at:
            near = self._ends[bisect_right(self._ends, length) - 1]
            self._at[length] = running = self._at[near].copy()
            running.update(self._ids[near:length].tobytes())
            insort(self._ends, length)
        return self._at[length].digest()


class UnitCache(Engine):
    """Stored units by their ids; a request reads the longest unit that it begins with."""

    by_ids = True
    keeps_answers = True

    def __init__(self, info: ModelInfo, interval: int = 0) -> None:
        self._interval = interval
        self._units: dict[bytes, int] = {}
        # The lengths that units have, so that a request is only hashed where one may end.
        self._lengths: list[int] = []
        self._prompts = RadixTree()
        self._prefixes = Prefixes()
        # Up to where the prompt at hand was hashed at every one of these lengths.
        self._hashed = 0

    def look(self, at_ms: int, request: EngineView, began_ms: int | None = None) -> Shares:
        self._follow(request.ids)
        read = self._longest(len(request.ids), at_ms)
        shared = self._prompts.match(request.ids)
        cause, note = self._why(read, shared)
        self._store(len(request.ids), at_ms)
        if 0 < shared < len(request.ids):
            # The common beginning becomes a unit now: the third request that has it can read it.
            self._store(shared, at_ms)
        for end in range(self._interval, len(request.ids), self._interval) if self._interval else ():
            self._store(end, at_ms)
        self._prompts.insert(request.ids, at_ms)
        return Shares(read, cause=cause, note=note)

    def answered(self, prompt: array[int], answer: array[int], at_ms: int) -> None:
        """The end of the answer ends a unit too."""
        whole = prompt + answer
        self._follow(whole)
        self._store(len(whole), at_ms)
        self._prompts.insert(whole, at_ms)

    def _follow(self, ids: array[int]) -> None:
        self._hashed = min(self._hashed, self._prefixes.follow(ids))

    def _longest(self, total: int, at_ms: int) -> int:
        """The longest unit that the request begins with, looked for where a unit may end."""
        first, end = (bisect_right(self._lengths, length) for length in (self._hashed, total))
        # The short ones first, so that each goes on from the one before.
        for length in self._lengths[first:end]:
            self._prefixes.digest(length)
        self._hashed = total
        lengths = reversed(self._lengths[:end])
        return next((size for size in lengths if self._units.get(self._prefixes.digest(size), at_ms) < at_ms), 0)

    def _store(self, length: int, at_ms: int) -> None:
        self._units.setdefault(self._prefixes.digest(length), at_ms)
        place = bisect_left(self._lengths, length)
        if self._lengths[place : place + 1] != [length]:
            self._lengths.insert(place, length)

    def _why(self, read: int, shared: int) -> tuple[Cause, str]:
        if not self._units:
            return "first", "nothing was stored before this request"
        if shared > read:
            return ("moved", f"{shared:,} tokens are shared with an earlier request, but no stored unit ends there")
        return "", ""
