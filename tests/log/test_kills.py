"""Whatever was acknowledged survives SIGKILL at any moment, and nothing half-written is left."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import pytest

from quire import Entry
from quire.log.sqlite import SqliteStore

KILLS = 200
NURSERY = Path(__file__).with_name("nursery.py")


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(NURSERY)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


def kill_once(nursery: subprocess.Popen[str], path: Path, task: str, rng: random.Random) -> int:
    """Start a writer, kill it at a random moment, and return the last thing it acknowledged (0: nothing)."""
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    print(path, task, rng.random(), file=nursery.stdin, flush=True)
    acks, wanted, last, pid = 0, rng.choice([0, 0, 1, 2, 5, 10]), 0, 0
    for line in nursery.stdout:
        word, number = line.split()
        if word == "dead":
            assert int(number) == signal.SIGKILL, "the writer ended by itself"
            return last
        if word == "pid":
            pid = int(number)
        else:
            acks, last = acks + 1, int(number)
        # The writer's first acknowledgement may come before the line that tells its pid.
        if pid and acks >= wanted:
            spin(rng.random() * 0.004)
            os.kill(pid, signal.SIGKILL)
            pid, wanted = 0, 10**9
    raise AssertionError("the nursery ended")


def spin(seconds: float) -> None:
    end = perf_counter() + seconds
    while perf_counter() < end:
        pass


def assert_whole_batches(entries: list[Entry]) -> None:
    position = 0
    while position < len(entries):
        size = entries[position].meta["of"]
        batch = entries[position : position + size]
        first = entries[position].meta
        assert [entry.meta for entry in batch] == [{**first, "part": part} for part in range(size)]
        position += size


def test_every_acknowledged_entry_survives_two_hundred_kills(nursery: subprocess.Popen[str], tmp_path: Path) -> None:
    rng, seen, landed = random.Random(2), 0, 0
    path = tmp_path / "kept.db"
    for _ in range(KILLS):
        acknowledged = kill_once(nursery, path, "append", rng)
        with SqliteStore(path) as store:
            new = store.read("t", after=seen) if store.threads() else []
        assert acknowledged <= seen + len(new)
        assert [entry.seq for entry in new] == list(range(seen + 1, seen + len(new) + 1))
        assert_whole_batches(new)
        landed += acknowledged > seen
        seen += len(new)
    with SqliteStore(path) as store:
        assert store.verify().entries == seen
        assert_whole_batches(store.read("t"))
    assert landed > KILLS // 4, "most kills came before anything was written"


def test_a_kill_while_the_file_is_made_leaves_one_that_opens(nursery: subprocess.Popen[str], tmp_path: Path) -> None:
    rng = random.Random(3)
    for number in range(30):
        path = tmp_path / f"new-{number}.db"
        acknowledged = kill_once(nursery, path, "append", rng)
        with SqliteStore(path) as store:
            assert store.verify().entries >= acknowledged


def test_kills_amid_forks_and_deletions_leave_a_sound_file(nursery: subprocess.Popen[str], tmp_path: Path) -> None:
    rng = random.Random(4)
    path = tmp_path / "churned.db"
    for _ in range(40):
        kill_once(nursery, path, "churn", rng)
        with SqliteStore(path) as store:
            verified = store.verify()
            reached = {entry.id for info in store.threads() for entry in store.read(info.name)}
            stored = store.connection().execute("SELECT DISTINCT id FROM entries").fetchall()
            assert reached == {id for (id,) in stored}
            assert store.connection().execute("SELECT count(*) FROM deleting").fetchone() == (0,)
            assert verified.threads == len(store.threads())
