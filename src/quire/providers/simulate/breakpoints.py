"""OpenAI's cache from GPT-5.6 on: exact prefixes at breakpoints, and `prompt_cache_key` is part of the match."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from itertools import islice, takewhile

from quire.log.hashing import canonical
from quire.providers.models import ModelInfo
from quire.providers.running import Running
from quire.providers.simulate.blocks import Block, marked
from quire.providers.simulate.seen import Cause, Seen, Shares
from quire.providers.simulate.shelf import Shelf
from quire.values import JsonObject

# Who speaks at the end of a message that gets the implicit breakpoint.
_ASKING = frozenset({"user", "tool"})


class BreakpointCache:
    """One project's cache: up to four writes a request, read at any of the latest breakpoints."""

    by_ids = False
    keeps_answers = False

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._shelf = Shelf()
        self._hashes: Running[Block, bytes] = Running()

    def look(self, at_ms: int, seen: Seen, began_ms: int | None = None) -> Shares:
        """Read at the latest breakpoint that is stored, write the latest ones."""
        implicit = _options(seen).get("mode", "implicit") != "explicit"
        start = _settings(seen.body, self._info.model)
        hashes = self._hashes.along(seen.blocks, start, _step, ground=start)
        marks = [place for place in marked(seen.blocks) if seen.ends[place] >= self._info.min_cache_tokens]
        asks = list(self._asked(seen)) if implicit else []
        places = sorted({*marks, *asks})[-self._info.cache.lookback :]
        hit = next((one for one in reversed(places) if self._shelf.readable(hashes[one], at_ms)), None)
        cause, note = self._why(seen, hashes, hit, places, at_ms)
        most = self._info.max_breakpoints
        # The latest marks; unless they are off, one implicit breakpoint at the latest message that asks.
        writes = sorted({*marks[-(most - 1) :], *asks[:1]}) if implicit else marks[-most:]
        for place in writes if hit is None else [hit, *writes]:
            self._shelf.keep(hashes[place], self._life_s(seen) * 1000, at_ms, began_ms)
        self._shelf.saw(hashes)
        return self._shares(seen, hit, writes, cause, note)

    def answered(self, prompt: array[int], held: array[int], at_ms: int) -> None:
        """Answers are not stored; assistant output takes no breakpoint."""

    def _asked(self, seen: Seen) -> Iterator[int]:
        """Implicit breakpoints, the latest first: ends of what was asked, as many as are looked at."""
        back = range(len(seen.blocks) - 1, -1, -1)
        long = takewhile(lambda place: seen.ends[place] >= self._info.min_cache_tokens, back)
        return islice((place for place in long if _asks(seen.blocks[place])), self._info.cache.lookback)

    def _life_s(self, seen: Seen) -> int:
        short, *longer = self._info.cache.ttl_s
        return longer[0] if longer and _options(seen).get("ttl") == "12h" else short

    def _shares(self, seen: Seen, hit: int | None, writes: list[int], cause: Cause, note: str) -> Shares:
        read = seen.ends[hit] if hit is not None else 0
        written = max(0, max((seen.ends[place] for place in writes), default=0) - read)
        if self._life_s(seen) > self._info.cache.ttl_s[0]:
            return Shares(read, 0, written, cause, note)
        return Shares(read, written, 0, cause, note)

    def _why(
        self, seen: Seen, hashes: list[bytes], hit: int | None, places: list[int], at_ms: int
    ) -> tuple[Cause, str]:
        if self._shelf.untouched:
            return "first", "nothing was stored before this request"
        if (
            not places
            and _options(seen).get("mode") == "explicit"
            and not any(one.ttl_s for one in seen.blocks)
        ):
            return "marker", "explicit mode without a breakpoint uses no cache"
        if not places:
            return "minimum", f"no breakpoint stands behind {self._info.min_cache_tokens:,} tokens"
        return self._shelf.why(hashes, seen.blocks, hit, at_ms)


def _options(seen: Seen) -> JsonObject:
    options: JsonObject = seen.setting("prompt_cache_options") or {}
    return options


def _settings(body: JsonObject, model: str) -> bytes:
    """What stands in front of the first block's hash: whatever OpenAI's diagnostics name as a change."""
    settings = [
        model,
        body.get("prompt_cache_key"),
        (body.get("reasoning") or {}).get("effort") or body.get("reasoning_effort"),
        (body.get("text") or {}).get("verbosity") or body.get("verbosity"),
        body.get("service_tier") or "auto",
    ]
    return hashlib.sha256(canonical(settings)).digest()


def _step(running: bytes, block: Block) -> bytes:
    return hashlib.sha256(running + block.digest).digest()


def _asks(block: Block) -> bool:
    return block.closes and block.role in _ASKING
