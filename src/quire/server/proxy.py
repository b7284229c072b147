"""A proxy that an application reaches by another base URL: requests and replies pass, and every cache loss is explained.

Bytes pass as they came unless a rule mends them (`quire.server.mend`). Whatever goes wrong in Quire is said
(`quire.server.watch`) and never fails the application.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode, urlsplit

import msgspec

from quire.audit import call_of
from quire.emulate import PASSING_CONFIG, BackgroundServer
from quire.errors import QuireError, needs_extra
from quire.providers.models import model_info
from quire.providers.wires import Wire, wire_of
from quire.send.transport import page_refusal, without_password
from quire.server import HttpRefusal, read_types
from quire.server.mend import Budget, FittedRequest, Mended, Mender, difference, is_subscription, with_betas
from quire.server.watch import CacheWatcher, Watched, WatchedExchange, events_in, plain
from quire.values import JsonObject, Reply

__all__ = ["CacheWatcher", "Passing", "Proxy", "ProxyOptions", "Watched", "make_app"]

with needs_extra("the proxy is not installed", "proxy"):
    import httpx
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Mount
    from websockets.asyncio.client import connect
    from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

Headers = list[tuple[bytes, bytes]]
# What belongs to one connection and not to the message that it carries, the key of the service among it.
_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade", b"host", b"x-quire-key"}
)  # fmt: skip
_KEY_HEADERS = frozenset({b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key"})
# Requests to a model are read whole before they go on; all else is handed on as it comes.
_ASKS_MODEL = re.compile(
    r"(/messages|/chat/completions|/responses|:(streamGenerateContent|generateContent)|/converse(-stream)?)/*$"
)
# Claude as other clouds have it: what may be changed in such a body is theirs to say, so it is only watched.
_OF_A_CLOUD = re.compile(r"((?<!/count-tokens):(streamRawPredict|rawPredict)|/invoke(-with-response-stream)?)/*$")
# How often a model is asked for one answer: what it wants to look up comes between.
_MOST_ASKED = 5
# The largest request to a model that is held in memory; none takes as much.
_MOST_BYTES = PASSING_CONFIG["ws_max_size"]
_VERSION = re.compile(r"^/(v\d\w*)(?=/|$)")
# Paths that clients ask for without a version where their base URL should have held it.
_UNVERSIONED = re.compile(r"^/(messages|chat/|responses|completions|embeddings|models)(?=/|$|:)|^/chat/completions$")


class ProxyOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a proxy does: where requests go on to, and whose key they carry ("": the application's own)."""

    to: str
    # Who answers there, where its address does not tell.
    provider: str = ""
    key: str = ""
    mender: Mender | None = None
    # Show what would be mended, and send what came; mend what a subscription pays for, too.
    dry_run: bool = False
    force: bool = False
    # Have the provider say what it could not reuse.
    ask_provider: bool = False
    # Fit histories that outgrow so many tokens; 0: leave them.
    budget: int = 0

    @property
    def shown_to(self) -> str:
        """Where requests go on to, without the user and password that may stand in it."""
        return without_password(self.to).rstrip("/")


