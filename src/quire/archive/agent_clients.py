"""Reads sessions of agent clients that store messages of a wire format: Claude Code, Codex and gemini-cli."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import msgspec

from quire.archive.stored_conversations import (
    ClientSummary,
    SessionStore,
    SourceFile,
    StoredConversation,
    holding,
    milliseconds,
    misfit,
    text_in,
)
from quire.archive.stored_turns import SessionWalk, anthropic_image, clients
from quire.providers.usage import usage, usage_in
from quire.values import Image, Json, JsonObject, as_list, as_object, as_objects, value_at

# Claude Code: each line has a uuid and its parent's; a reply is several lines with the same message id; lines of side
# chains (helper agents) belong to other conversations.


class ClaudeChains:
    """The chains of a file by their names: the session's own, and those of its helper agents."""

    def __init__(self, file: SourceFile) -> None:
        self._file, self._walks = file, dict[str, SessionWalk]()
        # By chain: its system prompt and tools. By call: what the model received instead of its result.
        self._heads, self._replacements = dict[str, JsonObject](), dict[str, Json]()
        # By line: the newest message of its chain up to it (itself, if it is a message); the contents that it had.
        self._places, self._contents = dict[str, str](), dict[str, list[Json]]()
        # By line: its session, which is that of its parent; its side chain.
        self._sessions, self._sides = {"": file.name}, dict[str, str]()
        self._side_names: list[str] = []
        self._renders = False

    def take(self, number: int, line: JsonObject) -> None:
        uuid, parent = str(line.get("uuid") or number), str(line.get("parentUuid") or "")
        named = str(line.get("sessionId") or line.get("session_id") or self._sessions[""])
        session = self._sessions[""] = self._sessions[uuid] = self._sessions.get(parent or uuid, named)
        side = self._sides[uuid] = self._side(line, parent)
        name = f"{session}-{side}" if side else session
        walk = self._walks.setdefault(name, SessionWalk(self._file, name))
        message = self._message(line, name)
        is_unmarked = not parent and text_in(value_at(message, "content")).startswith(_CONTINUED)
        is_summary = is_unmarked or bool(line.get("isCompactSummary"))
        walk.compacted |= is_summary or str(line.get("subtype")).endswith("compact_boundary")
        if message is None:
            is_known = line["type"] in _SPOKEN + clients()["claude-code"]["lines"]
            walk.left_out += [] if is_known else [f"line {line['type']}"]
            self._places.setdefault(uuid, self._places.get(parent, ""))
            return
        if not isinstance(message, dict) or "content" not in message:
            raise misfit(self._file, number, line, "a message of Claude Code")
        # A resumed session repeats earlier lines.
        if message["content"] in self._contents.setdefault(uuid, []):
            return
        self._contents[uuid].append(message["content"])
        line = {**line, "message": message}
        _rewind(walk.said, line, self._places)
        newest = takewhile(lambda earlier: earlier["type"] != "assistant", reversed(walk.said))
        if is_summary and not any(map(_is_boundary, newest)):
            walk.said.append(_BOUNDARY)  # older versions wrote no boundary line
        walk.said.append(line)
        self._places[uuid] = uuid
        if isinstance(message.get("usage"), dict):
            used, id = usage("anthropic", message["usage"]), message.get("id") or line.get("uuid")
            about = {"session": session, "agent": side, "model": str(message.get("model") or "")}
            walk.add_request(number, "anthropic", used, line.get("timestamp"), id, **about)

    def _side(self, line: JsonObject, parent: str) -> str:
        """The side chain of a line, by its agent; in older files without agent ids, by the line that began it."""
        if line.get("parent_tool_use_id") or not line.get("isSidechain"):  # the former in printed lines (stream-json)
            return str(line.get("parent_tool_use_id") or "")
        if line.get("agentId") or self._sides.get(parent):
            return str(line.get("agentId") or self._sides[parent])
        if not self._side_names or not parent:
            self._side_names.append(f"side-{len(self._side_names) + 1}" if self._side_names else "side")
        return self._side_names[-1]

    def _message(self, line: JsonObject, name: str) -> Json:
        """The message of a line; None where the line sends the model nothing."""
        match line["type"]:
            case "user" | "assistant":
                # Error messages of the program itself, and lines that it only shows, were never sent.
                is_only_shown = any(line.get(mark) for mark in ("isApiErrorMessage", "is_api_error_message", "isVirtual"))  # fmt: skip
                return None if is_only_shown else line.get("message") or {}
            case "attachment":
                return self._attachment_message(line, name)
            case "content-replacement":
                rows = [row for row in as_objects(line.get("replacements")) if "replacement" in row]
                self._replacements |= {str(row.get("toolUseId")): row["replacement"] for row in rows}
            case "system" if _is_boundary(line):
                return _BOUNDARY["message"]
            case "system" if line.get("subtype") == "local_command" and line.get("content"):
                return {"role": "user", "content": line["content"]}
        return None

    def _attachment_message(self, line: JsonObject, name: str) -> JsonObject | None:
        """An attachment as a message, or None; a copy of the system prompt and tools goes into the chain's head."""
        self._renders = self._renders or "rendered" in line
        head, content = _claude_head(line), _claude_attachment(line)
        self._heads[name] = {**head, **self._heads.get(name, {})}
        if content is None and not head:
            self._walks[name].left_out.append(f"attachment {value_at(line, 'attachment', 'type')}")
        return {"role": "user", "content": content} if content else None

    def conversations(self) -> Iterator[StoredConversation]:
        """The conversation of each chain, after all lines were taken."""
        for name, walk in self._walks.items():
            models = [str(line["message"].get("model") or "<") for line in reversed(walk.said)]
            walk.model = next((model for model in models if not model.startswith("<")), "")
            messages = [self._with_replacements(message) for message in _claude_messages(walk)]
            # A client that stores rendered attachments sent none of the others.
            walk.left_out = [kind for kind in walk.left_out if not (self._renders and kind.startswith("attachment"))]
            if messages:
                value = {**self._heads[name], "messages": messages} if self._heads.get(name) else messages
                yield walk.complete(StoredConversation(name, "anthropic", value, walk.model))

    def _with_replacements(self, message: JsonObject) -> JsonObject:
        """A message with the texts that the model received instead of results that were too long."""
        content, texts = message["content"], self._replacements
        if not texts or not isinstance(content, list):
            return message
        calls = [(block, str(block.get("tool_use_id"))) for block in content]
        received = [{**block, "content": texts[call]} if call in texts else block for block, call in calls]
        return {**message, "content": received}


