"""Watches L1 and L2 from request to request: a change that no entry explains is a warning."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quire.values import Entry, Envelope, Layer, LayerId

# The kinds of entry that may change what stands in front of the history; the library moves at rebases alone.
EXPLAINS: dict[LayerId, frozenset[str]] = {
    "L1_SYSTEM": frozenset({"system", "tools", "rebase"}),
    "L2_PREVIOUS": frozenset({"rebase"}),
}


class Moved(msgspec.Struct, frozen=True):
    """A stable layer that changed without an entry to explain it, down to the byte."""

    layer: LayerId
    segment: str
    byte: int

    def __str__(self) -> str:
        return f"{self.layer} changed at byte {self.byte} (segment {self.segment}) and no entry explains it"


def watch(before: Envelope, now: Envelope, between: Iterable[Entry], rebased: bool = False) -> Moved | None:
    """The first unexplained change of L1 or L2; entries between the two requests, or a rebase, explain one."""
    kinds = {entry.kind for entry in between} | ({"rebase"} if rebased else set())
    for id, explains in EXPLAINS.items():
        old, new = before.layer(id), now.layer(id)
        if old.sha256 != new.sha256 and kinds.isdisjoint(explains):
            byte = first_difference(old.text.encode(), new.text.encode())
            return Moved(id, segment_at(new, byte), byte)
    return None


def first_difference(old: bytes, new: bytes) -> int:
    """The first place where two byte strings differ; the shorter one's length where it begins the other."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[:middle] == new[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def segment_at(layer: Layer, byte: int) -> str:
    """The segment that a byte of the layer's text lies in."""
    end = 0
    for one in layer.segments:
        if one.content:
            end += len(one.content.encode()) + 2
            if byte < end:
                return one.id
    return layer.segments[-1].id if layer.segments else ""
