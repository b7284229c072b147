"""Messages as Gemini's contents, and the generateContent request around them (the REST body)."""

from __future__ import annotations

from mimetypes import guess_type
from typing import Any

from quire import values
from quire.errors import FormatError
from quire.providers.convert import UserContent, leave_out, origin, own_block
from quire.providers.incoming import Spelling, bytes_of, sub
from quire.providers.models import data
from quire.providers.outgoing import by_role, compact, object_of, with_originals
from quire.providers.provider_tools import Native, tool_json, with_more
from quire.providers.rendering import (
    GO_ON,
    NO_TEXT,
    Draft,
    Writer,
    join_objects,
    note_text,
    texts,
    user_text,
    wanted_effort,
)
from quire.values import Call, Entry, Image, Json, JsonObject, Message, Prompt, Request, Result, Text, Think, as_object

# Tools as Gemini declares them: its own schema where that says it all, else the JSON schema itself.

NAMES = Spelling("A-Za-z0-9_.:-", 128, first="A-Za-z_")


def declaration(tool: JsonObject) -> JsonObject:
    """One function declaration."""
    out: JsonObject = {"name": NAMES.spell(tool["name"])}
    if tool.get("description"):
        out["description"] = tool["description"]
    schema = tool.get("parameters") or {}
    if not schema.get("properties") and not set(schema) - {"type", "properties", "required", "additionalProperties"}:
        return out  # an object without fields is refused; a function without parameters is not
    parameters = _schema(schema)
    return {**out, "parameters": parameters} if parameters is not None else {**out, "parametersJsonSchema": schema}


def _schema(schema: Json) -> JsonObject | None:
    """The schema in Gemini's words, or None where they do not suffice."""
    if not isinstance(schema, dict) or not isinstance(schema.get("type", ""), str):
        return None
    if not schema.keys() <= set(data("rules")["gemini"]["schema_fields"]):
        return None  # any other field is refused as an unknown name
    choices = schema.get("enum") or []
    if not isinstance(choices, list) or not all(isinstance(value, str) for value in choices):
        return None
    out = dict(schema)
    if "type" in schema:
        out["type"] = schema["type"].upper()
    for field, inner in _inner(schema):
        if inner is None:
            return None
        out[field] = inner
    return out


def _inner(schema: JsonObject) -> list[tuple[str, Json]]:
    """The schemas inside a schema, each in Gemini's words, or None."""
    out: list[tuple[str, Json]] = []
    if "items" in schema:
        out.append(("items", _schema(schema["items"])))
    if "anyOf" in schema:
        options = [_schema(option) for option in schema["anyOf"]] if isinstance(schema["anyOf"], list) else [None]
        out.append(("anyOf", None if None in options else options))
    if "properties" in schema:
        members = schema["properties"]
        fields = {name: _schema(item) for name, item in members.items()} if isinstance(members, dict) else {"": None}
        out.append(("properties", None if None in fields.values() else fields))
    return out


def camel_in(fields: JsonObject) -> JsonObject:
    """An object as the REST API spells its fields; Google's own client takes them in snake case too."""
    return {camel(name): value for name, value in fields.items()}


