"""`quire import` and `quire export`: conversations from and to other formats."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from quire import providers
from quire.cli.output import (
    called,
    counted,
    db_option,
    echo,
    json_option,
    print_json,
    print_text,
    read_text,
    value_or_lines,
)
from quire.cli.store import load_entries, open_db
from quire.errors import CallError, FormatError, MissingPart
from quire.log.entries import check, encode_lines
from quire.log.shapes import short
from quire.providers.convert import strange_kinds
from quire.values import Entry

# Chat files are text, not JSON; everything else is a wire format.
MARKDOWN = "markdown"
FORMATS = (*providers.FORMATS, MARKDOWN)
# An object that holds one of these is a whole conversation; one without is a message.
_HOLDERS = ("messages", "input", "contents")


@click.command("import")
@click.argument("file")
@click.option("--from", "format", type=click.Choice(FORMATS), required=True, help="What FILE is written in.")
@click.option("--thread", help="Store it in this thread (default, or -: print entries).")
@click.option("--line", type=click.IntRange(1), help="Only the conversation in this line of FILE.")
@click.option("--model", default="", help="The model that answered (default: the one FILE names).")
@click.option(
    "--vault",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="markdown: the folder of notes that turns added by hand attach.",
)
@json_option
@db_option
def import_(
    file: str,
    format: str,
    thread: str | None,
    line: int | None,
    model: str,
    vault: Path | None,
    as_json: bool,
    db: Path | None,
) -> None:
    """Read a conversation from another format into entries.

    FILE (- is standard input) holds a list of messages, a request, or one conversation a line. Nothing is
    lost: exporting the thread to the same format gives the same messages back.

    \b
    Examples:
      quire import --from openai-chat chat.json --thread demo
      quire import --from openai-chat traces.jsonl --line 3 > entries.jsonl
      quire import --from anthropic request.json | quire assemble -
      quire import --from markdown chat.md --vault ~/notes --thread demo
    """
    conversations = _read(file, format, model, vault)
    if line is not None:
        conversations = _at_line(conversations, line, file)
    if thread is None or thread == "-":
        print_text(encode_lines(_only(conversations, file)))
        return
    stored = _store(conversations, thread, db)
    if as_json:
        print_json([{"thread": name, "entries": count} for name, count, _ in stored])
        return
    for name, count, before in stored:
        behind = f", behind {before} that were there" if before else ""
        echo(f"{name}: {counted(count, 'entry', 'entries')}{behind}")


def _read(file: str, format: str, model: str, vault: Path | None = None) -> list[list[Entry]]:
    """The conversations of a file, as entries that the log takes."""
    text = read_text(file)
    if format == MARKDOWN:
        return [_chat_files().import_messages(text, _notes(vault))]
    conversations = [
        [check(entry.body) for entry in providers.import_(format, value, model)]
        for value in _values(text, file)
    ]
    _warn(conversations)
    return conversations


def _warn(conversations: list[list[Entry]]) -> None:
    """Say what was kept although nobody knows it."""
    kinds = strange_kinds(entry for entries in conversations for entry in entries)
    if kinds:
        kept = ", ".join(kinds)
        echo(f"not known here: {kept}; exported as it came, but not sent to any provider", err=True)


def _values(text: str, file: str) -> list[Any]:
    """One JSON value; or one a line, which are conversations, or the messages of one."""
    value, lines = value_or_lines(text, called(file), "conversation, or one message,")
    if lines is None:
        return [value]
    for number, one in lines:
        if not isinstance(one, dict | list):
            problem = f"{called(file)} holds {short(one)}, not a message"
            raise FormatError(problem, line=number, column=1, hint="Write one conversation a line.")
    values = [one for _, one in lines]
    apart = all(isinstance(value, list) or any(name in value for name in _HOLDERS) for value in values)
    return values if apart else [values]


def _at_line(conversations: list[list[Entry]], line: int, file: str) -> list[list[Entry]]:
    if line > len(conversations):
        raise CallError(
            f"{file} holds {len(conversations)} conversations, not {line}", hint="Lines count from 1."
        )
    return [conversations[line - 1]]


def _only(conversations: list[list[Entry]], file: str) -> list[Entry]:
    if len(conversations) != 1:
        raise CallError(
            f"{file} holds {len(conversations)} conversations",
            hint="Choose one with --line N, or store all with --thread NAME (as NAME-1, NAME-2, …).",
        )
    return conversations[0]


def _store(conversations: list[list[Entry]], thread: str, db: Path | None) -> list[tuple[str, int, int]]:
    """Each thread's name, how many entries came, and how many were there before."""
    many = len(conversations) > 1
    out = []
    with open_db(db) as store:
        for number, entries in enumerate(conversations, 1):
            name = f"{thread}-{number}" if many else thread
            kept = store.append(name, entries)
            out.append((name, len(entries), kept[0].seq - 1 if kept else 0))
    return out


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@click.option("--to", "format", type=click.Choice(FORMATS), required=True, help="What to write.")
@db_option
def export(source: str, format: str, db: Path | None) -> None:
    """Write a thread in another format.

    Messages that were imported from that format go out as they came in; all others are written from
    their entries. With a system prompt or tools that a format keeps apart from its messages, the output is
    the object that a request holds them in.

    \b
    Examples:
      quire export demo --to openai-chat
      quire export entries.jsonl --to anthropic > request.json
    """
    entries = load_entries(source, db)
    if format == MARKDOWN:
        thread = "" if source == "-" or Path(source).is_file() else source
        print_text(_chat_files().export_messages(entries, thread=thread))
    else:
        print_json(providers.export(format, entries))


def _notes(vault: Path | None) -> Any:
    if vault is None:
        return None
    from quire.notes.vault import Vault

    return Vault(vault)


def _chat_files() -> ModuleType:
    try:
        return importlib.import_module("quire.archive.load")
    except ModuleNotFoundError as error:
        raise MissingPart(
            "chat files are not part of this installation", hint="pip install 'quire[vault]'"
        ) from error
