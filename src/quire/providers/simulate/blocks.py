"""A request body as the row of blocks that a prompt cache walks: tools, system, messages, with their marks.

Every wire format comes out as the same blocks; the engines know nothing of wire formats.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from quire.log.hashing import canonical
from quire.providers.prefix import MARKS
from quire.providers.simulate.said import kind_of, said
from quire.values import Json, JsonObject

Section = Literal["tools", "system", "messages"]


class Block(msgspec.Struct, frozen=True):
    """One block of a request: `data` is what is compared, `text` what is counted."""

    section: Section
    role: str
    kind: str
    data: bytes
    text: str
    # Tokens that no text stands for: images, encrypted reasoning.
    extra: int = 0
    # The life in seconds that a mark on this block asks for; 0 without a mark, -1 for the default life.
    ttl_s: int = 0
    # Whether the block opens, or closes, a message of its own.
    opens: bool = True
    closes: bool = True
    # Where it stands in the body: "messages.3.content.1".
    path: str = ""


def blocks(body: JsonObject, wire: str) -> list[Block]:
    """The blocks of a request in the order its provider compares them."""
    return list(_late_as_messages(_WIRES[wire](body)))


def _late_as_messages(row: Iterable[Block]) -> Iterator[Block]:
    """An instruction behind the first message is part of the conversation, not of the system prompt."""
    talking = False
    for block in row:
        talking = talking or block.section == "messages"
        yield msgspec.structs.replace(block, section="messages") if talking else block


def _anthropic(body: JsonObject) -> Iterator[Block]:
    for index, tool in enumerate(body.get("tools") or ()):
        # A deferred tool is not in the prompt until the conversation refers to it.
        if not tool.get("defer_loading"):
            yield _tool(tool, f"tools.{index}", str(tool.get("type", "")))
    yield from _listed(_texts(body.get("system")), "system", "system", "system")
    for index, message in enumerate(body.get("messages") or ()):
        content = _texts(message.get("content"))
        yield from _listed(content, "messages", str(message.get("role", "")), f"messages.{index}.content")


def _bedrock(given: JsonObject) -> Iterator[Block]:
    body = _without_bytes(given)
    tools = (body.get("toolConfig") or {}).get("tools") or ()
    yield from _pointed(_listed(tools, "tools", "tool", "toolConfig.tools"))
    yield from _pointed(_listed(body.get("system") or (), "system", "system", "system"))
    for index, message in enumerate(body.get("messages") or ()):
        content = message.get("content") or ()
        role = str(message.get("role", ""))
        yield from _pointed(_listed(content, "messages", role, f"messages.{index}.content"))


def _chat(body: JsonObject) -> Iterator[Block]:
    for index, tool in enumerate(body.get("tools") or ()):
        yield _tool(tool, f"tools.{index}")
    if body.get("response_format"):
        yield _tool(body["response_format"], "response_format", "schema")
    for index, message in enumerate(body.get("messages") or ()):
        yield from _chat_message(message, f"messages.{index}")


def _chat_message(message: JsonObject, path: str) -> Iterator[Block]:
    role = str(message.get("role", ""))
    section: Section = "system" if role in ("system", "developer") else "messages"
    thought = message.get("reasoning_content")
    parts: list[Json] = [{"type": "thinking", "thinking": thought}] if thought else []
    parts += _texts(message.get("content"))
    # A refusal is the text of a message that has none; calls follow whatever was said.
    parts += [{"type": "text", "text": message["refusal"]}] if message.get("refusal") else []
    parts += message.get("tool_calls") or ()
    if role == "tool":
        parts = [{**_object(part), "tool_call_id": message.get("tool_call_id")} for part in parts]
    yield from _listed(parts or [{"type": "text", "text": ""}], section, role, f"{path}.content")


def _responses(body: JsonObject) -> Iterator[Block]:
    for index, tool in enumerate(body.get("tools") or ()):
        yield _tool(tool, f"tools.{index}", str(tool.get("type", "")))
    if (body.get("text") or {}).get("format"):
        yield _tool(body["text"]["format"], "text.format", "schema")
    if body.get("instructions"):
        yield from _listed(_texts(body["instructions"]), "system", "system", "instructions")
    given = body.get("input") or ()
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for index, item in enumerate(items):
        yield from _responses_item(item, f"input.{index}")


# Which side speaks in an item that has no role.
_ITEM_ROLES = {
    "function_call_output": "tool",
    "custom_tool_call_output": "tool",
    "additional_tools": "developer",
}


def _responses_item(item: JsonObject, path: str) -> Iterator[Block]:
    kind = str(item.get("type", "message"))
    if kind != "message":
        role = _ITEM_ROLES.get(kind, "assistant")
        if isinstance(item.get("output"), list):
            outputs = [{**_object(part), "call_id": item.get("call_id")} for part in item["output"]]
            yield from _listed(outputs, "messages", role, f"{path}.output")
        else:
            yield from _listed([item], "messages", role, path)
        return
    role = str(item.get("role", ""))
    section: Section = "system" if role in ("system", "developer") else "messages"
    yield from _listed(_texts(item.get("content")), section, role, f"{path}.content")


def _gemini(body: JsonObject) -> Iterator[Block]:
    for index, tool in enumerate(body.get("tools") or ()):
        yield _tool(tool, f"tools.{index}")
    instruction = body.get("systemInstruction") or body.get("system_instruction") or {}
    yield from _listed(instruction.get("parts") or (), "system", "system", "systemInstruction.parts")
    for index, content in enumerate(body.get("contents") or ()):
        role = str(content.get("role", "user"))
        yield from _listed(content.get("parts") or (), "messages", role, f"contents.{index}.parts")


_WIRES: dict[str, Callable[[JsonObject], Iterator[Block]]] = {
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
}


def _without_bytes(value: Json) -> Json:
    """The body as it goes over the wire: Bedrock's client takes bytes and sends base64."""
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: _without_bytes(inner) for key, inner in value.items()}
    return [_without_bytes(inner) for inner in value] if isinstance(value, list | tuple) else value


