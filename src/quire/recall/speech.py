"""How something is said, from its words alone: whether it asks, who it is about, whether it speaks of time or names.

English cues; in other languages they are silent, and nothing is gained or lost.
"""

from __future__ import annotations

import re

import msgspec

from quire.recall.words import tokens

_I = "i my me mine myself we our ours us ourselves"
_YOU = "you your yours yourself yourselves"
_WHEN = """
yesterday today tonight tomorrow last next ago since recently soon morning night
week weeks weekend month months year years
monday tuesday wednesday thursday friday saturday sunday mon tue wed thu fri sat sun
spring summer fall autumn winter
january february march april may june july august september october november december
"""
_FIRST, _SECOND, _TIMES = (frozenset(words.split()) for words in (_I, _YOU, _WHEN))
_NAMELESS = _FIRST | _TIMES
# A word inside a sentence, where a capital means a name; and the one spoken to ("Hey Ann!", "Thanks, Ann.").
_INSIDE = re.compile(r" (?<=[^\s.!?…] )[\"“‘'(]*([^\W\d_]\w*)")
_SPOKEN_TO = re.compile(r"(?:,|(?:^|[.!?…])\s*[^\W\d_]+,?)\s+[^\W\d_]+(?=\s*(?:[,.!?…]|$))")


class Speech(msgspec.Struct, frozen=True):
    """`person` is above a half when the speaker tells of themselves, below when they speak of the listener."""

    asks: bool
    person: float
    times: int
    names: int
    length: int


def speech(text: str) -> Speech:
    """The manner of one utterance: "When did you go?" -> Speech(True, 1/3, 0, 0, 4)."""
    said = tokens(text)
    first = sum(word in _FIRST for word in said)
    second = sum(word in _SECOND for word in said)
    return Speech(
        asks=text.rstrip().endswith(("?", "？", "؟")),
        person=(first + 1) / (first + second + 2),
        times=min(2, sum(word in _TIMES for word in said)),
        names=min(2, _names(text)),
        length=len(said),
    )


def _names(text: str) -> int:
    """How many words name something: "Hey Ann! I saw Rome in May." -> 1, Rome."""
    inside = _INSIDE.findall(_SPOKEN_TO.sub(" ", text))
    return sum(word[0].isupper() and word.lower() not in _NAMELESS for word in inside)
