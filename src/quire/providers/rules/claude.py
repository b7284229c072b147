"""Claude's requests, rule by rule, in Anthropic's format and in Converse's, which other models of Bedrock speak too.

Headers, size, sampling parameters, cache marks (rows 6 to 8, 13 and 20); blank texts, empty errors, the order of roles and
cache points of Converse (rows 35, 36). What holds for the turns of both stands in `claude_turns`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import msgspec

from quire.providers.models import data
from quire.providers.rules import claude_turns as turns
from quire.providers.rules.check import (
    MEDIA,
    Check,
    Conversation,
    Finding,
    Mark,
    Sequel,
    ServerMemory,
    TurnBlock,
    TurnMessage,
    Unchecked,
    WireRules,
    conversation,
    each,
    finding,
    fingerprint,
    limit,
    where,
)
from quire.providers.rules.grammar import grammar_of, misfits, objects_at, shape
from quire.values import Json, JsonObject, as_object, as_objects, as_text, value_at


def size(check: Check) -> Iterator[Finding]:
    """Row 20: the body as it goes over the wire."""
    most = limit("anthropic_bytes")
    if check.size > most:
        yield finding("B2.20", "$", size=check.size, most=most)


def sampling(check: Check) -> Iterator[Finding]:
    """Sampling parameters are refused by newer models and by the newest API version."""
    refused = check.version >= data("rules")["versions"]["anthropic_no_sampling"]
    if not (refused or (check.model_named and not check.info.features.sampling)):
        return
    for name, usual in (("temperature", 1), ("top_p", 1), ("top_k", None)):
        value = check.body.get(name)
        if value is not None:
            # Whether the usual value is refused too is not established.
            yield finding("B.sampling", f"$.{name}", sure=value != usual, name=name)


def prewarm(check: Check) -> Iterator[Finding]:
    """A3: max_tokens 0 only fills the cache and goes with nothing that shapes a reply."""
    if check.body.get("max_tokens") != 0 or isinstance(check.body.get("max_tokens"), bool):
        return
    body = check.body
    clashes = {
        "stream": body.get("stream") is True,
        "thinking": value_at(body, "thinking", "type") == "enabled",
        "output_config": value_at(body, "output_config", "format") is not None,
        "tool_choice": value_at(body, "tool_choice", "type") in ("any", "tool"),
    }
    for name, clash in clashes.items():
        if clash:
            yield finding("A3.prewarm", f"$.{name}", with_=name)


class Beta(msgspec.Struct, frozen=True):
    """A use of a feature that needs a beta header."""

    feature: str
    path: str


def betas(check: Check, uses: Iterable[Beta]) -> Iterator[Finding]:
    """Row 13, and the other betas where the headers are known."""
    headers = data("rules")["betas"]
    for use in uses:
        beta = headers[use.feature]
        if beta in (check.betas or ()):
            continue
        if use.feature == "block_binding":
            kind = as_text(value_at(check.body, "thinking", "type"))
            yield finding("B2.13", use.path, beta=beta, type=kind)
        elif check.betas is not None:
            yield finding("B.beta", use.path, beta=beta)


def betas_around(body: JsonObject) -> Iterator[Beta]:
    """Uses of beta features around the messages."""
    if value_at(body, "thinking", "block_binding") is not None:
        yield Beta("block_binding", "$.thinking.block_binding")
    for name in ("context_management", "compaction", "thread"):
        if body.get(name):
            yield Beta(name, f"$.{name}")


def betas_in(turn: TurnMessage) -> Iterator[Beta]:
    """Uses of beta features in a message."""
    if turn.raw.get("clear_at"):
        yield Beta("clear_at", f"{turn.path}.clear_at")
    if turn.role == "system" and turn.raw.get("output_config"):
        yield Beta("output_config", f"{turn.path}.output_config")
    for block in turn.of("tool_addition", "tool_removal"):
        inline = value_at(block.raw, "tool", "type") == "tool_definition"
        yield Beta("inline_tools" if inline else "tool_changes", block.path)


def unverified_blocks(check: Check) -> Iterator[Unchecked]:
    """What needs the replies that issued it."""
    kinds = {block.type for message in check.conversation.messages for block in message.blocks}
    if kinds & {"thinking", "redacted_thinking"} and check.memory is None:
        yield Unchecked("B2.10, B2.11, B2.12", "whether thinking is unmodified needs the replies that issued it")
    if "compaction" in kinds and check.memory is None:
        yield Unchecked("B2.19", "whether the compaction block is verbatim needs the reply that issued it")


# Claude's cache marks: how many, in which order, on what (rows 6 to 8 and the caching guide's own rules).

TTLS = ("5m", "1h")


def marks(check: Check) -> Iterator[Finding]:
    """Rows 6 to 8, and A3 on the top-level mark."""
    top = check.body.get("cache_control")
    if isinstance(top, dict):
        yield from mark_fields(top, "$.cache_control")
        yield from _top_level(check, _block_marks(check), ttl_of(top))
    yield from block_marks(check)


def block_marks(check: Check) -> Iterator[Finding]:
    """Row 6, at the first mark too many, and row 7, for marks on blocks and for cache points behind them."""
    found_marks, most = _block_marks(check), check.info.cache.max_breakpoints
    if 0 < most < len(found_marks):
        yield finding("B2.6", found_marks[most].path, most=most, found=len(found_marks))
    yield from out_of_order(found_marks)


def _block_marks(check: Check) -> list[Mark]:
    return [*marks_in((*check.conversation.tools, *check.conversation.system)), *check.conversation.marks]


def marks_in(blocks: Iterable[TurnBlock]) -> Iterator[Mark]:
    """The marks of blocks and of what stands in them, and Converse's cache points among them."""
    for block in _all_blocks(blocks):
        mark = block.raw if block.type == "cache_point" else block.raw.get("cache_control")
        if isinstance(mark, dict):
            yield Mark(block.path, ttl_of(mark))


