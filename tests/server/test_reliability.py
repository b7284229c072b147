"""What becomes of a running service when things go wrong around it: each outcome is the one that docs/reliability.md states."""

import asyncio
import contextlib
import gc
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from serving import new_place, served, user

from quire import open_store, values
from quire.server.follow import Follower
from quire.server.remote_store import CALLS
from quire.server.service import ServiceLimits
from quire.testing import Cut, MemoryStore, Slow, emulator
from toolbox import running, texts, until

MODEL = "anthropic:claude-opus-5-5"
READERS = 2000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 200


@contextmanager
def mounted(size: str) -> Iterator[Path]:
    """A filesystem of its own, which may be full or read-only; where none can be mounted the test is skipped."""
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, check=False
        )
        if made.returncode:
            pytest.skip("no filesystem can be mounted here")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def entries(client: httpx.Client, thread: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"/api/threads/{thread}/entries").json()["entries"]
    return found


def test_killed_amid_turns_nothing_acknowledged_is_lost_and_nothing_runs_twice(tmp_path: Path) -> None:
    with emulator("anthropic", [Slow("Never heard.", 600), "Here I am again."], lenient=True) as model:
        line = f"serve --port 0 --db {tmp_path}/q.db --model {MODEL} --base-url {model.url}"
        with running(*line.split()) as (url, process), httpx.Client(base_url=url) as client:
            kept = client.post("/api/threads/t/entries", json={"entries": [user("one")]}).json()["entries"]
            key = {"idempotency-key": "turn"}
            with client.stream("POST", "/api/threads/t/turns", json={"text": "two"}, headers=key) as reply:
                next(reply.iter_bytes())
                until(lambda: model.requests)
                process.kill()
                process.wait()
        with running(*line.split()) as (url, process), httpx.Client(base_url=url) as client:
            assert entries(client, "t")[:1] == kept
            standing = client.get("/api/threads/t/turn").json()
            assert (standing["next"], standing["running"]) == ("ask", False)
            with client.stream("POST", "/api/threads/t/turns", json={"text": "two"}, headers=key) as reply:
                told = reply.read().decode()
            assert "Here I am again." in told
            assert [entry.get("text") for entry in entries(client, "t") if entry["kind"] == "user"] == ["one", "two"]


def test_on_a_full_disk_writes_are_refused_whole_and_reads_go_on() -> None:
    with mounted("3m") as folder, served(folder / "q.db") as client:
        kept = client.post("/api/threads/t/entries", json={"entries": [user("kept")]}).json()["entries"]
        refused = None
        for _ in range(40):
            reply = client.post("/api/threads/t/entries", json={"entries": [user("x" * 200_000)] * 2})
            if reply.status_code != 201:
                refused = reply
                break
            kept += reply.json()["entries"]
        assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
        assert "disk" in refused.json()["hint"]
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
        assert [entry["id"] for entry in entries(client, "t")] == [entry["id"] for entry in kept]


def test_a_read_only_database_is_read() -> None:
    with mounted("4m") as folder:
        with served(folder / "q.db") as client:
            client.post("/api/threads/t/entries", json={"entries": [user("kept")]})
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        line = f"serve --port 0 --db {folder}/q.db"
        with running(*line.split()) as (url, _), httpx.Client(base_url=url) as client:
            assert entries(client, "t")[0]["text"] == "kept"
            refused = client.post("/api/threads/t/entries", json={"entries": [user("more")]})
            assert (refused.status_code, "read-only" in refused.json()["detail"]) == (503, True)
            assert client.get("/readyz").status_code == 503


def test_a_server_that_only_reads_is_read(request: pytest.FixtureRequest) -> None:
    """As it is for a moment when a replica takes over."""
    import psycopg

    place = new_place("postgres", request)
    name = urlsplit(place).path[1:]
    with served(place) as client, psycopg.connect(request.getfixturevalue("pg_url"), autocommit=True) as admin:
        client.post("/api/threads/t/entries", json={"entries": [user("kept")]})
        for setting, status in (("on", 503), ("off", 201)):
            admin.execute(f"alter database {name} set default_transaction_read_only = {setting}")
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (name,))
            assert entries(client, "t")[0]["text"] == "kept"
            with open_store(place) as opened_now:
                assert texts(opened_now, "t")[0] == "kept"
            written = client.post("/api/threads/t/entries", json={"entries": [user("more")]})
            assert written.status_code == status
            assert ("read-only" in written.text) is (status == 503)
            assert client.get("/readyz").status_code == (503 if status == 503 else 200)


