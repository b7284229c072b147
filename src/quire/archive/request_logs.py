"""Reads logs of requests and replies as conversations: JSON Lines, HAR, LHAR, LiteLLM, Langfuse, OpenTelemetry."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import urlsplit

import msgspec

from quire import providers
from quire.archive.stored_conversations import (
    CHAT_PATH,
    SESSION_FIELDS,
    LoggedExchange,
    SessionStore,
    SourceFile,
    StoredConversation,
    decode_json,
    holding,
    is_body,
    known_provider,
    misfit,
    streamed_reply,
    text_in,
    text_or_json,
    url_model,
    url_path,
)
from quire.errors import FormatError, QuireError
from quire.providers.prefix import without_marks
from quire.providers.usage import usage_in
from quire.providers.wires import as_body, detect, wire_of
from quire.values import Entry, Json, JsonObject, as_object, as_objects, as_text, canonical, sha256_hex, value_at


def group_exchanges(exchanges: Iterable[LoggedExchange], name: str) -> list[StoredConversation]:
    """The conversations of requests: a request that begins with all messages of an earlier one continues it.

    A conversation is its newest request with the reply; side requests (titles, summaries) are their own.
    """
    newest: dict[str, tuple[int, str, LoggedExchange]] = {}
    count = 0
    for exchange in exchanges:
        format = format_in(exchange)
        prefixes = _prefix_hashes(exchange, format)
        before = next((prefix for prefix in reversed(prefixes) if prefix in newest), None)
        number = newest.pop(before)[0] if before is not None else (count := count + 1)
        newest[prefixes[-1]] = (number, format, exchange)
    return [
        StoredConversation(f"{name}-{number}", format, value.body, value.model, reply=tuple(_reply(value, format)))
        for number, format, value in sorted(newest.values(), key=lambda row: row[0])
    ]


def format_in(exchange: LoggedExchange) -> str:
    """The wire format of a body; an error that names its place where it is no request."""
    provider = detect(exchange.body)
    if provider is None:
        fields = ", ".join(list(exchange.body)[:6])
        raise FormatError(
            f"{exchange.place} holds {fields or 'nothing'}, which is no request of a provider",
            hint="Force a format with --from.",
        )
    return "openai-chat" if url_path(exchange.about).endswith(CHAT_PATH) else wire_of(provider).name


def _prefix_hashes(exchange: LoggedExchange, format: str) -> list[str]:
    """The hashes of the first message, of the first two, and so on, with the session; without cache marks."""
    messages = exchange.body.get(wire_of(format).layout.field)
    listed = messages if isinstance(messages, list) else [messages]
    hashes, before = [], exchange.session
    for message in listed:
        line = without_marks(message) if isinstance(message, dict) else message
        before = sha256_hex(f"{before}\n{canonical(line).decode()}")
        hashes.append(before)
    return hashes or [sha256_hex(f"{exchange.session}\n{exchange.place}")]


def _reply(exchange: LoggedExchange, format: str) -> Iterator[Entry]:
    """The entries of a reply; none for a provider's error or an unreadable stream."""
    target = f"{format}:{exchange.model or exchange.body.get('model') or ''}"
    reply = exchange.reply
    with contextlib.suppress(QuireError):
        if isinstance(reply, dict) and reply.get("role") == "assistant" and format == "openai-chat":
            reply = {"choices": [{"message": reply}]}
        if isinstance(reply, dict):
            yield from providers.parse_reply(target, reply).entries
        elif isinstance(reply, str | list) and reply:
            yield from streamed_reply(target, reply).entries


# JSON Lines: one request per line, with or without its reply.


def _requests(file: SourceFile) -> Iterator[LoggedExchange]:
    for number, row in file.numbered_lines():
        body = _body_of(row) if isinstance(row, dict) else None
        if body is None or not is_body(body):
            raise misfit(file, number, row, "a request: a body with its messages, alone or as `request`")
        reply: Json = next((row[key] for key in ("reply", "response", "stream") if row.get(key)), None)
        inner = reply.get("body") if isinstance(reply, dict) else None
        about = {key: value for key, value in row.items() if key in _ABOUT} if body is not row else {}
        yield LoggedExchange(
            body,
            inner if isinstance(inner, dict) else reply,
            f"{file.path}:{number}",
            str(row.get("model") or ""),
            {**about, "session": next((row[key] for key in SESSION_FIELDS if row.get(key)), "")},
        )


