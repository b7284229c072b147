"""Messages as frameworks keep them (LangChain, pydantic-ai): for import and export alone, the framework is not needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import msgspec

from quire import values
from quire.errors import FormatError
from quire.providers.convert import from_url, image_json, joined_text, to_url
from quire.providers.incoming import objects, optional_list, sub, tag_message
from quire.providers.models import model_info
from quire.providers.outgoing import export_thread, object_of, whole_message
from quire.providers.rendering import Draft, Writer
from quire.providers.wires import Format
from quire.providers.wires.openai_chat import call_entry
from quire.providers.wires.openai_responses import entries_of
from quire.providers.wires.openai_responses.write import FORMAT as RESPONSES
from quire.values import Call, Entry, Image, Json, JsonObject, Message, Part, Result, Text, Think, as_object, as_objects

# Reads one message; `where` names it in an error.
_Read: TypeAlias = Callable[[Json, str], list[Entry]]
_Write: TypeAlias = Callable[[Draft, Message], None]


def _format(name: str, read: _Read, write: _Write, instruct: Callable[[str], JsonObject], give: str) -> Format:
    """A framework's format: imported messages are exported as they came, all others as `write` writes them."""
    writer = Writer(name, write, lambda draft, prompt: {"messages": draft.messages})

    def imports(value: Any, model: str = "") -> list[Entry]:
        if isinstance(value, dict):
            value = value.get("messages")
        if not isinstance(value, list):
            raise FormatError("no list of messages", hint=give)
        read_each = ((message, read(message, f"messages[{place}]")) for place, message in enumerate(value))
        return [entry for message, entries in read_each for entry in tag_message(entries, name, message, model)]

    def exports(entries: Iterable[Entry]) -> list[JsonObject]:
        out = export_thread(
            entries, writer, whole_message(lambda message: read(message, "message")), model_info("openai-chat:")
        )
        return [*([instruct(out.system.text)] if out.system else []), *out.messages]

    return Format(name=name, imports=imports, exports=exports)


# LangChain: `messages_to_dict`, plain `model_dump`, or serialised constructors.

_TYPES = {"user": "human", "assistant": "ai", "developer": "system"}


def _type(name: str) -> str:
    """user, HumanMessage, HumanMessageChunk -> human"""
    return _TYPES.get(name) or name.removesuffix("Chunk").removesuffix("Message").lower()


def _entries(message: Json, where: str) -> list[Entry]:
    kind, data = _type_and_fields(message)
    match kind:
        case "human":
            content = data.get("content")
            images = [block for block in as_objects(content) if block.get("type") in ("image", "image_url")]
            return [values.user(text_of(content), images=[image_json(_image(block)) for block in images] or None)]
        case "ai":
            return _ai(data)
        case "tool" | "function":
            call_id = str(data.get("tool_call_id") or data.get("name") or "")
            failed = True if data.get("status") == "error" else None
            return [values.result(call_id, content=text_of(data.get("content")), error=failed)]
        case "system":
            return [values.system(text_of(data.get("content")))]
    raise FormatError(f"{where}: unknown type {kind!r}", hint="Types are human, ai, tool, function, system, chat.")


def _type_and_fields(message: Json) -> tuple[str, JsonObject]:
    """A message's type and fields, whichever way it was written down."""
    if not isinstance(message, dict):
        return type(message).__name__, {}
    if message.get("lc") and isinstance(message.get("kwargs"), dict):
        named = str((optional_list(message, "id") or [""])[-1])
        return _type(named), message["kwargs"]
    data = message["data"] if isinstance(message.get("data"), dict) else message
    kind = str(message.get("type") or message.get("role") or "")
    if kind in ("chat", "ChatMessage"):
        kind = str(data.get("role") or "user")
    return _type(kind), data


def _image(block: JsonObject) -> Image:
    source = block.get("source")
    fields = source if isinstance(source, dict) else block
    data = fields.get("base64") or fields.get("data")
    if data:
        return Image(media_type=str(fields.get("mime_type") or fields.get("media_type") or "image/png"), data=str(data))
    url = block.get("image_url") or fields.get("url")
    return from_url(str(url.get("url") or "") if isinstance(url, dict) else str(url or ""))


def _ai(data: JsonObject) -> list[Entry]:
    """Thinking, text and calls in that order; a message with none of them is an empty respond."""
    content, extra = data.get("content"), sub(data, "additional_kwargs")
    out = _responses_items(data)
    if not out:
        out = _thoughts(data)
        if not out and extra.get("reasoning_content"):
            out = [values.think(str(extra["reasoning_content"]))]
        if text := text_of(content):
            out.append(values.respond(text))
    called = {entry.call_id for entry in out if entry.kind == "call"}
    for call in objects(data, "tool_calls"):
        if str(call.get("id") or "") not in called or not called:
            out.append(values.call(str(call.get("id") or ""), str(call.get("name") or ""), call.get("args")))
    for call in objects(data, "invalid_tool_calls"):
        raw = str(call.get("args") or "")
        out.append(values.call(str(call.get("id") or ""), str(call.get("name") or ""), raw, wire={"arguments": raw}))
    if not (data.get("tool_calls") or data.get("invalid_tool_calls")):
        # Calls as OpenAI wrote them, of a message from before LangChain read calls itself.
        out += [call_entry(call) for call in objects(extra, "tool_calls") if str(call.get("id")) not in called]
    return out or [values.respond("")]