def out_of_order(found_marks: list[Mark]) -> Iterator[Finding]:
    """Row 7, at the first 1h mark behind a 5m one."""
    short = False
    for mark in found_marks:
        if mark.ttl == "1h" and short:
            yield finding("B2.7", mark.path)
            return
        short = short or mark.ttl != "1h"


def ttl_of(mark: dict[str, object]) -> str:
    return as_text(mark.get("ttl")) or TTLS[0]


def _all_blocks(blocks: Iterable[TurnBlock]) -> Iterator[TurnBlock]:
    """Blocks, and before each the blocks inside it: those of a tool result may carry a mark of their own."""
    for block in blocks:
        for path, inner in objects_at(block.raw.get("content"), f"{block.path}.content"):
            yield TurnBlock(as_text(inner.get("type")), inner, path)
        yield block


def misplaced_marks(blocks: Iterable[TurnBlock]) -> Iterator[Finding]:
    """A3: marks on what cannot be marked, and a mark's own fields."""
    for block in _all_blocks(blocks):
        mark = block.raw.get("cache_control")
        if mark is not None and block.type in turns.THINKING:
            yield finding("A3.markable", block.path)
        elif isinstance(mark, dict):
            yield from mark_fields(mark, f"{block.path}.cache_control")
        elif block.type == "cache_point" and "point" in block.raw:
            yield from mark_fields(as_object(block.raw["point"]), f"{block.path}.cachePoint", "default")
        for path, citation in objects_at(block.raw.get("citations"), f"{block.path}.citations"):
            if citation.get("cache_control") is not None:
                yield finding("A3.markable", path)


def misplaced_in(turn: TurnMessage) -> Iterator[Finding]:
    """A3 in a message; one that passes cannot be marked at all."""
    yield from misplaced_marks(turn.blocks)
    if _is_passing(turn):
        marked = (block for block in turn.blocks if block.raw.get("cache_control") is not None)
        yield from (finding("A3.markable", block.path) for block in marked)


