"""A vault: a folder of markdown notes as a source of context: attached by name, searched, watched.

This module is its search index: passages in one SQLite file, of which only changed notes are written again.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from quire.errors import DamageError, needs_extra
from quire.items.sources import heading_lines
from quire.log.store import Closing
from quire.notes.note import Note, aliases, title_of
from quire.notes.vault import ENDINGS, NoteChange, Progress, Vault
from quire.values import sha256_hex

__all__ = ["Note", "NoteIndex", "Passage", "Vault"]


# Splitting a note into passages: by its sections, long sections by paragraphs.

SIZE = 1_600
_HEADING = re.compile(r"(#{1,6}) +(.*?)(?: +#+)?$")


class Chunk(msgspec.Struct, frozen=True):
    """A passage: its first line counted from 1, the headings above it, its text."""

    line: int
    heading: str
    text: str


def chunks(text: str, size: int = SIZE) -> list[Chunk]:
    """The passages of a note, in order; every word of the note is in one."""
    return [
        Chunk(line + offset, heading, part)
        for line, heading, section in _sections(text)
        for offset, part in _parts(section, size)
        if part.strip()
    ]


def _sections(text: str) -> Iterator[tuple[int, str, str]]:
    """(first line, headings joined with >, text) of each section."""
    lines = text.split("\n")
    headings = set(heading_lines(lines))
    starts = sorted({0, *headings})
    above: list[tuple[int, str]] = []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        match = _HEADING.match(lines[start]) if start in headings else None
        if match is not None:
            level = len(match[1])
            above = [higher for higher in above if higher[0] < level] + [(level, match[2])]
        yield start + 1, " > ".join(name for _, name in above), "\n".join(lines[start:end])


def _parts(section: str, size: int) -> Iterator[tuple[int, str]]:
    """(lines before it, text) of a section; of a long one, of its paragraphs joined up to `size`."""
    if len(section) <= size:
        yield 0, section.strip("\n")
        return
    gathered: list[str] = []
    line = begin = used = 0
    for paragraph in re.split(r"(?<=\n)(?=\n*\S)(?<=\n\n)", section):
        for piece in _pieces(paragraph, size):
            if gathered and used + len(piece) > size:
                yield begin, "".join(gathered).strip("\n")
                gathered, used, begin = [], 0, line
            gathered.append(piece)
            used += len(piece)
            line += piece.count("\n")
    yield begin, "".join(gathered).strip("\n")


def _pieces(paragraph: str, size: int) -> Iterator[str]:
    """A paragraph; a long one in parts that end after a word."""
    while len(paragraph) > size:
        space = max(paragraph.rfind(" ", 0, size), paragraph.rfind("\n", 0, size))
        end = space + 1 if space > 0 else size
        yield paragraph[:end]
        paragraph = paragraph[end:]
    yield paragraph


# The tables of a vault's index. When they or their content change, raise VERSION: older files are rebuilt.

VERSION = 4

SCHEMA = f"""
CREATE TABLE notes (path TEXT PRIMARY KEY, facts BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE chunks (
  id TEXT PRIMARY KEY, path TEXT NOT NULL, line INTEGER NOT NULL, heading TEXT NOT NULL, text TEXT NOT NULL,
  document BLOB NOT NULL, vector BLOB
);
CREATE INDEX chunks_of ON chunks (path);
PRAGMA user_version = {VERSION};
"""


# How many notes are written in one transaction.
_BATCH = 200
# How many passages get their vectors in one batch.
_TOGETHER = 64


class Passage(msgspec.Struct, frozen=True):
    """A passage that a search found: its place, its text, its score."""

    path: str
    line: int
    heading: str
    text: str
    score: float

    @property
    def title(self) -> str:
        return title_of(self.path)


class IndexUpdate(msgspec.Struct, frozen=True):
    """How many notes there are after an update, how many changed and how many went away."""

    notes: int
    changed: int
    removed: int


class NoteIndex(Closing):
    """A vault's passages in a SQLite file, which is rebuilt where it is missing."""

    def __init__(self, vault: Vault, place: str | Path | None = None, embedder: Any = None) -> None:
        self.vault, self.embedder = vault, embedder
        # By default in the user's cache folder, never in the vault.
        file_name = f"{sha256_hex(str(vault.root.path))[:16]}.db"
        self.place = Path(place or Path(platformdirs.user_cache_dir("quire")) / "vaults" / file_name)
        self._lock = threading.RLock()
        self._collection: Any = None
        self._conn = _open(self.place)
        weakref.finalize(self, self._conn.close)  # for an index that is dropped without `close`
        # The hashes of the indexed notes; the vault may know more notes, or newer versions.
        self._indexed: dict[str, str] = {}
        for (facts,) in self._conn.execute("SELECT facts FROM notes").fetchall():
            note = msgspec.json.decode(facts, type=Note)
            self._indexed[note.path] = note.sha256
            vault.notes.setdefault(note.path, note)

    def close(self) -> None:
        self._conn.close()

    # Bringing it up to date

    def update(self, progress: Progress | None = None, only: set[str] | None = None) -> IndexUpdate:
        """Index what changed since the last time; an interruption loses only the last few notes."""
        counts = {"changed": 0, "removed": 0}
        batch: list[NoteChange] = []
        with self._lock, self.vault.lock:
            try:
                for change in self._changes(progress, only):
                    batch.append(change)
                    counts["removed" if change.note is None else "changed"] += not self._is_current(change)
                    if len(batch) >= _BATCH:
                        self._write(batch)
                        batch = []
            finally:
                # Also when interrupted: notes that were read need not be read again.
                self._write(batch)
            return IndexUpdate(len(self.vault.notes), **counts)

    def _changes(self, progress: Progress | None, only: set[str] | None) -> Iterator[NoteChange]:
        """Changes since the vault looked last, then earlier ones that are not in the index yet."""
        reported = set()
        for change in self.vault.refresh(progress, only):
            reported.add(change.path)
            yield change
        for path in [path for path in self._indexed if path not in self.vault.notes and path not in reported]:
            yield NoteChange(path, None)
        for path, note in list(self.vault.notes.items()):
            if path not in reported and self._indexed.get(path) != note.sha256:
                yield NoteChange(path, note, self.vault.text(path))

    def _is_current(self, change: NoteChange) -> bool:
        sha256 = change.note.sha256 if change.note is not None else None
        return self._indexed.get(change.path) == sha256

    def _write(self, batch: list[NoteChange]) -> None:
        with self._conn:
            for change in batch:
                if change.note is None:
                    self._conn.execute("DELETE FROM notes WHERE path = ?", (change.path,))
                else:
                    facts = msgspec.json.encode(change.note)
                    self._conn.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (change.path, facts))
                if not self._is_current(change):
                    self._rewrite(change)
        for change in batch:
            self._indexed.pop(change.path, None)
            if change.note is not None:
                self._indexed[change.path] = change.note.sha256

    def _rewrite(self, change: NoteChange) -> None:
        """Replace the passages of a note."""
        old = [id for (id,) in self._conn.execute("SELECT id FROM chunks WHERE path = ?", (change.path,))]
        self._conn.execute("DELETE FROM chunks WHERE path = ?", (change.path,))
        documents = []
        for number, chunk in enumerate(chunks(change.text) if change.note is not None else ()):
            assert change.note is not None
            document = _document(change.note, number, chunk)
            documents.append(document)
            row = (document.id, change.path, chunk.line, chunk.heading, chunk.text, msgspec.msgpack.encode(document))
            self._conn.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, NULL)", row)
        if self._collection is not None:
            self._collection.delete(old)
            self._collection.add(documents)

    def embed(self, progress: Progress | None = None, most: int | None = None) -> int:
        """Make the vectors that are missing, where there is an embedder; returns how many were made."""
        if self.embedder is None:
            return 0
        from quire.recall.meaning import encode_texts

        with self._lock:
            collection = self._load()
            waiting = list(collection.pending().items())[:most]
            for start in range(0, len(waiting), _TOGETHER):
                ids, texts = zip(*waiting[start : start + _TOGETHER], strict=True)
                vectors = encode_texts(self.embedder, texts)
                collection.put_vectors(ids, vectors)
                mark = self._mark()
                with self._conn:
                    rows = [(mark + vector.tobytes(), id) for vector, id in zip(vectors, ids, strict=True)]
                    self._conn.executemany("UPDATE chunks SET vector = ? WHERE id = ?", rows)
                if progress is not None:
                    progress(start + len(ids), len(waiting))
            return len(waiting)

    def _mark(self) -> bytes:
        """The prefix of stored vectors: the name of the embedder that made them."""
        return f"{self.embedder.name}\n".encode() if self.embedder is not None else b""

    # Searching

    def search(
        self, query: str, k: int = 8, only: Callable[[Note], bool] | None = None, earlier: str = ""
    ) -> list[Passage]:
        """The k best passages for a query; `only` selects notes, `earlier` is the text of previous questions."""
        from quire.recall import Query

        with self._lock:
            allowed = None
            if only is not None:
                paths = {path for path, note in self.vault.notes.items() if only(note)}
                allowed = [id for id, path in self._conn.execute("SELECT id, path FROM chunks") if path in paths]
            hits = self._load().search(Query(query, earlier), k, allowed) if allowed is None or allowed else []
            return [passage for hit in hits if (passage := self._passage(hit.id, hit.score)) is not None]

    def passages(self, only: Callable[[Note], bool], key: Callable[[Note], int]) -> list[Passage]:
        """All passages of the notes that `only` selects, the notes sorted by `key`."""
        with self._lock:
            chosen = [note for note in self.vault.notes.values() if only(note)]
            chosen.sort(key=lambda note: (key(note), note.path))
            ids = "SELECT id FROM chunks WHERE path = ? ORDER BY line"
            rows = [row for note in chosen for row in self._conn.execute(ids, (note.path,)).fetchall()]
            return [passage for (id,) in rows if (passage := self._passage(id, 0.0)) is not None]

    def _passage(self, id: str, score: float) -> Passage | None:
        row = self._conn.execute("SELECT path, line, heading, text FROM chunks WHERE id = ?", (id,)).fetchone()
        if row is None:
            return None
        path, line, heading, text = row
        return Passage(path, line, heading, text, score)

    def _load(self) -> Any:
        """The searchable collection, read from the file at its first use."""
        if self._collection is None:
            import numpy as np

            from quire.recall.document import DocumentTerms
            from quire.recall.rank import Collection

            documents, vectors, mark = [], {}, self._mark()
            for document, vector in self._conn.execute("SELECT document, vector FROM chunks ORDER BY rowid"):
                documents.append(msgspec.msgpack.decode(document, type=DocumentTerms))
                # Vectors of another embedder do not count.
                if mark and vector is not None and vector.startswith(mark):
                    vectors[documents[-1].id] = np.frombuffer(vector[len(mark) :], np.float32)
            self._collection = Collection(self.embedder)
            self._collection.add(documents)
            if vectors:
                self._collection.put_vectors(list(vectors), np.stack(list(vectors.values())))
        return self._collection


