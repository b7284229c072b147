"""The bytes a provider's cache compares: tools, system blocks and messages, without cache marks.

One canonical JSON line each, in the order the provider hashes them. Marks are taken off blocks only,
so an argument or a schema field that happens to be called `cache_control` stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from itertools import compress, count
from operator import is_not

import msgspec

from quire.log.hashing import canonical, sha256_hex
from quire.values import Json, JsonObject, Lines

MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})


class Layout(msgspec.Struct, frozen=True):
    """Where a wire format keeps what its cache compares."""

    head: Callable[[JsonObject], Iterable[Json]]
    messages: str
    unmarked: Callable[[JsonObject], Json]


def prefix_parts(body: JsonObject, provider: str) -> list[bytes]:
    """One line for each tool, system block and message of a request body."""
    layout = layout_of(body, provider)
    messages = body.get(layout.messages) or []
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return [*map(line, layout.head(body)), *(line(layout.unmarked(message)) for message in messages)]


def prefix_bytes(body: JsonObject, provider: str) -> bytes:
    """All prefix lines of a request; a request extends another if these bytes begin with the other's."""
    return b"".join(prefix_parts(body, provider))


def lined(body: JsonObject, provider: str) -> Lines:
    """The lines of a single request, with their hashes."""
    return hashed(prefix_parts(body, provider))


def hashed(lines: Iterable[bytes]) -> Lines:
    each = tuple(lines)
    return Lines(each, tuple(map(sha256_hex, each)), sha256_hex(b"".join(each)))


class PrefixLines:
    """The lines of a thread's requests: what stands as it stood is neither written nor hashed again."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._head: tuple[bytes, ...] = ()
        # The newest request's messages, the lines they make, and the hashes of those.
        self._messages: list[JsonObject] = []
        self._lines: list[bytes] = []
        self._segments: list[str] = []
        # The hash of the head and of the first lines, those that have stood in two requests.
        self._hash, self._settled = hashlib.sha256(), 0

    def of(self, body: JsonObject) -> Lines:
        """The lines of the thread's next request."""
        messages: list[JsonObject] = body[self._layout.messages]
        same = self._standing(messages)
        new = [line(self._layout.unmarked(message)) for message in messages[same:]]
        self._lines[same:], self._segments[same:] = new, map(sha256_hex, new)
        self._messages = list(messages)
        head = tuple(map(line, self._layout.head(body)))
        whole = self._settle(head, same).copy()
        whole.update(b"".join(new))
        return Lines((*head, *self._lines), (*map(sha256_hex, head), *self._segments), whole.hexdigest())

    def _standing(self, messages: list[JsonObject]) -> int:
        """How many of the first messages make the lines that stood there."""
        # Over all of them at the speed of C: nearly every message is the very one that stood there.
        for place in compress(count(), map(is_not, self._messages, messages)):
            if line(self._layout.unmarked(messages[place])) != self._lines[place]:
                return place
        return min(len(self._messages), len(messages))

    def _settle(self, head: tuple[bytes, ...], same: int) -> hashlib._Hash:
        """The hash up to the first line that is new."""
        if head != self._head or same < self._settled:
            self._head, self._settled = head, 0
            self._hash = hashlib.sha256(b"".join(head))
        self._hash.update(b"".join(self._lines[self._settled : same]))
        self._settled = same
        return self._hash


def line(piece: Json) -> bytes:
    return canonical(piece) + b"\n"


def layout_of(body: JsonObject, provider: str) -> Layout:
    """The layout of a wire format by its name, or of a provider by the look of its request."""
    if provider in LAYOUTS:
        return LAYOUTS[provider]
    for fields, format in _SIGNS:
        if fields & body.keys():
            return LAYOUTS[format]
    return LAYOUTS["openai-chat"]


# Fields that only requests of one format have.
_SIGNS: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"contents", "cachedContent"}), "gemini"),
    (frozenset({"input", "instructions"}), "openai-responses"),
    (frozenset({"modelId", "toolConfig"}), "bedrock"),
    (frozenset({"system", "thinking"}), "anthropic"),
)


def _chat_head(body: JsonObject) -> Iterable[Json]:
    return map(_unmarked, body.get("tools") or ())


def _chat_message(message: JsonObject) -> Json:
    return _unmarked_in(message, "content")


def _responses_head(body: JsonObject) -> Iterable[Json]:
    instructions = [{"instructions": body["instructions"]}] if body.get("instructions") else []
    return [*(body.get("tools") or ()), *instructions]


def _responses_item(item: JsonObject) -> Json:
    return _unmarked_in(_unmarked_in(item, "content"), "output")


def _anthropic_head(body: JsonObject) -> Iterable[Json]:
    system = body.get("system") or []
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
    return [*map(_unmarked, body.get("tools") or ()), *map(_unmarked, blocks)]


def _anthropic_message(message: JsonObject) -> Json:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_unmarked_in(_unmarked(block), "content") for block in content]}


def _gemini_head(body: JsonObject) -> Iterable[Json]:
    cached = [{"cachedContent": body["cachedContent"]}] if body.get("cachedContent") else []
    system = (body.get("systemInstruction") or {}).get("parts") or []
    return [*cached, *_declared(body.get("tools") or ()), *system]


def _declared(tools: Iterable[JsonObject]) -> Iterable[Json]:
    """Each function by itself, and what else a tool holds."""
    for tool in tools:
        yield from tool.get("functionDeclarations") or ()
        if rest := {key: value for key, value in tool.items() if key != "functionDeclarations"}:
            yield rest


def _bedrock_head(body: JsonObject) -> Iterable[Json]:
    tools = (body.get("toolConfig") or {}).get("tools")
    return [*_without_points(tools), *_without_points(body.get("system"))]


def _bedrock_message(message: JsonObject) -> Json:
    return {**message, "content": _without_points(message.get("content"))}


LAYOUTS: dict[str, Layout] = {
    "anthropic": Layout(_anthropic_head, "messages", _anthropic_message),
    "openai-chat": Layout(_chat_head, "messages", _chat_message),
    "openai-responses": Layout(_responses_head, "input", _responses_item),
    "gemini": Layout(_gemini_head, "contents", lambda content: content),
    "bedrock": Layout(_bedrock_head, "messages", _bedrock_message),
}


def unmarked(block: JsonObject) -> JsonObject:
    """A block without its cache marks, and without those of the blocks in it."""
    bare: JsonObject = _unmarked_in(_unmarked_in(_unmarked(block), "content"), "output")
    return bare


def _unmarked(block: Json) -> Json:
    if not isinstance(block, dict) or MARKS.isdisjoint(block):
        return block
    return {key: value for key, value in block.items() if key not in MARKS}


def _unmarked_in(holder: Json, field: str) -> Json:
    blocks = holder.get(field) if isinstance(holder, dict) else None
    return {**holder, field: [_unmarked(block) for block in blocks]} if isinstance(blocks, list) else holder


def _without_points(blocks: list[JsonObject] | None) -> list[JsonObject]:
    return [block for block in blocks or () if "cachePoint" not in block]
