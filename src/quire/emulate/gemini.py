"""Gemini's generateContent: replies, server-sent chunks, errors."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quire.emulate.script import Answering, ReplyForm, pieces
from quire.values import Call, JsonObject, Text, Think

_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


def reply(exchange: Answering) -> JsonObject:
    """A whole reply."""
    return _answer(exchange, list(_parts(exchange)), "STOP")


def _answer(exchange: Answering, parts: list[JsonObject], finish: str | None) -> JsonObject:
    candidate: JsonObject = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": _usage(exchange),
        "modelVersion": exchange.model,
        "responseId": f"gemini-{exchange.number:06d}",
    }


def _parts(exchange: Answering) -> Iterator[JsonObject]:
    """The first call of a step carries the signature of the thought behind it."""
    signed = False
    for index, part in enumerate(exchange.parts):
        match part:
            case Think(text=text):
                yield {"text": text, "thought": True}
            case Text(text=text):
                yield {"text": text}
            case Call():
                call = {"id": exchange.call_id(index, "fc-"), "name": part.name, "args": part.args}
                yield {"functionCall": call} | ({} if signed else _signature(exchange, part, index))
                signed = True


def _signature(exchange: Answering, call: Call, index: int) -> JsonObject:
    return {"thoughtSignature": exchange.signature(Think(call.name), index)}


def _usage(exchange: Answering) -> JsonObject:
    predicted = exchange.predicted
    thoughts, output = exchange.reasoning_tokens, exchange.output_tokens
    used: JsonObject = {
        "promptTokenCount": predicted.total,
        "candidatesTokenCount": output - thoughts,
        "totalTokenCount": predicted.total + output,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": predicted.total}],
    }
    if thoughts:
        used["thoughtsTokenCount"] = thoughts
    if predicted.read:
        used["cachedContentTokenCount"] = predicted.read
        used["cacheTokensDetails"] = [{"modality": "TEXT", "tokenCount": predicted.read}]
    return used


def stream(exchange: Answering, whole: JsonObject, size: int) -> Iterator[bytes]:
    """The reply in chunks; the last one says that it is the last."""
    chunks = [chunk for part in whole["candidates"][0]["content"]["parts"] for chunk in _split(part, size)]
    for number, chunk in enumerate(chunks or [{"text": ""}]):
        finish = "STOP" if number >= len(chunks) - 1 else None
        yield b"data: " + msgspec.json.encode(_answer(exchange, [chunk], finish)) + b"\r\n\r\n"


def _split(part: JsonObject, size: int) -> Iterator[JsonObject]:
    if "text" not in part:
        yield part
        return
    for piece in pieces(part["text"], size):
        yield {**part, "text": piece}


def error(status: int, message: str) -> JsonObject:
    return {"error": {"code": status, "message": message, "status": _STATUS.get(status, "UNKNOWN")}}


VOICE = ReplyForm(reply, stream, error)
