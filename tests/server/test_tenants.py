"""Nobody reaches another tenant's threads or records, by whichever route; and no key is to be found anywhere."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from serving import served, user

from quire.server.access import Keys
from quire.server.app import all_routes
from quire.server.routes import Route
from quire.server.service import open_own
from quire.server.store_calls import CALLS
from quire.thread import open_store

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
    "release_turn": {"hold": "x"},
    "call_store": {"arguments": {"thread": "t"}},
}
QUERIES = {"model": "anthropic:claude-opus-5-5", "q": "marmalade", "text": "marmalade"}


def query(route: Route) -> dict[str, Any]:
    """Something for each part of the query that has to be given: a word where it is named so, else a number."""
    fields = msgspec.structs.fields(route.query) if route.query is not None else ()
    return {field.name: QUERIES.get(field.name, 1) for field in fields if field.required}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tenants") / "q.db"


@pytest.fixture(scope="module")
def keys(place: Path) -> dict[str, str]:
    with open_own(place) as own:
        return {tenant: Keys(own).add(tenant, tenant, 0) for tenant in ("a", "b")}


@pytest.fixture(scope="module")
def client(place: Path, keys: dict[str, str]) -> Iterator[httpx.Client]:
    with served(place, base_url="http://127.0.0.1:9", model="vllm:m") as client:
        client.headers["authorization"] = f"Bearer {keys['a']}"
        client.post("/api/threads/t/entries", json={"entries": [user(MARK), user(MARK)]})
        client.post("/api/threads/t/window", json=ITEM)
        client.post("/api/records", json={"schema_name": "note.v1", "context": {"text": MARK}})
        client.headers["authorization"] = f"Bearer {keys['b']}"
        yield client


def everything(place: Path) -> list[Any]:
    """All that tenant A has."""
    with open_store(place.with_name("q.a.db")) as store:
        return [store.threads(), store.read("t"), store.window("t"), store.records.versions(1)]


def asked(route: Route) -> Iterator[str]:
    paths = [route.path]
    if "{call}" in route.path:
        paths = [route.path.replace("{call}", name) for name in CALLS]
    for path in paths:
        for id in ("rec-1", "ctx-1") if "{id}" in path else ("",):
            yield path.replace("{name}", "t").replace("{seq}", "1").replace("{id}", id)


@pytest.mark.parametrize("route", all_routes(), ids=lambda route: f"{route.method} {route.path}")
def test_another_tenants_ids_lead_nowhere(client: httpx.Client, place: Path, route: Route) -> None:
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


def test_no_answer_log_or_file_holds_a_key(
    client: httpx.Client, keys: dict[str, str], place: Path, caplog: pytest.LogCaptureFixture
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
    assert all(key.encode() not in file.read_bytes() for key in keys.values() for file in place.parent.iterdir())
