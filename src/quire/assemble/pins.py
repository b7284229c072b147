"""Pinned words: a whole entry, a span of its text, or earlier entries named by a later one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from quire.assemble.blocks import block
from quire.assemble.turn import result_text
from quire.log.hashing import canonical
from quire.values import Entry, JsonObject

Pin = tuple[int, str]


def pins_of(entry: Entry, known: Mapping[int, Entry]) -> Iterator[Pin]:
    """What an entry pins, as (seq, words): `meta.pin` itself or a span of it, `meta.pins` others by seq."""
    if pin := entry.meta.get("pin"):
        words = _words(entry)
        # A span that the entry does not hold keeps the whole of it.
        yield entry.seq, pin if isinstance(pin, str) and pin in words else words
    for item in entry.attached:
        # The library keeps pinned items that it may hold; the others stand with the pinned words.
        if (item.get("metadata") or {}).get("pin") and not (one := block(item)).promotable:
            yield entry.seq, one.text
    for seq in entry.meta.get("pins") or ():
        if seq in known:
            yield seq, _words(known[seq])


def pinned_words(pins: Iterable[Pin], gone: set[int], rebases: Sequence[JsonObject]) -> list[str]:
    """Pinned words whose entries leave, or left at an earlier rebase, verbatim."""
    before: list[str] = rebases[-1].get("meta", {}).get("pinned", []) if rebases else []
    return [*before, *(text for seq, text in pins if seq in gone and text not in before)]


def _words(entry: Entry) -> str:
    if entry.kind == "call":
        return f"{entry.name} {canonical(entry.args).decode()}"
    if entry.kind == "attach":
        return block(entry.body["item"]).text
    return entry.text or result_text(entry)
