"""Counters: one per vocabulary, loaded when first used, safe to share between threads, with no memory of texts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Protocol

import msgspec

from quire.errors import FormatError
from quire.values import Count


class Counter(Protocol):
    """Counts tokens of ordinary text; special-token strings in it are text like any other."""

    @property
    def vocabulary(self) -> str: ...

    @property
    def exact(self) -> bool: ...

    def count(self, text: str) -> int: ...


class VocabularyCounter(msgspec.Struct, frozen=True):
    """Counts with a vocabulary; an estimate for another model scales what it finds."""

    vocabulary: str
    exact: bool = True
    factor: float = 1.0

    def count(self, text: str) -> int:
        found = _count(self.vocabulary)(text)
        return found if self.factor == 1.0 else round(found * self.factor)


def _count(vocabulary: str) -> Callable[[str], int]:
    return _load(vocabulary)


@functools.cache
def _load(vocabulary: str) -> Callable[[str], int]:
    from rs_bpe import openai

    bpe = {"o200k_base": openai.o200k_base, "cl100k_base": openai.cl100k_base}[vocabulary]()
    native: Callable[[str], int] = bpe.count

    def count(text: str) -> int:
        try:
            return native(text)
        except UnicodeEncodeError as error:
            raise FormatError(
                f"text holds a lone surrogate ({error.object[error.start]!r})",
                hint="Decode the bytes with errors='replace' before handing them over.",
            ) from error

    return count


def counter(model: str | None = None) -> Counter:
    """The counter for a model's vocabulary; o200k where no model is named."""
    return VocabularyCounter("o200k_base")


def count(text: str, model: str | None = None) -> Count:
    """The tokens of a text for a model: count("Hello, world") -> Count(tokens=3, exact=True)."""
    found = counter(model)
    return Count(found.count(text), found.exact, found.vocabulary)
