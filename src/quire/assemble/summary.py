"""The built-in summary of turns that leave: extractive, deterministic, offline.

Keeps what later turns refer back to: the user's requests, decisions, files, ids and amounts.
A summariser is a function `(Gone) -> str`; a model can take this one's place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from quire.assemble.cuts import truncate
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


def extract(gone: Gone) -> str:
    """User requests first, then the facts that were named, then decisions, as much as the limit holds."""
    if gone.limit <= 0:
        return ""
    lines = _Lines(gone.limit, known=gone.before)
    if gone.before:
        lines.keep_block(gone.before, gone.limit // 2)
    lines.take(_requests(gone.entries, gone.limit), lines.used + gone.limit // 4)
    lines.take_words("Named:", _facts(gone.entries, lines.known), gone.limit * 19 // 20)
    lines.take(_decisions(gone.entries), gone.limit)
    return lines.text()


class _Lines:
    """Lines in order of arrival, up to a number of tokens; remembers every fact already told."""

    def __init__(self, limit: int, known: str) -> None:
        self.limit, self.used, self.lines = limit, 0, list[str]()
        self.known = set(facts(known))
        self.count = counter().count

    def keep_block(self, text: str, limit: int) -> None:
        """An earlier summary: its lines, the newest first dropped last."""
        kept: list[str] = []
        for line in reversed(text.split("\n")):
            cost = self.count(line) + 1
            if self.used + cost > limit:
                break
            self.used += cost
            kept.append(line)
        self.lines += reversed(kept)

    def take(self, lines: Sequence[str], limit: int) -> None:
        seen = set(self.lines)
        for line in lines:
            cost = self.count(line) + 1
            if line in seen or self.used + cost > limit:
                continue
            seen.add(line)
            self.used += cost
            self.lines.append(line)

    def take_words(self, label: str, words: Sequence[str], limit: int) -> None:
        """As many words as fit, on one line."""
        kept, used = list[str](), self.used + self.count(label) + 1
        for word in words:
            cost = self.count(f" {word},")
            if used + cost > limit:
                break
            used += cost
            kept.append(word)
        if kept:
            self.used = used
            self.lines.append(f"{label} {', '.join(kept)}")

    def text(self) -> str:
        return "\n".join(self.lines)


def _requests(entries: Sequence[Entry], limit: int) -> list[str]:
    """What the user asked, each cut so that all of them have a chance to fit into their quarter."""
    spoken = [entry for entry in entries if entry.kind == "user" and entry.text.strip()]
    length = min(160, max(40, limit // max(1, len(spoken))))
    return [f"User: {truncate(_flat(entry.text), length)}" for entry in spoken]


def _decisions(entries: Sequence[Entry]) -> list[str]:
    """The sentences of the model in which something was settled."""
    out = []
    for entry in entries:
        if entry.kind == "respond":
            sentences = re.split(r"(?<=[.!?])\s+|\n+", entry.text)
            out += [f"Assistant: {truncate(_flat(s), 160)}" for s in sentences if _DECISION.search(s)]
    return out


def facts(text: str) -> list[str]:
    """The telling words of a text, in order of appearance, each once."""
    words = dict.fromkeys(word.strip("./-+~") for word in dict.fromkeys(_WORD.findall(text)))
    return [word for word in words if len(word) >= 4 and _TELLING.search(word)]


def _facts(entries: Sequence[Entry], known: set[str]) -> list[str]:
    """Ids, paths, amounts: those that people and the model named first, then by how often and how lately."""
    score: dict[str, float] = {}
    for place, entry in enumerate(entries, 1):
        spoken = 3.0 if entry.kind != "result" else 1.0
        for fact in set(facts(_text(entry))) - known:
            score[fact] = score.get(fact, 0.0) + spoken + place / len(entries)
    return sorted(score, key=lambda fact: (-score[fact], fact))


def _text(entry: Entry) -> str:
    if entry.kind == "result":
        return result_text(entry)
    if entry.kind == "call":
        return " ".join(str(value) for value in entry.args.values()) if isinstance(entry.args, dict) else ""
    return entry.text


def _flat(text: str) -> str:
    return " ".join(text.split())
