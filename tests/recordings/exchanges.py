"""Exchanges recorded with real provider APIs, read from ../shared/data/recordings, and what they say in one spelling.

`spelled` is what the round trip compares: two bodies that a provider reads alike are equal there, and
nothing else is. `whole_reply` puts a recorded stream together without Quire's own readers.
"""

import base64
import gzip
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

from conftest import shared_data

Object = dict[str, Any]

# Who answers at a host; the first of two names speaks Chat, the second the Responses API. Any other host is
# known by its wire format alone.
HOSTS = {
    "api.openai.com": ("openai-chat", "openai"),
    "api.groq.com": ("groq", "openai-responses"),
    "openrouter.ai": ("openrouter", "openrouter-responses"),
    "api.mistral.ai": ("mistral", "openai-responses"),
    "api.deepseek.com": ("deepseek", "openai-responses"),
}
AZURE = ("azure-chat", "azure")
FILES = {
    "anthropic": ("anthropic", "anthropic-count", "bedrock-invoke"),
    "bedrock": ("bedrock",),
    "gemini": ("gemini",),
    "openai-chat": ("openai-chat",),
    "openai-responses": ("openai-responses",),
}
# What of a body is the conversation; all else is how the reply shall be made.
CONVERSATION = {
    "anthropic": ("tools", "system", "messages"),
    "bedrock": ("toolConfig", "system", "messages"),
    "gemini": ("tools", "systemInstruction", "contents"),
    "openai-chat": ("tools", "messages"),
    "openai-responses": ("tools", "instructions", "input"),
}


class Exchange(msgspec.Struct, frozen=True):
    """One request and what came back: a reply or the events of a stream."""

    name: str
    wire: str
    provider: str
    model: str
    status: int
    body: Object
    reply: Object | None = None
    events: tuple[Object, ...] = ()
    counted: bool = False

    @property
    def target(self) -> str:
        return f"{self.provider}:{self.model}"

    @property
    def accepted(self) -> bool:
        return self.status == 200

    @property
    def answered(self) -> bool:
        """Whether a model answered: an error may come with status 200, or in the middle of a stream."""
        given = (*self.events, *((self.reply,) if self.reply else ()))
        blocked = any("promptFeedback" in one and not one.get("candidates") for one in given)
        return self.accepted and bool(given) and not blocked and not any(one.get("error") for one in given)

    @property
    def options(self) -> Object:
        """Everything that is not the conversation, for the call that renders it again."""
        apart = {*CONVERSATION[self.wire], "model", "stream", "stream_options", "cache_control"}
        return {name: value for name, value in self.body.items() if name not in apart}


@cache
def exchanges(wire: str) -> tuple[Exchange, ...]:
    """The recorded conversations in one wire format; embeddings, which are none, are passed over."""
    return tuple(_exchange(wire, file, line) for file in FILES[wire] for line in _lines(file))


def _lines(file: str) -> Iterator[Object]:
    path = shared_data(f"recordings/{file}.jsonl.gz")
    for line in gzip.decompress(path.read_bytes()).decode().split("\n"):
        row = json.loads(line) if line else {}
        if row.get("request", {}).keys() & {"messages", "contents", "input"}:
            yield row


def _exchange(wire: str, file: str, row: Object) -> Exchange:
    short = re.sub(r"^(models/)?cassettes/|\.yaml$", "", row["recording"])
    raw = row.get("stream_base64")
    events = _converse_events(base64.b64decode(raw)) if raw else _sse_events(row.get("stream") or "")
    return Exchange(
        name=f"{short} {row['n']}",
        wire=wire,
        provider=_provider(wire, file, row["host"]),
        model=row["model"],
        status=row["status"],
        body=row["request"],
        reply=row.get("reply"),
        events=tuple(events),
        counted=file == "anthropic-count",
    )


def _provider(wire: str, file: str, host: str) -> str:
    if file == "bedrock-invoke":
        return "bedrock-anthropic"
    if not wire.startswith("openai"):
        return wire
    pair = AZURE if host.endswith(".azure.com") else HOSTS.get(host, ("openai-chat", "openai-responses"))
    return pair[wire == "openai-responses"]


def _sse_events(text: str) -> Iterator[Object]:
    for event in re.split(r"\r?\n\r?\n", text):
        data = "\n".join(line[5:].lstrip() for line in event.splitlines() if line.startswith("data:"))
        if data and data != "[DONE]":
            yield json.loads(data)


def _converse_events(raw: bytes) -> Iterator[Object]:
    """AWS event stream frames: total and header length, a checksum, headers, payload, a checksum."""
    while raw:
        total, headers = int.from_bytes(raw[:4], "big"), int.from_bytes(raw[4:8], "big")
        head, payload = raw[12 : 12 + headers], json.loads(raw[12 + headers : total - 4])
        kind = re.search(rb":event-type\x07..(\w+?)\r?:content-type", head, re.S)
        payload.pop("p", None)  # padding
        yield {kind[1].decode() if kind else "unknown": payload}
        raw = raw[total:]


