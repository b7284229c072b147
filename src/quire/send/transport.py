"""Transports, which send requests to a model: the protocol, plain HTTP, retries, errors. `send/connect.py` has the SDKs."""

from __future__ import annotations

import asyncio
import codecs
import functools
import html
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

import msgspec

from quire import providers
from quire.errors import CallError, ProviderError, needs_extra
from quire.providers.gemini_cache import CacheCall, Served
from quire.providers.models import provider_facts, resolve
from quire.providers.wires import wire_of
from quire.providers.wires.openai_chat import DONE
from quire.values import Json, JsonObject, Request, as_object, as_objects, read_early, value_at

if TYPE_CHECKING:
    import httpx


class Transport(Protocol):
    """Sends a rendered request; every failure is a ProviderError, which says whether a retry makes sense."""

    def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        """The provider's own stream events, as JSON, as they arrive (an async generator)."""

    async def send(self, request: Request) -> JsonObject:
        """The provider's whole reply, as JSON."""


async def close(transport: Transport) -> None:
    """Close a transport's connections, if it keeps any; the next request opens new ones."""
    aclose = getattr(transport, "aclose", None)
    if aclose is not None:
        await aclose()


def served(transport: Transport, request: Request) -> Served | None:
    """How an explicit cache served an answered request, where the transport keeps such caches."""
    lookup: Callable[[Request], Served | None] = getattr(transport, "served", lambda request: None)
    return lookup(request)


# Providers' addresses and keys. The environment is an argument: nothing here reads it.


@read_early
class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A provider's address, and the environment variables that may hold its key, in order of preference."""

    base_url: str
    keys: tuple[str, ...] = ()
    # The environment variables for another address, which the provider's own SDK reads too.
    addresses: tuple[str, ...] = ()
    # False for local servers, which usually need no key, and for boto3, which finds credentials itself.
    needs_key: bool = True
    # The package of the provider's official SDK.
    sdk: str = ""
    # Whether it can force a reply to follow a JSON schema, so that even a small model writes valid calls.
    holds_to_schema: bool = False


@functools.cache
def endpoint_for(target: str) -> Endpoint:
    """The endpoint of "provider:model", or of a provider."""
    return msgspec.convert(provider_facts(resolve(target.partition(":")[0])[0])["endpoint"], Endpoint)


def key_for(target: str, environment: Mapping[str, str]) -> str | None:
    """The key of a model's provider in an environment, or None."""
    return next(filter(None, map(environment.get, endpoint_for(target).keys)), None)


def address_for(target: str, environment: Mapping[str, str]) -> str | None:
    """The address of a model's provider in an environment, or None."""
    return next(filter(None, map(environment.get, endpoint_for(target).addresses)), None)


# Errors: what happened, whether to try again, what to do next.

RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
# Words of limits that waiting does not lift.
_FINAL = ("insufficient_quota", "billing", "credit balance", "exceeded your current quota")

_LONGEST = 300
_PAGE = re.compile(r"\s*<(!doctype|html|head|body|\?xml)", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]*>([^<]+)", re.IGNORECASE)


def refusal(provider: str, status: int, answer: Json, headers: Mapping[str, str] | None = None) -> ProviderError:
    """The error of an HTTP status; `answer` is the reply's body, as JSON or text."""
    message = message_of(answer) or "no message"
    final = any(word in f"{message} {answer}".lower() for word in _FINAL)
    return ProviderError(
        f"{provider} answered {status}: {message}",
        status=status,
        retryable=status in RETRYABLE and not final,
        hint=_hint(status, endpoint_for(provider)),
        retry_after_s=retry_after(headers or {}),
    )


def unreachable(provider: str, base_url: str, error: BaseException) -> ProviderError:
    """The error of a connection that could not be made, or broke."""
    reason = str(error) or type(error).__name__
    base_url = without_password(base_url)
    return ProviderError(
        f"the connection to {provider} failed: {reason}",
        retryable=True,
        hint=f"Check that {base_url} can be reached." if base_url else "Check the network.",
    )


# The model's window in errors of servers about too long requests.
_NUMBER = re.compile(r"\d[\d,]{2,}")
_WINDOWS = (
    re.compile(r"context (?:length|size|window)\D{0,40}([\d,]{3,})", re.IGNORECASE),
    re.compile(r"> ([\d,]{3,}) maximum"),
    re.compile(r"maximum number of tokens allowed \(?([\d,]{3,})"),
)


