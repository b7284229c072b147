"""vLLM's cache: full blocks of tokens, each keyed by its tokens and the key of the block before it."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict

from quire.providers.models import ModelInfo
from quire.providers.simulate.radix import shared
from quire.providers.simulate.seen import Cause, Seen, Shares


class BlockCache:
    """Blocks of one size, the longest unused evicted first; a block that is not full is never stored."""

    by_ids = True
    keeps_answers = True

    def __init__(self, info: ModelInfo, size: int | None = None, capacity_blocks: int | None = None) -> None:
        self._size = size or info.cache.step
        self._capacity = capacity_blocks
        self._stored: OrderedDict[bytes, None] = OrderedDict()
        self._salt = ""
        # The request before: most of a new one repeats it, and its keys with it.
        self._before: tuple[str, array[int], list[bytes]] = ("", array("i"), [])

    def look(self, at_ms: int, seen: Seen, began_ms: int | None = None) -> Shares:
        """Read leading blocks that are stored; at least one token is always computed."""
        self._salt = str(seen.setting("cache_salt") or "")
        first: Cause = "" if self._stored else "first"
        keys, sure = self._keys(seen.ids)
        absent = bytes(map(self._stored.__contains__, keys[sure:])).find(0)
        stored = len(keys) if absent < 0 else sure + absent
        self._store(keys, sure)
        read = min(stored, max(0, len(seen.ids) - 1) // self._size)
        return Shares(read * self._size, cause=first)

    def answered(self, prompt: array[int], held: array[int], at_ms: int) -> None:
        """Full blocks of prompt and answer are kept."""
        self._store(*self._keys(prompt + held))

    def _keys(self, ids: array[int]) -> tuple[list[bytes], int]:
        """The key of each full block, and how many leading ones are surely stored."""
        salt, before, known = self._before
        same = shared(before, ids) // self._size if salt == self._salt else 0
        keys = known[:same]
        parent = keys[-1] if keys else hashlib.sha256(self._salt.encode()).digest()
        for start in range(same * self._size, len(ids) - self._size + 1, self._size):
            parent = hashlib.sha256(parent + ids[start : start + self._size].tobytes()).digest()
            keys.append(parent)
        self._before = (self._salt, ids, keys)
        # Where nothing is ever evicted, what the request before stored is there.
        return keys, same if self._capacity is None else 0

    def _store(self, keys: list[bytes], sure: int) -> None:
        # Blocks are freed from the end of a request, so its tail is evicted before its head.
        for key in reversed(keys[sure:]):
            self._stored[key] = None
            self._stored.move_to_end(key)
        while self._capacity is not None and len(self._stored) > self._capacity:
            self._stored.popitem(last=False)
