"""One folder and nothing outside it: no absolute paths, no `..` beyond it, no links that lead out, no devices."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from quire.errors import CallError, NotFound

# Not worth a model's time, and large.
SKIPPED = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", ".obsidian", ".trash"})


class Root:
    """A folder whose files may be read; every path is given and shown relative to it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        if not self.path.is_dir():
            raise NotFound(f"there is no folder {str(path)!r}", hint="Give a folder as the root.")

    def resolve(self, path: str) -> Path:
        """The real place of a path, which is inside the root."""
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
        """A real place by its path from the root, with slashes."""
        return real.relative_to(self.path).as_posix()

    def read_bytes(self, path: str, limit: int) -> bytes:
        """A file's bytes, at most `limit`; opened without following any link that appeared meanwhile."""
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
        """Open step by step from the root; the path is real, so a link on the way was put there just now."""
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
        """What is in a folder, each folder before what is in it; links are named and not followed."""
        real = self.resolve(path)
        if not real.is_dir():
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
        """The regular files under a folder, or the file itself, by their paths from the root; links are not followed."""
        real = self.resolve(path)
        if real.is_file():
            yield self.relative(real)
            return
        if not real.is_dir():
            raise NotFound(f"there is no file or folder {path!r}", hint="List the root to see what is there.")
        before = "" if real == self.path else f"{self.relative(real)}/"
        files = [entry for entry in self.entries(path, depth=_DEEPEST) if entry.kind == "file"]
        yield from (before + entry.path for entry in sorted(files, key=lambda entry: _files_first(entry.path)))

    def content(self, path: str, limit: int) -> bytes | None:
        """The bytes of a file that walk() named; None where it is too large, unreadable, gone or a link by now."""
        try:
            return self._bytes(self.path / path, path, limit)
        except (CallError, NotFound):
            return None


class FolderEntry(msgspec.Struct, frozen=True):
    """Something in a folder, by its path from there; `size` of a file in bytes."""

    path: str
    kind: Literal["folder", "file", "link", "other"]
    size: int = 0


# Nobody nests folders deeper; a loop of mounts would.
_DEEPEST = 100
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
# Where the system can open a name inside a folder that is open already, nothing can be swapped in between.
_STEPWISE = os.open in os.supports_dir_fd and os.scandir in os.supports_fd


def _step(folder: int, name: str) -> int:
    """Open a name in an open folder and leave the folder, also where that fails."""
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
        return None  # it went away just now
    if stat.S_ISREG(mode):
        return FolderEntry(before + file.name, "file", status.st_size)
    return FolderEntry(
        before + file.name, "folder" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "other"
    )


def _inside(folder: int | Path, name: str, depth: int, before: str) -> Iterator[FolderEntry]:
    """What is in a folder of an open one; nothing where it cannot be read or is a link by now."""
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
    """The order of a walk: a folder's own files, then its folders, each by name."""
    *folders, name = path.split("/")
    return [*((True, folder) for folder in folders), (False, name)]


def _outside(path: str) -> CallError:
    return CallError(
        f"{path!r} is outside the root folder", hint="Paths are relative to the root; nothing outside it can be read."
    )
