"""Whatever an application sends reaches the provider to the byte, and what comes back reaches the application."""

import asyncio
import base64
import contextlib
import gzip
import http.client
import json
import socket
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import brotli
import httpx
import pytest
import zstandard
from behind import RULES, Upstream, Watching, body, passing_on, proxied, watching
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from quire.emulate.anthropic import frame
from quire.errors import FormatError
from quire.server import watch
from quire.server.mend import Mender
from quire.server.proxy import CacheWatcher, Passing, Proxy, ProxyOptions, Watched
from quire.values import Usage
from toolbox import until

pytestmark = [pytest.mark.xdist_group("sdk"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


JSON = (b"{}", [(b"content-type", b"application/json")])


class Mirror:
    """Notes what arrives and answers with what it was told to; `proxied` is the proxy before it, `watched` what that saw."""

    url = proxied = ""
    reply: tuple[bytes, list[tuple[bytes, bytes]]] = JSON

    def __init__(self) -> None:
        self.seen, self.watched = list[Any](), list[Watched]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        pieces = []
        while (message := await receive()).get("body") is not None:
            pieces.append(message["body"])
            if not message.get("more_body"):
                break
        own = (b"host", b"connection")
        headers = [each for each in scope["headers"] if each[0] not in own]
        self.seen.append((scope["method"], scope["raw_path"], scope["query_string"], headers, b"".join(pieces)))
        answer, head = self.reply
        head = [*head, (b"x-twice", b"1"), (b"x-twice", b"2"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": answer})


@pytest.fixture(scope="module", params=["quire proxy", "quire serve --to"])
def beside(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    return None if request.param == "quire proxy" else tmp_path_factory.mktemp("serve") / "q.db"


@pytest.fixture(scope="module")
def standing(beside: Path | None) -> Iterator[Mirror]:
    app = Mirror()
    watcher = CacheWatcher(app.watched.append)
    with Upstream(app) as app.url, passing_on(ProxyOptions(to=app.url), watcher, beside) as app.proxied:
        yield app


@pytest.fixture
def mirror(standing: Mirror) -> Mirror:
    """One that nothing has come to yet."""
    standing.seen.clear()
    standing.watched.clear()
    standing.reply = JSON
    return standing


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("POST", "/v1/messages?beta=true&x=%20a+b", b'{ "model":"m",\n "messages" :[], "unknown": 1.50e3 }'),
        ("POST", "/v1/messages/count_tokens", b"{}"),
        ("GET", "/v1/models/a%2Fb", None),
        ("POST", "/v1/files", bytes(range(256)) * 4_000),
        ("DELETE", "/v1beta/cachedContents/x", None),
        ("PROPFIND", "/what/ever//is?asked", b"?"),
        ("POST", "/v1/chat/completions", b"no JSON at all"),
    ],
)
def test_methods_paths_headers_and_bodies_pass_to_the_byte(
    mirror: Mirror, method: str, path: str, content: bytes | None
) -> None:
    headers = [("x-own", "Ünïcode".encode("latin-1")), ("x-many", b"1"), ("x-many", b"2"), ("anthropic-beta", b"a,b")]
    replies = []
    for url in (mirror.url, mirror.proxied):
        with httpx.Client() as client:
            replies.append(client.request(method, f"{url}{path}", content=content, headers=headers))
    first, second = mirror.seen
    assert first == second
    one, two = ([each for each in reply.headers.raw if each[0] != b"date"] for reply in replies)
    assert one == two
    assert replies[0].content == replies[1].content


@pytest.mark.parametrize(
    ("to", "path", "url"),
    [
        ("https://a", "/v1/messages", "https://a/v1/messages"),
        ("https://a/", "/v1/v1/messages", "https://a/v1/messages"),
        ("https://a/v1", "/v1/responses", "https://a/v1/responses"),
        ("https://a/v1", "/responses", "https://a/v1/responses"),
        ("https://a", "/responses", "https://a/v1/responses"),
        ("https://a", "/chat/completions", "https://a/v1/chat/completions"),
        ("https://a", "/models", "https://a/v1/models"),
        ("https://a", "/models/g:generateContent", "https://a/v1beta/models/g:generateContent"),
        ("https://a", "/v1/models/g:generateContent", "https://a/v1/models/g:generateContent"),
        ("https://a/v1beta", "/v1beta/models/g:streamGenerateContent", "https://a/v1beta/models/g:streamGenerateContent"),
        ("https://a/v1beta", "/v1/models/g", "https://a/v1/models/g"),
        ("https://a/api/v1", "/v1/chat/completions", "https://a/api/v1/chat/completions"),
        ("https://a/backend-api/codex", "/responses", "https://a/backend-api/codex/responses"),
        ("https://a", "/other/thing", "https://a/other/thing"),
    ],
)  # fmt: skip
def test_a_version_stands_once_whoever_names_it(to: str, path: str, url: str) -> None:
    assert Passing(ProxyOptions(to=to), CacheWatcher()).url(path) == url


USED = {"input_tokens": 9, "output_tokens": 2, "cache_read_input_tokens": 0}
ANSWER = {"type": "message", "id": "msg_1", "role": "assistant", "content": [], "usage": USED}
CODINGS = {"gzip": gzip.compress, "deflate": zlib.compress, "br": brotli.compress, "zstd": zstandard.compress}


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_compressed_bodies_pass_as_they_are_and_are_read(mirror: Mirror, coding: str, streamed: bool) -> None:
    event = b"event: message_start\ndata: " + json.dumps({"type": "message_start", "message": ANSWER}).encode()
    plain = event + b"\n\n" if streamed else json.dumps(ANSWER).encode()
    kind = b"text/event-stream" if streamed else b"application/json"
    mirror.reply = CODINGS[coding](plain), [(b"content-type", kind), (b"content-encoding", coding.encode())]
    sent = CODINGS[coding](json.dumps(body("Hi")).encode())
    coded = {"content-encoding": coding}
    with httpx.stream("POST", f"{mirror.proxied}/v1/messages", content=sent, headers=coded) as reply:
        assert b"".join(reply.iter_raw()) == mirror.reply[0]
    assert mirror.seen[0][4] == sent
    until(lambda: mirror.watched)
    call = mirror.watched[0].call
    assert call.body["messages"][0]["content"][0]["text"] == "Hi"
    assert (call.usage and call.usage.input_total) == 9


def test_what_is_mended_keeps_headers_that_come_twice(mirror: Mirror) -> None:
    mirror.reply = json.dumps(ANSWER).encode(), JSON[1]
    twice = [("anthropic-beta", "one-1"), ("anthropic-beta", "two-2, three-3"), ("anthropic-version", "2023-06-01")]
    asked = {"model": "claude-opus-5-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi " * 9_000}]}
    with Proxy(ProxyOptions(to=mirror.url, mender=Mender()), CacheWatcher()) as proxy:
        httpx.post(f"{proxy.url}/v1/messages", json=asked, headers=twice)
    ((_, _, _, headers, sent),) = mirror.seen
    assert b"cache_control" in sent
    assert [value for name, value in headers if name == b"anthropic-beta"] == [b"one-1,two-2,three-3"]


def test_a_body_for_claude_in_another_cloud_is_not_mended(mirror: Mirror) -> None:
    asked = {"anthropic_version": "vertex-2023-10-16", "messages": [{"role": "user", "content": "Hi " * 9_000}]}
    with proxied(mirror, mender=Mender(), budget=3_000) as proxy:
        proxy.post(asked, f"{VERTEX}/claude-opus-4-5:rawPredict")
    assert json.loads(mirror.seen[0][4]) == asked
    assert "not mended: it is in a cloud's own format" in proxy.seen[0].line()


VERTEX = "/v1/projects/ours/locations/global/publishers/anthropic/models"
NINE = {"usageMetadata": {"promptTokenCount": 9}}
GEMINI_PIECES = [
    {"candidates": [{"content": {"parts": [{"text": "Yes"}], "role": "model"}}], **NINE},
    {"candidates": [{"finishReason": "STOP"}], "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 2}},
]
SEVEN = {"usage": {"input_tokens": 7}}
DATED = "claude-opus-4-5@20251101"
FORMS: dict[str, tuple[str, str, Any, int | None]] = {
    # Without alt=sse Gemini streams the events as one JSON list.
    "a list of events": ("/v1beta/models/gemini-2.5-pro:streamGenerateContent", "gemini-2.5-pro", GEMINI_PIECES, 9),
    "a tuned model": ("/v1beta/tunedModels/ours-1:generateContent", "ours-1", GEMINI_PIECES[0], 9),
    "a deployment, and an empty answer": ("/openai/deployments/gpt-6-sol/chat/completions?v=1", "gpt-6-sol", {}, None),
    "Claude on Vertex": (f"{VERTEX}/{DATED}:rawPredict", DATED, SEVEN, 7),
    "Claude on Vertex, streamed": (f"{VERTEX}/claude-opus-4-5:streamRawPredict", "claude-opus-4-5", SEVEN, 7),
    "Claude on Bedrock": ("/model/anthropic.claude-v1%3A0/invoke", "anthropic.claude-v1:0", SEVEN, 7),
    "Claude on Bedrock, a slash behind it": ("/model/anthropic.claude-v1:0/invoke/", "anthropic.claude-v1:0", SEVEN, 7),
    "a slash behind it": ("/v1/chat/completions/", "", {"usage": {"prompt_tokens": 8}}, 8),
}


@pytest.mark.parametrize("form", FORMS)
def test_models_in_paths_and_other_forms_of_replies_are_read(mirror: Mirror, form: str) -> None:
    path, model, answer, tokens = FORMS[form]
    mirror.reply = json.dumps(answer).encode(), [(b"content-type", b"application/json; charset=UTF-8")]
    said: Any = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]} if "v1beta" in path else {"messages": []}
    said |= {"anthropic_version": "vertex-2023-10-16"} if "laude" in path else {}
    assert httpx.post(f"{mirror.proxied}{path}", json=said).json() == answer
    until(lambda: mirror.watched)
    (seen,) = mirror.watched
    assert (seen.call.model, seen.whole, seen.call.usage and seen.call.usage.input_total) == (model, True, tokens)


