"""The llama.cpp simulator against the real server: the same cached tokens, to the token."""

import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from keyword import kwlist
from pathlib import Path

import pytest

from quire import Usage
from quire.providers.simulate import Predicted, Simulator
from quire.providers.usage import usage
from quire.send.local import LocalServer
from quire.values import JsonObject

pytestmark = pytest.mark.xdist_group("llama")

# What the tiny model's state takes per token: two layers of keys and values, and the cell's own bookkeeping.
BYTES_PER_TOKEN = 525


def said(rng: random.Random, words: int) -> str:
    # Any words will do.
    return " ".join(rng.choice(kwlist) for _ in range(words))


def varied(rng: random.Random, count: int, slots: int) -> Iterator[tuple[JsonObject, list[JsonObject]]]:
    """Requests of five threads that grow, are cut short, edited, started anew and taken up again."""
    threads = [[{"role": "system", "content": said(rng, rng.randint(20, 400))}] for _ in range(5)]
    for _ in range(count):
        thread = rng.choice(threads) if rng.random() < 0.5 else threads[0]
        change = rng.random()
        if change < 0.15 and len(thread) > 3:
            del thread[-rng.randint(1, len(thread) - 1) :]
        elif change < 0.25 and len(thread) > 1:
            place = rng.randrange(len(thread))
            thread[place] = {**thread[place], "content": said(rng, rng.randint(3, 60))}
        elif change < 0.3:
            thread[0] = {"role": "system", "content": said(rng, rng.randint(20, 300))}
        thread.append({"role": "user", "content": said(rng, rng.randint(1, 60))})
        body: JsonObject = {"messages": list(thread), "max_tokens": rng.choice([1, 1, 2, 5, 9])}
        if rng.random() < 0.05:
            body["cache_prompt"] = False
        if slots > 1 and rng.random() < 0.2:
            body["id_slot"] = rng.randrange(slots)
        yield body, thread


def ask(server: LocalServer, body: JsonObject) -> tuple[Usage, list[int], str]:
    reply = server.post("/v1/chat/completions", {**body, "temperature": 0, "logprobs": True, "top_logprobs": 1})
    choice = reply["choices"][0]
    ids = [token["id"] for token in (choice.get("logprobs") or {}).get("content", [])]
    return usage("llamacpp", reply), ids, choice["message"]["content"]


@pytest.mark.proves("llamacpp", "cache simulation")
@pytest.mark.parametrize(
    ("seed", "slots", "ram_mib", "count"),
    [(1, 1, None, 80), (2, 1, 0, 40), (3, 2, None, 40), (5, 1, 1, 40)],
    ids=["older prompts in memory", "no memory", "two slots", "memory for 2,000 tokens"],
)
def test_every_prediction_equals_what_the_real_server_reports(
    tiny: Path, seed: int, slots: int, ram_mib: int | None, count: int
) -> None:
    rng = random.Random(seed)
    memory = None if ram_mib is None else ram_mib * 2**20 // BYTES_PER_TOKEN
    predicted: list[Predicted] = []
    reported: list[Usage] = []
    with LocalServer(tiny, ctx=16384, slots=slots, cache_ram_mib=ram_mib) as server:
        simulator = Simulator("llamacpp:tiny", prompt_ids=server.prompt_ids, slots=slots, memory_tokens=memory)
        for number, (body, thread) in enumerate(varied(rng, count, slots)):
            predicted.append(simulator.step(number * 1000, body))
            used, ids, text = ask(server, body)
            reported.append(used)
            simulator.answered(ids)
            thread.append({"role": "assistant", "content": text})
    assert [(one.total, one.read) for one in predicted] == [(one.input_total, one.cache_read) for one in reported]
    assert all(one.exact for one in predicted)
    # The workload is worth something: reuse of every degree happened.
    assert sum(one.read for one in predicted) > 5000
    assert len({one.read for one in predicted}) > 12


def test_the_server_ends_with_its_parent_and_can_be_stopped_twice(tiny: Path) -> None:
    server = LocalServer(tiny, ctx=512)
    with server:
        pid = server.pid
        assert server.post("/tokenize", {"content": "hello"})["tokens"]
    assert not Path(f"/proc/{pid}").exists()
    server.stop()
    assert server.url == ""


def test_the_server_does_not_outlive_a_parent_that_was_killed(tiny: Path) -> None:
    script = (
        "import sys\n"
        "from quire.send.local import LocalServer\n"
        f"server = LocalServer({str(tiny)!r}, ctx=512)\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None
    assert parent.stdout is not None
    with parent.stdin, parent.stdout:
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        try:
            ended, _, _ = select.select([child], [], [], 600)
        finally:
            os.close(child)
    assert ended
