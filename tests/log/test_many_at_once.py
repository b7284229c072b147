"""Many OS threads at once: one Thread object shared, connections that end with the threads that opened them."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import quire
from quire import values
from quire.log.sqlite import SqliteStore
from quire.log.store import Store
from quire.send.tools import in_thread
from quire.thread import Thread, open_store

TARGET = "anthropic:claude-sonnet-4-5"


def together(count: int, work: Callable[[int], None]) -> None:
    """Run work(0), work(1), … at once, each in an OS thread of its own; the first error is raised."""
    errors: list[BaseException] = []
    ready = threading.Barrier(count)

    def one(number: int) -> None:
        ready.wait()
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.moves_prefix(reason="others speak before a request is answered", everywhere=True)
@pytest.mark.parametrize("place", ["file", ":memory:"])
def test_eight_os_threads_on_one_thread_get_the_requests_of_one(place: str, tmp_path: Path) -> None:
    with open_store(tmp_path / "t.db" if place == "file" else place) as store:
        shared = Thread(store, "t", clock=lambda: 0)
        shared.append(values.system("Be brief."))
        seen: list[tuple[int, str]] = []

        def talk(number: int) -> None:
            for turn in range(6):
                with shared.lock:  # a request belongs to what the log holds when it is made
                    shared.user(f"{number} asks {turn}")
                    seen.append((store.info("t").seq, shared.request(TARGET).lines.sha256))
                shared.append(values.respond(f"{number} hears {turn}"))
                shared.request(TARGET)

        together(8, talk)
        entries = store.read("t")
        assert len(entries) == 1 + 8 * 6 * 2
        assert store.verify("t").entries == len(entries)
        alone = {seq: bytes_at(entries, seq) for seq, _ in seen[:: max(1, len(seen) // 12)]}
        assert [sent for seq, sent in seen if seq in alone] == list(alone.values())
        assert shared.request(TARGET).lines.sha256 == bytes_at(entries, len(entries))


def bytes_at(entries: list[values.Entry], seq: int) -> str:
    """The request that one OS thread alone makes of the first entries of a log."""
    with SqliteStore(":memory:") as store:
        store.append("t", entries[:seq])
        return Thread(store, "t", clock=lambda: 0).request(TARGET).lines.sha256


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
def test_what_runs_in_a_thread_of_its_own_leaves_no_connection_open(tmp_path: Path) -> None:
    async def calls(store: Store) -> None:
        for _ in range(60):
            await in_thread(lambda: store.info("t"))

    with open_store(tmp_path / "t.db") as store:
        store.append("t", [values.user("a")])
        together(8, lambda _: store.info("t"))
        # SQLite itself keeps the descriptors of closed connections for the next ones.
        before = descriptors()
        asyncio.run(calls(store))
        for _ in range(5):
            together(8, lambda _: store.info("t"))
        assert descriptors() <= before + 8 * 3


def test_an_opened_thread_is_closed_by_with_and_by_being_forgotten(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with quire.open(tmp_path / "t.db", "t") as thread:
            thread.user("a")
        with pytest.raises(Exception, match="closed"):
            thread.store.info("t")
        quire.open(tmp_path / "t.db", "t").user("b")
        gc.collect()
    assert not [file.name for file in tmp_path.iterdir() if file.name.endswith("-wal")]


def test_a_store_that_was_given_stays_open(tmp_path: Path) -> None:
    with open_store(tmp_path / "t.db") as store:
        with Thread(store, "t") as thread:
            thread.user("a")
        assert store.info("t").seq == 1


NOTES = (
    "from quire.notes.index import NoteIndex, Vault; NoteIndex(Vault('.'), 'a.db'); n = NoteIndex(Vault('.'), 'b.db')"
)


@pytest.mark.parametrize(
    "script", ["import quire; quire.open('t.db', 't').user('a'); t = quire.open('t.db', 't'); t.user('b')", NOTES]
)
def test_no_connection_is_left_to_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.chdir(tmp_path)
    run = [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", script]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stderr == ""
