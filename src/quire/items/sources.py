"""Makes items from files, buffers, regions, pages, REPL exchanges and errors, without an id, which a window gives them.

Also: how long texts are cut, and `Root`, a folder outside of which nothing is read.
"""

from __future__ import annotations

import base64
import logging
import os
import re
import stat
import traceback
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias, cast

import msgspec

from quire.errors import BudgetError, CallError, FormatError, NotFound, needs_extra
from quire.log.shapes import INTEGER, Fault, check_json, short
from quire.values import ITEM_TYPES, NOT_UTF8_HINT, Item, ItemType, Json, JsonObject, sha256_hex

# Making an item, whose content is checked and hashed once, here; and its identity, the name that a model sees.


def item(
    content: str, type: str = "code", metadata: JsonObject | None = None, *, id: str = "", timestamp: int = 0
) -> Item:
    """An item with its hash; the id stays empty until a window gives it one."""
    if not isinstance(content, str):
        raise CallError(f"content must be a string, not {short(content)}", hint="Decode bytes; from_file reads a path.")
    if type not in ITEM_TYPES:
        raise CallError(f"unknown item type {short(type)}", hint=f"Use one of {', '.join(ITEM_TYPES)}.")
    if not INTEGER.fits(timestamp):
        raise CallError(f"timestamp must be an integer, not {short(timestamp)}", hint="Unix milliseconds.")
    about, sha256 = _check_metadata(metadata), content_sha256(content)
    return Item(id=id, type=cast(ItemType, type), content=content, metadata=about, timestamp=timestamp, sha256=sha256)


def checked_item(original: Item) -> Item:
    """A given item, checked like a new one; a sha256 that does not match its content is an error."""
    checked = item(original.content, original.type, original.metadata, id=original.id, timestamp=original.timestamp)
    if original.sha256 and original.sha256 != checked.sha256:
        raise CallError(
            f"sha256 {short(original.sha256)} does not match the content, whose sha256 is {checked.sha256}",
            hint="Leave sha256 out, or correct it.",
        )
    return checked


def content_sha256(content: str) -> str:
    """The sha256 of the content; text that UTF-8 cannot encode is an error."""
    try:
        return sha256_hex(content)
    except UnicodeEncodeError as error:
        raise FormatError(
            f"content holds a lone surrogate ({content[error.start]!r} at character {error.start})", hint=NOT_UTF8_HINT
        ) from error


# The values of `metadata.source` with an identity and a form of block of their own.
SOURCES = ("note", "active_note", "url", "selection", "dataview")


def identity(item: JsonObject) -> str:
    """The name under which an item is known: its path, URL, path#Lstart-Lend, path#dataview-hash, or ctx-N."""
    meta = item.get("metadata") or {}
    source, path = meta.get("source"), meta.get("path") or meta.get("filename")
    if source in ("note", "active_note") and path:
        return str(path)
    if source == "url" and meta.get("url"):
        return str(meta["url"])
    if source == "selection" and path:
        return f"{path}#L{meta.get('start_line')}-L{meta.get('end_line')}"
    if source == "dataview" and path:
        return f"{path}#dataview-{sha256_hex(str(meta.get('query', '')))[:12]}"
    return str(item.get("id") or _place(meta) or f"ctx-{sha256_hex(item['content'])[:12]}")


def _place(meta: JsonObject) -> str:
    """The file with symbol or lines, as the identity of an item without an id; the same when the file changes."""
    path, start, end = meta.get("filename"), meta.get("start_line"), meta.get("end_line")
    if not path:
        return ""
    if meta.get("symbol"):
        return f"{path}::{meta['symbol']}"
    return str(path) if start is None or end is None else f"{path}#L{start}-L{end}"


def source_id(window_item: Item) -> str:
    """What all versions of a window's item share: path, lines, symbol or URL; "" where an item has no versions.

    Errors and REPL exchanges happen once, and code of a file without its lines may be any part of the file.
    """
    meta = window_item.metadata or {}
    if meta.get("source") in SOURCES:
        return identity({"content": window_item.content, "metadata": meta})
    if window_item.type in ("error", "repl-history") or (window_item.type == "code" and meta.get("start_line") is None):
        return ""
    return _place(meta)


