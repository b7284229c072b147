"""The quick ways are held to a slow one: a full matrix of who takes over what from whom."""

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.recall.neighbours import ALONE, REACH, Neighbours

ROW = st.tuples(st.sampled_from(["", "a", "b"]), st.integers(0, 2), st.booleans())
ROWS = st.lists(ROW, min_size=1, max_size=25)


def built(rows: list[tuple[str, int, bool]]) -> Neighbours:
    made = Neighbours()
    # In two steps, as a log grows.
    for some, first in ((rows[: len(rows) // 2], 0), (rows[len(rows) // 2 :], len(rows) // 2)):
        sessions, speakers, asks = ([row[at] for row in some] for at in range(3))
        made.add(first, sessions, speakers, asks)
        if some:
            made.settle(made.around(np.arange(first, first + len(some)), REACH))
    return made


def spread(made: Neighbours, own: Any) -> Any:
    out = own.copy()
    made.spread(out, np.flatnonzero(own), np.empty(len(own) + 1, np.float32))
    return out


def matrix(rows: list[tuple[str, int, bool]], gone: set[int]) -> Any:
    """weights[i, j]: what row i takes over from row j."""
    size = len(rows)
    out = np.zeros((size, size))
    for session in {"a", "b"}:
        line = [at for at in range(size) if rows[at][0] == session and at not in gone]
        pairs = [rows[one][1] != rows[two][1] for one, two in pairwise(line)]
        for place, i in enumerate(line):
            near = pairs[max(0, place - 2) : place + 2]
            share = sum(near) / len(near) if near else 0.0
            for other, j in enumerate(line):
                out[i, j] = _weight(place - other, rows[j][2]) * (ALONE + (1 - ALONE) * share)
    for at in range(size):
        out[at, at] = at not in gone
    return out


def _weight(distance: int, asks: bool) -> float:
    """From `distance` places before (negative: behind)."""
    if distance == 1:
        return 1.0 if asks else 0.3
    if 1 < distance <= REACH:
        return 0.6**distance
    return 0.3 * 0.6 ** (-distance - 1) if -REACH <= distance < 0 else 0.0


@settings(max_examples=200)
@given(ROWS, st.data())
def test_values_spread_as_the_matrix_says(rows: list[tuple[str, int, bool]], data: st.DataObject) -> None:
    made = built(rows)
    gone = data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=3))
    for row in sorted(gone):
        changed = made.remove(row)
        if len(changed):
            made.settle(changed)
    own = np.array([0 if at in gone else at % 3 for at in range(len(rows))], np.float32)
    wanted = matrix(rows, gone) @ own
    np.testing.assert_allclose(spread(made, own), wanted, atol=1e-5)
    alive = np.array([at for at in range(len(rows)) if at not in gone], np.int64)
    np.testing.assert_allclose(made.gathered(alive, own), wanted[alive], atol=1e-5)


@settings(max_examples=200)
@given(ROWS)
def test_smoothing_keeps_a_constant_and_stays_within_bounds(rows: list[tuple[str, int, bool]]) -> None:
    made, everyone = built(rows), np.arange(len(rows))
    same = np.full(len(rows), 0.5, np.float32)
    np.testing.assert_allclose(made.smoothed(everyone, same), same, rtol=1e-6)
    values = np.arange(len(rows), dtype=np.float32)
    smooth = made.smoothed(everyone, values)
    assert smooth.min() >= -1e-5
    assert smooth.max() <= len(rows) - 1 + 1e-5


def test_where_one_speaker_speaks_alone_little_is_taken_over() -> None:
    alone = built([("a", 0, False)] * 3)
    taking_turns = built([("a", at % 2, False) for at in range(3)])
    own = np.array([0, 1, 0], np.float32)
    little, much = (spread(made, own)[0] for made in (alone, taking_turns))
    assert 0 < little < much
    assert alone.dialogue(np.array([1]))[0] == 0
    assert taking_turns.dialogue(np.array([1]))[0] == 1
