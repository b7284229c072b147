"""A file that lies where nothing can be written is read all the same; writing says why it cannot be.

Permissions do not bind root, so these tests act as another user meanwhile; a read-only filesystem answers
SQLite alike (it cannot make a write-ahead log beside the file), but none is mounted here.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quire import values
from quire.errors import CallError
from quire.log import verify
from quire.log.sqlite import SqliteStore

NOBODY = 65534


@contextmanager
def unprivileged() -> Iterator[None]:
    """Whoever runs this, permissions hold inside the block."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that anyone may enter (pytest's own are for their maker alone) and, when the test asks, nobody write."""
    made = Path(tempfile.mkdtemp(prefix="quire-read-only-"))
    made.chmod(0o755)
    yield made
    made.chmod(0o755)
    shutil.rmtree(made)


def sealed(folder: Path) -> Path:
    """A file with one thread, in a folder in which nothing can be made any more."""
    path = folder / "a.db"
    with SqliteStore(path) as store:
        store.append("t", [values.user("one"), values.respond("two")])
    path.chmod(0o444)
    folder.chmod(0o555)
    return path


def test_a_sealed_file_is_read_verified_and_searched_and_writing_to_it_says_that_it_is_read_only(folder: Path) -> None:
    path = sealed(folder)
    with unprivileged(), SqliteStore(path) as store:
        assert [entry.text for entry in store.read("t")] == ["one", "two"]
        assert store.verify().entries == 2
        assert [info.name for info in store.threads()] == ["t"]
        assert store.find(store.read("t")[1].id) is not None
        with pytest.raises(CallError, match="is read-only") as refused:
            store.append("t", [values.user("three")])
        assert "Copy it" in refused.value.hint
        assert store.info("t").seq == 2
    assert os.listdir(folder) == ["a.db"]
    with unprivileged(), pytest.raises(CallError, match="cannot write"):
        SqliteStore(folder / "new.db")
    path.chmod(0)
    with unprivileged(), pytest.raises(CallError, match=r"cannot read .*a\.db: permission denied"):
        SqliteStore(path)


def test_entries_still_in_the_write_ahead_log_are_not_left_out(folder: Path) -> None:
    whole, path = folder / "whole.db", folder / "a.db"
    with SqliteStore(whole) as store:
        store.append("t", [values.user("one")])
        for ending in ("", "-wal"):
            shutil.copy(f"{whole}{ending}", f"{path}{ending}")
    folder.chmod(0o555)
    with unprivileged(), pytest.raises(CallError, match="is read-only") as refused:
        SqliteStore(path)
    assert "a.db-wal" in refused.value.hint


def test_an_older_file_that_is_sealed_says_that_it_cannot_be_brought_up_to_date(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sealed(folder)
    newer = [*verify.OWNERS, ("more", ("CREATE TABLE more (n INTEGER);",))]
    monkeypatch.setattr(verify, "OWNERS", newer)
    with unprivileged(), pytest.raises(CallError, match=r"older Quire \(more lacks version 1\)"):
        SqliteStore(path)
