"""Which transport a target is reached with: the official SDK where there is one, plain HTTP otherwise."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Literal, Protocol, cast

import msgspec

from quire.entry import sha256_hex
from quire.errors import CallError, ProviderError
from quire.log import now_ms
from quire.providers.gemini_cache import CacheCall, CacheKeeper, Served, lasting
from quire.providers.models import model_info, resolve, split_target
from quire.providers.prefix import line, prefix_bytes
from quire.providers.usage import usage
from quire.providers.wires import ModelCall, wire_of
from quire.send.transport import Endpoint, Http, Transport, close, endpoint_for
from quire.values import JsonObject, Request

# Gemini's explicit caches, carried out: a transport that keeps one for each conversation while it pays.
#
# The keeper decides, its calls are made here, and requests leave out what the cache holds. A turn never fails because of
# a cache: the request is then sent whole. Callers always see and record the whole request.

# No cache is kept longer than this without being asked for: what is older can be forgotten.
_LONGEST_MS = 3_600_000
# How long a program that ends waits for its caches to be deleted; they expire by themselves.
_FAREWELL_S = 10.0
_GONE = (403, 404)


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
        at = await self._prepared(request)
        behind = _behind(at, request)
        try:
            reply = await self.inner.send(behind)
        except ProviderError as error:
            if behind is request or error.status not in _GONE:
                raise
            at.keeper.forget()
            behind = request
            reply = await self.inner.send(request)
        _answered(at, reply)
        at.answered = request, at.keeper.served(behind.body)
        return reply

    async def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        at = await self._prepared(request)
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
                if sent is request or began or error.status not in _GONE:
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
            _answered(at, latest)

    async def _prepared(self, request: Request) -> CachedConversation:
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


def _answered(at: CachedConversation, reply: JsonObject) -> None:
    if reply.get("usageMetadata"):
        at.keeper.answered(usage("gemini", reply))


def _content_hashes(body: JsonObject) -> list[str]:
    return [sha256_hex(line(content)) for content in body.get("contents") or ()]


# Trying again: a fixed schedule, the provider's own retry-after, and never once a reply has begun.


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """`attempts` in all; waits of first_s, 2 × first_s, 4 × … up to most_s; a longer retry-after is an error."""

    attempts: int = 4
    first_s: float = 0.5
    most_s: float = 60.0

    def wait_s(self, attempt: int, asked_s: float | None) -> float:
        """How long to wait behind failed attempt number `attempt`: 1 -> 0.5, 2 -> 1.0, 3 -> 2.0."""
        return min(self.most_s, self.first_s * 2 ** (attempt - 1)) if asked_s is None else asked_s


class RetryingTransport:
    """A transport that tries again while nothing of the reply has come."""

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
        """The reply's events; an error behind the first one is the caller's."""
        attempt = 0
        while True:
            attempt += 1
            # Every transport's stream is an async generator, whose closing ends the connection.
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
        """Wait before the next attempt, or give up with the error at hand."""
        asked_s = error.retry_after_s
        if not error.retryable or attempt >= self.retry.attempts or (asked_s or 0) > self.retry.most_s:
            raise error
        wait_s = self.retry.wait_s(attempt, asked_s)
        self._say(f"{error}; trying again in {wait_s:g} s")
        await self._sleep(wait_s)


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
        from quire.send.sdk import sdk_transport

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
