"""The events of a running cycle, and how a reader that reconnects gets exactly those it missed.

An event's id is the reader's position: "17" is after entry 17, "17:40" also has 40 characters of the next block,
"17:40,5" also 5 of the block after that. A `sent` entry where a block's entry was expected means that the reply broke
off: discard what was shown of the block.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from quire.errors import CallError
from quire.log.store import Store
from quire.providers.incoming import BlockDelta
from quire.values import SPOKEN, Entry, Json

# Where the text of unfinished blocks is kept for readers in other processes.
STATE = "partial"


class Event(msgspec.Struct, frozen=True):
    """A new entry of the log, or more text of an unfinished block.

    `text` is only what the reader does not have yet: printing every `text` prints all of it. `part` is the index of the
    unfinished block. The kind `summary`, without an entry, means that the model is writing the summary of a rebase.
    """

    id: str
    kind: str
    text: str = ""
    entry: Entry | None = None
    part: int = 0


OnEvent: TypeAlias = Callable[[Event], None]


class ThreadReader(Protocol):
    """The part of a store that `missed` needs."""

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]: ...
    def get_state(self, thread: str, key: str) -> Json: ...


class OpenBlock(msgspec.Struct):
    """A block that is still being written."""

    kind: str
    place: int
    pieces: list[str]
    shown_chars: int = 0


class Growing:
    """The unfinished blocks of a reply that streams in, in the order in which they will be entries."""

    def __init__(self) -> None:
        self.blocks: list[OpenBlock] = []

    def add(self, pieces: Iterable[BlockDelta], tip: int) -> list[Event]:
        """Add text to the blocks after entry `tip`, and return the events."""
        return [event for piece in pieces if (event := self._add(piece, tip)) is not None]

    def _add(self, piece: BlockDelta, tip: int) -> Event | None:
        part = self._find(piece)
        if not piece.text:
            return None
        self.blocks[part].pieces.append(piece.text)
        self.blocks[part].shown_chars += len(piece.text)
        return Event(event_id(tip, self._sizes()), piece.kind, piece.text, part=part)

    def _find(self, piece: BlockDelta) -> int:
        at = [(block.place, block.kind) for block in self.blocks]
        if (piece.place, piece.kind) not in at:
            at = sorted([*at, (piece.place, piece.kind)], key=lambda place: place[0])
            self.blocks.insert(at.index((piece.place, piece.kind)), OpenBlock(piece.kind, piece.place, []))
        return at.index((piece.place, piece.kind))

    def finish(self, entries: Sequence[Entry]) -> list[Event]:
        """Remove the finished blocks, one for each of these stored entries, and return the events."""
        out = []
        for entry in entries:
            front, self.blocks = self.blocks[:1], self.blocks[1:]
            out.append(entry_event(entry, front[0].shown_chars if front else 0, self._sizes()))
        return out

    def _sizes(self) -> list[int]:
        return _without_empty_end([block.shown_chars for block in self.blocks])

    def texts(self) -> list[dict[str, str]]:
        return [{"kind": block.kind, "text": "".join(block.pieces)} for block in self.blocks]


def event_id(seq: int, sizes: Sequence[int] = ()) -> str:
    """An event's id: 17 and [40, 5] -> "17:40,5"."""
    return f"{seq}:{','.join(map(str, sizes))}" if sizes else str(seq)


def entry_event(entry: Entry, skip: int = 0, others: Sequence[int] = ()) -> Event:
    """The event of an entry; the reader has the first `skip` characters of its text already."""
    text = entry.text[skip:] if entry.kind != "call" else ""
    return Event(event_id(entry.seq, others), entry.kind, text, entry)


class Journal:
    """Stores the unfinished text a few times a second, so that other processes can read it."""

    def __init__(self, store: Store, thread: str, every_s: float = 0.1) -> None:
        self._store, self._thread, self._every_s = store, thread, every_s
        self._kept_at = float("-inf")

    def is_due(self) -> bool:
        """Whether it is time to store the text again."""
        return time.monotonic() - self._kept_at >= self._every_s

    def keep(self, blocks: list[dict[str, str]], tip: Entry) -> None:
        """Store the blocks after entry `tip`."""
        self._kept_at = time.monotonic()
        self._store.set_state(self._thread, STATE, {"after": tip.id, "blocks": blocks})


def missed(store: ThreadReader, thread: str, last: str = "0", limit: int | None = None) -> list[Event]:
    """The events after the one with the id `last`: entries, then the unfinished blocks.

    With a `limit`, at most so many entries; unfinished blocks come only after all entries.
    """
    seq, sizes = read_id(last)
    entries = store.read(thread, after=seq, limit=limit)
    events = []
    for entry in entries:
        if entry.kind not in SPOKEN:
            sizes = []
        events.append(entry_event(entry, sizes[0] if sizes else 0, sizes[1:]))
        sizes = sizes[1:]
    if limit is not None and len(entries) >= limit:
        return events
    tip = entries[-1] if entries else next(iter(store.read(thread, after=seq - 1, limit=1)), None) if seq else None
    return events + (_unfinished_blocks(store, thread, tip, sizes) if tip is not None else [])


def read_id(id: str) -> tuple[int, list[int]]:
    """The position in an event's id: "17" -> (17, []), "17:40,5" -> (17, [40, 5])."""
    seq, colon, rest = id.partition(":")
    sizes = rest.split(",") if colon else []
    if not all(number.isdecimal() for number in [seq, *sizes]):
        raise CallError(f"{id!r} is no event's id", hint="Ids look like 17 or 17:40; 0 is the beginning.")
    return int(seq), [int(number) for number in sizes]


def _unfinished_blocks(store: ThreadReader, thread: str, tip: Entry, sizes: list[int]) -> list[Event]:
    """Events with the stored text of blocks after entry `tip` that the reader does not have yet."""
    note = store.get_state(thread, STATE)
    if not note or note["after"] != tip.id:
        return []
    places = [*sizes, *[0] * (len(note["blocks"]) - len(sizes))]
    out = []
    for part, block in enumerate(note["blocks"]):
        rest = block["text"][places[part] :]
        places[part] += len(rest)
        if rest:
            out.append(Event(event_id(tip.seq, _without_empty_end(places)), block["kind"], rest, part=part))
    return out


def _without_empty_end(places: list[int]) -> list[int]:
    """The sizes without zeros at the end: [4, 0, 0] -> [4]."""
    while places and not places[-1]:
        places = places[:-1]
    return places
