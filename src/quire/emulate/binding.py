"""Thinking blocks that no longer fit their conversation, where a request asks for them to be dropped."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quire.providers.rules import Seen
from quire.providers.rules.finding import where
from quire.providers.rules.thinking import signed
from quire.providers.rules.turns import anthropic_talk
from quire.values import JsonObject

CONTROLS_BETA = "thinking-binding-controls-2026-08-01"


class Dropped(msgspec.Struct, frozen=True):
    """A request without the blocks that were dropped, and what the reply says of them."""

    body: JsonObject
    transformations: tuple[JsonObject, ...] = ()


def drop_mismatched(body: JsonObject, seen: Seen) -> Dropped:
    """Take out the thinking whose prefix changed, if the request says drop_block."""
    binding = ((body.get("thinking") or {}).get("block_binding")) or {}
    if binding.get("prefix_mismatch_behavior") != "drop_block":
        return Dropped(body)
    paths = list(_mismatched(body, seen))
    taken = {tuple(path.split(".")[1::2]) for path in paths}
    messages = [
        {**message, "content": _without(message["content"], index, taken)}
        for index, message in enumerate(body["messages"])
    ]
    said = tuple(
        {"type": "thinking_dropped", "path": path, "reason": "prefix_binding_mismatch"} for path in paths
    )
    return Dropped({**body, "messages": messages}, said)


def _mismatched(body: JsonObject, seen: Seen) -> Iterator[str]:
    """Paths as errors write them: messages.1.content.0."""
    for one in signed(anthropic_talk(body)):
        issued = seen.signed.get(one.key)
        if issued is not None and issued.prefix != one.prefix:
            yield where(one.block.path)


def _without(content: object, message: int, taken: set[tuple[str, ...]]) -> object:
    if not isinstance(content, list):
        return content
    return [block for index, block in enumerate(content) if (str(message), str(index)) not in taken]
