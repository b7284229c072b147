"""Messages as the Responses API's items, and the request around them."""

from __future__ import annotations

from itertools import groupby

from quire import values
from quire.errors import FormatError
from quire.providers.convert import UserContent, from_url, is_web, leave_out, own_block, to_url
from quire.providers.incoming import Spelling, objects, sub
from quire.providers.outgoing import (
    as_sent,
    by_role,
    compact,
    dialect_of,
    front_instructions,
    in_parts,
    parsed_arguments,
    with_originals,
)
from quire.providers.provider_tools import Native, tool_json
from quire.providers.rendering import GO_ON, Draft, Writer, texts, tools_of, user_text, wanted_effort
from quire.providers.rules.openai import kind_of
from quire.values import Call, Entry, Image, Json, JsonObject, Message, Prompt, Result, Text, Think

# What the Responses API's items mean: one item, one entry; one part, one item.

FORMAT = "openai-responses"
NAMES = Spelling()

_TEXTS = ("text", "refusal")


def assistant_entry(item: Json, after: str = "", served: bool = False) -> Entry:
    """An item of the model as an entry; `after` is the id of the reasoning item that must go with it.

    `served`: the provider itself has carried out what it asks.
    """
    if not isinstance(item, dict):
        raise FormatError(f"an item that is {type(item).__name__}", hint="Items are objects with a type.")
    wire: JsonObject = {"block": item, "after": after} if after else {"block": item}
    kind = kind_of(item) or "message"
    if kind == "message":
        return values.respond(CONTENT.text_of(item.get("content")), wire=wire)
    if kind == "reasoning":
        # What of it can be read: its text where there is one, else its summary.
        parts = objects(item, "content") or objects(item, "summary")
        return values.think("\n\n".join(str(part.get("text") or "") for part in parts), wire={"block": item})
    if kind in ("function_call", "custom_tool_call") and not served:
        return _call_entry(item, wire)
    if kind.endswith("_call") and item.get("call_id") and not (served or is_served(item)):
        # A hosted tool that the client carries out (computer, shell, apply_patch): a call like any other.
        args = {key: value for key, value in item.items() if key not in ("type", "id", "call_id", "status")}
        return values.call(str(item["call_id"]), kind, args, wire=wire)
    return values.respond("", wire=wire)


def is_served(item: JsonObject) -> bool:
    """Whether the provider itself carries out what an item asks, or has done so."""
    return item.get("execution") == "server" or item.get("type") == "program_output"


def _call_entry(item: JsonObject, wire: JsonObject) -> Entry:
    call_id, name = str(item.get("call_id") or ""), str(item.get("name") or "")
    if item["type"] == "custom_tool_call":
        return values.call(call_id, name, str(item.get("input") or ""), wire=wire)
    args, raw = parsed_arguments(str(item.get("arguments") or ""))
    return values.call(call_id, name, args, wire={**wire, **raw})


def result_entry(item: JsonObject) -> Entry:
    """A tool's output as an entry."""
    plain = isinstance(item.get("output"), str) and item.get("type") == "function_call_output"
    wire = None if plain else {"block": item}
    # What a local shell gave names its call by the id alone.
    return values.result(str(item.get("call_id") or item.get("id") or ""), content=output_text(item), wire=wire)


def output_text(item: JsonObject) -> str:
    """What an output says; one without `output` says it in fields of its own, as the tools that were found."""
    output = item.get("output")
    if output is None:
        apart = ("type", "id", "call_id", "status", "execution")
        output = {key: value for key, value in item.items() if key not in apart and value is not None}
    if isinstance(output, dict) and output.get("image_url"):
        # A screenshot is no text, though its bytes stand in one.
        return f"[{output.get('type') or 'image'}]"
    return CONTENT.text_of(output) if isinstance(output, str | list) else compact(output)


def _kind(part: JsonObject) -> str:
    kind = str(part.get("type") or "part")
    if kind == "input_image":
        return "" if part.get("image_url") else "image file"
    return "" if any(field in part for field in _TEXTS) else kind


def _image(part: JsonObject) -> Image | None:
    url = part.get("image_url") if part.get("type") == "input_image" else None
    return from_url(str(url)) if url else None


def _show(image: Image) -> JsonObject | None:
    if not (image.data or is_web(image.url)):
        return None
    return {"type": "input_image", "detail": "auto", "image_url": to_url(image)}


def _text(text: str) -> JsonObject:
    return {"type": "input_text", "text": text}


CONTENT = UserContent(kind=_kind, image=_image, show=_show, say=_text, texts=_TEXTS, title="filename")


