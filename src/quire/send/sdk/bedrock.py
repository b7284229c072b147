"""boto3: Converse, in a thread of its own, since boto3 knows no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from quire.errors import MissingPart, ProviderError
from quire.providers import sdk_kwargs
from quire.providers.incoming import plain
from quire.send.transport import ENDPOINTS, Transport, refusal, timed_out, unreachable
from quire.values import JsonObject, Request

try:
    import boto3
    import botocore.config
    import botocore.exceptions as failures
    import urllib3.exceptions
except ImportError as error:
    raise MissingPart("boto3 is not installed", hint="pip install 'quire[bedrock]'") from error

_ERRORS = (failures.BotoCoreError, failures.ClientError, urllib3.exceptions.HTTPError)
_END = object()


def connect(wire: str, base_url: str, api_key: str, timeout_s: float) -> Transport:
    """A transport over the bedrock-runtime client."""
    return Bedrock(base_url, timeout_s)


class Bedrock:
    """Converse; retries are not the SDK's, credentials and region are found by its own rules."""

    def __init__(self, base_url: str, timeout_s: float) -> None:
        self.base_url, self.timeout_s = base_url, timeout_s
        self._client: Any = None  # boto3 makes its clients at run time

    async def aclose(self) -> None:
        """End the connections; the next request makes new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    async def send(self, request: Request) -> JsonObject:
        """The whole reply."""
        try:
            reply = await asyncio.to_thread(lambda: self._connected().converse(**sdk_kwargs(request)))
        except _ERRORS as error:
            raise self._failed(request, error) from error
        answer: JsonObject = plain({key: value for key, value in reply.items() if key != "ResponseMetadata"})
        return answer

    async def stream(self, request: Request) -> AsyncIterator[JsonObject]:
        """The reply's events; each is waited for in a thread."""
        events = None
        try:
            events = await asyncio.to_thread(self._open, request)
            reader = iter(events)
            while (event := await asyncio.to_thread(next, reader, _END)) is not _END:
                yield plain(event)
        except _ERRORS as error:
            raise self._failed(request, error) from error
        finally:
            if events is not None:
                # Also ends a thread that still waits for the next event.
                events.close()

    def _open(self, request: Request) -> Any:
        return self._connected().converse_stream(**sdk_kwargs(request))["stream"]

    def _connected(self) -> Any:
        if self._client is None:
            config = botocore.config.Config(
                read_timeout=self.timeout_s,
                connect_timeout=min(10.0, self.timeout_s),
                retries={"total_max_attempts": 1},
            )
            address = {"endpoint_url": self.base_url} if self.base_url else {}
            self._client = boto3.client("bedrock-runtime", config=config, **address)
        return self._client

    def _failed(self, request: Request, error: Exception) -> ProviderError:
        if isinstance(error, failures.ClientError):
            return _refused(request, error)
        if isinstance(error, failures.NoCredentialsError | failures.NoRegionError):
            return ProviderError(
                f"bedrock: {error}", hint="Set AWS credentials and AWS_REGION as boto3 expects them."
            )
        if isinstance(error, failures.ReadTimeoutError | failures.ConnectTimeoutError):
            return timed_out(request.provider, self.timeout_s)
        return unreachable(request.provider, self.base_url, error)


def _refused(request: Request, error: Any) -> ProviderError:
    said = error.response.get("Error") or {}
    about = error.response.get("ResponseMetadata") or {}
    status = about.get("HTTPStatusCode") or _STATUS.get(str(said.get("Code")), 500)
    message = {"message": said.get("Message") or str(error)}
    return refusal(request.provider, status, message, about.get("HTTPHeaders") or {}, ENDPOINTS["bedrock"])


# What an event in the middle of a stream is called where it has no HTTP status.
_STATUS = {
    "throttlingException": 429,
    "validationException": 400,
    "modelTimeoutException": 408,
    "internalServerException": 500,
    "modelStreamErrorException": 424,
    "serviceUnavailableException": 503,
}
