"""Transports over the official SDKs; an SDK is loaded when a transport over it is made.

Which method is called with which arguments, the wire says (`ModelCall`); here is how each SDK is made a client of,
waited for, and what its failures mean. Retries are never the SDK's.
"""

from __future__ import annotations

import asyncio
import importlib
import operator
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from quire.errors import ProviderError, needed
from quire.providers import sdk_kwargs
from quire.providers.gemini_cache import CacheCall
from quire.providers.incoming import plain, refused
from quire.providers.wires import ModelCall
from quire.send.transport import Transport, refusal, timed_out, too_deep, unreachable
from quire.send.transport import events as sse
from quire.values import JsonObject, Request


def sdk_transport(call: ModelCall, base_url: str, api_key: str, timeout_s: float) -> Transport:
    """A transport over the SDK that a format's call names."""
    transport, extra = _SDKS[call.sdk]
    with needed(f"the {call.sdk.replace('google.genai', 'google-genai')} SDK is not installed", extra):
        return transport(call, base_url, api_key, timeout_s)


class SdkTransport:
    """What all of them do: keep one client, call its method, and tell failures in Quire's words."""

    # Everything the SDK raises.
    errors: tuple[type[Exception], ...]

    def __init__(self, call: ModelCall, base_url: str, api_key: str, timeout_s: float) -> None:
        self.call, self.base_url, self.api_key, self.timeout_s = call, base_url, api_key, timeout_s
        self._client: Any = None  # the SDK's own

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await self._close(client)

    async def send(self, request: Request) -> JsonObject:
        with self._in_our_words(request.provider):
            reply: JsonObject = plain(await self._reply(request))
        return reply

    async def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        with self._in_our_words(request.provider):
            async with aclosing(self._events(request)) as events:
                async for event in events:
                    yield plain(event)

    @contextmanager
    def _in_our_words(self, provider: str) -> Iterator[None]:
        try:
            yield
        except self.errors as error:
            raise self._failed(provider, error) from error
        except RecursionError as error:
            raise too_deep(provider) from error

    def _method(self, streamed: bool) -> Any:
        name = self.call.stream_method if streamed and self.call.stream_method else self.call.method
        return operator.attrgetter(name)(self._connected())

    def _connected(self) -> Any:
        if self._client is None:
            self._client = self._connect()
        return self._client

    def _connect(self) -> Any:
        raise NotImplementedError

    async def _close(self, client: Any) -> None:
        await client.close()

    async def _reply(self, request: Request) -> Any:
        return await self._method(False)(**sdk_kwargs(request))

    def _events(self, request: Request) -> AsyncGenerator[Any]:
        raise NotImplementedError

    def _failed(self, provider: str, error: Exception) -> ProviderError:
        raise NotImplementedError


class Generated(SdkTransport):
    """The SDKs of OpenAI and Anthropic: one tool generates both, so their clients and errors are alike."""

    def __init__(self, call: ModelCall, base_url: str, api_key: str, timeout_s: float) -> None:
        super().__init__(call, base_url, api_key, timeout_s)
        self._sdk, self._http = importlib.import_module(call.sdk), importlib.import_module("httpx2")
        self.errors = (getattr(self._sdk, _FAILURES[call.sdk]), self._http.HTTPError)

    def _connect(self) -> Any:
        client = getattr(self._sdk, _CLIENTS[self.call.sdk])
        return client(api_key=self.api_key or "none", base_url=self.base_url, timeout=self.timeout_s, max_retries=0)

    async def _events(self, request: Request) -> AsyncGenerator[Any]:
        async with await self._method(True)(**sdk_kwargs(request), **self.call.streaming) as events:
            kind = events.response.headers.get("content-type", "")
            # Of what does not call itself a stream the SDK would only say that it ended.
            body = events if "event-stream" in kind else sse(events.response.aiter_bytes(), request.provider)
            async for event in body:
                yield event

    def _failed(self, provider: str, error: Any) -> ProviderError:
        status = getattr(error, "status_code", 0)
        if status >= 400:
            return refusal(provider, status, error.body or error.message, error.response.headers)
        if isinstance(error, (self._sdk.APITimeoutError, self._http.TimeoutException)):
            return timed_out(provider, self.timeout_s)
        body = getattr(error, "body", None)
        if isinstance(body, dict):
            # An error in the middle of a stream that began well.
            return refused(body.get("error") or body)
        return unreachable(provider, self.base_url, error)


_CLIENTS = {"openai": "AsyncOpenAI", "anthropic": "AsyncAnthropic"}
_FAILURES = {"openai": "OpenAIError", "anthropic": "AnthropicError"}


