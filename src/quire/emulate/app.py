"""The emulator's HTTP face: which path is which endpoint, and how replies, streams and faults are delivered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from quire.emulate.caches import EmulatedCaches
from quire.emulate.provider import Emulated, EmulatedReply, Received
from quire.values import Json

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]

_BINARY = "application/vnd.amazon.eventstream"


class BrokenResponse(Exception):
    """Ends a response in the middle; the server drops the connection."""


def make_app(emulated: Emulated, chunk_bytes: int | None = None) -> Starlette:
    """The routes of one provider; everything else is 404 in its own shape."""
    desk = Endpoints(emulated, chunk_bytes)
    routes = [Route(path, endpoint, methods=methods) for path, methods, endpoint in desk.routes()]
    routes.append(Route("/{path:path}", desk.nowhere, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]))
    return Starlette(routes=routes)


class Endpoints:
    """Takes requests in and hands outcomes out."""

    def __init__(self, emulated: Emulated, chunk_bytes: int | None) -> None:
        self._emulated = emulated
        self._chunk_bytes = chunk_bytes
        self._caches = EmulatedCaches(emulated)

    def routes(self) -> Iterator[tuple[str, list[str], Endpoint]]:
        if self._emulated.provider == "gemini":
            yield from self._gemini_routes()
        elif self._emulated.provider == "bedrock":
            yield "/model/{model:path}/converse", ["POST"], self._converse(streamed=False)
            yield "/model/{model:path}/converse-stream", ["POST"], self._converse(streamed=True)
            yield "/model/{model:path}/count-tokens", ["POST"], self._count_converse
        for base in ("/v1", ""):
            yield f"{base}/messages", ["POST"], self._post("anthropic")
            yield f"{base}/messages/count_tokens", ["POST"], self._count_messages
            yield f"{base}/chat/completions", ["POST"], self._post("openai-chat")
            yield f"{base}/responses", ["POST"], self._post("openai-responses")
            yield f"{base}/responses/input_tokens", ["POST"], self._count_responses

    def _gemini_routes(self) -> Iterator[tuple[str, list[str], Endpoint]]:
        yield "/{version}/models/{call:path}", ["POST"], self._generate
        yield "/{version}/cachedContents", ["POST", "GET"], self._cached_all
        yield "/{version}/cachedContents/{id}", ["GET", "PATCH", "DELETE"], self._cached_one

    async def nowhere(self, request: Request) -> Response:
        received, _ = await self._receive(request)
        return self._deliver(
            self._emulated.refused(received, self._emulated.wire, 404, f"not found: {request.url.path}")
        )

    def _post(self, wire: str) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            if not self._emulated.speaks(wire):
                return await self.nowhere(request)
            received, problem = await self._receive(request)
            if problem:
                return self._deliver(self._emulated.refused(received, wire, 400, problem))
            streamed = isinstance(received.body, dict) and received.body.get("stream") is True
            return await self._delivered(self._emulated.answer(received, wire, "", streamed))

        return endpoint

    def _converse(self, streamed: bool) -> Endpoint:
        async def endpoint(request: Request) -> Response:
            received, problem = await self._receive(request)
            if problem:
                return self._deliver(self._emulated.refused(received, "bedrock", 400, problem))
            model = str(request.path_params["model"])
            return await self._delivered(self._emulated.answer(received, "bedrock", model, streamed), _BINARY)

        return endpoint

    async def _generate(self, request: Request) -> Response:
        model, _, method = str(request.path_params["call"]).partition(":")
        received, problem = await self._receive(request)
        if problem:
            return self._deliver(self._emulated.refused(received, "gemini", 400, problem))
        if method == "countTokens":
            body = received.body.get("generateContentRequest") or received.body
            return self._counted(received, body, "gemini", model, "totalTokens")
        missing = self._caches.refuses(received)
        streamed = method == "streamGenerateContent"
        return await self._delivered(missing or self._emulated.answer(received, "gemini", model, streamed))

    async def _cached_all(self, request: Request) -> Response:
        received, problem = await self._receive(request)
        if problem:
            return self._deliver(self._emulated.refused(received, "gemini", 400, problem))
        made = request.method == "POST"
        return self._deliver(self._caches.create(received) if made else self._caches.list(received))

    async def _cached_one(self, request: Request) -> Response:
        received, problem = await self._receive(request)
        if problem:
            return self._deliver(self._emulated.refused(received, "gemini", 400, problem))
        act = {"GET": self._caches.get, "PATCH": self._caches.update, "DELETE": self._caches.delete}
        return self._deliver(act[request.method](received, f"cachedContents/{request.path_params['id']}"))

    async def _count_messages(self, request: Request) -> Response:
        return await self._count(request, "anthropic", "input_tokens")

    async def _count_responses(self, request: Request) -> Response:
        return await self._count(request, "openai-responses", "input_tokens")

    async def _count_converse(self, request: Request) -> Response:
        received, problem = await self._receive(request)
        given = received.body.get("input") if not problem else None
        body = given.get("converse") if isinstance(given, dict) else None
        if not isinstance(body, dict):
            problem = problem or "input.converse: Field required"
            return self._deliver(self._emulated.refused(received, "bedrock", 400, problem))
        return self._counted(received, body, "bedrock", request.path_params["model"], "inputTokens")

    async def _count(self, request: Request, wire: str, field: str) -> Response:
        received, problem = await self._receive(request)
        if problem or not self._emulated.speaks(wire):
            return self._deliver(
                self._emulated.refused(received, self._emulated.wire, 400, problem or "not found")
            )
        return self._counted(received, received.body, wire, str(received.body.get("model") or ""), field)

    def _counted(self, received: Received, body: Json, wire: str, model: str, field: str) -> Response:
        """The tokens of a body under the name the provider gives them; a malformed one is refused."""
        wrong = self._emulated.malformed(body, wire, model)
        if wrong:
            return self._deliver(self._emulated.refused(received, wire, wrong.status, wrong.message))
        return JSONResponse({field: self._emulated.count(body, wire, model)})

    async def _receive(self, request: Request) -> tuple[Received, str]:
        """The request as recorded, and what is wrong with its JSON."""
        raw = await request.body()
        problem = ""
        body: Json = None
        try:
            body = json.loads(raw) if raw else {}
        except (ValueError, RecursionError) as error:
            problem = f"the body is not valid JSON: {error}"
        if not problem and not isinstance(body, dict):
            problem = "the body is no JSON object"
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return self._emulated.receive(request.method, path, request.headers, body), problem

    async def _delivered(self, outcome: EmulatedReply, media_type: str = "text/event-stream") -> Response:
        if outcome.delay_s:
            await asyncio.sleep(outcome.delay_s)
        return self._deliver(outcome, media_type)

    def _deliver(self, outcome: EmulatedReply, media_type: str = "text/event-stream") -> Response:
        if outcome.pieces is None and outcome.cut_after is None:
            return JSONResponse(outcome.value, outcome.status, outcome.headers)
        pieces = outcome.pieces
        if pieces is None:
            media_type, pieces = "application/json", iter([json.dumps(outcome.value).encode()])
        body = _severed(_chunks(pieces, self._chunk_bytes), outcome.cut_after)
        return StreamingResponse(body, outcome.status, outcome.headers, media_type)


def _chunks(pieces: Iterator[bytes], size: int | None) -> Iterator[bytes]:
    """The stream in chunks of at most `size` bytes, wherever events end."""
    for piece in pieces:
        for start in range(0, len(piece), size or len(piece)):
            yield piece[start : start + (size or len(piece))]


async def _severed(chunks: Iterator[bytes], after: int | None) -> AsyncIterator[bytes]:
    """The stream, broken off after so many bytes."""
    left = after
    for chunk in chunks:
        if left is not None and len(chunk) > left:
            yield chunk[:left]
            raise BrokenResponse
        left = left - len(chunk) if left is not None else None
        yield chunk
    if left is not None:
        raise BrokenResponse
