"""Turns through the service: streamed, followed from anywhere, stopped, resumed; and what is told of them."""

import contextlib
import threading
import time
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import PLACES, SseReader, new_place, served, user

from quire import values
from quire.errors import ConflictError, QuireError
from quire.log import own_fence
from quire.log.sqlite import SqliteStore
from quire.server import remote_store
from quire.server.remote_store import HttpStore
from quire.server.service import ServiceLimits
from quire.testing import Cut, Emulator, Refuse, Slow, emulator
from quire.values import Call, Text
from toolbox import QuietHandler, in_background, no_web_server, until

MODEL = "anthropic:claude-opus-5-5"


@pytest.fixture(scope="module")
def model() -> Iterator[Emulator]:
    with emulator("anthropic", lambda body: "You are welcome.", lenient=True) as server:
        yield server


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, model: Emulator) -> Iterator[list[httpx.Client]]:
    """Two services on one database."""
    db = tmp_path_factory.mktemp("turns") / "q.db"
    how = {"model": MODEL, "base_url": model.url}
    with served(db, **how) as one, served(db, **how) as other:
        yield [one, other]


def streamed(client: httpx.Client, path: str, body: dict[str, Any], **headers: str) -> SseReader:
    reader = SseReader()
    with client.stream("POST", path, json=body, headers=headers) as reply:
        assert reply.status_code == 200, reply.read()
        for piece in reply.iter_bytes():
            reader.feed(piece)
    return reader


def log_texts(client: httpx.Client, thread: str) -> dict[int, str]:
    entries = client.get(f"/api/threads/{thread}/entries").json()["entries"]
    return {entry["seq"]: entry.get("text", "") for entry in entries}


def test_a_turn_is_streamed_and_its_outcome_comes_last(replicas: list[httpx.Client]) -> None:
    reader = streamed(replicas[0], "/api/threads/a/turns", {"text": "Thanks!"})
    assert reader.outcome["stop"] == "answered"
    assert reader.outcome["text"] == "You are welcome."
    assert reader.outcome["usage"]["input_total"] > 0
    assert reader.texts == log_texts(replicas[1], "a")
    whole = replicas[1].post("/api/threads/a/turns", json={"text": "Again!", "stream": False})
    assert (whole.status_code, whole.json()["text"], whole.json()["model"]) == (200, "You are welcome.", MODEL)
    assert replicas[0].get("/api/threads/a/turn").json()["next"] == "done"


def test_the_same_key_begins_one_turn(replicas: list[httpx.Client], model: Emulator) -> None:
    before = len(model.requests)
    said = [
        streamed(client, "/api/threads/k/turns", {"text": "Once."}, **{"idempotency-key": "turn-1"})
        for client in (*replicas, replicas[0])
    ]
    assert len({str(reader.outcome) for reader in said}) == 1
    assert len(model.requests) == before + 1
    # Behind another turn it neither goes on with that one nor has its answer.
    replicas[0].post("/api/threads/k/turns", json={"text": "Twice.", "stream": False})
    late = replicas[1].post("/api/threads/k/turns", json={"text": "Once."}, headers={"idempotency-key": "turn-1"})
    assert (late.status_code, late.json()["state"]["next"]) == (409, "done")
    assert len(model.requests) == before + 2


@pytest.mark.parametrize("behind", [False, True], ids=["first", "later"])
def test_the_key_of_a_turn_whose_thread_was_deleted_begins_nothing(replicas: list[httpx.Client], behind: bool) -> None:
    path, keyed = f"/api/threads/gone-{behind}", {"idempotency-key": f"gone-{behind}"}
    if behind:
        replicas[0].post(f"{path}/turns", json={"text": "Before.", "stream": False})
    asked = {"text": "Once.", "stream": False}
    assert replicas[0].post(f"{path}/turns", json=asked, headers=keyed).status_code == 200
    assert replicas[0].delete(path).status_code == 204
    again = replicas[1].post(f"{path}/turns", json=asked, headers=keyed)
    assert (again.status_code, "was deleted" in again.text) == (409, True)
    assert replicas[1].get(path).status_code == 404


def test_the_caller_runs_the_calls_and_resumes(replicas: list[httpx.Client], model: Emulator) -> None:
    tools = [{"name": "stock", "description": "How many.", "parameters": {"type": "object", "properties": {}}}]
    replicas[0].post("/api/threads/c/entries", json={"entries": [{"kind": "tools", "tools": tools}]})
    model.next([Text("I look."), Call("c1", "stock", {}), Call("c2", "stock", {})])
    asked = streamed(replicas[0], "/api/threads/c/turns", {"text": "How many?"})
    assert asked.outcome["stop"] == "calls"
    waiting = [call["call_id"] for call in asked.outcome["calls"]]
    assert len(waiting) == 2
    wrong = replicas[1].post("/api/threads/c/resume", json={"results": [{"call_id": "nope"}]})
    assert (wrong.status_code, [call["call_id"] for call in wrong.json()["state"]["calls"]]) == (409, waiting)
    half = streamed(replicas[1], "/api/threads/c/resume", {"results": [{"call_id": waiting[0], "content": "42"}]})
    assert half.outcome["stop"] == "calls"
    done = streamed(replicas[1], "/api/threads/c/resume", {"results": [{"call_id": waiting[1], "interrupted": True}]})
    assert (done.outcome["stop"], done.outcome["text"]) == ("answered", "You are welcome.")
    sent = str(model.requests[-1].body)
    assert "42" in sent
    assert "interrupted" in sent


