"""What was found, as text for the tail of a user message: conversation and tool results, in the log's order.

Within a share of the budget, best first; what was recalled before and still stands above is only named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from quire.assemble.references import references
from quire.assemble.turn import result_text
from quire.formats import clean
from quire.formats.clean import Clean, ToolResult, formatted_context
from quire.recall.passage import first_words, passage
from quire.recall.question import Query
from quire.recall.search import Hit
from quire.tokens import counter
from quire.values import Entry, JsonObject, LeftOut, Message, Prompt, Result

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
    return frozenset(shown - cut - {one.entry for one in left_out})


def standing(entries: Iterable[Entry], shown: Collection[int]) -> dict[str, str]:
    """What earlier turns recalled and still stands in the prompt with them: ids, and the text they stand in."""
    found: dict[str, str] = {}
    for entry in entries:
        if entry.kind == "user" and entry.seq in shown:
            for id in entry.meta.get("recalled_ids") or ():
                found[id] = f"{found.get(id, '')}\n{entry.meta.get('recalled') or ''}"
    return found


def _cut(message: Message, entries: Mapping[int, Entry]) -> Iterable[int]:
    """The results of a message that stand there as handles, or end before their end."""
    if message.role != "tool":
        return
    for part, seq in zip(message.parts, message.seqs, strict=True):
        entry = entries.get(seq)
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
            clean.Message(_ROLE[hit.entry.kind], lines[hit.id]) for hit in said if lines[hit.id]
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
