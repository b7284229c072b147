"""Stored prefixes by their running hashes, for caches that store at marked places only."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from quire.providers.simulate.blocks import Block
from quire.providers.simulate.seen import Cause


class Entry(msgspec.Struct):
    """One stored prefix: its life starts again with each request that uses it."""

    life_ms: int
    used_ms: int
    readable_ms: int

    def alive(self, at_ms: int) -> bool:
        return at_ms - self.used_ms < self.life_ms


class Shelf:
    """What one cache has stored, and the latest requests, to tell what a new one has in common with them."""

    def __init__(self) -> None:
        self._entries: dict[bytes, Entry] = {}
        # Threads may alternate, so a new request is compared with several.
        self._recent: deque[list[bytes]] = deque(maxlen=16)

    @property
    def untouched(self) -> bool:
        """Whether no request was ever seen."""
        return not self._recent

    def readable(self, key: bytes, at_ms: int) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.alive(at_ms) and entry.readable_ms <= at_ms

    def keep(self, key: bytes, life_ms: int, at_ms: int, began_ms: int | None) -> None:
        """Store a prefix; one that is there already starts its own life again, and no other is bought."""
        entry = self._entries.get(key)
        if entry is not None and entry.alive(at_ms):
            entry.used_ms = at_ms
        else:
            # What a request stores can be read once its answer has begun.
            self._entries[key] = Entry(life_ms, at_ms, max(at_ms + 1, began_ms or 0))

    def saw(self, hashes: list[bytes]) -> None:
        """Remember a request's running hashes."""
        self._recent.append(hashes)

    def why(
        self, hashes: list[bytes], blocks: Sequence[Block], hit: int | None, at_ms: int
    ) -> tuple[Cause, str]:
        """Why a request that read up to `hit` did not read all that an earlier one had in common with it."""
        before = max(reversed(self._recent), key=lambda earlier: common(earlier, hashes))
        same = common(before, hashes)
        stored = next((place for place in range(same - 1, -1, -1) if hashes[place] in self._entries), None)
        if stored is not None and (hit is None or hit < stored):
            return self._lost(self._entries[hashes[stored]], blocks[stored], at_ms)
        if same < len(before):
            return "moved", _moved(blocks, same)
        return (
            ("minimum", "the request before had nothing long enough to store") if stored is None else ("", "")
        )

    def _lost(self, entry: Entry, block: Block, at_ms: int) -> tuple[Cause, str]:
        if entry.readable_ms > at_ms:
            return "in-flight", "the request that stores it had not begun to answer"
        if not entry.alive(at_ms):
            passed, kept = (at_ms - entry.used_ms) // 1000, entry.life_ms // 1000
            return "ttl", f"last used {passed:,} s before, kept for {kept:,} s"
        return "marker", f"what is stored up to {block.path} is out of reach of every mark"


def _moved(blocks: Sequence[Block], place: int) -> str:
    if place >= len(blocks):
        return "the request is shorter than the one before"
    return f"{blocks[place].path} differs from the request before"


def common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """How many leading running hashes agree; after the first difference none does, so halving finds it."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[middle - 1] == other[middle - 1] else (low, middle - 1)
    return low
