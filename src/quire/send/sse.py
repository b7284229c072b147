"""Server-sent events: bytes in pieces of any size in, the JSON of each event out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

from quire.errors import ProviderError
from quire.values import JsonObject

# No event of any provider comes near this; a line that never ends is not one.
LIMIT_BYTES = 16 * 1024 * 1024


async def events(chunks: AsyncIterator[bytes], provider: str) -> AsyncIterator[JsonObject]:
    """The events of a response body; comments and [DONE] are passed over."""
    reader = Reader()
    async for chunk in chunks:
        for data in reader.feed(chunk):
            if (event := _decoded(data, provider)) is not None:
                yield event
    for data in reader.finish():
        if (event := _decoded(data, provider)) is not None:
            yield event


class Reader:
    """Splits a body into events' data; lines end with LF, CRLF or CR, wherever the pieces break."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of every event that this chunk completes."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        text = self._rest + chunk
        if len(text) > LIMIT_BYTES:
            raise ProviderError(
                f"a stream event of more than {LIMIT_BYTES:,} bytes", hint="Check the base URL."
            )
        lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop()
        return [data for line in lines if (data := self._line(line)) is not None]

    def finish(self) -> list[bytes]:
        """The body has ended; an event without its blank line is whole all the same."""
        last = [self._line(self._rest), self._line(b"")] if self._rest else [self._line(b"")]
        self._rest = b""
        return [data for data in last if data is not None]

    def _line(self, line: bytes) -> bytes | None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            data, self._data = b"\n".join(self._data), []
            return data
        return None


def _decoded(data: bytes, provider: str) -> JsonObject | None:
    if data.strip() == b"[DONE]":
        return None
    try:
        event = json.loads(data)
    except ValueError as error:
        # What is cut in the middle of an event was cut by the connection.
        raise ProviderError(
            f"{provider} sent an event that is not JSON: {data[:120]!r}", retryable=True
        ) from error
    if not isinstance(event, dict):
        raise ProviderError(f"{provider} sent an event that is no object: {data[:120]!r}")
    return event
