"""pydantic-ai messages (`ModelMessagesTypeAdapter`, `all_messages_json`) into entries, and back verbatim."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from quire.errors import FormatError
from quire.providers.convert import from_url, image_json
from quire.providers.incoming import joined_text, objects, tagged, whole_message
from quire.providers.models import model_info
from quire.providers.outgoing import exported
from quire.providers.rendering import Draft, Writer
from quire.providers.spelling import Spelling, parsed_arguments
from quire.providers.wires import Format
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

FORMAT = "pydantic-ai"
# Parts that a model is not shown: what was on offer when, and how it was asked.
_SILENT = ("tool-availability-delta", "model-settings-delta", "instruction-baseline", "instruction-delta")
# The moment of what is written anew: always the same, where pydantic-ai would put the present one.
_MADE = "1970-01-01T00:00:00Z"
# Of results, those that did not succeed.
_FAILED = ("failed", "denied", "interrupted", "retried")


def import_messages(value: Any, model: str = "") -> list[Entry]:
    """Entries of a list of messages, or of an object that holds one; a run's `instructions` are not among them."""
    if isinstance(value, dict):
        value = value.get("messages")
    if not isinstance(value, list):
        raise FormatError("no list of messages", hint="Give what all_messages_json() writes.")
    return [
        entry
        for place, message in enumerate(value)
        for entry in tagged(_entries(message, f"messages[{place}]"), FORMAT, message, model)
    ]


def export_messages(entries: Iterable[Entry]) -> list[JsonObject]:
    """Messages for `ModelMessagesTypeAdapter`; imported ones as they came."""
    out = exported(entries, WRITER, whole_message(_entries), model_info("openai-chat:"))
    head = [_request(_part("system-prompt", content=out.system.text))] if out.system else []
    return [*head, *out.messages]


def _entries(message: Json, where: str = "message") -> list[Entry]:
    kind = message.get("kind") if isinstance(message, dict) else None
    if kind not in ("request", "response"):
        raise FormatError(f"{where}: unknown kind {kind!r}", hint="Messages are of kind request or response.")
    read = _asked if kind == "request" else _spoken
    found = [entry for part in objects(message, "parts") for entry in read(part)]
    return found or [respond("") if kind == "response" else user("")]


def _asked(part: JsonObject) -> Iterator[Entry]:
    kind, content = part.get("part_kind"), part.get("content")
    if kind == "system-prompt":
        yield system(text_of(content))
    elif kind == "tool-return" or (kind == "retry-prompt" and part.get("tool_name")):
        failed = True if kind == "retry-prompt" or part.get("outcome") in _FAILED else None
        yield result(str(part.get("tool_call_id") or ""), content=text_of(content), error=failed)
    elif kind not in _SILENT:
        given = content if isinstance(content, list) else [content]
        images = [image_json(found) for each in given if (found := _image(each)) is not None]
        yield user(text_of(content), images=images or None)


def _spoken(part: JsonObject) -> Iterator[Entry]:
    kind, content = part.get("part_kind"), part.get("content")
    if kind == "thinking":
        yield think(str(content or ""))
    elif kind == "tool-call":
        given = part.get("args") or {}
        args, wire = parsed_arguments(given) if isinstance(given, str) else (given, {})
        named = str(part.get("tool_call_id") or ""), str(part.get("tool_name") or "")
        yield call(*named, args, wire=wire)
    elif kind == "text" and content:
        yield respond(str(content))
    elif kind not in ("text", None):
        # What only its provider can read goes back whole with its message, or not at all.
        yield respond(f"[{part.get('tool_name') or kind}]")


def _image(block: Json) -> Image | None:
    if not isinstance(block, dict):
        return None
    media = str(block.get("media_type") or "")
    if block.get("kind") == "image-url":
        return from_url(str(block.get("url") or ""), media)
    if block.get("kind") == "binary" and media.startswith("image/"):
        return Image(media_type=media, data=str(block.get("data") or ""))
    return None


def text_of(content: Json) -> str:
    """The text of a part's content: words as they are, a tool's own values as JSON."""
    if content is None or isinstance(content, str | list):
        return joined_text(content, _block_text)
    return json.dumps(content, ensure_ascii=False)


def _block_text(block: Json) -> str:
    if not isinstance(block, dict):
        return block if isinstance(block, str) else json.dumps(block, ensure_ascii=False)
    kind = block.get("kind")
    if kind in ("text-content", "structured-content"):
        return text_of(block.get("content"))
    if kind == "cache-point" or _image(block) is not None:
        return ""
    return f"[{kind}]" if kind else json.dumps(block, ensure_ascii=False)


def write(sheet: Draft, message: Message) -> None:
    """Add a message in the form of `ModelMessagesTypeAdapter`."""
    if message.role == "assistant":
        parts = [written for part in message.parts for written in _answer(part)]
        sheet.messages.append({"kind": "response", "parts": parts, "timestamp": _MADE})
    elif message.role == "tool":
        sheet.messages.append(_request(*(_return(part) for part in message.parts if isinstance(part, Result))))
    elif message.role == "note":
        said = "\n\n".join(part.text for part in message.parts if isinstance(part, Text))
        sheet.messages.append(_request(_part("system-prompt", content=said)))
    elif message.role == "user":
        sheet.messages.append(_request(_part("user-prompt", content=_content(message.parts))))


def _request(*parts: JsonObject) -> JsonObject:
    return {"kind": "request", "parts": list(parts)}


def _part(kind: str, **fields: Json) -> JsonObject:
    return {**fields, "timestamp": _MADE, "part_kind": kind}


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


def _content(parts: Iterable[Part]) -> Json:
    out: list[Json] = []
    for part in parts:
        if isinstance(part, Text) and part.text:
            out.append(part.text)
        elif isinstance(part, Image) and part.url:
            out.append({"url": part.url, "kind": "image-url"})
        elif isinstance(part, Image):
            out.append({"data": part.data, "media_type": part.media_type, "kind": "binary"})
    return out[0] if len(out) == 1 and isinstance(out[0], str) else out


WRITER = Writer(
    FORMAT,
    ids=lambda info: Spelling(),
    write=write,
    end=lambda sheet: None,
    body=lambda sheet, prompt: {"messages": sheet.messages},
    headers=lambda sheet: {},
)
WIRE = Format(name=FORMAT, imports=import_messages, exports=export_messages)
