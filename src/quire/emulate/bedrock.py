"""Bedrock's Converse: replies, binary event streams, errors."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping

import msgspec

from quire.emulate import anthropic
from quire.emulate.script import Answering, EmulatedPath, EmulatedRequest, Refusal, ReplyForm, arguments, pieces
from quire.providers.models import ModelInfo
from quire.providers.rules.grammar import obj
from quire.values import Call, JsonObject, Text, Think

# Amazon's binary event framing: lengths, their checksum, string headers, a payload, a checksum of it all.

_STRING = 7


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One message of an event stream."""
    head = b"".join(_header(name, value) for name, value in headers.items())
    # Two lengths, their checksum and the last checksum: sixteen bytes around headers and payload.
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + payload
    return message + struct.pack(">I", zlib.crc32(message))


def _header(name: str, value: str) -> bytes:
    key, text = name.encode(), value.encode()
    return struct.pack(">B", len(key)) + key + struct.pack(">BH", _STRING, len(text)) + text


_EXCEPTIONS = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
}


def reply(exchange: Answering) -> JsonObject:
    """A whole reply."""
    content = [_block(exchange, index) for index in range(len(exchange.parts))]
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "tool_use" if exchange.calls else "end_turn",
        "usage": _usage(exchange),
        "metrics": {"latencyMs": 1},
    }


def _block(exchange: Answering, index: int) -> JsonObject:
    match exchange.parts[index]:
        case Think() as part:
            sealed = {"text": part.text, "signature": exchange.signature(part, index)}
            return {"reasoningContent": {"reasoningText": sealed}}
        case Call() as part:
            id = exchange.call_id(index, "tooluse_")
            return {"toolUse": {"toolUseId": id, "name": part.name, "input": part.args}}
        case Text() as part:
            return {"text": part.text}


def _usage(exchange: Answering) -> JsonObject:
    """Input tokens here leave out what was read from the cache or written to it."""
    predicted, output = exchange.predicted, exchange.output_tokens
    lives = (("1h", predicted.write_1h), ("5m", predicted.write_5m))
    return {
        "inputTokens": predicted.plain,
        "outputTokens": output,
        "totalTokens": predicted.total + output,
        "cacheReadInputTokens": predicted.read,
        "cacheWriteInputTokens": predicted.write_5m + predicted.write_1h,
        "cacheDetails": [{"ttl": ttl, "inputTokens": tokens} for ttl, tokens in lives if tokens],
    }


def stream(exchange: Answering, whole: JsonObject, size: int) -> Iterator[bytes]:
    """The events of a reply; usage comes last."""
    yield _event("messageStart", {"role": "assistant"})
    for index, block in enumerate(whole["output"]["message"]["content"]):
        for name, event in _block_events(block, exchange, index, size):
            yield _event(name, {**event, "contentBlockIndex": index})
    yield _event("messageStop", {"stopReason": whole["stopReason"]})
    yield _event("metadata", {"usage": whole["usage"], "metrics": whole["metrics"]})


def _block_events(block: JsonObject, exchange: Answering, index: int, size: int) -> Iterator[tuple[str, JsonObject]]:
    if "toolUse" in block:
        call = block["toolUse"]
        yield ("contentBlockStart", {"start": {"toolUse": {"toolUseId": call["toolUseId"], "name": call["name"]}}})
    for delta in _deltas(block, exchange, index, size):
        yield "contentBlockDelta", {"delta": delta}
    yield "contentBlockStop", {}


def _deltas(block: JsonObject, exchange: Answering, index: int, size: int) -> Iterator[JsonObject]:
    if "text" in block:
        yield from ({"text": piece} for piece in pieces(block["text"], size))
    elif "toolUse" in block:
        call = exchange.parts[index]
        assert isinstance(call, Call)
        yield from ({"toolUse": {"input": piece}} for piece in pieces(arguments(call), size))
    else:
        thought = block["reasoningContent"]["reasoningText"]
        yield from ({"reasoningContent": {"text": piece}} for piece in pieces(thought["text"], size))
        yield {"reasoningContent": {"signature": thought["signature"]}}


def _event(name: str, data: JsonObject) -> bytes:
    return frame({":event-type": name, ":content-type": "application/json", ":message-type": "event"}, _json(data))


def _json(data: JsonObject) -> bytes:
    return msgspec.json.encode(data)


def error(refused: Refusal, request_id: str) -> JsonObject:
    return {"message": refused.message}


def headers(received: EmulatedRequest) -> dict[str, str]:
    """The request's id, and the exception's name where it was refused."""
    sent = {"x-amzn-requestid": received.request_id}
    if received.status >= 400:
        sent["x-amzn-errortype"] = _EXCEPTIONS.get(received.status, "InternalServerException")
    return sent


def lacks(received: EmulatedRequest) -> Refusal | None:
    signed = received.headers.get("authorization")
    return None if signed else Refusal(403, "Missing Authentication Token")


def thinks(body: JsonObject, info: ModelInfo) -> bool:
    """What Claude is told of thinking stands among the fields that are the model's own."""
    fields = obj(body.get("additionalModelRequestFields"))
    return anthropic.thinks({"thinking": fields.get("thinking") or fields.get("reasoning_config")}, info)


VOICE = ReplyForm(
    endpoints=(
        EmulatedPath("/model/{model:path}/converse", streamed=False),
        EmulatedPath("/model/{model:path}/converse-stream", streamed=True),
        EmulatedPath(
            "/model/{model:path}/count-tokens",
            count="inputTokens",
            inner=lambda body: obj(body.get("input")).get("converse"),
        ),
    ),
    reply=reply,
    stream=stream,
    media_type="application/vnd.amazon.eventstream",
    error=error,
    headers=headers,
    lacks=lacks,
    unknown_model=lambda name: Refusal(400, "The provided model identifier is invalid."),
    thinks=thinks,
)
