"""OpenAI's SDK: Chat Completions and Responses."""

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
    import httpx2
    import openai
except ImportError as error:
    raise MissingPart("the openai SDK is not installed", hint="pip install 'quire[openai]'") from error


def connect(wire: str, base_url: str, api_key: str, timeout_s: float) -> Transport:
    """A transport over AsyncOpenAI."""
    return OpenAI(wire, base_url, api_key, timeout_s)


class OpenAI:
    """The wire format chooses the endpoint; retries are not the SDK's."""

    def __init__(self, wire: str, base_url: str, api_key: str, timeout_s: float) -> None:
        self.wire, self.base_url, self.api_key, self.timeout_s = wire, base_url, api_key, timeout_s
        self._client: openai.AsyncOpenAI | None = None

    async def aclose(self) -> None:
        """End the connections; the next request makes new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def send(self, request: Request) -> JsonObject:
        """The whole reply."""
        try:
            reply: JsonObject = plain(await self._create()(**sdk_kwargs(request)))
            return reply
        except (openai.OpenAIError, httpx2.HTTPError) as error:
            raise self._failed(request, error) from error

    async def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        """The reply's events."""
        extra: JsonObject = {"stream": True}
        if self.wire == "openai-chat":
            extra["stream_options"] = {"include_usage": True}
        try:
            async with await self._create()(**sdk_kwargs(request), **extra) as events:
                async for event in events:
                    yield plain(event)
        except (openai.OpenAIError, httpx2.HTTPError) as error:
            raise self._failed(request, error) from error

    def _create(self) -> Any:  # the SDK's call for this wire format, which takes the body as it is
        if self._client is None:
            self._client = openai.AsyncOpenAI(
                api_key=self.api_key or "none", base_url=self.base_url, timeout=self.timeout_s, max_retries=0
            )
        client = self._client
        return client.chat.completions.create if self.wire == "openai-chat" else client.responses.create

    def _failed(self, request: Request, error: Exception) -> ProviderError:
        if isinstance(error, openai.APIStatusError):
            return refusal(
                request.provider,
                error.status_code,
                error.body or error.message,
                error.response.headers,
                ENDPOINTS["openai"],
            )
        if isinstance(error, openai.APITimeoutError | httpx2.TimeoutException):
            return timed_out(request.provider, self.timeout_s)
        return unreachable(request.provider, self.base_url, error)
