"""Claude's thinking blocks go back unmodified, behind the prefix they are bound to (rows 10 to 12).

Without a server's memory (`seen`) only a missing signature can be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from quire.providers.rules.check import (
    Check,
    Conversation,
    Finding,
    Issued,
    Mark,
    ServerMemory,
    TurnBlock,
    TurnMessage,
    chain,
    conversation,
    found,
)
from quire.providers.rules.claude_turns import pieces
from quire.providers.rules.grammar import obj, objects_at, text
from quire.values import Json, JsonObject

_THINKING = frozenset({"thinking", "redacted_thinking"})


class Signed(msgspec.Struct, frozen=True):
    """A thinking block of a request: its signature, what stands before it and what it holds."""

    key: str
    block: TurnBlock
    message: int
    prefix: str
    content: str


def unsigned(check: Check, turn: TurnMessage) -> Iterator[Finding]:
    """Row 12: thinking without a signature."""
    # Local engines speak Anthropic's format but sign nothing.
    if check.info.features.signed_thinking:
        missing = (block for block in turn.of("thinking") if not text(block.raw.get("signature")))
        yield from (found("B2.12", block.path) for block in missing)


def thinking(check: Check) -> Iterator[Finding]:
    """Rows 10, 11 and 12, and 12b: the calls that the request answers stand behind their thinking, if enabled."""
    if not check.info.features.signed_thinking:
        return
    extra = obj(check.body.get("additionalModelRequestFields"))
    if obj(check.body.get("thinking", extra.get("thinking"))).get("type") == "enabled":
        yield from _in_front(check.talk)
    if check.memory is not None:
        yield from _against(check, check.memory, check.talk)


def _in_front(talk: Conversation) -> Iterator[Finding]:
    newest_first = (message for message in reversed(talk.messages) if message.role != "system")
    last, before = next(newest_first, None), next(newest_first, None)
    if last is None or before is None or last.role != "user" or not last.of("tool_result"):
        return
    blocks = [block for block in before.blocks if block.type != "cache_point"]
    called = next((block for block in blocks if block.type == "tool_use"), None)
    if called is not None and blocks[0].type not in _THINKING:
        yield found("B2.12b", called.path)


def _against(check: Check, memory: ServerMemory, talk: Conversation) -> Iterator[Finding]:
    latest = next((turn.index for turn in reversed(talk.messages) if turn.role == "assistant"), None)
    sent = list(signed(talk))
    modified = False
    for thought in sent:
        issued = memory.signed.get(thought.key)
        if issued is None:
            if memory.complete:
                yield found("B2.12", thought.block.path)
        elif issued.content != thought.content:
            modified = modified or thought.message == latest
            yield found("B2.10" if thought.message == latest else "B2.12", thought.block.path)
        elif issued.prefix != thought.prefix and _is_bound(check, memory):
            yield found("B2.11", thought.block.path)
    if not modified and latest is not None:
        keys = [thought.key for thought in sent if thought.message == latest]
        yield from _incomplete(memory, talk.messages[latest], keys)


def _incomplete(memory: ServerMemory, message: TurnMessage, keys: list[str]) -> Iterator[Finding]:
    """Row 10 for blocks of the latest message that were taken out or moved; all or none must be there."""
    replies = dict.fromkeys(memory.signed[key].reply for key in keys if key in memory.signed)
    expected = [key for reply in replies for key in reply]
    if expected and all(key in memory.signed for key in keys) and keys != expected:
        yield found("B2.10", message.path)


def _is_bound(check: Check, memory: ServerMemory) -> bool:
    """Whether a changed prefix is an error: by model, by account, and unless the request says drop_block."""
    binding = obj(obj(check.body.get("thinking")).get("block_binding"))
    behavior = binding.get("prefix_mismatch_behavior")
    if behavior == "drop_block":
        return False
    bound = check.info.features.thinking_bound
    return bound == "always" or (bound == "by-account" and (memory.enforce or behavior is not None))


def signed(talk: Conversation) -> Iterator[Signed]:
    """Every signed thinking block of a conversation, with the hash of what stands before its turn."""
    heads = sum(block.type != "cache_point" for block in (*talk.tools, *talk.system))
    hashes = iter(list(chain(pieces(talk)))[heads:])
    role = before = ""
    for message in talk.messages:
        for block in message.blocks:
            if block.type == "cache_point":
                continue
            prefix, content = next(hashes)
            # Neighbours of one role are one turn, and what stands inside it is no part of its prefix.
            if message.role != role:
                role, before = message.role, prefix
            signature, hidden = text(block.raw.get("signature")), text(block.raw.get("data"))
            if block.type == "redacted_thinking" and hidden:
                yield Signed(f"redacted:{hidden}", block, message.index, before, content)
            elif block.type == "thinking" and signature:
                yield Signed(signature, block, message.index, before, content)


def remember(memory: ServerMemory, talk: Conversation, *, since: int = 0) -> None:
    """Record the thinking blocks of a conversation's messages from `since` on as given out there."""
    thoughts = (block for block in signed(talk) if block.message >= since)
    for _, run in groupby(thoughts, key=lambda block: block.message):
        blocks = list(run)
        reply = tuple(block.key for block in blocks)
        for thought in blocks:
            memory.sign(thought.key, Issued(thought.prefix, thought.content, reply))


def remember_reply(memory: ServerMemory, body: JsonObject, content: Json, wire: str) -> None:
    """Record the thinking blocks of a reply to a body."""
    messages = [message for _, message in objects_at(body.get("messages"), "")]
    whole = {**body, "messages": [*messages, {"role": "assistant", "content": content}]}
    remember(memory, conversation(whole, wire), since=len(messages))


