"""The list of other programs' stores (`STORES`), and the detection of a file's store.

Large agents and request logs have modules of their own; this module reads libraries and smaller agents: llm, aider,
pi, mini-swe-agent, SWE-agent, OpenAI Agents, strands, LangChain, pydantic-ai.
"""

from __future__ import annotations

import base64
import logging
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import msgspec

from quire.archive.agent_clients import CLIENTS
from quire.archive.request_logs import LOGS
from quire.archive.stored_conversations import (
    ClientSummary,
    LinesOf,
    SentCall,
    SessionStore,
    SourceFile,
    StoredConversation,
    decode_json,
    describe_value,
    holding,
    known_provider,
    milliseconds,
    source_file,
    text_in,
    text_or_json,
)
from quire.archive.stored_turns import (
    OPENCODE,
    SessionWalk,
    StoredBlock,
    StoredTurn,
    clients,
    is_opencode_storage,
    media_block,
    turns_in_format,
    wire_in,
    with_media,
)
from quire.errors import FormatError, NotFound
from quire.providers.outgoing import parsed_arguments
from quire.providers.usage import usage, usage_in
from quire.providers.wires.frameworks import FAILED, SILENT_PARTS
from quire.values import KINDS, Json, JsonObject, Usage, as_object, as_objects, value_at

_logger = logging.getLogger("quire")
Value = TypeVar("Value")


# llm: a tree of messages by hash, with the tip of each thread; older databases have prompts and responses.


def _llm(file: SourceFile) -> Iterator[StoredConversation]:
    if "turns" not in file.tables:
        yield from _llm_responses(file)
        return
    rows = file.rows("SELECT hash, parent_hash, role FROM messages")
    messages = {hash: (parent, role) for hash, parent, role in rows}
    blocks: dict[str, list[StoredBlock]] = {}
    # By message, the providers that signed it: a model's name alone does not always tell its provider.
    signers: dict[str, set[str]] = {}
    attached = _llm_attached(file, "part_attachments", "part_id")
    # A text that holds fragments is stored as its pieces.
    fragments = dict(file.rows("SELECT id, content FROM fragments")) if "fragments" in file.tables else {}
    for hash, id, kind, text, payload in file.rows("SELECT message_hash, id, type, text, payload FROM parts ORDER BY position, id"):  # fmt: skip
        fields: JsonObject = decode_json(payload or "{}", file.path)
        signers.setdefault(hash, set()).update(as_object(fields.get("provider_metadata")))
        pieces = [str(fragments.get(piece.get("fragment"), piece.get("literal", ""))) for piece in as_objects(fields.get("text_ref"))]  # fmt: skip
        part = _llm_part(kind, text or "".join(pieces), fields)
        blocks.setdefault(hash, []).extend(with_media(part, attached.get(id, [])))
    for thread, tip in file.rows("SELECT id, tip_message_hash FROM threads ORDER BY datetime_utc, id"):
        turns: list[StoredTurn] = []
        names = dict[str, None]()
        while tip in messages and len(turns) <= len(messages):
            names |= dict.fromkeys(sorted(signers.get(tip, ())))
            turns.insert(0, StoredTurn(messages[tip][1], tuple(blocks.get(tip, ()))))
            tip = messages[tip][0]
        models = file.rows("SELECT model FROM turns WHERE thread_id = ? ORDER BY id DESC", thread)
        tools = file.rows("SELECT DISTINCT name, description, input_schema FROM tools JOIN turn_tools ON tools.id = tool_id JOIN turns ON turns.id = turn_id WHERE thread_id = ? ORDER BY tools.id", thread)  # fmt: skip
        system = "\n".join(block.text for turn in turns if turn.role == "system" for block in turn.blocks)
        head = {"system": system, "tools": [{"name": n, "description": d or "", "parameters": decode_json(s or "{}")} for n, d, s in tools]}  # fmt: skip
        model = str(models[0][0]) if models else ""
        spoken = [turn for turn in turns if turn.role != "system"]
        conversation = turns_in_format(thread, " ".join((*names, model)), spoken, model.rpartition("/")[2], head)
        turns_sent = file.rows("SELECT id, model, input_tokens, output_tokens, token_details, datetime_utc FROM turns WHERE thread_id = ? ORDER BY id", thread)  # fmt: skip
        walk = SessionWalk(file, thread)
        for id, name, *counts, at in turns_sent:
            provider, _, walk.model = name.rpartition("/")
            walk.add_request(id, known_provider(provider), _llm_usage(*counts), at, id)
        yield walk.complete(conversation)