# The fields of a line beside its request that `call_of` reads.
_ABOUT = ("host", "path", "url", "headers", "provider", "usage", "at", "ts", "timestamp", "at_ms", "status", "given")


def _har(file: SourceFile) -> Iterator[LoggedExchange]:
    for number, entry in enumerate(file.har_entries()):
        request, answer = entry["request"], entry.get("response") or {}
        body = _json((request.get("postData") or {}).get("text"))
        # A browser's HAR file also holds requests to other servers.
        if not isinstance(body, dict) or not is_body(body) or detect(body) is None:
            continue
        text = _har_text(as_object(answer.get("content")))
        reply, url = _json(text), urlsplit(str(request.get("url") or ""))
        headers = {str(header.get("name")): header.get("value") for header in as_objects(request.get("headers"))}
        about = {"host": url.hostname, "path": url.path, "headers": headers, "at": entry.get("startedDateTime")}
        about["status"] = answer.get("status") or None
        place = f"{file.path}#log.entries[{number}]"
        yield LoggedExchange(body, reply if reply is not None else text, place, url_model(url.path), about)


def _har_text(content: JsonObject) -> str:
    """The text of a reply, which some programs write as base64."""
    text = as_text(content.get("text"))
    if content.get("encoding") != "base64":
        return text
    with contextlib.suppress(ValueError):
        return base64.b64decode(text).decode()
    return ""


def _json(text: Json) -> Json:
    try:
        return decode_json(text) if isinstance(text, str) else text
    except ValueError:
        return None


def _lhar(file: SourceFile) -> Iterator[LoggedExchange]:
    wrapped = file.value["lhar"]["entries"] if isinstance(file.value, dict) else None
    listed = wrapped if wrapped is not None else [entry for entry in file.objects() if entry.get("type") == "entry"]
    entries = [entry for entry in listed if isinstance((entry.get("raw") or {}).get("request_body"), dict)]
    if listed and not entries:
        raise FormatError(f"{file.path.name} holds no bodies", hint="Record with bodies: raw.request_body is null.")
    ordered = sorted(entries, key=lambda entry: (str(entry.get("trace_id")), entry.get("sequence") or 0))
    for number, entry in enumerate(ordered, 1):
        body, reply = entry["raw"]["request_body"], entry["raw"].get("response_body")
        about = {"session": str(entry.get("trace_id")), "at": entry.get("timestamp")}
        model = str(entry["gen_ai"]["request"].get("model") or "")
        yield LoggedExchange(body, reply, f"{file.path}#entry {number}", model, about)


def _litellm(file: SourceFile) -> Iterator[LoggedExchange]:
    for number, row in enumerate(file.objects(), 1):
        logged = row.get("standard_logging_object") or row
        messages = _json(logged.get("messages"))
        request = _json(logged.get("proxy_server_request")) or {}
        body: JsonObject = request["body"] if isinstance(request.get("body"), dict) else {"messages": messages}
        if isinstance(messages, str):
            body = {"messages": [{"role": "user", "content": messages}]}
        tools = (logged.get("model_parameters") or {}).get("tools")
        body = {**({"tools": tools} if tools else {}), **body}
        if not isinstance(body.get("messages"), list):
            raise FormatError(f"log {number} of {file.path.name} holds no messages", hint="Turn on message logging.")  # fmt: skip
        about = {
            "session": str(logged.get("trace_id") or logged.get("session_id") or ""),
            "at": logged.get("startTime"),
        }
        place = f"{file.path}:{number}"
        yield LoggedExchange(body, _json(logged.get("response")), place, str(logged.get("model") or ""), about)


