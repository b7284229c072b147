"""Three services on one database: killed at random under load, their database restarted, and nothing lost or doubled."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from serving import SseReader, user

from quire import open_store
from quire.testing import emulator, postgres_server
from quire.values import Call, JsonObject, Text
from toolbox import free_port, until

KILLS = 20 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 6
MODEL = "anthropic:claude-opus-5-5"
STOCK = {"name": "stock", "description": "How many.", "parameters": {"type": "object", "properties": {}}}


class Replicas:
    """Three processes of `quire serve`; one that is killed is started again at its port."""

    def __init__(self, db: str, model_url: str) -> None:
        self._db, self._model_url = db, model_url
        self._local, self._clients = threading.local(), list[httpx.Client]()
        nursery = Path(__file__).parent / "replica_nursery.py"
        self._nursery = subprocess.Popen(
            [sys.executable, nursery], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ports = [free_port() for _ in range(3)]
        self.pids = [self._start(port) for port in self.ports]

    def _start(self, port: int) -> int:
        self._nursery.stdin.write(f"{self._db} {port} {MODEL} {self._model_url}\n")
        self._nursery.stdin.flush()
        return int(self._nursery.stdout.readline())

    def kill(self, at: int) -> None:
        """As the system would: without a word."""
        with suppress(ProcessLookupError):
            os.kill(self.pids[at], signal.SIGKILL)
        self.pids[at] = self._start(self.ports[at])

    def _client(self) -> httpx.Client:
        """This OS thread's own."""
        if not hasattr(self._local, "client"):
            self._local.client = httpx.Client()
            self._clients.append(self._local.client)
        client: httpx.Client = self._local.client
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for pid in self.pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._nursery.communicate()

    def ask(self, dice: random.Random, method: str, path: str, body: JsonObject, key: str) -> JsonObject:
        """Ask any replica, with one key, until one has answered."""
        end = time.monotonic() + 600
        while True:
            url = f"http://127.0.0.1:{dice.choice(self.ports)}{path}"
            with suppress(httpx.HTTPError):
                reply = self._client().request(method, url, json=body, headers={"idempotency-key": key})
                if reply.status_code < 300:
                    answer: JsonObject = reply.json()
                    return answer
                passing = reply.status_code >= 500 or "under way" in reply.text or "carried out" in reply.text
                assert passing, (path, body, reply.status_code, reply.text)
            assert time.monotonic() < end, (path, body)
            time.sleep(0.05)


def calls_then_answers(body: JsonObject) -> list[Any]:
    """A model that wants the stock of what the user named, then says it."""
    last = body["messages"][-1]["content"][-1]
    asked = sum(one["role"] == "user" for one in body["messages"])
    return ["It is there."] if last["type"] == "tool_result" else [Text("I look."), Call(f"c{asked}", "stock", {})]


