"""LangChain's messages as dictionaries: `messages_to_dict`, plain `model_dump`, or serialised constructors.

Only for import and export; LangChain itself is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from quire.errors import FormatError
from quire.providers.convert import from_url, image_json, to_url
from quire.providers.incoming import joined_text, listed, objects, sub, tagged, whole_message
from quire.providers.models import model_info
from quire.providers.outgoing import exported
from quire.providers.rendering import Draft, Writer
from quire.providers.spelling import Spelling, object_of
from quire.providers.wires import Format
from quire.providers.wires.openai_responses import entries_of
from quire.providers.wires.openai_responses.write import FORMAT as RESPONSES
from quire.values import (
    Call,
    Entry,
    Image,
    Json,
    JsonObject,
    Message,
    Part,
    Result,
    Text,
    Think,
    call,
    respond,
    result,
    system,
    think,
    user,
)

FORMAT = "langchain"

_TYPES = {
    "user": "human",
    "assistant": "ai",
    "developer": "system",
    "HumanMessage": "human",
    "AIMessage": "ai",
    "SystemMessage": "system",
    "ToolMessage": "tool",
    "FunctionMessage": "function",
    "ChatMessage": "chat",
    "HumanMessageChunk": "human",
    "AIMessageChunk": "ai",
    "SystemMessageChunk": "system",
    "ToolMessageChunk": "tool",
}


def import_messages(value: Any, model: str = "") -> list[Entry]:
    """Entries of a list of messages, or of an object that holds one under `messages`."""
    if isinstance(value, dict):
        value = value.get("messages")
    if not isinstance(value, list):
        raise FormatError("no list of messages", hint='Give the list of messages_to_dict, or {"messages": [...]}.')
    return [
        entry
        for place, message in enumerate(value)
        for entry in tagged(_entries(message, f"messages[{place}]"), FORMAT, message, model)
    ]


def export_messages(entries: Iterable[Entry]) -> list[JsonObject]:
    """Messages for `messages_from_dict`; imported ones as they came."""
    out = exported(entries, WRITER, whole_message(_entries), model_info("openai-chat:"))
    return [*([_dict("system", out.system.text)] if out.system else []), *out.messages]


def _entries(message: Json, where: str = "message") -> list[Entry]:
    kind, data = _opened(message)
    match kind:
        case "human":
            return [_human(data.get("content"))]
        case "ai":
            return _ai(data)
        case "tool" | "function":
            call_id = str(data.get("tool_call_id") or data.get("name") or "")
            failed = True if data.get("status") == "error" else None
            return [result(call_id, content=text_of(data.get("content")), error=failed)]
        case "system":
            return [system(text_of(data.get("content")))]
    raise FormatError(f"{where}: unknown type {kind!r}", hint="Types are human, ai, tool, function, system, chat.")


def _opened(message: Json) -> tuple[str, JsonObject]:
    """A message's type and fields, whichever way it was written down."""
    if not isinstance(message, dict):
        return type(message).__name__, {}
    if message.get("lc") and isinstance(message.get("kwargs"), dict):
        named = str((listed(message, "id") or [""])[-1])
        return _TYPES.get(named, named), message["kwargs"]
    data = message["data"] if isinstance(message.get("data"), dict) else message
    kind = str(message.get("type") or message.get("role") or "")
    if kind in ("chat", "ChatMessage"):
        kind = str(data.get("role") or "user")
    return _TYPES.get(kind, kind), data


def _human(content: Json) -> Entry:
    blocks = [block for block in (content if isinstance(content, list) else ()) if isinstance(block, dict)]
    images = [image_json(_image(block)) for block in blocks if block.get("type") in ("image", "image_url")]
    return user(text_of(content), images=images or None)


def _image(block: JsonObject) -> Image:
    source = block.get("source")
    given = source if isinstance(source, dict) else block
    data = given.get("base64") or given.get("data")
    if data:
        return Image(media_type=str(given.get("mime_type") or given.get("media_type") or "image/png"), data=str(data))
    url = block.get("image_url") or given.get("url")
    return from_url(str(url.get("url") or "") if isinstance(url, dict) else str(url or ""))


def _ai(data: JsonObject) -> list[Entry]:
    """Thinking, text and calls in that order; a message with none of them is an empty respond."""
    content, extra = data.get("content"), sub(data, "additional_kwargs")
    out = _responses_items(data)
    if not out:
        out = _thoughts(data)
        if not out and extra.get("reasoning_content"):
            out = [think(str(extra["reasoning_content"]))]
        if text := text_of(content):
            out.append(respond(text))
    called = {entry.call_id for entry in out if entry.kind == "call"}
    for given in objects(data, "tool_calls"):
        if str(given.get("id") or "") not in called or not called:
            out.append(call(str(given.get("id") or ""), str(given.get("name") or ""), given.get("args")))
    for given in objects(data, "invalid_tool_calls"):
        raw = str(given.get("args") or "")
        out.append(call(str(given.get("id") or ""), str(given.get("name") or ""), raw, wire={"arguments": raw}))
    return out or [respond("")]


def _blocks(content: Json) -> list[JsonObject]:
    return [block for block in (content if isinstance(content, list) else ()) if isinstance(block, dict)]


