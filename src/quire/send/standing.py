"""Where a turn stands, read from its entries alone: what is still to be asked, run or answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from quire.log.store import Store
from quire.values import SPOKEN, Entry, Usage

Next = Literal["nothing", "ask", "run", "done"]


def is_aside(entry: Entry) -> bool:
    """Whether a `sent` entry belongs to a question beside the conversation (a plan, a summary)."""
    return entry.kind == "sent" and bool(entry.meta.get("aside"))


def is_opening(entry: Entry) -> bool:
    """Whether a `sent` entry stands in front of a streamed reply; what it used comes behind it."""
    return entry.kind == "sent" and "usage" not in entry.body


class Standing:
    """The newest turn, folded entry by entry."""

    def __init__(self) -> None:
        self.user: Entry | None = None
        self.answer: list[Entry] = []
        self.usages: list[tuple[str, Usage]] = []
        self.steps = 0
        self.stopped = False
        # Whether nothing but the user has spoken in this turn.
        self.fresh = True
        self._open = False
        self._waiting = False
        self._said: list[Entry] = []
        self._pending: list[Entry] = []

    def take(self, entry: Entry) -> None:
        """One more entry of the log."""
        if entry.kind == "user":
            self.__init__()  # type: ignore[misc]  # a new turn knows nothing of the one before
            self.user, self._waiting = entry, True
        elif entry.kind == "sent":
            self._take_sent(entry)
        elif entry.kind == "result":
            self._take_result(entry)
        elif entry.kind in SPOKEN:
            self._take_spoken(entry)

    def _take_sent(self, entry: Entry) -> None:
        if is_opening(entry):
            # A reply that was cut off counts no more: its calls were never run.
            self._pending = [call for call in self._pending if call not in self._said]
            self._said, self._open, self.fresh = [], True, False
            return
        usage = msgspec.convert(entry.body["usage"], Usage, strict=False)
        self.usages.append((f"{entry.body['provider']}:{entry.body['model']}", usage))
        if not is_aside(entry):
            # Without an opening one it stands in front of a reply that came in one piece.
            self._said = self._said if self._open else []
            self.answer = self._said
            self._open, self._waiting, self.fresh = False, False, False
            self.steps += 1
            self.stopped = bool(entry.meta.get("stopped"))

    def _take_spoken(self, entry: Entry) -> None:
        self.fresh = False
        if entry.kind == "call":
            self._pending.append(entry)
        if entry.meta.get("placement") != "context":
            self._said.append(entry)
            self._waiting = False

    def _take_result(self, entry: Entry) -> None:
        for place in range(len(self._pending) - 1, -1, -1):
            if self._pending[place].call_id == entry.call_id:
                del self._pending[place]
                self._waiting = True
                self._said = []
                return

    @property
    def pending(self) -> list[Entry]:
        """The calls to run, in order; those of a reply that has not ended are not among them."""
        return [] if self._open else list(self._pending)

    @property
    def next(self) -> Next:
        """What is to be done now."""
        if self.user is None:
            return "nothing"
        if self._open:
            return "ask"
        if self._pending:
            return "run"
        return "ask" if self._waiting else "done"


def standing(store: Store, thread: str) -> Standing:
    """The newest turn of a stored thread; only its end is read."""
    out = Standing()
    for entry in newest_turn(store, thread):
        out.take(entry)
    return out


def newest_turn(store: Store, thread: str) -> list[Entry]:
    """The entries from the last user entry on; all of them where no user has spoken."""
    end, page = store.info(thread).seq, 64
    while True:
        entries = store.read(thread, after=max(0, end - page))
        for place in range(len(entries) - 1, -1, -1):
            if entries[place].kind == "user":
                return entries[place:]
        if page >= end:
            return entries
        page *= 4


def without_cut(entries: Iterable[Entry], asking: bool = False) -> list[Entry]:
    """A thread without the parts of replies that broke off and were asked for again, or are now (`asking`)."""
    kept: list[Entry] = []
    begun: int | None = None
    for entry in entries:
        if entry.kind in ("user", "result"):
            begun = None
        elif entry.kind == "sent" and not is_aside(entry):
            if is_opening(entry) and begun is not None:
                kept = _silent_from(kept, begun)
            begun = len(kept) if is_opening(entry) else None
        kept.append(entry)
    return _silent_from(kept, begun) if asking and begun is not None else kept


def _silent_from(entries: list[Entry], place: int) -> list[Entry]:
    return entries[:place] + [entry for entry in entries[place:] if entry.kind not in SPOKEN]
