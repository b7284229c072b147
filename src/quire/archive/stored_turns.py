"""Tools for readers of sessions: what a reader collects, and turns in a store's own blocks as messages of a wire format.

Also the reader of opencode: both forms of its database, its older folder of files, and its exports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from quire import providers
from quire.archive.stored_conversations import (
    ClientSummary,
    SentCall,
    SessionStore,
    SourceFile,
    StoredConversation,
    counted_call,
    decode_json,
    known_provider,
    milliseconds,
    misfit,
    source_file,
    text_in,
)
from quire.errors import FormatError
from quire.providers.convert import from_url, to_url
from quire.providers.usage import usage_in
from quire.providers.wires import wire_of
from quire.values import Image, Json, JsonObject, Usage, as_object, as_objects, system, tools, value_at


@cache
def clients() -> dict[str, JsonObject]:
    """Facts about each client's files; the data file explains its fields."""
    table: JsonObject = msgspec.json.decode((Path(__file__).parent / "data" / "clients.json").read_bytes())
    return as_object(table["clients"])


class SessionWalk:
    """What a reader collects along a session: messages, requests, compactions, and what is left out."""

    def __init__(self, file: SourceFile, name: str = "") -> None:
        self.file, self.name, self.model = file, name or file.name, ""
        # The messages: lines, items, contents or turns, depending on the client.
        self.said: list[Any] = []
        self.times: list[int | None] = []
        self.calls: dict[str, SentCall] = {}
        self.compactions: list[ClientSummary] = []
        self.left_out: list[str] = []
        # Whether the history was summed up since the last request.
        self.compacted = False
        # By the id of a line or message: its index in `said`.
        self.starts: dict[Json, int] = {}

    def lines(self, expected: str) -> Iterator[tuple[int, JsonObject]]:
        """The lines of the file; each must be an object with a `type`."""
        for number, line in self.file.numbered_lines():
            if not isinstance(line, dict) or not isinstance(line.get("type"), str):
                raise misfit(self.file, number, line, expected)
            yield number, line

    def add_request(self, place: object, provider: str, used: Usage, at: Json, id: Json, **more: str) -> None:
        """Add a request by its reply; where a reply is in several lines, the usage in the last of them counts.

        A reply without an id is identified by its time, else by its place in the file.
        """
        source, at_ms = f"{self.file.path}:{place}", milliseconds(at)
        about = {"session": self.name, "model": self.model, "id": str(id or (f"{at_ms} {place}" if at_ms else source))}
        call = counted_call(source, provider, used=used, at_ms=at_ms, compacted=self.compacted, **about | more)
        self.calls[call.id] = msgspec.structs.replace(self.calls.get(call.id, call), usage=call.usage)
        self.compacted = False

    def summary_from(self, first: Json, summary: str = "") -> ClientSummary:
        """A compaction at this point that kept the messages from the line `first` on; none where that is unknown."""
        count = len(self.said)
        return ClientSummary(count, frozenset(range(self.starts.get(first, count), count)), summary)

    def complete(self, conversation: StoredConversation) -> StoredConversation:
        """The conversation with everything that was collected besides its messages."""
        lost, summed = (*conversation.left_out, *self.left_out), conversation.compactions or tuple(self.compactions)
        times, calls = conversation.times or tuple(self.times), tuple(self.calls.values())
        return msgspec.structs.replace(conversation, times=times, calls=calls, left_out=lost, compactions=summed)


class StoredBlock(msgspec.Struct, frozen=True):
    """A block of text, thinking, a call, a result or images; its fields tell which."""

    text: str = ""
    thinking: bool = False
    call_id: str = ""
    name: str = ""
    args: Json = None
    is_result: bool = False
    error: bool = False
    # The provider's signature of thinking or a call; the id of a Responses item.
    signature: str = ""
    id: str = ""
    # Thinking that the provider hides: only its signature is known.
    redacted: bool = False
    # The image that the block is, or the images of a result.
    images: tuple[Image, ...] = ()
    # The kind of a block that cannot be converted.
    left_out: str = ""

    @property
    def arguments(self) -> str:
        """The arguments of a call as OpenAI writes them."""
        return self.args if isinstance(self.args, str) else json.dumps(self.args, ensure_ascii=False)


