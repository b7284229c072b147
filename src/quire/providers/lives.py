"""Which life to buy for stored prefixes: the short one, or the longer and dearer one, judged by past pauses."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from quire.providers.models import ModelInfo


class Lives(msgspec.Struct, frozen=True):
    """Whether the head, and the tail, of a prompt shall be stored for the longer life."""

    head_long: bool = False
    tail_long: bool = False
    # A pause outlasted the short life at least once.
    paused: bool = False


class Pauses:
    """The pauses between a thread's requests, by length; a thread that goes on adds only its new ones."""

    def __init__(self, times: Sequence[int] = ()) -> None:
        # The moments that the pauses lie between, as long as they came in order.
        self._known: list[int] = []
        self._lengths: list[int] = []
        self.go_on(times)

    def go_on(self, times: Sequence[int]) -> None:
        """All moments (ms) at which requests were made, those known already included."""
        known, given = len(self._known), list(times)
        new = given[known - 1 :] if known and given[:known] == self._known else given
        if len(new) < len(given) and new == sorted(new):
            for pause in _gaps(new):
                insort(self._lengths, pause)
            self._known = given
            return
        ordered = sorted(given)
        self._lengths = sorted(_gaps(ordered))
        self._known = given if given == ordered else []

    def between(self, least_ms: int, most_ms: int) -> int:
        """How many pauses are at least as long as the one, and shorter than the other."""
        return bisect_left(self._lengths, most_ms) - bisect_left(self._lengths, least_ms)

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def longest_ms(self) -> int:
        return self._lengths[-1] if self._lengths else 0


def _gaps(times: list[int]) -> Iterator[int]:
    return (later - earlier for earlier, later in pairwise(times))


def lives(pauses: Pauses, info: ModelInfo, sizes: tuple[int, int]) -> Lives:
    """Compare what past pauses would have cost with the short life to what the longer one costs more.

    `sizes` are the prompt's and the newest turn's, in any one unit. The head is written once: a single pause
    that the longer life outlasts repays it. The tail is written by every request, so pauses must be frequent.
    """
    if len(info.ttl_s) < 2 or info.w_long is None:
        return Lives()
    short_ms, long_ms = info.ttl_s[0] * 1000, info.ttl_s[1] * 1000
    bridged = pauses.between(short_ms, long_ms)
    if not bridged:
        return Lives(paused=len(pauses) > 0 and pauses.longest_ms >= short_ms)
    saved, dearer = info.w - info.r, info.w_long - info.w
    whole, new = sizes
    return Lives(
        head_long=bridged * saved > dearer,
        tail_long=bridged * saved * whole > len(pauses) * dearer * max(1, new),
        paused=True,
    )
