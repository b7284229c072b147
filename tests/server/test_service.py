"""The service over HTTP: threads and entries, what is refused, and what is written once however often it is sent."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from serving import served, user

from quire.cli.main import quire
from quire.send import weights
from quire.server.app import all_routes, openapi
from quire.server.service import Redactor
from quire.values import JsonObject
from toolbox import running, until

# A schema cannot say that a hash is not its text's.
FORGED = {"kind": "attach", "item": {"content": "A note.", "sha256": "0" * 64}}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with served(tmp_path_factory.mktemp("service") / "q.db") as client:
        yield client


def test_a_thread_is_made_appended_to_read_forked_and_deleted(client: httpx.Client) -> None:
    made = client.post("/api/threads", json={"name": "a/b ü"})
    assert (made.status_code, made.json()["seq"]) == (201, 0)
    path = "/api/threads/a%2Fb%20%C3%BC"
    kept = client.post(f"{path}/entries", json={"entries": [user("one"), user("two")], "expected_seq": 0})
    assert [entry["seq"] for entry in kept.json()["entries"]] == [1, 2]
    assert client.get(f"{path}/entries", params={"after": 1}).json()["entries"] == kept.json()["entries"][1:]
    fork = client.post("/api/threads", json={"name": "f", "fork_of": "a/b ü", "at_seq": 1})
    assert (fork.json()["parent"], fork.json()["seq"]) == ("a/b ü", 1)
    assert client.delete(path).status_code == 204
    assert [thread["name"] for thread in client.get("/api/threads").json()["threads"]] == ["f"]


def test_a_conflict_says_how_the_thread_stands(client: httpx.Client) -> None:
    client.post("/api/threads/c/entries", json={"entries": [user("one")]})
    late = client.post("/api/threads/c/entries", json={"entries": [user("two")], "expected_seq": 0})
    assert (late.status_code, late.headers["content-type"]) == (409, "application/problem+json")
    assert late.json()["state"] == client.get("/api/threads/c").json()
    assert "expected_seq" in late.json()["hint"]


@pytest.mark.parametrize(
    ("method", "path", "how", "status"),
    [
        ("GET", "/api/threads/nope", {}, 404),
        ("GET", "/api/nope", {}, 404),
        ("PUT", "/api/threads", {}, 405),
        ("POST", "/api/threads", {"content": b"{", "headers": {"content-type": "application/json"}}, 400),
        ("POST", "/api/threads", {"content": b"{}"}, 415),
        ("POST", "/api/threads", {"json": {"nom": "x"}}, 422),
        ("POST", "/api/threads/x/entries", {"json": {"entries": [{"kind": "nope"}]}}, 422),
        ("POST", "/api/threads/x/entries", {"json": {"entries": [{"kind": "user", "text": 1}]}}, 422),
        ("POST", "/api/threads/x/entries", {"json": {"entries": [FORGED]}}, 409),
        ("GET", "/api/threads/x/entries?after=-1", {}, 422),
        ("POST", "/api/store/changes", {"json": {"arguments": {"after": 2**64 - 1}}}, 422),
        ("POST", "/api/threads/a%00b/entries", {"json": {"entries": []}}, 404),
        ("POST", "/api/threads/%FF/entries", {"json": {"entries": []}}, 404),
        ("GET", "/api/threads", {"headers": {"host": "evil.example"}}, 403),
        ("GET", "/api/threads", {"headers": {"host": "127.0.0.1.evil.example"}}, 403),
        ("GET", "/api/threads", {"headers": {"origin": "https://evil.example"}}, 403),
        ("GET", "/api/threads", {"headers": {"sec-fetch-site": "cross-site"}}, 403),
    ],
)
def test_a_refusal_is_a_problem(client: httpx.Client, method: str, path: str, how: dict[str, Any], status: int) -> None:
    refused = client.request(method, path, **how)
    assert (refused.status_code, refused.json()["status"]) == (status, status)
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["title"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost:8765", "[::1]:8765", "127.0.0.2:8765"])
def test_every_name_that_this_machine_has_for_itself_is_served(client: httpx.Client, host: str) -> None:
    headers = {"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}
    assert client.get("/api/threads", headers=headers).status_code == 200


def test_a_route_that_is_not_there_says_where_to_look(client: httpx.Client) -> None:
    assert "Taken are: name" in client.post("/api/threads", json={"nom": "x"}).json()["hint"]
    assert "Taken are: q," in client.get("/api/threads/x/recall?query=x").json()["hint"]
    assert client.get("/api/nope").json()["hint"] == "/api/openapi.json names the routes."
    assert "quire serve --to URL" in client.post("/v1/messages", json={"model": "m"}).json()["hint"]


def test_a_malformed_entry_is_named_by_its_place_and_its_field(client: httpx.Client) -> None:
    entries = [user("fine"), {"kind": "user", "txt": "hi"}]
    refused = client.post("/api/threads/x/entries", json={"entries": entries}).json()
    assert (refused["status"], refused["title"]) == (422, "malformed")
    assert refused["detail"] == "user field txt: unknown field - at `$.entries[1]`"
    assert "text" in refused["hint"]
    assert client.get("/api/threads/x").status_code == 404


def test_a_write_with_an_idempotency_key_happens_once(client: httpx.Client) -> None:
    key = {"idempotency-key": "k1"}
    tries = [client.post("/api/threads/once/entries", json={"entries": [user("hi")]}, headers=key) for _ in range(3)]
    assert [each.json() for each in tries] == [tries[0].json()] * 3
    assert client.get("/api/threads/once").json()["seq"] == 1
    other = client.post("/api/threads/once/entries", json={"entries": [user("ho")]}, headers=key)
    assert other.status_code == 409
    more = {"json": {"entries": [user("more")]}, "headers": {"idempotency-key": "k3"}}
    assert client.post("/api/threads/once/entries", **more).status_code == 201
    assert client.delete("/api/threads/once").status_code == 204
    late = client.post("/api/threads/once/entries", **more)
    assert (late.status_code, "was deleted" in late.text) == (409, True)
    first = client.post("/api/threads/once/entries", json={"entries": [user("hi")]}, headers=key)
    assert (first.status_code, "was deleted" in first.text) == (409, True)
    assert client.get("/api/threads/once").status_code == 404
    made = [client.post("/api/threads", json={"name": "new"}, headers={"idempotency-key": "k2"}) for _ in "ab"]
    assert [each.status_code for each in made] == [201, 201]


def test_secrets_are_taken_out_on_the_way_in(client: httpx.Client) -> None:
    for place, (begins, kind) in enumerate({"sk-ant-": "Anthropic", "xai-": "xAI", "gsk_": "Groq"}.items()):
        secret = begins + "a1B2" * 10
        kept = client.post("/api/threads/s/entries", json={"entries": [user(f"my key is {secret}, keep it")]})
        assert kept.json()["entries"][0]["text"] == f"my key is [{kind} key], keep it"
        assert secret not in client.get(f"/api/threads/s/entries?after={place}").text
        mark = f"[{kind} key]"
        assert Redactor().value({"args": {secret: [secret]}}) == {"args": {mark: [mark]}}
        # Two names that would become one, and one that looks like it: no field is lost.
        named = {secret: 1, f"{secret}Z": 2, f"{mark} 2": 3, "other": 4, f"{secret}Y": 5}
        shown = {mark: 1, f"{mark} 2 2": 2, f"{mark} 2": 3, "other": 4, f"{mark} 5": 5}
        assert list(Redactor().value(named).items()) == list(shown.items())


def test_the_page_for_machines_names_every_route(client: httpx.Client) -> None:
    page = client.get("/api/openapi.json").json()
    assert page == json.loads(json.dumps(openapi(all_routes())))
    named = {(method.upper(), path) for path, methods in page["paths"].items() for method in methods}
    assert named == {(route.method, route.path) for route in all_routes()}
    # No two are the same, nor called the same.
    assert len(named) == len({route.operation for route in all_routes()}) == len(all_routes())
    # What it defines is used, and what a route says of itself is said whole.
    assert {*re.findall(r"#/components/schemas/(\w+)", json.dumps(page))} == set(page["components"]["schemas"])
    assert "`stop` ends it." in page["paths"]["/api/threads/{name}/turns"]["post"]["description"]


def said_of(line: str) -> str:
    done = CliRunner().invoke(quire, line.split())
    return done.output + str(done.exception or "")


def test_quire_serve_runs_and_ends_by_a_signal(tmp_path: Path) -> None:
    limits = "--rate 6 --max-body 2000 --redact tulip-[0-9]+ --grace 1"
    limits += " --to http://127.0.0.1:9 --model vllm:m --base-url http://127.0.0.1:9 --demo"
    line = f"serve --port 0 --host 127.0.0.1 --db {tmp_path}/q.db {limits}"
    with running(*line.split()) as (url, process):
        assert httpx.get(f"{url}/healthz").json() == {"status": "ok"}
        shown = httpx.get(f"{url}/api/threads/demo/usage").json()
        assert (shown["requests"], shown["usage"]["cache_read"] > 1000, shown["usd"] > 0) == (18, True, True)
        columns = httpx.get(f"{url}/api/inspect/threads/demo").json()["columns"]
        assert [each["rebase"]["reason"] for each in columns if each.get("rebase")] == ["budget", "budget"]
        assert httpx.get(f"{url}/api/threads/demo/turn").json()["model"] == "vllm:m", "the one that has a key here"
        assert json.loads(said_of(f"usage demo --json --db {tmp_path}/q.db")) == shown
        assert json.loads(said_of(f"usage --json --db {tmp_path}/q.db")) == httpx.get(f"{url}/api/usage").json()
        assert "anthropic:claude-opus-5-5" in said_of(f"usage --db {tmp_path}/q.db")
        kept = httpx.post(f"{url}/api/threads/t/entries", json={"entries": [user("tulip-77")]})
        assert kept.json()["entries"][0]["text"] == "[secret 1]"
        assert httpx.post(f"{url}/api/threads/t/entries", json={"entries": [user("x" * 2000)]}).status_code == 413
        assert httpx.post(f"{url}/v1/messages", json={}).status_code == 502  # the proxy's: nobody is there
        with httpx.Client(base_url=url) as client:
            often = next(reply for _ in range(500) if (reply := client.get("/api/threads")).status_code != 200)
        assert (often.status_code, int(often.headers["retry-after"])) == (429, 1)
        process.terminate()
        assert process.wait(600) == 0


def test_keys_are_made_shown_once_and_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_DB", str(tmp_path / "q.db"))
    assert "demands keys" in said_of("serve --host 0.0.0.0 --port 0 --no-redact")
    for name in ("", "  ", "a\nb"):
        refused = CliRunner().invoke(quire, ["serve", "keys", "add", name])
        assert "cannot be a key's name" in str(refused.exception)
    assert "is the service's own" in said_of("serve keys add laptop --tenant quire-service")
    key = json.loads(said_of("serve keys add laptop --tenant acme --json"))["key"]
    listed = json.loads(said_of("serve keys list --json"))
    assert [(each["name"], each["tenant"]) for each in listed] == [("laptop", "acme")]
    assert all(key.encode() not in file.read_bytes() for file in tmp_path.iterdir())
    with served(tmp_path / "q.db") as client:
        assert client.get("/api/threads").status_code == 401
        assert client.get("/api/threads", headers={"authorization": f"Bearer {key}"}).status_code == 200
    assert "is revoked" in said_of(f"serve keys revoke {listed[0]['id']}")
    assert json.loads(said_of("serve keys list --json")) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mend",), "--mend goes with --to."),
        (("--db", "notes.txt"), "notes.txt is damaged from entry 1 on"),
        (("--redact", ""), "'' is no pattern for secrets: it matches where nothing stands"),
        (("--redact", "k*"), "'k*' is no pattern for secrets: it matches where nothing stands"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_is(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Milk, bread, and a very long list of other things to buy. " * 20)
    called = [sys.executable, "-m", "quire", "serve", "--port", "0", "--db", "q.db", *words]
    done = subprocess.run(called, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode in (1, 2), said in done.stderr, "serving" in done.stderr) == (True, True, False)


def test_the_local_model_comes_along(tmp_path: Path) -> None:
    if weights.find("smollm2") is None:
        pytest.skip("the local model is not installed")
    with running(*f"serve --port 0 --local --db {tmp_path}/q.db".split()) as (url, process):
        short = {"options": {"max_tokens": 8}, "stream": False}
        own = httpx.post(f"{url}/api/threads/t/turns", json={"text": "Hello!", **short}, timeout=600).json()
        assert (own["stop"], own["model"]) == ("answered", "llamacpp:smollm2")
        body = {"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}
        passed = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600)
        assert passed.json()["choices"][0]["message"]["content"]
        # Whatever a client calls it, in whichever format, nothing is charged for it.
        claude = {**body, "model": "claude-opus-5-5"}
        httpx.post(f"{url}/v1/messages", json=claude, timeout=600).raise_for_status()
        until(lambda: len(_requests_seen(url)) == 2)
        assert [(each["model"], each["usd"]) for each in _requests_seen(url)] == [
            ("llamacpp:smollm2", 0.0),
            ("llamacpp-anthropic:claude-opus-5-5", 0.0),
        ]
        process.terminate()
        told, _ = process.communicate(timeout=600)
        assert told.count(" · $0\n") == 2, told
        assert process.returncode == 0


def _requests_seen(url: str) -> list[JsonObject]:
    seen = [
        row
        for each in httpx.get(f"{url}/api/proxy/conversations").json()["conversations"]
        for row in each["requests_seen"]
    ]
    return sorted(seen, key=lambda row: row["at"])


# msgspec reads a type when it first meets it: two OS threads that meet one at the same moment end the process.
MEETING = """
import sys, threading
import httpx
from quire.server.app import Running
from quire.server.service import Service

running, met = Running(Service(sys.argv[1])), []

def look(frame, event, _):
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        met.append(frame.f_locals["obj"])

threading.setprofile(look)
with running, httpx.Client(base_url=running.url + "/api/threads/t", timeout=60) as client:
    entries = [{"kind": "user", "text": "Hello"}, {"kind": "respond", "text": "Hello to you"}]
    client.post("/entries", json={"entries": entries}).raise_for_status()
    client.post("/requests", json={"model": "groq:llama-3.3-70b-versatile"}).raise_for_status()
    client.get("/recall", params={"q": "Hello"}).raise_for_status()
print(met)
"""


def test_no_call_is_the_first_to_meet_a_type(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", MEETING, tmp_path / "q.db"], capture_output=True, text=True, check=True
    )
    assert told.stdout == "[]\n"
