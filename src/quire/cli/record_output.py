"""How records are printed, and what is said of the contexts that a change made new."""

from __future__ import annotations

from collections.abc import Sequence

import click

from quire.cli.common import print_json, print_table
from quire.records import Reaction, Record
from quire.records.record import to_json


def print_record(record: Record, as_json: bool, line: str) -> None:
    if as_json:
        print_json(to_json(record))
    else:
        click.echo(line)


def print_records(records: Sequence[Record], as_json: bool) -> None:
    """All fields as JSON, or a table of their heads."""
    if as_json:
        print_json([to_json(record) for record in records])
        return
    rows = [(one.id, one.version, one.schema_name, one.title, " ".join(one.tags)) for one in records]
    print_table(["id", "version", "schema", "title", "tags"], rows)


def report(reaction: Reaction) -> None:
    """On stderr: which contexts are new, and which configurations are broken."""
    for output in reaction.outputs:
        click.echo(
            f"context of {output.context['consumer_id']} is {output.id} version {output.version}", err=True
        )
    for problem in reaction.problems:
        click.echo(f"warning: {problem}", err=True)
