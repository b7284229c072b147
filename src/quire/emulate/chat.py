"""OpenAI Chat Completions: replies, chunk streams, errors; also what compatible servers add to them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quire.emulate.script import (
    Answering,
    EmulatedPath,
    EmulatedRequest,
    Refusal,
    ReplyForm,
    arguments,
    limits_left,
    pieces,
)
from quire.providers.models import ModelInfo, model_info
from quire.values import Call, JsonObject


def reply(exchange: Answering) -> JsonObject:
    """A whole completion."""
    return {
        "id": f"chatcmpl-{exchange.number:06d}",
        "object": "chat.completion",
        "created": exchange.at_ms // 1000,
        "model": exchange.model,
        "choices": [
            {"index": 0, "message": _message(exchange), "logprobs": None, "finish_reason": _finish(exchange)}
        ],
        "usage": usage(exchange),
    }


def _finish(exchange: Answering) -> str:
    return "tool_calls" if exchange.calls else "stop"


def _message(exchange: Answering) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": exchange.text or None, "refusal": None}
    if exchange.thinking and not model_info(exchange.target).features.strict:
        message["reasoning_content"] = exchange.thinking
    if exchange.calls:
        message["tool_calls"] = [
            {
                "id": exchange.call_id(index, "call_"),
                "type": "function",
                "function": {"name": call.name, "arguments": arguments(call)},
            }
            for index, call in enumerate(exchange.parts)
            if isinstance(call, Call)
        ]
    return message


def usage(exchange: Answering) -> JsonObject:
    """Prompt tokens here include what was cached."""
    predicted, output = exchange.predicted, exchange.output_tokens
    written = predicted.write_5m + predicted.write_1h
    details: JsonObject = {"cached_tokens": predicted.read, "audio_tokens": 0}
    if written:
        details["cache_write_tokens"] = written
    used: JsonObject = {
        "prompt_tokens": predicted.total,
        "completion_tokens": output,
        "total_tokens": predicted.total + output,
        "prompt_tokens_details": details,
        "completion_tokens_details": {"reasoning_tokens": exchange.reasoning_tokens},
    }
    if model_info(exchange.target).engine == "deepseek-units":
        used |= {"prompt_cache_hit_tokens": predicted.read, "prompt_cache_miss_tokens": predicted.plain}
    return used


def stream(exchange: Answering, completion: JsonObject, size: int) -> Iterator[bytes]:
    """The chunks of a completion; usage comes last, when it was asked for."""
    message = completion["choices"][0]["message"]
    yield _chunk(completion, {"role": "assistant", "content": ""})
    if message.get("reasoning_content"):
        for piece in pieces(message["reasoning_content"], size):
            yield _chunk(completion, {"reasoning_content": piece})
    if message["content"]:
        for piece in pieces(message["content"], size):
            yield _chunk(completion, {"content": piece})
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield from _call_chunks(completion, index, call, size)
    yield _chunk(completion, {}, completion["choices"][0]["finish_reason"])
    if (exchange.body.get("stream_options") or {}).get("include_usage"):
        yield _data({**_frame(completion), "choices": [], "usage": completion["usage"]})
    yield b"data: [DONE]\n\n"


def _call_chunks(completion: JsonObject, index: int, call: JsonObject, size: int) -> Iterator[bytes]:
    opening = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
    yield _chunk(completion, {"tool_calls": [opening]})
    for piece in pieces(call["function"]["arguments"], size):
        yield _chunk(completion, {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})


def _frame(completion: JsonObject) -> JsonObject:
    kept = {name: completion[name] for name in ("id", "created", "model")}
    return {**kept, "object": "chat.completion.chunk"}


def _chunk(completion: JsonObject, delta: JsonObject, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return _data({**_frame(completion), "choices": [choice]})


def _data(value: JsonObject) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def error(refused: Refusal, request_id: str) -> JsonObject:
    """A limit says by its type what ran out, by its code that it did."""
    limit = refused.status == 429
    kind = "requests" if limit else "invalid_request_error" if refused.status < 500 else "server_error"
    code = refused.code or ("rate_limit_exceeded" if limit else None)
    return {"error": {"message": refused.message, "type": kind, "param": refused.param, "code": code}}


def headers(received: EmulatedRequest) -> dict[str, str]:
    sent = {"x-request-id": received.request_id, "openai-processing-ms": "1", "openai-version": "2020-10-01"}
    for name, (limit, left) in limits_left(received).items():
        sent |= {
            f"x-ratelimit-limit-{name}": str(limit),
            f"x-ratelimit-remaining-{name}": str(left),
            f"x-ratelimit-reset-{name}": "6ms",
        }
    return sent


def lacks(received: EmulatedRequest) -> Refusal | None:
    if received.headers.get("authorization") or received.headers.get("api-key"):
        return None
    asked = "You need to provide your API key in an Authorization header using Bearer auth"
    return Refusal(401, f"You didn't provide an API key. {asked} (i.e. Authorization: Bearer YOUR_KEY).")


def unknown_model(name: str) -> Refusal:
    message = f"The model `{name}` does not exist or you do not have access to it."
    return Refusal(404, message, "model_not_found")


def model(info: ModelInfo) -> JsonObject:
    return {"id": info.model, "object": "model", "created": 0, "owned_by": info.provider}


def listed(models: list[ModelInfo]) -> JsonObject:
    return {"object": "list", "data": [model(each) for each in models]}


VOICE = ReplyForm(
    endpoints=(EmulatedPath("/v1/chat/completions"), EmulatedPath("/chat/completions")),
    models="/v1/models",
    reply=reply,
    stream=stream,
    error=error,
    headers=headers,
    lacks=lacks,
    unknown_model=unknown_model,
    listed=listed,
    model=model,
    said=lambda completion: {"messages": [completion["choices"][0]["message"]]},
)
