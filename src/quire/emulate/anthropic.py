"""How Anthropic, and Bedrock's Converse with the same models behind it, answer: replies, event streams, errors."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from quire.emulate.script import (
    EmulatedExchange,
    EmulatedPath,
    EmulatedRequest,
    IssuedReply,
    Refuse,
    ReplyForm,
    Spoken,
    endpoints,
    limits_left,
    pieces,
    streamed_text,
)
from quire.providers.explain import prefix_break
from quire.providers.models import ModelInfo
from quire.providers.rules import ServerMemory
from quire.providers.rules.check import conversation, where
from quire.providers.rules.claude_turns import signed_thinking
from quire.providers.simulate import blocks
from quire.values import Call, JsonObject, Text, Think, as_object, value_at

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def reply(exchange: EmulatedExchange) -> JsonObject:
    """A whole message."""
    message: JsonObject = {
        "id": f"msg_{exchange.number:06d}",
        "type": "message",
        "role": "assistant",
        "model": exchange.model,
        "content": [_block(exchange, part, index) for index, part in enumerate(exchange.parts)],
        # Only a request with max_tokens 0, which fills the cache, gets an empty reply.
        "stop_reason": "max_tokens" if not exchange.parts else "tool_use" if exchange.calls else "end_turn",
        "stop_sequence": None,
        "usage": usage(exchange),
        "diagnostics": {"cache_miss_reason": exchange.diagnosis} if exchange.diagnosis else None,
    }
    if exchange.dropped_input is not None:
        message["input_transformations"] = list(exchange.dropped_input)
    return message


def _block(exchange: EmulatedExchange, part: Spoken, index: int) -> JsonObject:
    match part:
        case Think():
            return {"type": "thinking", "thinking": part.text, "signature": exchange.signature(part.text, index)}
        case Call():
            return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": part.args}
        case Text():
            return {"type": "text", "text": part.text, "citations": None}


def usage(exchange: EmulatedExchange) -> JsonObject:
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


def stream(exchange: EmulatedExchange, message: JsonObject, size: int) -> Iterator[bytes]:
    """The events of a message; usage and diagnostics come with the first."""
    opening = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    yield _event({"type": "message_start", "message": opening})
    yield _event({"type": "ping"})
    for index, (part, block) in enumerate(zip(exchange.parts, message["content"], strict=True)):
        kind, field, empty = _STREAMED[block["type"]]
        yield _event({"type": "content_block_start", "index": index, "content_block": {**block, **empty}})
        deltas = [{"type": kind, field: piece} for piece in pieces(streamed_text(part), size)]
        if "signature" in block:
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        yield from (_event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas)
        yield _event({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": delta, "usage": message["usage"]})
    yield _event({"type": "message_stop"})


# For each type of block: the type and the field of its deltas, and its empty form before the first delta.
_STREAMED: dict[str, tuple[str, str, JsonObject]] = {
    "text": ("text_delta", "text", {"text": ""}),
    "thinking": ("thinking_delta", "thinking", {"thinking": "", "signature": ""}),
    "tool_use": ("input_json_delta", "partial_json", {"input": {}}),
}


def _event(data: JsonObject) -> bytes:
    return f"event: {data['type']}\ndata: ".encode() + msgspec.json.encode(data) + b"\n\n"


def error(refused: Refuse, request_id: str) -> JsonObject:
    kind = _ERROR_TYPES.get(refused.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": refused.message}, "request_id": request_id}


def headers(received: EmulatedRequest) -> dict[str, str]:
    reset = datetime.fromtimestamp(received.at_ms / 1000 + 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    sent = {"request-id": received.request_id, "anthropic-organization-id": "emulated"}
    for name, (limit, remaining) in limits_left(received).items():
        sent |= {
            f"anthropic-ratelimit-{name}-limit": str(limit),
            f"anthropic-ratelimit-{name}-remaining": str(remaining),
            f"anthropic-ratelimit-{name}-reset": reset,
        }
    return sent


def lacks(received: EmulatedRequest) -> Refuse | None:
    """A missing key is an error before a missing version."""
    sent = received.headers
    if not sent.get("x-api-key") and not sent.get("authorization"):
        return Refuse(401, "x-api-key header is required")
    if not sent.get("anthropic-version"):
        return Refuse(400, "anthropic-version: header is required")
    return None


def thinks(body: JsonObject, info: ModelInfo) -> bool:
    """Newer models think unless `thinking` is disabled, older ones only where it is enabled."""
    kind = (body.get("thinking") or {}).get("type")
    return kind != "disabled" if kind else "enabled" not in info.features.thinking


def model(info: ModelInfo) -> JsonObject:
    return {
        "type": "model",
        "id": info.model,
        "display_name": info.model,
        "created_at": "1970-01-01T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": info.window,
        "max_tokens": info.max_output,
    }


def list_models(models: list[JsonObject]) -> JsonObject:
    ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {}
    return {"data": models, "has_more": False, **ends}


# Cache diagnostics: the section in which a request first differs from the one that it names.


def diagnose(exchange: EmulatedExchange, earlier: dict[str, IssuedReply]) -> JsonObject | None:
    """The `cache_miss_reason` of a request that names an earlier reply; None where the prefixes are the same."""
    previous_id = value_at(exchange.body, "diagnostics", "previous_message_id")
    if previous_id is None:
        return None
    before = earlier.get(previous_id)
    if before is None:
        return {"type": "previous_message_not_found"}
    missed = max(0, before.tokens - exchange.predicted.read)
    if before.model != exchange.model:
        return {"type": "model_changed", "cache_missed_input_tokens": missed}
    if place := prefix_break(blocks(before.body, "anthropic"), blocks(exchange.body, "anthropic")):
        return {"type": f"{place.section}_changed", "cache_missed_input_tokens": missed}
    settings = ("thinking", "tool_choice", "output_config", "speed")
    if any(before.body.get(name) != exchange.body.get(name) for name in settings):
        return {"type": "unavailable"}
    return None


# Thinking blocks that no longer fit their conversation, where a request asks for them to be dropped.

CONTROLS_BETA = "thinking-binding-controls-2026-08-01"


def drop_mismatched(body: JsonObject, memory: ServerMemory) -> tuple[JsonObject, tuple[JsonObject, ...]]:
    """With `drop_block`: the request without thinking blocks whose prefix changed, and what the reply says of each."""
    binding = as_object(value_at(body, "thinking", "block_binding"))
    if binding.get("prefix_mismatch_behavior") != "drop_block":
        return body, ()
    # As error messages write a place: messages.1.content.0.
    paths = [
        where(thought.block.path)
        for thought in signed_thinking(conversation(body, "anthropic"))
        if (issued := memory.signed.get(thought.key)) is not None and issued.prefix != thought.prefix
    ]
    places = {tuple(path.split(".")[1::2]) for path in paths}
    messages = [
        {**message, "content": _without(message["content"], index, places)}
        for index, message in enumerate(body["messages"])
    ]
    dropped = tuple({"type": "thinking_dropped", "path": path, "reason": "prefix_binding_mismatch"} for path in paths)
    return {**body, "messages": messages}, dropped


def _without(content: object, message: int, places: set[tuple[str, ...]]) -> object:
    if not isinstance(content, list):
        return content
    return [block for index, block in enumerate(content) if (str(message), str(index)) not in places]


VOICE = ReplyForm(
    endpoints=endpoints("/v1/messages", "count_tokens"),
    call_prefix="toolu_",
    models="/v1/models",
    reply=reply,
    stream=stream,
    error=error,
    headers=headers,
    lacks=lacks,
    unknown_model=lambda name: Refuse(404, f"model: {name}"),
    model_list=list_models,
    model=model,
    thinks=thinks,
    as_history=lambda message: {"messages": [{**message, "role": "assistant"}] if message["content"] else []},
    diagnose=diagnose,
)


# Bedrock's Converse, with the same models behind it: replies, binary event streams, errors.

# A frame of Amazon's event streams: two lengths, their checksum, headers, a payload, a checksum of everything.

_STRING = 7  # the type of a header's value


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One message of an event stream."""
    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    head = b"".join(bytes([len(n)]) + n + struct.pack(">BH", _STRING, len(v)) + v for n, v in named)
    # Sixteen bytes stand around headers and payload: two lengths and two checksums of four bytes each.
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    message = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + payload
    return message + struct.pack(">I", zlib.crc32(message))