def _texts(content: Json) -> list[Json]:
    """Content as blocks: a string is one text block, which is how providers read it."""
    if content is None or content == "":
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _object(part: Json) -> JsonObject:
    return part if isinstance(part, dict) else {"type": "text", "text": str(part)}


def _tool(tool: JsonObject, path: str, kind: str = "tool") -> Block:
    data = canonical({key: value for key, value in tool.items() if key not in MARKS})
    return Block(
        "tools", "tool", kind or "tool", data, data.decode(), ttl_s=_life(tool), opens=False, path=path
    )


def _listed(parts: Iterable[Json], section: Section, role: str, path: str) -> Iterator[Block]:
    """The blocks of one message; Bedrock's cache points come out as blocks of kind `cachePoint`."""
    kept = [_object(part) for part in parts]
    last = len(kept) - 1
    for index, part in enumerate(kept):
        bare = _unmarked(part)
        text, extra = said(bare)
        yield Block(
            section=section,
            role=role,
            kind=kind_of(bare),
            data=role.encode() + canonical(bare),
            text=text,
            extra=extra,
            ttl_s=_life(part),
            opens=index == 0,
            closes=index == last,
            path=f"{path}.{index}",
        )


def _unmarked(part: JsonObject) -> JsonObject:
    """A block without its mark and the marks of the blocks inside it."""
    bare = {key: value for key, value in part.items() if key not in MARKS}
    if isinstance(bare.get("content"), list):
        bare["content"] = [
            _unmarked(inner) if isinstance(inner, dict) else inner for inner in bare["content"]
        ]
    return bare


def _pointed(row: Iterator[Block]) -> Iterator[Block]:
    """Bedrock's cache points as marks on the blocks before them."""
    held: Block | None = None
    for block in row:
        if block.kind == "cachePoint":
            life = _life(json.loads(block.data[len(block.role.encode()) :])["cachePoint"], marked=True)
            held = msgspec.structs.replace(held, ttl_s=life, closes=block.closes) if held else None
            continue
        if held:
            yield held
        held = block
    if held:
        yield held


_LIVES = {"5m": 300, "1h": 3600, "30m": 1800, "12h": 43200}


def _life(part: JsonObject, marked: bool = False) -> int:
    """The life a mark asks for: {"cache_control": {"type": "ephemeral", "ttl": "1h"}} -> 3600."""
    mark = part if marked else next((part[name] for name in MARKS if part.get(name)), None)
    if mark is None:
        # A mark inside a tool result counts for the result.
        inner = part.get("content")
        return (
            max((_life(one) for one in inner if isinstance(one, dict)), default=0)
            if isinstance(inner, list)
            else 0
        )
    return _LIVES.get(str(mark.get("ttl") or ""), -1)
