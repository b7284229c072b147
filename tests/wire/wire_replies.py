"""Random replies of each provider, whole and as the stream of events that brings the same."""

import json
from collections.abc import Iterable
from itertools import chain
from typing import Any

from hypothesis import strategies as st

from quire.providers import model_info, stream
from quire.providers.incoming import ReplyReader

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
args = st.dictionaries(st.sampled_from(["path", "n", "é"]), st.integers(-9, 9) | texts, max_size=2)


def fed(target: str, events: Iterable[Any]) -> ReplyReader:
    """A reader that was given these events."""
    reader = stream(target)
    for event in events:
        reader.feed(event)
    return reader


def response_events(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The events that bring the items of a response, each of them whole."""
    output = enumerate(response["output"])
    done = [{"type": "response.output_item.done", "output_index": index, "item": item} for index, item in output]
    return [*done, {"type": "response.completed", "response": response}]


def calling(target: str, name: str, args: Any) -> dict[str, Any]:
    """A reply that makes one call."""
    arguments = json.dumps(args, ensure_ascii=False)
    function = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    use, converse = {"id": "c1", "name": name, "input": args}, {"toolUseId": "c1", "name": name, "input": args}
    replies: dict[str, dict[str, Any]] = {
        "anthropic": {"content": [{"type": "tool_use", **use}]},
        "openai-chat": {"choices": [{"message": {"role": "assistant", "tool_calls": [function]}}]},
        "openai-responses": {"output": [{"type": "function_call", "call_id": "c1", "name": name, "arguments": arguments}]},
        "gemini": {"candidates": [{"content": {"role": "model", "parts": [{"functionCall": {"name": name, "args": args}}]}}]},
        "bedrock": {"output": {"message": {"role": "assistant", "content": [{"toolUse": converse}]}}},
    }  # fmt: skip
    return replies[model_info(target).wire]


def split(draw: st.DrawFn, text: str) -> list[str]:
    """A text in one to four pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def anthropic(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    content: list[dict[str, Any]] = []
    usage = {"input_tokens": 5, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 0, "output_tokens": 1}
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-opus-5-5"}
    start = {**head, "content": [], "stop_reason": None, "usage": usage}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["text", "thinking", "redacted_thinking", "tool_use"]))
        at = {"index": index}
        if kind == "text":
            block = {"type": "text", "text": draw(texts)}
            begin, deltas = (
                {"type": "text", "text": ""},
                [{"type": "text_delta", "text": p} for p in split(draw, block["text"])],
            )
        elif kind == "thinking":
            block = {"type": "thinking", "thinking": draw(texts), "signature": "c2ln"}
            begin = {"type": "thinking", "thinking": "", "signature": ""}
            deltas = [{"type": "thinking_delta", "thinking": p} for p in split(draw, block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": "c2ln"})
        elif kind == "redacted_thinking":
            block = begin = {"type": "redacted_thinking", "data": "cmVk"}
            deltas = []
        else:
            block = {"type": "tool_use", "id": f"c{index}", "name": "f", "input": draw(args)}
            begin = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": p} for p in split(draw, json.dumps(block["input"]))]
        content.append(block)
        events.append({"type": "content_block_start", **at, "content_block": begin})
        events += [{"type": "content_block_delta", **at, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", **at})
    events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 42}})
    events.append({"type": "message_stop"})
    return {**head, "content": content, "stop_reason": "end_turn", "usage": {**usage, "output_tokens": 42}}, events


@st.composite
def chat(draw: st.DrawFn) -> tuple[dict[str, Any], list[Any]]:
    head = {"id": "cmpl_1", "model": "gpt-6-sol"}
    message: dict[str, Any] = {"role": "assistant", "content": None}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if draw(st.booleans()):
        message["reasoning_content"] = draw(texts)
        deltas += [{"reasoning_content": piece} for piece in split(draw, message["reasoning_content"])]
    if draw(st.booleans()):
        message["content"] = draw(texts)
        deltas += [{"content": piece} for piece in split(draw, message["content"])]
    calls = []
    for index in range(draw(st.integers(0, 2))):
        function = {"name": "f", "arguments": json.dumps(draw(args))}
        calls.append({"id": f"c{index}", "type": "function", "function": function})
        begin = {"index": index, "id": calls[-1]["id"], "type": "function", "function": {"name": "f", "arguments": ""}}
        deltas.append({"tool_calls": [begin]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": p}}]} for p in split(draw, function["arguments"])
        ]
    if calls:
        message["tool_calls"] = calls
    usage = {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
    events: list[Any] = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    events += [{**head, "choices": [], "usage": usage}, "[DONE]"]
    return {**head, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}, events


@st.composite
def responses(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    head = {"id": "resp_1", "model": "gpt-6-sol"}
    output: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = [{"type": "response.created", "response": {**head, "status": "in_progress"}}]
    for index in range(draw(st.integers(0, 4))):
        at = {"output_index": index, "sequence_number": index}
        kind = draw(st.sampled_from(["message", "reasoning", "function_call"]))
        if kind == "message":
            text = draw(texts)
            content = [{"type": "output_text", "text": text, "annotations": []}]
            item: dict[str, Any] = {"type": "message", "id": f"msg_{index}", "role": "assistant", "status": "completed"}
            item |= {"phase": "final_answer", "content": content}
            begin = {**item, "content": []}
            deltas = [{"type": "response.output_text.delta", **at, "delta": piece} for piece in split(draw, text)]
        elif kind == "reasoning":
            item = {"type": "reasoning", "id": f"rs_{index}", "summary": [], "encrypted_content": "ZW5j"}
            begin, deltas = {**item, "encrypted_content": "half"}, []
        else:
            arguments = json.dumps(draw(args))
            item = {"type": "function_call", "id": f"fc_{index}", "call_id": f"c{index}", "name": "f"}
            item |= {"arguments": arguments, "status": "completed"}
            begin = {**item, "arguments": ""}
            begun = {"type": "response.function_call_arguments.delta", **at}
            deltas = [{**begun, "delta": piece} for piece in split(draw, arguments)]
        output.append(item)
        events += [{"type": "response.output_item.added", **at, "item": begin}, *deltas]
        events.append({"type": "response.output_item.done", **at, "item": item})
    usage = {"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 3}}
    reply = {**head, "status": "completed", "output": output, "usage": usage}
    return reply, [*events, {"type": "response.completed", "response": reply}]


@st.composite
def gemini(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    parts: list[dict[str, Any]] = []
    chunks: list[list[dict[str, Any]]] = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["text", "thought", "call", "signature"]))
        shape = {"thought": True} if kind == "thought" else {}
        if kind in ("text", "thought"):
            if parts and set(parts[-1]) == {"text", *shape}:
                continue  # two texts of one kind in a row are one
            text = draw(texts)
            parts.append({"text": text, **shape})
            chunks += [[{"text": piece, **shape}] for piece in split(draw, text)]
        else:
            call = {
                "functionCall": {"name": "f", "args": draw(args), "id": f"c{len(parts)}"},
                "thoughtSignature": "c2ln",
            }
            parts.append(call if kind == "call" else {"text": "", "thoughtSignature": "c2ln"})
            chunks.append([parts[-1]])
    # One chunk may bring several parts.
    size = draw(st.integers(1, 3))
    chunks = [list(chain(*chunks[at : at + size])) for at in range(0, len(chunks), size)]
    head = {"responseId": "r1", "modelVersion": "gemini-3.8-flash"}
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 4, "cachedContentTokenCount": 3, "totalTokenCount": 13}

    def reply(given: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**head, "candidates": [{"content": {"role": "model", "parts": given}, **more}], "usageMetadata": usage}

    return reply(parts, finishReason="STOP"), [*map(reply, chunks), reply([], finishReason="STOP")]


@st.composite
def bedrock(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    content: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = [{"messageStart": {"role": "assistant"}}]
    for index in range(draw(st.integers(0, 4))):
        at = {"contentBlockIndex": index}
        kind = draw(st.sampled_from(["text", "toolUse", "reasoning", "redacted"]))
        start: list[dict[str, Any]] = []
        if kind == "text":
            block: dict[str, Any] = {"text": draw(texts)}
            deltas: list[dict[str, Any]] = [{"text": piece} for piece in split(draw, block["text"])]
        elif kind == "toolUse":
            block = {"toolUse": {"toolUseId": f"c{index}", "name": "f", "input": draw(args)}}
            use = {key: block["toolUse"][key] for key in ("toolUseId", "name")}
            start = [{"contentBlockStart": {**at, "start": {"toolUse": use}}}]
            deltas = [{"toolUse": {"input": piece}} for piece in split(draw, json.dumps(block["toolUse"]["input"]))]
        elif kind == "reasoning":
            thought = draw(texts)
            block = {"reasoningContent": {"reasoningText": {"text": thought, "signature": "c2ln"}}}
            deltas = [{"reasoningContent": {"text": piece}} for piece in split(draw, thought)]
            deltas.append({"reasoningContent": {"signature": "c2ln"}})
        else:
            block = {"reasoningContent": {"redactedContent": b"red"}}
            deltas = [{"reasoningContent": {"redactedContent": b"red"}}]
        content.append(block)
        events += [*start, *({"contentBlockDelta": {**at, "delta": delta}} for delta in deltas)]
        events.append({"contentBlockStop": at})
    usage = {"inputTokens": 2, "outputTokens": 4, "cacheReadInputTokens": 7, "totalTokens": 13}
    events += [{"messageStop": {"stopReason": "end_turn"}}, {"metadata": {"usage": usage}}]
    message = {"role": "assistant", "content": content}
    return {"output": {"message": message}, "stopReason": "end_turn", "usage": usage}, events


REPLIES = {
    "anthropic:claude-opus-5-5": anthropic(),
    "openai-chat:gpt-6-sol": chat(),
    "openai:gpt-6-sol": responses(),
    "gemini:gemini-3.8-flash": gemini(),
    "bedrock:us.anthropic.claude-opus-5-5-v1:0": bedrock(),
}
