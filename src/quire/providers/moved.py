"""The first byte in which two requests of a thread part, and the layer it stands in."""

from __future__ import annotations

import msgspec

from quire.providers.simulate.blocks import Block, blocks
from quire.values import LIBRARY_HEADING, JsonObject


class Moved(msgspec.Struct, frozen=True):
    """Where a request stops being the continuation of the one before: `offset` counts characters of the block's text."""

    layer: str
    path: str
    offset: int


def moved(before: JsonObject, after: JsonObject, wire: str) -> Moved | None:
    """The first block of `before` that `after` does not repeat; None when it only extends it."""
    old, new = blocks(before, wire), blocks(after, wire)
    for index, block in enumerate(old):
        other = new[index] if index < len(new) else None
        if other is None or other.data != block.data:
            offset = _shared(block.text, other.text) if other else 0
            return Moved(_layer(old, index, offset), block.path, offset)
    return None


def _layer(row: list[Block], index: int, offset: int) -> str:
    """Tools, L1 or L2 by the library's heading, the last user message as L5, what stands before it as L4."""
    block = row[index]
    if block.section == "tools":
        return "tools"
    if block.section == "system":
        library = block.text.find(LIBRARY_HEADING)
        return "L2_PREVIOUS" if 0 <= library <= offset else "L1_SYSTEM"
    asked = [place for place, one in enumerate(row) if one.role == "user" and one.kind != "tool_result"]
    return "L5_USER" if asked and index >= asked[-1] else "L4_STRIP"


def _shared(one: str, other: str) -> int:
    """How many leading characters agree, by halving: slices compare fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
