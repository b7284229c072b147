"""Messages in Converse's form, and the request around them.

User and assistant take turns here; where two of one side would stand together, a turn that was never taken
stands between them, so that no message changes when another follows.
"""

from __future__ import annotations

from typing import Any

from quire import values
from quire.errors import FormatError
from quire.providers.convert import (
    COMMON,
    UserContent,
    begins_imported,
    is_from,
    leave_out_block,
    leave_out_thinking,
    own_block,
)
from quire.providers.incoming import Spelling, bytes_of, objects, sub
from quire.providers.outgoing import by_role, compact, object_of, with_originals
from quire.providers.prefix import NO_REPLY
from quire.providers.provider_tools import Native, tool_json
from quire.providers.rendering import GO_ON, NO_OUTPUT, Draft, Writer, note_text, texts, wanted_effort
from quire.providers.rules.grammar import obj
from quire.values import Call, Entry, Image, Json, JsonObject, Message, Part, Prompt, Request, Result, Text, Think

# What Converse's content blocks mean: one block, one entry; one part, one block.
#
# Bytes are base64 text here, as on the wire; `sdk_kwargs` turns them into bytes for boto3.

FORMAT = "bedrock"
NAMES = Spelling()


def text_block(text: str) -> JsonObject:
    return {"text": text}


def assistant_entry(block: Json) -> Entry:
    """An assistant's block as an entry; what an entry cannot hold is kept in `wire.block`."""
    if not isinstance(block, dict) or not block:
        raise FormatError(f"a content block that is {str(block)[:80]!r}", hint="Blocks are objects with one key.")
    if isinstance(block.get("text"), str):
        return values.respond(block["text"])
    if "toolUse" in block and sub(block, "toolUse").get("type") != "server_tool_use":
        # Such a one is carried out by the provider, and its result stands behind it.
        use = sub(block, "toolUse")
        plain = set(use) <= {"toolUseId", "name", "input"}
        args = use.get("input")
        return values.call(
            str(use.get("toolUseId") or ""),
            str(use.get("name") or ""),
            {} if args is None else args,
            wire=None if plain else {"block": block},
        )
    if "reasoningContent" in block:
        text = sub(sub(block, "reasoningContent"), "reasoningText").get("text")
        return values.think(str(text or ""), wire={"block": block})
    if sub(block, "citationsContent"):
        return values.respond(cited_text(block), wire={"block": block})
    return values.respond("", wire={"block": block})


def cited_text(block: JsonObject) -> str:
    content = objects(sub(block, "citationsContent"), "content")
    return "".join(str(block.get("text") or "") for block in content)


def result_entry(block: JsonObject) -> Entry:
    """A toolResult block as an entry."""
    result = sub(block, "toolResult")
    content = objects(result, "content")
    plain = [set(block) for block in content] == [{"text"}]
    failed = True if result.get("status") == "error" else None
    wire = None if plain else {"block": block}
    return values.result(str(result.get("toolUseId") or ""), content=CONTENT.text_of(content), error=failed, wire=wire)


def _kind(block: JsonObject) -> str:
    kind = str(next(iter(block), "block"))
    return "" if kind in ("text", "image", "cachePoint", "toolResult") else kind


def _text(part: Text, message: Message, draft: Draft) -> JsonObject | None:
    block = own_block(part, draft)
    if block and ("citationsContent" not in block or cited_text(block) == part.text):
        return block
    leave_out_block(part, message, draft)
    return text_block(part.text) if part.text.strip() else None


def _reasoning(part: Think, message: Message, draft: Draft) -> JsonObject | None:
    block = own_block(part, draft) or _from_anthropic(part, draft)
    void = draft.stale and draft.info.features.thinking_bound != "no"
    # Models but Claude sign nothing: theirs goes back where they were sent it before.
    unsigned_goes_back = "claude" not in draft.info.model and "message" in part.wire
    reasoning = sub(block or {}, "reasoningContent")
    signed = reasoning.get("redactedContent") or sub(reasoning, "reasoningText").get("signature")
    if block and not void and (signed or unsigned_goes_back):
        return block
    leave_out_thinking(part, message, draft)
    return None


def _from_anthropic(part: Think, draft: Draft) -> JsonObject | None:
    """Anthropic's own API writes the same models' signatures in other fields, bound to a prefix or not."""
    block = obj(part.wire.get("block"))
    bound = draft.info.features.thinking_bound != "no"
    if not block or bound or not is_from(part.wire, ("anthropic",), draft):
        return None
    if block.get("type") == "redacted_thinking":
        return {"reasoningContent": {"redactedContent": block.get("data", "")}}
    text = {"text": block.get("thinking", ""), "signature": block.get("signature", "")}
    return {"reasoningContent": {"reasoningText": text}}


