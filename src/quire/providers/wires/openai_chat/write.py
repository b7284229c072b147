"""Messages in Chat Completions form, and the request around them."""

from __future__ import annotations

from collections.abc import Iterable

from quire.providers.convert import UserContent, came_to, from_url, is_from, is_web, leave_out, own_block, to_url
from quire.providers.incoming import Spelling, sub
from quire.providers.models import same_model
from quire.providers.outgoing import (
    alternates,
    by_role,
    compact,
    dialect_of,
    front_instructions,
    in_parts,
    object_text,
    with_originals,
)
from quire.providers.prefix import NO_REPLY, unmarked
from quire.providers.provider_tools import Native, tool_json
from quire.providers.rendering import GO_ON, Draft, Writer, note_text, text_block, texts, user_text, wanted_effort
from quire.providers.rules.grammar import obj
from quire.values import Call, Image, Json, JsonObject, Message, Part, Prompt, Result, Text, Think

# What the parts of a Chat message's content mean: text, images, and what is enclosed.

FORMAT = "openai-chat"


def thought_of(content: Json) -> str:
    """Thinking that stands among the parts of the content, as Mistral writes it."""
    parts = [part for part in (content if isinstance(content, list) else ()) if isinstance(part, dict)]
    return "\n".join(CONTENT.text_of(part.get("thinking")) for part in parts if part.get("type") == "thinking")


def _kind(part: JsonObject) -> str:
    kind = str(part.get("type") or "part")
    return "" if part.get("text") is not None or kind in ("text", "image_url", "thinking", "refusal") else kind


def image_in(part: JsonObject) -> Image | None:
    """The image of a part, by its address or its data."""
    address = part.get("image_url")
    url = address.get("url") if isinstance(address, dict) else address
    return from_url(str(url or "")) if part.get("type") == "image_url" else None


def show_image(image: Image) -> JsonObject | None:
    if not (image.data or is_web(image.url)):
        return None
    return {"type": "image_url", "image_url": {"url": to_url(image)}}


CONTENT = UserContent(kind=_kind, image=image_in, show=show_image, say=text_block, texts=("text", "refusal"))

_NAMES = Spelling()
# Who takes audio and files in a message.
_TAKES_FILES = frozenset({"openai", "azure"})

# A message's own Chat messages by its role; a note that is text joins the message before it.


def _user(draft: Draft, message: Message) -> None:
    _take_turns(draft, "user", message)
    named = _also(_imported_message(draft, message.parts))
    draft.messages.append({"role": "user", **named, "content": _user_content(draft, message)})


def _results(draft: Draft, message: Message) -> None:
    results = [part for part in message.parts if isinstance(part, Result)]
    draft.messages += [_tool_message(draft, part) for part in results]


def _take_turns(draft: Draft, role: str, message: Message | None = None) -> None:
    """Insert a turn between two messages of one role, where a chat template refuses that."""
    before = draft.last.get("role")
    if not alternates(draft.info) or (before == role and message is not None and _was_taken(draft, message)):
        return
    if role == "user" and before in ("user", "tool"):
        draft.bridge({"role": "assistant", "content": NO_REPLY})
    elif role == "assistant" and before in (None, "assistant"):
        draft.bridge({"role": "user", "content": _content(draft, GO_ON)})


def _was_taken(draft: Draft, message: Message) -> bool:
    """Whether the provider was sent this message in this place."""
    first = next(iter(message.parts), None)
    return isinstance(first, Text) and came_to(first.wire, draft)


def _content(draft: Draft, text: str) -> str | list[JsonObject]:
    return [text_block(text)] if text and in_parts(draft.info) else text


def _user_content(draft: Draft, message: Message) -> str | list[JsonObject]:
    if (blocks := CONTENT.as_it_came(draft, message)) is not None and _takes(draft, message):
        return blocks
    text = user_text(message)
    images = [part for part in message.parts if isinstance(part, Image)]
    if images and not draft.info.features.images:
        draft.leave_out(message, f"{draft.info.provider}:{draft.info.model} takes no images")
        text, images = "\n\n".join([*texts(message), *["[image]"] * len(images)]), []
    parts = [text_block(text)] if text else []
    parts += CONTENT.images(draft, message) if images else []
    if draft.info.provider not in _TAKES_FILES:
        CONTENT.left_out(draft, message)
    elif (content := CONTENT.user_blocks(draft, message, parts)) is not parts:
        return content
    return parts if images else _content(draft, text)


