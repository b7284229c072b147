"""How much texts have to do with a query, from 0 to 1, the best of them near 1.

By words: the share of the query's words that a text holds, rare words counting more. By meaning, where cosines
are given: how near a text comes to the nearest. Together words count 0.7 (of 0.5 to 0.9 the best on recorded
conversations), less where no text holds a fifth of the query's words, and nothing where none holds any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import log
from typing import Final

import msgspec

from quire.errors import MissingPart

WORDS: Final = 0.7
ENOUGH: Final = 0.2
# The cosine of texts that have nothing to do with each other.
UNRELATED: Final = 0.25


class Corpus(msgspec.Struct, frozen=True):
    """Of how many texts the ones at hand were taken, and in how many of them each word of the query stands."""

    size: int
    holding: dict[str, int]


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text that are worth searching, each once: 'The API keys' -> ('api', 'keys')."""
    try:
        from quire.recall.words import FUNCTION_WORDS, tokens
    except ImportError as error:
        raise _missing() from error
    return tuple(dict.fromkeys(word for word in tokens(text) if word not in FUNCTION_WORDS))


@lru_cache(maxsize=8192)
def terms_of(text: str) -> frozenset[str]:
    """The same with forms and endings joined: 'The API keys' -> {'api', 'key'}."""
    try:
        from quire.recall.words import content, stem
    except ImportError as error:
        raise _missing() from error
    return frozenset(stem(content(text)))


def _missing() -> MissingPart:
    return MissingPart("searching records needs numpy and PyStemmer", hint="pip install 'quire[records]'")


def by_words(query: str, texts: Sequence[str], corpus: Corpus | None = None) -> list[float]:
    """The share of the query's words in each text, weighed by how few texts hold them."""
    wanted, held = sorted(terms_of(query)), [terms_of(text) for text in texts]
    size, holding = _counted(held, wanted) if corpus is None else _given(corpus)
    weight = {word: _weight(min(holding.get(word, 0), size), size) for word in wanted}
    whole = sum(weight.values()) or 1.0
    return [sum(weight[word] for word in wanted if word in words) / whole for words in held]


def _counted(held: Sequence[frozenset[str]], wanted: Sequence[str]) -> tuple[int, dict[str, int]]:
    return len(held), dict(Counter(word for words in held for word in wanted if word in words))


def _given(corpus: Corpus) -> tuple[int, dict[str, int]]:
    joined = {term: number for word, number in corpus.holding.items() for term in terms_of(word)}
    return corpus.size, joined


def _weight(holding: int, size: int) -> float:
    return log(1 + (size - holding + 0.5) / (holding + 0.5))


def relevance(
    query: str, texts: Sequence[str], cosines: Sequence[float] | None = None, corpus: Corpus | None = None
) -> list[float]:
    """Words and meaning together, each as a share of the best."""
    words = by_words(query, texts, corpus)
    if cosines is None:
        return _shares(words)
    near = _shares([cosine if cosine >= UNRELATED else 0.0 for cosine in cosines])
    trust = WORDS * min(max(words, default=0.0) / ENOUGH, 1.0)
    return [trust * word + (1 - trust) * close for word, close in zip(_shares(words), near, strict=True)]


def _shares(values: Sequence[float]) -> list[float]:
    best = max(values, default=0.0)
    return [max(value, 0.0) / best if best > 0 else 0.0 for value in values]
