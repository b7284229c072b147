"""The text behind a handle: what an entry says whole, given piece by piece from a line on."""

from __future__ import annotations

import msgspec

from quire.assemble.turn import entry_text
from quire.errors import CallError, NotFound
from quire.log.store import Store
from quire.values import Entry


class Piece(msgspec.Struct, frozen=True):
    """A part of an entry's text: lines start to end of `count`, counted from 1."""

    text: str
    entry: Entry
    start: int
    end: int
    count: int


def original(store: Store, thread: str, handle: str, start: int, limit: int) -> Piece:
    """As much of the text behind a handle as `limit` characters hold, from a line on; says where to go on."""
    entry = find_handle(store, thread, handle)
    lines = _lines(entry_text(entry), limit)
    if not 1 <= start <= len(lines):
        raise CallError(f"the text behind {handle} has {len(lines)} lines, not {start}")
    end, used = start - 1, -1
    while end < len(lines) and used + len(lines[end]) + 1 <= limit:
        used, end = used + len(lines[end]) + 1, end + 1
    text = "\n".join(lines[start - 1 : end])
    if end < len(lines):
        text += f"\n[… {len(lines) - end} more lines; recall again with start={end + 1} …]"
    return Piece(text, entry, start, end, len(lines))


def _lines(text: str, limit: int) -> list[str]:
    """The lines of a text; one that is longer than a whole piece counts as several, so that its end can be read."""
    lines = text.removesuffix("\n").split("\n")
    return [line[at : at + limit] for line in lines for at in range(0, max(1, len(line)), limit)]


def find_handle(store: Store, thread: str, handle: str) -> Entry:
    """The entry that a handle names, if it is one of this thread's own."""
    found = store.find(handle)
    if found is not None:
        entry = found[1]
        # A fork shares its entries with the thread it was made of, at the same places.
        own = store.read(thread, after=entry.seq - 1, limit=1)
        if own and own[0].id == entry.id:
            return entry
    raise NotFound(
        f"no entry of this conversation has the handle {handle!r}", hint="Handles are hexadecimal digits."
    )
