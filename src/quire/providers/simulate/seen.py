"""What an engine is shown of a request, and what it says of it."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from quire.providers.simulate.blocks import Block
from quire.providers.simulate.counted import Tally
from quire.values import Json, JsonObject

# Why less was read from the cache than the request before left there.
Cause = Literal["", "first", "ttl", "minimum", "marker", "moved", "in-flight", "evicted"]
PromptIds: TypeAlias = Callable[[JsonObject], Sequence[int]]


class Shares(msgspec.Struct, frozen=True):
    """How a cache splits a request's tokens; what is neither read nor written is plain."""

    read: int = 0
    # Written for the provider's shorter and longer life.
    write_short: int = 0
    write_long: int = 0
    cause: Cause = ""
    note: str = ""
    # Tokens kept in explicit caches since the request before, times hours.
    storage_token_hours: float = 0.0


class Seen:
    """One request as engines see it: its blocks, and its tokens as counts or as ids."""

    def __init__(
        self, body: JsonObject, blocks: list[Block], tally: Tally, prompt_ids: PromptIds | None = None
    ) -> None:
        self.body = body
        self.blocks = blocks
        self._tally = tally
        self._prompt_ids = prompt_ids

    def setting(self, name: str) -> Json:
        """A field of the body, also where the OpenAI SDK puts what it does not know."""
        extra = self.body.get("extra_body") or {}
        return self.body.get(name, extra.get(name))

    def count(self, block: Block) -> int:
        """The tokens of one block."""
        return self._tally.count(block)

    @functools.cached_property
    def ends(self) -> list[int]:
        """The tokens up to and including each block."""
        return self._tally.ends(self.blocks)

    @functools.cached_property
    def ids(self) -> array[int]:
        """The whole prompt as token ids."""
        if self._prompt_ids is not None:
            return array("i", self._prompt_ids(self.body))
        return self._tally.ids(self.blocks)

    @functools.cached_property
    def total_counted(self) -> int:
        return self.ends[-1] if self.blocks else 0


class Engine(Protocol):
    """A prompt cache: looks a request up, keeps what it would keep, and says how the tokens split."""

    # Whether the prompt is a row of ids here, or one of counted blocks: it decides what the total is.
    by_ids: bool
    # Whether the model's answers are kept as well as its prompts.
    keeps_answers: bool

    def look(self, at_ms: int, seen: Seen, began_ms: int | None = None) -> Shares: ...

    def answered(self, prompt: array[int], held: array[int], at_ms: int) -> None:
        """The model answered this prompt, and `held` of it was computed upon; engines that keep answers keep it."""
