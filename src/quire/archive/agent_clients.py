"""Sessions of agent clients: Claude Code, Codex, pi, gemini-cli and opencode; the messages, and the requests they were made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec

from quire.archive.stored_conversations import (
    ClientSummary,
    SentCall,
    SessionStore,
    SourceFile,
    StoredConversation,
    counted_call,
    decode_json,
    holding,
    is_opencode_storage,
    known_provider,
    milliseconds,
    misfit,
    source_file,
    text_in,
)
from quire.archive.stored_turns import (
    StoredBlock,
    StoredTurn,
    anthropic_image,
    media_block,
    turns_in_format,
    with_media,
)
from quire.errors import FormatError
from quire.providers.usage import usage, usage_in
from quire.values import Json, JsonObject, Usage, as_list, as_object, as_objects, value_at


@cache
def clients() -> dict[str, JsonObject]:
    """What is known of each client: the table explains its fields."""
    table: JsonObject = msgspec.json.decode((Path(__file__).parent / "data" / "clients.json").read_bytes())
    return as_object(table["clients"])


class SessionWalk:
    """What is found along a session: what was said, what was sent for it, where it was summed up, what is left out."""

    def __init__(self, file: SourceFile, name: str = "") -> None:
        self.file, self.name, self.model = file, name or file.name, ""
        # Lines, items, contents or turns, as the client has them.
        self.said: list[Any] = []
        self.times: list[int | None] = []
        self.calls: dict[str, SentCall] = {}
        self.compactions: list[ClientSummary] = []
        self.left_out: list[str] = []
        # Whether the history was summed up since the last request.
        self.compacted = False
        # Where the words of a line, or of a message, begin.
        self.starts: dict[Json, int] = {}

    def lines(self, expected: str) -> Iterator[tuple[int, JsonObject]]:
        """The lines of the file, each an object of some type."""
        for number, line in self.file.numbered_lines():
            if not isinstance(line, dict) or not isinstance(line.get("type"), str):
                raise misfit(self.file, number, line, expected)
            yield number, line

    def add_request(self, place: object, provider: str, used: Usage, at: Json, id: Json, **more: str) -> None:
        """A request by its reply; one that stands in several lines has all that it used in the last of them."""
        source, about = f"{self.file.path}:{place}", {"session": self.name, "model": self.model, **more}
        about["id"] = str(id or source)
        call = counted_call(source, provider, used=used, at_ms=milliseconds(at), compacted=self.compacted, **about)
        self.calls[call.id] = msgspec.structs.replace(self.calls.get(call.id, call), usage=call.usage)
        self.compacted = False

    def summary_from(self, first: Json, summary: str = "") -> ClientSummary:
        """Here all was summed up but what stands from the line `first` on; nothing is kept where that is not known."""
        count = len(self.said)
        return ClientSummary(count, frozenset(range(self.starts.get(first, count), count)), summary)

    def complete(self, conversation: StoredConversation) -> StoredConversation:
        """A conversation with what was found besides its messages."""
        lost, summed = (*conversation.left_out, *self.left_out), conversation.compactions or tuple(self.compactions)
        times, calls = conversation.times or tuple(self.times), tuple(self.calls.values())
        return msgspec.structs.replace(conversation, times=times, calls=calls, left_out=lost, compactions=summed)


# Claude Code: lines by uuid; one reply is several lines of one message id; side chains are other conversations.


class ClaudeChains:
    """The chains of a file by their names: the session's own, and those of its agents."""

    def __init__(self, file: SourceFile) -> None:
        self._file, self._walks = file, dict[str, SessionWalk]()
        # By chain: its system prompt and tools; what says of it that it was summed up just now.
        self._heads, self._boundaries = dict[str, JsonObject](), dict[str, JsonObject]()
        # By line: the one of its chain that it stands behind, itself where it is taken; its side chain; what it said.
        self._places, self._sides, self._contents = dict[str, str](), dict[str, str](), dict[str, list[Json]]()
        self._side_names: list[str] = []
        self._compacted = self._renders = False

    def take(self, number: int, line: JsonObject) -> None:
        """The next line of the file."""
        uuid, parent = str(line.get("uuid") or number), str(line.get("parentUuid") or "")
        session, side = str(line.get("sessionId") or self._file.name), self._side(line, parent)
        name, self._sides[uuid] = f"{session}-{side}" if side else session, side
        walk = self._walks.setdefault(name, SessionWalk(self._file, name))
        if line.get("subtype") == "compact_boundary":
            self._boundaries[name] = as_object(line.get("compactMetadata"))
        self._compacted |= line.get("subtype") == "compact_boundary" or bool(line.get("isCompactSummary"))
        # What the program itself says of an error was never sent.
        kind, message = "" if line.get("isApiErrorMessage") else line["type"], line.get("message")
        if line["type"] == "attachment":
            message = self._attachment_message(line, name)
            kind = "attachment" if message else ""
        if kind not in ("user", "assistant", "attachment"):
            walk.left_out += [f"line {kind}"] if kind and isinstance(message, dict) else []
            self._places.setdefault(uuid, self._places.get(parent, ""))
            return
        if not isinstance(message, dict) or "content" not in message:
            raise misfit(self._file, number, line, "a message of Claude Code")
        # A session that was taken up again repeats lines as they are.
        if message["content"] in self._contents.setdefault(uuid, []):
            return
        self._contents[uuid].append(message["content"])
        summed = {"compacts": self._boundaries.pop(name)} if name in self._boundaries else {}
        line = {**line, "message": message, **summed}
        _rewind(walk.said, line, self._places)
        walk.said.append(line)
        self._places[uuid] = uuid
        if isinstance(message.get("usage"), dict):
            walk.compacted, self._compacted = self._compacted, False
            used, id = usage("anthropic", message["usage"]), message.get("id") or line.get("uuid")
            about = {"session": session, "agent": side, "model": str(message.get("model") or "")}
            walk.add_request(number, "anthropic", used, line.get("timestamp"), id, **about)

    def _side(self, line: JsonObject, parent: str) -> str:
        """The side chain of a line, by its agent; before agents had ids, each that begins anew is one of its own."""
        if not line.get("isSidechain"):
            return ""
        if line.get("agentId") or self._sides.get(parent):
            return str(line.get("agentId") or self._sides[parent])
        if not self._side_names or not parent:
            self._side_names.append(f"side-{len(self._side_names) + 1}" if self._side_names else "side")
        return self._side_names[-1]

    def _attachment_message(self, line: JsonObject, name: str) -> JsonObject | None:
        """An attachment as a message of its chain, or a part of its head; None where the model was told nothing."""
        self._renders = self._renders or "rendered" in line
        head, content = _claude_head(line), _claude_attachment(line)
        self._heads[name] = {**head, **self._heads.get(name, {})}
        if content is None and not head:
            self._walks[name].left_out.append(f"attachment {value_at(line, 'attachment', 'type')}")
        return {"role": "user", "content": content} if content else None

    def conversations(self) -> Iterator[StoredConversation]:
        """What each chain says, once all lines are taken."""
        for name, walk in self._walks.items():
            merged = _merge_replies(_behind_results(walk.said))
            models = [str(line["message"].get("model") or "<") for line in reversed(walk.said)]
            walk.model = next((model for model in models if not model.startswith("<")), "")
            walk.times = [milliseconds(lines[0].get("timestamp")) for lines, _ in merged]
            walk.compactions = [*_claude_compactions(merged)]
            # Where the client writes down what it told, it told nothing of the rest.
            walk.left_out = [kind for kind in walk.left_out if not (self._renders and kind.startswith("attachment"))]
            messages = [message for _, message in merged]
            if messages:
                value = {**self._heads[name], "messages": messages} if self._heads.get(name) else messages
                yield walk.complete(StoredConversation(name, "anthropic", value, walk.model))


