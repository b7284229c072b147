"""A store that lives in this process alone: for tests, and as the plainest example of what a store must do."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from quire.entry import canonical, chain, entry_id
from quire.errors import DamageError
from quire.log.entries import check_entry, encode_body
from quire.log.store import (
    TURNS_HELD,
    Change,
    EntryWords,
    RecordFilter,
    RecordRow,
    Store,
    Stretch,
    ThreadInfo,
    Verified,
    WordsOf,
    ambiguous,
    check_expected,
    check_fork,
    check_name,
    check_page,
    id_range,
    no_thread,
    taken,
)
from quire.log.turn_lock import check_turn, hold_turn
from quire.values import Entry, Json

_WORD = re.compile(r"\w+")


class _Line(msgspec.Struct, frozen=True):
    """An entry as it is kept: its JSON, so that nobody changes it from outside."""

    n: int
    id: str
    body: str

    def entry(self, seq: int) -> Entry:
        value = json.loads(self.body)
        return Entry(value["kind"], value, seq, self.id)


class _Branch(msgspec.Struct, eq=False):
    """Entries behind entry `at` of the parent branch; a thread is a name for a branch."""

    number: int
    parent: _Branch | None = None
    at: int = 0
    lines: list[_Line] = []
    kept: dict[str, str] = {}
    checkpoint: bytes | None = None

    @property
    def end(self) -> int:
        return self.at + len(self.lines)

    @property
    def tip(self) -> str:
        return self.lines[-1].id if self.lines else self.parent.line(self.at).id if self.parent else ""

    def line(self, seq: int) -> _Line:
        return self.lines[seq - self.at - 1]

    def stretches(self) -> list[Stretch]:
        """Where the entries up to the end are, oldest first."""
        branch: _Branch | None = self
        high, found = self.end, []
        while branch is not None:
            found.append(Stretch(branch.number, branch.at, high))
            high, branch = branch.at, branch.parent
        return found[::-1]


class MemoryStore:
    """A `Store` in memory; `words_of` makes entries searchable as they are appended, as for `SqliteStore`."""

    def __init__(self, words_of: WordsOf | None = None) -> None:
        self.lock = threading.RLock()
        self.place = f"memory-{id(self)}"
        self._changed = threading.Condition(self.lock)
        self.threads_by_name: dict[str, _Branch] = {}
        self.branches: dict[int, _Branch] = {}
        self._words_of = words_of
        self._last_branch = self._last_change = 0
        self.index, self.records = MemoryIndex(self), MemoryRecords()
        self._workers: list[Callable[[], None]] = []

    def create(self, thread: str) -> None:
        """Make an empty thread; a CallError when the name is taken."""
        with self.lock:
            self._name(thread, _Branch(0))

    def append(self, thread: str, entries: Iterable[Entry], expected_seq: int | None = None) -> list[Entry]:
        """Append all or nothing; a new thread is made when there is none of that name."""
        checked = [check_entry(entry) for entry in entries]
        check_name(thread)
        with self.lock:
            if TURNS_HELD.get():
                check_turn(self.place, thread, file=False)
            branch = self.threads_by_name.get(thread)
            seq, tip = (branch.end, branch.tip) if branch is not None else (0, "")
            check_expected(thread, expected_seq, seq, tip)
            chained = list(chain(checked, parent=tip, seq=seq))
            lines = [
                _Line(n, entry.id, encode_body(entry.body))
                for n, entry in enumerate(chained, self._last_change + 1)
            ]
            words = self._words_of(chained) if self._words_of is not None else []
            # Nothing below can fail.
            (branch or self._name(thread, _Branch(0))).lines.extend(lines)
            self._last_change += len(lines)
            self.index.add(words)
            self._changed.notify_all()
        return chained

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """The entries with seq > after, in order."""
        check_page(after, limit)
        with self.lock:
            found = [
                entry
                for stretch in self._branch(thread).stretches()
                if stretch.high > after
                for entry in self.index.entries(
                    Stretch(stretch.branch, max(stretch.low, after), stretch.high)
                )
            ]
        return found if limit is None else found[:limit]

    def info(self, thread: str) -> ThreadInfo:
        """Where a thread stands now."""
        with self.lock:
            branch = self._branch(thread)
            named = {other.number: name for name, other in self.threads_by_name.items()}
            parent = named.get(branch.parent.number, "") if branch.parent is not None else ""
            return ThreadInfo(thread, branch.end, branch.tip, parent, branch.at)

    def threads(self) -> list[ThreadInfo]:
        """All threads, oldest first."""
        with self.lock:
            return [
                self.info(name)
                for name in sorted(self.threads_by_name, key=lambda name: self.threads_by_name[name].number)
            ]

    def fork(self, thread: str, at_seq: int, name: str | None = None) -> str:
        """A new thread that shares everything up to at_seq; its name is thread@at_seq if not given."""
        with self.lock:
            source = self._branch(thread)
            check_fork(thread, at_seq, source.end)
            wanted = f"{thread}@{at_seq}"
            if name is None:
                names = (wanted, *(f"{wanted}.{count}" for count in range(2, len(self.threads_by_name) + 3)))
                name = next(free for free in names if free not in self.threads_by_name)
            holds: _Branch | None = source
            while holds is not None and holds.at >= at_seq:
                holds = holds.parent
            kept = {"window": source.kept["window"]} if "window" in source.kept else {}
            self._name(name, _Branch(0, holds, at_seq if holds is not None else 0, kept=kept))
        return name

    def delete(self, thread: str) -> None:
        """Remove a thread; what a fork still uses stays."""
        with self.lock:
            branch: _Branch | None = self._branch(thread)
            del self.threads_by_name[thread]
            while branch is not None and branch not in self.threads_by_name.values():
                used = [other.at for other in self.branches.values() if other.parent is branch]
                del branch.lines[max(used, default=branch.at) - branch.at :]
                branch.kept, branch.checkpoint = {}, None
                if used:
                    break
                del self.branches[branch.number]
                branch = branch.parent
            self.index.forget_deleted()

    def verify(self, thread: str | None = None) -> Verified:
        """Re-derive every hash; a DamageError names the first bad entry or record."""
        with self.lock:
            names = [info.name for info in self.threads()] if thread is None else [thread]
            seen: set[str] = set()
            for name in names:
                parent = ""
                for entry in self.read(name):
                    if entry_id(parent, entry.body) != entry.id:
                        raise DamageError(
                            f"entry {entry.seq} of thread {name!r} is damaged", thread=name, seq=entry.seq
                        )
                    parent = entry.id
                    seen.add(entry.id)
            held = (
                sum(len(branch.lines) for branch in self.branches.values()) if thread is None else len(seen)
            )
            return Verified(len(names), held, len(self.records.rows) if thread is None else 0)

    def find(self, entry_id: str) -> tuple[str, Entry] | None:
        """An entry by its id or a unique beginning of it, with the oldest thread that has it."""
        bounds = id_range(entry_id)
        if bounds is None:
            return None
        with self.lock:
            found: dict[str, tuple[int, int]] = {}
            for branch in self.branches.values():
                for seq, line in enumerate(branch.lines, branch.at + 1):
                    if bounds[0] <= line.id < bounds[1]:
                        found.setdefault(line.id, (branch.number, seq))
            if len(found) > 1:
                raise ambiguous(entry_id, *sorted(found)[:2])
            for number, seq in found.values():
                return self.index.holder(number, seq), self.branches[number].line(seq).entry(seq)
        return None

    def changes(self, after: int = 0, limit: int | None = None) -> list[Change]:
        """What was appended behind change `after`, to whichever thread, in order; what was deleted is not told."""
        check_page(after, limit)
        with self.lock:
            found = [
                (line.n, branch.number, seq)
                for branch in self.branches.values()
                for seq, line in enumerate(branch.lines, branch.at + 1)
                if line.n > after
            ]
            return [
                Change(n, self.index.holder(number, seq), self.branches[number].line(seq).entry(seq))
                for n, number, seq in islice(sorted(found), limit)
            ]

    def last_change(self) -> int:
        """The number of the newest change there ever was, 0 when there was none."""
        return self._last_change

    def wait_for_change(self, after: int, timeout_s: float) -> bool:
        """Wait until there is a change behind number `after`; whether there is one."""
        with self._changed:
            return self._changed.wait_for(lambda: self._last_change > after, timeout_s)

    def window(self, thread: str) -> Json:
        """The item window saved with a thread, None when there is none."""
        with self.lock:
            return json.loads(self._branch(thread).kept.get("window", "null"))

    def save_window(self, thread: str, window: Json) -> None:
        """Keep a thread's item window with it; the thread is made when there is none."""
        text = _stored(window)
        with self.lock:
            branch = self.threads_by_name.get(thread) or self._name(thread, _Branch(0))
            branch.kept["window"] = text

    def get_state(self, thread: str, key: str) -> Json:
        """Derived state that may be thrown away at any time; None when absent."""
        with self.lock:
            return json.loads(self._branch(thread).kept.get(f"state {key}", "null"))

    def set_state(self, thread: str, key: str, value: Json) -> None:
        """Keep derived state with a thread."""
        text = _stored(value)
        with self.lock:
            self._branch(thread).kept[f"state {key}"] = text

    def checkpoint(self, thread: str) -> bytes | None:
        """A thread's state as it was last saved, None where there is none."""
        with self.lock:
            return self._branch(thread).checkpoint

    def save_checkpoint(self, thread: str, state: bytes) -> None:
        """Keep a thread's state; it takes the place of the one before."""
        with self.lock:
            self._branch(thread).checkpoint = bytes(state)

    def turn_lock(self, thread: str) -> AbstractContextManager[None]:
        """Hold a thread while its turn is carried out; a ConflictError when another cycle holds it."""
        return hold_turn(self.place, thread)

    def before_close(self, end: Callable[[], None]) -> None:
        """Have `end` called before the store closes: whoever works in another OS thread has to stop first."""
        self._workers.append(end)

    def close(self) -> None:
        """End background work; what was stored is gone with the object."""
        while self._workers:
            self._workers.pop()()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _branch(self, thread: str) -> _Branch:
        check_name(thread)
        if thread not in self.threads_by_name:
            raise no_thread(thread)
        return self.threads_by_name[thread]

    def _name(self, thread: str, branch: _Branch) -> _Branch:
        """Give a new branch its number and its name."""
        check_name(thread)
        if thread in self.threads_by_name:
            raise taken(thread)
        self._last_branch += 1
        branch.number = self._last_branch
        self.branches[branch.number] = self.threads_by_name[thread] = branch
        return branch


