"""Several processes and OS threads on one file and on one Thread: nothing is lost, and connections end with their users."""

import asyncio
import copy
import gc
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import quire
from quire import Entry, Thread, open_store, values
from quire.errors import ConflictError
from quire.log import connection
from quire.log.sqlite import SqliteStore
from quire.log.store import has_thread
from quire.send.tools import in_thread
from toolbox import Store, until

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
    with SqliteStore(tmp_path / "q.db") as store:

        def work(number: int) -> None:
            for turn in range(10):
                store.append(f"t{number}", [values.user(str(turn))])
                store.append("common", [values.user(f"{number} {turn}")])
                assert len(store.read(f"t{number}")) == turn + 1

        together(6, work)
        assert len(store.read("common")) == 60
        assert store.verify().entries == 120


def test_an_append_goes_behind_whatever_others_write_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteStore(tmp_path / "log.db") as store:
        thread = Thread(store, "t")
        thread.append(values.user("first"))
        append, rivals = store.append, ["one", "two", "three"]

        def after_a_rival(name: str, entries: Any, expected_seq: int | None = None) -> list[Entry]:
            if rivals:
                append(name, [values.user(rivals.pop(0))])
            return append(name, entries, expected_seq)

        monkeypatch.setattr(store, "append", after_a_rival)
        thread.append(values.user("mine"))
        assert [entry.text for entry in thread] == ["first", "one", "two", "three", "mine"]


def test_a_lock_that_outlasts_the_patience_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "BUSY_TIMEOUT_S", 0.6)
    monkeypatch.setattr(connection, "SILENT_S", 0.1)
    path = tmp_path / "q.db"
    with SqliteStore(path) as store, SqliteStore(path) as holder:
        store.append("t", [values.user("a")])
        holder.connection().execute("BEGIN IMMEDIATE")
        with pytest.raises(ConflictError, match="locked by another process"):
            store.append("t", [values.user("b")])
        caplog.clear()
        with pytest.raises(ConflictError, match="locked by another process"):
            Thread(store, "t").keep("a note")
        assert len(caplog.messages) == 1, "whoever keeps an item waits once, too"
        assert len(store.read("t")) == 1, "reading does not wait for writers"
        maker = sqlite3.connect(tmp_path / "new.db", isolation_level=None)
        maker.execute("BEGIN IMMEDIATE")
        with pytest.raises(ConflictError, match="locked by another process"):
            SqliteStore(tmp_path / "new.db")
        maker.close()
        holder.connection().execute("ROLLBACK")
        store.append("t", [values.user("b")])


def test_nobody_waits_for_a_deletion_that_waits_for_a_reader(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "q.db") as store, SqliteStore(tmp_path / "q.db") as reader:
        for thread in ("t", "gone"):
            store.append(thread, [values.user(f"in {thread}")])
        with ThreadPoolExecutor(2) as pool:
            with reader.index.snapshot():
                assert len(reader.index.stretches("gone")) == 1
                deleted = pool.submit(store.delete, "gone")
                until(lambda: not has_thread(store, "gone"))
                assert pool.submit(store.append, "t", [values.user("b")]).result(30)
                assert not deleted.done()
            deleted.result(600)
        assert b"in gone" not in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_commits_are_durable_and_in_a_write_ahead_log(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "q.db") as store:
        pragmas = [store.connection().execute(f"PRAGMA {name}") for name in ("journal_mode", "synchronous")]
        assert [pragma.fetchone()[0] for pragma in pragmas] == ["wal", 2]


def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    """Making the tables is a race that every opener survives."""

    def open_and_append(number: int) -> None:
        with SqliteStore(file) as store:
            store.append("t", [values.user("x")])

    for file in [tmp_path / f"{number}.db" for number in range(8)]:
        together(4, open_and_append)
        with SqliteStore(file) as store:
            assert store.verify().entries == 4


def test_opening_waits_while_another_process_makes_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