def kept_id(window_item: Item) -> str:
    """The id under which a window's item is attached: its source if it has one, else its file and ctx-N, else ctx-N."""
    filename = (window_item.metadata or {}).get("filename") if window_item.type == "code" else None
    return source_id(window_item) or (f"{filename}#{window_item.id}" if filename else window_item.id)


def _check_metadata(metadata: Json) -> JsonObject | None:
    if metadata is None:
        return None
    if not isinstance(metadata, dict):
        raise CallError(f"metadata must be an object or None, not {short(metadata)}", hint="Pass a dict.")
    try:
        check_json(metadata, ("metadata",))
    except Fault as fault:
        raise CallError(f"{'.'.join(map(str, fault.path))}: {fault.problem}", hint=fault.hint) from fault
    return dict(metadata)


_logger = logging.getLogger("quire")
# The largest text of an item; a larger one is almost always a mistake (a log, a bundle).
MAX_BYTES = 50_000


def from_text(text: str, name: str = "", *, type: str = "text") -> Item:
    """A text, with a name if it has one."""
    return item(text, type, {"filename": name} if name else None)


def from_file(path: str | Path, *, name: str = "", truncate: bool = False) -> Item:
    """A whole file; the model sees `name` instead of the path, if given."""
    label = name or str(path)
    return limit_text(read_source(path), "file", {"filename": label}, label, truncate)


def from_region(path: str | Path, start: int, end: int, *, name: str = "", truncate: bool = False) -> Item:
    """Lines start to end of a file, both counted from 1 and included."""
    return region_of(read_source(path), name or str(path), start, end, truncate=truncate)


# The types of images that every provider accepts, by file extension, and the largest size in bytes.
IMAGE_TYPES = {f".{name}": f"image/{name.replace('jpg', 'jpeg')}" for name in ("png", "jpg", "jpeg", "gif", "webp")}
MAX_IMAGE = 5 * 1024 * 1024


def from_image(path: str | Path) -> JsonObject:
    """An image file, in the form that `user(images=[…])` accepts."""
    media_type = IMAGE_TYPES.get(Path(path).suffix.lower())
    if media_type is None:
        hint = f'Images end in {", ".join(IMAGE_TYPES)}; base64 is {{"media_type": "image/png", "data": "…"}}.'
        raise CallError(f"{short(str(path))} is no image", hint=hint)
    try:
        data = _bytes_at(path)
    except OSError as error:
        raise CallError(f"cannot read {path}: {error.strerror}", hint="Check the path.") from error
    if len(data) > MAX_IMAGE:
        raise CallError(f"{path} has {len(data):,} bytes; the limit is {MAX_IMAGE:,}", hint="Make it smaller.")
    return {"media_type": media_type, "data": base64.b64encode(data).decode()}


def from_url(url: str, text: str, *, title: str = "", truncate: bool = False) -> Item:
    """The text of a page, fetched by the caller; its identity is the URL."""
    meta: JsonObject = {"source": "url", "url": url, **({"title": title} if title else {})}
    return limit_text(text, "text", meta, url, True) if truncate else item(text, "text", meta)


def from_repl(code: str, output: str = "", *, prompt: str = "> ", language: str = "") -> Item:
    """One exchange with a REPL: the code behind the prompt, then its output."""
    typed = prompt + code.replace("\n", "\n" + " " * len(prompt))
    content = f"{typed}\n{output}" if output else typed
    return item(content, "repl-history", {"language": language} if language else None)


def from_error(error: BaseException | str, trace: str = "") -> Item:
    """An error with its traceback: that of a caught exception, or `trace` for a message."""
    if isinstance(error, str):
        return item(f"{error}\n{trace}" if trace else error, "error")
    content = "".join(traceback.format_exception(error)).rstrip("\n")
    meta: JsonObject = {"exception": type(error).__qualname__}
    for last in traceback.extract_tb(error.__traceback__)[-1:]:
        meta |= {"filename": last.filename, "start_line": last.lineno, "end_line": last.lineno}
    return item(content, "error", meta)


