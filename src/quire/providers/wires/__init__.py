"""The wire formats, one folder each; a new one is its folder, a line here and rows of data."""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from quire.errors import CallError
from quire.providers.models import resolve, split_target
from quire.values import JsonObject, as_objects, as_text, body_and_headers

if TYPE_CHECKING:
    from quire.providers.incoming import ReplyReader
    from quire.providers.models import ModelInfo
    from quire.providers.prefix import Layout, Path
    from quire.providers.rendering import Writer
    from quire.providers.rules.check import WireRules
    from quire.values import Entry, Json, JsonObject, Reply, Request


# A wire format is one value: how requests are written and walked, replies read, conversations carried over.
#
# Each folder of `wires` makes its own; `wires.FORMATS` lists them. Whoever needs to know how a provider speaks asks
# `wire_of` and reads a field here, and compares no names.


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """A format that conversations are kept in: imported as entries, and exported again as they came."""

    name: str
    imports: Callable[..., list[Entry]]
    exports: Callable[[Iterable[Entry]], Json]
    # For a framework's format: the wire format whose items it holds.
    like: str = ""


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """How requests of a format are sent: by a method of the official SDK, or to a path of plain HTTP."""

    # The SDK's package, and the method of its client ("" where streaming needs no other).
    sdk: str
    method: str
    stream_method: str = ""
    sdk_kwargs: Callable[[Request], dict[str, Any]] = body_and_headers
    # What a request holds besides so that its reply is streamed.
    streaming: JsonObject = {}
    # Whether "[DONE]" ends a stream; some servers send no other end.
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
        named = base_url.rsplit("/", 1)[-1].startswith("v1")
        has_version = base_url.count("/") >= 3 if self.version_in_url else named
        return f"{base_url}{path}" if has_version else f"{base_url}/{self.version}{path}"

    def sent_headers(self, api_key: str) -> dict[str, str]:
        """The headers of every request; without a key where there is none."""
        key = {self.key_header: f"{self.key_prefix}{api_key}"} if api_key else {}
        return {**self.headers, **key}


class Wire(Format, frozen=True, kw_only=True):
    """A format that a provider speaks."""

    writer: Writer
    layout: Layout
    # Reads a reply of a provider's model; tools by these names.
    reader: Callable[[str, str, Iterable[str]], ReplyReader]
    rules: WireRules
    call: ModelCall
    # For a provider that speaks two formats: the other one's name where this body is written in it, else "".
    other: Callable[[JsonObject], str] = lambda body: ""
    # Puts a cache mark on the block at a path, for the shorter or the longer life; by default blocks take none.
    mark: Callable[[JsonObject, Path, bool], JsonObject] = lambda body, path, long: body
    # The body with a question to the provider: why was less read than the reply of this id left in the cache?
    diagnosed: Callable[[JsonObject, str | None], JsonObject] = lambda body, previous_id: body
    # Whether a reply that read nothing from the cache says 0; where it does not, a missing count means 0.
    reports_no_cache: bool = True
    # Whether tools may be described in the prompt's text, for engines that take no definitions.
    tools_in_words: bool = False
    # A format whose messages cannot be told from this one's: only the target decides.
    looks_like: str = ""
    # Whether tools that come late have a place among the messages, for models that take them there.
    late_tools: bool = False
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
    "langchain": "quire.providers.wires.frameworks:LANGCHAIN",
    "openai-agents": "quire.providers.wires.openai_responses:AGENTS",
    "pydantic-ai": "quire.providers.wires.frameworks:PYDANTIC_AI",
}


@functools.cache
def format_of(name: str) -> Format:
    """The format of this name."""
    if name not in FORMATS:
        raise CallError(f"unknown format {name!r}", hint="Known: " + ", ".join(FORMATS) + ".")
    module, _, value = FORMATS[name].partition(":")
    wire: Format = getattr(importlib.import_module(module), value or "WIRE")
    return wire


def wire_of(target: str, body: JsonObject | None = None) -> Wire:
    """How a provider speaks, by its name, a format's, or "provider:model"; with a body, in which format that is."""
    wire = _wire(resolve(target.partition(":")[0])[1])
    other = wire.other(body) if body is not None else ""
    return _wire(other) if other else wire


def speaker(provider: str, body: JsonObject) -> str:
    """Whose own format a body to a provider is in: the provider's, or by its name that of the format."""
    wire = wire_of(provider, body)
    return provider if wire is wire_of(provider) else wire.name


def _wire(name: str) -> Wire:
    wire = format_of(name)
    assert isinstance(wire, Wire), name
    return wire


def events_in(reply: Any) -> Any:
    """The events of a reply that is a stream, sync or async (boto3 has them in a field); None of a whole one."""
    events = reply.get("stream") if isinstance(reply, Mapping) else reply
    whole = isinstance(events, str | bytes | Mapping) or hasattr(events, "model_dump")
    return events if not whole and (hasattr(events, "__iter__") or hasattr(events, "__aiter__")) else None


def snapshot(events: Any) -> Any:
    """What an SDK's own stream has put together of the events read so far; None before the first, and of other streams."""
    # Not `get_final_completion`, which raises where a reply ended at its limit or was held back by a filter.
    names = ("current_message_snapshot", "current_completion_snapshot")
    with suppress(AssertionError):  # what SDKs raise before the first event
        return next((getattr(events, name) for name in names if hasattr(events, name)), None)
    return None