def _claude_code(file: SourceFile) -> Iterator[StoredConversation]:
    chains = ClaudeChains(file)
    for number, line in SessionWalk(file).lines("a line of Claude Code"):
        chains.take(number, line)
    return chains.conversations()


def _claude_compactions(merged: list[tuple[list[JsonObject], JsonObject]]) -> Iterator[ClientSummary]:
    """Where the chain was summed up; a stretch of it may have been preserved."""
    places: dict[Json, int] = {}
    for place, (lines, _) in enumerate(merged):
        if (about := lines[0].get("compacts")) is not None:
            stretch = as_object(about.get("preservedSegment"))
            first, last = places.get(stretch.get("headUuid")), places.get(stretch.get("tailUuid"))
            kept = range(first, last + 1) if first is not None and last is not None else ()
            yield ClientSummary(place, frozenset(kept))
        places |= {line.get("uuid"): place for line in lines}


def _claude_head(line: JsonObject) -> JsonObject:
    """The system prompt and the tools, of an attachment that is a copy of them."""
    attachment = as_object(line.get("attachment"))
    if attachment.get("type") != "prompt_snapshot":
        return {}
    words = [text for text in as_list(attachment.get("systemPrompt")) if isinstance(text, str) and text.strip()]
    listed = [
        {"name": tool.get("name"), "description": tool.get("description") or "", "input_schema": schema.get("input_schema") or schema}
        for tool in as_objects(attachment.get("tools")) if (schema := as_object(tool.get("schema")))
    ]  # fmt: skip
    fields: JsonObject = {"system": [{"type": "text", "text": text} for text in words], "tools": listed}
    return {name: field for name, field in fields.items() if field}