def region_of(
    text: str, name: str, start: int, end: int, *, more: JsonObject | None = None, truncate: bool = False
) -> Item:
    """Lines start to end of a text as a code item, without the last newline."""
    lines = text.removesuffix("\n").split("\n")
    if not (isinstance(start, int) and isinstance(end, int) and 1 <= start <= end <= len(lines)):
        raise CallError(
            f"lines {short(start)} to {short(end)} are not in {name}, which has {len(lines)}",
            hint="Lines count from 1; the end is included.",
        )
    metadata: JsonObject = {"filename": name, "start_line": start, "end_line": end, **(more or {})}
    region = "\n".join(lines[start - 1 : end]).removesuffix("\r")
    return limit_text(region, "code", metadata, f"{name}:{start}-{end}", truncate)


def limit_text(
    text: str, type: str, metadata: JsonObject | None, name: str, truncate: bool, quiet: bool = False
) -> Item:
    """A text as an item; a text that is too large is cut at a line if `truncate` allows it, else an error."""
    whole = item(text, type, metadata)
    size = len(text.encode())
    if size <= MAX_BYTES:
        return whole
    if not truncate:
        raise BudgetError(
            f"{name} has {size:,} bytes; the limit is {MAX_BYTES:,}",
            hint="Pass truncate=True to cut it at a line, or take a region or a symbol of it.",
        )
    shorter = cut(text, lambda part: len(part.encode()) <= MAX_BYTES)
    # The text itself tells the model that it is cut; this warning tells the user.
    if not quiet:
        _logger.warning("%s has %s bytes; %s of them are left out", name, f"{size:,}", f"{shorter.bytes:,}")
    return item(shorter.content, type, shorter.with_note(metadata))


def read_source(path: str | Path) -> str:
    """The text of a file, PDFs and Word files included; a missing file, a folder or other binary data is an error."""
    try:
        data = _bytes_at(path)
    except FileNotFoundError as error:
        raise NotFound(f"no file {str(path)!r}", hint="Check the path.") from error
    except (OSError, ValueError) as error:
        raise CallError(f"cannot read {str(path)!r}: {error}", hint="Check the path.") from error
    return document_text(data, str(path))


# The most bytes that are read from a pipe or a device, which may never end.
MAX_UNSIZED = 64 * 1024 * 1024


def _bytes_at(path: str | Path) -> bytes:
    with Path(path).open("rb") as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file.read()
        data = file.read(MAX_UNSIZED + 1)
    if len(data) > MAX_UNSIZED:
        raise BudgetError(f"{path} has not ended after {MAX_UNSIZED:,} bytes", hint="Give a file; a device has no end.")
    return data


def document_text(data: bytes, name: str) -> str:
    """The text of a file: a PDF's pages, a Word file's paragraphs and tables, anything else as UTF-8."""
    reader = _READERS.get(Path(name).suffix.lower())
    if reader is not None:
        text = reader(data, name)
        if not text.strip():
            raise FormatError(f"{name} holds no text", hint="A scan has images alone; attach those.")
        return text
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{name} is not UTF-8 (byte 0x{data[error.start]:02x})",
            line=data.count(b"\n", 0, error.start) + 1,
            column=error.start - data.rfind(b"\n", 0, error.start),
            hint="Text, PDF and Word (.docx) files can be attached; convert it to UTF-8 if it is text.",
        ) from error


def _pdf(data: bytes, name: str) -> str:
    with needs_extra(f"{name} needs pypdf to be read", "documents"):
        import pypdf
    try:
        pages = [page.extract_text().strip() for page in pypdf.PdfReader(BytesIO(data)).pages]
    except Exception as error:  # for a damaged file the library may raise anything
        raise FormatError(f"{name} cannot be read as a PDF: {error}", hint="Open and save it anew.") from error
    return "\n\n".join(f"[page {n}]\n{text}" for n, text in enumerate(pages, 1) if text)