TARGET = "anthropic:claude-sonnet-4-5"


def together(count: int, work: Callable[[int], None]) -> None:
    """Run work(0), work(1), … at once, each in an OS thread of its own; the first error is raised."""
    ready = threading.Barrier(count)

    def one(number: int) -> None:
        ready.wait()
        work(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(one, range(count)))


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


# OS threads write while the process forks; each child writes by what it inherited, or by what it opens itself, and goes
# on when the parent has closed the file.
FORKING = """
import os, sys, threading
import quire

path, how = sys.argv[1:]
thread, ended, written = quire.open(path, "t"), threading.Event(), []
read, write = os.pipe()
thread.user("parent")  # loads what is needed: Python itself does not let a child load what another was loading
written.append(None)

def talk(number):
    mine = thread if number else quire.open(path, "t")
    while not ended.is_set():
        mine.user(f"parent {number} {len(written)}")
        written.append(None)

writers = [threading.Thread(target=talk, args=(number,)) for number in range(3)]
for writer in writers: writer.start()
children = []
for child in range(6):
    children.append(os.fork())
    if not children[-1]:
        mine = thread if how == "inherited" else quire.open(path, "t")
        for n in range(4): mine.user(f"child {child} {n}")
        os.read(read, 1)
        for n in range(4, 8): mine.user(f"child {child} {n}")
        os._exit(len(thread) < 8)
ended.set()
for writer in writers: writer.join()
thread.close()
os.write(write, b"." * 6)
ends = [os.waitpid(child, 0)[1] for child in children]
with quire.open(path, "t") as thread:
    texts = [entry.text for entry in thread]
    thread.store.verify()
print(ends, len(texts) - len(written), len(set(texts)) - len(texts) if how == "fresh" else 0)
"""


@pytest.mark.parametrize("how", ["inherited", "fresh"])
def test_a_process_may_fork_while_its_os_threads_write(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, str(tmp_path / "t.db"), how]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ran.stdout, ran.returncode) == (f"{[0] * 6} 48 0\n", 0), ran.stderr


FORKS_IN_THE_WAY = {
    "an interrupt while it waits": """
inside, go, seen = threading.Event(), threading.Event(), []
def use():
    with store._file.guard(): inside.set(); go.wait()
other = threading.Thread(target=use); other.start(); inside.wait()
sys.unraisablehook = lambda told: seen.append(told.exc_type.__name__)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
fork(lambda: None)
go.set(); other.join()
run(lambda: store.append("t", [values.user("b")]))
print(seen, len(store.read("t")))
""",
    "a log message of who is waited for": """
inside, go = threading.Event(), threading.Event()
def use():
    with store._file.guard(): inside.set(); go.wait(); logging.getLogger("quire").isEnabledFor(threading.get_ident())
other = threading.Thread(target=use); other.start(); inside.wait()
threading.Timer(0.2, go.set).start()
begun = time.monotonic()
fork(lambda: None)
print(time.monotonic() - begun < 20, len(store.read("t")))
""",
    "stores that others open and leave": """
ended = threading.Event()
def come_and_go(path):
    while not ended.is_set():
        with quire.open(path, "t") as thread: [quire.Thread(thread.store, str(n)) for n in range(50)]
sys.setswitchinterval(1e-5)
others = [threading.Thread(target=come_and_go, args=(sys.argv[1] + str(n),)) for n in range(3)]
for other in others: other.start()
for n in range(20): fork(lambda: store.append("t", [values.user("b")]))
ended.set()
for other in others: other.join()
print(len(store.read("t")))
""",
    "a store that was closed": """
store.close()
fork(lambda: None)
try: store.read("t")
except quire.QuireError as error: print(error)
""",
}
AROUND_FORKS = """
import os, signal, sys, threading, time
import quire
from quire import values
from quire.log.sqlite import SqliteStore
import logging
def run(work):
    other = threading.Thread(target=work); other.start(); other.join()
def fork(work):
    child = os.fork()
    if not child:
        signal.alarm(30)
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
store = SqliteStore(sys.argv[1])
store.append("t", [values.user("a")])
"""