def _tool_use(part: Call, draft: Draft) -> JsonObject:
    block = own_block(part, draft)
    fields = {"toolUseId": part.call_id, "name": NAMES.spell(part.name), "input": object_of(part.args)}
    return {"toolUse": {**(block["toolUse"] if block else {}), **fields}}


def tool_result(part: Result, draft: Draft) -> JsonObject:
    """The block of a result; images and JSON in it go back as they came, and nothing does where it may."""
    block = own_block(part, draft)
    content = [text_block(part.text if part.text.strip() else NO_OUTPUT)]
    original = block["toolResult"].get("content") if block else None
    if original is not None and CONTENT.text_of(original) == part.text and (original or not part.error):
        content = original
    # Some models take no status; success is what its absence means.
    failed = {"status": "error"} if part.error else {}
    return {"toolResult": {"toolUseId": part.call_id, "content": content, **failed}}


def _image(block: JsonObject) -> Image | None:
    if "image" not in block:
        return None
    image = sub(block, "image")
    source, media = sub(image, "source"), f"image/{image.get('format') or 'png'}"
    if "bytes" in source:
        return Image(media_type=media, data=str(source["bytes"]))
    return Image(media_type=media, url=str(sub(source, "s3Location").get("uri") or ""))


def _show(part: Image) -> JsonObject | None:
    """An image by its data or its place in S3; Converse fetches nothing from the web."""
    kind = part.media_type.removeprefix("image/") or part.url.rpartition(".")[2].lower()
    form = {"jpg": "jpeg", "": "png"}.get(kind, kind)
    accepted = f"image/{form}" in COMMON
    if part.url.startswith("s3://"):
        return {"image": {"format": form if accepted else "png", "source": {"s3Location": {"uri": part.url}}}}
    return {"image": {"format": form, "source": {"bytes": part.data}}} if part.data and accepted else None


CONTENT = UserContent(
    kind=_kind,
    image=_image,
    show=_show,
    say=text_block,
    other_text=lambda block: compact(block["json"]) if "json" in block else None,
)

# A message's own messages by its role; a note without a role of its own joins the user message before it.


def _user(draft: Draft, message: Message) -> None:
    content = CONTENT.blocks(draft, message)
    wire = next((part.wire for part in message.parts if isinstance(part, Text)), {})
    if draft.unsent.get("role") == "user" and wire.get("format") == FORMAT and wire.get("more"):
        # Results and words came as one message of the user.
        content = [*draft.messages.pop()["content"], *content]
    _bridge_user(draft)
    draft.messages.append({"role": "user", "content": content})


def _assistant(draft: Draft, message: Message) -> None:
    blocks = [block for part in message.parts if (block := _block(part, message, draft))]
    if all("reasoningContent" in block for block in blocks):
        draft.leave_out(message, "empty message")
        return
    # Claude takes a conversation that it begins itself, where it came so.
    first = not draft.messages and "claude" in draft.info.model and begins_imported(message, FORMAT)
    if draft.last.get("role") in (None, "assistant") and not first:
        draft.bridge({"role": "user", "content": [text_block(GO_ON)]})
    draft.messages.append({"role": "assistant", "content": blocks})


def _block(part: Part, message: Message, draft: Draft) -> JsonObject | None:
    """The block of an assistant's part, or None where there is nothing to send."""
    match part:
        case Text():
            return _text(part, message, draft)
        case Think():
            return _reasoning(part, message, draft)
        case Call() if _takes_calls(draft, message):
            return _tool_use(part, draft)
        case Call():
            draft.leave_out(message, "told as text: Converse takes calls only where tools are defined", part)
            return text_block(f"[Called {part.name} with {compact(part.args)}]")
    return None


def _takes_calls(draft: Draft, message: Message) -> bool:
    """Converse takes calls where tools are defined; its own calls, at least their names, are put there."""
    if draft.has_tools or draft.late_tools:
        return True
    calls = [part for part in message.parts if isinstance(part, Call)]
    if not any(is_from(part.wire, (FORMAT,), draft) for part in calls):
        return False
    for part in calls:
        draft.called.setdefault(part.name, message)
    return True