class Passing:
    """An ASGI application that hands requests on and replies back, piece by piece as they come.

    `connected` holds the connection open for as long as the application runs that it is part of.
    """

    def __init__(self, options: ProxyOptions, watcher: CacheWatcher) -> None:
        self.options, self.watcher = options, watcher
        self._to = options.to.rstrip("/")
        self._client: httpx.AsyncClient | None = None
        # Without rules it only tells conversations apart.
        self._finder = options.mender or (Mender(()) if options.ask_provider or options.budget else None)
        self._budget = Budget(options.budget) if options.budget else None

    @contextlib.asynccontextmanager
    async def connected(self, app: object = None) -> AsyncIterator[None]:
        """The connection to the provider, for as long as requests pass."""
        # A model may think for as long as it likes: whoever asked decides when it was too long.
        async with httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=15),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=4),
        ) as self._client:
            yield

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self._handle(scope, receive, send)
        except HttpRefusal as error:
            await _refusal(str(error), error.status)(scope, receive, send)
        except ConnectionError:
            pass  # the application went away before its end

    async def _handle(self, scope: Any, receive: Any, send: Any) -> None:
        path, query = _path(scope)
        if b".." in unquote_to_bytes(path).split(b"/"):
            raise HttpRefusal(400, "the path leads out of the base URL")
        if scope["type"] == "websocket":
            await SocketPassing(self, scope, receive, send).run()
            return
        text = path.decode("latin-1")
        is_of_a_cloud = _OF_A_CLOUD.search(text) is not None
        if scope["method"] == "POST" and (is_of_a_cloud or _ASKS_MODEL.search(text)):
            first = await receive()
            if (self._finder is None or is_of_a_cloud) and first.get("more_body"):
                # It can be passed on as it comes, unread.
                upload = _Upload(receive, first, keep=True, most=_MOST_BYTES)
                await _until_disconnect(self._ask(scope, upload, send), receive, upload)
                return
            content = b"".join([piece async for piece in _Upload(receive, first, most=_MOST_BYTES)])
            await _until_disconnect(self._ask(scope, content, send), receive)
            return
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])
        body = _Upload(receive) if has_body else None
        request = self.request(scope["method"], path, query, scope["headers"], body)
        await _until_disconnect(self._pass(request, send, lambda piece: None), receive, body)

    def request(self, method: str, path: bytes, query: bytes, headers: Headers, content: Any) -> httpx.Request:
        """What goes on: the same path behind the base URL, the same headers, the same bytes."""
        left_out = _HOP | {b"content-length"} if isinstance(content, bytes) else _HOP
        forwarded = [pair for pair in headers if pair[0] not in left_out]
        if self.options.key:
            forwarded, query = _with_key(forwarded, query, path.decode("latin-1"), self.options.key)
        url = httpx.URL(self.url(path.decode("latin-1")))
        url = url.copy_with(raw_path=url.raw_path + b"?" + query) if query else url
        return httpx.Request(method, url, headers=forwarded, content=content)

    def url(self, path: str) -> str:
        """The path behind the base URL: a version that both name stands once, one that none names is put in."""
        base = self._to
        versions: list[str] = []
        while version := _VERSION.match(path):
            versions.append(version[1])
            path = path[version.end() :]
        base_version = _VERSION.match("/" + base.rsplit("/", 1)[-1])
        if base_version and base.count("/") > 2:
            base, versions = base.rsplit("/", 1)[0], versions or [base_version[1]]
        if not versions and not urlsplit(base).path and _UNVERSIONED.match(path):
            versions = ["v1beta" if ":" in path.rsplit("/", 1)[-1] else "v1"]
        return base + (f"/{versions[-1]}" if versions else "") + path

    def exchange(self, path: str, headers: dict[str, str], given: bytes) -> WatchedExchange:
        return WatchedExchange(path, headers, given, urlsplit(self._to).hostname or "", self.options.provider)

    async def _ask(self, scope: Any, content: bytes | _Upload, send: Any) -> None:
        """A request to a model: read along, and told to the watcher however it ends."""
        path, query = _path(scope)
        given = content if isinstance(content, bytes) else b""
        exchange = self.exchange(path.decode("latin-1").rstrip("/"), _texts(scope["headers"]), given)
        headers = await self._headers_to_send(exchange, scope["headers"])
        request = self.request("POST", path, query, headers, exchange.sent if isinstance(content, bytes) else content)
        exchange.path = request.url.path.rstrip("/")
        try:
            if exchange.fitted is None:
                await self._pass(request, _tap(exchange, send), exchange.piece)
            else:
                again = partial(self.request, "POST", path, query, headers)
                await self._run_recalls(exchange, again, send)
        finally:
            # Also where the application has gone: what came is recorded, and nothing more is asked for.
            if isinstance(content, _Upload):
                exchange.given = exchange.sent = b"".join(content.pieces)
            self.watcher.passed(exchange)

    async def _headers_to_send(self, exchange: WatchedExchange, headers: Headers) -> Headers:
        """The headers to send on; a failure in Quire leaves the request unchanged."""
        if self._finder is None:
            return headers
        if _OF_A_CLOUD.search(exchange.path):
            exchange.mended = self.only_watched("it is in a cloud's own format")
            return headers
        try:
            return await asyncio.to_thread(self._prepare, exchange, headers, self._finder)
        except Exception as error:  # whatever it is, it must not fail the application
            exchange.sent, exchange.mended, exchange.fitted = exchange.given, Mended(), None
            self.watcher.fail(f"a request went on as it came: {type(error).__name__}: {error}")
            return headers

    def _prepare(self, exchange: WatchedExchange, headers: Headers, finder: Mender) -> Headers:
        texts = exchange.headers
        if is_subscription(texts) and not self.options.force:
            exchange.mended = self.only_watched("a subscription pays for it (--mend-subscriptions)")
            return headers
        body = json.loads(plain(exchange.given, _coding(texts)))
        exchange.bodies.append((exchange.given, body))
        about = exchange.about(body)
        mended = finder.mend(body, about)
        if self.options.dry_run:
            lines = [] if mended.body is None else difference(body, mended.body)
            mended = msgspec.structs.replace(
                mended, body=None, betas=(), rules=(), held_out=False, difference=tuple(lines)
            )
        if mended.only_watched:
            mended = self.only_watched(mended.only_watched)
        exchange.mended, changed = mended, mended.body
        if self._budget is not None and mended.conversation and not self.options.dry_run:
            changed = self._fit(exchange, changed or body, about) or changed
        if self.options.ask_provider and exchange.fitted is None:
            changed = self._with_question(exchange, body, about)
        if changed is None:
            return headers
        if exchange.sent is exchange.given:
            exchange.sent = json.dumps(changed, ensure_ascii=False, separators=(",", ":")).encode()
            exchange.bodies.append((exchange.sent, changed))
        return _headers_of(headers, mended.betas)

    def only_watched(self, why: str) -> Mended:
        """What is said of a request that is passed on as it is, where requests are to be changed."""
        changes = self.options.mender is not None or self._budget is not None
        return Mended(only_watched=why if changes else "")

    def _fit(self, exchange: WatchedExchange, body: JsonObject, about: JsonObject) -> JsonObject | None:
        """The request inside the budget, where it does not fit as it is."""
        assert self._budget is not None
        call, headers = call_of("", about, body, None), with_betas(exchange.headers, exchange.mended.betas)
        totals, digest = self.watcher.input_totals, hashlib.sha256(exchange.given).digest()
        try:
            fitted = self._budget.fit(body, exchange.mended.conversation, call, headers, digest, totals)
        except QuireError as error:
            self.watcher.fail(f"a request was not fitted into the budget: {type(error).__name__}: {error}")
            return None
        if fitted is None:
            return None
        exchange.fitted, rules = fitted, (*exchange.mended.rules, "fitted")
        exchange.mended = msgspec.structs.replace(exchange.mended, body=fitted.body, rules=rules)
        return fitted.body

    async def _run_recalls(self, exchange: WatchedExchange, again: Callable[[bytes], httpx.Request], send: Any) -> None:
        """Answer the model's calls of `recall` until there are none: the application sees nothing of them."""
        messages: list[Any] = []

        async def hold(message: Any) -> None:
            messages.append(message)

        fitted = exchange.fitted
        for left in reversed(range(_MOST_ASKED)):
            try:
                await self._pass(again(exchange.sent), _tap(exchange, hold), exchange.piece)
            except httpx.HTTPError as error:  # nothing was handed on: it can be said
                await self._fail(send, f"broke off its reply: {str(error) or type(error).__name__}")
                return
            try:
                fitted = await asyncio.to_thread(self._follow_up, fitted, exchange, left == 1) if left else None
            except Exception as error:  # the reply goes on as it came
                self.watcher.fail(f"a recall could not be answered: {type(error).__name__}: {error}")
                fitted = None
            if fitted is None:
                break
            self.watcher.passed(exchange.as_answered())
            messages.clear()
            exchange.sent = json.dumps(fitted.body, ensure_ascii=False, separators=(",", ":")).encode()
            rules = tuple(dict.fromkeys((*exchange.mended.rules, "recalled")))
            exchange.mended = msgspec.structs.replace(exchange.mended, rules=rules)
        try:
            messages = _without_echo(messages, exchange)
        except Exception as error:  # the reply goes on as it came
            self.watcher.fail(f"a reply still names the tool `recall`: {type(error).__name__}: {error}")
        for message in messages:
            await send(message)

    def _follow_up(
        self, fitted: FittedRequest | None, exchange: WatchedExchange, is_last: bool
    ) -> FittedRequest | None:
        if self._budget is None or fitted is None or exchange.status != 200:
            return None
        data, target = plain(bytes(exchange.reply), _coding(exchange.reply_headers)), fitted.target
        provider, _, model = target.partition(":")

        def read(wire: Wire) -> Reply:
            reader = wire.reader(provider, model, ())
            if not exchange.is_stream:
                return reader.whole(json.loads(data))
            for event in events_in(data, target):
                reader.feed(event)
            return reader.reply()

        return self._budget.follow_up(fitted, read, is_last)

    def _with_question(self, exchange: WatchedExchange, body: JsonObject, about: JsonObject) -> JsonObject | None:
        """The request with a question for the provider: what could it not reuse of the reply before?"""
        base = exchange.mended.body if exchange.mended.body is not None else body
        call, id = call_of("", about, base, None), self.watcher.reply_ids.get(exchange.mended.conversation)
        if id is None or not model_info(call.target).features.diagnostics:
            return exchange.mended.body
        asking = wire_of(call.provider, base).diagnosed(base, id)
        if asking == base:
            return exchange.mended.body  # its format has no such question, or the application asks it itself
        added = {name: value for name, value in asking.items() if name not in base}
        if base is body and len(added) + len(base) == len(asking) and all(asking[name] == base[name] for name in base):
            # All else stays as it was written.
            front = json.dumps(added, separators=(",", ":"))[:-1].encode() + b","
            text = plain(exchange.given, _coding(exchange.headers)).lstrip()
            exchange.sent = front + text[1:]
        return asking

    async def _fail(self, send: Any, how: str) -> None:
        await _refusal(f"{self.options.shown_to} {how}", 502)({"type": "http"}, None, send)

    async def _pass(self, request: httpx.Request, send: Any, piece_seen: Callable[[bytes], None]) -> None:
        assert self._client is not None, "`connected` was not entered"
        try:
            reply = await self._client.send(request, stream=True)
        except httpx.HTTPError as error:
            reached = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError)
            how = "gave no answer" if reached else "could not be reached"
            await self._fail(send, f"{how}: {str(error) or type(error).__name__}")
            return
        try:
            headers = [(name.lower(), value) for name, value in reply.headers.raw if name.lower() not in _HOP]
            await send({"type": "http.response.start", "status": reply.status_code, "headers": headers})
            async for piece in reply.aiter_raw():
                # Waits for a slow reader: nothing is asked of the provider meanwhile.
                await send({"type": "http.response.body", "body": piece, "more_body": True})
                piece_seen(piece)
            await send({"type": "http.response.body", "body": b""})
        finally:
            await asyncio.shield(reply.aclose())