@pytest.mark.parametrize(
    ("way", "says"),
    [*zip(FORKS_IN_THE_WAY, ["['KeyboardInterrupt'] 2", "True 1", "21", "t.db was closed here before"], strict=True)],
)
def test_nothing_that_is_in_the_way_of_a_fork_hangs_it_or_what_comes_behind(
    tmp_path: Path, way: str, says: str
) -> None:
    script = AROUND_FORKS + FORKS_IN_THE_WAY[way]
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, "t.db"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (ran.stdout.strip().removeprefix(f"{tmp_path}/"), ran.returncode) == (says, 0), ran.stderr


def test_a_child_has_no_part_in_the_turn_that_its_parent_holds(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "t.db") as store, store.turn_lock("t"):
        store.append("t", [values.user("a")])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have left OS threads
            child = os.fork()
        if not child:
            try:
                with store.turn_lock("t"):
                    os._exit(0)
            except ConflictError:
                os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert store.append("t", [values.user("b")])[0].seq == 2


@pytest.mark.parametrize("copied", [pickle.dumps, copy.deepcopy])
def test_who_would_pickle_a_thread_is_told_what_to_do(copied: Callable[[object], object]) -> None:
    with quire.open(":memory:", "t") as thread:
        for what in (thread, thread.store, quire.AsyncThread(thread)):
            with pytest.raises(TypeError, match="hand over its path"):
                copied(what)


@pytest.mark.parametrize("name", ["t.db", "file:t.db", "a b?mode=ro#%20.db"])
def test_a_file_stays_the_same_when_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    with quire.open(name, "t") as thread:
        thread.user("a")
        monkeypatch.chdir("below")
        asyncio.run(in_thread(lambda: thread.user("b")))
        assert [entry.text for entry in thread] == ["a", "b"]
    assert sorted(file.name for file in tmp_path.rglob("*")) == sorted(["below", name])


DAEMONS = """
import threading
from quire import open_store, values
store, begun = open_store("t.db"), threading.Barrier(3)
def write():
    begun.wait()
    while True: store.append("t", [values.user("a")])
for _ in range(2): threading.Thread(target=write, daemon=True).start()
begun.wait()
while len(store.read("t") if store.threads() else []) < 5: pass
"""


def test_a_process_may_end_while_daemons_write(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", DAEMONS], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr


NOTES = "from quire.notes import NoteIndex, Vault; NoteIndex(Vault('.'), 'a.db'); n = NoteIndex(Vault('.'), 'b.db')"


@pytest.mark.parametrize(
    "script", ["import quire; quire.open('t.db', 't').user('a'); t = quire.open('t.db', 't'); t.user('b')", NOTES]
)
def test_no_connection_is_left_to_the_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.chdir(tmp_path)
    run = [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", script]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stderr == ""


# msgspec reads a type when something is first converted to it: two OS threads that do that at once end the process.
CONVERTING = """
import sys
import quire
from quire import Reply, Usage, values
from quire.send.connect import transport_for
from quire.send.turn import standing
from quire.testing import emulator

met = []

def look(frame, event, _):
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        met.append(frame.f_locals["obj"])

thread = quire.open(sys.argv[1], "t")
sys.setprofile(look)
thread.user("Hello")
request = thread.request("anthropic:claude-opus-5-5")
thread.record(Reply((values.respond("Hello to you"),), Usage(100)), request)
standing(thread.store, "t")
with emulator("vllm", ["Well."]) as server:
    thread.user("How are you?")
    thread.resume(target="vllm:m", transport=transport_for("vllm:m", f"{server.url}/v1"))
print(met)
"""


def test_types_are_read_when_modules_are_loaded(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CONVERTING, str(tmp_path / "q.db")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"
