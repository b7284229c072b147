"""Messages as Gemini's contents, and the generateContent request around them (the REST body)."""

from __future__ import annotations

from quire.providers.gemini.parts import ENCLOSURE, FORMAT, function_response, image, written
from quire.providers.gemini.schema import declaration
from quire.providers.hosted import own_definition
from quire.providers.images import shown_images
from quire.providers.models import ModelInfo
from quire.providers.sheet import GO_ON, NO_TEXT, Sheet, Writer, note_text, texts, wanted_effort
from quire.providers.spelling import Spelling
from quire.values import Call, JsonObject, Message, Prompt, Result, Text, Think, ToolSet


def write(sheet: Sheet, message: Message) -> None:
    """Add a message's own content; a note joins the user's text before it."""
    match message.role:
        case "user":
            sheet.messages.append({"role": "user", "parts": _user(sheet, message)})
        case "assistant":
            _model(sheet, message)
        case "tool":
            sheet.messages.append({"role": "user", "parts": _responses(sheet, message)})
        case "note":
            _note(sheet, message)
        case "tools":
            for part in message.parts:
                if isinstance(part, ToolSet):
                    sheet.add_tools_in_front(message, part.tools)


def _user(sheet: Sheet, message: Message) -> list[JsonObject]:
    parts: list[JsonObject] = [{"text": text} for text in texts(message)]
    parts += shown_images(sheet, message, image, lambda text: {"text": text})
    return ENCLOSURE.shown(sheet, message, parts) or [{"text": NO_TEXT}]


def _model(sheet: Sheet, message: Message) -> None:
    parts: list[JsonObject] = []
    for part in message.parts:
        if isinstance(part, Text | Think | Call):
            signed = any("functionCall" in one for one in parts)
            if out := written(part, message, sheet, signed):
                parts.append(out)
    if all(part.get("thought") for part in parts):
        sheet.leave_out(message, "empty message")
        return
    calls = any("functionCall" in part for part in parts)
    # The conversation begins with the user, and a call follows a user's turn or a function's.
    if not sheet.messages or (calls and sheet.last.get("role") == "model"):
        sheet.bridge({"role": "user", "parts": [{"text": GO_ON}]})
    sheet.messages.append({"role": "model", "parts": parts})


def _responses(sheet: Sheet, message: Message) -> list[JsonObject]:
    """One response a call, in the calls' order; without an id where the call had none."""
    called = [part["functionCall"] for part in sheet.last.get("parts") or () if "functionCall" in part]
    results = [part for part in message.parts if isinstance(part, Result)]
    named = {call["id"] for call in called if call.get("id")}
    order = {call.get("id"): place for place, call in enumerate(called)}
    if named:
        results.sort(key=lambda part: order.get(part.call_id, len(order)))
    return [function_response(part, sheet, with_id=not called or part.call_id in named) for part in results]


def _note(sheet: Sheet, message: Message) -> None:
    if effort := wanted_effort(message):
        sheet.effort = effort
        sheet.leave_out(message, "effort is set for the whole request, which may move the prefix")
    if not texts(message):
        return
    added = {"text": note_text(message)}
    parts = sheet.unsent.get("parts") or []
    if sheet.unsent.get("role") == "user" and not any("functionResponse" in part for part in parts):
        sheet.messages[-1] = {**sheet.last, "parts": [*parts, added]}
    else:
        sheet.messages.append({"role": "user", "parts": [added]})


def _end(sheet: Sheet) -> None:
    if not sheet.messages or sheet.last.get("role") == "model":
        sheet.bridge({"role": "user", "parts": [{"text": GO_ON}]})


def _body(sheet: Sheet, prompt: Prompt) -> JsonObject:
    ask = sheet.ask
    body: JsonObject = {}
    if prompt.system.strip():
        body["systemInstruction"] = {"parts": [{"text": prompt.system}]}
    if tools := sheet.tools(prompt):
        body["tools"] = _tools(sheet, tools)
    body["contents"] = sheet.messages
    config: JsonObject = {"maxOutputTokens": ask.max_tokens} if ask.max_tokens else {}
    if effort := sheet.effort or ask.effort:
        config["thinkingConfig"] = {"thinkingLevel": effort.upper()}
    if config or ask.extra.get("generationConfig"):
        body["generationConfig"] = {**config, **(ask.extra.get("generationConfig") or {})}
    return {**body, **{key: value for key, value in ask.extra.items() if key != "generationConfig"}}


def _tools(sheet: Sheet, tools: list[JsonObject]) -> list[JsonObject]:
    """All functions in one tool, and beside it Gemini's own, a tool each."""
    own = [definition for tool in tools if (definition := own_definition(tool, sheet.info))]
    functions = [declaration(tool) for tool in tools if own_definition(tool, sheet.info) is None]
    return [*([{"functionDeclarations": functions}] if functions else []), *own]


def _headers(sheet: Sheet) -> dict[str, str]:
    return {}


def _ids(info: ModelInfo) -> Spelling:
    return Spelling()


WRITER = Writer(FORMAT, _ids, write, _end, _body, _headers)
