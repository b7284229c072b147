"""What every command shares: where the database is, reading FILE or -, printing JSON or a table."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import platformdirs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from quire.cli.json_text import value_of
from quire.cli.shown import in_line, shown
from quire.errors import CallError, FormatError

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
