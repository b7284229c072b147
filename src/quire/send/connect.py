"""Which transport a target is reached with: the official SDK where there is one, plain HTTP otherwise.

An SDK is loaded when a transport over it is made. Which method is called with which arguments, the wire says (`ModelCall`);
here is how each SDK is made a client of, waited for, and what its failures mean. Retries are never the SDK's.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import operator
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Literal, Protocol, cast

import msgspec

from quire.errors import CallError, ProviderError, needs_extra
from quire.log import now_ms
from quire.providers import sdk_kwargs
from quire.providers.gemini_cache import CacheCall, CacheKeeper, Served, lasting
from quire.providers.incoming import error_in_reply, plain
from quire.providers.models import model_info, resolve, split_target
from quire.providers.prefix import line, prefix_bytes
from quire.providers.usage import usage
from quire.providers.wires import ModelCall, wire_of
from quire.send.transport import (
    Endpoint,
    Http,
    Retry,
    RetryingTransport,
    Transport,
    close,
    endpoint_for,
    refusal,
    timed_out,
    too_deep,
    unreachable,
    without_password,
)
from quire.send.transport import events as sse
from quire.values import JsonObject, Request, sha256_hex

# Transports over the official SDKs.


def sdk_transport(call: ModelCall, base_url: str, api_key: str, timeout_s: float) -> Transport:
    """A transport over the SDK that a format's call names."""
    transport, extra = _SDKS[call.sdk]
    with needs_extra(f"the {call.sdk.replace('google.genai', 'google-genai')} SDK is not installed", extra):
        return transport(call, base_url, api_key, timeout_s)


def sdk_refusal(provider: str, why: str) -> ProviderError:
    """The error of a request that the SDK itself refuses: it takes no option but its own."""
    hint = "Leave the option out, or send it past the SDK: transport_for(…, via='http')."
    return ProviderError(f"{provider}'s SDK does not take the request: {why}", hint=hint)


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
            raise self._as_error(provider, error) from error
        except TypeError as error:
            if "unexpected keyword argument" not in str(error):
                raise
            raise sdk_refusal(provider, str(error)) from error
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

    def _as_error(self, provider: str, error: Exception) -> ProviderError:
        raise NotImplementedError


class GeneratedSdk(SdkTransport):
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

    def _as_error(self, provider: str, error: Any) -> ProviderError:
        status = getattr(error, "status_code", 0)
        if status >= 400:
            return refusal(provider, status, error.body or error.message, error.response.headers)
        if isinstance(error, (self._sdk.APITimeoutError, self._http.TimeoutException)):
            return timed_out(provider, self.timeout_s)
        body = getattr(error, "body", None)
        if isinstance(body, dict):
            # An error in the middle of a stream that began well.
            return error_in_reply(body.get("error") or body)
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
            self._misfit = importlib.import_module("pydantic").ValidationError
        self.errors = (self._api_error, self._misfit, self._http.HTTPError, OSError)

    async def carry_out(self, call: CacheCall) -> JsonObject:
        """A call for an explicit cache; its reply."""
        with self._in_our_words(call.provider):
            caches, body = self._connected().aio.caches, call.body
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

    def _as_error(self, provider: str, error: Any) -> ProviderError:
        if isinstance(error, self._api_error):
            headers = getattr(error.response, "headers", None) or {}
            return refusal(provider, error.code, error.message or str(error), dict(headers))
        if isinstance(error, self._misfit):
            return sdk_refusal(
                provider, "; ".join(f"{'.'.join(map(str, flaw['loc']))}: {flaw['msg']}" for flaw in error.errors()[:3])
            )
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

    def _as_error(self, provider: str, error: Any) -> ProviderError:
        failures = self._failures
        if isinstance(error, failures.ClientError):
            problem, about = error.response.get("Error") or {}, error.response.get("ResponseMetadata") or {}
            status = about.get("HTTPStatusCode") or _STATUS.get(str(problem.get("Code")), 500)
            message = {"message": problem.get("Message") or str(error)}
            return refusal(provider, status, message, about.get("HTTPHeaders") or {})
        if isinstance(error, (failures.NoCredentialsError, failures.NoRegionError)):
            hint = "Set AWS credentials and AWS_DEFAULT_REGION, or a profile, as boto3 reads them."
            return ProviderError(f"bedrock: {error}", hint=hint)
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
    "openai": (GeneratedSdk, "openai"),
    "anthropic": (GeneratedSdk, "anthropic"),
    "google.genai": (Gemini, "gemini"),
    "boto3": (Bedrock, "bedrock"),
}


