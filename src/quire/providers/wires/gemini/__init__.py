"""Gemini's generateContent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from quire.providers.prefix import Layout, Unit, UnitPart, as_block, definition, listed
from quire.providers.rules.gemini import RULES, setting
from quire.providers.usage import gemini_usage
from quire.providers.wires import ModelCall, Wire
from quire.providers.wires.gemini.read import Stream, export_messages, import_messages, parse_reply
from quire.providers.wires.gemini.write import FORMAT, WRITER, sdk_kwargs
from quire.values import Json, JsonObject, Request

# Where a request keeps what is cached: the REST body, or the SDK's call with settings under `config`.


def _head(body: JsonObject) -> Iterator[Unit]:
    if cached := setting(body, "cachedContent")[1]:
        yield Unit(("cachedContent",), "tools", "tool", cached, (), ({"cachedContent": cached},))
    for index, tool in enumerate(listed(setting(body, "tools")[1])):
        yield replace(definition(("tools", index), as_block(tool)), compared=tuple(_declared(as_block(tool))))
    told = setting(body, "systemInstruction")[1]
    given = (
        told.get("parts") if isinstance(told, dict) else [{"text": told}] if isinstance(told, str) else told
    )
    parts = tuple(
        UnitPart(("systemInstruction", "parts", at), as_block(each)) for at, each in enumerate(listed(given))
    )
    yield Unit((), "system", "system", told, parts, tuple(part.value for part in parts))


def _declared(tool: JsonObject) -> Iterator[Json]:
    """Each function by itself, and what else a tool holds."""
    yield from listed(tool.get("functionDeclarations"))
    if rest := {key: value for key, value in tool.items() if key != "functionDeclarations"}:
        yield rest


def _contents(body: JsonObject) -> Sequence[Json]:
    given = setting(body, "contents")[1]
    return [given] if isinstance(given, str | dict) else listed(given)


def _content(content: Json, index: int) -> Unit:
    """A content; the SDK also takes a text, or a part alone, which are the user's."""
    if isinstance(content, dict) and "parts" in content:
        given = enumerate(listed(content["parts"]))
        parts = tuple(UnitPart(("parts", at), part) for at, part in given if isinstance(part, dict))
    else:
        parts = (UnitPart((), content if isinstance(content, dict) else {"text": str(content)}),)
    role = content.get("role") if isinstance(content, dict) else ""
    who = role if role and isinstance(role, str) else "user"
    return Unit(("contents", index), "messages", who, content, parts, (content,))


def _path(request: Request, streamed: bool) -> str:
    method = "streamGenerateContent?alt=sse" if streamed else "generateContent"
    return f"/models/{request.model.removeprefix('models/')}:{method}"


_CALL = ModelCall(
    sdk="google.genai",
    method="aio.models.generate_content",
    stream_method="aio.models.generate_content_stream",
    sdk_kwargs=sdk_kwargs,
    path=_path,
    version="v1beta",
    key_header="x-goog-api-key",
    makes_caches=True,
)

WIRE = Wire(
    name=FORMAT,
    imports=import_messages,
    exports=export_messages,
    writer=WRITER,
    layout=Layout(_head, "contents", _content, _contents),
    read=parse_reply,
    stream=Stream,
    usage=gemini_usage,
    rules=RULES,
    call=_CALL,
)
