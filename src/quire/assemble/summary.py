"""The built-in summary of turns that leave: extractive, deterministic, offline.

Keeps what later turns refer back to: every request of the user and every decision, if only by their first words
or in the number of those not listed, then the files, ids and amounts that were named. A summariser is a function
`(Gone) -> str`; a model can take this one's place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from quire.entry import result_text
from quire.tokens import counter
from quire.values import Entry

# Where text is cut: at sentence ends, white space, sections and lines, never in mid-word where there is a choice.

# What ends a word that a cut would part.
_WORD = 16
_SENTENCE = re.compile(r"[.!?](?=\s)")


def truncate(text: str, limit: int) -> str:
    """Cut to `limit` characters at a sentence end that keeps half, else white space, else hard; then '...'."""
    if len(text) <= limit:
        return text
    cut = text[: limit + 1]
    ends = [match.end() for match in _SENTENCE.finditer(cut) if match.end() <= limit]
    if ends and ends[-1] >= limit / 2:
        return f"{text[: ends[-1]]} ..."
    space = max(text[:limit].rfind(" "), text[:limit].rfind("\n"), text[:limit].rfind("\t"))
    return f"{text[:space]} ..." if space > 0 else f"{text[:limit]}..."


def first_words(text: str, length: int) -> str:
    """At least the first `length` characters, to the end of a word that ends soon; then ' ...'."""
    end = text.find(" ", length)
    if end < 0 or end > length + _WORD:
        end = length if len(text) > length + _WORD else len(text)
    return f"{text[:end]} ..." if end < len(text) else text


_HEADING = re.compile(r"#{1,6} ")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def sections(text: str, limit: int, count: int) -> str:
    """The text before the first heading and the first sections, `count` in all, each cut to `limit` characters."""
    parts = _sections(text)
    shown = [truncate(part, limit) for part in parts[:count]]
    more = len(parts) - count
    if more > 0:
        shown.append(f"[... {more} more section{'s' if more > 1 else ''} omitted ...]")
    return "\n\n".join(shown)


def _sections(text: str) -> list[str]:
    """Split before each heading; a # line inside a code fence is no heading."""
    parts: list[list[str]] = [[]]
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if mark and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else mark.group(1)
        elif not fence and _HEADING.match(line):
            parts.append([])
        parts[-1].append(line)
    return [joined for part in parts if (joined := "\n".join(part).strip())]


def lines_that_fit(text: str, characters: int) -> str:
    """The longest run of whole first lines within `characters`; of a single long line, a cut at white space."""
    if len(text) <= characters:
        return text
    cut = text[:characters]
    end = max(cut.rfind("\n"), 0) or max(cut.rfind(" "), 0) or characters
    return cut[:end]


# An earlier summary, read back: what was listed, what was named, and how much went unlisted even then.

SPEAKERS = ("User", "Assistant")
_LINE = re.compile(r"(User|Assistant): (.*)")
_LABEL = re.compile(r"(User|Assistant|Named|Not listed): ")
_UNLISTED = re.compile(r"Not listed: (?=\d)(?:(\d{1,9}) requests)?(?:, )?(?:(\d{1,9}) decisions)?")
NAMED = "Named: "


class Line(msgspec.Struct, frozen=True):
    """One request or decision, on one line."""

    who: str
    text: str


class Untold(msgspec.Struct, frozen=True):
    """How many went that no line tells, or that a line tells for another."""

    requests: int = 0
    decisions: int = 0

    def and_also(self, lines: Iterable[Line]) -> Untold:
        """These, and the lines given."""
        speakers = [one.who for one in lines]
        return Untold(
            self.requests + speakers.count(SPEAKERS[0]), self.decisions + speakers.count(SPEAKERS[1])
        )


class EarlierSummary(msgspec.Struct, frozen=True):
    """The parts of a summary; a model's own words are prose."""

    lines: tuple[Line, ...]
    named: tuple[str, ...]
    prose: str
    missing: Untold


def written(lines: Sequence[Line]) -> list[str]:
    """One line each; who speaks is said where it changes, and where the words could be taken for a label."""
    before = [None, *(one.who for one in lines)]
    return [
        f"{one.who}: {one.text}" if one.who != who or _LABEL.match(one.text) else one.text
        for one, who in zip(lines, before, strict=False)
    ]


def unlisted(missing: Untold) -> str:
    """Says how many requests and decisions no line tells, if any."""
    counts = ((missing.requests, "requests"), (missing.decisions, "decisions"))
    told = ", ".join(f"{number} {what}" for number, what in counts if number)
    return f"Not listed: {told}" if told else ""


def earlier(text: str) -> EarlierSummary:
    """The parts of a summary that the built-in one, or another, has written."""
    lines, named, prose, missing = list[Line](), list[str](), list[str](), Untold()
    who = ""
    for line in text.split("\n"):
        if told := _LINE.fullmatch(line):
            who = told[1]
            lines.append(Line(who, told[2]))
        elif line.startswith(NAMED):
            named += line.removeprefix(NAMED).replace(",", " ").split()
        elif counted := _UNLISTED.fullmatch(line):
            requests, decisions = (int(number or 0) for number in counted.groups())
            missing = Untold(missing.requests + requests, missing.decisions + decisions)
        elif who:
            lines.append(Line(who, line))
        else:
            prose.append(line)
    return EarlierSummary(tuple(lines), tuple(named), "\n".join(prose).strip(), missing)


class Leaving(msgspec.Struct, frozen=True):
    """What a summary has to stand for, and how long it may be."""

    entries: tuple[Entry, ...]
    before: str
    limit: int


Summarise: TypeAlias = Callable[[Leaving], str]