# One request over HTTP.


def _tap(exchange: WatchedExchange, send: Any) -> Any:
    """The same `send`; status, headers and the end are noted."""

    async def tap(message: Any) -> None:
        if message["type"] == "http.response.start":
            exchange.status, exchange.reply_headers = message["status"], _texts(message["headers"])
        elif not message.get("more_body"):
            exchange.whole = True  # before it is sent: whoever asked may be gone with its last byte
        await send(message)

    return tap


def _without_echo(messages: list[Any], exchange: WatchedExchange) -> list[Any]:
    """A reply as the application should see it: where it repeats the request (Responses), with its own tools alone."""
    data = plain(b"".join(message.get("body", b"") for message in messages), _coding(exchange.reply_headers))
    if exchange.status != 200 or b'"recall"' not in data:
        return messages
    sent, given = json.loads(exchange.sent), json.loads(plain(exchange.given, _coding(exchange.headers)))

    def without_recall(line: bytes) -> bytes:
        event = b"data: " if line.startswith(b"data: ") else b""
        if b'"recall"' not in line or b'"tools"' not in line:
            return line
        value = json.loads(line.removeprefix(event))
        reply = value.get("response", value)
        if isinstance(reply.get("tools"), list):
            reply["tools"] = [tool for tool in reply["tools"] if tool.get("name") != "recall"]
            if sent.get("tool_choice") != given.get("tool_choice"):
                reply["tool_choice"] = given.get("tool_choice", "auto")
        return event + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    data = b"\n".join(map(without_recall, data.split(b"\n") if exchange.is_stream else [data]))
    headers = [pair for pair in messages[0]["headers"] if pair[0] not in (b"content-encoding", b"content-length")]
    return [{**messages[0], "headers": headers}, {"type": "http.response.body", "body": data}]