def _document(note: Note, number: int, chunk: Chunk) -> Any:
    """A passage as recall searches it; title, aliases, headings and tags are found too."""
    from quire.recall.document import Document, index_terms

    extra = " ".join([note.title, *aliases(note.fields), chunk.heading, *note.tags])
    return index_terms(Document(id=f"{number}:{note.path}", text=chunk.text, extra=extra, session=note.path))


def _open(place: Path) -> sqlite3.Connection:
    """Open the index file; it is made where it is missing, and rebuilt where another version wrote it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    conn = sqlite3.connect(place, check_same_thread=False, timeout=30)
    try:
        (version,) = conn.execute("PRAGMA user_version").fetchone()
        if version != VERSION:
            conn.executescript("DROP TABLE IF EXISTS notes; DROP TABLE IF EXISTS chunks;")
            conn.executescript(SCHEMA)
        conn.execute("PRAGMA journal_mode = WAL").fetchall()
        conn.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.DatabaseError as error:
        conn.close()
        raise DamageError(
            f"the vault's index {place} cannot be read: {error}", hint="Delete the file; it will be made again."
        ) from error
    return conn


# Watching a vault.


class Watching:
    """`with Watching(index): …` keeps the index up to date with the folder while the block runs."""

    def __init__(self, index: NoteIndex, debounce_ms: int = 200) -> None:
        self.index, self.debounce_ms = index, debounce_ms
        self.updated = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Watching:
        with needs_extra("watching needs watchfiles", "vault"):
            import watchfiles
        ready = threading.Event()
        self._thread = threading.Thread(target=self._follow, args=(watchfiles, ready), daemon=True)
        self._thread.start()
        ready.wait(10)
        # Changes from before the watch began are not reported.
        self.index.update()
        self.index.vault.watched = True
        return self

    def __exit__(self, *raised: object) -> None:
        self.index.vault.watched = False
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)

    def _follow(self, watchfiles: object, ready: threading.Event) -> None:
        """Update the index for each batch of changed files."""
        root: Path = self.index.vault.root.path
        changes = watchfiles.watch(  # type: ignore[attr-defined]  # imported where used
            root,
            stop_event=self._stop,
            debounce=self.debounce_ms,
            step=20,
            rust_timeout=100,
            yield_on_timeout=True,
            recursive=True,
        )
        for batch in changes:
            ready.set()
            if not batch or self._stop.is_set():
                continue
            paths = {Path(path) for _, path in batch}
            inside = {path.relative_to(root).as_posix() for path in paths if path.is_relative_to(root)}
            # A folder that was moved or deleted means that any note may have changed.
            only_notes = all(name.lower().endswith(ENDINGS) for name in inside)
            self.index.update(only=inside if only_notes else None)
            self.updated.set()
