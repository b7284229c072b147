"""How records are read from files and printed, and what is said of the contexts that a change made new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from quire.cli.common import called, print_json, print_table, read_text
from quire.cli.json_text import value_or_lines
from quire.errors import CallError, FormatError
from quire.records.react import Reaction
from quire.records.record import Record
from quire.records.record import to_json
from quire.values import Json


def read_records(file: str) -> tuple[list[Json], bool]:
    """The records of a file, and whether it is one that may hold many: a JSON list or JSON Lines."""
    value, lines = value_or_lines(read_text(file), called(file), "record")
    if lines is not None:
        return [one for _, one in lines], True
    return (value, True) if isinstance(value, list) else ([value], False)


@contextmanager
def content_of(file: str | None) -> Iterator[None]:
    """What is wrong with the content of a file is the data's fault, not the call's."""
    try:
        yield
    except CallError as error:
        if file is None:
            raise
        raise FormatError(f"{called(file)}: {error}", hint=error.hint) from error


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
