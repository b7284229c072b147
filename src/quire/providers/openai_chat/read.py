"""Chat messages into entries, and back verbatim; a reply is one more message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.errors import FormatError
from quire.providers.arguments import parsed_arguments
from quire.providers.dialect import dialect_of
from quire.providers.hosted import offered, typed
from quire.providers.images import from_url, image_json
from quire.providers.incoming import listed, object_in, objects, refused, sub, without_nulls
from quire.providers.models import model_info
from quire.providers.openai_chat.parts import ENCLOSURE, FORMAT, text_of, thought_of
from quire.providers.openai_chat.write import WRITER, tool_definition
from quire.providers.origin import identified, said, tagged, whole_message
from quire.providers.outgoing import exported
from quire.providers.spelling import read_back
from quire.providers.usage import usage
from quire.values import (
    Entry,
    Json,
    JsonObject,
    Reply,
    call,
    respond,
    result,
    system,
    think,
    user,
)


def import_messages(value: Any, model: str = "") -> list[Entry]:
    """Entries of a list of messages, or of an object that holds one under `messages` (a trace, a request)."""
    out: list[Entry] = []
    if isinstance(value, dict):
        model = model or str(value.get("model") or "")
        if defined := objects(value, "tools"):
            out.append(offered(typed(defined, tool_entry), model, format=FORMAT, tools=defined))
        value = value.get("messages")
    if not isinstance(value, list):
        raise FormatError("no list of messages", hint='Give a list, or {"messages": [...]}.')
    for place, message in enumerate(value):
        out += tagged(_entries(message, f"messages[{place}]"), FORMAT, message, model)
    return out


def export_messages(entries: Iterable[Entry]) -> Json:
    """Chat messages of a thread; with tools, the object a request holds them in."""
    out = exported(entries, WRITER, whole_message(_entries), model_info(f"{FORMAT}:"))
    head = [{"role": "system", "content": out.system.text}] if out.system else []
    messages = [*head, *out.messages]
    defined = out.listed_tools(FORMAT, tool_definition)
    return {"tools": defined, "messages": messages} if defined else messages


def parse_reply(value: Any, provider: str = FORMAT, model: str = "", names: Iterable[str] = ()) -> Reply:
    """Entries and usage of a chat completion; `names` are the tools' own, where some had to be respelled."""
    reply = object_in(value, "a chat completion")
    if reply.get("error"):
        raise refused(reply["error"])
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise FormatError(
            "a chat completion without choices", hint="An error body is no reply; check the status."
        )
    message = choices[0].get("message")
    if not isinstance(message, dict):
        raise FormatError(
            "a chat completion without a message", hint="A streamed chunk goes into Stream.feed."
        )
    model = str(reply.get("model") or model)
    return Reply(
        entries=tuple(entries_of_reply(message, provider, model, names)),
        usage=usage(provider, reply),
        stop=str(choices[0].get("finish_reason") or ""),
        id=str(reply.get("id") or ""),
        model=model,
    )


def entries_of_reply(message: JsonObject, provider: str, model: str, names: Iterable[str]) -> list[Entry]:
    """What a reply's message says, with names as the tools' owner wrote them."""
    info = model_info(f"{provider}:{model}")
    # Small servers may leave ids out; OpenAI's own API never does.
    entries = identified(_assistant(without_nulls(message)), made_up=not info.features.developer_role)
    return said(entries, FORMAT, model, read_back(names, dialect_of(info).names))


def tool_entry(tool: JsonObject) -> JsonObject:
    """{"type": "function", "function": {…}} -> the tool as entries define it."""
    function = sub(tool, "function") or sub(tool, "custom") or tool
    return {
        "name": str(function.get("name") or function.get("type") or ""),
        "description": str(function.get("description") or ""),
        "parameters": sub(function, "parameters") or {"type": "object", "properties": {}},
    }


def _entries(message: Json, where: str = "message") -> list[Entry]:
    role = message.get("role") if isinstance(message, dict) else None
    match role:
        case "system" | "developer":
            return [system(text_of(message.get("content")))]
        case "user":
            return [_user(message.get("content"))]
        case "assistant":
            return _assistant(message)
        case "tool" | "function":
            # Servers of the old function calls name no id: the function's name stands in for it.
            call_id = str(message.get("tool_call_id") or message.get("name") or "")
            failed = True if message.get("_err") is True else None
            return [result(call_id, content=text_of(message.get("content")), error=failed)]
    raise FormatError(
        f"{where}: unknown role {role!r}",
        hint="Roles are system, developer, user, assistant, tool, function.",
    )


def _user(content: Json) -> Entry:
    images = [
        image_json(from_url(_url(part)))
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, dict) and part.get("type") == "image_url"
    ]
    parts = [part for part in (content if isinstance(content, list) else ()) if isinstance(part, dict)]
    return user(text_of(content), images=images or None, wire=ENCLOSURE.origin(parts, first=True))


def _url(part: JsonObject) -> str:
    given = part.get("image_url")
    return str(given.get("url") or "") if isinstance(given, dict) else str(given or "")


def _assistant(message: JsonObject) -> list[Entry]:
    """Thinking, text and calls in that order; a message with none of them is an empty respond."""
    out = []
    thought = (
        message.get("reasoning_content") or message.get("reasoning") or thought_of(message.get("content"))
    )
    if thought or message.get("reasoning_details"):
        out.append(think(str(thought), wire=_details(message)))
    audio = sub(message, "audio")
    text = text_of(message.get("content")) or message.get("refusal") or audio.get("transcript")
    if text or audio:
        out.append(respond(str(text or ""), wire=_besides(message)))
    out += [_call(one) for one in objects(message, "tool_calls")]
    if function := sub(message, "function_call"):
        out.append(_call({"id": function.get("name"), "function": function}))
    return out or [respond("")]


def _besides(message: JsonObject) -> JsonObject | None:
    """What comes with a text and cannot be sent back: annotations, and the audio it is the transcript of."""
    kept = {field: message[field] for field in ("annotations", "audio") if message.get(field)}
    return {"block": kept} if kept else None


def _details(message: JsonObject) -> JsonObject | None:
    """Thinking in its provider's own form (signatures, encrypted), which some servers want back."""
    details = listed(message, "reasoning_details")
    return {"block": {"reasoning_details": details}} if details else None


def _call(given: JsonObject) -> Entry:
    call_id = str(given.get("id") or "")
    if custom := sub(given, "custom"):
        return call(call_id, str(custom.get("name") or ""), custom.get("input"), wire={"block": given})
    function = sub(given, "function")
    arguments = function.get("arguments")
    # Some recorders keep arguments parsed.
    args, kept = parsed_arguments(arguments) if isinstance(arguments, str) else (arguments or {}, {})
    return call(call_id, str(function.get("name") or ""), args, wire=kept or None)
