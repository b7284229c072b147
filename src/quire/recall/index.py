"""Brings the index up to date: words of entries that lack them, then vectors of entries and of their words.

Works in small transactions, so that it can be killed at any moment and goes on where it stopped.
"""

from __future__ import annotations

import atexit
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from quire.errors import ConflictError, QuireError
from quire.log.branches import bad_entry
from quire.log.connection import is_damage, migrate, transaction, translate
from quire.log.sqlite import SqliteStore
from quire.log.verify import body_of, diagnose
from quire.recall import meaning
from quire.recall.document import KINDS, document
from quire.recall.embed import Embedder
from quire.recall.query import VERSION
from quire.recall.related_words import WORDS, can_have_kin
from quire.recall.tables import HOOK, keep_words
from quire.values import Entry

# SQLite's errors in Quire's words, for those who read the file of a store themselves.


@contextmanager
def reading(store: SqliteStore) -> Iterator[sqlite3.Connection]:
    """This Python thread's connection; damage names the first bad entry."""
    try:
        yield store.connection()
    except sqlite3.Error as error:
        if is_damage(error):
            raise diagnose(store.path, str(error)) from error
        raise translate(error, store.path) from error


def stored_entry(id: str, seq: int, body: bytes, crc: int) -> Entry:
    """An entry from its row; one that changed since it was written is an error that names it."""
    try:
        value = body_of(body, crc)
        return Entry(value["kind"], value, seq, id)
    except (ValueError, KeyError) as error:
        raise bad_entry("", seq, str(error)) from error


_STEP = 32
_WORD_STEP = 256
_POLL_S = 0.5

_UNWORDED = """
SELECT e.n, e.id, e.seq, CAST (e.body AS BLOB), e.crc FROM entries e
WHERE e.n > ? AND NOT EXISTS (SELECT 1 FROM recall_entries r WHERE r.entry = e.id AND r.rules = ?)
ORDER BY e.n LIMIT 500
"""
_UNMEANT = """
FROM recall_entries r WHERE r.n > ? AND r.kind != 'call' AND NOT EXISTS (
    SELECT 1 FROM recall_vectors v WHERE v.owner = 'entry' AND v.key = r.entry AND v.model = ?)
"""
_BODY = "SELECT seq, CAST (body AS BLOB), crc FROM entries WHERE id = ? LIMIT 1"

# Called with what is being made, how much is done and how much there is.
Progress = Callable[[str, int, int], None]


class IndexReport(msgspec.Struct, frozen=True):
    """What a run made."""

    worded: int = 0
    embedded: int = 0
    words: int = 0


