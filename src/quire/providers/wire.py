"""A wire format is one value: how requests are written and walked, replies read, conversations carried over.

Each folder of `wires` makes its own; `wires.FORMATS` lists them. Whoever needs to know how a provider speaks asks
`wire_of` and reads a field here, and compares no names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    # Named here alone, so that what a wire is made of may itself ask for a wire.
    from quire.providers.incoming import Partial
    from quire.providers.models import ModelInfo
    from quire.providers.rendering import Writer
    from quire.providers.rules.check import WireRules
    from quire.providers.walk import Layout, Path
    from quire.values import Entry, Json, JsonObject, Reply, Request, Usage


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A format that conversations are kept in: imported as entries, and exported again as they came."""

    name: str
    imports: Callable[..., list[Entry]]
    exports: Callable[[Iterable[Entry]], Json]
    # The wire format whose items it holds, where it is not one itself.
    like: str = ""


class StreamReader(Protocol):
    """Reads a reply event by event."""

    def feed(self, event: Any) -> list[Entry]:
        """One more event; the entries it finishes."""

    def partial(self) -> Partial:
        """What has arrived of the reply, if nothing more comes."""

    def reply(self) -> Reply:
        """The whole reply, once the stream has ended."""


def _as_named(body: JsonObject) -> str:
    return ""


def _body_and_headers(request: Request) -> dict[str, Any]:
    return {**request.body, "extra_headers": request.headers} if request.headers else request.body


class Wire(Format, frozen=True, kw_only=True):
    """A format that a provider speaks."""

    writer: Writer
    layout: Layout
    # A whole reply, and a streamed one.
    read: Callable[..., Reply]
    stream: Callable[..., StreamReader]
    # A reply's usage object.
    usage: Callable[[JsonObject], Usage]
    rules: WireRules
    # The name of the format that a body is in after all, where one provider speaks two; "" for this one.
    other: Callable[[JsonObject], str] = _as_named
    # Marks the block at a path, for the shorter or the longer life; none can be marked without.
    mark: Callable[[JsonObject, Path, bool], JsonObject] = lambda body, path, long: body
    # Asks why less was read from the cache than the reply of this id had left there.
    diagnosed: Callable[[JsonObject, str | None], JsonObject] = lambda body, previous_id: body
    # Whether the model's thinking goes back to it.
    thinking: Callable[[ModelInfo], bool] = lambda info: True
    # The keyword arguments of the official SDK's call.
    sdk_kwargs: Callable[[Request], dict[str, Any]] = _body_and_headers
