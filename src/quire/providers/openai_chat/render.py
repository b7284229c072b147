"""A prompt as a Chat Completions request; what differs between servers is a row of `Dialect`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from quire.providers.images import to_url
from quire.providers.origin import compact
from quire.providers.prefix import prefix_bytes
from quire.providers.settle import Spelling, settle
from quire.values import (
    Call,
    Image,
    JsonObject,
    Message,
    Prompt,
    Request,
    Result,
    Text,
    Think,
    ToolSet,
)


class Dialect(msgspec.Struct, frozen=True):
    """How one server departs from OpenAI's own Chat Completions."""

    provider: str = "openai-chat"
    # The role of a late instruction; "text": it joins the user or tool message before it.
    note: Literal["developer", "system", "text"] = "developer"
    # The field that takes earlier thinking back, if the server wants it.
    reasoning: Literal["", "reasoning_content", "reasoning"] = ""
    # User content as a list of parts even when it is text alone, so that a cache mark moves no byte.
    parts: bool = False
    names: Spelling = Spelling()
    ids: Spelling = Spelling(longest=40)


OPENAI = Dialect()


def render(prompt: Prompt, model: str = "", dialect: Dialect = OPENAI, **options: object) -> Request:
    """The request body for `client.chat.completions.create(**body)`; options go into it as they are."""
    settled = settle(prompt.messages, dialect.ids)
    left_out = [{"entry": seq, "reason": reason} for seqs, reason in settled.dropped for seq in seqs]
    messages = write_messages(settled.messages, dialect, left_out)
    if prompt.system:
        messages.insert(0, {"role": "system", "content": _content([prompt.system], dialect)})
    body: JsonObject = {"model": model, "messages": messages, **options}
    late = _late_tools(prompt.messages, left_out)
    if prompt.tools or late:
        body["tools"] = [_tool(tool, dialect) for tool in (*prompt.tools, *late)]
    return Request(
        dialect.provider, model, body, prefix_bytes(body, dialect.provider), left_out=tuple(left_out)
    )


def write_messages(
    messages: Iterable[Message], dialect: Dialect = OPENAI, left_out: list[JsonObject] | None = None
) -> list[JsonObject]:
    """Chat messages, each made from one message alone (a note as text joins the one before it)."""
    out: list[JsonObject] = []
    for message in messages:
        match message.role:
            case "user":
                out.append(_user(message, dialect))
            case "assistant":
                written = _assistant(message, dialect)
                if written:
                    out.append(written)
                elif left_out is not None:
                    left_out += [{"entry": seq, "reason": "empty message"} for seq in message.seqs]
            case "tool":
                out += [_tool_message(part) for part in message.parts if isinstance(part, Result)]
            case "note":
                _note(message, dialect, out)
    return out


def _content(texts: list[str], dialect: Dialect) -> str | list[JsonObject]:
    if dialect.parts:
        return [{"type": "text", "text": text} for text in texts]
    return "\n\n".join(texts)


def _texts(message: Message) -> list[str]:
    return [part.text for part in message.parts if isinstance(part, Text) and part.text]


def _user(message: Message, dialect: Dialect) -> JsonObject:
    images = [part for part in message.parts if isinstance(part, Image)]
    texts = _texts(message)
    if not images:
        return {"role": "user", "content": _content(texts or [""], dialect)}
    parts: list[JsonObject] = [{"type": "text", "text": text} for text in texts]
    parts += [{"type": "image_url", "image_url": {"url": to_url(image)}} for image in images]
    return {"role": "user", "content": parts}


def _assistant(message: Message, dialect: Dialect) -> JsonObject | None:
    text = "\n\n".join(_texts(message))
    calls = [_call(part, dialect) for part in message.parts if isinstance(part, Call)]
    if not text and not calls:
        return None
    out: JsonObject = {"role": "assistant", "content": text or None}
    thought = "\n\n".join(part.text for part in message.parts if isinstance(part, Think) and part.text)
    if thought and dialect.reasoning:
        out[dialect.reasoning] = thought
    if calls:
        out["tool_calls"] = calls
    return out


def _call(part: Call, dialect: Dialect) -> JsonObject:
    arguments = part.arguments or str(part.wire.get("arguments") or "") or compact(part.args)
    function = {"name": dialect.names.spell(part.name), "arguments": arguments}
    return {"id": part.call_id, "type": "function", "function": function}


def _tool_message(part: Result) -> JsonObject:
    return {"role": "tool", "tool_call_id": part.call_id, "content": part.text}


def _note(message: Message, dialect: Dialect, out: list[JsonObject]) -> None:
    text = "\n\n".join(_texts(message))
    if not text:
        return
    if dialect.note != "text":
        out.append({"role": dialect.note, "content": text})
    elif out and out[-1]["role"] in ("user", "tool") and isinstance(out[-1]["content"], str):
        out[-1] = {**out[-1], "content": f"{out[-1]['content']}\n\n{text}".lstrip("\n")}
    elif out and isinstance(out[-1]["content"], list):
        out[-1] = {**out[-1], "content": [*out[-1]["content"], {"type": "text", "text": text}]}
    else:
        out.append({"role": "user", "content": _content([text], dialect)})


def _late_tools(messages: Iterable[Message], left_out: list[JsonObject]) -> list[JsonObject]:
    """Tools that joined late stand with the others: this API knows no place behind the messages."""
    late: list[JsonObject] = []
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolSet):
                late += part.tools
                reason = "late tools join the list in front, which moves the prefix"
                left_out += [{"entry": seq, "reason": reason} for seq in message.seqs]
    return late


def _tool(tool: JsonObject, dialect: Dialect) -> JsonObject:
    function = {
        "name": dialect.names.spell(tool["name"]),
        "description": tool.get("description", ""),
        "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}