_SPOKEN = ["user", "assistant", "attachment"]
_CONTINUED = "This session is being continued from"  # begins a summary, which the oldest versions did not mark
# A line that marks where a chain was compacted (its history replaced by a summary).
_BOUNDARY: JsonObject = {"type": "system", "subtype": "compact_boundary", "message": {"role": "user", "content": []}}


def _is_boundary(line: JsonObject) -> bool:
    return line.get("subtype") == "compact_boundary"


def _claude_code(file: SourceFile) -> Iterator[StoredConversation]:
    chains = ClaudeChains(file)
    for number, line in SessionWalk(file).lines("a line of Claude Code"):
        chains.take(number, line)
    return chains.conversations()


def _claude_messages(walk: SessionWalk) -> Iterator[JsonObject]:
    """The messages of a chain; notes its compactions, which may preserve messages before or after the summary."""
    anchor: Json = None
    for line in _as_sent(_whole_replies(walk.said)):
        place = len(walk.times)
        if _is_boundary(line):
            anchor, kept = _preserved_lines(line)
            places = sorted(walk.starts[id] for id in kept if id in walk.starts)
            stretch = range(places[0], places[-1] + 1) if places else ()
            walk.compactions.append(ClientSummary(place, frozenset(stretch)))
        elif anchor and anchor in line["uuids"] and walk.compactions[-1].kept:
            # The summary was sent before the preserved messages, and is no message of its own.
            summary = text_in(line["message"]["content"])
            walk.compactions[-1] = msgspec.structs.replace(walk.compactions[-1], summary=summary)
        else:
            walk.starts |= dict.fromkeys(line["uuids"], place)
            walk.times.append(milliseconds(line.get("timestamp")))
            yield line["message"]


