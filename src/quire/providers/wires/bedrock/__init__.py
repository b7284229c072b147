"""Amazon Bedrock's Converse API: replies and imported messages into entries, entries back verbatim, and the wire itself."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from quire.errors import FormatError
from quire.providers.incoming import (
    ReplyReader,
    bytes_of,
    not_a_reply,
    number_in,
    object_in,
    objects,
    paragraphs,
    plain,
    read_messages,
    refused,
    sub,
    text_in,
)
from quire.providers.outgoing import exported_request, whole_message
from quire.providers.prefix import Layout, Path, Section, Unit, as_list, changed_body, parts_of
from quire.providers.provider_tools import Offered, function, offered
from quire.providers.rules.bedrock import RULES
from quire.providers.wires import ModelCall, Wire
from quire.providers.wires.bedrock.write import (
    CONTENT,
    FORMAT,
    NATIVE,
    WRITER,
    assistant_entry,
    result_entry,
    sdk_kwargs,
    text_block,
    tool_entry,
)
from quire.values import Entry, Json, JsonObject, Reply, respond, system


def _import_messages(value: Any, model: str = "") -> list[Entry]:
    return read_messages(plain(value), model, format=FORMAT, head=_head_entries, read=_entries, model_field="modelId")


def _head_entries(request: JsonObject, model: str) -> list[Entry]:
    out = []
    if defined := objects(sub(request, "toolConfig"), "tools"):
        out.append(offered(map(_offer, _unpointed(defined)), format=FORMAT, tools=defined))
    if request.get("system") is not None:
        blocks = objects(request, "system")
        out.append(system(paragraphs(blocks, CONTENT.text_of), wire={"format": FORMAT, "system": blocks}))
    return out


def _offer(tool: JsonObject) -> Offered:
    """A function, or a tool of Amazon's own: {"systemTool": {"name": "nova_grounding"}}."""
    if "toolSpec" in tool:
        return function(tool, NATIVE)
    return Offered(tool_entry(sub(tool, "systemTool") or {"name": next(iter(tool), "")}), tool)


