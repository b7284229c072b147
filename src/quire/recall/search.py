"""Recall over a store: old entries found by words and by meaning, with the reasons."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Collection as AnyCollection
from contextlib import suppress
from typing import Any, Literal, TypedDict, get_args

import msgspec
import numpy as np

from quire.errors import CallError, QuireError
from quire.formats import UNKNOWN, CallPair, pair_results
from quire.log import now_ms
from quire.log.store import Closing, EntryWords, Index, Store, Stretch
from quire.recall.document import BY, KINDS, RECALLED, DocumentTerms, Found, Query, SpeechSigns, entry_words, is_blank
from quire.recall.languages import VERSION
from quire.recall.meaning import MEANING_PARTS, Embedder, Indexer, pack, unpack
from quire.recall.rank import POOL, Collection
from quire.recall.words import Bools, Column
from quire.values import Entry

# Sessions: only entries of the same session count as neighbours of each other.

# A pause of an hour begins a new session, unless entries name theirs in meta.session.
PAUSE_MS = 3_600_000


class WaitingCall(msgspec.Struct, frozen=True):
    """A call without a result yet: its entry's id and seq, and the words that its result will also be found by."""

    id: str
    seq: int
    words: str


class Sessions:
    """The current session of each chain of entries, and the calls without a result yet."""

    def __init__(self) -> None:
        self._now: dict[int, tuple[int, str, int | None]] = {}
        self._calls: dict[tuple[int, str], list[WaitingCall]] = {}

    def of(self, chain: int, named: str, at: int | None) -> str:
        """The session of the next entry of a chain, by its name or the time since the one before."""
        count, name, last = self._now.get(chain, (0, named, at))
        paused = at is not None and last is not None and at - last >= PAUSE_MS
        if named != name or paused:
            count += 1
        self._now[chain] = (count, named, last if at is None else at)
        return f"{chain}/{count}"

    def state(self) -> bytes:
        """The state as bytes, to be stored; `restore` reads them."""
        waiting = [(*place, calls) for place, calls in self._calls.items() if calls]
        return msgspec.msgpack.encode((list(self._now.items()), waiting))

    def restore(self, data: bytes) -> None:
        """Replace the state with a stored one."""
        kind = tuple[list[tuple[int, tuple[int, str, int | None]]], list[tuple[int, str, list[WaitingCall]]]]
        now, waiting = msgspec.msgpack.decode(data, type=kind)
        self._now = dict(now)
        self._calls = {(chain, call_id): calls for chain, call_id, calls in waiting}

    def add_call(self, chain: int, call_id: str, call: WaitingCall) -> None:
        self._calls.setdefault((chain, call_id), []).append(call)

    def take_call(self, chain: int, call_id: str) -> WaitingCall | None:
        """Remove and return the call that a result answers: the newest one with that id and no result yet."""
        waiting = self._calls.get((chain, call_id))
        return waiting.pop() if waiting else None


# Scope: the part of the log that is searched, one thread or all of them, held in memory.
#
# Rows are loaded once. Before each search, entries that any process has appended since are added.

_KINDS = {kind: number for number, kind in enumerate(KINDS)}
# Kinds that belong to no session, because the talk around them says little about them.
_ALONE = ("attach", "call")


class _Row(msgspec.Struct, frozen=True):
    """An entry as it is loaded, with the call that it answers if it is a result."""

    branch: int
    seq: int
    kind: str
    terms: DocumentTerms
    call: WaitingCall | None = None


_PLACES = ("branch", "seq", "kind", "call")
# With more entries than this, a store that can find the nearest vectors itself is asked, and they are not loaded.
_MANY = 50_000
# A smaller scope loads as quickly from the words of its entries, so its state is not stored.
_WORTH_KEEPING = 5_000


class _About(msgspec.Struct, frozen=True):
    """The header of a stored scope: its rules and model, the entries it covers, and the names of its parts."""

    rules: int
    model: str
    vectors_seen: int
    have: list[Stretch]
    parts: list[str]