def _preserved_lines(boundary: JsonObject) -> tuple[Json, Sequence[Json]]:
    """The id of the line before the preserved lines, and the ids of these: all of them, or the first and the last."""
    about = as_object(boundary.get("compactMetadata") or boundary.get("compact_metadata"))
    stretch, listed = as_object(about.get("preservedSegment")), as_object(about.get("preservedMessages"))
    ends = [stretch[end] for end in ("headUuid", "tailUuid") if end in stretch]
    return listed.get("anchorUuid") or stretch.get("anchorUuid"), as_list(listed.get("uuids")) or ends


def _claude_head(line: JsonObject) -> JsonObject:
    """The system prompt and the tools, from an attachment that is a copy of them."""
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
    """The blocks of an attachment; [] where the model received nothing, None where the file does not hold its text."""
    attachment = as_object(line.get("attachment"))
    kind = str(attachment.get("type"))
    if kind == "prompt_snapshot":
        return None
    if kind == "queued_command":  # a message that the user wrote while the agent worked
        return _blocks(attachment.get("prompt"))
    if "rendered" in line:
        return [block for part in as_objects(line["rendered"]) for block in _blocks(part.get("content"))]
    is_heard = attachment.get("hookEvent") in (None, "SessionStart", "UserPromptSubmit")
    texts = clients()["claude-code"]["attached"]
    if kind in clients()["claude-code"]["silent"] or (kind == "hook_success" and not is_heard):
        return []
    image = as_object(value_at(attachment, "content", "file"))
    if kind == "file" and image.get("base64") and str(image.get("type")).startswith("image/"):
        return [anthropic_image(Image(str(image["type"]), str(image["base64"])))]
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
    """Where the user continued from an earlier line, remove the lines after that one."""
    parent = places.get(str(line.get("parentUuid") or ""))
    if line["type"] != "user" or _blocks_of(line, "tool_result") or not parent:
        return
    # Searched from the end: the parent is nearly always the last line.
    place = next((n for n in reversed(range(len(chain))) if chain[n].get("uuid") == parent), None)
    later = chain[place + 1 :] if place is not None else []
    if place is None or any(parent in _preserved_lines(line)[1] for line in later if _is_boundary(line)):
        return
    after = place + 1
    while after < len(chain) and _blocks_of(chain[after], "tool_result"):
        after += 1
    del chain[after:]


def _whole_replies(chain: list[JsonObject]) -> list[JsonObject]:
    """The lines of each reply as one line, with the ids of all; lines of tool results may stand between them."""
    out: list[JsonObject] = []
    replies: dict[Json, JsonObject] = {}
    for line in chain:
        message, content = line["message"], line["message"]["content"]
        id = message.get("id") if isinstance(content, list) else None
        if id in replies:
            replies[id]["message"]["content"] += content
            replies[id]["uuids"].append(line.get("uuid"))
            continue
        content = content[:] if isinstance(content, list) else content
        whole = {"role": message.get("role") or line["type"], "content": content}
        out.append({**line, "message": whole, "uuids": [line.get("uuid")]})
        replies |= {id: out[-1]} if id else {}
    return out


