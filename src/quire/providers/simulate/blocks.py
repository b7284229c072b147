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
from quire.values import Json, JsonObject

Section = Literal["tools", "system", "messages"]

# Providers count an image by its size and the model; this is about the middle of what they charge.
IMAGE_TOKENS = 1500
# Encrypted reasoning is base64: four characters hold three bytes, about four of which made a token.
OPAQUE_CHARACTERS_PER_TOKEN = 5


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
            kind=_kind(bare),
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


# Blocks that name their kind by their only key (Bedrock, Gemini).
_KEYED = {
    "toolUse": "tool_use",
    "toolResult": "tool_result",
    "reasoningContent": "thinking",
    "functionCall": "tool_use",
    "functionResponse": "tool_result",
    "image": "image",
    "inlineData": "image",
    "fileData": "image",
    "cachePoint": "cachePoint",
    "toolSpec": "tool",
}


def _kind(part: JsonObject) -> str:
    if isinstance(part.get("type"), str):
        return str(part["type"])
    return next((kind for key, kind in _KEYED.items() if key in part), "text")


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
        return 0
    return _LIVES.get(str(mark.get("ttl") or ""), -1)


def said(part: JsonObject) -> tuple[str, int]:
    """What of a block is counted: its text, and the tokens that no text stands for."""
    if "image" in _kind(part) or part.get("type") in ("input_file", "document", "file", "input_audio"):
        return "", IMAGE_TOKENS
    if opaque := _opaque(part):
        return _text_of(part), opaque
    return _text_of(part), 0


def _opaque(part: JsonObject) -> int:
    """The tokens of reasoning that is only there encrypted."""
    inner = _object(part.get("reasoningContent") or part)
    thinking = _object(inner.get("reasoningText") or inner)
    if thinking.get("thinking") or (thinking.get("text") and "reasoningContent" in part):
        return 0
    hidden = part.get("encrypted_content") or inner.get("redactedContent")
    if part.get("type") in ("thinking", "redacted_thinking"):
        hidden = part.get("signature") or part.get("data")
    return len(hidden) // OPAQUE_CHARACTERS_PER_TOKEN if isinstance(hidden, str | bytes) else 0


# Fields that say what a block is or belongs to, and are no text of their own.
_SILENT = frozenset(
    {"type", "id", "tool_use_id", "toolUseId", "tool_call_id", "call_id", "signature", "thoughtSignature", "data",
     "encrypted_content", "redactedContent", "status", "role", "index", "phase", "annotations", "is_error", "strict"}
)  # fmt: skip
# Fields that hold JSON of the model's or the tool's own, counted as JSON.
_JSON = frozenset({"input", "args", "response", "json", "toolSpec", "definition", "tools"})


def _text_of(value: Json) -> str:
    """Every text in a block: names, arguments, contents; JSON fields as compact JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(_text_of, value)))
    if not isinstance(value, dict):
        return ""
    found = []
    for key, inner in value.items():
        if key in _SILENT:
            continue
        found.append(_compact(inner) if key in _JSON and not isinstance(inner, str) else _text_of(inner))
    return "\n".join(filter(None, found))


def _compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
