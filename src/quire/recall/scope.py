"""A part of the log held ready for searching: one thread, or all of them, kept up to date from the file.

Rows are loaded once; a search first takes in what was appended since, by whichever process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from quire.log.branches import Piece
from quire.recall import vectors
from quire.recall.arrays import Bools
from quire.recall.collection import Collection
from quire.recall.columns import Column
from quire.recall.document import Indexed, indexed
from quire.recall.embed import Embedder
from quire.recall.meaning import APPROXIMATE_ABOVE
from quire.recall.reading import stored_entry
from quire.recall.searchable import KINDS, document
from quire.recall.sessions import Called, Sessions
from quire.recall.speech import Speech
from quire.recall.words import VERSION

_ROWS = """
SELECT e.seq, e.id, r.rules, r.kind, r.speaker, r.session, r.call_id, r.at, r.asks, r.person, r.times,
    r.length, r.words, r.names
FROM entries e LEFT JOIN recall_entries r ON r.entry = e.id
WHERE e.branch = ? AND e.seq > ? AND e.seq <= ? ORDER BY e.seq
"""
_BODY = "SELECT CAST (body AS BLOB), crc FROM entries WHERE branch = ? AND seq = ?"
_KINDS = {kind: number for number, kind in enumerate(KINDS)}
# Kinds that stand in no session: they are no part of what is said around them.
_ALONE = ("attach", "call")


class _Row(msgspec.Struct, frozen=True):
    """An entry as it is loaded; of a result, the call it answers."""

    branch: int
    seq: int
    kind: str
    indexed: Indexed
    call: Called | None = None


class Scope:
    """The entries of some branches as a collection, and where each row stands in the log."""

    def __init__(
        self, embedder: Embedder | None, joined: bool, approximate_above: int = APPROXIMATE_ABOVE
    ) -> None:
        self.embedder, self.joined, self._above = embedder, joined, approximate_above
        self._begin()

    def _begin(self) -> None:
        self.collection = Collection(self.embedder, approximate_above=self._above)
        self.branch, self.seq, self.kind = Column(np.int64), Column(np.int64), Column(np.int8)
        # Of a result, the seq of its call; 0 where there is none.
        self.call = Column(np.int64)
        self._have: dict[int, Piece] = {}
        self._sessions = Sessions()
        self._vectors_seen = 0
        # Words that were looked up and have no vectors yet.
        self._unmade: set[str] = set()

    def refresh(self, conn: sqlite3.Connection, wanted: Sequence[Piece]) -> None:
        """Bring the rows in line with these pieces, oldest first; what shrank is loaded anew."""
        now = {piece.branch: piece for piece in wanted}
        if any(not _extends(now.get(branch), had) for branch, had in self._have.items()):
            self._begin()
        newest = vectors.newest(conn)
        fresh = [self._fresh(piece) for piece in wanted]
        longer = [piece for piece in fresh if piece.high > piece.low]
        if longer:
            self._load(conn, longer)
        self._have = now
        if self.embedder is not None and (longer or newest > self._vectors_seen):
            self._take_vectors(conn, self.embedder, newest)

    def _fresh(self, piece: Piece) -> Piece:
        """The part of a piece that is not loaded yet."""
        had = self._have.get(piece.branch)
        return Piece(piece.branch, had.high if had else piece.low, piece.high)

    def _load(self, conn: sqlite3.Connection, fresh: Sequence[Piece]) -> None:
        added: dict[str, _Row] = {}
        for piece in fresh:
            rows = conn.execute(_ROWS, (piece.branch, piece.low, piece.high)).fetchall()
            for row in self._rows(conn, piece.branch, rows):
                if row.call is not None:
                    # Answered, a call is found through its result alone.
                    self.collection.delete([row.call.id])
                    added.pop(row.call.id, None)
                if row.indexed.id not in self.collection:
                    added.setdefault(row.indexed.id, row)
        self.collection.add([row.indexed for row in added.values()])
        self.branch.extend([row.branch for row in added.values()])
        self.seq.extend([row.seq for row in added.values()])
        self.kind.extend([_KINDS[row.kind] for row in added.values()])
        self.call.extend([row.call.seq if row.call is not None else 0 for row in added.values()])
        if self.embedder is not None:
            for piece in fresh:
                self.collection.put_vectors(*vectors.of_piece(conn, self.embedder, piece))

    def _rows(self, conn: sqlite3.Connection, branch: int, rows: Iterable[tuple[Any, ...]]) -> Iterator[_Row]:
        """Rows as documents: calls lend their words to their results, entries fall into sessions."""
        sessions, chain = self._sessions, 0 if self.joined else branch
        for seq, id, rules, kind, *facts in rows:
            if rules != VERSION:
                made = _made_now(conn, branch, seq, id)
                if made is None:
                    continue
                kind, *facts = made
            speaker, session, call_id, at, asks, person, times, length, words, names = facts
            call = sessions.answered(chain, call_id) if kind == "result" else None
            if kind == "call":
                sessions.called(chain, call_id, Called(id, seq, words))
            place = sessions.of(chain, session, at) if kind not in _ALONE else ""
            said = Speech(bool(asks), person, times, names, length)
            lent = call.words if call is not None else ""
            yield _Row(branch, seq, kind, Indexed(id, f"{words} {lent}", speaker, place, said), call)

    def _take_vectors(self, conn: sqlite3.Connection, embedder: Embedder, newest: int) -> None:
        """Vectors made since the last look, of entries and of the words that are usual now."""
        if newest > self._vectors_seen:
            ids, found = vectors.since(conn, embedder, "entry", self._vectors_seen)
            self.collection.put_vectors(ids, found)
            self._vectors_seen, self._unmade = newest, set()
        wanted = [word for word in self.collection.new_words() if word not in self._unmade]
        known = vectors.of_words(conn, embedder, wanted)
        if known:
            self.collection.put_words(list(known), np.stack(list(known.values())))
        self._unmade.update(word for word in wanted if word not in known)

    @property
    def without_meaning(self) -> int:
        """How many entries have no vector yet; calls never have one, they are found by words."""
        calls = np.flatnonzero(self.kind.all == _KINDS["call"]).tolist()
        waiting = sum(self.collection.ids[row] in self.collection for row in calls)
        return max(0, self.collection.without_meaning - waiting)

    def mask(self, kinds: Iterable[str]) -> Bools:
        """Which rows are of these kinds."""
        return np.isin(self.kind.all, [_KINDS[kind] for kind in kinds])


def _extends(now: Piece | None, had: Piece) -> bool:
    return now is not None and now.low == had.low and now.high >= had.high


def _made_now(conn: sqlite3.Connection, branch: int, seq: int, id: str) -> tuple[Any, ...] | None:
    """The facts of an entry whose words were not kept (or by older rules); None when it is not searched."""
    entry = stored_entry(id, seq, *conn.execute(_BODY, (branch, seq)).fetchone())
    if entry.kind not in KINDS:
        return None
    kept = indexed(document(entry))
    said = kept.speech
    session = str(entry.meta.get("session") or "")
    facts = (kept.speaker, session, entry.call_id, entry.at, said.asks, said.person, said.times, said.length)
    return (entry.kind, *facts, kept.words, said.names)
