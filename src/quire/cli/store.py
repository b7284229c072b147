"""Opening the database that a command works on."""

from __future__ import annotations

from pathlib import Path

from quire.cli.common import default_db
from quire.engine import open_store
from quire.errors import CallError, DamageError, NotFound
from quire.log.sqlite import SqliteStore


def open_db(path: Path | None, create: bool = True) -> SqliteStore:
    """The store at --db, $QUIRE_DB or the default place; commands that only look do not make one."""
    file = path or default_db()
    if create:
        _make_folder(file.parent)
    else:
        _check_there(file)
    return open_store(file)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CallError(
            f"cannot make the folder {folder}: {error.strerror}",
            hint="Choose another place with --db or QUIRE_DB.",
        ) from error


def _check_there(file: Path) -> None:
    if not file.exists():
        raise NotFound(
            f"there is no database at {file}", hint="`quire log new NAME` makes one; --db chooses another."
        )
    if file.is_file() and file.stat().st_size == 0:
        raise DamageError(
            f"{file} is empty (0 bytes): no entry can be read, from entry 1 on",
            seq=1,
            hint="Restore it from a backup; if it never held a thread, `quire log new NAME` begins one in it.",
        )
