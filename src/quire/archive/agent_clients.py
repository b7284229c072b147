"""Sessions of agent clients: Claude Code, Codex, pi, gemini-cli and opencode; the messages, and the requests they were made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from quire.archive.stored_conversations import (
    ClientSummary,
    SentCall,
    SessionStore,
    SourceFile,
    StoredConversation,
    counted_call,
    decoded,
    holding,
    is_opencode_storage,
    known_provider,
    milliseconds,
    misfit,
    source_file,
    text_in,
    usage_named,
)
from quire.archive.stored_turns import StoredBlock, StoredTurn, anthropic_image, media_block, turns_in_format
from quire.providers.usage import usage
from quire.values import Json, JsonObject, as_list, as_object, as_objects, value_at

# Claude Code: lines by uuid; one reply is several lines of one message id; side chains are other conversations.


def _claude_code(file: SourceFile) -> Iterator[StoredConversation]:
    chains: dict[str, list[JsonObject]] = {}
    calls: dict[str, dict[str, SentCall]] = {}
    contents: dict[str, list[Json]] = {}
    heads: dict[str, JsonObject] = {}
    left_out: dict[str, list[str]] = {}
    # Of each line the one of its chain that it stands behind, itself where it is taken; and the side chain it is of.
    places: dict[str, str] = {}
    sides: dict[str, str] = {}
    begun: list[str] = []
    # Of chains that were summed up just now, what says of it.
    boundaries: dict[str, JsonObject] = {}
    compacted = renders = False
    for number, line in file.numbered():
        if not isinstance(line, dict) or not isinstance(line.get("type"), str):
            raise misfit(file, number, line, "a line of Claude Code")
        compacted = compacted or line.get("subtype") == "compact_boundary" or bool(line.get("isCompactSummary"))
        uuid, parent = str(line.get("uuid") or number), str(line.get("parentUuid") or "")
        side = _claude_side(line, parent, sides, begun)
        sides[uuid] = side
        session = str(line.get("sessionId") or file.name)
        name = f"{session}-{side}" if side else session
        if line.get("subtype") == "compact_boundary":
            boundaries[name] = as_object(line.get("compactMetadata"))
        if line["type"] == "attachment":
            renders = renders or "rendered" in line
            head, content = _claude_head(line), _claude_attachment(line)
            heads[name] = {**head, **heads.get(name, {})}
            if content is None and not head:
                left_out.setdefault(name, []).append(f"attachment {value_at(line, 'attachment', 'type')}")
            line = {**line, "type": "attachment" if content else "", "message": {"role": "user", "content": content}}
        elif line.get("isApiErrorMessage"):  # of the program, and never sent
            line = {**line, "type": ""}
        if line["type"] not in ("user", "assistant", "attachment"):
            if line["type"] and isinstance(line.get("message"), dict):
                left_out.setdefault(name, []).append(f"line {line['type']}")
            places.setdefault(uuid, places.get(parent, ""))
            continue
        message = line.get("message")
        if not isinstance(message, dict) or "content" not in message:
            raise misfit(file, number, line, "a message of Claude Code")
        # A session that was taken up again repeats lines as they are.
        alike = contents.setdefault(uuid, [])
        if message["content"] in alike:
            continue
        alike.append(message["content"])
        chain = chains.setdefault(name, [])
        _rewind(chain, line, places)
        if name in boundaries:
            line = {**line, "compacts": boundaries.pop(name)}
        chain.append(line)
        places[uuid] = uuid
        if isinstance(message.get("usage"), dict):
            # The lines of one reply repeat its usage, the last with all that it wrote.
            call = _claude_call(f"{file.path}:{number}", line, session, side, compacted)
            first = calls.setdefault(name, {}).setdefault(call.id, call)
            calls[name][call.id] = msgspec.structs.replace(first, usage=call.usage)
            compacted = False
    for name, chain in chains.items():
        merged = _merged(_behind_results(chain))
        models = [str(line["message"].get("model") or "<") for line in reversed(chain)]
        model = next((model for model in models if not model.startswith("<")), "")
        times = tuple(milliseconds(lines[0].get("timestamp")) for lines, _ in merged)
        sent = tuple(calls.get(name, {}).values())
        messages = [message for _, message in merged]
        value = {**heads[name], "messages": messages} if heads.get(name) else messages
        # Where the client writes down what it told, it told nothing of the rest.
        lost = tuple(kind for kind in left_out.get(name, ()) if not renders or not kind.startswith("attachment"))
        compactions = tuple(_claude_compactions(merged))
        yield StoredConversation(name, "anthropic", value, model, times=times, calls=sent, left_out=lost, compactions=compactions)  # fmt: skip


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


def _claude_side(line: JsonObject, parent: str, sides: dict[str, str], begun: list[str]) -> str:
    """The side chain of a line, by its agent; before agents had ids, each that begins anew is one of its own.

    Those are added to `begun`.
    """
    if not line.get("isSidechain"):
        return ""
    if line.get("agentId"):
        return str(line["agentId"])
    if sides.get(parent):
        return sides[parent]
    if not begun or not parent:
        begun.append(f"side-{len(begun) + 1}" if begun else "side")
    return begun[-1]


# Attachments: what the client told the model beside the messages. It writes down the words, or in earlier versions what
# they were made of: where a kind has its text. Of other kinds (reminders, modes) the words are the client's own.
_ATTACHED = {
    "file": "content.file.content", "directory": "content", "edited_text_file": "snippet", "selected_lines_in_ide": "content",
    "nested_memory": "content.content", "relevant_memories": "memories.content", "instructions": "files.content",
    "plan_file_reference": "planContent", "mcp_resource": "content.contents.text", "mcp_instructions_delta": "addedBlocks",
    "skill_listing": "content", "invoked_skills": "skills.content", "agent_listing_delta": "addedLines",
    "deferred_tools_delta": "addedLines", "hook_success": "content", "hook_additional_context": "content",
    "hook_blocking_error": "blockingError.blockingError", "hook_stopped_continuation": "message",
    "async_hook_response": "response.hookSpecificOutput.additionalContext", "critical_system_reminder": "content",
    "teammate_mailbox": "messages.text", "diagnostics": "files.diagnostics.message",
}  # fmt: skip
_NOT_TOLD = frozenset({
    "already_read_file", "command_permissions", "edited_image_file", "hook_cancelled", "hook_error_during_execution",
    "hook_non_blocking_error", "hook_permission_decision", "hook_system_message", "max_turns_reached", "structured_output",
})  # fmt: skip


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
    if kind in _NOT_TOLD or (kind == "hook_success" and not is_heard):
        return []
    image = as_object(value_at(attachment, "content", "file"))
    if kind == "file" and image.get("base64") and str(image.get("type")).startswith("image/"):
        return [anthropic_image((str(image["type"]), str(image["base64"])))]
    words = "\n".join(_words(attachment, *_ATTACHED[kind].split("."))) if kind in _ATTACHED else ""
    name = attachment.get("filename") or attachment.get("path") or attachment.get("planFilePath") or ""
    about = f"{kind} {name}".rstrip()
    if words.strip():
        return _blocks(f"<system-reminder>\n{about}:\n{words}\n</system-reminder>")
    return [] if kind in _ATTACHED and kind != "file" else None


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


def _claude_call(source: str, line: JsonObject, session: str, agent: str, compacted: bool) -> SentCall:
    message = line["message"]
    used, at = usage("anthropic", message["usage"]), milliseconds(line.get("timestamp"))
    model, id = str(message.get("model") or ""), str(message.get("id") or line.get("uuid") or source)
    return counted_call(source, "anthropic", model, used, at, session, agent=agent, compacted=compacted, id=id)


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


def _merged(chain: Iterable[JsonObject]) -> list[tuple[list[JsonObject], JsonObject]]:
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
    items: list[JsonObject] = []
    times: list[int | None] = []
    instructions = model = name = ""
    compactions: list[ClientSummary] = []
    # Where each turn begins, by its id: items, and compactions.
    turns: dict[str, tuple[int, int]] = {}
    left_out: list[str] = []
    usages = _CodexUsage(str(file.path))
    is_bare = holding(_is_bare_codex)(file)
    for number, line in file.numbered():
        if isinstance(line, dict) and line.get("record_type"):
            continue
        if isinstance(line, dict) and is_bare and "payload" not in line:
            line = {"type": "response_item" if "type" in line else "session_meta", "payload": line}
        payload = line.get("payload") if isinstance(line, dict) else None
        if not isinstance(line, dict) or not isinstance(payload, dict) or not isinstance(line.get("type"), str):
            raise misfit(file, number, line, "a line of a Codex rollout")
        if line["type"] == "response_item":
            items.append(_codex_item(payload))
        elif line["type"] == "compacted":
            kept, more = _codex_compacted(items, compactions, payload)
            compactions.append(ClientSummary(len(items), frozenset(kept)))
            items += more
        elif line["type"] == "session_meta":
            instructions = text_in(payload.get("base_instructions") or payload.get("instructions") or "")
            name = name or str(payload.get("id") or "")  # behind it stands that of the session it is a fork of
        elif line["type"] == "turn_context":
            model = str(payload.get("model") or model)
            turns.setdefault(str(payload.get("turn_id") or number), (len(items), len(compactions)))
        elif payload.get("type") == "thread_rolled_back":
            # The user went back: so many turns were left behind.
            for _ in range(min(int(payload.get("num_turns") or 0), len(turns))):
                _, (start, before) = turns.popitem()
                del items[start:], times[start:], compactions[before:]
        elif line["type"] not in _CODEX_SILENT:
            left_out.append(f"line {line['type']}")
        times += [milliseconds(line.get("timestamp"))] * (len(items) - len(times))
        usages.take(number, line, model, name or file.name)
    value = {"instructions": instructions, "input": items} if instructions else {"input": items}
    calls = tuple(usages.records or usages.counts)
    yield StoredConversation(
        name or file.name, "openai-responses", value, model, times=tuple(times), calls=calls,
        left_out=tuple(left_out), compactions=tuple(compactions),
    )  # fmt: skip


# What tells the model nothing: what was shown, the state of the world around it, what was used.
_CODEX_SILENT = frozenset({"event_msg", "world_state", "token_usage_record"})


def _codex_item(payload: JsonObject) -> JsonObject:
    return {key: value for key, value in payload.items() if not key.startswith("internal_")}


def _codex_compacted(
    items: list[JsonObject], compactions: list[ClientSummary], payload: JsonObject
) -> tuple[list[int], list[JsonObject]]:
    """The places of the items that a history which replaces all begins with, and what is new in it behind them."""
    earlier = compactions[-1] if compactions else ClientSummary(0)
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
    return {
        key: value
        for key, value in _codex_item(item).items()
        if key not in ("id", "status", "phase") and value is not None
    }


def _is_bare_codex(line: JsonObject) -> bool:
    """The first line of a rollout of 2025, whose items stand by themselves."""
    return {"id", "timestamp", "instructions"} <= line.keys() and not {"type", "payload"} & line.keys()


def _is_codex(line: JsonObject) -> bool:
    kinds = ("session_meta", "response_item", "turn_context", "event_msg")
    return _is_bare_codex(line) or (isinstance(line.get("payload"), dict) and line.get("type") in kinds)


class _CodexUsage:
    """The requests of a rollout: by its records, one a reply; before there were any, by what was counted.

    A count has the usage of the last request and running totals beside it; some counts are written twice.
    """

    def __init__(self, path: str) -> None:
        self._path, self._compacted = path, False
        self._total: Json = None
        self.records: list[SentCall] = []
        self.counts: list[SentCall] = []

    def take(self, number: int, line: JsonObject, model: str, session: str) -> None:
        payload = line["payload"]
        self._compacted = self._compacted or line["type"] == "compacted"
        source, at = f"{self._path}:{number}", milliseconds(line.get("timestamp"))
        if line["type"] == "token_usage_record" and isinstance(payload.get("usage"), dict):
            id, used = str(payload.get("response_id") or source), _codex_usage(payload["usage"])
            compacted, self._compacted = self._compacted, False
            self.records.append(SentCall(source, "openai", model, {}, used, at, session, compacted=compacted, id=id))
        info = payload.get("info") if payload.get("type") == "token_count" else None
        last = info.get("last_token_usage") if isinstance(info, dict) else None
        if isinstance(info, dict) and isinstance(last, dict):
            total = (info.get("total_token_usage") or {}).get("total_tokens")
            if total == self._total:
                return  # the same count again, nothing was sent
            self._total = total
            compacted, self._compacted = self._compacted, self._compacted and bool(self.records)
            used, id = _codex_usage(last), f"{session} {total}"
            self.counts.append(SentCall(source, "openai", model, {}, used, at, session, compacted=compacted, id=id))


_codex_usage = partial(
    usage_named,
    input_total="input_tokens",
    cache_read="cached_input_tokens",
    cache_write_5m="cache_write_input_tokens",
    output="output_tokens",
    reasoning="reasoning_output_tokens",
)


# pi: a tree of lines; the newest leaf is the conversation.


def _pi(file: SourceFile) -> Iterator[StoredConversation]:
    lines: dict[str, JsonObject] = {}
    calls: list[SentCall] = []
    ids: list[str] = []
    newest, name, compacted = "", file.name, False
    for number, line in file.numbered():
        if not isinstance(line, dict) or not isinstance(line.get("type"), str):
            raise misfit(file, number, line, "a line of pi")
        if line["type"] == "session":
            name = str(line.get("id") or name)
        else:
            # Before there were branches, lines had no ids: each follows the one before it.
            parent = line.get("parentId") if line.get("id") else newest
            newest = str(line.get("id") or f"line {number}")
            lines[newest] = {**line, "id": newest, "parentId": parent}
        ids.append(newest)
        compacted = compacted or line["type"] == "compaction"
        if call := _pi_call(f"{file.path}:{number}", line, name, compacted):
            calls.append(call)
            compacted = False
    chain: list[JsonObject] = []
    while newest in lines:
        chain.append(lines.pop(newest))
        newest = str(chain[-1].get("parentId") or "")
    messages: list[JsonObject] = []
    compactions: list[ClientSummary] = []
    starts: dict[Json, int] = {}
    for line in reversed(chain):
        starts[line["id"]] = count = len(messages)
        if line["type"] == "compaction":
            index = line.get("firstKeptEntryIndex")  # before lines had ids
            first = ids[index] if isinstance(index, int) and 0 <= index < len(ids) else line.get("firstKeptEntryId")
            kept = frozenset(range(starts.get(first, count), count))
            compactions.append(ClientSummary(count, kept, str(line.get("summary") or "")))
        messages += _pi_messages(line)
    answers = [message for message in messages if message.get("role") == "assistant"]
    api = next((str(answer.get("api") or answer.get("provider") or "") for answer in reversed(answers)), "")
    model = next((str(answer["model"]) for answer in reversed(answers) if answer.get("model")), "")
    conversation = turns_in_format(name, api, [*map(_pi_turn, messages)], model, compactions=compactions)
    others = ["message of another branch" for line in lines.values() if line["type"] == "message"]
    yield msgspec.structs.replace(conversation, calls=tuple(calls), left_out=(*conversation.left_out, *others))


def _pi_call(source: str, line: JsonObject, session: str, compacted: bool) -> SentCall | None:
    message = line.get("message") if line["type"] == "message" else None
    used = message.get("usage") if isinstance(message, dict) else None
    if not isinstance(message, dict) or not isinstance(used, dict):
        return None
    names = {"input_total": "input", "cache_read": "cacheRead", "cache_write_5m": "cacheWrite", "output": "output"}
    reported = usage_named(used, True, **names)
    provider, model = known_provider(str(message.get("provider") or "")), str(message.get("model") or "")
    at = milliseconds(message.get("timestamp") or line.get("timestamp"))
    id = str(message.get("responseId") or line.get("id") or source)
    return counted_call(source, provider, model, reported, at, session, compacted=compacted, id=id)


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
        case str(role) if role not in _PI_SILENT:
            yield {"role": "user", "content": [{"type": f"{'message of' if role != line['type'] else 'line'} {role}"}]}


# What tells the model nothing, or tells it elsewhere.
_PI_SILENT = frozenset({
    "bashExecution", "compaction", "custom", "label", "leaf", "model_change", "session_info", "thinking_level_change",
})  # fmt: skip


def _pi_turn(message: JsonObject) -> StoredTurn:
    at = milliseconds(message.get("timestamp"))
    content = message.get("content")
    blocks = [_pi_block(block) for block in ([content] if isinstance(content, str) else content or [])]
    if message.get("role") == "toolResult":
        images = tuple(block.image for block in blocks if block.image[1])
        call_id, _, _ = str(message.get("toolCallId")).partition("|")
        block = StoredBlock(text_in(content), call_id=call_id, name=str(message.get("toolName")), is_result=True, error=bool(message.get("isError")), images=images)  # fmt: skip
        return StoredTurn("user", (block, *(block for block in blocks if block.left_out)), at)
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
            call_id, _, id = str(block.get("id")).partition("|")
            return StoredBlock(call_id=call_id, id=id, name=str(block.get("name")), args=block.get("arguments"), signature=str(block.get("thoughtSignature") or ""))  # fmt: skip
        case "image":
            return StoredBlock(image=(str(block.get("mimeType")), str(block.get("data"))))
        case "text":
            # The id of the item it came in, alone or among other facts.
            signature = str(block.get("textSignature") or "")
            facts = as_object(decoded(signature)) if signature.startswith("{") else {"id": signature}
            return StoredBlock(text_in(block), id=str(facts.get("id") or ""))
    return StoredBlock(left_out=str(block.get("type")))


# gemini-cli: lines by id, a later one in place of the earlier; calls come with the line that first shows them.


def _gemini_cli(file: SourceFile) -> Iterator[StoredConversation]:
    contents: list[tuple[int | None, JsonObject]] = []
    # Where the words of a line stand, and where its first content would.
    places: dict[str, int] = {}
    starts: dict[str, int] = {}
    called: set[str] = set()
    sent: dict[str, SentCall] = {}
    model, name, left_out = "", file.name, []
    answered = {id for line in _gemini_lines(file) for id in _answered(line.get("content"))}
    for number, line in enumerate(_gemini_lines(file), 1):
        name, model = str(line.get("sessionId") or name), str(line.get("model") or model)
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
            left_out += [str(line["type"])] if line.get("type") not in (None, "info", "error", "warning") else []
            continue
        if line["type"] == "gemini" and isinstance(line.get("tokens"), dict):
            used = usage_named(line["tokens"], input_total="input", cache_read="cached", reasoning="thoughts")
            used = msgspec.structs.replace(used, output=int(line["tokens"].get("output") or 0) + used.reasoning)
            sent[id] = SentCall(f"{file.path}:{id}", "gemini", model, {}, used, at, name, id=id)
        calls = [call for call in line.get("toolCalls") or () if call.get("id") not in called]
        parts, role = _gemini_parts(line), "user" if line["type"] == "user" else "model"
        if id in places and _answered(parts):
            parts = []  # what tools gave is masked later on: the first has all of it
        if id in places and parts:
            _, earlier = contents[places[id]]
            kept = [part for part in earlier["parts"] if role == "model" and "functionCall" in part]
            contents[places[id]] = (at, {"role": role, "parts": [*parts, *kept]})
            parts = []
        parts += [{"functionCall": {"id": c.get("id"), "name": c.get("name"), "args": c.get("args") or {}}} for c in calls]  # fmt: skip
        if parts:
            places.setdefault(id, len(contents))
            contents.append((at, {"role": role, "parts": parts}))
        called |= {call["id"] for call in calls if call.get("id")}
        # A result may come with a later line than its call.
        done = [call for call in line.get("toolCalls") or () if call.get("id") not in answered and call.get("result")]
        answered |= {str(call["id"]) for call in done if call.get("id")}
        if done:
            contents.append((at, {"role": "user", "parts": [part for call in done for part in call["result"]]}))
    value = [content for _, content in contents]
    times = tuple(at for at, _ in contents)
    calls_sent = tuple(sent.values())
    yield StoredConversation(name, "gemini", value, model, times=times, calls=calls_sent, left_out=tuple(left_out))


def _gemini_lines(file: SourceFile) -> Iterator[JsonObject]:
    """Message lines, those of a header's patches among them."""
    for number, line in file.numbered():
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


