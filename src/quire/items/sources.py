"""Where items come from: a file, a buffer, a region, a page, a REPL exchange, an error.

Each is a function from what the caller has to an item without an id; a window gives it one.
"""

from __future__ import annotations

import traceback
from pathlib import Path

from quire.errors import BudgetError, CallError, FormatError, NotFound
from quire.items.cut import cut
from quire.items.item import item
from quire.log.shapes import short
from quire.values import Item, JsonObject

# The most that is taken from a file unasked: more is almost always a mistake (a log, a bundle).
MAX_BYTES = 50_000


def from_text(text: str, name: str = "", *, type: str = "text") -> Item:
    """A buffer's text, under the buffer's name if it has one."""
    return item(text, type, {"filename": name} if name else None)


def from_file(path: str | Path, *, name: str = "", truncate: bool = False) -> Item:
    """A whole file, to the byte; `name` is what the model is shown instead of the path."""
    shown = name or str(path)
    return _limited(read_source(path), "file", {"filename": shown}, shown, truncate)


def from_region(path: str | Path, start: int, end: int, *, name: str = "", truncate: bool = False) -> Item:
    """Lines start to end of a file, both counted from 1 and included."""
    return region_of(read_source(path), name or str(path), start, end, truncate=truncate)


def from_url(url: str, text: str, *, title: str = "") -> Item:
    """A page's text as the caller fetched it; known by its URL."""
    return item(text, "text", {"source": "url", "url": url, **({"title": title} if title else {})})


def from_repl(code: str, output: str = "", *, prompt: str = "> ", language: str = "") -> Item:
    """One exchange with a REPL: what was typed behind the prompt, then what came back."""
    typed = prompt + code.replace("\n", "\n" + " " * len(prompt))
    content = f"{typed}\n{output}" if output else typed
    return item(content, "repl-history", {"language": language} if language else None)


def from_error(error: BaseException | str, trace: str = "") -> Item:
    """An error with its traceback: a caught exception brings its own, a message takes the one given."""
    if isinstance(error, str):
        return item(f"{error}\n{trace}" if trace else error, "error")
    content = "".join(traceback.format_exception(error)).rstrip("\n")
    return item(content, "error", {"exception": type(error).__qualname__, **_where(error)})


def _where(error: BaseException) -> JsonObject:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return {}
    last = frames[-1]
    return {"filename": last.filename, "start_line": last.lineno, "end_line": last.lineno}


def region_of(
    text: str, name: str, start: int, end: int, *, more: JsonObject | None = None, truncate: bool = False
) -> Item:
    """Lines start to end of a text as a code item."""
    lines = text.removesuffix("\n").split("\n")
    if not (isinstance(start, int) and isinstance(end, int) and 1 <= start <= end <= len(lines)):
        raise CallError(
            f"lines {short(start)} to {short(end)} are not in {name}, which has {len(lines)}",
            hint="Lines count from 1; the end is included.",
        )
    metadata: JsonObject = {"filename": name, "start_line": start, "end_line": end, **(more or {})}
    return _limited("\n".join(lines[start - 1 : end]), "code", metadata, f"{name}:{start}-{end}", truncate)


def _limited(text: str, type: str, metadata: JsonObject | None, name: str, truncate: bool) -> Item:
    made = item(text, type, metadata)
    size = len(text.encode())
    if size <= MAX_BYTES:
        return made
    if not truncate:
        raise BudgetError(
            f"{name} has {size:,} bytes; the limit is {MAX_BYTES:,}",
            hint="Pass truncate=True to cut it at a line, or take a region or a symbol of it.",
        )
    shorter = cut(text, lambda part: len(part.encode()) <= MAX_BYTES)
    return item(shorter.content, type, shorter.noted(metadata))


def read_source(path: str | Path) -> str:
    """A file's text; a missing file, a folder and bytes that are not UTF-8 are errors with a hint."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"no file {str(path)!r}", hint="Check the path.") from error
    except (OSError, ValueError) as error:
        raise CallError(f"cannot read {str(path)!r}: {error}", hint="Check the path.") from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{path} is not UTF-8 (byte 0x{data[error.start]:02x})",
            line=data.count(b"\n", 0, error.start) + 1,
            column=error.start - data.rfind(b"\n", 0, error.start),
            hint="Only text files can be attached; convert it to UTF-8 if it is one.",
        ) from error
