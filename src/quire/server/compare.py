"""Where two requests of a thread part, down to the byte, and which entry, rebase or change of model did it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import zip_longest

import msgspec

from quire.assemble import Built
from quire.assemble.user_message import ItemBlock, normal
from quire.items import identity
from quire.log.hashing import canonical, sha256_hex
from quire.observe import first_difference
from quire.providers import prefix_parts, render
from quire.values import Entry, JsonObject, Message, Text, ToolSet

# Which segment stands where two requests part, and which entries put it there.


class Culprit(msgspec.Struct, frozen=True):
    """A segment by its id, the entries behind it, and what became of it where that can be said."""

    segment: str
    entries: tuple[int, ...] = ()
    became: str = ""


def in_tools(tool: JsonObject, entries: Sequence[Entry]) -> Culprit:
    """The entry that defined a tool, as it stands in the request."""
    found = next((entry.seq for entry in entries if entry.kind == "tools" and tool in entry.tools), None)
    return Culprit("tools", _some(found))


def in_system(old: str, new: str, entries: Sequence[Entry]) -> Culprit:
    """The entry whose words stand where two L1 part: the system prompt, or an instruction folded into it."""
    same = len(new.encode()[: first_difference(old.encode(), new.encode())].decode(errors="ignore"))
    texts = [(entry.seq, normal(entry.text)) for entry in entries if entry.kind in ("system", "note")]
    # Each text is a part of L1, with a blank line between: go along until one ends behind the difference.
    start = 0
    while found := [text for text in texts if text[1] and new.startswith(text[1], start)]:
        seq, text = max(found, key=lambda each: len(each[1]))
        if start + len(text) > same:
            return Culprit("system", (seq,))
        start += len(text) + 2
    return Culprit("system")


def in_library(old: Sequence[ItemBlock], new: Sequence[ItemBlock], entries: Sequence[Entry]) -> Culprit:
    """The item that joined, left or changed first in L2, and the entry that attached it."""
    pairs = zip_longest(old, new)
    was, now = next((pair for pair in pairs if _version(pair[0]) != _version(pair[1])), (None, None))
    if was is not None and now is not None and was.id == now.id:
        return _item(now, "changed in the library", entries)
    if was is not None and was.id not in {each.id for each in new}:
        return _item(was, "left the library", entries)
    return _item(now, "joined the library", entries) if now is not None else Culprit("library")


def _item(block: ItemBlock, became: str, entries: Sequence[Entry]) -> Culprit:
    return Culprit(block.id, _some(attached_by(entries, block)), became)


def attached_by(entries: Sequence[Entry], block: ItemBlock) -> int | None:
    """The first entry that attached this very version of an item."""
    for entry in entries:
        for item in entry.attached:
            sha256 = item.get("sha256") or sha256_hex(item["content"])
            if (identity(item), sha256) == (block.id, block.sha256):
                return entry.seq
    return None


def _version(block: ItemBlock | None) -> tuple[str, str] | None:
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


def _parts(built: Built) -> list[bytes]:
    """The request's lines in one provider's form, with late tools where they stand and not in front."""
    messages = tuple(
        _late_tools(message) if message.role == "tools" else message for message in built.prompt.messages
    )
    prompt = msgspec.structs.replace(built.prompt, messages=messages)
    return prefix_parts(render(prompt, "openai-chat:").body, "openai-chat")


def _late_tools(message: Message) -> Message:
    tools = [tool for part in message.parts if isinstance(part, ToolSet) for tool in part.tools]
    return Message("note", (Text(canonical(tools).decode()),), message.seqs)


def moved(asked: Sequence[tuple[Built, str]], entries: Sequence[Entry]) -> JsonObject:
    """Where the last of these requests parts from the first, and why; each comes with the model it was for."""
    found = compare(asked[0][0], asked[-1][0], entries)
    if not found["extends"]:
        return found | _cause(asked, found["byte"], entries)
    changed = asked[0][1] != asked[-1][1]
    return found | ({"cause": _switch(asked[0][1], asked[-1][1])} if changed else {})


def compare(one: Built, other: Built, entries: Sequence[Entry]) -> JsonObject:
    """Where two requests' prefix bytes part: byte, layer, segment, and the entries that stand there."""
    lines = [_parts(built) for built in (one, other)]
    joined = [b"".join(parts) for parts in lines]
    byte = first_difference(*joined)
    if byte == len(joined[0]):
        return {"byte": None, "added": len(joined[1]) - byte, "extends": True, "cause": None}
    layer, found = _place(one, other, *_line_at(lines[1], byte), entries)
    return {
        "byte": byte,
        "extends": False,
        "layer": layer,
        "segment": found.segment,
        "entries": list(found.entries),
    }


def _line_at(lines: list[bytes], byte: int) -> tuple[int, int]:
    """The line that holds a byte, and the byte's place in it."""
    index, start = 0, 0
    while index < len(lines) - 1 and start + len(lines[index]) <= byte:
        start += len(lines[index])
        index += 1
    return index, byte - start


def _place(
    one: Built, other: Built, index: int, offset: int, entries: Sequence[Entry]
) -> tuple[str, Culprit]:
    """The layer and the segment at an offset of a line of the later request."""
    prompt = other.prompt
    if index < len(prompt.tools):
        return "L1", in_tools(prompt.tools[index], entries)
    index -= len(prompt.tools)
    if prompt.system:
        if index == 0:
            written = json.dumps(prompt.l1, ensure_ascii=False).encode()
            if offset < len('{"content":') + len(written) - 1:
                return "L1", in_system(one.prompt.l1, prompt.l1, entries)
            return "L2", in_library(one.blocks, other.blocks, entries)
        index -= 1
    return ("L5" if index == other.user else "L4"), in_messages(other, index)


def _cause(asked: Sequence[tuple[Built, str]], byte: int, entries: Sequence[Entry]) -> JsonObject:
    """What changed a byte: the first request in which it is another, its model, rebase or the entry that stands there."""
    before = asked[0][0]
    old = b"".join(_parts(before))
    changed = (
        n for n, (each, _) in enumerate(asked) if n and first_difference(old, b"".join(_parts(each))) <= byte
    )
    place = next(changed)
    at = asked[place][0]
    where: JsonObject = {"turn": at.turn, "step": at.step}
    if asked[place - 1][1] != asked[place][1]:
        switch = _switch(asked[place - 1][1], asked[place][1])
        return {"cause": f"{switch} at turn {at.turn}.{at.step}", "entry": None, **where}
    there = compare(before, at, entries)
    brought = next(iter(there["entries"]), None)
    if at.rebase is None:
        return {"cause": f"entry {brought}" if brought else None, "entry": brought, **where}
    # A rebase that was only reckoned now is no entry of the log.
    seq = next((entry.seq for entry in entries if entry.kind == "rebase" and entry.body is at.rebase), None)
    named = f", entry {seq}" if seq else ""
    item = f": {_fate(before, at, entries)}" if there["layer"] == "L2" else ""
    return {
        "cause": f"rebase ({at.rebase['reason']}) at turn {at.turn}.{at.step}{named}{item}",
        "entry": seq or (brought if item else None),
        **where,
    }


def _switch(before: str, after: str) -> str:
    return f"change of model, {before or 'none named'} to {after or 'none named'}"


def _fate(before: Built, at: Built, entries: Sequence[Entry]) -> str:
    """What became of an item of the library: a.md (entry 2) joined the library."""
    found = in_library(before.blocks, at.blocks, entries)
    entry = f" (entry {found.entries[0]})" if found.entries else ""
    return f"{found.segment}{entry} {found.became}"
