"""Google's SDK: generateContent."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator
from typing import Any

from quire.errors import MissingPart, ProviderError
from quire.providers import sdk_kwargs
from quire.providers.gemini_cache import CacheCall
from quire.providers.incoming import plain
from quire.send.transport import ENDPOINTS, Transport, refusal, timed_out, unreachable
from quire.values import JsonObject, Request

try:
    import httpx2

    with warnings.catch_warnings():
        # A docstring of the SDK holds an escape that newer Pythons warn of when they compile it.
        warnings.simplefilter("ignore")
        from google import genai
        from google.genai import errors, types
except ImportError as error:
    raise MissingPart("the google-genai SDK is not installed", hint="pip install 'quire[gemini]'") from error


def connect(wire: str, base_url: str, api_key: str, timeout_s: float) -> Transport:
    """A transport over genai.Client(...).aio."""
    return Gemini(base_url, api_key, timeout_s)


class Gemini:
    """generateContent; retries are not the SDK's."""

    def __init__(self, base_url: str, api_key: str, timeout_s: float) -> None:
        self.base_url, self.api_key, self.timeout_s = base_url, api_key, timeout_s
        self._client: genai.Client | None = None
        self._http: httpx2.AsyncClient | None = None

    async def aclose(self) -> None:
        """End the connections; the next request makes new ones."""
        client, self._client = self._client, None
        if client is not None and self._http is not None:
            await self._http.aclose()
            client.close()

    async def send(self, request: Request) -> JsonObject:
        """The whole reply."""
        try:
            models = self._connected().aio.models
            reply: JsonObject = plain(await models.generate_content(**sdk_kwargs(request)))
            return reply
        except (errors.APIError, httpx2.HTTPError, OSError) as error:
            raise self._failed(request.provider, error) from error

    async def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        """The reply's chunks."""
        try:
            models = self._connected().aio.models
            async for chunk in await models.generate_content_stream(**sdk_kwargs(request)):
                yield plain(chunk)
        except (errors.APIError, httpx2.HTTPError, OSError) as error:
            raise self._failed(request.provider, error) from error

    async def carry_out(self, errand: CacheCall) -> JsonObject:
        """A call for an explicit cache; its reply."""
        try:
            caches, body = self._connected().aio.caches, errand.body or {}
            match errand.method:
                case "POST":
                    return _object(await caches.create(**_cache_kwargs(body)))
                case "PATCH":
                    return _object(await caches.update(name=errand.path, config={"ttl": body["ttl"]}))
                case "DELETE":
                    return _object(await caches.delete(name=errand.path))
        except (errors.APIError, httpx2.HTTPError, OSError) as error:
            raise self._failed("gemini", error) from error

    def _connected(self) -> genai.Client:
        if self._client is None:
            # Its own choice of HTTP library depends on what else is installed.
            self._http = httpx2.AsyncClient(timeout=httpx2.Timeout(self.timeout_s, connect=10.0))
            options = types.HttpOptions(
                base_url=self.base_url, timeout=int(self.timeout_s * 1000), httpx_async_client=self._http
            )
            self._client = genai.Client(api_key=self.api_key or "none", vertexai=False, http_options=options)
        return self._client

    def _failed(self, provider: str, error: Exception) -> ProviderError:
        if isinstance(error, errors.APIError):
            headers = getattr(error.response, "headers", None) or {}
            said = error.message or str(error)
            return refusal(provider, error.code, said, dict(headers), ENDPOINTS["gemini"])
        if isinstance(error, httpx2.TimeoutException | TimeoutError):
            return timed_out(provider, self.timeout_s)
        return unreachable(provider, self.base_url, error)


def _cache_kwargs(body: JsonObject) -> dict[str, Any]:
    """The arguments of caches.create: what a request would hold is part of the configuration."""
    held = {"contents": [], **{key: value for key, value in body.items() if key != "model"}}
    kwargs = sdk_kwargs(Request("gemini", body["model"], held))
    contents = {"contents": kwargs["contents"]} if kwargs["contents"] else {}
    return {"model": kwargs["model"], "config": {**kwargs["config"], **contents}}


def _object(reply: Any) -> JsonObject:
    shown: JsonObject = plain(reply)
    return shown