def _llm_usage(fresh: int | None, output: int | None, details: str | None) -> Usage:
    """The usage from llm's counts; those of the cache are in `details`, under the provider's names."""
    more: JsonObject = decode_json(details or "{}")
    if "cache_read_input_tokens" in more or "cache_creation_input_tokens" in more:
        return usage("anthropic", {"input_tokens": fresh, "output_tokens": output, **more})
    return usage("openai", {"input_tokens": fresh or 0, "output_tokens": output or 0, "input_tokens_details": more.get("input_tokens_details") or more.get("prompt_tokens_details") or {}})  # fmt: skip


def _llm_part(kind: str, text: str | None, fields: JsonObject) -> StoredBlock:
    meta = as_object(next(iter(as_object(fields.get("provider_metadata")).values()), {}))
    if kind == "reasoning":
        signature = str(meta.get("signature") or meta.get("encrypted_content") or "")
        return StoredBlock(text or "", thinking=True, signature=signature, id=str(meta.get("id") or ""))
    call_id, name = str(fields.get("tool_call_id")), str(fields.get("name"))
    if kind == "tool_call":
        return StoredBlock(call_id=call_id, name=name, args=fields.get("arguments"))
    if kind == "tool_result":
        return StoredBlock(text_in(fields.get("output")), call_id=call_id, name=name, is_result=True)
    return StoredBlock(text or "")


def _llm_fragments(file: SourceFile, table: str, of: str) -> dict[str | int, list[str]]:
    """The texts of fragments by the id of the part or response that they belong to."""
    return _by_first(file, table, f'SELECT {of}, content FROM {table} JOIN fragments ON fragments.id = fragment_id ORDER BY {of}, "order"', str)  # fmt: skip


def _llm_attached(file: SourceFile, table: str, of: str) -> dict[str | int, list[StoredBlock]]:
    """The blocks of attachments by the id of the part or response that they belong to."""
    query = f'SELECT {of}, type, content, url FROM {table} JOIN attachments ON attachments.id = attachment_id ORDER BY {of}, "order"'
    return _by_first(file, table, query, lambda kind, content, url: media_block(str(kind or ""), base64.b64encode(content).decode() if content else url or ""))  # fmt: skip


def _by_first(
    file: SourceFile, table: str, query: str, make: Callable[..., Value], *values: object
) -> dict[str | int, list[Value]]:
    """The rows of a query by their first column, each made of the other columns; none where there is no such table."""
    rows = file.rows(query, *values) if table in file.tables else []
    out: dict[str | int, list[Value]] = {}
    for first, *rest in rows:
        out.setdefault(first, []).append(make(*rest))
    return out


