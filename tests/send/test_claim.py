"""One turn is carried out once: a second cycle of the same thread is refused, whoever begins it."""

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from send_parts import Noted, new_thread, ten_calls, tool

from quire import QuireError, Thread
from quire.errors import ConflictError
from quire.log.sqlite import SqliteStore
from quire.send.cycle import run
from quire.testing import Emulator, emulator
from toolbox import TARGETS, Outcome, Runner, close, transport_for

HOLDER = """
import sys
from quire.log.sqlite import SqliteStore
with SqliteStore(sys.argv[1]) as store, store.turn_lock("t"):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(database: Path) -> subprocess.Popen[bytes]:
    """A process that holds thread t until its input ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(database)], **pipes)
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_thread_is_held_by_one_process_and_death_lets_go(tmp_path: Path) -> None:
    database = tmp_path / "t.db"
    with SqliteStore(database) as store, holder(database) as other:
        with pytest.raises(ConflictError, match=f"by process {other.pid}"), store.turn_lock("t"):
            pass
        with store.turn_lock("another"):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
        with store.turn_lock("t"), store.turn_lock("t"):
            pass
    assert [file.name for file in tmp_path.iterdir() if "-turn-" in file.name] == []


@pytest.mark.parametrize("place", ["file", ":memory:"])
def test_two_cycles_of_one_thread_run_each_call_once(place: str, tmp_path: Path) -> None:
    database = str(tmp_path / "t.db") if place == "file" else place
    target, tools = TARGETS["anthropic"], Noted(tool("append", idempotent=True))

    async def carried(thread: Thread, server: Emulator) -> Outcome | ConflictError:
        transport = transport_for(target, server.url, "key", via="http")
        try:
            return await run(thread, target, transport, Runner(tools=tools))
        except ConflictError as error:
            return error
        finally:
            await close(transport)

    async def both(thread: Thread, server: Emulator) -> list[Outcome | ConflictError]:
        return await asyncio.gather(carried(thread, server), carried(thread, server))

    with emulator("anthropic", ten_calls, piece=8) as server:
        thread = new_thread(database)
        thread.user("Write ten lines.")
        # Either may come first.
        first, second = sorted(asyncio.run(both(thread, server)), key=lambda end: isinstance(end, ConflictError))
        assert isinstance(first, Outcome)
        assert first.text == "All ten lines are written."
        assert str(second) == f"a turn of thread 't' is being carried out by process {os.getpid()}"
        # Once it has ended there is nothing left to do.
        assert asyncio.run(carried(thread, server)).text == first.text  # type: ignore[union-attr]
    assert [call.args["line"] for call in tools.calls] == list(range(1, 11))


@pytest.mark.parametrize("fails", ["write", "truncate"])
def test_a_lock_that_cannot_be_written_is_let_go(fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with SqliteStore(tmp_path / "t.db") as store:
        with monkeypatch.context() as patched:
            patched.setattr(os, fails, full)
            with pytest.raises(QuireError, match=r"cannot hold the turn of thread 't'.*No space") as caught:
                store.turn_lock("t").__enter__()
            assert caught.value.hint
        with store.turn_lock("t"):
            pass
        with holder(tmp_path / "t.db") as other:
            other.kill()


@pytest.mark.parametrize("content", [b"", b"no number", b"\xff\x00", b"12 and more"])
def test_a_lock_file_with_other_content_is_held_elsewhere(content: bytes, tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "t.db") as store, holder(tmp_path / "t.db") as other:
        file = next(file for file in tmp_path.iterdir() if "-turn-" in file.name)
        file.write_bytes(content)
        assert store.turn_held("t")
        with pytest.raises(ConflictError, match="is being carried out elsewhere"), store.turn_lock("t"):
            pass
        other.kill()


def test_a_child_forked_while_somebody_looks_keeps_nobody_from_the_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, of_child = fcntl.flock, list[int]()

    def flock(handle: int, how: int) -> None:
        lock(handle, how)
        if how & fcntl.LOCK_SH:
            of_child.append(os.dup(handle))  # as a child has it, until it ends

    with SqliteStore(tmp_path / "t.db") as store:
        with store.turn_lock("t"):
            file = next(file for file in tmp_path.iterdir() if "-turn-" in file.name)
        file.write_bytes(b"1 2")  # as a process leaves it that was killed
        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "flock", flock)
            assert (store.turn_held("t"), len(of_child)) == (False, 1)
        with file.open() as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(of_child[0])


def test_a_lock_file_that_is_no_file_is_an_error_with_a_hint(tmp_path: Path, store: SqliteStore) -> None:
    with store.turn_lock("t"):
        file = next(file for file in tmp_path.iterdir() if "-turn-" in file.name)
    file.mkdir()
    with pytest.raises(QuireError, match="directory") as caught, store.turn_lock("t"):
        pass
    assert caught.value.hint
