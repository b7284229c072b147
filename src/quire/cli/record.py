"""`quire record` and `quire build`: keep, change, search and list records, and build contexts from them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from quire.cli.output import (
    FileName,
    Place,
    answer,
    confirm_deletion,
    count_of,
    db_json_options,
    echo,
    file_label,
    open_db,
    option,
    print_json,
    print_text,
    progress,
    read_json,
    read_text,
    value_of,
    value_or_lines,
    with_options,
)
from quire.errors import CallError, FormatError
from quire.log import now_ms
from quire.records import Builder, Config, Reaction, Records, config, configured, keep_catalog, react
from quire.records.record import Record, draft, fields_of, to_json, view
from quire.values import Json, JsonObject

if TYPE_CHECKING:
    from quire.recall import Embedder

# Opening the records that a command works on, with the embedding model where it is installed.

# Fewer vectors than this are made before a bar could be read.
WORTH_SHOWING = 64
NO_MODEL = "by words alone: the embedding model is not installed (quire local install minilm)"


words_option = option("--words", "Use words alone, without the embedding model.", bool)


def embedder() -> Embedder | None:
    """The embedding model, or None where a part of it is not installed."""
    if importlib.util.find_spec("numpy") is None:
        return None
    from quire.recall.meaning import installed

    return installed()


@contextmanager
def embedding_progress() -> Iterator[Callable[[int, int], None]]:
    """Tells on stderr how many vectors of many are made: a bar on a terminal, elsewhere a line at the beginning."""
    with progress() as tell:

        def show(count: int, all: int) -> None:
            if all >= WORTH_SHOWING:
                if count == 0 and not sys.stderr.isatty():
                    echo(f"embedding {all:,} records, once", err=True)
                tell("embedding records", count, all)

        yield show


@contextmanager
def open_records(
    db: Place | None, create: bool = True, words: bool = False, searched: bool = False
) -> Iterator[Records]:
    """The records at --db; vectors that a command has to make first are shown on stderr.

    Whoever searches hears it where that goes by words alone although meaning was wanted.
    """
    model = None if words else embedder()
    if searched and not words and model is None:
        echo(f"searched {NO_MODEL}", err=True)
    with open_db(db, create=create) as store, embedding_progress() as show:
        yield Records(store, model, show)


# How records are read from files and printed, and what is said of the contexts that a change made new.


def read_records(file: str) -> tuple[list[Json], bool]:
    """The records of a file, and whether it is one that may hold many: a JSON list or JSON Lines."""
    value, lines = value_or_lines(read_text(file), file_label(file), "record")
    if lines is not None:
        return [line for _, line in lines], True
    return (value, True) if isinstance(value, list) else ([value], False)


@contextmanager
def content_of(file: str | None) -> Iterator[None]:
    """What is wrong with the content of a file is the data's fault, not the call's."""
    try:
        yield
    except CallError as error:
        if file is None:
            raise
        raise FormatError(f"{file_label(file)}: {error}", hint=error.hint) from error


def print_records(records: Sequence[Record], as_json: bool) -> None:
    """All fields as JSON, or a table of their heads."""
    rows = [(record.id, record.version, record.schema_name, record.title, " ".join(record.tags)) for record in records]
    answer(as_json, [*map(to_json, records)], (["id", "version", "schema", "title", "tags"], rows))


def report(reaction: Reaction) -> None:
    """On stderr: which contexts are new, and which configurations are broken."""
    for output in reaction.outputs:
        echo(f"context of {output.context['consumer_id']} is {output.id} version {output.version}", err=True)
    for problem in reaction.problems:
        echo(f"warning: {problem}", err=True)


# The commands of `quire record` that change something: create, update, delete, catalog, purge.


def _json(_ctx: click.Context, param: click.Parameter, value: str | None) -> Any:
    """The JSON of an option, or of the file that @FILE names."""
    if value is None:
        return None
    if value.startswith("@"):
        return read_json(value[1:])
    hint = """Write it as '{"text": "…"}', or name a file: @FILE."""
    try:
        return value_of(value, f"--{param.name}", hint=hint)
    except FormatError as error:
        raise CallError(str(error), hint=error.hint) from error


# The options that set a record's fields.
_fields = with_options(
    option("--title", "What it is called."),
    option("--tag tags", "A tag; may be given again.", multiple=True, metavar="TAG"),
    option("--context", "What it holds: a JSON object, or @FILE.", callback=_json, metavar="JSON"),
    option("--hints", "llm_hints: a JSON object, or @FILE.", callback=_json, metavar="JSON"),
    option("--ttl ttl_s", "Expires after so many seconds.", float, metavar="SECONDS"),
    option("--owner", "Whose it is."),
)


def _options(fields: JsonObject) -> JsonObject:
    """The fields that options give; they win over a file's."""
    named = {("llm_hints" if key == "hints" else key): value for key, value in fields.items()}
    return {key: value for key, value in named.items() if value is not None and value != ()}


@click.group()
def record() -> None:
    """Store records: documents with tags, versions, a time to live, and hints on what a model sees of them.

    \b
    Examples:
      quire record create --schema user.message.v1 --context '{"content": "Hello"}'
      quire record get rec-1
      quire record search "API key"
    """


