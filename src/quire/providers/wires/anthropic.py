"""Anthropic's Messages API: entries into messages and a request around them, replies and imported messages back.

Late notes and tools are messages of role `system` where the model takes them; elsewhere notes join the
user message before them, and tools the list in front.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

from quire import values
from quire.errors import FormatError
from quire.providers.convert import (
    COMMON,
    UserContent,
    begins_imported,
    block_from,
    is_web,
    leave_out,
    origin,
    own_block,
)
from quire.providers.incoming import (
    BlockReader,
    Spelling,
    StreamedBlock,
    cut,
    error_in_reply,
    not_a_reply,
    number_in,
    objects,
    optional_list,
    paragraphs,
    read_messages,
    required_object,
    sub,
    text_in,
    without_nulls,
)
from quire.providers.models import data
from quire.providers.outgoing import by_role, exported_request, object_of, user_last, whole_message, with_originals
from quire.providers.prefix import NO_REPLY, Layout, Unit, bare, parts_of, tool_units, with_control, without_marks
from quire.providers.provider_tools import Native, offer_entry, tool_json, tools_in, typed_offers
from quire.providers.rendering import (
    GO_ON,
    NO_OUTPUT,
    Draft,
    Writer,
    note_text,
    text_block,
    texts,
    tools_of,
    wanted_effort,
)
from quire.providers.rules.check import turn_at
from quire.providers.rules.claude import ANTHROPIC_RULES, betas_around, betas_in
from quire.providers.wires import ModelCall, Wire
from quire.values import Call, Entry, Image, Json, JsonObject, Message, Prompt, Reply, Result, Text, Think

# What Anthropic's content blocks mean: one block, one entry; one part, one block.

FORMAT = "anthropic"
NAMES = Spelling()

# Blocks whose fields an entry can hold; with any other field the block itself is kept.
_PLAIN = {
    "text": {"type", "text"},
    "tool_use": {"type", "id", "name", "input"},
    "tool_result": {"type", "tool_use_id", "content", "is_error"},
}


def assistant_entry(block: Json) -> Entry:
    """An assistant's block as an entry; what an entry cannot hold is kept in `wire.block`."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise FormatError(f"a content block without a type: {str(block)[:80]}", hint="Blocks are objects with a type.")
    match block["type"]:
        case "text":
            return values.respond(str(block.get("text") or ""), wire=kept_block(block))
        case "thinking":
            return values.think(str(block.get("thinking") or ""), wire={"block": block})
        case "redacted_thinking":
            return values.think("", wire={"block": block})
        case "tool_use":
            name, args = str(block.get("name") or ""), block.get("input")
            return values.call(str(block.get("id") or ""), name, {} if args is None else args, wire=kept_block(block))
    return values.respond("", wire={"block": block})


def result_entry(block: JsonObject) -> Entry:
    """A tool_result block as an entry."""
    content = block.get("content")
    plain_text = isinstance(content, str) and bool(content.strip())
    wire = kept_block(block) if plain_text else {"block": block}
    failed = True if block.get("is_error") else None
    return values.result(str(block.get("tool_use_id") or ""), content=CONTENT.text_of(content), error=failed, wire=wire)


def kept_block(block: JsonObject) -> JsonObject | None:
    """The wire field of a block that says more than its entry: a text's citations, a call's caller."""
    return {"block": block} if set(block) - _PLAIN[block["type"]] - {"cache_control"} else None


def _text(part: Text, message: Message, draft: Draft) -> list[JsonObject]:
    block = own_block(part, draft)
    if block and (block["type"] != "text" or (block["text"] == part.text and part.text.strip())):
        return [block]
    leave_out(part, message, draft)
    return [text_block(part.text)] if part.text.strip() else []


def _thinking(part: Think, message: Message, draft: Draft) -> list[JsonObject]:
    block = own_block(part, draft) or _from_bedrock(part, draft)
    void = draft.stale and draft.info.features.thinking_bound != "no"
    if block and not void and _is_signed(block, draft):
        return [block]
    leave_out(part, message, draft)
    return []


