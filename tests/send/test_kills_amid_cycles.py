"""SIGKILL at a hundred random moments of a cycle of ten calls: what was acknowledged is there, nothing runs twice."""

import json
import os
import random
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import pytest
from send_parts import CALLS, ten_calls, ten_requests

from quire import open_store
from quire.records import Records
from quire.testing import Emulator, assert_valid, emulator
from toolbox import TARGETS

NURSERY = Path(__file__).with_name("cycle_nursery.py")


class Nursery:
    """A warm process that forks clients; they can be killed at any moment."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.acknowledged = 0
        self._rest = b""

    def run(self, task: str, kill_after_s: float | None) -> str:
        """Run a client to its end, or kill it after so long: "done" or "killed"."""
        self.process.stdin.write(f"{task}\n".encode())
        self.process.stdin.flush()
        pid, ended, deadline = 0, "", float("inf")
        while True:
            for word, number in self._lines(max(0.0, deadline - perf_counter())):
                if word == "pid":
                    pid = number
                elif word == "ack":
                    self.acknowledged = max(self.acknowledged, number)
                elif word == "done":
                    ended = "done"
                elif word == "dead":
                    assert number == (0 if ended and number == 0 else signal.SIGKILL), "the client failed"
                    return ended or "killed"
                if pid and kill_after_s is not None:
                    deadline, kill_after_s = perf_counter() + kill_after_s, None
            if pid and perf_counter() >= deadline:
                with suppress(ProcessLookupError):  # it may have ended by itself just now
                    os.kill(pid, signal.SIGKILL)
                deadline = float("inf")

    def _lines(self, timeout_s: float) -> Iterator[tuple[str, int]]:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], min(timeout_s, 60.0))
        if ready:
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, "the nursery itself has ended"
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                word, number = line.split()
                yield word.decode(), int(number)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    command = [sys.executable, str(NURSERY)]
    path = os.pathsep.join([str(NURSERY.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}  # the toolbox is one folder up
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        yield Nursery(process)
        process.stdin.close()


class Trial:
    """One cycle: its database, the file its tool writes, and what the server received of it."""

    def __init__(self, folder: Path, server: Emulator, target: str, how: str = "by-key") -> None:
        folder.mkdir()
        self.database, self.file = folder / "t.db", folder / "lines"
        self.server, self.first = server, len(server.requests)
        self.task = f"{self.database} {self.file} {server.url} {target} {how}"

    def bodies(self) -> list[str]:
        """The requests in order; one that was sent again counts once."""
        sent = [received for received in self.server.requests[self.first :] if received.method == "POST"]
        assert {received.status for received in sent} == {200}
        return list(dict.fromkeys(json.dumps(received.body) for received in sent))

    def check_log(self, acknowledged: int) -> None:
        """Everything that was acknowledged is there, and every hash is right."""
        if acknowledged:
            with open_store(self.database) as store:
                assert store.verify("t").entries >= acknowledged


def kill_until(kills: int, provider: str, how: str, nursery: Nursery, folder: Path, seed: int) -> Iterator[Trial]:
    """Cycles that are killed and resumed until they end, so often that `kills` kills came amid one."""
    rng, killed = random.Random(seed), 0
    model, piece = (ten_requests, 40) if how == "records" else (ten_calls, 6)
    with emulator(provider, model, piece=piece) as server:
        whole = Trial(folder / "whole", server, TARGETS[provider], how)
        nursery.run(whole.task, None)  # the first run also warms the server
        whole = Trial(folder / "again", server, TARGETS[provider], how)
        began = perf_counter()
        assert nursery.run(whole.task, None) == "done"
        length_s = perf_counter() - began
        yield whole
        number = 0
        while killed < kills:
            number += 1
            trial, nursery.acknowledged = Trial(folder / str(number), server, TARGETS[provider], how), 0
            while nursery.run(trial.task, rng.random() * length_s) != "done":
                killed += 1
                trial.check_log(nursery.acknowledged)
            trial.check_log(nursery.acknowledged)
            yield trial


@pytest.mark.parametrize(
    ("provider", "how", "kills"),
    [("anthropic", "by-key", 20), ("openai-chat", "by-key", 20), ("openai-chat", "records", 40)],
)
def test_a_killed_cycle_goes_on_as_if_nothing_had_happened(
    provider: str, how: str, kills: int, nursery: Nursery, tmp_path: Path
) -> None:
    trials = kill_until(kills, provider, how, nursery, tmp_path, seed=7)
    whole = next(trials).bodies()
    assert len(whole) == CALLS + 1
    cut = 0
    for trial in trials:
        lines = [line.split() for line in trial.file.read_text().splitlines()]
        assert [int(line) for _, line in lines] == list(range(1, CALLS + 1)), "each call ran exactly once"
        assert trial.bodies() == whole
        last = json.loads(trial.bodies()[-1])
        assert_valid(last, provider, last["model"])
        with open_store(trial.database) as store:
            asked = sum(entry.kind == "sent" and "usage" not in entry.body for entry in store.read("t"))
            cut += asked - len(whole)
            kept = Counter(record.schema_name for record in Records(store).list())
            made = (1, CALLS + 1, CALLS) if how == "records" else (0, 0, 0)
            assert (kept["user.message.v1"], kept["agent.response.v1"], kept["tool.response.v1"]) == made
    assert cut > 3, "no kill came amid a reply"


def test_without_a_key_a_call_in_doubt_is_never_run_again(nursery: Nursery, tmp_path: Path) -> None:
    trials = kill_until(20, "anthropic", "cautious", nursery, tmp_path, seed=11)
    next(trials)
    for trial in trials:
        keys = Counter(line.split()[0] for line in trial.file.read_text().splitlines())
        assert set(keys.values()) == {1}
        with open_store(trial.database) as store:
            entries = store.read("t")
        calls = {entry.id for entry in entries if entry.kind == "call"}
        assert set(keys) <= calls
        results = [entry for entry in entries if entry.kind == "result"]
        assert len(results) == CALLS
        interrupted = [entry for entry in results if entry.meta.get("interrupted")]
        assert len(keys) >= CALLS - len(interrupted)