def _model(data: JsonObject) -> str:
    answered = sub(data, "response_metadata")
    return str(answered.get("model_name") or answered.get("model") or "")


def _thoughts(data: JsonObject) -> list[Entry]:
    """What the model thought; signed, in the form that its provider takes back."""
    out = []
    for block in as_objects(data.get("content")):
        text = block.get("thinking") or block.get("reasoning") or block.get("reasoning_content")
        signed = {key: block[key] for key in ("type", "thinking", "signature", "data") if block.get(key)}
        origin = {"format": "anthropic", "model": _model(data), "block": signed}
        if block.get("signature") or block.get("type") == "redacted_thinking":
            out.append(values.think(text if isinstance(text, str) else "", wire={"from": origin}))
        elif isinstance(text, str) and text:
            out.append(values.think(text))
    return out


# Of a block that LangChain made of an item, what is its own.
_LANGCHAINS = ("index", "extras")


def _responses_items(data: JsonObject) -> list[Entry]:
    """The entries of a message whose content is the Responses API's items: reasoning goes back as it came."""
    blocks = as_objects(data.get("content"))
    if not any(block.get("type") == "reasoning" and "summary" in block for block in blocks):
        return []
    out = []
    for entry in entries_of([_item(block) for block in blocks], "openai-responses"):
        wire = {key: entry.wire[key] for key in ("after", "arguments") if key in entry.wire}
        origin = {"format": RESPONSES, "model": _model(data), "block": entry.wire.get("block")}
        out.append(msgspec.structs.replace(entry, body={**entry.body, "wire": {**wire, "from": origin}}))
    return out


def _item(block: JsonObject) -> JsonObject:
    item = {key: value for key, value in block.items() if key not in _LANGCHAINS and value is not None}
    if block.get("type") == "reasoning":
        summary = [{"type": "summary_text", "text": str(part.get("text") or "")} for part in objects(block, "summary")]
        return {**{key: value for key, value in item.items() if key != "status"}, "summary": summary}
    if block.get("type") == "text":
        text, notes = str(block.get("text") or ""), block.get("annotations") or []
        output = {"type": "output_text", "text": text, "annotations": notes}
        named = {"id": block["id"]} if block.get("id") else {}
        return {"type": "message", **named, "role": "assistant", "status": "completed", "content": [output]}
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


def write(draft: Draft, message: Message) -> None:
    """Add a message in the form of `messages_to_dict`."""
    match message.role:
        case "user":
            draft.messages.append(_dict("human", _content(message.parts)))
        case "assistant":
            draft.messages.append(_dict("ai", _content(message.parts), **_calls(message.parts)))
        case "tool":
            for part in (part for part in message.parts if isinstance(part, Result)):
                about = {"tool_call_id": part.call_id, "name": part.name or None}
                draft.messages.append(_dict("tool", part.text, **about, status="error" if part.error else "success"))
        case "note":
            draft.messages.append(_dict("system", _content(message.parts)))


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


# pydantic-ai: `ModelMessagesTypeAdapter`, `all_messages_json`. A run's `instructions` are not among the messages.

# Parts that a model is not shown: what was on offer when, and how it was asked.
SILENT_PARTS = ("tool-availability-delta", "model-settings-delta", "instruction-baseline", "instruction-delta")
# The moment of what is written anew: always the same, where pydantic-ai would put the present one.
_WRITTEN_AT = "1970-01-01T00:00:00Z"
# Of results, those that did not succeed.
FAILED = ("failed", "denied", "interrupted", "retried")


def _pydantic_ai_entries(message: Json, where: str) -> list[Entry]:
    kind = as_object(message).get("kind")
    if kind not in ("request", "response"):
        raise FormatError(f"{where}: unknown kind {kind!r}", hint="Messages are of kind request or response.")
    read = _request_entries if kind == "request" else _response_entries
    entries = [entry for part in objects(message, "parts") for entry in read(part)]
    return entries or [values.respond("") if kind == "response" else values.user("")]


