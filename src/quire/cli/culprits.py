"""Which segment stands where two requests part, and which entries put it there."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from quire.assemble import Built
from quire.assemble.blocks import Block, normal
from quire.assemble.monitor import first_difference
from quire.items import identity
from quire.log.hashing import sha256_hex
from quire.values import Entry, JsonObject


class Culprit(msgspec.Struct, frozen=True):
    """A segment by its id, the entries behind it, and what became of it where that can be said."""

    segment: str
    entries: tuple[int, ...] = ()
    became: str = ""


def in_tools(tool: JsonObject, entries: Sequence[Entry]) -> Culprit:
    """The entry that defined a tool, as it stands in the request."""
    found = next((one.seq for one in entries if one.kind == "tools" and tool in one.tools), None)
    return Culprit("tools", _some(found))


def in_system(old: str, new: str, entries: Sequence[Entry]) -> Culprit:
    """The entry whose words stand where two L1 part: the system prompt, or an instruction folded into it."""
    same = len(new.encode()[: first_difference(old.encode(), new.encode())].decode(errors="ignore"))
    texts = [(one.seq, normal(one.text)) for one in entries if one.kind in ("system", "note")]
    # Each text is a part of L1, with a blank line between: go along until one ends behind the difference.
    start = 0
    while found := [one for one in texts if one[1] and new.startswith(one[1], start)]:
        seq, text = max(found, key=lambda one: len(one[1]))
        if start + len(text) > same:
            return Culprit("system", (seq,))
        start += len(text) + 2
    return Culprit("system")


def in_library(old: Sequence[Block], new: Sequence[Block], entries: Sequence[Entry]) -> Culprit:
    """The item that joined, left or changed first in L2, and the entry that attached it."""
    pairs = zip_longest(old, new)
    was, now = next((pair for pair in pairs if _version(pair[0]) != _version(pair[1])), (None, None))
    if was is not None and now is not None and was.id == now.id:
        return _item(now, "changed in the library", entries)
    if was is not None and was.id not in {one.id for one in new}:
        return _item(was, "left the library", entries)
    return _item(now, "joined the library", entries) if now is not None else Culprit("library")


def _item(block: Block, became: str, entries: Sequence[Entry]) -> Culprit:
    return Culprit(block.id, _some(attached_by(entries, block)), became)


def attached_by(entries: Sequence[Entry], block: Block) -> int | None:
    """The first entry that attached this very version of an item."""
    for entry in entries:
        for item in entry.attached:
            sha256 = item.get("sha256") or sha256_hex(item["content"])
            if (identity(item), sha256) == (block.id, block.sha256):
                return entry.seq
    return None


def _version(block: Block | None) -> tuple[str, str] | None:
    return None if block is None else (block.id, block.text)


def _some(seq: int | None) -> tuple[int, ...]:
    return () if seq is None else (seq,)


def in_messages(built: Built, index: int) -> Culprit:
    """The message at this place of the wire, where each result of a group is one of its own."""
    wire = 0
    for message in built.prompt.messages:
        wire += max(1, len(message.parts)) if message.role == "tool" else 1
        if index < wire:
            return Culprit(f"message {index + 1}", message.seqs)
    return Culprit(f"message {index + 1}")
