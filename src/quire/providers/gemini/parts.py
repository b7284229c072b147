"""What Gemini's parts mean: one part, one entry; thought signatures stay on the part they came with."""

from __future__ import annotations

from quire.errors import FormatError
from quire.providers.arguments import compact, object_of
from quire.providers.enclosed import Enclosure
from quire.providers.gemini.schema import NAMES
from quire.providers.incoming import sub
from quire.providers.own import is_from, leave_out_block, leave_out_thinking, own_block
from quire.providers.rules.shape import obj
from quire.providers.sheet import Sheet
from quire.values import (
    Call,
    Entry,
    Image,
    Json,
    JsonObject,
    Message,
    Result,
    Text,
    Think,
    call,
    respond,
    result,
    think,
)

FORMAT = "gemini"
# What Google tells clients to send for calls that its model did not make.
FOREIGN = "skip_thought_signature_validator"

# The SDK's spelling of the fields that a part may have.
_CAMEL = {
    "function_call": "functionCall",
    "function_response": "functionResponse",
    "inline_data": "inlineData",
    "file_data": "fileData",
    "thought_signature": "thoughtSignature",
    "executable_code": "executableCode",
    "code_execution_result": "codeExecutionResult",
    "mime_type": "mimeType",
    "file_uri": "fileUri",
    "display_name": "displayName",
}


def part_in(part: Json) -> JsonObject:
    """A part as the REST API spells it; arguments and responses inside are not touched."""
    if not isinstance(part, dict):
        raise FormatError(
            f"a part that is {type(part).__name__}", hint="Parts are objects: text, functionCall, …"
        )
    out: JsonObject = {
        _CAMEL.get(str(key), str(key)): value for key, value in part.items() if value is not None
    }
    for field in ("inlineData", "fileData"):
        if field in out:
            out[field] = {_CAMEL.get(key, key): value for key, value in sub(out, field).items()}
    for field in ("functionCall", "functionResponse"):
        sub(out, field)
    if "thoughtSignature" in out:
        out["thoughtSignature"] = _signature(out["thoughtSignature"])
    return out


def _signature(given: Json) -> str:
    """A signature in the API's own base64: an SDK's has another alphabet, the bytes are the same."""
    if not isinstance(given, str) or any(char.isspace() or not char.isprintable() for char in given):
        raise FormatError(
            f"a thoughtSignature that is {given!r}", hint="It is base64; keep it exactly as it came."
        )
    return given if given == FOREIGN else given.translate(str.maketrans("-_", "+/"))


def spoken(part: JsonObject, place: int) -> Entry:
    """A model's part as an entry; `place` names a call that came without an id."""
    if "functionCall" in part:
        given = part["functionCall"]
        plain = set(part) == {"functionCall"} and set(given) <= {"id", "name", "args"} and given.get("id")
        call_id = str(given.get("id") or f"call-{place + 1}")
        args = given.get("args")
        return call(
            call_id,
            str(given.get("name") or ""),
            {} if args is None else args,
            wire=None if plain else {"block": part},
        )
    text = str(part.get("text") or "")
    if part.get("thought"):
        return think(text, wire={"block": part})
    return respond(text, wire=None if set(part) == {"text"} else {"block": part})


def answered(part: JsonObject, call_id: str) -> Entry:
    """A function response as an entry."""
    response = part["functionResponse"].get("response")
    failed = isinstance(response, dict) and "error" in response
    plain = set(part["functionResponse"]) <= {"id", "name", "response"} and _is_plain(response)
    return result(
        call_id,
        content=response_text(response),
        error=failed or None,
        wire=None if plain else {"block": part},
    )


def _is_plain(response: Json) -> bool:
    return (
        isinstance(response, dict)
        and len(response) == 1
        and isinstance(response.get("output", response.get("error")), str)
    )


