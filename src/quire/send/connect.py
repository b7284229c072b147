"""Which transport a target is reached with: the official SDK where there is one, plain HTTP otherwise."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Literal, cast

import msgspec

from quire.errors import CallError, ProviderError
from quire.providers.models import model_info, resolve, split_target
from quire.providers.wires import ModelCall, wire_of
from quire.send.cached_transport import CachedTransport
from quire.send.http import Http
from quire.send.transport import Endpoint, Transport, close, endpoint_for
from quire.values import JsonObject, Request

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
        """End the connections."""
        await close(self.inner)

    async def send(self, request: Request) -> JsonObject:
        """The whole reply."""
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
        asked = error.retry_after_s
        if not error.retryable or attempt >= self.retry.attempts or (asked or 0) > self.retry.most_s:
            raise error
        wait_s = self.retry.wait_s(attempt, asked)
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
    inner: Any  # one of the transports; those that make caches are asked for them too
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


def _check(
    name: str, call: ModelCall, url: str, endpoint: Endpoint, base_url: str | None, api_key: str | None
) -> None:
    # A server that was named may be one's own and ask for no key; the provider's own always asks.
    if endpoint.needs_key and not api_key and not base_url:
        keys = " or ".join(endpoint.keys)
        raise ProviderError(
            f"no API key for {name}", hint=f"Set {keys}, or give --base-url for a server of your own."
        )
    if not url and call.path is not None:
        raise CallError(f"{name} has no fixed address", hint="Give base_url (--base-url).")


def _by_sdk(name: str, call: ModelCall, endpoint: Endpoint, via: Via) -> bool:
    """Whether the official SDK is used: where one reaches this provider in this format, and is here or asked for."""
    if via == "sdk" and not endpoint.sdk:
        provider = resolve(name)[0]
        raise CallError(
            f"there is no SDK transport for {provider}", hint="Leave `via` out: plain HTTP works."
        )
    if via == "http" or endpoint.sdk != call.sdk:
        return False
    if via == "sdk" or call.path is None:
        return True
    try:
        return importlib.util.find_spec(call.sdk) is not None
    except ModuleNotFoundError:  # google.genai without google
        return False
