"""What every command shares: where the database is, reading FILE or -, printing JSON or a table."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import platformdirs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quire.errors import CallError, FormatError
from quire.values import Entry, Json

# JSON in files, in lines and in options: one reader, so that whatever is wrong with it is an error with a place.

HINT = "Check the file."


class _NoNumber(ValueError):
    """NaN and the infinities, which JSON does not have."""


def _refused(name: str) -> Json:
    raise _NoNumber(f"{name} is not a JSON number")


def value_of(text: str, name: str, line: int = 1, hint: str = HINT) -> Json:
    """The JSON value of a text that is called `name` and begins at `line`."""
    try:
        return json.loads(text, parse_constant=_refused)
    except json.JSONDecodeError as error:
        message, place = f"{name} is not JSON: {error.msg}", (line + error.lineno - 1, error.colno)
        raise FormatError(message, line=place[0], column=place[1], hint=hint) from error
    except (_NoNumber, RecursionError, ValueError) as error:
        raise FormatError(f"{name} {_unreadable(error)}", line=line, column=1, hint=hint) from error


def _unreadable(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    # Besides, Python refuses integers of thousands of digits.
    return f"is not JSON: {error}" if isinstance(error, _NoNumber) else "holds a number that is too long"


def value_or_lines(text: str, name: str, each: str) -> tuple[Json, list[tuple[int, Json]] | None]:
    """One JSON value; or, where the first line is a value and others follow, those of the lines, numbered."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_value(lines[0][1]):
        hint = f"Write one {each} a line."
        return None, [(number, value_of(line, name, number, hint)) for number, line in lines]
    return value_of(text, name), None


