"""Correcting an estimate from what providers report: a scale (the vocabulary) and an offset (the unseen).

The offset is what the log does not hold, such as a foreign system prompt; it is taken afresh from every report,
so a fork, a summary or a dropped reply costs one miss. The scale is learned from growth between reports only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from quire.tokens.vocabularies import DEFAULT, RELATIVE, vocabulary
from quire.values import Count

# Steps of growth kept: enough for a steady median, few enough to follow a change.
STEPS = 32
# The prior scale weighs as much as a step of this many tokens.
PRIOR_WEIGHT = 500.0
# A step whose ratio is further than this from the prior is no growth of the same text, but a cut or a switch.
PLAUSIBLE = 2.5
# Reports after which a thread's scale is worth handing on.
SETTLED = 3


class Calibration(msgspec.Struct, frozen=True):
    """What one model reported for one thread so far; `predict` corrects the next o200k estimate."""

    scale: float = 1.0
    offset: float = 0.0
    prior: float = 1.0
    reports: int = 0
    estimate: int = 0
    reported: int = 0
    steps: tuple[tuple[float, float], ...] = ()

    def predict(self, estimate: int) -> Count:
        """The tokens to expect for an estimate; before any report, the prior alone."""
        return Count(max(0, round(self.scale * estimate + self.offset)), exact=False, vocabulary=DEFAULT)

    def room(self, limit: int) -> int:
        """How many of our own tokens a limit in the model's leaves, beside what we do not see."""
        return max(0, int((limit - self.offset) / max(self.scale, 1 / PLAUSIBLE)))

    def unseen_apart(self) -> Calibration:
        """The same without what we do not see: it may be gone."""
        return msgspec.structs.replace(self, offset=0.0)

    def observe(self, estimate: int, reported: int) -> Calibration:
        """Learn from a reply's total input; a reply that reported nothing (aborted) teaches nothing."""
        if reported <= 0:
            return self
        steps = self._grown(estimate, reported)
        scale = _weighted_median([(self.prior, PRIOR_WEIGHT), *steps])
        return Calibration(
            scale=scale,
            offset=reported - scale * estimate,
            prior=self.prior,
            reports=self.reports + 1,
            estimate=estimate,
            reported=reported,
            steps=steps,
        )

    def _grown(self, estimate: int, reported: int) -> tuple[tuple[float, float], ...]:
        """The steps (ratio, weight), with the one since the last report where it is plausible."""
        grown = estimate - self.estimate
        if not self.reports or not grown:
            return self.steps
        ratio = (reported - self.reported) / grown
        if not self.prior / PLAUSIBLE <= ratio <= self.prior * PLAUSIBLE:
            return self.steps
        return (*self.steps, (ratio, float(abs(grown))))[-STEPS:]


# A report is far off where it differs by more than half, and by so many tokens.
FAR_TOKENS = 2000


def far_off(expected: float, reported: int) -> bool:
    """Whether a report shows that the count was wrong, not only a little different: 10, 94_032 -> True."""
    low, high = sorted((expected, float(reported)))
    return low > 0 and high > 1.5 * low and high - low > FAR_TOKENS


class Calibrations(msgspec.Struct, frozen=True):
    """One thread's calibrations, by model: a switch of models neither forgets nor confuses."""

    by_model: dict[str, Calibration] = {}

    def of(self, model: str) -> Calibration:
        return self.by_model.get(model) or uncalibrated(model)

    def predict(self, model: str, estimate: int) -> Count:
        return self.of(model).predict(estimate)

    def observe(self, model: str, estimate: int, reported: int) -> Calibrations:
        return Calibrations({**self.by_model, model: self.of(model).observe(estimate, reported)})


def uncalibrated(model: str, like: Iterable[Calibration] = ()) -> Calibration:
    """A calibration to begin a thread with: the scale other threads found for the model, else the stated factor."""
    found = [other.scale for other in like if other.reports >= SETTLED]
    chosen = vocabulary(model)
    prior = statistics.median(found) if found else chosen.factor * RELATIVE[chosen.name]
    return Calibration(scale=prior, prior=prior)


def _weighted_median(values: list[tuple[float, float]]) -> float:
    half = sum(weight for _, weight in values) / 2
    for value, weight in sorted(values):
        half -= weight
        if half <= 0:
            return value
    return values[-1][0]