def _llm_responses(file: SourceFile) -> Iterator[StoredConversation]:
    """Older databases: prompts and responses; later versions added tables of calls, attachments and fragments."""
    columns = {name for (name,) in file.rows("SELECT name FROM pragma_table_info('responses')")}
    added = ("datetime_utc", "input_tokens", "output_tokens", "token_details")
    later = ", ".join(name if name in columns else "NULL" for name in added)
    query = f"SELECT conversation_id, id, model, system, prompt, response, {later} FROM responses ORDER BY conversation_id, id"
    fragments, attached = _llm_fragments(file, "prompt_fragments", "response_id"), _llm_attached(file, "prompt_attachments", "response_id")  # fmt: skip
    heads = _llm_fragments(file, "system_fragments", "response_id")
    calls = _by_first(file, "tool_calls", "SELECT response_id, tool_call_id, name, arguments FROM tool_calls ORDER BY id", lambda id, name, args: StoredBlock(call_id=str(id), name=name, args=decode_json(args or "{}")))  # fmt: skip
    results = _by_first(file, "tool_results", "SELECT response_id, id, tool_call_id, name, output FROM tool_results ORDER BY id", lambda id, call, name, output: (id, StoredBlock(output or "", call_id=str(call), name=name, is_result=True)))  # fmt: skip
    result_media = _llm_attached(file, "tool_results_attachments", "tool_result_id")
    tools = _by_first(file, "tool_responses", "SELECT response_id, name, description, input_schema FROM tool_responses JOIN tools ON tools.id = tool_id", lambda name, about, schema: {"name": name, "description": about or "", "parameters": decode_json(schema or "{}")})  # fmt: skip
    by_conversation = _by_first(file, "responses", query, lambda *row: row)
    for name, rows in by_conversation.items():
        walk, turns = SessionWalk(file, str(name)), list[StoredTurn]()
        systems = dict.fromkeys("\n".join(filter(None, (*heads.get(id, ()), prompt))) for id, _, prompt, *_ in rows)
        defined = {tool["name"]: tool for id, *_ in rows for tool in tools.get(id, ())}
        for id, model, _, prompt, response, at, *counts in rows:
            provider, _, walk.model = str(model or "").rpartition("/")
            walk.add_request(id, known_provider(provider), _llm_usage(*counts), at, id)
            returned = [block for number, result in results.get(id, ()) for block in with_media(result, result_media.get(number, []))]  # fmt: skip
            asked = "\n".join(filter(None, (*fragments.get(id, ()), prompt)))
            turns.append(StoredTurn("user", (*returned, StoredBlock(asked), *attached.get(id, ())), milliseconds(at)))
            turns.append(StoredTurn("assistant", (StoredBlock(response or ""), *calls.get(id, ())), milliseconds(at)))
        head = {"system": "\n".join(filter(None, systems)), "tools": list(defined.values())}
        yield walk.complete(turns_in_format(str(name), "", turns, str(rows[-1][1] or ""), head))


# aider: markdown in which > begins a line of the program, #### one of the user; all other lines are the model's. Lines of
# the program and the user end in two spaces, unlike headings and quotes that the model wrote.


def _aider(file: SourceFile) -> Iterator[StoredConversation]:
    end = "  " if re.search(r"^(?:>|####) .*  \r?$", file.text, re.M) else ""
    # `end` is added because the last line may have lost its spaces.
    chats = re.split(r"^# aider chat started at .*$", file.text + end, flags=re.M)[1:]
    conversations: list[list[JsonObject]] = []
    model = ""
    for chat in chats:
        model = next(iter(re.findall(r"^> Model: (\S+)", chat, re.M)), model)
        if not conversations or "> Restored previous conversation history." not in chat:
            conversations.append([])
        for role, lines in groupby(chat.split("\n"), partial(_aider_role, end)):
            mark = "#### " if role == "user" else ""
            text = "\n".join(line.removeprefix(mark).rstrip() for line in lines).strip("\n")
            # A command is for the program. Those with a question to the model write it again as a message, or, in older
            # versions, did not: so the question is taken from the command, and a repeat is dropped below.
            command = re.match(r"[/!](\S*)(.*)", text, re.S) if role == "user" else None
            text = command[2].strip() * (command[1] in ("ask", "code", "architect", "context")) if command else text
            last = conversations[-1][-1:]
            if role and text and last and last[0]["role"] == role:
                last[0]["content"] += [text] if text != last[0]["content"][-1] else []
            elif role and text:
                conversations[-1].append({"role": role, "content": [text]})
    for number, messages in enumerate(conversations, 1):
        joined = [{**message, "content": "\n\n".join(message["content"])} for message in messages]
        if joined:
            yield StoredConversation(f"aider-{number}", "openai-chat", joined, model.rpartition("/")[2])