def _claude_attachment(line: JsonObject) -> list[JsonObject] | None:
    """The blocks of an attachment; none where the model was told nothing, None where its words are not kept."""
    attachment = as_object(line.get("attachment"))
    kind = str(attachment.get("type"))
    if kind == "prompt_snapshot":
        return None
    if kind == "queued_command":  # what was asked meanwhile
        return _blocks(attachment.get("prompt"))
    if "rendered" in line:
        return [block for part in as_objects(line["rendered"]) for block in _blocks(part.get("content"))]
    is_heard = attachment.get("hookEvent") in (None, "SessionStart", "UserPromptSubmit")
    texts = clients()["claude-code"]["attached"]
    if kind in clients()["claude-code"]["silent"] or (kind == "hook_success" and not is_heard):
        return []
    image = as_object(value_at(attachment, "content", "file"))
    if kind == "file" and image.get("base64") and str(image.get("type")).startswith("image/"):
        return [anthropic_image((str(image["type"]), str(image["base64"])))]
    words = "\n".join(_words(attachment, *texts[kind].split("."))) if kind in texts else ""
    name = attachment.get("filename") or attachment.get("path") or attachment.get("planFilePath") or ""
    about = f"{kind} {name}".rstrip()
    if words.strip():
        return _blocks(f"<system-reminder>\n{about}:\n{words}\n</system-reminder>")
    return [] if kind in texts and kind != "file" else None


def _blocks(content: Json) -> list[JsonObject]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content.strip() else []
    return as_objects(content)


def _words(value: Json, *names: str) -> Iterator[str]:
    """The texts at a path of names, through lists."""
    if isinstance(value, list):
        for inner in value:
            yield from _words(inner, *names)
    elif names:
        yield from _words(as_object(value).get(names[0]), *names[1:])
    elif isinstance(value, str):
        yield value


def _rewind(chain: list[JsonObject], line: JsonObject, places: dict[str, str]) -> None:
    """A question that was asked from an earlier place leaves behind what came after it."""
    parent = places.get(str(line.get("parentUuid") or ""))
    if line["type"] != "user" or _blocks_of(line, "tool_result") or not parent:
        return
    # Nearly always the line before it.
    place = next((n for n in reversed(range(len(chain))) if chain[n].get("uuid") == parent), None)
    if place is None:
        return
    after = place + 1
    while after < len(chain) and _blocks_of(chain[after], "tool_result"):
        after += 1
    del chain[after:]


def _behind_results(chain: list[JsonObject]) -> Iterator[JsonObject]:
    """What was attached while tools were at work behind what they gave; at the end of a chain it was not sent yet."""
    at_work: set[str] = set()
    waiting: list[JsonObject] = []
    reply = ""
    for line in chain:
        if line["type"] == "attachment" and at_work:
            waiting.append(line)
            continue
        results = {str(block.get("tool_use_id")) for block in _blocks_of(line, "tool_result")}
        id = str(line["message"].get("id") or "")
        if not results and (not id or id != reply):  # what is still open stays so
            yield from waiting
            at_work, waiting = set(), []
        reply = id or reply
        at_work = (at_work | {str(block.get("id")) for block in _blocks_of(line, "tool_use")}) - results
        yield line
        if not at_work:
            yield from waiting
            waiting = []


def _blocks_of(line: JsonObject, kind: str) -> list[JsonObject]:
    return [block for block in as_objects(line["message"]["content"]) if block.get("type") == kind]


