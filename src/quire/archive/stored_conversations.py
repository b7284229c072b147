"""What stores of other programs hold: conversations, and single requests that were sent with what their replies used."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from quire import providers
from quire.archive.source_file import SourceFile, milliseconds
from quire.errors import CallError, FormatError, QuireError
from quire.log.entries import check
from quire.log.shapes import short
from quire.providers.incoming import Partial
from quire.providers.models import data, resolve
from quire.providers.usage import usage
from quire.providers.wires import detect, wire_of
from quire.values import COUNTS, Entry, Json, JsonObject, Usage, system, tools

# One request that was sent, as any log or store tells of it: who was asked, what was sent, what the reply used.


class SentCall(msgspec.Struct, frozen=True):
    """One request that was sent, and what its reply reported; `body` is empty where only usage was kept."""

    source: str
    provider: str
    model: str
    body: JsonObject = {}
    usage: Usage | None = None
    at_ms: int | None = None
    session: str = ""
    # Of which agent it was, where a client tells its helpers apart.
    agent: str = ""
    # Whether the history was summed up in front of it, as the client says.
    compacted: bool = False
    # Whether the provider says what it read from its cache; where it does not, nothing is a loss.
    tells_cache: bool = True
    # The reply's own id: a store that copies sessions holds one reply several times.
    id: str = ""
    # The program whose store told of it.
    store: str = ""
    # What the application sent, where Quire changed it on the way.
    given: JsonObject = {}

    @property
    def target(self) -> str:
        return f"{self.provider}:{self.model}"


def counted_call(
    source: str, provider: str, model: str, used: Usage, at_ms: int | None, session: str, **more: Any
) -> SentCall:
    """A call of which only the usage is known; one that reports no input (aborted before it began) tells nothing."""
    return SentCall(source, provider, model, {}, used if used.input_total else None, at_ms, session, **more)


@cache
def _hosts() -> dict[str, str]:
    """Providers by the host of their API."""
    rows = data("providers")["providers"].items()
    urls = {provider: facts.get("endpoint", {}).get("base_url", "") for provider, facts in rows}
    return {urlsplit(url).hostname or "": provider for provider, url in urls.items() if url.startswith("https:")}


def call_of(source: str, about: JsonObject, body: JsonObject, reply: Json) -> SentCall:
    """A call by its body and reply; `about` may hold host, path, headers, provider, model, usage, time and session."""
    path = str(about.get("path") or about.get("url") or "").partition("?")[0]
    provider = str(about.get("provider") or _provider(str(about.get("host") or ""), path, body))
    named = str(body.get("model") or body.get("modelId") or about.get("model") or url_model(path))
    named = named.removeprefix("models/")
    return SentCall(
        source=source,
        provider=provider,
        model=named,
        body=body,
        usage=_reported_usage(provider, named, about.get("usage") or reply),
        at_ms=milliseconds(about.get("at") or about.get("ts") or about.get("timestamp") or about.get("at_ms")),
        session=_session(about, body),
        given=original if isinstance(original := about.get("given"), dict) and is_body(original) else {},
    )


def url_model(url: str) -> str:
    """Gemini and Bedrock name the model in the address."""
    for word in ("/models/", "/model/"):
        if word in url:
            return unquote(url).split(word)[1].partition("/")[0].partition(":generate")[0].partition(":stream")[0]
    return ""


def _provider(host: str, path: str, body: JsonObject) -> str:
    """Who was asked: by the host, else by the path, else by what the body itself holds."""
    if host in _hosts():
        return _hosts()[host]
    if path.endswith("/messages"):
        return "anthropic"
    return "bedrock" if "bedrock" in host else detect(body) or "openai-chat"


def is_body(value: Json) -> bool:
    """Whether a value is a request to a model."""
    if not isinstance(value, dict):
        return False
    is_text = isinstance(value.get("input"), str) and "model" in value
    return is_text or any(isinstance(value.get(field), list) for field in ("messages", "input", "contents"))


def _reported_usage(provider: str, model: str, raw: Json) -> Usage | None:
    """What was used: as Quire writes it down, as the provider does, or as the events of a stream tell."""
    if isinstance(raw, str | list):
        return _stream_usage(f"{provider}:{model}", raw)
    if not isinstance(raw, dict):
        return None
    counts = {name: raw[name] for name in COUNTS if isinstance(raw.get(name), int)}
    used = Usage(**counts) if "input_total" in counts else usage(provider, raw)
    return used if used.input_total else None


def _stream_usage(target: str, stream: str | list[Json]) -> Usage | None:
    """The usage of a stream, one that broke off too: its beginning tells what went in."""
    with contextlib.suppress(QuireError, ValueError):
        used = streamed_reply(target, stream).usage
        return used if used.input_total else None
    return None


def streamed_reply(target: str, stream: str | list[Json]) -> Partial:
    """What the events of server-sent text, or those that are listed, come to, as far as they go."""
    reader = providers.stream(target)
    if isinstance(stream, str):
        lines = [line.removeprefix("data:").strip() for line in stream.split("\n") if line.startswith("data:")]
        stream = [msgspec.json.decode(line) for line in lines if line and line != "[DONE]"]
    for event in stream:
        reader.feed(event)
    return reader.partial()


SESSION_FIELDS = ("session_id", "session", "conversation_id", "thread_id", "recording")


def _session(about: JsonObject, body: JsonObject) -> str:
    """What names the conversation: a header, a field beside the body, the body's cache key or user id."""
    headers = {str(key).lower(): value for key, value in (about.get("headers") or {}).items()}
    names = [about.get(field) for field in SESSION_FIELDS]
    names += [headers.get(name) for name in ("session_id", "x-session-id", "x-claude-code-session-id")]
    metadata = body["metadata"] if isinstance(body.get("metadata"), dict) else {}
    names += [body.get("prompt_cache_key"), metadata.get("session_id"), metadata.get("user_id")]
    return next((str(value) for value in names if value), "")