def media_block(media_type: str, data: str) -> StoredBlock:
    """A block from base64 data or a URL: an image, or a left-out block for any other media type."""
    if not media_type.startswith("image/") or not data:
        return StoredBlock(left_out=f"{media_type or 'media'}")
    return StoredBlock(images=(from_url(data) if ":" in data else Image(media_type, data),))  # base64 has no colon


def with_media(block: StoredBlock, media: Sequence[StoredBlock]) -> list[StoredBlock]:
    """A block with its attachments; a result's images become part of its block."""
    if not block.is_result:
        return [block, *media]
    images = tuple(image for medium in media for image in medium.images)
    return [msgspec.structs.replace(block, images=images), *(medium for medium in media if medium.left_out)]


class StoredTurn(msgspec.Struct, frozen=True):
    """One turn; `provider` is the one that answered, where a session may have asked several."""

    role: str
    blocks: tuple[StoredBlock, ...]
    at: int | None = None
    provider: str = ""


def turns_in_format(
    name: str,
    provider: str,
    turns: Sequence[StoredTurn],
    model: str = "",
    head: JsonObject | None = None,
    compactions: Sequence[ClientSummary] = (),
) -> StoredConversation:
    """Turns in the wire format of their provider; `head` may have a system prompt and tools.

    `compactions` count turns, not messages.
    """
    format = wire_in(provider)
    if format == "openai-responses" and not any(block.signature for turn in turns for block in turn.blocks):
        format = "openai-chat"
    turns = [msgspec.structs.replace(turn, blocks=tuple(_own_blocks(turn, format))) for turn in turns]
    write, field = _WRITERS[format], wire_of(format).layout.field
    fields = head or {}
    entries = [make(fields[name]) for name, make in (("system", system), ("tools", tools)) if fields.get(name)]
    request = providers.export(format, entries)
    around = request if isinstance(request, dict) else {field: request}
    messages: list[tuple[int | None, JsonObject]] = [(None, message) for message in around[field]]
    starts = [len(messages)]
    for turn in turns:
        messages += [(turn.at, message) for message in write(turn)]
        starts.append(len(messages))
    value = {**around, field: [message for _, message in messages]}
    left_out = tuple(block.left_out for turn in turns for block in turn.blocks if block.left_out)
    counted = [
        ClientSummary(starts[summary.behind], frozenset(n for kept in summary.kept for n in range(*starts[kept : kept + 2])), summary.summary)
        for summary in compactions
    ]  # fmt: skip
    times = tuple(at for at, _ in messages)
    return StoredConversation(name, format, value, model, times=times, left_out=left_out, compactions=tuple(counted))


def wire_in(provider: str) -> str:
    """The wire format that the name of a provider or of its API tells."""
    return next((wire for word, wire in _SPEAKS.items() if word in provider), "openai-chat")


def _own_blocks(turn: StoredTurn, format: str) -> Iterator[StoredBlock]:
    """The blocks for a format: without other providers' signatures, and with the thoughts of one item joined."""
    is_own = not turn.provider or wire_in(turn.provider) in (format, "openai-chat")
    before: StoredBlock | None = None
    for block in (*turn.blocks, None):
        if block is not None and not is_own:
            block = msgspec.structs.replace(block, signature="", id="", redacted=False)
        if before and block and block.thinking and before.thinking and block.id and block.id == before.id:
            text = "\n\n".join(filter(None, (before.text, block.text)))
            before = msgspec.structs.replace(before, text=text, signature=before.signature or block.signature)
            continue
        if before and format == "openai-responses" and before.thinking and not (before.signature or before.id):
            before = StoredBlock(left_out="thinking without a signature")
        if before:
            yield before
        before = block


_SPEAKS = {"completions": "openai-chat", "anthropic": "anthropic", "claude": "anthropic", "google": "gemini", "gemini": "gemini", "vertex": "gemini", "openai": "openai-responses", "gpt": "openai-responses"}  # fmt: skip


