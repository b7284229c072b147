"""A proxy that watches: requests and replies pass unchanged, and every loss of the provider's cache is explained as it happens.

Whatever goes wrong in watching is said and never fails the application.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from quire import providers
from quire.audit import Grouping, SentCall, Verdict, WatchedConversation, call_of
from quire.audit.read import is_body
from quire.emulate.server import BackgroundServer
from quire.errors import MissingPart, QuireError
from quire.providers.usage import cost
from quire.providers.wires import StreamReader, wire_of
from quire.send.http import SseReader, decoded
from quire.values import JsonObject

if TYPE_CHECKING:
    import httpx
    from starlette.applications import Starlette
    from starlette.requests import Request

_logger = logging.getLogger("quire")
# What belongs to one connection and not to the message that it carries.
_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
     "upgrade", "host", "content-length"}
)  # fmt: skip
# Sessions are told by these headers; the others, keys among them, are not kept.
_KEPT_HEADERS = ("session_id", "x-session-id", "x-claude-code-session-id", "conversation_id")


class Watched(msgspec.Struct, frozen=True):
    """A request that passed: its call, the conversation it belongs to, what it lost, what it cost."""

    call: SentCall
    conversation: WatchedConversation
    lost: Verdict | None
    usd: float | None

    def line(self) -> str:
        """The request in one line, for people who watch."""
        used = self.call.usage
        kind = "" if self.conversation.kind == "main" else f" ({self.conversation.kind})"
        who = f"{self.conversation.name[-24:]}{kind} · {self.call.provider}:{self.call.model}"
        if used is None:
            return f"{who} · no usage was reported"
        share = 100 * used.cache_read / max(1, used.input_total)
        money = "" if self.usd is None else f" · ${self.usd:.4f}"
        said = f"{who} · {used.input_total:,} tokens · {share:.0f}% reused{money}"
        if self.lost is None:
            return said
        place = f" at {self.lost.path}, {self.lost.offset:,} characters in" if self.lost.path else ""
        price = "" if self.lost.usd is None else f" (${self.lost.usd:.4f})"
        note = f": {self.lost.note}" if self.lost.note else ""
        sure = "" if self.lost.confidence == "certain" else f" [{self.lost.confidence}]"
        return f"{said}\n  lost {self.lost.lost:,} tokens{price}: {self.lost.what}{place}{note}{sure}\n  {self.lost.fix}"


class CacheWatcher:
    """Takes in what passed, tells `say` of each request, and keeps it in `log`, a file that `quire audit` reads."""

    def __init__(
        self, say: Callable[[Watched], None] = lambda watched: None, log: Path | None = None
    ) -> None:
        self.grouping = Grouping()
        self._say, self._log = say, log
        self._count = 0

    def passed(self, call: SentCall, about: JsonObject) -> None:
        """A request and its reply went by."""
        self._count += 1
        call = msgspec.structs.replace(call, source=f"request {self._count}")
        if self._log is not None:
            used = call.usage.as_json() if call.usage is not None else None
            with self._log.open("a", encoding="utf-8") as file:
                file.write(
                    json.dumps({**about, "request": call.body, "usage": used}, ensure_ascii=False) + "\n"
                )
        conversation, lost = self.grouping.add(call)
        usd = None
        if call.usage is not None:
            usd = cost(call.usage, f"{call.provider}:{call.model}", call.at_ms).amount_usd
        self._say(Watched(call, conversation, lost, usd))


def make_app(to: str, watcher: CacheWatcher) -> Starlette:
    """The proxy of one base URL."""
    try:
        import httpx
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError as error:
        raise MissingPart("the proxy is not installed", hint="pip install 'quire[proxy]'") from error
    upstream = httpx.AsyncClient(timeout=httpx.Timeout(600, connect=10), follow_redirects=False)
    passing = _Passing(to.rstrip("/"), watcher, upstream)
    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]

    @contextlib.asynccontextmanager
    async def connected(app: Starlette) -> AsyncIterator[None]:
        async with upstream:
            yield

    return Starlette(routes=[Route("/{path:path}", passing.handle, methods=methods)], lifespan=connected)


class _Passing:
    """Hands requests on and replies back, piece by piece as they come."""

    def __init__(self, to: str, watcher: CacheWatcher, client: httpx.AsyncClient) -> None:
        self._to, self._watcher, self._client = to, watcher, client

    async def handle(self, request: Request) -> Any:
        import httpx
        from starlette.responses import Response, StreamingResponse

        body = await request.body()
        headers = [(name, value) for name, value in request.headers.items() if name not in _HOP]
        asked = self._client.build_request(
            request.method,
            self._url(request),
            headers=[*headers, ("accept-encoding", "identity")],
            content=body,
        )
        at = int(time.time() * 1000)
        try:
            reply = await self._client.send(asked, stream=True)
        except httpx.HTTPError as error:
            said = f"{self._to} could not be reached: {str(error) or type(error).__name__}"
            return Response(
                json.dumps({"error": {"type": "proxy_error", "message": said}}),
                502,
                media_type="application/json",
            )
        passed = [(name, value) for name, value in reply.headers.items() if name not in _HOP]
        about = {"at": at, "host": asked.url.host, "path": asked.url.path, "status": reply.status_code}
        about["headers"] = {name: request.headers[name] for name in _KEPT_HEADERS if name in request.headers}
        out = StreamingResponse(self._pieces(reply, about, body, dict(request.headers)), reply.status_code)
        out.raw_headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in passed]
        return out

    def _url(self, request: Request) -> str:
        """The same path behind the base URL; a version that both name stands once."""
        path, query = request.url.path, request.url.query
        base = self._to
        version = base.rsplit("/", 1)[-1]
        if version in ("v1", "v1beta") and path.startswith(f"/{version}/"):
            path = path[len(version) + 1 :]
        return f"{base}{path}{f'?{query}' if query else ''}"

    async def _pieces(
        self, reply: httpx.Response, about: JsonObject, body: bytes, headers: dict[str, str]
    ) -> AsyncIterator[bytes]:
        reading = _Reading(about, body, headers, reply.headers.get("content-type", ""))
        try:
            async for piece in reply.aiter_raw():
                yield piece
                reading.feed(piece)
        finally:
            # Also where the application has gone: what came is recorded, and nothing more is asked for.
            await reply.aclose()
            reading.end(self._watcher)


# The longest reply that is not streamed and still read.
_MOST_BYTES = 32 * 1024 * 1024


class _Reading:
    """Reads along what passes; when it cannot, it says so once and reads no more."""

    def __init__(self, about: JsonObject, body: bytes, headers: dict[str, str], media_type: str) -> None:
        self._about, self._body, self._headers = about, body, headers
        self._call: SentCall | None = None
        self._sse: SseReader | None = None
        self._stream: StreamReader | None = None
        # The provider, or the format, that the reply is in.
        self._speaks = ""
        self._read = bytearray()
        self._guarded(lambda: self._begin("event-stream" in media_type))

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # watching must never fail what is watched
            _logger.warning("a request could not be watched: %s: %s", type(error).__name__, error)
            self._call = None

    def _begin(self, streamed: bool) -> None:
        if self._about["status"] != 200 or not self._body:
            return
        body = json.loads(_plain(self._body, self._headers))
        if not is_body(body):
            return
        if "model" not in body:
            body = {
                **body,
                "model": unquote(self._about["path"]).rpartition("/model")[2].lstrip("s/").partition(":")[0],
            }
        self._call = call_of("", self._about, body, None)
        if streamed:
            wire = wire_of(self._call.provider, body)
            same = wire_of(self._call.provider).name == wire.name
            self._sse, self._speaks = SseReader(), self._call.provider if same else wire.name
            self._stream = providers.stream(f"{self._speaks}:{self._call.model}")

    def feed(self, piece: bytes) -> None:
        """What has just been handed on."""
        if self._call is not None:
            self._guarded(lambda: self._take(piece))

    def _take(self, piece: bytes) -> None:
        if self._sse is None:
            self._read += piece if len(self._read) < _MOST_BYTES else b""
            return
        self._take_events(self._sse.feed(piece))

    def _take_events(self, events: list[bytes]) -> None:
        assert self._stream is not None
        for data in events:
            if (event := decoded(data, self._speaks)) is not None:
                self._stream.feed(event)

    def end(self, watcher: CacheWatcher) -> None:
        """The reply has ended, or the application has gone."""
        if self._call is not None:
            self._guarded(lambda: watcher.passed(self._finished(), self._about))

    def _finished(self) -> SentCall:
        assert self._call is not None
        if self._sse is None or self._stream is None:
            reply = json.loads(self._read) if self._read else {}
            return msgspec.structs.replace(call_of("", self._about, self._call.body, reply))
        with contextlib.suppress(QuireError):
            self._take_events(self._sse.finish())
        used = self._stream.partial().usage
        return msgspec.structs.replace(self._call, usage=used if used.input_total else None)


def _plain(body: bytes, headers: dict[str, str]) -> bytes:
    """A body as it was before it was compressed."""
    coding = headers.get("content-encoding", "")
    if coding == "gzip":
        return zlib.decompress(body, 31)
    return zlib.decompress(body) if coding == "deflate" else body


# The proxy as a running server.


class Proxy:
    """`with Proxy("https://api.anthropic.com", watcher) as proxy: proxy.url`, in a thread of its own."""

    def __init__(self, to: str, watcher: CacheWatcher, port: int = 0) -> None:
        self._server = BackgroundServer(lambda: make_app(to, watcher), port)

    @property
    def url(self) -> str:
        return self._server.url

    def __enter__(self) -> Proxy:
        self._server.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.stop()

    def wait(self) -> None:
        """Serve until interrupted."""
        self._server.wait()
