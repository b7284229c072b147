"""What servers of one's own tell of their windows, and what a thread makes of it."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from quire import Thread, open_store
from quire.send.transport import server_window
from quire.thread_state import policy_for
from quire.values import Json
from toolbox import QuietHandler, in_background, invoke, until

# As each server answers: llama.cpp, vLLM, Ollama, LM Studio, LM Studio before 0.4.
LOADED = [{"id": "m", "config": {"context_length": 5000, "parallel": 4}}]
TOLD: dict[str, Json] = {
    "/props": {"default_generation_settings": {"n_ctx": 5000, "params": {"n_predict": -1}}, "total_slots": 1},
    "/v1/models": {"object": "list", "data": [
        {"id": "other", "object": "model", "root": "other", "parent": None, "max_model_len": 9},
        {"id": "m", "object": "model", "root": "m", "parent": None, "max_model_len": 5000},
    ]},
    "/api/ps": {"models": [{"name": "m:latest", "model": "m:latest", "size": 1, "context_length": 5000}]},
    "/api/v1/models": {"models": [
        {"key": "other", "loaded_instances": [], "max_context_length": 99},
        {"key": "m", "loaded_instances": LOADED, "max_context_length": 99_999},
    ]},
    "/api/v0/models": {"object": "list", "data": [
        {"id": "m", "state": "loaded", "max_context_length": 99_999, "loaded_context_length": 5000},
        {"id": "idle", "state": "not-loaded", "max_context_length": 99_999},
    ]},
}  # fmt: skip


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, told: dict[str, Json], wait_s: float = 0.0) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.told, self.wait_s, self.asked, self.url = told, wait_s, list[str](), ""


class Handler(QuietHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        time.sleep(self.server.wait_s)
        said = self.server.told.get(self.path)
        self.answer(json.dumps(said or {"error": "no"}).encode(), status=404 if said is None else 200)

    def do_POST(self) -> None:
        self.received()
        chunk = {"id": "x", "choices": [{"index": 0, "delta": {"content": "Yes."}, "finish_reason": "stop"}]}
        self.answer(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode(), "text/event-stream")


@contextmanager
def serving(told: dict[str, Json], wait_s: float = 0.0) -> Iterator[Server]:
    server = Server(told, wait_s)
    with in_background(server) as server.url:
        yield server


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a server may take its time, which is not what is tried here."""
    monkeypatch.setattr(server_window, "__defaults__", ("", 60.0))


@pytest.mark.parametrize("path", TOLD)
def test_each_server_tells_its_window_in_its_own_place(path: str) -> None:
    with serving({path: TOLD[path]}) as server:
        assert server_window(f"{server.url}/v1", "m") == server_window(f"{server.url}/", "m") == 5000
        assert server_window(server.url, "idle") == (5000 if path == "/props" else 0)


@pytest.mark.parametrize("said", [None, [], {"data": 3}, {"data": [{"id": "m", "max_model_len": "many"}]}, "x"])
def test_a_server_that_tells_nothing_of_use_is_left_alone(said: Json) -> None:
    with serving({"/v1/models": said}) as server:
        assert server_window(server.url, "m") == 0


def test_nobody_waits_long_for_a_server_that_is_slow_or_away() -> None:
    with serving(TOLD, wait_s=0.5) as server:
        assert server_window(server.url, "m", timeout_s=0.1) == 0
        until(lambda: server.asked)
        assert len(server.asked) == 1
    assert server_window(server.url, "m") == 0
    assert server_window("no address", "m") == 0


def sent(home: Path, target: str) -> tuple[list[Json], int]:
    """The windows that the log names, and the budget of the next request."""
    with open_store(home / "quire.db") as store:
        named = [entry.meta.get("window") for entry in store.read("t") if entry.kind == "sent"]
        return named, Thread(store, "t").policy_at(target).budget


@pytest.mark.parametrize(("target", "window"), [("vllm:m", 5000), ("llamacpp:m", 5000), ("ollama:m", 50_000)])
def test_a_thread_keeps_to_the_window_of_its_server_and_uses_all_of_it(home: Path, target: str, window: int) -> None:
    with serving({"/props": {"default_generation_settings": {"n_ctx": window}}}) as server:
        invoke("run", "t", "Is it?", "--model", target, "--base-url", f"{server.url}/v1")
        assert server.asked == ["/props"], "asked once for each connection"
        assert sent(home, target) == ([window] * 2, int(window * 0.9))
        server.told = {}
        invoke("chat", "t", "--model", target, "--base-url", f"{server.url}/v1", stdin="And now?\n")
    assert sent(home, target) == ([window] * 4, int(window * 0.9)), "what is not told again stays"


def test_a_budget_of_ones_own_wins(home: Path) -> None:
    with serving(TOLD) as server:
        where = ("--model", "vllm:m", "--base-url", f"{server.url}/v1")
        invoke("run", "t", "Is it?", *where)
        invoke("run", "t", "Is it?", *where, "--budget", "20000")
        assert sent(home, "vllm:m") == ([5000, 5000, None, None], 20_000)
        invoke("run", "t", "And now?", *where)
    assert sent(home, "vllm:m")[1] == 20_000


def test_a_server_started_anew_with_another_window_is_believed(home: Path) -> None:
    where = ("--model", "llamacpp:m", "--base-url")
    usual = policy_for("llamacpp:m").budget
    for window, budget in ((5000, 4500), (30_000, 27_000), (usual, usual)):
        with serving({"/props": {"default_generation_settings": {"n_ctx": window}}}) as server:
            invoke("run", "t", "Is it?", *where, server.url)
        assert sent(home, "llamacpp:m")[1] == budget


def test_a_provider_is_not_asked(home: Path) -> None:
    with serving(TOLD) as server:
        invoke("run", "t", "Is it?", "--model", "deepseek:deepseek-chat", "--base-url", f"{server.url}/v1")
        assert server.asked == []