@record.command(short_help="Store a new record, from FILE or from options.")
@click.argument("file", required=False, type=FileName())
@option("--schema schema_name", "Its schema, such as user.message.v1.")
@_fields
@db_json_options
def create(file: str | None, db: Place | None, as_json: bool, **fields: Any) -> None:
    """Store a new record, from FILE (or - for stdin) and the options; consumers it concerns get a new context.

    FILE holds one record, or many as a JSON list or JSON Lines; of many, all are stored or none.

    \b
    Examples:
      quire record create --schema note.v1 --title Plan --tag work --context '{"text": "Ship it"}'
      quire record create record.json --ttl 3600
      quire record create messages.jsonl
    """
    now = now_ms()
    values, many = read_records(file) if file else ([{}], False)
    with content_of(file):
        rows = [fields_of(value) for value in values]
        drafts = [_draft(row | _options(fields), now) for row in rows]
    with open_records(db) as records:
        new_records = records.create_all(drafts)
        report(react(records, *new_records, now=now))
    if many:
        print_records(new_records, as_json)
    else:
        answer(as_json, to_json(new_records[0]), f"{new_records[0].id} version 1")


def _draft(fields: JsonObject, now: int) -> Record:
    if "schema_name" not in fields:
        raise CallError("a record needs a schema", hint="Pass --schema, or a FILE with schema_name.")
    return draft(fields.pop("schema_name"), fields.pop("context", {}), **fields, now=now)


@record.command()
@click.argument("id")
@click.argument("file", required=False, type=FileName())
@option("--version", "The version you saw; any other is a conflict.", int, required=True)
@_fields
@db_json_options
def update(id: str, file: str | None, version: int, db: Place | None, as_json: bool, **fields: Any) -> None:
    """Change the given fields of a record; the others stay. Consumers it concerns get a new context.

    \b
    Examples:
      quire record update rec-1 --version 1 --title "New plan"
      quire record update rec-1 changes.json --version 2
    """
    value = read_json(file) if file else {}
    with content_of(file):
        changes = fields_of(value) | _options(fields)
    if "schema_name" in changes:
        raise CallError("the schema of a record never changes", hint="Create a new record.")
    now = now_ms()
    with open_records(db, create=False) as records:
        newest = records.update(id, version, **changes, now=now)
        report(react(records, newest, now=now))
    answer(as_json, to_json(newest), f"{newest.id} version {newest.version}")


@record.command()
@click.argument("id")
@option("--version", "Only if it still is this version.", int)
@option("--yes -y", "Do not ask.", bool)
@db_json_options
def delete(id: str, version: int | None, yes: bool, db: Place | None, as_json: bool) -> None:
    """Delete a record for ever, with all its versions.

    \b
    Examples:
      quire record delete rec-1
      quire record delete rec-1 --yes
    """
    with open_records(db, create=False) as records:
        if not yes:
            version = _confirmed_version(records.read_full(id), version)
        records.delete(id, version)
    answer(as_json, {"deleted": id}, f"deleted {id}")


def _confirmed_version(record: Record, version: int | None) -> int:
    """The version that may go: the one named in the question, or one that is a conflict without asking."""
    if version in (None, record.version):
        called = f" {record.title!r}" if record.title else ""
        versions = count_of(record.version, "version")
        confirm_deletion(f"record {record.id} ({record.schema_name}{called}) with {versions}", name=record.id)
    return record.version if version is None else version


@record.command(short_help="Make or renew the record of all tools.")
@click.argument("file", required=False, type=FileName())
@db_json_options
def catalog(file: str | None, db: Place | None, as_json: bool) -> None:
    """Make or renew the tool.catalog.v1 record, from the tools in FILE or from the tool.v1 records.

    \b
    Examples:
      quire record catalog tools.json
      quire record create --schema tool.v1 --context '{"name": "echo"}' && quire record catalog
    """
    tools = read_json(file) if file else None
    if file and not isinstance(tools, list):
        raise FormatError(f"{file} holds no list of tools", hint='Write [{"name": "…", "description": "…"}, …].')
    now = now_ms()
    with open_records(db) as records:
        renewed = keep_catalog(records, tools, now=now)
        report(react(records, renewed, now=now))
    line = f"{renewed.id} version {renewed.version}: {count_of(len(renewed.context['tools']), 'tool')}"
    answer(as_json, to_json(renewed), line)


@record.command()
@db_json_options
def purge(db: Place | None, as_json: bool) -> None:
    """Remove the records whose time has passed.

    \b
    Examples:
      quire record purge
    """
    with open_records(db, create=False) as records:
        count = records.purge(now_ms())
    answer(as_json, {"purged": count}, f"purged {count}")


@record.command(short_help="Print a record as a model sees it.")
@click.argument("id")
@option("--full", "All of it, without applying its hints.", bool)
@option("--version", "An older version.", int)
@db_json_options
def get(id: str, full: bool, version: int | None, db: Place | None, as_json: bool) -> None:
    """Print a record as a model sees it: its hints applied, or an error beside the context as it is.

    \b
    Examples:
      quire record get rec-1
      quire record get rec-1 --full --version 1
    """
    with open_records(db, create=False) as records:
        full_record = records.read_full(id, version=version, now=now_ms())
    print_json(to_json(full_record if full else view(full_record)))


