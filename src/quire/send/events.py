"""What a reader of a running cycle sees, and how one that was away gets exactly what it missed.

An event's id is a place in the log: "17" is entry 17; "17:40" is the first 40 characters of what will be
entry 17. Ids of a reply that broke off name an entry that another one took the place of: a reader that
finds a `sent` there forgets what it was shown of the cut part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from quire.errors import CallError
from quire.log.store import Store
from quire.send.deltas import Piece
from quire.values import Entry

# Where the text of unfinished blocks is kept for readers in other processes.
STATE = "partial"


class Event(msgspec.Struct, frozen=True):
    """Something new: an entry of the log, or more of one that is being written.

    `text` is what a reader has not been shown yet, so that printing every `text` prints the whole.
    """

    id: str
    kind: str
    text: str = ""
    entry: Entry | None = None


OnEvent: TypeAlias = Callable[[Event], None]


class Part(msgspec.Struct):
    """A block that is still being written."""

    kind: str
    place: int
    pieces: list[str]
    length: int = 0


class Growing:
    """The blocks behind the log's end while a reply streams in, in the order they will be entries."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def add(self, pieces: Iterable[Piece], tip: int) -> list[Event]:
        """More text of the blocks behind entry `tip`."""
        return [self._add(piece, tip) for piece in pieces if piece.text]

    def _add(self, piece: Piece, tip: int) -> Event:
        index = self._find(piece)
        part = self.parts[index]
        part.pieces.append(piece.text)
        part.length += len(piece.text)
        return Event(f"{tip + 1 + index}:{part.length}", piece.kind, piece.text)

    def _find(self, piece: Piece) -> int:
        for index, part in enumerate(self.parts):
            if (part.place, part.kind) == (piece.place, piece.kind):
                return index
        self.parts.append(Part(piece.kind, piece.place, []))
        self.parts.sort(key=lambda part: part.place)
        return next(i for i, part in enumerate(self.parts) if part.place == piece.place)

    def finish(self, entries: Sequence[Entry]) -> list[Event]:
        """These entries are in the log now: the first blocks are done."""
        shown = [part.length for part in self.parts[: len(entries)]]
        self.parts = self.parts[len(entries) :]
        shown += [0] * (len(entries) - len(shown))
        return [entry_event(entry, length) for entry, length in zip(entries, shown, strict=True)]

    def texts(self) -> list[dict[str, str]]:
        return [{"kind": part.kind, "text": "".join(part.pieces)} for part in self.parts]


def entry_event(entry: Entry, shown: int = 0) -> Event:
    """An entry, of whose text the first `shown` characters are known to the reader."""
    return Event(str(entry.seq), entry.kind, entry.text[shown:] if entry.kind != "call" else "", entry)


class Journal:
    """Keeps the unfinished text where other processes can read it, a few times a second."""

    def __init__(self, store: Store, thread: str, every_s: float = 0.1) -> None:
        self._store, self._thread, self._every_s = store, thread, every_s
        self._kept_at = float("-inf")

    def keep(self, growing: Growing, tip: Entry) -> None:
        """Note what has come behind entry `tip`, unless that was just done."""
        now = time.monotonic()
        if now - self._kept_at >= self._every_s:
            self._kept_at = now
            self._store.set_state(self._thread, STATE, {"after": tip.id, "parts": growing.texts()})


def missed(store: Store, thread: str, last: str = "0") -> list[Event]:
    """Everything behind the event with the id `last`: entries, then what is being written now."""
    seq, shown = read_id(last)
    # A place inside an entry: the rest of that entry is still missing.
    entries = store.read(thread, after=seq - 1 if shown is not None else seq)
    events = [entry_event(one, (shown or 0) if one.seq == seq else 0) for one in entries]
    return events + _unfinished(store, thread, (entries[-1].seq if entries else seq), seq, shown or 0)


def read_id(id: str) -> tuple[int, int | None]:
    """An event's place: "17" -> (17, None), "17:40" -> (17, 40)."""
    seq, colon, shown = id.partition(":")
    if not seq.isdecimal() or (colon and not shown.isdecimal()):
        raise CallError(f"{id!r} is no event's id", hint="Ids look like 17 or 17:40; 0 is the beginning.")
    return int(seq), int(shown) if colon else None


def _unfinished(store: Store, thread: str, tip: int, seq: int, shown: int) -> list[Event]:
    kept = store.get_state(thread, STATE)
    end = store.read(thread, after=store.info(thread).seq - 1) if kept else []
    if not end or end[0].id != kept["after"]:
        return []
    out = []
    for place, part in enumerate(kept["parts"], end[0].seq + 1):
        known = shown if place == seq else 0
        if place >= seq and len(part["text"]) > known:
            out.append(Event(f"{place}:{len(part['text'])}", part["kind"], part["text"][known:]))
    return out