def _aider_role(end: str, line: str) -> str:
    """The role of a line; "" for a line of the program."""
    starts = line[: line.find(" ") + 1] if line.rstrip("\r").endswith(end) else ""
    return {"#### ": "user", "> ": ""}.get(starts, "assistant")


# pi: a tree of lines; the newest leaf is the conversation.


def _pi(file: SourceFile) -> Iterator[StoredConversation]:
    walk, newest = SessionWalk(file), ""
    lines: dict[str, JsonObject] = {}
    ids: list[str] = []
    for number, line in walk.lines("a line of pi"):
        if line["type"] == "session":
            walk.name = str(line.get("id") or walk.name)
        elif line["type"] == "leaf":  # the user went back to this line
            newest = str(line.get("targetId") or "")
        else:
            # Older versions had no branches: lines have no ids, and each follows the one before it.
            parent = line.get("parentId") if line.get("id") else newest
            newest = str(line.get("id") or f"line {number}")
            lines[newest] = {**line, "id": newest, "parentId": parent}
        ids.append(newest)
        walk.compacted = walk.compacted or line["type"] == "compaction"
        message = as_object(line.get("message")) if line["type"] == "message" else {}
        if isinstance(message.get("usage"), dict):
            # A provider of the user's own is told by its API.
            own, model = wire_in(str(message.get("api") or "")), str(message.get("model") or "")
            provider = known_provider(str(message.get("provider") or ""), own)
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
            index = line.get("firstKeptEntryIndex")  # in older versions
            first = ids[index] if isinstance(index, int) and 0 <= index < len(ids) else line.get("firstKeptEntryId")
            # The compaction may repeat the kept messages instead of naming the first of them.
            tail = [{"type": "message", "message": row} for row in as_objects(line.get("retainedTail"))]
            walk.compactions.append(walk.summary_from(first if not tail else "", str(line.get("summary") or "")))
            walk.said += [_pi_turn(message) for row in tail for message in _pi_messages(row)]
        for message in _pi_messages(line):
            walk.said.append(_pi_turn(message))
            if message.get("role") == "assistant":
                api = str(message.get("api") or message.get("provider") or "")
                walk.model = str(message.get("model") or walk.model)
    walk.left_out = ["message of another branch" for line in lines.values() if line["type"] == "message"]
    yield walk.complete(turns_in_format(walk.name, api, walk.said, walk.model, compactions=walk.compactions))


def _pi_messages(line: JsonObject) -> Iterator[JsonObject]:
    """The messages of a line; pi's own lines (summaries, shell commands) in the words that pi sends."""
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
        failed = bool(message.get("isError"))
        given = StoredBlock(text_in(content), call_id=call_id, name=name, is_result=True, error=failed)
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
            return media_block(str(block.get("mimeType") or ""), str(block.get("data") or ""))
        case "text":
            # The id of its Responses item: alone, or in a JSON object.
            signature = str(block.get("textSignature") or "")
            facts = as_object(decode_json(signature)) if signature.startswith("{") else {"id": signature}
            return StoredBlock(text_in(block), id=str(facts.get("id") or ""))
    return StoredBlock(left_out=str(block.get("type")))


# Agents and libraries that store messages of a wire format, with fields of their own.