def _anthropic(turn: StoredTurn) -> Iterator[JsonObject]:
    blocks: list[JsonObject] = []
    for block in turn.blocks:
        if block.is_result:
            failed = {"is_error": True} if block.error else {}
            words = [{"type": "text", "text": block.text}] if block.text.strip() else []
            content = [*words, *map(anthropic_image, block.images)] if block.images else block.text
            blocks.append({"type": "tool_result", "tool_use_id": block.call_id, "content": content, **failed})
        elif block.call_id:
            blocks.append({"type": "tool_use", "id": block.call_id, "name": block.name, "input": block.args or {}})
        elif block.redacted:
            blocks.append({"type": "redacted_thinking", "data": block.signature})
        elif block.thinking:
            blocks.append({"type": "thinking", "thinking": block.text, "signature": block.signature})
        elif block.images:
            blocks += map(anthropic_image, block.images)
        elif block.text.strip():
            blocks.append({"type": "text", "text": block.text})
    if blocks:
        yield {"role": "assistant" if turn.role == "assistant" else "user", "content": blocks}


def anthropic_image(image: Image) -> JsonObject:
    data = {"type": "base64", "media_type": image.media_type, "data": image.data}
    return {"type": "image", "source": {"type": "url", "url": image.url} if image.url else data}


def _gemini(turn: StoredTurn) -> Iterator[JsonObject]:
    parts: list[JsonObject] = []
    for block in turn.blocks:
        signed = {"thoughtSignature": block.signature} if block.signature else {}
        named = {"id": block.call_id, "name": block.name}
        if block.is_result:
            reply = {"error" if block.error else "output": block.text}
            pictures = {"parts": [*map(_gemini_image, block.images)]} if block.images else {}
            parts.append({"functionResponse": {**named, "response": reply, **pictures}})
        elif block.call_id:
            parts.append({"functionCall": {**named, "args": block.args or {}}, **signed})
        elif block.images:
            parts += map(_gemini_image, block.images)
        elif block.text or block.signature:
            parts.append({"text": block.text, **({"thought": True} if block.thinking else {}), **signed})
    if parts:
        yield {"role": "model" if turn.role == "assistant" else "user", "parts": parts}


def _gemini_image(image: Image) -> JsonObject:
    data = {"mimeType": image.media_type, "data": image.data}
    return {"fileData": {"fileUri": image.url}} if image.url else {"inlineData": data}


def _responses(turn: StoredTurn) -> Iterator[JsonObject]:
    kind = "output_text" if turn.role == "assistant" else "input_text"
    given: list[JsonObject] = []
    for block in turn.blocks:
        item_id = {"id": block.id} if block.id else {}
        pictures = [{"type": "input_image", "image_url": to_url(image)} for image in block.images]
        if block.is_result:
            output = [{"type": "input_text", "text": block.text}, *pictures] if pictures else block.text
            yield {"type": "function_call_output", "call_id": block.call_id, "output": output}
        elif block.call_id:
            call = {"call_id": block.call_id, "name": block.name, "arguments": block.arguments}
            yield {"type": "function_call", **call, **item_id}
        elif block.thinking and block.signature.startswith("{"):
            yield decode_json(block.signature)
        elif block.thinking:
            summary = [{"type": "summary_text", "text": block.text}] if block.text else []
            sealed = {"encrypted_content": block.signature} if block.signature else {}
            yield {"type": "reasoning", "summary": summary, **sealed, **item_id}
        elif pictures:
            given += pictures
        elif not block.left_out and turn.role == "user":
            given.append({"type": kind, "text": block.text})
        elif not block.left_out:
            yield {"type": "message", "role": turn.role, "content": [{"type": kind, "text": block.text}], **item_id}
    if given:
        yield {"type": "message", "role": "user", "content": given}


def _chat(turn: StoredTurn) -> Iterator[JsonObject]:
    thought = ""
    calls: list[JsonObject] = []
    given: list[JsonObject] = []
    for block in turn.blocks:
        pictures = [{"type": "image_url", "image_url": {"url": to_url(image)}} for image in block.images]
        if block.is_result:
            failed = {"_err": True} if block.error else {}
            answer = [{"type": "text", "text": block.text}, *pictures] if pictures else block.text
            yield {"role": "tool", "tool_call_id": block.call_id, "content": answer, **failed}
        elif block.call_id:
            called = {"name": block.name, "arguments": block.arguments}
            calls.append({"id": block.call_id, "type": "function", "function": called})
        elif block.thinking:
            thought += block.text
        else:
            given += pictures or ([{"type": "text", "text": block.text}] if block.text else [])
    if given or calls or thought:
        texts = [part["text"] for part in given if part["type"] == "text"]
        is_text = len(texts) == len(given) and (turn.role == "assistant" or len(texts) < 2)
        content: Json = "".join(texts) if is_text else given
        besides = {"reasoning_content": thought, "tool_calls": calls}
        yield {"role": turn.role, "content": content, **{name: field for name, field in besides.items() if field}}