def _word(data: bytes, name: str) -> str:
    with needs_extra(f"{name} needs python-docx to be read", "documents"):
        import docx
    try:
        texts = [_word_part(part) for part in docx.Document(BytesIO(data)).iter_inner_content()]
    except Exception as error:  # as above
        raise FormatError(f"{name} cannot be read as a Word file: {error}", hint="Save it anew as .docx.") from error
    return "\n\n".join(filter(None, texts))


def _word_part(part: Any) -> str:
    """A heading or paragraph as markdown, a table as its rows."""
    if hasattr(part, "rows"):
        return "\n".join(f"| {' | '.join(cell.text.strip() for cell in row.cells)} |" for row in part.rows)
    style = (part.style.name if part.style is not None else "") or ""
    level = int(style.removeprefix("Heading ")) if re.fullmatch(r"Heading [1-6]", style) else 0
    lead = "#" * level + " " if level else "- " if style.startswith("List") else ""
    return f"{lead}{part.text.strip()}" if part.text.strip() else ""


_READERS = {".pdf": _pdf, ".docx": _word}


# Cutting text that is too large for an item: whole lines only, with a note of how much is missing.


_BREAK = re.compile("\n")


class ShortenedText(msgspec.Struct, frozen=True):
    """The rest of a text that was cut, and how many lines and bytes are missing."""

    content: str
    lines: int
    bytes: int

    def with_note(self, metadata: JsonObject | None) -> JsonObject:
        """The metadata with the numbers of missing lines and bytes."""
        return {**(metadata or {}), "truncated": {"lines": self.lines, "bytes": self.bytes}}


def cut(text: str, fits: Callable[[str], bool]) -> ShortenedText:
    """As many leading lines as fit, and a last line that says how much is missing (if it fits behind at least one line)."""
    ends = [0, *(match.end() for match in _BREAK.finditer(text) if match.end() < len(text))]
    noted = _last(ends, lambda end: fits(text[:end] + _notice(text[end:])))
    plain = None if noted else _last(ends, lambda end: fits(text[:end]))
    end = noted or plain or 0
    rest = text[end:]
    notice = _notice(rest) if noted is not None and not plain else ""
    return ShortenedText(text[:end] + notice, _lines(rest), len(rest.encode()))


