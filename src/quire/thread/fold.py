"""A thread's entries folded for one model at a time, kept up with the log whoever writes it."""

from __future__ import annotations

from collections.abc import Iterable

from quire.assemble import Assembly, Policy
from quire.assemble.summary import Summarise
from quire.errors import NotFound
from quire.log.store import Store
from quire.values import Entry


class Fold:
    """Everything here is derived from the log; thrown away, it is made again by reading."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self.seq = 0
        self.assembly: Assembly | None = None
        # What came since the newest request: the entries that explain why its prefix moved.
        self.since: list[Entry] = []
        self._seen = 0
        self.reply_id: str | None = None
        # When requests were sent before this turn, which tells how long caches must live.
        self.turn_times: tuple[int, ...] = ()
        self._times: list[int] = []

    def at(self, policy: Policy, summarise: Summarise) -> Assembly:
        """The thread folded under this policy; another model's fold is thrown away and made anew."""
        if self.assembly is None or self.assembly.policy != policy:
            self.assembly, self.seq, self._times = Assembly(policy, summarise), 0, []
        self.catch_up()
        return self.assembly

    def catch_up(self) -> int:
        """Take in what the log has gained; the seq it ends at."""
        if self.seq or self.exists():
            self.feed(self._store.read(self._name, after=self.seq))
        return self.seq

    def exists(self) -> bool:
        try:
            self._store.info(self._name)
        except NotFound:
            return False
        return True

    def feed(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if self.assembly is not None:
                self.assembly.feed(entry)
            if entry.seq > self._seen:
                # Read again for another policy, an old entry explains nothing new.
                self.since.append(entry)
                self._seen = entry.seq
            if entry.kind == "user":
                # Within a turn the log decides, not the clock: a resumed turn keeps the marks it began with.
                self.turn_times = tuple(self._times)
            elif entry.kind == "sent":
                self._note_sent(entry)
            self.seq = entry.seq

    def _note_sent(self, entry: Entry) -> None:
        if entry.at is not None and not entry.meta.get("aside"):
            self._times.append(entry.at)
        self.reply_id = entry.wire.get("id") or self.reply_id
