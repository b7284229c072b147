"""Converse's messages into entries, and back verbatim; a reply is one more message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.errors import FormatError
from quire.providers.bedrock.blocks import ENCLOSURE, FORMAT, NAMES, answered, spoken, text_of
from quire.providers.bedrock.write import WRITER, tool_spec
from quire.providers.hosted import offered
from quire.providers.images import image_json
from quire.providers.incoming import object_in, objects, plain, sub
from quire.providers.models import model_info
from quire.providers.origin import identified, said, tagged, whole_message
from quire.providers.outgoing import exported
from quire.providers.spelling import read_back
from quire.providers.usage import usage
from quire.values import Entry, Image, Json, JsonObject, Reply, respond, system, user


def import_messages(value: Any, model: str = "") -> list[Entry]:
    """Entries of a list of messages, or of a request that holds one (with its system prompt and tools)."""
    value = plain(value)
    out: list[Entry] = []
    if isinstance(value, dict):
        model = model or str(value.get("modelId") or "")
        out += _head(value)
        value = value.get("messages")
    if not isinstance(value, list):
        raise FormatError("no list of messages", hint='Give a list, or {"messages": [...]}.')
    for place, message in enumerate(value):
        out += tagged(_entries(message, f"messages[{place}]"), FORMAT, message, model)
    return out


def _head(request: JsonObject) -> list[Entry]:
    out = []
    if defined := objects(sub(request, "toolConfig"), "tools"):
        out.append(offered(map(_offer, _unpointed(defined)), format=FORMAT, tools=defined))
    if told := objects(request, "system"):
        out.append(system(text_of(told), wire={"format": FORMAT, "system": told}))
    return out


def _unpointed(defined: list[JsonObject]) -> list[JsonObject]:
    return [tool for tool in defined if "cachePoint" not in tool]


def _offer(tool: JsonObject) -> tuple[JsonObject, JsonObject | None]:
    """A function, or a tool of Amazon's own: {"systemTool": {"name": "nova_grounding"}}."""
    if "toolSpec" in tool:
        return tool_entry(sub(tool, "toolSpec")), None
    return tool_entry(sub(tool, "systemTool") or {"name": next(iter(tool), "")}), tool


def export_messages(entries: Iterable[Entry]) -> Json:
    """The messages; with a system prompt or tools, the object a request holds them in."""
    out = exported(entries, WRITER, whole_message(_entries), model_info(f"{FORMAT}:"))
    head: JsonObject = {}
    if defined := out.listed_tools(FORMAT, tool_spec):
        head["toolConfig"] = {"tools": defined}
    if out.system:
        head["system"] = out.system_as(FORMAT, [{"text": out.system.text}])
    return {**head, "messages": out.messages} if head else out.messages


def parse_reply(value: Any, provider: str = FORMAT, model: str = "", names: Iterable[str] = ()) -> Reply:
    """Entries and usage of a Converse response; it does not say its model, so the caller may."""
    reply = object_in(value, "a Converse response")
    message = sub(reply, "output").get("message")
    if not isinstance(message, dict) or not isinstance(message.get("content"), list):
        raise FormatError(
            "a Converse response without a message", hint="A streamed event goes into Stream.feed."
        )
    blocks = [spoken(block) for block in message["content"]]
    return Reply(
        entries=tuple(
            said(identified(blocks) if blocks else [respond("")], FORMAT, model, read_back(names, NAMES))
        ),
        usage=usage(provider, reply),
        stop=str(reply.get("stopReason") or ""),
        id=str(sub(reply, "ResponseMetadata").get("RequestId") or ""),
        model=model,
    )


def tool_entry(spec: JsonObject) -> JsonObject:
    """A toolSpec as entries define a tool."""
    return {
        "name": str(spec.get("name") or ""),
        "description": str(spec.get("description") or ""),
        "parameters": sub(sub(spec, "inputSchema"), "json") or {"type": "object", "properties": {}},
    }


def _entries(message: Json, where: str = "message") -> list[Entry]:
    role = message.get("role") if isinstance(message, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise FormatError(
            f"{where}: no list of content blocks", hint="Converse's content is a list of objects."
        )
    match role:
        case "user":
            return _user(content)
        case "assistant":
            return [spoken(block) for block in content if "cachePoint" not in block] or [respond("")]
        case "system":
            return [system(text_of(content))]
    raise FormatError(f"{where}: unknown role {role!r}", hint="Roles are user, assistant and system.")


def _user(content: list[JsonObject]) -> list[Entry]:
    results = [answered(block) for block in content if "toolResult" in block]
    rest = [block for block in content if "toolResult" not in block and "cachePoint" not in block]
    images = [image_json(_image(sub(block, "image"))) for block in rest if "image" in block]
    wire = ENCLOSURE.origin(rest, first=not results)
    said = user(text_of(rest), images=images or None, wire=wire)
    return results if results and not rest else [*results, said]


def _image(given: JsonObject) -> Image:
    source, media = sub(given, "source"), f"image/{given.get('format') or 'png'}"
    if "bytes" in source:
        return Image(media_type=media, data=str(source["bytes"]))
    return Image(media_type=media, url=str(sub(source, "s3Location").get("uri") or ""))