@pytest.mark.parametrize("by", [0, 1], ids=["in its process", "from another"])
def test_a_turn_is_stopped_and_gone_on_with(replicas: list[httpx.Client], model: Emulator, by: int) -> None:
    name = f"stop{by}"
    before = len(model.requests)
    model.next(Slow("Too late.", 300))
    reader = SseReader()
    with replicas[0].stream("POST", f"/api/threads/{name}/turns", json={"text": "Wait."}) as reply:
        pieces = reply.iter_bytes()
        while not any(text == "Wait." for text in reader.texts.values()):
            reader.feed(next(pieces))
        until(lambda: len(model.requests) > before)
        busy = replicas[1 - by].post(f"/api/threads/{name}/turns", json={"text": "And this?"})
        assert (busy.status_code, busy.json()["title"]) == (409, "conflict")
        assert replicas[by].post(f"/api/threads/{name}/stop").json() == {"stopped": True}
        for piece in pieces:
            reader.feed(piece)
    assert reader.outcome["stop"] == "stopped"
    model.next(Slow("You are welcome.", 0.6))  # long enough that a stop which another process asked for is looked for
    assert streamed(replicas[1], f"/api/threads/{name}/resume", {}).outcome["text"] == "You are welcome."
    assert replicas[0].post(f"/api/threads/{name}/stop").json() == {"stopped": False}


def test_a_model_that_fails_is_told_with_its_hint(replicas: list[httpx.Client], model: Emulator) -> None:
    model.next(Refuse(400, "no such thing as sk-ant-api03-" + "x" * 40))  # a gateway may repeat the service's own key
    failed = streamed(replicas[0], "/api/threads/f/turns", {"text": "Hello."})
    assert (failed.outcome["stop"], failed.outcome["problem"]["status"]) == ("failed", 502)
    assert "no such thing as [Anthropic key]" in failed.outcome["problem"]["detail"]
    model.next(Refuse(400, "no such thing"))
    whole = replicas[0].post("/api/threads/f/resume", json={"stream": False})
    assert (whole.status_code, whole.json()["state"]["stop"]) == (502, "failed")
    assert "no such thing" in whole.json()["detail"]


@given(cuts=st.lists(st.integers(1, 4000), min_size=1, max_size=12), broken=st.booleans())
@settings(max_examples=15)
def test_a_reader_that_is_cut_off_anywhere_misses_nothing_and_sees_nothing_twice(
    replicas: list[httpx.Client], model: Emulator, cuts: list[int], broken: bool
) -> None:
    """It reads `cuts` bytes, loses the connection, and comes back to the other replica with the last whole event's id."""
    name = f"p{time.monotonic_ns()}"
    answer = "Once upon a time there was a reader that came and went as it liked. " * 100
    if broken:
        model.next(Cut(answer, 9000))
    model.next(answer) if not broken else None
    replicas[0].post("/api/threads", json={"name": name})
    turn = threading.Thread(
        target=replicas[0].post, args=(f"/api/threads/{name}/turns",), kwargs={"json": {"text": "Go.", "stream": False}}
    )
    turn.start()
    reader = SseReader()
    for number, cut in enumerate([*cuts, 10**6]):
        if number == len(cuts):
            turn.join()
        end = replicas[0].get(f"/api/threads/{name}").json()["seq"]
        if number == len(cuts) and reader.seq >= end:
            break
        headers = reader.connected()
        with replicas[number % 2].stream("GET", f"/api/threads/{name}/events", headers=headers) as reply:
            left = cut
            for piece in reply.iter_raw():
                reader.feed(piece[:left])
                left -= len(piece)
                if left <= 0 or reader.seq >= end:
                    break
    assert reader.texts == log_texts(replicas[1], name)
    assert len(set(reader.ids)) == len(reader.ids)


def test_readers_of_a_deleted_thread_are_sent_away(replicas: list[httpx.Client]) -> None:
    for replica in replicas:  # by the process they read from, and by another
        replicas[0].post("/api/threads/gone/entries", json={"entries": [user("a")]})
        with replicas[0].stream("GET", "/api/threads/gone/events") as reply:
            pieces = reply.iter_bytes()
            while b"event: entry" not in next(pieces):
                pass
            replica.delete("/api/threads/gone")
            assert b"event: entry" not in b"".join(pieces)


