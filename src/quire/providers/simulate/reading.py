"""A request body as a row of blocks: tools, system, messages, in the order its provider compares them.

Every wire format comes out as the same blocks; the engines know nothing of wire formats. A `Reader` looks only
at what a body does not repeat from the one before.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

from quire.providers.rules.gemini import contents, setting
from quire.providers.simulate.blocks import (
    Block,
    Section,
    as_blocks,
    as_object,
    message_blocks,
    pointed,
    tool_block,
)
from quire.providers.simulate.stretch import Stretch
from quire.values import Json, JsonObject

Read: TypeAlias = Callable[[Json, str], Iterable[Block]]


class Unit(NamedTuple):
    """A tool, the system prompt or an output schema: where it stands, and how its blocks are read."""

    path: str
    value: Json
    read: Read

    def blocks(self) -> Iterable[Block]:
        return self.read(self.value, self.path)


class Wire(NamedTuple):
    """Where a wire format keeps its units: the few in front, and the messages, which all are read the same way."""

    head: Callable[[JsonObject], Iterable[Unit]]
    place: str
    messages: Callable[[JsonObject], Sequence[Json]]
    read: Read


class Reader:
    """Reads a thread's bodies one after the other."""

    def __init__(self, wire: str) -> None:
        self._wire = _WIRES[wire]
        self._paths: list[str] = []
        self._head, self._messages = Stretch(), Stretch()

    def read(self, body: JsonObject) -> list[Block]:
        """The blocks of a body; units equal to those in the same places before are not read again."""
        head, messages = list(self._wire.head(body)), self._wire.messages(body)
        paths = [unit.path for unit in head]
        if paths != self._paths:
            self._paths, self._head = paths, Stretch()
        rows = chain(
            self._head.read([unit.value for unit in head], lambda place: head[place].blocks()),
            self._messages.read(messages, lambda place: self._message(messages, place)),
        )
        return list(chain.from_iterable(rows))

    def _message(self, messages: Sequence[Json], place: int) -> Iterable[Block]:
        return self._wire.read(messages[place], f"{self._wire.place}.{place}")


def blocks(body: JsonObject, wire: str) -> list[Block]:
    """The blocks of a single request."""
    return Reader(wire).read(body)


def _messages(body: JsonObject) -> Sequence[Json]:
    return body.get("messages") or ()


def _anthropic(body: JsonObject) -> Iterator[Unit]:
    for index, tool in enumerate(body.get("tools") or ()):
        yield Unit(f"tools.{index}", tool, _anthropic_tool)
    yield Unit("system", body.get("system"), _system)


def _anthropic_tool(tool: Json, path: str) -> Iterator[Block]:
    # A deferred tool is not in the prompt until the conversation refers to it.
    if not tool.get("defer_loading"):
        yield tool_block(tool, path, str(tool.get("type", "")))


def _system(system: Json, path: str) -> Iterator[Block]:
    return message_blocks(as_blocks(system), "system", "system", path)


def _message(message: Json, path: str) -> Iterator[Block]:
    content = as_blocks(message.get("content"))
    return message_blocks(content, "messages", str(message.get("role", "")), f"{path}.content")


def _bedrock(body: JsonObject) -> Iterator[Unit]:
    yield Unit("toolConfig.tools", (body.get("toolConfig") or {}).get("tools"), _converse_tools)
    yield Unit("system", body.get("system"), _converse_system)


def _converse_tools(tools: Json, path: str) -> Iterator[Block]:
    return pointed(message_blocks(_without_bytes(tools or []), "tools", "tool", path))


def _converse_system(system: Json, path: str) -> Iterator[Block]:
    return pointed(message_blocks(_without_bytes(system or []), "system", "system", path))


def _converse_message(message: Json, path: str) -> Iterator[Block]:
    content = _without_bytes(message.get("content") or [])
    return pointed(message_blocks(content, "messages", str(message.get("role", "")), f"{path}.content"))


