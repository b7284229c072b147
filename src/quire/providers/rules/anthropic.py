"""Types of an Anthropic request's messages, blocks and tools, and where its tool names are."""

from __future__ import annotations

from collections.abc import Iterator

from quire.providers.facts import data
from quire.providers.rules.check import Check
from quire.providers.rules.finding import Finding, found
from quire.providers.rules.shape import fields, objects, shape, shapes, strays, typed
from quire.providers.rules.turns import Talk
from quire.values import Json, JsonObject


def anthropic_shape(check: Check) -> Iterator[Finding]:
    """Types of everything the rules read."""
    spec, body = shapes("anthropic"), check.body
    if body.get("messages") == [] and not body.get("system"):
        yield shape("$.messages", "at least one message is required", "Send a user message.")
    yield from strays(body.get("messages"), "$.messages")
    for path, message in objects(body.get("messages"), "$.messages"):
        yield from _message_shape(message, path, spec)
    if not isinstance(body.get("system"), str):
        yield from typed(body.get("system"), "$.system", {"text": spec["types"]["text"]})
    yield from strays(body.get("tools"), "$.tools")
    for path, tool in objects(body.get("tools"), "$.tools"):
        yield from fields(tool, spec["tool"], path)
        if tool.get("type") in (None, "custom"):
            yield from fields(tool, {"name": "string!", "input_schema": "object!"}, path)


def _message_shape(message: JsonObject, path: str, spec: JsonObject) -> Iterator[Finding]:
    wanted = dict(spec["message"])
    if message.get("role") == "system" and message.get("output_config"):
        wanted["content"] = "string|array"
    yield from fields(message, wanted, path)
    role = message.get("role")
    if isinstance(role, str) and role not in spec["roles"]:
        yield shape(
            f"{path}.role", f"Input should be 'user' or 'assistant', not '{role}'", "Use user or assistant."
        )
    content = message.get("content")
    if isinstance(content, list | tuple):
        yield from typed(content, f"{path}.content", spec["types"])
        for place, block in objects(content, f"{path}.content"):
            if block.get("type") == "tool_result" and isinstance(block.get("content"), list):
                yield from typed(block["content"], f"{place}.content", spec["types"])
            speaker = _SPEAKERS.get(str(block.get("type")))
            if speaker and isinstance(role, str) and role != speaker:
                problem = f"`{block['type']}` blocks can only be in {speaker} messages"
                yield shape(place, problem, f"Move it to the {speaker}'s message.")


# Whose messages a block may stand in.
_SPEAKERS = {
    "tool_use": "assistant",
    "tool_result": "user",
    "thinking": "assistant",
    "redacted_thinking": "assistant",
}


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