@contextmanager
def answering(raw: bytes) -> Iterator[str]:
    """A server that answers everything with these bytes and hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                caller, _ = listener.accept()
            except OSError:
                return
            with caller:
                caller.recv(65536)
                caller.sendall(raw)

    threading.Thread(target=answer, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize(
    "raw",
    [b"\x00\xff garbage\r\n\r\n", HEAD + b"data: {]\n\n", HEAD + b"data: {}\n\n" * 3, HEAD],
    ids=["no HTTP", "no JSON", "no reply", "nothing"],
)
def test_an_upstream_of_garbage_is_a_502_and_the_turn_can_be_resumed(tmp_path: Path, raw: bytes) -> None:
    with answering(raw) as url, served(tmp_path / "q.db", model=MODEL, base_url=url) as client:
        failed = client.post("/api/threads/t/turns", json={"text": "Hello?", "stream": False})
        assert (failed.status_code, failed.json()["state"]["stop"]) == (502, "failed")
        assert failed.json()["detail"]
        assert client.get("/api/threads/t/turn").json()["next"] == "ask"


@contextmanager
def asking(folder: Path, *replies: Any) -> Iterator[httpx.Client]:
    """A service whose model gives these replies."""
    model = emulator("anthropic", list(replies), lenient=True)
    with model, served(folder / "q.db", model=MODEL, base_url=model.url) as client:
        yield client


def test_an_upstream_that_hangs_is_left_and_one_that_is_cut_is_asked_again(tmp_path: Path) -> None:
    replies = [Slow("Late.", 600), Cut("Cut off in the middle.", 300), "Whole."]
    with asking(tmp_path, *replies) as client:
        body = {"text": "Hello?", "limits": {"seconds": 1}, "stream": False}
        assert client.post("/api/threads/t/turns", json=body).json()["stop"] == "seconds"
        resumed = client.post("/api/threads/t/resume", json={"stream": False}).json()
        assert (resumed["stop"], resumed["text"]) == ("answered", "Whole.")


def test_a_turn_goes_on_where_its_caller_vanishes(tmp_path: Path) -> None:
    with asking(tmp_path, Slow("Still here.", 0.5)) as client:
        with client.stream("POST", "/api/threads/t/turns", json={"text": "Hello?"}) as reply:
            next(reply.iter_bytes())
        until(lambda: client.get("/api/threads/t/turn").json()["next"] == "done")
        assert [entry["text"] for entry in entries(client, "t") if entry["kind"] == "respond"] == ["Still here."]


def test_large_and_deep_bodies(tmp_path: Path) -> None:
    with served(tmp_path / "q.db") as client:
        ten = client.post("/api/threads/t/entries", json={"entries": [user("x" * 10_000_000)]})
        assert (ten.status_code, len(entries(client, "t")[0]["text"])) == (201, 10_000_000)
        chunks = (b" " * 1_000_000 for _ in range(30))
        for body in (b" " * 17_000_000, chunks):
            try:
                large = client.post("/api/threads", content=body, headers={"content-type": "application/json"})
                assert large.status_code == 413
            except httpx.WriteError:
                pass  # it hung up on the rest
        deep = b'{"name":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        answers = [client.post("/api/threads", content=deep, headers={"content-type": "application/json"})]
        nested = {"kind": "call", "call_id": "c", "name": "f", "args": json.loads("[" * 900 + "]" * 900)}
        answers.append(client.post("/api/threads/d/entries", json={"entries": [nested]}))
        arguments = {"schema_name": "deep.v1", "context": {"a": nested["args"]}}
        answers.append(client.post("/api/records", json=arguments))
        answers.append(client.post("/api/threads/d/window", json={"content": "x", "metadata": arguments}))
        answers.append(client.post("/api/store/records.insert", json={"arguments": arguments}))
        # From Python 3.12 on the reader goes deeper, and what the value is for refuses it.
        refusals = [400, 400, 400] if sys.version_info < (3, 12) else [409, 409, 422]
        assert [reply.status_code for reply in answers] == [422, 422, *refusals]
        assert client.get("/healthz").status_code == 200


_UPGRADE = b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (b"POST /api/threads/t/entries HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{", [b""]),
        (b"GET /healthz HTTP/1.1\r\nx: " + b"y" * 3_000_000 + b"\r\n\r\n", [b"", b"HTTP/1.1 400 "]),
        (b"GET /api/threads HTTP/1.1\r\nhost: 127.0.0.1\r\n" + _UPGRADE + b"\r\n", [b"HTTP/1.1 403 "]),
        (b"GET /x HTTP/1.1\r\nhost: 127.0.0.1\r\n" + _UPGRADE + b"sec-websocket-protocol: \xff\r\n\r\n", [b""]),
        (b"CONNECT api.openai.com:443 HTTP/1.1\r\nhost: api.openai.com:443\r\n\r\n", [b"HTTP/1.1 400 "]),
        (b"CONNECT /api/threads HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", [b"HTTP/1.1 405 "]),
    ],
    ids=["half a body", "an endless head", "a socket where there is none", "a header that is no text", "HTTPS_PROXY", "it with a path"],
)  # fmt: skip
def test_what_is_no_request_ends_its_own_connection_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes, answers: list[bytes]
) -> None:
    with served(tmp_path / "q.db") as client:
        with socket.create_connection((client.base_url.host, client.base_url.port)) as caller:
            heard = b""
            with suppress(OSError):  # it was cut off before all was sent, or read
                caller.sendall(sent)
                caller.shutdown(socket.SHUT_WR)
                while piece := caller.recv(65536):
                    heard += piece
        assert heard[:13] in answers
        assert client.get("/api/threads").json() == {"threads": []}
        assert httpx.get(client.base_url.join("/healthz"), timeout=10).status_code == 200  # on a new connection
        ending = time.monotonic()
    assert time.monotonic() - ending < 5, "the service waited for a connection that was gone"
    assert not caplog.records


def closed(connection: socket.socket) -> bool:
    """Whether the other side has hung up."""
    try:
        return connection.recv(65536, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_whoever_does_not_send_a_head_is_cut_off_in_time_and_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New connections, and those on which a second request never comes whole."""
    monkeypatch.setattr("quire.emulate._HEAD_S", 1.0)
    monkeypatch.setattr("quire.emulate._MOST_HEADS", 20)
    ask = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    slow = b"GET /healthz HTTP/1.1\r\nx: "
    with served(tmp_path / "q.db") as client, ExitStack() as open_:
        place = (client.base_url.host, client.base_url.port)
        client.post("/api/threads/t/entries", json={"entries": [user("Hi")]})
        follower = open_.enter_context(socket.create_connection(place))
        follower.sendall(ask.replace(b"healthz", b"api/threads/t/events"))
        until(lambda: b"event-stream" in follower.recv(65536))
        follower.sendall(b"\r\n")  # behind its request, as some clients do
        heads = [open_.enter_context(socket.create_connection(place)) for _ in range(25)]
        for head, sent in zip(heads, [b"", slow, ask + slow] * 9, strict=False):
            head.sendall(sent)
        until(lambda: sum(map(closed, heads)) >= 5)  # those that came first
        reader = open_.enter_context(client.stream("GET", "/api/threads", timeout=5))
        assert reader.status_code == 200

        def all_gone() -> bool:
            with suppress(ConnectionError):
                return [head.sendall(b"y") for head in heads if not closed(head)] == []
            return False

        until(all_gone)
        assert client.get("/healthz").status_code == 200  # on the connection of before, which was not at a head
        assert not any(closed(follower) for _ in range(3))  # what it was sent is read first