def _without_bytes(value: Json) -> Json:
    """A value as it goes over the wire: Bedrock's client takes bytes and sends base64."""
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: _without_bytes(inner) for key, inner in value.items()}
    return [_without_bytes(inner) for inner in value] if isinstance(value, list | tuple) else value


def _chat(body: JsonObject) -> Iterator[Unit]:
    for index, tool in enumerate(body.get("tools") or ()):
        yield Unit(f"tools.{index}", tool, _tool)
    if body.get("response_format"):
        yield Unit("response_format", body["response_format"], _schema)


def _tool(tool: Json, path: str) -> Iterator[Block]:
    yield tool_block(tool, path)


def _schema(schema: Json, path: str) -> Iterator[Block]:
    yield tool_block(schema, path, "schema")


def _side(role: str) -> Section:
    return "system" if role in ("system", "developer") else "messages"


def _chat_message(message: Json, path: str) -> Iterator[Block]:
    role = str(message.get("role", ""))
    thought = message.get("reasoning_content")
    parts: list[Json] = [{"type": "thinking", "thinking": thought}] if thought else []
    parts += as_blocks(message.get("content"))
    # A refusal is the text of a message that has none; calls follow whatever was said.
    parts += [{"type": "text", "text": message["refusal"]}] if message.get("refusal") else []
    parts += message.get("tool_calls") or ()
    if role == "tool":
        parts = [{**as_object(part), "tool_call_id": message.get("tool_call_id")} for part in parts]
    return message_blocks(parts or [{"type": "text", "text": ""}], _side(role), role, f"{path}.content")


def _responses(body: JsonObject) -> Iterator[Unit]:
    for index, tool in enumerate(body.get("tools") or ()):
        yield Unit(f"tools.{index}", tool, _anthropic_tool)
    if (body.get("text") or {}).get("format"):
        yield Unit("text.format", body["text"]["format"], _schema)
    if body.get("instructions"):
        yield Unit("instructions", body["instructions"], _system)


def _items(body: JsonObject) -> Sequence[Json]:
    given: str | Sequence[Json] = body.get("input") or ()
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


# Which side speaks in an item that has no role.
_ITEM_ROLES = {
    "function_call_output": "tool",
    "custom_tool_call_output": "tool",
    "additional_tools": "developer",
}


def _item(item: Json, path: str) -> Iterator[Block]:
    kind = str(item.get("type", "message"))
    if kind == "message":
        role = str(item.get("role", ""))
        return message_blocks(as_blocks(item.get("content")), _side(role), role, f"{path}.content")
    role = _ITEM_ROLES.get(kind, "assistant")
    if not isinstance(item.get("output"), list):
        return message_blocks([item], "messages", role, path)
    outputs = [{**as_object(part), "call_id": item.get("call_id")} for part in item["output"]]
    return message_blocks(outputs, "messages", role, f"{path}.output")


def _gemini(body: JsonObject) -> Iterator[Unit]:
    """The REST body, or the SDK's call: settings under `config`, texts and parts in place of contents."""
    for index, tool in enumerate(setting(body, "tools")[1] or ()):
        yield Unit(f"tools.{index}", tool, _tool)
    told = setting(body, "systemInstruction")[1] or {}
    parts = (
        told.get("parts") if isinstance(told, dict) else [{"text": told}] if isinstance(told, str) else told
    )
    yield Unit("systemInstruction.parts", parts or [], _system)


def _contents(body: JsonObject) -> Sequence[Json]:
    given: Json = setting(body, "contents")[1] or ()
    return [given] if isinstance(given, str | dict) else given


def _content(content: Json, path: str) -> Iterator[Block]:
    for turn in contents({"contents": [content]}):
        yield from message_blocks([part for _, part in turn.parts], "messages", turn.role, f"{path}.parts")


_WIRES: dict[str, Wire] = {
    "anthropic": Wire(_anthropic, "messages", _messages, _message),
    "bedrock": Wire(_bedrock, "messages", _messages, _converse_message),
    "openai-chat": Wire(_chat, "messages", _messages, _chat_message),
    "openai-responses": Wire(_responses, "input", _items, _item),
    "gemini": Wire(_gemini, "contents", _contents, _content),
}
