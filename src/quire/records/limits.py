"""How much work one record's hints may cause, and the meter that stops them there."""

from __future__ import annotations

import msgspec

from quire.errors import DataError
from quire.values import Json


class Limits(msgspec.Struct, frozen=True):
    """The bounds of one `apply_hints`; all its rules together share steps and output."""

    rules: int = 64
    source_chars: int = 64_000
    depth: int = 16
    data_depth: int = 100
    steps: int = 100_000
    output_chars: int = 1_000_000
    jq_seconds: int = 2
    jq_memory: int = 512 * 1024 * 1024


class Meter:
    """What is left of the limits; spending more than there is raises."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.steps = limits.steps
        self.chars = limits.output_chars

    def step(self, count: int = 1) -> None:
        self.steps -= count
        if self.steps < 0:
            raise DataError(f"more than {self.limits.steps:,} steps", hint="Ask for less of the context.")

    def write(self, text: str) -> str:
        """Pass a piece of output through, charged by its length."""
        self.chars -= len(text)
        if self.chars < 0:
            raise DataError(f"more than {self.limits.output_chars:,} characters of output", hint="Show less.")
        return text

    def source(self, text: Json) -> str:
        """A rule's program text: a string of bounded length."""
        if not isinstance(text, str):
            raise DataError(f"expected a string, not {type(text).__name__}")
        if len(text) > self.limits.source_chars:
            raise DataError(
                f"{len(text):,} characters long; at most {self.limits.source_chars:,} are allowed"
            )
        return text


def check_depth(value: Json, most: int) -> None:
    """Refuse data nested deeper than `most`, without recursion of our own."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > most + 1:
            raise DataError(f"nested deeper than {most} levels", hint="Flatten the value.")
        level = [child for one in level for child in _children(one)]


def _children(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
