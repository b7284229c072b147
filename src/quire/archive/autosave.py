"""Keeping a thread's chat file in a folder up to date; a file that someone edited is never written over."""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from quire.archive.load import export_markdown, load
from quire.errors import CallError, QuireError
from quire.log.hashing import sha256_hex
from quire.log.store import Store

_NAME_BYTES = 180
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|#^\[\]]')


class Saved(msgspec.Struct, frozen=True):
    """Where a thread was saved; `kept` is where an edited file was moved to."""

    path: Path
    changed: bool
    kept: Path | None = None


def autosave(store: Store, thread: str, folder: str | Path) -> Saved:
    """Write a thread's chat file into a folder, whole or not at all."""
    place = Path(folder)
    path = place / file_name(thread)
    text = export_markdown(store.read(thread), thread=thread, window=store.window(thread))
    try:
        place.mkdir(parents=True, exist_ok=True)
        before = path.read_bytes().decode(errors="replace") if path.exists() else None
        if before == text:
            return Saved(path, False)
        kept = _keep(path) if before is not None and _is_edited(before) else None
        _write(path, text)
    except OSError as error:
        raise CallError(
            f"cannot save the chat in {place}: {error.strerror}", hint="Choose another folder."
        ) from error
    return Saved(path, True, kept)


def file_name(thread: str) -> str:
    """A thread's name as a file's: what no system takes becomes -, with a few digits so that none collide."""
    whole = _UNSAFE.sub("-", thread).strip(" .").encode()
    # No system takes more than 255 bytes, and names made of this one are longer.
    safe = whole[:_NAME_BYTES].decode(errors="ignore")
    return f"{safe}.md" if safe == thread else f"{safe}-{sha256_hex(thread)[:8]}.md"


def _is_edited(text: str) -> bool:
    """Whether a file says something else than the entries in its comment."""
    try:
        found = load(text)
    except QuireError:
        return True
    if found.chat.comment is None:
        return True
    again = export_markdown(found.entries, thread=found.thread, window=found.window)
    return bool(found.warnings) or again != text


def _keep(path: Path) -> Path:
    number = 1
    while (to := path.with_name(f"{path.stem} (edited {number}).md")).exists():
        number += 1
    os.replace(path, to)
    return to


def _write(path: Path, text: str) -> None:
    """The new file takes the old one's place in one step."""
    waiting = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        waiting.write_bytes(text.encode())
        os.replace(waiting, path)
    finally:
        waiting.unlink(missing_ok=True)
