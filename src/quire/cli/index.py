"""`quire index`: bring the search index up to date, of entries and of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console
from rich.progress import Progress as Bar

from quire.cli.common import counted, db_option, json_option, print_json
from quire.cli.records_db import NO_MODEL, embedder, now_ms
from quire.cli.store import open_db

if TYPE_CHECKING:
    from quire.recall.indexer import Indexed, Progress

_WORK = ("words", "meaning", "kin", "records")


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
    from quire.records import Records

    model = None if words_only else embedder()
    with open_db(db, create=False) as store, _bar() as tell:
        indexer = Indexer(store, model)
        made = indexer.rebuild(tell) if rebuild else indexer.run(tell)
        records = Records(store, model, lambda done, of: tell("records", done, of))
        meant = records.index(rebuild=rebuild, now=now_ms()) if model else 0
    if as_json:
        print_json({"meaning": model is not None, **msgspec.to_builtins(made), "records": meant})
        return
    click.echo(_done(made, meant))
    if model is None and not words_only:
        click.echo(f"recall searches {NO_MODEL}", err=True)


def _done(made: Indexed, records: int) -> str:
    """What was new, in a sentence; what was there already is not told."""
    worded = _listed([(made.worded, "entry", "entries")])
    meant = _listed(
        [(made.embedded, "entry", "entries"), (made.words, "word", "words"), (records, "record", "records")]
    )
    news = [f"the {what} of {of}" for what, of in (("words", worded), ("meaning", meant)) if of]
    return f"indexed {'; '.join(news)}" if news else "the index was up to date"


def _listed(amounts: Sequence[tuple[int, str, str]]) -> str:
    """Those that are not zero: "4 entries, 6 words and 1 record"."""
    named = [counted(*amount) for amount in amounts if amount[0]]
    return " and ".join([", ".join(named[:-1]), named[-1]]) if len(named) > 1 else "".join(named)


@contextmanager
def _bar() -> Iterator[Progress]:
    """A bar per kind of work on stderr; nothing where stderr is no terminal."""
    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks = {what: bar.add_task(what, visible=False) for what in _WORK}
        yield lambda what, done, of: bar.update(tasks[what], completed=done, total=of, visible=True)
