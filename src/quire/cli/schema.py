"""`quire schema`: the published JSON schemas, to the byte."""

from __future__ import annotations

from importlib import resources

import click

from quire.cli.common import print_text

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
    print_text(resources.files("quire.schemas").joinpath(f"{name}.json").read_text(encoding="utf-8"))