def named_window(error: ProviderError) -> tuple[int, int] | None:
    """The window that a refusal names, and the tokens it counted: "5000 tokens > 4096 maximum" -> (4096, 5000)."""
    match = next(filter(None, (pattern.search(str(error)) for pattern in _WINDOWS)), None)
    if error.status not in (400, 413) or match is None:
        return None
    window, *others = (int(number.replace(",", "")) for number in (match[1], *_NUMBER.findall(str(error))))
    return window, max([window, *(other for other in others if other < 100 * window)])


def is_base_url(url: str) -> bool:
    """Whether a server can be asked at an address: http or https, a host, and a port that is one."""
    try:
        parts = urlsplit(url)  # which passes over spaces in front and line breaks
        host = (parts.hostname or "").encode("idna") if url.isprintable() and url == url.strip() else b""
        return parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:
        return False


def without_password(url: str) -> str:
    """An address without user and password: https://me:secret@host/v1 -> https://host/v1."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}" if separator else url


# Host headers that programs of this machine send to a server on it.
_LOCAL_HOST = re.compile(r"(127(\.\d{1,3}){3}|localhost|\[::1\])(:\d*)?", re.IGNORECASE)


def page_refusal(headers: Mapping[str, str]) -> str:
    """Why a local server refuses a request: it comes from a web page of another site; else ""."""
    host, origin = headers.get("host", ""), headers.get("origin", "")
    if not _LOCAL_HOST.fullmatch(host):
        return f"the host {host[:80]!r} is not this machine"
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") or (origin and origin.partition("://")[2] != host):
        return "pages of other sites are not served"
    return ""


def timed_out(provider: str, timeout_s: float) -> ProviderError:
    return ProviderError(
        f"{provider} sent nothing for {timeout_s:g} s",
        retryable=True,
        hint="Try again, or allow more time with timeout_s.",
    )


def too_deep(provider: str) -> ProviderError:
    return ProviderError(
        f"{provider} sent JSON that is nested too deeply to be read", hint="No provider does that; check the base URL."
    )


def message_of(answer: Json) -> str:
    """The message in an error body: {"error": {"message": …}}, {"message": …}, [{…}] or text."""
    if isinstance(answer, list):
        answer = answer[0] if answer else None
    if isinstance(answer, dict):
        inner = answer.get("error")
        if isinstance(inner, dict | str):
            return message_of(inner)
        answer = answer.get("message") or answer.get("Message") or answer.get("detail")
    return _one_line(str(answer or ""))


def _one_line(text: str) -> str:
    """A text in one line, cut where it is long; of a web page, the title."""
    if _PAGE.match(text):
        title = _TITLE.search(text)
        text = f"a web page ({html.unescape(title[1])})" if title else "a web page"
    words = " ".join(text.split())
    return words if len(words) <= _LONGEST else words[:_LONGEST] + "…"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a provider asks to wait, given as seconds, milliseconds or a date."""
    lower = {key.lower(): value for key, value in headers.items()}
    try:
        if "retry-after-ms" in lower:
            return max(0.0, float(lower["retry-after-ms"]) / 1000)
        return max(0.0, float(lower["retry-after"])) if "retry-after" in lower else None
    except ValueError:
        return _until(lower.get("retry-after", ""), lower.get("date", ""))


def _until(date: str, now: str) -> float | None:
    """The seconds from the reply's own date to another; this machine's clock may differ from the server's."""
    try:
        since = parsedate_to_datetime(now) if now else datetime.now(UTC)
        return max(0.0, (parsedate_to_datetime(date) - since).total_seconds())
    except (ValueError, TypeError):
        return None


def _hint(status: int, endpoint: Endpoint) -> str:
    keys = " or ".join(endpoint.keys)
    key = f"Check the API key ({keys})." if keys else "Check the API key."
    hints = {
        **dict.fromkeys(RETRYABLE, "It was tried several times; `quire resume` goes on later."),
        **dict.fromkeys((400, 413, 422), "`quire lint` shows which rule a request breaks."),
        **dict.fromkeys((401, 403), key),
        402: "Check the account at the provider.",
        404: "Check the model's name and the base URL.",
    }
    return hints.get(status, "Check the base URL and what the provider says of this status.")


# Server-sent events, from bytes in pieces of any size.

# Larger than any provider's events; an endless line is none.
LIMIT_BYTES = 16 * 1024 * 1024


async def events(chunks: AsyncIterator[bytes], provider: str) -> AsyncIterator[JsonObject]:
    """The events of a response body, without comments; a body without events is an error that shows its beginning."""
    reader, began = SseReader(), b""
    async for chunk in chunks:
        began += chunk[: 2_000 - len(began)]
        for data in reader.feed(chunk):
            if (event := decode_event(data, provider)) is not None:
                yield event
    for data in reader.finish():
        if (event := decode_event(data, provider)) is not None:
            yield event
    if not reader.events and began.strip():
        problem = message_of(began.decode(errors="replace").strip())
        raise ProviderError(f"{provider} sent no stream but {problem}", hint="Check the base URL, and any proxy.")


