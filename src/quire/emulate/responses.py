"""OpenAI Responses: replies, event streams with sequence numbers, errors as in Chat."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quire.emulate.chat import error
from quire.emulate.script import Answering, ReplyForm, arguments, pieces
from quire.values import Call, JsonObject, Text, Think


def reply(exchange: Answering) -> JsonObject:
    """A whole response."""
    body = exchange.body
    response: JsonObject = {
        "id": f"resp_{exchange.number:06d}",
        "object": "response",
        "created_at": exchange.at_ms // 1000,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "model": exchange.model,
        "output": [_item(exchange, index) for index in range(len(exchange.parts))],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools", []),
        "metadata": {},
        "usage": _usage(exchange),
    }
    options = body.get("prompt_cache_options")
    if options:
        response["prompt_cache_options"] = {"mode": "implicit", "ttl": "30m", **options}
    if exchange.diagnosis:
        response["prompt_cache_diagnostics"] = exchange.diagnosis
    return response


def _item(exchange: Answering, index: int) -> JsonObject:
    name = f"{exchange.number:06d}{index:02d}"
    match exchange.parts[index]:
        case Think() as part:
            summary = [{"type": "summary_text", "text": part.text}] if part.text else []
            sealed = exchange.signature(part, index)
            return {"type": "reasoning", "id": f"rs_{name}", "summary": summary, "encrypted_content": sealed}
        case Call() as part:
            return {
                "type": "function_call",
                "id": f"fc_{name}",
                "call_id": exchange.call_id(index, "call_"),
                "name": part.name,
                "arguments": arguments(part),
                "status": "completed",
            }
        case Text() as part:
            content = [{"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}]
            head = {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed"}
            return {**head, "content": content}


def _usage(exchange: Answering) -> JsonObject:
    """Input tokens here include what was cached."""
    predicted, output = exchange.predicted, exchange.output_tokens
    return {
        "input_tokens": predicted.total,
        "input_tokens_details": {
            "cached_tokens": predicted.read,
            "cache_write_tokens": predicted.write_5m + predicted.write_1h,
            "cache_write_tokens_details": {
                "ttl_30m_tokens": predicted.write_5m,
                "ttl_12h_tokens": predicted.write_1h,
            },
        },
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": exchange.reasoning_tokens},
        "total_tokens": predicted.total + output,
    }


def stream(exchange: Answering, response: JsonObject, size: int) -> Iterator[bytes]:
    """The events of a response, numbered from 0."""
    for number, event in enumerate(_events(response, size)):
        data = msgspec.json.encode({**event, "sequence_number": number})
        yield b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n"


def _events(response: JsonObject, size: int) -> Iterator[JsonObject]:
    opening = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": opening}
    yield {"type": "response.in_progress", "response": opening}
    for index, item in enumerate(response["output"]):
        # What is sealed is only good once the item is done.
        started = {**item, "status": "in_progress", **_EMPTY[item["type"]]}
        yield {"type": "response.output_item.added", "output_index": index, "item": started}
        for event in _INSIDE[item["type"]](item, size):
            yield {**event, "item_id": item["id"], "output_index": index}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": response}


_EMPTY: dict[str, JsonObject] = {
    "message": {"content": []},
    "reasoning": {"summary": [], "encrypted_content": ""},
    "function_call": {"arguments": ""},
}


def _message_events(item: JsonObject, size: int) -> Iterator[JsonObject]:
    part = item["content"][0]
    empty = {**part, "text": ""}
    yield {"type": "response.content_part.added", "content_index": 0, "part": empty}
    for piece in pieces(part["text"], size):
        yield {"type": "response.output_text.delta", "content_index": 0, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", "content_index": 0, "text": part["text"], "logprobs": []}
    yield {"type": "response.content_part.done", "content_index": 0, "part": part}


def _reasoning_events(item: JsonObject, size: int) -> Iterator[JsonObject]:
    for index, part in enumerate(item["summary"]):
        place = {"summary_index": index}
        yield {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}}
        for piece in pieces(part["text"], size):
            yield {"type": "response.reasoning_summary_text.delta", **place, "delta": piece}
        yield {"type": "response.reasoning_summary_text.done", **place, "text": part["text"]}
        yield {"type": "response.reasoning_summary_part.done", **place, "part": part}


def _call_events(item: JsonObject, size: int) -> Iterator[JsonObject]:
    for piece in pieces(item["arguments"], size):
        yield {"type": "response.function_call_arguments.delta", "delta": piece}
    done = {"arguments": item["arguments"], "name": item["name"]}
    yield {"type": "response.function_call_arguments.done", **done}


_INSIDE = {"message": _message_events, "reasoning": _reasoning_events, "function_call": _call_events}


VOICE = ReplyForm(reply, stream, error)