class Indexer:
    """Makes what is missing of a store's index; `start` does so in the background until `close`."""

    def __init__(self, store: SqliteStore, embedder: Embedder | None = None) -> None:
        self.store, self.embedder = store, embedder
        ensure_tables(store)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # How far this process knows the index to be complete, and how much came since words got vectors.
        self._worded_to = self._embedded_to = 0
        self._fresh = 1

    def run(self, progress: Progress | None = None) -> IndexReport:
        """Make everything that is missing now."""
        tell = progress or (lambda _what, _done, _of: None)
        with reading(self.store) as conn:
            worded, embedded = self._entries(conn, tell)
            return IndexReport(worded, embedded, self._embed_words(conn, tell))

    def _entries(self, conn: sqlite3.Connection, tell: Progress) -> tuple[int, int]:
        """Words, then vectors of entries; how many of each."""
        worded, embedded = self._word(conn, tell), self._embed(conn, tell)
        self._fresh += embedded
        return worded, embedded

    def _step(self) -> None:
        """What came since the last step; words wait for their vectors until a tenth of the entries is new."""
        with reading(self.store) as conn:
            self._entries(conn, lambda _what, _done, _of: None)
            total = conn.execute("SELECT count(*) FROM recall_entries").fetchone()[0]
            if 10 * self._fresh > total:
                self._embed_words(conn, lambda _what, _done, _of: None)

    def rebuild(self, progress: Progress | None = None) -> IndexReport:
        """Throw the index away and make it again from the log."""
        with reading(self.store) as conn, transaction(conn):
            conn.execute("DELETE FROM recall_entries")
            conn.execute("DELETE FROM recall_vectors")
        self._worded_to = self._embedded_to = 0
        self._fresh = 1
        return self.run(progress)

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
        self._stop.set()
        atexit.unregister(self.close)
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        seen = -1
        while not self._stop.is_set():
            try:
                with reading(self.store) as conn:
                    newest = conn.execute("SELECT coalesce(max(n), 0) FROM entries").fetchone()[0]
                if newest != seen:
                    self._step()
                    seen = newest
            except ConflictError:
                pass  # the file is locked; there will be another time
            except QuireError:
                return  # a damaged file is for whoever reads it to report; entries stay searchable by words
            self._stop.wait(_POLL_S)

    def _word(self, conn: sqlite3.Connection, tell: Progress) -> int:
        """Keep the words of searchable entries that have none, or have them by older rules."""
        done = 0
        while not self._stop.is_set():
            rows = conn.execute(_UNWORDED, (self._worded_to, VERSION)).fetchall()
            if not rows:
                break
            entries = [stored_entry(*row[1:]) for row in rows]
            entries = [entry for entry in entries if entry.kind in KINDS]
            with transaction(conn):
                keep_words(conn, entries)
            self._worded_to, done = rows[-1][0], done + len(entries)
            tell("words", done, done)
        return done

    def _embed(self, conn: sqlite3.Connection, tell: Progress) -> int:
        if self.embedder is None:
            return 0
        known = (self._embedded_to, self.embedder.name)
        total, done = conn.execute("SELECT count(*) " + _UNMEANT, known).fetchone()[0], 0
        while not self._stop.is_set():
            query = f"SELECT r.n, r.entry {_UNMEANT} ORDER BY r.n LIMIT {_STEP}"
            rows = conn.execute(query, (self._embedded_to, self.embedder.name)).fetchall()
            if not rows:
                break
            texts = {id: text for _, id in rows if (text := _meaning(conn, id)) is not None}
            made = self.embedder.encode(list(texts.values()))
            with transaction(conn):
                # An entry may have been deleted meanwhile; its vector must not outlive it.
                kept = [at for at, id in enumerate(texts) if conn.execute(_BODY, (id,)).fetchone()]
                ids = list(texts)
                meaning.save(conn, self.embedder, "entry", [ids[at] for at in kept], made[kept])
            self._embedded_to, done = rows[-1][0], done + len(rows)
            tell("meaning", done, max(total, done))
        return done

    def _embed_words(self, conn: sqlite3.Connection, tell: Progress) -> int:
        """Vectors of the most used words, so that queries find them by their kin."""
        if self.embedder is None:
            return 0
        uses: Counter[str] = Counter()
        for (words,) in conn.execute("SELECT words FROM recall_entries"):
            uses.update(words.split())
        usual = sorted(uses, key=lambda word: (-uses[word], word))[: 2 * WORDS]
        known = {
            key
            for (key,) in conn.execute(
                "SELECT key FROM recall_vectors WHERE owner = 'word' AND model = ?", (self.embedder.name,)
            )
        }
        wanted = [word for word in usual if can_have_kin(word) and word not in known]
        for begin in range(0, len(wanted), _WORD_STEP):
            if self._stop.is_set():
                return begin
            some = wanted[begin : begin + _WORD_STEP]
            made = self.embedder.encode(some)
            with transaction(conn):
                meaning.save(conn, self.embedder, "word", some, made)
            tell("kin", begin + len(some), len(wanted))
        self._fresh = 0
        return len(wanted)


def ensure_tables(store: SqliteStore) -> None:
    """Recall's tables, also in a store that was opened without its hook."""
    migrate(store.connection(), store.path, [(HOOK.name, HOOK.migrations)])


def _meaning(conn: sqlite3.Connection, id: str) -> str | None:
    """The text of an entry whose meaning counts; None when the entry is gone."""
    row = conn.execute(_BODY, (id,)).fetchone()
    if row is None:
        return None
    return document(stored_entry(id, *row)).meaning
