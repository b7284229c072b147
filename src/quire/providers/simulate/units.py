"""DeepSeek's cache: whole stored units or nothing.

Units end where a request's input ends, where its answer ends, where two requests were found to share a
beginning, and every so many tokens of a long text (the interval is not published: by default none is assumed).
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, bisect_right, insort

from quire.providers.models import ModelInfo
from quire.providers.simulate.radix import RadixTree, shared
from quire.providers.simulate.seen import Cause, Seen, Shares


class Prefixes:
    """Hashes of the beginnings of a prompt; another prompt keeps those of the beginnings it shares."""

    def __init__(self) -> None:
        self._ids = array("i")
        self._ends = [0]
        self._at = {0: hashlib.sha256()}

    def follow(self, ids: array[int]) -> int:
        """Go over to another prompt; how much of it is the one before's."""
        same = shared(self._ids, ids)
        kept = bisect_right(self._ends, same)
        for end in self._ends[kept:]:
            del self._at[end]
        del self._ends[kept:]
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


class UnitCache:
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

    def look(self, at_ms: int, seen: Seen, began_ms: int | None = None) -> Shares:
        self._follow(seen.ids)
        read = self._longest(len(seen.ids), at_ms)
        shared = self._prompts.match(seen.ids)
        cause, note = self._why(read, shared)
        self._store(len(seen.ids), at_ms)
        if 0 < shared < len(seen.ids):
            # The common beginning becomes a unit now: the third request that has it can read it.
            self._store(shared, at_ms)
        for end in range(self._interval, len(seen.ids), self._interval) if self._interval else ():
            self._store(end, at_ms)
        self._prompts.insert(seen.ids, at_ms)
        return Shares(read, cause=cause, note=note)

    def answered(self, prompt: array[int], held: array[int], at_ms: int) -> None:
        """The end of the answer ends a unit too."""
        whole = prompt + held
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
        return next((one for one in reversed(self._lengths[:end]) if self._is_stored(one, at_ms)), 0)

    def _is_stored(self, length: int, at_ms: int) -> bool:
        return self._units.get(self._prefixes.digest(length), at_ms) < at_ms

    def _store(self, length: int, at_ms: int) -> None:
        self._units.setdefault(self._prefixes.digest(length), at_ms)
        place = bisect_left(self._lengths, length)
        if self._lengths[place : place + 1] != [length]:
            self._lengths.insert(place, length)

    def _why(self, read: int, shared: int) -> tuple[Cause, str]:
        if not self._units:
            return "first", "nothing was stored before this request"
        if shared > read:
            return (
                "moved",
                f"{shared:,} tokens are shared with an earlier request, but no stored unit ends there",
            )
        return "", ""