def _stored(value: Json) -> str:
    canonical(value)  # refuses what is not JSON
    return encode_body(value)


class MemoryIndex:
    """An `Index` beside a MemoryStore."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._words: dict[str, tuple[int, EntryWords]] = {}
        self._vectors: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._states: dict[str, dict[str, bytes]] = {}
        self._last = 0

    def _next(self) -> int:
        self._last += 1
        return self._last

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        with self._store.lock:
            yield

    def stretches(self, thread: str | None) -> list[Stretch]:
        with self._store.lock:
            if thread is not None:
                return self._store._branch(thread).stretches()
            return [Stretch(number, branch.at, branch.end) for number, branch in self._store.branches.items()]

    def entries(self, stretch: Stretch) -> list[Entry]:
        with self._store.lock:
            branch = self._store.branches[stretch.branch]
            return [branch.line(seq).entry(seq) for seq in range(stretch.low + 1, stretch.high + 1)]

    def holder(self, branch: int, seq: int) -> str:
        with self._store.lock:
            for info in self._store.threads():
                parts = self._store.threads_by_name[info.name].stretches()
                if any(part.branch == branch and part.low < seq <= part.high for part in parts):
                    return info.name
        return ""

    def add(self, words: Iterable[EntryWords]) -> None:
        with self._store.lock:
            for row in words:
                self._words[row.entry] = (self._next(), row)

    def words(self, stretch: Stretch) -> list[tuple[int, str, EntryWords | None]]:
        with self._store.lock:
            branch = self._store.branches[stretch.branch]
            seqs = range(stretch.low + 1, stretch.high + 1)
            ids = [(seq, branch.line(seq).id) for seq in seqs]
            return [(seq, id, self._words.get(id, (0, None))[1]) for seq, id in ids]

    def without_words(self, after: int, rules: int, limit: int) -> list[Change]:
        with self._store.lock:
            kept = {id for id, (_, row) in self._words.items() if row.rules == rules}
            found = [change for change in self._store.changes(after) if change.entry.id not in kept]
            return found[:limit]

    def add_vectors(self, model: str, dimensions: int, vectors: Mapping[str, bytes]) -> None:
        with self._store.lock:
            there = self._ids()
            for key, vector in vectors.items():
                if key in there:
                    self._vectors[model, key] = (self._next(), vector)

    def vectors(self, model: str, after: int = 0, of: Stretch | None = None) -> list[tuple[str, bytes]]:
        with self._store.lock:
            wanted = None if of is None else {id for _, id, _ in self.words(of)}
            found = [
                (n, key, vector)
                for (made_by, key), (n, vector) in self._vectors.items()
                if made_by == model and n > after and (wanted is None or key in wanted)
            ]
        return [(key, vector) for _, key, vector in sorted(found)]

    def vectors_of(self, model: str, entries: Sequence[str]) -> list[tuple[str, bytes]]:
        with self._store.lock:
            return [(key, self._vectors[model, key][1]) for key in entries if (model, key) in self._vectors]

    def nearest(self, model: str, dimensions: int, vector: bytes, most: int) -> list[str] | None:
        return None

    def newest_vector(self) -> int:
        with self._store.lock:
            return max((n for n, _ in self._vectors.values()), default=0)

    def without_vectors(self, model: str, after: int, limit: int | None) -> list[tuple[int, str]]:
        with self._store.lock:
            found = sorted(
                (n, id)
                for id, (n, row) in self._words.items()
                if n > after and row.kind != "call" and (model, id) not in self._vectors
            )
        return found[:limit]

    def state(self, key: str, parts: Sequence[str]) -> dict[str, bytes]:
        with self._store.lock:
            kept = self._states.get(key, {})
            return {part: kept[part] for part in parts if part in kept}

    def save_state(self, key: str, parts: Mapping[str, bytes]) -> None:
        with self._store.lock:
            self._states[key] = dict(parts)

    def clear(self) -> None:
        with self._store.lock:
            self._words.clear()
            self._vectors.clear()
            self._states.clear()

    def forget_deleted(self) -> None:
        """Remove the words and vectors of entries that no thread holds."""
        there = self._ids()
        self._states.clear()
        self._words = {id: kept for id, kept in self._words.items() if id in there}
        self._vectors = {key: kept for key, kept in self._vectors.items() if key[1] in there}

    def _ids(self) -> set[str]:
        return {line.id for branch in self._store.branches.values() for line in branch.lines}


class MemoryRecords:
    """A `RecordTable` in memory."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # By number: all versions, oldest first; and the order of the newest changes.
        self.rows: dict[int, list[RecordRow]] = {}
        self._changed: dict[int, int] = {}
        self._vectors: dict[tuple[str, int], tuple[int, bytes]] = {}
        self._last = self._last_change = 0

    def _write(self, row: RecordRow) -> None:
        self.rows.setdefault(row.n, []).append(row)
        self._last_change += 1
        self._changed[row.n] = self._last_change

    def insert(self, rows: Sequence[Callable[[int], RecordRow]]) -> list[str]:
        with self._lock:
            made = [row(n) for n, row in enumerate(rows, self._last + 1)]
            for row in made:
                self._write(row)
            self._last += len(made)
        return [row.body for row in made]

    def update(self, row: RecordRow, seen: int) -> bool:
        with self._lock:
            if row.n not in self.rows or self.rows[row.n][-1].version != seen:
                return False
            self._write(row)
        return True

    def remove(self, n: int, seen: int | None = None) -> bool:
        with self._lock:
            if n not in self.rows or seen not in (None, self.rows[n][-1].version):
                return False
            del self.rows[n]
            self._vectors = {key: kept for key, kept in self._vectors.items() if key[1] != n}
        return True

    def purge(self, now: int) -> int:
        with self._lock:
            past = [
                n for n, rows in self.rows.items() if (end := rows[-1].expires_at) is not None and end <= now
            ]
            return sum(self.remove(n) for n in past)

    def newest(self, n: int) -> str | None:
        with self._lock:
            return self.rows[n][-1].body if n in self.rows else None

    def versions(self, n: int) -> list[str]:
        with self._lock:
            return [row.body for row in self.rows.get(n, ())]

    def _wanted(self, wanted: RecordFilter) -> list[RecordRow]:
        """The newest versions that are meant, in the order of creation."""
        with self._lock:
            return [row for _, rows in sorted(self.rows.items()) if _means(wanted, row := rows[-1])]

    def select(self, wanted: RecordFilter, newest_first: bool = False) -> Iterator[str]:
        found = self._wanted(wanted)
        if newest_first:
            found.sort(key=lambda row: -self._changed[row.n])
        return iter([row.body for row in found])

    def beside(self, n: int, step: int, wanted: RecordFilter) -> str | None:
        found = self._wanted(wanted)
        if step > 0:
            return next((row.body for row in found if row.n > n), None)
        return next((row.body for row in reversed(found) if row.n < n), None)

    def count(self, wanted: RecordFilter) -> int:
        return len(self._wanted(wanted))

    def matching(self, words: Sequence[str], wanted: RecordFilter, most: int) -> list[str]:
        holding = self.frequencies(words)
        scored = []
        for row in self._wanted(wanted):
            said = Counter(_WORD.findall(row.text.lower()))
            if score := sum(1 / holding[word] for word in words if said[word]):
                scored.append((-score, row.n, row.body))
        return [body for _, _, body in sorted(scored)[:most]]

    def frequencies(self, words: Sequence[str]) -> dict[str, int]:
        said = [set(_WORD.findall(row.text.lower())) for row in self._wanted(RecordFilter())]
        return {word: sum(word in some for some in said) for word in words}

    def texts(self, numbers: Sequence[int]) -> list[str]:
        with self._lock:
            return [self.rows[n][-1].text if n in self.rows else "" for n in numbers]

    def add_vectors(self, model: str, vectors: Sequence[tuple[int, int, bytes]]) -> None:
        with self._lock:
            for n, version, vector in vectors:
                if n in self.rows and self.rows[n][-1].version == version:
                    self._vectors[model, n] = (version, vector)

    def vectors(self, model: str, low: int, high: int) -> list[tuple[int, int, bytes]]:
        with self._lock:
            kept = sorted(self._vectors.items())
        return [(n, *found) for (made_by, n), found in kept if made_by == model and low <= n <= high]

    def clear_vectors(self) -> None:
        with self._lock:
            self._vectors.clear()


def _means(wanted: RecordFilter, row: RecordRow) -> bool:
    return (
        (not wanted.schemas or row.schema in wanted.schemas)
        and set(row.tags).issuperset(wanted.tags)
        and (wanted.now is None or row.expires_at is None or row.expires_at > wanted.now)
        and not (wanted.no_tag and any(tag.startswith(wanted.no_tag) for tag in row.tags))
    )


if TYPE_CHECKING:  # the type checker holds that this is a Store
    _: Store = MemoryStore()
