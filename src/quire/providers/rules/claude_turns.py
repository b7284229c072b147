"""Anthropic's and Bedrock's conversations in one form, so that Claude's rules are written once.

Blocks keep the path they have in the request; their content is in Anthropic's words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import msgspec

from quire.providers.models import data
from quire.providers.rules.check import Check, Finding, found, limit, where
from quire.providers.rules.grammar import grammar_of, misfits, obj, objects, shape, text
from quire.values import Json, JsonObject


class TurnBlock(msgspec.Struct, frozen=True):
    type: str
    raw: JsonObject
    path: str


class TurnMessage(msgspec.Struct, frozen=True):
    role: str
    path: str
    blocks: tuple[TurnBlock, ...]
    raw: JsonObject = {}


class Conversation(msgspec.Struct, frozen=True):
    """A conversation in the order it is hashed: tools, system, messages."""

    tools: tuple[TurnBlock, ...]
    system: tuple[TurnBlock, ...]
    messages: tuple[TurnMessage, ...]


def anthropic_talk(body: JsonObject) -> Conversation:
    """An Anthropic request; a string stands for one text block."""
    messages = (_message(path, one) for path, one in objects(body.get("messages"), "$.messages"))
    return Conversation(
        tools=tuple(
            TurnBlock(str(tool.get("type") or "custom"), tool, path)
            for path, tool in objects(body.get("tools"), "$.tools")
        ),
        system=tuple(_blocks(body.get("system"), "$.system")),
        messages=tuple(messages),
    )


def _message(path: str, message: JsonObject) -> TurnMessage:
    blocks = tuple(_blocks(message.get("content"), f"{path}.content"))
    return TurnMessage(str(message.get("role")), path, blocks, message)


def _blocks(content: Json, path: str) -> Iterator[TurnBlock]:
    if isinstance(content, str):
        yield TurnBlock("text", {"type": "text", "text": content}, path)
    for place, block in objects(content, path):
        yield TurnBlock(str(block.get("type")), block, place)


def converse_talk(body: JsonObject) -> Conversation:
    """A Bedrock Converse request in Anthropic's words; a cachePoint is a block of type cache_point."""
    tools = objects(obj(body.get("toolConfig")).get("tools"), "$.toolConfig.tools")
    messages = (
        TurnMessage(
            str(one.get("role")),
            path,
            tuple(_converse(block, place) for place, block in objects(one.get("content"), f"{path}.content")),
            one,
        )
        for path, one in objects(body.get("messages"), "$.messages")
    )
    return Conversation(
        tools=tuple(_converse(tool, path) for path, tool in tools),
        system=tuple(_converse(block, path) for path, block in objects(body.get("system"), "$.system")),
        messages=tuple(messages),
    )


def _converse(block: JsonObject, path: str) -> TurnBlock:
    for name, read in _CONVERSE.items():
        if block.get(name) is not None:
            raw = read(block[name])
            return TurnBlock(raw["type"], raw, path)
    kind = next(iter(block), "")
    return TurnBlock(str(kind), block, path)


def _thinking(value: Json) -> JsonObject:
    reasoning = obj(value)
    if reasoning.get("redactedContent") is not None:
        return {"type": "redacted_thinking", "data": str(reasoning["redactedContent"])}
    inner = obj(reasoning.get("reasoningText"))
    return {"type": "thinking", "thinking": inner.get("text"), "signature": inner.get("signature")}


def _tool_use(value: Json) -> JsonObject:
    use = obj(value)
    return {
        # A tool that the provider runs has a type of its own.
        "type": "server_tool_use" if use.get("type") == "server_tool_use" else "tool_use",
        "id": use.get("toolUseId"),
        "name": use.get("name"),
        "input": use.get("input"),
    }


def _tool_result(value: Json) -> JsonObject:
    result = obj(value)
    return {
        "type": "tool_result" if result.get("type") in (None, "tool_result") else "server_tool_result",
        "tool_use_id": result.get("toolUseId"),
        "content": result.get("content"),
        "is_error": result.get("status") == "error",
    }


_CONVERSE: dict[str, Callable[[Json], JsonObject]] = {
    "text": lambda text: {"type": "text", "text": text},
    "toolUse": _tool_use,
    "toolResult": _tool_result,
    "reasoningContent": _thinking,
    "cachePoint": lambda point: {"type": "cache_point", "ttl": obj(point).get("ttl"), "point": point},
    "toolSpec": lambda spec: {"type": "custom", "name": obj(spec).get("name"), "spec": spec},
    "toolAddition": lambda change: {"type": "tool_addition", **obj(change)},
    "toolRemoval": lambda change: {"type": "tool_removal", **obj(change)},
}


