"""Messages in Converse's form, and the request around them.

User and assistant take turns here; where two of one side would stand together, a turn that was never taken
stands between them, so that no message changes when another follows.
"""

from __future__ import annotations

from quire.providers.bedrock.blocks import (
    ENCLOSURE,
    FORMAT,
    IDS,
    NAMES,
    image,
    told_call,
    told_result,
    tool_result,
    written,
)
from quire.providers.images import shown_images
from quire.providers.models import ModelInfo
from quire.providers.own import is_from
from quire.providers.sheet import GO_ON, NO_REPLY, NO_TEXT, Sheet, Writer, note_text, texts, wanted_effort
from quire.providers.spelling import Spelling
from quire.values import Call, JsonObject, Message, Part, Prompt, Result, Text, Think, ToolSet


def write(sheet: Sheet, message: Message) -> None:
    """Add a message's own messages; a note without a role of its own joins the user message before it."""
    match message.role:
        case "user":
            _bridge_user(sheet)
            sheet.messages.append({"role": "user", "content": _user(sheet, message)})
        case "assistant":
            _assistant(sheet, message)
        case "tool":
            sheet.messages.append({"role": "user", "content": _results(sheet, message)})
        case "note":
            _note(sheet, message)
        case "tools":
            # A toolAddition names a tool of toolConfig; it cannot define one.
            for part in message.parts:
                if isinstance(part, ToolSet):
                    sheet.add_tools_in_front(message, part.tools)


def _user(sheet: Sheet, message: Message) -> list[JsonObject]:
    blocks: list[JsonObject] = [{"text": text} for text in texts(message)]
    blocks += shown_images(sheet, message, image, lambda text: {"text": text})
    return ENCLOSURE.shown(sheet, message, blocks) or [{"text": NO_TEXT}]


def _assistant(sheet: Sheet, message: Message) -> None:
    blocks = [block for part in message.parts if (block := _block(part, message, sheet))]
    if all("reasoningContent" in block for block in blocks):
        sheet.leave_out(message, "empty message")
        return
    if sheet.last.get("role") in (None, "assistant"):
        sheet.bridge({"role": "user", "content": [{"text": GO_ON}]})
    sheet.messages.append({"role": "assistant", "content": blocks})


def _block(part: Part, message: Message, sheet: Sheet) -> JsonObject | None:
    if isinstance(part, Call) and not _takes_calls(sheet, message):
        sheet.leave_out(message, "told as text: Converse takes calls only where tools are defined", part)
        return told_call(part)
    return written(part, message, sheet) if isinstance(part, Text | Think | Call) else None


def _takes_calls(sheet: Sheet, message: Message) -> bool:
    """Converse takes calls where tools are defined; its own calls, at least their names, are put there."""
    if sheet.has_tools or sheet.late_tools:
        return True
    calls = [part for part in message.parts if isinstance(part, Call)]
    if not any(is_from(part.wire, (FORMAT,), sheet) for part in calls):
        return False
    for part in calls:
        sheet.called.setdefault(part.name, message)
    return True


def _results(sheet: Sheet, message: Message) -> list[JsonObject]:
    """Results in the form of their calls: as blocks, or told as text."""
    asked = any("toolUse" in block for block in sheet.last.get("content") or ()) or sheet.faithful
    results = [part for part in message.parts if isinstance(part, Result)]
    return [tool_result(part, sheet) if asked else told_result(part) for part in results]


def _note(sheet: Sheet, message: Message) -> None:
    if effort := wanted_effort(message):
        sheet.effort = effort
        sheet.leave_out(
            message, "effort is set for the whole request, which moves the prefix of the messages"
        )
    said = texts(message)
    role, unsent = sheet.last.get("role"), sheet.unsent.get("role")
    if not said:
        return
    if sheet.info.features.late_system and (role == "user" or unsent == "system"):
        before = sheet.messages.pop()["content"] if role == "system" else []
        sheet.messages.append({"role": "system", "content": [*before, *({"text": text} for text in said)]})
    elif unsent == "user":
        added = {"text": note_text(message)}
        sheet.messages[-1] = {**sheet.last, "content": [*sheet.last["content"], added]}
    else:
        _bridge_user(sheet)
        sheet.messages.append({"role": "user", "content": [{"text": note_text(message)}]})


def _bridge_user(sheet: Sheet) -> None:
    """Converse takes no two user messages in a row."""
    if sheet.last.get("role") in ("user", "system"):
        sheet.bridge({"role": "assistant", "content": [{"text": NO_REPLY}]})


def _end(sheet: Sheet) -> None:
    if not sheet.messages or (sheet.last.get("role") == "assistant" and not sheet.info.features.prefill):
        sheet.bridge({"role": "user", "content": [{"text": GO_ON}]})


def _body(sheet: Sheet, prompt: Prompt) -> JsonObject:
    ask = sheet.ask
    body: JsonObject = {"modelId": sheet.info.model}
    if tools := sheet.tools(prompt) or _called(sheet):
        body["toolConfig"] = {"tools": sheet.defined(tools, tool_spec)}
    if prompt.system.strip():
        body["system"] = [{"text": prompt.system}]
    body["messages"] = sheet.messages
    if ask.max_tokens:
        body["inferenceConfig"] = {"maxTokens": ask.max_tokens}
    if effort := sheet.effort or ask.effort:
        body["outputConfig"] = {"effort": effort}
    return {**body, **ask.extra}


def _called(sheet: Sheet) -> list[JsonObject]:
    for message in sheet.called.values():
        sheet.leave_out(
            message, "a called tool is named in front because none is defined, which moves the prefix"
        )
    return [{"name": name} for name in sheet.called]


def tool_spec(tool: JsonObject) -> JsonObject:
    """A tool as Converse defines one."""
    schema = {"type": "object", **(tool.get("parameters") or {"properties": {}})}
    description = {"description": tool["description"]} if tool.get("description") else {}
    return {"toolSpec": {"name": NAMES.spell(tool["name"]), **description, "inputSchema": {"json": schema}}}


def _headers(sheet: Sheet) -> dict[str, str]:
    return {}


def _ids(info: ModelInfo) -> Spelling:
    return IDS


WRITER = Writer(FORMAT, _ids, write, _end, _body, _headers)
