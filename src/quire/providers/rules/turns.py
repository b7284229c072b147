"""Anthropic's and Bedrock's conversations in one form, so that Claude's rules are written once.

Blocks keep the path they have in the request; their content is in Anthropic's words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

import msgspec

from quire.providers.rules.shape import obj, objects
from quire.values import Json, JsonObject


class Block(msgspec.Struct, frozen=True):
    type: str
    raw: JsonObject
    path: str


class Message(msgspec.Struct, frozen=True):
    role: str
    path: str
    blocks: tuple[Block, ...]
    raw: JsonObject = {}


class Talk(msgspec.Struct, frozen=True):
    """A conversation in the order it is hashed: tools, system, messages."""

    tools: tuple[Block, ...]
    system: tuple[Block, ...]
    messages: tuple[Message, ...]


def anthropic_talk(body: JsonObject) -> Talk:
    """An Anthropic request; a string stands for one text block."""
    messages = (_message(path, one) for path, one in objects(body.get("messages"), "$.messages"))
    return Talk(
        tools=tuple(
            Block(str(tool.get("type") or "custom"), tool, path)
            for path, tool in objects(body.get("tools"), "$.tools")
        ),
        system=tuple(_blocks(body.get("system"), "$.system")),
        messages=tuple(messages),
    )


def _message(path: str, message: JsonObject) -> Message:
    blocks = tuple(_blocks(message.get("content"), f"{path}.content"))
    return Message(str(message.get("role")), path, blocks, message)


def _blocks(content: Json, path: str) -> Iterator[Block]:
    if isinstance(content, str):
        yield Block("text", {"type": "text", "text": content}, path)
    for place, block in objects(content, path):
        yield Block(str(block.get("type")), block, place)


def converse_talk(body: JsonObject) -> Talk:
    """A Bedrock Converse request in Anthropic's words; a cachePoint is a block of type cache_point."""
    tools = objects(obj(body.get("toolConfig")).get("tools"), "$.toolConfig.tools")
    messages = (
        Message(
            str(one.get("role")),
            path,
            tuple(_converse(block, place) for place, block in objects(one.get("content"), f"{path}.content")),
            one,
        )
        for path, one in objects(body.get("messages"), "$.messages")
    )
    return Talk(
        tools=tuple(_converse(tool, path) for path, tool in tools),
        system=tuple(_converse(block, path) for path, block in objects(body.get("system"), "$.system")),
        messages=tuple(messages),
    )


def _converse(block: JsonObject, path: str) -> Block:
    for name, read in _CONVERSE.items():
        if block.get(name) is not None:
            raw = read(block[name])
            return Block(raw["type"], raw, path)
    kind = next(iter(block), "")
    return Block(str(kind), block, path)


def _thinking(value: Json) -> JsonObject:
    reasoning = obj(value)
    if reasoning.get("redactedContent") is not None:
        return {"type": "redacted_thinking", "data": str(reasoning["redactedContent"])}
    inner = obj(reasoning.get("reasoningText"))
    return {"type": "thinking", "thinking": inner.get("text"), "signature": inner.get("signature")}


def _tool_use(value: Json) -> JsonObject:
    use = obj(value)
    return {
        "type": "tool_use",
        "id": use.get("toolUseId"),
        "name": use.get("name"),
        "input": use.get("input"),
    }


def _tool_result(value: Json) -> JsonObject:
    result = obj(value)
    return {
        "type": "tool_result",
        "tool_use_id": result.get("toolUseId"),
        "content": result.get("content"),
        "is_error": result.get("status") == "error",
    }


_CONVERSE: dict[str, Callable[[Json], JsonObject]] = {
    "text": lambda text: {"type": "text", "text": text},
    "toolUse": _tool_use,
    "toolResult": _tool_result,
    "reasoningContent": _thinking,
    "cachePoint": lambda point: {"type": "cache_point", "ttl": obj(point).get("ttl"), "point": point},
    "toolSpec": lambda spec: {"type": "custom", "name": obj(spec).get("name"), "spec": spec},
    "toolAddition": lambda change: {"type": "tool_addition", **obj(change)},
    "toolRemoval": lambda change: {"type": "tool_removal", **obj(change)},
}


def turns(messages: Iterable[Message]) -> list[Message]:
    """User and assistant messages, neighbours of one role joined as the API joins them; system messages left out."""
    spoken = (message for message in messages if message.role in ("user", "assistant"))
    return [_joined(list(run)) for _, run in groupby(spoken, key=lambda message: message.role)]


def _joined(run: list[Message]) -> Message:
    if len(run) == 1:
        return run[0]
    return msgspec.structs.replace(run[0], blocks=tuple(block for message in run for block in message.blocks))


def pieces(talk: Talk) -> Iterator[tuple[str, Json]]:
    """Everything a thinking block is bound to, in order, each with its role."""
    yield from (("tools", block.raw) for block in talk.tools if block.type != "cache_point")
    yield from (("system", block.raw) for block in talk.system if block.type != "cache_point")
    for message in talk.messages:
        yield from ((message.role, block.raw) for block in message.blocks if block.type != "cache_point")
