"""Anthropic's SDK: Messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from quire.errors import MissingPart, ProviderError
from quire.providers import sdk_kwargs
from quire.providers.incoming import plain
from quire.send.endpoints import ENDPOINTS
from quire.send.refusals import refusal, timed_out, unreachable
from quire.send.transport import Transport
from quire.values import JsonObject, Request

try:
    import anthropic
    import httpx2
except ImportError as error:
    raise MissingPart("the anthropic SDK is not installed", hint="pip install 'quire[anthropic]'") from error


def connect(wire: str, base_url: str, api_key: str, timeout_s: float) -> Transport:
    """A transport over AsyncAnthropic."""
    return Anthropic(base_url, api_key, timeout_s)


class Anthropic:
    """Messages; retries are not the SDK's."""

    def __init__(self, base_url: str, api_key: str, timeout_s: float) -> None:
        self.base_url, self.api_key, self.timeout_s = base_url, api_key, timeout_s
        self._client: anthropic.AsyncAnthropic | None = None

    async def aclose(self) -> None:
        """End the connections; the next request makes new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def send(self, request: Request) -> JsonObject:
        """The whole message."""
        try:
            reply: JsonObject = plain(await self._create()(**sdk_kwargs(request)))
            return reply
        except (anthropic.AnthropicError, httpx2.HTTPError) as error:
            raise self._failed(request, error) from error

    async def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        """The message's events."""
        try:
            async with await self._create()(**sdk_kwargs(request), stream=True) as events:
                async for event in events:
                    yield plain(event)
        except (anthropic.AnthropicError, httpx2.HTTPError) as error:
            raise self._failed(request, error) from error

    def _create(self) -> Any:  # the SDK's call, which takes the body as it is
        if self._client is None:
            self._client = anthropic.AsyncAnthropic(
                api_key=self.api_key or "none", base_url=self.base_url, timeout=self.timeout_s, max_retries=0
            )
        return self._client.messages.create

    def _failed(self, request: Request, error: Exception) -> ProviderError:
        if isinstance(error, anthropic.APIStatusError):
            return refusal(
                request.provider,
                error.status_code,
                error.body or error.message,
                error.response.headers,
                ENDPOINTS["anthropic"],
            )
        if isinstance(error, anthropic.APITimeoutError | httpx2.TimeoutException):
            return timed_out(request.provider, self.timeout_s)
        return unreachable(request.provider, self.base_url, error)
