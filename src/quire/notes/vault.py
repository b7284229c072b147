"""The vault's folder: which notes there are, which note a name means, and notes as context items."""

from __future__ import annotations

import base64
import logging
import os
import threading
import unicodedata
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from stat import S_ISDIR, S_ISLNK, S_ISREG
from typing import TypeAlias

import msgspec

from quire.errors import CallError, FormatError, NotFound, QuireError
from quire.items import item
from quire.items.sources import IMAGE_TYPES, MAX_IMAGE, SKIPPED, Root, region_of
from quire.notes.dataview import evaluate
from quire.notes.note import (
    Note,
    aliases,
    blocks,
    decode_note,
    has_tag,
    is_within,
    links,
    prose,
    read_note,
    split_front_matter,
    title_of,
)
from quire.values import Item, JsonObject

# The images that every provider takes in one request.
_MOST_IMAGES = 20
ENDINGS = (".md", ".markdown")
MAX_BYTES = 5_000_000
_logger = logging.getLogger("quire")
# Reports progress: (notes checked, notes in all).
Progress: TypeAlias = Callable[[int, int], None]


class NoteChange(msgspec.Struct, frozen=True):
    """A note that was added, changed, or only has a new time; `note` is None where it was deleted."""

    path: str
    note: Note | None
    text: str = ""