# What `list` and `search` may be narrowed to.
_filters = with_options(
    option("--tag tags", "Only with this tag; may be given again.", multiple=True, metavar="TAG"),
    option("--schema schema_name", "Only of this schema.", default=""),
)


@record.command(name="list")
@_filters
@option("--owner", "Only of this owner.", default="")
@option("--limit", "Only the last so many.", click.IntRange(min=0))
@db_json_options
def list_(
    tags: tuple[str, ...], schema_name: str, owner: str, limit: int | None, db: Place | None, as_json: bool
) -> None:
    """List records in the order they were created.

    \b
    Examples:
      quire record list
      quire record list --schema tool.v1 --tag workspace:tools --json
    """
    with open_records(db, create=False) as records:
        matching = records.list(schema_name=schema_name, tag=tags, owner=owner, limit=limit, now=now_ms())
    print_records(matching, as_json)


@record.command()
@click.argument("q")
@option("--nn", "How many at most.", click.IntRange(min=1), 5)
@_filters
@option("--include-context", "Print their contents, with hints applied.", bool)
@words_option
@db_json_options
def search(
    q: str,
    nn: int,
    tags: tuple[str, ...],
    schema_name: str,
    include_context: bool,
    words: bool,
    db: Place | None,
    as_json: bool,
) -> None:
    """Find the records nearest to Q, by words and by meaning.

    \b
    Examples:
      quire record search "API key" --nn 3
      quire record search "deploy" --schema note.v1 --include-context --json
    """
    if not q.strip():
        raise CallError("there is nothing to look for", hint='Say it in words: quire record search "API key".')
    with open_records(db, create=False, words=words, searched=True) as records:
        hits = records.search(
            q, nn=nn, tag=tags, schema_name=schema_name, include_context=include_context, now=now_ms()
        )
    rows = [(f"{hit.relevance:.2f}", hit.record.id, hit.record.schema_name, hit.preview) for hit in hits]
    shown = (["relevance", "id", "schema", "text"], rows) if rows else "nothing was found"
    answer(as_json or include_context, [hit.to_json() for hit in hits], shown)


@record.command()
@click.argument("id")
@db_json_options
def history(id: str, db: Place | None, as_json: bool) -> None:
    """Show every version of a record, oldest first.

    \b
    Examples:
      quire record history rec-1 --json
    """
    with open_records(db, create=False) as records:
        print_records(records.history(id, now=now_ms()), as_json)


# `quire build`: the context of a consumer, from its configuration and the records.


@click.command()
@click.argument("consumer")
@option("--request", "What is asked, as text.")
@option("--trigger", "The record that asks; default: the newest one that triggers.", metavar="ID")
@option("--config config_file", "The configuration; default: its context.config.v1 record.", metavar="FILE")
@option("--context-only", "Leave out the request: print the formatted_context alone.", bool)
@option("--dry-run", "Store nothing: leave the consumer's context record as it is.", bool)
@words_option
@db_json_options
def build(
    consumer: str,
    request: str | None,
    trigger: str | None,
    config_file: str | None,
    context_only: bool,
    dry_run: bool,
    words: bool,
    db: Place | None,
    as_json: bool,
) -> None:
    """Build the context of CONSUMER, store it as its context record, and print what its model receives.

    \b
    Examples:
      quire build chat --request "What was that API key?"
      quire build chat --trigger rec-12 --json
    """
    if request is not None and trigger is not None:
        raise CallError("--request and --trigger exclude each other", hint="A trigger brings its own request.")
    now = now_ms()
    with open_records(db, create=False, words=words) as records:
        builder = Builder(_config(records, consumer, config_file, now))
        asked_by = records.read_full(trigger, now=now) if trigger else None
        if asked_by is None and request is None:
            asked_by = _newest_trigger(records, builder, now)
        built = builder.build(records, trigger=asked_by, request=request, now=now)
        context_record = None if dry_run else builder.keep(records, built, now=now)
    value = {**built.context, "text": built.text, "record": context_record.id if context_record else None}
    answer(as_json, value, partial(print_text, built.formatted_context if context_only else built.text))


def _config(records: Records, consumer: str, file: str | None, now: int) -> Config:
    if file is None:
        return configured(records, consumer, now=now)
    from_file = config(read_json(file))
    if from_file.consumer_id != consumer:
        raise CallError(f"{file} configures {from_file.consumer_id!r}, not {consumer!r}")
    return from_file


def _newest_trigger(records: Records, builder: Builder, now: int) -> Record:
    triggers = [record for selector in builder.config.update_triggers for record in records.select(selector, newest=1, keep=builder.triggered_by, now=now)]  # fmt: skip
    if not triggers:
        raise CallError("no record triggers this consumer", hint="Pass --request TEXT or --trigger ID.")
    return max(triggers, key=lambda record: int(record.id.partition("-")[2]))