def _mini_swe_agent(file: SourceFile) -> Iterator[StoredConversation]:
    messages = [{key: value for key, value in message.items() if key != "extra"} for message in file.value["messages"]]
    messages = [message for message in messages if message.get("role") != "exit"]
    config = as_object(value_at(file.value, "info", "config", "model"))
    provider, _, model = str(config.get("model_name") or "").rpartition("/")
    walk, provider = SessionWalk(file, str(file.path)), known_provider(provider)
    walk.model = model
    for number, message in enumerate(file.value["messages"], 1):
        extra = message.get("extra") or {}
        if "response" in extra or "usage" in message:
            reply = extra.get("response") or message  # of the Responses API the message itself
            walk.add_request(number, provider, usage(provider, reply), extra.get("timestamp"), reply.get("id"))
    if any("output" in message for message in messages):
        outputs = [row["output"] if isinstance(row.get("output"), list) else [row] for row in messages]
        value = {"input": [item for output in outputs for item in output]}
        yield walk.complete(StoredConversation(file.name, "openai-responses", value, model))
    else:
        yield walk.complete(StoredConversation(file.name, "openai-chat", messages, model))


def _swe_agent(file: SourceFile) -> Iterator[StoredConversation]:
    messages: list[JsonObject] = []
    for row in file.value.get("history") or ():
        ids = row.get("tool_call_ids") or []
        message = {key: row[key] for key in ("role", "content", "tool_calls", "name", "thinking_blocks") if row.get(key) is not None}  # fmt: skip
        messages.append({**message, **({"tool_call_id": ids[0]} if row.get("role") == "tool" and ids else {})})
    if not messages:
        for step in file.value.get("trajectory") or ():
            messages += [{"role": "assistant", "content": str(step.get("response") or step.get("action") or "")}, {"role": "user", "content": str(step.get("observation") or "")}]  # fmt: skip
    yield StoredConversation(file.name, "openai-chat", messages)


def _openai_agents(file: SourceFile) -> Iterator[StoredConversation]:
    for (session,) in file.rows("SELECT session_id FROM agent_sessions ORDER BY created_at, session_id"):
        query = "SELECT '', message_data, created_at FROM agent_messages WHERE session_id = ? ORDER BY id"
        if "message_structure" in file.tables:  # branches share messages
            query = "SELECT branch_id, message_data, m.created_at FROM message_structure s JOIN agent_messages m ON m.id = message_id WHERE s.session_id = ? ORDER BY sequence_number, s.id"
        branches = _by_first(file, "agent_messages", query, lambda data, at: (decode_json(data, file.path), milliseconds(f"{at}Z".replace(" ", "T"))), session)  # fmt: skip
        for branch, rows in branches.items():
            name = f"{session}-{branch}".removesuffix("-main").removesuffix("-")
            items, times = zip(*rows, strict=True)
            yield StoredConversation(name, "openai-agents", [*items], times=times)


def _strands(file: SourceFile) -> Iterator[StoredConversation]:
    for agent in sorted(file.path.glob("agents/agent_*")):
        stored = sorted(agent.glob("messages/message_*.json"), key=lambda path: int(path.stem.rpartition("_")[2]))
        rows = [decode_json(path.read_bytes(), path) for path in stored]
        # A message that a guardrail redacted is stored beside its replacement.
        shown = [row.get("redact_message") or row["message"] for row in rows]
        messages = [{"role": row["role"], "content": [_converse(block) for block in row["content"]]} for row in shown]
        described = next((source_file(path).value for path in agent.glob("agent.json")), None)
        facts = as_object(value_at(described, "conversation_manager_state"))
        removed, summary = facts.get("removed_message_count") or 0, value_at(facts, "summary_message", "content")
        # Only the last compaction is stored.
        summed = (ClientSummary(len(rows), frozenset(range(removed, len(rows))), text_in(summary)),) if removed else ()
        name = f"{file.path.name}-{agent.name}".removesuffix("-agent_default")
        times = tuple(milliseconds(row.get("created_at")) for row in rows)
        walk = SessionWalk(file, str(agent))
        for number, row in enumerate(rows):
            if used := value_at(row, "message", "metadata", "usage"):
                # The store holds neither provider nor model.
                walk.add_request(number, known_provider(""), usage("bedrock", used), row.get("created_at"), "")
        yield walk.complete(StoredConversation(name, "bedrock", messages, times=times, compactions=summed))


