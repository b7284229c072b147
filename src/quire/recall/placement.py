"""What was found, as text for the tail of a user message: conversation and tool results, in the log's order.

Within a share of the budget, best first; what was recalled before and still stands above is only named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from quire.assemble.cuts import truncate
from quire.assemble.references import references
from quire.assemble.turn import result_text
from quire.formats import clean
from quire.formats.clean import Clean, ToolResult, formatted_context
from quire.recall.search import Hit
from quire.tokens import counter
from quire.values import Entry, JsonObject, LeftOut, Message, Prompt, Result

# Kinds that have a line in the sections; others can be found but not placed.
PLACED = ("user", "respond", "result")
# One entry takes at most this part of the share, so that a long result does not keep out all others.
_ONE = 2
_CHARACTERS_A_TOKEN = 3


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
    hits: Iterable[Hit], share_tokens: int, standing: Collection[str] = (), model: str | None = None
) -> Placed:
    """The recalled sections within `share_tokens`; hits whose ids are `standing` above are named, not repeated."""
    count = counter(model).count
    shown: list[Hit] = []
    named: list[Hit] = []
    left_out: list[LeftOut] = []
    text = ""
    for hit in sorted(hits, key=lambda hit: -hit.score):
        if hit.entry.kind not in PLACED:
            left_out.append(LeftOut(hit.seq, f"a {hit.entry.kind} is no line of a conversation"))
            continue
        ours = named if hit.id in standing else shown
        wider = (
            _text([*shown, hit], named, share_tokens)
            if ours is shown
            else _text(shown, [*named, hit], share_tokens)
        )
        if count(wider) > share_tokens:
            left_out.append(LeftOut(hit.seq, f"no room in {share_tokens} tokens for recalled text"))
            continue
        ours.append(hit)
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


def standing(entries: Iterable[Entry], shown: Collection[int]) -> frozenset[str]:
    """The ids that earlier turns recalled and that still stand in the prompt with the turn they came with."""
    turns = (entry for entry in entries if entry.kind == "user" and entry.seq in shown)
    return frozenset(id for entry in turns for id in entry.meta.get("recalled_ids") or ())


def _cut(message: Message, entries: Mapping[int, Entry]) -> Iterable[int]:
    """The results of a message that stand there as handles, or end before their end."""
    if message.role != "tool":
        return
    for part, seq in zip(message.parts, message.seqs, strict=True):
        entry = entries.get(seq)
        whole = result_text(entry) if entry is not None and entry.kind == "result" else None
        if isinstance(part, Result) and whole is not None and part.text != whole:
            yield seq


def _text(shown: Sequence[Hit], named: Sequence[Hit], share_tokens: int) -> str:
    limit = share_tokens * _CHARACTERS_A_TOKEN // _ONE
    said = [hit for hit in _in_order(shown) if hit.entry.kind != "result"]
    results = [hit for hit in _in_order(shown) if hit.entry.kind == "result"]
    value = Clean(
        conversation=tuple(_message(hit, limit) for hit in said if hit.entry.text),
        tool_results=tuple(_result(hit, limit) for hit in results),
    )
    again = references([f"entry {hit.seq}" for hit in _in_order(named)], "at-rebase")
    return "\n\n".join(part for part in (formatted_context(value), again) if part)


def _in_order(hits: Iterable[Hit]) -> list[Hit]:
    """The order of the log; threads one behind the other."""
    return sorted(hits, key=lambda hit: (hit.thread, hit.seq))


def _message(hit: Hit, limit: int) -> clean.Message:
    return clean.Message("user" if hit.entry.kind == "user" else "assistant", truncate(hit.entry.text, limit))


def _result(hit: Hit, limit: int) -> ToolResult:
    said = (hit.entry.body.get("outcome"), hit.entry.body.get("content"))
    output = "\n\n".join(str(part) for part in said if part)
    return ToolResult(hit.tool, truncate(output, limit) or "No output")