def _last(ends: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The last end that fits; found by doubling, so that little more text is looked at than fits."""
    if not fits(ends[0]):
        return None
    low, step = 0, 1
    while low + step < len(ends) and fits(ends[low + step]):
        low, step = low + step, step * 2
    rest = range(low + 1, min(low + step, len(ends)))
    return ends[low + bisect_left(rest, True, key=lambda place: not fits(ends[place]))]


def _lines(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n"))


def _notice(rest: str) -> str:
    lines, size = _lines(rest), len(rest.encode())
    return f"[... {lines:,} more {'line' if lines == 1 else 'lines'} omitted ({size:,} bytes) ...]"


# Cutting the long output of tools: behind whole lines, sections or hits, and not within a word if that can be avoided.

# (text, characters allowed) -> a shorter text that says what is missing.
Cutter: TypeAlias = Callable[[str, int], str]

_SPACE = re.compile(r"\s")


def head(text: str, limit: int) -> str:
    """The first whole lines; of one very long line, its first whole words."""
    if len(text) <= limit:
        return text
    if limit <= 0:
        return ""
    part = text[:limit]
    if text[limit] == "\n":
        return part
    end = part.rfind("\n")
    # If whole lines would fill less than half, the next line is cut instead.
    if end < limit // 2:
        spaces = [match.start() for match in _SPACE.finditer(part)]
        end = limit if _SPACE.match(text[limit]) else (spaces[-1] if spaces else 0)
    return part[:end].rstrip() if end > 0 else part


def at_lines(text: str, limit: int) -> str:
    """Whole lines, then how much is missing."""
    if len(text) <= limit:
        return text
    start = head(text, limit)
    return f"{start}\n[… {len(start):,} of {len(text):,} characters shown …]"


_HEADING = re.compile(r"#{1,6} ")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def at_sections(text: str, limit: int) -> str:
    """Whole markdown sections, then how many are missing; a first section that is too long is cut at its lines."""
    if len(text) <= limit:
        return text
    lines = text.split("\n")
    starts = [n for n in heading_lines(lines) if n > 0]
    fitting = [n for n in starts if len("\n".join(lines[:n])) <= limit]
    if not fitting:
        return at_lines(text, limit)
    more = len(starts) - len(fitting) + 1
    part = "\n".join(lines[: fitting[-1]]).rstrip()
    return f"{part}\n\n[… {more} more section{'s' if more > 1 else ''} not shown …]"


def heading_lines(lines: Sequence[str]) -> list[int]:
    """The numbers, from 0, of lines that are headings; lines inside code fences are not."""
    numbers, fence = [], ""
    for number, line in enumerate(lines):
        mark = _FENCE.match(line)
        if mark and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence and _HEADING.match(line):
            numbers.append(number)
    return numbers


def at_hits(hits: Sequence[str], limit: int, more: int = 0) -> str:
    """As many whole hits as fit, one a line, then how many are missing; if the first does not fit, a part of it."""
    fitting: list[str] = []
    room = limit
    for hit in hits:
        if len(hit) + 1 > room:
            break
        fitting.append(hit)
        room -= len(hit) + 1
    if hits and not fitting:
        fitting = [head(hits[0], limit)]
    more += len(hits) - len(fitting)
    return "\n".join([*fitting, f"[… {more:,} more hit{'s' if more > 1 else ''} not shown …]"] if more else fitting)


# Access to a folder and nothing outside it: no absolute paths, no `..` beyond it, no links that lead out, no devices.

# Large folders that a model rarely needs; walks do not enter them.
SKIPPED = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", ".obsidian", ".trash"})


class Root:
    """A folder whose files may be read; all paths are relative to it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        if not os.path.isdir(self.path):
            raise NotFound(f"there is no folder {str(path)!r}", hint="Give a folder as the root.")

    def resolve(self, path: str) -> Path:
        """The absolute path, links resolved; an error if it is outside the root."""
        if not path or path == "/":
            path = "."
        if "\0" in path or path.startswith(("~", "\\")) or PurePosixPath(path).is_absolute():
            raise _outside(path)
        if Path(path).is_absolute() or Path(path).drive:
            raise _outside(path)
        try:
            real = (self.path / path).resolve()
        except (OSError, RuntimeError) as error:
            raise CallError(f"{path!r} cannot be followed: {error}", hint="Give another path.") from error
        if not real.is_relative_to(self.path):
            raise _outside(path)
        return real

    def relative(self, real: Path) -> str:
        """An absolute path as a path relative to the root, with slashes."""
        return real.relative_to(self.path).as_posix()

    def read_bytes(self, path: str, limit: int) -> bytes:
        """The bytes of a file of at most `limit`; a link that has appeared meanwhile is not followed."""
        return self._bytes(self.resolve(path), path, limit)

    def _bytes(self, real: Path, path: str, limit: int) -> bytes:
        descriptor = self._open(real, path)
        try:
            status = os.fstat(descriptor)
            if stat.S_ISDIR(status.st_mode):
                raise CallError(f"{path!r} is a folder", hint="List it instead.")
            if not stat.S_ISREG(status.st_mode):
                raise CallError(f"{path!r} is not a file", hint="Devices and pipes are not read.")
            if status.st_size > limit:
                raise CallError(
                    f"{path!r} has {status.st_size:,} bytes; at most {limit:,} are read", hint="Search in it with grep."
                )
            with os.fdopen(os.dup(descriptor), "rb") as file:
                return file.read(limit)
        finally:
            os.close(descriptor)

    def _open(self, real: Path, path: str) -> int:
        """Open folder by folder from the root, without following links: `real` has none, so any was put there just now."""
        try:
            if not _STEPWISE:
                return os.open(real, _FLAGS)
            folder = os.open(self.path, os.O_RDONLY)
            for part in real.relative_to(self.path).parts:
                folder = _step(folder, part)
            return folder
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFound(f"there is no file {path!r}", hint="List the folder to see what is there.") from error
        except OSError as error:
            raise CallError(f"{path!r} cannot be read: {error.strerror}", hint="Read another file.") from error

    def entries(self, path: str = ".", depth: int = 1) -> Iterator[FolderEntry]:
        """The content of a folder, each folder before its own content; links are listed, not followed."""
        real = self.resolve(path)
        if not os.path.isdir(real):
            raise NotFound(f"there is no folder {path!r}", hint="List the root to see what is there.")
        if not _STEPWISE:
            yield from _below(real, depth)
            return
        folder = self._open(real, path)
        try:
            yield from _below(folder, depth)
        except OSError as error:
            raise CallError(f"{path!r} cannot be listed: {error.strerror}", hint="List another.") from error
        finally:
            os.close(folder)

    def walk(self, path: str = ".") -> Iterator[str]:
        """The paths of all regular files under a folder (or of the file itself); links are not followed."""
        real = self.resolve(path)
        if os.path.isfile(real):
            yield self.relative(real)
            return
        if not os.path.isdir(real):
            raise NotFound(f"there is no file or folder {path!r}", hint="List the root to see what is there.")
        before = "" if real == self.path else f"{self.relative(real)}/"
        files = [entry for entry in self.entries(path, depth=_DEEPEST) if entry.kind == "file"]
        yield from (before + entry.path for entry in sorted(files, key=lambda entry: _files_first(entry.path)))

    def content(self, path: str, limit: int) -> bytes | None:
        """The bytes of a file from `walk`; None if it is too large, unreadable, deleted, or has become a link."""
        try:
            return self._bytes(self.path / path, path, limit)
        except (CallError, NotFound):
            return None


class FolderEntry(msgspec.Struct, frozen=True):
    """An entry of a folder, by its path from there; `size` is a file's size in bytes."""

    path: str
    kind: Literal["folder", "file", "link", "other"]
    size: int = 0


# Deeper nesting means a loop of mounts.
_DEEPEST = 100
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
# Whether the system can open a name relative to an open folder, so that no link can be swapped in meanwhile.
_STEPWISE = os.open in os.supports_dir_fd and os.scandir in os.supports_fd


def _step(folder: int, name: str) -> int:
    """Open a name in an open folder, and close the folder in any case."""
    try:
        return os.open(name, _FLAGS, dir_fd=folder)
    finally:
        os.close(folder)


def _below(folder: int | Path, depth: int, before: str = "") -> Iterator[FolderEntry]:
    with os.scandir(folder) as scan:
        listed = sorted(scan, key=lambda file: (not file.is_dir(follow_symlinks=False), file.name))
    for file in listed:
        entry = _entry(file, before)
        if entry is None:
            continue
        yield entry
        if entry.kind == "folder" and depth > 1 and file.name not in SKIPPED:
            yield from _inside(folder, file.name, depth - 1, f"{entry.path}/")


def _entry(file: os.DirEntry[str], before: str) -> FolderEntry | None:
    try:
        mode = (status := file.stat(follow_symlinks=False)).st_mode
    except OSError:
        return None  # it was deleted just now
    if stat.S_ISREG(mode):
        return FolderEntry(before + file.name, "file", status.st_size)
    return FolderEntry(
        before + file.name, "folder" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "other"
    )


def _inside(folder: int | Path, name: str, depth: int, before: str) -> Iterator[FolderEntry]:
    """The content of a folder inside an open one; nothing if it cannot be read or has become a link."""
    if isinstance(folder, Path):
        yield from _below(folder / name, depth, before)
        return
    try:
        inner = os.open(name, _FLAGS, dir_fd=folder)
    except OSError:
        return
    try:
        yield from _below(inner, depth, before)
    except OSError:
        return
    finally:
        os.close(inner)


def _files_first(path: str) -> list[tuple[bool, str]]:
    """The sort key of a walk: a folder's files, then its folders, each by name."""
    *folders, name = path.split("/")
    return [*((True, folder) for folder in folders), (False, name)]


def _outside(path: str) -> CallError:
    return CallError(
        f"{path!r} is outside the root folder", hint="Paths are relative to the root; nothing outside it can be read."
    )