def _converse(block: JsonObject) -> Json:
    """A block without what strands adds: signatures of other providers than Bedrock, and marks of base64 values."""
    call = block.get("toolUse")
    if isinstance(call, dict):
        block = {"toolUse": {key: value for key, value in call.items() if key != "reasoningSignature"}}
    return _without_marks(block)


def _without_marks(value: Json) -> Json:
    if isinstance(value, list):
        return [_without_marks(element) for element in value]
    if not isinstance(value, dict):
        return value
    if value.get("__bytes_encoded__"):
        return value.get("data")
    return {key: _without_marks(field) for key, field in value.items()}


def _langchain(file: SourceFile) -> Iterator[StoredConversation]:
    rows = [row.get("data") or row.get("kwargs") or {} for row in file.objects()]
    facts = [row.get("response_metadata") or {} for row in rows]
    model = next((str(fact["model_name"]) for fact in reversed(facts) if fact.get("model_name")), "")
    walk = SessionWalk(file, str(file.path))
    for number, (row, fact) in enumerate(zip(rows, facts, strict=True), 1):
        if isinstance(row.get("usage_metadata"), dict):
            provider, walk.model = str(fact.get("model_provider") or ""), str(fact.get("model_name") or model)
            used = usage_in("langchain", row["usage_metadata"])
            walk.add_request(number, known_provider(provider), used, None, row.get("id"))
    yield walk.complete(StoredConversation(file.name, "langchain", file.value, model))


# pydantic-ai: requests and responses in parts.


def _pydantic_ai(file: SourceFile) -> Iterator[StoredConversation]:
    turns: list[StoredTurn] = []
    walk, provider, instructions = SessionWalk(file, str(file.path)), "", ""
    prompts: dict[str, None] = {}
    for message in file.objects():
        instructions = str(message.get("instructions") or instructions)
        provider = str(message.get("provider_name") or provider)
        walk.model = str(message.get("model_name") or walk.model)
        parts = message.get("parts") or ()
        blocks = [block for part in parts if part.get("part_kind") != "system-prompt" for block in _pydantic_part(part)]
        prompts |= dict.fromkeys(str(part.get("content")) for part in parts if part.get("part_kind") == "system-prompt")
        role = "assistant" if message.get("kind") == "response" else "user"
        turns.append(StoredTurn(role, tuple(blocks), milliseconds(message.get("timestamp")), provider))
        if isinstance(message.get("usage"), dict) and role == "assistant":
            used, id = usage_in("pydantic-ai", message["usage"]), message.get("provider_response_id")
            walk.add_request(len(turns), known_provider(provider), used, turns[-1].at, id)
    head = {"system": "\n".join(filter(None, (*prompts, instructions)))}
    yield walk.complete(turns_in_format(file.name, provider, turns, walk.model, head))


def _pydantic_part(part: JsonObject) -> Iterator[StoredBlock]:
    kind, content = part.get("part_kind"), part.get("content")
    details = part.get("provider_details") or {}
    signature = str(part.get("signature") or details.get("thought_signature") or "")
    # Older versions wrote the id of an item after the id of its call.
    (call_id, _, item_id), name = str(part.get("tool_call_id")).partition("|"), str(part.get("tool_name"))
    if kind == "thinking":
        redacted = part.get("id") == "redacted_thinking"
        yield StoredBlock(str(content or ""), thinking=True, signature=signature, id="" if redacted else str(part.get("id") or ""), redacted=redacted)  # fmt: skip
    elif kind in ("tool-call", "builtin-tool-call"):
        raw = part.get("args")
        args = parsed_arguments(raw)[0] if isinstance(raw, str) and raw.startswith("{") else raw
        yield StoredBlock(call_id=call_id, name=name, args=args, signature=signature, id=str(part.get("id") or item_id))
    elif kind in ("tool-return", "builtin-tool-return") or (kind == "retry-prompt" and part.get("tool_name")):
        failed = kind == "retry-prompt" or part.get("outcome") in (*FAILED, "error")
        media = [block for block in _pydantic_media(content) if block.left_out or block.images]
        value = [piece for piece in content if not _pydantic_kind(piece)] if isinstance(content, list) else content
        block = StoredBlock(text_or_json(value), call_id=call_id, name=name, is_result=True, error=failed)
        yield from with_media(block, media)
    elif kind == "user-prompt":
        yield from _pydantic_media(content)
    elif kind in ("text", "retry-prompt"):
        yield StoredBlock(text_or_json(content), id=str(part.get("id") or ""))
    elif kind not in SILENT_PARTS:
        yield StoredBlock(left_out=str(kind))