def _answered(content: Json) -> list[str]:
    return [str(part["functionResponse"].get("id")) for part in as_objects(content) if part.get("functionResponse")]


# opencode: messages and parts, in SQLite, and before that a file each; a tool part holds its call and its result.

# Of a message its id, what it is, and its parts by their ids.
OpencodeMessage = tuple[str, JsonObject, list[tuple[str, JsonObject]]]


def _opencode(file: SourceFile) -> Iterator[StoredConversation]:
    in_files = file.path.is_dir()
    for session, revert, messages in _opencode_files(file.path) if in_files else _opencode_rows(file):
        turns: list[StoredTurn] = []
        calls: list[SentCall] = []
        provider = model = speaker = ""
        signers_of: dict[tuple[str, str], dict[str, None]] = {}
        standing, rewound = _opencode_reverted(messages, as_object(revert))
        starts: dict[str, int] = {}
        compactions: dict[str, ClientSummary] = {}
        done: dict[str, ClientSummary] = {}
        for message, stored, parts in standing:
            provider, model = str(stored.get("providerID") or provider), str(stored.get("modelID") or model)
            at = milliseconds((stored.get("time") or {}).get("created"))
            starts[message] = count = len(turns)
            for part in parts:
                if part.get("type") == "compaction":
                    kept = range(starts.get(str(part.get("tail_start_id")), count), count)
                    compactions[message] = ClientSummary(count, frozenset(kept))
            if stored.get("summary") is True and not stored.get("error"):
                asked = str(stored.get("parentID"))
                # Before there was a question in front of it, the summary itself was the first message.
                done[asked] = compactions.get(asked) or ClientSummary(count)
            if stored["role"] == "assistant":
                # A gateway has a name of its own: what it ever signed with tells whose format its model speaks.
                signers = signers_of.setdefault((provider, model), {})
                signers |= dict.fromkeys(name for part in parts for name in as_object(part.get("metadata")))
                speaker = " ".join((provider, *signers))
            for group in _opencode_steps(parts):
                blocks = tuple(block for part in group for block in _opencode_part(part))
                turns.append(StoredTurn(stored["role"], blocks, at, speaker))
                results = [block for part in group if part.get("type") == "tool" for block in _opencode_result(part)]
                turns += [StoredTurn("user", tuple(results), at)] if results else []
            # Each finished step of a message is a request.
            steps = [part.get("tokens") for part in parts if part.get("type") == "step-finish"]
            for step, tokens in enumerate(tokens for tokens in steps if isinstance(tokens, dict)):
                names = {"input_total": "input", "cache_read": "read", "cache_write_5m": "write", "output": "output"}
                used = usage_named({**tokens, **(tokens.get("cache") or {})}, True, **names, reasoning="reasoning")
                source, id = f"{file.path}:{message}", f"{message} {step}"
                calls.append(SentCall(source, known_provider(provider), model, {}, used, at, session, id=id))
        if turns or rewound:
            conversation = turns_in_format(session, speaker or provider, turns, model, compactions=tuple(done.values()))
            lost = (*conversation.left_out, *rewound)
            yield msgspec.structs.replace(conversation, calls=tuple(calls), left_out=lost)


