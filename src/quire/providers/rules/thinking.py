"""Claude's thinking blocks go back unmodified, behind the prefix they are bound to (rows 10 to 12).

Without a server's memory (`seen`) only a missing signature can be told.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import msgspec

from quire.providers.rules.check import Check
from quire.providers.rules.finding import Finding, found
from quire.providers.rules.seen import Issued, Seen, chain
from quire.providers.rules.shape import obj, text
from quire.providers.rules.turns import Block, Message, Talk, pieces
from quire.values import JsonObject

_THINKING = frozenset({"thinking", "redacted_thinking"})
# Local engines speak Anthropic's format but sign nothing.
_SIGNERS = frozenset({"anthropic", "bedrock"})


class Signed(msgspec.Struct, frozen=True):
    """A thinking block of a request: its signature, what stands before it and what it holds."""

    key: str
    block: Block
    message: int
    prefix: str
    content: str


def thinking(check: Check, talk: Talk) -> Iterator[Finding]:
    """Rows 10, 11 and 12."""
    if check.info.provider not in _SIGNERS:
        return
    for message in talk.messages:
        for block in message.blocks:
            if block.type == "thinking" and not text(block.raw.get("signature")):
                yield found("B2.12", block.path)
    if check.seen is not None:
        yield from _against(check, check.seen, talk)


def _against(check: Check, seen: Seen, talk: Talk) -> Iterator[Finding]:
    latest = _latest(talk)
    sent = list(signed(talk))
    modified = False
    for one in sent:
        issued = seen.signed.get(one.key)
        if issued is None:
            if seen.complete:
                yield found("B2.12", one.block.path)
        elif issued.content != one.content:
            modified = modified or one.message == latest
            yield found("B2.10" if one.message == latest else "B2.12", one.block.path)
        elif issued.prefix != one.prefix and _is_bound(check, seen):
            yield found("B2.11", one.block.path)
    if not modified and latest is not None:
        yield from _incomplete(
            seen, talk.messages[latest], [one.key for one in sent if one.message == latest]
        )


def _incomplete(seen: Seen, message: Message, keys: list[str]) -> Iterator[Finding]:
    """Row 10 for blocks of the latest message that were taken out or moved; all or none must be there."""
    replies = dict.fromkeys(seen.signed[key].reply for key in keys if key in seen.signed)
    expected = [key for reply in replies for key in reply]
    if expected and all(key in seen.signed for key in keys) and keys != expected:
        yield found("B2.10", message.path)


def _is_bound(check: Check, seen: Seen) -> bool:
    """Whether a changed prefix is an error: by model, by account, and unless the request says drop_block."""
    binding = obj(obj(check.body.get("thinking")).get("block_binding"))
    asked = binding.get("prefix_mismatch_behavior")
    if asked == "drop_block":
        return False
    bound = check.info.features.thinking_bound
    return bound == "always" or (bound == "by-account" and (seen.enforce or asked is not None))


def signed(talk: Talk) -> Iterator[Signed]:
    """Every signed thinking block of a conversation, with the hash of what stands before its turn."""
    heads = sum(block.type != "cache_point" for block in (*talk.tools, *talk.system))
    hashes = iter(list(chain(pieces(talk)))[heads:])
    role = before = ""
    for index, message in enumerate(talk.messages):
        for block in message.blocks:
            if block.type == "cache_point":
                continue
            prefix, content = next(hashes)
            # Neighbours of one role are one turn, and what stands inside it is no part of its prefix.
            if message.role != role:
                role, before = message.role, prefix
            if block.type in _THINKING and (key := _key(block.raw)):
                yield Signed(key, block, index, before, content)


def _key(raw: JsonObject) -> str:
    if raw.get("type") == "redacted_thinking":
        return f"redacted:{text(raw.get('data'))}" if text(raw.get("data")) else ""
    return text(raw.get("signature"))


def _latest(talk: Talk) -> int | None:
    spoken = [index for index, message in enumerate(talk.messages) if message.role == "assistant"]
    return spoken[-1] if spoken else None


def remember(seen: Seen, talk: Talk, *, since: int = 0) -> None:
    """Record the thinking blocks of a conversation's messages from `since` on as given out there."""
    given = (one for one in signed(talk) if one.message >= since)
    for _, run in groupby(given, key=lambda one: one.message):
        blocks = list(run)
        reply = tuple(one.key for one in blocks)
        for one in blocks:
            seen.sign(one.key, Issued(one.prefix, one.content, reply))