class SseReader:
    """Splits a body into the data of events; lines end with LF, CRLF or CR, which may be split between pieces."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_cr = False
        self.events = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that this chunk completes."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        text = self._rest + chunk
        if len(text) > LIMIT_BYTES:
            raise ProviderError(f"a stream event of more than {LIMIT_BYTES:,} bytes", hint="Check the base URL.")
        lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        return [data for line in lines if (data := self._line(line)) is not None]

    def finish(self) -> list[bytes]:
        """The data of the last event, which may lack its final blank line."""
        last = [self._line(self._rest), self._line(b"")] if self._rest else [self._line(b"")]
        self._rest = b""
        return [data for data in last if data is not None]

    def _line(self, line: bytes) -> bytes | None:
        line = line if self.events else line.removeprefix(codecs.BOM_UTF8)
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            self.events += 1
            return data
        return None


def decode_event(data: bytes, provider: str) -> JsonObject | None:
    """An event's JSON; None for the [DONE] at the end of some streams."""
    if data.strip() == b"[DONE]":
        return DONE if wire_of(provider).call.ends_in_done else None
    try:
        event = json.loads(data)
    except RecursionError as error:
        raise too_deep(provider) from error
    except ValueError as error:
        # Retryable: the connection probably broke in the middle of the event.
        raise ProviderError(f"{provider} sent an event that is not JSON: {data[:120]!r}", retryable=True) from error
    if not isinstance(event, dict):
        raise ProviderError(f"{provider} sent an event that is no object: {data[:120]!r}")
    return event


class Http:
    """A transport over httpx, without an SDK, for any server that speaks a wire format."""

    def __init__(self, base_url: str, api_key: str = "", timeout_s: float = 600.0, proxies: bool = False) -> None:
        self.base_url, self.api_key, self.timeout_s = base_url.rstrip("/"), api_key, timeout_s
        # Whether to use the proxies of the environment: the command line does, a library only where told to.
        self.proxies = proxies
        self._client: httpx.AsyncClient | None = None
        _httpx()  # where httpx is missing, fail before anything is recorded

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def send(self, request: Request) -> JsonObject:
        return await self._reply(request.provider, method="POST", **self._call(request, streamed=False))

    async def _reply(self, provider: str, **call: Any) -> JsonObject:
        httpx = _httpx()
        try:
            response = await self._connected().request(**call)
            self._check(provider, response.status_code, response.content, response.headers)
            reply: JsonObject = response.json()
            return reply
        except httpx.HTTPError as error:
            raise self._as_error(provider, error) from error
        except RecursionError as error:
            raise too_deep(provider) from error
        except ValueError as error:
            raise ProviderError(f"{provider} sent a reply that is not JSON", retryable=True) from error

    async def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        httpx = _httpx()
        try:
            async with self._connected().stream("POST", **self._call(request, True)) as response:
                if response.status_code >= 400:
                    body = await response.aread()
                    self._check(request.provider, response.status_code, body, response.headers)
                async for event in events(response.aiter_bytes(), request.provider):
                    yield event
        except httpx.HTTPError as error:
            raise self._as_error(request.provider, error) from error

    async def carry_out(self, call: CacheCall) -> JsonObject:
        """Make a call for an explicit Gemini cache, and return its reply."""
        http = wire_of(call.provider).call
        url, headers = http.url(self.base_url, f"/{call.path}"), http.sent_headers(self.api_key)
        return await self._reply(call.provider, method=call.method, url=url, json=call.body or None, headers=headers)

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            timeout = _httpx().Timeout(self.timeout_s, connect=min(10.0, self.timeout_s))
            # Load certificates only for https: loading takes longer than a whole request to a local server.
            secure = self.base_url.startswith("https")
            self._client = _httpx().AsyncClient(timeout=timeout, trust_env=self.proxies, verify=secure)
        return self._client

    def _call(self, request: Request, streamed: bool) -> dict[str, Any]:
        wire = wire_of(request.provider)
        call = wire.call
        if call.path is None:
            raise CallError(f"{wire.name} cannot be spoken over plain HTTP", hint=f"Install {call.sdk}.")
        body = {**providers.http_body(request), **(call.streaming if streamed else {})}
        return {
            "url": call.url(self.base_url, call.path(request, streamed)),
            "content": json.dumps(body, ensure_ascii=False).encode(),
            "headers": {"content-type": "application/json", **call.sent_headers(self.api_key), **request.headers},
        }

    def _check(self, provider: str, status: int, answer: bytes, headers: Any) -> None:
        if status >= 400:
            try:
                value = json.loads(answer)
            except ValueError:
                value = answer.decode(errors="replace")
            raise refusal(provider, status, value, dict(headers))

    def _as_error(self, provider: str, error: httpx.HTTPError) -> ProviderError:
        if isinstance(error, _httpx().TimeoutException):
            return timed_out(provider, self.timeout_s)
        return unreachable(provider, self.base_url, error)


