"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from quire.providers.prefix import (
    Layout,
    Unit,
    as_block,
    bare,
    definition,
    listed,
    parts_of,
    unmarked_in,
    with_control,
)
from quire.providers.rules.claude import RULES
from quire.providers.usage import anthropic_usage
from quire.providers.wires import ModelCall, Wire
from quire.providers.wires.anthropic.read import Stream, export_messages, import_messages, parse_reply
from quire.providers.wires.anthropic.write import FORMAT, WRITER
from quire.values import Json, JsonObject

# Where a request keeps what is cached.


def _head(body: JsonObject) -> Iterator[Unit]:
    for index, tool in enumerate(listed(body.get("tools"))):
        unit = definition(
            ("tools", index), as_block(tool), str(as_block(tool).get("type") or "tool"), markable=True
        )
        # A deferred tool is not in the prompt until the conversation refers to it.
        yield replace(unit, parts=()) if as_block(tool).get("defer_loading") else unit
    parts = tuple(parts_of(body.get("system"), "system"))
    yield Unit((), "system", "system", body.get("system"), parts, tuple(bare(part.value) for part in parts))


def _message(message: Json, index: int) -> Unit:
    parts = parts_of(message.get("content"), "content")
    if message.get("role") == "system" and message.get("clear_at"):
        parts = [part._replace(markable=False) for part in parts]
    compared: Json = message
    if isinstance(message.get("content"), list):
        compared = {
            **message,
            "content": [unmarked_in(bare(block), "content") for block in message["content"]],
        }
    path = ("messages", index)
    return Unit(path, "messages", str(message.get("role", "")), message, tuple(parts), (compared,))


def _diagnosed(body: JsonObject, previous_id: str | None) -> JsonObject:
    return body if "diagnostics" in body else {**body, "diagnostics": {"previous_message_id": previous_id}}


_CALL = ModelCall(
    sdk="anthropic",
    method="messages.create",
    streaming={"stream": True},
    path=lambda request, streamed: "/messages",
    key_header="x-api-key",
    headers={"anthropic-version": "2023-06-01"},
)

WIRE = Wire(
    name=FORMAT,
    imports=import_messages,
    exports=export_messages,
    writer=WRITER,
    layout=Layout(_head, "messages", _message, lambda body: listed(body.get("messages"))),
    read=parse_reply,
    stream=Stream,
    usage=anthropic_usage,
    mark=with_control,
    diagnosed=_diagnosed,
    rules=RULES,
    call=_CALL,
)