def response_text(response: Json) -> str:
    """What a function answered: its output or error, else all of it."""
    if isinstance(response, dict) and len(response) == 1:
        for field in ("output", "error", "result"):
            if isinstance(response.get(field), str):
                return str(response[field])
    if response is None or isinstance(response, str):
        return response or ""
    return compact(response)


def text_of(parts: list[JsonObject]) -> str:
    """The text of parts; what is neither text nor image is named in brackets."""
    texts = [str(part["text"]) if "text" in part else _named(part) for part in parts]
    return "\n".join(text for text in texts if text)


def _named(part: JsonObject) -> str:
    kind = _kind(part)
    return f"[{kind}]" if kind else ""


def _kind(part: JsonObject) -> str:
    """What an entry cannot hold of a user's part."""
    if "text" in part or "functionResponse" in part or is_image(part):
        return ""
    held = part.get("inlineData") or part.get("fileData") or {}
    return str(held.get("mimeType") or next(iter(part), "part"))


def _text_of_raw(parts: list[JsonObject]) -> str:
    return text_of([part_in(part) for part in parts])


ENCLOSURE = Enclosure(FORMAT, lambda part: _kind(part_in(part)), _text_of_raw, (FORMAT,))


def is_image(part: JsonObject) -> bool:
    held = part.get("inlineData") or part.get("fileData") or {}
    return str(held.get("mimeType") or "").startswith("image/")


def image_of(part: JsonObject) -> Image:
    if held := part.get("inlineData"):
        return Image(media_type=str(held.get("mimeType") or ""), data=str(held.get("data") or ""))
    return Image(
        media_type=str(part["fileData"].get("mimeType") or ""), url=str(part["fileData"].get("fileUri") or "")
    )


def written(part: Text | Think | Call, message: Message, sheet: Sheet, signed: bool) -> JsonObject | None:
    """A model's part; `signed` says that an earlier call of this message carries the signature already."""
    match part:
        case Text():
            own = own_block(part, FORMAT, sheet)
            if own and str(own.get("text") or "") == part.text:
                return own
            leave_out_block(part, message, sheet)
            return {"text": part.text} if part.text.strip() else None
        case Think():
            own = own_block(part, FORMAT, sheet)
            if own is None:
                leave_out_thinking(part, message, sheet)
            return own
        case Call():
            return _function_call(part, message, sheet, signed)


def _function_call(part: Call, message: Message, sheet: Sheet, signed: bool) -> JsonObject:
    own = own_block(part, FORMAT, sheet)
    if own and (own["functionCall"].get("args") or {}) == part.args:
        given = own["functionCall"]
        out = {**own, "functionCall": {**given, "id": part.call_id} if given.get("id") else given}
    else:
        fields = {"id": part.call_id, "name": NAMES.spell(part.name), "args": object_of(part.args)}
        out = {"functionCall": fields}
    if "thoughtSignature" in out or signed or not sheet.info.features.signatures:
        return out
    if "thoughtSignature" in obj(part.wire.get("block")) and not is_from(part.wire, (FORMAT,), sheet):
        sheet.leave_out(message, f"thought signature of {part.wire.get('model')} means nothing here", part)
    return {**out, "thoughtSignature": FOREIGN}


def function_response(part: Result, sheet: Sheet, with_id: bool) -> JsonObject:
    own = own_block(part, FORMAT, sheet)
    response: Json = {"error" if part.error else "output": part.text}
    out: JsonObject = {"id": part.call_id, "name": NAMES.spell(part.name or "unknown"), "response": response}
    if own and response_text(own["functionResponse"].get("response")) == part.text:
        out = {**own["functionResponse"], "id": part.call_id}
    return {"functionResponse": out if with_id else {key: out[key] for key in out if key != "id"}}


def image(part: Image) -> JsonObject | None:
    """An image by its address or its data."""
    if part.url:
        return {"fileData": {"fileUri": part.url, "mimeType": part.media_type or "image/png"}}
    if not part.data:
        return None
    return {"inlineData": {"mimeType": part.media_type or "image/png", "data": part.data}}
