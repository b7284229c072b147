"""OpenAI's Chat Completions and Responses: replies, streams, errors; and the fields that compatible servers add to Chat."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from quire.emulate.script import (
    EmulatedExchange,
    EmulatedRequest,
    IssuedReply,
    Refuse,
    ReplyForm,
    Spoken,
    endpoints,
    limits_left,
    pieces,
)
from quire.providers.explain import prefix_break
from quire.providers.simulate import blocks
from quire.values import Call, Json, JsonObject, Text, Think, as_object, as_objects, value_at

# Chat Completions.


def chat_reply(exchange: EmulatedExchange) -> JsonObject:
    """A whole completion."""
    return {
        "id": f"chatcmpl-{exchange.number:06d}",
        "object": "chat.completion",
        "created": exchange.at_ms // 1000,
        "model": exchange.model,
        "choices": [
            {
                "index": 0,
                "message": _message(exchange),
                "logprobs": None,
                "finish_reason": "tool_calls" if exchange.calls else "stop",
            }
        ],
        "usage": usage(exchange),
    }


def _message(exchange: EmulatedExchange) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": exchange.text or None, "refusal": None}
    if exchange.thinking and not exchange.info.features.strict:
        message["reasoning_content"] = exchange.thinking
    if exchange.calls:
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in exchange.calls
        ]
    return message


def usage(exchange: EmulatedExchange) -> JsonObject:
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
    if exchange.info.engine == "deepseek-units":
        used |= {"prompt_cache_hit_tokens": predicted.read, "prompt_cache_miss_tokens": predicted.plain}
    return used


def chat_stream(exchange: EmulatedExchange, completion: JsonObject, size: int) -> Iterator[bytes]:
    """The chunks of a completion; usage comes last, where it was asked for."""
    message = completion["choices"][0]["message"]
    yield _chunk(completion, {"role": "assistant", "content": ""})
    for field in ("reasoning_content", "content"):
        for piece in pieces(message[field], size) if message.get(field) else ():
            yield _chunk(completion, {field: piece})
    for index, call in enumerate(message.get("tool_calls") or ()):
        opening = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
        yield _chunk(completion, {"tool_calls": [opening]})
        for piece in pieces(call["function"]["arguments"], size):
            yield _chunk(completion, {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield _chunk(completion, {}, completion["choices"][0]["finish_reason"])
    if (exchange.body.get("stream_options") or {}).get("include_usage"):
        yield _chunk(completion, None, usage=completion["usage"])
    yield b"data: [DONE]\n\n"


def _chunk(completion: JsonObject, delta: JsonObject | None, finish: str | None = None, **also: Json) -> bytes:
    """A chunk of a completion; without a delta it has no choices, only what stands in `also` (the usage)."""
    frame = {**{name: completion[name] for name in ("id", "created", "model")}, "object": "chat.completion.chunk"}
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}] if delta is not None else []
    return b"data: " + msgspec.json.encode({**frame, "choices": choices, **also}) + b"\n\n"


def error(refused: Refuse, request_id: str) -> JsonObject:
    """For a rate limit, `type` names what ran out (requests), and `code` says that a limit was exceeded."""
    limit = refused.status == 429
    kind = "requests" if limit else "invalid_request_error" if refused.status < 500 else "server_error"
    code = refused.code or ("rate_limit_exceeded" if limit else None)
    return {"error": {"message": refused.message, "type": kind, "param": refused.param, "code": code}}


def headers(received: EmulatedRequest) -> dict[str, str]:
    sent = {"x-request-id": received.request_id, "openai-processing-ms": "1", "openai-version": "2020-10-01"}
    for name, (limit, remaining) in limits_left(received).items():
        sent |= {
            f"x-ratelimit-limit-{name}": str(limit),
            f"x-ratelimit-remaining-{name}": str(remaining),
            f"x-ratelimit-reset-{name}": "6ms",
        }
    return sent


def lacks(received: EmulatedRequest) -> Refuse | None:
    if received.headers.get("authorization") or received.headers.get("api-key"):
        return None
    explanation = "You need to provide your API key in an Authorization header using Bearer auth"
    return Refuse(401, f"You didn't provide an API key. {explanation} (i.e. Authorization: Bearer YOUR_KEY).")


def unknown_model(name: str) -> Refuse:
    message = f"The model `{name}` does not exist or you do not have access to it."
    return Refuse(404, message, code="model_not_found")


CHAT = ReplyForm(
    endpoints=endpoints("/v1/chat/completions"),
    call_prefix="call_",
    models="/v1/models",
    reply=chat_reply,
    stream=chat_stream,
    error=error,
    headers=headers,
    lacks=lacks,
    unknown_model=unknown_model,
    model_list=lambda models: {"object": "list", "data": models},
    model=lambda info: {"id": info.model, "object": "model", "created": 0, "owned_by": info.provider},
    as_history=lambda completion: {"messages": [completion["choices"][0]["message"]]},
)


# Responses: event streams have sequence numbers; errors are as in Chat.


def responses_reply(exchange: EmulatedExchange) -> JsonObject:
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
        "output": [_compaction(exchange)]
        if compacts(body)
        else [_item(exchange, part, index) for index, part in enumerate(exchange.parts)],
        "parallel_tool_calls": body.get("parallel_tool_calls", True),
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools", []),
        "previous_response_id": exchange.previous,
        "reasoning": {"effort": None, "summary": None, **as_object(body.get("reasoning"))},
        "store": body.get("store") is not False,
        "metadata": body.get("metadata") or {},
        "usage": _usage(exchange),
    }
    options = body.get("prompt_cache_options")
    if options:
        response["prompt_cache_options"] = {"mode": "implicit", "ttl": "30m", **options}
    if exchange.diagnosis:
        response["prompt_cache_diagnostics"] = exchange.diagnosis
    return response


def compacts(body: JsonObject) -> bool:
    """Whether a request only asks for a compaction of the conversation so far."""
    items = as_objects(body.get("input"))
    return bool(items) and items[-1].get("type") == "compaction_trigger"


def compact(exchange: EmulatedExchange) -> JsonObject:
    """The answer of /responses/compact: the user's messages unchanged, and one encrypted item for everything else."""
    items = as_objects(exchange.body.get("input"))
    messages = [{**item, "type": "message"} for item in items if item.get("role") == "user"]
    return {
        "id": f"resp_{exchange.number:06d}",
        "object": "response.compaction",
        "created_at": exchange.at_ms // 1000,
        "output": [*messages, _compaction(exchange)],
        "usage": _usage(exchange),
    }


