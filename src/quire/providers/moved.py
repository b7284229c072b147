"""The first byte in which two requests of a thread part, and the layer it stands in."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import msgspec

from quire.providers.simulate import Block, blocks
from quire.values import LIBRARY_HEADING, JsonObject


class Moved(msgspec.Struct, frozen=True):
    """Where a request stops being the continuation of the one before: `offset` counts characters of the block's text."""

    layer: str
    path: str
    offset: int


def moved(before: JsonObject, after: JsonObject, wire: str) -> Moved | None:
    """The first block of `before` that `after` does not repeat in its place; None when it only extends it."""
    old, new = blocks(before, wire), blocks(after, wire)
    for was, now in _side_by_side(old, new):
        if was is None or now is None or was.data != now.data:
            offset = _shared(was.text, now.text) if was and now else 0
            place = was or now
            assert place is not None
            return Moved(_layer(old, place, offset), place.path, offset)
    return None


def _side_by_side(old: list[Block], new: list[Block]) -> Iterator[tuple[Block | None, Block | None]]:
    """Section by section; messages that only `new` has extend the other request and are left out."""
    for section in ("tools", "system", "messages"):
        was, now = ([one for one in row if one.section == section] for row in (old, new))
        yield from zip_longest(was, now if section != "messages" else now[: len(was)])


def _layer(row: list[Block], block: Block, offset: int) -> str:
    """Tools, L1 or L2 by the library's heading, the last user message as L5, what stands before it as L4."""
    if block.section == "tools":
        return "tools"
    if block.section == "system":
        library = block.text.find(LIBRARY_HEADING)
        return "L2_PREVIOUS" if 0 <= library <= offset else "L1_SYSTEM"
    asked = [one for one in row if one.role == "user" and one.kind != "tool_result"]
    return "L5_USER" if asked and block in row[row.index(asked[-1]) :] else "L4_STRIP"


def _shared(one: str, other: str) -> int:
    """How many leading characters agree, by halving: slices compare fast."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
