"""DeepSeek's cache: whole stored units or nothing.

Units end where a request's input ends, where its answer ends, where two requests were found to share a
beginning, and every so many tokens of a long text (the interval is not published: by default none is assumed).
"""

from __future__ import annotations

import hashlib
from array import array

from quire.providers.models import ModelInfo
from quire.providers.simulate.radix import RadixTree
from quire.providers.simulate.seen import Cause, Seen, Shares


class UnitCache:
    """Stored units by their ids; a request reads the longest unit that it begins with."""

    by_ids = True
    keeps_answers = True

    def __init__(self, info: ModelInfo, interval: int = 0) -> None:
        self._interval = interval
        self._units: dict[bytes, int] = {}
        # The lengths that units have, so that a request is only hashed where one may end.
        self._lengths: set[int] = set()
        self._prompts = RadixTree()

    def look(self, at_ms: int, seen: Seen, began_ms: int | None = None) -> Shares:
        read = self._longest(seen.ids, at_ms)
        shared = self._prompts.match(seen.ids)
        cause, note = self._why(read, shared)
        self._store(seen.ids, len(seen.ids), at_ms)
        if 0 < shared < len(seen.ids):
            # The common beginning becomes a unit now: the third request that has it can read it.
            self._store(seen.ids, shared, at_ms)
        for end in range(self._interval, len(seen.ids), self._interval) if self._interval else ():
            self._store(seen.ids, end, at_ms)
        self._prompts.insert(seen.ids, at_ms)
        return Shares(read, cause=cause, note=note)

    def answered(self, prompt: array[int], held: array[int], at_ms: int) -> None:
        """The end of the answer ends a unit too."""
        whole = prompt + held
        self._store(whole, len(whole), at_ms)
        self._prompts.insert(whole, at_ms)

    def _longest(self, ids: array[int], at_ms: int) -> int:
        """One pass over the request, looking where a unit may end."""
        running, done, longest = hashlib.sha256(), 0, 0
        for length in sorted(one for one in self._lengths if one <= len(ids)):
            running.update(ids[done:length].tobytes())
            done = length
            stored_ms = self._units.get(running.digest())
            if stored_ms is not None and stored_ms < at_ms:
                longest = length
        return longest

    def _store(self, ids: array[int], length: int, at_ms: int) -> None:
        self._units.setdefault(hashlib.sha256(ids[:length].tobytes()).digest(), at_ms)
        self._lengths.add(length)

    def _why(self, read: int, shared: int) -> tuple[Cause, str]:
        if not self._units:
            return "first", "nothing was stored before this request"
        if shared > read:
            return (
                "moved",
                f"{shared:,} tokens are shared with an earlier request, but no stored unit ends there",
            )
        return "", ""