def usage_named(reported: JsonObject, **names: str) -> Usage:
    """What a program counted under names of its own: usage_named(reported, input_total="input", cache_read="cached")."""
    counts: JsonObject = {count: int(reported.get(name) or 0) for count, name in names.items()}
    return Usage(**counts)


def known_provider(name: str) -> str:
    """A provider by the client's own name for it; one that nobody knows speaks Chat."""
    name = {"google": "gemini", "google-gla": "gemini", "google-vertex": "gemini"}.get(name, name)
    try:
        resolve(name.split("/")[0])
    except CallError:  # a name of somebody's own
        return "openai-chat"
    return name


# Conversations as stores of other programs keep them, and what a store is: how it is recognised and read.
#
# Turns that a store keeps in blocks of its own are written in the wire format that its model speaks.


class StoredConversation(msgspec.Struct, frozen=True):
    """Messages in a wire format, or a request that holds them; what its store left out of them, and when they came."""

    name: str
    format: str
    value: Json
    model: str = ""
    lacks: tuple[str, ...] = ()
    # Unix milliseconds of each message, None where that is not known.
    times: tuple[int | None, ...] = ()
    # What came behind the messages: the reply to the last request of a log.
    reply: tuple[Entry, ...] = ()
    # The requests that it was made of, with what each used, where the store tells.
    calls: tuple[SentCall, ...] = ()

    def entries(self) -> list[Entry]:
        """The conversation as the log takes it."""
        entries = providers.import_(self.format, self.value, self.model)
        return [check(entry.body) for entry in [*_timed(entries, self), *self.reply]]


def _timed(entries: list[Entry], of: StoredConversation) -> Iterator[Entry]:
    """Entries with the time of their message; each item of the Responses API is one of its own."""
    items = of.format in ("openai-responses", "openai-agents")
    place = -1
    for entry in entries:
        in_message = "message" in entry.wire or "more" in entry.wire or entry.kind not in ("system", "tools")
        place += in_message and (items or not entry.wire.get("more"))
        at = of.times[place] if in_message and 0 <= place < len(of.times) else None
        yield entry if at is None else msgspec.structs.replace(entry, body={**entry.body, "at": at})