def _takes(draft: Draft, message: Message) -> bool:
    """Whether a message's own parts may go along: to the model that was sent them, or text and images alone."""
    wire = next((part.wire for part in message.parts if isinstance(part, Text)), {})
    if (wire.get("model") and is_from(wire, (FORMAT,), draft)) or draft.info.provider in _TAKES_FILES:
        return True
    images = any(isinstance(part, Image) for part in message.parts)
    return not wire.get("encloses") and (draft.info.features.images or not images)


def _assistant(draft: Draft, message: Message) -> None:
    text = "\n\n".join(texts(message))
    original = _imported_message(draft, message.parts)
    for part in message.parts:
        if isinstance(part, Text) and "audio" not in original:
            leave_out(part, message, draft)
    calls = [_call(draft, part) for part in message.parts if isinstance(part, Call)]
    if not (text or calls or "audio" in original):
        draft.leave_out(message, "empty message")
        return
    _take_turns(draft, "assistant", message)
    out: JsonObject = {"role": "assistant", "content": text or None}
    out |= _besides(original, text)
    if not thought_of(out["content"]):
        out |= _thinking(draft, message)
    if calls:
        out["tool_calls"] = calls
    draft.messages.append(out)


def _imported_message(draft: Draft, parts: Iterable[Part]) -> JsonObject:
    """The message that imported parts came as, if it goes back to the very model it was sent to."""
    wire = next((part.wire for part in parts if isinstance(part, Text | Think | Call | Result)), {})
    named = wire.get("model") and draft.info.model
    return unmarked(obj(wire["message"])) if named and came_to(wire, draft) else {}


# What else a message of the model may say, by the documentation of one server or another.
_ALSO = ("name", "refusal", "prefix")


def _also(original: JsonObject) -> JsonObject:
    return {field: original[field] for field in _ALSO if original.get(field)}


def _besides(original: JsonObject, text: str) -> JsonObject:
    """The fields of an imported message beside its text, and the text in its original parts."""
    out = _also(original)
    if audio := obj(original.get("audio")).get("id"):
        # Audio of the model's own is sent back by its id.
        out |= {"audio": {"id": audio}, "content": None}
    elif isinstance(parts := original.get("content"), list) and CONTENT.text_of(parts) == text:
        out["content"] = parts
    elif "refusal" in out and out["refusal"] == text:
        out["content"] = None
    return out


def _thinking(draft: Draft, message: Message) -> JsonObject:
    """Earlier thinking in the field that takes it back; to servers that demand it, an empty one too."""
    field: str = dialect_of(draft.info).thinking
    demand = draft.info.features.reasoning_content
    parts = [part for part in message.parts if isinstance(part, Think)]
    thoughts = []
    details: list[JsonObject] = []
    for part in parts:
        owed = is_own_thought(part, draft)
        if owed and demand != "required":
            # The server's own: in the field that it came in.
            field = str(part.wire.get("field") or "")
        if (field or owed) and (demand == "required" or is_from(part.wire, (FORMAT,), draft)):
            thoughts.append(part.text)
            details += (own_block(part, draft) or {}).get("reasoning_details") or []
        else:
            leave_out(part, message, draft)
    out: JsonObject = {"reasoning_details": details} if details else {}
    if field and (thoughts or (demand == "required" and not _was_taken(draft, message))):
        out[field] = "\n\n".join(thoughts)
    return out


def is_own_thought(part: Think, draft: Draft) -> bool:
    """Whether a thought came from the very model that is asked, in a field (or details) that takes it back.

    Of servers with a name it is known whether they take any; "openai-chat" is also what all others speak.
    """
    wire, model = part.wire, draft.info.model
    if _imported_message(draft, [part]):
        return True
    if not dialect_of(draft.info).thinking and (draft.info.provider != "openai" or draft.info.known):
        return False
    named = [str(wire.get(name) or "") for name in ("model", "asked")]
    returnable = "field" in wire or "reasoning_details" in obj(wire.get("block"))
    return returnable and wire.get("format") == FORMAT and any(name and same_model(name, model) for name in named)


def _call(draft: Draft, part: Call) -> JsonObject:
    block = own_block(part, draft)
    if block and block.get("type") == "custom":
        return {**block, "id": part.call_id}
    dialect = dialect_of(draft.info)
    arguments = part.arguments or str(part.wire.get("arguments") or "") or compact(part.args)
    if dialect.json_arguments:
        arguments = object_text(part.args, arguments)
    function = {"name": dialect.names.spell(part.name), "arguments": arguments}
    also = {"extra_content": block["extra_content"]} if block and "extra_content" in block else {}
    return {"id": part.call_id, "type": "function", "function": function, **also}