class Gemini(SdkTransport):
    """Google's SDK, and the calls for its explicit caches."""

    def __init__(self, call: ModelCall, base_url: str, api_key: str, timeout_s: float) -> None:
        super().__init__(call, base_url, api_key, timeout_s)
        self._http = importlib.import_module("httpx2")
        with warnings.catch_warnings():
            # A docstring of the SDK holds an escape that newer Pythons warn of when they compile it.
            warnings.simplefilter("ignore")
            self._genai = importlib.import_module("google.genai")
            self._api_error = importlib.import_module("google.genai.errors").APIError
        self.errors = (self._api_error, self._http.HTTPError, OSError)

    async def carry_out(self, call: CacheCall) -> JsonObject:
        """A call for an explicit cache; its reply."""
        with self._in_our_words(call.provider):
            caches, body = self._connected().aio.caches, call.body or {}
            match call.method:
                case "POST":
                    reply = await caches.create(**_cache_kwargs(body))
                case "PATCH":
                    reply = await caches.update(name=call.path, config={"ttl": body["ttl"]})
                case "DELETE":
                    reply = await caches.delete(name=call.path)
            answer: JsonObject = plain(reply)
        return answer

    def _connect(self) -> Any:
        # Its own choice of HTTP library depends on what else is installed.
        self._own_http = self._http.AsyncClient(timeout=self._http.Timeout(self.timeout_s, connect=10.0))
        options = self._genai.types.HttpOptions(
            base_url=self.base_url, timeout=int(self.timeout_s * 1000), httpx_async_client=self._own_http
        )
        return self._genai.Client(api_key=self.api_key or "none", vertexai=False, http_options=options)

    async def _close(self, client: Any) -> None:
        await self._own_http.aclose()
        client.close()

    async def _events(self, request: Request) -> AsyncGenerator[Any]:
        async for chunk in await self._method(True)(**sdk_kwargs(request)):
            yield chunk

    def _failed(self, provider: str, error: Any) -> ProviderError:
        if isinstance(error, self._api_error):
            headers = getattr(error.response, "headers", None) or {}
            return refusal(provider, error.code, error.message or str(error), dict(headers))
        if isinstance(error, (self._http.TimeoutException, TimeoutError)):
            return timed_out(provider, self.timeout_s)
        return unreachable(provider, self.base_url, error)


def _cache_kwargs(body: JsonObject) -> dict[str, Any]:
    """The arguments of caches.create: what a request would hold is part of the configuration."""
    fields = {"contents": [], **{key: value for key, value in body.items() if key != "model"}}
    kwargs = sdk_kwargs(Request("gemini", body["model"], fields))
    contents = {"contents": kwargs["contents"]} if kwargs["contents"] else {}
    return {"model": kwargs["model"], "config": {**kwargs["config"], **contents}}


_END = object()


class Bedrock(SdkTransport):
    """boto3, in threads, since it knows no event loop; it finds credentials and region by its own rules."""

    def __init__(self, call: ModelCall, base_url: str, api_key: str, timeout_s: float) -> None:
        super().__init__(call, base_url, api_key, timeout_s)
        self._boto3, self._failures = (importlib.import_module("boto3"), importlib.import_module("botocore.exceptions"))
        broken = importlib.import_module("urllib3.exceptions").HTTPError
        self.errors = (self._failures.BotoCoreError, self._failures.ClientError, broken)

    def _connect(self) -> Any:
        config = importlib.import_module("botocore.config").Config(
            read_timeout=self.timeout_s, connect_timeout=min(10.0, self.timeout_s), retries={"total_max_attempts": 1}
        )
        address = {"endpoint_url": self.base_url} if self.base_url else {}
        return self._boto3.client("bedrock-runtime", config=config, **address)

    async def _close(self, client: Any) -> None:
        client.close()

    async def _reply(self, request: Request) -> Any:
        reply = await asyncio.to_thread(lambda: self._method(False)(**sdk_kwargs(request)))
        return {key: value for key, value in reply.items() if key != "ResponseMetadata"}

    async def _events(self, request: Request) -> AsyncGenerator[Any]:
        opened = await asyncio.to_thread(lambda: self._method(True)(**sdk_kwargs(request)))
        events = opened["stream"]
        try:
            reader = iter(events)
            while (event := await asyncio.to_thread(next, reader, _END)) is not _END:
                yield event
        finally:
            # Also ends a thread that still waits for the next event.
            events.close()

    def _failed(self, provider: str, error: Any) -> ProviderError:
        failures = self._failures
        if isinstance(error, failures.ClientError):
            problem, about = error.response.get("Error") or {}, error.response.get("ResponseMetadata") or {}
            status = about.get("HTTPStatusCode") or _STATUS.get(str(problem.get("Code")), 500)
            message = {"message": problem.get("Message") or str(error)}
            return refusal(provider, status, message, about.get("HTTPHeaders") or {})
        if isinstance(error, (failures.NoCredentialsError, failures.NoRegionError)):
            return ProviderError(f"bedrock: {error}", hint="Set AWS credentials and AWS_REGION as boto3 expects them.")
        if isinstance(error, (failures.ReadTimeoutError, failures.ConnectTimeoutError)):
            return timed_out(provider, self.timeout_s)
        return unreachable(provider, self.base_url, error)


# What an event in the middle of a stream is called where it has no HTTP status.
_STATUS = {
    "throttlingException": 429,
    "validationException": 400,
    "modelTimeoutException": 408,
    "internalServerException": 500,
    "modelStreamErrorException": 424,
    "serviceUnavailableException": 503,
}

# package -> the transport over it, and the extra that installs it
_SDKS: dict[str, tuple[type[SdkTransport], str]] = {
    "openai": (Generated, "openai"),
    "anthropic": (Generated, "anthropic"),
    "google.genai": (Gemini, "gemini"),
    "boto3": (Bedrock, "bedrock"),
}
