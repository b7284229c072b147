"""The service as an application and as a running server: its own routes, the proxy, and the inspector on one port."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import signal
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias
from urllib.parse import unquote

import msgspec

from quire import __version__, errors
from quire.emulate import PASSING_CONFIG, EndsAtOnce, listen, server_config
from quire.errors import CallError, needs_extra
from quire.log import off_loop
from quire.log.entries import SCHEMA
from quire.log.store import check_name
from quire.server import (
    EVENTS,
    HttpRefusal,
    Problem,
    Route,
    RouteCall,
    ThreadName,
    api,
    inspector,
    problem_of,
    read_types,
    remote_store,
    turns,
    whole_numbers,
)
from quire.server.service import SHARE, Service
from quire.values import JsonObject

with needs_extra("the service is not installed", "serve"):
    import uvicorn
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, HTTPConnection, Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import BaseRoute, Mount, Router
    from starlette.routing import Route as Mounted

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from quire.server.proxy import Passing

    Proxies: TypeAlias = Callable[[str], Passing]

# The system would hold megabytes for each reader that takes nothing.
_SEND_BYTES = 64 * 1024


def all_routes() -> tuple[Route, ...]:
    """Every route of the service."""
    return (*api.ROUTES, *turns.ROUTES, *remote_store.ROUTES, *inspector.ROUTES)


def make_app(service: Service, proxies: Proxies | None = None) -> ASGIApp:
    """The application; `proxies` gives each tenant what answers that is neither the service's nor the inspector's."""
    with needs_extra("the service is not installed", "serve"):
        importlib.import_module("quire.recall.placement")  # which the first search would load
    table = all_routes()
    read_types()
    service.passes_on = proxies is not None
    page, connections = msgspec.json.encode(openapi(table)), contextlib.AsyncExitStack()

    async def always(body: bytes, request: Request) -> Response:
        return Response(body, media_type="application/json")

    api = [*_endpoints(table, service), Mounted("/openapi.json", partial(always, page))]
    mounted: list[Any] = [
        Mount("/api", Router(api, redirect_slashes=False)),
        Mounted("/healthz", partial(always, b'{"status":"ok"}')),
        Mounted("/readyz", partial(_ready, service)),
        Mounted("/", _index),
    ]
    if proxies is not None:
        mounted.append(Mount("/", app=_Admission(service, proxies, connections)))
    handlers = dict.fromkeys((HTTPException, Exception), partial(_refusal, service))
    lifespan = partial(_lifespan, service, connections)
    return SlashNames(Starlette(routes=mounted, lifespan=lifespan, exception_handlers=handlers))


async def _ready(service: Service, request: Request) -> Response:
    """Whether requests may be sent here: not at its end, nor where the database cannot be written."""
    if service.draining:
        return problem_response(HttpRefusal(503, "the service is ending"), service)
    try:
        await off_loop(service.check)
    except Exception as error:  # a database that cannot be written is why nobody should be sent here
        return problem_response(error, service)
    return Response(b'{"status":"ready"}', media_type="application/json")


async def _refusal(service: Service, request: Request, error: Exception) -> Response:
    """What Starlette itself refuses, and what nobody foresaw, as a problem."""
    status, headers = (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
    messages = {404: f"there is no route {request.url.path[:200]!r}", 405: f"{request.method} is not taken here"}
    hint = ""
    if status == 404:
        ours = request.url.path.startswith("/api/")
        passed_on = "Requests to a model are passed on by `quire serve --to URL`, or answered with --local."
        hint = "/api/openapi.json names the routes." if ours else passed_on
    message = messages.get(status, "internal error")
    return problem_response(HttpRefusal(status, message, hint=hint, headers=headers), service)


@contextlib.asynccontextmanager
async def _lifespan(service: Service, connections: contextlib.AsyncExitStack, app: Starlette) -> AsyncIterator[None]:
    """The service while it runs; at the end turns are finished, and every store is closed."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(SHARE * 3 // 2))
    async with connections:
        yield
        await service.drain()
    await off_loop(service.close)


