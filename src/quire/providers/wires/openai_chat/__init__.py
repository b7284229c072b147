"""OpenAI Chat Completions, and the many servers that speak it with small differences."""

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
    unmarked_in,
    with_control,
)
from quire.providers.rules.openai import CHAT_RULES
from quire.providers.usage import chat_usage
from quire.providers.wires import ModelCall, Wire
from quire.providers.wires.openai_chat.read import Stream, export_messages, import_messages, parse_reply
from quire.providers.wires.openai_chat.write import FORMAT, WRITER
from quire.values import Json, JsonObject, Request


def _other(body: JsonObject) -> str:
    """Whoever says "openai" may mean either format."""
    return "openai-responses" if "input" in body and "messages" not in body else ""


# Where a request keeps what is cached.


def _head(body: JsonObject) -> Iterator[Unit]:
    for index, tool in enumerate(listed(body.get("tools"))):
        yield definition(("tools", index), as_block(tool))
    if body.get("response_format"):
        yield schema(("response_format",), body["response_format"])


def _message(message: Json, index: int) -> Unit:
    role, thought, said = (
        str(message.get("role", "")),
        message.get("reasoning_content"),
        message.get("refusal"),
    )
    parts = [UnitPart(("reasoning_content",), {"type": "thinking", "thinking": thought})] if thought else []
    parts += parts_of(message.get("content"), "content")
    # A refusal is the text of a message that has none; calls follow whatever was said.
    parts += [UnitPart(("refusal",), {"type": "text", "text": said})] if said else []
    calls = listed(message.get("tool_calls"))
    parts += [UnitPart(("tool_calls", at), as_block(call)) for at, call in enumerate(calls)]
    parts = parts or [UnitPart(("content",), {"type": "text", "text": ""})]
    if role == "tool":
        parts = [part._replace(also={"tool_call_id": message.get("tool_call_id")}) for part in parts]
    section: Section = "system" if role in ("system", "developer") else "messages"
    compared = unmarked_in(message, "content")
    return Unit(("messages", index), section, role, message, tuple(parts), (compared,))


def _path(request: Request, streamed: bool) -> str:
    """A request with a prompt is one text, for an engine to continue."""
    return "/completions" if "prompt" in request.body else "/chat/completions"


_CALL = ModelCall(
    sdk="openai",
    method="chat.completions.create",
    streaming={"stream": True, "stream_options": {"include_usage": True}},
    ends_in_done=True,
    path=_path,
    version_in_url=True,
    key_prefix="Bearer ",
)

WIRE = Wire(
    name=FORMAT,
    imports=import_messages,
    exports=export_messages,
    writer=WRITER,
    layout=Layout(_head, "messages", _message, lambda body: listed(body.get("messages"))),
    read=parse_reply,
    stream=Stream,
    usage=chat_usage,
    mark=with_control,
    thinking=lambda info: info.features.reasoning_content != "never",
    rules=CHAT_RULES,
    call=_CALL,
    other=_other,
)