def write_item(part: Text | Think | Call, message: Message, draft: Draft) -> JsonObject | None:
    """The item of an assistant's part, or None where there is nothing to send."""
    match part:
        case Text():
            return _message(part, message, draft)
        case Think():
            return _reasoning(part, message, draft)
        case Call():
            return _call(part, draft)


def _message(part: Text, message: Message, draft: Draft) -> JsonObject | None:
    item = own_block(part, draft)
    if item and kind_of(item) == "item_reference":
        # The provider keeps the item only where it is asked to store.
        if not _is_stored(part, draft):
            draft.leave_out(message, "an item named by its id alone is not stored anywhere", part)
        return item if _is_stored(part, draft) else None
    # OpenAI itself carries out no call of free text: it would miss the output.
    missed = {"custom_tool_call"} if draft.info.features.strict else set()
    if item and item.get("type") not in missed and _says(item, part.text):
        return _without_orphan_id(item, part.wire, draft)
    leave_out(part, message, draft)
    return {"type": "message", "role": "assistant", "content": part.text} if part.text else None


def is_named(item: JsonObject) -> bool:
    """Whether an item only names what the provider holds: by its id, without what it says."""
    thought = item.get("encrypted_content") or item.get("content")
    return kind_of(item) == "item_reference" or (item.get("type") == "reasoning" and not thought)


def _is_stored(part: Text | Think, draft: Draft) -> bool:
    """Whether the provider holds an item: it did when it was sent, or it is asked to."""
    return bool(draft.ask.extra.get("store", part.wire.get("stored")))


def _says(item: JsonObject, text: str) -> bool:
    """Whether an item still says what its entry says; a message without content says nothing at all."""
    if item.get("type", "message") != "message":
        return True
    return item.get("content") is not None and CONTENT.text_of(item["content"]) == text


def _reasoning(part: Think, message: Message, draft: Draft) -> JsonObject | None:
    item = own_block(part, draft)
    if item is None:
        leave_out(part, message, draft)
    elif is_named(item) and not _is_stored(part, draft):
        draft.leave_out(message, "reasoning without its encrypted content is not stored anywhere", part)
        item = None
    return item


def _call(part: Call, draft: Draft) -> JsonObject:
    item = own_block(part, draft)
    if item and item["type"] != "function_call":
        named = {"name": NAMES.spell(part.name)} if "name" in item else {}
        return {**_without_orphan_id(item, part.wire, draft), "call_id": part.call_id, **named}
    arguments = part.arguments or str(part.wire.get("arguments") or "") or compact(part.args)
    fields = {"call_id": part.call_id, "name": NAMES.spell(part.name), "arguments": arguments}
    if item and item.get("arguments") == arguments:
        return {**_without_orphan_id(item, part.wire, draft), **fields}
    return {"type": "function_call", **fields}


def _without_orphan_id(item: JsonObject, wire: JsonObject, draft: Draft) -> JsonObject:
    """The item as it came; without its id where its reasoning was left out, which the API would miss."""
    after = wire.get("after")
    if not after or any(message.get("id") == after for message in reversed(draft.messages[-64:])):
        return item
    return {key: value for key, value in item.items() if key != "id"}


def output(part: Result, message: Message, draft: Draft) -> JsonObject:
    """The item of a result; it has the kind of its call."""
    asked_by = next((message for message in reversed(draft.messages) if message.get("call_id") == part.call_id), {})
    item = own_block(part, draft)
    if item and output_text(item) == part.text:
        return {**item, "call_id": part.call_id}
    if asked_by.get("type") == "tool_search_call":
        draft.leave_out(message, "a search for tools has no place for words: what was cut is not told", part)
        return {"type": "tool_search_output", "call_id": part.call_id, "execution": "client", "tools": []}
    text: Json = part.text
    if text and in_parts(draft.info):
        text = [_text(text)]
    kind = f"{asked_by.get('type', 'function_call')}_output"
    return {"type": kind, "call_id": part.call_id, "output": text}


# A message's own items by its role.


def _user(draft: Draft, message: Message) -> None:
    content = CONTENT.blocks(draft, message, user_text(message))
    draft.messages.append({"type": "message", "role": "user", "content": content})


def _results(draft: Draft, message: Message) -> None:
    draft.messages += [output(part, message, draft) for part in message.parts if isinstance(part, Result)]


def _instruction(draft: Draft, text: str) -> JsonObject:
    role = "developer" if draft.info.features.developer_role else "system"
    return {"type": "message", "role": role, "content": [_text(text)]}


