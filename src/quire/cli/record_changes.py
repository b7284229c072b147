"""The commands of `quire record` that change something: create, update, delete, catalog, purge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from quire.cli.common import confirm_deletion, counted, db_option, json_option, print_json, read_json
from quire.cli.json_text import value_of
from quire.cli.record_lines import content_of, print_record, print_records, read_records, report
from quire.cli.records_db import now_ms, open_records
from quire.errors import CallError, FormatError
from quire.records import keep_catalog, react
from quire.records.record import Record, draft, fields_of
from quire.values import JsonObject


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


def _fields(command: Any) -> Any:
    """The options that set a record's fields."""
    options = [
        click.option("--title", help="What it is called."),
        click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag; may be given again."),
        click.option(
            "--context", callback=_json, metavar="JSON", help="What it holds: a JSON object, or @FILE."
        ),
        click.option("--hints", callback=_json, metavar="JSON", help="llm_hints: a JSON object, or @FILE."),
        click.option("--ttl", "ttl_s", type=float, metavar="SECONDS", help="Expires after so many seconds."),
        click.option("--owner", help="Whose it is."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _options(fields: JsonObject) -> JsonObject:
    """The fields that options give; they stand in front of a file's."""
    named = {("llm_hints" if key == "hints" else key): value for key, value in fields.items()}
    return {key: value for key, value in named.items() if value is not None and value != ()}


@click.command(short_help="Keep a new record, from FILE or from options.")
@click.argument("file", required=False)
@click.option("--schema", "schema_name", help="Its schema, such as user.message.v1.")
@_fields
@db_option
@json_option
def create(file: str | None, db: Path | None, as_json: bool, **fields: Any) -> None:
    """Keep a new record, from FILE (or - for stdin) and the options; consumers it concerns get a new context.

    FILE holds one record, or many as a JSON list or JSON Lines; many are kept all or none.

    \b
    Examples:
      quire record create --schema note.v1 --title Plan --tag work --context '{"text": "Ship it"}'
      quire record create record.json --ttl 3600
      quire record create messages.jsonl
    """
    now = now_ms()
    values, many = read_records(file) if file else ([{}], False)
    with content_of(file):
        given = [fields_of(value) for value in values]
        drafts = [_draft(one | _options(fields), now) for one in given]
    with open_records(db) as records:
        made = records.create_all(drafts)
        report(react(records, *made, now=now))
    if many:
        print_records(made, as_json)
    else:
        print_record(made[0], as_json, f"{made[0].id} version 1")


def _draft(given: JsonObject, now: int) -> Record:
    if "schema_name" not in given:
        raise CallError("a record needs a schema", hint="Pass --schema, or a FILE with schema_name.")
    return draft(given.pop("schema_name"), given.pop("context", {}), **given, now=now)


@click.command()
@click.argument("id")
@click.argument("file", required=False)
@click.option(
    "--version", type=int, required=True, help="The version you saw; another one there is a conflict."
)
@_fields
@db_option
@json_option
def update(id: str, file: str | None, version: int, db: Path | None, as_json: bool, **fields: Any) -> None:
    """Change what is given of a record; the rest stays. Consumers it concerns get a new context.

    \b
    Examples:
      quire record update rec-1 --version 1 --title "New plan"
      quire record update rec-1 changes.json --version 2
    """
    value = read_json(file) if file else {}
    with content_of(file):
        given = fields_of(value) | _options(fields)
    if "schema_name" in given:
        raise CallError("the schema of a record never changes", hint="Create a new record.")
    now = now_ms()
    with open_records(db, create=False) as records:
        made = records.update(id, version, **given, now=now)
        report(react(records, made, now=now))
    print_record(made, as_json, f"{made.id} version {made.version}")


@click.command()
@click.argument("id")
@click.option("--version", type=int, help="Only if it still is this version.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@db_option
@json_option
def delete(id: str, version: int | None, yes: bool, db: Path | None, as_json: bool) -> None:
    """Delete a record for ever, with all its versions.

    \b
    Examples:
      quire record delete rec-1
      quire record delete rec-1 --yes
    """
    with open_records(db, create=False) as records:
        if not yes:
            version = _agreed(records.read_full(id), version)
        records.delete(id, version)
    print_json({"deleted": id}) if as_json else click.echo(f"deleted {id}")


def _agreed(seen: Record, version: int | None) -> int:
    """The version that may go: the one named in the question, or one that is a conflict without asking."""
    if version in (None, seen.version):
        called = f" {seen.title!r}" if seen.title else ""
        versions = counted(seen.version, "version")
        confirm_deletion(f"record {seen.id} ({seen.schema_name}{called}) with {versions}", name=seen.id)
    return seen.version if version is None else version


@click.command(short_help="Make or renew the record of all tools.")
@click.argument("file", required=False)
@db_option
@json_option
def catalog(file: str | None, db: Path | None, as_json: bool) -> None:
    """Make or renew the tool.catalog.v1 record, from the tools in FILE or from the tool.v1 records.

    \b
    Examples:
      quire record catalog tools.json
      quire record create --schema tool.v1 --context '{"name": "echo"}' && quire record catalog
    """
    tools = read_json(file) if file else None
    if tools is not None and not isinstance(tools, list):
        raise FormatError(
            f"{file} holds no list of tools", hint='Write [{"name": "…", "description": "…"}, …].'
        )
    now = now_ms()
    with open_records(db) as records:
        made = keep_catalog(records, tools, now=now)
        report(react(records, made, now=now))
    print_record(
        made, as_json, f"{made.id} version {made.version}: {counted(len(made.context['tools']), 'tool')}"
    )


@click.command()
@db_option
@json_option
def purge(db: Path | None, as_json: bool) -> None:
    """Remove the records whose time has passed.

    \b
    Examples:
      quire record purge
    """
    with open_records(db, create=False) as records:
        count = records.purge(now_ms())
    print_json({"purged": count}) if as_json else click.echo(f"purged {count}")


COMMANDS = (create, update, delete, catalog, purge)
