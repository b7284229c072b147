"""llama.cpp's server: the common token prefix with a slot's last prompt, and older prompts kept in host memory.

Follows the server's own scheduling (slot choice, similarity, saving, loading), so that with its tokens the
prediction is exact. Prompts in memory are evicted oldest first.
"""

from __future__ import annotations

from array import array

import msgspec

from quire.providers.models import ModelInfo
from quire.providers.simulate.radix import shared
from quire.providers.simulate.seen import Cause, Seen, Shares

# A prompt in memory is worth loading only if this share of it would be kept.
_LEAST_KEPT = 0.25
# A slot's prompt is saved to memory first if the new one would keep less than this share of it.
_SAVE_BELOW = 0.5


class Slot(msgspec.Struct):
    id: int
    ids: array[int]
    turn: int = -1


class SlotCache:
    """`slots` prompts in the engine, and older ones in memory up to `memory_tokens` (None: all, 0: none)."""

    by_ids = True
    keeps_answers = True

    def __init__(
        self,
        info: ModelInfo | None = None,
        slots: int = 1,
        memory_tokens: int | None = None,
        similarity: float = 0.1,
    ) -> None:
        self._slots = [Slot(number, array("i")) for number in range(slots)]
        self._memory: list[array[int]] = []
        self._memory_tokens = memory_tokens
        self._similarity = similarity
        self._turn = 0
        self._serving = self._slots[0]

    def look(self, at_ms: int, seen: Seen, began_ms: int | None = None) -> Shares:
        """Serve a prompt: choose its slot, bring back a better prompt from memory, reuse the common prefix."""
        ids = seen.ids
        slot, same, displaced = self._choose(ids, seen.setting("id_slot"))
        first = not slot.ids and not self._memory
        if displaced and self._memory_tokens != 0:
            self._save(slot.ids)
            same = self._load(slot, ids, same)
        self._save_idle(slot)
        cached = seen.setting("cache_prompt") is not False
        # At least one token is always computed: the last one, whose prediction is wanted.
        read = min(same, max(0, len(ids) - 1)) if cached else 0
        cause: Cause = "first" if first else "moved" if read < min(len(slot.ids), len(ids) - 1) else ""
        self._occupy(slot, ids)
        return Shares(read, cause=cause)

    def answered(self, prompt: array[int], held: array[int], at_ms: int) -> None:
        """The slot goes on holding what it generated."""
        self._serving.ids = prompt + held

    def _occupy(self, slot: Slot, ids: array[int]) -> None:
        slot.ids = ids
        slot.turn = self._turn = self._turn + 1
        self._serving = slot

    def _choose(self, ids: array[int], asked: object) -> tuple[Slot, int, bool]:
        """The slot for a prompt, how much the two share, and whether its present prompt should be put away first."""
        least = self._similarity * len(ids)
        if isinstance(asked, int) and asked >= 0:
            slot = self._slots[asked % len(self._slots)]
            same = shared(slot.ids, ids)
            return slot, same, bool(slot.ids) and (same <= least or _share(slot, same) < _SAVE_BELOW)
        common = [shared(slot.ids, ids) for slot in self._slots]
        same = max(common)
        best = self._slots[common.index(same)]
        if same > least:
            return best, same, _share(best, same) < _SAVE_BELOW
        oldest = min(reversed(self._slots), key=lambda slot: slot.turn)
        return oldest, common[oldest.id], True

    def _save(self, ids: array[int]) -> None:
        """Put a prompt into memory, unless a longer one begins with it; shorter ones it begins with go."""
        most = self._memory_tokens
        if not ids or any(shared(kept, ids) == len(ids) for kept in self._memory):
            return
        if most is not None and len(ids) > most:
            return
        self._memory = [kept for kept in self._memory if shared(kept, ids) < len(kept)]
        # Room is made before the new prompt comes in, the oldest going first.
        while most is not None and self._memory and sum(map(len, self._memory)) + len(ids) > most:
            self._memory.pop(0)
        self._memory.append(ids)

    def _load(self, slot: Slot, ids: array[int], covered: int) -> int:
        """Take the prompt from memory that both keeps more of itself and covers more of the new prompt."""
        kept_best = _share(slot, covered) if slot.ids else -1.0
        best: int | None = None
        for index, candidate in enumerate(self._memory):
            same = shared(candidate, ids)
            kept = same / len(candidate)
            if kept >= _LEAST_KEPT and kept > kept_best and same > covered:
                kept_best, covered, best = kept, same, index
        if best is not None:
            slot.ids = self._memory.pop(best)
        return covered

    def _save_idle(self, serving: Slot) -> None:
        if self._memory_tokens == 0:
            return
        for slot in self._slots:
            if slot is not serving:
                self._save(slot.ids)


def _share(slot: Slot, same: int) -> float:
    """How much of its prompt a slot would keep for a new one that shares so much with it."""
    return same / len(slot.ids) if slot.ids else 0.0
