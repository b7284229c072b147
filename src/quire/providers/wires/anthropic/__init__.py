"""Anthropic's Messages API: replies and imported messages into entries, entries back verbatim, and the wire itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from quire.errors import FormatError
from quire.providers.incoming import (
    ReplyReader,
    cut,
    listed,
    not_a_reply,
    number_in,
    object_in,
    objects,
    paragraphs,
    read_messages,
    refused,
    sub,
    text_in,
    without_nulls,
)
from quire.providers.outgoing import exported_request, whole_message
from quire.providers.prefix import Layout, Unit, bare, parts_of, tool_units, unmarked_in, with_control
from quire.providers.provider_tools import offered, tools_in, typed
from quire.providers.rules.claude import RULES
from quire.providers.usage import usage
from quire.providers.wires import ModelCall, Wire
from quire.providers.wires.anthropic.write import CONTENT, FORMAT, NATIVE, WRITER, assistant_entry, result_entry
from quire.values import Entry, Json, JsonObject, Reply, Usage, note, respond, system


def _head_entries(request: JsonObject, model: str) -> list[Entry]:
    out = tools_in(request, model, NATIVE)
    if (prompt := request.get("system")) is not None:
        text = prompt if isinstance(prompt, str) else paragraphs(objects(request, "system"), CONTENT.text_of)
        out.append(system(text, wire={"format": FORMAT, "system": prompt}))
    return out


def _entries(message: Json, where: str = "message") -> list[Entry]:
    role = message.get("role") if isinstance(message, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    blocks = objects(message, "content") if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    match role:
        case "user":
            results = [result_entry(block) for block in blocks if block.get("type") == "tool_result"]
            return CONTENT.entries(results, [block for block in blocks if block.get("type") != "tool_result"])
        case "assistant":
            return [assistant_entry(block) for block in blocks] or [respond("")]
        case "system":
            return _system(message, blocks)
    raise FormatError(f"{where}: unknown role {role!r}", hint="Roles are user, assistant and system.")


def _system(message: JsonObject, blocks: list[JsonObject]) -> list[Entry]:
    effort = sub(message, "output_config").get("effort")
    added = [sub(tool, "definition") for block in blocks if "definition" in (tool := sub(block, "tool"))]
    text = CONTENT.text_of([block for block in blocks if block.get("type") == "text"])
    wire = {"effort": effort} if effort else {}
    named = [block for block in blocks if block.get("type") in ("tool_addition", "tool_removal")]
    if len(named) > len(added):
        # It names tools of the list in front, which no entry can hold.
        return [note(text, wire={**wire, "blocks": blocks})]
    out = [system(text, wire=wire or None)] if text or effort or not added else []
    return out + ([offered(typed(added, NATIVE))] if added else [])


# A streamed message: a block is an entry when its content_block_stop has come, and not before.

# delta type -> (its field, the block's field it continues, what it is for whoever watches)
_DELTAS = {
    "text_delta": ("text", "text", "respond"),
    "thinking_delta": ("thinking", "thinking", "think"),
    "signature_delta": ("signature", "signature", ""),
    "input_json_delta": ("partial_json", "input", "call"),
    "compaction_delta": ("content", "content", ""),
}


class MessageReader(ReplyReader):
    """Gathers events. A thinking block without its signature, or half a tool_use, is never an entry."""

    format = FORMAT
    named = "a message"
    ending = "message_stop"

    def __init__(self, provider: str, model: str, names: Iterable[str]) -> None:
        super().__init__(provider, model, names)
        self.open: dict[int, JsonObject] = {}
        self.pieces: dict[int, dict[str, list[str]]] = {}
        self.stopped = False

    def _read(self, reply: JsonObject) -> Reply:
        if not isinstance(content := reply.get("content"), list):
            raise not_a_reply("a message without content")
        self.model = str(reply.get("model") or self.model)
        entries = [assistant_entry(without_nulls(object_in(block, "a content block"))) for block in content]
        return self._whole_reply(reply, entries, reply.get("stop_reason"), reply.get("id"))

    def feed(self, event: Any) -> list[Entry]:
        event = object_in(event, "a stream event")
        match event.get("type"):
            case "message_start":
                return self._start(object_in(event.get("message"), "message_start's message"))
            case "content_block_start":
                block = object_in(event.get("content_block"), "a content block")
                self.open[index := number_in(event, "index")] = without_nulls(block)
                self.pieces[index] = {}
            case "content_block_delta":
                self._delta(number_in(event, "index"), object_in(event.get("delta"), "a delta"))
            case "content_block_stop":
                return self._close(number_in(event, "index"))
            case "message_delta":
                self.stop = text_in(sub(event, "delta"), "stop_reason") or self.stop
                self.reported |= without_nulls(sub(event, "usage"))
            case "message_stop":
                self.stopped = True
                return [] if self.entries or self.open else self._add([respond("")])
            case "error":
                raise refused(event.get("error"))
            case "ping":
                pass
            case _:
                self.tally.unknown += 1
        return []

    def _start(self, message: JsonObject) -> list[Entry]:
        """A message that goes on behind a call of running code may begin with blocks, and even be whole."""
        self.id, self.model = text_in(message, "id"), text_in(message, "model") or self.model
        self.reported = dict(sub(message, "usage"))
        self.stop = text_in(message, "stop_reason") or self.stop
        begun = [assistant_entry(without_nulls(block)) for block in objects(message, "content")]
        return self._add(begun) if begun else []

    def _delta(self, index: int, delta: JsonObject) -> None:
        if index not in self.open:
            raise FormatError(f"a delta of block {index}, which never began", hint="stream.partial() has the rest.")
        kind = text_in(delta, "type")
        if kind == "citations_delta":
            self.open[index]["citations"] = [*listed(self.open[index], "citations"), delta.get("citation")]
        elif kind in _DELTAS:
            field, target, entry_kind = _DELTAS[kind]
            text = text_in(delta, field)
            self.pieces[index].setdefault(target, []).append(
                self.tally.show(index, entry_kind, text) if entry_kind else self.tally.add(text)
            )
        else:
            self.tally.unknown += 1

    def _close(self, index: int) -> list[Entry]:
        if index not in self.open:
            raise FormatError(f"the end of block {index}, which never began", hint="stream.partial() has the rest.")
        block = self._whole(index)
        if block is None:
            return []  # ended in the middle of its input: the reply's length ran out
        del self.open[index], self.pieces[index]
        return self._add([assistant_entry(block)])

    def _whole(self, index: int) -> JsonObject | None:
        block = dict(self.open[index])
        for field, pieces in self.pieces[index].items():
            text = "".join(pieces)
            if field != "input":
                block[field] = text_in(block, field) + text
                continue
            try:
                block["input"] = json.loads(text) if text else block.get("input") or {}
            except ValueError:
                return None
        return block

    @property
    def usage(self) -> Usage:
        whole = {"usage": self.reported, "model": self.model}
        return usage(self.provider, whole) if self.reported else Usage()

    def unfinished(self) -> Iterator[JsonObject]:
        return (_unfinished(self.open[index], self.pieces[index]) for index in sorted(self.open))

    def reply(self) -> Reply:
        if not self.stopped:
            raise cut(self.ending)
        return super().reply()


def _unfinished(block: JsonObject, pieces: dict[str, list[str]]) -> JsonObject:
    kinds = {"thinking": "think", "redacted_thinking": "think", "tool_use": "call"}
    text = "".join(pieces.get("text") or pieces.get("thinking") or pieces.get("input") or [])
    name = {"name": block["name"]} if "name" in block else {}
    return {"kind": kinds.get(str(block.get("type")), "respond"), **name, "text": text}


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
        compared = {**message, "content": [unmarked_in(bare(block), "content") for block in message["content"]]}
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
    rules=RULES,
    call=ModelCall(
        sdk="anthropic",
        method="messages.create",
        streaming={"stream": True},
        path=lambda request, streamed: "/messages",
        key_header="x-api-key",
        headers={"anthropic-version": "2023-06-01"},
    ),
)
