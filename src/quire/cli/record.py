"""`quire record`: read and search records, and see their versions; what changes them is in `record_changes`."""

from __future__ import annotations

from pathlib import Path

import click

from quire.cli import record_changes
from quire.cli.common import db_option, json_option, print_json, print_table
from quire.cli.record_lines import print_records
from quire.cli.records_db import NO_MODEL, embedder, now_ms, open_records, words_option
from quire.errors import CallError
from quire.records.record import to_json, view


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def record() -> None:
    """Keep records: documents with tags, versions, a time to live, and hints on what a model sees of them.

    \b
    Examples:
      quire record create --schema user.message.v1 --context '{"content": "Hello"}'
      quire record get rec-1
      quire record search "API key"
    """


for _command in record_changes.COMMANDS:
    record.add_command(_command)


@record.command(short_help="Print a record as a model sees it.")
@click.argument("id")
@click.option("--full", is_flag=True, help="All of it, without applying its hints.")
@click.option("--version", type=int, help="An older version.")
@db_option
@json_option
def get(id: str, full: bool, version: int | None, db: Path | None, as_json: bool) -> None:
    """Print a record as a model sees it: its hints applied, or an error beside the context as it is.

    \b
    Examples:
      quire record get rec-1
      quire record get rec-1 --full --version 1
    """
    with open_records(db, create=False) as records:
        found = records.read_full(id, version=version, now=now_ms())
    print_json(to_json(found if full else view(found)))


@record.command(name="list")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only with this tag; may be given again.")
@click.option("--schema", "schema_name", default="", help="Only of this schema.")
@click.option("--owner", default="", help="Only of this owner.")
@click.option("--limit", type=click.IntRange(min=0), help="Only the last so many.")
@db_option
@json_option
def list_(
    tags: tuple[str, ...], schema_name: str, owner: str, limit: int | None, db: Path | None, as_json: bool
) -> None:
    """List records in the order they were created.

    \b
    Examples:
      quire record list
      quire record list --schema tool.v1 --tag workspace:tools --json
    """
    with open_records(db, create=False) as records:
        found = records.list(schema_name=schema_name, tag=tags, owner=owner, limit=limit, now=now_ms())
    print_records(found, as_json)


@record.command()
@click.argument("q")
@click.option("--nn", type=click.IntRange(min=1), default=5, show_default=True, help="At most so many.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Only with this tag; may be given again.")
@click.option("--schema", "schema_name", default="", help="Only of this schema.")
@click.option("--include-context", is_flag=True, help="Print what they hold, hints applied.")
@words_option
@db_option
@json_option
def search(
    q: str,
    nn: int,
    tags: tuple[str, ...],
    schema_name: str,
    include_context: bool,
    words: bool,
    db: Path | None,
    as_json: bool,
) -> None:
    """Find the records nearest to Q, by words and by meaning.

    \b
    Examples:
      quire record search "API key" --nn 3
      quire record search "deploy" --schema note.v1 --include-context --json
    """
    if not q.strip():
        raise CallError(
            "there is nothing to look for", hint='Say it in words: quire record search "API key".'
        )
    if not words and embedder() is None:
        click.echo(f"searched {NO_MODEL}", err=True)
    with open_records(db, create=False, words=words) as records:
        hits = records.search(
            q, nn=nn, tag=tags, schema_name=schema_name, include_context=include_context, now=now_ms()
        )
    if as_json or include_context:
        print_json([hit.to_json() for hit in hits])
        return
    if not hits:
        click.echo("nothing was found")
        return
    rows = [(f"{hit.relevance:.2f}", hit.record.id, hit.record.schema_name, hit.preview) for hit in hits]
    print_table(["relevance", "id", "schema", "text"], rows)


@record.command()
@click.argument("id")
@db_option
@json_option
def history(id: str, db: Path | None, as_json: bool) -> None:
    """Show every version of a record, oldest first.

    \b
    Examples:
      quire record history rec-1 --json
    """
    with open_records(db, create=False) as records:
        print_records(records.history(id, now=now_ms()), as_json)
