"""The built-in summary of turns that leave: extractive, deterministic, offline.

Keeps what later turns refer back to: every request of the user and every decision, if only by their first words,
then the files, ids and amounts that were named. A summariser is a function `(Gone) -> str`; a model can take
this one's place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from quire.assemble.cuts import first_words, truncate
from quire.assemble.earlier import SPEAKERS, Earlier, Line, earlier, unlisted, written
from quire.assemble.turn import result_text
from quire.tokens import counter
from quire.values import Entry


class Gone(msgspec.Struct, frozen=True):
    """What a summary has to stand for, and how long it may be."""

    entries: tuple[Entry, ...]
    before: str
    limit: int


Summarise: TypeAlias = Callable[[Gone], str]

# Things that later turns name again: paths, ids, amounts, codes, mail addresses. Two cheap patterns, the second
# over distinct words only: one long alternation over all the text was six times slower.
_WORD = re.compile(r"[\w@#$€£./~+-]{4,}")
_TELLING = re.compile(
    r"\d|\w_\w|/\w|@|[$€£]|^[A-Z]{5,}$|\.(?:py|tsx?|jsx?|md|json|toml|ya?ml|go|rs|c|h|java|txt|sh|sql|css|html)$"
)
_DECISION = re.compile(
    r"(?i)\b(decid|decision|agreed|must|never|always|should|confirm|fixed|because|instead|conclusion|"
    r"root cause|done|cancel|refund|exchange|prefer|do not|don't|will use|chose)\w*"
)
# Requests and decisions take a quarter of the summary; more of it where that leaves each of them fewer than 30
# characters, and more again for 16 and for 12. Where that is still too little, the oldest go.
_SHARES = ((0.25, 160), (0.4, 30), (0.6, 16), (0.9, 12))
_MOST, _SHORTEST = _SHARES[-1]
_LONGEST = _SHARES[0][1]


def extract(gone: Gone) -> str:
    """Requests and decisions in their order, then the facts that were named, as much as the limit holds."""
    if gone.limit <= 0:
        return ""
    told = earlier(gone.before)
    prose = _fitted(told.prose, gone.limit // 2)
    limit = gone.limit - _count(prose)
    lines, others = _listed([*told.lines, *_said(gone.entries)], told, limit)
    limit -= _count(others) + 1
    length = max(min(most, _length(lines, limit * share)) for share, most in _SHARES)
    known = set(facts("\n".join([prose, *_cut(lines, length)])))
    named = _named(_facts(gone.entries, told.named, known), limit - _size(lines, length))
    # What the facts leave goes back to the lines.
    length = max(length, _length(lines, limit - _count(named)))
    return "\n".join(part for part in (prose, others, *_cut(lines, length), named) if part)


def _said(entries: Sequence[Entry]) -> Iterator[Line]:
    """What the user asked, and the sentences of the model in which something was settled."""
    for entry in entries:
        if entry.kind == "user" and entry.text.strip():
            yield Line("User", _flat(entry.text))
        elif entry.kind == "respond":
            sentences = re.split(r"(?<=[.!?])\s+|\n+", entry.text)
            settled = (one for one in sentences if _DECISION.search(one) and not one.endswith("?"))
            yield from (Line("Assistant", _flat(one)) for one in settled)


def _listed(lines: Iterable[Line], told: Earlier, limit: int) -> tuple[list[Line], str]:
    """The lines that can be told at least by their first words; of the others, how many there were.

    Decisions give way to requests, older ones to newer ones.
    """
    distinct = dict.fromkeys(lines)
    kept = [one for who in SPEAKERS for one in distinct if one.who == who]
    over = _size(kept, _SHORTEST) + _count(unlisted(told.requests, told.decisions)) - limit * _MOST
    # How many have gone is told where there is room for more than that.
    note = _count(unlisted(10, 10))
    counted = note * 4 <= limit
    over += note if over > 0 and counted else 0
    leaving = set[Line]()
    for one in [one for who in reversed(SPEAKERS) for one in kept if one.who == who]:
        if over > 0:
            over -= _count(first_words(one.text, _SHORTEST)) + 1
            leaving.add(one)
    asked = sum(one.who == SPEAKERS[0] for one in leaving)
    gone = unlisted(told.requests + asked, told.decisions + len(leaving) - asked)
    return [one for one in kept if one not in leaving], gone if counted else ""


def _length(lines: Sequence[Line], room: float) -> int:
    """How many characters each line may have at most so that all of them fit."""
    low, high = _SHORTEST, _LONGEST
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _size(lines, middle) <= room else (low, middle - 1)
    return low


def _size(lines: Sequence[Line], length: int) -> int:
    return _count("\n".join(_cut(lines, length))) + 1 if lines else 0


def _cut(lines: Sequence[Line], length: int) -> list[str]:
    return written([Line(one.who, first_words(one.text, length)) for one in lines])


def _fitted(text: str, limit: int) -> str:
    tokens = _count(text)
    return text if tokens <= limit else truncate(text, int(len(text) * limit / tokens))


def facts(text: str) -> list[str]:
    """The telling words of a text, in order of appearance, each once."""
    words = dict.fromkeys(word.strip("./-+~") for word in dict.fromkeys(_WORD.findall(text)))
    return [word for word in words if len(word) >= 4 and _TELLING.search(word)]


def _facts(entries: Sequence[Entry], before: Sequence[str], known: set[str]) -> list[str]:
    """Ids, paths, amounts: those that people and the model named first, then by how often and how lately.

    What an earlier summary named stands behind what was said since, before what only tools returned.
    """
    score = dict.fromkeys((fact for fact in before if fact not in known), 2.0)
    for place, entry in enumerate(entries, 1):
        spoken = 3.0 if entry.kind != "result" else 1.0
        for fact in facts(_text(entry)):
            if fact not in known:
                score[fact] = score.get(fact, 0.0) + spoken + place / len(entries)
    # Equal ones stay in the order in which they were named.
    return sorted(score, key=lambda fact: -score[fact])


def _named(words: Sequence[str], room: float) -> str:
    """As many words as fit, on one line."""
    label, kept = "Named:", list[str]()
    room -= _count(label) + 1
    for word in words:
        cost = _count(f" {word}")
        if cost <= room:
            room -= cost
            kept.append(word)
        elif room < 2:
            break
    return f"{label} {' '.join(kept)}" if kept else ""


def _text(entry: Entry) -> str:
    if entry.kind == "result":
        return result_text(entry)
    if entry.kind == "call":
        return " ".join(str(value) for value in entry.args.values()) if isinstance(entry.args, dict) else ""
    return entry.text


def _flat(text: str) -> str:
    return " ".join(text.split())


def _count(text: str) -> int:
    return counter().count(text) if text else 0
