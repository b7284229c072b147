"""Providers without a prompt cache that is known."""

from __future__ import annotations

from array import array

from quire.providers.models import ModelInfo
from quire.providers.simulate.seen import Seen, Shares


class NoCache:
    """Reads nothing, writes nothing."""

    by_ids = False
    keeps_answers = False

    def __init__(self, info: ModelInfo) -> None:
        self._info = info

    def look(self, at_ms: int, seen: Seen, began_ms: int | None = None) -> Shares:
        return Shares(note=f"no prompt cache of {self._info.provider} is known")

    def answered(self, prompt: array[int], held: array[int], at_ms: int) -> None:
        """Nothing is kept."""