def _merge_replies(chain: Iterable[JsonObject]) -> list[tuple[list[JsonObject], JsonObject]]:
    """(lines, message), the lines of one reply put together."""
    out: list[tuple[list[JsonObject], JsonObject]] = []
    for line in chain:
        message, id = line["message"], line["message"].get("id")
        is_more = id and out and out[-1][0][-1]["message"].get("id") == id and isinstance(out[-1][1]["content"], list)
        if is_more and isinstance(message["content"], list):
            out[-1][0].append(line)
            out[-1][1]["content"].extend(message["content"])
        else:
            content = message["content"][:] if isinstance(message["content"], list) else message["content"]
            out.append(([line], {"role": message["role"], "content": content}))
    return out


# Codex: the items of the Responses API, verbatim, among lines about the session.


def _codex(file: SourceFile) -> Iterator[StoredConversation]:
    walk, instructions = SessionWalk(file), ""
    # Where each turn begins, by its id: items, and compactions.
    turns: dict[str, tuple[int, int]] = {}
    # Requests by the records of them, one a reply; before there were any, by what was counted.
    records = SessionWalk(file)
    is_bare = holding(_is_bare_codex)(file)
    for number, line in file.numbered_lines():
        if isinstance(line, dict) and line.get("record_type"):
            continue
        if isinstance(line, dict) and is_bare and "payload" not in line:
            line = {"type": "response_item" if "type" in line else "session_meta", "payload": line}
        payload = line.get("payload") if isinstance(line, dict) else None
        if not isinstance(line, dict) or not isinstance(payload, dict) or not isinstance(line.get("type"), str):
            raise misfit(file, number, line, "a line of a Codex rollout")
        kind, at = line["type"], line.get("timestamp")
        if kind == "response_item":
            walk.said.append(_codex_item(payload))
        elif kind == "compacted":
            kept, more = _codex_compacted(walk, payload)
            walk.compactions.append(ClientSummary(len(walk.said), frozenset(kept)))
            walk.said += more
            walk.compacted = records.compacted = True
        elif kind == "session_meta":
            instructions = text_in(payload.get("base_instructions") or payload.get("instructions") or "")
            if walk.name == file.name:  # behind it stands that of the session it is a fork of
                walk.name = records.name = str(payload.get("id") or file.name)
        elif kind == "turn_context":
            walk.model = records.model = str(payload.get("model") or walk.model)
            turns.setdefault(str(payload.get("turn_id") or number), (len(walk.said), len(walk.compactions)))
        elif kind == "token_usage_record" and isinstance(payload.get("usage"), dict):
            records.add_request(number, "openai", usage_in("codex", payload["usage"]), at, payload.get("response_id"))
        elif payload.get("type") == "thread_rolled_back":
            # The user went back: so many turns were left behind.
            for _ in range(min(int(payload.get("num_turns") or 0), len(turns))):
                _, (start, before) = turns.popitem()
                del walk.said[start:], walk.times[start:], walk.compactions[before:]
        elif isinstance(last := value_at(payload, "info", "last_token_usage"), dict):
            # Beside the usage of the last request stand running totals; some counts are written twice.
            total = value_at(payload, "info", "total_token_usage", "total_tokens")
            if (id := f"{walk.name} {total}") not in walk.calls:
                walk.add_request(number, "openai", usage_in("codex", last), at, id)
        elif kind not in clients()["codex"]["silent"]:
            walk.left_out.append(f"line {kind}")
        walk.times += [milliseconds(at)] * (len(walk.said) - len(walk.times))
    walk.calls = records.calls or walk.calls
    value = {"instructions": instructions, "input": walk.said} if instructions else {"input": walk.said}
    yield walk.complete(StoredConversation(walk.name, "openai-responses", value, walk.model))


def _codex_item(payload: JsonObject) -> JsonObject:
    return {key: value for key, value in payload.items() if not key.startswith("internal_")}


def _codex_compacted(walk: SessionWalk, payload: JsonObject) -> tuple[list[int], list[JsonObject]]:
    """The places of the items that a history which replaces all begins with, and what is new in it behind them."""
    items, earlier = walk.said, walk.compactions[-1] if walk.compactions else ClientSummary(0)
    standing = [*sorted(earlier.kept), *range(earlier.behind, len(items))]
    seen = payload.get("replacement_history")
    if not isinstance(seen, list):  # before it was written down: what the user said, and the summary
        words = [{"type": "input_text", "text": str(payload.get("message") or "")}]
        asked = [items[place] for place in standing if items[place].get("role") == "user"]
        seen = [*asked, {"type": "message", "role": "user", "content": words}]
    places, kept, seen = iter(standing), list[int](), [_codex_item(item) for item in as_objects(seen)]
    for item in seen:
        place = next((place for place in places if _codex_said(items[place]) == _codex_said(item)), None)
        if place is None:
            break
        kept.append(place)
    return kept, seen[len(kept) :]


