"""Who stands beside whom: rows of one session in order, and how much of a neighbour's words each takes over.

An answer takes over the question before it; in a dialogue a turn takes over some of what surrounds it.
Where one speaker speaks alone, entries stand for themselves and take over little. A long text lends little.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from quire.recall.columns import Bools, Floats, Ints

REACH = 5
# Taken over from the entry before (if it asks, or not), from those further back, and from those behind.
_ASKED, _BEFORE = 1.0, 0.3
_BACK = 0.6
_AHEAD = 0.3
# A text of more words than this lends each of them in proportion less.
_LENDS_WHOLE = 20
_BACK_SHARES = tuple(np.float32(_BACK**distance) for distance in range(2, REACH + 1))
_AHEAD_SHARES = tuple(np.float32(_AHEAD * _BACK ** (distance - 1)) for distance in range(1, REACH + 1))
# What remains of all that where the speaker never changes.
ALONE = 0.2
# Meaning is smoothed over a smaller circle.
_MEANING_REACH = 2
_MEANING = 0.3


class Neighbours:
    """Links between rows of one session, and the weights that follow from who speaks; made anew when rows change."""

    def __init__(self, sessions: Ints, speakers: Ints, asks: Bools, lengths: Floats, inside: Bools) -> None:
        """Rows that are `inside` and have a session (0 is none) stand beside each other in their order."""
        rows = np.flatnonzero(inside & (sessions != 0))
        rows = rows[np.argsort(sessions[rows], kind="stable")]
        together = sessions[rows[1:]] == sessions[rows[:-1]]
        # One place more than there are rows: what has no neighbour (-1) points to it, and it has none itself.
        self._before, self._behind = np.full((2, len(sessions) + 1), -1, np.int64)
        self._before[rows[1:][together]] = rows[:-1][together]
        self._behind[rows[:-1][together]] = rows[1:][together]
        self._asks = asks
        self._lends = np.float32(_LENDS_WHOLE) / np.maximum(lengths, np.float32(_LENDS_WHOLE))
        self.dialogue = self._shares(speakers)
        self._takes = np.append(ALONE + (1 - ALONE) * self.dialogue, 0).astype(np.float32)

    def _shares(self, speakers: Ints) -> Floats:
        """0 where a speaker speaks alone, 1 where speakers take turns: over the links around each row."""
        before, behind = self._before, self._behind
        linked = before >= 0
        changed = linked & (np.append(speakers, -1) != np.append(speakers, -1)[before])
        here = np.arange(len(speakers))
        around = (here, before[here], behind[here], behind[behind[here]])
        changes, links = (sum(signs[at].astype(np.float32) for at in around) for signs in (changed, linked))
        return np.asarray(changes / np.maximum(links, 1), np.float32)

    def spread(self, rows: Ints, counts: Floats, wide: Floats) -> Ints:
        """Add what rows hold to them and, weighed, to their neighbours; returns the rows that were added to.

        `wide` has room for one row more, for what has no neighbour; it is given nothing.
        """
        wide[rows] += counts
        lent = counts * self._lends[rows]
        first = np.where(self._asks[rows], np.float32(_ASKED), np.float32(_BEFORE))
        touched = [rows]
        ways: tuple[tuple[Ints, tuple[Any, ...]], ...] = (
            (self._behind, (first, *_BACK_SHARES)),
            (self._before, _AHEAD_SHARES),
        )
        for step, shares in ways:
            here = rows
            for share in shares:
                # No two rows have the same neighbour at one distance, so none is counted twice or lost.
                here = step[here]
                wide[here] += lent * share * self._takes[here]
                touched.append(here)
        return np.concatenate(touched)

    def around(self, rows: Ints) -> Ints:
        """The rows and those whose meaning joins theirs, in order, each once."""
        found = np.zeros(len(self._before), np.bool_)
        for step in (self._before, self._behind):
            here = rows
            for _ in range(_MEANING_REACH + 1):
                found[here] = True
                here = step[here]
        return np.flatnonzero(found[:-1])

    def smoothed(self, rows: Ints, own: Floats) -> Floats:
        """A value of each row averaged with its neighbours', weighed by nearness."""
        total, weight = own[rows].astype(np.float32), np.ones(len(rows), np.float32)
        for step in (self._before, self._behind):
            here, share = rows, self._takes[rows]
            for _ in range(_MEANING_REACH):
                here = step[here]
                share = np.where(here >= 0, share * np.float32(_MEANING), np.float32(0))
                total += np.where(here >= 0, share * own[here], np.float32(0))
                weight += share
        return total / weight

    def line(self, row: int, count: int) -> list[int]:
        """A row with up to `count` rows on each side, in order."""
        before: list[int] = []
        behind: list[int] = []
        for step, found in ((self._before, before), (self._behind, behind)):
            here = int(step[row])
            while here >= 0 and len(found) < count:
                found.append(here)
                here = int(step[here])
        return [*reversed(before), row, *behind]