def _httpx() -> Any:  # the module, loaded where it is used
    with needs_extra("httpx is not installed", "send"):
        import httpx
    return httpx


# Retries: on a fixed schedule or after the provider's retry-after, and never once a reply has begun.


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """At most `attempts`; waits of first_s, 2 × first_s, 4 × … up to most_s; a longer retry-after is an error."""

    attempts: int = 4
    first_s: float = 0.5
    most_s: float = 60.0

    def wait_s(self, attempt: int, asked_s: float | None) -> float:
        """How long to wait after the failed attempt number `attempt`: 1 -> 0.5, 2 -> 1.0, 3 -> 2.0."""
        return min(self.most_s, self.first_s * 2 ** (attempt - 1)) if asked_s is None else asked_s


class RetryingTransport:
    """A transport that retries until a reply begins."""

    def __init__(
        self,
        inner: Transport,
        retry: Retry | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.inner, self.retry, self._sleep, self._say = inner, retry or Retry(), sleep, say

    async def aclose(self) -> None:
        await close(self.inner)

    async def send(self, request: Request) -> JsonObject:
        attempt = 0
        while True:
            attempt += 1
            try:
                return await self.inner.send(request)
            except ProviderError as error:
                await self._wait(attempt, error)

    async def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        """The reply's events; an error after the first event is raised."""
        for attempt in count(1):
            # Every transport's stream is an async generator; closing it ends the connection.
            events = cast(AsyncGenerator[JsonObject, Any], self.inner.stream(request))
            async with aclosing(events):
                try:
                    first = await anext(events)
                except StopAsyncIteration:
                    return
                except ProviderError as error:
                    await self._wait(attempt, error)
                    continue
                yield first
                async for event in events:
                    yield event
                return

    async def _wait(self, attempt: int, error: ProviderError) -> None:
        """Wait before the next attempt, or raise the error."""
        asked_s = error.retry_after_s
        if not error.retryable or attempt >= self.retry.attempts or (asked_s or 0) > self.retry.most_s:
            raise error
        wait_s = self.retry.wait_s(attempt, asked_s)
        self._say(f"{error}; trying again in {wait_s:g} s")
        await self._sleep(wait_s)


# The windows of models on local servers.

# The paths that tell it: llama.cpp; vLLM and SGLang; Ollama; LM Studio; LM Studio before 0.4.
_WINDOW_PATHS = ("/props", "/v1/models", "/api/ps", "/api/v1/models", "/api/v0/models")


def server_window(base_url: str, model: str, api_key: str = "", timeout_s: float = 1.0) -> int:
    """The window in tokens of a model as a local server has loaded it; 0 where the server does not tell."""
    httpx = _httpx()
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        secure = base_url.startswith("https")  # as in `Http`: load certificates only for https
        with httpx.Client(timeout=timeout_s, trust_env=False, verify=secure, headers=headers) as client:
            for path in _WINDOW_PATHS:
                reply = client.get(base_url.rstrip("/").removesuffix("/v1") + path)
                if window := _window(reply.content, model):
                    return window
    except (httpx.HTTPError, httpx.InvalidURL, OSError):
        pass  # the following request will fail with a better error
    return 0


def _window(data: bytes, model: str) -> int:
    try:
        answer = as_object(msgspec.json.decode(data))
    except (msgspec.DecodeError, RecursionError):
        return 0
    listed = (*as_objects(answer.get("data")), *as_objects(answer.get("models")))
    sizes = [value_at(answer, "default_generation_settings", "n_ctx")]
    sizes += [size for described in listed for size in _sizes(described, model)]
    return next((size for size in sizes if size and isinstance(size, int)), 0)


def _sizes(described: JsonObject, model: str) -> list[Json]:
    """The possible windows in a server's description of a model (the loaded one first); none for another model."""
    instances = as_objects(described.get("loaded_instances"))
    if loaded := [instance for instance in instances if model in (instance.get("id"), described.get("key"))]:
        return [value_at(loaded[0], "config", "context_length")]
    if not any(described.get(name) in (model, f"{model}:latest") for name in ("id", "model")):
        return []
    return [described.get(name) for name in ("max_model_len", "context_length", "loaded_context_length")]
