"""`quire import` and `quire export`: conversations from and to other formats."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import click
import msgspec

from quire import providers
from quire.archive.request_logs import LOGS
from quire.archive.sessions import (
    STORES,
    SessionStore,
    SourceFile,
    conversations,
    files_under,
    recognised,
    source_file,
)
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
from quire.values import Entry, JsonObject

# Chat files are text, not JSON; everything else is a wire format.
MARKDOWN = "markdown"
FORMATS = (*providers.FORMATS, MARKDOWN)
READERS = (*STORES, *LOGS)
# An object that holds one of these is a whole conversation; one without is a message.
_HOLDERS = ("messages", "input", "contents")


class Imported(NamedTuple):
    """A conversation as entries, the store that it was recognised as, and what that leaves out."""

    entries: list[Entry]
    store: str = ""
    lacks: tuple[str, ...] = ()


@click.command("import")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--from",
    "format",
    type=click.Choice(sorted({*FORMATS, *(store.name for store in READERS)})),
    help="What PATH is written in (default: what it looks like).",
)
@click.option(
    "--into",
    "--thread",
    "thread",
    help="Store what is new of it in this thread (default, or -: print entries).",
)
@click.option("--line", type=click.IntRange(1), help="Only this one of the conversations, counted from 1.")
@click.option("--model", default="", help="The model that answered (default: the one PATH names).")
@click.option(
    "--vault",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="markdown: the folder of notes that turns added by hand attach.",
)
@json_option
@db_option
def import_(
    paths: tuple[str, ...],
    format: str | None,
    thread: str | None,
    line: int | None,
    model: str,
    vault: Path | None,
    as_json: bool,
    db: Path | None,
) -> None:
    """Read conversations from other programs and formats into entries.

    PATH (- is standard input) is a session of an agent, a log of requests, a list of messages, or a folder of
    these; what it is, is recognised. Importing again adds what is new alone, and nothing is lost: exporting the
    thread to the same wire format gives the same messages back.

    \b
    Examples:
      quire import ~/.claude/projects/app/3f2a.jsonl --into app
      quire import ~/.codex/sessions --into codex
      quire import capture.har --line 2 > entries.jsonl
      quire import --from openai-chat traces.jsonl --line 3 > entries.jsonl
      quire import --from anthropic request.json | quire assemble -
      quire import --from markdown chat.md --vault ~/notes --into demo
    """
    found = [one for path in paths for one in _read(path, format, model, vault)]
    shown = ", ".join(paths)
    if line is not None:
        found = _at_line(found, line, shown)
    _warn(found)
    if thread is None or thread == "-":
        print_text(encode_lines(_only(found, shown)))
        return
    stored = _store(found, thread, db)
    if as_json:
        print_json([{"thread": name, "entries": count} for name, count, _ in stored])
        return
    for name, count, before in stored:
        behind = f", behind {before} that were there" if before and count else ""
        echo(f"{name}: {counted(count, 'entry', 'entries') if count else 'nothing new'}{behind}")


def _read(path: str, format: str | None, model: str, vault: Path | None) -> list[Imported]:
    """The conversations at a path, as entries that the log takes."""
    store = next((one for one in READERS if one.name == format), None)
    if format in FORMATS and not (store and path != "-" and _is_of(store, path)):
        return _in_format(path, format, model, vault)
    found: list[Imported] = []
    for file in [Path("-")] if path == "-" else files_under(Path(path).expanduser()):
        try:
            found += _sessions(
                source_file(file, read_text("-") if path == "-" else None), store, model, vault
            )
        except FormatError as error:
            if file == Path(path).expanduser() or path == "-":
                raise
            echo(f"left out: {error}", err=True, dim=True)
    if not found:
        raise FormatError(f"{path} holds no conversation", hint="Name a session file, or a folder of them.")
    return found


def _is_of(store: SessionStore, path: str) -> bool:
    place = Path(path).expanduser()
    return place.exists() and store.recognises(source_file(place))


def _sessions(file: SourceFile, store: SessionStore | None, model: str, vault: Path | None) -> list[Imported]:
    if store is None and file.text.startswith("---\n"):
        return [Imported(_chat_files().import_messages(file.text, _notes(vault)), MARKDOWN)]
    store = store or recognised(file, READERS)
    held = [msgspec.structs.replace(one, model=model or one.model) for one in conversations(file, store)]
    made = [Imported(one.entries(), store.name, one.lacks) for one in held]
    return [one for one in made if one.entries]


def _in_format(path: str, format: str, model: str, vault: Path | None) -> list[Imported]:
    """A file in a wire format, or a chat file."""
    text = read_text(path)
    if format == MARKDOWN:
        return [Imported(_chat_files().import_messages(text, _notes(vault)))]
    found = []
    for value in _values(text, path):
        entries = [check(entry.body) for entry in providers.import_(format, value, model)]
        if entries and all(strange_kinds([entry]) for entry in entries):
            first = strange_kinds(entries)[0]
            problem = f"{called(path)} begins with {first!r}, which {format} does not have"
            raise FormatError(problem, line=1, column=1, hint="Leave --from out, and it is recognised.")
        found.append(Imported(entries))
    return found


def _warn(found: list[Imported]) -> None:
    """Say what was kept although nobody knows it, and what the source did not hold."""
    kinds = strange_kinds(entry for one in found for entry in one.entries)
    if kinds:
        kept = ", ".join(kinds)
        echo(f"not known here: {kept}; exported as it came, but not sent to any provider", err=True)
    for store in dict.fromkeys(one.store for one in found if one.store):
        own = [one for one in found if one.store == store]
        kinds_in = {entry.kind for one in own for entry in one.entries}
        heads = {"system": "system prompt", "tools": "tools"}
        lacking = [f"no {name}" for kind, name in heads.items() if kind not in kinds_in]
        lacking += [f"no {name}" for name in dict.fromkeys(name for one in own for name in one.lacks)]
        said = f"; it holds {', '.join(lacking)}" if lacking else ""
        echo(f"read as {store}: {counted(len(own), 'conversation')}{said}", err=True)


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


def _at_line(found: list[Imported], line: int, file: str) -> list[Imported]:
    if line > len(found):
        raise CallError(f"{file} holds {len(found)} conversations, not {line}", hint="Lines count from 1.")
    return [found[line - 1]]


def _only(found: list[Imported], file: str) -> list[Entry]:
    if len(found) != 1:
        raise CallError(
            f"{file} holds {len(found)} conversations",
            hint="Choose one with --line N, or store all with --into NAME (as NAME-1, NAME-2, …).",
        )
    return found[0].entries


def _store(found: list[Imported], thread: str, db: Path | None) -> list[tuple[str, int, int]]:
    """Each thread's name, how many entries came, and how many were there before."""
    many = len(found) > 1
    out = []
    with open_db(db) as store:
        threads = {one.name for one in store.threads()}
        for number, one in enumerate(found, 1):
            name = f"{thread}-{number}" if many else thread
            before = store.read(name) if name in threads else []
            fresh = one.entries[_known(before, one.entries) :]
            store.append(name, fresh)
            out.append((name, len(fresh), len(before)))
    return out


def _known(before: list[Entry], entries: list[Entry]) -> int:
    """How many of a conversation's first entries a thread holds already, at its end or anywhere in one piece."""
    old, new = [_content(one) for one in before], [_content(one) for one in entries]
    for start in range(len(old)):
        length = min(len(old) - start, len(new))
        if old[start] == new[0] and old[start : start + length] == new[:length]:
            return length
    return 0


def _content(entry: Entry) -> JsonObject:
    """What an entry says; how a provider wrote it, and when, may differ between two versions of a session."""
    return {
        "kind": entry.kind,
        **{key: value for key, value in entry.body.items() if key not in ("wire", "at", "meta")},
    }


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
