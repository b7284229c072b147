"""Claude's turns: calls and results, speakers, names and texts, in Anthropic's requests and in Bedrock's.

Blocks keep the path they have in the request; their content is in Anthropic's words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from quire.providers.models import data
from quire.providers.rules.check import (
    Check,
    Conversation,
    Finding,
    Sequel,
    TurnBlock,
    TurnMessage,
    found,
    limit,
    where,
)
from quire.providers.rules.grammar import grammar_of, misfits, obj, objects_at, shape, text
from quire.values import Json, JsonObject


def converse_block(value: JsonObject, path: str) -> TurnBlock:
    """A block of a Converse request in Anthropic's words; a cachePoint is a block of type cache_point."""
    for name, read in _CONVERSE.items():
        if value.get(name) is not None:
            raw = read(value[name])
            return TurnBlock(raw["type"], raw, path)
    return TurnBlock(str(next(iter(value), "")), value, path)


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


def last_turn(messages: Sequence[TurnMessage]) -> tuple[str, list[TurnBlock]]:
    """Who spoke last and what they said: neighbours of one role are one turn, system messages are left out."""
    role, spoken = "", list[TurnMessage]()
    for message in reversed(messages):
        if message.role not in ("user", "assistant"):
            continue
        if role not in ("", message.role):
            break
        role = message.role
        spoken.append(message)
    return role, [block for message in reversed(spoken) for block in message.blocks]


def pieces(talk: Conversation) -> Iterator[tuple[str, Json]]:
    """Everything a thinking block is bound to, in order, each with its role."""
    yield from (("tools", block.raw) for block in talk.tools if block.type != "cache_point")
    yield from (("system", block.raw) for block in talk.system if block.type != "cache_point")
    for message in talk.messages:
        yield from ((message.role, block.raw) for block in message.blocks if block.type != "cache_point")


# Claude's calls and results: every tool_use answered in the next message, results first (rows 1 to 3).
#
# And whose they are: a call is the assistant's, its result the user's.


class Pairs(Sequel):
    """Rows 1 to 3; neighbours of one role are joined as the API joins them, system messages left out."""

    def __init__(self) -> None:
        self._role = ""
        # The calls of the newest assistant turn, which of them the user has answered, and which results may come.
        self._calls: list[TurnBlock] = []
        self._answered_ids: set[str] = set()
        self._waiting: Counter[str] = Counter()
        # Whether what the server holds is answered, and whether something else stands before a result.
        self._elsewhere = self._others = False

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        if turn.role == "assistant":
            if self._role != "assistant":
                yield from self._unanswered()
                self._calls, self._answered_ids = [], set()
            self._calls += turn.of("tool_use")
        elif turn.role == "user":
            if self._role != "user":
                # A continued thread's first message answers calls that the server holds.
                continued = obj(check.body.get("thread")).get("type") == "continue"
                self._elsewhere, self._others = continued and not self._role, False
                self._waiting = Counter(text(call.raw.get("id")) for call in self._calls)
            for block in turn.blocks:
                yield from self._result(block)
        self._role = turn.role if turn.role in ("user", "assistant") else self._role

    def end(self, check: Check) -> Iterator[Finding]:
        # A compaction request that stops behind a call breaks row 19.
        if self._role != "assistant" or not check.body.get("compaction"):
            yield from self._unanswered()

    def _result(self, block: TurnBlock) -> Iterator[Finding]:
        if block.type == "tool_result":
            id = text(block.raw.get("tool_use_id"))
            if self._waiting[id] < 1 and not self._elsewhere:
                yield found("B2.2", block.path, id=id or "(no id)")
            if self._others:
                yield found("B2.3", block.path)
            self._waiting[id] -= 1
            self._answered_ids.add(id)
        self._others = self._others or block.type not in ("tool_result", "cache_point")

    def _unanswered(self) -> Iterator[Finding]:
        for call in self._calls:
            if text(call.raw.get("id")) not in self._answered_ids:
                yield found("B2.1", call.path, id=text(call.raw.get("id")) or "(no id)")


