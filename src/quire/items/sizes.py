"""Tokens of a window's items: counted once each, and only from the moment a limit or a reader asks."""

from __future__ import annotations

from collections.abc import Iterable

from quire.tokens import Counter
from quire.values import Item


class Sizes:
    """Each item's tokens, their sum, and the sum of those that are pinned."""

    def __init__(self, with_: Counter) -> None:
        self._with = with_
        self._of: dict[str, int] | None = None
        self.total = 0
        self.pinned = 0

    @property
    def counting(self) -> bool:
        return self._of is not None

    def start(self, items: Iterable[Item], pinned: Iterable[str]) -> None:
        """Count what is there, and from now on what comes; a second start does nothing."""
        if self._of is None:
            self._of = {one.id: self._with.count(one.content) for one in items}
            self.total = sum(self._of.values())
            self.pinned = sum(self._of[id] for id in pinned)

    def count(self, content: str) -> int:
        """The tokens of a content, 0 while nobody asks."""
        return self._with.count(content) if self.counting else 0

    def put(self, id: str, size: int) -> None:
        if self._of is not None:
            self._of[id] = size
            self.total += size

    def drop(self, id: str, pinned: bool) -> None:
        if self._of is not None:
            size = self._of.pop(id)
            self.total -= size
            self.pinned -= size if pinned else 0

    def pin(self, id: str, pinned: bool) -> None:
        if self._of is not None:
            self.pinned += self._of[id] if pinned else -self._of[id]