def _request_entries(part: JsonObject) -> Iterator[Entry]:
    kind, content = part.get("part_kind"), part.get("content")
    if kind == "system-prompt":
        yield values.system(_pydantic_ai_text(content))
    elif kind == "tool-return" or (kind == "retry-prompt" and part.get("tool_name")):
        failed = True if kind == "retry-prompt" or part.get("outcome") in FAILED else None
        yield values.result(str(part.get("tool_call_id") or ""), content=_pydantic_ai_text(content), error=failed)
    elif kind not in SILENT_PARTS:
        pieces = content if isinstance(content, list) else [content]
        images = [image_json(image) for piece in pieces if (image := _pydantic_ai_image(piece)) is not None]
        yield values.user(_pydantic_ai_text(content), images=images or None)


def _response_entries(part: JsonObject) -> Iterator[Entry]:
    kind, content = part.get("part_kind"), part.get("content")
    if kind == "thinking":
        yield values.think(str(content or ""))
    elif kind == "tool-call":
        function = {"name": part.get("tool_name"), "arguments": part.get("args")}
        yield call_entry({"id": part.get("tool_call_id"), "function": function})
    elif kind == "text" and content:
        yield values.respond(str(content))
    elif kind not in ("text", None):
        # What only its provider can read goes back whole with its message, or not at all.
        yield values.respond(f"[{part.get('tool_name') or kind}]")


def _pydantic_ai_image(block: Json) -> Image | None:
    if not isinstance(block, dict):
        return None
    media = str(block.get("media_type") or "")
    if block.get("kind") == "image-url":
        return from_url(str(block.get("url") or ""), media)
    if block.get("kind") == "binary" and media.startswith("image/"):
        return Image(media_type=media, data=str(block.get("data") or ""))
    return None


def _pydantic_ai_text(content: Json) -> str:
    """The text of a part's content: words as they are, a tool's own values as JSON."""
    if content is None or isinstance(content, str | list):
        return joined_text(content, _pydantic_ai_block)
    return json.dumps(content, ensure_ascii=False)


def _pydantic_ai_block(block: Json) -> str:
    if not isinstance(block, dict):
        return block if isinstance(block, str) else json.dumps(block, ensure_ascii=False)
    kind = block.get("kind")
    if kind in ("text-content", "structured-content"):
        return _pydantic_ai_text(block.get("content"))
    if kind == "cache-point" or _pydantic_ai_image(block) is not None:
        return ""
    return f"[{kind}]" if kind else json.dumps(block, ensure_ascii=False)


def _write_pydantic_ai(draft: Draft, message: Message) -> None:
    """Add a message in the form of `ModelMessagesTypeAdapter`."""
    if message.role == "assistant":
        parts = [written for part in message.parts for written in _answer(part)]
        draft.messages.append({"kind": "response", "parts": parts, "timestamp": _WRITTEN_AT})
    elif message.role == "tool":
        draft.messages.append(_request(*(_return(part) for part in message.parts if isinstance(part, Result))))
    elif message.role == "note":
        text = "\n\n".join(part.text for part in message.parts if isinstance(part, Text))
        draft.messages.append(_request(_part("system-prompt", content=text)))
    elif message.role == "user":
        draft.messages.append(_request(_part("user-prompt", content=_pydantic_ai_content(message.parts))))


def _request(*parts: JsonObject) -> JsonObject:
    return {"kind": "request", "parts": list(parts)}


def _part(kind: str, **fields: Json) -> JsonObject:
    return {**fields, "timestamp": _WRITTEN_AT, "part_kind": kind}


def _answer(part: Part) -> Iterator[JsonObject]:
    match part:
        case Text(text=text) if text:
            yield {"content": text, "part_kind": "text"}
        case Think(text=text) if text:
            yield {"content": text, "part_kind": "thinking"}
        case Call():
            yield {"tool_name": part.name, "args": part.args, "tool_call_id": part.call_id, "part_kind": "tool-call"}


def _return(part: Result) -> JsonObject:
    outcome = "failed" if part.error else "success"
    return _part("tool-return", tool_name=part.name, content=part.text, tool_call_id=part.call_id, outcome=outcome)


def _pydantic_ai_content(parts: Iterable[Part]) -> Json:
    out: list[Json] = []
    for part in parts:
        if isinstance(part, Text) and part.text:
            out.append(part.text)
        elif isinstance(part, Image) and part.url:
            out.append({"url": part.url, "kind": "image-url"})
        elif isinstance(part, Image):
            out.append({"data": part.data, "media_type": part.media_type, "kind": "binary"})
    return out[0] if len(out) == 1 and isinstance(out[0], str) else out


LANGCHAIN = _format(
    "langchain",
    _entries,
    write,
    lambda text: _dict("system", text),
    'Give the list of messages_to_dict, or {"messages": [...]}.',
)
PYDANTIC_AI = _format(
    "pydantic-ai",
    _pydantic_ai_entries,
    _write_pydantic_ai,
    lambda text: _request(_part("system-prompt", content=text)),
    "Give what all_messages_json() writes.",
)