def _model(data: JsonObject) -> str:
    answered = sub(data, "response_metadata")
    return str(answered.get("model_name") or answered.get("model") or "")


def _thoughts(data: JsonObject) -> list[Entry]:
    """What the model thought; signed, in the form that its provider takes back."""
    out = []
    for block in _blocks(data.get("content")):
        text = block.get("thinking") or block.get("reasoning") or block.get("reasoning_content")
        signed = {key: block[key] for key in ("type", "thinking", "signature", "data") if block.get(key)}
        own = {"format": "anthropic", "model": _model(data), "block": signed}
        if block.get("signature") or block.get("type") == "redacted_thinking":
            out.append(think(text if isinstance(text, str) else "", wire={"from": own}))
        elif isinstance(text, str) and text:
            out.append(think(text))
    return out


# Of a block that LangChain made of an item, what is its own.
_LANGCHAINS = ("index", "extras")


def _responses_items(data: JsonObject) -> list[Entry]:
    """The entries of a message whose content is the Responses API's items: reasoning goes back as it came."""
    blocks = _blocks(data.get("content"))
    if not any(block.get("type") == "reasoning" and "summary" in block for block in blocks):
        return []
    out = []
    for entry in entries_of([_item(block) for block in blocks], "openai-responses"):
        kept = {key: entry.wire[key] for key in ("after", "arguments") if key in entry.wire}
        own = {"format": RESPONSES, "model": _model(data), "block": entry.wire.get("block")}
        out.append(msgspec.structs.replace(entry, body={**entry.body, "wire": {**kept, "from": own}}))
    return out


def _item(block: JsonObject) -> JsonObject:
    item = {key: value for key, value in block.items() if key not in _LANGCHAINS and value is not None}
    if block.get("type") == "reasoning":
        told = [{"type": "summary_text", "text": str(each.get("text") or "")} for each in objects(block, "summary")]
        return {**{key: value for key, value in item.items() if key != "status"}, "summary": told}
    if block.get("type") == "text":
        said = {
            "type": "output_text",
            "text": str(block.get("text") or ""),
            "annotations": block.get("annotations") or [],
        }
        named = {"id": block["id"]} if block.get("id") else {}
        return {"type": "message", **named, "role": "assistant", "status": "completed", "content": [said]}
    return item


def text_of(content: Json) -> str:
    """The text of a message's content; calls and thinking in it are entries of their own."""
    return joined_text(content, _block_text)


def _block_text(block: Json) -> str:
    if not isinstance(block, dict):
        return str(block)
    if isinstance(block.get("text"), str):
        return str(block["text"])
    kind = str(block.get("type") or "block")
    silent = ("image", "image_url", "thinking", "redacted_thinking", "reasoning", "reasoning_content", "tool_use")
    return "" if kind in (*silent, "function_call", "tool_call", "invalid_tool_call") else f"[{kind}]"


def write(sheet: Draft, message: Message) -> None:
    """Add a message in the form of `messages_to_dict`."""
    match message.role:
        case "user":
            sheet.messages.append(_dict("human", _content(message.parts)))
        case "assistant":
            sheet.messages.append(_dict("ai", _content(message.parts), **_calls(message.parts)))
        case "tool":
            sheet.messages += [_tool(part) for part in message.parts if isinstance(part, Result)]
        case "note":
            sheet.messages.append(_dict("system", _content(message.parts)))


def _dict(kind: str, content: Json, **fields: Json) -> JsonObject:
    return {"type": kind, "data": {"content": content, "type": kind, **fields}}


def _content(parts: Iterable[Part]) -> Json:
    blocks: list[JsonObject] = []
    for part in parts:
        match part:
            case Text(text=text) if text:
                blocks.append({"type": "text", "text": text})
            case Think(text=text) if text:
                blocks.append({"type": "reasoning", "reasoning": text})
            case Image():
                blocks.append({"type": "image_url", "image_url": {"url": to_url(part)}})
    if all(block["type"] == "text" for block in blocks):
        return "\n\n".join(block["text"] for block in blocks)
    return blocks


def _calls(parts: Iterable[Part]) -> JsonObject:
    good: list[JsonObject] = []
    bad: list[JsonObject] = []
    for part in parts:
        if isinstance(part, Call) and isinstance(part.args, str):
            bad.append(
                {"type": "invalid_tool_call", "id": part.call_id, "name": part.name, "args": part.args, "error": None}
            )
        elif isinstance(part, Call):
            good.append({"type": "tool_call", "id": part.call_id, "name": part.name, "args": object_of(part.args)})
    return {"tool_calls": good, "invalid_tool_calls": bad}


def _tool(part: Result) -> JsonObject:
    status = "error" if part.error else "success"
    return _dict("tool", part.text, tool_call_id=part.call_id, name=part.name or None, status=status)


WRITER = Writer(
    FORMAT,
    ids=lambda info: Spelling(),
    write=write,
    end=lambda sheet: None,
    body=lambda sheet, prompt: {"messages": sheet.messages},
    headers=lambda sheet: {},
)
WIRE = Format(name=FORMAT, imports=import_messages, exports=export_messages)
