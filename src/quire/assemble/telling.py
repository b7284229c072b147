"""Which words of a text are likely to be named again: ids, paths, dotted names, then dates, amounts, numbers.

How likely was counted on recorded agent runs: of the words in messages that lie a while back, which does a later
action name? A word that an action or the user named before is likelier, a key of a JSON object never is.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from functools import lru_cache

from quire.tokens import counter

# A run of a word's characters, unless it is the key of a JSON object.
_TERM = re.compile(r'[\w@#$€£./~+-]{4,}+(?!"\s*:)')
# The same in steps that are quicker where text is ASCII: what ends a key becomes a sign that no word holds, then all
# other signs become white space.
_KEY_ENDS, _KEY = re.compile(r'"\s*:'), "\0"
_SPACED = {code: " " for code in range(1, 128) if not re.match(r"[\w@#$./~+-]", chr(code))}
_TELLING = re.compile(r"\d|\w_\w|\w/|/\w|\w@\w|[$€£]|\w\.\w|^[A-Z]{5,}$")
_EDGE = re.compile(r"^(?:[-+]+|\.(?![\w/.])|\.\.(?!/))+|[.+~-]+$")
# The first that matches tells how likely a word is named again: one that was only said, one that a call was made with.
_KINDS = tuple(
    (re.compile(pattern), said, used)
    for pattern, said, used in (
        # What tools print with everything is no fact: modes of files, parameters of comments.
        (r"^(?:100(?:644|755)|0?40000|1[26]0000|0?[67][0-7][0-7])$|^@[a-z]+$", 0.0, 0.0),
        (r"\w*:?//", 0.04, 0.2),
        (r"/.*/|\w/\w|~/", 0.25, 1.5),
        (r"@", 0.06, 0.15),
        (r"^\d{4}-\d\d-\d\d", 0.06, 0.06),
        (r"^[\d.,]*\d[a-zA-Z]{1,3}$|^\d{1,5}[+-]\d{1,5}$", 0.02, 0.02),
        (r"^#?[\da-f]{16,}$", 0.05, 0.1),
        (r"^#?\d{6,}$", 0.1, 0.1),
        (r"^[#$€£+-]?[\d.,]+$", 0.02, 0.04),
        (r"\d", 0.3, 0.3),
        (r"\.(?:py|tsx?|jsx?|md|json|toml|ya?ml|go|rs|c|h|java|txt|sh|sql|css|html)$", 0.2, 0.4),
        (r"\w\.\w", 0.15, 0.4),
    )
)
_OTHER = (0.06, 0.25)
# A word that is less likely than this is not worth its place.
LEAST = 0.03
# Counting every number of a long listing would take longer than all the rest.
_MOST = 400


# What stays at one cut often goes at the next: its words are looked for once.
@lru_cache(maxsize=2048)
def telling(text: str) -> tuple[str, ...]:
    """The telling words of a text, in order of appearance, each once: 'see /a/b.py, row 7' -> ('/a/b.py',)."""
    found = dict[str, None]()
    for word in dict.fromkeys(_terms(text)):
        if (word.isalpha() and not word.isupper()) or len(word) < 4 or _KEY in word:
            continue  # most words: nothing more need be looked at
        if not (word[0].isalnum() and word[-1].isalnum()):
            word = _EDGE.sub("", word)
        if len(word) >= 4 and _TELLING.search(word):
            found[word] = None
    return tuple(found)


def telling_behind(text: str, start: int) -> tuple[str, ...]:
    """The telling words behind the first so many characters; where it can be, from those of the whole text."""
    front, rest = text[:start], text[start:]
    before = telling(front)
    parted = front.endswith('"') or not rest[:1].isspace()
    return telling(rest) if parted or any(word in rest for word in before) else telling(text)[len(before) :]


def _terms(text: str) -> list[str]:
    """The runs of a word's characters; short ones and keys, which then end in a sign of their own, may be among them."""
    if not text.isascii() or _KEY in text:
        return _TERM.findall(text)
    return _KEY_ENDS.sub(_KEY + " ", text).translate(_SPACED).split()


@lru_cache(maxsize=8192)
def likelihood(word: str, used: bool = False) -> float:
    """How likely a later action names this word again; `used`: an action has named it before."""
    said, acted = next(((a, b) for pattern, a, b in _KINDS if pattern.search(word)), _OTHER)
    return acted if used else said


def likeliest(words: Iterable[str], room: float, used: Container[str], known: Container[str]) -> list[str]:
    """As many of the words as `room` tokens hold, the likeliest for their size first; those known are left out."""
    scored = {word: likelihood(word, word in used) for word in words if word not in known}
    return within({word: score for word, score in scored.items() if score >= LEAST}, room)


def within(scored: Mapping[str, float], room: float) -> list[str]:
    """As many words as fit on a line of `room` tokens, those with the highest score for their size."""
    kept = list[str]()
    top = sorted(scored, key=lambda word: -scored[word])[:_MOST]
    sizes = {word: _size(word) for word in top}
    for word in sorted(top, key=lambda word: -scored[word] / sizes[word]):
        if sizes[word] <= room:
            room -= sizes[word]
            kept.append(word)
        elif room < 2:
            break
    return kept


@lru_cache(maxsize=8192)
def _size(word: str) -> int:
    """The tokens of a word in a line."""
    return counter().count(f" {word}")