def camel(name: str) -> str:
    """parameters_json_schema -> parametersJsonSchema; what a recorder noted (_ts) stays as it is."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest) if first else name


def tool_entry(declared: JsonObject) -> JsonObject:
    """A declared function as entries define a tool."""
    schema = sub(declared, "parametersJsonSchema") or sub(declared, "parameters")
    return tool_json(declared.get("name"), declared.get("description"), _json_schema(schema))


# Gemini's types, which some of Google's clients write as their numbers.
_TYPES = ("", "string", "number", "integer", "boolean", "array", "object", "null")


def _json_schema(schema: Json) -> Json:
    """Gemini's types, in upper case or numbers, in JSON schema's lower case."""
    if isinstance(schema, list):
        return [_json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    named = _TYPES[kind] if isinstance(kind, int) and kind in range(len(_TYPES)) else kind
    lower = {"type": named.lower()} if isinstance(named, str) else {}
    return {**{key: _json_schema(value) for key, value in schema.items()}, **lower}


# What Gemini's parts mean: one part, one entry; thought signatures stay on the part they came with.

FORMAT = "gemini"
# What Google tells clients to send for calls that its model did not make.
FOREIGN = "skip_thought_signature_validator"


def part_in(part: Json) -> JsonObject:
    """A part as the REST API spells it; arguments and responses inside are not touched."""
    if not isinstance(part, dict):
        raise FormatError(f"a part that is {type(part).__name__}", hint="Parts are objects: text, functionCall, …")
    out: JsonObject = {camel(str(key)): value for key, value in part.items() if value is not None}
    for field in ("inlineData", "fileData"):
        if field in out:
            out[field] = camel_in(sub(out, field))
    for field in ("functionCall", "functionResponse"):
        sub(out, field)
    if (signature := out.get("thoughtSignature")) is not None and signature != FOREIGN:
        if not isinstance(signature, str) or " " in signature or not signature.isprintable():
            hint = "It is base64; keep it exactly as it came."
            raise FormatError(f"a thoughtSignature that is {signature!r}", hint=hint)
        # The API's base64; an SDK's has another alphabet for the same bytes.
        out["thoughtSignature"] = signature.translate(str.maketrans("-_", "+/"))
    return out


def assistant_entry(part: JsonObject) -> Entry:
    """A model's part as an entry."""
    if "functionCall" in part:
        call = part["functionCall"]
        plain = set(part) == {"functionCall"} and set(call) == {"id", "name", "args"} and call.get("id")
        named = str(call.get("id") or ""), str(call.get("name") or "")
        args = {} if call.get("args") is None else call["args"]
        return values.call(*named, args, wire=None if plain else {"block": part})
    text = str(part.get("text") or "")
    if part.get("thought"):
        return values.think(text, wire={"block": part})
    return values.respond(text, wire=None if set(part) == {"text"} else {"block": part})


def result_entry(part: JsonObject, call_id: str) -> Entry:
    """A function response as an entry."""
    response = part["functionResponse"].get("response")
    failed = isinstance(response, dict) and "error" in response
    words = response.get("output", response.get("error")) if isinstance(response, dict) and len(response) == 1 else None
    plain = set(part["functionResponse"]) <= {"id", "name", "response"} and isinstance(words, str)
    wire = None if plain and set(part) == {"functionResponse"} else {"block": part}
    return values.result(call_id, content=response_text(response), error=failed or None, wire=wire)


def response_text(response: Json) -> str:
    """What a function answered: its output or error, else all of it."""
    if isinstance(response, dict) and len(response) == 1:
        for field in ("output", "error", "result"):
            if isinstance(response.get(field), str):
                return str(response[field])
    if response is None or isinstance(response, str):
        return response or ""
    return compact(response)


def _kind(block: JsonObject) -> str:
    part = part_in(block)
    if not part or "text" in part or "functionResponse" in part or _image(part):
        return ""
    file = part.get("inlineData") or part.get("fileData") or {}
    return str(file.get("mimeType") or next(iter(part), "part"))


def _image(part: JsonObject) -> Image | None:
    file = part.get("inlineData") or part.get("fileData") or {}
    media = str(file.get("mimeType") or "")
    if not media.startswith("image/"):
        return None
    if part.get("inlineData"):
        return Image(media_type=media, data=str(file.get("data") or ""))
    return Image(media_type=media, url=str(file.get("fileUri") or ""))


def text_part(text: str) -> JsonObject:
    return {"text": text}


