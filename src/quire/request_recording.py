"""For an application's own tests: assertions about single requests, and a recording of all requests it sends.

It is also a pytest plugin with the fixture `quire_requests`:

def test_my_agent(quire_requests):
    my_agent.run("…")
    quire_requests.assert_reuse(90)
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import operator
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from quire.values import Json, JsonObject, Request

if TYPE_CHECKING:
    from quire.audit import AuditReport, SentCall


# Single requests.


def assert_extends(prev: JsonObject | Request, next: JsonObject | Request, provider: str = "") -> None:
    """Assert that `next` repeats all of `prev` and adds to its end, so that a cache is read; marks may move."""
    __tracebackhide__ = True
    from quire.audit import call_of
    from quire.audit.first_difference import first_moved, units_of, where

    about = {"provider": provider} if provider else {}
    bodies = (request.body if isinstance(request, Request) else request for request in (prev, next))
    old, new = (units_of(call_of("", about, body, None)) for body in bodies)
    place = first_moved(old, new)
    if place is not None:
        was, now, offset = place
        became = "is gone" if now is None else f"became {_around(now.compared_lines, offset)}"
        raise AssertionError(
            f"the request does not extend the one before: {where(was)}, {offset:,} characters in: "
            f"{_around(was.compared_lines, offset)} {became}"
        )


def _around(compared: Json, offset: int) -> str:
    from quire.audit.first_difference import texts_of

    text = "\n".join(texts_of(list(compared)))
    return repr(text[max(0, offset - 20) : offset + 40])


def assert_valid(body: JsonObject | Request, provider: str = "", model: str = "") -> None:
    """Assert that a request breaks no rule of its provider's API that is known here.

    A rendered Request brings its provider, model and headers along.
    """
    __tracebackhide__ = True
    from quire.providers.rules import errors, validate
    from quire.providers.wires import detect

    name = provider or (body.provider if isinstance(body, Request) else detect(body)) or "openai-chat"
    findings = errors(validate(body, name, model or None))
    if findings:
        problems = "\n".join(f"  {finding.path}: {finding.message} {finding.fix}" for finding in findings)
        raise AssertionError(f"{name} would refuse the request:\n{problems}")


# All that a test sends.


class HttpExchange(msgspec.Struct):
    """One HTTP request to a model and what has come back of it."""

    at: int
    url: str
    headers: dict[str, str]
    body: JsonObject
    status: int = 200
    reply: bytes = b""
    packed: bool = False

    def line(self) -> JsonObject:
        """As a line of a request log, without API keys."""
        url = urlsplit(self.url)
        headers = {name: value for name, value in self.headers.items() if "session" in name}
        about = {"at": self.at, "host": url.hostname, "path": url.path, "headers": headers, "status": self.status}
        text = "" if self.packed else self.reply.decode(errors="replace")
        reply: Json = text
        with suppress(ValueError):
            reply = json.loads(text)
        return {**about, "request": self.body, "reply": reply or None}


class RecordedRequests:
    """The requests to models that were sent, whichever library sent them."""

    def __init__(self) -> None:
        self.exchanges: list[HttpExchange] = []

    def __len__(self) -> int:
        return len(self.exchanges)

    @property
    def bodies(self) -> list[JsonObject]:
        return [exchange.body for exchange in self.exchanges]

    @property
    def calls(self) -> list[SentCall]:
        """The requests that were answered, with their usage."""
        from quire.audit import call_of

        lines = [exchange.line() for exchange in self.exchanges if exchange.status == 200]
        return [call_of(f"request {n}", line, line["request"], line["reply"]) for n, line in enumerate(lines, 1)]

    def audit(self) -> AuditReport:
        """What the requests lost of the provider's cache, and why."""
        from quire.audit import audit

        return audit(self.calls)

    def assert_reuse(self, percent: float = 90) -> None:
        """Assert that at least this share of the tokens that the cache could have given was read from it."""
        __tracebackhide__ = True
        report = self.audit()
        if 100 * report.total.reuse < percent:
            losses = [loss for conversation in report.conversations for loss in conversation.verdicts]
            why = "\n".join(f"  {loss.source}: {loss.cause}, {loss.path} {loss.note}. {loss.fix}" for loss in losses)
            raise AssertionError(f"{100 * report.total.reuse:.0f} % of what could be read was, not {percent} %:\n{why}")

    def save(self, path: str | Path) -> None:
        """Write the requests as a log that `quire audit`, `quire lock` and `quire check` read; API keys are left out."""
        lines = [json.dumps(exchange.line(), ensure_ascii=False) for exchange in self.exchanges]
        Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def begin(self, url: object, headers: Any, content: Any) -> HttpExchange | None:
        """Note an outgoing request; None if it is not one to a model."""
        from quire.audit import is_body

        data = content.encode() if isinstance(content, str) else content
        body = None
        with suppress(ValueError, TypeError):
            body = json.loads(data)
        if not isinstance(body, dict) or not is_body(body):
            return None
        lowered = {str(name).lower(): str(value) for name, value in dict(headers).items()}
        exchange = HttpExchange(int(time.time() * 1000), str(url), lowered, body)
        self.exchanges.append(exchange)
        return exchange