# One spelling


def spelled(wire: str, body: Object) -> Object:
    """The conversation of a body, where what a provider reads alike is written alike."""
    plain = _plain(body, camel=wire == "gemini")
    # Tools are frozen in name order.
    return {"tools": sorted(_tools(wire, plain), key=_named), "messages": _SPELLED[wire](plain)}


def _named(tool: Object) -> str:
    return str(tool.get("name") or json.dumps(tool, sort_keys=True))


def _without(holder: Object, name: str, default: Any) -> Object:
    """An object without a field that holds what its absence means."""
    return {key: one for key, one in holder.items() if (key, one) != (name, default)}


# Names and values in these are the caller's own: nothing in them is spelling.
_OPAQUE = {"input_schema", "parameters", "parametersJsonSchema", "json", "args", "response", "inputSchema"}


def _plain(value: Any, camel: bool, within: str = "") -> Any:
    """Without nulls, cache marks and SDK spellings."""
    if within in _OPAQUE or (within == "input" and isinstance(value, dict)):
        return value
    if isinstance(value, dict):
        named = {(_camel(key) if camel else key): one for key, one in value.items()}
        return {
            key: _plain(one, camel, key)
            for key, one in named.items()
            if one is not None and key not in ("cache_control", "prompt_cache_breakpoint")
        }
    if isinstance(value, list):
        return [_plain(one, camel) for one in value if not (isinstance(one, dict) and "cachePoint" in one)]
    return value


def _camel(name: str) -> str:
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)


def _tools(wire: str, body: Object) -> list[Object]:
    if wire == "bedrock":
        return [one.get("toolSpec", one) for one in body.get("toolConfig", {}).get("tools", ())]
    tools = body.get("tools") or []
    if wire == "gemini":
        tools = tools if isinstance(tools, list) else [tools]
        functions = [one for tool in tools for one in tool.get("functionDeclarations", ())]
        return functions + [
            {name: one[name]} for one in tools for name in sorted(one) if name != "functionDeclarations"
        ]
    if wire == "openai-chat":
        return [one.get("function") or one for one in tools]
    return [_without(tool, "type", {"anthropic": "custom"}.get(wire)) for tool in tools]


def _head(blocks: list[Object]) -> list[Object]:
    """The system prompt in front: one text, whose outer white space is not kept."""
    text = "\n\n".join(block["text"].strip() for block in blocks if block["text"].strip())
    return [{"role": "head", "text": text}] if text else []


def _anthropic(body: Object) -> list[Object]:
    out = []
    for message in body["messages"]:
        blocks = [_without(block, "is_error", False) for block in _texts(message["content"])]
        for block in blocks:
            if block["type"] == "tool_result":
                block["content"] = _texts(block.get("content") or [])
        out.append({**message, "content": blocks})
    return [*_head(_texts(body.get("system") or [])), *_joined(out, "content")]


def _bedrock(body: Object) -> list[Object]:
    for block in (block for message in body["messages"] for block in message["content"]):
        if "toolResult" in block:
            block["toolResult"] = _without(block["toolResult"], "status", "success")
    return [*_head(body.get("system") or []), *_joined(body["messages"], "content")]


def _gemini(body: Object) -> list[Object]:
    head = _head(body.get("systemInstruction", {}).get("parts") or [])
    contents = body["contents"] if isinstance(body["contents"], list) else [body["contents"]]
    out = [{"role": "user", **one} for one in contents]
    for part in (part for one in out for part in one.get("parts", ())):
        if "thoughtSignature" in part:
            part["thoughtSignature"] = part["thoughtSignature"].translate(str.maketrans("-_", "+/"))
    return [*head, *_joined(out, "parts")]


def _chat(body: Object) -> list[Object]:
    out = []
    for message in body["messages"]:
        one = _without({**message, "content": _texts(message.get("content") or [])}, "prefix", False)
        one["role"] = {"developer": "system"}.get(one["role"], one["role"])
        for called in one.get("tool_calls", ()):
            called.setdefault("type", "function")
            called.pop("index", None)
            if "function" in called:
                called["function"]["arguments"] = _parsed(called["function"].get("arguments"))
        if not one.get("tool_calls"):
            one.pop("tool_calls", None)
        out.append(one)
    return out


