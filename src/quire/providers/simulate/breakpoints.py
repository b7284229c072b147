"""OpenAI's cache from GPT-5.6 on: exact prefixes at breakpoints, and `prompt_cache_key` is part of the match."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator

from quire.log.hashing import canonical
from quire.providers.models import ModelInfo
from quire.providers.simulate.anthropic import Entry
from quire.providers.simulate.blocks import Block
from quire.providers.simulate.seen import Cause, Seen, Shares, common
from quire.values import JsonObject

# Who speaks at the end of a message that gets the implicit breakpoint.
_ASKING = frozenset({"user", "tool"})


class BreakpointCache:
    """One project's cache: up to four writes a request, read at any of the latest breakpoints."""

    by_ids = False
    keeps_answers = False

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._entries: dict[bytes, Entry] = {}
        self._before: list[bytes] = []

    def look(self, at_ms: int, seen: Seen, began_ms: int | None = None) -> Shares:
        """Read at the latest breakpoint that is stored, write the latest ones behind it."""
        options = seen.body.get("prompt_cache_options") or {}
        implicit = options.get("mode", "implicit") != "explicit"
        hashes = list(_hashes(seen.blocks, seen.body, self._info.model))
        places = _breakpoints(seen, implicit, self._info.min_cache_tokens)
        latest = places[-self._info.cache.lookback :]
        hit = next((place for place in reversed(latest) if self._readable(hashes[place], at_ms)), None)
        writes = _writes(seen, places, implicit, self._info.max_breakpoints)
        cause, note = self._why(seen, hashes, hit, places, at_ms)
        self._keep(
            [hashes[place] for place in writes],
            hashes[hit] if hit is not None else None,
            at_ms,
            began_ms,
            seen,
        )
        self._before = hashes
        return self._shares(seen, hit, writes, cause, note)

    def answered(self, prompt: array[int], held: array[int], at_ms: int) -> None:
        """Answers are not stored; assistant output takes no breakpoint."""

    def _readable(self, key: bytes, at_ms: int) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.alive(at_ms) and entry.readable_ms <= at_ms

    def _keep(
        self, keys: list[bytes], read: bytes | None, at_ms: int, began_ms: int | None, seen: Seen
    ) -> None:
        life_ms = self._life_s(seen) * 1000
        for key in keys if read is None else [read, *keys]:
            entry = self._entries.get(key)
            if entry and entry.alive(at_ms):
                entry.used_ms = at_ms
            else:
                self._entries[key] = Entry(life_ms, at_ms, max(at_ms + 1, began_ms or 0))

    def _life_s(self, seen: Seen) -> int:
        asked = (seen.body.get("prompt_cache_options") or {}).get("ttl")
        short, *longer = self._info.cache.ttl_s
        return longer[0] if longer and asked == "12h" else short

    def _shares(self, seen: Seen, hit: int | None, writes: list[int], cause: Cause, note: str) -> Shares:
        read = seen.ends[hit] if hit is not None else 0
        written = max(0, max((seen.ends[place] for place in writes), default=0) - read)
        if self._life_s(seen) > self._info.cache.ttl_s[0]:
            return Shares(read, 0, written, cause, note)
        return Shares(read, written, 0, cause, note)

    def _why(
        self, seen: Seen, hashes: list[bytes], hit: int | None, places: list[int], at_ms: int
    ) -> tuple[Cause, str]:
        if not self._before:
            return "first", "nothing was stored before this request"
        if not places:
            asked = (seen.body.get("prompt_cache_options") or {}).get("mode") == "explicit"
            if asked and not any(block.ttl_s for block in seen.blocks):
                return "marker", "explicit mode without a breakpoint uses no cache"
            return "minimum", f"no breakpoint stands behind {self._info.min_cache_tokens:,} tokens"
        same = common(self._before, hashes)
        stored = next((place for place in range(same - 1, -1, -1) if hashes[place] in self._entries), None)
        if stored is not None and (hit is None or hit < stored):
            entry = self._entries[hashes[stored]]
            if entry.readable_ms > at_ms:
                return "in-flight", "the request that stores it had not begun to answer"
            if not entry.alive(at_ms):
                return "ttl", f"last used {(at_ms - entry.used_ms) // 1000:,} s before"
            return "marker", f"no breakpoint of this request stands at {seen.blocks[stored].path}"
        if same < len(self._before):
            where = seen.blocks[same].path if same < len(seen.blocks) else "the end"
            return "moved", f"{where} differs from the request before"
        return "", ""


def _hashes(blocks: list[Block], body: JsonObject, model: str) -> Iterator[bytes]:
    """The running hash at each block; whatever OpenAI's diagnostics name as a change is hashed in front."""
    settings = [
        model,
        body.get("prompt_cache_key"),
        (body.get("reasoning") or {}).get("effort") or body.get("reasoning_effort"),
        (body.get("text") or {}).get("verbosity") or body.get("verbosity"),
        body.get("service_tier") or "auto",
    ]
    running = hashlib.sha256(canonical(settings)).digest()
    for block in blocks:
        running = hashlib.sha256(running + block.data).digest()
        yield running


def _breakpoints(seen: Seen, implicit: bool, minimum: int) -> list[int]:
    """Where this conversation has breakpoints: its marks and, unless they are off, ends of what was asked."""
    return [
        place
        for place, block in enumerate(seen.blocks)
        if seen.ends[place] >= minimum and (block.ttl_s or (implicit and _asks(block)))
    ]


def _asks(block: Block) -> bool:
    return block.closes and block.role in _ASKING


def _writes(seen: Seen, places: list[int], implicit: bool, most: int) -> list[int]:
    """What a request writes: its latest marks, and one implicit breakpoint at the latest message that asks."""
    marked = [place for place in places if seen.blocks[place].ttl_s]
    if not implicit:
        return marked[-most:]
    latest = [place for place in places if _asks(seen.blocks[place])][-1:]
    return sorted({*marked[-(most - 1) :], *latest})