def test_many_slow_readers_hold_little_memory(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 500), hard))
    with running(*f"serve --port 0 --rate 0 --db {tmp_path}/q.db".split()) as (url, process):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, READERS * 2 + 500)), hard))
        for _ in range(4):
            body = {"entries": [user("x" * 20_000)] * 25}
            assert httpx.post(f"{url}/api/threads/t/entries", json=body).status_code == 201
        # What the shell set for programs that use select() is no limit for a service.
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] >= min(hard, 65_536)
        before = memory_mb(process.pid)
        host, port = url.removeprefix("http://").split(":")
        with ExitStack() as open_:
            for _ in range(READERS):
                open_.enter_context(slow_reader(host, int(port)))
            assert httpx.get(f"{url}/api/threads/t").json()["seq"] == 100
            time.sleep(READERS / 200)
            grown = memory_mb(process.pid) - before
        assert grown < 30 + READERS * 0.15, f"{READERS} readers took {grown:.0f} MB"


class SlowDisk(MemoryStore):
    """A store that reads slowly, from its `fast`-th look on."""

    def __init__(self, fast: int) -> None:
        super().__init__()
        self.fast, self.reading, self.go_on = fast, threading.Event(), threading.Event()
        self.append("t", [values.user("one")])

    def get_state(self, thread: str, key: str) -> Any:
        self.fast -= 1
        if self.fast < 0:
            self.reading.set()
            self.go_on.wait(10)
        return super().get_state(thread, key)