class Scope:
    """The entries of some branches as a searchable collection, and each row's place in the log."""

    def __init__(self, embedder: Embedder | None, joined: bool) -> None:
        self.embedder, self.joined = embedder, joined
        # Whether the store is asked for the nearest vectors, instead of all vectors being held here.
        self.asks_near = False
        self._begin()

    def _begin(self) -> None:
        self.collection = Collection(self.embedder)
        self.branch, self.seq, self.kind = Column(np.int64), Column(np.int64), Column(np.int8)
        # For a result, the seq of its call; otherwise 0.
        self.call = Column(np.int64)
        self._have: dict[int, Stretch] = {}
        self._sessions = Sessions()
        self._newest_vector = 0
        # How many rows and vectors the stored state has.
        self._saved = (0, 0)
        # Words that were computed here because the store had none.
        self._new_words: list[EntryWords] = []

    def restore(self, index: Index, key: str) -> None:
        """Load the state that a process has stored, if it was made by the same rules."""
        about = index.state(key, ["about"]).get("about")
        header = msgspec.msgpack.decode(about, type=_About) if about else None
        if header is None or header.rules != VERSION:
            return
        model = self.embedder.name if self.embedder is not None else ""
        parts = [part for part in header.parts if part not in MEANING_PARTS or (header.model and header.model == model)]
        state = index.state(key, parts)
        self.collection.restore(state)
        for name in _PLACES:
            getattr(self, name).restore(state[name])
        self._sessions.restore(state["sessions_now"])
        self._have = {piece.branch: piece for piece in header.have}
        self._newest_vector = header.vectors_seen if MEANING_PARTS[0] in parts else 0
        self._saved = (self.seq.size, self.collection.meaning.size)

    def keep(self, index: Index, key: str) -> None:
        """Store new words; and the state of a large scope that has grown by a quarter, so that other processes start from it."""
        words, self._new_words = self._new_words, []
        index.add(words)
        now = (self.seq.size, self.collection.meaning.size)
        if max(now) < _WORTH_KEEPING or all(4 * new <= 5 * old for new, old in zip(now, self._saved, strict=True)):
            return
        state = self.collection.state() | {name: getattr(self, name).packed for name in _PLACES}
        state["sessions_now"] = self._sessions.state()
        if self.embedder is not None and now[1]:
            state |= self.collection.meaning.state()
        model = self.embedder.name if self.embedder is not None else ""
        about = _About(VERSION, model, self._newest_vector, list(self._have.values()), list(state))
        index.save_state(key, {**state, "about": msgspec.msgpack.encode(about)})
        self._saved = now

    def refresh(self, index: Index, pieces: Sequence[Stretch]) -> None:
        """Bring the rows in line with these stretches, oldest first; where one has shrunk, load everything again."""
        now = {piece.branch: piece for piece in pieces}
        for had in self._have.values():
            piece = now.get(had.branch)
            if piece is None or piece.low != had.low or piece.high < had.high:
                self._begin()
                break
        newest, begun = index.newest_vector() if self.embedder is not None else 0, bool(self._have)
        self.asks_near = self._may_ask(index, sum(piece.high - piece.low for piece in pieces))
        loaded = {branch: had.high for branch, had in self._have.items()}
        fresh = [msgspec.structs.replace(piece, low=loaded.get(piece.branch, piece.low)) for piece in pieces]
        if longer := [piece for piece in fresh if piece.high > piece.low]:
            self._load(index, longer)
        self._have = now
        if self.embedder is not None and newest > self._newest_vector and not self.asks_near:
            # Rows that were just loaded came with their vectors.
            if begun:
                vectors = index.vectors(self.embedder.name, after=self._newest_vector)
                self.collection.put_vectors(*unpack(vectors, self.embedder.dimensions))
            self._newest_vector = newest

    def _may_ask(self, index: Index, entries: int) -> bool:
        """Whether vectors of this many entries stay in the store, because it can find the nearest itself."""
        if self.embedder is None or self.joined or entries < _MANY:
            return False
        size = self.embedder.dimensions
        return index.nearest(self.embedder.name, size, bytes(2 * (size - 1)) + b"\x00\x3c", 1) is not None

    def bring(self, index: Index, query: str | Query) -> None:
        """Load the vectors of the entries that are nearest to the query, and of those that its words find."""
        vector = self.collection.vector(query) if self.embedder is not None else None
        if self.embedder is None or vector is None:
            return
        model, size = self.embedder.name, self.embedder.dimensions
        near = index.nearest(model, size, pack(vector), POOL) or []
        worded = [match.id for match in self.collection.search(query, POOL)]
        has_vector, rows = self.collection.meaning.known, self.collection.row
        lacking = [id for id in {*near, *worded} if id in self.collection and not has_vector[rows(id)]]
        self.collection.put_vectors(*unpack(index.vectors_of(model, lacking), size))

    def _load(self, index: Index, fresh: Sequence[Stretch]) -> None:
        added: dict[str, _Row] = {}
        for piece in fresh:
            for row in self._rows(piece.branch, self._words(index, piece)):
                if row.call is not None:
                    # A call with a result is found through the result alone.
                    self.collection.delete([row.call.id])
                    added.pop(row.call.id, None)
                if row.terms.id not in self.collection:
                    added.setdefault(row.terms.id, row)
        self.collection.add([row.terms for row in added.values()])
        self.branch.extend([row.branch for row in added.values()])
        self.seq.extend([row.seq for row in added.values()])
        self.kind.extend([_KINDS[row.kind] for row in added.values()])
        self.call.extend([row.call.seq if row.call is not None else 0 for row in added.values()])
        if self.embedder is not None and not self.asks_near:
            for piece in fresh:
                vectors = index.vectors(self.embedder.name, of=piece)
                self.collection.put_vectors(*unpack(vectors, self.embedder.dimensions))

    def _words(self, index: Index, piece: Stretch) -> Iterator[tuple[int, EntryWords]]:
        """The words of a stretch's entries by seq; computed now where none are stored, or only by older rules."""
        rows = index.words(piece)
        lacking = any(row is None or row.rules != VERSION for _, _, row in rows)
        entries = {entry.id: entry for entry in index.entries(piece)} if lacking else {}
        for seq, id, row in rows:
            if row is not None and row.rules == VERSION:
                yield seq, row
            elif (entry := entries.get(id)) is not None and entry.kind in KINDS:
                words = entry_words(entry)
                self._new_words.append(words)
                yield seq, words

    def _rows(self, branch: int, rows: Iterable[tuple[int, EntryWords]]) -> Iterator[_Row]:
        """Rows with the words of their calls and their sessions; what recall itself repeated is left out."""
        sessions, chain = self._sessions, 0 if self.joined else branch
        for seq, row in rows:
            call = sessions.take_call(chain, row.call_id) if row.kind == "result" else None
            if row.kind == "call":
                words = RECALLED if row.speaker == RECALLED else row.words
                sessions.add_call(chain, row.call_id, WaitingCall(row.entry, seq, words))
            if row.speaker == RECALLED or (call is not None and call.words == RECALLED):
                continue
            place = sessions.of(chain, row.session, row.at) if row.kind not in _ALONE else ""
            speech = SpeechSigns(bool(row.asks), row.person, row.times, row.names, row.length)
            words = f"{row.words} {call.words if call is not None else ''}"
            yield _Row(branch, seq, row.kind, DocumentTerms(row.entry, words, row.speaker, place, speech), call)

    @property
    def pieces(self) -> list[Stretch]:
        """The stretches of the log that are loaded."""
        return list(self._have.values())

    @property
    def without_meaning(self) -> int:
        """How many entries have no vector yet, calls not counted: they never get one and are found by words."""
        calls = np.flatnonzero(self.kind.all == _KINDS["call"]).tolist()
        waiting = sum(self.collection.ids[row] in self.collection for row in calls)
        return max(0, self.collection.without_meaning - waiting)

    def mask(self, kinds: Iterable[str]) -> Bools:
        """Which rows are of these kinds."""
        return np.isin(self.kind.all, [_KINDS[kind] for kind in kinds])


