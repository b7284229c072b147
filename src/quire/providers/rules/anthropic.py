"""Types of an Anthropic request's messages, blocks and tools, and where its tool names are."""

from __future__ import annotations

from collections.abc import Iterator

from quire.providers.facts import data
from quire.providers.rules.check import Check
from quire.providers.rules.finding import Finding, found
from quire.providers.rules.grammar import grammar_of, misfits, shape
from quire.providers.rules.turns import Talk
from quire.values import Json


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


def anthropic_names(talk: Talk) -> Iterator[tuple[str, Json]]:
    """Every tool name with its path, of definitions and of calls."""
    yield from tool_names(talk)
    for message in talk.messages:
        for block in message.blocks:
            if block.type == "tool_use":
                yield f"{block.path}.name", block.raw.get("name")


def tool_names(talk: Talk) -> Iterator[tuple[str, Json]]:
    """The names of the tools that are defined."""
    yield from ((f"{block.path}.name", block.raw.get("name")) for block in talk.tools)


def version(check: Check, talk: Talk) -> Iterator[Finding]:
    """What the newest API version no longer takes: documents from the assistant, citations on the user's text."""
    if check.version < data("rules")["versions"]["anthropic_no_sampling"]:
        return
    for message in talk.messages:
        for block in message.blocks:
            if block.type == "document" and message.role == "assistant":
                yield found("B.version", block.path, fix="Send the document in a user message.")
            if block.type == "text" and message.role == "user" and block.raw.get("citations"):
                yield found("B.version", f"{block.path}.citations", fix="Leave citations out of user text.")