def _is_passing(message: TurnMessage) -> bool:
    """A system message that is shown for one turn only."""
    return message.role == "system" and message.raw.get("clear_at") == "next_user_message"


def mark_fields(mark: JsonObject, path: str, kind: str = "ephemeral") -> Iterator[Finding]:
    """A mark's own fields: its type and its life."""
    for name, values in (("type", (kind,)), ("ttl", (None, *TTLS))):
        if mark.get(name) not in values:
            yield finding("A3.mark", path, name, value=mark.get(name), type=kind, ttls=" or ".join(TTLS))


def _top_level(check: Check, explicit: list[Mark], ttl: str) -> Iterator[Finding]:
    """Row 8 and A3: the mark goes to the last block that can carry one."""
    if check.via_bedrock and check.info.features.legacy_bedrock:
        yield finding("A3.top-level", "$.cache_control", "bedrock")
        return
    target = _target(check.conversation)
    mark = as_object(target.raw.get("cache_control")) if target else {}
    if mark and ttl_of(mark) != ttl:
        yield finding("B2.8", "$.cache_control", top=ttl, block=ttl_of(mark))
    elif not mark and len(explicit) >= check.info.cache.max_breakpoints > 0:
        yield finding("A3.top-level", "$.cache_control", "full", most=len(explicit), found=len(explicit) + 1)
    elif not mark and target:
        # Only a finding of its own: marks among themselves are looked at by `out_of_order`.
        findings = out_of_order([*explicit, Mark("$.cache_control", ttl)])
        yield from (problem for problem in findings if problem.path == "$.cache_control")


def _target(conversation: Conversation) -> TurnBlock | None:
    """The last block that can be marked: not thinking, not empty, not of a passing system message."""
    for message in reversed(conversation.messages):
        for block in reversed(message.blocks):
            empty = block.type == "text" and not block.raw.get("text")
            if block.type not in turns.THINKING and not empty and not _is_passing(message):
                return block
    heads = [*conversation.tools, *conversation.system]
    return heads[-1] if heads else None


# How a conversation with Claude may end.
_ends = each(turns.prefill, turns.thinking)


# A request in Anthropic's format, rule by rule.


def _head(check: Check) -> Iterator[Finding]:
    yield from turns.blank_texts(check, check.conversation.system)
    yield from misplaced_marks((*check.conversation.tools, *check.conversation.system))
    yield from betas(check, betas_around(check.body))
    mode, choice = as_object(check.body.get("thinking")), as_object(check.body.get("tool_choice"))
    yield from turns.forced_tools(check, choice.get("type"), "$.tool_choice", mode)
    yield from turns.modes(check, mode, "$.thinking", check.body.get("max_tokens"))
    yield from turns.names(turns.tool_names(check.conversation.tools))
    yield from turns.unique(turns.tool_names(check.conversation.tools))
    yield from turns.edits(check)
    yield from sampling(check)
    yield from prewarm(check)