def _codex_said(item: JsonObject) -> JsonObject:
    apart = ("id", "status", "phase")
    return {key: value for key, value in _codex_item(item).items() if key not in apart and value is not None}


def _is_bare_codex(line: JsonObject) -> bool:
    """The first line of a rollout of 2025, whose items stand by themselves."""
    return {"id", "timestamp", "instructions"} <= line.keys() and not {"type", "payload"} & line.keys()


def _is_codex(line: JsonObject) -> bool:
    kinds = ("session_meta", "response_item", "turn_context", "event_msg")
    return _is_bare_codex(line) or (isinstance(line.get("payload"), dict) and line.get("type") in kinds)


# pi: a tree of lines; the newest leaf is the conversation.


def _pi(file: SourceFile) -> Iterator[StoredConversation]:
    walk, newest = SessionWalk(file), ""
    lines: dict[str, JsonObject] = {}
    ids: list[str] = []
    for number, line in walk.lines("a line of pi"):
        if line["type"] == "session":
            walk.name = str(line.get("id") or walk.name)
        else:
            # Before there were branches, lines had no ids: each follows the one before it.
            parent = line.get("parentId") if line.get("id") else newest
            newest = str(line.get("id") or f"line {number}")
            lines[newest] = {**line, "id": newest, "parentId": parent}
        ids.append(newest)
        walk.compacted = walk.compacted or line["type"] == "compaction"
        message = as_object(line.get("message")) if line["type"] == "message" else {}
        if isinstance(message.get("usage"), dict):
            provider, model = known_provider(str(message.get("provider") or "")), str(message.get("model") or "")
            at, id = message.get("timestamp") or line.get("timestamp"), message.get("responseId") or line.get("id")
            walk.add_request(number, provider, usage_in("pi", message["usage"]), at, id, model=model)
    chain: list[JsonObject] = []
    while newest in lines:
        chain.append(lines.pop(newest))
        newest = str(chain[-1].get("parentId") or "")
    api = ""
    for line in reversed(chain):
        walk.starts[line["id"]] = len(walk.said)
        if line["type"] == "compaction":
            index = line.get("firstKeptEntryIndex")  # before lines had ids
            first = ids[index] if isinstance(index, int) and 0 <= index < len(ids) else line.get("firstKeptEntryId")
            walk.compactions.append(walk.summary_from(first, str(line.get("summary") or "")))
        for message in _pi_messages(line):
            walk.said.append(_pi_turn(message))
            if message.get("role") == "assistant":
                api = str(message.get("api") or message.get("provider") or "")
                walk.model = str(message.get("model") or walk.model)
    walk.left_out = ["message of another branch" for line in lines.values() if line["type"] == "message"]
    yield walk.complete(turns_in_format(walk.name, api, walk.said, walk.model, compactions=walk.compactions))


def _pi_messages(line: JsonObject) -> Iterator[JsonObject]:
    """What a line tells the model, in pi's own words where it is no message of anybody's."""
    message = line["message"] if line["type"] == "message" else {**line, "role": line["type"]}
    match message.get("role"):
        case "user" | "assistant" | "toolResult":
            yield message
        case "custom" | "hookMessage" | "custom_message" if line["type"] != "custom":
            yield {**message, "role": "user"}
        case "branch_summary":
            about = "The following is a summary of a branch that this conversation came back from:"
            yield {**message, "role": "user", "content": f"{about}\n\n<summary>\n{message.get('summary')}</summary>"}
        case "bashExecution" if not message.get("excludeFromContext"):
            output = f"```\n{message['output']}\n```" if message.get("output") else "(no output)"
            failed = f"\n\nCommand exited with code {message['exitCode']}" if message.get("exitCode") else ""
            ended = "\n\n(command cancelled)" if message.get("cancelled") else failed
            yield {**message, "role": "user", "content": f"Ran `{message.get('command')}`\n{output}{ended}"}
        case str(role) if role not in clients()["pi"]["silent"]:
            yield {"role": "user", "content": [{"type": f"{'message of' if role != line['type'] else 'line'} {role}"}]}