def test_the_binary_events_of_bedrock_tell_what_was_used(beside: Path | None) -> None:
    path = "/model/anthropic.claude-opus-4-5-20251101-v1:0/converse"
    said = {"messages": [{"role": "user", "content": [{"text": RULES}]}]}
    for behind in watching("bedrock", beside=beside):
        for each in (path, f"{path}-stream"):
            sent = {"json": said, "headers": {"authorization": "Bearer k"}}
            assert httpx.post(f"{behind.url}{each}", **sent).status_code == 200
        whole, streamed = behind.newest(2)
        assert whole.call.usage is not None
        assert (streamed.call.usage, streamed.call.target, streamed.whole) == (
            whole.call.usage,
            whole.call.target,
            True,
        )


@pytest.mark.parametrize(("cut", "output"), [(0, 2), (1, 1)], ids=["whole", "cut off"])
def test_the_binary_events_of_claude_on_bedrock_tell_what_was_used(mirror: Mirror, cut: int, output: int) -> None:
    events = [
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 7, "output_tokens": 1}}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    ]
    chunks = [json.dumps({"bytes": base64.b64encode(json.dumps(event).encode()).decode()}) for event in events]
    frames = b"".join(frame({":event-type": "chunk", ":message-type": "event"}, chunk.encode()) for chunk in chunks)
    mirror.reply = frames[: len(frames) - cut], [(b"content-type", b"application/vnd.amazon.eventstream")]
    said = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    reply = httpx.post(f"{mirror.proxied}/model/anthropic.claude-v1:0/invoke-with-response-stream", json=said)
    assert reply.content == mirror.reply[0]
    until(lambda: mirror.watched)
    assert mirror.watched[0].call.usage == Usage(7, 0, 0, 0, output)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_small_body_that_unpacks_to_a_large_one_is_not_read(coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_MOST_PLAIN", 100_000)
    assert watch.plain(CODINGS[coding](b"x" * 100_000), coding) == b"x" * 100_000
    with pytest.raises(FormatError, match="unpacks to more than"):
        watch.plain(CODINGS[coding](b"x" * 10_000_000), coding)


@pytest.mark.parametrize(
    "cuts", [(), (40,), (150,), (190,)], ids=["whole", "in the head", "in the end of it", "in the body"]
)
def test_a_client_that_would_rather_speak_http_2_loses_no_body(mirror: Mirror, cuts: tuple[int, ...]) -> None:
    """As Java's does: what it offers is declined, on a connection that goes on."""
    upgrade = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
    head = f"POST /v1/messages?x=1 HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 14\r\n{upgrade}\r\n"
    data = f'{head}{{"messages":[]'.encode()
    with socket.create_connection(("127.0.0.1", int(mirror.proxied.rpartition(":")[2])), timeout=10) as client:
        for _ in range(2):
            for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
                client.sendall(data[start:end])
                time.sleep(0.02 if cuts else 0)
            reply = b""
            while not reply.endswith(b"{}"):
                reply += client.recv(65536)
            assert reply.startswith(b"HTTP/1.1 200")
    arrived = [(seen[:3], seen[4]) for seen in mirror.seen]
    assert arrived == [(("POST", b"/v1/messages", b"x=1"), b'{"messages":[]')] * 2


@pytest.mark.parametrize("lengths", [[], [(b"content-length", b"22")]], ids=["a stream", "of a known length"])
def test_a_client_of_http_1_0_gets_no_chunks_but_a_body_that_the_connection_ends(
    beside: Path | None, lengths: list[tuple[bytes, bytes]]
) -> None:
    async def streaming(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream"), *lengths]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in (b"data: one\n\n", b"data: two\n\n", b""):
            await send({"type": "http.response.body", "body": piece, "more_body": bool(piece)})

    with Upstream(streaming) as to, passing_on(ProxyOptions(to=to), CacheWatcher(), beside) as proxy:
        for url in (to, proxy):
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=10) as client:
                client.sendall(b"POST /v1/messages HTTP/1.0\r\nhost: 127.0.0.1\r\ncontent-length: 2\r\n\r\n{}")
                head, _, body = b"".join(iter(lambda: client.recv(65536), b"")).partition(b"\r\n\r\n")
            assert b"transfer-encoding" not in head
            assert body == b"data: one\n\ndata: two\n\n"


@pytest.mark.parametrize(
    ("path", "headers", "wanted"),
    [
        ("/v1/messages", {"x-api-key": "theirs"}, (b"x-api-key", b"own")),
        ("/v1/models", {"authorization": "Bearer theirs", "anthropic-version": "1"}, (b"x-api-key", b"own")),
        ("/v1/responses", {"authorization": "Bearer theirs"}, (b"authorization", b"Bearer own")),
        ("/v1beta/models/g:generateContent?key=theirs&alt=sse", {}, (b"x-goog-api-key", b"own")),
        ("/v1/messages", {}, (b"x-api-key", b"own")),
        ("/v1/models/ft:gpt", {"authorization": "Bearer theirs"}, (b"authorization", b"Bearer own")),
        ("/v1/threads/t/messages", {"authorization": "Bearer theirs"}, (b"authorization", b"Bearer own")),
        ("/v1beta/openai/chat/completions", {"authorization": "Bearer theirs"}, (b"authorization", b"Bearer own")),
        ("/openai/deployments/d/chat/completions", {"api-key": "theirs"}, (b"api-key", b"own")),
    ],
)
def test_the_proxys_own_key_takes_the_place_of_the_applications(
    mirror: Mirror, path: str, headers: dict[str, str], wanted: tuple[bytes, bytes]
) -> None:
    with Proxy(ProxyOptions(to=mirror.url, key="own"), CacheWatcher()) as proxy:
        httpx.post(f"{proxy.url}{path}", json={}, headers=headers)
    _, _, query, sent, _ = mirror.seen[0]
    assert wanted in sent
    assert b"theirs" not in b"".join([query, *(value for _, value in sent)])


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9"},
        {"host": "host.docker.internal:8765"},
        {"host": "evil.example:8765", "origin": "http://evil.example:8765"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_page_of_another_site_spends_nothing_by_the_proxys_key(mirror: Mirror, headers: dict[str, str]) -> None:
    own = Proxy(ProxyOptions(to=mirror.url, key="own"), CacheWatcher())
    with own as proxy, Proxy(mirror.url, CacheWatcher()) as keyless:
        for path in ("/v1/messages", "/v1/files"):
            posted = {"content": b"{}", "headers": {"content-type": "text/plain", **headers}}
            refused = httpx.post(f"{proxy.url}{path}", **posted), httpx.get(f"{proxy.url}{path}", headers=headers)
            assert [reply.status_code for reply in refused] == [403, 403]
            assert all("http://127.0.0.1" in reply.json()["error"]["message"] for reply in refused)
            # Without a key of its own it is for whoever has one: an application may run in a browser.
            assert httpx.post(f"{keyless.url}{path}", **posted).status_code == 200
        if "host" not in headers:
            address = proxy.url.replace("http", "ws") + "/v1/responses"
            with pytest.raises(InvalidStatus) as closed, connect(address, additional_headers=headers):
                pass
            assert closed.value.response.status_code == 403
    assert len(mirror.seen) == 2


@pytest.mark.parametrize("path", ["/../other/v1/files", "/v1/%2e%2e/other", "/v1/..%2Fother", "/v1/a/.%2E"])
def test_no_path_leads_out_of_the_base_url(mirror: Mirror, path: str) -> None:
    connection = http.client.HTTPConnection(mirror.proxied.removeprefix("http://"))
    with contextlib.closing(connection):
        connection.request("GET", path)  # as it is: httpx would take it apart
        assert connection.getresponse().status == 400
    assert mirror.seen == []


def test_a_request_larger_than_any_model_takes_fills_no_memory(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.server.proxy._MOST_BYTES", 1_000_000)
    kept: list[int] = []
    monkeypatch.setattr(CacheWatcher, "passed", lambda _, exchange: kept.append(len(exchange.given)))
    pieces = lambda: (b"x" * 100_000 for _ in range(20))  # noqa: E731
    with httpx.Client() as client, Proxy(ProxyOptions(to=mirror.url, budget=9), CacheWatcher()) as fitting:
        for url in (mirror.proxied, fitting.url):
            refused = client.post(f"{url}/v1/messages", content=pieces())
            assert (refused.status_code, refused.json()["error"]["type"]) == (413, "proxy_error")
            assert "larger than 1,000,000 bytes" in refused.json()["error"]["message"]
            assert client.get(f"{url}/v1/models").status_code == 200  # the connection goes on
    assert all(len(content) <= 1_000_000 for *_, content in mirror.seen)
    assert httpx.post(f"{mirror.proxied}/v1/files", content=pieces()).status_code == 200  # which nobody holds
    assert httpx.post(f"{mirror.proxied}/v1/messages", content=b"x" * 1_000_000).status_code == 200
    until(lambda: len(kept) == 2)  # the last is watched once its reply went out
    assert kept == [0, 1_000_000]


class Endless:
    """Sends events for ever, after a while; notes how far it came, and that nobody listens any more."""

    def __init__(self, before_s: float = 0.0, piece: bytes = b"data: {}\n\n" * 6_400) -> None:
        self.before_s, self.piece = before_s, piece
        self.sent, self.gone, self.asked = 0, False, False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        self.asked = True

        async def leave() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self.gone = True

        leaving = asyncio.ensure_future(leave())
        wait_until = time.monotonic() + self.before_s
        while not self.gone and time.monotonic() < wait_until:
            await asyncio.sleep(0.01)
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while not self.gone:
            await send({"type": "http.response.body", "body": self.piece, "more_body": True})
            self.sent += len(self.piece)
            await asyncio.sleep(0)
        await leaving


@pytest.mark.parametrize("before_s", [0.0, 30.0], ids=["while it answers", "before it answers"])
def test_an_application_that_goes_ends_the_call(before_s: float) -> None:
    app = Endless(before_s)
    with Upstream(app) as url, Proxy(url, CacheWatcher()) as proxy:
        with socket.create_connection(("127.0.0.1", int(proxy.url.rsplit(":", 1)[1]))) as own:
            own.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2\r\n\r\n{}")
            until(lambda: app.asked)
            if not before_s:
                assert own.recv(10)
        until(lambda: app.gone)


def test_an_upload_to_another_route_is_handed_on_and_not_held() -> None:
    async def count(scope: Any, receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message.get("more_body")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(size).encode()})

    pieces = (bytes([n]) * 1_000_000 for n in range(60))
    with Upstream(count) as upstream, Proxy(upstream, CacheWatcher()) as proxy:
        tracemalloc.start()
        try:
            assert httpx.post(f"{proxy.url}/v1/files", content=pieces, timeout=60).text == "60000000"
            assert tracemalloc.get_traced_memory()[1] < 30_000_000
        finally:
            tracemalloc.stop()


def test_a_slow_reader_slows_the_provider_down() -> None:
    app = Endless()
    with Upstream(app) as url, Proxy(url, CacheWatcher()) as proxy:
        with socket.create_connection(("127.0.0.1", int(proxy.url.rsplit(":", 1)[1]))) as own:
            own.sendall(b"GET /v1/slow HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            assert own.recv(10)
            before = -1
            while before < app.sent:  # until nothing moves any more: buffers of the kernel are full
                before = app.sent
                time.sleep(0.3)
            assert app.sent < 40 * 1024 * 1024
        until(lambda: app.gone)


# OpenAI's servers hold what came before: over HTTP by its id, over a WebSocket by the connection as well.


@pytest.fixture(scope="module")
def openai(beside: Path | None) -> Iterator[Watching]:
    yield from watching("openai", beside=beside)


WORDS = "Everything that was said before stands in this long text. " * 120


def test_conversations_behind_previous_response_id_are_rebuilt(openai: Watching) -> None:
    openai.seen.clear()
    headers = {"authorization": "Bearer k"}
    asked = {"model": "gpt-5.6", "instructions": WORDS, "input": "First."}
    first = httpx.post(f"{openai.url}/v1/responses", json=asked, headers=headers).json()
    more = {**asked, "input": "Second.", "previous_response_id": first["id"]}
    assert httpx.post(f"{openai.url}/responses", json=more, headers=headers).status_code == 200
    unknown = {**asked, "input": "Third.", "previous_response_id": "resp_elsewhere"}
    httpx.post(f"{openai.url}/v1/responses", json=unknown, headers=headers)
    one, two = openai.newest(2)
    assert two.conversation is one.conversation
    said = [item["content"] for item in two.call.body["input"] if item.get("role") == "user"]
    assert said == ["First.", "Second."]
    assert len(two.call.body["input"]) == 3
    assert two.loss is None


def frames(way: Any, asked: dict[str, Any]) -> list[dict[str, Any]]:
    way.send(json.dumps({"type": "response.create", **asked}))
    got: list[dict[str, Any]] = []
    while not got or got[-1]["type"] not in ("response.completed", "error"):
        got.append(json.loads(way.recv(10)))
    return got


def test_a_websocket_passes_as_it_is_and_its_conversation_is_rebuilt(openai: Watching) -> None:
    openai.seen.clear()
    asked = {"model": "gpt-5.6", "instructions": WORDS, "input": [], "store": False, "stream": True}
    headers = {"authorization": "Bearer k", "openai-beta": "responses_websockets=2026-02-06", "session_id": "s9"}
    told: dict[str, Any] = {}
    for url in (openai.server.url, openai.url):
        with connect(url.replace("http", "ws") + "/v1/responses", additional_headers=headers) as way:
            assert "x-request-id" in way.response.headers
            warm = frames(way, {**asked, "generate": False})[-1]["response"]["id"]
            user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
            first = frames(way, {**asked, "input": [user], "previous_response_id": warm})
            last = frames(way, {**asked, "input": [user], "previous_response_id": first[-1]["response"]["id"]})
            told[url] = [event["type"] for event in (*first, *last)]
    assert told[openai.server.url] == told[openai.url]
    one, two = openai.newest(2)
    assert (len(openai.seen), one.call.session) == (2, "s9")  # what only warms is not counted
    assert [len(each.call.body["input"]) for each in (one, two)] == [1, 3]
    assert two.conversation is one.conversation
    assert openai.server.requests[-1].headers["openai-beta"] == headers["openai-beta"]


def test_a_websocket_that_the_provider_refuses_is_refused_with_its_words(openai: Watching) -> None:
    with pytest.raises(InvalidStatus) as refused, connect(openai.url.replace("http", "ws") + "/v1/responses"):
        pass
    assert refused.value.response.status_code == 401
    assert b"API key" in bytes(refused.value.response.body)


@pytest.mark.parametrize("ends", ["application", "provider"])
def test_how_a_websocket_is_closed_is_told_to_the_other_side(ends: str) -> None:
    codes: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            if ends == "provider":
                await send({"type": "websocket.close", "code": 4002, "reason": "enough"})
            codes.append((await receive())["code"])

    with Upstream(app) as url, Proxy(url, CacheWatcher()) as proxy:
        way = connect(proxy.url.replace("http", "ws") + "/v1/responses")
        if ends == "provider":
            with pytest.raises(ConnectionClosed):
                way.recv(10)
        way.close(4001, "enough")
        until(lambda: codes)
    assert (codes, way.close_code) == (([4001], 4001) if ends == "application" else ([4002], 4002))
