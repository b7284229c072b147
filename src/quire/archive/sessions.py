"""Every store of another program that is read here, and which one a file is of: the most particular first."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from quire.archive.agent_clients import CLIENTS
from quire.archive.libraries import LIBRARIES
from quire.archive.request_logs import LOGS
from quire.archive.source_file import LinesOf, SourceFile, files_under, source_file
from quire.archive.stored_conversations import SentCall, SessionStore, StoredConversation
from quire.errors import FormatError
from quire.log.shapes import short

__all__ = [
    "STORES",
    "FilePart",
    "conversations",
    "files_under",
    "parts",
    "recognised",
    "sent_calls",
    "source_file",
]

STORES = (*CLIENTS, *LIBRARIES, *LOGS)
Value = TypeVar("Value")


def conversations(file: SourceFile, store: SessionStore) -> list[StoredConversation]:
    """What a store holds, each conversation with what is missing from it."""
    found = list(_read(file, store, store.read))
    return [msgspec.structs.replace(each, lacks=(*store.lacks, *each.lacks)) for each in found]


def _read(
    file: SourceFile, store: SessionStore, read: Callable[[SourceFile], Iterable[Value]]
) -> Iterator[Value]:
    """What a reader finds; one that stumbles says over which file."""
    try:
        yield from read(file)
    except (LookupError, TypeError, AttributeError, ValueError, sqlite3.Error) as error:
        problem = f"{file.path.name} is not as {store.name} writes it: {type(error).__name__} {error}"
        raise FormatError(problem, hint="Check the file, or force another reader with --from.") from error


def recognised(file: SourceFile, stores: Sequence[SessionStore] = STORES) -> SessionStore:
    """The first store whose shape the file has; one that none has is refused with its first place."""
    found = next((store for store in stores if store.recognises(file)), None)
    if found is not None:
        return found
    if file.tables:
        what, line = f"the tables {', '.join(sorted(file.tables)[:6])}", 0
    else:
        line, first = next(iter(file.head), (1, file.value if file.value is not None else file.text[:60]))
        first = first[0] if isinstance(first, list) and first else first
        what = f"the fields {', '.join(list(first)[:6])}" if isinstance(first, dict) else short(first)
    raise FormatError(
        f"{file.path.name} begins with {what}, which nothing known here begins with",
        line=line,
        column=min(line, 1),
        hint=f"Name what it is with --from: {', '.join(store.name for store in stores)}, or a wire format.",
    )


def sent_calls(file: SourceFile) -> Iterator[SentCall]:
    """The requests that a file tells of, in its order; of a store that keeps none, none."""
    store = recognised(file)
    if store.exchanges is not None:
        yield from (call for each in _read(file, store, store.exchanges) if (call := each.call()) is not None)
    else:
        for each in conversations(file, store):
            yield from (msgspec.structs.replace(call, store=store.name) for call in each.calls)


# A log of requests is read in parts of so many bytes, whoever reads them: what is found does not depend on it.
PART_BYTES = 16 * 1024 * 1024


class FilePart(msgspec.Struct, frozen=True):
    """A file, or some lines of one that is long: what can be read by itself."""

    path: Path
    lines: LinesOf | None = None

    @property
    def size(self) -> int:
        return self.lines.end - self.lines.start if self.lines else self.path.stat().st_size

    def open(self) -> SourceFile:
        return msgspec.structs.replace(source_file(self.path), part=self.lines)


def parts(path: Path) -> Iterator[FilePart]:
    """A file in parts that can be read apart: the lines of a log of requests, or all of it."""
    if path.is_file() and path.suffix != ".gz" and path.stat().st_size > PART_BYTES:
        file = source_file(path)
        if file.is_lines and recognised(file).exchanges is not None:
            yield from (FilePart(path, lines) for lines in file.parts(PART_BYTES))
            return
    yield FilePart(path)
