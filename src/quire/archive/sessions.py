"""Session stores of other programs, read as conversations: one small reader each, and a table of them.

A reader gives messages in a wire format, which `providers.import_` makes entries of; it knows what its store lacks.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from quire import providers
from quire.errors import FormatError, NotFound
from quire.log.entries import check
from quire.log.shapes import short
from quire.values import Entry, Json, JsonObject


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

    def entries(self) -> list[Entry]:
        """The conversation as the log takes it."""
        made = providers.import_(self.format, self.value, self.model)
        return [check(entry.body) for entry in [*_timed(made, self), *self.reply]]


def _timed(entries: list[Entry], of: StoredConversation) -> Iterator[Entry]:
    """Entries with the time of their message; each item of the Responses API is one of its own."""
    items = of.format in ("openai-responses", "openai-agents")
    place = -1
    for entry in entries:
        own = "message" in entry.wire or "more" in entry.wire or entry.kind not in ("system", "tools")
        place += own and (items or not entry.wire.get("more"))
        at = of.times[place] if own and 0 <= place < len(of.times) else None
        yield entry if at is None else msgspec.structs.replace(entry, body={**entry.body, "at": at})


class SourceFile(msgspec.Struct, frozen=True):
    """What stands at a path: lines of JSON, one JSON value, a database, text, or a folder."""

    path: Path
    lines: tuple[tuple[int, Json], ...] = ()
    value: Json = None
    tables: frozenset[str] = frozenset()
    text: str = ""

    @property
    def name(self) -> str:
        return self.path.stem

    def objects(self) -> list[JsonObject]:
        """The lines, or the elements of the one list, or the one object."""
        given = [line for _, line in self.lines] if self.lines else self.value
        listed = given if isinstance(given, list) else [given]
        return [each for each in listed if isinstance(each, dict)]

    def numbered(self) -> tuple[tuple[int, Json], ...]:
        """The lines with their numbers; one value is line 1."""
        return self.lines or ((1, self.value),)

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with contextlib.closing(_database(self.path)) as conn:
            return conn.execute(query, values).fetchall()


class SessionStore(msgspec.Struct, frozen=True):
    """A program's store: how it is recognised, how it is read, what it leaves out besides a system prompt and tools."""

    name: str
    recognises: Callable[[SourceFile], bool]
    read: Callable[[SourceFile], Iterable[StoredConversation]]
    lacks: tuple[str, ...] = ()


def source_file(path: Path, text: str | None = None) -> SourceFile:
    """A file, opened as what it is."""
    if text is None and path.is_dir():
        return SourceFile(path)
    try:
        data = path.read_bytes() if text is None else text.encode()
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path} cannot be read: {error}", hint="Check the file.") from error
    if data.startswith(b"SQLite format 3\0"):
        with contextlib.closing(_database(path)) as conn:
            names = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return SourceFile(path, tables=frozenset(names))
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path} is neither text nor a database", hint="Name a session file.") from error
    return _json_file(path, text)


