"""Anthropic's replies: messages, their event streams, their errors."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quire.emulate.script import Answering, ReplyForm, arguments, pieces
from quire.values import Call, JsonObject, Text, Think

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def reply(exchange: Answering) -> JsonObject:
    """A whole message."""
    message: JsonObject = {
        "id": f"msg_{exchange.number:06d}",
        "type": "message",
        "role": "assistant",
        "model": exchange.model,
        "content": [_block(exchange, index) for index in range(len(exchange.parts))],
        "stop_reason": stop_reason(exchange),
        "stop_sequence": None,
        "usage": usage(exchange),
        "diagnostics": {"cache_miss_reason": exchange.diagnosis} if exchange.diagnosis else None,
    }
    if exchange.dropped is not None:
        message["input_transformations"] = list(exchange.dropped)
    return message


def stop_reason(exchange: Answering) -> str:
    if not exchange.parts:
        # Only a request for no tokens at all (pre-warming the cache) gets an empty reply.
        return "max_tokens"
    return "tool_use" if exchange.calls else "end_turn"


def _block(exchange: Answering, index: int) -> JsonObject:
    match exchange.parts[index]:
        case Think() as part:
            return {"type": "thinking", "thinking": part.text, "signature": exchange.signature(part, index)}
        case Call() as part:
            id = exchange.call_id(index, "toolu_")
            return {"type": "tool_use", "id": id, "name": part.name, "input": part.args}
        case Text() as part:
            return {"type": "text", "text": part.text, "citations": None}


def usage(exchange: Answering) -> JsonObject:
    """Input tokens here leave out what was read from the cache or written to it."""
    predicted = exchange.predicted
    return {
        "input_tokens": predicted.plain,
        "cache_creation_input_tokens": predicted.write_5m + predicted.write_1h,
        "cache_read_input_tokens": predicted.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": predicted.write_5m,
            "ephemeral_1h_input_tokens": predicted.write_1h,
        },
        "output_tokens": 0 if not exchange.parts else exchange.output_tokens,
        "output_tokens_details": {"thinking_tokens": exchange.reasoning_tokens},
        "service_tier": "standard",
    }


def stream(exchange: Answering, message: JsonObject, size: int) -> Iterator[bytes]:
    """The events of a message; usage and diagnostics come with the first."""
    opening = {
        **message,
        "content": [],
        "stop_reason": None,
        "usage": {**message["usage"], "output_tokens": 1},
    }
    yield _event({"type": "message_start", "message": opening})
    yield _event({"type": "ping"})
    for index, block in enumerate(message["content"]):
        yield from _block_events(index, block, exchange, size)
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": delta, "usage": message["usage"]})
    yield _event({"type": "message_stop"})


_EMPTY: dict[str, JsonObject] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}


def _block_events(index: int, block: JsonObject, exchange: Answering, size: int) -> Iterator[bytes]:
    start = {**block, **_EMPTY[block["type"]]}
    yield _event({"type": "content_block_start", "index": index, "content_block": start})
    for delta in _deltas(index, block, exchange, size):
        yield _event({"type": "content_block_delta", "index": index, "delta": delta})
    yield _event({"type": "content_block_stop", "index": index})


def _deltas(index: int, block: JsonObject, exchange: Answering, size: int) -> Iterator[JsonObject]:
    if block["type"] == "text":
        yield from ({"type": "text_delta", "text": piece} for piece in pieces(block["text"], size))
    elif block["type"] == "thinking":
        yield from (
            {"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"], size)
        )
        yield {"type": "signature_delta", "signature": block["signature"]}
    else:
        call = exchange.parts[index]
        assert isinstance(call, Call)
        yield from (
            {"type": "input_json_delta", "partial_json": piece} for piece in pieces(arguments(call), size)
        )


def _event(data: JsonObject) -> bytes:
    return f"event: {data['type']}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


def error(status: int, message: str) -> JsonObject:
    kind = _ERROR_TYPES.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_emulated"}


VOICE = ReplyForm(reply, stream, error)
