"""Several processes and threads on one file: nobody's entries are lost, and nobody writes over another."""

import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quire import values
from quire.errors import ConflictError
from quire.log import connection
from quire.log.sqlite import SqliteStore

# Each writer opens the file itself (at first none exists), waits for nobody, and appends to its own thread,
# and to a common one under expected_seq, reading again whenever someone was first.
WRITER = """
import sys
import threading
from quire import values
from quire.errors import ConflictError
from quire.log.sqlite import SqliteStore

path, me, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
conflicts = 0
with SqliteStore(path) as store:
    for turn in range(rounds):
        store.append(me, [values.user(f"{me} {turn}")] * 2)
        while True:
            seq = next((info.seq for info in store.threads() if info.name == "common"), 0)
            try:
                store.append("common", [values.user(f"{me} {turn}", meta={"expected": seq})], expected_seq=seq)
                break
            except ConflictError:
                conflicts += 1
print(conflicts)
"""


def test_processes_write_their_own_threads_and_a_common_one_at_once(tmp_path: Path) -> None:
    path, writers, rounds = tmp_path / "q.db", 4, 25
    command = [sys.executable, "-c", WRITER, str(path)]
    started = [
        subprocess.Popen([*command, f"w{number}", str(rounds)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for number in range(writers)
    ]
    for process in started:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors.decode()
    with SqliteStore(path) as store:
        assert store.verify().threads == writers + 1
        common = store.read("common")
        for number in range(writers):
            mine = f"w{number}"
            assert [e.text for e in store.read(mine)] == [f"{mine} {t}" for t in range(rounds) for _ in "ab"]
            assert [e.text for e in common if e.text.startswith(mine)] == [f"{mine} {t}" for t in range(rounds)]
    assert [entry.meta["expected"] for entry in common] == list(range(writers * rounds))


def test_a_store_may_be_shared_between_threads(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "q.db") as store, ThreadPoolExecutor(6) as pool:

        def work(number: int) -> None:
            for turn in range(10):
                store.append(f"t{number}", [values.user(str(turn))])
                store.append("common", [values.user(f"{number} {turn}")])
                assert len(store.read(f"t{number}")) == turn + 1

        list(pool.map(work, range(6)))
        assert len(store.read("common")) == 60
        assert store.verify().entries == 120


def test_a_lock_that_outlasts_the_patience_is_a_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_S", 0.2)
    monkeypatch.setattr(connection, "SILENT_S", 0.1)
    path = tmp_path / "q.db"
    with SqliteStore(path) as store, SqliteStore(path) as holder:
        store.append("t", [values.user("a")])
        holder.connection().execute("BEGIN IMMEDIATE")
        with pytest.raises(ConflictError, match="locked by another process"):
            store.append("t", [values.user("b")])
        assert len(store.read("t")) == 1, "reading does not wait for writers"
        maker = sqlite3.connect(tmp_path / "new.db", isolation_level=None)
        maker.execute("BEGIN IMMEDIATE")
        with pytest.raises(ConflictError, match="locked by another process"):
            SqliteStore(tmp_path / "new.db")
        maker.close()
        holder.connection().execute("ROLLBACK")
        store.append("t", [values.user("b")])


def test_commits_are_durable_and_in_a_write_ahead_log(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "q.db") as store:
        pragmas = [store.connection().execute(f"PRAGMA {name}") for name in ("journal_mode", "synchronous")]
        assert [pragma.fetchone()[0] for pragma in pragmas] == ["wal", 2]


def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    """Making the tables is a race that every opener survives."""
    together = threading.Barrier(4)

    def open_and_append(file: Path) -> None:
        together.wait()
        with SqliteStore(file) as store:
            store.append("t", [values.user("x")])

    with ThreadPoolExecutor(4) as pool:
        for number in range(8):
            # One file's four openers at a time, so that one that fails leaves nobody waiting.
            list(pool.map(open_and_append, [tmp_path / f"{number}.db"] * 4))
            with SqliteStore(tmp_path / f"{number}.db") as store:
                assert store.verify().entries == 4


def test_opening_waits_while_another_process_is_making_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite does not wait by itself when it switches a file over to a write-ahead log."""
    path = tmp_path / "q.db"
    maker = sqlite3.connect(path, isolation_level=None)
    maker.execute("BEGIN IMMEDIATE")
    waits = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        maker.execute("ROLLBACK")

    monkeypatch.setattr("quire.log.connection.time.sleep", wait)
    with SqliteStore(path) as store:
        store.append("t", [values.user("x")])
    assert len(waits) == 1
    maker.close()