def _langfuse(file: SourceFile) -> Iterator[LoggedExchange]:
    listed = [observation for row in file.objects() for observation in _observations(row)]
    generations = [observation for observation in listed if observation.get("type") == "GENERATION"]
    generations.sort(key=lambda observation: str(observation.get("startTime") or ""))
    for generation in generations:
        messages, output = _json(generation.get("input")), _json(generation.get("output"))
        body = {"messages": messages} if isinstance(messages, list) else messages
        if not isinstance(body, dict):
            body = {"messages": [{"role": "user", "content": str(generation.get("input") or "")}]}
        if isinstance(output, list) and output and isinstance(output[0], dict) and "role" in output[0]:
            output = output[0]
        answer = {"role": "assistant", "content": text_in(generation.get("output"))}
        used = usage_in("langfuse", generation.get("usageDetails") or generation.get("usage"))
        about = {
            "session": str(generation.get("sessionId") or generation.get("traceId") or ""),
            "at": generation.get("startTime"),
            "usage": msgspec.to_builtins(used) if used.input_total else {},
        }
        place, model = f"{file.path}#{generation.get('id')}", str(generation.get("model") or "")
        yield LoggedExchange(body, output if isinstance(output, dict) else answer, place, model, about)


def _observations(row: JsonObject) -> list[JsonObject]:
    nested = next((row[key] for key in ("observations", "data") if isinstance(row.get(key), list)), None)
    return [inner for inner in nested if isinstance(inner, dict)] if nested is not None else [row]


# A list of messages, one message per line, or a chat saved by gemini-cli (`history`), in any wire format.


def _messages(file: SourceFile) -> Iterator[StoredConversation]:
    body = as_body(as_objects(value_at(file.value, "history")) or list(file.objects()))
    format = format_in(LoggedExchange(body, place=file.path.name))
    yield StoredConversation(file.name, format, body)


def _is_message(message: JsonObject) -> bool:
    return message.get("role") in ("system", "developer", "user", "assistant", "model", "tool") and bool(
        {"content", "parts", "tool_calls"} & message.keys()
    )


# OpenTelemetry: spans with the messages of the GenAI conventions.


def _otel(file: SourceFile) -> Iterator[LoggedExchange]:
    readable = 0
    for number, (trace, facts) in enumerate(_spans(file), 1):
        sent = _json(facts.get("gen_ai.input.messages"))
        if not isinstance(sent, list):
            continue
        readable += 1
        instructions = _json(facts.get("gen_ai.system_instructions")) or []
        system = [{"role": "system", "content": _otel_text(instructions)}] if instructions else []
        tools = _json(facts.get("gen_ai.tool.definitions"))
        answers = _json(facts.get("gen_ai.output.messages")) or []
        output = [turn for message in answers for turn in _otel_message(message)]
        body = {"messages": [*system, *(turn for message in sent for turn in _otel_message(message))]}
        body |= {"tools": [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]} if isinstance(tools, list) else {}  # fmt: skip
        about = {"session": str(facts.get("gen_ai.conversation.id") or trace), "usage": _otel_usage(facts)}
        # The provider, where the span names one; the messages are in OpenTelemetry's own form and written as Chat.
        named = str(facts.get("gen_ai.provider.name") or facts.get("gen_ai.system") or "")
        about["provider"] = known_provider(named) if named else ""
        model = str(facts.get("gen_ai.response.model") or facts.get("gen_ai.request.model") or "")
        place = f"{file.path}#span {number}"
        yield LoggedExchange(body, output[0] if output else None, place, model, about)
    if not readable:
        raise FormatError(
            f"the spans of {file.path.name} hold no gen_ai.input.messages",
            hint="Have the instrumentation record content.",
        )


def _otel_usage(facts: JsonObject) -> JsonObject:
    """The usage by the conventions, in which input tokens include cached ones."""
    names = {"input_total": "input_tokens", "output": "output_tokens", "cache_read": "cache_read.input_tokens", "cache_write_5m": "cache_creation.input_tokens"}  # fmt: skip
    counts = {name: _json(str(facts.get(f"gen_ai.usage.{key}") or 0)) for name, key in names.items()}
    return counts if counts["input_total"] else {}


def _spans(file: SourceFile) -> Iterator[tuple[str, JsonObject]]:
    """(trace id, attributes) of each span: as OTLP writes them, or as the SDK prints them."""
    for row in file.objects():
        for resource in row.get("resourceSpans") or ():
            for scope in resource.get("scopeSpans") or ():
                for span in scope.get("spans") or ():
                    facts = {pair["key"]: _otel_value(pair.get("value") or {}) for pair in span.get("attributes") or ()}
                    yield str(span.get("traceId")), facts
        if as_object(row.get("attributes")):  # as the SDK prints them
            yield (str((row.get("context") or {}).get("trace_id") or row.get("trace_id") or ""), row["attributes"])


