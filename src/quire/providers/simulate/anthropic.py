"""Anthropic's cache, and Bedrock's: written at marks only, found by walking back from them.

Entries are keyed by a running hash over tools, system and messages. Settings that a provider's table says
invalidate a level are hashed where that level begins.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterator, Sequence
from itertools import takewhile
from operator import attrgetter

from quire.log.hashing import canonical
from quire.providers.models import ModelInfo
from quire.providers.running import Running
from quire.providers.simulate.blocks import Block, marked
from quire.providers.simulate.seen import Cause, Seen, Shares
from quire.providers.simulate.shelf import Shelf
from quire.values import JsonObject

# Server tools whose presence changes the system prompt and leaves the tools' cache alone.
_WEB = ("web_search", "web_fetch")
_UNMARKABLE = frozenset({"thinking", "redacted_thinking"})
# Runs of these count as one place where the walk back is concerned.
_RUNS = frozenset({"tool_use", "tool_result"})
# From these versions on, earlier thinking stays in the prompt when the user speaks again.
_KEEPS_THINKING = {"opus": (4, 5), "sonnet": (4, 6), "haiku": (5, 5)}
_VERSION = re.compile(r"claude-(opus|sonnet|haiku)-(\d+)-?(\d+)?(?!\d)")


class AnthropicCache:
    """One workspace's cache; `runs_as_one` is the Claude API's reading of tool blocks, Bedrock counts each."""

    by_ids = False
    keeps_answers = False

    def __init__(self, info: ModelInfo, runs_as_one: bool = True) -> None:
        self._info = info
        self._runs_as_one = runs_as_one
        self._shelf = Shelf()
        self._ends: Running[Block, int] = Running()
        self._hashes: Running[Block, bytes] = Running()

    def look(self, at_ms: int, seen: Seen, began_ms: int | None = None) -> Shares:
        """Find the longest stored prefix, then store what the marks ask for."""
        row = self._row(seen)
        hit = self._hit(row, at_ms)
        cause, note = self._why(row, hit, at_ms)
        for place in row.marks if hit is None else [hit, *row.marks]:
            self._shelf.keep(row.hashes[place], row.life_ms(place), at_ms, began_ms)
        self._shelf.saw(row.hashes)
        return self._shares(row, hit, cause, note)

    def answered(self, prompt: array[int], held: array[int], at_ms: int) -> None:
        """Answers are not stored: they are written when the next request marks them."""

    def _row(self, seen: Seen) -> Row:
        """The request's blocks; their ends and hashes go on from where they part with those of the one before."""
        blocks = _kept(seen.blocks, self._info)
        return Row(
            blocks,
            self._ends.along(blocks, 0, lambda total, block: total + seen.count(block)),
            _hashes(self._hashes, blocks, seen.body, self._info),
            _lives(blocks, seen.body),
            self._info,
            self._runs_as_one,
        )

    def _hit(self, row: Row, at_ms: int) -> int | None:
        """The place of the longest prefix that a walk from the last mark, or an earlier one, reaches."""
        for mark in reversed(row.marks):
            for place in row.back_from(mark, self._info.cache.lookback):
                if self._shelf.readable(row.hashes[place], at_ms):
                    return place
        return None

    def _shares(self, row: Row, hit: int | None, cause: Cause, note: str) -> Shares:
        """Read up to the hit (A), the longer life up to its last mark (B), the shorter one up to the last (C)."""
        a = row.ends[hit] if hit is not None else 0
        behind = [place for place in row.marks if hit is None or place > hit]
        short_life = self._info.cache.ttl_s[0] * 1000
        b = max((row.ends[place] for place in behind if row.life_ms(place) > short_life), default=a)
        c = max((row.ends[place] for place in behind), default=a)
        return Shares(a, max(0, c - max(a, b)), max(0, b - a), cause, note)

    def _why(self, row: Row, hit: int | None, at_ms: int) -> tuple[Cause, str]:
        if self._shelf.untouched:
            return "first", "nothing was stored before this request"
        if not row.marked:
            return "marker", "no block carries a mark"
        if not row.marks:
            return "minimum", f"no mark stands behind {row.minimum:,} tokens"
        return self._shelf.why(row.hashes, row.blocks, hit, at_ms)


