"""A strict local stand-in for a provider: its rules, its cache, its usage fields, scripted replies, faults."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from quire.emulate.provider import Emulated
from quire.emulate.script import Cut, EmulatedRequest, Refuse, Replies, Reply, Slow
from quire.errors import CallError, needed
from quire.log import now_ms

if TYPE_CHECKING:
    import uvicorn

    _UvicornServer = uvicorn.Server
else:
    _UvicornServer = object  # uvicorn need not be installed; `class X(EndsAtOnce, uvicorn.Server)` brings it

__all__ = ["BackgroundServer", "Cut", "Emulator", "EndsAtOnce", "Refuse", "Replies", "Reply", "Slow"]


# The emulator as a running server: on 127.0.0.1, on a port of its own, in a thread of its own.

# What a request may hold before its body.
_HEAD_BYTES = 1024 * 1024


class EndsAtOnce(_UvicornServer):
    """A server of uvicorn that ends when it is told to: uvicorn looks ten times a second, and sleeps before it ends."""

    _loop: asyncio.AbstractEventLoop | None = None

    def end(self) -> None:
        """Stop serving; from any thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended by itself, and its loop is closed
                self._loop.call_soon_threadsafe(self._wake.set)

    async def main_loop(self) -> None:
        self._wake, self._loop = asyncio.Event(), asyncio.get_running_loop()
        counter = 0
        while not await self.on_tick(counter):
            counter = (counter + 1) % 864_000
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), 0.1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self.server_state
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        notified = set[object]()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while not self.force_exit:
                    for connection in state.connections - notified:
                        connection.shutdown()
                    notified |= state.connections
                    await asyncio.sleep(0.002)  # a connection accepted just now may still appear
                    if not state.connections and not state.tasks:
                        break
        for task in state.tasks:
            task.cancel()
        for connection in list(state.connections):
            connection.transport.abort()
        if not self.force_exit:
            await self.lifespan.shutdown()


def http_protocol() -> type[asyncio.Protocol]:
    """uvicorn's reader of HTTP, which takes no endless head of a request and survives what a client sends instead."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class BoundedHead(HttpToolsProtocol):
        _head = 0

        def data_received(self, data: bytes) -> None:
            self._head += len(data)
            try:
                super().data_received(data)
            except Exception:  # the caller's fault, whatever it is: it alone is cut off
                self.transport.abort()
                # A WebSocket that failed while it was made would be waited for when the server ends.
                self.connections -= {socket for socket in self.connections if socket.transport is self.transport}
                return
            if self._head > _HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The head of the request is larger than {_HEAD_BYTES:,} bytes.")

        def on_headers_complete(self) -> None:
            self._head = -(2**63)  # until the next request of this connection
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._head = 0

    return BoundedHead


# Of whoever passes requests on: a provider's own headers pass, and frames as large as a history.
PASSING_CONFIG: dict[str, Any] = {"server_header": False, "date_header": False, "ws_max_size": 256 * 1024 * 1024}


def server_config(app: Any, **more: Any) -> Any:
    """What uvicorn is told; severed connections are meant, nothing about them needs to be logged."""
    import uvicorn

    usual = {"timeout_graceful_shutdown": 1, "http": http_protocol(), "ws": "websockets-sansio"}
    return uvicorn.Config(app, log_level="critical", access_log=False, **{**usual, **more})


class BackgroundServer:
    """An application on 127.0.0.1, served in a thread of its own; `make` gives it when it is started.

    `config` is what uvicorn takes besides.
    """

    def __init__(self, make: Callable[[], Any], port: int = 0, **config: Any) -> None:
        self._make, self._port, self._config = make, port, config
        self._server: EndsAtOnce | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self.url = ""

    def start(self) -> None:
        """Start serving; the address is known when this returns."""
        app = self._make()
        with needed("the server is not installed", "emulate"):
            import uvicorn

        class Server(EndsAtOnce, uvicorn.Server):
            pass

        self._server = Server(server_config(app, **self._config))
        listener = listen(self._port)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._thread = threading.Thread(target=_run, args=(self._server, listener, self._ended), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving; safe to call twice."""
        server, self._server = self._server, None
        thread, self._thread = self._thread, None
        if server is not None and thread is not None:
            server.end()
            thread.join()

    def wait(self) -> None:
        """Serve until interrupted."""
        # Not by joining the thread: Python counts a thread as ended once a join was interrupted. And in short waits: a signal
        # may reach another OS thread, which does not wake this one, although only this one runs Python's handlers.
        while not self._ended.wait(0.2):
            pass

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


class Emulator(BackgroundServer):
    """A strict stand-in for a provider: `with Emulator("anthropic", ["Hello"]) as server: server.url`.

    `chunk_bytes` cuts streams into pieces of that size; `clock` gives the time in ms that cache lives are
    measured with. `lenient` lets in requests without a key or version, for unknown models, and after unknown
    responses; `state` is a file in which it keeps what it signed and stored, for the next emulator.
    """

    def __init__(
        self,
        provider: str,
        replies: Replies | None = None,
        *,
        port: int = 0,
        piece: int = 12,
        chunk_bytes: int | None = None,
        clock: Callable[[], int] | None = None,
        enforce_binding: bool = True,
        lenient: bool = False,
        state: Path | None = None,
    ) -> None:
        self._emulated = Emulated(provider, replies, clock or now_ms, piece, enforce_binding, lenient, state)
        super().__init__(lambda: _app(self._emulated, chunk_bytes), port)

    @property
    def requests(self) -> list[EmulatedRequest]:
        """Every request received so far, refused ones too; what only looks (GET) is not among them."""
        return self._emulated.requests

    def next(self, reply: Reply) -> None:
        """Answer the next request with this, before anything else in the script."""
        self._emulated.script.push(reply)


def _app(emulated: Emulated, chunk_bytes: int | None) -> Any:
    with needed("the emulator's server is not installed", "emulate"):
        from quire.emulate.app import make_app
    return make_app(emulated, chunk_bytes)


def _run(server: EndsAtOnce, listener: socket.socket, ended: threading.Event) -> None:
    try:
        with listener:
            server.run(sockets=[listener])
    finally:
        ended.set()


def listen(port: int, host: str = "", send_bytes: int = 0, backlog: int = 128) -> socket.socket:
    """A listening socket, on this machine's own address unless `host` says another; its port is known from now on."""
    # asyncio sends small pieces at once only where the socket says that it is TCP; 40 ms a request otherwise.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if send_bytes:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
    try:
        listener.bind((host or "127.0.0.1", port))
    except OSError as error:
        listener.close()
        place = f"{host}:{port}" if host else f"port {port}"
        raise CallError(f"{place} cannot be used: {error.strerror}", hint="Use --port 0 for a free one.") from error
    # Clients may connect from now on; they wait until the server has started.
    listener.listen(backlog)
    return listener
