"""Bedrock Converse: blank texts, empty errors, the order of roles and cache points (rows 35, 36)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from quire.providers.rules.check import (
    Check,
    Finding,
    ServerMemory,
    Unchecked,
    WireRules,
    advice,
    found,
    where,
)
from quire.providers.rules.claude import forced, late_system, modes, prefill, unverified
from quire.providers.rules.claude_blocks import TTLS, Mark, out_of_order, remember, thinking, too_many, ttl_of
from quire.providers.rules.claude_turns import Conversation, TurnBlock, converse_talk, names, pairs, speakers
from quire.providers.rules.grammar import grammar_of, misfits, obj, objects, shape, text
from quire.values import Json, JsonObject


def bedrock_shape(check: Check) -> Iterator[Finding]:
    """Types of everything in a request, and that there is something to answer."""
    body = check.body
    yield from misfits(body, "@body", "$", grammar_of("bedrock"))
    # A stored prompt brings its own messages.
    if not body.get("messages") and ":prompt/" not in text(body.get("modelId")):
        yield shape("$.messages", "A conversation must start with a user message.", "Send a user message.")
    for path, message in objects(body.get("messages"), "$.messages"):
        if message.get("content") == []:
            problem = f"The content field in the Message object at {where(path)} is empty."
            yield shape(f"{path}.content", problem, "Add a content block, or leave the message out.")


def tools_defined(check: Check, talk: Conversation) -> Iterator[Finding]:
    """Calls and results are taken only where toolConfig defines tools."""
    if check.body.get("toolConfig") is not None:
        return
    for message in talk.messages:
        for block in message.blocks:
            if block.type in ("tool_use", "tool_result"):
                problem = (
                    "The toolConfig field must be defined when using toolUse and toolResult content blocks."
                )
                fix = "Define the tools that were called in toolConfig, or tell calls and results as text."
                yield found("B.converse", block.path, problem=problem, fix=fix)
                return


def blank_blocks(talk: Conversation) -> Iterator[Finding]:
    """Row 35, in messages and system blocks; what a model said without a word is taken back by most."""
    yield from _blank(talk.system)
    for message in talk.messages:
        blank = _blank(message.blocks)
        yield from advice(blank) if message.role == "assistant" else blank


def _blank(blocks: Iterable[TurnBlock]) -> Iterator[Finding]:
    for block in blocks:
        said = block.raw.get("text")
        if block.type == "text" and isinstance(said, str) and not said.strip():
            yield found("B2.35", block.path)


def empty_errors(talk: Conversation) -> Iterator[Finding]:
    """Row 36."""
    for message in talk.messages:
        for block in message.blocks:
            if block.type == "tool_result" and block.raw["is_error"] and not _says(block.raw.get("content")):
                yield found("B2.36", block.path)


def _says(content: Json) -> bool:
    kept = [one for _, one in objects(content, "")]
    return any(not isinstance(one.get("text"), str) or one["text"].strip() for one in kept)


def converse_order(check: Check, talk: Conversation) -> Iterator[Finding]:
    """Roles take turns, the user first, and calls are answered in the next message."""
    spoken = [message for message in talk.messages if message.role in ("user", "assistant")]
    if spoken and spoken[0].role != "user":
        problem = "A conversation must start with a user message. Try again with a conversation that starts with a user message."
        unasked = [found("B.converse", spoken[0].path, problem=problem, fix="Begin with a user message.")]
        yield from advice(unasked) if "claude" in check.info.model else unasked
    for before, message in pairwise(spoken):
        if before.role == message.role:
            problem = "A conversation must alternate between user and assistant roles."
            yield found(
                "B.converse", message.path, problem=problem, fix="Join it with the message before it."
            )
    for finding in pairs(check, talk):
        yield _converse_pair(finding) if finding.row != "B2.3" else finding


def _converse_pair(finding: Finding) -> Finding:
    if finding.row == "B2.1":
        problem = f"Expected toolResult blocks behind {where(finding.path)} for its toolUse id."
    else:
        problem = f"The toolResult at {where(finding.path)} has no toolUse in the previous turn."
    return found("B.converse", finding.path, problem=problem, fix=finding.fix)


def cache_points(check: Check, talk: Conversation) -> Iterator[Finding]:
    """Rows 6 and 7 for cache points, and a point's own fields."""
    points = [block for block in _all(talk) if block.type == "cache_point"]
    marks = [Mark(block.path, ttl_of(block.raw)) for block in points]
    yield from too_many(check, marks)
    yield from out_of_order(marks)
    for block in points:
        yield from _point(obj(block.raw["point"]), f"{block.path}.cachePoint")


def _point(point: JsonObject, path: str) -> Iterator[Finding]:
    ttls = " or ".join(TTLS)
    if point.get("type") != "default":
        problem = f"type should be 'default', not {point.get('type')!r}"
        yield found("A3.mark", path, problem=problem, type="default", ttls=ttls)
    if point.get("ttl") is not None and point["ttl"] not in TTLS:
        problem = f"ttl should be '5m' or '1h', not {point['ttl']!r}"
        yield found("A3.mark", path, problem=problem, type="default", ttls=ttls)


def _all(talk: Conversation) -> Iterator[TurnBlock]:
    yield from talk.tools
    yield from talk.system
    for message in talk.messages:
        yield from message.blocks


def converse_model(check: Check) -> Iterator[Finding]:
    """Rows 15 and 16, where Converse keeps them."""
    choice = obj(obj(check.body.get("toolConfig")).get("toolChoice"))
    extra = obj(check.body.get("additionalModelRequestFields"))
    mode = obj(extra.get("thinking"))
    kind = next((name for name in ("any", "tool") if choice.get(name) is not None), None)
    yield from forced(check, kind, "$.toolConfig.toolChoice", mode)
    most = obj(check.body.get("inferenceConfig")).get("maxTokens")
    yield from modes(check, mode, "$.additionalModelRequestFields.thinking", most)


def converse_names(talk: Conversation) -> Iterator[tuple[str, Json]]:
    """Every tool name with its path."""
    yield from (
        (f"{block.path}.toolSpec.name", block.raw.get("name"))
        for block in talk.tools
        if block.type == "custom"
    )
    for message in talk.messages:
        for block in message.blocks:
            if block.type == "tool_use":
                yield f"{block.path}.toolUse.name", text(block.raw.get("name"))


def _rules(check: Check, encoded: bytes) -> Iterator[Finding]:
    talk = converse_talk(check.body)
    yield from bedrock_shape(check)
    yield from speakers(talk)
    yield from blank_blocks(talk)
    yield from empty_errors(talk)
    yield from converse_order(check, talk)
    yield from tools_defined(check, talk)
    yield from cache_points(check, talk)
    yield from names(converse_names(talk))
    if "claude" in check.info.model:
        yield from prefill(check, talk)
        yield from thinking(check, talk)
        yield from late_system(check, talk)
        yield from converse_model(check)


def _issued(seen: ServerMemory, body: JsonObject, reply: JsonObject) -> None:
    message = obj(obj(reply.get("output")).get("message"))
    messages = [one for _, one in objects(body.get("messages"), "")]
    whole = {**body, "messages": [*messages, {"role": "assistant", "content": message.get("content")}]}
    remember(seen, converse_talk(whole), since=len(messages))


def _observed(seen: ServerMemory, body: JsonObject) -> None:
    remember(seen, converse_talk(body))


def _unchecked(check: Check) -> Iterator[Unchecked]:
    yield from unverified(check, converse_talk(check.body))


RULES = WireRules(check=_rules, shape=bedrock_shape, issued=_issued, observed=_observed, unchecked=_unchecked)