def _coding(headers: dict[str, str]) -> str:
    return headers.get("content-encoding", "")


def _path(scope: Any) -> tuple[bytes, bytes]:
    """Path and query as they were sent, nothing decoded."""
    return scope.get("raw_path") or scope["path"].encode(), scope.get("query_string") or b""


def _texts(headers: Headers) -> dict[str, str]:
    """The headers by name; one that came several times is a list, as HTTP has it."""
    texts: dict[str, str] = {}
    for name, value in headers:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        texts[key] = f"{texts[key]},{text}" if key in texts else text
    return texts


def _headers_of(headers: Headers, betas: tuple[str, ...]) -> Headers:
    """The headers of a body that is no longer the application's own: it is not compressed, and may need betas."""
    texts = _texts(headers)
    others = [(name, value) for name, value in headers if name not in (b"content-encoding", b"anthropic-beta")]
    both = with_betas({"anthropic-beta": texts.get("anthropic-beta", "")}, betas).get("anthropic-beta")
    return [*others, (b"anthropic-beta", both.encode())] if both else others


class _Upload:
    """A body that is handed on as it comes, up to `most` bytes."""

    def __init__(self, receive: Any, first: Any = None, keep: bool = False, most: float = math.inf) -> None:
        self._receive, self._first, self._keep, self._left = receive, first, keep, most
        self.pieces: list[bytes] = []
        self.ended = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while (message := self._first or await self._receive())["type"] == "http.request":
                self._first = None
                piece = message.get("body", b"")
                self._left -= len(piece)
                if self._left < 0:
                    self.pieces.clear()
                    raise HttpRefusal(413, f"the request is larger than {_MOST_BYTES:,} bytes")
                if self._keep:
                    self.pieces.append(piece)
                yield piece
                if not message.get("more_body"):
                    return
            raise ConnectionError("the application went away")
        finally:
            self.ended.set()