def _as_sent(chain: list[JsonObject]) -> Iterator[JsonObject]:
    """The lines in the order in which they were sent.

    Attachments come before the user's message, but while tools are running after all their results; at the end of a
    chain those were not sent yet.
    """
    running: set[str] = set()
    waiting: list[JsonObject] = []
    words: list[JsonObject] = []
    anchor: Json = None
    for line in chain:
        if running and (line["type"] == "attachment" or line.get("subtype") == "local_command"):
            waiting.append(line)
            continue
        if line["type"] == "attachment":
            yield line
            continue
        results = {str(block.get("tool_use_id")) for block in _blocks_of(line, "tool_result")}
        if not results:  # calls that are still open have no results
            yield from waiting
            running, waiting = set(), []
        if not line.get("isMeta"):
            yield from words
            words = []
        anchor = _preserved_lines(line)[0] if _is_boundary(line) else anchor
        if line["type"] != "assistant" and not results and not _is_boundary(line) and line.get("uuid") != anchor:
            words.append(line)
            continue
        running = (running | {str(block.get("id")) for block in _blocks_of(line, "tool_use")}) - results
        yield line
        if not running:
            yield from waiting
            waiting = []
    yield from words


def _blocks_of(line: JsonObject, kind: str) -> list[JsonObject]:
    return [block for block in as_objects(line["message"]["content"]) if block.get("type") == kind]


# Codex: the items of the Responses API, verbatim, among lines about the session.


class CodexRollout:
    """One session of Codex, line by line."""

    def __init__(self, file: SourceFile) -> None:
        self._file, self._walk = file, SessionWalk(file)
        self._instructions, self._origin, self._copied = "", "", 0
        # By turn: how many items and compactions there were before it.
        self._turns: dict[str, tuple[int, int]] = {}
        # Requests from usage records, one for each reply; older files only have the counts that `_walk` takes.
        self._records = SessionWalk(file)

    def take(self, number: int, kind: str, payload: JsonObject, line: JsonObject) -> None:
        walk, records, at = self._walk, self._records, line.get("timestamp")
        if kind == "response_item":
            walk.said += _codex_items(payload)
        elif kind == "compacted":
            kept, more = _codex_compacted(walk, payload)
            walk.compactions.append(ClientSummary(len(walk.said), frozenset(kept)))
            walk.said += more
            walk.compacted = records.compacted = True
        elif kind == "session_meta":
            self._take_head(payload)
        elif kind == "turn_context":
            walk.model = records.model = str(payload.get("model") or walk.model)
            self._turns.setdefault(str(payload.get("turn_id") or number), (len(walk.said), len(walk.compactions)))
        elif kind == "token_usage_record" and isinstance(payload.get("usage"), dict):
            records.add_request(number, "openai", usage_in("codex", payload["usage"]), at, payload.get("response_id"))
        elif payload.get("type") == "thread_rolled_back":
            for _ in range(min(int(payload.get("num_turns") or 0), len(self._turns))):
                _, (start, before) = self._turns.popitem()
                del walk.said[start:], walk.times[start:], walk.compactions[before:]
        elif isinstance(last := value_at(payload, "info", "last_token_usage"), dict):
            # A count is known by its running total, since some are written twice.
            total = value_at(payload, "info", "total_token_usage", "total_tokens")
            is_copy = isinstance(line.get("ordinal"), int) and line["ordinal"] < self._copied
            if (id := f"{self._origin if is_copy else walk.name} {total}") not in walk.calls:
                walk.add_request(number, "openai", usage_in("codex", last), at, id)
        elif kind not in clients()["codex"]["silent"]:
            walk.left_out.append(f"line {kind}")
        walk.times += [milliseconds(at)] * (len(walk.said) - len(walk.times))

    def _take_head(self, payload: JsonObject) -> None:
        """The session's own head is the first one; in a fork, that of the original session follows."""
        walk = self._walk
        self._instructions = text_in(payload.get("base_instructions") or payload.get("instructions") or "")
        if walk.name != self._file.name:
            return
        walk.name = self._records.name = str(payload.get("id") or self._file.name)
        # A fork begins with a copy of the original's counts; the messages may be in the original's file only.
        self._origin = str(payload.get("forked_from_id") or payload.get("parent_thread_id") or walk.name)
        ends = [payload[name] for name in payload if name.endswith(("_ordinal_exclusive", "_start_ordinal"))]
        self._copied = max((end for end in ends if isinstance(end, int)), default=0)
        if value_at(payload, "history_base", "end_ordinal_exclusive"):
            walk.left_out.append(f"history of {payload['history_base'].get('thread_id')} in front of it")

    def conversation(self) -> StoredConversation:
        walk = self._walk
        walk.calls = self._records.calls or walk.calls
        head = {"instructions": self._instructions} if self._instructions else {}
        value = {**head, "input": walk.said}
        return walk.complete(StoredConversation(walk.name, "openai-responses", value, walk.model))


