"""The wire formats, one folder each; a new one is its folder, a line here and rows of data."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from quire.errors import CallError
from quire.providers.models import resolve, split_target
from quire.values import JsonObject, body_and_headers

if TYPE_CHECKING:
    from quire.providers.incoming import BlockDelta, Partial
    from quire.providers.models import ModelInfo
    from quire.providers.prefix import Layout, Path
    from quire.providers.rendering import Writer
    from quire.providers.rules.check import WireRules
    from quire.values import Entry, Json, JsonObject, Reply, Request, Usage


# A wire format is one value: how requests are written and walked, replies read, conversations carried over.
#
# Each folder of `wires` makes its own; `wires.FORMATS` lists them. Whoever needs to know how a provider speaks asks
# `wire_of` and reads a field here, and compares no names.


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

    def live(self) -> list[BlockDelta]:
        """The text that came since this was asked last, of blocks that are no entries yet."""

    def partial(self) -> Partial:
        """What has arrived of the reply, if nothing more comes."""

    def reply(self) -> Reply:
        """The whole reply, once the stream has ended."""


def _as_named(body: JsonObject) -> str:
    return ""


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """How requests of a format are sent: by a method of the official SDK, or to a path of plain HTTP."""

    # The SDK's package, and the method of its client ("" where streaming needs no other).
    sdk: str
    method: str
    stream_method: str = ""
    sdk_kwargs: Callable[[Request], dict[str, Any]] = body_and_headers
    # What a request holds besides so that its reply is streamed.
    streaming: JsonObject = {}
    # Whether "[DONE]" ends a stream, which may come without any other word of its end.
    ends_in_done: bool = False
    # The path behind the version, by the request and whether its reply is streamed; None: only the SDK speaks it.
    path: Callable[[Request, bool], str] | None = None
    version: str = "v1"
    # Base URLs of some usually end in their version: only a bare host is given one.
    version_in_url: bool = False
    # The header of an API key and what stands in front of it there; headers that go with every request.
    key_header: str = "authorization"
    key_prefix: str = ""
    headers: dict[str, str] = {}
    # Whether caches are made by calls of their own.
    makes_caches: bool = False

    def url(self, base_url: str, path: str) -> str:
        """The address of a path: the version stands between, where the base URL does not hold it already."""
        if self.version_in_url:
            given = base_url.count("/") >= 3
        else:
            given = base_url.rsplit("/", 1)[-1].startswith("v1")
        return f"{base_url}{path}" if given else f"{base_url}/{self.version}{path}"

    def sent_headers(self, api_key: str) -> dict[str, str]:
        """The headers of every request; without a key where there is none."""
        key = {self.key_header: f"{self.key_prefix}{api_key}"} if api_key else {}
        return {**self.headers, **key}


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
    call: ModelCall
    # The name of the format that a body is in after all, where one provider speaks two; "" for this one.
    other: Callable[[JsonObject], str] = _as_named
    # Marks the block at a path, for the shorter or the longer life; none can be marked without.
    mark: Callable[[JsonObject, Path, bool], JsonObject] = lambda body, path, long: body
    # Asks why less was read from the cache than the reply of this id had left there.
    diagnosed: Callable[[JsonObject, str | None], JsonObject] = lambda body, previous_id: body
    # Whether the model's thinking goes back to it.
    thinking: Callable[[ModelInfo], bool] = lambda info: True


# format -> the module that holds it, as `WIRE` or as what is named behind a colon
FORMATS: dict[str, str] = {
    "openai-chat": "quire.providers.wires.openai_chat",
    "openai-responses": "quire.providers.wires.openai_responses",
    "anthropic": "quire.providers.wires.anthropic",
    "gemini": "quire.providers.wires.gemini",
    "bedrock": "quire.providers.wires.bedrock",
    "cohere": "quire.providers.wires.cohere",
    "langchain": "quire.providers.wires.langchain",
    "openai-agents": "quire.providers.wires.openai_responses:AGENTS",
    "pydantic-ai": "quire.providers.wires.pydantic_ai",
}


@functools.cache
def format_of(name: str) -> Format:
    """The format of this name."""
    if name not in FORMATS:
        raise CallError(f"unknown format {name!r}", hint="Known: " + ", ".join(FORMATS) + ".")
    module, _, value = FORMATS[name].partition(":")
    found: Format = getattr(importlib.import_module(module), value or "WIRE")
    return found


def wire_of(target: str, body: JsonObject | None = None) -> Wire:
    """How a provider speaks, by its name, a format's, or "provider:model"; with a body, in which format that is."""
    wire = _wire(resolve(target.partition(":")[0])[1])
    other = wire.other(body) if body is not None else ""
    return _wire(other) if other else wire


def _wire(name: str) -> Wire:
    wire = format_of(name)
    assert isinstance(wire, Wire), name
    return wire


def parse_reply(target: str, reply: Any, names: Iterable[str] = ()) -> Reply:
    """Entries and usage of a provider's reply: JSON, or the SDK's object."""
    provider, model = split_target(target)
    return wire_of(provider).read(reply, provider=provider, model=model, names=names)