def test_readers_of_a_thread_that_was_made_anew_at_once_are_sent_away(tmp_path: Path) -> None:
    with served(tmp_path / "q.db") as client, SqliteStore(tmp_path / "q.db") as store:
        store.append("t", [values.user("one"), values.user("two")])
        reader = SseReader()
        with client.stream("GET", "/api/threads/t/events") as reply:
            pieces = reply.iter_bytes()
            while reader.seq < 2:
                reader.feed(next(pieces))
            store.delete("t")
            store.append("t", [values.user(text) for text in ("three", "four", "five")])
            for piece in pieces:
                assert b"event: entry" not in piece


def test_events_of_what_is_not_there(replicas: list[httpx.Client]) -> None:
    assert replicas[0].get("/api/threads/none/events").status_code == 404
    replicas[0].post("/api/threads/e/entries", json={"entries": [user("x")]})
    bad = replicas[0].get("/api/threads/e/events", headers={"last-event-id": "x"})
    assert (bad.status_code, bad.json()["hint"]) == (422, "Ids look like 17 or 17:40.")
    ahead = replicas[0].get("/api/threads/e/events", headers={"last-event-id": "2:5"})
    assert (ahead.status_code, ahead.json()["state"]["seq"], "from 0" in ahead.json()["hint"]) == (409, 1, True)


def test_who_asks_for_the_head_of_events_alone_reads_none(replicas: list[httpx.Client]) -> None:
    replicas[0].post("/api/threads/h/entries", json={"entries": [user("x")]})
    head = replicas[0].head("/api/threads/h/events")
    assert (head.status_code, head.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    assert replicas[0].get("/api/threads/h").status_code == 200  # on the same connection


@pytest.mark.parametrize("kind", PLACES)
def test_a_turn_held_over_http_is_held_at_the_service_and_its_appends_are_fenced(
    kind: str, request: pytest.FixtureRequest
) -> None:
    place = new_place(kind, request)
    with served(place) as one, served(place) as other, HttpStore(str(one.base_url)) as store:
        hold = lambda client: client.post("/api/threads/t/hold").status_code  # noqa: E731
        with store.turn_lock("t"):
            store.append("t", [values.user("mine")])
            for _ in range(3):
                assert [hold(one), hold(other)] == [409, 409]
            fence = own_fence(store.place, "t")
            anywhere = {"entries": [user("by another replica")], "turn": str(fence)}
            assert other.post("/api/threads/t/entries", json=anywhere).status_code == 201
            # As if the connection were lost: the service gives the turn back, its holder does not know.
            assert one.post("/api/threads/t/release", json={"hold": str(fence)}).status_code == 204
            with other.stream("POST", "/api/threads/t/hold") as theirs:
                assert theirs.status_code == 200
                with pytest.raises(ConflictError, match="was taken over"):
                    store.append("t", [values.user("too late")])
                assert other.post("/api/threads/t/entries", json=anywhere).status_code == 409
        while True:  # the other's connection has ended, which the service is just noticing
            with contextlib.suppress(ConflictError), store.turn_lock("t"):
                break
        assert "too late" not in str(log_texts(one, "t"))


def test_a_turn_is_held_with_an_idempotency_key_as_without(replicas: list[httpx.Client]) -> None:
    def hold() -> tuple[int, str]:
        with replicas[0].stream("POST", "/api/threads/held/hold", headers={"idempotency-key": "hold-1"}) as reply:
            return reply.status_code, next(reply.iter_lines())

    assert hold() == (200, "event: held")
    until(lambda: hold() == (200, "event: held"))
    route = replicas[0].get("/api/openapi.json").json()["paths"]["/api/threads/{name}/hold"]["post"]
    assert "Idempotency-Key" not in [parameter["name"] for parameter in route["parameters"]]


def test_a_turn_cannot_be_held_at_a_service_that_does_not_answer(tmp_path: Path) -> None:
    with served(tmp_path / "q.db") as client:
        store = HttpStore(str(client.base_url))
    with store, pytest.raises(QuireError, match="does not answer"), store.turn_lock("t"):
        pass


class _Page(QuietHandler):
    def do_POST(self) -> None:
        self.received()
        self.answer(b"<html>Not what you think.</html>", "text/html")


def test_what_is_no_service_does_not_answer_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_store, "_WAITS_S", (0,))
    page = in_background(HTTPServer(("127.0.0.1", 0), _Page))
    for server in (page, no_web_server()):
        with (
            server as url,
            HttpStore(url) as store,
            pytest.raises(QuireError, match=f"^{url} does not answer") as error,
        ):
            store.threads()
        assert error.value.hint == "Is `quire serve` running there?"


def test_a_turn_that_cannot_be_held_for_want_of_readers_is_free(tmp_path: Path) -> None:
    with served(tmp_path / "q.db", limits=ServiceLimits(readers=0)) as client:
        assert client.post("/api/threads/t/hold").status_code == 503
        until(lambda: client.post("/api/threads/t/hold").status_code == 503)


def test_a_fault_in_taking_a_turn_is_told_to_whoever_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "turn_lock", lambda store, thread: 1 / 0)
    with served(tmp_path / "q.db") as client:
        assert client.post("/api/threads/t/hold", timeout=5).status_code == 500