def _codex(file: SourceFile) -> Iterator[StoredConversation]:
    rollout, is_bare = CodexRollout(file), holding(_is_bare_codex)(file)
    for number, line in file.numbered_lines():
        if isinstance(line, dict) and line.get("record_type"):
            continue
        if isinstance(line, dict) and is_bare and "payload" not in line:
            line = {"type": "response_item" if "type" in line else "session_meta", "payload": line}
        payload = line.get("payload") if isinstance(line, dict) else None
        if not isinstance(line, dict) or not isinstance(payload, dict) or not isinstance(line.get("type"), str):
            raise misfit(file, number, line, "a line of a Codex rollout")
        rollout.take(number, line["type"], payload, line)
    yield rollout.conversation()


def _codex_items(payload: JsonObject) -> Iterator[JsonObject]:
    """An item as it is sent: another agent's message becomes the user's, items of the program itself are left out."""
    item = {key: value for key, value in payload.items() if not key.startswith("internal_")}
    words = [{**part, "type": "input_text"} for part in as_objects(item.get("content")) if part.get("text")]
    if item.get("type") == "agent_message" and words:
        yield {"type": "message", "role": "user", "content": words}
    elif item.get("type") not in clients()["codex"]["silent"]:
        yield {**item, "type": "compaction"} if item.get("type") == "compaction_summary" else item


def _codex_compacted(walk: SessionWalk, payload: JsonObject) -> tuple[list[int], list[JsonObject]]:
    """The indices of the earlier items that the replacement history begins with, and its new items after these."""
    items, earlier = walk.said, walk.compactions[-1] if walk.compactions else ClientSummary(0)
    standing = [*sorted(earlier.kept), *range(earlier.behind, len(items))]
    seen = payload.get("replacement_history")
    if not isinstance(seen, list):  # older files: the history is the user's messages and the summary
        words = [{"type": "input_text", "text": str(payload.get("message") or "")}]
        asked = [items[place] for place in standing if items[place].get("role") == "user"]
        seen = [*asked, {"type": "message", "role": "user", "content": words}]
    places, kept, seen = iter(standing), list[int](), [item for row in as_objects(seen) for item in _codex_items(row)]
    for item in seen:
        place = next((place for place in places if _codex_said(items[place]) == _codex_said(item)), None)
        if place is None:
            break
        kept.append(place)
    return kept, seen[len(kept) :]


def _codex_said(item: JsonObject) -> JsonObject:
    apart = ("id", "status", "phase")
    return {key: value for key, value in item.items() if key not in apart and value is not None}


def _is_bare_codex(line: JsonObject) -> bool:
    """Whether a line is the head of an older rollout, whose items are not wrapped as `payload`."""
    return {"id", "timestamp", "instructions"} <= line.keys() and not {"type", "payload"} & line.keys()


def _is_codex(line: JsonObject) -> bool:
    kinds = ("session_meta", "response_item", "turn_context", "event_msg")
    return _is_bare_codex(line) or (isinstance(line.get("payload"), dict) and line.get("type") in kinds)