def _turn(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    yield from turns.speakers(turn)
    yield from misplaced_in(turn)
    yield from turns.unsigned_thinking(check, turn)
    yield from betas(check, betas_in(turn))
    yield from turns.names(turns.tool_names(turn.of("tool_use")))
    yield from turns.version(check, turn)


def _remember_issued(memory: ServerMemory, body: JsonObject, reply: JsonObject) -> None:
    content = as_objects(reply.get("content"))
    turns.remember_reply(memory, body, content, "anthropic")
    for block in content:
        if block.get("type") == "compaction" and as_text(block.get("signature")):
            memory.sealed.setdefault(block["signature"], fingerprint(block))


def _unchecked_rules(check: Check) -> Iterator[Unchecked]:
    yield from unverified_blocks(check)
    uses = (use for turn in check.conversation.messages for use in betas_in(turn))
    around = (use for use in betas_around(check.body) if use.feature != "block_binding")
    if check.betas is None and any(chain(around, uses)):
        yield Unchecked("B.beta", "whether the beta headers are sent needs the request's headers")
    if check.body.get("max_tokens") is None:
        yield Unchecked("max_tokens", "the API requires max_tokens; it is not in this body")


def misplaced_media(check: Check, path: str, kind: str, block: JsonObject) -> Iterator[Finding]:
    """What Bedrock's models do not take everywhere: what lies in S3 or in the web, and videos that a tool returns."""
    source = as_object(block.get("source"))
    returned = kind == "document" and "toolResult" in path
    if _is_claude(check) and source.get("s3Location") is not None and not returned:
        yield finding("B.place", f"{path}.source.s3Location", "s3", block=where(path))
    elif kind == "video" and "toolResult" in path:
        yield finding("B.place", path, "video", message=where(path.split(".content")[0]))
    elif check.via_bedrock and source.get("type") == "url":
        yield finding("B.place", f"{path}.source", "url", block=f"{where(path)}.{kind}")


ANTHROPIC_RULES = WireRules(
    body=turns.anthropic_body,
    message=turns.anthropic_message,
    head=_head,
    turn=_turn,
    along=(turns.Pairs, turns.CallIds, turns.Blanks, turns.LateSystem, turns.Compaction),
    end=each(marks, _ends, size),
    marks=lambda turn: marks_in(turn.blocks),
    media_place=misplaced_media,
    remember_reply=_remember_issued,
    remember_body=lambda memory, body: turns.remember(memory, conversation(body, "anthropic")),
    unchecked=_unchecked_rules,
)


# A request in Converse's format, rule by rule; its blocks are read in Anthropic's words.


def converse_block(value: JsonObject, path: str) -> TurnBlock:
    """A block of a Converse request in Anthropic's words; a cachePoint is a block of type cache_point."""
    for name, read in _CONVERSE.items():
        if value.get(name) is not None:
            raw = read(value[name])
            return TurnBlock(raw["type"], raw, path)
    return TurnBlock(str(next(iter(value), "")), value, path)


def _converse_thinking(value: Json) -> JsonObject:
    reasoning = as_object(value)
    if reasoning.get("redactedContent") is not None:
        return {"type": "redacted_thinking", "data": str(reasoning["redactedContent"])}
    inner = as_object(reasoning.get("reasoningText"))
    return {"type": "thinking", "thinking": inner.get("text"), "signature": inner.get("signature")}


def _tool_use(value: Json) -> JsonObject:
    use = as_object(value)
    return {
        # A tool that the provider runs has a type of its own.
        "type": "server_tool_use" if use.get("type") == "server_tool_use" else "tool_use",
        "id": use.get("toolUseId"),
        "name": use.get("name"),
        "input": use.get("input"),
    }


def _tool_result(value: Json) -> JsonObject:
    result = as_object(value)
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
    "reasoningContent": _converse_thinking,
    "cachePoint": lambda point: {"type": "cache_point", "ttl": value_at(point, "ttl"), "point": point},
    "toolSpec": lambda spec: {"type": "custom", "name": value_at(spec, "name"), "spec": spec},
    "toolAddition": lambda change: {"type": "tool_addition", **as_object(change)},
    "toolRemoval": lambda change: {"type": "tool_removal", **as_object(change)},
}


def bedrock_body(check: Check) -> Iterator[Finding]:
    """Types of everything around the messages, and that there is something to answer."""
    body = check.body
    yield from misfits(body, "@body", "$", grammar_of("bedrock"))
    # A stored prompt brings its own messages.
    if not body.get("messages") and ":prompt/" not in as_text(body.get("modelId")):
        yield shape("$.messages", "no user message")