def _is_signed(block: JsonObject, draft: Draft) -> bool:
    """Whether a server that signs thinking would know it as its own; a local one signs nothing."""
    if block.get("type") == "redacted_thinking":
        return bool(block.get("data"))
    return block.get("type") == "thinking" and bool(block.get("signature") or draft.info.provider != FORMAT)


def _from_bedrock(part: Think, draft: Draft) -> JsonObject | None:
    """Bedrock hosts the same models and writes the same signatures in other fields."""
    content = values.as_object(block_from(part, draft, "bedrock").get("reasoningContent"))
    if text := values.as_object(content.get("reasoningText")):
        return {"type": "thinking", "thinking": text.get("text", ""), "signature": text.get("signature", "")}
    if data := content.get("redactedContent"):
        return {"type": "redacted_thinking", "data": data}
    return None


def _tool_use(part: Call, draft: Draft) -> JsonObject:
    block = own_block(part, draft)
    fields = {"id": part.call_id, "name": NAMES.spell(part.name), "input": object_of(part.args)}
    if block and block.get("input") == part.args:
        return {**block, **fields}
    return {"type": "tool_use", **fields}


def _result(part: Result, draft: Draft) -> JsonObject:
    """The block of a result; images in it go back as they came, and so does one that holds nothing."""
    block = own_block(part, draft)
    content: JsonObject = {"content": part.text if part.text.strip() else NO_OUTPUT}
    if block and values.result_text(result_entry(block)) == part.text:
        content = {"content": block["content"]} if block.get("content") is not None else {}
    out: JsonObject = {"type": "tool_result", "tool_use_id": part.call_id, **content}
    return {**out, "is_error": True} if part.error else out


def _kind(block: JsonObject) -> str:
    kind, source = str(block.get("type") or "block"), block.get("source")
    if kind == "image" and isinstance(source, dict) and source.get("type") == "file":
        return "image file"
    return "" if kind in ("text", "image", "tool_result") else kind


def _image(block: JsonObject) -> Image | None:
    source = sub(block, "source") if block.get("type") == "image" else {}
    if source.get("type") == "base64":
        return Image(media_type=str(source.get("media_type") or ""), data=str(source.get("data") or ""))
    return Image(url=str(source["url"])) if source.get("url") else None


def _show(part: Image) -> JsonObject | None:
    """An image by its address or its data, if Claude can read it."""
    if is_web(part.url):
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    if part.url or not part.data or part.media_type not in COMMON:
        return None
    return {"type": "image", "source": {"type": "base64", "media_type": part.media_type, "data": part.data}}


CONTENT = UserContent(kind=_kind, image=_image, show=_show, say=text_block, title="title")

# Enough for most replies, and few enough that the SDK sends without streaming.
REPLY_TOKENS = 8192

# A message's own messages by its role; the API itself joins two of one role.


def _user(draft: Draft, message: Message) -> None:
    _bridge_user(draft)
    draft.messages.append({"role": "user", "content": CONTENT.blocks(draft, message)})


def _bridge_user(draft: Draft) -> None:
    """A system message may stand before an assistant's alone."""
    if draft.last.get("role") == "system":
        draft.bridge({"role": "assistant", "content": [text_block(NO_REPLY)]})


def _results(draft: Draft, message: Message) -> None:
    results = [_result(part, draft) for part in message.parts if isinstance(part, Result)]
    draft.messages.append({"role": "user", "content": results})


def _assistant(draft: Draft, message: Message) -> None:
    blocks: list[JsonObject] = []
    for part in message.parts:
        match part:
            case Text():
                blocks += _text(part, message, draft)
            case Think():
                blocks += _thinking(part, message, draft)
            case Call():
                blocks.append(_tool_use(part, draft))
    if all(block["type"] in ("thinking", "redacted_thinking") for block in blocks):
        draft.leave_out(message, "empty message")
        return
    if not draft.messages and not begins_imported(message, FORMAT):
        draft.bridge({"role": "user", "content": [text_block(GO_ON)]})
    draft.messages.append({"role": "assistant", "content": blocks})


