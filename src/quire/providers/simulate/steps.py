"""Automatic prefix caches that read whole steps: OpenAI up to GPT-5.5 (128 tokens), xAI, Groq, Mistral."""

from __future__ import annotations

from array import array

from quire.providers.models import ModelInfo
from quire.providers.simulate.radix import Node, RadixTree
from quire.providers.simulate.seen import Cause, Seen, Shares


class StepCache:
    """The longest stored prefix, rounded down to a step; lives end when a prefix goes unused too long."""

    by_ids = True
    keeps_answers = False

    def __init__(self, info: ModelInfo) -> None:
        self._cache = info.cache
        self._trees: dict[str, RadixTree] = {}

    def look(self, at_ms: int, seen: Seen, began_ms: int | None = None) -> Shares:
        """Requests with another key are served elsewhere, and share nothing."""
        key = str(seen.setting(self._cache.key) or "") if self._cache.key else ""
        tree = self._trees.setdefault(key, RadixTree())
        life_ms = self._life_ms(seen)
        stored = tree.match(seen.ids)
        found = tree.match(seen.ids, lambda node: _alive(node, at_ms, life_ms))
        read = self._rounded(found)
        cause, note = self._why(tree, stored, found, len(seen.ids))
        tree.insert(seen.ids, at_ms)
        return Shares(read, cause=cause, note=note)

    def answered(self, prompt: array[int], held: array[int], at_ms: int) -> None:
        """Prompts are cached, answers are not."""

    def _rounded(self, tokens: int) -> int:
        whole = tokens // self._cache.step * self._cache.step if self._cache.step else tokens
        return whole if whole >= max(1, self._cache.min_tokens) else 0

    def _life_ms(self, seen: Seen) -> int | None:
        """The idle life in force: `prompt_cache_retention` may ask for the longer one."""
        if not self._cache.ttl_s:
            return None
        longer = seen.setting("prompt_cache_retention") == "24h"
        return self._cache.ttl_s[-1 if longer else 0] * 1000

    def _why(self, tree: RadixTree, stored: int, found: int, total: int) -> tuple[Cause, str]:
        if not tree.size:
            return "first", "nothing was stored before this request"
        if self._rounded(stored) > self._rounded(found):
            return "ttl", f"{stored:,} tokens were stored, but unused for too long"
        if total < self._cache.min_tokens:
            return "minimum", f"prompts under {self._cache.min_tokens:,} tokens are not cached"
        return (
            ("moved", "the prompt differs early from every earlier one")
            if not self._rounded(found)
            else ("", "")
        )


def _alive(node: Node, at_ms: int, life_ms: int | None) -> bool:
    # What was stored at this very moment is not there yet.
    return node.stored_ms < at_ms and (life_ms is None or at_ms - node.used_ms < life_ms)