def _pi_turn(message: JsonObject) -> StoredTurn:
    at = milliseconds(message.get("timestamp"))
    content = message.get("content")
    blocks = [_pi_block(block) for block in ([content] if isinstance(content, str) else content or [])]
    if message.get("role") == "toolResult":
        call_id, name = str(message.get("toolCallId")).partition("|")[0], str(message.get("toolName"))
        given = StoredBlock(
            text_in(content), call_id=call_id, name=name, is_result=True, error=bool(message.get("isError"))
        )
        return StoredTurn("user", tuple(with_media(given, blocks)), at)
    return StoredTurn(str(message.get("role")), tuple(blocks), at, str(message.get("api") or ""))


def _pi_block(block: JsonObject | str) -> StoredBlock:
    if isinstance(block, str):
        return StoredBlock(block)
    match block.get("type"):
        case "thinking":
            signature, redacted = str(block.get("thinkingSignature") or ""), bool(block.get("redacted"))
            text = "" if redacted else str(block.get("thinking") or "")
            return StoredBlock(text, thinking=True, signature=signature, redacted=redacted)
        case "toolCall":
            (call_id, _, id), name = str(block.get("id")).partition("|"), str(block.get("name"))
            signature, args = str(block.get("thoughtSignature") or ""), block.get("arguments")
            return StoredBlock(call_id=call_id, id=id, name=name, args=args, signature=signature)
        case "image":
            return StoredBlock(image=(str(block.get("mimeType")), str(block.get("data"))))
        case "text":
            # The id of the item it came in, alone or among other facts.
            signature = str(block.get("textSignature") or "")
            facts = as_object(decode_json(signature)) if signature.startswith("{") else {"id": signature}
            return StoredBlock(text_in(block), id=str(facts.get("id") or ""))
    return StoredBlock(left_out=str(block.get("type")))


# gemini-cli: lines by id, a later one in place of the earlier; calls come with the line that first shows them.


def _gemini_cli(file: SourceFile) -> Iterator[StoredConversation]:
    walk = SessionWalk(file)
    contents: list[tuple[int | None, JsonObject]] = []
    # Where the words of a line stand, and where its first content would.
    places: dict[str, int] = {}
    starts: dict[str, int] = {}
    called: set[str] = set()
    answered = {id for line in _gemini_lines(file) for id in _answers(line.get("content"))}
    for number, line in enumerate(_gemini_lines(file), 1):
        walk.name, walk.model = str(line.get("sessionId") or walk.name), str(line.get("model") or walk.model)
        at, id = milliseconds(line.get("timestamp")), str(line.get("id") or f"line {number}")
        if "$rewindTo" in line:
            # What it names goes too; where that is not known, everything.
            del contents[starts.get(str(line["$rewindTo"]), 0) :]
            for known in (starts, places):
                while known and known[next(reversed(known))] >= len(contents):
                    known.popitem()
            continue
        starts.setdefault(id, len(contents))
        if line.get("type") not in ("user", "gemini"):
            # What the program itself said was never sent.
            walk.left_out += (
                [str(line["type"])] if line.get("type") not in (None, *clients()["gemini-cli"]["silent"]) else []
            )
            continue
        if line["type"] == "gemini" and isinstance(line.get("tokens"), dict):
            walk.add_request(id, "gemini", usage_in("gemini-cli", line["tokens"]), line.get("timestamp"), id)
        calls = [call for call in line.get("toolCalls") or () if call.get("id") not in called]
        parts, role = _gemini_parts(line), "user" if line["type"] == "user" else "model"
        if id in places and _answers(parts):
            parts = []  # what tools gave is masked later on: the first has all of it
        if id in places and parts:
            _, earlier = contents[places[id]]
            kept = [part for part in earlier["parts"] if role == "model" and "functionCall" in part]
            contents[places[id]] = (at, {"role": role, "parts": [*parts, *kept]})
            parts = []
        named = ({"id": call.get("id"), "name": call.get("name"), "args": call.get("args") or {}} for call in calls)
        parts += [{"functionCall": call} for call in named]
        if parts:
            places.setdefault(id, len(contents))
            contents.append((at, {"role": role, "parts": parts}))
        called |= {call["id"] for call in calls if call.get("id")}
        # A result may come with a later line than its call.
        done = [call for call in line.get("toolCalls") or () if call.get("id") not in answered and call.get("result")]
        answered |= {str(call["id"]) for call in done if call.get("id")}
        if done:
            contents.append((at, {"role": "user", "parts": [part for call in done for part in call["result"]]}))
    walk.times = [at for at, _ in contents]
    yield walk.complete(StoredConversation(walk.name, "gemini", [content for _, content in contents], walk.model))


