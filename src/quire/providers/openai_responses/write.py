"""Messages as the Responses API's items, and the request around them."""

from __future__ import annotations

from quire.providers.dialect import dialect_of
from quire.providers.images import shown_images
from quire.providers.models import ModelInfo
from quire.providers.openai_responses.items import ENCLOSURE, FORMAT, IDS, NAMES, image, output, written
from quire.providers.sheet import GO_ON, Sheet, Writer, texts, user_text, wanted_effort
from quire.providers.spelling import Spelling
from quire.values import Call, JsonObject, Message, Prompt, Result, Text, Think, ToolSet


def write(sheet: Sheet, message: Message) -> None:
    """Add a message's own items."""
    match message.role:
        case "user":
            sheet.messages.append(_user(sheet, message))
        case "assistant":
            _assistant(sheet, message)
        case "tool":
            sheet.messages += [output(part, sheet) for part in message.parts if isinstance(part, Result)]
        case "note":
            _note(sheet, message)
        case "tools":
            _tools(sheet, message)


def _text(text: str) -> JsonObject:
    return {"type": "input_text", "text": text}


def _user(sheet: Sheet, message: Message) -> JsonObject:
    content = [_text(text) for text in texts(message)]
    content += shown_images(sheet, message, image, _text)
    content = ENCLOSURE.shown(sheet, message, content) or [_text(user_text(message))]
    return {"type": "message", "role": "user", "content": content}


def _instruction(sheet: Sheet, text: str) -> JsonObject:
    role = "developer" if sheet.info.features.developer_role else "system"
    return {"type": "message", "role": role, "content": [_text(text)]}


def _assistant(sheet: Sheet, message: Message) -> None:
    before = len(sheet.messages)
    sources: list[Text | Think | Call] = []
    for part in message.parts:
        if isinstance(part, Text | Think | Call) and (item := written(part, message, sheet)):
            sheet.messages.append(item)
            sources.append(part)
    while sources and isinstance(sources[-1], Think):
        sheet.messages.pop()
        sheet.leave_out(message, "reasoning without an item behind it", sources.pop())
    if len(sheet.messages) == before:
        sheet.leave_out(message, "empty message")


def _note(sheet: Sheet, message: Message) -> None:
    sheet.messages += [_instruction(sheet, text) for text in texts(message)]
    if not (effort := wanted_effort(message)):
        return
    if sheet.info.features.late_effort:
        sheet.messages.append({"type": "configuration_update", "reasoning": {"effort": effort}})
    else:
        sheet.effort = effort
        sheet.leave_out(message, "effort is set for the whole request, which may move the prefix")


def _tools(sheet: Sheet, message: Message) -> None:
    tools = tuple(tool for part in message.parts if isinstance(part, ToolSet) for tool in part.tools)
    if not sheet.info.features.late_tools:
        sheet.add_tools_in_front(message, tools)
        return
    if listed := sheet.defined(sheet.offered(tools, message), tool_definition):
        sheet.messages.append({"type": "additional_tools", "role": "developer", "tools": listed})


def tool_definition(tool: JsonObject) -> JsonObject:
    """A tool as the Responses API defines one; not strict, because schemas are taken as they are."""
    return {
        "type": "function",
        "name": NAMES.spell(tool["name"]),
        "description": tool.get("description", ""),
        "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
        "strict": False,
    }


def _end(sheet: Sheet) -> None:
    """The last item may be any, but there must be one."""
    if not sheet.messages:
        sheet.bridge({"type": "message", "role": "user", "content": [_text(GO_ON)]})


def _body(sheet: Sheet, prompt: Prompt) -> JsonObject:
    info, ask = sheet.info, sheet.ask
    head = [_instruction(sheet, prompt.system)] if prompt.system else []
    body: JsonObject = {"model": info.model, "input": [*head, *sheet.messages], "store": False}
    if tools := sheet.tools(prompt):
        body["tools"] = sheet.defined(tools, tool_definition)
    if info.features.reasoning and dialect_of(info).encrypted:
        body["include"] = ["reasoning.encrypted_content"]
    if ask.max_tokens:
        body["max_output_tokens"] = ask.max_tokens
    if effort := sheet.effort or ask.effort:
        body["reasoning"] = {"effort": effort}
    return {**body, **_key(sheet), **ask.extra}


def _key(sheet: Sheet) -> JsonObject:
    key, place = sheet.ask.key, dialect_of(sheet.info).key_in
    if not key or not sheet.info.cache.key:
        return {}
    if place == "extra":
        return {"extra_body": {sheet.info.cache.key: key}} if sheet.info.cache.key != "id_slot" else {}
    return {"prompt_cache_key": key}


def _headers(sheet: Sheet) -> dict[str, str]:
    return {}


def _ids(info: ModelInfo) -> Spelling:
    return IDS


WRITER = Writer(FORMAT, _ids, write, _end, _body, _headers)