# Things that later turns name again: paths, ids, amounts, codes, mail addresses. Two cheap patterns, the second
# over distinct words only: one long alternation over all the text was six times slower.
_TERM = re.compile(r"[\w@#$€£./~+-]{4,}")
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
# So many of the newest requests, a sixth of all at most, are told at twice the length of the other lines.
_NEWEST, _PART = 3, 6


def extract(gone: Leaving) -> str:
    """Requests and decisions in their order, then the facts that were named, as much as the limit holds."""
    told = earlier(gone.before)
    prose = _fitted(told.prose, gone.limit // 2)
    limit = gone.limit - _count(prose)
    lines, missing = _listed([*told.lines, *_said(gone.entries)], told.missing, limit)
    limit -= _count(unlisted(missing)) + 1
    length = max(min(most, _length(lines, limit * share)) for share, most in _SHARES)
    known = set(facts("\n".join([prose, *_cut(lines, length)])))
    named = _named(_facts(gone.entries, told.named, known), limit - _size(lines, length))
    # What the facts leave goes back to the lines.
    length = max(length, _length(lines, limit - _count(_words(named))))
    return _within(_Draft(prose, missing, tuple(lines), length, tuple(named)), gone.limit)


class _Draft(msgspec.Struct, frozen=True):
    """The parts of a summary that is being fitted."""

    prose: str
    missing: Untold
    lines: tuple[Line, ...]
    length: int
    named: tuple[str, ...]

    def __str__(self) -> str:
        parts = (self.prose, unlisted(self.missing), *_cut(self.lines, self.length), _words(self.named))
        return "\n".join(part for part in parts if part)

    def fits(self, limit: int) -> bool:
        return _count(str(self)) <= limit

    def without_one(self) -> _Draft:
        """The draft with the line that matters least counted instead of told."""
        least = _leaving(self.lines)[0]
        kept = [*self.lines]
        del kept[least]
        return replace(self, lines=tuple(kept), missing=self.missing.and_also([self.lines[least]]))


def _within(draft: _Draft, limit: int) -> str:
    """The draft as text of at most so many tokens: names give way first, then other prose, then lines."""
    if not replace(draft, named=()).fits(limit):
        draft = replace(draft, named=())
    while draft.named and not draft.fits(limit):
        draft = replace(draft, named=draft.named[:-1])
    if not draft.fits(limit):
        draft = replace(draft, prose="")
    while draft.lines and not draft.fits(limit):
        draft = draft.without_one()
    # What cannot even say how much it leaves out says nothing.
    return str(draft) if draft.fits(limit) else ""


def _said(entries: Sequence[Entry]) -> Iterator[Line]:
    """What the user asked, and the sentences of the model in which something was settled."""
    for entry in entries:
        if entry.kind == "user" and entry.text.strip():
            yield Line("User", _flat(entry.text))
        elif entry.kind == "respond":
            sentences = re.split(r"(?<=[.!?])\s+|\n+", entry.text)
            settled = (one for one in sentences if _DECISION.search(one) and not one.endswith("?"))
            yield from (Line("Assistant", _flat(one)) for one in settled)


def _listed(lines: Sequence[Line], missing: Untold, limit: int) -> tuple[list[Line], Untold]:
    """The lines that can be told at least by their first words, and how many are missing with all others.

    Equal ones are told once. Decisions give way to requests, older ones to newer ones.
    """
    newest = {one: place for place, one in enumerate(lines)}
    missing = missing.and_also(one for place, one in enumerate(lines) if newest[one] != place)
    kept = [one for who in SPEAKERS for one in sorted(newest, key=newest.__getitem__) if one.who == who]
    size, sizes = _size(kept, _SHORTEST), [_count(text) + 1 for text in _cut(kept, _SHORTEST)]
    gone = set[int]()
    for place in _leaving(kept):
        if size + _count(unlisted(missing)) <= limit * _MOST:
            break
        size -= sizes[place]
        missing = missing.and_also([kept[place]])
        gone.add(place)
    return [one for place, one in enumerate(kept) if place not in gone], missing


def _leaving(lines: Sequence[Line]) -> list[int]:
    """The places of lines in the order in which they give way."""
    return [place for who in reversed(SPEAKERS) for place, one in enumerate(lines) if one.who == who]


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
    """Requests, then decisions, each by its first words; of the newest requests twice as many."""
    asked = sum(one.who == SPEAKERS[0] for one in lines)
    newest = range(asked - min(_NEWEST, asked // _PART), asked)
    lengths = (length * (2 if place in newest else 1) for place in range(len(lines)))
    cut = [Line(one.who, first_words(one.text, most)) for one, most in zip(lines, lengths, strict=True)]
    return written(cut)


def _fitted(text: str, limit: int) -> str:
    """A text of at most so many tokens, cut at a sentence where there is one."""
    tokens = _count(text)
    characters, cut = len(text), text
    while cut and _count(cut) > limit:
        characters = min(characters * 9 // 10, int(len(text) * limit / tokens))
        cut = truncate(text, characters) if characters > 0 else ""
    return cut


def facts(text: str) -> list[str]:
    """The telling words of a text, in order of appearance, each once."""
    words = dict.fromkeys(word.strip("./-+~") for word in dict.fromkeys(_TERM.findall(text)))
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


def _named(words: Sequence[str], room: float) -> list[str]:
    """As many words as fit on one line."""
    kept = list[str]()
    room -= _count(NAMED)
    for word in words:
        cost = _count(f" {word}")
        if cost <= room:
            room -= cost
            kept.append(word)
        elif room < 2:
            break
    return kept


def _words(named: Sequence[str]) -> str:
    return f"{NAMED}{' '.join(named)}" if named else ""


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