def _responses(body: Object) -> list[Object]:
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    # Instructions apart from the items are kept without their outer white space.
    told = [{"role": "system", "content": body["instructions"].strip()}] if body.get("instructions") else []
    out = []
    for item in [*told, *items]:
        one = {**item, "type": item.get("type", "message" if "role" in item else "item_reference")}
        if one["type"] == "message":
            one["role"] = {"developer": "system"}.get(one["role"], one["role"])
            kind = "output_text" if one["role"] == "assistant" else "input_text"
            one["content"] = _texts(one["content"], kind)
        if one["type"] == "function_call":
            one["arguments"] = _parsed(one["arguments"])
        if one["type"] == "function_call_output":
            one["output"] = _texts(one["output"], "input_text")
        out.append(one)
    return out


_SPELLED = {
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "gemini": _gemini,
    "openai-chat": _chat,
    "openai-responses": _responses,
}


def _texts(content: Any, kind: str = "text") -> list[Any]:
    return [{"type": kind, "text": content}] if isinstance(content, str) else content


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _joined(messages: list[Object], field: str) -> list[Object]:
    """Messages of one speaker in a row are one message to these providers."""
    out: list[Object] = []
    for message in messages:
        if out and out[-1]["role"] == message["role"] and message.keys() == {"role", field}:
            out[-1] = {**out[-1], field: [*out[-1][field], *message[field]]}
        else:
            out.append(message)
    return out


# Other conversations


def variants(exchange: Exchange) -> Iterator[Exchange]:
    """What else might have been sent: fewer turns and more, other orders, other spellings."""
    wire, field = exchange.wire, next(n for n in ("messages", "contents", "input") if n in exchange.body)
    if not isinstance(messages := exchange.body[field], list):
        return
    roles = [one.get("role") or one.get("type") for one in messages]
    begun = next((place for place, role in enumerate(roles) if role not in ("system", "developer")), 0)
    front, rest = messages[:begun], messages[begun:]
    lists = {
        "a turn in front": [*front, said(wire, "user", " Hi.\n"), said(wire, "assistant", "Hello. "), *rest],
        "a turn more": [*messages, said(wire, "assistant", "I see."), said(wire, "user", "And then?")],
        "the user again": [*messages, said(wire, "user", "And then?")],
        "a text more": [_with_text(wire, one) if one.get("role") == "user" else one for one in messages],
    }
    lists |= {f"up to {n}": messages[: n + 1] for n, role in enumerate(roles[:-1]) if role == "user"}
    if wire.startswith("openai"):
        told = said(wire, "system", " Be brief.\n")
        lists["two instructions in front"] = [told, told, *messages]
        for n, role in enumerate(roles):
            if role == "user":
                lists[f"an instruction before {n}"] = [*messages[:n], told, *messages[n:]]
                lists[f"an instruction behind {n}"] = [*messages[: n + 1], told, *messages[n + 1 :]]
    for name, given in lists.items():
        body = {**exchange.body, field: given}
        yield msgspec.structs.replace(exchange, name=f"{exchange.name} with {name}", body=body)
    if isinstance(tools := exchange.body.get("tools"), list) and len(tools) > 1:
        body = {**exchange.body, "tools": tools[::-1]}
        yield msgspec.structs.replace(exchange, name=f"{exchange.name} with its tools reversed", body=body)


def said(wire: str, role: str, text: str) -> Object:
    """A message of these words."""
    if wire == "gemini":
        return {"role": {"assistant": "model"}.get(role, role), "parts": [{"text": text}]}
    return {"role": role, "content": [{"text": text}] if wire == "bedrock" else text}


def _with_text(wire: str, message: Object) -> Object:
    field = "parts" if wire == "gemini" else "content"
    content = message.get(field) or []
    kind = {"gemini": {}, "bedrock": {}, "openai-responses": {"type": "input_text"}}.get(wire, {"type": "text"})
    content = [{**kind, "text": content}] if isinstance(content, str) else content
    return {**message, field: [*content, {**kind, "text": "  and more\n"}]}


# One reply of many events


def whole_reply(wire: str, events: tuple[Object, ...]) -> Object:
    """The reply that a stream brings, as the provider would have sent it in one piece."""
    return _WHOLE[wire](events)


def _whole_anthropic(events: tuple[Object, ...]) -> Object:
    reply: Object = {}
    inputs: dict[int, str] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                reply = {**event["message"], "content": list(event["message"]["content"])}
            case "content_block_start":
                reply["content"].append(dict(event["content_block"]))
            case "content_block_delta":
                block, delta = reply["content"][event["index"]], event["delta"]
                if delta["type"] == "input_json_delta":
                    inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
                elif delta["type"] == "citations_delta":
                    block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
                else:
                    name = delta["type"].removesuffix("_delta")
                    name = "content" if name == "compaction" else name
                    block[name] = (block.get(name) or "") + delta[name]
            case "message_delta":
                reply |= event["delta"]
                reply["usage"] |= {k: v for k, v in event["usage"].items() if v is not None}
    for index, text in inputs.items():
        if text:
            reply["content"][index]["input"] = json.loads(text)
    return reply


