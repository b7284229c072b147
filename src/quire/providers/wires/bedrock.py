"""Amazon Bedrock's Converse API: entries into messages and a request around them, replies and imported messages back.

User and assistant take turns here; where two of one side would stand together, a turn that was never taken
stands between them, so that no message changes when another follows.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from quire import values
from quire.errors import FormatError
from quire.providers.convert import COMMON, UserContent, begins_imported, block_from, leave_out, origin, own_block
from quire.providers.incoming import (
    BlockReader,
    Spelling,
    StreamedBlock,
    bytes_of,
    error_in_reply,
    not_a_reply,
    number_in,
    objects,
    optional_list,
    paragraphs,
    plain,
    read_messages,
    sub,
    text_in,
)
from quire.providers.outgoing import (
    by_role,
    compact,
    exported_request,
    object_of,
    user_last,
    whole_message,
    with_originals,
)
from quire.providers.prefix import NO_REPLY, Layout, Path, Section, Unit, changed_body, parts_of
from quire.providers.provider_tools import Native, ToolOffer, function, offer_entry, tool_json
from quire.providers.rendering import GO_ON, NO_OUTPUT, Draft, Writer, note_text, texts
from quire.providers.rules.claude import CONVERSE_RULES
from quire.providers.wires import ModelCall, Wire
from quire.values import Call, Entry, Image, Json, JsonObject, Message, Part, Prompt, Reply, Result, Text, Think

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
    leave_out(part, message, draft)
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
    leave_out(part, message, draft)
    return None


def _from_anthropic(part: Think, draft: Draft) -> JsonObject | None:
    """Anthropic's own API writes the same models' signatures in other fields."""
    if not (block := block_from(part, draft, "anthropic")):
        return None
    if block.get("type") == "redacted_thinking":
        return {"reasoningContent": {"redactedContent": block.get("data", "")}}
    text = {"text": block.get("thinking", ""), "signature": block.get("signature", "")}
    return {"reasoningContent": {"reasoningText": text}}


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
    wire = origin(message)
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
            block = own_block(part, draft)
            fields = {"toolUseId": part.call_id, "name": NAMES.spell(part.name), "input": object_of(part.args)}
            return {"toolUse": {**(block["toolUse"] if block else {}), **fields}}
        case Call():
            draft.leave_out(message, "told as text: Converse takes calls only where tools are defined", part)
            return text_block(f"[Called {part.name} with {compact(part.args)}]")
    return None


def _takes_calls(draft: Draft, message: Message) -> bool:
    """Converse takes calls where tools are defined; its own calls, at least their names, are put there."""
    if draft.has_tools or draft.late_tools:
        return True
    calls = [part for part in message.parts if isinstance(part, Call)]
    if not any(draft.is_from(part.wire) for part in calls):
        return False
    for part in calls:
        draft.called.setdefault(part.name, message)
    return True


def _results(draft: Draft, message: Message) -> None:
    """Results as blocks, or as text and images where the request defines no tools and their calls are text too."""
    results = [(part, tool_result(part, draft)) for part in message.parts if isinstance(part, Result)]
    content = [block for _, block in results]
    if not (any("toolUse" in block for block in draft.last.get("content") or ()) or draft.faithful):
        content = []
        for part, block in results:
            content.append(text_block(f"[{'Error' if part.error else 'Result'} of {part.name}]: {part.text}"))
            content += [inner for inner in block["toolResult"]["content"] if "image" in inner]
    draft.messages.append({"role": "user", "content": content})


def _note(draft: Draft, message: Message) -> None:
    draft.set_effort(message, "moves the prefix of the messages")
    words = texts(message)
    role, unsent = draft.last.get("role"), draft.unsent.get("role")
    if not words:
        return
    if draft.info.features.late_system and (role == "user" or unsent == "system"):
        before = draft.messages.pop()["content"] if role == "system" else []
        draft.messages.append({"role": "system", "content": [*before, *map(text_block, words)]})
    else:
        if unsent != "user":
            _bridge_user(draft)
        draft.say_as_user(text_block(note_text(message)))


def _bridge_user(draft: Draft) -> None:
    """Converse takes no two user messages in a row."""
    if draft.last.get("role") in ("user", "system"):
        draft.bridge({"role": "assistant", "content": [text_block(NO_REPLY)]})


def _body(draft: Draft, prompt: Prompt) -> JsonObject:
    ask = draft.ask
    body: JsonObject = {"modelId": draft.info.model}
    if tools := draft.tools(prompt) or _called_tools(draft):
        body["toolConfig"] = {"tools": draft.define_tools(tools)}
    if prompt.system.strip():
        body["system"] = [text_block(prompt.system)]
    body["messages"] = draft.messages
    if ask.max_tokens is not None:
        body["inferenceConfig"] = {"maxTokens": ask.max_tokens}
    if effort := draft.effort or ask.effort:
        body["outputConfig"] = {"effort": effort}
    return body


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
    result_images="inside",
    read=lambda definition: tool_entry(sub(definition, "toolSpec")),
    define=tool_spec,
)
# A toolAddition names a tool of toolConfig and cannot define one: late tools join the list in front.
WRITER = Writer(
    FORMAT, with_originals(by_role(_user, _assistant, _results, _note)), _body, NATIVE, end=user_last(text_block)
)


# The request body with bytes in place of base64, as boto3's `client.converse` takes it.


def sdk_kwargs(request: values.Request) -> dict[str, Any]:
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


# Reading: replies and imported messages into entries, and entries back as they came.


def _import_messages(value: Any, model: str = "") -> list[Entry]:
    return read_messages(plain(value), model, format=FORMAT, head=_head_entries, read=_entries, model_field="modelId")


def _head_entries(request: JsonObject, model: str) -> list[Entry]:
    out = []
    if defined := objects(sub(request, "toolConfig"), "tools"):
        out.append(offer_entry(map(_offer, _without_points(defined)), format=FORMAT, tools=defined))
    if request.get("system") is not None:
        blocks = objects(request, "system")
        out.append(values.system(paragraphs(blocks, CONTENT.text_of), wire={"format": FORMAT, "system": blocks}))
    return out


def _offer(tool: JsonObject) -> ToolOffer:
    """A function, or a tool of Amazon's own: {"systemTool": {"name": "nova_grounding"}}."""
    if "toolSpec" in tool:
        return function(tool, NATIVE)
    return ToolOffer(tool_entry(sub(tool, "systemTool") or {"name": next(iter(tool), "")}), tool)