@contextmanager
def record_requests() -> Iterator[RecordedRequests]:
    """Record every request to a model that httpx, httpx2, requests or botocore sends while the block runs.

    The SDKs send through these. Requests and replies are not changed.
    """
    recorded = RecordedRequests()
    with ExitStack() as undo:
        for name in ("httpx", "httpx2"):
            if (module := _import_library(name)) is not None:
                for client in (module.Client, module.AsyncClient):
                    _patch(undo, client, recorded, _httpx_content, _note_httpx(module))
        body = operator.attrgetter("body")
        for name, client in (("requests.sessions", "Session"), ("botocore.httpsession", "URLLib3Session")):
            if (module := _import_library(name)) is not None:
                _patch(undo, getattr(module, client), recorded, body, _note_whole)
        yield recorded


def _import_library(name: str) -> Any:
    """A library, or None if it is not installed: then nothing is sent through it."""
    with suppress(ImportError):
        return importlib.import_module(name)
    return None


# How to get a request's body, and how to note its reply.
Content = Callable[[Any], Any]
Note = Callable[[HttpExchange, Any, Any, dict[str, Any]], None]


def _patch(undo: ExitStack, owner: Any, recorded: RecordedRequests, content: Content, note: Note) -> None:
    """Replace a client's method `send`, plain or async, by one that also notes the request and its reply."""
    original = owner.send

    @functools.wraps(original)
    def send(self: Any, request: Any, **options: Any) -> Any:
        exchange = recorded.begin(request.url, request.headers, content(request))

        def noted(reply: Any) -> Any:
            if exchange is not None:
                exchange.status = reply.status_code
                note(exchange, request, reply, options)
            return reply

        async def awaited(coming: Awaitable[Any]) -> Any:
            return noted(await coming)

        reply = original(self, request, **options)
        return awaited(reply) if inspect.isawaitable(reply) else noted(reply)

    owner.send = send
    undo.callback(setattr, owner, "send", original)


def _httpx_content(request: Any) -> bytes:
    with suppress(Exception):  # a streamed body is not read yet
        return bytes(request.content)
    return b""


def _note_httpx(module: Any) -> Note:
    class Tee(module.SyncByteStream, module.AsyncByteStream):  # type: ignore[misc]  # httpx or httpx2, whichever is there
        """A reply's bytes, noted as they are read."""

        def __init__(self, stream: Any, into: HttpExchange) -> None:
            self.stream, self.into = stream, into

        def __iter__(self) -> Iterator[bytes]:
            for piece in self.stream:
                self.into.reply += piece
                yield piece

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in self.stream:
                self.into.reply += piece
                yield piece

        def close(self) -> None:
            self.stream.close()

        async def aclose(self) -> None:
            await self.stream.aclose()

    def note(exchange: HttpExchange, request: Any, reply: Any, options: dict[str, Any]) -> None:
        if options.get("stream"):
            exchange.packed = "content-encoding" in reply.headers
            reply.stream = Tee(reply.stream, exchange)
        else:
            exchange.reply = reply.content

    return note


def _note_whole(exchange: HttpExchange, request: Any, reply: Any, options: dict[str, Any]) -> None:
    """Note a reply of requests or botocore; of one that is streamed only its status."""
    streams = options.get("stream") or getattr(request, "stream_output", False)
    exchange.reply = b"" if streams else reply.content


# The fixture.

with suppress(ImportError):  # without pytest there is nothing to plug in
    import pytest

    @pytest.fixture
    def quire_requests() -> Iterator[RecordedRequests]:
        """Every request to a model that the test makes through httpx, requests, or an SDK."""
        with record_requests() as recorded:
            yield recorded