# gemini-cli: each line has an id, and a later line replaces an earlier one with its id; tool results may stand in the
# line of their call, in a line of their own, or both.


def _gemini_cli(file: SourceFile) -> Iterator[StoredConversation]:
    walk = SessionWalk(file)
    answered = {id for line in _gemini_lines(file) for id in _gemini_calls(line.get("content"), "functionResponse")}
    # By id: the lines since the last compaction, the lines that it kept, and the range of their messages in `said`.
    lines, kept, places = dict[str, JsonObject](), dict[str, JsonObject](), dict[str, range]()
    # By (line, call): the line that showed the call first, since the client adds calls to much earlier lines.
    shown: dict[tuple[str, Json], str] = {}

    def add_messages() -> None:
        called: set[str] = set()
        for id, line in lines.items():
            contents = [*_gemini_contents(line, called, answered)] if line["type"] in ("user", "gemini") else []
            places[id] = range(len(walk.said), len(walk.said) + len(contents))
            walk.said += contents
            walk.times += [milliseconds(line.get("timestamp"))] * len(contents)

    for number, line in enumerate(_gemini_lines(file), 1):
        walk.name, walk.model = str(line.get("sessionId") or walk.name), str(line.get("model") or walk.model)
        id, kind = str(line.get("id") or f"line {number}"), line.get("type")
        history = as_objects(value_at(line, "$set", "messages"))
        if "$rewindTo" in line:
            # Removes the named line and all after it; everything, if that line is unknown.
            ids = [*lines]
            lines = {id: lines[id] for id in ids[: ids.index(line["$rewindTo"]) if line["$rewindTo"] in lines else 0]}
        elif history and not _gemini_holds(history, standing := kept | lines):
            # The client summed up: its new history begins with known lines, which are kept.
            add_messages()
            begins = len([*takewhile(standing.__contains__, (str(message.get("id")) for message in history))])
            same = {key for message in history[:begins] for key in _gemini_keys(message)}
            kept, lines = {id: row for id, row in standing.items() if _gemini_keys(row) & same}, {}
            walk.compactions.append(ClientSummary(len(walk.said), frozenset(n for id in kept for n in places[id])))
            walk.compacted = True
        elif isinstance(kind, str):
            # Messages of the program itself were never sent.
            walk.left_out += [kind] * (kind not in ("user", "gemini", *clients()["gemini-cli"]["silent"]))
            new = f"{id} {number}" if id in lines or id in kept else id
            calls: dict[str, list[JsonObject]] = {id: []}
            for call in as_objects(line.get("toolCalls")):
                calls.setdefault(shown.setdefault((id, call.get("id")), new), []).append(call)
            for place in [place for place in calls if place in lines or place == new]:
                about = line if place == id else {"type": kind, "timestamp": line.get("timestamp")}
                row = {**about, "id": place, "toolCalls": calls[place]}
                lines[place] = _gemini_merged(lines.get(place, {}), row)
            if kind == "gemini" and isinstance(line.get("tokens"), dict):
                walk.add_request(id, "gemini", usage_in("gemini-cli", line["tokens"]), line.get("timestamp"), id)
    add_messages()
    yield walk.complete(StoredConversation(walk.name, "gemini", walk.said, walk.model))


def _gemini_holds(history: list[JsonObject], lines: dict[str, JsonObject]) -> bool:
    """Whether a replacement history has every line; otherwise the client summed up those that it lacks."""
    held = {key for message in history for key in _gemini_keys(message)}
    return all(_gemini_keys(line) & held for line in lines.values() if line["type"] in ("user", "gemini"))