def _otel_value(value: JsonObject) -> Json:
    if "arrayValue" in value:
        return [_otel_value(inner) for inner in value["arrayValue"].get("values") or ()]
    if "kvlistValue" in value:
        return {pair["key"]: _otel_value(pair.get("value") or {}) for pair in value["kvlistValue"].get("values") or ()}
    return next(iter(value.values()), None)


def _otel_message(message: JsonObject) -> Iterator[JsonObject]:
    """An OpenTelemetry message as messages of Chat."""
    parts = message.get("parts") or []
    for part in parts:
        if part.get("type") == "tool_call_response":
            answer = part.get("response", part.get("result"))
            yield {"role": "tool", "tool_call_id": str(part.get("id") or ""), "content": text_or_json(answer)}
    calls = [
        {"id": str(part.get("id") or ""), "type": "function", "function": {"name": part.get("name"), "arguments": part["arguments"] if isinstance(part.get("arguments"), str) else json.dumps(part.get("arguments") or {}, ensure_ascii=False)}}
        for part in parts if part.get("type") == "tool_call"
    ]  # fmt: skip
    media = [image for part in parts if (image := _otel_image(part))]
    others = [{"content": f"[{part.get('modality') or part.get('type')}]"} for part in parts if part.get("type") not in _OTEL_PARTS and not _otel_image(part)]  # fmt: skip
    text = _otel_text([*(part for part in parts if part.get("type") == "text"), *others])
    thought = _otel_text([part for part in parts if part.get("type") in ("reasoning", "thinking")])
    if text or calls or thought or media:
        thinking = {"reasoning_content": thought} if thought else {}
        content: Json = [{"type": "text", "text": text}, *media] if media else text
        yield {"role": message.get("role"), "content": content, **thinking, **({"tool_calls": calls} if calls else {})}


_OTEL_PARTS = ("text", "reasoning", "thinking", "tool_call", "tool_call_response")


def _otel_image(part: JsonObject) -> JsonObject | None:
    """An image part, with its data or its URL; None for another part."""
    if part.get("modality") != "image" or not (part.get("uri") or part.get("content")):
        return None
    url = part.get("uri") or f"data:{part.get('mime_type')};base64,{part['content']}"
    return {"type": "image_url", "image_url": {"url": str(url)}}


def _otel_text(parts: list[JsonObject]) -> str:
    return "\n".join(str(part.get("content") or part.get("text") or "") for part in parts)


def _body_of(row: JsonObject) -> JsonObject:
    """The request of a line: the line itself, its `request`, or its `request.body`."""
    request: JsonObject = row["request"] if isinstance(row.get("request"), dict) else row
    return request["body"] if isinstance(request.get("body"), dict) else request


def _log(name: str, recognises: Callable[[SourceFile], bool], exchanges: Callable[[SourceFile], Iterator[LoggedExchange]]) -> SessionStore:  # fmt: skip
    """A log of requests as a store: it can be read as conversations, or request by request."""
    return SessionStore(name, recognises, lambda file: group_exchanges(exchanges(file), file.name), exchanges=exchanges)


LOGS: tuple[SessionStore, ...] = (
    _log("har", lambda file: file.entries_at is not None, _har),
    _log("lhar", lambda file: (isinstance(file.value, dict) and "lhar" in file.value) or holding(lambda row: row.get("type") == "entry" and "raw" in row and "gen_ai" in row)(file), _lhar),
    _log("opentelemetry", holding(lambda row: "resourceSpans" in row or any(str(name).startswith("gen_ai.") for name in as_object(row.get("attributes")))), _otel),
    _log("langfuse", holding(lambda row: any(observation.get("type") in ("GENERATION", "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN") and ("traceId" in observation or "input" in observation) for observation in _observations(row))), _langfuse),
    _log("litellm", holding(lambda row: "standard_logging_object" in row or ("messages" in row and bool({"call_type", "litellm_call_id", "model_map_information"} & row.keys()))), _litellm),
    _log("requests", lambda file: bool(file.first_objects()) and is_body(body := _body_of(file.first_objects()[0])) and detect(body) is not None, _requests),
    SessionStore("messages", lambda file: any(map(_is_message, (as_objects(value_at(file.value, "history")) or file.first_objects())[:1])), _messages),
)  # fmt: skip
