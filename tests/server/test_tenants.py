"""Nobody reaches another tenant's threads or records, by whichever route; and no key is to be found anywhere."""

import itertools
import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from serving import PLACES, new_place, served, user
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from quire import open_store
from quire.log.store import is_server
from quire.server import Route, follow, service
from quire.server.app import Running, all_routes
from quire.server.proxy import CacheWatcher, Passing, ProxyOptions
from quire.server.remote_store import CALLS
from quire.server.service import Keys, open_own
from quire.testing import emulator
from toolbox import until

MARK = "the marmalade of tenant A"
ITEM = {"content": MARK}
# What each route is asked with; names and ids are those of the other tenant.
BODIES: dict[str, Any] = {
    "create_thread": {"name": "mine", "fork_of": "t"},
    "append_entries": {"entries": [user("from B")], "expected_seq": 2},
    "assemble_request": {"model": "anthropic:claude-opus-5-5"},
    "begin_turn": {"text": "from B", "stream": False},
    "resume_turn": {"stream": False},
    "keep_item": {"content": "from B"},
    "create_record": {"schema_name": "note.v1", "context": {"text": "from B"}},
    "update_record": {"version": 1, "title": "from B"},
    "audit_requests": {"requests": [{"request": {"messages": [], "model": "m"}}]},
    "release_turn": {"hold": "1"},
    "call_store": {"arguments": {"thread": "t"}},
}
QUERIES = {"model": "anthropic:claude-opus-5-5", "q": "tenant", "text": "tenant"}


def query(route: Route) -> dict[str, Any]:
    """Something for each part of the query that has to be given: a word where it is named so, else a number."""
    fields = msgspec.structs.fields(route.query) if route.query is not None else ()
    return {field.name: QUERIES.get(field.name, 1) for field in fields if field.required}


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    return new_place(request.param, request)


@pytest.fixture(scope="module")
def keys(place: str) -> dict[str, str]:
    with open_own(place) as own:
        return {tenant: Keys(own).add(tenant, tenant, 0) for tenant in ("a", "b")}


@pytest.fixture(scope="module")
def client(place: str, keys: dict[str, str]) -> Iterator[httpx.Client]:
    with (
        emulator("anthropic", lenient=True) as model,
        served(
            place,
            proxies=lambda tenant: Passing(ProxyOptions(to=model.url), CacheWatcher()),
            base_url="http://127.0.0.1:9",
            model="vllm:m",
        ) as client,
    ):
        asked = {"model": "claude-opus-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": MARK}]}
        own = {"x-quire-key": keys["a"], "x-api-key": "k", "x-session-id": "marmalade"}
        assert client.post("/v1/messages", json=asked, headers=own).status_code == 200
        assert model.requests[-1].headers["x-api-key"] == "k"
        assert "x-quire-key" not in model.requests[-1].headers  # whose key this is the provider need not know
        refused = client.post("/v1/messages", json=asked, headers={"authorization": f"Bearer {keys['a']}"})
        assert (refused.status_code, "`x-quire-key: qk_…`" in refused.json()["hint"]) == (401, True)
        client.headers["authorization"] = f"Bearer {keys['a']}"
        until(lambda: client.get("/api/proxy/conversations").json()["conversations"])
        client.post("/api/threads/t/entries", json={"entries": [user(MARK), user(MARK)]})
        client.post("/api/threads/t/window", json=ITEM)
        client.post("/api/records", json={"schema_name": "note.v1", "context": {"text": MARK}})
        client.headers["authorization"] = f"Bearer {keys['b']}"
        yield client


def everything(place: str) -> list[Any]:
    """All that tenant A has."""
    with open_store(place, "a") as store:
        return [store.threads(), store.read("t"), store.window("t"), store.records.versions(1)]


def asked(route: Route) -> Iterator[str]:
    paths = [route.path]
    if "{call}" in route.path:
        paths = [route.path.replace("{call}", name) for name in CALLS]
    for path in paths:
        for id in ("rec-1", "ctx-1") if "{id}" in path else ("",):
            yield path.replace("{name}", "t").replace("{id}", id)


@pytest.mark.parametrize("route", all_routes(), ids=lambda route: f"{route.method} {route.path}")
def test_another_tenants_ids_lead_nowhere(client: httpx.Client, place: str, route: Route) -> None:
    before = everything(place)
    for path in asked(route):
        body = BODIES.get(route.operation, {}) if route.body is not None else None
        how: dict[str, Any] = {"json": body} if body is not None else {}
        if route.media != "application/json":
            with client.stream(route.method, path, params=query(route), **how) as reply:
                status = reply.status_code
                said = reply.read().decode() if status >= 400 else ""
        else:
            given = client.request(route.method, path, params=query(route), **how)
            status, said = given.status_code, given.text
        assert status != 500, said
        assert "marmalade" not in said
        if route.method == "GET" and "{name}" in route.path:
            assert status in (404, 200)
    assert everything(place) == before