@pytest.mark.parametrize("fast", [1, 0])
async def test_a_store_is_not_closed_while_a_follower_reads_it(fast: int) -> None:
    """Whether it looks for all its readers, or first for one that has gone since."""

    async def follow() -> None:
        async with follower.tail("t"):
            follower.wrote("t")  # looked at again at once, and not read to its end
            await asyncio.to_thread(store.reading.wait, 10)

    with SlowDisk(fast) as store:
        follower = Follower(store, asyncio.Event())
        reader = asyncio.ensure_future(follow())
        await asyncio.to_thread(store.reading.wait, 10)
        for _ in range(3):  # gone, and sent away
            reader.cancel()
            await asyncio.wait([reader], timeout=0.05)
        assert reader.done()
        ending = asyncio.ensure_future(follower.end())
        await asyncio.wait([ending], timeout=0.3)
        assert not ending.done()
        store.go_on.set()
        await ending


class QuietDisk(MemoryStore):
    """A store of which nothing is heard."""

    go_on = threading.Event()

    def wait_for_change(self, after: int, timeout_s: float) -> bool:
        return not self.go_on.wait(30)


async def test_whoever_waits_for_news_holds_nobody_else_up() -> None:
    """Neither the readers of more tenants than the pool has OS threads, nor a caller who would wait for ever."""
    assert "wait_for_change" not in CALLS
    threads = set(threading.enumerate())
    with QuietDisk() as store:
        store.append("t", [values.user("one")])
        followers = [Follower(store, asyncio.Event()) for _ in range(40)]
        try:
            async with contextlib.AsyncExitStack() as reading, asyncio.timeout(15):
                for follower in followers:
                    await reading.enter_async_context(follower.tail("t"))
                    await asyncio.sleep(0.01)  # it begins to wait
                assert await asyncio.to_thread(int, "1") == 1
            store.go_on.set()
            async with asyncio.timeout(15):  # with its last reader each gives up its OS thread
                while {each for each in threading.enumerate() if "news" in each.name} - threads:
                    await asyncio.sleep(0.01)
        finally:
            store.go_on.set()
            for follower in followers:
                await follower.end()


def test_more_readers_than_the_limit_are_sent_away(tmp_path: Path) -> None:
    with served(tmp_path / "q.db", limits=ServiceLimits(readers=2)) as client:
        client.post("/api/threads/t/entries", json={"entries": [user("one")]})
        follow = lambda: client.stream("GET", "/api/threads/t/events")  # noqa: E731
        with follow() as first, follow() as second, follow() as third:
            assert [each.status_code for each in (first, second, third)] == [200, 200, 503]
            assert (third.headers["retry-after"], "2 readers" in third.read().decode()) == ("5", True)

        def let_in() -> bool:
            with follow() as again:
                return again.status_code == 200

        gc.disable()  # a place is free as soon as its reader has left
        try:
            until(let_in, "those that left make no room")
        finally:
            gc.enable()


@pytest.mark.parametrize(("grace", "stop", "text"), [(30, "answered", "In time."), (0, "stopped", None)])
def test_at_the_end_a_turn_may_go_on_for_the_grace_and_is_recorded(
    tmp_path: Path, grace: int, stop: str, text: str | None
) -> None:
    with emulator("anthropic", [Slow("In time.", 1 if grace else 600)], lenient=True) as model:
        line = f"serve --port 0 --db {tmp_path}/q.db --model {MODEL} --base-url {model.url} --grace {grace}"
        with running(*line.split()) as (url, process), httpx.Client(base_url=url) as client:
            client.post("/api/threads/other/entries", json={"entries": [user("Hi")]})
            with (
                client.stream("GET", "/api/threads/other/events") as reader,
                client.stream("POST", "/api/threads/t/turns", json={"text": "Hello?"}) as turn,
            ):
                until(lambda: model.requests)
                process.terminate()
                told = turn.read().decode()
                assert f'"stop":"{stop}"' in told
                assert "Hi" in reader.read().decode()  # sent away once the turns have ended
            assert process.wait(600) == 0
    with served(tmp_path / "q.db") as client:
        sent = entries(client, "t")
        assert next((each["text"] for each in sent if each["kind"] == "respond"), None) == text


def slow_reader(host: str, port: int) -> socket.socket:
    """Asks for events and takes none of them."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect((host, port))
    made.sendall(f"GET /api/threads/t/events HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode())
    return made


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024