def _gemini_merged(earlier: JsonObject, line: JsonObject) -> JsonObject:
    """A line that replaces an earlier one, with the earlier tool results: the client masks them later on."""
    results = {call.get("id"): call["result"] for call in as_objects(earlier.get("toolCalls")) if call.get("result")}
    calls = [
        {**call, "result": results.get(call.get("id"), call.get("result"))}
        for call in as_objects(line.get("toolCalls"))
    ]
    content = earlier.get("content")
    content = content if _gemini_calls(content, "functionResponse") else line.get("content") or content
    return {**earlier, **line, "content": content, "toolCalls": calls or earlier.get("toolCalls")}


def _gemini_contents(line: JsonObject, called: set[str], answered: set[str]) -> Iterator[JsonObject]:
    """The messages of a line, without calls that an earlier line has and results that have a line of their own."""
    calls = as_objects(line.get("toolCalls"))
    parts = [part for part in _gemini_parts(line) if value_at(part, "functionCall", "id") not in called]
    called |= _gemini_calls(parts, "functionCall")
    made = [call for call in calls if call.get("id") not in called]
    named = [{"id": call.get("id"), "name": call.get("name"), "args": call.get("args") or {}} for call in made]
    parts += [{"functionCall": call} for call in named]
    called |= _gemini_calls(parts, "functionCall")
    if parts:
        yield {"role": "user" if line["type"] == "user" else "model", "parts": parts}
    results = [call.get("result") for call in calls if call.get("id") not in answered]
    if given := [part for result in results for part in _gemini_pieces(result)]:
        yield {"role": "user", "parts": given}


def _gemini_lines(file: SourceFile) -> Iterator[JsonObject]:
    """All lines, and the messages that a header's patch holds."""
    for number, line in file.numbered_lines():
        if not isinstance(line, dict):
            raise misfit(file, number, line, "a line of gemini-cli")
        patch = line.get("$set")
        yield from [line, *((patch if isinstance(patch, dict) else line).get("messages") or ())]


def _gemini_parts(message: JsonObject) -> list[JsonObject]:
    parts = _gemini_pieces(message.get("content"))
    thoughts = [] if any(part.get("thought") for part in parts) else as_objects(message.get("thoughts"))
    texts = [": ".join(filter(None, (thought.get("subject"), thought.get("description")))) for thought in thoughts]
    return [*({"text": text, "thought": True} for text in texts), *parts]


def _gemini_pieces(content: Json) -> list[JsonObject]:
    """The parts of a content, which may be a single part, a list, or plain texts."""
    pieces = content if isinstance(content, list) else [content]
    return [{"text": piece} if isinstance(piece, str) else piece for piece in pieces if piece]


def _gemini_calls(parts: Json, *kinds: str) -> set[str]:
    """The ids of the calls that parts make or answer."""
    called = [as_object(part.get(kind)) for part in as_objects(parts) for kind in kinds]
    return {str(call["id"]) for call in called if call.get("id")}


def _gemini_keys(message: JsonObject) -> set[str]:
    """The ids by which a message is recognised: its own, and those of its calls."""
    called = {str(call.get("id")) for call in as_objects(message.get("toolCalls"))}
    return {str(message.get("id")), *called, *_gemini_calls(message.get("content"), "functionCall", "functionResponse")}


def _is_claude_code(line: JsonObject) -> bool:
    """Whether a line is a message, or another known line (a title, a snapshot of files) that a file may begin with."""
    if line.get("type") in ("user", "assistant"):
        return isinstance(line.get("message"), dict) and bool({"uuid", "sessionId", "session_id"} & line.keys())
    known = line.get("type") in (*_SPOKEN, *clients()["claude-code"]["lines"])
    return known and bool({"sessionId", "leafUuid", "snapshot"} & line.keys())


CLIENTS: tuple[SessionStore, ...] = (
    SessionStore("claude-code", holding(_is_claude_code), _claude_code),
    SessionStore("codex", holding(_is_codex), _codex),
    SessionStore("gemini-cli", holding(lambda row: {"sessionId", "projectHash"} <= row.keys()), _gemini_cli, ("thought signatures",)),
)  # fmt: skip