class Row:
    """The blocks of one request with their token ends, running hashes and marks."""

    def __init__(
        self,
        blocks: Sequence[Block],
        ends: list[int],
        hashes: list[bytes],
        lives: dict[int, int],
        info: ModelInfo,
        runs_as_one: bool,
    ) -> None:
        self.blocks, self.ends, self.hashes = blocks, ends, hashes
        self.minimum = info.min_cache_tokens
        self._lives, self._runs_as_one = lives, runs_as_one
        self._default_life_ms = info.cache.ttl_s[0] * 1000
        self.marked = sorted(lives)
        # A mark before the minimum is passed over in silence.
        self.marks = [place for place in self.marked if ends[place] >= self.minimum]

    def life_ms(self, place: int) -> int:
        life = self._lives.get(place, -1)
        return life * 1000 if life > 0 else self._default_life_ms

    def back_from(self, mark: int, lookback: int) -> Iterator[int]:
        """The blocks a walk back from a mark looks at, the mark's own first; a run of tool blocks is one step."""
        steps = 0
        for place in range(mark, -1, -1):
            steps += place < mark and not self._is_run(place)
            if steps >= lookback:
                return
            yield place

    def _is_run(self, place: int) -> bool:
        kind = self.blocks[place].kind
        return self._runs_as_one and kind in _RUNS and kind == self.blocks[place + 1].kind


def _kept(blocks: list[Block], info: ModelInfo) -> list[Block]:
    """The blocks that are in the prompt: older models forget thinking once the user says something new."""
    if _keeps_thinking(info.model):
        return blocks
    spoken = next((place for place in range(len(blocks) - 1, -1, -1) if _is_asking(blocks[place])), -1)
    return [block for place, block in enumerate(blocks) if place > spoken or block.kind not in _UNMARKABLE]


def _is_asking(block: Block) -> bool:
    return block.role == "user" and block.kind != "tool_result"


def _keeps_thinking(model: str) -> bool:
    version = _VERSION.search(model)
    if version is None:
        return True
    return (int(version[2]), int(version[3] or 0)) >= _KEEPS_THINKING[version[1]]


def _hashes(
    running: Running[Block, bytes], blocks: list[Block], body: JsonObject, info: ModelInfo
) -> list[bytes]:
    """The running hash at each block; a level's settings, and those of the levels before it, go into its blocks'."""
    system = _system_settings(blocks, body)
    settings = {"tools": b"", "system": system, "messages": system + _message_settings(blocks, body, info)}

    def step(before: bytes, block: Block) -> bytes:
        if _is_web(block):
            return before
        return hashlib.sha256(before + settings[block.section] + block.digest).digest()

    return running.along(blocks, hashlib.sha256(info.model.encode()).digest(), step, ground=settings)


def _is_web(block: Block) -> bool:
    return block.section == "tools" and block.kind.startswith(_WEB)


def _system_settings(blocks: list[Block], body: JsonObject) -> bytes:
    """What breaks the cache from the system prompt on: web tools, citations, speed."""
    tools = takewhile(lambda block: block.section == "tools", blocks)
    web = [block.data.decode() for block in tools if _is_web(block)]
    citations = any(map(attrgetter("cites"), blocks))
    return canonical([sorted(web), citations, body.get("speed") or "standard"])


def _message_settings(blocks: list[Block], body: JsonObject, info: ModelInfo) -> bytes:
    """What breaks the cache from the messages on: tool choice, images at all, thinking and effort."""
    choice = body.get("tool_choice")
    images = any(map(attrgetter("pictures"), blocks))
    thinking = body.get("thinking") or {}
    usual = "disabled" if "disabled" in info.features.thinking else "adaptive"
    effort = (body.get("output_config") or {}).get("effort") or "high"
    return canonical(
        [
            None if choice == {"type": "auto"} else choice,
            images,
            thinking.get("type") or usual,
            thinking.get("budget_tokens"),
            effort,
        ]
    )


def _lives(blocks: list[Block], body: JsonObject) -> dict[int, int]:
    """Marked places and the lives they ask for; a mark on the request itself sits on the last block that may have one."""
    lives = {place: blocks[place].ttl_s for place in marked(blocks) if markable(blocks[place])}
    auto = body.get("cache_control")
    if auto:
        last = next((place for place in range(len(blocks) - 1, -1, -1) if markable(blocks[place])), None)
        if last is not None:
            lives.setdefault(last, 3600 if auto.get("ttl") == "1h" else -1)
    return lives


def markable(block: Block) -> bool:
    """Whether a block may carry a mark: thinking and empty text may not."""
    return block.kind not in _UNMARKABLE and not (block.kind == "text" and not block.text)