def write_part(part: Text | Think | Call, message: Message, draft: Draft, signed: bool) -> JsonObject | None:
    """A model's part; `signed` says that an earlier call of this message carries the signature already."""
    match part:
        case Text():
            block = own_block(part, draft)
            if block and str(block.get("text") or "") == part.text:
                return block
            leave_out(part, message, draft)
            return text_part(part.text) if part.text.strip() else None
        case Think():
            block = own_block(part, draft)
            if block is None:
                leave_out(part, message, draft)
            return block
        case Call():
            return _function_call(part, message, draft, signed)


def _function_call(part: Call, message: Message, draft: Draft, signed: bool) -> JsonObject:
    block = own_block(part, draft)
    if block and (block["functionCall"].get("args") or {}) == part.args:
        call = block["functionCall"]
        out = {**block, "functionCall": {**call, "id": part.call_id} if call.get("id") else call}
    else:
        fields = {"id": part.call_id, "name": NAMES.spell(part.name), "args": object_of(part.args)}
        out = {"functionCall": fields}
    if "thoughtSignature" in out or signed or not draft.info.features.signatures:
        return out
    mine = draft.is_from(part.wire)
    if mine and part.wire.get("over"):
        return out
    if "thoughtSignature" in as_object(part.wire.get("block")) and not mine:
        draft.leave_out(message, f"thought signature of {part.wire.get('model')} means nothing here", part)
    return {**out, "thoughtSignature": FOREIGN}


def function_response(part: Result, draft: Draft, with_id: bool) -> JsonObject:
    original = own_block(part, draft) or {}
    response_before = as_object(original.get("functionResponse"))
    response: Json = {"error" if part.error else "output": part.text}
    out: JsonObject = {"id": part.call_id, "name": NAMES.spell(part.name or "unknown"), "response": response}
    if response_before and response_text(response_before.get("response")) == part.text:
        out = {**response_before, "id": part.call_id}
    return {**original, "functionResponse": out if with_id else {key: out[key] for key in out if key != "id"}}


def _show(part: Image) -> JsonObject | None:
    if part.url:
        kind = part.media_type or guess_type(part.url.partition("?")[0])[0] or "image/png"
        return {"fileData": {"fileUri": part.url, "mimeType": kind}}
    if not part.data:
        return None
    return {"inlineData": {"mimeType": part.media_type or "image/png", "data": part.data}}


CONTENT = UserContent(
    kind=_kind, image=_image, show=_show, say=text_part, texts=(), other_text=lambda part: part_in(part).get("text")
)

# A message's own content by its role; a note joins the user's text before it.


def _user(draft: Draft, message: Message) -> None:
    # What this model was already sent it takes again, though it is blank or holds thoughts alone.
    blank = user_text(message) if draft.was_sent(origin(message)) else NO_TEXT
    draft.messages.append({"role": "user", "parts": CONTENT.blocks(draft, message, blank)})


def _model(draft: Draft, message: Message) -> None:
    parts: list[JsonObject] = []
    taken = draft.was_sent(origin(message))
    for part in message.parts:
        if isinstance(part, Text | Think | Call):
            signed = any("functionCall" in part for part in parts)
            if out := write_part(part, message, draft, signed):
                parts.append(out)
            elif taken and isinstance(part, Text) and "block" not in part.wire:
                parts.append(text_part(part.text))
    if all(part.get("thought") for part in parts) and not (parts and taken):
        draft.leave_out(message, "empty message")
        return
    calls = any("functionCall" in part for part in parts)
    # The conversation begins with the user, and a call follows a user's turn or a function's.
    if not draft.messages or (calls and draft.last.get("role") == "model"):
        draft.bridge({"role": "user", "parts": [text_part(GO_ON)]})
    draft.messages.append({"role": "model", "parts": parts})


def _responses(draft: Draft, message: Message) -> None:
    """One response a call, in the calls' order; without an id where the call had none."""
    called = [part["functionCall"] for part in draft.last.get("parts") or () if "functionCall" in part]
    results = [part for part in message.parts if isinstance(part, Result)]
    named = {call["id"] for call in called if call.get("id")}
    order = {call.get("id"): place for place, call in enumerate(called)}
    if named:
        results.sort(key=lambda part: order.get(part.call_id, len(order)))
    parts = [function_response(part, draft, with_id=not called or part.call_id in named) for part in results]
    draft.messages.append({"role": "user", "parts": parts})