# What the deltas of a Converse block fill.
_INSIDE = {"toolUse": "input", "toolResult": "content"}
_EMPTY: Object = {"toolUse": "", "toolResult": []}


def _whole_bedrock(events: tuple[Object, ...]) -> Object:
    blocks: dict[int, Object] = {}
    reply: Object = {}
    for event in events:
        [(kind, given)] = event.items()
        if kind == "contentBlockStart":
            [(name, start)] = given["start"].items()
            blocks[given["contentBlockIndex"]] = {name: {**start, _INSIDE[name]: _EMPTY[name]}}
        elif kind == "contentBlockDelta":
            block, delta = blocks.setdefault(given["contentBlockIndex"], {}), given["delta"]
            if "toolUse" in delta:
                block["toolUse"]["input"] += delta["toolUse"]["input"]
            elif "toolResult" in delta:
                block["toolResult"]["content"] = [*block["toolResult"]["content"], *delta["toolResult"]]
            elif "reasoningContent" in delta:
                thought = block.setdefault("reasoningContent", {})
                if "redactedContent" not in delta["reasoningContent"]:
                    thought = thought.setdefault("reasoningText", {"text": ""})
                for name, text in delta["reasoningContent"].items():
                    thought[name] = thought.get(name, "") + text
            elif "citation" in delta:
                block.setdefault("citations", []).append(delta["citation"])
            else:
                block["text"] = block.get("text", "") + delta["text"]
        elif kind == "messageStop":
            reply["stopReason"] = given["stopReason"]
        elif kind == "metadata":
            reply |= given
    for block in blocks.values():
        if "toolUse" in block:
            block["toolUse"]["input"] = json.loads(block["toolUse"]["input"] or "{}")
        if "citations" in block:
            told = {"content": [{"text": block.pop("text", "")}], "citations": block.pop("citations")}
            block["citationsContent"] = told
    message = {"role": "assistant", "content": [blocks[index] for index in sorted(blocks)]}
    return {**reply, "output": {"message": message}}


def _whole_gemini(events: tuple[Object, ...]) -> Object:
    reply: Object = {}
    candidate: Object = {}
    parts: list[Object] = []
    for event in events:
        reply |= event
        for given in event.get("candidates", ())[:1]:
            candidate |= given
            for part in given.get("content", {}).get("parts", ()):
                last = parts[-1] if parts else {}
                grows = "text" in part and "text" in last and "thoughtSignature" not in {**part, **last}
                if grows and part.get("thought") == last.get("thought"):
                    parts[-1] = {**last, "text": last["text"] + part["text"]}
                else:
                    parts.append(part)
    candidate["content"] = {**(candidate.get("content") or {}), "parts": parts}
    return {**reply, "candidates": [candidate]}


def _whole_chat(events: tuple[Object, ...]) -> Object:
    reply: Object = {}
    message: Object = {"role": "assistant"}
    calls: dict[int, Object] = {}
    finish = None
    for event in events:
        # A last event may have another id; of several choices the first is the reply.
        reply |= {
            key: value for key, value in event.items() if value is not None and not (key == "id" and reply.get("id"))
        }
        for choice in [each for each in event.get("choices", ())[:1] if not each.get("index")]:
            finish = choice.get("finish_reason") or finish
            for name, piece in choice["delta"].items():
                if name == "role" or piece is None:
                    continue
                if name == "tool_calls":
                    for place, one in enumerate(piece):
                        _grow_call(calls.setdefault(one.get("index", place), {}), one)
                elif isinstance(piece, str):
                    message[name] = message.get(name, "") + piece
                elif isinstance(piece, list):
                    message[name] = [*message.get(name, ()), *piece]
                else:
                    message[name] = piece
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {**reply, "choices": [{"message": message, "finish_reason": finish}]}


def _grow_call(called: Object, piece: Object) -> None:
    function = called.setdefault("function", {"name": "", "arguments": ""})
    called["id"] = called.get("id") or piece.get("id")
    called |= {key: value for key, value in piece.items() if key not in ("index", "id", "function")}
    called["type"] = "function"
    given = piece.get("function") or {}
    function["name"] = function["name"] or given.get("name") or ""
    function["arguments"] += given.get("arguments") or ""


def _whole_responses(events: tuple[Object, ...]) -> Object:
    """The last event holds the response itself."""
    return next(event["response"] for event in reversed(events) if "response" in event)


_WHOLE = {
    "anthropic": _whole_anthropic,
    "bedrock": _whole_bedrock,
    "gemini": _whole_gemini,
    "openai-chat": _whole_chat,
    "openai-responses": _whole_responses,
}
