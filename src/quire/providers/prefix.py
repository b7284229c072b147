"""The bytes a provider's cache compares: tools, system blocks and messages, without cache marks.

One canonical JSON line each, in the order the provider hashes them. Marks are taken off blocks only,
so an argument or a schema field that happens to be called `cache_control` stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from quire.log.hashing import canonical
from quire.values import Json, JsonObject

MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})


def prefix_parts(body: JsonObject, provider: str) -> list[bytes]:
    """One line for each tool, system block and message of a request body."""
    pieces = _PIECES.get(provider, _chat)
    return [canonical(piece) + b"\n" for piece in pieces(body)]


def prefix_bytes(body: JsonObject, provider: str) -> bytes:
    """All prefix lines of a request; a request extends another if these bytes begin with the other's."""
    return b"".join(prefix_parts(body, provider))


def _chat(body: JsonObject) -> Iterator[Json]:
    yield from body.get("tools") or ()
    for message in body.get("messages") or ():
        yield _unmarked_in(message, "content")


def _responses(body: JsonObject) -> Iterator[Json]:
    yield from body.get("tools") or ()
    if body.get("instructions"):
        yield {"instructions": body["instructions"]}
    given = body.get("input") or ()
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        yield _unmarked_in(_unmarked_in(item, "content"), "output")


def _anthropic(body: JsonObject) -> Iterator[Json]:
    yield from (_unmarked(tool) for tool in body.get("tools") or ())
    system = body.get("system") or ()
    yield from [{"type": "text", "text": system}] if isinstance(system, str) else map(_unmarked, system)
    for message in body.get("messages") or ():
        content = message.get("content")
        if isinstance(content, list):
            message = {**message, "content": [_unmarked_in(_unmarked(block), "content") for block in content]}
        yield message


def _gemini(body: JsonObject) -> Iterator[Json]:
    if body.get("cachedContent"):
        yield {"cachedContent": body["cachedContent"]}
    yield from body.get("tools") or ()
    yield from (body.get("systemInstruction") or {}).get("parts") or ()
    yield from body.get("contents") or ()


def _bedrock(body: JsonObject) -> Iterator[Json]:
    yield from _without_points((body.get("toolConfig") or {}).get("tools"))
    yield from _without_points(body.get("system"))
    for message in body.get("messages") or ():
        yield {**message, "content": _without_points(message.get("content"))}


_PIECES: dict[str, Callable[[JsonObject], Iterator[Json]]] = {
    "anthropic": _anthropic,
    "openai-responses": _responses,
    "gemini": _gemini,
    "bedrock": _bedrock,
}


def _unmarked(block: Json) -> Json:
    if not isinstance(block, dict) or MARKS.isdisjoint(block):
        return block
    return {key: value for key, value in block.items() if key not in MARKS}


def _unmarked_in(holder: Json, field: str) -> Json:
    blocks = holder.get(field) if isinstance(holder, dict) else None
    return {**holder, field: [_unmarked(block) for block in blocks]} if isinstance(blocks, list) else holder


def _without_points(blocks: list[JsonObject] | None) -> list[JsonObject]:
    return [block for block in blocks or () if "cachePoint" not in block]