def _gemini_lines(file: SourceFile) -> Iterator[JsonObject]:
    """Message lines, those of a header's patches among them."""
    for number, line in file.numbered_lines():
        if not isinstance(line, dict):
            raise misfit(file, number, line, "a line of gemini-cli")
        patch = line.get("$set")
        yield from [line, *((patch if isinstance(patch, dict) else line).get("messages") or ())]


def _gemini_parts(message: JsonObject) -> list[JsonObject]:
    thoughts = [
        ": ".join(filter(None, (t.get("subject"), t.get("description")))) for t in message.get("thoughts") or ()
    ]
    content = message.get("content")
    parts = [{"text": content}] if isinstance(content, str) and content else content or []
    return [*({"text": text, "thought": True} for text in thoughts), *parts]


def _answers(content: Json) -> list[str]:
    return [str(part["functionResponse"].get("id")) for part in as_objects(content) if part.get("functionResponse")]


# opencode: messages and parts, in SQLite, and before that a file each; a tool part holds its call and its result.

# A message and its parts, each with its id.
OpencodeMessage = tuple[JsonObject, list[JsonObject]]


def _opencode(file: SourceFile) -> Iterator[StoredConversation]:
    for session, revert, messages in _opencode_files(file.path) if file.path.is_dir() else _opencode_rows(file):
        walk, provider, speaker = SessionWalk(file, session), "", ""
        signers_of: dict[tuple[str, str], dict[str, None]] = {}
        standing, walk.left_out = _opencode_reverted(messages, as_object(revert))
        summed: dict[str, ClientSummary] = {}
        for stored, parts in standing:
            message = str(stored["id"])
            if stored.get("role") not in ("user", "assistant"):
                walk.left_out.append(str(stored.get("type") or f"message of {stored.get('role')}"))
                continue
            provider, walk.model = str(stored.get("providerID") or provider), str(stored.get("modelID") or walk.model)
            at = value_at(stored, "time", "created")
            walk.starts[message] = len(walk.said)
            for part in parts:
                if part.get("type") == "compaction":
                    summed[message] = walk.summary_from(str(part.get("tail_start_id")))
            if stored.get("summary") is True and not stored.get("error"):
                # Before there was a question in front of it, the summary itself was the first message.
                walk.compactions.append(summed.get(str(stored.get("parentID"))) or ClientSummary(len(walk.said)))
            if stored["role"] == "assistant":
                # A gateway has a name of its own: what it ever signed with tells whose format its model speaks.
                signers = signers_of.setdefault((provider, walk.model), {})
                signers |= dict.fromkeys(name for part in parts for name in as_object(part.get("metadata")))
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


def _opencode_rows(file: SourceFile) -> Iterator[tuple[str, Json, list[OpencodeMessage]]]:
    """Every session of the database, with what says where it was rewound to."""
    reverts = file.rows("SELECT 1 FROM pragma_table_info('session') WHERE name = 'revert'")
    query = f"SELECT id, {'revert' if reverts else 'NULL'} FROM session ORDER BY time_created, id"
    of_parts = "SELECT message_id, id, data FROM part WHERE session_id = ? ORDER BY id"
    of_messages = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
    for session, revert in file.rows(query):
        parts_of: dict[str, list[JsonObject]] = {}
        for message, id, part in file.rows(of_parts, session):
            parts_of.setdefault(message, []).append({**decode_json(part, file.path), "id": id})
        messages = [{**decode_json(data, file.path), "id": id} for id, data in file.rows(of_messages, session)]
        yield (
            session,
            decode_json(revert or "null"),
            [(message, parts_of.get(message["id"], [])) for message in messages],
        )


def _opencode_files(storage: Path) -> Iterator[tuple[str, Json, list[OpencodeMessage]]]:
    """The same of the folder; in its first form messages and parts stood under `session`, parts by their session too."""
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
    """What files hold, each with its id, in their order; one that cannot be read is of a type that says so."""
    values: list[JsonObject] = []
    for path in folder.glob(pattern):
        try:
            value = as_object(source_file(path).value)
        except FormatError:
            value = {}
        values.append({**(value or {"type": f"{path.name}, which cannot be read"}), "id": path.stem})
    return sorted(values, key=lambda value: (value_at(value, "time", "created") or 0, value["id"]))