def _entries(message: Json, where: str = "message") -> list[Entry]:
    role = message.get("role") if isinstance(message, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise FormatError(f"{where}: no list of content blocks", hint="Converse's content is a list of objects.")
    match role:
        case "user":
            results = [result_entry(block) for block in content if "toolResult" in block]
            return CONTENT.entries(results, [block for block in _unpointed(content) if "toolResult" not in block])
        case "assistant":
            return [assistant_entry(block) for block in _unpointed(content)] or [respond("")]
        case "system":
            return [system(CONTENT.text_of(content))]
    raise FormatError(f"{where}: unknown role {role!r}", hint="Roles are user, assistant and system.")


# A streamed Converse reply: a block is an entry when its contentBlockStop has come, and not before.


class _Block:
    """The pieces of one block: text, a call's input, or reasoning with its signature."""

    def __init__(self) -> None:
        self.start: JsonObject = {}
        self.text: list[str] = []
        self.input: list[str] = []
        self.thought: list[str] = []
        self.signature: list[str] = []
        self.redacted: list[str] = []
        self.citations: list[JsonObject] = []
        self.results: list[JsonObject] = []

    def json(self) -> JsonObject | None:
        """The whole block, or None where its input is cut."""
        if sub(self.start, "toolUse"):
            try:
                arguments = json.loads("".join(self.input) or "{}")
            except ValueError:
                return None
            return {"toolUse": {**sub(self.start, "toolUse"), "input": arguments}}
        if result := sub(self.start, "toolResult"):
            return {"toolResult": {**result, "content": self.results}}
        if self.redacted:
            redacted = b"".join(bytes_of(piece) for piece in self.redacted)
            return {"reasoningContent": {"redactedContent": base64.b64encode(redacted).decode()}}
        if self.thought or self.signature:
            signature = {"signature": "".join(self.signature)} if self.signature else {}
            return {"reasoningContent": {"reasoningText": {"text": "".join(self.thought), **signature}}}
        text = "".join(self.text)
        if self.citations:
            return {"citationsContent": {"content": [{"text": text}], "citations": self.citations}}
        return {"text": text} if not self.start else self.start

    def unfinished(self) -> JsonObject:
        if use := sub(self.start, "toolUse"):
            return {"kind": "call", "name": use.get("name", ""), "text": "".join(self.input)}
        if self.thought:
            return {"kind": "think", "text": "".join(self.thought)}
        return {"kind": "respond", "text": "".join(self.text)}


class ConverseReader(ReplyReader):
    """Gathers events; the usage comes last, and not at all when the stream is cut."""

    format = FORMAT
    named = "a Converse response"
    ending = "messageStop"

    def __init__(self, provider: str, model: str, names: Iterable[str]) -> None:
        super().__init__(provider, model, names)
        self.open: dict[int, _Block] = {}

    def _read(self, reply: JsonObject) -> Reply:
        message = sub(reply, "output").get("message")
        if not isinstance(message, dict) or not isinstance(message.get("content"), list):
            raise not_a_reply("a Converse response without a message")
        entries, reply_id = map(assistant_entry, message["content"]), sub(reply, "ResponseMetadata").get("RequestId")
        return self._whole_reply(reply, entries, reply.get("stopReason"), reply_id)

    def feed(self, event: Any) -> list[Entry]:
        event = object_in(event, "a stream event")
        kind = next(iter(event), "")
        fields = sub(event, kind)
        match kind:
            case "messageStart":
                pass
            case "contentBlockStart":
                start = sub(fields, "start")
                block = self.open.setdefault(number_in(fields, "contentBlockIndex"), _Block())
                block.start = {"toolUse": use} if (use := sub(start, "toolUse")) else start
            case "contentBlockDelta":
                block = self.open.setdefault(number_in(fields, "contentBlockIndex"), _Block())
                self._delta(number_in(fields, "contentBlockIndex"), block, sub(fields, "delta"))
            case "contentBlockStop":
                return self._close(number_in(fields, "contentBlockIndex"))
            case "messageStop":
                self.stop = text_in(fields, "stopReason")
                return [] if self.entries or self.open else self._add([respond("")])
            case "metadata":
                self.reported = fields if sub(fields, "usage") else {}
            case _ if kind.endswith("Exception"):
                raise refused({"type": kind, "message": fields.get("message")})
            case _:
                self.tally.unknown += 1
        return []

    def _delta(self, place: int, block: _Block, delta: JsonObject) -> None:
        thought = sub(delta, "reasoningContent")
        call = sub(delta, "toolUse")
        for pieces, holder, field, entry_kind in (
            (block.text, delta, "text", "respond"),
            (block.input, call, "input", "call"),
            (block.thought, thought, "text", "think"),
            (block.signature, thought, "signature", ""),
            (block.redacted, thought, "redactedContent", ""),
        ):
            if field in holder:
                text = text_in(holder, field)
                pieces.append(self.tally.show(place, entry_kind, text) if entry_kind else self.tally.add(text))
        if "citation" in delta:
            block.citations.append(delta["citation"])
        block.results += objects(delta, "toolResult")
        if picture := sub(delta, "image"):
            block.start = {"image": {**sub(block.start, "image"), **picture}}
        if not {"text", "toolUse", "toolResult", "reasoningContent", "citation", "image"} & set(delta):
            self.tally.unknown += 1

    def _close(self, index: int) -> list[Entry]:
        if index not in self.open:
            raise FormatError(f"the end of block {index}, which never began", hint="stream.partial() has the rest.")
        block = self.open[index].json()
        if block is None:
            return []  # ended in the middle of its input: the reply's length ran out
        del self.open[index]
        return self._add([assistant_entry(block)])

    def unfinished(self) -> Iterator[JsonObject]:
        return (self.open[index].unfinished() for index in sorted(self.open))


def other_format(body: JsonObject) -> str:
    """Bedrock takes Anthropic's own format too: `anthropic_version`, or blocks with a `type`."""
    contents = (message.get("content") for message in as_list(body.get("messages")) if isinstance(message, dict))
    # The first message that says something tells.
    first = next((content for content in contents if content), None)
    typed = any(isinstance(block, dict) and isinstance(block.get("type"), str) for block in as_list(first))
    return "anthropic" if "anthropic_version" in body or typed or isinstance(first, str) else ""


# Where a request keeps what is cached; bytes, which boto3 takes, are base64 as on the wire.


def _head(body: JsonObject) -> Iterator[Unit]:
    config = body.get("toolConfig")
    tools = config.get("tools") if isinstance(config, dict) else None
    yield _listed_unit(("toolConfig", "tools"), "tools", "tool", tools)
    yield _listed_unit(("system",), "system", "system", body.get("system"))


def _listed_unit(path: Path, section: Section, role: str, blocks: Json) -> Unit:
    parts = tuple(parts_of(_without_bytes(blocks), *path))
    return Unit((), section, role, blocks, parts, tuple(_unpointed(part.value for part in parts)))


def _message(message: Json, index: int) -> Unit:
    content = _without_bytes(message.get("content") or [])
    compared = {**message, "content": _unpointed(as_list(content))}
    parts = tuple(parts_of(content, "content"))
    return Unit(("messages", index), "messages", str(message.get("role", "")), message, parts, (compared,))


def _unpointed(blocks: Iterable[JsonObject]) -> list[JsonObject]:
    return [block for block in blocks if not isinstance(block, dict) or "cachePoint" not in block]


def _without_bytes(value: Json) -> Json:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: _without_bytes(inner) for key, inner in value.items()}
    return [_without_bytes(inner) for inner in value] if isinstance(value, list | tuple) else value


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
    rules=RULES,
    call=ModelCall(sdk="boto3", method="converse", stream_method="converse_stream", sdk_kwargs=sdk_kwargs),
    other=other_format,
)
