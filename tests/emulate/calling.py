"""Plain HTTP to an emulator, without any SDK."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

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
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    sent = {"content-type": "application/json", **KEYS, **(headers or {})}
    request = urllib.request.Request(server.url + path, data, sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            return Answered(reply.status, _lower(reply.headers), reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return Answered(error.code, _lower(error.headers), error.read())


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