async def _until_disconnect(work: Any, receive: Any, body: _Upload | None = None) -> None:
    """Do the work; an application that goes away ends it."""

    async def disconnected() -> None:
        if body is not None:
            await body.ended.wait()
        while (await receive())["type"] != "http.disconnect":
            pass

    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not task.done():
            task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _refusal(why: str, status: int) -> Any:
    """An answer of the proxy's own, as an application that says it."""
    return JSONResponse({"error": {"type": "proxy_error", "message": why}}, status)


def _with_key(headers: Headers, query: bytes, path: str, key: str) -> tuple[Headers, bytes]:
    """The proxy's own key in place of the application's: where that one stood, else where the provider looks for it."""
    name = next((name for name, _ in headers if name in _KEY_HEADERS), b"")
    if any(name == b"anthropic-version" for name, _ in headers) or (not name and "/messages" in path):
        name = b"x-api-key"
    elif not name and (":" in path or path.startswith("/v1beta")):
        name = b"x-goog-api-key"
    if name == b"x-goog-api-key":
        query = urlencode([pair for pair in parse_qsl(query.decode("latin-1")) if pair[0] != "key"]).encode()
    name = name or b"authorization"
    value = f"Bearer {key}" if name == b"authorization" else key
    return [*(pair for pair in headers if pair[0] not in _KEY_HEADERS), (name, value.encode())], query


# One conversation over a WebSocket: frames pass as they are, both ways.


