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
from quire.providers.rules.check import Check, Finding, Sequel, TurnMessage, WireRules
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


def _body(check: Check) -> Iterator[Finding]:
    yield from misfits(check.body, "@body", "$", grammar_of(FORMAT))


def _typed(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    yield from misfits(turn.value, "@message", turn.path, grammar_of(FORMAT))


class _Answers(Sequel):
    """Calls are answered by the tool messages right behind them, and by nothing else."""

    def __init__(self) -> None:
        self._waiting: dict[str, str] = {}

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        if turn.role == "tool":
            if self._waiting.pop(text(turn.raw.get("tool_call_id")), None) is None:
                yield shape(turn.path, "a tool message answers no call before it", "Send it behind its call.")
            return
        yield from self.end(check)
        calls = objects(turn.raw.get("tool_calls"), f"{turn.path}.tool_calls")
        self._waiting = {text(call.get("id")): place for place, call in calls}

    def end(self, check: Check) -> Iterator[Finding]:
        for id, path in self._waiting.items():
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
    rules=WireRules(body=_body, message=_typed, along=(_Answers,)),
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
