"""Chat files as one of the formats that `quire import` and `quire export` know."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

from quire.archive.load import Notes, load
from quire.archive.project import export_markdown
from quire.values import Entry


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def import_messages(
    text: str, notes: Notes | None = None, warn: Callable[[str], None] = _warn
) -> list[Entry]:
    """The entries of a chat file; what could not be taken over is told."""
    loaded = load(text, notes)
    for warning in loaded.warnings:
        warn(warning)
    return list(loaded.entries)


def export_messages(entries: Iterable[Entry], thread: str = "") -> str:
    """A thread as a chat file."""
    return export_markdown(entries, thread=thread)