class LoggedExchange(msgspec.Struct, frozen=True):
    """A request and what came back: a reply, its stream as text, or nothing; `about` is what stands beside them."""

    body: JsonObject
    reply: Json = None
    place: str = ""
    model: str = ""
    about: JsonObject = {}

    @property
    def session(self) -> str:
        return str(self.about.get("session") or "")

    def call(self) -> SentCall | None:
        """As it was sent; None where the provider refused it."""
        if self.about.get("status") not in (None, 200):
            return None
        return call_of(self.place, {"model": self.model, **self.about}, self.body, self.reply)


class SessionStore(msgspec.Struct, frozen=True):
    """A program's store: how it is recognised, how it is read, what it leaves out besides a system prompt and tools.

    A log of requests has `exchanges`: each of its lines stands for itself.
    """

    name: str
    recognises: Callable[[SourceFile], bool]
    read: Callable[[SourceFile], Iterable[StoredConversation]]
    lacks: tuple[str, ...] = ()
    exchanges: Callable[[SourceFile], Iterator[LoggedExchange]] | None = None


def holding(test: Callable[[JsonObject], bool]) -> Callable[[SourceFile], bool]:
    """Whether one of the first lines, or of the elements of a list, is of a shape."""
    return lambda file: any(test(row) for row in file.first_objects())


def with_fields(*fields: str) -> Callable[[JsonObject], bool]:
    return lambda row: all(field in row for field in fields)


def with_tables(*names: str) -> Callable[[SourceFile], bool]:
    return lambda file: set(names) <= file.tables


def misfit(file: SourceFile, number: int, value: Json, expected: str) -> FormatError:
    """A line that is not what its store writes."""
    return FormatError(f"{file.path.name} holds {described(value)}, which is not {expected}", line=number, column=1, hint="Check the file, or force another reader with --from.")  # fmt: skip


def described(value: Json) -> str:
    """What a value is, for an error: its fields, or itself."""
    return f"the fields {', '.join(list(value)[:6])}" if value and isinstance(value, dict) else short(value)


# Turns that a store keeps in blocks of its own, as messages of the wire format that its model speaks.


class StoredBlock(msgspec.Struct, frozen=True):
    """A block: text, thinking, a call, a result or an image, as its fields tell."""

    text: str = ""
    thinking: bool = False
    call_id: str = ""
    name: str = ""
    args: Json = None
    is_result: bool = False
    error: bool = False
    # What the provider signed thinking or a call with; a Responses item has its id too.
    signature: str = ""
    id: str = ""
    # The media type and the base64 of an image.
    image: tuple[str, str] = ("", "")

    @property
    def arguments(self) -> str:
        """The arguments of a call as OpenAI writes them."""
        return self.args if isinstance(self.args, str) else json.dumps(self.args, ensure_ascii=False)

    @property
    def image_url(self) -> str:
        return f"data:{self.image[0]};base64,{self.image[1]}"


class StoredTurn(msgspec.Struct, frozen=True):
    """Who said what, and when."""

    role: str
    blocks: tuple[StoredBlock, ...]
    at: int | None = None


def turns_in_format(
    name: str, provider: str, turns: Sequence[StoredTurn], model: str = "", head: JsonObject | None = None
) -> StoredConversation:
    """Turns in the format of the provider that answered them; with a system prompt where there is one."""
    format = next((wire for word, wire in _SPEAKS.items() if word in provider), "openai-chat")
    if format == "openai-responses" and not any(block.signature for turn in turns for block in turn.blocks):
        format = "openai-chat"
    write, field = _WRITERS[format], wire_of(format).layout.field
    # A system prompt and tools ({name, description, parameters}), as far as a store has them.
    fields = head or {}
    entries = [make(fields[name]) for name, make in (("system", system), ("tools", tools)) if fields.get(name)]
    request = providers.export(format, entries)
    around = request if isinstance(request, dict) else {field: request}
    messages: list[tuple[int | None, JsonObject]] = [(None, message) for message in around[field]]
    messages += [(turn.at, message) for turn in turns for message in write(turn)]
    value = {**around, field: [message for _, message in messages]}
    return StoredConversation(name, format, value, model, times=tuple(at for at, _ in messages))


