"""`quire recall`: find older entries by meaning and by words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from quire.cli.common import db_option, json_option, print_json, print_table
from quire.cli.store import open_db
from quire.errors import MissingPart

if TYPE_CHECKING:
    from quire.recall.embed import Embedder
    from quire.recall.search import Hit


@click.command(name="recall")
@click.argument("text")
@click.option("--k", default=5, show_default=True, help="How many entries.")
@click.option("--thread", help="Search in this thread alone (default: in all).")
@click.option("--before", type=int, help="Only entries in front of this seq of the thread.")
@click.option(
    "--kinds", help="Comma-separated kinds: user, respond, result, note, attach (default: all of them)."
)
@click.option("--neighbours", default=0, show_default=True, help="Entries around each hit, on each side.")
@click.option("--explain", is_flag=True, help="Show the parts of each score.")
@click.option(
    "--words", "words_only", is_flag=True, help="Search by words alone, without the embedding model."
)
@json_option
@db_option
def recall(
    text: str,
    k: int,
    thread: str | None,
    before: int | None,
    kinds: str | None,
    neighbours: int,
    explain: bool,
    words_only: bool,
    as_json: bool,
    db: Path | None,
) -> None:
    """Find older entries by meaning and by words.

    \b
    Examples:
      quire recall "which API key format" --thread demo
      quire recall "order number" --k 10 --explain
    """
    from quire.recall import Recall

    with open_db(db, create=False) as store:
        searching = Recall(store, None if words_only else embedder())
        wanted = kinds.split(",") if kinds else None
        hits = searching.search(text, k, thread=thread, before=before, kinds=wanted, neighbours=neighbours)
    if as_json:
        print_json({"by": searching.by, "hits": [msgspec.to_builtins(hit) for hit in hits]})
        return
    if searching.embedder is None:
        click.echo(
            "searched by words alone" + ("" if words_only else " (no embedding model is installed)"), err=True
        )
    if not hits:
        click.echo("nothing was found")
        return
    parts = list(hits[0].parts) if hits and explain else []
    rows = [
        [
            hit.thread,
            hit.seq,
            hit.entry.kind,
            f"{hit.score:.2f}",
            *(f"{hit.parts[p]:.2f}" for p in parts),
            _line(hit),
        ]
        for hit in hits
    ]
    print_table(["thread", "seq", "kind", "score", *parts, "text"], rows)


def embedder() -> Embedder | None:
    """The embedding model where it is installed."""
    try:
        from quire.recall import minilm

        return minilm()
    except MissingPart:
        return None


def _line(hit: Hit) -> str:
    """The text of a hit on one line."""
    from quire.recall.searchable import document

    text = " ".join(document(hit.entry).text.split())
    return text if len(text) <= 100 else text[:99] + "…"