class CallIds(Sequel):
    """Row 1b: ids of calls, each once, in letters that the API takes."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        for use in turn.of("tool_use"):
            id = text(use.raw.get("id"))
            if id and not re.fullmatch(limit("tool_id"), id):
                problem = f"{where(use.path)}.id: String should match pattern '{limit('tool_id')}'"
                yield found("B2.1b", f"{use.path}.id", problem=problem, fix="Use letters, digits, _ and - only.")
            elif id in self._ids:
                problem = f"{where(use.path)}: `tool_use` ids must be unique"
                fix = f"Give the second {id} a name of its own."
                yield found("B2.1b", f"{use.path}.id", problem=problem, fix=fix)
            self._ids.add(id)


# Whose messages a block may stand in.
_SPEAKERS = {"tool_use": "assistant", "tool_result": "user", "thinking": "assistant", "redacted_thinking": "assistant"}


def speakers(turn: TurnMessage) -> Iterator[Finding]:
    """Blocks in a message of the wrong role."""
    for block in turn.blocks:
        speaker = _SPEAKERS.get(block.type, turn.role)
        if turn.role in ("user", "assistant", "system") and turn.role != speaker:
            problem = f"`{block.type}` blocks can only be in {speaker} messages"
            yield shape(block.path, problem, f"Move it to the {speaker}'s message.")


# Tool names, in definitions and in calls (row 17), and Anthropic's demand that they differ.


def names(names_at: Iterable[tuple[str, Json]]) -> Iterator[Finding]:
    """Row 17 over (path, name); what is no string has the wrong shape and is not looked at here."""
    pattern = limit("tool_name")
    for path, name in names_at:
        if isinstance(name, str) and not re.fullmatch(pattern, name):
            yield found("B2.17", path, name=name, pattern=pattern, most=limit("tool_name_length"))


def unique(names_at: Iterable[tuple[str, Json]]) -> Iterator[Finding]:
    """The second tool of one name."""
    names_before: set[str] = set()
    for path, name in names_at:
        if isinstance(name, str) and name in names_before:
            yield found("B.tool-unique", path, name=name)
        if isinstance(name, str):
            names_before.add(name)


# Types of an Anthropic request and of its messages, and where its tool names are.


def anthropic_body(check: Check) -> Iterator[Finding]:
    """Types of what stands around the messages, and that there is one."""
    if check.body.get("messages") == [] and not check.body.get("system"):
        yield shape("$.messages", "at least one message is required", "Send a user message.")
    yield from misfits(check.body, "@body", "$", grammar_of("anthropic"))


def anthropic_message(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Types of a message; content may be absent where a system message sets the effort alone."""
    configures = turn.role == "system" and bool(turn.raw.get("output_config"))
    message = {"content": "", **turn.raw} if configures else turn.value
    yield from misfits(message, "@message", turn.path, grammar_of("anthropic"))


def called_names(turn: TurnMessage) -> Iterator[tuple[str, Json]]:
    """The names of the tools that a message calls."""
    yield from ((f"{call.path}.name", call.raw.get("name")) for call in turn.of("tool_use"))


def tool_names(talk: Conversation) -> Iterator[tuple[str, Json]]:
    """The names of the tools that are defined."""
    yield from ((f"{block.path}.name", block.raw.get("name")) for block in talk.tools)


def version(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """What the newest API version no longer takes: documents from the assistant, citations on the user's text."""
    if check.version < data("rules")["versions"]["anthropic_no_sampling"]:
        return
    for block in turn.blocks:
        if block.type == "document" and turn.role == "assistant":
            yield found("B.version", block.path, fix="Send the document in a user message.")
        if block.type == "text" and turn.role == "user" and block.raw.get("citations"):
            yield found("B.version", f"{block.path}.citations", fix="Leave citations out of user text.")


# Claude's texts: not empty, through Bedrock not blank, no cache mark on nothing (rows 4, 4b, 5).


class Blanks(Sequel):
    """Rows 4, 4b and 5 in messages and tool results; which of them it is follows from marks, and these move."""

    def __init__(self) -> None:
        self._blank = list[int]()

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        self._blank += [turn.index] if any(_blank(check, turn)) else []
        yield from ()

    def end(self, check: Check) -> Iterator[Finding]:
        # The last assistant message may be empty where it is a prefill.
        turns, prefill = check.talk.messages, check.info.features.prefill
        for turn in (turns[place] for place in self._blank):
            if not (prefill and turn is turns[-1] and turn.role == "assistant"):
                yield from _blank(check, turn)


def _blank(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    if turn.raw.get("content") == [] and not turn.raw.get("output_config"):
        yield found("B2.4", turn.path)
    if turn.raw.get("content") == "":
        yield found("B2.4", f"{turn.path}.content")
    yield from blank_texts(check, turn.blocks)


def blank_texts(check: Check, blocks: Iterable[TurnBlock]) -> Iterator[Finding]:
    """Texts that say nothing, among these blocks and in tool results among them."""
    for block in blocks:
        inner = objects_at(block.raw.get("content"), f"{block.path}.content")
        texts = inner if block.type == "tool_result" else [(block.path, block.raw)]
        for path, raw in texts:
            words = raw.get("text") if raw.get("type") == "text" else None
            if words == "":
                yield found("B2.5" if raw.get("cache_control") else "B2.4", path)
            elif isinstance(words, str) and not words.strip() and check.via_bedrock:
                yield found("B2.4b", path)
