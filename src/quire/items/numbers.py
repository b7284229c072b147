"""The numbers of ctx-N: counted from 1, each used once, whatever is cleared, removed or evicted."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable

from quire.errors import CallError
from quire.log.shapes import short

_ID = re.compile(r"ctx-([0-9]+)")
_DIGITS = 18
_HINT = "Leave the id out to get the next one."


class Numbers:
    """Gives the next number, and takes given ones that were never used."""

    def __init__(self, next: int = 1, unused: list[tuple[int, int]] | None = None) -> None:
        self.next = next
        # Ranges below `next` that a given id jumped over, in order. 0 is never counted to, but may be given.
        self.unused = [(0, 1)] if unused is None else unused

    @staticmethod
    def after(ids: Iterable[str]) -> int:
        """The number behind all of these."""
        return max((int(id.removeprefix("ctx-")) for id in ids), default=0) + 1

    def take(self) -> str:
        """The next id."""
        self.next += 1
        return f"ctx-{self.next - 1}"

    def check(self, id: str) -> int:
        """The number of a given id; an error unless it is ctx-N and new."""
        found = _ID.fullmatch(id) if isinstance(id, str) else None
        if not found or len(found[1].lstrip("0")) > _DIGITS:
            raise CallError(f"id {short(id)} is not ctx-N", hint=_HINT)
        number = int(found[1])
        if number < self.next and self._range_of(number) is None:
            raise CallError(f"id {short(id)} was already used in this window", hint=_HINT)
        return number

    def claim(self, id: str) -> str:
        """Use a given id; the counter moves past it."""
        number = self.check(id)
        if number >= self.next:
            if number > self.next:
                self.unused.append((self.next, number))
            self.next = number + 1
        elif (index := self._range_of(number)) is not None:
            start, stop = self.unused[index]
            self.unused[index : index + 1] = [r for r in ((start, number), (number + 1, stop)) if r[0] < r[1]]
        return id

    def _range_of(self, number: int) -> int | None:
        index = bisect.bisect_right(self.unused, (number, float("inf"))) - 1
        return index if index >= 0 and number < self.unused[index][1] else None