def turns(messages: Iterable[TurnMessage]) -> list[TurnMessage]:
    """User and assistant messages, neighbours of one role joined as the API joins them; system messages left out."""
    spoken = (message for message in messages if message.role in ("user", "assistant"))
    return [_joined(list(run)) for _, run in groupby(spoken, key=lambda message: message.role)]


def _joined(run: list[TurnMessage]) -> TurnMessage:
    if len(run) == 1:
        return run[0]
    return msgspec.structs.replace(run[0], blocks=tuple(block for message in run for block in message.blocks))


def pieces(talk: Conversation) -> Iterator[tuple[str, Json]]:
    """Everything a thinking block is bound to, in order, each with its role."""
    yield from (("tools", block.raw) for block in talk.tools if block.type != "cache_point")
    yield from (("system", block.raw) for block in talk.system if block.type != "cache_point")
    for message in talk.messages:
        yield from ((message.role, block.raw) for block in message.blocks if block.type != "cache_point")


# Claude's calls and results: every tool_use answered in the next message, results first (rows 1 to 3).
#
# And whose they are: a call is the assistant's, its result the user's.


def pairs(check: Check, talk: Conversation) -> Iterator[Finding]:
    """Rows 1 to 3 over the joined turns."""
    joined = turns(talk.messages)
    for index, turn in enumerate(joined):
        if turn.role == "assistant":
            yield from _unanswered(check, turn, joined[index + 1 : index + 2])
        else:
            # A continued thread's first message answers calls that the server holds.
            if index or obj(check.body.get("thread")).get("type") != "continue":
                yield from _orphans(turn, joined[index - 1 : index] if index else [])
            yield from _late_results(turn)


def ids(talk: Conversation) -> Iterator[Finding]:
    """Row 1b: ids of calls, each once, in letters that the API takes."""
    known: set[str] = set()
    for use in _of(talk.messages, "tool_use"):
        id = text(use.raw.get("id"))
        if id and not re.fullmatch(limit("tool_id"), id):
            problem = f"{where(use.path)}.id: String should match pattern '{limit('tool_id')}'"
            yield found("B2.1b", f"{use.path}.id", problem=problem, fix="Use letters, digits, _ and - only.")
        elif id in known:
            problem = f"{where(use.path)}: `tool_use` ids must be unique"
            yield found(
                "B2.1b", f"{use.path}.id", problem=problem, fix=f"Give the second {id} a name of its own."
            )
        known.add(id)


# Whose messages a block may stand in.
_SPEAKERS = {
    "tool_use": "assistant",
    "tool_result": "user",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
}


def speakers(talk: Conversation) -> Iterator[Finding]:
    """Blocks in a message of the wrong role."""
    for message in talk.messages:
        for block in message.blocks:
            speaker = _SPEAKERS.get(block.type, message.role)
            if message.role in ("user", "assistant", "system") and message.role != speaker:
                problem = f"`{block.type}` blocks can only be in {speaker} messages"
                yield shape(block.path, problem, f"Move it to the {speaker}'s message.")


def _unanswered(check: Check, turn: TurnMessage, after: Sequence[TurnMessage]) -> Iterator[Finding]:
    if not after and check.body.get("compaction"):
        return  # a compaction request that stops here breaks row 19
    answered = {text(block.raw.get("tool_use_id")) for block in _of(after, "tool_result")}
    for use in _of([turn], "tool_use"):
        if text(use.raw.get("id")) not in answered:
            yield found("B2.1", use.path, id=text(use.raw.get("id")) or "(no id)")


def _orphans(turn: TurnMessage, before: Sequence[TurnMessage]) -> Iterator[Finding]:
    waiting = Counter(text(block.raw.get("id")) for block in _of(before, "tool_use"))
    for result in _of([turn], "tool_result"):
        id = text(result.raw.get("tool_use_id"))
        if waiting[id] < 1:
            yield found("B2.2", result.path, id=id or "(no id)")
        waiting[id] -= 1


def _late_results(turn: TurnMessage) -> Iterator[Finding]:
    """Results that stand behind something else in their message."""
    others = False
    for block in turn.blocks:
        if block.type == "tool_result" and others:
            yield found("B2.3", block.path)
        others = others or block.type not in ("tool_result", "cache_point")


