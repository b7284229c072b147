"""Other formats: conversations read from them and written to them (`quire import`, `quire export`); items and entries
as text, counted and described (`quire format`, `tokens`, `schema`).
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import resources
from itertools import count, takewhile
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import click
import msgspec

import quire
from quire.cli.output import (
    FOLDER_THERE,
    FileName,
    Place,
    answer,
    append_new,
    count_of,
    db_json_options,
    db_option,
    default_db,
    echo,
    entries_so_far,
    file_label,
    is_file,
    json_option,
    load_entries,
    may_be_there,
    open_db,
    option,
    print_json,
    print_text,
    read_text,
    read_verbatim,
    value_of,
    value_or_lines,
)
from quire.errors import CallError, FormatError
from quire.log.entries import SCHEMA, check, decode_lines, encode_lines, joining
from quire.log.shapes import short
from quire.tokens import counter, entry_texts
from quire.values import Entry, JsonObject

if TYPE_CHECKING:
    from quire.archive import Loaded
    from quire.archive.stored_conversations import SessionStore, SourceFile
    from quire.log.store import Store
    from quire.notes.vault import Vault


# To load what reads and writes them takes longer than to print help: a wire format is called like its module, while
# frameworks' formats and the programs are named here; a test holds both to it.
_WIRES = Path(quire.__file__).parent / "providers" / "wires"
# Chat files are text, not JSON; every other format is a wire format or a framework's.
MARKDOWN = "markdown"
_FRAMEWORKS = {"langchain", "openai-agents", "pydantic-ai"}
_NAMED = {module.name.replace("_", "-") for module in iter_modules([str(_WIRES)])} - {"frameworks"}
FORMATS = (*sorted(_NAMED | _FRAMEWORKS), MARKDOWN)
PROGRAMS = (
    "aider", "claude-code", "codex", "gemini-cli", "har", "langchain", "langfuse", "lhar", "litellm", "llm",
    "messages", "mini-swe-agent", "openai-agents", "opencode", "opentelemetry", "pi", "pydantic-ai", "requests",
    "strands", "swe-agent",
)  # fmt: skip
# An object that holds one of these is a whole conversation; one without is a message.
_HOLDERS = ("messages", "input", "contents")


class ImportedConversation(NamedTuple):
    """A conversation as entries, the store that it was recognised as, what that lacks and what was left out of it; a
    chat file as loaded.
    """

    entries: list[Entry]
    store: str = ""
    lacks: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    chat: Loaded | None = None


class ThreadGrowth(NamedTuple):
    """How many entries a thread has gained, and how many it had; of a fork, of which thread it is one."""

    thread: str
    entries: int
    before: int = 0
    fork_of: str = ""

    def line(self) -> str:
        """One line for people."""
        came = count_of(self.entries, "entry", "entries") if self.entries else "nothing new"
        if self.fork_of:
            return f"{self.thread}: {came} behind the first {self.before} of {self.fork_of}, as edited in the file"
        behind = f", behind {self.before} that were there" if self.before and self.entries else ""
        return f"{self.thread}: {came}{behind}"


@click.command("import")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=FileName())
@option("--from format", "The format of PATH (default: recognised).", sorted({*FORMATS, *PROGRAMS}))
@option("--into --thread thread", "Store its new entries in this thread (default, or -: print entries).")
@option("--line", "Only this conversation, counted from 1.", click.IntRange(1))
@option("--model -m", "The model that answered (default: the one PATH names).", default="")
@option("--vault", "markdown: the folder of notes that hand-written turns attach.", FOLDER_THERE)
@db_json_options
def import_(
    paths: tuple[str, ...],
    format: str | None,
    thread: str | None,
    line: int | None,
    model: str,
    vault: Path | None,
    as_json: bool,
    db: Place | None,
) -> None:
    """Read conversations from other programs and formats into entries.

    PATH (- is standard input) is a session of an agent, a log of requests, a list of messages, or a folder of
    these; the format is recognised. Importing again adds only what is new. Nothing is lost: exporting the thread
    to the same wire format gives the same messages back.

    \b
    Examples:
      quire import ~/.claude/projects/app/3f2a.jsonl --into app
      quire import ~/.codex/sessions --into codex
      quire import capture.har --line 2 > entries.jsonl
      quire import --from openai-chat traces.jsonl --line 3 > entries.jsonl
      quire import --from anthropic request.json | quire assemble -
      quire import --from markdown chat.md --vault ~/notes --into demo
    """
    if vault and format not in (None, MARKDOWN):
        raise CallError("--vault is for chat files", hint=f"Leave it out with --from {format}.")
    conversations = [talk for path in paths for talk in _read(path, format, model, partial(_chat_file, vault, db))]
    names = ", ".join(paths)
    if line is not None:
        if line > len(conversations):
            raise CallError(
                f"{names} holds {count_of(len(conversations), 'conversation')}, not {line}", hint="Lines count from 1."
            )
        conversations = [conversations[line - 1]]
    _warn(conversations)
    if thread is None or thread == "-":
        if len(conversations) != 1:
            raise CallError(
                f"{names} holds {len(conversations)} conversations",
                hint="Choose one with --line N, or store all with --into NAME (as NAME-1, NAME-2, …).",
            )
        print_text(encode_lines(conversations[0].entries))
        return
    stored = _store(conversations, thread, db)
    value = [{"thread": gain.thread, "entries": gain.entries} for gain in stored]
    answer(as_json, value, "\n".join(gain.line() for gain in stored))


def _chat_file(vault: Path | None, db: Place | None, text: str) -> ImportedConversation:
    """A chat file: notes come from the vault, and what it only names from the database that it came from."""
    from quire.archive import attached_texts, load, parse

    thread, texts = (parse(text).comment or {}).get("thread"), dict[str, str]()
    if may_be_there(db or default_db()):
        with open_db(db, create=False) as store:
            texts = attached_texts(entries_so_far(store, str(thread)))
    loaded = load(text, _notes(vault), texts)
    for warning in loaded.warnings:
        echo(f"warning: {warning}", err=True)
    return ImportedConversation(list(loaded.entries), chat=loaded)


ReadChat: TypeAlias = Callable[[str], ImportedConversation]


def _read(path: str, format: str | None, model: str, read_chat: ReadChat) -> list[ImportedConversation]:
    """The conversations at a path, as entries that the log takes."""
    from quire.archive.sessions import STORES, files_under, source_file

    place = Path(os.path.expanduser(path))  # of a user that there is not, it is left as it is
    store = next((known_store for known_store in STORES if known_store.name == format), None)
    is_of_store = store and path != "-" and place.exists() and store.recognises(source_file(place))
    if format in FORMATS and not is_of_store:
        return _in_format(path, format, model, read_chat)
    conversations: list[ImportedConversation] = []
    for file in [place] if path == "-" else files_under(place):
        try:
            source = source_file(file, read_text("-") if path == "-" else None)
            conversations += _sessions(source, store, model, read_chat)
        except FormatError as error:
            if file == place:
                raise
            named = "" if file.name in str(error) else f"{file.name}: "
            echo(f"left out: {named}{error}", err=True, dim=True)
    if not conversations:
        raise FormatError(f"{path} holds no conversation", hint="Name a session file, or a folder of them.")
    return conversations


def _sessions(
    file: SourceFile, store: SessionStore | None, model: str, read_chat: ReadChat
) -> list[ImportedConversation]:
    from quire.archive.sessions import conversations, recognised

    if store is None and file.text.startswith(("---\n", "---\r\n")):
        return [read_chat(file.text)._replace(store=MARKDOWN)]
    store = store or recognised(file)
    stored = conversations(file, store)
    named = [msgspec.structs.replace(conversation, model=model or conversation.model) for conversation in stored]
    imported = [
        ImportedConversation(conversation.entries(), store.name, conversation.lacks, conversation.left_out)
        for conversation in named
    ]
    return [conversation for conversation in imported if conversation.entries]


def _in_format(path: str, format: str, model: str, read_chat: ReadChat) -> list[ImportedConversation]:
    """A file in a wire format, or a chat file."""
    from quire import providers
    from quire.archive.stored_conversations import whole_value
    from quire.providers.convert import strange_kinds

    text = read_text(path)
    if format == MARKDOWN:
        return [read_chat(text)]
    conversations = []
    for value in _values(text, path):
        sound = whole_value(value, file_label(path))
        entries = [check(entry.body) for entry in providers.import_(format, sound, model)]
        if entries and all(strange_kinds([entry]) for entry in entries):
            first = strange_kinds(entries)[0]
            problem = f"{file_label(path)} begins with {first!r}, which {format} does not have"
            raise FormatError(problem, line=1, column=1, hint="Leave --from out, and it is recognised.")
        conversations.append(ImportedConversation(entries))
    return conversations


def _warn(conversations: list[ImportedConversation]) -> None:
    """Say what was kept although nobody knows it, and what the source did not hold."""
    from quire.providers.convert import strange_kinds

    entries = (entry for conversation in conversations for entry in conversation.entries)
    # Words, calls and results are written anew, without what is strange in their blocks.
    kinds = strange_kinds(entry for entry in entries if entry.kind == "think" or not entry_texts(entry))
    if kinds:
        names = ", ".join(kinds)
        echo(f"not known here: {names}; exported as it came, but not sent to any provider", err=True)
    for store in dict.fromkeys(conversation.store for conversation in conversations if conversation.store):
        of_store = [conversation for conversation in conversations if conversation.store == store]
        kinds_in = {entry.kind for conversation in of_store for entry in conversation.entries}
        heads = {"system": "system prompt", "tools": "tools"}
        lacking = [f"no {name}" for kind, name in heads.items() if kind not in kinds_in]
        lacking += [f"no {name}" for name in dict.fromkeys(name for talk in of_store for name in talk.lacks)]
        detail = f"; it holds {', '.join(lacking)}" if lacking else ""
        left_out = Counter(kind for talk in of_store for kind in talk.left_out)
        detail += (
            f"; left out: {', '.join(f'{number} × {kind}' for kind, number in left_out.items())}" if left_out else ""
        )
        echo(f"read as {store}: {count_of(len(of_store), 'conversation')}{detail}", err=True)


def _values(text: str, file: str) -> list[Any]:
    """One JSON value; or one a line, which are conversations, or the messages of one."""
    value, lines = value_or_lines(text, file_label(file), "conversation, or one message,")
    if lines is None:
        return [value]
    for number, line_value in lines:
        if not isinstance(line_value, dict | list):
            problem = f"{file_label(file)} holds {short(line_value)}, not a message"
            raise FormatError(problem, line=number, column=1, hint="Write one conversation a line.")
    values = [line for _, line in lines]
    apart = all(isinstance(value, list) or any(name in value for name in _HOLDERS) for value in values)
    return values if apart else [values]


def _store(conversations: list[ImportedConversation], thread: str, db: Place | None) -> list[ThreadGrowth]:
    """What each thread has gained; what was edited in a chat file is a fork of its own."""
    from quire.archive import read_back

    out = []
    with open_db(db) as store:
        names = _names(store, thread, conversations) if len(conversations) > 1 else [thread]
        for name, conversation in zip(names, conversations, strict=True):
            out.append(ThreadGrowth(name, *append_new(store, name, conversation.entries)))
            if conversation.chat is not None and conversation.chat.fork is not None:
                forked = read_back(store, name, conversation.chat)
                fork = conversation.chat.fork
                out += [ThreadGrowth(forked, len(fork.entries), fork.behind, name)] if forked else []
    return out


def _names(store: Store, thread: str, conversations: list[ImportedConversation]) -> list[str]:
    """For each conversation the thread that holds it from an earlier import, else the next number that is free."""
    there = [info.name for info in store.threads() if re.fullmatch(rf"{re.escape(thread)}(-\d+)?", info.name)]
    numbers = (name for n in count(1) if (name := f"{thread}-{n}") not in there)
    begun = {name: _opening(store.read(name, 0, 16)) for name in there}
    out: list[str] = []
    for conversation in conversations:
        entries, parted = conversation.entries, list[str]()
        for name in (name for name in there if name not in out):
            # More than what it began with: what is read by now and was not may stand among the first.
            opening = joining(begun[name], entries[:64])
            joined = joining(store.read(name), entries) if opening.known or opening.parts_behind else opening
            if joined.known:
                out.append(name)
                break
            if joined.parts_behind:
                parted.append(f"goes another way than {name} behind entry {joined.parts_behind}, and is kept beside it")
        else:
            out.append(next(numbers))
            for problem in parted:
                echo(f"{out[-1]}: {problem}", err=True)
    return out


def _opening(entries: list[Entry]) -> list[Entry]:
    """What tells a thread from others without reading all of it: what was said before the first call."""
    return [*entries[:1], *takewhile(lambda entry: entry.kind != "call", entries[1:])]


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@option("--to format", "What to write.", FORMATS, required=True)
@option("--vault", "markdown: the folder of notes that are named instead of copied.", FOLDER_THERE)
@db_option
def export(source: str, format: str, vault: Path | None, db: Place | None) -> None:
    """Write a thread in another format; `quire log export` makes a copy of the log instead.

    Messages that were imported from that format are written as they came; all others are made from their
    entries. If the format keeps the system prompt or tools apart from the messages, the output is an object
    with all of them, as in a request.

    \b
    Examples:
      quire export demo --to openai-chat
      quire export entries.jsonl --to anthropic > request.json
    """
    from quire import providers

    if vault and format != MARKDOWN:
        raise CallError("--vault is for chat files", hint="Add --to markdown, or leave it out.")
    entries = load_entries(source, db)
    if format == MARKDOWN:
        from quire.archive import export_markdown

        thread = "" if is_file(source) else source
        print_text(export_markdown(entries, thread=thread, refer=True, notes=_notes(vault)))
    else:
        print_json(providers.export(format, entries))


def _notes(vault: Path | None) -> Vault | None:
    if vault is None:
        return None
    from quire.notes.vault import Vault

    return Vault(vault)


# `quire format`: items or entries as one of the text formats, and a text back as JSON.


# The options that only one format has.
TEXT_FORMATS = {
    "markdown": ("wrap", "default_language", "system"),
    "xml": (),
    "json": (),
    "clean": ("detail",),
    "replay": ("window", "delimiter"),
}


def text_format(name: str) -> Any:
    """The module of a format, loaded when it is used: read, render, parse and to_json."""
    return importlib.import_module(f"quire.formats.{name if name != 'json' else 'json_'}")


@click.command("format")
@click.argument("name", metavar="FORMAT", type=click.Choice(list(TEXT_FORMATS)))
@click.argument("file", default="-", type=FileName())
@option("--profile", "markdown: quire, or the bytes of agent-q.", ["quire", "agent-q"], "quire", show_default=False)
@option("--parse parses", "Read the text and print its value as JSON.", bool)
@option("--wrap", "markdown: put tags around context and request.", ["none", "tags"])
@option("--system", "markdown: a system prompt in front, with --wrap tags.", metavar="TEXT")
@option("--default-language", "markdown: the tag of code in no known language (lisp).", metavar="TAG")
@option("--detail", "clean: how much of each tool (full).", ["full", "short"])
@option("--window", "replay: how many history events, or all (15).", metavar="N")
@option("--delimiter", "replay: what events begin with ($).", ["$", "§"])
def format_(name: str, file: str, profile: str, parses: bool, **options: str | None) -> None:
    """Print the JSON of FILE (- for standard input) as markdown, xml, json, clean or replay, to the byte.

    markdown, xml and json take {"items": […], "max_items": 50, "request": …}; clean takes {"tools": […],
    "conversation": […], "tool_results": […], "request": …}; replay takes {"entries": […], "window": 15}
    or entries as JSON Lines. Options override the JSON's fields; with --parse the text itself holds these
    settings.

    \b
    Examples:
      echo '{"items": [{"content": "(+ 1 2)"}]}' | quire format markdown
      quire log export demo | quire format replay --window all
      quire format clean --parse context.txt
    """
    chosen, profiles = text_format(name), (profile,) if profile != "quire" else ()
    if profiles and name != "markdown":
        raise CallError(f"{name} has no profile {profile}", hint="agent-q is a profile of markdown.")
    settings: JsonObject = {key: value for key, value in options.items() if value is not None}
    for key in settings:
        if key not in TEXT_FORMATS[name]:
            flag = "--" + key.replace("_", "-")
            raise CallError(f"{flag} does not go with {name}", hint="quire format --help says which format it is for.")
    if (number := settings.get("window")) is not None:
        if number != "all" and not (number.isascii() and number.isdigit()):
            raise CallError(f"--window is {number!r}", hint="Give a number of events, or all.")
        settings["window"] = None if number == "all" else int(number)
    if parses:
        # A text may begin with a byte order mark of its own: what was rendered is read back whole.
        value = chosen.to_json(chosen.parse(read_verbatim(file), *profiles))
        print_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n")
    else:
        text = read_text(file)
        lines = name == "replay" and _is_lines(text)
        hint = "quire format --help shows the shape; to read a text back, add --parse."
        entries = {"entries": [entry.body for entry in decode_lines(text)]} if lines else None
        data = entries or value_of(text, file_label(file), hint=hint)
        value = chosen.read({**data, **settings} if isinstance(data, dict) else data, *profiles)
        print_text(chosen.render(value, *profiles))


def _is_lines(text: str) -> bool:
    """Whether the text is entries as JSON Lines: its first line is an entry, or there is none."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    try:
        value = json.loads(first) if first else {"kind": ""}
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "kind" in value


