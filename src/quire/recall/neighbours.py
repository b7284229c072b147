"""Who stands beside whom: documents of one session in order, and how much of a neighbour's words each takes over.

An answer takes over the question before it; in a dialogue a turn takes over some of what surrounds it.
Where one speaker speaks alone, entries stand for themselves and take over little.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quire.recall.columns import Column, Floats, Ints

REACH = 5
# Taken over from the entry before (if it asks, or not), from those further back, and from those behind.
_ASKED, _BEFORE = 1.0, 0.3
_BACK = 0.6
_AHEAD = 0.3
# What remains of all that where the speaker never changes.
ALONE = 0.2
_BACK_SHARES = tuple(np.float32(_BACK**distance) for distance in range(1, REACH + 1))
_AHEAD_SHARES = tuple(np.float32(_AHEAD * _BACK ** (distance - 1)) for distance in range(1, REACH + 1))
# Meaning is smoothed over a smaller circle.
MEANING_REACH = 2
_MEANING = 0.3


class Neighbours:
    """Links between the rows of a session, and the weights that follow from who speaks."""

    def __init__(self) -> None:
        self._before = Column(np.int32)
        self._behind = Column(np.int32)
        self._speaker = Column(np.int32)
        self._asks = Column(np.bool_)
        # How much of a dialogue a row stands in: 1 where the speaker changes at every step.
        self._dialogue = Column(np.float32)
        self._session: list[str] = []
        self._last: dict[str, int] = {}

    def add(
        self, first_row: int, sessions: Sequence[str], speakers: Sequence[int], asks: Sequence[bool]
    ) -> None:
        """Put consecutive rows behind the last ones of their sessions; an empty session is a row's own."""
        before = []
        for row, session in enumerate(sessions, first_row):
            before.append(self._last.get(session, -1) if session else -1)
            if session:
                self._last[session] = row
        self._session += sessions
        self._before.extend(before)
        self._behind.extend(np.full(len(before), -1))
        self._speaker.extend(speakers)
        self._asks.extend(asks)
        self._dialogue.extend(np.full(len(before), ALONE))
        linked = np.array(before, np.int64)
        self._behind.all[linked[linked >= 0]] = first_row + np.flatnonzero(linked >= 0)

    def remove(self, row: int) -> Ints:
        """Take a row out of its session; returns the rows whose surroundings changed."""
        around = self.around(np.array([row]), REACH)
        before, behind = int(self._before.all[row]), int(self._behind.all[row])
        if before >= 0:
            self._behind.all[before] = behind
        if behind >= 0:
            self._before.all[behind] = before
        if self._last.get(self._session[row]) == row:
            self._last[self._session[row]] = before
        self._before.all[row] = self._behind.all[row] = -1
        others: Ints = around[around != row]
        return others

    def around(self, rows: Ints, reach: int) -> Ints:
        """The rows and all within reach of them, in order, each once."""
        found = np.zeros(self._before.size, np.bool_)
        found[rows] = True
        for step in (self._before.all, self._behind.all):
            here = rows
            for _ in range(reach):
                here = step[here]
                here = here[here >= 0]
                found[here] = True
        return np.flatnonzero(found)

    def line(self, row: int, count: int) -> list[int]:
        """A row with up to `count` rows on each side, in order."""
        before: list[int] = []
        behind: list[int] = []
        for step, found in ((self._before.all, before), (self._behind.all, behind)):
            here = int(step[row])
            while here >= 0 and len(found) < count:
                found.append(here)
                here = int(step[here])
        return [*reversed(before), row, *behind]

    def settle(self, rows: Ints) -> None:
        """Work out anew how much of a dialogue these rows stand in."""
        before, behind = self._before.all, self._behind.all
        changes, pairs = np.zeros(len(rows), np.float32), np.zeros(len(rows), np.float32)
        ahead = behind[rows]
        further = np.where(ahead >= 0, behind[ahead], -1)
        for later in (rows, np.where(before[rows] >= 0, before[rows], -1), ahead, further):
            paired = (later >= 0) & (before[later] >= 0)
            changed = self._speaker.all[later] != self._speaker.all[before[later]]
            pairs += paired
            changes += paired & changed
        share = np.divide(changes, pairs, out=np.zeros_like(changes), where=pairs > 0)
        self._dialogue.all[rows] = ALONE + (1 - ALONE) * share

    def dialogue(self, rows: Ints) -> Floats:
        """0 where a speaker speaks alone, 1 where speakers take turns."""
        shares: Floats = (self._dialogue.all[rows] - ALONE) / (1 - ALONE)
        return shares

    def spread(self, own: Floats, rows: Ints, taken: Floats) -> None:
        """Give a value that these rows have to their neighbours too, weighed; `own` is 0 in all other rows.

        `taken` is room for one row more: what has no neighbour (-1) gives its share to the last, which is dropped.
        """
        taken.fill(0)
        value = own[rows]
        asked = value * np.where(self._asks.all[rows], np.float32(_ASKED), np.float32(_BEFORE))
        for step, first, shares in (
            (self._behind.padded(-1), asked, _BACK_SHARES),
            (self._before.padded(-1), value * _AHEAD_SHARES[0], _AHEAD_SHARES),
        ):
            here = step[rows]
            # No two rows have the same neighbour at one distance, so none is counted twice or lost.
            taken[here] += first
            for share in shares[1:]:
                here = step[here]
                taken[here] += value * share
        taken[:-1] *= self._dialogue.all
        own += taken[:-1]

    def gathered(self, rows: Ints, own: Floats) -> Floats:
        """What each row has together with its neighbours' weighed shares, of a value that every row has."""
        total = own[rows].astype(np.float32)
        before = self._before.all[rows]
        taken = np.where(self._asks.all[before], np.float32(_ASKED), np.float32(_BEFORE))
        for step, shares in (
            (self._before.all, [taken, *_BACK_SHARES[1:]]),
            (self._behind.all, list(_AHEAD_SHARES)),
        ):
            here = rows
            for share in shares:
                here = np.where(here >= 0, step[here], -1)
                total += np.where(here >= 0, own[here] * share * self._dialogue.all[rows], np.float32(0))
        return total

    def smoothed(self, rows: Ints, own: Floats) -> Floats:
        """A value of each row averaged with its neighbours', weighed by nearness."""
        total, weight = own[rows].astype(np.float32), np.ones(len(rows), np.float32)
        for step in (self._before.all, self._behind.all):
            here, share = rows, self._dialogue.all[rows].copy()
            for _ in range(MEANING_REACH):
                here = np.where(here >= 0, step[here], -1)
                share = np.where(here >= 0, share * np.float32(_MEANING), np.float32(0))
                total += np.where(here >= 0, share * own[here], np.float32(0))
                weight += share
        return total / weight
