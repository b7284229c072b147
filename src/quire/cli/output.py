"""What every command shares: the database and how it is opened, reading FILE or -, printing JSON or a table."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from quire.errors import CallError, DamageError, FormatError, NotFound
from quire.values import Entry, chain, result_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from quire.log.store import Store
    from quire.send.events import Event
    from quire.values import Json


_Command = TypeVar("_Command", bound=Callable[..., Any] | click.Command)

# JSON in files, in lines and in options.


def value_of(text: str, name: str, line: int = 1, hint: str = "Check the file.") -> Json:
    """The JSON value of a text that is called `name` and begins at `line`."""
    from quire.formats.json_ import load

    return load(text, name, hint, line)


def value_or_lines(text: str, name: str, unit: str) -> tuple[Json, list[tuple[int, Json]] | None]:
    """One JSON value; or, where the first line is a value and others follow, those of the lines, numbered."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_value(lines[0][1]):
        hint = f"Write one {unit} a line."
        return None, [(number, value_of(line, name, number, hint)) for number, line in lines]
    return value_of(text, name), None


def _is_value(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


# The only module of the shell that prints: control characters in foreign text must not reach a terminal.

# Terminals take these as commands: colours, the cursor, the title; and those that turn the order of letters
# round, hide them, or break lines where none is seen.
_TERMINAL_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)


def printable(text: str) -> str:
    """Text of others for a terminal: what would command it as dots, lines as they are."""
    return _TERMINAL_CONTROLS.sub("·", text.replace("\r\n", "\n"))


def in_line(text: str) -> str:
    """Text of others as a part of one line."""
    return printable(text).replace("\n", "␤").replace("\t", " ")


def echo(*parts: str | tuple[str, str], err: bool = False, nl: bool = True, dim: bool = False) -> None:
    """Write text, a part with its colour on terminals only; a pipe gets standard output's text to the byte."""
    stream = sys.stderr if err else sys.stdout
    terminal = stream.isatty()
    styled = terminal and not os.environ.get("NO_COLOR")
    line = ""
    for part in parts:
        text, colour = part if isinstance(part, tuple) else (part, None)
        text = printable(text) if err or terminal else text
        line += click.style(text, fg=colour, dim=dim or None) if styled and (colour or dim) else text
    stream.write(line + "\n" * nl)
    stream.flush()


# Where a database is: a file, or a server by its address.
Place: TypeAlias = Path | str


class FileName(click.Path):
    """A path that may not be empty: an empty one usually comes from a shell variable that is not set."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value or self.fail("The name is empty.", param, ctx), param, ctx)


class _PlaceType(FileName):
    """A file's path, or a postgresql:// address as it stands."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        place = _place(value)
        return place if isinstance(place, str) else super().convert(value, param, ctx)


def default_db() -> Place:
    """QUIRE_DB, else quire.db under the platform's data directory."""
    import platformdirs

    return _place(os.environ.get("QUIRE_DB") or Path(platformdirs.user_data_dir("quire")) / "quire.db")


def _place(named: str | Path) -> Place:
    from quire.log.store import is_server

    if str(named).startswith(("http://", "https://")):
        hint = "Name a file or postgresql://…; in Python, quire.connect(url, thread) opens a thread of a service."
        raise CallError(f"{str(named)!r} is no database", hint=hint)
    return str(named) if is_server(named) else Path(named)


def place_name(place: Place) -> str:
    """A place as it may be shown: a server's without the password."""
    named = re.sub(r"(://[^:@/]*):[^@/]*@", r"\1@", str(place))
    return re.sub(r"([?&](?:ssl)?password=)[^&]*", r"\1…", named)


def may_be_there(place: Place) -> bool:
    """Whether there can be a database: a server is asked, a file is looked for."""
    return isinstance(place, str) or place.exists()


def provider_and_model(provider: str | None, model: str | None) -> tuple[str, str]:
    """Whom --model names: "provider:model" as everywhere, or --provider apart from the model's name."""
    if provider is None and ":" in (model or ""):
        provider, _, model = (model or "").partition(":")
    hint = "Write --model provider:model, as in anthropic:claude-opus-5-5."
    if not provider:
        raise CallError(f"{f'--model {model!r} names' if model else 'there is'} no provider", hint=hint)
    if ":" in provider or model == "":
        raise CallError(f"{provider!r} is no provider" if model else f"{provider}: names no model", hint=hint)
    return provider, model or ""