def _compaction(exchange: EmulatedExchange) -> JsonObject:
    sealed = exchange.signature(str(exchange.body.get("input")), 0)
    return {"type": "compaction", "id": f"cmp_{exchange.number:06d}", "encrypted_content": sealed}


def _item(exchange: EmulatedExchange, part: Spoken, index: int) -> JsonObject:
    name = f"{exchange.number:06d}{index:02d}"
    match part:
        case Think():
            return {"type": "reasoning", "id": f"rs_{name}", **_reasoning(exchange, part, index)}
        case Call():
            return _call(part, name, exchange.body)
        case Text():
            content = [{"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}]
            head = {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed"}
            return {**head, "content": content}


def _reasoning(exchange: EmulatedExchange, part: Think, index: int) -> JsonObject:
    """The summary and the encrypted content of a thought, each only where it was asked for."""
    settings = as_object(exchange.body.get("reasoning"))
    summarised = part.text and (settings.get("summary") or settings.get("generate_summary"))
    fields: JsonObject = {"summary": [{"type": "summary_text", "text": part.text}] if summarised else []}
    if "reasoning.encrypted_content" in (exchange.body.get("include") or ()):
        fields["encrypted_content"] = exchange.signature(part.text, index)
    return fields


def _call(part: Call, name: str, body: JsonObject) -> JsonObject:
    """A function call; a custom tool call where the tool takes free text."""
    tool = _offers(body).get(part.name, {})
    ends = {"name": part.name, "call_id": part.call_id, "status": "completed"}
    if tool.get("namespace"):
        ends["namespace"] = tool["namespace"]
    if tool.get("type") == "custom":
        text = part.args if isinstance(part.args, str) else part.arguments
        return {"type": "custom_tool_call", "id": f"ctc_{name}", "input": text, **ends}
    return {"type": "function_call", "id": f"fc_{name}", "arguments": part.arguments, **ends}


def _offers(body: JsonObject) -> dict[str, JsonObject]:
    """The request's tools by name, with those of namespaces and of `additional_tools` items; the first of a name counts."""
    offered: dict[str, JsonObject] = {}
    late = [item for item in as_objects(body.get("input")) if item.get("type") == "additional_tools"]
    for owner in (body, *late):
        for tool in as_objects(owner.get("tools")):
            inside = [{**inner, "namespace": tool.get("name")} for inner in as_objects(tool.get("tools"))]
            for function in inside if tool.get("type") == "namespace" else [tool]:
                offered.setdefault(str(function.get("name")), function)
    return offered


def _usage(exchange: EmulatedExchange) -> JsonObject:
    """Input tokens here include what was cached."""
    predicted, output = exchange.predicted, exchange.output_tokens
    return {
        "input_tokens": predicted.total,
        "input_tokens_details": {
            "cached_tokens": predicted.read,
            "cache_write_tokens": predicted.write_5m + predicted.write_1h,
            "cache_write_tokens_details": {"ttl_30m_tokens": predicted.write_5m, "ttl_12h_tokens": predicted.write_1h},
        },
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": exchange.reasoning_tokens},
        "total_tokens": predicted.total + output,
    }


def responses_stream(exchange: EmulatedExchange, response: JsonObject, size: int) -> Iterator[bytes]:
    """The events of a response, numbered from 0."""
    for number, event in enumerate(_events(response, size)):
        data = msgspec.json.encode({**event, "sequence_number": number})
        yield b"event: " + event["type"].encode() + b"\ndata: " + data + b"\n\n"


def _events(response: JsonObject, size: int) -> Iterator[JsonObject]:
    opening = {**response, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": opening}
    yield {"type": "response.in_progress", "response": opening}
    for index, item in enumerate(response["output"]):
        # An item begins without contents; even its encrypted content comes only with the finished item.
        empty = {name: value for name, value in _EMPTY.items() if name in item}
        started = {**item, "status": "in_progress", **empty}
        yield {"type": "response.output_item.added", "output_index": index, "item": started}
        for event in _INSIDE[item["type"]](item, size):
            yield {**event, "item_id": item["id"], "output_index": index}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": "response.completed", "response": response}


_EMPTY: JsonObject = {"content": [], "summary": [], "encrypted_content": "", "arguments": "", "input": ""}


# For an item that holds texts: its field, the index's name in events, the event names of a part and of its text, more fields.
_TEXTS: dict[str, tuple[str, str, str, str, JsonObject]] = {
    "message": ("content", "content_index", "content_part", "output_text", {"logprobs": []}),
    "reasoning": ("summary", "summary_index", "reasoning_summary_part", "reasoning_summary_text", {}),
}


def _text_events(item: JsonObject, size: int) -> Iterator[JsonObject]:
    field, at, part_name, text_name, also = _TEXTS[item["type"]]
    for index, part in enumerate(item[field]):
        yield {"type": f"response.{part_name}.added", at: index, "part": {**part, "text": ""}}
        for piece in pieces(part["text"], size):
            yield {"type": f"response.{text_name}.delta", at: index, "delta": piece, **also}
        yield {"type": f"response.{text_name}.done", at: index, "text": part["text"], **also}
        yield {"type": f"response.{part_name}.done", at: index, "part": part}


def _call_events(item: JsonObject, size: int) -> Iterator[JsonObject]:
    custom = item["type"] == "custom_tool_call"
    field, name = ("input", "custom_tool_call_input") if custom else ("arguments", "function_call_arguments")
    for piece in pieces(item[field], size):
        yield {"type": f"response.{name}.delta", "delta": piece}
    named = {} if custom else {"name": item["name"]}
    yield {"type": f"response.{name}.done", field: item[field], **named}


_INSIDE: dict[str, Callable[[JsonObject, int], Iterator[JsonObject]]] = {
    **dict.fromkeys(_TEXTS, _text_events),
    "function_call": _call_events,
    "custom_tool_call": _call_events,
    "compaction": lambda item, size: iter(()),
}


# Cache diagnostics: why a request could not reuse the prefix of the one that it names.


def diagnose(exchange: EmulatedExchange, earlier: dict[str, IssuedReply]) -> JsonObject | None:
    """The `prompt_cache_diagnostics` of a request that names an earlier response."""
    compared = (exchange.body.get("prompt_cache_options") or {}).get("comparison_response_id")
    if compared is None:
        return None
    before = earlier.get(compared)
    if before is None:
        return {"type": "comparison_response_not_found"}
    reason = "model_changed" if before.model != exchange.model else _reason(before.body, exchange.body)
    if reason is None:
        return {"type": "cache_hit"}
    missed = max(0, before.tokens - exchange.predicted.read)
    return {"type": "cache_miss", "reason": reason, "cache_missed_tokens": missed}


def _reason(before: JsonObject, body: JsonObject) -> str | None:
    settings = [
        {
            "prompt_cache_key_changed": fields.get("prompt_cache_key") or None,
            "tools_changed": fields.get("tools") or None,
            "text_format_changed": value_at(fields, "text", "format") or None,
            "reasoning_effort_changed": value_at(fields, "reasoning", "effort") or None,
            "verbosity_changed": value_at(fields, "text", "verbosity") or None,
            "service_tier_changed": fields.get("service_tier") or None,
        }
        for fields in (before, body)
    ]
    changed = [reason for reason, was in settings[0].items() if settings[1][reason] != was]
    if changed:
        return changed[0]
    place = prefix_break(blocks(before, "openai-responses"), blocks(body, "openai-responses"))
    return "input_changed" if place is not None else None


RESPONSES = msgspec.structs.replace(
    CHAT,
    endpoints=endpoints("/v1/responses", "input_tokens"),
    reply=responses_reply,
    stream=responses_stream,
    unknown_model=lambda name: Refuse(
        400, f"The requested model '{name}' does not exist.", code="model_not_found", param="model"
    ),
    thinks=lambda body, info: info.features.reasoning and value_at(body, "reasoning", "effort") != "none",
    as_history=lambda response: {"input": response["output"]},
    diagnose=diagnose,
    stores=True,
)
