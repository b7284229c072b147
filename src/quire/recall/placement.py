"""What was found, as text for the tail of a user message: conversation and tool results, in the log's order.

Within a share of the budget, best first; what was recalled before and still stands above is only named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from quire.assemble.summary import truncate
from quire.assemble.user_message import references
from quire.entry import result_text
from quire.formats import clean
from quire.formats.clean import Clean, ToolResult, formatted_context
from quire.providers.convert import holds_blocks
from quire.recall.languages import terms
from quire.recall.query import Query
from quire.recall.search import Hit
from quire.tokens import counter
from quire.values import Entry, JsonObject, LeftOut, Message, Prompt, Result, Text

# Of a long text the part that answers: its first words, then the lines around those a query asks for.

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
    wanted = set(terms(query, asked=True))
    held = [wanted.intersection(terms(part)) for part in parts]
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


# Kinds that have a line in the sections; others can be found but not placed.
PLACED = ("user", "respond", "result")
# One entry takes at most this part of the share, so that a long result does not keep out all others.
_ONE = 2
_CHARACTERS_A_TOKEN = 3
# Characters by which a line above is named.
_NAME = 60
_ROLE: dict[str, Literal["user", "assistant"]] = {"user": "user", "respond": "assistant"}


class Placed(msgspec.Struct, frozen=True):
    """The text to put before the query, the entries it shows, those it only names, and what had no room."""

    text: str
    ids: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    tokens: int = 0

    @property
    def meta(self) -> JsonObject:
        """What a user entry's meta keeps of this, so that the turn can be rendered again byte for byte."""
        return {"recalled": self.text, "recalled_ids": list(self.ids)} if self.text else {}


def place(
    hits: Iterable[Hit],
    share_tokens: int,
    standing: Mapping[str, str] | Collection[str] = (),
    model: str | None = None,
    query: str | Query = "",
) -> Placed:
    """The recalled sections within `share_tokens`; long texts are cut to what the query asks for.

    Hits whose ids are `standing` above are named, not repeated; a mapping gives the text they stand in.
    """
    count = counter(model).count
    lines: dict[str, str] = {}
    shown: list[Hit] = []
    named: list[Hit] = []
    left_out: list[LeftOut] = []
    text = ""
    for hit in sorted(hits, key=lambda hit: -hit.score):
        if hit.entry.kind not in PLACED:
            left_out.append(LeftOut(hit.seq, f"a {hit.entry.kind} is no line of a conversation"))
            continue
        lines[hit.id] = _line(hit, share_tokens, query)
        ours = named if _stands(hit, lines[hit.id], standing) else shown
        ours.append(hit)
        wider = _text(shown, named, lines)
        if count(wider) > share_tokens:
            left_out.append(LeftOut(hit.seq, f"no room in {share_tokens} tokens for recalled text"))
            ours.pop()
            continue
        text = wider
    ids, names = (tuple(hit.id for hit in _in_order(some)) for some in (shown, named))
    return Placed(text, ids, names, tuple(left_out), count(text))


def in_prompt(
    prompt: Prompt, left_out: Iterable[LeftOut] = (), entries: Mapping[int, Entry] | None = None
) -> frozenset[int]:
    """The seqs of entries that a prompt shows whole; `entries` tell which of its results were cut."""
    shown = {seq for message in prompt.messages for seq in message.seqs}
    cut = {seq for message in prompt.messages for seq in _cut(message, entries or {})}
    return frozenset(shown - cut - {each.entry for each in left_out})


def standing(entries: Iterable[Entry], shown: Collection[int]) -> dict[str, str]:
    """What earlier turns recalled and still stands in the prompt with them: ids, and the text they stand in."""
    found: dict[str, str] = {}
    for entry in entries:
        if entry.kind == "user" and entry.seq in shown:
            for id in entry.meta.get("recalled_ids") or ():
                found[id] = f"{found.get(id, '')}\n{entry.meta.get('recalled') or ''}"
    return found


def _cut(message: Message, entries: Mapping[int, Entry]) -> Iterable[int]:
    """The results and documents of a message that stand there as handles, or end before their end."""
    if message.role == "user":
        own = [
            seq for seq in message.seqs if (one := entries.get(seq)) is not None and "encloses" in one.wire
        ]
        yield from () if any(map(holds_blocks, message.parts)) else own
        return
    for part, seq in zip(message.parts, message.seqs, strict=False):
        entry = entries.get(seq)
        if isinstance(part, Text) and part.text and entry is not None and not entry.text.strip():
            yield seq
        whole = result_text(entry) if entry is not None and entry.kind == "result" else None
        if isinstance(part, Result) and whole is not None and part.text != whole:
            yield seq


def _stands(hit: Hit, line: str, standing: Mapping[str, str] | Collection[str]) -> bool:
    """Whether a hit stands above as it would be shown: of a long one, another part may stand there."""
    if hit.id not in standing or not isinstance(standing, Mapping):
        return hit.id in standing
    indent = "    " if hit.entry.kind == "result" else "  "
    return line.replace("\n", f"\n{indent}") in standing[hit.id]


def _text(shown: Sequence[Hit], named: Sequence[Hit], lines: Mapping[str, str]) -> str:
    said = [hit for hit in _in_order(shown) if hit.entry.kind != "result"]
    results = [hit for hit in _in_order(shown) if hit.entry.kind == "result"]
    value = Clean(
        conversation=tuple(
            clean.CleanMessage(_ROLE[hit.entry.kind], lines[hit.id]) for hit in said if lines[hit.id]
        ),
        tool_results=tuple(ToolResult(hit.tool, lines[hit.id]) for hit in results),
    )
    again = references([_name(hit) for hit in _in_order(named)], "at-rebase")
    return "\n\n".join(part for part in (formatted_context(value), again) if part)


def _in_order(hits: Iterable[Hit]) -> list[Hit]:
    """The order of the log; threads one behind the other."""
    return sorted(hits, key=lambda hit: (hit.thread, hit.seq))


def _line(hit: Hit, share_tokens: int, query: str | Query) -> str:
    """What is shown of a hit: all of it, or the part that the query asks for."""
    limit = share_tokens * _CHARACTERS_A_TOKEN // _ONE
    shown = passage(_said(hit.entry), limit, query.text if isinstance(query, Query) else query)
    return shown or ("No output" if hit.entry.kind == "result" else "")


def _name(hit: Hit) -> str:
    """How a line above is referred to: by who said it and its first words."""
    who = hit.tool if hit.entry.kind == "result" else _ROLE[hit.entry.kind].capitalize()
    return f"{who}: {first_words(_said(hit.entry), _NAME) or 'No output'}"


def _said(entry: Entry) -> str:
    if entry.kind != "result":
        return entry.text
    said = (entry.body.get("outcome"), entry.body.get("content"))
    return "\n\n".join(str(part) for part in said if part)
