"""A request body as a row of blocks: tools, system, messages, in the order its provider compares them.

Every wire format comes out as the same blocks; the engines know nothing of wire formats. A `Reader` looks only
at what a body does not repeat from the one before.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

import msgspec

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
from quire.values import Json, JsonObject

Read: TypeAlias = Callable[[Json, str], Iterable[Block]]


class Unit(NamedTuple):
    """A tool, the system prompt or a message: where it stands, and how its blocks are read."""

    path: str
    value: Json
    read: Read


class Known(NamedTuple):
    """A unit that was read, as it was then: the caller may change its own in place."""

    value: Json
    row: list[Block]

    def is_same(self, value: Json) -> bool:
        return bool(value == self.value) if not isinstance(self.value, Written) else repr(value) == self.value


class Written(str):
    """A unit as text: 1, 1.0 and true are equal in Python and differ in JSON, so units with numbers are kept so."""


class Reader:
    """Reads a thread's bodies one after the other."""

    def __init__(self, wire: str) -> None:
        self._units = _WIRES[wire]
        self._known: dict[str, Known] = {}

    def read(self, body: JsonObject) -> list[Block]:
        """The blocks of a body; units equal to those in the same places before are not read again."""
        known: dict[str, Known] = {}
        for path, value, read in self._units(body):
            before = self._known.get(path)
            if before is None or not before.is_same(value):
                copy, exact = _copied(value)
                before = Known(copy if exact else Written(repr(value)), list(read(value, path)))
            known[path] = before
        self._known = known
        return list(_late_as_messages(block for one in known.values() for block in one.row))


def blocks(body: JsonObject, wire: str) -> list[Block]:
    """The blocks of a single request."""
    return Reader(wire).read(body)


def _copied(value: Json) -> tuple[Json, bool]:
    """A copy that shares its strings, and whether comparing with it can be trusted."""
    if isinstance(value, dict):
        pairs = {key: _copied(inner) for key, inner in value.items()}
        return {key: copy for key, (copy, _) in pairs.items()}, all(exact for _, exact in pairs.values())
    if isinstance(value, list | tuple):
        copies = [_copied(inner) for inner in value]
        return [copy for copy, _ in copies], all(exact for _, exact in copies)
    return value, isinstance(value, str | bytes) or value is None


def _late_as_messages(row: Iterable[Block]) -> Iterator[Block]:
    """An instruction behind the first message is part of the conversation, not of the system prompt."""
    talking = False
    for block in row:
        talking = talking or block.section == "messages"
        late = talking and block.section != "messages"
        yield msgspec.structs.replace(block, section="messages") if late else block


def _anthropic(body: JsonObject) -> Iterator[Unit]:
    for index, tool in enumerate(body.get("tools") or ()):
        yield Unit(f"tools.{index}", tool, _anthropic_tool)
    yield Unit("system", body.get("system"), _system)
    for index, message in enumerate(body.get("messages") or ()):
        yield Unit(f"messages.{index}", message, _message)


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
    for index, message in enumerate(body.get("messages") or ()):
        yield Unit(f"messages.{index}", message, _converse_message)


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
    for index, message in enumerate(body.get("messages") or ()):
        yield Unit(f"messages.{index}", message, _chat_message)


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
    given = body.get("input") or ()
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for index, item in enumerate(items):
        yield Unit(f"input.{index}", item, _item)


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
    for index, turn in enumerate(contents(body)):
        content = {"role": turn.role, "parts": [part for _, part in turn.parts]}
        yield Unit(f"contents.{index}", content, _content)


def _content(content: Json, path: str) -> Iterator[Block]:
    role = str(content.get("role", "user"))
    return message_blocks(content.get("parts") or (), "messages", role, f"{path}.parts")


_WIRES: dict[str, Callable[[JsonObject], Iterator[Unit]]] = {
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
}
