"""Recall over a store: old entries found by words and by meaning, with the reasons."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Collection as AnyCollection
from types import TracebackType
from typing import Any, Literal, Self, get_args

import msgspec
import numpy as np

from quire.errors import CallError, NotFound
from quire.log.branches import Piece, holder, pieces
from quire.log.connect import transaction
from quire.log.sqlite import SqliteStore
from quire.recall.arrays import Bools
from quire.recall.document import Found
from quire.recall.embed import Embedder
from quire.recall.indexer import Indexer, ensure_tables
from quire.recall.meaning import APPROXIMATE_ABOVE
from quire.recall.question import Query
from quire.recall.reading import reading
from quire.recall.scope import Scope
from quire.recall.searchable import KINDS, document
from quire.values import Entry

ScopeName = Literal["thread", "threads", "records"]
SCOPES: tuple[str, ...] = get_args(ScopeName)
# Threads that are held ready; of more, the one used longest ago is loaded again when asked.
_READY = 16


class Hit(msgspec.Struct, frozen=True):
    """An entry that was found: where it stands, its score, the parts of the score, and its neighbours if asked for."""

    thread: str
    seq: int
    id: str
    score: float
    parts: dict[str, float]
    entry: Entry
    neighbours: tuple[Entry, ...] = ()
    # Of a result or a call, the tool's name.
    tool: str = ""


# How records are searched, given by whoever holds them: (query, k) -> hits of their own kind.
SearchRecords = Callable[[str, int], Sequence[Any]]


class Recall:
    """Search in the threads of a store; without an embedder by words alone (`by` says which).

    `background=True` makes vectors of new entries in a thread of its own, until `close`. Above
    `approximate_above` vectors the nearest are found by a graph, which is made once and pays after a few hundred searches.
    """

    def __init__(
        self,
        store: SqliteStore,
        embedder: Embedder | None = None,
        *,
        background: bool = False,
        records: SearchRecords | None = None,
        approximate_above: int = APPROXIMATE_ABOVE,
    ) -> None:
        self.store, self.embedder, self._records = store, embedder, records
        self._above = approximate_above
        with reading(store):
            ensure_tables(store)
        self._scopes: dict[str | None, Scope] = {}
        # What is held ready grows with the log; one search at a time may do that.
        self._lock = threading.Lock()
        self._indexer = Indexer(store, embedder) if background else None
        if self._indexer is not None:
            self._indexer.start()

    @property
    def by(self) -> str:
        """What a search goes by: "words and meaning", or "words"."""
        return "words and meaning" if self.embedder is not None else "words"

    def close(self) -> None:
        """End background work; the store stays open."""
        if self._indexer is not None:
            self._indexer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def search(
        self,
        query: str | Query,
        k: int = 5,
        scope: ScopeName | None = None,
        *,
        thread: str | None = None,
        before: int | None = None,
        kinds: str | Iterable[str] | None = None,
        exclude: AnyCollection[int | str] = (),
        neighbours: int = 0,
    ) -> list[Hit]:
        """The k best entries, best first; equal scores in the order of the log.

        `thread` names the thread of scope "thread" (the default when it is given); `before` and the numbers in
        `exclude` are seqs of that thread, strings in `exclude` are entry ids; `neighbours` adds entries around.
        """
        kinds = (kinds,) if isinstance(kinds, str) else None if kinds is None else tuple(kinds)
        chosen = _checked(query, k, scope, thread, kinds)
        if chosen == "records":
            if before is not None or kinds is not None or exclude:
                raise CallError(
                    "before, kinds and exclude choose among entries, not among records",
                    hint="Leave them out; records are chosen by tag and schema, with Records(store).search.",
                )
            return self._search_records(query, k)
        within = thread if chosen == "thread" else None
        with self._lock:
            held = self._scope(within)
            only = self._allowed(held, thread, before, exclude)
            if kinds is not None:
                only &= held.mask(kinds)
            skip = [id for id in exclude if isinstance(id, str)]

            def hits(without: list[str]) -> list[Hit]:
                found = held.collection.search(query, k, only=only, exclude=[*skip, *without])
                return [self._hit(held, one, within, neighbours) for one in found]

            best = hits([])
            blank = [hit.id for hit in best if _is_blank(hit.entry)]
            return [hit for hit in hits(blank) if not _is_blank(hit.entry)] if blank else best

    def without_meaning(self, thread: str | None = None) -> int:
        """How many entries of a thread, or of all, have no vector yet, so that only words find them."""
        with self._lock:
            return self._scope(thread).without_meaning

    def _search_records(self, query: str | Query, k: int) -> list[Any]:
        if self._records is None:
            raise CallError(
                "this recall knows no records", hint="Pass records=…, or use Records(store).search."
            )
        return list(self._records(query.text if isinstance(query, Query) else query, k))

    def _scope(self, thread: str | None) -> Scope:
        """A thread's rows (or all threads') as the file has them now."""
        held = self._scopes.pop(thread, None) or Scope(self.embedder, thread is not None, self._above)
        with reading(self.store) as conn, transaction(conn, "DEFERRED"):
            held.refresh(conn, _pieces(conn, thread))
        self._scopes[thread] = held
        while len(self._scopes) > _READY:
            del self._scopes[next(iter(self._scopes))]
        return held

    def _allowed(
        self, held: Scope, thread: str | None, before: int | None, exclude: AnyCollection[int | str]
    ) -> Bools:
        """Rows outside `exclude` and in front of `before`, both of which speak of one thread."""
        allowed = np.ones(held.seq.size, np.bool_)
        seqs = [seq for seq in exclude if isinstance(seq, int)]
        if before is None and not seqs:
            return allowed
        if thread is None:
            raise CallError("before and exclude by seq need a thread", hint="Pass thread=…, or entry ids.")
        with reading(self.store) as conn:
            mine = _within(held, pieces(conn, thread))
        if before is not None:
            allowed &= ~mine | (held.seq.all < before)
        return allowed & ~(mine & np.isin(held.seq.all, seqs))

    def _hit(self, held: Scope, found: Found, thread: str | None, neighbours: int) -> Hit:
        ids = held.collection.around(found.id, neighbours)
        entries = {id: self._entry(held, id, thread) for id in ids}
        name, entry = entries[found.id]
        around = tuple(one for _, one in entries.values()) if neighbours else ()
        call = int(held.call.all[held.collection.row(found.id)])
        tool = self._tool(name, entry, call)
        return Hit(name, entry.seq, entry.id, round(found.score, 6), found.parts, entry, around, tool)

    def _tool(self, thread: str, entry: Entry, call: int) -> str:
        """The tool that a result came from or a call asks; `call` is the seq of the result's call, 0 if not known."""
        if entry.kind == "result":
            read = {"after": call - 1, "limit": 1} if call else {"limit": entry.seq - 1}
            return _caller(self.store.read(thread, **read), entry.call_id)
        return entry.name if entry.kind == "call" else ""

    def _entry(self, held: Scope, id: str, thread: str | None) -> tuple[str, Entry]:
        row = held.collection.row(id)
        branch, seq = int(held.branch.all[row]), int(held.seq.all[row])
        if thread is None:
            with reading(self.store) as conn:
                thread = holder(conn, branch, seq)
        return thread, self.store.read(thread, after=seq - 1, limit=1)[0]