def test_a_key_opens_its_own_tenant_alone(client: httpx.Client, keys: dict[str, str]) -> None:
    own = {"authorization": f"Bearer {keys['a']}"}
    assert MARK in client.get("/api/threads/t/entries", headers=own).text
    assert client.get("/api/records/rec-1", headers={"x-quire-key": keys["a"]}).json()["context"] == {"text": MARK}
    for wrong in ("", "Bearer qk_nope", "Basic abc"):
        refused = client.get("/api/threads", headers={"authorization": wrong})
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


def test_one_tenants_heavy_calls_leave_os_threads_for_others(tmp_path: Path) -> None:
    shared, go_on, begun = service.Service(tmp_path / "q.db", needs_keys=True), threading.Event(), list[int]()
    keys = {tenant: shared.keys.add(tenant, tenant, 1) for tenant in ("a", "b")}
    listing = lambda: (begun.append(1), go_on.wait(60), [])[2]  # noqa: E731
    shared.tenant("a").store.threads = listing  # type: ignore[method-assign]
    with Running(shared) as running, ThreadPoolExecutor(40) as callers:

        def ask(tenant: str) -> int:
            headers = {"authorization": f"Bearer {keys[tenant]}"}
            return httpx.get(f"{running.url}/api/threads", headers=headers, timeout=30).status_code

        heavy = [callers.submit(ask, "a") for _ in range(38)]
        try:
            until(lambda: len(begun) >= service.SHARE)  # as many as may begin
            assert [ask("b") for _ in range(3)] == [200] * 3
        finally:
            go_on.set()
        assert [call.result() for call in heavy] == [200] * 38


def test_the_first_key_closes_the_service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "KEYS_CACHED_S", 0.0)
    for kind in PLACES:
        place = new_place(kind, request)
        with served(place) as client, open_own(place) as own:
            assert client.get("/api/threads").status_code == 200
            key = Keys(own).add("first", "default", 0)
            assert client.get("/api/threads").status_code == 401
            assert client.get("/api/threads", headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_a_key_that_is_revoked_reads_no_further(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "KEYS_CACHED_S", 0.0)
    monkeypatch.setattr(follow, "ADMITTED_S", 0.0)
    with served(tmp_path / "q.db") as client, open_own(tmp_path / "q.db") as own:
        keys = Keys(own)
        told, held = ({"authorization": f"Bearer {keys.add(name, 'default', 0)}"} for name in ("told", "held"))
        say = lambda: client.post("/api/threads/t/entries", json={"entries": [user("Hi")]}, headers=told)  # noqa: E731
        say()
        with (
            client.stream("GET", "/api/threads/t/events", headers=held) as events,
            client.stream("POST", "/api/threads/t/hold", headers=held) as turn,
        ):
            lines = events.iter_lines()
            assert "id: 1" in itertools.islice(lines, 4)
            keys.revoke(keys.list()[1].id)
            say()
            assert "id: 2" not in list(lines)
            turn.read()  # it is given back, and ends
        with client.stream("POST", "/api/threads/t/hold", headers=told) as turn:
            assert turn.status_code == 200


def test_a_key_that_is_revoked_asks_nothing_more_over_a_websocket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "KEYS_CACHED_S", 0.0)
    asked = json.dumps({"type": "response.create", "model": "gpt-5.6", "input": "Hi", "store": False})
    with (
        emulator("openai") as model,
        open_own(tmp_path / "q.db") as own,
        served(
            tmp_path / "q.db", lambda tenant: Passing(ProxyOptions(to=model.url, key="k"), CacheWatcher())
        ) as client,
    ):
        keys = Keys(own)
        address = str(client.base_url.copy_with(scheme="ws", path="/v1/responses"))
        with connect(address, additional_headers={"x-quire-key": keys.add("a", "default", 0)}) as socket:
            socket.send(asked)
            until(lambda: "response.completed" in socket.recv())
            keys.revoke(keys.list()[0].id)
            socket.send(asked)
            with pytest.raises(ConnectionClosed):
                socket.recv()
        assert len(model.requests) == 1


def test_no_answer_log_or_file_holds_a_key(
    client: httpx.Client, keys: dict[str, str], place: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        shown = [
            client.post("/api/threads/keys/entries", json={"entries": [user(f"mine is {keys['b']}")]}).text,
            client.get("/api/threads/keys/entries").text,
            client.get(f"/api/threads/{keys['b']}").text,
            client.get("/api/threads", headers={"authorization": f"Bearer {keys['b'][:-1]}x"}).text,
            client.post("/api/threads/keys/turns", json={"text": keys["b"], "stream": False}).text,
        ]
    own = [record.getMessage() for record in caplog.records if not record.name.startswith("http")]
    told = "".join([*shown, *own])
    assert all(key not in told for key in keys.values())
    if is_server(place):
        import psycopg

        with psycopg.connect(place) as conn:
            names = [row[0] for row in conn.execute("select tablename from pg_tables where schemaname = 'quire'")]
            rows = [str(conn.execute(f"select t::text from quire.{name} t").fetchall()) for name in names]
            assert any("laptop" in row or "sha256" in row for row in rows)
    else:
        rows = [file.read_bytes().decode("latin-1") for file in Path(place).parent.iterdir()]
    assert all(key not in row for key in keys.values() for row in rows)