class SocketPassing:
    """A WebSocket of the application and one to the provider; requests in frames are read along."""

    def __init__(self, passing: Passing, scope: Any, receive: Any, send: Any) -> None:
        self._passing, self._scope, self._receive, self._send = passing, scope, receive, send
        self._exchange: WatchedExchange | None = None

    async def run(self) -> None:
        """Connect to the provider first: what it refuses is refused with its own words."""
        path, query = _path(self._scope)
        request = self._passing.request("GET", path, query, self._scope["headers"], None)
        forwarded = [
            (name.decode("latin-1"), value.decode("latin-1"))
            for name, value in request.headers.raw
            if name.lower() != b"host" and not name.lower().startswith(b"sec-websocket-")
        ]
        assert (await self._receive())["type"] == "websocket.connect"
        try:
            upstream = await connect(
                str(request.url.copy_with(scheme="wss" if request.url.scheme == "https" else "ws")),
                additional_headers=forwarded,
                subprotocols=self._scope.get("subprotocols") or None,
                user_agent_header=None,
                max_size=None,
                ping_interval=None,
                close_timeout=2,
            )
        except (OSError, WebSocketException, TimeoutError) as error:
            denial = _refusal(f"{self._passing.options.shown_to} could not be reached: {error}", 502)
            if isinstance(error, InvalidStatus):
                denial.status_code, denial.body = error.response.status_code, bytes(error.response.body)
                denial.raw_headers = _of_socket(error.response.headers)
            await denial(self._scope, self._receive, self._send)
            return
        async with upstream:
            headers = _of_socket(upstream.response.headers) if upstream.response is not None else []
            headers = [pair for pair in headers if not pair[0].startswith(b"sec-websocket-")]
            accepted = {"type": "websocket.accept", "subprotocol": upstream.subprotocol, "headers": headers}
            await self._send(accepted)
            await self._converse(upstream, request)

    async def _converse(self, upstream: Any, request: httpx.Request) -> None:
        ways = [asyncio.ensure_future(self._up(upstream, request)), asyncio.ensure_future(self._down(upstream))]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        if self._exchange is not None:
            self._passing.watcher.passed(self._exchange)

    async def _up(self, upstream: Any, request: httpx.Request) -> None:
        while (message := await self._receive())["type"] == "websocket.receive":
            frame = message.get("text") if message.get("text") is not None else message.get("bytes")
            if isinstance(frame, str) and '"response.create"' in frame[:4096] + frame[-4096:]:
                self._exchange = self._passing.exchange(
                    request.url.path, _texts(self._scope["headers"]), frame.encode()
                )
                self._exchange.mended = self._passing.only_watched("it comes over a WebSocket")
            await upstream.send(frame)
        # 1005 and 1006 say that no code came; they are never sent.
        code = message["code"] if message.get("code") not in (None, 1005, 1006) else 1000
        await upstream.close(code, message.get("reason") or "")

    async def _down(self, upstream: Any) -> None:
        try:
            while True:
                frame = await upstream.recv()
                key = "text" if isinstance(frame, str) else "bytes"
                await self._send({"type": "websocket.send", key: frame})
                if isinstance(frame, str) and self._exchange is not None:
                    self._exchange.event(frame)
                    if re.search(r'"type"\s*:\s*"(response\.(completed|failed|incomplete)|error)"', frame):
                        self._exchange.whole = True
                        self._passing.watcher.passed(self._exchange)
                        self._exchange = None
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd is not None else 1011
            reason = closed.rcvd.reason if closed.rcvd is not None else "the provider went away"
            await self._send({"type": "websocket.close", "code": code, "reason": reason})


def _of_socket(headers: Any) -> Headers:
    """The headers of a provider's answer to a WebSocket that belong to the message."""
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.raw_items()]
    return [pair for pair in pairs if pair[0] not in _HOP]


# The proxy as a running server.


def make_app(to: str | ProxyOptions, watcher: CacheWatcher) -> Starlette:
    """The proxy alone, as an application; `app.state.watcher.as_json()` is what it has seen."""
    read_types()
    passing = Passing(ProxyOptions(to=to) if isinstance(to, str) else to, watcher)
    app = Starlette(routes=[Mount("/", passing)], lifespan=passing.connected)
    app.state.watcher = watcher
    return app


def _local(inner: Starlette) -> Any:
    """A proxy with a key of its own, for programs of this machine: no page of another site spends by it."""

    async def admit(scope: Any, receive: Any, send: Any) -> None:
        why = page_refusal(_texts(scope["headers"])) if scope["type"] != "lifespan" else ""
        hint = "a proxy with a key of its own answers programs that ask http://127.0.0.1"
        await (_refusal(f"{why}: {hint}", 403) if why else inner)(scope, receive, send)

    return admit


class Proxy(BackgroundServer):
    """`with Proxy("https://api.anthropic.com", watcher) as proxy: proxy.url`, in a thread of its own."""

    extra = "proxy"

    def __init__(self, to: str | ProxyOptions, watcher: CacheWatcher, port: int = 0) -> None:
        self._watcher = watcher
        admit = _local if isinstance(to, ProxyOptions) and to.key else lambda app: app
        super().__init__(lambda: admit(make_app(to, watcher)), port, **PASSING_CONFIG)

    def stop(self) -> None:
        super().stop()
        self._watcher.close()
