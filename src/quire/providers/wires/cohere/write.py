"""Messages in the form of Cohere's Chat API v2, and the request around them."""

from __future__ import annotations

from quire.providers.convert import (
    Enclosure,
    is_web,
    leave_out_block,
    leave_out_thinking,
    own_block,
    shown_images,
    to_url,
)
from quire.providers.incoming import joined_text
from quire.providers.models import ModelInfo
from quire.providers.provider_tools import Native
from quire.providers.rendering import GO_ON, NO_OUTPUT, NO_TEXT, Draft, Writer, note_text, texts, wanted_effort
from quire.providers.spelling import Spelling, compact, object_text
from quire.values import Call, Image, Json, JsonObject, Message, Prompt, Result, Text, Think, ToolSet

FORMAT = "cohere"
NAMES = Spelling()


def text_of(content: Json) -> str:
    """The text of a message's content; documents and other parts are named in brackets."""
    return joined_text(content, _part_text)


def _part_text(part: Json) -> str:
    if not isinstance(part, dict):
        return str(part)
    if part.get("type") == "document" and isinstance(part.get("document"), dict):
        data = part["document"].get("data")
        return data if isinstance(data, str) else compact(data)
    return str(part["text"]) if "text" in part else f"[{kind}]" if (kind := _kind(part)) else ""


def _kind(part: JsonObject) -> str:
    """What an entry cannot hold of a user's part."""
    kind = str(part.get("type") or "part")
    return "" if kind in ("text", "image_url", "thinking") else kind


ENCLOSURE = Enclosure(_kind, text_of)


def write(sheet: Draft, message: Message) -> None:
    """Add a message's own messages; a late instruction is text of the user's."""
    match message.role:
        case "user":
            sheet.messages.append({"role": "user", "content": _user(sheet, message)})
        case "assistant":
            _assistant(sheet, message)
        case "tool":
            sheet.messages += [_result(part) for part in message.parts if isinstance(part, Result)]
        case "note":
            _note(sheet, message)
        case "tools":
            for part in message.parts:
                if isinstance(part, ToolSet):
                    sheet.add_tools_in_front(message, part.tools)


def _part(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _user(sheet: Draft, message: Message) -> list[JsonObject]:
    parts = [_part(text) for text in texts(message)]
    parts += shown_images(sheet, message, _image, _part)
    return ENCLOSURE.shown(sheet, message, parts) or [_part(NO_TEXT)]


def _image(image: Image) -> JsonObject | None:
    if not (image.data or is_web(image.url)):
        return None
    return {"type": "image_url", "image_url": {"url": to_url(image)}}


def _assistant(sheet: Draft, message: Message) -> None:
    content: list[JsonObject] = []
    plan: JsonObject = {}
    for part in message.parts:
        match part:
            case Text():
                leave_out_block(part, message, sheet)
                content += [_part(part.text)] if part.text.strip() else []
            case Think():
                own = own_block(part, sheet)
                if own is None:
                    leave_out_thinking(part, message, sheet)
                elif "tool_plan" in own:
                    plan = own
                else:
                    content.append(own)
    calls = [_call(part) for part in message.parts if isinstance(part, Call)]
    if not calls and not any(part["type"] == "text" for part in content):
        sheet.leave_out(message, "empty message")
        return
    out: JsonObject = {"role": "assistant", **({"content": content} if content else {})}
    sheet.messages.append({**out, **plan, "tool_calls": calls} if calls else out)


def _call(part: Call) -> JsonObject:
    arguments = part.arguments or str(part.wire.get("arguments") or "") or compact(part.args)
    function = {"name": NAMES.spell(part.name), "arguments": object_text(part.args, arguments)}
    return {"id": part.call_id, "type": "function", "function": function}


def _result(part: Result) -> JsonObject:
    text = part.text if part.text.strip() else NO_OUTPUT
    return {"role": "tool", "tool_call_id": part.call_id, "content": [_part(text)]}


def _note(sheet: Draft, message: Message) -> None:
    if wanted_effort(message):
        sheet.leave_out(message, "reasoning effort has no words here")
    if not texts(message):
        return
    if sheet.unsent.get("role") == "user":
        sheet.messages[-1] = {"role": "user", "content": [*sheet.last["content"], _part(note_text(message))]}
    else:
        sheet.messages.append({"role": "user", "content": [_part(note_text(message))]})


def tool_definition(tool: JsonObject) -> JsonObject:
    """A tool as the Chat API defines one."""
    function = {
        "name": NAMES.spell(tool["name"]),
        "description": tool.get("description", ""),
        "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _end(sheet: Draft) -> None:
    if sheet.last.get("role") not in ("user", "tool"):
        sheet.bridge({"role": "user", "content": [_part(GO_ON)]})


def _body(sheet: Draft, prompt: Prompt) -> JsonObject:
    head = [{"role": "system", "content": prompt.system}] if prompt.system.strip() else []
    body: JsonObject = {"model": sheet.info.model, "messages": [*head, *sheet.messages]}
    if tools := sheet.tools(prompt):
        body["tools"] = sheet.defined(tools, tool_definition)
    if sheet.ask.max_tokens:
        body["max_tokens"] = sheet.ask.max_tokens
    return {**body, **sheet.ask.extra}


def _ids(info: ModelInfo) -> Spelling:
    return Spelling()


WRITER = Writer(FORMAT, _ids, write, _end, _body, lambda sheet: {}, Native((FORMAT,)))