def _note(draft: Draft, message: Message) -> None:
    features, effort = draft.info.features, wanted_effort(message)
    late = features.late_system and _takes_system(draft)
    extra: JsonObject = {}
    if effort and late and features.late_effort:
        draft.need_beta(*_betas("output_config"))
        extra = {"output_config": {"effort": effort}}
    else:
        draft.set_effort(message, "moves the prefix of the messages")
    if late and (named := _changes(draft, message)):
        draft.need_beta(*_betas("tool_changes"))
        _system(draft, named, extra)
    elif late and (texts(message) or extra):
        _system(draft, [*map(text_block, texts(message))], extra)
    elif texts(message):
        _bridge_user(draft)
        draft.say_as_user(text_block(note_text(message)))


def _changes(draft: Draft, message: Message) -> list[JsonObject]:
    """What an imported system message says of tools by their names, for the model it was said to."""
    blocks = origin(message).get("blocks") if draft.is_from(origin(message)) else None
    return [without_marks(block) for block in blocks] if isinstance(blocks, list) else []


def _takes_system(draft: Draft) -> bool:
    """A system message may follow a user's, or go on while no request has shown it."""
    return draft.last.get("role") == "user" or draft.unsent.get("role") == "system"


def _system(draft: Draft, blocks: list[JsonObject], extra: JsonObject) -> None:
    """One system message for everything that came between two turns."""
    if draft.last.get("role") == "system":
        before = draft.messages.pop()
        blocks, extra = [*before["content"], *blocks], {**before, **extra}
    draft.messages.append({**extra, "role": "system", "content": blocks})


def _tools(draft: Draft, message: Message) -> None:
    if not (draft.info.features.late_tools and draft.messages):
        draft.add_tools_in_front(message)
        return
    if not (offered := draft.offered_tools(tools_of(message), message)):
        return
    if not _takes_system(draft):
        _bridge_user(draft)
        draft.bridge({"role": "user", "content": [text_block(GO_ON)]})
    draft.need_beta(*_betas("tool_changes", "inline_tools"))
    inline = [{"type": "tool_definition", "definition": tool} for tool in draft.define_tools(offered)]
    _system(draft, [{"type": "tool_addition", "tool": tool} for tool in inline], {})


def _betas(*features: str) -> list[str]:
    """The names by which the API is asked for features that are in beta."""
    return [data("rules")["betas"][feature] for feature in features]


def tool_entry(tool: JsonObject) -> JsonObject:
    """A tool as entries define it; a server tool keeps its type as its description."""
    described = tool.get("description") or ("" if "input_schema" in tool else tool.get("type"))
    return tool_json(tool.get("name") or tool.get("type"), described, sub(tool, "input_schema"))


def tool_definition(tool: JsonObject) -> JsonObject:
    """A tool as Anthropic defines one."""
    schema = {"type": "object", **(tool.get("parameters") or {"properties": {}})}
    description = {"description": tool["description"]} if tool.get("description") else {}
    return {"name": NAMES.spell(tool["name"]), **description, "input_schema": schema}


def _body(draft: Draft, prompt: Prompt) -> JsonObject:
    info, ask = draft.info, draft.ask
    usual = min(info.max_output or REPLY_TOKENS, REPLY_TOKENS)
    body: JsonObject = {"model": info.model, "max_tokens": usual if ask.max_tokens is None else ask.max_tokens}
    if tools := draft.tools(prompt):
        body["tools"] = draft.define_tools(tools)
    if prompt.system.strip():
        body["system"] = [text_block(prompt.system)]
    body["messages"] = draft.messages
    if effort := draft.effort or ask.effort:
        body["output_config"] = {"effort": effort}
    return body


