"""Which life to buy for stored prefixes: the short one, or the longer and dearer one, judged by past pauses."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from quire.providers.models import ModelInfo


class Lives(msgspec.Struct, frozen=True):
    """Whether the head, and the tail, of a prompt shall be stored for the longer life."""

    head_long: bool = False
    tail_long: bool = False
    # A pause outlasted the short life at least once.
    paused: bool = False


def lives(times: Sequence[int], info: ModelInfo, sizes: tuple[int, int]) -> Lives:
    """Compare what past pauses would have cost with the short life to what the longer one costs more.

    `sizes` are the prompt's and the newest turn's, in any one unit. The head is written once: a single pause
    that the longer life outlasts repays it. The tail is written by every request, so pauses must be frequent.
    """
    if len(info.ttl_s) < 2 or info.w_long is None:
        return Lives()
    short_ms, long_ms = info.ttl_s[0] * 1000, info.ttl_s[1] * 1000
    gaps = [later - earlier for earlier, later in pairwise(sorted(times))]
    bridged = sum(short_ms <= gap < long_ms for gap in gaps)
    if not bridged:
        return Lives(paused=any(gap >= short_ms for gap in gaps))
    saved, dearer = info.w - info.r, info.w_long - info.w
    whole, new = sizes
    return Lives(
        head_long=bridged * saved > dearer,
        tail_long=bridged * saved * whole > len(gaps) * dearer * max(1, new),
        paused=True,
    )