# Gemini's explicit caches, carried out: a transport that keeps one for each conversation while it pays.
#
# The keeper decides, its calls are made here, and requests leave out what the cache holds. A turn never fails because of
# a cache: the request is then sent whole. Callers always see and record the whole request.

# No cache is kept longer than this without being asked for: what is older can be forgotten.
_LONGEST_MS = 3_600_000
# How long a program that ends waits for its caches to be deleted; they expire by themselves.
_FAREWELL_S = 10.0
_GONE_STATUSES = (403, 404)


class CacheCalls(Protocol):
    """Where explicit caches are made, prolonged and deleted."""

    async def carry_out(self, call: CacheCall) -> JsonObject:
        """Make one call; its reply, or a ProviderError."""


class CachedConversation:
    """A keeper, and how the conversation that it keeps a cache for is recognised."""

    def __init__(self, request: Request) -> None:
        self.model, self.keeper = request.model, CacheKeeper(model_info(request.target))
        self.tool_config: Any = request.body.get("toolConfig")
        self.prefix, self.hashes = b"", frozenset[str]()
        self.asked_ms = 0
        self.busy = self.refused = False
        # The latest request that was answered, and what a cache did for it.
        self.answered: tuple[Request, Served | None] | None = None

    def goes_on(self, request: Request) -> bool:
        """Whether a request extends the latest one, or says most of it again behind another beginning (a rebase)."""
        # The prefix does not hold the tool configuration, but a cache does.
        if (self.model, self.tool_config) != (request.model, request.body.get("toolConfig")):
            return False
        if request.prefix.startswith(self.prefix):
            return True
        contents = _content_hashes(request.body)[1:]
        return 2 * sum(content in self.hashes for content in contents) >= max(1, len(contents))

    def ask(self, request: Request, at_ms: int) -> list[CacheCall]:
        """Take the next request; the calls to make before it."""
        self.prefix = prefix_bytes(lasting(request.body), "gemini")
        self.hashes, self.asked_ms = frozenset(_content_hashes(request.body)), at_ms
        return [] if self.busy or self.refused else self.keeper.due(request.body, at_ms)


class CachedTransport:
    """A transport around another that speaks to Gemini; `caches` makes the calls, `clock` says the time in ms."""

    def __init__(self, inner: Transport, caches: CacheCalls, clock: Callable[[], int] | None = None) -> None:
        self.inner, self._caches, self._clock = inner, caches, clock or now_ms
        self.conversations: list[CachedConversation] = []

    async def aclose(self) -> None:
        """Delete the caches that are still held, as far as that works, and end the connections."""
        try:
            async with asyncio.timeout(_FAREWELL_S):
                for conversation in self.conversations:
                    if conversation.keeper.cache is not None:
                        await self._carry_out(conversation, CacheCall("DELETE", conversation.keeper.cache.name))
        except TimeoutError:
            pass
        finally:
            await close(self.inner)

    def served(self, request: Request) -> Served | None:
        """What an explicit cache did for a request that was answered; None where there was none."""
        answers = [conversation.answered for conversation in self.conversations if conversation.answered is not None]
        return next((served for sent, served in answers if sent is request), None)

    async def send(self, request: Request) -> JsonObject:
        at = await self._prepare(request)
        sent = _behind(at, request)
        try:
            reply = await self.inner.send(sent)
        except ProviderError as error:
            if sent is request or error.status not in _GONE_STATUSES:
                raise
            at.keeper.forget()
            reply = await self.inner.send(sent := request)
        _take_answer(at, reply)
        at.answered = request, at.keeper.served(sent.body)
        return reply

    async def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        at = await self._prepare(request)
        began = False
        for sent in (_behind(at, request), request):
            try:
                async with aclosing(self._reply_events(at, sent)) as events:
                    async for event in events:
                        began = True
                        yield event
                at.answered = request, at.keeper.served(sent.body)
                return
            except ProviderError as error:
                if sent is request or began or error.status not in _GONE_STATUSES:
                    raise
                at.keeper.forget()

    async def _reply_events(self, at: CachedConversation, request: Request) -> AsyncGenerator[JsonObject]:
        """A reply's events; what it used is known even where its reader leaves early."""
        latest: JsonObject = {}
        try:
            async with aclosing(cast(AsyncGenerator[JsonObject, Any], self.inner.stream(request))) as events:
                async for event in events:
                    latest = event if event.get("usageMetadata") else latest
                    yield event
        finally:
            _take_answer(at, latest)

    async def _prepare(self, request: Request) -> CachedConversation:
        """The conversation of a request, once the calls that are due before it were made."""
        at_ms = self._clock()
        at = self._conversation(request, at_ms)
        if calls := at.ask(request, at_ms):
            at.busy = True  # another request of the conversation must not make the same calls meanwhile
            try:
                for call in calls:
                    await self._carry_out(at, call)
            finally:
                at.busy = False
        return at

    def _conversation(self, request: Request, at_ms: int) -> CachedConversation:
        """The one that this request continues most closely, or a new one."""
        recent = [conversation for conversation in self.conversations if at_ms - conversation.asked_ms <= _LONGEST_MS]
        continued = [conversation for conversation in recent if conversation.goes_on(request)]
        if not continued:
            recent.append(CachedConversation(request))
        self.conversations = recent
        return max(continued, key=lambda conversation: len(conversation.prefix), default=recent[-1])

    async def _carry_out(self, at: CachedConversation, call: CacheCall) -> None:
        """One call; one that fails leaves the conversation without a cache."""
        reply: JsonObject | None = None
        try:
            reply = await self._caches.carry_out(call)
        except ProviderError as error:
            # A cache that this server refuses now it would refuse the next time too.
            at.refused = at.refused or (call.method == "POST" and not error.retryable)
        at.keeper.done(call, reply, self._clock())


