"""Amazon Bedrock's Converse API."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

from quire.providers.prefix import Layout, Path, Section, Unit, changed_body, listed, parts_of
from quire.providers.rules.bedrock import RULES
from quire.providers.usage import bedrock_usage
from quire.providers.wires import ModelCall, Wire
from quire.providers.wires.bedrock.read import Stream, export_messages, import_messages, parse_reply
from quire.providers.wires.bedrock.write import FORMAT, WRITER, sdk_kwargs
from quire.values import Json, JsonObject


def other_format(body: JsonObject) -> str:
    """Bedrock takes Anthropic's own format too: `anthropic_version`, or blocks with a `type`."""
    said = (each.get("content") for each in listed(body.get("messages")) if isinstance(each, dict))
    # The first message that says something tells.
    first = next((content for content in said if content), None)
    typed = any(isinstance(block, dict) and isinstance(block.get("type"), str) for block in listed(first))
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
    compared = {**message, "content": _unpointed(listed(content))}
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
    return changed_body(
        body, tuple(outer), lambda blocks: [*blocks[:behind], {"cachePoint": point}, *blocks[behind:]]
    )


_CALL = ModelCall(sdk="boto3", method="converse", stream_method="converse_stream", sdk_kwargs=sdk_kwargs)

WIRE = Wire(
    name=FORMAT,
    imports=import_messages,
    exports=export_messages,
    writer=WRITER,
    layout=Layout(_head, "messages", _message, lambda body: listed(body.get("messages"))),
    read=parse_reply,
    stream=Stream,
    usage=bedrock_usage,
    mark=_with_point,
    rules=RULES,
    call=_CALL,
    other=other_format,
)
