"""Messages in Anthropic's form, and the request around them.

Late notes and tools are messages of role `system` where the model takes them; elsewhere notes join the
user message before them, and tools the list in front.
"""

from __future__ import annotations

from quire.providers.anthropic.blocks import ENCLOSURE, FORMAT, NAMES, image, tool_result, written
from quire.providers.facts import data
from quire.providers.images import shown_images
from quire.providers.models import ModelInfo
from quire.providers.sheet import (
    GO_ON,
    NO_REPLY,
    NO_TEXT,
    Sheet,
    Writer,
    note_text,
    texts,
    wanted_effort,
)
from quire.providers.spelling import Spelling
from quire.values import Call, JsonObject, Message, Prompt, Result, Text, Think, ToolSet

# Enough for most replies, and few enough that the SDK sends without streaming.
REPLY_TOKENS = 8192


def write(sheet: Sheet, message: Message) -> None:
    """Add a message's own messages; the API itself joins two of one role."""
    match message.role:
        case "user":
            if sheet.last.get("role") == "system":
                # A system message may stand before an assistant's alone.
                sheet.bridge({"role": "assistant", "content": [_text(NO_REPLY)]})
            sheet.messages.append({"role": "user", "content": _user(sheet, message)})
        case "assistant":
            _assistant(sheet, message)
        case "tool":
            results = [tool_result(part, sheet) for part in message.parts if isinstance(part, Result)]
            sheet.messages.append({"role": "user", "content": results})
        case "note":
            _note(sheet, message)
        case "tools":
            _tools(sheet, message)


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _user(sheet: Sheet, message: Message) -> list[JsonObject]:
    blocks = [_text(text) for text in texts(message)]
    blocks += shown_images(sheet, message, image, _text)
    return ENCLOSURE.shown(sheet, message, blocks) or [_text(NO_TEXT)]


def _assistant(sheet: Sheet, message: Message) -> None:
    blocks = [
        block
        for part in message.parts
        if isinstance(part, Text | Think | Call) and (block := written(part, message, sheet))
    ]
    if all(block["type"] in ("thinking", "redacted_thinking") for block in blocks):
        sheet.leave_out(message, "empty message")
        return
    if not sheet.messages:
        sheet.bridge({"role": "user", "content": [_text(GO_ON)]})
    sheet.messages.append({"role": "assistant", "content": blocks})


def _note(sheet: Sheet, message: Message) -> None:
    features, effort = sheet.info.features, wanted_effort(message)
    late = features.late_system and _takes_system(sheet)
    extra: JsonObject = {}
    if effort and late and features.late_effort:
        sheet.need_beta(*_betas("late_effort"))
        extra = {"output_config": {"effort": effort}}
    elif effort:
        sheet.effort = effort
        sheet.leave_out(
            message, "effort is set for the whole request, which moves the prefix of the messages"
        )
    if late and (texts(message) or extra):
        _system(sheet, [_text(text) for text in texts(message)], extra)
    elif texts(message):
        _as_user_text(sheet, note_text(message))


def _takes_system(sheet: Sheet) -> bool:
    """A system message may follow a user's, or go on while no request has shown it."""
    return sheet.last.get("role") == "user" or sheet.unsent.get("role") == "system"


def _system(sheet: Sheet, blocks: list[JsonObject], extra: JsonObject) -> None:
    """One system message for everything that came between two turns."""
    if sheet.last.get("role") == "system":
        before = sheet.messages.pop()
        blocks, extra = [*before["content"], *blocks], {**before, **extra}
    sheet.messages.append({**extra, "role": "system", "content": blocks})


def _as_user_text(sheet: Sheet, text: str) -> None:
    if sheet.unsent.get("role") == "user":
        sheet.messages[-1] = {**sheet.last, "content": [*_listed(sheet.last["content"]), _text(text)]}
        return
    if sheet.last.get("role") == "system":
        sheet.bridge({"role": "assistant", "content": [_text(NO_REPLY)]})
    sheet.messages.append({"role": "user", "content": [_text(text)]})


def _listed(content: str | list[JsonObject]) -> list[JsonObject]:
    return [_text(content)] if isinstance(content, str) else content


def _tools(sheet: Sheet, message: Message) -> None:
    tools = tuple(tool for part in message.parts if isinstance(part, ToolSet) for tool in part.tools)
    features = sheet.info.features
    if not (features.late_tools and features.inline_tools and _takes_system(sheet)):
        sheet.add_tools_in_front(message, tools)
        return
    if not (known := sheet.offered(tools, message)):
        return
    sheet.need_beta(*_betas("late_tools"), *_betas("inline_tools"))
    inline = [{"type": "tool_definition", "definition": one} for one in sheet.defined(known, tool_definition)]
    _system(sheet, [{"type": "tool_addition", "tool": one} for one in inline], {})


def _betas(name: str) -> list[str]:
    return list(data("dialects")["betas"][name])


def tool_definition(tool: JsonObject) -> JsonObject:
    """A tool as Anthropic defines one."""
    schema = {"type": "object", **(tool.get("parameters") or {"properties": {}})}
    description = {"description": tool["description"]} if tool.get("description") else {}
    return {"name": NAMES.spell(tool["name"]), **description, "input_schema": schema}


def _end(sheet: Sheet) -> None:
    if not sheet.messages or (sheet.last.get("role") == "assistant" and not sheet.info.features.prefill):
        sheet.bridge({"role": "user", "content": [_text(GO_ON)]})


def _body(sheet: Sheet, prompt: Prompt) -> JsonObject:
    info, ask = sheet.info, sheet.ask
    body: JsonObject = {
        "model": info.model,
        "max_tokens": ask.max_tokens or min(info.max_output or REPLY_TOKENS, REPLY_TOKENS),
    }
    if tools := sheet.tools(prompt):
        body["tools"] = sheet.defined(tools, tool_definition)
    if prompt.system.strip():
        body["system"] = [_text(prompt.system)]
    body["messages"] = sheet.messages
    if effort := sheet.effort or ask.effort:
        body["output_config"] = {"effort": effort}
    return {**body, **ask.extra}


def _headers(sheet: Sheet) -> dict[str, str]:
    return {"anthropic-beta": ",".join(sheet.betas)} if sheet.betas else {}


def _ids(info: ModelInfo) -> Spelling:
    return Spelling()


WRITER = Writer(FORMAT, _ids, write, _end, _body, _headers)
