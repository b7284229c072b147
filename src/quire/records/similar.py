"""Which texts say the same: by the cosine of their embeddings where there is an embedder, else by shared words.

Texts that differ in a number, a code or a 'not' are never the same, however alike they look.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from math import sqrt
from typing import TypeAlias

_WORD = re.compile(r"\w+(?:['’]\w+)?")
_FACT = re.compile(r"\S*\d\S*")
_NOT = re.compile(r"\b(?:not?|never|none|cannot|without|nothing)\b|n['’]t\b", re.IGNORECASE)

Embed: TypeAlias = Callable[[Sequence[str]], Iterable[Iterable[float]]]
Alike: TypeAlias = Callable[[int, int], float]


def repeated(
    texts: Sequence[str], threshold: float, embed: Embed | None = None, pinned: Iterable[int] = ()
) -> dict[int, int]:
    """The texts that repeat another, each with the one that stays: the pinned, else the later.

    ["a b", "c", "a b"] -> {0: 2}
    """
    alike = by_meaning(texts, embed) if embed else by_words(texts)
    facts = [_facts(text) for text in texts]
    kept, dropped = list(dict.fromkeys(pinned)), dict[int, int]()
    for at in reversed([at for at in range(len(texts)) if at not in kept]):
        same = next((one for one in kept if facts[one] == facts[at] and alike(one, at) >= threshold), None)
        if same is None:
            kept.append(at)
        else:
            dropped[at] = same
    return dropped


def by_words(texts: Sequence[str]) -> Alike:
    """The cosine of two sets of single words and word pairs."""
    sets = [_shingles(text) for text in texts]

    def alike(one: int, other: int) -> float:
        a, b = sets[one], sets[other]
        return len(a & b) / sqrt(len(a) * len(b)) if a and b else float(texts[one] == texts[other])

    return alike


def by_meaning(texts: Sequence[str], embed: Embed) -> Alike:
    """The cosine of two embeddings, which have length 1."""
    vectors = [tuple(map(float, vector)) for vector in embed(texts)]

    def alike(one: int, other: int) -> float:
        return sum(a * b for a, b in zip(vectors[one], vectors[other], strict=True))

    return alike


def _shingles(text: str) -> frozenset[tuple[str, ...]]:
    words = _WORD.findall(text.casefold())
    return frozenset([*((word,) for word in words), *pairwise(words)])


def _facts(text: str) -> tuple[frozenset[str], bool]:
    """What must agree: every word that holds a digit, and whether something is denied."""
    return frozenset(fact.strip(".,;:!?()") for fact in _FACT.findall(text.casefold())), bool(
        _NOT.search(text)
    )
