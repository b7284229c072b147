"""Messages in Chat Completions form, and the request around them."""

from __future__ import annotations

from collections.abc import Iterable

from quire.providers.convert import (
    UserContent,
    came_to,
    from_url,
    is_from,
    is_web,
    leave_out_block,
    leave_out_thinking,
    own_block,
    to_url,
)
from quire.providers.incoming import Spelling, sub
from quire.providers.models import same_model
from quire.providers.outgoing import (
    alternates,
    by_role,
    compact,
    dialect_of,
    giving_back,
    in_parts,
    object_text,
    told_in_front,
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
    """What an entry cannot hold of a user's part."""
    kind = str(part.get("type") or "part")
    return "" if part.get("text") is not None or kind in ("text", "image_url", "thinking", "refusal") else kind


def image_in(part: JsonObject) -> Image | None:
    """The image of a part, by its address or its data."""
    address = part.get("image_url")
    url = address.get("url") if isinstance(address, dict) else address
    return from_url(str(url or "")) if part.get("type") == "image_url" else None


def show_image(image: Image) -> JsonObject | None:
    """An image by its address or its data."""
    if not (image.data or is_web(image.url)):
        return None
    return {"type": "image_url", "image_url": {"url": to_url(image)}}


CONTENT = UserContent(kind=_kind, image=image_in, show=show_image, say=text_block, texts=("text", "refusal"))

_NAMES = Spelling()
# Who takes audio and files in a message.
_TAKES_FILES = frozenset({"openai", "azure"})

# A message's own Chat messages by its role; a note that is text joins the message before it.


def _user(sheet: Draft, message: Message) -> None:
    _take_turns(sheet, "user", message)
    named = _also(_imported_message(sheet, message.parts))
    sheet.messages.append({"role": "user", **named, "content": _user_content(sheet, message)})


def _results(sheet: Draft, message: Message) -> None:
    results = [part for part in message.parts if isinstance(part, Result)]
    sheet.messages += [_tool_message(sheet, part) for part in results]


def _take_turns(sheet: Draft, role: str, message: Message | None = None) -> None:
    """Put a turn between two of one side, where a template would refuse them side by side."""
    before = sheet.last.get("role")
    if not alternates(sheet.info) or (before == role and message is not None and _was_taken(sheet, message)):
        return
    if role == "user" and before in ("user", "tool"):
        sheet.bridge({"role": "assistant", "content": NO_REPLY})
    elif role == "assistant" and before in (None, "assistant"):
        sheet.bridge({"role": "user", "content": _content(sheet, GO_ON)})


def _was_taken(sheet: Draft, message: Message) -> bool:
    """Whether the provider was sent this message in this place."""
    first = next(iter(message.parts), None)
    return isinstance(first, Text) and came_to(first.wire, sheet)


def _content(sheet: Draft, text: str) -> str | list[JsonObject]:
    return [text_block(text)] if text and in_parts(sheet.info) else text


def _user_content(sheet: Draft, message: Message) -> str | list[JsonObject]:
    if (came := CONTENT.as_it_came(sheet, message)) is not None and _takes(sheet, message):
        return came
    text = user_text(message)
    images = [part for part in message.parts if isinstance(part, Image)]
    if images and not sheet.info.features.images:
        sheet.leave_out(message, f"{sheet.info.provider}:{sheet.info.model} takes no images")
        text, images = "\n\n".join([*texts(message), *["[image]"] * len(images)]), []
    parts = [text_block(text)] if text else []
    parts += CONTENT.images(sheet, message) if images else []
    if sheet.info.provider not in _TAKES_FILES:
        CONTENT.left_out(sheet, message)
    elif (content := CONTENT.user_blocks(sheet, message, parts)) is not parts:
        return content
    return parts if images else _content(sheet, text)


def _takes(sheet: Draft, message: Message) -> bool:
    """Whether a message's own parts may go along: to the model that was sent them, or text and images alone."""
    wire = next((part.wire for part in message.parts if isinstance(part, Text)), {})
    if (wire.get("model") and is_from(wire, (FORMAT,), sheet)) or sheet.info.provider in _TAKES_FILES:
        return True
    images = any(isinstance(part, Image) for part in message.parts)
    return not wire.get("encloses") and (sheet.info.features.images or not images)


def _assistant(sheet: Draft, message: Message) -> None:
    text = "\n\n".join(texts(message))
    came = _imported_message(sheet, message.parts)
    for part in message.parts:
        if isinstance(part, Text) and "audio" not in came:
            leave_out_block(part, message, sheet)
    calls = [_call(sheet, part) for part in message.parts if isinstance(part, Call)]
    if not (text or calls or "audio" in came):
        sheet.leave_out(message, "empty message")
        return
    _take_turns(sheet, "assistant", message)
    out: JsonObject = {"role": "assistant", "content": text or None}
    out |= _besides(came, text)
    if not thought_of(out["content"]):
        out |= _thinking(sheet, message)
    if calls:
        out["tool_calls"] = calls
    sheet.messages.append(out)


def _imported_message(sheet: Draft, parts: Iterable[Part]) -> JsonObject:
    """The message that imported parts came as, if it goes back to the very model it was sent to."""
    wire = next((part.wire for part in parts if isinstance(part, Text | Think | Call | Result)), {})
    named = wire.get("model") and sheet.info.model
    return unmarked(obj(wire["message"])) if named and came_to(wire, sheet) else {}


# What else a message of the model may say, by the documentation of one server or another.
_ALSO = ("name", "refusal", "prefix")


def _also(came: JsonObject) -> JsonObject:
    return {field: came[field] for field in _ALSO if came.get(field)}


def _besides(came: JsonObject, text: str) -> JsonObject:
    """What an imported message says beside its text, and its text in the parts that it came in."""
    out = _also(came)
    if audio := obj(came.get("audio")).get("id"):
        # What it heard itself say is named, not told again.
        out |= {"audio": {"id": audio}, "content": None}
    elif isinstance(parts := came.get("content"), list) and CONTENT.text_of(parts) == text:
        out["content"] = parts
    elif "refusal" in out and out["refusal"] == text:
        out["content"] = None
    return out


def _thinking(sheet: Draft, message: Message) -> JsonObject:
    """Earlier thinking in the field that takes it back; to servers that demand it, an empty one too."""
    field: str = dialect_of(sheet.info).thinking
    demand = sheet.info.features.reasoning_content
    parts = [part for part in message.parts if isinstance(part, Think)]
    thoughts = []
    details: list[JsonObject] = []
    for part in parts:
        owed = came_from_here(part, sheet)
        if owed and demand != "required":
            # The server's own: in the field that it came in.
            field = str(part.wire.get("field") or "")
        if (field or owed) and (demand == "required" or is_from(part.wire, (FORMAT,), sheet)):
            thoughts.append(part.text)
            details += (own_block(part, sheet) or {}).get("reasoning_details") or []
        else:
            leave_out_thinking(part, message, sheet)
    out: JsonObject = {"reasoning_details": details} if details else {}
    if field and (thoughts or (demand == "required" and not _was_taken(sheet, message))):
        out[field] = "\n\n".join(thoughts)
    return out


def came_from_here(part: Think, sheet: Draft) -> bool:
    """Whether a thought came from the very model that is asked, in a field (or details) that takes it back.

    Of servers with a name it is known whether they take any; "openai-chat" is also what all others speak.
    """
    wire, model = part.wire, sheet.info.model
    if _imported_message(sheet, [part]):
        return True
    if not dialect_of(sheet.info).thinking and (sheet.info.provider != "openai" or sheet.info.known):
        return False
    named = [str(wire.get(name) or "") for name in ("model", "asked")]
    returnable = "field" in wire or "reasoning_details" in obj(wire.get("block"))
    return returnable and wire.get("format") == FORMAT and any(name and same_model(name, model) for name in named)


def _call(sheet: Draft, part: Call) -> JsonObject:
    block = own_block(part, sheet)
    if block and block.get("type") == "custom":
        return {**block, "id": part.call_id}
    dialect = dialect_of(sheet.info)
    arguments = part.arguments or str(part.wire.get("arguments") or "") or compact(part.args)
    if dialect.json_arguments:
        arguments = object_text(part.args, arguments)
    function = {"name": dialect.names.spell(part.name), "arguments": arguments}
    also = {"extra_content": block["extra_content"]} if block and "extra_content" in block else {}
    return {"id": part.call_id, "type": "function", "function": function, **also}


def _tool_message(sheet: Draft, part: Result) -> JsonObject:
    came = _imported_message(sheet, [part])
    same = isinstance(came.get("content"), list) and CONTENT.text_of(came["content"]) == part.text
    content = came["content"] if same else _content(sheet, part.text)
    caller = next((message for message in reversed(sheet.messages) if message.get("role") == "assistant"), {})
    if caller.get("function_call"):
        # The old form, whose call went back as it came.
        return {"role": "function", "name": part.name, "content": part.text}
    return {"role": "tool", "tool_call_id": part.call_id, **_also(came), "content": content}


def _note(sheet: Draft, message: Message) -> None:
    if effort := wanted_effort(message):
        sheet.effort = effort
        sheet.leave_out(message, "effort is set for the whole request, which may move the prefix")
    role = dialect_of(sheet.info).note
    behind_tool = sheet.last.get("role") == "tool" and not sheet.info.features.user_after_tool
    role = "system" if role == "text" and _was_taken(sheet, message) and not behind_tool else role
    if not texts(message):
        return
    if role != "text":
        sheet.messages.append({"role": role, "content": _content(sheet, "\n\n".join(texts(message)))})
    elif sheet.unsent.get("role") in ("user", "tool"):
        sheet.messages[-1] = _with_text(sheet.last, note_text(message))
    else:
        _take_turns(sheet, "user")
        sheet.messages.append({"role": "user", "content": _content(sheet, note_text(message))})


def _with_text(message: JsonObject, text: str) -> JsonObject:
    content = message["content"]
    if isinstance(content, list):
        return {**message, "content": [*content, text_block(text)]}
    return {**message, "content": f"{content}\n\n{text}" if content else text}


def _end(sheet: Draft) -> None:
    """Templates answer a user or a tool; a last assistant message is continued only where that is known."""
    features = sheet.info.features
    # Mistral does so only where that message says so.
    continued = (features.prefill and features.user_after_tool) or sheet.last.get("prefix")
    if sheet.last.get("role") == "assistant" and not continued:
        _take_turns(sheet, "assistant")
    elif sheet.last.get("role") == "system" and alternates(sheet.info):
        sheet.bridge({"role": "user", "content": _content(sheet, GO_ON)})


def _body(sheet: Draft, prompt: Prompt) -> JsonObject:
    ask = sheet.ask
    dialect = dialect_of(sheet.info)
    messages = sheet.messages
    heads = [prompt.system] if prompt.system and sheet.info.features.template else prompt.systems
    instructions = told_in_front(
        sheet, prompt, heads, CONTENT.text_of, lambda text: {"role": "system", "content": _content(sheet, text)}
    )
    messages = [*instructions, *messages]
    if not sheet.messages and (not prompt.front or alternates(sheet.info)):
        messages.append({"role": "user", "content": _content(sheet, GO_ON)})
    body: JsonObject = {"model": sheet.info.model, "messages": messages}
    if tools := sheet.tools(prompt):
        body["tools"] = sheet.defined(tools, lambda tool: tool_definition(tool, dialect.names))
    if ask.max_tokens:
        body[dialect.max_tokens] = ask.max_tokens
    if effort := sheet.effort or ask.effort:
        body["reasoning_effort"] = effort
    return {**body, **_key(sheet), **ask.extra}


def _key(sheet: Draft) -> JsonObject:
    field, key, place = sheet.info.cache.key, sheet.ask.key, dialect_of(sheet.info).key_in
    if not (key and field) or place == "header":
        return {}
    if field == "id_slot":
        # llama.cpp numbers its slots; a name says nothing to it.
        return {"extra_body": {field: int(key)}} if key.isdecimal() else {}
    return {field: key} if place == "body" else {"extra_body": {field: key}}


def _headers(sheet: Draft) -> dict[str, str]:
    field, key = sheet.info.cache.key, sheet.ask.key
    return {field: key} if key and field and dialect_of(sheet.info).key_in == "header" else {}


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
_write = giving_back(by_role(_user, _assistant, _results, _note))
WRITER = Writer(FORMAT, _write, _body, NATIVE, end=_end, headers=_headers, ids=lambda info: dialect_of(info).ids)