def _entries(message: Json, where: str = "message") -> list[Entry]:
    role, content = values.value_at(message, "role"), values.value_at(message, "content")
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise FormatError(f"{where}: no list of content blocks", hint="Converse's content is a list of objects.")
    match role:
        case "user":
            results = [result_entry(block) for block in content if "toolResult" in block]
            return CONTENT.entries(results, [block for block in _without_points(content) if "toolResult" not in block])
        case "assistant":
            return [assistant_entry(block) for block in _without_points(content)] or [values.respond("")]
        case "system":
            return [values.system(CONTENT.text_of(content))]
    raise FormatError(f"{where}: unknown role {role!r}", hint="Roles are user, assistant and system.")


class ConverseReader(BlockReader):
    """Gathers events; the usage comes last, and not at all when the stream is cut."""

    format = FORMAT
    named = "a Converse response"
    ending = "messageStop"

    def _read(self, reply: JsonObject) -> Reply:
        message = sub(reply, "output").get("message")
        if not isinstance(message, dict) or not isinstance(message.get("content"), list):
            raise not_a_reply("a Converse response without a message")
        entries, reply_id = map(assistant_entry, message["content"]), sub(reply, "ResponseMetadata").get("RequestId")
        return self._whole_reply(reply, entries, reply.get("stopReason"), reply_id)

    def _take(self, event: JsonObject) -> list[Entry]:
        kind = next(iter(event), "")
        fields = sub(event, kind)
        match kind:
            case "messageStart":
                pass
            case "contentBlockStart":
                start, use = sub(fields, "start"), sub(sub(fields, "start"), "toolUse")
                block = StreamedBlock("call", {"toolUse": use}, use.get("name")) if use else StreamedBlock(start=start)
                self.open_blocks[number_in(fields, "contentBlockIndex")] = block
            case "contentBlockDelta":
                self._delta(number_in(fields, "contentBlockIndex"), sub(fields, "delta"))
            case "contentBlockStop":
                return self._close(number_in(fields, "contentBlockIndex"))
            case "messageStop":
                self.stop = text_in(fields, "stopReason")
                return self._end()
            case "metadata":
                self.reported = fields if sub(fields, "usage") else {}
            case _ if kind.endswith("Exception"):
                raise error_in_reply({"type": kind, "message": fields.get("message")})
            case _:
                self.unknown += 1
        return []

    def _delta(self, place: int, delta: JsonObject) -> None:
        start = self.open_blocks.setdefault(place, StreamedBlock()).start
        thought, call = sub(delta, "reasoningContent"), sub(delta, "toolUse")
        for field, holder, name, kind in (
            ("text", delta, "text", "respond"),
            ("input", call, "input", "call"),
            ("thought", thought, "text", "think"),
            ("signature", thought, "signature", ""),
            ("redacted", thought, "redactedContent", ""),
        ):
            if name in holder:
                self._grow(place, field, text_in(holder, name), kind)
        if "citation" in delta:
            start["citations"] = [*optional_list(start, "citations"), delta["citation"]]
        if given := objects(delta, "toolResult"):
            result = sub(start, "toolResult")
            start["toolResult"] = {**result, "content": [*optional_list(result, "content"), *given]}
        if picture := sub(delta, "image"):
            start["image"] = {**sub(start, "image"), **picture}
        if not {"text", "toolUse", "toolResult", "reasoningContent", "citation", "image"} & set(delta):
            self.unknown += 1

    def _entry(self, block: StreamedBlock) -> Entry:
        start, text = block.start, block.text
        whole: JsonObject = start or {"text": text("text")}
        if "toolUse" in start:
            whole = {"toolUse": {**start["toolUse"], "input": json.loads(text("input") or "{}")}}
        elif "toolResult" in start:
            result = start["toolResult"]
            whole = {"toolResult": {**result, "content": optional_list(result, "content")}}
        elif "redacted" in block.pieces:
            redacted = b"".join(map(bytes_of, block.pieces["redacted"]))
            whole = {"reasoningContent": {"redactedContent": base64.b64encode(redacted).decode()}}
        elif block.pieces.keys() & {"thought", "signature"}:
            signature = {"signature": text("signature")} if "signature" in block.pieces else {}
            whole = {"reasoningContent": {"reasoningText": {"text": text("thought"), **signature}}}
        elif "citations" in start:
            whole = {"citationsContent": {"content": [{"text": text("text")}], **start}}
        return assistant_entry(whole)