def _behind(at: CachedConversation, request: Request) -> Request:
    body = at.keeper.behind(request.body)
    return request if body is request.body else msgspec.structs.replace(request, body=body)


def _take_answer(at: CachedConversation, reply: JsonObject) -> None:
    if reply.get("usageMetadata"):
        at.keeper.answered(usage("gemini", reply))


def _content_hashes(body: JsonObject) -> list[str]:
    return [sha256_hex(line(content)) for content in body.get("contents") or ()]


Via = Literal["", "sdk", "http"]


def transport_for(
    target: str,
    base_url: str | None = None,
    api_key: str | None = None,
    timeout_s: float = 600.0,
    retry: Retry | None = None,
    via: Via = "",
    proxies: bool = False,
    explicit_cache: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> RetryingTransport | CachedTransport:
    """A transport for "provider:model"; `via` insists on the SDK or on plain HTTP, `proxies` uses the environment's.

    `explicit_cache` makes Gemini caches where they pay; their storage is paid for by the hour. `say` hears why and
    how long is waited before a request is sent again.
    """
    name, _ = split_target(target)
    endpoint, call = endpoint_for(name), wire_of(name).call
    url = base_url or endpoint.base_url
    _check(name, call, url, endpoint, base_url, api_key)
    if explicit_cache:
        check_explicit_cache(target)
    inner: Any  # every transport that makes caches is a CacheCalls too
    if _by_sdk(name, call, endpoint, via):
        inner = sdk_transport(call, url, api_key or "", timeout_s)
    else:
        inner = Http(url, api_key or "", timeout_s, proxies)
    again = RetryingTransport(inner, retry, say=say)
    return CachedTransport(again, inner) if explicit_cache else again


def has_explicit_cache(target: str) -> bool:
    """Whether a model's provider keeps caches that are made by a call and paid for by the hour."""
    return wire_of(target).call.makes_caches and model_info(target).features.explicit_cache


def check_explicit_cache(target: str) -> None:
    """An error for a model without explicit caches."""
    if not has_explicit_cache(target):
        raise CallError(
            f"{target} has no explicit caches",
            hint="Leave --explicit-cache (explicit_cache=True) out: models of Gemini have them.",
        )


def _check(name: str, call: ModelCall, url: str, endpoint: Endpoint, base_url: str | None, api_key: str | None) -> None:
    # A server that was named may be one's own and ask for no key; the provider's own always asks.
    if endpoint.needs_key and not api_key and not base_url:
        keys = " or ".join(endpoint.keys)
        raise ProviderError(f"no API key for {name}", hint=f"Set {keys}, or give --base-url for a server of your own.")
    if not url and call.path is not None:
        raise CallError(f"{name} has no fixed address", hint="Give base_url (--base-url).")
    if url and not url.lower().startswith(("http://", "https://")):
        raise CallError(f"{without_password(url)!r} is no base URL", hint="Write http://127.0.0.1:8000 or https://….")


def _by_sdk(name: str, call: ModelCall, endpoint: Endpoint, via: Via) -> bool:
    """Whether the official SDK is used: where one reaches this provider in this format, and is here or asked for."""
    if via == "sdk" and not endpoint.sdk:
        provider = resolve(name)[0]
        raise CallError(f"there is no SDK transport for {provider}", hint="Leave `via` out: plain HTTP works.")
    if via == "http" or endpoint.sdk != call.sdk:
        return False
    if via == "sdk" or call.path is None:
        return True
    try:
        return importlib.util.find_spec(call.sdk) is not None
    except ModuleNotFoundError:  # google.genai without google
        return False