def _json_file(path: Path, text: str) -> SourceFile:
    if not text.lstrip().startswith(("{", "[")):
        return SourceFile(path, text=text)
    with contextlib.suppress(ValueError, RecursionError):
        return SourceFile(path, value=json.loads(text), text=text)
    lines: list[tuple[int, Json]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                lines.append((number, json.loads(line)))
            except (ValueError, RecursionError) as error:
                problem = f"{path.name} is not JSON: {error}"
                raise FormatError(
                    problem, line=number, column=1, hint="Give one JSON value a line."
                ) from error
    return SourceFile(path, lines=tuple(lines), text=text)


def _database(path: Path) -> sqlite3.Connection:
    """Read and never write; a file whose folder cannot be written either is taken as it stands."""
    for how in ("mode=ro", "mode=ro&immutable=1"):
        try:
            conn = sqlite3.connect(f"file:{path.resolve()}?{how}".replace("#", "%23"), uri=True)
            conn.execute("SELECT 1 FROM sqlite_master").fetchall()
            return conn
        except sqlite3.Error as error:
            problem = error
    raise FormatError(f"{path} cannot be read: {problem}", hint="Copy it, and give the copy.")


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


def _conversation(
    name: str, provider: str, turns: Sequence[StoredTurn], model: str = "", head: JsonObject | None = None
) -> StoredConversation:
    """Turns in the format of the provider that answered them; with a system prompt where there is one."""
    format = next((wire for word, wire in _SPEAKS.items() if word in provider), "openai-chat")
    if format == "openai-responses" and not any(block.signature for turn in turns for block in turn.blocks):
        format = "openai-chat"
    write, field = _WRITERS[format]
    told = (head or {}).get("system") if format == "openai-chat" else ""
    messages: list[tuple[int | None, JsonObject]] = (
        [(None, {"role": "system", "content": told})] if told else []
    )
    messages += [(turn.at, message) for turn in turns for message in write(turn)]
    value: JsonObject = {**_head(format, head or {}), field: [message for _, message in messages]}
    return StoredConversation(name, format, value, model, times=tuple(at for at, _ in messages))


def _head(format: str, head: JsonObject) -> JsonObject:
    """A system prompt and tools ({name, description, parameters}) as a request of the format holds them."""
    told, tools = head.get("system") or "", head.get("tools") or []
    systems: dict[str, JsonObject] = {
        "anthropic": {"system": told},
        "gemini": {"systemInstruction": {"parts": [{"text": told}]}},
        "openai-responses": {"instructions": told},
    }
    made: JsonObject = systems.get(format, {}) if told else {}
    if tools and format == "anthropic":
        made["tools"] = [
            {"name": t["name"], "description": t["description"], "input_schema": t["parameters"]}
            for t in tools
        ]
    elif tools and format == "gemini":
        made["tools"] = [{"functionDeclarations": tools}]
    elif tools:
        made["tools"] = [
            {"type": "function", **({"function": t} if format == "openai-chat" else t)} for t in tools
        ]
    return made


_SPEAKS = {"anthropic": "anthropic", "claude": "anthropic", "google": "gemini", "gemini": "gemini", "vertex": "gemini", "openai": "openai-responses", "gpt": "openai-responses"}  # fmt: skip


def _anthropic(turn: StoredTurn) -> Iterator[JsonObject]:
    blocks: list[JsonObject] = []
    for block in turn.blocks:
        if block.is_result:
            failed = {"is_error": True} if block.error else {}
            blocks.append(
                {"type": "tool_result", "tool_use_id": block.call_id, "content": block.text, **failed}
            )
        elif block.call_id:
            blocks.append(
                {"type": "tool_use", "id": block.call_id, "name": block.name, "input": block.args or {}}
            )
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
        if block.is_result:
            reply = {"error" if block.error else "output": block.text}
            parts.append({"functionResponse": {"id": block.call_id, "name": block.name, "response": reply}})
        elif block.call_id:
            parts.append(
                {
                    "functionCall": {"id": block.call_id, "name": block.name, "args": block.args or {}},
                    **signed,
                }
            )
        elif block.image[1]:
            parts.append({"inlineData": {"mimeType": block.image[0], "data": block.image[1]}})
        elif block.text:
            parts.append({"text": block.text, **({"thought": True} if block.thinking else {}), **signed})
    if parts:
        yield {"role": "model" if turn.role == "assistant" else "user", "parts": parts}


def _responses(turn: StoredTurn) -> Iterator[JsonObject]:
    kind = "output_text" if turn.role == "assistant" else "input_text"
    for block in turn.blocks:
        own = {"id": block.id} if block.id else {}
        if block.is_result:
            yield {"type": "function_call_output", "call_id": block.call_id, "output": block.text}
        elif block.call_id:
            call = {"call_id": block.call_id, "name": block.name, "arguments": block.arguments}
            yield {"type": "function_call", **call, **own}
        elif block.thinking and block.signature.startswith("{"):
            yield json.loads(block.signature)
        elif block.thinking:
            summary = [{"type": "summary_text", "text": block.text}] if block.text else []
            yield {"type": "reasoning", "summary": summary, "encrypted_content": block.signature, **own}
        elif block.image[1]:
            yield {"role": "user", "content": [{"type": "input_image", "image_url": block.image_url}]}
        else:
            yield {
                "type": "message",
                "role": turn.role,
                "content": [{"type": kind, "text": block.text}],
                **own,
            }


def _chat(turn: StoredTurn) -> Iterator[JsonObject]:
    for one in turn.blocks:
        if one.is_result:
            failed = {"_err": True} if one.error else {}
            yield {"role": "tool", "tool_call_id": one.call_id, "content": one.text, **failed}
    own = [block for block in turn.blocks if not block.is_result]
    text = "".join(each.text for each in own if not (each.thinking or each.call_id or each.image[1]))
    calls = [
        {"id": each.call_id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
        for each in own
        if each.call_id
    ]
    images = [{"type": "image_url", "image_url": {"url": each.image_url}} for each in own if each.image[1]]
    thought = "".join(each.text for each in own if each.thinking)
    if text or calls or images or thought:
        content: Json = [{"type": "text", "text": text}, *images] if images else text
        yield {
            "role": turn.role,
            "content": content,
            **({"reasoning_content": thought} if thought else {}),
            **({"tool_calls": calls} if calls else {}),
        }


_WRITERS: dict[str, tuple[Callable[[StoredTurn], Iterator[JsonObject]], str]] = {
    "anthropic": (_anthropic, "messages"),
    "gemini": (_gemini, "contents"),
    "openai-responses": (_responses, "input"),
    "openai-chat": (_chat, "messages"),
}


def milliseconds(stamp: Json) -> int | None:
    """A time as stores write it: ISO 8601, seconds or milliseconds."""
    if isinstance(stamp, int | float) and not isinstance(stamp, bool):
        return int(stamp if stamp > 1e11 else stamp * 1000)
    try:
        return round(datetime.fromisoformat(str(stamp).replace("Z", "+00:00")).timestamp() * 1000)
    except ValueError:
        return None


def text_in(content: Json) -> str:
    """The text of a content: itself, or that of its parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(text_in(block) for block in content)
    if isinstance(content, dict):
        return str(content.get("text") or "")
    return "" if content is None else json.dumps(content, ensure_ascii=False)


def _fit(file: SourceFile, number: int, one: Json, what: str) -> FormatError:
    """A line that is not what its store writes."""
    fields = f"the fields {', '.join(list(one)[:6])}" if isinstance(one, dict) else short(one)
    return FormatError(f"{file.path.name} holds {fields}, which is not {what}", line=number, column=1, hint="Check the file, or force another reader with --from.")  # fmt: skip


# Claude Code: lines by uuid; one reply is several lines of one message id; side chains are other conversations.


def _claude_code(file: SourceFile) -> Iterator[StoredConversation]:
    chains: dict[str, list[JsonObject]] = {}
    seen: set[str] = set()
    for number, one in file.numbered():
        if not isinstance(one, dict) or not isinstance(one.get("type"), str):
            raise _fit(file, number, one, "a line of Claude Code")
        said = one.get("message")
        if one["type"] not in ("user", "assistant") or str(one.get("uuid") or number) in seen:
            continue
        if not isinstance(said, dict) or "content" not in said:
            raise _fit(file, number, one, "a message of Claude Code")
        seen.add(str(one.get("uuid") or number))
        side = f"-{one.get('agentId') or 'side'}" if one.get("isSidechain") else ""
        chain = chains.setdefault(f"{one.get('sessionId') or file.name}{side}", [])
        _rewind(chain, one)
        chain.append(one)
    for name, chain in chains.items():
        merged = _merged(chain)
        models = [str(each["message"].get("model") or "<") for each in reversed(chain)]
        model = next((model for model in models if not model.startswith("<")), "")
        times = tuple(milliseconds(at) for at, _ in merged)
        yield StoredConversation(name, "anthropic", [message for _, message in merged], model, times=times)


def _rewind(chain: list[JsonObject], one: JsonObject) -> None:
    """A question that was asked from an earlier place leaves behind what came after it."""
    parent = one.get("parentUuid")
    asks = one["type"] == "user" and not _results(one)
    places = [n for n, before in enumerate(chain) if before.get("uuid") == parent]
    if not asks or not parent or not places:
        return
    after = places[0] + 1
    while after < len(chain) and _results(chain[after]):
        after += 1
    del chain[after:]


def _results(line: JsonObject) -> bool:
    content = line["message"]["content"]
    blocks = content if isinstance(content, list) else []
    return any(isinstance(block, dict) and block.get("type") == "tool_result" for block in blocks)


def _merged(chain: list[JsonObject]) -> list[tuple[Json, JsonObject]]:
    """(time, message), the lines of one reply put together."""
    out: list[tuple[Json, JsonObject]] = []
    last = ""
    for line in chain:
        said = line["message"]
        blocks = said["content"] if isinstance(said["content"], list) else None
        if blocks is not None and said.get("id") and said["id"] == last:
            out[-1][1]["content"].extend(blocks)
        else:
            content = list(blocks) if blocks is not None else said["content"]
            out.append((line.get("timestamp"), {"role": said["role"], "content": content}))
        last = said.get("id") or ""
    return out


# Codex: the items of the Responses API, verbatim, among lines about the session.


def _codex(file: SourceFile) -> Iterator[StoredConversation]:
    items: list[JsonObject] = []
    times: list[int | None] = []
    told = model = ""
    name = file.name
    for number, each in file.numbered():
        held = each.get("payload") if isinstance(each, dict) else None
        if not isinstance(each, dict) or not isinstance(held, dict) or not isinstance(each.get("type"), str):
            raise _fit(file, number, each, "a line of a Codex rollout")
        if each["type"] == "response_item":
            items.append({key: value for key, value in held.items() if not key.startswith("internal_")})
            times.append(milliseconds(each.get("timestamp")))
        elif each["type"] == "session_meta":
            told = text_in(held.get("base_instructions") or held.get("instructions") or "")
            name = str(held.get("id") or name)
        elif each["type"] == "turn_context":
            model = str(held.get("model") or model)
    value = {"instructions": told, "input": items} if told else {"input": items}
    yield StoredConversation(name, "openai-responses", value, model, times=tuple(times))


# pi: a tree of lines; the newest leaf is the conversation.


def _pi(file: SourceFile) -> Iterator[StoredConversation]:
    lines: dict[str, JsonObject] = {}
    newest, name = "", file.name
    for number, one in file.numbered():
        if not isinstance(one, dict) or not isinstance(one.get("type"), str):
            raise _fit(file, number, one, "a line of pi")
        if one["type"] == "session":
            name = str(one.get("id") or name)
        elif one.get("id"):
            newest = str(one["id"])
            lines[newest] = one
    chain: list[JsonObject] = []
    while newest in lines:
        chain.append(lines.pop(newest))
        newest = str(chain[-1].get("parentId") or "")
    said = [each["message"] for each in reversed(chain) if each["type"] == "message"]
    answers = [each for each in said if each.get("role") == "assistant"]
    api = next((str(answer.get("api") or answer.get("provider") or "") for answer in reversed(answers)), "")
    model = next((str(answer["model"]) for answer in reversed(answers) if answer.get("model")), "")
    yield _conversation(name, api, [_pi_turn(each) for each in said], model)


def _pi_turn(said: JsonObject) -> StoredTurn:
    at = milliseconds(said.get("timestamp"))
    if said.get("role") == "toolResult":
        told = StoredBlock(text_in(said.get("content")), call_id=str(said.get("toolCallId")), name=str(said.get("toolName")), is_result=True, error=bool(said.get("isError")))  # fmt: skip
        return StoredTurn("user", (told,), at)
    content = said.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return StoredTurn(str(said.get("role")), tuple(map(_pi_block, blocks)), at)


def _pi_block(block: JsonObject) -> StoredBlock:
    match block.get("type"):
        case "thinking":
            return StoredBlock(str(block.get("thinking") or ""), thinking=True, signature=str(block.get("thinkingSignature") or ""))  # fmt: skip
        case "toolCall":
            call_id, _, id = str(block.get("id")).partition("|")
            return StoredBlock(call_id=call_id, id=id, name=str(block.get("name")), args=block.get("arguments"), signature=str(block.get("thoughtSignature") or ""))  # fmt: skip
        case "image":
            return StoredBlock(image=(str(block.get("mimeType")), str(block.get("data"))))
    return StoredBlock(text_in(block))


# gemini-cli: lines by id, a later one in place of the earlier; calls come with the line that first shows them.


def _gemini_cli(file: SourceFile) -> Iterator[StoredConversation]:
    contents: list[tuple[int | None, JsonObject]] = []
    places: dict[str, int] = {}
    called: set[str] = set()
    model, name = "", file.name
    answered = {id for line in _gemini_lines(file) for id in _answered(line.get("content"))}
    for one in _gemini_lines(file):
        name, model = str(one.get("sessionId") or name), str(one.get("model") or model)
        at, id = milliseconds(one.get("timestamp")), str(one.get("id") or "")
        if one.get("type") not in ("user", "gemini"):
            continue
        calls = [call for call in one.get("toolCalls") or () if call.get("id") not in called]
        parts = _gemini_parts(one) if id not in places else []
        parts += [{"functionCall": {"id": c.get("id"), "name": c.get("name"), "args": c.get("args") or {}}} for c in calls]  # fmt: skip
        if id in places and not calls and one["type"] == "user":
            contents[places[id]] = (at, {"role": "user", "parts": _gemini_parts(one)})
        elif parts:
            places.setdefault(id, len(contents))
            contents.append((at, {"role": "user" if one["type"] == "user" else "model", "parts": parts}))
        called |= {call["id"] for call in calls if call.get("id")}
        results = [
            part for call in calls if call.get("id") not in answered for part in call.get("result") or ()
        ]
        if results:
            contents.append((at, {"role": "user", "parts": results}))
    value = [content for _, content in contents]
    yield StoredConversation(name, "gemini", value, model, times=tuple(at for at, _ in contents))


def _gemini_lines(file: SourceFile) -> Iterator[JsonObject]:
    """Message lines, those of a header's patches among them."""
    for number, each in file.numbered():
        if not isinstance(each, dict):
            raise _fit(file, number, each, "a line of gemini-cli")
        patch = each.get("$set")
        yield from [each, *((patch if isinstance(patch, dict) else each).get("messages") or ())]


def _gemini_parts(one: JsonObject) -> list[JsonObject]:
    thoughts = [
        ": ".join(filter(None, (t.get("subject"), t.get("description")))) for t in one.get("thoughts") or ()
    ]
    content = one.get("content")
    said = [{"text": content}] if isinstance(content, str) and content else content or []
    return [*({"text": text, "thought": True} for text in thoughts), *said]


def _answered(content: Json) -> list[str]:
    parts = [part for part in (content if isinstance(content, list) else ()) if isinstance(part, dict)]
    return [str(part["functionResponse"].get("id")) for part in parts if part.get("functionResponse")]


# opencode: messages and parts in SQLite; a tool part holds its call and its result.


def _opencode(file: SourceFile) -> Iterator[StoredConversation]:
    for (session,) in file.rows("SELECT id FROM session ORDER BY time_created, id"):
        turns: list[StoredTurn] = []
        provider = model = ""
        parts_of: dict[str, list[JsonObject]] = {}
        for message, part in file.rows(
            "SELECT message_id, data FROM part WHERE session_id = ? ORDER BY id", session
        ):
            parts_of.setdefault(message, []).append(json.loads(part))
        query = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
        for message, data in file.rows(query, session):
            held = json.loads(data)
            provider, model = str(held.get("providerID") or provider), str(held.get("modelID") or model)
            parts = parts_of.get(message, [])
            at = milliseconds((held.get("time") or {}).get("created"))
            turns.append(
                StoredTurn(held["role"], tuple(each for part in parts for each in _opencode_part(part)), at)
            )
            results = tuple(_opencode_result(part) for part in parts if part.get("type") == "tool")
            turns += [StoredTurn("user", results, at)] if results else []
        if turns:
            yield _conversation(session, provider, turns, model)


def _opencode_part(part: JsonObject) -> Iterator[StoredBlock]:
    if part.get("type") == "text":
        yield StoredBlock(str(part.get("text") or ""))
    elif part.get("type") == "reasoning":
        meta = (part.get("metadata") or {}).get("anthropic") or {}
        yield StoredBlock(
            str(part.get("text") or ""), thinking=True, signature=str(meta.get("signature") or "")
        )
    elif part.get("type") == "tool":
        yield StoredBlock(
            call_id=str(part.get("callID")), name=str(part.get("tool")), args=part["state"].get("input")
        )


def _opencode_result(part: JsonObject) -> StoredBlock:
    state = part["state"]
    text = state.get("output") if state.get("status") == "completed" else state.get("error")
    return StoredBlock(text_in(text), call_id=str(part.get("callID")), name=str(part.get("tool")), is_result=True, error=state.get("status") != "completed")  # fmt: skip


# llm: a tree of messages by hash, tips of threads; before that, prompts and responses.


def _llm(file: SourceFile) -> Iterator[StoredConversation]:
    if "turns" not in file.tables:
        yield from _llm_responses(file)
        return
    messages = {
        hash: (parent, role)
        for hash, parent, role in file.rows("SELECT hash, parent_hash, role FROM messages")
    }
    blocks: dict[str, list[StoredBlock]] = {}
    for hash, *part in file.rows("SELECT message_hash, type, text, payload FROM parts ORDER BY position, id"):
        blocks.setdefault(hash, []).append(_llm_part(*part))
    for thread, tip in file.rows("SELECT id, tip_message_hash FROM threads ORDER BY datetime_utc, id"):
        turns: list[StoredTurn] = []
        while tip in messages and len(turns) <= len(messages):
            turns.insert(0, StoredTurn(messages[tip][1], tuple(blocks.get(tip, ()))))
            tip = messages[tip][0]
        models = file.rows("SELECT model FROM turns WHERE thread_id = ? ORDER BY id DESC", thread)
        tools = file.rows("SELECT DISTINCT name, description, input_schema FROM tools JOIN turn_tools ON tools.id = tool_id JOIN turns ON turns.id = turn_id WHERE thread_id = ? ORDER BY tools.id", thread)  # fmt: skip
        told = "\n".join(block.text for turn in turns if turn.role == "system" for block in turn.blocks)
        head = {"system": told, "tools": [{"name": n, "description": d or "", "parameters": json.loads(s or "{}")} for n, d, s in tools]}  # fmt: skip
        model = str(models[0][0]) if models else ""
        kept = [turn for turn in turns if turn.role != "system"]
        yield _conversation(thread, model, kept, model.rpartition("/")[2], head)


def _llm_part(kind: str, text: str | None, payload: str | None) -> StoredBlock:
    held: JsonObject = json.loads(payload or "{}")
    meta: JsonObject = next(iter((held.get("provider_metadata") or {}).values()), {})
    if kind == "reasoning":
        return StoredBlock(text or "", thinking=True, signature=str(meta.get("signature") or ""))
    if kind == "tool_call":
        return StoredBlock(
            call_id=str(held.get("tool_call_id")), name=str(held.get("name")), args=held.get("arguments")
        )
    if kind == "tool_result":
        return StoredBlock(text_in(held.get("output")), call_id=str(held.get("tool_call_id")), name=str(held.get("name")), is_result=True)  # fmt: skip
    return StoredBlock(text or "")


def _llm_responses(file: SourceFile) -> Iterator[StoredConversation]:
    query = (
        "SELECT conversation_id, model, system, prompt, response FROM responses ORDER BY conversation_id, id"
    )
    told: dict[str, list[tuple[str, ...]]] = {}
    for name, *rest in file.rows(query):
        told.setdefault(str(name), []).append(tuple(str(each or "") for each in rest))
    for name, rows in told.items():
        messages: list[JsonObject] = [{"role": "system", "content": rows[0][1]}] if rows[0][1] else []
        for _, _, prompt, response in rows:
            messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]
        yield StoredConversation(name, "openai-chat", messages, rows[-1][0])


# aider: markdown; > is the program, #### the user, the rest the model.


def _aider(file: SourceFile) -> Iterator[StoredConversation]:
    chats = re.split(r"^# aider chat started at .*$", file.text, flags=re.M)[1:]
    found: list[list[JsonObject]] = []
    model = ""
    for chat in chats:
        model = next(iter(re.findall(r"^> Model: (\S+)", chat, re.M)), model)
        if not found or "> Restored previous conversation history." not in chat:
            found.append([])
        for line in chat.split("\n"):
            role = "user" if line.startswith("#### ") else "" if line.startswith(">") else "assistant"
            text = line.removeprefix("#### ").rstrip()
            if role and found[-1] and found[-1][-1]["role"] == role:
                found[-1][-1]["content"] += f"\n{text}"
            elif role and text:
                found[-1].append({"role": role, "content": text})
    for number, messages in enumerate(found, 1):
        cleaned = [{**message, "content": message["content"].strip()} for message in messages]
        if cleaned:
            yield StoredConversation(f"aider-{number}", "openai-chat", cleaned, model.rpartition("/")[2])


# Agents whose trajectories are messages of a wire format, with facts of their own beside them.


def _mini_swe_agent(file: SourceFile) -> Iterator[StoredConversation]:
    told = [{key: value for key, value in each.items() if key != "extra"} for each in file.value["messages"]]
    told = [each for each in told if each.get("role") != "exit"]
    config = file.value.get("info", {}).get("config", {}).get("model", {})
    model = str(config.get("model_name") or "").rpartition("/")[2]
    if any("output" in each for each in told):
        items = [
            item
            for each in told
            for item in (each["output"] if isinstance(each.get("output"), list) else [each])
        ]
        yield StoredConversation(file.name, "openai-responses", {"input": items}, model)
    else:
        yield StoredConversation(file.name, "openai-chat", told, model)


def _swe_agent(file: SourceFile) -> Iterator[StoredConversation]:
    messages: list[JsonObject] = []
    for each in file.value.get("history") or ():
        ids = each.get("tool_call_ids") or []
        kept = {
            key: each[key] for key in ("role", "content", "tool_calls", "name") if each.get(key) is not None
        }
        messages.append({**kept, **({"tool_call_id": ids[0]} if each.get("role") == "tool" and ids else {})})
    if not messages:
        for step in file.value.get("trajectory") or ():
            messages += [{"role": "assistant", "content": str(step.get("response") or step.get("action") or "")}, {"role": "user", "content": str(step.get("observation") or "")}]  # fmt: skip
    yield StoredConversation(file.name, "openai-chat", messages)


def _openai_agents(file: SourceFile) -> Iterator[StoredConversation]:
    for (session,) in file.rows("SELECT session_id FROM agent_sessions ORDER BY created_at, session_id"):
        rows = file.rows(
            "SELECT message_data, created_at FROM agent_messages WHERE session_id = ? ORDER BY id", session
        )
        items = [json.loads(data) for data, _ in rows]
        times = tuple(milliseconds(f"{at}Z".replace(" ", "T")) for _, at in rows)
        yield StoredConversation(session, "openai-agents", items, times=times)


def _strands(file: SourceFile) -> Iterator[StoredConversation]:
    for agent in sorted(file.path.glob("agents/agent_*")):
        stored = sorted(
            agent.glob("messages/message_*.json"), key=lambda each: int(each.stem.rpartition("_")[2])
        )
        held = [json.loads(each.read_text("utf-8")) for each in stored]
        messages = [
            {
                "role": each["message"]["role"],
                "content": [_converse(block) for block in each["message"]["content"]],
            }
            for each in held
        ]
        name = f"{file.path.name}-{agent.name}".removesuffix("-agent_default")
        yield StoredConversation(
            name, "bedrock", messages, times=tuple(milliseconds(each.get("created_at")) for each in held)
        )


def _converse(block: JsonObject) -> JsonObject:
    """A block without what strands adds to it for other providers than Bedrock."""
    call = block.get("toolUse")
    if not isinstance(call, dict) or "reasoningSignature" not in call:
        return block
    return {"toolUse": {key: value for key, value in call.items() if key != "reasoningSignature"}}


def _langchain(file: SourceFile) -> Iterator[StoredConversation]:
    facts = [
        (each.get("data") or each.get("kwargs") or {}).get("response_metadata") or {}
        for each in file.objects()
    ]
    model = next((str(fact["model_name"]) for fact in reversed(facts) if fact.get("model_name")), "")
    yield StoredConversation(file.name, "langchain", file.value, model)


# pydantic-ai: requests and responses in parts.


def _pydantic_ai(file: SourceFile) -> Iterator[StoredConversation]:
    turns: list[StoredTurn] = []
    provider = model = told = ""
    for each in file.objects():
        told = str(each.get("instructions") or told)
        provider, model = str(each.get("provider_name") or provider), str(each.get("model_name") or model)
        said = [
            _pydantic_part(part)
            for part in each.get("parts") or ()
            if part.get("part_kind") != "system-prompt"
        ]
        told = told or "\n".join(str(part.get("content")) for part in each.get("parts") or () if part.get("part_kind") == "system-prompt")  # fmt: skip
        role = "assistant" if each.get("kind") == "response" else "user"
        turns.append(StoredTurn(role, tuple(said), milliseconds(each.get("timestamp"))))
    yield _conversation(file.name, provider, turns, model, {"system": told})


def _pydantic_part(part: JsonObject) -> StoredBlock:
    kind, content = part.get("part_kind"), part.get("content")
    details = part.get("provider_details") or {}
    signature = str(part.get("signature") or details.get("thought_signature") or "")
    if kind == "thinking":
        return StoredBlock(
            str(content or ""), thinking=True, signature=signature, id=str(part.get("id") or "")
        )
    if kind in ("tool-call", "builtin-tool-call"):
        given = part.get("args")
        args = json.loads(given) if isinstance(given, str) and given.startswith("{") else given
        return StoredBlock(call_id=str(part.get("tool_call_id")), name=str(part.get("tool_name")), args=args, signature=signature, id=str(part.get("id") or ""))  # fmt: skip
    if kind in ("tool-return", "builtin-tool-return") or (kind == "retry-prompt" and part.get("tool_name")):
        failed = kind == "retry-prompt" or part.get("outcome") in ("failed", "denied", "error")
        return StoredBlock(text_in(content) if isinstance(content, str | list) else json.dumps(content, ensure_ascii=False), call_id=str(part.get("tool_call_id")), name=str(part.get("tool_name")), is_result=True, error=failed)  # fmt: skip
    return StoredBlock(text_in(content), id=str(part.get("id") or ""))


# The table: from the most particular to the least.


def holding(test: Callable[[JsonObject], bool]) -> Callable[[SourceFile], bool]:
    """Whether one of the first lines, or of the elements of a list, is of a shape."""
    return lambda file: any(test(each) for each in file.objects()[:20])


def _has(*fields: str) -> Callable[[JsonObject], bool]:
    return lambda each: all(field in each for field in fields)


def _tables(*names: str) -> Callable[[SourceFile], bool]:
    return lambda file: set(names) <= file.tables


STORES: tuple[SessionStore, ...] = (
    SessionStore("claude-code", holding(lambda each: each.get("type") in ("user", "assistant") and isinstance(each.get("message"), dict) and bool({"uuid", "sessionId"} & each.keys())), _claude_code),
    SessionStore("codex", holding(lambda each: isinstance(each.get("payload"), dict) and each.get("type") in ("session_meta", "response_item", "turn_context", "event_msg")), _codex),
    SessionStore("pi", lambda file: bool(file.objects()) and file.objects()[0].get("type") == "session" and "cwd" in file.objects()[0], _pi),
    SessionStore("gemini-cli", holding(_has("sessionId", "projectHash")), _gemini_cli, ("thought signatures",)),
    SessionStore("opencode", _tables("session", "message", "part"), _opencode),
    SessionStore("llm", lambda file: {"threads", "turns", "parts"} <= file.tables or {"conversations", "responses"} <= file.tables, _llm),
    SessionStore("openai-agents", _tables("agent_sessions", "agent_messages"), _openai_agents),
    SessionStore("aider", lambda file: bool(re.search(r"^# aider chat started at ", file.text[:10_000], re.M)), _aider, ("files in the chat",)),
    SessionStore("mini-swe-agent", holding(lambda each: str(each.get("trajectory_format") or "").startswith("mini-swe-agent")), _mini_swe_agent),
    SessionStore("swe-agent", holding(lambda each: isinstance(each.get("trajectory"), list) and ("history" in each or "info" in each)), _swe_agent),
    SessionStore("strands", lambda file: (file.path / "session.json").is_file() and (file.path / "agents").is_dir(), _strands),
    SessionStore("langchain", lambda file: isinstance(file.value, list) and holding(lambda each: each.get("lc") == 1 or (each.get("type") in ("human", "ai", "system", "tool") and isinstance(each.get("data"), dict)))(file), _langchain),
    SessionStore("pydantic-ai", lambda file: isinstance(file.value, list) and holding(lambda each: each.get("kind") in ("request", "response") and isinstance(each.get("parts"), list))(file), _pydantic_ai),
)  # fmt: skip


def conversations(file: SourceFile, store: SessionStore) -> list[StoredConversation]:
    """What a store holds, each conversation with what is missing from it."""
    try:
        found = list(store.read(file))
    except (LookupError, TypeError, AttributeError, ValueError, sqlite3.Error) as error:
        problem = f"{file.path.name} is not as {store.name} writes it: {type(error).__name__} {error}"
        raise FormatError(problem, hint="Check the file, or force another reader with --from.") from error
    return [msgspec.structs.replace(each, lacks=(*store.lacks, *each.lacks)) for each in found]


def recognised(file: SourceFile, stores: Sequence[SessionStore]) -> SessionStore:
    """The first store whose shape the file has; one that none has is refused with its first place."""
    found = next((store for store in stores if store.recognises(file)), None)
    if found is not None:
        return found
    if file.tables:
        what, line = f"the tables {', '.join(sorted(file.tables)[:6])}", 0
    else:
        line, first = next(iter(file.lines), (1, file.value if file.value is not None else file.text[:60]))
        first = first[0] if isinstance(first, list) and first else first
        what = f"the fields {', '.join(list(first)[:6])}" if isinstance(first, dict) else short(first)
    raise FormatError(
        f"{file.path.name} begins with {what}, which nothing known here begins with",
        line=line,
        column=min(line, 1),
        hint=f"Name what it is with --from: {', '.join(store.name for store in stores)}, or a wire format.",
    )


def files_under(path: Path) -> Iterator[Path]:
    """The files of a folder that may be sessions, by name; a folder that is a session stays whole."""
    if not path.exists():
        raise NotFound(f"there is no file {str(path)!r}", hint="Check the path.")
    if not path.is_dir() or (path / "session.json").is_file():
        yield path
        return
    for each in sorted(path.iterdir()):
        whole = (
            each.is_dir()
            or each.name.removesuffix(".gz").endswith(_SESSION_FILES)
            or each.name == ".aider.chat.history.md"
        )
        if whole and not each.is_symlink():
            yield from files_under(each)


_SESSION_FILES = (".jsonl", ".json", ".db", ".har", ".lhar", ".traj", ".sqlite")