def feed(reader: ReplyReader, event: Any, on_text: Callable[[str], object] | None) -> None:
    """One more event of a stream; `on_text` gets what it says to the user."""
    # The stream that OpenAI's SDK has for Chat puts each chunk into an event of its own.
    reader.feed(event.chunk if getattr(event, "type", None) == "chunk" else event)
    for piece in reader.live():
        if on_text is not None and piece.kind == "respond":
            on_text(piece.text)


def parse_reply(target: str, reply: Any, names: Iterable[str] = ()) -> Reply:
    """Entries and usage of a provider's reply: JSON, or the SDK's object."""
    return stream(target, names).whole(reply)


def stream(target: str, names: Iterable[str] = ()) -> ReplyReader:
    """A reader of a stream of "provider:model": feed(event), partial(), reply().

    `names` are the tools' own, where some had to be respelled.
    """
    provider, model = split_target(target)
    return wire_of(provider).reader(provider, model, names)


# Whose request is this? By the fields that only one wire format has, then by the model's name.

# Fields, and types of blocks, that only one format has.
_BODY = {
    **dict.fromkeys(("contents", "cachedContent", "systemInstruction"), "gemini"),
    **dict.fromkeys(("modelId", "inferenceConfig", "toolConfig"), "bedrock"),
    **dict.fromkeys(("input", "instructions"), "openai-responses"),
    **dict.fromkeys(("anthropic_version", "betas", "system", "thinking", "stop_sequences"), "anthropic"),
}
_CLAUDES = ("tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document")
_TYPES = {
    **dict.fromkeys(_CLAUDES, "anthropic"),
    **dict.fromkeys(("image_url", "input_audio", "file", "refusal"), "openai-chat"),
}
# Blocks that only items of the Responses API hold.
_ITEM_BLOCKS = frozenset({"input_text", "output_text", "input_image", "input_file"})
# Who speaks Chat, by how their models are called.
_MODELS = (("deepseek", "deepseek"), ("mistral|codestral|devstral|ministral|magistral", "mistral"), ("grok", "xai"))


def detect(body: Json, otherwise: str = "openai-chat") -> str | None:
    """The provider or wire format a body is made for; None when nothing tells.

    Messages of words alone could be of several formats: they are `otherwise`.
    """
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("messages"), list) and "contents" not in body:
        return _by_messages(body, otherwise)
    return next((wire for field, wire in _BODY.items() if field in body), None)


def as_body(messages: list[JsonObject]) -> JsonObject:
    """A list of messages, or of items, as the body of a request that holds them."""
    blocks = [block for message in messages for block in as_objects(message.get("content"))]
    kinds = {as_text(block.get("type")) for block in blocks}
    # A reply of Claude that was stored whole has a type too.
    is_claudes = any(_TYPES.get(kind) == "anthropic" for kind in kinds)
    items = (any("type" in message for message in messages) and not is_claudes) or not kinds.isdisjoint(_ITEM_BLOCKS)
    parts = any("parts" in message for message in messages)
    return {"contents" if parts else "input" if items else "messages": messages}


def _by_messages(body: JsonObject, otherwise: str) -> str:
    """Chat, Anthropic and Converse all say `messages`; their blocks, fields and models differ."""
    messages = as_objects(body["messages"])
    # The others say their system prompt beside the messages.
    if messages and messages[0].get("role") == "system":
        return _chat(body)
    if any(message.get("role") in ("tool", "developer") or "tool_calls" in message for message in messages):
        return _chat(body)
    blocks = [block for message in messages for block in as_objects(message.get("content"))]
    if any(isinstance(block.get("thinking"), list) for block in blocks):
        return _chat(body)  # Mistral's thinking is a list of texts
    by_type = next((_TYPES[kind] for block in blocks if (kind := as_text(block.get("type"))) in _TYPES), None)
    if by_type is not None:
        return _chat(body) if by_type == "openai-chat" else by_type
    if any("type" not in block for block in blocks):
        return "bedrock"
    if any("function" in tool for tool in as_objects(body.get("tools"))):
        return _chat(body)
    fields = _BODY if _chat(body) == "openai-chat" else {"system": "anthropic"}
    named = as_text(body.get("model"))
    # Others than Claude have a `thinking` switch too.
    shared = {"thinking"} if named and "claude" not in named else set()
    by_field = next((wire for field, wire in fields.items() if field in body.keys() - shared), None)
    if by_field or _is_claudes(body, blocks):
        return by_field or "anthropic"
    return chat if (chat := _chat(body)) != "openai-chat" else otherwise


def _is_claudes(body: JsonObject, blocks: list[JsonObject]) -> bool:
    """Marked blocks, tools with an input_schema, or a Claude that no router's prefix names."""
    schemas = any("input_schema" in tool for tool in as_objects(body.get("tools")))
    model = as_text(body.get("model"))
    named = "claude" in model and "/" not in model
    return schemas or named or ("/" not in model and any("cache_control" in block for block in blocks))


def _chat(body: JsonObject) -> str:
    """Chat is spoken by many; the model's name may tell which one."""
    model = as_text(body.get("model"))
    if "/" in model:
        return "openrouter"
    return next((provider for pattern, provider in _MODELS if re.search(pattern, model)), "openai-chat")