class Load:
    """Writers, talkers and a reader that go on until they are told to end, and what they were told was stored."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas, self.ended, self.written = replicas, threading.Event(), threading.Event()
        self.appended: dict[str, list[str]] = {"own-0": [], "own-1": []}
        self.shared: list[str] = []
        self.said: dict[str, list[str]] = {"talk-0": [], "talk-1": []}
        self.ran: list[tuple[str, str]] = []
        self.reader = SseReader()
        self.errors: list[BaseException] = []

    def write(self, thread: str, dice: random.Random) -> None:
        texts = self.appended[thread]
        while not self.ended.is_set():
            text = f"{thread} {len(texts)}"
            own = {"entries": [user(text)], "expected_seq": len(texts)}
            self.replicas.ask(dice, "POST", f"/api/threads/{thread}/entries", own, uuid.uuid4().hex)
            texts.append(text)
            self.replicas.ask(dice, "POST", "/api/threads/shared/entries", {"entries": [user(text)]}, uuid.uuid4().hex)
            self.shared.append(text)

    def talk(self, thread: str, dice: random.Random) -> None:
        path, tools = f"/api/threads/{thread}", {"entries": [{"kind": "tools", "tools": [STOCK]}]}
        self.replicas.ask(dice, "POST", f"{path}/entries", tools, uuid.uuid4().hex)
        while not self.ended.is_set():
            text = f"{thread} asks {len(self.said[thread])}"
            turn = self._turn(dice, f"{path}/turns", {"text": text})
            while turn["stop"] != "answered":
                results = [self._run(thread, call["call_id"]) for call in turn["calls"]]
                turn = self._turn(dice, f"{path}/resume", {"results": results})
            self.said[thread].append(text)

    def _turn(self, dice: random.Random, path: str, body: JsonObject) -> JsonObject:
        return self.replicas.ask(dice, "POST", path, {**body, "stream": False}, uuid.uuid4().hex)

    def _run(self, thread: str, call_id: str) -> JsonObject:
        self.ran.append((thread, call_id))
        return {"call_id": call_id, "content": "42"}

    def read(self, dice: random.Random) -> None:
        while not self._is_read():
            url = f"http://127.0.0.1:{dice.choice(self.replicas.ports)}/api/threads/shared/events"
            headers = self.reader.connected()
            with suppress(httpx.HTTPError), httpx.stream("GET", url, headers=headers, timeout=5) as reply:
                for piece in reply.iter_raw() if reply.status_code == 200 else ():
                    self.reader.feed(piece)
                    if self._is_read():
                        return
            time.sleep(0.05)

    def _is_read(self) -> bool:
        """Whether nobody writes any more and everything was told."""
        return self.written.is_set() and (bool(self.errors) or self.reader.seq >= len(self.shared))

    def go_on(self, steps: int) -> None:
        """Wait until so much more was done, or something went wrong."""
        wanted = self._done() + steps
        until(lambda: self._done() >= wanted or self.ended.is_set(), "nothing is done any more")

    def _done(self) -> int:
        return len(self.shared) + len(self.ran)

    @contextmanager
    def running(self) -> Iterator[None]:
        work: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
            *((self.write, (name, random.Random(name))) for name in self.appended),
            *((self.talk, (name, random.Random(name))) for name in self.said),
            (self.read, (random.Random("reader"),)),  # the last: it is waited for when the others have ended
        ]
        threads = [threading.Thread(target=self._guarded, args=each) for each in work]
        for each in threads:
            each.start()
        try:
            yield
        finally:
            self.ended.set()
            for each in threads[:-1]:
                each.join()
            self.written.set()
            threads[-1].join()
        assert not self.errors, self.errors

    def _guarded(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            work(*args)
        except BaseException as error:
            self.errors.append(error)
            self.ended.set()


def finished(entries: list[JsonObject]) -> list[JsonObject]:
    """The entries without replies that were broken off: the next `sent` takes back what no `sent` with usage closed."""
    kept, reply = list[JsonObject](), list[JsonObject]()
    for body in entries:
        if body["kind"] == "sent":
            kept += reply if "usage" in body else []
            reply = []
        elif body["kind"] in ("respond", "call", "think"):
            reply.append(body)
        else:
            kept.append(body)
    return kept


def test_replicas_are_killed_and_the_database_restarted_and_nothing_is_lost_or_doubled() -> None:
    dice = random.Random(7)
    with postgres_server() as server, emulator("anthropic", calls_then_answers, lenient=True) as model:
        replicas = Replicas(server.url, model.url)
        try:
            load = Load(replicas)
            with load.running():
                for kill in range(KILLS):
                    load.go_on(dice.randrange(2, 8))
                    replicas.kill(dice.randrange(3))
                    if kill == KILLS // 2:
                        server.stop()
                        server.start()
                load.go_on(10)
        finally:
            replicas.close()
        with open_store(server.url) as store:
            kept = {name: [entry.body for entry in store.read(name)] for name in ("shared", *load.appended, *load.said)}
            store.verify()
    for name, texts in load.appended.items():
        assert [body["text"] for body in kept[name]] == texts
        assert [body["text"] for body in kept["shared"] if body["text"].startswith(name)] == texts
    assert sorted(body["text"] for body in kept["shared"]) == sorted(load.shared)
    assert [load.reader.texts[seq] for seq in sorted(load.reader.texts)] == [body["text"] for body in kept["shared"]]
    assert len(load.reader.ids) == len(set(load.reader.ids))
    for name, texts in load.said.items():
        talk = finished(kept[name])
        assert [body["text"] for body in talk if body["kind"] == "user"] == texts
        calls = [body["call_id"] for body in talk if body["kind"] == "call"]
        results = [body["call_id"] for body in talk if body["kind"] == "result"]
        assert calls == results == [call for thread, call in load.ran if thread == name]
        assert len(calls) == len(texts) == len(set(calls))
        assert [body["text"] for body in talk if body["kind"] == "respond"].count("It is there.") == len(texts)
    print({name: len(entries) for name, entries in kept.items()})
