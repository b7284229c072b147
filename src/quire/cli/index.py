"""`quire index`: bring the search index up to date."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.progress import Progress as Bar

from quire.cli.common import db_option, json_option, print_json
from quire.cli.recall import embedder
from quire.cli.store import open_db

if TYPE_CHECKING:
    from quire.recall.indexer import Progress


@click.command(name="index")
@click.option("--rebuild", is_flag=True, help="Throw the index away and make it again from the log.")
@click.option("--words", "words_only", is_flag=True, help="Words alone, without the embedding model.")
@json_option
@db_option
def index(rebuild: bool, words_only: bool, as_json: bool, db: Path | None) -> None:
    """Bring the search index up to date; can be stopped at any moment and goes on where it was.

    \b
    Examples:
      quire index
      quire index --rebuild
    """
    from quire.recall import Indexer

    with open_db(db, create=False) as store:
        indexer = Indexer(store, None if words_only else embedder())
        with _bar() as tell:
            made = indexer.rebuild(tell) if rebuild else indexer.run(tell)
    if as_json:
        print_json({"meaning": indexer.embedder is not None, **msgspec.to_builtins(made)})
        return
    click.echo(f"words of {made.worded} entries, meaning of {made.embedded} entries and {made.words} words")
    if indexer.embedder is None and not words_only:
        click.echo("no embedding model is installed: recall searches by words", err=True)


@contextmanager
def _bar() -> Iterator[Progress]:
    """A bar per kind of work on stderr; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks = {what: bar.add_task(what, visible=False) for what in ("words", "meaning", "kin")}
        yield lambda what, done, of: bar.update(tasks[what], completed=done, total=of, visible=True)