async def _index(request: Request) -> Response:
    """The inspector; its page loads nothing but data, and runs nothing but its own script."""
    headers = {
        "content-security-policy": f"{inspector.security_policy(served=True)}; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }
    return Response(inspector.page(), headers=headers, media_type="text/html")


class _Admission:
    """Lets only those through to a proxy who may use the service; what passes is no other tenant's to see."""

    def __init__(self, service: Service, proxies: Proxies, stack: contextlib.AsyncExitStack) -> None:
        self._service, self._make, self._stack = service, proxies, stack
        self._proxies: dict[str, Passing] = {}
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            tenant = await self._service.admit(HTTPConnection(scope), own_header=True)
            async with self._making:
                if tenant not in self._proxies:
                    proxy = await off_loop(self._make, tenant)
                    await self._stack.enter_async_context(proxy.connected())
                    self._proxies[tenant], self._service.watchers[tenant] = proxy, proxy.watcher
        except Exception as error:  # said as a problem
            await problem_response(error, self._service)(scope, receive, send)
            return
        headers = HTTPConnection(scope).headers

        async def receive_admitted() -> Message:
            message = await receive()
            # A WebSocket carries many requests: each is admitted by itself.
            asks = message["type"] == "websocket.receive"
            if asks and not await self._service.admits_still(headers, tenant, own_header=True):
                return {"type": "websocket.disconnect", "code": 1008}
            return message

        await self._proxies[tenant](scope, receive_admitted, send)


class SlashNames:
    """Threads may have a slash in their name: what came as %2F parts no path.

    Inside it stands for a slash as NUL; what is no text, and NUL itself, becomes what no name holds.
    """

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = scope.get("raw_path") or b""
        if scope["type"] == "http" and raw.startswith(b"/api/"):
            parts = raw.partition(b"?")[0].decode("ascii", "replace").split("/")
            texts = (unquote(part, errors="surrogateescape").replace("\0", "\udc00") for part in parts)
            scope = {**scope, "path": "/".join(text.replace("/", "\0") for text in texts)}
        await self._inner(scope, receive, send)


# A route as what answers requests.

# What the parts of paths in braces are.
_PARAMETERS: dict[str, Any] = {
    "name": ThreadName,
    "id": Annotated[str, msgspec.Meta(min_length=1, max_length=200)],
    "call": Annotated[str, msgspec.Meta(min_length=1, max_length=40)],
}
_IDEMPOTENCY = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
_PROBLEM = "application/problem+json"
_Endpoint: TypeAlias = "Callable[[Request], Awaitable[Response]]"


def _endpoints(routes: Sequence[Route], service: Service) -> list[BaseRoute]:
    """The routes as Starlette takes them below /api: one for each path, so that it can say which methods it has."""
    by_path: dict[str, dict[str, _Endpoint]] = {}
    for route in routes:
        by_path.setdefault(route.path.removeprefix("/api"), {})[route.method] = _endpoint(route, service)
    return [Mounted(path, _by_method(answers), methods=list(answers)) for path, answers in by_path.items()]


def _by_method(answers: Mapping[str, _Endpoint]) -> _Endpoint:
    async def answer(request: Request) -> Response:
        if request.method != "HEAD":
            return await answers[request.method](request)
        response = await answers["GET"](request)
        # A stream may never end, and the connection's next request would wait for it.
        is_stream = isinstance(response, StreamingResponse)
        return Response(None, response.status_code, dict(response.headers)) if is_stream else response

    return answer


def _endpoint(route: Route, service: Service) -> _Endpoint:
    async def answer(request: Request) -> Response:
        try:
            name = await service.admit(request)
            tenant = service.known_tenant(name)
            if tenant is None:
                tenant = await off_loop(service.tenant, name)
            path = _path(route, request)
            arguments = {**_query(route, request), **await _body(route, request, service.limits.body_bytes)}
            call = RouteCall(service, tenant, path, arguments, request.headers)
            value = await service.once(route, call, _run_handler)
        except Exception as error:  # whatever happens is said as a problem
            return problem_response(error, service)
        return _response(route, value, service)

    return answer


async def _run_handler(route: Route, call: RouteCall) -> Any:
    if inspect.iscoroutinefunction(route.handler):
        return await route.handler(call, **call.arguments)
    async with call.tenant.share:
        return await off_loop(route.handler, call, **call.arguments)


def _path(route: Route, request: Request) -> dict[str, Any]:
    values = {}
    for name in route.parameters:
        # A slash inside of a name came as %2F; see `SlashNames`.
        text = request.path_params[name].replace("\0", "/")
        try:
            values[name] = msgspec.convert(text, _PARAMETERS[name], strict=False)
            text.encode()
            if name == "name":
                check_name(text)
        except (msgspec.ValidationError, UnicodeEncodeError, CallError) as error:
            raise HttpRefusal(404, f"there is no {name} {text[:80]!r}: {error}") from error
    return values


def _query(route: Route, request: Request) -> JsonObject:
    if route.query is None:
        return {}
    fields = dict(request.query_params)
    try:
        return msgspec.structs.asdict(msgspec.convert(fields, route.query, strict=False))
    except msgspec.ValidationError as error:
        raise HttpRefusal(422, f"in the query: {error}", hint=_describe_input(route.query)) from error


def _describe_input(type: Any) -> str:
    """What a route takes, in a sentence."""
    names = [field.encode_name for field in msgspec.structs.fields(type)] if hasattr(type, "__struct_fields__") else ()
    return f"Taken are: {', '.join(names)}; /api/openapi.json says more." if names else "/api/openapi.json says more."


async def _read_body(request: Request, most: int) -> bytes:
    """The whole body; more than `most` bytes are refused before they are read."""
    too_large = HttpRefusal(413, f"the body is larger than {most:,} bytes", hint="Send less at a time.")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > most:
        raise too_large
    read = bytearray()
    try:
        async for piece in request.stream():
            read += piece
            if len(read) > most:
                raise too_large
    except ClientDisconnect as error:
        raise HttpRefusal(400, "the body ended before its end") from error
    return bytes(read)


async def _body(route: Route, request: Request, most: int) -> JsonObject:
    if route.body is None:
        return {}
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HttpRefusal(415, "the body is not declared as JSON", hint="Send content-type: application/json.")
    data = await _read_body(request, most)
    try:
        return {"body": _of_type(data, route.body)}
    except msgspec.ValidationError as error:
        raise HttpRefusal(422, str(error), hint=_describe_input(route.body)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpRefusal(400, f"the body is not JSON: {error}") from error


def _of_type(data: bytes, expected: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=expected)
    except msgspec.ValidationError as error:
        if "got `float`" not in str(error):
            raise
        # In JSON 2.0 is an integer, too.
        return msgspec.convert(whole_numbers(msgspec.json.decode(data)), expected)


def _response(route: Route, value: Any, service: Service) -> Response:
    if isinstance(value, Response):
        return value
    if route.gives is None:
        return Response(status_code=204)
    body = msgspec.json.encode(value)
    return Response(service.redactor.bytes(body) if route.redacted else body, route.status, media_type=route.media)


def problem_response(error: Exception, service: Service) -> Response:
    """An error as problem+json; whatever it repeats of what was given holds no secret."""
    problem = problem_of(error)
    headers = error.headers if isinstance(error, HttpRefusal) else {}
    if isinstance(error, errors.ProviderError) and error.retry_after_s is not None:
        headers = {"retry-after": str(int(error.retry_after_s) + 1)}
    body = service.redactor.bytes(msgspec.json.encode(problem))
    return Response(body, problem.status, headers, media_type=_PROBLEM)


# The page that tells machines of all this.


def openapi(routes: Sequence[Route]) -> JsonObject:
    """OpenAPI 3.1 of the routes."""
    types = [Problem, _IDEMPOTENCY, *_PARAMETERS.values()]
    types += [type_ for route in routes for type_ in (route.body, route.gives) if type_ is not None]
    types += [route.query for route in routes if route.query is not None]
    schemas, parts = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_by_id = dict(zip(map(id, types), schemas, strict=True))
    parts["Entry"] = {key: value for key, value in SCHEMA.items() if key != "$schema"}
    paths: dict[str, JsonObject] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_by_id, parts)
    for route in routes:  # the fields of a query stand among the parameters
        parts.pop(f"{route.operation}_query", None)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quire",
            "version": __version__,
            "description": "Threads in; byte-stable, provider-valid, cache-optimal model requests out.",
        },
        "paths": paths,
        "security": [{}, {"key": []}],
        "components": {"schemas": parts, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(route: Route, schemas: Mapping[int, JsonObject], parts: Mapping[str, JsonObject]) -> JsonObject:
    lines = inspect.getdoc(route.handler) or route.operation
    parameters: list[JsonObject] = [
        {"name": name, "in": "path", "required": True, "schema": schemas[id(_PARAMETERS[name])]}
        for name in route.parameters
    ]
    if route.query is not None:
        parameters += _query_parameters(schemas[id(route.query)], parts)
    if route.writes:
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": schemas[id(_IDEMPOTENCY)]})
    operation: JsonObject = {
        "operationId": route.operation,
        "summary": lines.partition("\n")[0],
        "description": lines,
        "parameters": parameters,
        "responses": {**_success_response(route, schemas), **_problems(route)},
    }
    if route.body is not None:
        content = {"application/json": {"schema": schemas[id(route.body)]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _query_parameters(schema: JsonObject, parts: Mapping[str, JsonObject]) -> Iterable[JsonObject]:
    fields = parts[schema["$ref"].rpartition("/")[2]]
    for name, field in fields["properties"].items():
        yield {"name": name, "in": "query", "required": name in fields.get("required", ()), "schema": field}


def _success_response(route: Route, schemas: Mapping[int, JsonObject]) -> JsonObject:
    if route.gives is None:
        return {"204": {"description": "done"}}
    schema = schemas[id(route.gives)] if route.media == "application/json" else {"type": "string"}
    content = {route.media: {"schema": schema}}
    if route.streams:
        content[EVENTS] = {"schema": {"type": "string"}}
    return {str(route.status): {"description": "done", "content": content}}


def _problems(route: Route) -> JsonObject:
    possible = {401, 403, 409, 422, 429, 500, 501, 503, *route.errors}
    possible |= {404} if route.parameters else set()
    possible |= {400, 413, 415} if route.body is not None else set()
    content = {_PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {str(status): {"description": "problem", "content": content} for status in sorted(possible)}


# Running it.


class Running:
    """A service that serves: `run()` until a signal comes, or `with Running(service) as running: running.url`."""

    def __init__(
        self, service: Service, *, host: str = "127.0.0.1", port: int = 0, proxies: Proxies | None = None
    ) -> None:
        self._service, self._server = service, _server(service, make_app(service, proxies))
        self._listener = listen(port, host, _SEND_BYTES, backlog=1024)
        address = f"[{host}]" if ":" in host else host
        self.url = f"http://{address}:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        """Serve; at the end what is under way is finished or recorded."""
        with self._listener:
            self._server.run(sockets=[self._listener])
        for watcher in self._service.watchers.values():
            watcher.close()  # once all requests have ended, those too that were cut off

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.end()
        self._thread.join()


class _DrainingServer(EndsAtOnce, uvicorn.Server):
    def __init__(self, service: Service, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        # Before the connections are waited for: readers of events would keep theirs for ever.
        await self._service.drain()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn would raise them again at the end; a service that ended as it was told to has not failed.
        alone = threading.current_thread() is threading.main_thread()
        kinds = (signal.SIGINT, signal.SIGTERM) if alone else ()
        before = {kind: signal.signal(kind, self.handle_exit) for kind in kinds}
        try:
            yield
        finally:
            for kind, handler in before.items():
                signal.signal(kind, handler)


def _server(service: Service, app: ASGIApp) -> _DrainingServer:
    with needs_extra("the service is not installed", "serve"):
        config = server_config(app, lifespan="on", timeout_graceful_shutdown=5, **PASSING_CONFIG)
    return _DrainingServer(service, config)
