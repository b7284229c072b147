"""Several reasons to one order: words and meaning standardised over the candidates and added, with small priors.

Priors that need people talking to each other are scaled by how much of a dialogue a row stands in,
and vanish in threads of user and assistant, logs of one speaker, and records.
"""

from __future__ import annotations

import msgspec
import numpy as np

from quire.recall.arrays import Bools, Floats, Ints

# Candidates are so many of the best of each list, or twice as many as are wanted; up to WHOLE rows, all are.
POOL = 200
WHOLE = 1000
_ROUNDING = 1e-5


class Weights(msgspec.Struct, frozen=True):
    """What each reason counts, in standard deviations of the words' score."""

    words: float = 1.0
    meaning: float = 1.0
    speaker: float = 1.6
    likely_speaker: float = 1.0
    # So many times that when a list is asked for: one is gathered from what somebody tells, not from replies to it.
    several: float = 1.75
    asks: float = -0.8
    length: float = 0.2
    person: float = 1.0
    # What a tool returned, beside the talk about it.
    returned: float = 0.5
    time: float = 0.7
    name: float = 1.0


WEIGHTS = Weights()
PARTS = ("words", "meaning", "speaker", "manner", "time", "name")


def standard(values: Floats) -> Floats:
    """Standard scores: mean 0, deviation 1; all 0 where nothing differs."""
    if not len(values):
        return values
    values = values.astype(np.float64)
    spread = values.std()
    # Less than rounding can make is no difference; it would be blown up to a whole deviation.
    differs = spread > _ROUNDING * max(1.0, np.abs(values).max())
    return ((values - values.mean()) / spread if differs else np.zeros(len(values))).astype(np.float32)


def standard_by(values: Floats, apart: Bools) -> Floats:
    """Standard scores among their own kind: a tool's output never reads like speech, however near it is."""
    out = np.zeros(len(values), np.float32)
    for group in (apart, ~apart):
        out[group] = standard(values[group])
    return out


def pool_size(k: int) -> int:
    """How many of each list are candidates for k places."""
    return max(POOL, 2 * k)


def pool(words: Floats, near: Ints, cosines: Floats, allowed: Bools, size: int) -> Ints:
    """The rows worth ranking: all that are allowed while they are few, else the best by words and by meaning."""
    if np.count_nonzero(allowed) <= WHOLE:
        return np.flatnonzero(allowed)
    by_words = np.flatnonzero(allowed & (words > 0))
    kept = allowed[near]
    by_meaning, cosines = near[kept], cosines[kept]
    chosen = np.zeros(len(allowed), np.bool_)
    chosen[_best(by_words, words[by_words], size)] = True
    chosen[_best(by_meaning, cosines, size)] = True
    return np.flatnonzero(chosen)


def _best(rows: Ints, scores: Floats, size: int) -> Ints:
    """The rows with the highest scores, at most `size`; among equals the oldest."""
    if len(rows) <= size:
        return rows
    least = np.partition(scores, -size)[-size]
    above = rows[scores > least]
    return np.concatenate([above, rows[scores == least][: size - len(above)]])


def order(scores: Floats, rows: Ints) -> Ints:
    """Positions from the highest score to the lowest; what is equal to six places keeps the order of rows."""
    return np.lexsort((rows, -np.round(scores.astype(np.float64), 6)))