def _headers(draft: Draft) -> dict[str, str]:
    """The betas of what is written late, and of what the caller asks for without naming any."""
    betas = list(draft.betas)
    if not draft.ask.extra.keys() & {"betas", "anthropic_beta", "extra_headers"}:
        uses = list(betas_around(draft.ask.extra))
        for place, message in enumerate(draft.messages):
            uses += betas_in(turn_at(FORMAT, message, place)) if message["role"] == "system" else ()
        betas += _betas(*(use.feature for use in uses))
    return {"anthropic-beta": ",".join(dict.fromkeys(betas))} if betas else {}


NATIVE = Native(
    (FORMAT,),
    "@block",
    owners=("anthropic",),
    result_images="inside",
    unique_ids=True,
    read=tool_entry,
    define=tool_definition,
)
_write = with_originals(by_role(_user, _assistant, _results, _note, _tools))
WRITER = Writer(FORMAT, _write, _body, NATIVE, end=user_last(text_block), headers=_headers)


# Reading: replies and imported messages into entries, and entries back as they came.


def _head_entries(request: JsonObject, model: str) -> list[Entry]:
    out = tools_in(request, model, NATIVE)
    if (prompt := request.get("system")) is not None:
        text = prompt if isinstance(prompt, str) else paragraphs(objects(request, "system"), CONTENT.text_of)
        out.append(values.system(text, wire={"format": FORMAT, "system": prompt}))
    return out


def _entries(message: Json, where: str = "message") -> list[Entry]:
    role, content = values.value_at(message, "role"), values.value_at(message, "content")
    blocks = objects(message, "content") if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    match role:
        case "user":
            results = [result_entry(block) for block in blocks if block.get("type") == "tool_result"]
            return CONTENT.entries(results, [block for block in blocks if block.get("type") != "tool_result"])
        case "assistant":
            return [assistant_entry(block) for block in blocks] or [values.respond("")]
        case "system":
            return _system_entries(message, blocks)
    raise FormatError(f"{where}: unknown role {role!r}", hint="Roles are user, assistant and system.")


def _system_entries(message: JsonObject, blocks: list[JsonObject]) -> list[Entry]:
    effort = sub(message, "output_config").get("effort")
    added = [sub(tool, "definition") for block in blocks if "definition" in (tool := sub(block, "tool"))]
    text = CONTENT.text_of([block for block in blocks if block.get("type") == "text"])
    wire = {"effort": effort} if effort else {}
    named = [block for block in blocks if block.get("type") in ("tool_addition", "tool_removal")]
    if len(named) > len(added):
        # It names tools of the list in front, which no entry can hold.
        return [values.note(text, wire={**wire, "blocks": blocks})]
    out = [values.system(text, wire=wire or None)] if text or effort or not added else []
    return out + ([offer_entry(typed_offers(added, NATIVE))] if added else [])


# What a block is for whoever watches; all others are answers.
_KINDS = {"thinking": "think", "redacted_thinking": "think", "tool_use": "call"}
# delta type -> (its field, the block's field it continues, what it is for whoever watches)
_DELTAS = {
    "text_delta": ("text", "text", "respond"),
    "thinking_delta": ("thinking", "thinking", "think"),
    "signature_delta": ("signature", "signature", ""),
    "input_json_delta": ("partial_json", "input", "call"),
    "compaction_delta": ("content", "content", ""),
}


