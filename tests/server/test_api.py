"""The rest of the library over HTTP, and a search for faults in what the routes promise."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle
from operator import itemgetter
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings
from serving import PLACES, new_place, served, user

from quire.server.app import all_routes, openapi
from quire.server.service import ServiceLimits
from quire.testing import emulator
from toolbox import Later

schemathesis, lazy, requests = Later("schemathesis"), Later("schemathesis.pytest.lazy"), Later("requests")

MODEL = "anthropic:claude-opus-5-5"


@pytest.fixture(scope="module")
def clients(request: pytest.FixtureRequest) -> Iterator[dict[str, httpx.Client]]:
    replies = lambda body: "Certainly."  # noqa: E731
    with emulator("anthropic", replies, lenient=True) as model, ExitStack() as stack:
        how = {"base_url": model.url, "model": MODEL, "limits": ServiceLimits(per_s=0)}
        made = {kind: stack.enter_context(served(new_place(kind, request), **how)) for kind in PLACES}
        for client in made.values():
            client.post("/api/threads/t/entries", json={"entries": [user("The marmalade is in the cellar.")]})
            client.post("/api/threads/t/turns", json={"text": "Where is it?", "stream": False})
        yield made


@pytest.fixture(params=PLACES)
def client(request: pytest.FixtureRequest, clients: dict[str, httpx.Client]) -> httpx.Client:
    return clients[request.param]


def test_requests_are_assembled_rendered_and_listed_with_their_cost(client: httpx.Client) -> None:
    asked = {"model": MODEL, "options": {"max_tokens": 100}}
    made = client.post("/api/threads/t/requests", json=asked).json()
    assert (made["body"]["max_tokens"], made["layers"]) == (100, {})
    assert len(client.post("/api/threads/t/requests", json={**asked, "layers": True}).json()["layers"]) == 5
    other = client.get("/api/threads/t/render", params={"model": "openai:gpt-6-sol"}).json()
    assert other["body"]["model"] == "gpt-6-sol"
    sent = client.get("/api/threads/t/requests").json()["requests"]
    used = client.get("/api/threads/t/usage").json()
    assert [each["model"] for each in sent] == [MODEL]
    assert (used["requests"], used["usd"], used["unpriced"]) == (1, sent[0]["usd"], 0)
    client.post("/api/threads", json={"name": "fork", "fork_of": "t"})
    assert client.get("/api/usage").json() == used  # what a fork shares is counted once
    client.delete("/api/threads/fork")
    assert client.get("/api/threads/t/render", params={"model": "nobody:x"}).status_code == 404


def test_what_was_said_is_recalled(client: httpx.Client) -> None:
    for n in range(3):
        client.post(
            "/api/threads/o/entries", json={"entries": [user(f"Number {n}."), user("The key hangs in the hall.")]}
        )
    found = client.get("/api/threads/t/recall", params={"q": "Where does the key hang?", "scope": "threads"}).json()
    assert found["hits"][0]["entry"]["text"] == "The key hangs in the hall."


def test_a_window_is_kept_and_its_items_removed(client: httpx.Client) -> None:
    kept = client.post("/api/threads/t/window", json={"content": "A note.", "type": "text"}).json()
    assert [item["content"] for item in client.get("/api/threads/t/window").json()["items"]] == ["A note."]
    assert client.delete(f"/api/threads/t/window/{kept['id']}").status_code == 204
    assert client.get("/api/threads/t/window").json()["items"] == []


@pytest.mark.parametrize("place", PLACES)
def test_no_item_is_lost_that_is_kept_while_others_are(place: str, request: pytest.FixtureRequest) -> None:
    db, contents = new_place(place, request), [f"Note {number}." for number in range(12)]
    with served(db) as one, served(db) as other, ThreadPoolExecutor(6) as threads:
        one.post("/api/threads", json={"name": "t"})
        each = zip(cycle((one, other)), contents)
        keep = lambda to, content: to.post("/api/threads/t/window", json={"content": content})  # noqa: E731
        kept = list(threads.map(lambda pair: keep(*pair), each))
        assert {reply.status_code for reply in kept} == {201}
        items = other.get("/api/threads/t/window").json()["items"]
        assert sorted(item["content"] for item in items) == sorted(contents)
        assert {item["id"] for item in items} == {reply.json()["id"] for reply in kept}
        gone = threads.map(lambda item: one.delete(f"/api/threads/t/window/{item['id']}").status_code, items)
        assert set(gone) == {204}
        assert other.get("/api/threads/t/window").json()["items"] == []


def test_records_are_created_found_changed_and_deleted(client: httpx.Client) -> None:
    new = {"schema_name": "note.v1", "context": {"text": "Bees like thyme."}, "tags": ["garden"]}
    made = client.post("/api/records", json=new, headers={"idempotency-key": "r1"}).json()
    assert client.post("/api/records", json=new, headers={"idempotency-key": "r1"}).json() == made
    path = f"/api/records/{made['id']}"
    assert client.get("/api/records", params={"q": "thyme"}).json()["records"] == [made]
    assert client.put(path, json={"version": 1, "title": "Bees"}).json()["version"] == 2
    assert client.put(path, json={"version": 1, "title": "Late"}).status_code == 409
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404


def test_models_are_listed_and_recorded_requests_audited(client: httpx.Client) -> None:
    models = client.get("/api/models").json()["models"]
    assert any(f"{each['provider']}:{each['model']}" == MODEL for each in models)
    asked: dict[str, Any] = {"model": "claude-opus-5-5", "messages": [{"role": "user", "content": "Hi"}]}
    used = {"input_tokens": 5, "output_tokens": 1}
    told = client.post("/api/audit", json={"requests": [{"request": asked, "reply": {"usage": used}}]}).json()
    assert told["total"]["requests"] == 1


_IN_TURN = cycle([itemgetter(kind) for kind in PLACES])
SHARES = 4


@pytest.fixture(scope="module")
def promises(clients: dict[str, httpx.Client]) -> Iterator[list[Callable[[], None]]]:
    """For each route a search for a case that it answers otherwise than it says."""

    session = requests.Session()  # a connection for all that is asked of a server
    session.trust_env = False  # else it looks for proxies and passwords before each request

    def ask(case: Any) -> None:
        # Random cases go to both stores; those that go through a schema field by field are many, and go to one in turn.
        through_the_schema = case.meta.phase.name == "coverage"
        for client in [next(_IN_TURN)(clients)] if through_the_schema else clients.values():
            case.call_and_validate(base_url=str(client.base_url), timeout=600, session=session)

    many = 200 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 2
    how = settings(max_examples=many, suppress_health_check=list(HealthCheck), deadline=None)
    routes = schemathesis.openapi.from_dict(openapi(all_routes())).exclude(path_regex="events|hold|turns|resume")
    # Not by `routes.parametrize()`: pytest 9.2 gives all of its tests one name, and xdist runs one test of a name.
    yield [made.ok()[1] for made in lazy.get_all_tests(schema=routes, test_func=ask, settings=how, given_kwargs={})]
    session.close()


@pytest.mark.parametrize("share", range(SHARES))
def test_no_fault_is_found_in_what_the_routes_promise(share: int, promises: list[Callable[[], None]]) -> None:
    assert len(promises) > 30
    for search in promises[share::SHARES]:
        search()
