"""Cohere's Chat API v2."""

from __future__ import annotations

from collections.abc import Iterator

from quire.providers.prefix import (
    Layout,
    Section,
    Unit,
    UnitPart,
    as_block,
    definition,
    listed,
    parts_of,
    schema,
)
from quire.providers.rules.check import Check, Finding, WireRules
from quire.providers.rules.grammar import grammar_of, misfits, objects, shape, text
from quire.providers.wires import ModelCall, Wire
from quire.providers.wires.cohere.read import Stream, export_messages, import_messages, parse_reply, usage_of
from quire.providers.wires.cohere.write import FORMAT, WRITER
from quire.values import Json, JsonObject


def _head(body: JsonObject) -> Iterator[Unit]:
    for index, tool in enumerate(listed(body.get("tools"))):
        yield definition(("tools", index), as_block(tool))
    if body.get("response_format"):
        yield schema(("response_format",), body["response_format"])


def _message(message: Json, index: int) -> Unit:
    role = str(message.get("role", ""))
    parts = [part._replace(markable=False) for part in parts_of(message.get("content"), "content")]
    if plan := message.get("tool_plan"):
        parts.append(UnitPart(("tool_plan",), {"type": "thinking", "thinking": plan}))
    calls = listed(message.get("tool_calls"))
    parts += [UnitPart(("tool_calls", at), as_block(call)) for at, call in enumerate(calls)]
    if role == "tool":
        parts = [part._replace(also={"tool_call_id": message.get("tool_call_id")}) for part in parts]
    section: Section = "system" if role == "system" else "messages"
    return Unit(("messages", index), section, role, message, tuple(parts), (message,))


def _shape(check: Check) -> Iterator[Finding]:
    yield from misfits(check.body, "@body", "$", grammar_of(FORMAT))


def _rules(check: Check, encoded: bytes) -> Iterator[Finding]:
    yield from _shape(check)
    yield from _pairs(check)


def _pairs(check: Check) -> Iterator[Finding]:
    """Calls are answered by the tool messages right behind them, and by nothing else."""
    waiting: dict[str, str] = {}
    for path, message in objects(check.body.get("messages"), "$.messages"):
        if message.get("role") == "tool":
            if waiting.pop(text(message.get("tool_call_id")), None) is None:
                yield shape(path, "a tool message answers no call before it", "Send it behind its call.")
            continue
        yield from _unanswered(waiting)
        calls = objects(message.get("tool_calls"), f"{path}.tool_calls")
        waiting = {text(call.get("id")): place for place, call in calls}
    yield from _unanswered(waiting)


def _unanswered(waiting: dict[str, str]) -> Iterator[Finding]:
    for id, path in waiting.items():
        yield shape(path, f"the call {id!r} has no tool message behind it", "Answer every call.")


WIRE = Wire(
    name=FORMAT,
    imports=import_messages,
    exports=export_messages,
    writer=WRITER,
    layout=Layout(_head, "messages", _message, lambda body: listed(body.get("messages"))),
    read=parse_reply,
    stream=Stream,
    usage=usage_of,
    rules=WireRules(check=_rules, shape=_shape),
    call=ModelCall(
        sdk="cohere",
        method="chat",
        stream_method="chat_stream",
        streaming={"stream": True},
        path=lambda request, streamed: "/chat",
        version="v2",
        version_in_url=True,
        key_prefix="Bearer ",
    ),
)
