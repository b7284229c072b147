"""The emulator over HTTP: the paths of its endpoints, and how replies, streams and faults are sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from quire.emulate import VOICES, EmulatedProvider
from quire.emulate.gemini import EmulatedCaches
from quire.emulate.script import EmulatedPath, EmulatedReply, EmulatedRequest, Refuse, StoredResponse
from quire.providers.wires import wire_of
from quire.values import Json, as_object

# Answers a request; takes also the name at the end of its path, where the path has one.
Act: TypeAlias = Callable[..., EmulatedReply]


class BrokenResponse(Exception):
    """Ends a response in the middle; the server drops the connection."""


def make_app(emulated: EmulatedProvider, chunk_bytes: int | None = None) -> Starlette:
    """The application of one provider; any other path is answered with 404 in the provider's own shape."""
    endpoints = Endpoints(emulated, chunk_bytes)
    return Starlette(routes=[*endpoints.routes(), Route("/{path:path}", endpoints.not_found, methods=_METHODS)])


_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


class Endpoints:
    """Turns HTTP requests into `EmulatedRequest`s, and `EmulatedReply`s into HTTP responses."""

    def __init__(self, emulated: EmulatedProvider, chunk_bytes: int | None) -> None:
        self._emulated = emulated
        self._chunk_bytes = chunk_bytes
        self._caches = EmulatedCaches(emulated)

    def routes(self) -> Iterator[BaseRoute]:
        emulated, caches = self._emulated, self._caches
        for base in ("/v1/responses", "/responses") if emulated.speaks("openai-responses") else ():
            yield WebSocketRoute(base, self._converse)
            yield self._route(f"{base}/compact", ["POST"], "openai-responses", emulated.compact)
            yield self._route(f"{base}/{{name}}", ["GET", "DELETE"], "openai-responses", emulated.response)
        for base in ("/{version}/cachedContents",) if wire_of(emulated.wire).call.makes_caches else ():
            yield self._route(base, ["POST"], "gemini", caches.create)
            yield self._route(base, ["GET"], "gemini", caches.list)
            yield self._route(f"{base}/{{name}}", ["GET", "PATCH", "DELETE"], "gemini", caches.act)
        for wire in filter(emulated.speaks, VOICES):
            for endpoint in VOICES[wire].endpoints:
                yield self._route(endpoint.path, ["POST"], wire, partial(self._post, endpoint))
        listing = emulated.voice.models
        for base in filter(None, (listing, listing.removeprefix("/v1"))):
            yield self._route(base, ["GET"], emulated.wire, emulated.models)
            yield self._route(f"{base}/{{name:path}}", ["GET"], emulated.wire, emulated.model)

    async def not_found(self, request: Request) -> Response:
        received, _ = await self._receive(request, self._emulated.wire)
        return self._deliver(self._emulated.refuse(received, Refuse(404, f"not found: {request.url.path}")))

    def _route(self, path: str, methods: list[str], wire: str, act: Act) -> Route:
        async def handle(request: Request) -> Response:
            received, problem = await self._receive(request, wire)
            names = [value for field, value in request.path_params.items() if field == "name"]
            # Refused before `act` sees it: a request without a key, or one whose body is no JSON object.
            refusal = self._emulated.key_refusal(received)
            if problem and not refusal:
                refusal = self._emulated.refuse(received, Refuse(400, problem))
            outcome = refusal or act(received, *names)
            await asyncio.sleep(outcome.delay_s)
            return self._deliver(outcome)

        return Route(path, handle, methods=methods)

    def _post(self, endpoint: EmulatedPath, received: EmulatedRequest) -> EmulatedReply:
        if endpoint.count:
            return self._emulated.count(received, endpoint.inner(received.body), endpoint.count)
        streamed = received.body.get("stream") is True if endpoint.streamed is None else endpoint.streamed
        missing = self._caches.refuses(received) if wire_of(received.wire).call.makes_caches else None
        return missing or self._emulated.answer(received, streamed)

    async def _receive(self, request: Request, wire: str) -> tuple[EmulatedRequest, str]:
        """The recorded request, and what is wrong with its JSON (else "")."""
        body, problem = _parse(await request.body() or b"{}")
        model = str(request.path_params.get("model", ""))
        return self._emulated.receive(request.method, _path(request), request.headers, body, wire, model), problem

    async def _converse(self, socket: WebSocket) -> None:
        """Responses over one connection: requests are frames, and so are the events of their streams."""
        number = len(self._emulated.requests) + 1
        greeting = EmulatedRequest("GET", _path(socket), dict(socket.headers), None, 0, number, "openai-responses")
        refusal = self._emulated.key_refusal(greeting)
        if refusal:
            self._emulated.requests.append(greeting)
            await socket.send_denial_response(self._deliver(refusal))
            return
        await socket.accept(headers=[(b"x-request-id", greeting.request_id.encode())])
        remembered: dict[str, StoredResponse] = {}
        try:
            while True:
                await self._answer_frame(socket, await socket.receive_text(), remembered)
        except WebSocketDisconnect:
            return

    async def _answer_frame(self, socket: WebSocket, text: str, remembered: dict[str, StoredResponse]) -> None:
        """Answer one WebSocket frame."""
        body, problem = _parse(text.encode())
        frame = as_object(body)
        if not problem and frame.get("type") != "response.create":
            problem = f"Invalid value: '{frame.get('type')}'. Supported values are: 'response.create'."
        bare = {name: value for name, value in frame.items() if name not in ("type", "generate")}
        received = self._emulated.receive("WEBSOCKET", _path(socket), socket.headers, bare, "openai-responses")
        if problem:
            outcome = self._emulated.refuse(received, Refuse(400, problem))
        else:
            outcome = self._emulated.answer(received, True, remembered, warm=frame.get("generate") is False)
        await asyncio.sleep(outcome.delay_s)
        if outcome.pieces is None:
            await socket.send_json({"type": "error", "status": outcome.status, **outcome.value})
            return
        async for piece in _cut_stream(outcome.pieces, outcome.cut_after):
            await socket.send_text(piece.partition(b"data: ")[2].decode().strip())

    def _deliver(self, outcome: EmulatedReply) -> Response:
        if outcome.pieces is None and outcome.cut_after is None:
            return JSONResponse(outcome.value, outcome.status, outcome.headers)
        pieces = iter([json.dumps(outcome.value).encode()]) if outcome.pieces is None else outcome.pieces
        body = _cut_stream(_chunks(pieces, self._chunk_bytes), outcome.cut_after)
        return StreamingResponse(body, outcome.status, outcome.headers, outcome.media_type)


def _path(connection: HTTPConnection) -> str:
    return connection.url.path + (f"?{connection.url.query}" if connection.url.query else "")


def _parse(raw: bytes) -> tuple[Json, str]:
    """The JSON of a body, and what is wrong with it (else "")."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return None, f"the body is not valid JSON: {error}"
    return body, "" if isinstance(body, dict) else "the body is no JSON object"


def _chunks(pieces: Iterator[bytes], size: int | None) -> Iterator[bytes]:
    """The stream in chunks of at most `size` bytes, without regard to where events end."""
    for piece in pieces:
        for start in range(0, len(piece), size or len(piece)):
            yield piece[start : start + (size or len(piece))]


async def _cut_stream(chunks: Iterator[bytes], after: int | None) -> AsyncIterator[bytes]:
    """The stream; the connection breaks `after` so many bytes."""
    remaining = after
    for chunk in chunks:
        if remaining is not None and len(chunk) > remaining:
            yield chunk[:remaining]
            raise BrokenResponse
        remaining = remaining - len(chunk) if remaining is not None else None
        yield chunk
        # Other connections go on, and a client that left is noticed, which would otherwise be a warning for each chunk.
        await asyncio.sleep(0)
    if remaining is not None:
        raise BrokenResponse
