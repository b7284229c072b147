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
        slot, displaced = self._choose(ids, seen.setting("id_slot"))
        first = not slot.ids and not self._memory
        if displaced and self._memory_tokens != 0:
            self._save(slot.ids)
            self._load(slot, ids)
        self._save_idle(slot)
        cached = seen.setting("cache_prompt") is not False
        # At least one token is always computed: the last one, whose prediction is wanted.
        read = min(shared(slot.ids, ids), max(0, len(ids) - 1)) if cached else 0
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

    def _choose(self, ids: array[int], asked: object) -> tuple[Slot, bool]:
        """The slot for a prompt, and whether its present prompt should be put away first."""
        if isinstance(asked, int) and asked >= 0:
            slot = self._slots[asked % len(self._slots)]
            unlike = shared(slot.ids, ids) <= self._similarity * len(ids)
            return slot, bool(slot.ids) and (unlike or _share(slot.ids, ids) < _SAVE_BELOW)
        best = max(self._slots, key=lambda slot: shared(slot.ids, ids))
        if shared(best.ids, ids) > self._similarity * len(ids):
            return best, _share(best.ids, ids) < _SAVE_BELOW
        return min(reversed(self._slots), key=lambda slot: slot.turn), True

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

    def _load(self, slot: Slot, ids: array[int]) -> None:
        """Take the prompt from memory that both keeps more of itself and covers more of the new prompt."""
        kept_best = _share(slot.ids, ids) if slot.ids else -1.0
        covered_best = shared(slot.ids, ids)
        best: int | None = None
        for index, candidate in enumerate(self._memory):
            same = shared(candidate, ids)
            kept = same / len(candidate)
            if kept >= _LEAST_KEPT and kept > kept_best and same > covered_best:
                kept_best, covered_best, best = kept, same, index
        if best is not None:
            slot.ids = self._memory.pop(best)

    def _save_idle(self, serving: Slot) -> None:
        if self._memory_tokens == 0:
            return
        for slot in self._slots:
            if slot is not serving:
                self._save(slot.ids)


def _share(held: array[int], ids: array[int]) -> float:
    """How much of a held prompt a new one would keep."""
    return shared(held, ids) / len(held) if held else 0.0