def _opencode_rows(file: SourceFile) -> Iterator[tuple[str, Json, list[OpencodeMessage]]]:
    """Every session of the database, with what says where it was rewound to."""
    reverts = file.rows("SELECT 1 FROM pragma_table_info('session') WHERE name = 'revert'")
    query = f"SELECT id, {'revert' if reverts else 'NULL'} FROM session ORDER BY time_created, id"
    for session, revert in file.rows(query):
        parts_of: dict[str, list[tuple[str, JsonObject]]] = {}
        for message, id, part in file.rows("SELECT message_id, id, data FROM part WHERE session_id = ? ORDER BY id", session):  # fmt: skip
            parts_of.setdefault(message, []).append((str(id), decoded(part, file.path)))
        rows = file.rows("SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id", session)
        messages = [(id, decoded(data, file.path), parts_of.get(id, [])) for id, data in rows]
        yield session, decoded(revert or "null"), messages


def _opencode_files(storage: Path) -> Iterator[tuple[str, Json, list[OpencodeMessage]]]:
    """The same of the folder; in its first form messages and parts stood under `session`, parts by their session too."""
    inner = storage / "session" if (storage / "session" / "message").is_dir() else storage
    infos: dict[str, JsonObject] = {path.name: {} for path in inner.glob("message/*")}
    for session, info in _by_time(infos | _json_files(storage, "session/*/*.json")):
        messages: list[OpencodeMessage] = []
        for id, message in _by_time(_json_files(inner, f"message/{session}/*.json")):
            parts = _json_files(inner, f"part/{id}/*.json") | _json_files(inner, f"part/{session}/{id}/*.json")
            messages.append((id, message, sorted(parts.items())))
        yield session, info.get("revert"), messages


