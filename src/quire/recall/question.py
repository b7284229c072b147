"""What a query asks for: its words, whom it is about, whether for a time or a name, and the text whose meaning counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

import msgspec

from quire.recall.words import content, stem

# What is said before the last turn helps to understand it, and counts this much.
EARLIER = 0.25
_NAME = re.compile(r"[^\W_]+(?:['’]s\b)?")
_WHEN = re.compile(r"\W*(when|since when|how long|(on |in )?(what|which) (date|day|month|year|time))\b", re.I)

# What has a name of its own: "what film", "which of her books", "what's the name", but not "what did the team".
_NAMED = """
book novel movie film series show game song album band artist author singer musician composer
city cities country countries place town state location
company companies brand organization team school name title
"""
_VERBS = "do|does|did|has|have|had|can|could|will|would|should"
# Several things: "how many", "what are", "which old books"; the noun stands in front of the verb.
_PLURAL = r"(people|children|men|women|\w{2,}[^\Wsui]s(?!['’]))"
_BREAKS = f"{_VERBS}|is|was|of|in|to|for|that|and"


def _asks(what: str, breaks: str) -> re.Pattern[str]:
    """A pattern for "what" or "which", up to three words that are none of `breaks`, and what is asked for."""
    space = rf"\s+(?!({breaks})\b)"
    return re.compile(rf"\W*(\w+\s+)?(what|which)(['’]s)?({space}[\w'’/+-]+){{0,3}}?{space}{what}\b", re.I)


_WHICH = _asks(f"({'|'.join(_NAMED.split())})s?", _VERBS)
_SEVERAL = _asks(_PLURAL, _BREAKS)
_MANY = re.compile(r"\W*(\w+\s+)?(how many|(what|which) (are|were))\b", re.I)


class Query(msgspec.Struct, frozen=True):
    """A query, and the turn before it where it continues a conversation."""

    text: str
    earlier: str = ""


class Asked(msgspec.Struct, frozen=True):
    """A query taken apart for one collection.

    `words` holds (word, its stem, weight); `subject` is the one speaker it is about, -1 for none,
    and `sure` whether nobody else is named. `when`, `name`, `several`: it asks for a time,
    for something with a name, for a list. `meaning` is the text to embed, `earlier` that of the turn before.
    """

    words: tuple[tuple[str, str, float], ...]
    subject: int = -1
    sure: bool = False
    when: bool = False
    name: bool = False
    several: bool = False
    meaning: str = ""
    earlier: str = ""


def ask(query: Query, names: Mapping[str, int]) -> Asked:
    """Take a query apart; `names` gives the speaker that a lower-case word names."""
    found = [
        (match, names[_bare(match[0])]) for match in _NAME.finditer(query.text) if _bare(match[0]) in names
    ]
    subject, sure = _subject(query.text, found)
    return Asked(
        _weighed(query),
        subject,
        sure,
        _WHEN.match(query.text) is not None,
        _WHICH.match(query.text) is not None,
        _MANY.match(query.text) is not None or _SEVERAL.match(query.text) is not None,
        in_first_person(query.text, names),
        in_first_person(query.earlier, names),
    )


def in_first_person(text: str, names: Mapping[str, int]) -> str:
    """The query as the person named would say it: "What did Ann's son eat?" -> "What did my son eat?"."""

    def said(match: re.Match[str]) -> str:
        if _bare(match[0]) not in names:
            return match[0]
        return "I" if match[0].lower() == _bare(match[0]) else "my"

    return " ".join(_NAME.sub(said, text).split())


def _bare(word: str) -> str:
    """A word without its possessive, lower case: "Ann's" -> "ann"."""
    return re.sub(r"['’]s$", "", word.lower())


def _subject(text: str, found: list[tuple[re.Match[str], int]]) -> tuple[int, bool]:
    """Whom the query is about: the only one named, else the first who is not merely an owner."""
    people = list(dict.fromkeys(speaker for _, speaker in found))
    if len(people) < 2:
        return (people[0], True) if people else (-1, False)
    (first, one), (second, other) = next((a, b) for a, b in pairwise(found) if a[1] != b[1])
    if one != other and text[first.end() : second.start()].strip().lower() in ("and", "&", "or", ","):
        return -1, False
    acting = [speaker for match, speaker in found if match[0].lower() == _bare(match[0])]
    return (acting or people)[0], False


def _weighed(query: Query) -> tuple[tuple[str, str, float], ...]:
    """The words of the query, each once; those of the turn before at less weight."""
    out: dict[str, tuple[str, str, float]] = {}
    for text, weight in ((query.text, 1.0), (query.earlier, EARLIER)):
        words = content(text)
        for word, stemmed in zip(words, stem(words), strict=True):
            out.setdefault(stemmed, (word, stemmed, weight))
    return tuple(sorted(out.values(), key=lambda one: one[1]))