def _opencode_reverted(messages: list[OpencodeMessage], revert: JsonObject) -> tuple[list[OpencodeMessage], list[str]]:
    """The messages in front of where a session was rewound to, and what lies behind; within a message too."""
    to, part_id = revert.get("messageID"), revert.get("partID")
    place = next((n for n, (stored, _) in enumerate(messages) if stored["id"] == to), len(messages))
    out = messages[:place]
    for stored, parts in messages[place : place + 1] if part_id else ():
        out.append((stored, [*takewhile(lambda part: part["id"] != part_id, parts)]))
    return out, ["rewound message"] * (len(messages) - len(out))


# Of files that are text, the words stand in a part of their own.
_OPENCODE_TEXT = ("text/plain", "application/x-directory")


def _opencode_steps(parts: list[JsonObject]) -> list[list[JsonObject]]:
    """The parts of a message by its steps: each is an answer, and what its tools gave stands behind it."""
    steps: list[list[JsonObject]] = [[]]
    for part in parts:
        if part.get("type") == "step-start" and steps[-1]:
            steps.append([])
        steps[-1].append(part)
    return steps


# What providers sign with, by the names that the AI SDK has for it.
_SIGNATURES = ("signature", "redactedData", "reasoningEncryptedContent", "thoughtSignature")


def _opencode_part(part: JsonObject) -> Iterator[StoredBlock]:
    kind, text = part.get("type"), str(part.get("text") or "")
    signed = map(as_object, as_object(part.get("metadata")).values())
    meta: JsonObject = {key: field for facts in signed for key, field in facts.items()}
    signature, id = next((str(meta[key]) for key in _SIGNATURES if meta.get(key)), ""), str(meta.get("itemId") or "")
    if kind == "text" and not part.get("ignored"):
        yield StoredBlock(text, id=id, signature=signature)
    elif kind == "reasoning":
        redacted = bool(meta.get("redactedData"))
        yield StoredBlock(text, thinking=True, signature=signature, id=id, redacted=redacted)
    elif kind == "tool":
        call_id, name, args = str(part.get("callID")), str(part.get("tool")), part["state"].get("input")
        yield StoredBlock(call_id=call_id, name=name, args=args, signature=signature, id=id)
    elif kind == "file":
        yield from _opencode_file(part)
    elif kind in (words := clients()["opencode"]["words"]):
        yield StoredBlock(words[kind])
    elif kind not in clients()["opencode"]["silent"] and kind != "text":
        yield StoredBlock(left_out=str(kind))


def _opencode_file(part: JsonObject) -> Iterator[StoredBlock]:
    mime, url = str(part.get("mime")), str(part.get("url"))
    if mime not in _OPENCODE_TEXT:
        held = url.partition(",")[2] if url.startswith("data:") else url if url.startswith("http") else ""
        yield media_block(mime, held)


def _opencode_result(part: JsonObject) -> Iterator[StoredBlock]:
    """What a tool gave, unless it was still at work."""
    state = part["state"]
    if state.get("status") in ("pending", "running"):
        return
    failed, call_id, name = state.get("status") != "completed", str(part.get("callID")), str(part.get("tool"))
    text = text_in(state.get("error" if failed else "output"))
    files = [block for file in state.get("attachments") or () for block in _opencode_file(file)]
    given = StoredBlock(text, call_id=call_id, name=name, is_result=True, error=failed)
    yield from with_media(given, files)


def _is_claude_code(line: JsonObject) -> bool:
    """A message, or what a file without any begins with: a title of another session, a state of the user's files."""
    if line.get("type") in ("user", "assistant"):
        return isinstance(line.get("message"), dict) and bool({"uuid", "sessionId"} & line.keys())
    beside = {"summary": "leafUuid", "file-history-snapshot": "snapshot"}
    beside |= dict.fromkeys(("queue-operation", "system", "attachment", "progress", "mode", "last-prompt"), "sessionId")
    return beside.get(str(line.get("type"))) in line


CLIENTS: tuple[SessionStore, ...] = (
    SessionStore("claude-code", holding(_is_claude_code), _claude_code),
    SessionStore("codex", holding(_is_codex), _codex),
    SessionStore("pi", holding(lambda row: row.get("type") == "session" and bool({"cwd", "version"} & row.keys())), _pi),
    SessionStore("gemini-cli", holding(lambda row: {"sessionId", "projectHash"} <= row.keys()), _gemini_cli, ("thought signatures",)),
    SessionStore("opencode", lambda file: {"session", "message", "part"} <= file.tables or is_opencode_storage(file.path), _opencode),
)  # fmt: skip