def _is_value(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


# Text of others on a terminal: it may say anything, but it commands nothing.

# A terminal takes these as commands: colours, the cursor, its title.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def shown(text: str) -> str:
    """Text of others for a terminal: control characters as dots, lines as they are."""
    return _CONTROL.sub("·", text)


def in_line(text: str) -> str:
    """Text of others as a part of one line."""
    return shown(text).replace("\n", "␤").replace("\t", " ")


F = TypeVar("F")


def default_db() -> Path:
    """QUIRE_DB, else quire.db under the platform's data directory."""
    return Path(os.environ.get("QUIRE_DB") or Path(platformdirs.user_data_dir("quire")) / "quire.db")


db_option = click.option(
    "--db",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Database file (default: $QUIRE_DB, else the platform's data directory).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def called(file: str) -> str:
    """What FILE is called in a message: '-' is standard input."""
    return "standard input" if file == "-" else file if file.isprintable() else repr(file)


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things: 1, "entry", "entries" -> "1 entry"; 2, "note" -> "2 notes"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


_BYTE_ORDER_MARK = "\ufeff"


def read_text(file: str) -> str:
    """The text of FILE, or of standard input for '-'; a byte order mark in front is not part of it."""
    return read_verbatim(file).removeprefix(_BYTE_ORDER_MARK)


def read_verbatim(file: str) -> str:
    """The text as `read_text` gives it, to the last byte; bytes that are not UTF-8 are an error with a place."""
    name = called(file)
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CallError(
            f"cannot read {name}: {error.strerror}", hint="Check the path, or use - for stdin."
        ) from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FormatError(
            f"{name} is not UTF-8 (byte {error.start}: 0x{data[error.start]:02x})",
            line=line,
            column=error.start - data.rfind(b"\n", 0, error.start),
            hint="Convert the file to UTF-8 first.",
        ) from error


def read_json(file: str) -> Any:
    """The JSON value of FILE or stdin."""
    return value_of(read_text(file), called(file))


def confirm_deletion(what: str, name: str) -> None:
    """Ask whether something may go for ever; anything but a yes is an error, and so is silence."""
    try:
        agreed = click.confirm(f"Delete {what} for ever?", err=True)
    except (click.Abort, UnicodeDecodeError) as silence:
        click.echo(err=True)  # the question's line is still open
        raise CallError(
            "nobody answered, and nothing was deleted", hint="Give --yes to delete without asking."
        ) from silence
    if not agreed:
        raise CallError(f"{name} was not deleted", hint="Answer y, or give --yes.")


def print_json(value: Any) -> None:
    """One JSON value on stdout, readable, without ASCII escapes."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_text(text: str) -> None:
    """Text to stdout to the byte: no newline is added, none translated."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def console() -> Console:
    """A console that colours terminals only and respects NO_COLOR; styles come as Text, never in the words."""
    piped = not sys.stdout.isatty()
    # A pipe has no width of its own; tables there should not fold as on a narrow screen.
    return Console(
        highlight=False,
        # What is printed holds names, reasons and titles of others: brackets and colons in them stay as they are.
        markup=False,
        emoji=False,
        soft_wrap=piped,
        width=160 if piped and "COLUMNS" not in os.environ else None,
        # rich's own NO_COLOR still writes bold; a terminal that wants no colour wants no escapes either.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A plain table for people; numbers are right-aligned."""
    kept = [list(row) for row in rows]
    table = Table(
        title=title and in_line(title), box=None, pad_edge=False, title_justify="left", header_style="bold"
    )
    for index, column in enumerate(columns):
        numeric = bool(kept) and all(isinstance(row[index], int | float) for row in kept)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric)
    for row in kept:
        table.add_row(*[Text(f"{cell:,}" if isinstance(cell, int) else shown(str(cell))) for cell in row])
    console().print(table)


# What happened in a turn, an entry a line, for people who watch it.

_TITLE = re.compile(r"^<title>(.*)</title>$", re.M)


def line_of(entry: Entry) -> str:
    """A finished call, result or cut; empty for everything else."""
    match entry.kind:
        case "call":
            return f"→ {entry.name}({_arguments(entry)})"
        case "result":
            return f"← {shortened(_told(entry))}"
        case "rebase":
            return _rebase(entry.body["reason"], entry.body["freed"])
    return ""


def _rebase(reason: str, freed: int) -> str:
    if freed > 0:
        return f"(older turns were cut: {freed:,} tokens freed, {reason})"
    return f"(the prompt begins anew: {reason})"


def _arguments(call: Entry) -> str:
    args = call.args if isinstance(call.args, dict) else {"": call.args}
    return ", ".join(f"{name}={shortened(repr(value), 60)}" for name, value in args.items())


def _told(result: Entry) -> str:
    said = result.body.get("outcome") or result.body.get("content") or ""
    if str(said).startswith("<localSearch"):
        return ", ".join(dict.fromkeys(_TITLE.findall(str(said)))) or "no documents"
    failed = "failed: " if result.body.get("error") else ""
    return failed + (str(said) or "nothing")


def shortened(text: str, limit: int = 100) -> str:
    """A text on one line, cut where it is longer than `limit`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


# An entry on one line of a table.

PREVIEW = 48


def short_id(id: str) -> str:
    """Enough of an id to name an entry: 'sha256:81efe5f44226…' -> '81efe5f44226'."""
    return id.removeprefix("sha256:")[:12]


def preview(entry: Entry) -> str:
    """What an entry says, on one line: control characters as escapes, cut at the end."""
    text = _says(entry)[: PREVIEW * 4]
    line = "".join(ch if ch.isprintable() else "␤" if ch == "\n" else "·" for ch in text)
    return line if len(line) <= PREVIEW else line[: PREVIEW - 1] + "…"


def _says(entry: Entry) -> str:
    body = entry.body
    if entry.kind == "call":
        return f"{entry.name} {json.dumps(entry.args, ensure_ascii=False)}"
    if entry.kind == "result":
        return "\n".join(body[key] for key in ("outcome", "content") if body.get(key)) or "(no output)"
    if entry.kind == "tools":
        return ", ".join(tool["name"] for tool in entry.tools)
    if entry.kind == "attach":
        return str(body["item"].get("id") or body["item"]["content"])
    if entry.kind == "rebase":
        return f"{body['reason']} (before {body['before_seq']}, freed {body['freed']})"
    if entry.kind == "sent":
        return f"{body['provider']}:{body['model']} {body['request_sha256'][:12]}"
    return entry.text