def _checked(
    query: object, k: int, scope: ScopeName | None, thread: str | None, kinds: Iterable[str] | None
) -> ScopeName:
    if not isinstance(query, str | Query):
        raise CallError(f"a query is a text, not {query!r}", hint="Say what to look for, in plain words.")
    if k < 1:
        raise CallError(f"k is at least 1, not {k}")
    if scope is not None and scope not in SCOPES:
        raise CallError(f"unknown scope {scope!r}", hint=f"Scopes: {', '.join(SCOPES)}.")
    if scope == "thread" and thread is None:
        raise CallError("scope 'thread' needs a thread's name", hint="Pass thread=…, or scope='threads'.")
    for kind in kinds or ():
        if kind not in KINDS:
            raise CallError(
                f"entries of kind {kind!r} are not searched", hint=f"Searched: {', '.join(KINDS)}."
            )
    return scope or ("threads" if thread is None else "thread")


def _caller(entries: Iterable[Entry], call_id: str) -> str:
    """The name in the last call with this id that no result of these entries answers."""
    waiting: list[str] = []
    for entry in entries:
        if entry.kind == "call" and entry.call_id == call_id:
            waiting.append(entry.name)
        elif entry.kind == "result" and entry.call_id == call_id and waiting:
            waiting.pop()
    return waiting[-1] if waiting else "unknown"


def _is_blank(entry: Entry) -> bool:
    """Whether there is nothing to show of an entry; a result has at least its call."""
    return entry.kind != "result" and not document(entry).meaning.strip()


def _pieces(conn: sqlite3.Connection, thread: str | None) -> list[Piece]:
    """The stretches of the log that a scope covers, each once however many forks share it."""
    if thread is None:
        rows = conn.execute("SELECT branch, at_seq, seq FROM branches ORDER BY branch")
        return [Piece(*row) for row in rows]
    found = pieces(conn, thread)
    if not found:
        raise NotFound(f"there is no thread {thread!r}", hint="`quire log list` shows the threads.")
    return found


def _within(held: Scope, parts: Iterable[Piece]) -> Bools:
    out = np.zeros(held.seq.size, np.bool_)
    for piece in parts:
        mine = held.branch.all == piece.branch
        out |= mine & (held.seq.all > piece.low) & (held.seq.all <= piece.high)
    return out