def _pydantic_kind(content: Json) -> str:
    """The kind of a prompt's piece ("binary", "image-url", "document-url", …); "" for plain text."""
    return str(content.get("kind") or "") if isinstance(content, dict) else ""


def _pydantic_media(content: Json) -> Iterator[StoredBlock]:
    """The pieces of a prompt as blocks."""
    for piece in content if isinstance(content, list) else [content]:
        match _pydantic_kind(piece):
            case "":
                yield StoredBlock(text_in(piece))
            case "text-content":
                yield StoredBlock(text_in(piece.get("content")))
            case "binary":
                yield media_block(str(piece.get("media_type") or ""), str(piece.get("data") or ""))
            case "image-url":
                yield media_block("image/*", str(piece.get("url") or ""))
            case "cache-point":
                pass
            case kind:
                yield StoredBlock(left_out=kind)


LIBRARIES: tuple[SessionStore, ...] = (
    SessionStore("pi", holding(lambda row: row.get("type") == "session" and bool({"cwd", "version"} & row.keys())), _pi),
    SessionStore("llm", lambda file: {"threads", "turns", "parts"} <= file.tables or {"conversations", "responses"} <= file.tables, _llm),
    SessionStore("openai-agents", lambda file: {"agent_sessions", "agent_messages"} <= file.tables, _openai_agents),
    SessionStore("aider", lambda file: bool(re.search(r"^# aider chat started at ", file.text[:10_000], re.M)), _aider, ("files in the chat",)),
    SessionStore("mini-swe-agent", holding(lambda row: str(row.get("trajectory_format") or "").startswith("mini-swe-agent")), _mini_swe_agent),
    SessionStore("swe-agent", holding(lambda row: isinstance(row.get("trajectory"), list) and ("history" in row or "info" in row)), _swe_agent),
    SessionStore("strands", lambda file: (file.path / "session.json").is_file() and (file.path / "agents").is_dir(), _strands),
    SessionStore("langchain", lambda file: isinstance(file.value, list) and holding(lambda row: row.get("lc") == 1 or (row.get("type") in ("human", "ai", "system", "tool") and isinstance(row.get("data"), dict)))(file), _langchain),
    SessionStore("pydantic-ai", lambda file: isinstance(file.value, list) and holding(lambda row: row.get("kind") in ("request", "response") and isinstance(row.get("parts"), list))(file), _pydantic_ai),
)  # fmt: skip


__all__ = [
    "STORES", "FilePart", "conversations", "files_under", "parts", "recognised", "sent_calls", "source_file",
]  # fmt: skip

STORES = (*CLIENTS, OPENCODE, *LIBRARIES, *LOGS)


_SESSION_FILES = (".jsonl", ".json", ".db", ".har", ".lhar", ".traj", ".sqlite", ".aider.chat.history.md")


def files_under(path: Path) -> Iterator[Path]:
    """The files in a folder that may be sessions, sorted by name; a folder that is itself a session is one result."""
    if not path.exists():
        raise NotFound(f"there is no file {str(path)!r}", hint="Check the path.")
    if not path.is_dir() or (path / "session.json").is_file() or is_opencode_storage(path):
        yield path
        return
    for entry in sorted(path.iterdir()):
        # `is_file`, because opening a named pipe would wait for ever.
        is_session = entry.is_file() and entry.name.removesuffix(".gz").removesuffix(".zst").endswith(_SESSION_FILES)
        if entry.name == "storage" and (path / "opencode.db").is_file():
            _logger.warning("%s is left out: opencode.db was made of it", entry)
        elif (entry.is_dir() or is_session) and not entry.is_symlink():
            try:
                yield from files_under(entry)
            except PermissionError as error:
                _logger.warning("%s cannot be read, and is left out: %s", entry, error.strerror)