def _results(draft: Draft, message: Message) -> None:
    """Results as blocks, or as text where the request defines no tools and their calls are text too."""
    as_blocks = any("toolUse" in block for block in draft.last.get("content") or ()) or draft.faithful
    content = [
        tool_result(part, draft)
        if as_blocks
        else text_block(f"[{'Error' if part.error else 'Result'} of {part.name}]: {part.text}")
        for part in message.parts
        if isinstance(part, Result)
    ]
    draft.messages.append({"role": "user", "content": content})


def _note(draft: Draft, message: Message) -> None:
    if effort := wanted_effort(message):
        draft.effort = effort
        draft.leave_out(message, "effort is set for the whole request, which moves the prefix of the messages")
    words = texts(message)
    role, unsent = draft.last.get("role"), draft.unsent.get("role")
    if not words:
        return
    if draft.info.features.late_system and (role == "user" or unsent == "system"):
        before = draft.messages.pop()["content"] if role == "system" else []
        draft.messages.append({"role": "system", "content": [*before, *map(text_block, words)]})
    elif unsent == "user":
        draft.messages[-1] = {**draft.last, "content": [*draft.last["content"], text_block(note_text(message))]}
    else:
        _bridge_user(draft)
        draft.messages.append({"role": "user", "content": [text_block(note_text(message))]})


def _bridge_user(draft: Draft) -> None:
    """Converse takes no two user messages in a row."""
    if draft.last.get("role") in ("user", "system"):
        draft.bridge({"role": "assistant", "content": [text_block(NO_REPLY)]})


def _end(draft: Draft) -> None:
    if not draft.messages or (draft.last.get("role") == "assistant" and not draft.info.features.prefill):
        draft.bridge({"role": "user", "content": [text_block(GO_ON)]})


def _body(draft: Draft, prompt: Prompt) -> JsonObject:
    ask = draft.ask
    body: JsonObject = {"modelId": draft.info.model}
    if tools := draft.tools(prompt) or _called_tools(draft):
        body["toolConfig"] = {"tools": draft.defined(tools)}
    if prompt.system.strip():
        body["system"] = [text_block(prompt.system)]
    body["messages"] = draft.messages
    if ask.max_tokens:
        body["inferenceConfig"] = {"maxTokens": ask.max_tokens}
    if effort := draft.effort or ask.effort:
        body["outputConfig"] = {"effort": effort}
    return {**body, **ask.extra}


def _called_tools(draft: Draft) -> list[JsonObject]:
    for message in draft.called.values():
        draft.leave_out(message, "a called tool is named in front because none is defined, which moves the prefix")
    return [{"name": name} for name in draft.called]


def tool_entry(spec: JsonObject) -> JsonObject:
    """A toolSpec as entries define a tool."""
    return tool_json(spec.get("name"), spec.get("description"), sub(sub(spec, "inputSchema"), "json"))


def tool_spec(tool: JsonObject) -> JsonObject:
    """A tool as Converse defines one."""
    schema = {"type": "object", **(tool.get("parameters") or {"properties": {}})}
    description = {"description": tool["description"]} if tool.get("description") else {}
    return {"toolSpec": {"name": NAMES.spell(tool["name"]), **description, "inputSchema": {"json": schema}}}


NATIVE = Native(
    (FORMAT,),
    "@content",
    owners=("bedrock",),
    read=lambda definition: tool_entry(sub(definition, "toolSpec")),
    define=tool_spec,
)
# A toolAddition names a tool of toolConfig and cannot define one: late tools join the list in front.
WRITER = Writer(FORMAT, with_originals(by_role(_user, _assistant, _results, _note)), _body, NATIVE, end=_end)


# The request body with bytes in place of base64, as boto3's `client.converse` takes it.


def sdk_kwargs(request: Request) -> dict[str, Any]:
    """The keyword arguments of `client.converse`; the same as the body where it holds no bytes."""
    messages = [
        {**message, "content": [_sdk_block(block) for block in message["content"]]}
        for message in request.body["messages"]
    ]
    return {**request.body, "messages": messages}


def _sdk_block(block: Json) -> Json:
    if "image" in block:
        source = block["image"].get("source") or {}
        if "bytes" in source:
            return {"image": {**block["image"], "source": {"bytes": bytes_of(source["bytes"])}}}
    if "redactedContent" in (block.get("reasoningContent") or {}):
        redacted = bytes_of(block["reasoningContent"]["redactedContent"])
        return {"reasoningContent": {"redactedContent": redacted}}
    if "toolResult" in block:
        content = [_sdk_block(part) for part in block["toolResult"]["content"]]
        return {"toolResult": {**block["toolResult"], "content": content}}
    return block
