"""Claude's texts: not empty, through Bedrock not blank, no cache mark on nothing (rows 4, 4b, 5)."""

from __future__ import annotations

from collections.abc import Iterator

from quire.providers.rules.check import Check
from quire.providers.rules.finding import Finding, found
from quire.providers.rules.shape import objects
from quire.providers.rules.turns import Block, Talk


def blank(check: Check, talk: Talk) -> Iterator[Finding]:
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


def _texts(check: Check, block: Block) -> Iterator[Finding]:
    if block.type == "text":
        yield from _text(check, block)
    if block.type == "tool_result":
        for path, inner in objects(block.raw.get("content"), f"{block.path}.content"):
            if inner.get("type") == "text":
                yield from _text(check, Block("text", inner, path))


def _text(check: Check, block: Block) -> Iterator[Finding]:
    said = block.raw.get("text")
    if said == "":
        yield found("B2.5" if block.raw.get("cache_control") else "B2.4", block.path)
    elif isinstance(said, str) and not said.strip() and check.via_bedrock:
        yield found("B2.4b", block.path)
