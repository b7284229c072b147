"""Pinned words: a whole entry, a span of its text, or earlier entries named by a later one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from quire.assemble.turn import result_text
from quire.values import Entry, JsonObject

Pin = tuple[int, str]


def pins_of(entry: Entry, known: Mapping[int, Entry]) -> Iterator[Pin]:
    """What an entry pins, as (seq, words): `meta.pin` itself or a span of it, `meta.pins` others by seq."""
    pin = entry.meta.get("pin")
    if pin is True:
        yield entry.seq, _words(entry)
    elif isinstance(pin, str) and pin:
        yield entry.seq, pin
    for seq in entry.meta.get("pins") or ():
        if seq in known:
            yield seq, _words(known[seq])


def pinned_words(pins: Iterable[Pin], gone: set[int], rebases: Sequence[JsonObject]) -> list[str]:
    """Pinned words whose entries leave, or left at an earlier rebase, verbatim."""
    before: list[str] = rebases[-1].get("meta", {}).get("pinned", []) if rebases else []
    return [*before, *(text for seq, text in pins if seq in gone and text not in before)]


def _words(entry: Entry) -> str:
    return entry.text or result_text(entry)
