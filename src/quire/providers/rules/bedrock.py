"""Bedrock Converse: blank texts, empty errors, the order of roles and cache points (rows 35, 36)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from quire.providers.rules.check import (
    MEDIA,
    Check,
    Finding,
    Mark,
    Sequel,
    ServerMemory,
    TurnBlock,
    TurnMessage,
    WireRules,
    advice,
    conversation,
    found,
    where,
)
from quire.providers.rules.claude import (
    LateSystem,
    forced,
    mark_fields,
    modes,
    out_of_order,
    prefill,
    too_many,
    ttl_of,
    unverified,
)
from quire.providers.rules.claude_turns import Pairs, names, remember, remember_reply, speakers, thinking, unsigned
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


def bedrock_body(check: Check) -> Iterator[Finding]:
    """Types of everything around the messages, and that there is something to answer."""
    body = check.body
    yield from misfits(body, "@body", "$", grammar_of("bedrock"))
    # A stored prompt brings its own messages.
    if not body.get("messages") and ":prompt/" not in text(body.get("modelId")):
        yield shape("$.messages", "A conversation must start with a user message.", "Send a user message.")


def bedrock_message(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Types of everything in a message, and that there is something."""
    yield from misfits(turn.value, "@message", turn.path, grammar_of("bedrock"))
    if turn.raw.get("content") == []:
        problem = f"The content field in the Message object at {where(turn.path)} is empty."
        yield shape(f"{turn.path}.content", problem, "Add a content block, or leave the message out.")


class ToolsDefined(Sequel):
    """Calls and results are taken only where toolConfig defines tools."""

    def __init__(self) -> None:
        self._reported = False

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        block = next(iter(turn.of("tool_use", "tool_result")), None)
        if block is not None and not self._reported and check.body.get("toolConfig") is None:
            self._reported = True
            problem = "The toolConfig field must be defined when using toolUse and toolResult content blocks."
            fix = "Define the tools that were called in toolConfig, or tell calls and results as text."
            yield found("B.converse", block.path, problem=problem, fix=fix)


def blank_blocks(blocks: Iterable[TurnBlock]) -> Iterator[Finding]:
    """Row 35."""
    for block in blocks:
        words = block.raw.get("text")
        if block.type == "text" and isinstance(words, str) and not words.strip():
            yield found("B2.35", block.path)


def empty_errors(turn: TurnMessage) -> Iterator[Finding]:
    """Row 36."""
    for block in turn.of("tool_result"):
        texts = (part.get("text") for _, part in objects_at(block.raw.get("content"), ""))
        if block.raw.get("is_error") and all(isinstance(words, str) and not words.strip() for words in texts):
            yield found("B2.36", block.path)


class ConverseOrder(Pairs):
    """Roles take turns, the user first, and calls are answered in the next message."""

    def __init__(self) -> None:
        super().__init__()
        self._last = ""

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        if turn.role == "assistant" and not self._last:
            problem = "A conversation must start with a user message. Try again with a conversation that starts with a user message."
            unasked = [found("B.converse", turn.path, problem=problem, fix="Begin with a user message.")]
            yield from advice(unasked) if _is_claude(check) else unasked
        if turn.role in ("user", "assistant"):
            if turn.role == self._last:
                problem = "A conversation must alternate between user and assistant roles."
                fix = "Join it with the message before it."
                twice = [found("B.converse", turn.path, problem=problem, fix=fix)]
                # Claude was seen to take two messages of the user.
                yield from advice(twice) if turn.role == "user" and _is_claude(check) else twice
            self._last = turn.role
        yield from map(_converse_pair, super().take(check, turn))

    def end(self, check: Check) -> Iterator[Finding]:
        yield from map(_converse_pair, super().end(check))


def _is_claude(check: Check) -> bool:
    return "claude" in check.info.model


def _converse_pair(finding: Finding) -> Finding:
    if finding.row == "B2.3":
        return finding
    if finding.row == "B2.1":
        problem = f"Expected toolResult blocks behind {where(finding.path)} for its toolUse id."
    else:
        problem = f"The toolResult at {where(finding.path)} has no toolUse in the previous turn."
    return found("B.converse", finding.path, problem=problem, fix=finding.fix)


