"""What the SDKs of OpenAI and Anthropic share: one tool generates both, so their clients and errors are alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import httpx2

from quire.errors import ProviderError
from quire.providers import sdk_kwargs
from quire.providers.incoming import plain
from quire.send.transport import Endpoint, refusal, timed_out, unreachable
from quire.values import JsonObject, Request


class Sdk(NamedTuple):
    """In what such SDKs differ. Their types are known to their own modules; here they are values."""

    client: Callable[..., Any]
    # The method of a client that takes a request's body, and what it needs besides in order to stream.
    call: Callable[[Any], Any]
    streaming: JsonObject
    # Everything it raises; of that, an answer that refuses, and none within the time.
    failure: type[Exception]
    refusal: type[Any]
    timeout: type[Exception]
    endpoint: Endpoint


class Generated:
    """A transport over such an SDK; retries are not the SDK's."""

    def __init__(self, sdk: Sdk, base_url: str, api_key: str, timeout_s: float) -> None:
        self.sdk, self.base_url, self.api_key, self.timeout_s = sdk, base_url, api_key, timeout_s
        self._client: Any = None  # the SDK's own
        self._errors = (sdk.failure, httpx2.HTTPError)

    async def aclose(self) -> None:
        """End the connections; the next request makes new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def send(self, request: Request) -> JsonObject:
        """The whole reply."""
        try:
            reply: JsonObject = plain(await self._call()(**sdk_kwargs(request)))
            return reply
        except self._errors as error:
            raise self._failed(request, error) from error

    async def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        """The reply's events."""
        try:
            async with await self._call()(**sdk_kwargs(request), **self.sdk.streaming) as events:
                async for event in events:
                    yield plain(event)
        except self._errors as error:
            raise self._failed(request, error) from error

    def _call(self) -> Any:
        if self._client is None:
            self._client = self.sdk.client(
                api_key=self.api_key or "none", base_url=self.base_url, timeout=self.timeout_s, max_retries=0
            )
        return self.sdk.call(self._client)

    def _failed(self, request: Request, error: Exception) -> ProviderError:
        if isinstance(error, self.sdk.refusal):
            said, headers = error.body or error.message, error.response.headers
            return refusal(request.provider, error.status_code, said, headers, self.sdk.endpoint)
        if isinstance(error, (self.sdk.timeout, httpx2.TimeoutException)):
            return timed_out(request.provider, self.timeout_s)
        return unreachable(request.provider, self.base_url, error)
