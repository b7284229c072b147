"""One folder and nothing outside it: no absolute paths, no `..` beyond it, no links that lead out, no devices."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from quire.errors import CallError, NotFound

# Not worth a model's time, and large.
SKIPPED = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", ".venv", ".obsidian", ".trash"})


class Root:
    """A folder whose files may be read; every path is given and shown relative to it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        if not self.path.is_dir():
            raise NotFound(f"there is no folder {str(path)!r}", hint="Give a folder as the root.")

    def resolve(self, given: str) -> Path:
        """The real place of a path, which is inside the root."""
        if not given or given == "/":
            given = "."
        if "\0" in given or given.startswith(("~", "\\")) or PurePosixPath(given).is_absolute():
            raise _outside(given)
        if Path(given).is_absolute() or Path(given).drive:
            raise _outside(given)
        try:
            real = (self.path / given).resolve()
        except (OSError, RuntimeError) as error:
            raise CallError(f"{given!r} cannot be followed: {error}", hint="Give another path.") from error
        if not real.is_relative_to(self.path):
            raise _outside(given)
        return real

    def shown(self, real: Path) -> str:
        """A real place as it is shown: relative to the root, with slashes."""
        return real.relative_to(self.path).as_posix()

    def read_bytes(self, given: str, limit: int) -> bytes:
        """A file's bytes, at most `limit`; opened without following any link that appeared meanwhile."""
        real = self.resolve(given)
        descriptor = self._open(real, given)
        try:
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                raise CallError(f"{given!r} is a folder", hint="List it instead.")
            if not stat.S_ISREG(found.st_mode):
                raise CallError(f"{given!r} is not a file", hint="Devices and pipes are not read.")
            if found.st_size > limit:
                raise CallError(
                    f"{given!r} has {found.st_size:,} bytes; at most {limit:,} are read",
                    hint="Search in it with grep.",
                )
            with os.fdopen(os.dup(descriptor), "rb") as file:
                return file.read(limit)
        finally:
            os.close(descriptor)

    def _open(self, real: Path, given: str) -> int:
        """Open step by step from the root; the path is real, so a link on the way was put there just now."""
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            for part in real.relative_to(self.path).parts:
                inner = os.open(part, flags, dir_fd=folder)
                os.close(folder)
                folder = inner
        except OSError as error:
            os.close(folder)
            if isinstance(error, FileNotFoundError | NotADirectoryError):
                raise NotFound(
                    f"there is no file {given!r}", hint="List the folder to see what is there."
                ) from error
            raise CallError(
                f"{given!r} cannot be read: {error.strerror}", hint="Read another file."
            ) from error
        return folder

    def walk(self, given: str = ".") -> Iterator[Path]:
        """The regular files under a folder, or the file itself, in order of name; links are not followed."""
        start = self.resolve(given)
        if start.is_file():
            yield start
            return
        if not start.is_dir():
            raise NotFound(
                f"there is no file or folder {given!r}", hint="List the root to see what is there."
            )
        for folder, folders, files in os.walk(start):
            folders[:] = sorted(name for name in folders if name not in SKIPPED)
            for name in sorted(files):
                path = Path(folder) / name
                if path.is_file() and not path.is_symlink():
                    yield path


def _outside(given: str) -> CallError:
    return CallError(
        f"{given!r} is outside the root folder",
        hint="Paths are relative to the root; nothing outside it can be read.",
    )
