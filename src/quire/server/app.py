"""The service as an application and as a running server: its own routes, the proxy, and the inspector on one port."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from urllib.parse import unquote

import msgspec

from quire.emulate import PASSING_CONFIG, EndsAtOnce, listen, server_config
from quire.errors import needs_extra
from quire.log import off_loop
from quire.server import HttpRefusal, Route, endpoints, openapi, problem_response, read_types
from quire.server.service import SHARE, Service

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from quire.server.proxy import Passing

    Proxies: TypeAlias = Callable[[str], Passing]

# The modules whose ROUTES are served; one that needs a part which is not installed has none.
MODULES = ("quire.server.api", "quire.server.turns", "quire.server.remote_store", "quire.server.inspector")
# The system would hold megabytes for each reader that takes nothing.
_SEND_BYTES = 64 * 1024


def all_routes() -> tuple[Route, ...]:
    """Every route of the service."""
    return tuple(route for name in MODULES for route in importlib.import_module(name).ROUTES)


def make_app(service: Service, proxies: Proxies | None = None) -> ASGIApp:
    """The application; `proxies` gives each tenant what answers that is neither the service's nor the inspector's."""
    with needs_extra("the service is not installed", "serve"):
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.responses import Response
        from starlette.routing import Mount, Router
        from starlette.routing import Route as Mounted

        importlib.import_module("quire.recall.placement")  # which the first search would load
    table = all_routes()
    read_types()
    service.passes_on = proxies is not None
    page, connections = msgspec.json.encode(openapi(table)), contextlib.AsyncExitStack()

    async def always(body: bytes, request: Request) -> Response:
        return Response(body, media_type="application/json")

    api = [*endpoints(table, service), Mounted("/openapi.json", partial(always, page))]
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
    from starlette.responses import Response

    if service.draining:
        return problem_response(HttpRefusal(503, "the service is ending"), service)
    try:
        await off_loop(service.check)
    except Exception as error:  # a database that cannot be written is why nobody should be sent here
        return problem_response(error, service)
    return Response(b'{"status":"ready"}', media_type="application/json")


async def _refusal(service: Service, request: Request, error: Exception) -> Response:
    """What Starlette itself refuses, and what nobody foresaw, as a problem."""
    from starlette.exceptions import HTTPException

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
    from starlette.responses import Response

    from quire.server.inspector import page, security_policy

    headers = {
        "content-security-policy": f"{security_policy(served=True)}; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
    }
    return Response(page(), headers=headers, media_type="text/html")


class _Admission:
    """Lets only those through to a proxy who may use the service; what passes is no other tenant's to see."""

    def __init__(self, service: Service, proxies: Proxies, stack: contextlib.AsyncExitStack) -> None:
        self._service, self._make, self._stack = service, proxies, stack
        self._proxies: dict[str, Passing] = {}
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.requests import HTTPConnection

        try:
            passing = await self._proxy_of(await self._service.admit(HTTPConnection(scope), own_header=True))
        except Exception as error:  # said as a problem
            await problem_response(error, self._service)(scope, receive, send)
            return
        await passing(scope, receive, send)

    async def _proxy_of(self, tenant: str) -> Passing:
        async with self._making:
            if tenant not in self._proxies:
                proxy = await off_loop(self._make, tenant)
                await self._stack.enter_async_context(proxy.connected())
                self._proxies[tenant] = proxy
                self._service.watchers[tenant] = proxy.watcher
            return self._proxies[tenant]


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


def _server(service: Service, app: ASGIApp) -> EndsAtOnce:
    with needs_extra("the service is not installed", "serve"):
        config = server_config(app, lifespan="on", timeout_graceful_shutdown=5, **PASSING_CONFIG)
        import uvicorn

    class DrainingServer(EndsAtOnce, uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            for server in self.servers:
                server.close()
            # Before the connections are waited for: readers of events would keep theirs for ever.
            await service.drain()
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

    return DrainingServer(config)
