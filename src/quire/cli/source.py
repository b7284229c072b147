"""THREAD|FILE: entries from a JSON Lines file, from standard input, or from a thread of the database."""

from __future__ import annotations

import os
from pathlib import Path

from quire.cli.common import read_text
from quire.cli.store import open_db
from quire.errors import NotFound
from quire.log.entries import decode_lines
from quire.log.hashing import chain
from quire.log.usable import usable
from quire.values import Entry


def load_usable(source: str, db: Path | None) -> list[Entry]:
    """The entries as requests are made of them: what cannot be used of their free fields is left aside."""
    return [usable(entry) for entry in load_entries(source, db)]


def load_entries(source: str, db: Path | None) -> list[Entry]:
    """The entries of a file of that name, else of a thread of that name; each with its id and seq."""
    if source == "-" or os.path.isfile(source):
        return list(chain(decode_lines(read_text(source))))
    try:
        opened = open_db(db, create=False)
    except NotFound as error:
        raise NotFound(f"there is no file called {source!r}, and {error}", hint=error.hint) from error
    with opened as store:
        if source not in {one.name for one in store.threads()}:
            raise NotFound(
                f"there is no file and no thread called {source!r}",
                hint="`quire log list` shows the threads.",
            )
        return store.read(source)