def _note(draft: Draft, message: Message) -> None:
    if draft.info.features.thinking_level:
        draft.set_effort(message)
    elif wanted_effort(message):
        draft.leave_out(message, "reasoning effort has no words here")
    added = text_part(note_text(message))
    if texts(message) and any("functionResponse" in part for part in draft.last.get("parts", ())):
        draft.messages.append({"role": "user", "parts": [added]})
    elif texts(message):
        draft.say_as_user(added, "parts")


def _end(draft: Draft) -> None:
    ends_in_original = draft.messages and draft.original_end == len(draft.messages)
    if not draft.messages or (draft.last.get("role") == "model" and not ends_in_original):
        draft.bridge({"role": "user", "parts": [text_part(GO_ON)]})


def _body(draft: Draft, prompt: Prompt) -> JsonObject:
    ask = draft.ask
    body: JsonObject = {}
    if prompt.system.strip():
        body["systemInstruction"] = {"parts": [text_part(prompt.system)]}
    if tools := draft.tools(prompt):
        body["tools"] = _tools(draft, tools)
    body["contents"] = draft.messages
    config: JsonObject = {"maxOutputTokens": ask.max_tokens} if ask.max_tokens is not None else {}
    if effort := draft.effort or ask.effort:
        config["thinkingConfig"] = {"thinkingLevel": effort.upper()}
    return {**body, "generationConfig": config} if config else body


# What of a caller's options is part of `generationConfig`; the SDK finds it anywhere, the API only there.
_GENERATION = {"temperature": "temperature", "top_p": "topP", "top_k": "topK", "seed": "seed"}


def _place_extra(extra: JsonObject) -> JsonObject:
    config = {_GENERATION[name]: value for name, value in extra.items() if name in _GENERATION}
    rest = {name: value for name, value in extra.items() if name not in _GENERATION}
    return join_objects({"generationConfig": config}, rest) if config else extra


def _tools(draft: Draft, tools: list[JsonObject]) -> list[JsonObject]:
    """All functions in one tool, and beside it Gemini's own, a tool each."""
    provider_tools = [definition for tool in tools if (definition := draft.own(tool))]
    declared = [tool for tool in tools if draft.own(tool) is None]
    functions = [with_more(declaration(tool), tool, NATIVE) for tool in declared]
    return [*([{"functionDeclarations": functions}] if functions else []), *provider_tools]


NATIVE = Native((FORMAT,), "@part", "@tools", "@declaration", ("gemini",), read=tool_entry, define=declaration)
WRITER = Writer(
    FORMAT, with_originals(by_role(_user, _model, _responses, _note)), _body, NATIVE, end=_end, place=_place_extra
)


# The REST body as the keyword arguments of google-genai's `client.models.generate_content`.


def sdk_kwargs(request: Request) -> dict[str, Any]:
    """model, contents and config; base64 becomes bytes, which the SDK encodes again."""
    body = request.body
    config: JsonObject = {key: value for key, value in body.items() if key not in ("contents", "generationConfig")}
    config |= body.get("generationConfig") or {}
    contents = [{**content, "parts": [_part(part) for part in content["parts"]]} for content in body["contents"]]
    return {"model": request.model, "contents": contents, "config": config}


def _part(part: JsonObject) -> JsonObject:
    out = dict(part)
    if "thoughtSignature" in out:
        signature = out["thoughtSignature"]
        out["thoughtSignature"] = signature.encode() if signature == FOREIGN else bytes_of(signature)
    if "inlineData" in out:
        out["inlineData"] = {**out["inlineData"], "data": bytes_of(out["inlineData"].get("data", ""))}
    return out
