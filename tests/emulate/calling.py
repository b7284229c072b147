"""Requests to an emulator: over plain HTTP, and by the official clients."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from quire.testing import Emulator
from quire.values import JsonObject

# What each of the providers asks for, all at once; a header given as "" is left out by `call`.
KEYS = {"authorization": "Bearer key", "x-api-key": "key", "x-goog-api-key": "key", "anthropic-version": "2023-06-01"}


class Answered:
    """Status, headers and JSON of an answer."""

    def __init__(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.status, self.headers, self.data = status, headers, data

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    def events(self) -> Iterator[JsonObject]:
        """The JSON of a stream's data lines."""
        for line in self.data.split(b"\n"):
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                yield json.loads(line[6:])


def call(
    server: Emulator, path: str, body: object = None, method: str = "POST", headers: dict[str, str] | None = None
) -> Answered:
    """One request; a body that is no JSON value is sent as it is."""
    try:
        with urllib.request.urlopen(request_of(server, path, body, method, headers), timeout=600) as reply:
            return Answered(reply.status, _lower(reply.headers), reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answered(error.code, _lower(error.headers), error.read())


def request_of(
    server: Emulator, path: str, body: object = None, method: str = "POST", headers: dict[str, str] | None = None
) -> urllib.request.Request:
    """The request that `call` makes."""
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    sent = {"content-type": "application/json", **KEYS, **(headers or {})}
    return urllib.request.Request(server.url + path, data, sent, method=method)


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


# The plainest requests.
CLAUDE: JsonObject = {"model": "claude-opus-5-5", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
CHAT: JsonObject = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES: JsonObject = {"model": "gpt-5.6", "input": "hi"}


def anthropic_client(url: str) -> Any:
    anthropic = pytest.importorskip("anthropic")
    return anthropic.Anthropic(base_url=url, api_key="key", max_retries=1)


def openai_client(url: str) -> Any:
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=f"{url}/v1", api_key="key", max_retries=1)


def gemini_client(url: str) -> Any:
    genai = pytest.importorskip("google.genai")
    return genai.Client(api_key="key", http_options={"base_url": url})


def bedrock_client(url: str) -> Any:
    boto3 = pytest.importorskip("boto3")
    from botocore.config import Config

    config = Config(retries={"max_attempts": 1}, user_agent_extra="quire")
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    return boto3.client("bedrock-runtime", endpoint_url=url, region_name="us-east-1", config=config, **keys)