def _json_files(folder: Path, pattern: str) -> dict[str, JsonObject]:
    return {path.stem: as_object(source_file(path).value) for path in folder.glob(pattern)}


def _by_time(named: dict[str, JsonObject]) -> list[tuple[str, JsonObject]]:
    return sorted(named.items(), key=lambda pair: (value_at(pair[1], "time", "created") or 0, pair[0]))


def _opencode_reverted(
    messages: list[OpencodeMessage], revert: JsonObject
) -> tuple[list[tuple[str, JsonObject, list[JsonObject]]], list[str]]:
    """The messages in front of where a session was rewound to, and what lies behind; within a message too."""
    to, part_id = revert.get("messageID"), revert.get("partID")
    place = next((n for n, (id, *_) in enumerate(messages) if id == to), len(messages))
    out = [(id, stored, [part for _, part in parts]) for id, stored, parts in messages[:place]]
    if part_id and place < len(messages):
        id, stored, parts = messages[place]
        before = [n for n, (name, _) in enumerate(parts) if name == part_id]
        out.append((id, stored, [part for _, part in parts[: (before or [len(parts)])[0]]]))
    return out, ["rewound message"] * (len(messages) - len(out))


# Parts that say nothing to the model; of files that are text, the words stand in a part of their own.
_OPENCODE_SILENT = frozenset({"step-start", "step-finish", "snapshot", "patch", "agent", "retry"})
# The words that stand for parts which have none.
_OPENCODE_WORDS = {"compaction": "What did we do so far?", "subtask": "The following tool was executed by the user"}
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
    meta: JsonObject = {key: field for facts in as_object(part.get("metadata")).values() for key, field in as_object(facts).items()}  # fmt: skip
    signature, id = next((str(meta[key]) for key in _SIGNATURES if meta.get(key)), ""), str(meta.get("itemId") or "")
    if kind == "text" and not part.get("ignored"):
        yield StoredBlock(text, id=id, signature=signature)
    elif kind == "reasoning":
        redacted = bool(meta.get("redactedData"))
        yield StoredBlock(text, thinking=True, signature=signature, id=id, redacted=redacted)
    elif kind == "tool":
        yield StoredBlock(call_id=str(part.get("callID")), name=str(part.get("tool")), args=part["state"].get("input"), signature=signature, id=id)  # fmt: skip
    elif kind == "file":
        yield from _opencode_file(part)
    elif kind in _OPENCODE_WORDS:
        yield StoredBlock(_OPENCODE_WORDS[kind])
    elif kind not in _OPENCODE_SILENT and kind != "text":
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
    text = state.get("output") if state.get("status") == "completed" else state.get("error")
    files = [block for file in state.get("attachments") or () for block in _opencode_file(file)]
    images = tuple(block.image for block in files if block.image[1])
    yield StoredBlock(text_in(text), call_id=str(part.get("callID")), name=str(part.get("tool")), is_result=True, error=state.get("status") != "completed", images=images)  # fmt: skip
    yield from (block for block in files if block.left_out)


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
    SessionStore("pi", lambda file: bool(file.first_objects()) and file.first_objects()[0].get("type") == "session" and "cwd" in file.first_objects()[0], _pi),
    SessionStore("gemini-cli", holding(lambda row: {"sessionId", "projectHash"} <= row.keys()), _gemini_cli, ("thought signatures",)),
    SessionStore("opencode", lambda file: {"session", "message", "part"} <= file.tables or is_opencode_storage(file.path), _opencode),
)  # fmt: skip
