"""Series of one thread's bodies in every wire format: grown, edited in place, cut, marked, with other tools and settings.

The very same objects come again and again, changed in place, as a caller's do.
"""

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from quire.values import Json, JsonObject
from toolbox import many_words

WIRES = ("anthropic", "bedrock", "openai-chat", "openai-responses", "gemini")
LISTS = {"openai-responses": "input", "gemini": "contents"}
# Equal in Python, different in JSON.
NUMBERS: tuple[Json, ...] = (1, 1.0, True, 0, 0.0, False, None)


texts = st.builds(many_words, st.sampled_from([0, 1, 20, 700]), st.sampled_from("abc"))


def _anthropic(role: str, text: str, number: Json) -> JsonObject:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"n": number}}
    answer = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": text}]}
    thought = {"type": "thinking", "thinking": text, "signature": "s"}
    said: JsonObject = {"type": "text", "text": text}
    parts = {"assistant": [thought, said, call], "tool": [answer, dict(answer)], "user": [said]}
    return {"role": "assistant" if role == "assistant" else "user", "content": parts.get(role, [said, said])}


def _bedrock(role: str, text: str, number: Json) -> JsonObject:
    call = {"toolUse": {"toolUseId": "t", "name": "f", "input": {"n": number}}}
    parts = [{"text": text}, call] if role == "assistant" else [{"text": text}]
    return {"role": "assistant" if role == "assistant" else "user", "content": parts}


def _chat(role: str, text: str, number: Json) -> JsonObject:
    message: JsonObject = {"role": role, "content": [{"type": "text", "text": text}]}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}, "n": number}
    return {**message, "tool_calls": [call]} if role == "assistant" else message


def _responses(role: str, text: str, number: Json) -> JsonObject:
    if role == "tool":
        return {"type": "function_call_output", "call_id": "c", "output": text, "n": number}
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}] if text else []}


def _gemini(role: str, text: str, number: Json) -> JsonObject:
    call = {"functionCall": {"name": "f", "args": {"n": number}}}
    parts = [{"text": text}, call] if role == "assistant" else [{"text": text}]
    return {"role": "model" if role == "assistant" else "user", "parts": parts}


_MESSAGES: dict[str, Callable[[str, str, Json], JsonObject]] = {
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
}
_TOOLS: dict[str, Callable[[str], JsonObject]] = {
    "bedrock": lambda name: {"toolConfig": {"tools": [{"toolSpec": {"name": name}}]}},
    "gemini": lambda name: {"tools": [{"functionDeclarations": [{"name": name}]}]},
}


def messages(wire: str) -> st.SearchStrategy[JsonObject]:
    """One message; system ones may stand anywhere, and the model may speak twice."""
    roles = st.sampled_from(["user", "assistant", "user", "assistant", "tool", "system"])
    return st.builds(_MESSAGES[wire], roles, texts, st.sampled_from(NUMBERS))


def series(data: st.DataObject, wire: str, length: int = 8, marked: bool = True) -> Iterator[JsonObject]:
    """A thread's bodies one after the other; each is changed in place once the next is asked for."""
    body: JsonObject = {LISTS.get(wire, "messages"): [], **(_system(wire) if marked else {})}
    changes = [_grow, _grow, _grow, _edit, _cut, *([_mark, _retool, _set] if marked else [_widen, _empty])]
    for _ in range(data.draw(st.integers(1, length))):
        listed = body[LISTS.get(wire, "messages")]
        change = data.draw(st.sampled_from(changes))
        change(data, wire, body, listed)
        yield body


def _system(wire: str) -> JsonObject:
    text = many_words(1100, "s")
    if wire == "anthropic":
        return {"system": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]}
    return {"system": [{"text": text}]} if wire == "bedrock" else {}


def _grow(data: st.DataObject, wire: str, body: JsonObject, listed: list[JsonObject]) -> None:
    listed += data.draw(st.lists(messages(wire), min_size=1, max_size=3))


def _place(data: st.DataObject, listed: list[Any]) -> int:
    return data.draw(st.integers(0, len(listed) - 1))


def _edit(data: st.DataObject, wire: str, body: JsonObject, listed: list[JsonObject]) -> None:
    if listed:
        message = listed[_place(data, listed)]
        changed = data.draw(messages(wire))
        message.clear()
        message.update(changed)


def _cut(data: st.DataObject, wire: str, body: JsonObject, listed: list[JsonObject]) -> None:
    if listed:
        place = _place(data, listed)
        del listed[place : place + data.draw(st.integers(1, 3))]


def _widen(data: st.DataObject, wire: str, body: JsonObject, listed: list[JsonObject]) -> None:
    blocks = listed[_place(data, listed)].get("content") if listed else None
    if isinstance(blocks, list):
        blocks += [{**block, "text": data.draw(texts)} for block in blocks[:1] if "text" in block]


def _empty(data: st.DataObject, wire: str, body: JsonObject, listed: list[JsonObject]) -> None:
    message = listed[_place(data, listed)] if listed else {}
    if "content" in message:
        message["content"].clear()


def _mark(data: st.DataObject, wire: str, body: JsonObject, listed: list[JsonObject]) -> None:
    blocks = listed[_place(data, listed)].get("content") if listed else None
    if not blocks:
        return
    if wire == "bedrock":
        blocks.append({"cachePoint": {"type": "default"}})
    else:
        name = "cache_control" if wire == "anthropic" else "prompt_cache_breakpoint"
        block = blocks[_place(data, blocks)]
        block[name] = data.draw(st.sampled_from([{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}]))


def _retool(data: st.DataObject, wire: str, body: JsonObject, listed: list[JsonObject]) -> None:
    name = data.draw(st.sampled_from(["f", "g", "web_search"]))
    body |= _TOOLS.get(wire, lambda name: {"tools": [{"type": name, "name": name}]})(name)


def _set(data: st.DataObject, wire: str, body: JsonObject, listed: list[JsonObject]) -> None:
    settings = [{"tool_choice": {"type": "any"}}, {"prompt_cache_key": "other"}, {"cache_salt": "other"}]
    settings += [{"prompt_cache_options": {"mode": "explicit"}}, {"instructions": "be brief"}]
    settings += [{"response_format": {"type": "json_object"}}]
    body |= data.draw(st.sampled_from(settings))
