"""What a query asks for: its words, whom it is about, whether for a time or a name, and the text whose meaning counts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

import msgspec

from quire.recall.languages import WHOLE, readable, terms
from quire.values import Entry

# What is said before the last turn helps to understand it, and counts this much.
EARLIER = 0.25
# Two words that stand side by side in the query and in a text count this much more.
SIDE_BY_SIDE = 0.4
_NAME = re.compile(r"[^\W_]+(?:['’]s\b)?")
_ASKS_WHEN = re.compile(r"\W*(when|since when|how long|(on |in )?(what|which) (date|day|month|year|time))\b", re.I)

# What has a name of its own: "what film", "which of her books", "what's the name", but not "what did the team".
_NAMED = """
book novel movie film series show game song album band artist author singer musician composer
city cities country countries place town state location
company companies brand organization team school name title
"""
_VERBS = "do|does|did|has|have|had|can|could|will|would|should"
_SPACE = rf"\s+(?!({_VERBS})\b)"
_WHICH = re.compile(
    rf"\W*(\w+\s+)?(what|which)(['’]s)?({_SPACE}[\w'’/+-]+){{0,3}}?{_SPACE}({'|'.join(_NAMED.split())})s?\b", re.I
)


class Query(msgspec.Struct, frozen=True):
    """A query, and the turn before it where it continues a conversation."""

    text: str
    earlier: str = ""


class QueryTerms(msgspec.Struct, frozen=True):
    """A query taken apart for one collection.

    `words` holds what to look up, a word or two that stand side by side, and its weight; `subject` is the speaker it
    is about, -1 for none. `when`, `name`: it asks for a time, for something with a name. `meaning` is the text to
    embed, empty where the model does not read its script, `earlier` that of the turn before.
    """

    words: tuple[tuple[str, float], ...]
    subject: int = -1
    when: bool = False
    name: bool = False
    meaning: str = ""
    earlier: str = ""


def ask(query: Query, names: Mapping[str, int]) -> QueryTerms:
    """Take a query apart; `names` gives the speaker that a lower-case word names."""
    found = [(match, names[_bare(match[0])]) for match in _NAME.finditer(query.text) if _bare(match[0]) in names]
    return QueryTerms(
        _weighed(query),
        _subject(query.text, found),
        _ASKS_WHEN.match(query.text) is not None,
        _WHICH.match(query.text) is not None,
        *(in_first_person(text, names) if readable(text) else "" for text in (query.text, query.earlier)),
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


def _subject(text: str, found: list[tuple[re.Match[str], int]]) -> int:
    """Whom the query is about: the only one named, else the first who is not merely an owner; -1 for nobody."""
    people = list(dict.fromkeys(speaker for _, speaker in found))
    if len(people) < 2:
        return people[0] if people else -1
    (first, one), (second, other) = next((a, b) for a, b in pairwise(found) if a[1] != b[1])
    if one != other and text[first.end() : second.start()].strip().lower() in ("and", "&", "or", ","):
        return -1
    acting = [speaker for match, speaker in found if match[0].lower() == _bare(match[0])]
    return (acting or people)[0]


def _weighed(query: Query) -> tuple[tuple[str, float], ...]:
    """The words of the query and its pairs of neighbouring words, each once; of the turn before at less weight."""
    out: dict[str, float] = {}
    for text, weight in ((query.text, 1.0), (query.earlier, EARLIER)):
        words = terms(text, asked=True)
        row = [word for word in words if word[0] != WHOLE]
        for word in words:
            out.setdefault(word, weight)
        for each, other in pairwise(row):
            out.setdefault(f"{each} {other}", weight * SIDE_BY_SIDE)
    return tuple(sorted(out.items()))


# The query of a conversation: what the user said last, and at less weight what they said before.


def query_for(entries: Iterable[Entry]) -> Query:
    """The last user turn, with the one before it for what it leaves unsaid."""
    said = [entry.text for entry in entries if entry.kind == "user" and entry.text.strip()]
    return Query(said[-1] if said else "", said[-2] if len(said) > 1 else "")