# Claude's cache marks: how many, in which order, on what (rows 6 to 8 and the caching guide's own rules).

TTLS = ("5m", "1h")


def marks(check: Check) -> Iterator[Finding]:
    """Rows 6 to 8, and A3 on the top-level mark."""
    heads = (mark for block in (*check.talk.tools, *check.talk.system) for mark in _mark(block))
    explicit = [*heads, *check.talk.marks]
    top = check.body.get("cache_control")
    if isinstance(top, dict):
        yield from mark_fields(top, "$.cache_control")
        yield from _top_level(check, explicit, ttl_of(top))
    yield from too_many(check, explicit)
    yield from out_of_order(explicit)


def marks_of(turn: TurnMessage) -> Iterator[Mark]:
    """The marks of a message's blocks and of what stands in them."""
    return (mark for block in _all_blocks(turn.blocks) for mark in _mark(block))


def _mark(block: TurnBlock) -> Iterator[Mark]:
    mark = block.raw.get("cache_control")
    if isinstance(mark, dict):
        yield Mark(block.path, ttl_of(mark))


def too_many(check: Check, found_marks: list[Mark]) -> Iterator[Finding]:
    """Row 6, at the first mark too many."""
    most = check.info.cache.max_breakpoints
    if 0 < most < len(found_marks):
        yield found("B2.6", found_marks[most].path, most=most, found=len(found_marks))


def out_of_order(found_marks: list[Mark]) -> Iterator[Finding]:
    """Row 7, at the first 1h mark behind a 5m one."""
    short = False
    for mark in found_marks:
        if mark.ttl == "1h" and short:
            yield found("B2.7", mark.path)
            return
        short = short or mark.ttl != "1h"


def ttl_of(mark: dict[str, object]) -> str:
    return text(mark.get("ttl")) or TTLS[0]


def _all_blocks(blocks: Iterable[TurnBlock]) -> Iterator[TurnBlock]:
    """Blocks, and before each the blocks inside it: those of a tool result may carry a mark of their own."""
    for block in blocks:
        for path, inner in objects_at(block.raw.get("content"), f"{block.path}.content"):
            yield TurnBlock(text(inner.get("type")), inner, path)
        yield block


def misplaced(blocks: Iterable[TurnBlock]) -> Iterator[Finding]:
    """A3: marks on what cannot be marked, and a mark's own fields."""
    for block in _all_blocks(blocks):
        mark = block.raw.get("cache_control")
        if mark is not None and block.type in _THINKING:
            yield found("A3.markable", block.path)
        elif isinstance(mark, dict):
            yield from mark_fields(mark, f"{block.path}.cache_control")
        for path, citation in objects_at(block.raw.get("citations"), f"{block.path}.citations"):
            if citation.get("cache_control") is not None:
                yield found("A3.markable", path)


def misplaced_in(turn: TurnMessage) -> Iterator[Finding]:
    """A3 in a message; one that passes cannot be marked at all."""
    yield from misplaced(turn.blocks)
    if _is_passing(turn):
        marked = (block for block in turn.blocks if block.raw.get("cache_control") is not None)
        yield from (found("A3.markable", block.path) for block in marked)


def _is_passing(message: TurnMessage) -> bool:
    """A system message that is shown for one turn only."""
    return message.role == "system" and message.raw.get("clear_at") == "next_user_message"


def mark_fields(mark: JsonObject, path: str, kind: str = "ephemeral") -> Iterator[Finding]:
    """A mark's own fields: its type and its life."""
    problems = []
    if mark.get("type") != kind:
        problems.append(f"type should be '{kind}', not {mark.get('type')!r}")
    if mark.get("ttl") is not None and mark["ttl"] not in TTLS:
        problems.append(f"ttl should be '5m' or '1h', not {mark['ttl']!r}")
    yield from (found("A3.mark", path, problem=problem, type=kind, ttls=" or ".join(TTLS)) for problem in problems)


def _top_level(check: Check, explicit: list[Mark], ttl: str) -> Iterator[Finding]:
    """Row 8 and A3: the mark goes to the last block that can carry one."""
    if check.via_bedrock and check.info.features.legacy_bedrock:
        problem = "cache_control: Extra inputs are not permitted"
        yield found("A3.top-level", "$.cache_control", problem=problem, fix="Mark the last block instead.")
        return
    target = _target(check.talk)
    mark = obj(target.raw.get("cache_control")) if target else {}
    if mark and ttl_of(mark) != ttl:
        yield found("B2.8", "$.cache_control", top=ttl, block=ttl_of(mark))
    elif not mark and len(explicit) >= check.info.cache.max_breakpoints > 0:
        problem = f"A maximum of {len(explicit)} blocks with cache_control may be provided. Found {len(explicit) + 1}."
        fix = "Take one explicit mark off: the top-level one needs a place."
        yield found("A3.top-level", "$.cache_control", problem=problem, fix=fix)
    elif not mark and target:
        # Only a finding of its own: marks among themselves are looked at by `out_of_order`.
        findings = out_of_order([*explicit, Mark("$.cache_control", ttl)])
        yield from (finding for finding in findings if finding.path == "$.cache_control")


def _target(talk: Conversation) -> TurnBlock | None:
    """The last block that can be marked: not thinking, not empty, not of a passing system message."""
    for message in reversed(talk.messages):
        for block in reversed(message.blocks):
            empty = block.type == "text" and not block.raw.get("text")
            if block.type not in _THINKING and not empty and not _is_passing(message):
                return block
    heads = [*talk.tools, *talk.system]
    return heads[-1] if heads else None
