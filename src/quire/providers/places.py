"""Where a request's cache marks go: the end of tools and system, what lasts, the request before, the end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import getitem
from typing import NamedTuple

import msgspec

from quire.providers.models import ModelInfo
from quire.providers.running import Running
from quire.providers.simulate.said import said
from quire.providers.spots import Row, Spot, Spots
from quire.tokens import counter
from quire.values import Call, Json, JsonObject, Message, Part, Prompt, Text


class Places(msgspec.Struct, frozen=True):
    """Where marks go, as places in the row: `lasting` is written once an epoch, `moving` by every request."""

    row: Row
    lasting: tuple[int, ...]
    moving: tuple[int, ...]

    @property
    def all(self) -> list[int]:
        """Each place once, in the order the provider compares them."""
        return sorted({*self.lasting, *self.moving})

    def stand_in(self, body: JsonObject) -> bool:
        """Whether the body holds at each place the block that was seen there."""
        spots = [self.row.spots[place] for place in self.all]
        return all(_block_at(body, spot) == spot.block for spot in spots)


class Spoken(NamedTuple):
    """How often the model spoke so far, and whether it speaks now."""

    runs: int = 0
    speaking: bool = False


class Placing:
    """Places the marks of one thread's requests; what they repeat is not weighed again."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._spots = Spots(info.wire)
        # The spots up to the first behind which a prefix is long enough to be stored.
        self._short: list[Spot] = []
        self._spoken: Running[Message, Spoken] = Running()

    def places(self, body: JsonObject, prompt: Prompt | None, stable: int = 0) -> Places:
        """End of tools and system, opening or fold; end of the request before, end: those long enough to be stored."""
        row = self._spots.row(body)
        if row.marked:
            return Places(row, (), ())
        enough = self._enough(row.spots)
        lasting = [_settled(row, place) for place in (row.head, self._lasting(row, prompt))]
        moving = [_settled(row, place) for place in (_stable(row, prompt, stable), len(row.spots) - 1)]
        return Places(
            row,
            tuple(place for place in lasting if place >= enough),
            tuple(place for place in moving if place >= enough),
        )

    def _enough(self, spots: list[Spot]) -> int:
        """The first spot behind which a prefix is long enough to be stored."""
        if not self._short or self._short != spots[: len(self._short)]:
            first = _first_behind(spots, self._info)
            self._short = spots[: first + 1] if first < len(spots) else []
        return len(self._short) - 1 if self._short else len(spots)

    def _lasting(self, row: Row, prompt: Prompt | None) -> int:
        """The spot whose prefix the next rebase lets stand; without an opening, the epoch's own fold."""
        if prompt is None:
            return -1
        asked = self._runs(prompt, prompt.opening)
        # Where the model was last asked in the opening: what follows its end may be merged into one message with it.
        return row.ends[asked - 1] if 0 < asked <= len(row.ends) else self._fold(row, prompt)

    def _fold(self, row: Row, prompt: Prompt) -> int:
        """The spot where the epoch's first request ended, or ends."""
        if not prompt.fold:
            return -1
        if prompt.fold >= len(prompt.messages):
            return len(row.spots) - 1
        spoken = self._runs(prompt, prompt.fold)
        return row.ends[spoken] if spoken < len(row.ends) else -1

    def _runs(self, prompt: Prompt, count: int) -> int:
        """How often the model speaks in the first `count` messages."""
        spoken = self._spoken.along(prompt.messages, Spoken(), _next)[:count]
        return spoken[-1].runs if spoken else 0


def _settled(row: Row, place: int) -> int:
    """The place itself, or the nearest one before it that may carry a mark; -1 where there is none."""
    return next((one for one in range(place, -1, -1) if row.spots[one].markable), -1)


def _first_behind(spots: list[Spot], info: ModelInfo) -> int:
    """The first spot that ends at least as many tokens as a stored prefix must have; behind the last if none does."""
    count, total = counter(f"{info.provider}:{info.model}").count, 0
    for index, spot in enumerate(spots):
        text, extra = said(spot.block) if isinstance(spot.block, dict) else (str(spot.block), 0)
        # More than the minimum need not be known.
        total += extra + count(text[: info.min_cache_tokens * 16])
        if total >= info.min_cache_tokens:
            return index
    return len(spots)


def _block_at(body: JsonObject, spot: Spot) -> Json:
    try:
        return reduce(getitem, spot.path, body)  # type: ignore[arg-type]
    except (LookupError, TypeError):
        return None


def _stable(row: Row, prompt: Prompt | None, stable: int) -> int:
    """The spot where the request before this one ended.

    Where nobody knows how many messages it held, counted from the end, where the two differ least.
    """
    if stable:
        return row.behind(stable)
    if prompt is None:
        return row.ends[-1] if row.ends else -1
    since: Sequence[Message] = prompt.messages[prompt.stable :]
    runs = reduce(_next, since, Spoken()).runs
    if not prompt.stable or runs > len(row.ends):
        return -1
    if runs:
        return row.ends[-runs]
    # The model's last word was empty or broken off, and is not sent: only the user spoke since.
    return row.before_user(sum(message.role == "user" for message in since))


def _next(before: Spoken, message: Message) -> Spoken:
    """What says nothing is not sent."""
    speaks = message.role == "assistant" and any(map(_says_something, message.parts))
    if message.role == "assistant" and not speaks:
        return before
    return Spoken(before.runs + (speaks and not before.speaking), speaks)


def _says_something(part: Part) -> bool:
    return isinstance(part, Call) or (isinstance(part, Text) and bool(part.text.strip()))
