"""How much texts have to do with a query, from 0 to 1, the best of them near 1.

By words: the share of the query's telling words that a text holds, rare words counting more.
By meaning, where cosines are given: how near a text comes to the nearest. Both together: their mean.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from math import log
from typing import Any, Final

_WORD = re.compile(r"[^\W_]+")
# Words that say nothing of what a text is about.
STOP: Final = frozenset(
    _WORD.findall(
        """
        a about above after again against all also am an and any anyone anything are as at be because been before being
        below between both but by can cannot could d did do does doing don done down during each else ever every few for
        from further get give go had has have having he her here hers herself him himself his how i if in into is isn it
        its itself just know last let like ll m make many me more most much my myself need no nor not now of off ok okay on
        once one only or other our ours ourselves out over own please re really remember s said same say see she should so
        some something such sure t take tell than thank thanks that the their theirs them themselves then there these they
        thing things this those through to told too under until up us used using ve very want was we were what when where
        which while who whom whose why will with would yes you your yours yourself yourselves
        """
    )
)


@lru_cache(maxsize=4096)
def words(text: str) -> tuple[str, ...]:
    """The telling words of a text, as stems: 'The API keys' -> ('api', 'key')."""
    stem = _stemmer()
    return tuple(stem(word) for word in _WORD.findall(text.casefold()) if word not in STOP)


@cache
def _stemmer() -> Any:
    """Snowball where it is installed, else without the plural's s."""
    try:
        from Stemmer import Stemmer
    except ImportError:
        return lambda word: (
            word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        )
    return Stemmer("english").stemWord


def by_words(query: str, texts: Sequence[str]) -> list[float]:
    """The share of the query's words in each text, weighed by how few of the texts hold them."""
    wanted, held = set(words(query)), [set(words(text)) for text in texts]
    found = Counter(word for words in held for word in words & wanted)
    # A word that no text holds cannot tell them apart, so it does not count.
    weight = {word: log(1 + (len(texts) - n + 0.5) / (n + 0.5)) for word, n in found.items()}
    whole = sum(weight.values()) or 1.0
    return [sum(weight[word] for word in words & wanted) / whole for words in held]


def relevance(query: str, texts: Sequence[str], cosines: Sequence[float] | None = None) -> list[float]:
    """Words and meaning together, each as a share of the best."""
    shared = _shares(by_words(query, texts))
    if cosines is None:
        return shared
    return [(word + near) / 2 for word, near in zip(shared, _shares(cosines), strict=True)]


def _shares(values: Sequence[float]) -> list[float]:
    best = max(values, default=0.0)
    return [max(value, 0.0) / best if best > 0 else 0.0 for value in values]
