"""Brings the index up to date: words of entries that lack them, then vectors.

Works in small transactions, so that it can be killed at any moment and goes on where it stopped.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

import msgspec

from quire.errors import ConflictError, QuireError
from quire.log.store import Store
from quire.recall import meaning
from quire.recall.document import document, pieces, words_of
from quire.recall.languages import VERSION
from quire.recall.meaning import Embedder

_STEP = 32
_POLL_S = 0.5
_WORDED_AT_ONCE = 500

# The indexers that work in the background, one a store and model, and how many asked for each.
_working: dict[tuple[int, str], tuple[Indexer, int]] = {}
_starting = threading.Lock()

# Called with what is being made, how much is done and how much there is.
Progress = Callable[[str, int, int], None]


class IndexReport(msgspec.Struct, frozen=True):
    """What a run made."""

    worded: int = 0
    embedded: int = 0


class Indexer:
    """Makes what is missing of a store's index; `start` does so in the background until `close`."""

    def __init__(self, store: Store, embedder: Embedder | None = None) -> None:
        self.store, self.embedder = store, embedder
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # How far this process knows the index to be complete.
        self._worded_to = self._embedded_to = 0

    def run(self, progress: Progress | None = None) -> IndexReport:
        """Make everything that is missing now."""
        tell = progress or (lambda *_: None)
        return IndexReport(self._word(tell), self._embed(tell))

    def rebuild(self, progress: Progress | None = None) -> IndexReport:
        """Throw the index away and make it again from the log."""
        self.store.index.clear()
        self._worded_to = self._embedded_to = 0
        return self.run(progress)

    @classmethod
    def beside(cls, store: Store, embedder: Embedder) -> Indexer:
        """The background indexer that all users of a store and model share; each calls `leave` when it is done."""
        key = id(store), embedder.name
        with _starting:
            indexer, users = _working.get(key) or (cls(store, embedder), 0)
            _working[key] = indexer, users + 1
            if not users:
                indexer.start()
        return indexer

    def leave(self) -> None:
        """One user fewer; when the last one leaves, the background work ends."""
        key = id(self.store), self.embedder.name if self.embedder is not None else ""
        with _starting:
            indexer, users = _working.get(key, (None, 0))
            if indexer is self and users > 1:
                _working[key] = self, users - 1
                return
        self.close()

    def start(self) -> None:
        """Work in a thread of its own, looking for new entries twice a second."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="quire-indexer", daemon=True)
            self._thread.start()
            # Neither the store nor the process may end in the middle of a step.
            self.store.before_close(self.close)
            atexit.register(self.close)

    def close(self) -> None:
        """End the background work behind the step it is at."""
        with _starting:
            for key in [key for key, (indexer, _) in _working.items() if indexer is self]:
                del _working[key]
        self._stop.set()
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        indexed_to = 0
        while not self._stop.is_set():
            try:
                newest = self.store.last_change()
                if newest != indexed_to:
                    self.run()
                    indexed_to = newest
            except ConflictError:
                pass  # the file is locked; there will be another time
            except QuireError:
                return  # a damaged file is for whoever reads it to report; entries stay searchable by words
            self._stop.wait(_POLL_S)

    def _word(self, tell: Progress) -> int:
        """Keep the words of searchable entries that have none, or have them by older rules."""
        count = 0
        while not self._stop.is_set():
            lacking = self.store.index.without_words(self._worded_to, VERSION, _WORDED_AT_ONCE)
            if not lacking:
                break
            words = words_of(change.entry for change in lacking)
            self.store.index.add(words)
            self._worded_to, count = lacking[-1].n, count + len(words)
            tell("words", count, count)
        return count

    def _embed(self, tell: Progress) -> int:
        if self.embedder is None:
            return 0
        index, model, count = self.store.index, self.embedder.name, 0
        total = len(index.without_vectors(model, self._embedded_to, None))
        while not self._stop.is_set():
            rows = index.without_vectors(model, self._embedded_to, _STEP)
            if not rows:
                break
            texts = {id: document(located[1]).meaning for _, id in rows if (located := self.store.find(id))}
            vectors = {id: meaning.packed(self.embedder.encode(pieces(text))) for id, text in texts.items()}
            # An entry may have been deleted meanwhile; its vector does not outlive it.
            index.add_vectors(model, self.embedder.dimensions, vectors)
            self._embedded_to, count = rows[-1][0], count + len(rows)
            tell("meaning", count, max(total, count))
        return count