_EXCEPTIONS = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
}


def converse_reply(exchange: EmulatedExchange) -> JsonObject:
    """A whole reply."""
    content = [_converse_block(exchange, part, index) for index, part in enumerate(exchange.parts)]
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": "tool_use" if exchange.calls else "end_turn",
        "usage": _converse_usage(exchange),
        "metrics": {"latencyMs": 1},
    }


def _converse_block(exchange: EmulatedExchange, part: Spoken, index: int) -> JsonObject:
    match part:
        case Think():
            sealed = {"text": part.text, "signature": exchange.signature(part.text, index)}
            return {"reasoningContent": {"reasoningText": sealed}}
        case Call():
            return {"toolUse": {"toolUseId": part.call_id, "name": part.name, "input": part.args}}
        case Text():
            return {"text": part.text}


def _converse_usage(exchange: EmulatedExchange) -> JsonObject:
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


def converse_stream(exchange: EmulatedExchange, whole: JsonObject, size: int) -> Iterator[bytes]:
    """The events of a reply; usage comes last."""
    yield _converse_event("messageStart", {"role": "assistant"})
    for index, (part, block) in enumerate(zip(exchange.parts, whole["output"]["message"]["content"], strict=True)):
        place = {"contentBlockIndex": index}
        if isinstance(part, Call):
            start = {"toolUse": {"toolUseId": part.call_id, "name": part.name}}
            yield _converse_event("contentBlockStart", {"start": start, **place})
        deltas = [_converse_delta(part, piece) for piece in pieces(streamed_text(part), size)]
        if isinstance(part, Think):
            deltas.append({"reasoningContent": {"signature": block["reasoningContent"]["reasoningText"]["signature"]}})
        yield from (_converse_event("contentBlockDelta", {"delta": delta, **place}) for delta in deltas)
        yield _converse_event("contentBlockStop", place)
    yield _converse_event("messageStop", {"stopReason": whole["stopReason"]})
    yield _converse_event("metadata", {"usage": whole["usage"], "metrics": whole["metrics"]})


