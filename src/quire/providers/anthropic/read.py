"""Anthropic's messages into entries, and back verbatim; a reply is one more message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.errors import FormatError
from quire.providers.anthropic.blocks import ENCLOSURE, FORMAT, NAMES, answered, spoken, text_of
from quire.providers.anthropic.write import WRITER, tool_definition
from quire.providers.hosted import offered, typed
from quire.providers.images import image_json
from quire.providers.incoming import object_in, objects, refused, sub, without_nulls
from quire.providers.models import model_info
from quire.providers.origin import identified, said, tagged, whole_message
from quire.providers.outgoing import exported
from quire.providers.spelling import read_back
from quire.providers.usage import usage
from quire.values import (
    Entry,
    Image,
    Json,
    JsonObject,
    Reply,
    respond,
    system,
    user,
)


def import_messages(value: Any, model: str = "") -> list[Entry]:
    """Entries of a list of messages, or of a request that holds one (with its system prompt and tools)."""
    out: list[Entry] = []
    if isinstance(value, dict):
        model = model or str(value.get("model") or "")
        if defined := objects(value, "tools"):
            out.append(offered(typed(defined, tool_entry), model, format=FORMAT, tools=defined))
        if value.get("system"):
            out.append(system(text_of(value["system"]), wire={"format": FORMAT, "system": value["system"]}))
        value = value.get("messages")
    if not isinstance(value, list):
        raise FormatError("no list of messages", hint='Give a list, or {"messages": [...]}.')
    for place, message in enumerate(value):
        out += tagged(_entries(message, f"messages[{place}]"), FORMAT, message, model)
    return out


def export_messages(entries: Iterable[Entry]) -> Json:
    """The messages; with a system prompt or tools, the object a request holds them in."""
    out = exported(entries, WRITER, whole_message(_entries), model_info(f"{FORMAT}:"))
    head: JsonObject = {}
    if defined := out.listed_tools(FORMAT, tool_definition):
        head["tools"] = defined
    if out.system:
        head["system"] = out.system_as(FORMAT, out.system.text)
    return {**head, "messages": out.messages} if head else out.messages


def parse_reply(value: Any, provider: str = FORMAT, model: str = "", names: Iterable[str] = ()) -> Reply:
    """Entries and usage of a message."""
    reply = object_in(value, "a message")
    if reply.get("type") == "error":
        raise refused(reply.get("error"))
    content = reply.get("content")
    if not isinstance(content, list):
        raise FormatError("a message without content", hint="A streamed event goes into Stream.feed.")
    model = str(reply.get("model") or model)
    blocks = [spoken(without_nulls(object_in(block, "a content block"))) for block in content]
    return Reply(
        entries=tuple(
            said(identified(blocks) if blocks else [respond("")], FORMAT, model, read_back(names, NAMES))
        ),
        usage=usage(provider, reply),
        stop=str(reply.get("stop_reason") or ""),
        id=str(reply.get("id") or ""),
        model=model,
    )


def tool_entry(tool: JsonObject) -> JsonObject:
    """A tool as entries define it; a server tool keeps its type as its description."""
    return {
        "name": str(tool.get("name") or tool.get("type") or ""),
        "description": str(tool.get("description") or tool.get("type") or ""),
        "parameters": sub(tool, "input_schema") or {"type": "object", "properties": {}},
    }


def _entries(message: Json, where: str = "message") -> list[Entry]:
    role = message.get("role") if isinstance(message, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    blocks = (
        objects(message, "content")
        if isinstance(content, list)
        else [{"type": "text", "text": content or ""}]
    )
    match role:
        case "user":
            return _user(blocks)
        case "assistant":
            return [spoken(block) for block in blocks] or [respond("")]
        case "system":
            return _system(message, blocks)
    raise FormatError(f"{where}: unknown role {role!r}", hint="Roles are user, assistant and system.")


def _user(blocks: list[JsonObject]) -> list[Entry]:
    """The results, and then what the user says, as the API orders them."""
    results = [answered(block) for block in blocks if block.get("type") == "tool_result"]
    rest = [block for block in blocks if block.get("type") != "tool_result"]
    images = [image_json(one) for block in rest if (one := _image(block))]
    wire = ENCLOSURE.origin(rest, first=not results)
    said = user(text_of(rest), images=images or None, wire=wire)
    return results if results and not rest else [*results, said]


def _image(block: JsonObject) -> Image | None:
    source = sub(block, "source") if block.get("type") == "image" else {}
    if source.get("type") == "base64":
        return Image(media_type=str(source.get("media_type") or ""), data=str(source.get("data") or ""))
    return Image(url=str(source["url"])) if source.get("url") else None


def _system(message: JsonObject, blocks: list[JsonObject]) -> list[Entry]:
    effort = sub(message, "output_config").get("effort")
    added = [sub(tool, "definition") for block in blocks if "definition" in (tool := sub(block, "tool"))]
    text = text_of([block for block in blocks if block.get("type") == "text"])
    out = [system(text, wire={"effort": effort} if effort else None)] if text or effort or not added else []
    return out + ([offered(typed(added, tool_entry))] if added else [])