# `quire tokens`: how many tokens a file makes for a model.


@click.command()
@click.argument("file", type=FileName())
@option("--model -m", "Model name, also with provider: and vendor/ (default: o200k).")
@json_option
def tokens(file: str, model: str | None, as_json: bool) -> None:
    """Count the tokens of FILE (- for standard input) with the model's vocabulary.

    \b
    Examples:
      quire tokens README.md
      quire tokens - --model llama-3.3-70b < prompt.txt
      quire tokens README.md --model anthropic:claude-opus-5-5 --json
    """
    text = read_text(file)
    chosen = counter(model)
    count = chosen.count(text)
    value = {
        "tokens": count,
        "exact": chosen.exact,
        "vocabulary": chosen.vocabulary,
        "factor": chosen.factor,
        "model": model,
        "bytes": len(text.encode()),
        "note": chosen.note,
    }
    line = f"{count:,} tokens ({chosen.vocabulary})" if chosen.exact else f"~{count:,} tokens ({chosen.note})"
    answer(as_json, value, line)


# `quire schema`: the published JSON schemas, to the byte.

NAMES = ("item", "window", "entry")


@click.command()
@click.argument("name", type=click.Choice(NAMES))
def schema(name: str) -> None:
    """Print the JSON schema of an item, a window or an entry.

    \b
    Examples:
      quire schema window
      quire schema entry > entry.schema.json
    """
    if name == "entry":
        print_json(SCHEMA)
    else:
        print_text(resources.files("quire.schemas").joinpath(f"{name}.json").read_text(encoding="utf-8"))