class NumberRange(click.FloatRange):
    """Numbers from one to another: what is none, `nan`, would pass any comparison."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return number if number == number else self.fail(f"{value!r} is no number.", param, ctx)


def option(names: str, help: str, type: Any = None, default: Any = None, **more: Any) -> Callable[[_Command], _Command]:
    """An option: `option("--limit -l", "How many at most.", int, 10)`; of a list one is taken, `bool` is a flag."""
    takes = click.Choice(type) if isinstance(type, list | tuple) else type
    kind = {"is_flag": True} if type is bool else {"type": takes}
    usual = {} if default is None else {"default": default, "show_default": default != ""}
    return click.option(*names.split(), help=help, **{**kind, **usual, **more})


db_option = option(
    "--db",
    "Database file, or postgresql://… (default: $QUIRE_DB, else the platform's data directory).",
    _PlaceType(path_type=Path, dir_okay=False),
)
json_option = option("--json as_json", "Print JSON for machines.", bool)
# Types of options that name a file to be written or read, and a folder.
FILE_PATH = FileName(path_type=Path, dir_okay=False)
FOLDER_THERE = click.Path(path_type=Path, exists=True, file_okay=False)


def file_label(file: str) -> str:
    """What FILE is called in a message: '-' is standard input."""
    return "standard input" if file == "-" else file if file.isprintable() else repr(file)


def count_of(number: int, single: str, many: str = "") -> str:
    """A number of things: 1, "entry", "entries" -> "1 entry"; 2, "note" -> "2 notes"."""
    return f"{number:,} {single if number == 1 else many or single + 's'}"


def read_text(file: str) -> str:
    """The text of FILE, or of standard input for '-'; a byte order mark in front is not part of it."""
    return read_verbatim(file).removeprefix("\ufeff")


def read_verbatim(file: str) -> str:
    """The text as `read_text` gives it, to the last byte; bytes that are not UTF-8 are an error with a place."""
    name = file_label(file)
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise CallError(f"cannot read {name}: {error.strerror}", hint="Check the path, or use - for stdin.") from error
    if data.startswith(b"SQLite format 3\0"):
        raise CallError(f"{name} is a database", hint=f"Name a thread of it, and the file as --db {name}.")
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
    return value_of(read_text(file), file_label(file))


def confirm_deletion(description: str, name: str) -> None:
    """Ask whether something may go for ever; anything but a yes is an error, and so is silence."""
    try:
        agreed = confirm(f"Delete {description} for ever?")
    except (click.Abort, UnicodeDecodeError) as silence:
        echo(err=True)  # the question's line is still open
        if silence.__cause__ is not None:  # Ctrl-C
            raise
        raise CallError(
            "nobody answered, and nothing was deleted", hint="Give --yes to delete without asking."
        ) from silence
    if not agreed:
        raise CallError(f"{name} was not deleted", hint="Answer y, or give --yes.")


def print_json(value: Any, indent: int | None = 2) -> None:
    """One JSON value on stdout, readable; an iterator as the list of what it gives, each as it comes."""
    before = "["
    for row in value if isinstance(value, Iterator) else ():
        sys.stdout.write(f"{before}\n  " + _json_text(row, indent).replace("\n", "\n  "))
        before = ","
    ends = _json_text(value, indent) if not isinstance(value, Iterator) else "[]" if before == "[" else "\n]"
    sys.stdout.write(ends + "\n")


def _json_text(value: Any, indent: int | None) -> str:
    """JSON with ASCII escapes only for what would command a terminal."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=None if indent else (",", ":"))
    return _TERMINAL_CONTROLS.sub(lambda match: json.dumps(match[0])[1:-1], text) if sys.stdout.isatty() else text


Row: TypeAlias = Sequence[object]
# What people are shown: a line, a table (columns and rows), or whatever a function prints.
Shown: TypeAlias = str | tuple[Sequence[str], Iterable[Row]] | Callable[[], None]


def answer(as_json: bool, value: Any, shown: Shown) -> None:
    """What a command has to say: JSON for machines, or the same for people."""
    if as_json:
        print_json(value)
    elif callable(shown):
        shown()
    else:
        echo(shown) if isinstance(shown, str) else print_table(*shown)


def print_text(text: str) -> None:
    """Text to stdout to the byte: no newline is added, none translated; a terminal gets it without commands."""
    print_bytes(text.encode())


def write_page(file: Path, page: str) -> None:
    """Write an HTML page, over an earlier page at most: a slip of the pen must not cost a log or a session."""
    if file.is_file():
        with file.open("rb") as before:
            if before.read(9) not in (b"", b"<!doctype"):
                raise CallError(f"{file} is there already, and is no page", hint="Give the page another name.")
    file.write_text(page, "utf-8")


