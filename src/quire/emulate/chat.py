"""OpenAI Chat Completions: replies, chunk streams, errors; also what compatible servers add to them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quire.emulate.script import Answering, ReplyForm, arguments, pieces
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
    if exchange.thinking and not exchange.target.startswith(("openai", "azure")):
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
    if exchange.target.startswith("deepseek"):
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


_ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_exceeded"}


def error(status: int, message: str) -> JsonObject:
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


VOICE = ReplyForm(reply, stream, error)
