"""`quire show`: the original of anything that a request names or leaves out."""

from __future__ import annotations

from pathlib import Path

import click

from quire.assemble.turn import result_text
from quire.cli.common import db_option, json_option, print_text
from quire.cli.source import load_entries
from quire.cli.store import open_db
from quire.errors import NotFound
from quire.log.entries import encode
from quire.values import Entry


@click.command()
@click.argument("name", metavar="ENTRY|HANDLE")
@click.option(
    "--in", "source", metavar="THREAD|FILE", help="Where to look; needed for an entry given by its seq."
)
@json_option
@db_option
def show(name: str, source: str | None, as_json: bool, db: Path | None) -> None:
    """Print the original of an entry: by id, by the handle a request shows, or by seq with --in.

    \b
    Examples:
      quire show 3fa9c1d2e4b5
      quire show 17 --in demo
      quire show 3fa9c1d2e4b5 --in entries.jsonl --json
    """
    entry = _find(name, source, db)
    print_text((encode(entry) if as_json else _original(entry)) + "\n")


def _find(name: str, source: str | None, db: Path | None) -> Entry:
    if source is None:
        with open_db(db, create=False) as store:
            found = store.find(name)
        if found is not None:
            return found[1]
    else:
        wanted = name.removeprefix("sha256:")
        for entry in load_entries(source, db):
            if str(entry.seq) == name or (
                len(wanted) >= 6 and entry.id.removeprefix("sha256:").startswith(wanted)
            ):
                return entry
    raise NotFound(
        f"no entry is called {name!r}",
        hint="Give an id, at least 6 of its hex digits, or a seq with --in THREAD|FILE.",
    )


def _original(entry: Entry) -> str:
    if entry.kind == "result":
        return result_text(entry)
    if entry.kind == "attach":
        return str(entry.body["item"]["content"])
    return entry.text or encode(entry, ids=False)