def bedrock_message(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Types of everything in a message, and that there is something."""
    yield from misfits(turn.value, "@message", turn.path, grammar_of("bedrock"))
    if turn.raw.get("content") == []:
        yield shape(f"{turn.path}.content", "empty message", message=where(turn.path))


class ToolsDefined(Sequel):
    """Calls and results are taken only where toolConfig defines tools."""

    _reported = False

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        block = next(iter(turn.of("tool_use", "tool_result")), None)
        if block is not None and not self._reported and check.body.get("toolConfig") is None:
            self._reported = True
            yield finding("B.converse", block.path, "tools")


def blank_blocks(blocks: Iterable[TurnBlock], sure: bool = True) -> Iterator[Finding]:
    """Row 35."""
    for block in blocks:
        words = block.raw.get("text")
        if block.type == "text" and isinstance(words, str) and not words.strip():
            yield finding("B2.35", block.path, sure=sure)


def empty_errors(turn: TurnMessage) -> Iterator[Finding]:
    """Row 36."""
    for block in turn.of("tool_result"):
        texts = (part.get("text") for part in as_objects(block.raw.get("content")))
        if block.raw.get("is_error") and all(isinstance(words, str) and not words.strip() for words in texts):
            yield finding("B2.36", block.path)


class ConverseOrder(turns.Pairs):
    """Roles take turns, the user first, and calls are answered in the next message."""

    unanswered, unasked = ("B.converse", "unanswered"), ("B.converse", "unasked")
    _last = ""

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        if turn.role == "assistant" and not self._last:
            yield finding("B.converse", turn.path, "first", sure=not _is_claude(check))
        if turn.role in ("user", "assistant"):
            if turn.role == self._last:
                # Claude and Titan were seen to take two messages of the user.
                yield finding("B.converse", turn.path, "twice", sure=turn.role != "user")
            self._last = turn.role
        yield from super().take(check, turn)


def _is_claude(check: Check) -> bool:
    return "claude" in check.info.model


def converse_model(check: Check) -> Iterator[Finding]:
    """Rows 15 and 16, where Converse keeps them."""
    choice = as_object(value_at(check.body, "toolConfig", "toolChoice"))
    extra = as_object(check.body.get("additionalModelRequestFields"))
    mode = as_object(extra.get("thinking"))
    kind = next((name for name in ("any", "tool") if choice.get(name) is not None), None)
    yield from turns.forced_tools(check, kind, "$.toolConfig.toolChoice", mode)
    most = value_at(check.body, "inferenceConfig", "maxTokens")
    yield from turns.modes(check, mode, "$.additionalModelRequestFields.thinking", most)


def _converse_head(check: Check) -> Iterator[Finding]:
    yield from blank_blocks(check.conversation.system)
    yield from misplaced_marks((*check.conversation.tools, *check.conversation.system))
    defined = [block for block in check.conversation.tools if block.type == "custom"]
    yield from turns.names((f"{block.path}.toolSpec.name", block.raw.get("name")) for block in defined)
    if _is_claude(check):
        yield from converse_model(check)


def _converse_turn(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    yield from turns.speakers(turn)
    # What a model said without a word is taken back by most.
    yield from blank_blocks(turn.blocks, sure=turn.role != "assistant")
    yield from empty_errors(turn)
    yield from misplaced_marks(turn.blocks)
    called = turn.of("tool_use")
    yield from turns.names((f"{block.path}.toolUse.name", as_text(block.raw.get("name"))) for block in called)
    if _is_claude(check):
        yield from turns.unsigned_thinking(check, turn)


class ConverseLateSystem(turns.LateSystem):
    """Row 14 for Claude."""

    def take(self, check: Check, turn: TurnMessage) -> Iterator[Finding]:
        if _is_claude(check):
            yield from super().take(check, turn)


CONVERSE_RULES = WireRules(
    body=bedrock_body,
    message=bedrock_message,
    head=_converse_head,
    turn=_converse_turn,
    along=(ConverseOrder, ToolsDefined, ConverseLateSystem),
    end=each(block_marks, lambda check: _ends(check) if _is_claude(check) else ()),
    block=converse_block,
    marks=lambda turn: marks_in(turn.blocks),
    media_fields=MEDIA,
    media_place=misplaced_media,
    remember_reply=lambda memory, body, reply: turns.remember_reply(
        memory, body, value_at(reply, "output", "message", "content"), "bedrock"
    ),
    remember_body=lambda memory, body: turns.remember(memory, conversation(body, "bedrock")),
    unchecked=unverified_blocks,
)
