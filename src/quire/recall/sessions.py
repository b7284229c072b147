"""Where a conversation pauses: entries of one session stand beside each other, others do not."""

from __future__ import annotations

import msgspec

# A pause of an hour begins another session; meta.session says otherwise where it is given.
PAUSE_MS = 3_600_000


class Called(msgspec.Struct, frozen=True):
    """A call that waits for its result: its entry, where it stands, and the words it will lend."""

    id: str
    seq: int
    words: str


class Sessions:
    """The running session of each chain of entries, and the calls that wait for their results."""

    def __init__(self) -> None:
        self._now: dict[int, tuple[int, str, int | None]] = {}
        self._calls: dict[tuple[int, str], list[Called]] = {}

    def of(self, chain: int, named: str, at: int | None) -> str:
        """The session of the next entry of a chain, by its name or the time since the one before."""
        count, name, last = self._now.get(chain, (0, named, at))
        paused = at is not None and last is not None and at - last >= PAUSE_MS
        if named != name or paused:
            count += 1
        self._now[chain] = (count, named, last if at is None else at)
        return f"{chain}/{count}"

    def called(self, chain: int, call_id: str, call: Called) -> None:
        self._calls.setdefault((chain, call_id), []).append(call)

    def answered(self, chain: int, call_id: str) -> Called | None:
        """The call that a result belongs to: the nearest earlier one with its id that has none yet."""
        waiting = self._calls.get((chain, call_id))
        return waiting.pop() if waiting else None