def _of(messages: Sequence[TurnMessage], kind: str) -> list[TurnBlock]:
    return [block for message in messages for block in message.blocks if block.type == kind]


# Tool names, in definitions and in calls (row 17), and Anthropic's demand that they differ.


def names(given: Iterable[tuple[str, Json]]) -> Iterator[Finding]:
    """Row 17 over (path, name); what is no string has the wrong shape and is not looked at here."""
    pattern = limit("tool_name")
    for path, name in given:
        if isinstance(name, str) and not re.fullmatch(pattern, name):
            yield found("B2.17", path, name=name, pattern=pattern, most=limit("tool_name_length"))


def unique(given: Iterable[tuple[str, Json]]) -> Iterator[Finding]:
    """The second tool of one name."""
    known: set[str] = set()
    for path, name in given:
        if isinstance(name, str) and name in known:
            yield found("B.tool-unique", path, name=name)
        if isinstance(name, str):
            known.add(name)


# Types of an Anthropic request's messages, blocks and tools, and where its tool names are.


def anthropic_shape(check: Check) -> Iterator[Finding]:
    """Types of everything the rules read, and that there is a message."""
    grammar, body = grammar_of("anthropic"), check.body
    if body.get("messages") == [] and not body.get("system"):
        yield shape("$.messages", "at least one message is required", "Send a user message.")
    yield from misfits({**body, "messages": _spoken(body.get("messages"))}, "@body", "$", grammar)


def _spoken(messages: Json) -> Json:
    """The messages; content may be absent where a system message sets the effort alone."""
    if not isinstance(messages, list | tuple):
        return messages
    return [{"content": "", **one} if _configures(one) else one for one in messages]


def _configures(message: Json) -> bool:
    return (
        isinstance(message, dict) and message.get("role") == "system" and bool(message.get("output_config"))
    )


def anthropic_names(talk: Conversation) -> Iterator[tuple[str, Json]]:
    """Every tool name with its path, of definitions and of calls."""
    yield from tool_names(talk)
    for message in talk.messages:
        for block in message.blocks:
            if block.type == "tool_use":
                yield f"{block.path}.name", block.raw.get("name")


def tool_names(talk: Conversation) -> Iterator[tuple[str, Json]]:
    """The names of the tools that are defined."""
    yield from ((f"{block.path}.name", block.raw.get("name")) for block in talk.tools)


def version(check: Check, talk: Conversation) -> Iterator[Finding]:
    """What the newest API version no longer takes: documents from the assistant, citations on the user's text."""
    if check.version < data("rules")["versions"]["anthropic_no_sampling"]:
        return
    for message in talk.messages:
        for block in message.blocks:
            if block.type == "document" and message.role == "assistant":
                yield found("B.version", block.path, fix="Send the document in a user message.")
            if block.type == "text" and message.role == "user" and block.raw.get("citations"):
                yield found("B.version", f"{block.path}.citations", fix="Leave citations out of user text.")


# Claude's texts: not empty, through Bedrock not blank, no cache mark on nothing (rows 4, 4b, 5).


def blank(check: Check, talk: Conversation) -> Iterator[Finding]:
    """Rows 4, 4b and 5, in messages, tool results and system blocks."""
    last = len(talk.messages) - 1
    for index, message in enumerate(talk.messages):
        # The last assistant message may be empty where it is a prefill.
        if index == last and message.role == "assistant" and check.info.features.prefill:
            continue
        if message.raw.get("content") == [] and not message.raw.get("output_config"):
            yield found("B2.4", message.path)
        for block in message.blocks:
            yield from _texts(check, block)
    for block in talk.system:
        # `system: ""` is the same as none.
        if block.path != "$.system":
            yield from _texts(check, block)


def _texts(check: Check, block: TurnBlock) -> Iterator[Finding]:
    if block.type == "text":
        yield from _text(check, block)
    if block.type == "tool_result":
        for path, inner in objects(block.raw.get("content"), f"{block.path}.content"):
            if inner.get("type") == "text":
                yield from _text(check, TurnBlock("text", inner, path))


def _text(check: Check, block: TurnBlock) -> Iterator[Finding]:
    said = block.raw.get("text")
    if said == "":
        yield found("B2.5" if block.raw.get("cache_control") else "B2.4", block.path)
    elif isinstance(said, str) and not said.strip() and check.via_bedrock:
        yield found("B2.4b", block.path)