def _assistant(draft: Draft, message: Message) -> None:
    before = len(draft.messages)
    sources: list[Text | Think | Call] = []
    for part in message.parts:
        if isinstance(part, Text | Think | Call) and (item := write_item(part, message, draft)):
            draft.messages.append(item)
            sources.append(part)
    while sources and isinstance(sources[-1], Think):
        draft.messages.pop()
        draft.leave_out(message, "reasoning without an item behind it", sources.pop())
    if len(draft.messages) == before:
        draft.leave_out(message, "empty message")


def _note(draft: Draft, message: Message) -> None:
    draft.messages += [_instruction(draft, text) for text in texts(message)]
    if not draft.info.features.late_effort:
        draft.set_effort(message)
    elif effort := wanted_effort(message):
        draft.messages.append({"type": "configuration_update", "reasoning": {"effort": effort}})


def _tools(draft: Draft, message: Message) -> None:
    tools = tools_of(message)
    if not draft.info.features.late_tools:
        draft.add_tools_in_front(message)
        return
    if listed := draft.define_tools(draft.offered_tools(tools, message)):
        draft.messages.append(_additional(listed, {}, draft))


def tool_entry(tool: JsonObject) -> JsonObject:
    """A tool as entries define it; a hosted tool is known by its type."""
    return tool_json(tool.get("name") or tool.get("type"), tool.get("description"), sub(tool, "parameters"))


def tool_definition(tool: JsonObject) -> JsonObject:
    """A tool as the Responses API defines one; not strict, because schemas are taken as they are."""
    return {
        "type": "function",
        "name": NAMES.spell(tool["name"]),
        "description": tool.get("description", ""),
        "parameters": tool.get("parameters") or {"type": "object", "properties": {}},
        "strict": False,
    }


def _body(draft: Draft, prompt: Prompt) -> JsonObject:
    info, ask = draft.info, draft.ask
    tools = draft.tools(prompt)
    listed = [tool for tool in tools if "front" in tool and (info.features.late_tools or draft.was_sent(tool["item"]))]
    head = _front(draft, prompt, listed)
    items = [*head, *draft.messages]
    if not draft.messages and not prompt.front:
        items.append({"type": "message", "role": "user", "content": [_text(GO_ON)]})
    body: JsonObject = {"model": info.model, "input": items, "store": False}
    if any(map(is_named, draft.messages)):
        del body["store"]  # what is named by its id must be held
    if defined := draft.define_tools([tool for tool in tools if tool not in listed]):
        body["tools"] = defined
    if info.features.reasoning and dialect_of(info).encrypted:
        body["include"] = ["reasoning.encrypted_content"]
    if ask.max_tokens is not None:
        body["max_output_tokens"] = ask.max_tokens
    if effort := draft.effort or ask.effort:
        body["reasoning"] = {"effort": effort}
    return {**body, **_key(draft)}


def _front(draft: Draft, prompt: Prompt, tools: list[JsonObject]) -> list[JsonObject]:
    """The instructions, and the items of tools that came among them where they stood."""
    head = front_instructions(draft, prompt, prompt.systems, CONTENT.text_of, lambda text: _instruction(draft, text))
    in_order = sorted(tools, key=lambda tool: tool["front"])
    items = [(place, list(group)) for place, group in groupby(in_order, lambda tool: tool["front"][:2])]
    for (before, _), listed in reversed(items):
        head.insert(before, _additional(draft.define_tools(listed), listed[0]["item"], draft))
    return head


def _additional(tools: list[JsonObject], item: JsonObject, draft: Draft) -> JsonObject:
    """An item of tools: as it came where the same model was sent it, else a new one."""
    around = (
        as_sent(item["message"], draft) if draft.was_sent(item) else {"type": "additional_tools", "role": "developer"}
    )
    return {**around, "tools": tools}


def _key(draft: Draft) -> JsonObject:
    key, place = draft.ask.key, dialect_of(draft.info).key_in
    if not key or not draft.info.cache.key:
        return {}
    if place == "extra":
        return {"extra_body": {draft.info.cache.key: key}} if draft.info.cache.key != "id_slot" else {}
    return {"prompt_cache_key": key}


NATIVE = Native(
    (FORMAT, "openai-agents"),
    "@item",
    owners=("openai", "azure"),
    items=True,
    anywhere=True,
    read=tool_entry,
    define=tool_definition,
)
WRITER = Writer(FORMAT, with_originals(by_role(_user, _assistant, _results, _note, _tools)), _body, NATIVE)