def print_bytes(data: bytes) -> None:
    """Bytes to stdout as they are; a terminal gets their text without commands."""
    if sys.stdout.isatty():
        data = printable(data.decode(errors="backslashreplace")).encode()
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def confirm(text: str) -> bool:
    """Ask a person for a yes; the end of the input, or Ctrl-C, is an Abort."""
    while True:
        echo(f"{text} [y/N]: ", err=True, nl=False)
        try:
            _wait_for_line()
            line = sys.stdin.readline()
        except KeyboardInterrupt as stop:
            raise click.Abort from stop
        if not line:
            raise click.Abort
        if (word := line.strip().lower()) in ("", "y", "yes", "n", "no"):
            return word.startswith("y")
        echo("Answer y or n.", err=True)


def _wait_for_line() -> None:
    """Wait until a terminal has a line: a signal that comes just before a read is slept through, but not here."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        return
    with ExitStack() as stack:
        ours, theirs = os.pipe()
        stack.callback(os.close, ours)
        stack.callback(os.close, theirs)
        os.set_blocking(theirs, False)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(theirs))
        select.select([sys.stdin, ours], [], [])


@contextmanager
def progress(in_bytes: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Tells on standard error, where that is a terminal, how much is done of how much: a bar for each kind of work.

    Who stops the work is told how far it was, wherever that goes.
    """
    from rich import progress as rich
    from rich.console import Console
    from rich.progress import Progress, TaskID

    amounts = (rich.DownloadColumn(), rich.TransferSpeedColumn()) if in_bytes else (rich.MofNCompleteColumn(),)
    columns = (rich.TextColumn("{task.description}"), rich.BarColumn(), *amounts, rich.TimeRemainingColumn())
    to = Console(stderr=True)
    # A bar is drawn with escapes, which a terminal without colour does not want.
    bar = Progress(*columns, console=to, transient=True, disable=not to.is_terminal or to.no_color)
    tasks: dict[str, TaskID] = {}

    def tell(work: str, completed: int, total: int) -> None:
        if work not in tasks:
            bar.start()  # not before there is something to tell: a chat draws on the same terminal
            tasks[work] = bar.add_task(work, total=total)
        elif completed < total and completed - bar.tasks[tasks[work]].completed < total / 500:
            return  # to draw takes longer than most steps
        bar.update(tasks[work], completed=completed, total=total)

    try:
        yield tell
    except KeyboardInterrupt:
        bar.stop()
        for task in bar.tasks:
            echo(f"{task.description}: {task.completed:,.0f} of {task.total or 0:,.0f} done", err=True)
        raise
    finally:
        if not bar.disable:  # else older versions of Rich end what was not drawn with an empty line
            bar.stop()


