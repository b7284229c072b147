"""How something is said, from its words alone: whether it asks, who it is about, whether it speaks of time.

English cues; in other languages they are silent, and nothing is gained or lost.
"""

from __future__ import annotations

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


class Speech(msgspec.Struct, frozen=True):
    """`person` is above a half when the speaker tells of themselves, below when they speak of the listener."""

    asks: bool
    person: float
    times: int
    length: int


def speech(text: str) -> Speech:
    """The manner of one utterance: "When did you go?" -> Speech(asks=True, person=1/3, times=0, length=4)."""
    said = tokens(text)
    first = sum(word in _FIRST for word in said)
    second = sum(word in _SECOND for word in said)
    return Speech(
        asks=text.rstrip().endswith(("?", "？", "؟")),
        person=(first + 1) / (first + second + 2),
        times=min(2, sum(word in _TIMES for word in said)),
        length=len(said),
    )
