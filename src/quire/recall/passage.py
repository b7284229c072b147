"""Of a long text the part that answers: its first words, then the lines around those a query asks for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from quire.assemble.cuts import truncate
from quire.recall.words import FORMS, content, stem, tokens

# A text is weighed in stretches of at most so many characters: lines, or parts of long ones.
_STRETCH = 120
_OPENING = 80
_MARK = " ..."

Span = tuple[int, int]


def passage(text: str, limit: int, query: str = "") -> str:
    """About `limit` characters of a text: the beginning, or its first words and what the query's words stand in."""
    if len(text) <= limit:
        return text
    spans = list(_spans(text))
    best = _best([text[start:end] for start, end in spans], query)
    opening = first_words(text, min(_OPENING, limit // 4))
    room = limit - len(opening)
    if best is None or spans[best][1] <= limit // 2:
        return truncate(text, limit)
    start, end = _grown(spans, best, room)
    found = truncate(text[start:end].strip("\n"), room)
    more = _MARK if end < len(text) and not found.endswith("...") else ""
    return f"{opening}\n{found}{more}"


def first_words(text: str, limit: int) -> str:
    """The beginning of a text's first line, with a mark where anything follows."""
    line = text.strip().split("\n", 1)[0].rstrip()
    if len(line) > limit:
        return truncate(line, limit)
    return line + _MARK if len(text.strip()) > len(line) else line


def _spans(text: str) -> Iterator[Span]:
    """Where the lines of a text stand; long ones in several parts, parted at white space where there is some."""
    for line in re.finditer(r"[^\n]+", text):
        start = line.start()
        while line.end() - start > _STRETCH:
            space = text.rfind(" ", start + 1, start + _STRETCH)
            end = space if space > 0 else start + _STRETCH
            yield start, end
            start = end
        yield start, line.end()


def _best(parts: Sequence[str], query: str) -> int | None:
    """The part that holds the query's words best, the rare ones above all; None where none stands anywhere."""
    wanted = set(stem(content(query)))
    if not wanted:
        return None
    said = [set(tokens(part)) for part in parts]
    every = sorted(set().union(*said))
    stems = zip(every, stem(FORMS.get(token, token) for token in every), strict=True)
    known = {token: stemmed for token, stemmed in stems if stemmed in wanted}
    held = [{known[token] for token in some if token in known} for some in said]
    holders = Counter(word for some in held for word in some)
    weights = [sum(1 / holders[word] for word in some) for some in held]
    if not any(weights):
        return None
    # What stands beside counts a little: an answer often spreads over lines.
    padded = [0.0, *weights, 0.0]
    near = [own + (padded[at] + padded[at + 2]) / 4 if own else 0.0 for at, own in enumerate(weights)]
    return max(range(len(near)), key=lambda at: (near[at], -at))


def _grown(spans: Sequence[Span], best: int, room: int) -> Span:
    """The stretch around the best part, as many parts behind and in front of it by turns as there is room for."""
    first = last = best
    grows = True
    while grows:
        grows = False
        if last + 1 < len(spans) and spans[last + 1][1] - spans[first][0] <= room:
            last, grows = last + 1, True
        if first > 0 and spans[last][1] - spans[first - 1][0] <= room:
            first, grows = first - 1, True
    return spans[first][0], spans[last][1]