def console() -> Console:
    """A console that colours terminals only and respects NO_COLOR; styles come as Text, never in the words."""
    from rich.console import Console

    piped, columns = not sys.stdout.isatty(), os.environ.get("COLUMNS", "")
    unnamed = 160 if piped else 80 if columns else None  # COLUMNS=0: the width is not known
    # A pipe has no width of its own; tables there should not fold as on a narrow screen.
    return Console(
        highlight=False,
        # What is printed holds names, reasons and titles of others: brackets and colons in them stay as they are.
        markup=False,
        emoji=False,
        soft_wrap=piped,
        width=unnamed if columns in ("", "0") else None,
        # rich's own NO_COLOR still writes bold; a terminal that wants no colour wants no escapes either.
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


def style(*parts: str | Text | tuple[str, str]) -> Text:
    """Words for a console, each with its style."""
    from rich.text import Text

    return Text.assemble(*parts)


def bar(width: int, whole: int, parts: Iterable[tuple[int, str, str]]) -> Iterator[tuple[str, str]]:
    """Amounts, each with its sign and colour, as a bar of this width for the whole: 4, 8, [(2, "█", "red")] -> ("█", "red")."""
    total, end = 0, 0
    for amount, sign, colour in parts:
        # Ends, not lengths, are rounded: the parts then always add up to the whole bar.
        total, begin, end = total + amount, end, round((total + amount) * width / whole)
        yield sign * (end - begin), colour


def with_options(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A decorator that gives a command all of these options, in this order."""

    def decorated(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


# What most commands take: where the database is, and for whom to print.
db_json_options = with_options(db_option, json_option)


def print_table(columns: Sequence[str], rows: Iterable[Row], title: str | None = None) -> None:
    """A plain table for people; numbers are right-aligned. A long one is printed in parts, as its rows come."""
    if title and title.startswith("\n"):
        echo()
    more = iter(rows)
    widths = _print_rows(columns, list(islice(more, PAGE)), [0] * len(columns), title)
    while listed := list(islice(more, PAGE)):
        widths = _print_rows(columns, listed, widths)


def _print_rows(columns: Sequence[str], listed: list[Row], widths: list[int], title: str | None = None) -> list[int]:
    """Some rows of a table, with its head or behind others of these widths at least; gives the widths that they take."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    texts = [[f"{cell:,}" if isinstance(cell, int) else printable(str(cell)) for cell in row] for row in listed]
    right = [bool(texts) and all(isinstance(row[at], int | float) for row in listed) for at in range(len(columns))]
    out, head, title = console(), not any(widths), title and in_line(title.strip("\n"))
    table = Table(title=title, box=None, pad_edge=False, title_justify="left", header_style="bold", show_header=head)
    widths = [max(width, *map(cell_len, cells)) for width, *cells in zip(widths, columns, *texts, strict=True)]
    # Rich takes long for many rows: it lays them out where one is too wide or has several lines, else the head alone.
    fits = sum(widths) + 2 * len(widths) - 2 <= out.width and all(cell.isprintable() for row in texts for cell in row)
    for name, width, at_right in zip(columns, widths, right, strict=True):
        table.add_column(name, overflow="fold", no_wrap=at_right, min_width=width if fits else None)
        table.columns[-1].justify = "right" if at_right else "left"
    for cells in () if fits else texts:
        table.add_row(*map(Text, cells))
    if head or not fits:
        out.print(table)
    for cells in texts if fits else ():
        gaps = [" " * (width - cell_len(cell)) for width, cell in zip(widths, cells, strict=True)]
        triples = zip(right, gaps, cells, strict=True)
        echo("  ".join(gap + cell if at_right else cell + gap for at_right, gap, cell in triples))
    return widths


# A turn as it goes on: the model's words to standard output, everything else to standard error.


class PlainScreen:
    """Shows a turn without drawing; `quiet` shows nothing of it."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet, self._open = quiet, False

    def event(self, event: Event) -> None:
        """Something new while a turn runs."""
        if self._quiet:
            return
        if event.kind == "respond" and event.text:
            echo(event.text, nl=False)
            self._open = not event.text.endswith("\n")
        elif event.kind == "sent" and event.entry is not None and "usage" not in event.entry.body:
            if self._open:
                self.note("(the reply broke off; asked again)")
        elif event.kind == "summary":
            self.note(SUMMING_UP)
        elif event.entry is not None and (line := line_of(event.entry)):
            self.note(line)
        if event.kind == "respond" and event.entry is not None:
            self.end()

    def end(self, status: str = "") -> None:
        """The turn is over: the line that the model's words stand in ends."""
        if self._open:
            echo()
        self._open = False
        if status:
            echo(f"[{status}]", err=True, dim=True)

    def say(self, text: str) -> None:
        """Text that was asked for."""
        self.end()
        echo(text)

    def note(self, text: str) -> None:
        """A word beside the conversation."""
        self.end()
        echo(text, err=True, dim=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        self.end()
        print_table(columns, rows)


# What happened in a turn, an entry a line, for people who watch it.

SUMMING_UP = "(the model is asked to sum up what will be cut …)"

_TITLE = re.compile(r"^<title>(.*)</title>$", re.M)


def line_of(entry: Entry) -> str:
    """A finished call, result or cut; empty for everything else."""
    match entry.kind:
        case "call":
            return f"→ {entry.name}({_arguments(entry)})"
        case "result":
            return f"← {shorten(_result_preview(entry))}"
        case "rebase" if entry.body["freed"] > 0:
            why = entry.meta.get("fallbacks")
            stands_in = f"; the built-in summary stands in ({why[0]})" if why and isinstance(why, list) else ""
            return f"(older turns were cut: {entry.body['freed']:,} tokens freed, {entry.body['reason']}{stands_in})"
        case "rebase":
            return f"(the prompt begins anew: {entry.body['reason']})"
    return ""


def _arguments(call: Entry) -> str:
    args = call.args if isinstance(call.args, dict) else {"": call.args}
    return ", ".join(f"{name}={shorten(repr(value), 60)}" for name, value in args.items())


def _result_preview(result: Entry) -> str:
    text = result.body.get("outcome") or result_text(result)
    if text.startswith("<localSearch"):
        return ", ".join(dict.fromkeys(_TITLE.findall(text))) or "no documents"
    failed = "failed: " if result.body.get("error") else ""
    return failed + (text or "nothing")


def shorten(text: str, limit: int = 100) -> str:
    """A text on one line, cut where it is longer than `limit`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


# Opening the database that a command works on.


def open_db(path: Place | None, create: bool = True) -> Store:
    """The store at --db, $QUIRE_DB or the default place; commands that only look do not make one."""
    from quire.thread import open_store

    place = path or default_db()
    if create:
        make_folder(place)
    else:
        _check_there(place)
    return open_store(place)


def make_folder(place: Place) -> None:
    """The folder of a database file, made when it is not there yet."""
    if isinstance(place, str):
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CallError(
            f"cannot make the folder {place.parent}: {error.strerror}",
            hint="Choose another place with --db or QUIRE_DB.",
        ) from error


def _check_there(file: Place) -> None:
    if isinstance(file, str):
        return
    if not file.exists():
        raise NotFound(f"there is no database at {file}", hint="`quire log new NAME` makes one; --db chooses another.")
    if file.is_file() and file.stat().st_size == 0:
        raise DamageError(
            f"{file} is empty (0 bytes): no entry can be read, from entry 1 on",
            seq=1,
            hint="Restore it from a backup; if it never held a thread, `quire log new NAME` begins one in it.",
        )


# THREAD|FILE: entries from a JSON Lines file, from standard input, or from a thread of the database.


def load_usable(source: str, db: Place | None) -> list[Entry]:
    """The entries as requests are made of them: what cannot be used of their free fields is left aside."""
    from quire.log.entries import usable

    return [usable(entry) for entry in load_entries(source, db)]


def load_entries(source: str, db: Place | None, seq: int | None = None) -> list[Entry]:
    """The entries of a file of that name, else of a thread of that name (with `seq`: that one); each with id and seq."""
    from quire.log.entries import decode_lines

    if is_file(source):
        return list(chain(decode_lines(read_text(source))))
    with open_thread(source, db) as store:
        return store.read(source) if seq is None else store.read(source, max(0, seq - 1), 1)


def is_file(source: str) -> bool:
    """Whether THREAD|FILE is a file, or standard input."""
    return source == "-" or os.path.isfile(source)


@contextmanager
def open_thread(source: str, db: Place | None) -> Iterator[Store]:
    """The store that holds a thread of that name."""
    from quire.log.store import has_thread

    try:
        opened = open_db(db, create=False)
    except NotFound as error:
        raise NotFound(f"there is no file called {source!r}, and {error}", hint=error.hint) from error
    with opened as store:
        if not has_thread(store, source):
            raise NotFound(
                f"there is no file and no thread called {source!r}",
                hint="`quire log list` shows the threads; --db FILE reads another database.",
            )
        yield store


# Entries go out in pages, so that a long thread does not have to fit into memory.
PAGE = 1000


def pages(store: Store, thread: str, after: int, count: int = sys.maxsize) -> Iterator[list[Entry]]:
    """The entries of a thread, `count` at most, so many at once."""
    while entries := store.read(thread, after=after, limit=min(PAGE, count)):
        yield entries
        after, count = entries[-1].seq, count - len(entries)


def entries_so_far(store: Store, thread: str) -> list[Entry]:
    """The entries of a thread; none where it has not begun yet."""
    from quire.log.store import has_thread

    return store.read(thread) if has_thread(store, thread) else []


def append_new(store: Store, thread: str, entries: list[Entry]) -> tuple[int, int]:
    """Append what a thread does not hold yet of a conversation; how many entries that were, and how many it had."""
    from quire.log.entries import joining

    before = entries_so_far(store, thread)
    joined = joining(before, entries)
    if seq := joined.parts_behind:
        fork = f"`quire log fork {thread} --at {seq} --name NEW` and import into NEW"
        raise CallError(
            f"thread {thread!r} and this conversation go different ways behind entry {seq}",
            hint=f"It was rewound, or is read otherwise than before. To keep both: {fork}; or give it a thread of its own.",
        )
    if joined.passed_over:
        count = count_of(joined.passed_over, "entry", "entries")
        echo(f"{thread}: {count} of what it holds would be read otherwise now, and stays as it was", err=True)
    store.append(thread, joined.lacking)
    return len(joined.lacking), len(before)
