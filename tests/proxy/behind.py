"""What the tests of the proxy stand on: an emulator, or a server of ours, behind a proxy that watches."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from quire.emulate import BackgroundServer
from quire.server.app import Running
from quire.server.proxy import CacheWatcher, Passing, Proxy, ProxyOptions, Watched
from quire.server.service import Service
from quire.testing import Emulator, emulator
from toolbox import until

RULES = "Always be careful with the records. " * 400
HEADERS = {"x-api-key": "secret-key", "anthropic-version": "2023-06-01"}
# Each provider looks at its own.
KEYS = {**HEADERS, "authorization": "Bearer k", "x-goog-api-key": "k"}


class Watching:
    """A provider's stand-in behind a proxy that watches."""

    def __init__(self, server: Emulator, url: str, watcher: CacheWatcher, seen: list[Watched]) -> None:
        self.server, self.url, self.watcher, self.seen = server, url, watcher, seen

    def newest(self, count: int) -> list[Watched]:
        until(lambda: len(self.seen) >= count)
        return self.seen

    def post(self, given: Any, path: str = "/v1/messages", **headers: str) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=given, headers={**KEYS, **headers})


@contextmanager
def proxied(server: Any, log: Path | None = None, **options: Any) -> Iterator[Watching]:
    """A stand-in that runs already, behind a proxy of one's own."""
    seen: list[Watched] = []
    watcher = CacheWatcher(seen.append, log)
    with Proxy(ProxyOptions(to=server.url, **options), watcher) as proxy:
        yield Watching(server, proxy.url, watcher, seen)


def watching(
    provider: str,
    log: Path | None = None,
    options: dict[str, Any] | None = None,
    beside: Path | None = None,
    **how: Any,
) -> Iterator[Watching]:
    seen: list[Watched] = []
    watcher = CacheWatcher(seen.append, log)
    with (
        emulator(provider, **how) as server,
        passing_on(ProxyOptions(to=server.url, **(options or {})), watcher, beside) as url,
    ):
        yield Watching(server, url, watcher, seen)


@contextmanager
def passing_on(options: ProxyOptions, watcher: CacheWatcher, beside: Path | None) -> Iterator[str]:
    """The address of a proxy: `quire proxy`, or `quire serve --to` on the same port as threads in the file `beside`."""
    if beside is None:
        with Proxy(options, watcher) as proxy:
            yield proxy.url
        return
    with Running(Service(beside), proxies=lambda _: Passing(options, watcher)) as running:
        yield running.url


class Upstream:
    """An ASGI application as a server, to see the very bytes that arrive."""

    def __init__(self, app: Any) -> None:
        self._server = BackgroundServer(lambda: app)

    def __enter__(self) -> str:
        self._server.start()
        return self._server.url

    def __exit__(self, *raised: object) -> None:
        self._server.stop()


class Unfinished:
    """A provider that begins a reply of 7 input tokens, and says nothing more."""

    def __init__(self) -> None:
        self.begun = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        start = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 7, "output_tokens": 1}}}
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        event = f"event: message_start\ndata: {json.dumps(start)}\n\n".encode()
        await send({"type": "http.response.body", "body": event, "more_body": True})
        self.begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass


def body(*said: str, system: str = RULES) -> dict[str, Any]:
    """A conversation for Claude, marked as clients mark it."""
    mark = {"cache_control": {"type": "ephemeral"}}
    messages = [
        {"role": "assistant" if place % 2 else "user", "content": [{"type": "text", "text": text}]}
        for place, text in enumerate(said)
    ]
    messages[-1]["content"][-1] |= mark  # type: ignore[index]
    told = [{"type": "text", "text": system, **mark}]
    return {"model": "claude-opus-5-5", "max_tokens": 50, "system": told, "messages": messages}
