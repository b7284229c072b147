"""Opening the database that a command works on."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from quire.cli.output import Place, default_db, echo, progress, read_text
from quire.errors import CallError, DamageError, NotFound
from quire.values import Entry

if TYPE_CHECKING:
    from quire.log.store import Store
    from quire.recall import Embedder
    from quire.records import Records


def open_db(path: Place | None, create: bool = True) -> Store:
    """The store at --db, $QUIRE_DB or the default place; commands that only look do not make one."""
    from quire.thread import open_store

    place = path or default_db()
    if create:
        make_folder(place)
    else:
        _check_there(place)
    return open_store(place)


def make_folder(place: Place) -> None:
    """The folder of a database file, made when it is not there yet."""
    if isinstance(place, str):
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CallError(
            f"cannot make the folder {place.parent}: {error.strerror}",
            hint="Choose another place with --db or QUIRE_DB.",
        ) from error


def _check_there(file: Place) -> None:
    if isinstance(file, str):
        return
    if not file.exists():
        raise NotFound(f"there is no database at {file}", hint="`quire log new NAME` makes one; --db chooses another.")
    if file.is_file() and file.stat().st_size == 0:
        raise DamageError(
            f"{file} is empty (0 bytes): no entry can be read, from entry 1 on",
            seq=1,
            hint="Restore it from a backup; if it never held a thread, `quire log new NAME` begins one in it.",
        )


# THREAD|FILE: entries from a JSON Lines file, from standard input, or from a thread of the database.


def load_usable(source: str, db: Place | None) -> list[Entry]:
    """The entries as requests are made of them: what cannot be used of their free fields is left aside."""
    from quire.log.entries import usable

    return [usable(entry) for entry in load_entries(source, db)]


def load_entries(source: str, db: Place | None, seq: int | None = None) -> list[Entry]:
    """The entries of a file of that name, else of a thread of that name (with `seq`: that one); each with id and seq."""
    from quire.entry import chain
    from quire.log.entries import decode_lines

    if is_file(source):
        return list(chain(decode_lines(read_text(source))))
    with open_thread(source, db) as store:
        return store.read(source) if seq is None else store.read(source, max(0, seq - 1), 1)


def is_file(source: str) -> bool:
    """Whether THREAD|FILE is a file, or standard input."""
    return source == "-" or os.path.isfile(source)


@contextmanager
def open_thread(source: str, db: Place | None) -> Iterator[Store]:
    """The store that holds a thread of that name."""
    try:
        opened = open_db(db, create=False)
    except NotFound as error:
        raise NotFound(f"there is no file called {source!r}, and {error}", hint=error.hint) from error
    with opened as store:
        if source not in {thread.name for thread in store.threads()}:
            raise NotFound(
                f"there is no file and no thread called {source!r}",
                hint="`quire log list` shows the threads; --db FILE reads another database.",
            )
        yield store


def entries_so_far(store: Store, thread: str) -> list[Entry]:
    """The entries of a thread; none where it has not begun yet."""
    try:
        return store.read(thread)
    except NotFound:
        return []


def append_new(store: Store, thread: str, entries: list[Entry]) -> tuple[int, int]:
    """Append what a thread does not hold yet of a conversation; how many entries that were, and how many it had."""
    from quire.log.entries import known_entries

    before = entries_so_far(store, thread)
    fresh = entries[known_entries(before, entries) :]
    store.append(thread, fresh)
    return len(fresh), len(before)


# Opening the records that a command works on, with the embedding model where it is installed.

# Fewer vectors than this are made before a bar could be read.
WORTH_SHOWING = 64
NO_MODEL = "by words alone: the embedding model is not installed (quire local install minilm)"


words_option = click.option("--words", is_flag=True, help="Go by words alone, without the embedding model.")


def embedder() -> Embedder | None:
    """The embedding model, or None where a part of it is not installed."""
    if importlib.util.find_spec("numpy") is None:
        return None
    from quire.recall.meaning import installed

    return installed()


@contextmanager
def embedding_progress() -> Iterator[Callable[[int, int], None]]:
    """Tells on stderr how many vectors of many are made: a bar on a terminal, elsewhere a line at the beginning."""
    with progress() as tell:

        def show(count: int, all: int) -> None:
            if all >= WORTH_SHOWING:
                if count == 0 and not sys.stderr.isatty():
                    echo(f"embedding {all:,} records, once", err=True)
                tell("embedding records", count, all)

        yield show


@contextmanager
def open_records(
    db: Place | None, create: bool = True, words: bool = False, searched: bool = False
) -> Iterator[Records]:
    """The records at --db; vectors that a command has to make first are shown on stderr.

    Whoever searches hears it where that goes by words alone although meaning was wanted.
    """
    from quire.records import Records

    model = None if words else embedder()
    if searched and not words and model is None:
        echo(f"searched {NO_MODEL}", err=True)
    with open_db(db, create=create) as store, embedding_progress() as show:
        yield Records(store, model, show)