class MessageReader(BlockReader):
    """Gathers events. A thinking block without its signature, or half a tool_use, is never an entry."""

    format = FORMAT
    named = "a message"
    ending = "message_stop"
    stopped = False

    def _read(self, reply: JsonObject) -> Reply:
        if not isinstance(reply.get("content"), list):
            raise not_a_reply("a message without content")
        self.model = str(reply.get("model") or self.model)
        entries = [assistant_entry(without_nulls(block)) for block in objects(reply, "content")]
        return self._whole_reply(reply, entries, reply.get("stop_reason"), reply.get("id"))

    def _take(self, event: JsonObject) -> list[Entry]:
        match event.get("type"):
            case "message_start":
                return self._start(required_object(event, "message"))
            case "content_block_start":
                block = without_nulls(required_object(event, "content_block"))
                kind = _KINDS.get(str(block.get("type")), "respond")
                self.open_blocks[number_in(event, "index")] = StreamedBlock(kind, block, block.get("name"))
            case "content_block_delta":
                self._delta(number_in(event, "index"), required_object(event, "delta"))
            case "content_block_stop":
                return self._close(number_in(event, "index"))
            case "message_delta":
                self.stop = text_in(sub(event, "delta"), "stop_reason") or self.stop
                used = {**sub(self.reported, "usage"), **without_nulls(sub(event, "usage"))}
                self.reported = {"usage": used, "model": self.model} if used else {}
            case "message_stop":
                self.stopped = True
                return self._end()
            case "error":
                raise error_in_reply(event)
            case "ping":
                pass
            case _:
                self.unknown += 1
        return []

    def _start(self, message: JsonObject) -> list[Entry]:
        """A message that goes on behind a call of running code may begin with blocks, and even be whole."""
        self.id, self.model = text_in(message, "id"), text_in(message, "model") or self.model
        self.reported = {"usage": sub(message, "usage"), "model": self.model} if message.get("usage") else {}
        self.stop = text_in(message, "stop_reason") or self.stop
        begun = [assistant_entry(without_nulls(block)) for block in objects(message, "content")]
        return self._add(begun) if begun else []

    def _delta(self, index: int, delta: JsonObject) -> None:
        block, kind = self._open_block(index, "a delta"), text_in(delta, "type")
        if kind == "citations_delta":
            block.start["citations"] = [*optional_list(block.start, "citations"), delta.get("citation")]
        elif kind in _DELTAS:
            field, target, entry_kind = _DELTAS[kind]
            self._grow(index, target, text_in(delta, field), entry_kind)
        else:
            self.unknown += 1

    def _entry(self, block: StreamedBlock) -> Entry:
        whole = dict(block.start)
        for field in block.pieces:
            text = block.text(field)
            if field == "input":
                whole[field] = json.loads(text) if text else whole.get(field) or {}
            else:
                whole[field] = text_in(whole, field) + text
        return assistant_entry(whole)

    def reply(self) -> Reply:
        if not self.stopped:
            raise cut(self.ending)
        return super().reply()


# Where a request keeps what is cached.


def _head(body: JsonObject) -> Iterator[Unit]:
    yield from tool_units(body, markable=True)
    parts = tuple(parts_of(body.get("system"), "system"))
    yield Unit((), "system", "system", body.get("system"), parts, tuple(bare(part.value) for part in parts))


def _message(message: Json, index: int) -> Unit:
    parts = parts_of(message.get("content"), "content")
    if message.get("role") == "system" and message.get("clear_at"):
        parts = [part._replace(markable=False) for part in parts]
    compared: Json = message
    if isinstance(message.get("content"), list):
        compared = {**message, "content": [*map(without_marks, message["content"])]}
    path = ("messages", index)
    return Unit(path, "messages", str(message.get("role", "")), message, tuple(parts), (compared,))


WIRE = Wire(
    name=FORMAT,
    imports=partial(read_messages, format=FORMAT, head=_head_entries, read=_entries),
    exports=partial(exported_request, writer=WRITER, original=whole_message(_entries)),
    writer=WRITER,
    layout=Layout(_head, "messages", _message),
    reader=MessageReader,
    mark=with_control,
    diagnosed=lambda body, previous_id: {
        **body,
        "diagnostics": body.get("diagnostics", {"previous_message_id": previous_id}),
    },
    rules=ANTHROPIC_RULES,
    late_tools=True,
    call=ModelCall(
        sdk="anthropic",
        method="messages.create",
        streaming={"stream": True},
        path=lambda request, streamed: "/messages",
        key_header="x-api-key",
        headers={"anthropic-version": "2023-06-01"},
    ),
)