def other_format(body: JsonObject) -> str:
    """Bedrock takes Anthropic's own format too: `anthropic_version`, or blocks with a `type`."""
    contents = (message.get("content") for message in values.as_objects(body.get("messages")))
    # The first message that says something tells.
    first = next((content for content in contents if content), None)
    typed = any(isinstance(block.get("type"), str) for block in values.as_objects(first))
    return "anthropic" if "anthropic_version" in body or typed or isinstance(first, str) else ""


# Where a request keeps what is cached; bytes, which boto3 takes, are base64 as on the wire.


def _head(body: JsonObject) -> Iterator[Unit]:
    yield _listed_unit(("toolConfig", "tools"), "tools", "tool", values.value_at(body, "toolConfig", "tools"))
    yield _listed_unit(("system",), "system", "system", body.get("system"))


def _listed_unit(path: Path, section: Section, role: str, blocks: Json) -> Unit:
    parts = tuple(parts_of(plain(blocks), *path))
    return Unit((), section, role, blocks, parts, tuple(_without_points(part.value for part in parts)))


def _message(message: Json, index: int) -> Unit:
    content = plain(message.get("content") or [])
    compared = {**message, "content": _without_points(values.as_list(content))}
    parts = tuple(parts_of(content, "content"))
    return Unit(("messages", index), "messages", str(message.get("role", "")), message, parts, (compared,))


def _without_points(blocks: Iterable[JsonObject]) -> list[JsonObject]:
    return [block for block in blocks if not isinstance(block, dict) or "cachePoint" not in block]


def _with_point(body: JsonObject, path: Path, long: bool) -> JsonObject:
    """A cache point behind the block."""
    point: JsonObject = {"type": "default", "ttl": "1h"} if long else {"type": "default"}
    *outer, index = path
    assert isinstance(index, int)
    behind = index + 1
    return changed_body(body, tuple(outer), lambda blocks: [*blocks[:behind], {"cachePoint": point}, *blocks[behind:]])


WIRE = Wire(
    name=FORMAT,
    imports=_import_messages,
    exports=partial(
        exported_request,
        writer=WRITER,
        original=whole_message(_entries),
        say=lambda text: [text_block(text)],
        tools=lambda defined: {"toolConfig": {"tools": defined}},
    ),
    writer=WRITER,
    layout=Layout(_head, "messages", _message),
    reader=ConverseReader,
    mark=_with_point,
    rules=CONVERSE_RULES,
    call=ModelCall(sdk="boto3", method="converse", stream_method="converse_stream", sdk_kwargs=sdk_kwargs),
    other=other_format,
)