_SPEAKS = {"anthropic": "anthropic", "claude": "anthropic", "google": "gemini", "gemini": "gemini", "vertex": "gemini", "openai": "openai-responses", "gpt": "openai-responses"}  # fmt: skip


def _anthropic(turn: StoredTurn) -> Iterator[JsonObject]:
    blocks: list[JsonObject] = []
    for block in turn.blocks:
        if block.is_result:
            failed = {"is_error": True} if block.error else {}
            blocks.append({"type": "tool_result", "tool_use_id": block.call_id, "content": block.text, **failed})
        elif block.call_id:
            blocks.append({"type": "tool_use", "id": block.call_id, "name": block.name, "input": block.args or {}})
        elif block.thinking:
            blocks.append({"type": "thinking", "thinking": block.text, "signature": block.signature})
        elif block.image[1]:
            source = {"type": "base64", "media_type": block.image[0], "data": block.image[1]}
            blocks.append({"type": "image", "source": source})
        elif block.text.strip():
            blocks.append({"type": "text", "text": block.text})
    if blocks:
        yield {"role": "assistant" if turn.role == "assistant" else "user", "content": blocks}


def _gemini(turn: StoredTurn) -> Iterator[JsonObject]:
    parts: list[JsonObject] = []
    for block in turn.blocks:
        signed = {"thoughtSignature": block.signature} if block.signature else {}
        named = {"id": block.call_id, "name": block.name}
        if block.is_result:
            reply = {"error" if block.error else "output": block.text}
            parts.append({"functionResponse": {**named, "response": reply}})
        elif block.call_id:
            parts.append({"functionCall": {**named, "args": block.args or {}}, **signed})
        elif block.image[1]:
            parts.append({"inlineData": {"mimeType": block.image[0], "data": block.image[1]}})
        elif block.text:
            parts.append({"text": block.text, **({"thought": True} if block.thinking else {}), **signed})
    if parts:
        yield {"role": "model" if turn.role == "assistant" else "user", "parts": parts}


def _responses(turn: StoredTurn) -> Iterator[JsonObject]:
    kind = "output_text" if turn.role == "assistant" else "input_text"
    for block in turn.blocks:
        item_id = {"id": block.id} if block.id else {}
        if block.is_result:
            yield {"type": "function_call_output", "call_id": block.call_id, "output": block.text}
        elif block.call_id:
            call = {"call_id": block.call_id, "name": block.name, "arguments": block.arguments}
            yield {"type": "function_call", **call, **item_id}
        elif block.thinking and block.signature.startswith("{"):
            yield json.loads(block.signature)
        elif block.thinking:
            summary = [{"type": "summary_text", "text": block.text}] if block.text else []
            yield {"type": "reasoning", "summary": summary, "encrypted_content": block.signature, **item_id}
        elif block.image[1]:
            yield {"role": "user", "content": [{"type": "input_image", "image_url": block.image_url}]}
        else:
            yield {"type": "message", "role": turn.role, "content": [{"type": kind, "text": block.text}], **item_id}


def _chat(turn: StoredTurn) -> Iterator[JsonObject]:
    text, thought = "", ""
    calls: list[JsonObject] = []
    images: list[JsonObject] = []
    for block in turn.blocks:
        if block.is_result:
            failed = {"_err": True} if block.error else {}
            yield {"role": "tool", "tool_call_id": block.call_id, "content": block.text, **failed}
        elif block.call_id:
            called = {"name": block.name, "arguments": block.arguments}
            calls.append({"id": block.call_id, "type": "function", "function": called})
        elif block.thinking:
            thought += block.text
        elif block.image[1]:
            images.append({"type": "image_url", "image_url": {"url": block.image_url}})
        else:
            text += block.text
    if text or calls or images or thought:
        content: Json = [{"type": "text", "text": text}, *images] if images else text
        besides = {"reasoning_content": thought, "tool_calls": calls}
        yield {"role": turn.role, "content": content, **{name: field for name, field in besides.items() if field}}


_WRITERS = {"anthropic": _anthropic, "gemini": _gemini, "openai-responses": _responses, "openai-chat": _chat}
