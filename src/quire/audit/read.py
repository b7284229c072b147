"""The requests of files and folders, as the stores and logs of `quire.archive` tell of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from quire.archive.sent_calls import SentCall, call_of, is_body
from quire.archive.sessions import files_under, parts, sent_calls
from quire.archive.source_file import SourceFile
from quire.errors import FormatError

__all__ = ["SentCall", "call_of", "files_of", "is_body", "read_calls"]


def read_calls(path: str | Path) -> Iterator[SentCall]:
    """The requests of a file or of all files in a folder, as they come; a shape that nobody knows is an error."""
    for file in files_of(Path(path)):
        yield from sent_calls(file)


def files_of(path: Path, left_out: Callable[[FormatError], None] | None = None) -> Iterator[SourceFile]:
    """The files at a path, long logs in parts; in a folder, those that nothing known here has written are left out."""
    for each in files_under(path):
        try:
            yield from parts(each)
        except FormatError as error:
            if each == path:
                raise
            if left_out is not None:
                left_out(error)