def _converse_delta(part: Spoken, piece: str) -> JsonObject:
    if isinstance(part, Call):
        return {"toolUse": {"input": piece}}
    return {"reasoningContent": {"text": piece}} if isinstance(part, Think) else {"text": piece}


def _converse_event(name: str, data: JsonObject) -> bytes:
    return frame(
        {":event-type": name, ":content-type": "application/json", ":message-type": "event"}, msgspec.json.encode(data)
    )


def converse_headers(received: EmulatedRequest) -> dict[str, str]:
    """The request's id, and the exception's name where it was refused."""
    sent = {"x-amzn-requestid": received.request_id}
    if received.status >= 400:
        sent["x-amzn-errortype"] = _EXCEPTIONS.get(received.status, "InternalServerException")
    return sent


def converse_thinks(body: JsonObject, info: ModelInfo) -> bool:
    """Converse holds Claude's thinking settings in `additionalModelRequestFields`."""
    fields = as_object(body.get("additionalModelRequestFields"))
    return thinks({"thinking": fields.get("thinking") or fields.get("reasoning_config")}, info)


CONVERSE = ReplyForm(
    endpoints=(
        EmulatedPath("/model/{model:path}/converse", streamed=False),
        EmulatedPath("/model/{model:path}/converse-stream", streamed=True),
        EmulatedPath(
            "/model/{model:path}/count-tokens",
            count="inputTokens",
            inner=lambda body: value_at(body, "input", "converse"),
        ),
    ),
    call_prefix="tooluse_",
    reply=converse_reply,
    stream=converse_stream,
    media_type="application/vnd.amazon.eventstream",
    error=lambda refused, request_id: {"message": refused.message},
    headers=converse_headers,
    lacks=lambda received: (
        None if received.headers.get("authorization") else Refuse(403, "Missing Authentication Token")
    ),
    unknown_model=lambda name: Refuse(400, "The provided model identifier is invalid."),
    thinks=converse_thinks,
)