_WRITERS = {"anthropic": _anthropic, "gemini": _gemini, "openai-responses": _responses, "openai-chat": _chat}


# opencode: messages and parts in SQLite, in older versions one file for each; a tool part has both call and result.

# A message and its parts, each with its id.
OpencodeMessage = tuple[JsonObject, list[JsonObject]]


def _opencode(file: SourceFile) -> Iterator[StoredConversation]:
    for session, revert, messages in _opencode_sessions(file):
        walk, provider, speaker = SessionWalk(file, session), "", ""
        signers_of: dict[tuple[str, str], dict[str, None]] = {}
        standing, walk.left_out = _opencode_reverted(messages, as_object(revert))
        summed: dict[str, ClientSummary] = {}
        for stored, parts in standing:
            message = str(stored["id"])
            if stored.get("role") not in ("user", "assistant", "system"):
                kind = str(stored.get("type") or f"message of {stored.get('role')}")
                walk.left_out += [kind] * (kind not in clients()["opencode"]["silent"])
                continue
            provider, walk.model = str(stored.get("providerID") or provider), str(stored.get("modelID") or walk.model)
            at = value_at(stored, "time", "created")
            walk.starts[message] = len(walk.said)
            for part in parts:
                if part.get("type") == "compaction":
                    summed[message] = walk.summary_from(str(part.get("tail_start_id")))
            if stored.get("summary") is True and not stored.get("error"):
                # In older versions no question precedes the summary, which is then itself the first message.
                walk.compactions.append(summed.get(str(stored.get("parentID"))) or ClientSummary(len(walk.said)))
            if stored["role"] == "assistant":
                # A gateway has a name of its own; the provider behind it is known from the signatures.
                signers = signers_of.setdefault((provider, walk.model), {})
                signers |= dict.fromkeys(name for part in parts for name in _opencode_signers(part))
                speaker = " ".join((provider, *signers))
            for group in _opencode_steps(parts):
                blocks = tuple(block for part in group for block in _opencode_part(part))
                walk.said.append(StoredTurn(stored["role"], blocks, milliseconds(at), speaker))
                results = [block for part in group if part.get("type") == "tool" for block in _opencode_result(part)]
                walk.said += [StoredTurn("user", tuple(results), milliseconds(at))] if results else []
            # Each finished step of a message is a request.
            steps = [part.get("tokens") for part in parts if part.get("type") == "step-finish"]
            for step, tokens in enumerate(tokens for tokens in steps if isinstance(tokens, dict)):
                walk.add_request(
                    message, known_provider(provider), usage_in("opencode", tokens), at, f"{message} {step}"
                )
        if walk.said or walk.left_out:
            turns = turns_in_format(session, speaker or provider, walk.said, walk.model, compactions=walk.compactions)
            yield walk.complete(turns)


def _opencode_sessions(file: SourceFile) -> Iterator[tuple[str, Json, list[OpencodeMessage]]]:
    """(id, rewind, messages) of each session in a folder, an export or a database."""
    if file.path.is_dir():
        yield from _opencode_files(file.path)
    elif not file.tables:
        session = as_object(value_at(file.value, "info"))
        rows = as_objects(value_at(file.value, "messages") if session else file.value)
        messages = [(as_object(row.get("info")), as_objects(row.get("parts"))) for row in rows]
        yield str(session.get("id") or file.name), session.get("revert"), messages
    for table in [name for name in ("session", "session_v2") if name in file.tables]:
        reverts = file.rows("SELECT 1 FROM pragma_table_info(?) WHERE name = 'revert'", table)
        query = f"SELECT id, {'revert' if reverts else 'NULL'} FROM {table} ORDER BY time_created, id"
        for session, revert in file.rows(query):
            messages = _opencode_rows(file, session) if {"message", "part"} <= file.tables else []
            # In the second form of the database, each message is one row.
            whole = "SELECT id, type, data FROM session_message WHERE session_id = ? ORDER BY seq, id"
            stored = file.rows(whole, session) if not messages and "session_message" in file.tables else []
            messages += [_opencode_whole(id, kind, decode_json(data, file.path)) for id, kind, data in stored]
            yield session, decode_json(revert or "null"), messages


