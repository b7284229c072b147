"""Counters: one per vocabulary, loaded when first used, safe to share between threads, with no memory of texts."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Protocol

import msgspec

from quire.errors import FormatError, MissingPart
from quire.log.shapes import NOT_UTF8_HINT
from quire.tokens.vocabulary import BASE, DEFAULT, RELATIVE, UNKNOWN, Vocabulary, vocabulary
from quire.values import Count

EXTRA_HINT = "pip install 'quire[tokenizers]'"


class Counter(Protocol):
    """Counts tokens of ordinary text; special-token strings in it are text like any other."""

    @property
    def vocabulary(self) -> str: ...

    @property
    def exact(self) -> bool: ...

    def count(self, text: str) -> int: ...


class VocabularyCounter(msgspec.Struct, frozen=True):
    """Counts with a vocabulary; an estimate multiplies what it finds by `factor` and says so in `note`."""

    vocabulary: str = DEFAULT
    exact: bool = True
    factor: float = 1.0
    note: str = ""

    def count(self, text: str) -> int:
        try:
            found = _counting(self.vocabulary)(text)
        except UnicodeEncodeError as error:
            raise FormatError(
                f"text holds a lone surrogate ({error.object[error.start]!r})",
                hint=NOT_UTF8_HINT,
            ) from error
        return found if self.factor == 1.0 else round(found * self.factor)


def counter(model: str | None = None) -> VocabularyCounter:
    """The counter for a model's vocabulary; o200k where no model is named."""
    wanted = vocabulary(model)
    if wanted.name in BASE or extra_installed():
        return VocabularyCounter(wanted.name, wanted.exact, wanted.factor, _note(model, wanted))
    factor = round(wanted.factor * RELATIVE[wanted.name], 3)
    note = f"estimate: {DEFAULT} × {factor}, for {wanted.name} is not installed; {EXTRA_HINT}"
    return VocabularyCounter(DEFAULT, exact=False, factor=factor, note=note)


def count(text: str, model: str | None = None) -> Count:
    """The tokens of a text for a model: count("Hello, world") -> Count(tokens=3, exact=True)."""
    found = counter(model)
    return Count(found.count(text), found.exact, found.vocabulary)


def extra_installed() -> bool:
    """Whether the vocabularies beyond OpenAI's are at hand."""
    return importlib.util.find_spec("splintr") is not None


def _note(model: str | None, wanted: Vocabulary) -> str:
    if wanted.exact:
        return ""
    by = f" × {wanted.factor}" if wanted.factor != 1.0 else ""
    why = f"the model {model} is unknown" if wanted == UNKNOWN else f"the vocabulary of {model} is not public"
    return f"estimate: {wanted.name}{by}, for {why}"


@functools.cache
def _counting(name: str) -> Callable[[str], int]:
    """The counting function of a vocabulary; loading takes up to half a second, so once per process."""
    return _openai(name) if name in BASE else _splintr(name)


def _openai(name: str) -> Callable[[str], int]:
    from rs_bpe import openai

    load = openai.o200k_base if name == "o200k_base" else openai.cl100k_base
    native: Callable[[str], int] = load().count
    return native


def _splintr(name: str) -> Callable[[str], int]:
    try:
        from splintr import Tokenizer
    except ImportError as error:
        raise MissingPart(f"the vocabulary {name} is not installed", hint=EXTRA_HINT) from error
    # `ordinary`: a special token spelled out in the text must not become one.
    encode: Callable[[str], list[int]] = Tokenizer.from_pretrained(name).encode_ordinary
    return lambda text: len(encode(text))
