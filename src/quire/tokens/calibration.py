"""Correcting an estimate from what providers report: a scale (the vocabulary) and an offset (the unseen).

The offset is what the log does not hold, such as a foreign system prompt; it is taken afresh from every report,
so a fork, a summary or a dropped reply costs one miss. The scale is learned from growth between reports only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

import msgspec

from quire.errors import CallError
from quire.tokens.counting import (
    DEFAULT,
    MESSAGE_TOKENS,
    RELATIVE,
    Counter,
    compact,
    counter,
    tools_tokens,
    vocabulary,
)
from quire.values import SPOKEN, Count, Entry

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


# A thread's running count: what was counted once is never counted again.

# Entries that say something about the thread, not to the model.
SILENT = frozenset({"sent", "rebase"})


class Ledger:
    """Tokens of an append-only list of entries, as sums up to each entry; growing it costs the new text only."""

    def __init__(self, with_: Counter | None = None) -> None:
        self._with = with_ or counter()
        self._sums = [0]
        self._last: Entry | None = None

    def __len__(self) -> int:
        return len(self._sums) - 1

    @property
    def total(self) -> int:
        return self._sums[-1]

    def extend(self, entries: Iterable[Entry]) -> int:
        """Count entries behind those already here; returns what they add."""
        before = self.total
        for entry in entries:
            self._sums.append(self.total + entry_tokens(entry, self._with, self._last))
            self._last = entry
        return self.total - before

    def follow(self, thread: Sequence[Entry]) -> int:
        """The total of a whole thread of which the part already here is not looked at again."""
        if len(thread) < len(self):
            raise CallError(
                f"{len(self)} entries were counted but the thread has {len(thread)}",
                hint="A thread only grows; start a new ledger for a fork.",
            )
        self.extend(thread[len(self) :])
        return self.total

    def between(self, start: int, stop: int) -> int:
        """Tokens of entries start..stop-1, counted from 0."""
        return self._sums[stop] - self._sums[start]


def entry_tokens(entry: Entry, with_: Counter | None = None, before: Entry | None = None) -> int:
    """An entry's tokens, and its message's framing where it begins one (a model's entries in a row are one)."""
    if entry.kind in SILENT:
        return 0
    chosen = with_ or counter()
    if entry.kind == "tools":
        return tools_tokens(entry.tools, chosen)
    joins = entry.kind in SPOKEN and before is not None and before.kind in SPOKEN
    return sum(map(chosen.count, entry_texts(entry))) + (0 if joins else MESSAGE_TOKENS)


def entry_texts(entry: Entry) -> list[str]:
    """Every text of an entry that a model would read."""
    body = entry.body
    texts = [str(body[key]) for key in ("text", "name", "outcome", "content") if body.get(key)]
    if entry.kind == "call":
        texts.append(compact(entry.args))
    return texts + [str(item.get("content", "")) for item in entry.attached]