def conversations(file: SourceFile, store: SessionStore) -> list[StoredConversation]:
    """The conversations of a store, each with a list of what it lacks."""
    stored = list(_read(file, store, store.read))
    return [msgspec.structs.replace(conversation, lacks=(*store.lacks, *conversation.lacks)) for conversation in stored]


def _read(file: SourceFile, store: SessionStore, read: Callable[[SourceFile], Iterable[Value]]) -> Iterator[Value]:
    """Run a reader; any error in it becomes a FormatError that names the file."""
    try:
        yield from read(file)
    except (ArithmeticError, LookupError, TypeError, AttributeError, ValueError, sqlite3.Error) as error:
        # What Python says of a value of another type names its types, not the file's fields.
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        reason = "a value in it is of another kind" if isinstance(error, TypeError | AttributeError) else reason
        problem = f"{file.path.name} is not as {store.name} writes it: {reason}"
        raise FormatError(problem, hint="Check the file, or force another reader with --from.") from error


def recognised(file: SourceFile) -> SessionStore:
    """The first store that recognises the file; an error that shows the file's beginning where none does."""
    for store in STORES:
        if store.recognises(file):
            return store
    if file.tables:
        beginning, line = f"the tables {', '.join(sorted(file.tables)[:6])}", 0
    elif not (file.head or file.value is not None or file.text.strip()):
        raise FormatError(f"{file.path.name} is empty", hint="Give a file that holds requests, or a session.")
    else:
        line, first = next(iter(file.head), (1, file.value if file.value is not None else file.text[:60]))
        beginning = describe_value(first[0] if isinstance(first, list) and first else first)
    known = f"Name what it is with --from: {', '.join(store.name for store in STORES)}, or a wire format."
    is_log = not file.tables and isinstance(first, dict) and first.get("kind") in KINDS
    raise FormatError(
        f"{file.path.name} begins with {beginning}, which nothing known here begins with",
        line=line,
        column=min(line, 1),
        hint="These are entries: `quire log import THREAD FILE` reads them." if is_log else known,
    )


def sent_calls(file: SourceFile) -> Iterator[SentCall]:
    """The requests in a file, in its order; none where its store does not record them."""
    store = recognised(file)
    if store.exchanges is not None:
        yield from (call for exchange in _read(file, store, store.exchanges) if (call := exchange.call()) is not None)
    else:
        for conversation in conversations(file, store):
            yield from (msgspec.structs.replace(call, store=store.name) for call in conversation.calls)


# The size of the parts in which a long log is read. A constant, so that results do not depend on who reads them.
PART_BYTES = 16 * 1024 * 1024


class FilePart(msgspec.Struct, frozen=True):
    """A file, or some lines of a long one, that can be read independently."""

    path: Path
    lines: LinesOf | None = None

    @property
    def size(self) -> int:
        return self.lines.end - self.lines.start if self.lines else self.path.stat().st_size

    def open(self) -> SourceFile:
        return msgspec.structs.replace(source_file(self.path), part=self.lines)


def parts(path: Path) -> Iterator[FilePart]:
    """A file in parts that can be read independently: stretches of a long request log, else the whole file."""
    if path.is_file() and path.suffix not in (".gz", ".zst") and path.stat().st_size > PART_BYTES:
        file = source_file(path)
        if file.is_lines and recognised(file).exchanges is not None:
            yield from (FilePart(path, lines) for lines in file.parts(PART_BYTES))
            return
    yield FilePart(path)
