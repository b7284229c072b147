"""Trying again: a fixed schedule, the provider's own retry-after, and never once a reply has begun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

import msgspec

from quire.errors import ProviderError
from quire.send.transport import Transport, close
from quire.values import JsonObject, Request


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """`attempts` in all; waits of first_s, 2 × first_s, 4 × … up to most_s; a longer retry-after is an error."""

    attempts: int = 4
    first_s: float = 0.5
    most_s: float = 60.0

    def wait_s(self, attempt: int, asked_s: float | None) -> float:
        """How long to wait behind failed attempt number `attempt`: 1 -> 0.5, 2 -> 1.0, 3 -> 2.0."""
        return min(self.most_s, self.first_s * 2 ** (attempt - 1)) if asked_s is None else asked_s


class Retrying:
    """A transport that tries again while nothing of the reply has come."""

    def __init__(
        self,
        inner: Transport,
        retry: Retry | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.inner, self.retry, self._sleep = inner, retry or Retry(), sleep

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
        await self._sleep(self.retry.wait_s(attempt, asked))