def _opencode_rows(file: SourceFile, session: str) -> list[OpencodeMessage]:
    parts_of: dict[str, list[JsonObject]] = {}
    of_parts = "SELECT message_id, id, data FROM part WHERE session_id = ? ORDER BY id"
    of_messages = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
    for message, id, part in file.rows(of_parts, session):
        parts_of.setdefault(message, []).append({**decode_json(part, file.path), "id": id})
    messages = [{**decode_json(data, file.path), "id": id} for id, data in file.rows(of_messages, session)]
    return [(message, parts_of.get(message["id"], [])) for message in messages]


def _opencode_whole(id: str, kind: str, data: JsonObject) -> OpencodeMessage:
    """A message of the database's second form in the first form: with a role, and in parts."""
    about, model, text = {**data, "id": id, "type": kind}, as_object(data.get("model")), data.get("text")
    match kind:
        case "assistant":
            about |= {"role": "assistant", "providerID": model.get("providerID"), "modelID": model.get("id")}
            return about, [*as_objects(data.get("content")), {"type": "step-finish", "tokens": data.get("tokens")}]
        case "user" | "synthetic":
            about["role"] = "user"
        case "system":
            about["role"] = "system"
        case "shell":
            about["role"], text = "user", f"Shell command: {data.get('command')}\n\n{data.get('output')}"
        case "compaction" if data.get("status") in (None, "completed"):
            about |= {"role": "user", "summary": True}
            text = "\n\n".join(str(data[name]) for name in ("summary", "recent") if data.get(name))
    return about, [{"type": "text", "text": text}, *({**row, "type": "file"} for row in as_objects(data.get("files")))]


def _is_opencode(file: SourceFile) -> bool:
    """Whether a file is a database of either form, the older folder, an exported session, or its messages alone."""
    exported = file.value if isinstance(file.value, list) else as_objects(value_at(file.value, "messages"))
    is_message = any("parts" in as_object(row) and value_at(row, "info", "role") for row in exported[:1])
    is_database = {"session", "message", "part"} <= file.tables or "session_message" in file.tables
    return is_database or is_message or is_opencode_storage(file.path)


def is_opencode_storage(path: Path) -> bool:
    """Whether a folder is the one of older versions, with a file for each session, message and part."""
    return (path / "session").is_dir() and any((path / name).is_dir() for name in ("message", "session/message"))


def _opencode_files(storage: Path) -> Iterator[tuple[str, Json, list[OpencodeMessage]]]:
    """`_opencode_sessions` of a folder; the oldest versions kept messages and parts below `session`."""
    inner = storage / "session" if (storage / "session" / "message").is_dir() else storage
    sessions = _opencode_values(storage, "session/*/*.json")
    named = {str(session["id"]) for session in sessions}
    sessions += [{"id": path.name} for path in sorted(inner.glob("message/*")) if path.name not in named]
    for session in sessions:
        messages = _opencode_values(inner, f"message/{session['id']}/*.json")
        folders = [(f"part/{message['id']}", f"part/{session['id']}/{message['id']}") for message in messages]
        parts = [[part for place in pair for part in _opencode_values(inner, f"{place}/*.json")] for pair in folders]
        yield str(session["id"]), session.get("revert"), list(zip(messages, parts, strict=True))


def _opencode_values(folder: Path, pattern: str) -> list[JsonObject]:
    """The objects in files, each with its id, in order of time; an unreadable one has a `type` that says so."""
    values: list[JsonObject] = []
    for path in folder.glob(pattern):
        try:
            value = as_object(source_file(path).value)
        except FormatError:
            value = {}
        values.append({**(value or {"type": f"{path.name}, which cannot be read"}), "id": path.stem})
    return sorted(values, key=lambda value: (value_at(value, "time", "created") or 0, value["id"]))


