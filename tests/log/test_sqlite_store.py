"""The SQLite store beyond what every store promises: its file, its triggers, its costs."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quire.errors import DamageError
from quire.log.sqlite import SqliteStore
from toolbox import texts, users


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with SqliteStore(tmp_path / "q.db") as opened:
        yield opened


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
