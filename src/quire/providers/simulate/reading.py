"""A request body as a row of blocks: tools, system, messages, in the order its provider compares them.

Every wire format comes out as the same blocks; the engines know nothing of wire formats. A `Reader` looks only
at what a body does not repeat from the one before.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress
from operator import ne
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

# A stretch of a thread's bodies, tools or messages: units that are what they were in their place are not read again.
#
# What was read is kept as a copy, because the caller may change its own in place.

Row: TypeAlias = list[Block]


class Stretch:
    """Units in a row, each with the blocks that were read of it."""

    def __init__(self) -> None:
        self._copies: list[Json] = []
        self._rows: list[Row] = []

    def read(self, units: Sequence[Json], read: Callable[[int], Iterable[Block]]) -> list[Row]:
        """The blocks of each unit; `read` is asked for those at places where a unit is new or has changed."""
        known, talk = len(self._rows), self._talk()
        self._take(units, read)
        if known and self._talk() != talk:
            # The conversation begins elsewhere, so instructions that were late may not be, or the other way round.
            self._copies, self._rows = [], []
            self._take(units, read)
        return self._rows

    def _take(self, units: Sequence[Json], read: Callable[[int], Iterable[Block]]) -> None:
        del self._copies[len(units) :], self._rows[len(units) :]
        known = len(self._copies)
        # Over all of them at the speed of C: nearly every unit stands as it stood.
        changed = list(compress(range(known), map(ne, self._copies, units)))
        for place in (*changed, *range(known, len(units))):
            self._copies[place : place + 1] = [_copied(units[place])]
            talking = self._talk(place) < place
            self._rows[place : place + 1] = [[_late(block) if talking else block for block in read(place)]]

    def _talk(self, before: int | None = None) -> int:
        """The place of the first unit that is part of the conversation; behind the last where none is."""
        rows = self._rows[:before]
        return next((at for at, row in enumerate(rows) if row and row[0].section == "messages"), len(rows))


def _late(block: Block) -> Block:
    """An instruction behind the first message is part of the conversation, not of the system prompt."""
    return block if block.section == "messages" else msgspec.structs.replace(block, section="messages")


class Written:
    """A value as it is written: 1, 1.0 and true are equal in Python and differ in JSON."""

    __slots__ = ("_text",)
    __hash__ = None  # type: ignore[assignment]  # it equals what has another hash

    def __init__(self, value: object) -> None:
        self._text = repr(value)

    def __eq__(self, other: object) -> bool:
        return repr(other) == self._text


def _copied(value: Json) -> Json:
    """A copy that shares the strings, and equals only what is the same JSON."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(_copied, value))
    if isinstance(value, str | bytes) or value is None:
        return value
    return Written(value)


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