def _opencode_reverted(messages: list[OpencodeMessage], revert: JsonObject) -> tuple[list[OpencodeMessage], list[str]]:
    """The messages before the place (a message or part) that a session was rewound to, and a note for each other."""
    to, part_id = revert.get("messageID"), revert.get("partID")
    place = next((n for n, (stored, _) in enumerate(messages) if stored["id"] == to), len(messages))
    out = messages[:place]
    for stored, parts in messages[place : place + 1] if part_id else ():
        out.append((stored, [*takewhile(lambda part: part["id"] != part_id, parts)]))
    return out, ["rewound message"] * (len(messages) - len(out))


# Files of these types are left out, because their text has a part of its own.
_OPENCODE_TEXT = ("text/plain", "application/x-directory")


def _opencode_steps(parts: list[JsonObject]) -> list[list[JsonObject]]:
    """The parts of a message by steps; each step is an answer, followed by its tool results."""
    steps: list[list[JsonObject]] = [[]]
    for part in parts:
        if part.get("type") == "step-start" and steps[-1]:
            steps.append([])
        steps[-1].append(part)
    return steps


# The AI SDK's names for providers' signatures.
_SIGNATURES = ("signature", "redactedData", "reasoningEncryptedContent", "thoughtSignature")


def _opencode_part(part: JsonObject) -> Iterator[StoredBlock]:
    kind, text = part.get("type"), str(part.get("text") or "")
    signed = map(as_object, _opencode_signers(part).values())
    meta: JsonObject = {key: field for facts in signed for key, field in facts.items()}
    signature, id = next((str(meta[key]) for key in _SIGNATURES if meta.get(key)), ""), str(meta.get("itemId") or "")
    if kind == "text" and not part.get("ignored"):
        yield StoredBlock(text, id=id, signature=signature)
    elif kind == "reasoning":
        redacted = bool(meta.get("redactedData"))
        yield StoredBlock(text, thinking=True, signature=signature, id=id, redacted=redacted)
    elif kind == "tool":
        call_id, name = _opencode_call(part)
        yield StoredBlock(call_id=call_id, name=name, args=part["state"].get("input"), signature=signature, id=id)
    elif kind == "file":
        yield from _opencode_file(part)
    elif kind in (words := clients()["opencode"]["words"]):
        yield StoredBlock(words[kind])
    elif kind not in clients()["opencode"]["silent"] and kind != "text":
        yield StoredBlock(left_out=str(kind))


def _opencode_signers(part: JsonObject) -> JsonObject:
    """The metadata of a part by provider."""
    return as_object(part.get("metadata") or part.get("providerMetadata") or value_at(part, "provider", "metadata"))


def _opencode_call(part: JsonObject) -> tuple[str, str]:
    """The id of a call, and the name of its tool."""
    return str(part.get("callID") or part.get("id")), str(part.get("tool") or part.get("name"))


def _opencode_file(part: JsonObject) -> Iterator[StoredBlock]:
    mime, url = str(part.get("mime")), str(part.get("url") or part.get("uri"))
    if mime not in _OPENCODE_TEXT:
        held = url.partition(",")[2] if url.startswith("data:") else url if url.startswith("http") else ""
        yield media_block(mime, held)


def _opencode_result(part: JsonObject) -> Iterator[StoredBlock]:
    """The result in a tool part, unless the tool was still running."""
    state = part["state"]
    if state.get("status") in ("pending", "running"):
        return
    failed, (call_id, name) = state.get("status") != "completed", _opencode_call(part)
    problem = value_at(state, "error", "message") or state.get("error")
    text = text_in(problem if failed else state.get("output") or state.get("content"))
    content = [row for row in as_objects(state.get("content")) if row.get("type") == "file"]
    files = [block for file in (*as_objects(state.get("attachments")), *content) for block in _opencode_file(file)]
    given = StoredBlock(text, call_id=call_id, name=name, is_result=True, error=failed)
    yield from with_media(given, files)


OPENCODE = SessionStore("opencode", _is_opencode, _opencode)