def points_of(blocks: Iterable[TurnBlock]) -> Iterator[Mark]:
    """The cache points among blocks."""
    return (Mark(block.path, ttl_of(block.raw)) for block in blocks if block.type == "cache_point")


def point_fields(blocks: Iterable[TurnBlock]) -> Iterator[Finding]:
    """A cache point's own fields."""
    for block in blocks:
        if block.type == "cache_point":
            yield from mark_fields(obj(block.raw["point"]), f"{block.path}.cachePoint", "default")


def cache_points(check: Check) -> Iterator[Finding]:
    """Rows 6 and 7 for cache points."""
    marks = [*points_of((*check.conversation.tools, *check.conversation.system)), *check.conversation.marks]
    yield from too_many(check, marks)
    yield from out_of_order(marks)


def converse_model(check: Check) -> Iterator[Finding]:
    """Rows 15 and 16, where Converse keeps them."""
    choice = obj(obj(check.body.get("toolConfig")).get("toolChoice"))
    extra = obj(check.body.get("additionalModelRequestFields"))
    mode = obj(extra.get("thinking"))
    kind = next((name for name in ("any", "tool") if choice.get(name) is not None), None)
    yield from forced(check, kind, "$.toolConfig.toolChoice", mode)
    most = obj(check.body.get("inferenceConfig")).get("maxTokens")
    yield from modes(check, mode, "$.additionalModelRequestFields.thinking", most)


def placed(check: Check, path: str, kind: str, block: JsonObject) -> Iterator[Finding]:
    """Where Converse's models differ: what lies in S3, and videos that a tool returns."""
    source = obj(block.get("source"))
    returned = kind == "document" and "toolResult" in path
    if _is_claude(check) and source.get("s3Location") is not None and not returned:
        problem = f"{where(path)}.source.type: Field required. This model doesn't support the s3Uri field."
        yield found("B.place", f"{path}.source.s3Location", problem=problem, fix="Send its bytes.")
    elif kind == "video" and "toolResult" in path:
        message = path.split(".content")[0]
        problem = f"Malformed input request: {where(message)}: extraneous key [toolResult]: it holds a video."
        yield found("B.place", path, problem=problem, fix="Send the video in the user's message.")


def _head(check: Check) -> Iterator[Finding]:
    yield from blank_blocks(check.conversation.system)
    yield from point_fields((*check.conversation.tools, *check.conversation.system))
    defined = [block for block in check.conversation.tools if block.type == "custom"]
    yield from names((f"{block.path}.toolSpec.name", block.raw.get("name")) for block in defined)
    if _is_claude(check):
        yield from converse_model(check)


def _turn(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    yield from speakers(turn)
    # What a model said without a word is taken back by most.
    blank = blank_blocks(turn.blocks)
    yield from advice(blank) if turn.role == "assistant" else blank
    yield from empty_errors(turn)
    yield from point_fields(turn.blocks)
    called = turn.of("tool_use")
    yield from names((f"{block.path}.toolUse.name", text(block.raw.get("name"))) for block in called)
    if _is_claude(check):
        yield from unsigned(check, turn)


class ConverseLateSystem(LateSystem):
    """Row 14 for Claude."""

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        if _is_claude(check):
            yield from super().take(check, turn)


def _end(check: Check) -> Iterator[Finding]:
    yield from cache_points(check)
    if _is_claude(check):
        yield from prefill(check)
        yield from thinking(check)


def _issued(memory: ServerMemory, body: JsonObject, reply: JsonObject) -> None:
    remember_reply(memory, body, obj(obj(reply.get("output")).get("message")).get("content"), "bedrock")


RULES = WireRules(
    body=bedrock_body,
    message=bedrock_message,
    head=_head,
    turn=_turn,
    along=(ConverseOrder, ToolsDefined, ConverseLateSystem),
    end=_end,
    block=converse_block,
    marks=lambda turn: points_of(turn.blocks),
    media_fields=MEDIA,
    placed=placed,
    issued=_issued,
    observed=lambda memory, body: remember(memory, conversation(body, "bedrock")),
    unchecked=unverified,
)