ScopeName = Literal["thread", "threads", "records"]
SCOPES: tuple[str, ...] = get_args(ScopeName)
# How many scopes stay in memory; beyond that, the least recently used one is dropped and loaded again when needed.
_READY = 16


class Hit(msgspec.Struct, frozen=True):
    """An entry that was found: its place in the log, its score, the parts of the score, and neighbours if asked for."""

    thread: str
    seq: int
    id: str
    score: float
    parts: dict[str, float]
    entry: Entry
    neighbours: tuple[Entry, ...] = ()
    # For a result or a call, the tool's name.
    tool: str = ""
    # How much it has to do with the query, comparable between searches; see `quire.recall.relevant`.
    relevance: float = 0.0
    # "words and meaning"; or "words" where the embedder is missing or did not answer, or the entry has no vector yet.
    by: str = "words"


class RecallOptions(TypedDict, total=False):
    """Options of `Thread.recall`, with the meaning they have in `Recall.search`."""

    scope: ScopeName | None
    before: int | None
    kinds: str | Iterable[str] | None
    exclude: AnyCollection[int | str]
    neighbours: int


# A function that searches records: (query, k) -> hits.
SearchRecords = Callable[[str, int], Sequence[Any]]


class Recall(Closing):
    """Searches the threads of a store by words and meaning; without an embedder by words alone (`by` says which).

    With `background=True`, an OS thread shared by all searches of the store makes vectors of new entries until `close`.
    """

    def __init__(
        self,
        store: Store,
        embedder: Embedder | None = None,
        *,
        background: bool = False,
        records: SearchRecords | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self.store, self.embedder, self._records, self._clock = store, embedder, records, clock
        self._scopes: dict[str | None, Scope] = {}
        # A search first updates its scope with the newest entries; one search at a time may do that.
        self._lock = threading.Lock()
        self._indexer = Indexer.beside(store, embedder) if background and embedder is not None else None

    @property
    def by(self) -> str:
        """What searches currently use: "words and meaning", or "words"."""
        away = any(scope.collection.away_until_s for scope in tuple(self._scopes.values()))
        return BY[self.embedder is not None and not away]

    def close(self) -> None:
        """End background work; the store stays open."""
        indexer, self._indexer = self._indexer, None
        if indexer is not None:
            indexer.leave()

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

        `thread` is searched alone unless `scope` is "threads". `before` and numbers in `exclude` are seqs of that
        thread, strings in `exclude` are entry ids. `neighbours` is how many entries around each hit to return with it.
        """
        kinds = (kinds,) if isinstance(kinds, str) else None if kinds is None else tuple(kinds)
        chosen = _check_query(query, k, scope, thread, kinds)
        _check_choice(before, exclude, neighbours)
        asked = query if isinstance(query, Query) else Query(query)
        if asked.at is None:
            asked = msgspec.structs.replace(asked, at=self._clock())
        if chosen == "records":
            if before is not None or kinds is not None or exclude or neighbours:
                raise CallError(
                    "before, kinds, exclude and neighbours are about entries, not about records",
                    hint="Leave them out; records are chosen by tag and schema, with Records(store).search.",
                )
            if self._records is None:
                raise CallError("this recall knows no records", hint="Pass records=…, or use Records(store).search.")
            return list(self._records(asked.text, k))
        within = thread if chosen == "thread" else None
        if self._indexer is not None:
            self._indexer.wait_for_few()
        with self._lock:
            loaded = self._scope(within)
            only = self._mask(loaded, thread, before, exclude)
            if kinds is not None:
                only &= loaded.mask(kinds)
            skip = [id for id in exclude if isinstance(id, str)]

            def hits(without: list[str]) -> list[Hit]:
                matches = loaded.collection.search(asked, k, only=only, exclude=[*skip, *without])
                return [self._hit(loaded, match, within, neighbours) for match in matches]

            if loaded.asks_near:
                loaded.bring(self.store.index, asked)
            best = hits([])
            blank = [hit.id for hit in best if is_blank(hit.entry)]
            return [hit for hit in hits(blank) if not is_blank(hit.entry)] if blank else best

    def without_meaning(self, thread: str | None = None) -> int:
        """How many entries of a thread, or of all, have no vector yet, so that only words find them."""
        with self._lock:
            scope = self._scope(thread)
            if scope.asks_near and self.embedder is not None:
                return len(self.store.index.without_vectors(self.embedder.name, 0, None))
            return scope.without_meaning

    def _scope(self, thread: str | None) -> Scope:
        """The scope of a thread (or of all threads), up to date with the store."""
        scope, index = self._scopes.pop(thread, None), self.store.index
        with index.snapshot():
            pieces = index.stretches(thread)
            if scope is None:
                scope = Scope(self.embedder, thread is not None)
                scope.restore(index, thread or "")
            scope.refresh(index, pieces)
        self._scopes[thread] = scope
        with suppress(QuireError):  # another process writes, or the file is read-only
            scope.keep(index, thread or "")
        while len(self._scopes) > _READY:
            del self._scopes[next(iter(self._scopes))]
        return scope

    def _mask(self, scope: Scope, thread: str | None, before: int | None, exclude: AnyCollection[int | str]) -> Bools:
        """The rows that are not in `exclude` and lie before `before`; both are seqs of `thread`."""
        allowed = np.ones(scope.seq.size, np.bool_)
        seqs = [seq for seq in exclude if isinstance(seq, int)]
        if before is None and not seqs:
            return allowed
        if thread is None:
            raise CallError("before and exclude by seq need a thread", hint="Pass thread=…, or entry ids.")
        mine = _within(scope, scope.pieces if scope.joined else self.store.index.stretches(thread))
        if before is not None:
            allowed &= ~mine | (scope.seq.all < before)
        return allowed & ~(mine & np.isin(scope.seq.all, seqs))

    def _hit(self, scope: Scope, match: Found, thread: str | None, neighbours: int) -> Hit:
        ids = scope.collection.around(match.id, neighbours)
        entries = {id: self._entry(scope, id, thread) for id in ids}
        name, entry = entries[match.id]
        around = tuple(value for _, value in entries.values()) if neighbours else ()
        call = int(scope.call.all[scope.collection.row(match.id)])
        tool = self._tool(name, entry, call)
        score = round(match.score, 6)
        return Hit(name, entry.seq, entry.id, score, match.parts, entry, around, tool, match.relevance, match.by)

    def _tool(self, thread: str, entry: Entry, call: int) -> str:
        """The tool that a result came from or that a call names; `call` is the seq of the result's call, 0 if not known."""
        if entry.kind == "result":
            read = {"after": call - 1, "limit": 1} if call else {"limit": entry.seq - 1}
            return _caller(self.store.read(thread, **read), entry.call_id)
        return entry.name if entry.kind == "call" else ""

    def _entry(self, scope: Scope, id: str, thread: str | None) -> tuple[str, Entry]:
        row = scope.collection.row(id)
        branch, seq = int(scope.branch.all[row]), int(scope.seq.all[row])
        if thread is None:
            thread = self.store.index.holder(branch, seq)
        return thread, self.store.read(thread, after=seq - 1, limit=1)[0]


def _check_query(
    query: object, k: int, scope: ScopeName | None, thread: str | None, kinds: Iterable[str] | None
) -> ScopeName:
    if not isinstance(query, str | Query):
        raise CallError(f"a query is a text, not {query!r}", hint="Say what to look for, in plain words.")
    _check_number("k", k, 1)
    if scope is not None and scope not in SCOPES:
        raise CallError(f"unknown scope {scope!r}", hint=f"Scopes: {', '.join(SCOPES)}.")
    if scope == "thread" and thread is None:
        raise CallError("scope 'thread' needs a thread's name", hint="Pass thread=…, or scope='threads'.")
    for kind in kinds or ():
        if kind not in KINDS:
            raise CallError(f"entries of kind {kind!r} are not searched", hint=f"Searched: {', '.join(KINDS)}.")
    return scope or ("threads" if thread is None else "thread")


def _check_choice(before: object, exclude: object, neighbours: object) -> None:
    _check_number("neighbours", neighbours, 0)
    if before is not None:
        _check_number("before", before, 0)
    if isinstance(exclude, str):
        raise CallError(f"exclude is a list, not {exclude!r}", hint=f"Write exclude=[{exclude!r}].")


def _check_number(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise CallError(f"{name} is at least {least}, not {value!r}", hint="Give a whole number.")


def _caller(entries: Iterable[Entry], call_id: str) -> str:
    """The name in the last call with this id that no result of these entries answers."""
    pairs = [pair for pair in pair_results(entries) if isinstance(pair, CallPair) and pair.result is None]
    return next((pair.name for pair in reversed(pairs) if pair.call and pair.call.call_id == call_id), UNKNOWN)


def _within(scope: Scope, parts: Iterable[Stretch]) -> Bools:
    out = np.zeros(scope.seq.size, np.bool_)
    for piece in parts:
        mine = scope.branch.all == piece.branch
        out |= mine & (scope.seq.all > piece.low) & (scope.seq.all <= piece.high)
    return out