class Vault:
    """A folder of notes; a note is read again when its time or size changes."""

    def __init__(self, root: str | Path) -> None:
        self.root = Root(root)
        self.notes: dict[str, Note] = {}
        # Counts changes of notes: a value that was computed from all notes is stale once this has grown.
        self.revision = 0
        self.watched = False
        self._fresh = False
        self._by_name: tuple[tuple[int, int], dict[str, list[str]]] = ((-1, 0), {})
        self._answers: dict[tuple[str, str], tuple[tuple[object, ...], str]] = {}
        self.lock = threading.RLock()
        # The last warning about each unreadable note, so that it is logged once.
        self._warnings: dict[str, str] = {}

    # Which notes there are

    def refresh(self, progress: Progress | None = None, only: set[str] | None = None) -> Iterator[NoteChange]:
        """Look for changes in the folder (or at `only` these paths), and yield each as it is found."""
        stats = dict(self._stats(only))
        removed = [path for path in (self.notes if only is None else only) if path not in stats]
        for number, (path, stat) in enumerate(stats.items(), 1):
            if change := self._read_if_changed(path, stat):
                yield change
            if (note := self.notes.get(path)) is not None and note.problem:
                self._warn(path, note.problem)
            if progress is not None:
                progress(number, len(stats))
        for path in removed:
            if self.notes.pop(path, None) is not None:
                self.revision += 1
                yield NoteChange(path, None)
        self._fresh = self._fresh or only is None

    def known(self) -> dict[str, Note]:
        """All notes by path; looks for changes first, unless the folder is watched."""
        with self.lock:
            if not (self.watched and self._fresh):
                for _ in self.refresh():
                    pass
            return self.notes

    def _stats(self, only: set[str] | None) -> Iterator[tuple[str, os.stat_result]]:
        for path in self._paths() if only is None else sorted(only):
            hidden = any(part.startswith(".") or part in SKIPPED for part in path.split("/"))
            stat = self._stat(path) if path.lower().endswith(ENDINGS) and not hidden else None
            if stat is not None and stat.st_size > MAX_BYTES:
                self._warn(path, f"left out: it has {stat.st_size:,} bytes; at most {MAX_BYTES:,} are read")
            elif stat is not None:
                yield path, stat

    def _stat(self, path: str) -> os.stat_result | None:
        """A regular file's `stat`; None where there is none, or where a link leads out of the vault."""
        try:
            stat = os.lstat(self.root.path / path)
            if S_ISLNK(stat.st_mode):
                stat = self.root.resolve(path).stat()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, QuireError) as error:
            self._warn(path, f"left out: {error}")
            return None
        if not S_ISREG(stat.st_mode) and not S_ISDIR(stat.st_mode):
            self._warn(path, "left out: it is not a file; devices and pipes are not read")
        return stat if S_ISREG(stat.st_mode) else None

    def _warn(self, path: str, why: str) -> None:
        if self._warnings.get(path) != why:
            self._warnings[path] = why
            _logger.warning("note %r: %s", path, why)

    def _paths(self) -> Iterator[str]:
        top = len(str(self.root.path)) + 1
        for folder, folders, files in os.walk(self.root.path):
            folders[:] = sorted(folder for folder in folders if folder not in SKIPPED and not folder.startswith("."))
            place = folder[top:].replace(os.sep, "/")
            for name in sorted(files):
                yield f"{place}/{name}" if place else name

    def _read_if_changed(self, path: str, stat: os.stat_result) -> NoteChange | None:
        """Read a note again if its time or size changed, else return None."""
        before = self.notes.get(path)
        if before is not None and (before.mtime_ns, before.size) == (stat.st_mtime_ns, stat.st_size):
            return None
        try:
            data = self.root.read_bytes(path, MAX_BYTES)
        except NotFound:
            return None  # deleted just now
        except QuireError as error:
            self._warn(path, f"left out: {error}")
            return None  # perhaps readable at the next refresh
        text, flaw = decode_note(data)
        note = read_note(path, text, stat.st_mtime_ns, stat.st_size, _born_ns(stat), flaw)
        self.notes[path] = note
        self.revision += before is None or before.sha256 != note.sha256
        return NoteChange(path, note, text)

    def text(self, path: str) -> str:
        """A note's whole text; bytes that are no UTF-8 are replaced."""
        return decode_note(self.root.read_bytes(path, MAX_BYTES))[0]

    # Which note a name means

    def resolve(self, name: str) -> str:
        """The path of the note that a name means: by full path, else by a unique file name, else by an alias."""
        bare = _bare(name)
        for path in _with_endings(bare):
            if path.lower().endswith(ENDINGS) and self._is_file(path):
                return self.root.relative(self.root.resolve(path))
        self.known()
        return self._note_named(name)

    def _is_file(self, path: str) -> bool:
        try:
            return os.path.isfile(self.root.resolve(path))
        except CallError:
            return False

    def _note_named(self, name: str) -> str:
        """`resolve` among the known notes, without looking at the folder."""
        bare = _bare(name)
        paths = [path for path in _with_endings(bare) if path in self.notes]
        paths = paths[:1] or self._candidates(bare)
        if not paths:
            raise NotFound(f"there is no note {name!r}", hint="Check its path, or search the vault.")
        if len(paths) > 1:
            raise CallError(f"{name!r} could be {', '.join(paths)}", hint="Give the full path.")
        return paths[0]

    def _candidates(self, name: str) -> list[str]:
        """Notes with this file name, in the same case if there are any; among several, the one whose folders match."""
        alike = self._names().get(_stem(_fold_case(name)), ())
        for same in (lambda text: text, _fold_case):
            named = [path for path in alike if _stem(same(path)) == _stem(same(name))]
            ends = tuple(f"/{end}" for end in _with_endings(same(name)))
            fitting = [path for path in named if f"/{same(path)}".endswith(ends)]
            if named:
                return fitting if len(fitting) == 1 else named
        return list(self._names().get(f"alias {_fold_case(name)}", ()))

    def _names(self) -> dict[str, list[str]]:
        """Paths by file name without ending, and by "alias NAME"; computed again when notes changed."""
        if self._by_name[0] != (self.revision, len(self.notes)):
            names: dict[str, list[str]] = {}
            for path, note in sorted(self.notes.items()):
                others = [f"alias {_fold_case(alias)}" for alias in aliases(note.fields)]
                for name in dict.fromkeys([_stem(_fold_case(path)), *others]):
                    names.setdefault(name, []).append(path)
            self._by_name = ((self.revision, len(self.notes)), names)
        return self._by_name[1]

    def file(self, name: str, note: str = "") -> str:
        """The path of any file: beside a note, by its path in the vault, or by a unique file name; else ""."""
        beside = f"{note.rpartition('/')[0]}/{_bare(name)}".lstrip("/")
        for place in dict.fromkeys((beside, _bare(name))):
            if self._is_file(place):
                return self.root.relative(self.root.resolve(place))
        base = _bare(name).rpartition("/")[2]
        anywhere = [path for path in self.root.walk() if path.rpartition("/")[2] == base]
        return anywhere[0] if len(anywhere) == 1 else ""

    # Notes as items

    def attach(self, name: str) -> list[Item]:
        """A note, and the answers of its query blocks, as items."""
        path = self.resolve(name)
        text = self.text(path)
        return [self._item(path, text, "note"), *self._queries(path, text)]

    def images(self, name: str) -> list[JsonObject]:
        """The images embedded in a note."""
        path = self.resolve(name)
        return self._images(path, self.text(path))

    def _images(self, path: str, text: str) -> list[JsonObject]:
        """The images of ![[…]] and ![](…), each once; missing and too large ones are left out."""
        embedded = [link.target for link in links(prose(split_front_matter(text)[1])) if link.embed]
        types = {name: IMAGE_TYPES.get(PurePosixPath(name).suffix.lower()) for name in embedded}
        images: list[JsonObject] = []
        for name, media_type in [(name, type) for name, type in types.items() if type][:_MOST_IMAGES]:
            place = self.file(name, path)
            data = self.root.content(place, MAX_IMAGE) if place else None
            if data is not None:
                images.append({"media_type": media_type, "data": base64.b64encode(data).decode()})
        return images

    def active(self, name: str) -> list[Item]:
        """The note that the user has open: like `attach`, with its embedded images."""
        path = self.resolve(name)
        text = self.text(path)
        return [self._item(path, text, "active_note", self._images(path, text)), *self._queries(path, text)]

    def selection(self, name: str, start: int, end: int) -> Item:
        """The lines `start` to `end` of a note, as an item."""
        path = self.resolve(name)
        part = region_of(self.text(path), path, start, end, truncate=True)
        meta = {"source": "selection", "path": path, "title": title_of(path), "start_line": start, "end_line": end}
        return item(part.content, "text", meta, id=f"{path}#L{start}-L{end}")

    def tagged(self, tag: str) -> list[Item]:
        """All notes with a tag or a tag below it."""
        paths = [path for path, note in sorted(self.known().items()) if has_tag(note, tag)]
        if not paths:
            raise NotFound(f"no note has the tag #{tag.removeprefix('#')}", hint="Tags are matched whole.")
        return [self._item(path, self.text(path), "note") for path in paths]

    def within(self, folder: str) -> list[Item]:
        """All notes of a folder, at any depth."""
        paths = [path for path in sorted(self.known()) if is_within(path, folder)]
        if not paths:
            raise NotFound(f"there is no note in {folder!r}", hint="Folders are named from the vault's top.")
        return [self._item(path, self.text(path), "note") for path in paths]

    def linked(self, name: str) -> tuple[list[str], list[str]]:
        """The notes that a note links to, and its links that mean no note or several."""
        targets: dict[str, None] = {}
        broken: list[str] = []
        for link in self.known()[self.resolve(name)].links:
            try:
                targets[self.resolve(link.target)] = None
            except QuireError:
                broken.append(link.target)
        return list(targets), broken

    def _item(self, path: str, text: str, source: str, images: list[JsonObject] | None = None) -> Item:
        stat = self.root.resolve(path).stat()
        meta: JsonObject = {"source": source, "path": path, "title": title_of(path)}
        meta |= {"ctime": _iso(_born_ns(stat)), "mtime": _iso(stat.st_mtime_ns)}
        if images:
            meta["images"] = images
        return item(text, "text", meta, id=path)

    # Queries

    def _queries(self, path: str, text: str) -> list[Item]:
        queries = [block.strip() for block in blocks(text, "dataview")]
        about = {"source": "dataview", "path": path}
        return [item(self.answer(path, query), "text", {**about, "query": query}) for query in queries]

    def answer(self, path: str, query: str) -> str:
        """The answer of a query block, cached until a note changes."""
        notes, now = self.known(), datetime.now()
        # A query may compare with today's date, so its answer holds for a day; with `now`, only for this moment.
        state = (self.root.resolve(path).stat().st_mtime_ns, self.revision, now if "now" in query else now.date())
        cached = self._answers.get((path, query))
        if cached is not None and cached[0] == state:
            return cached[1]
        try:
            content = evaluate(query, list(notes.values()), self._note_named, self.text, path, now)
        except FormatError as error:
            content = f"(this query was not understood: {error})"
        self._answers[(path, query)] = (state, content)
        return content


def _bare(name: str) -> str:
    """A name without link brackets, alias, heading and leading slash: "[[a/b#h|x]]" -> "a/b"."""
    text = name.strip()
    if text.startswith(("[[", "![[")) and text.endswith("]]"):
        text = text.lstrip("!")[2:-2].partition("|")[0].partition("#")[0]
    return text.strip().lstrip("/")


def _with_endings(name: str) -> tuple[str, ...]:
    """The file names that a name may mean: the name itself, or with the ending of a note."""
    return (name, *(f"{name}{ending}" for ending in ENDINGS))


def _stem(path: str) -> str:
    """A file's name without the ending of a note."""
    name = path.rpartition("/")[2]
    ending = next((ending for ending in ENDINGS if name.lower().endswith(ending)), "")
    return name[: len(name) - len(ending)]


def _fold_case(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _born_ns(stat: os.stat_result) -> int:
    born = getattr(stat, "st_birthtime", None)
    return int(born * 1e9) if born is not None else min(stat.st_ctime_ns, stat.st_mtime_ns)


def _iso(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
