"""The SQLite store beyond what every store promises: its file, its triggers, its costs, and files that are read-only."""

import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from quire import values
from quire.errors import CallError, DamageError, QuireError
from quire.log import sqlite
from quire.log.sqlite import SqliteStore
from toolbox import texts, users


def test_what_was_deleted_is_not_left_in_the_files(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "q.db") as store:
        store.append("t", users("the secret word is xyzzy", "y" * 20_000 + "xyzzy"))
        store.append("other", users("stays"))
        store.delete("t")
        assert b"xyzzy" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert texts(store, "other") == ["stays"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET body = '{}' WHERE seq = 2",
        "UPDATE entries SET seq = 9 WHERE seq = 3",
        "DELETE FROM entries WHERE seq = 3",
        "DELETE FROM entries",
        "INSERT OR REPLACE INTO entries (branch, seq, id, body, crc) SELECT branch, seq, id, '{}', crc FROM entries",
        "REPLACE INTO entries (n, branch, seq, id, body, crc) SELECT 1, branch, 4, id, '{}', crc FROM entries LIMIT 1",
        "INSERT INTO entries (branch, seq, id, body, crc) SELECT branch, 5, id, body, crc FROM entries LIMIT 1",
        "INSERT INTO entries (branch, seq, id, body, crc) VALUES (77, 1, 'x', '{}', 0)",
        "UPDATE OR REPLACE entries SET seq = 1 WHERE seq = 3",
    ],
)
def test_single_entries_can_be_neither_changed_nor_deleted(tmp_path: Path, statement: str) -> None:
    with SqliteStore(tmp_path / "q.db") as store:
        store.append("t", users("a", "b", "c"))
    stranger = sqlite3.connect(tmp_path / "q.db")
    with pytest.raises(sqlite3.IntegrityError, match=r"entries (never change|go only|are only appended)"):
        stranger.execute(statement)
    stranger.close()
    with SqliteStore(tmp_path / "q.db") as store:
        assert texts(store, "t") == ["a", "b", "c"]


def test_a_window_state_and_a_checkpoint_are_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "q.db") as store:
        store.save_window("t", {"items": []})
        store.set_state("t", "layers", [3])
        store.save_checkpoint("t", b"state")
    with SqliteStore(tmp_path / "q.db") as store:
        assert (store.window("t"), store.get_state("t", "layers")) == ({"items": []}, [3])
        assert store.checkpoint("t") == b"state"


def test_what_is_damaged_of_a_window_or_a_state_is_named_and_a_checkpoint_is_gone(store: SqliteStore) -> None:
    store.create("t")
    store.save_window("t", {"items": []})
    store.connection().execute("UPDATE windows SET body = '{'")
    with pytest.raises(DamageError, match="the window saved with thread 't' is damaged"):
        store.window("t")
    store.set_state("t", "k", [1])
    for value in ("'{'", "x'ff'"):
        store.connection().execute(f"UPDATE state SET value = {value}")
        with pytest.raises(DamageError, match="the state 'k' saved with thread 't' is damaged"):
            store.get_state("t", "k")
    store.save_checkpoint("t", b"state")
    store.connection().execute("UPDATE checkpoints SET body = x'00'")
    assert store.checkpoint("t") is None


def steps(store: SqliteStore, work: Callable[[], object]) -> int:
    """How many steps SQLite takes for some work: its cost, without a clock."""
    taken = [0]

    def count() -> int:
        taken[0] += 1
        return 0

    store.connection().set_progress_handler(count, 10)
    work()
    store.connection().set_progress_handler(None, 10)
    return taken[0]


def test_the_cost_of_appending_and_of_a_page_does_not_grow_with_the_thread(store: SqliteStore) -> None:
    costs = []
    for _ in range(2):
        store.append("t", users("x") * 1000)
        fork = store.fork("t", store.info("t").seq)
        for work in (
            lambda: store.append("t", users("y")),
            lambda: store.append(fork, users("y")),  # noqa: B023  # called in this round
            lambda: store.read("t", after=500, limit=3),
            lambda: store.read("t", after=store.info("t").seq - 1),
            lambda: store.info("t"),
        ):
            costs.append(steps(store, work))
    assert all(late <= early + 3 for early, late in zip(costs[:5], costs[5:], strict=True)), costs
    assert max(costs) < 100