def _tool_message(draft: Draft, part: Result) -> JsonObject:
    original = _imported_message(draft, [part])
    same = isinstance(original.get("content"), list) and CONTENT.text_of(original["content"]) == part.text
    content = original["content"] if same else _content(draft, part.text)
    caller = next((message for message in reversed(draft.messages) if message.get("role") == "assistant"), {})
    if caller.get("function_call"):
        # The old form, whose call went back as it came.
        return {"role": "function", "name": part.name, "content": part.text}
    return {"role": "tool", "tool_call_id": part.call_id, **_also(original), "content": content}


def _note(draft: Draft, message: Message) -> None:
    if effort := wanted_effort(message):
        draft.effort = effort
        draft.leave_out(message, "effort is set for the whole request, which may move the prefix")
    role = dialect_of(draft.info).note
    behind_tool = draft.last.get("role") == "tool" and not draft.info.features.user_after_tool
    role = "system" if role == "text" and _was_taken(draft, message) and not behind_tool else role
    if not texts(message):
        return
    if role != "text":
        draft.messages.append({"role": role, "content": _content(draft, "\n\n".join(texts(message)))})
    elif draft.unsent.get("role") in ("user", "tool"):
        draft.messages[-1] = _with_text(draft.last, note_text(message))
    else:
        _take_turns(draft, "user")
        draft.messages.append({"role": "user", "content": _content(draft, note_text(message))})


def _with_text(message: JsonObject, text: str) -> JsonObject:
    content = message["content"]
    if isinstance(content, list):
        return {**message, "content": [*content, text_block(text)]}
    return {**message, "content": f"{content}\n\n{text}" if content else text}


def _end(draft: Draft) -> None:
    """Templates answer a user or a tool; a last assistant message is continued only where that is known."""
    features = draft.info.features
    # Mistral does so only where that message says so.
    continued = (features.prefill and features.user_after_tool) or draft.last.get("prefix")
    if draft.last.get("role") == "assistant" and not continued:
        _take_turns(draft, "assistant")
    elif draft.last.get("role") == "system" and alternates(draft.info):
        draft.bridge({"role": "user", "content": _content(draft, GO_ON)})


def _body(draft: Draft, prompt: Prompt) -> JsonObject:
    ask = draft.ask
    dialect = dialect_of(draft.info)
    messages = draft.messages
    heads = [prompt.system] if prompt.system and draft.info.features.template else prompt.systems
    instructions = front_instructions(
        draft, prompt, heads, CONTENT.text_of, lambda text: {"role": "system", "content": _content(draft, text)}
    )
    messages = [*instructions, *messages]
    if not draft.messages and (not prompt.front or alternates(draft.info)):
        messages.append({"role": "user", "content": _content(draft, GO_ON)})
    body: JsonObject = {"model": draft.info.model, "messages": messages}
    if tools := draft.tools(prompt):
        body["tools"] = draft.defined(tools, lambda tool: tool_definition(tool, dialect.names))
    if ask.max_tokens:
        body[dialect.max_tokens] = ask.max_tokens
    if effort := draft.effort or ask.effort:
        body["reasoning_effort"] = effort
    return {**body, **_key(draft), **ask.extra}


def _key(draft: Draft) -> JsonObject:
    field, key, place = draft.info.cache.key, draft.ask.key, dialect_of(draft.info).key_in
    if not (key and field) or place == "header":
        return {}
    if field == "id_slot":
        # llama.cpp numbers its slots; a name says nothing to it.
        return {"extra_body": {field: int(key)}} if key.isdecimal() else {}
    return {field: key} if place == "body" else {"extra_body": {field: key}}


def _headers(draft: Draft) -> dict[str, str]:
    field, key = draft.info.cache.key, draft.ask.key
    return {field: key} if key and field and dialect_of(draft.info).key_in == "header" else {}


def tool_entry(tool: JsonObject) -> JsonObject:
    """{"type": "function", "function": {…}} -> the tool as entries define it."""
    function = sub(tool, "function") or sub(tool, "custom") or tool
    name = function.get("name") or function.get("type")
    return tool_json(name, function.get("description"), sub(function, "parameters"))


def tool_definition(tool: JsonObject, names: Spelling = _NAMES) -> JsonObject:
    """A tool as Chat Completions defines one."""
    function = {
        "name": names.spell(tool["name"]),
        "description": tool.get("description", ""),
        "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


NATIVE = Native((FORMAT,), anywhere=True, read=tool_entry, define=tool_definition)
_write = with_originals(by_role(_user, _assistant, _results, _note))
WRITER = Writer(FORMAT, _write, _body, NATIVE, end=_end, headers=_headers, ids=lambda info: dialect_of(info).ids)