def test_a_reader_who_has_everything_asks_once(store: SqliteStore) -> None:
    kept = store.append("t", users("a", "b"))
    asked: list[str] = []
    store.connection().set_trace_callback(asked.append)
    assert store.read("t", after=2) == []
    assert len(asked) == 1
    assert store.read("t", after=1) == kept[1:]
    assert len(asked) > 2


# Permissions do not bind root, so these tests act as another user meanwhile; a read-only filesystem answers SQLite
# alike (it cannot make a write-ahead log beside the file), but none is mounted here.
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
        assert texts(store, "t") == ["one", "two"]
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
            Path(f"{path}{ending}").chmod(0o644)
    folder.chmod(0o555)
    with unprivileged(), pytest.raises(CallError, match="is read-only") as refused:
        SqliteStore(path)
    assert "a.db-wal" in refused.value.hint


def test_an_older_file_that_is_sealed_says_that_it_cannot_be_brought_up_to_date(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sealed(folder)
    newer = [*sqlite.OWNERS, ("more", ("CREATE TABLE more (n INTEGER);",))]
    monkeypatch.setattr(sqlite, "OWNERS", newer)
    with unprivileged(), pytest.raises(CallError, match=r"older Quire \(more lacks version 1\)"):
        SqliteStore(path)


@pytest.mark.parametrize("replaced", [False, True], ids=["moved", "replaced"])
def test_nothing_is_written_to_a_file_that_was_taken_away(tmp_path: Path, replaced: bool) -> None:
    path, elsewhere = tmp_path / "q.db", tmp_path / "moved.db"
    with SqliteStore(path) as store:
        store.append("t", users("a"))
        path.rename(elsewhere)
        if replaced:
            shutil.copy(elsewhere, path)
        with ThreadPoolExecutor(1) as pool:  # one that comes now finds the same
            for append in (store.append, lambda *what: pool.submit(store.append, *what).result(600)):
                with pytest.raises(QuireError, match=r"q\.db was moved, deleted or replaced while it was open"):
                    append("t", users("b"))
        elsewhere.rename(path)
        store.append("t", users("c"))
        assert texts(store, "t") == ["a", "c"]


@pytest.mark.parametrize("name", ["folder/q.db", "link"])
def test_a_log_that_lost_its_file_is_not_thrown_away(tmp_path: Path, name: str) -> None:
    """SQLite would begin a new file, and delete the log that holds what was acknowledged."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(path := tmp_path / "folder" / "q.db")
    named, elsewhere = tmp_path / name, tmp_path / "moved.db"
    with SqliteStore(named) as store:
        store.append("t", users("a"))
        assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
        path.rename(elsewhere)
        for begun in (False, True):
            if begun:
                path.touch()
            with pytest.raises(CallError, match=r"q\.db is gone, and its write-ahead log .*q\.db-wal is left"):
                SqliteStore(named)
        elsewhere.rename(path)
        with SqliteStore(named) as again:
            assert texts(again, "t") == ["a"]


def test_a_relative_path_is_the_same_file_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with SqliteStore("q.db") as store:
        store.append("t", users("a"))
        (tmp_path / "below").mkdir()
        monkeypatch.chdir("below")
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(texts, store, "t").result(600) == ["a"]
    assert not Path("q.db").exists()


def test_closing_waits_for_an_os_thread_that_reads(tmp_path: Path) -> None:
    """A connection that is closed while it is used would end the process."""
    store = SqliteStore(tmp_path / "log.db")
    store.append("t", users("a"))
    reads, may_end = threading.Event(), threading.Event()
    read: list[int] = []

    def reader() -> None:
        with store.index.snapshot():
            reads.set()
            may_end.wait(30)
            read.append(len(store.index.stretches("t")))

    working = threading.Thread(target=reader)
    working.start()
    reads.wait(30)
    closing = threading.Thread(target=store.close)
    closing.start()
    closing.join(0.2)
    waited = closing.is_alive()
    may_end.set()
    working.join()
    closing.join()
    assert waited
    assert read == [1]
    with pytest.raises(CallError, match="closed"):
        store.read("t")
