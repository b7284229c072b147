"""Whose request is this? By the fields that only one wire format has, then by the model's name."""

from __future__ import annotations

import re

from quire.providers.rules.grammar import objects, text
from quire.values import Json, JsonObject

# Fields, block types and block fields that only one format has.
_BODY = {
    "contents": "gemini",
    "cachedContent": "gemini",
    "systemInstruction": "gemini",
    "modelId": "bedrock",
    "inferenceConfig": "bedrock",
    "toolConfig": "bedrock",
    "input": "openai-responses",
    "instructions": "openai-responses",
    "anthropic_version": "anthropic",
    "betas": "anthropic",
    "system": "anthropic",
    "thinking": "anthropic",
    "stop_sequences": "anthropic",
}
_TYPES = {
    "tool_use": "anthropic",
    "tool_result": "anthropic",
    "thinking": "anthropic",
    "redacted_thinking": "anthropic",
    "image": "anthropic",
    "document": "anthropic",
    "image_url": "openai-chat",
    "input_audio": "openai-chat",
    "file": "openai-chat",
    "refusal": "openai-chat",
}
# Blocks that only items of the Responses API hold.
_ITEM_BLOCKS = frozenset({"input_text", "output_text", "input_image", "input_file"})
# Who speaks Chat, by how their models are called.
_MODELS = (
    ("deepseek", "deepseek"),
    ("mistral|codestral|devstral|ministral|magistral", "mistral"),
    ("grok", "xai"),
)


def detect(body: Json, otherwise: str = "openai-chat") -> str | None:
    """The provider or wire format a body is made for; None when nothing tells.

    Messages of words alone could be of several formats: they are `otherwise`.
    """
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("messages"), list) and "contents" not in body:
        return _by_messages(body, otherwise)
    return next((wire for field, wire in _BODY.items() if field in body), None)


def as_body(messages: list[JsonObject]) -> JsonObject:
    """A list of messages, or of items, as the body of a request that holds them."""
    blocks = [block for message in messages for _, block in objects(message.get("content"), "")]
    items = any("type" in message for message in messages) or any(
        text(block.get("type")) in _ITEM_BLOCKS for block in blocks
    )
    parts = any("parts" in message for message in messages)
    return {"contents" if parts else "input" if items else "messages": messages}


def _by_messages(body: JsonObject, otherwise: str) -> str:
    """Chat, Anthropic and Converse all say `messages`; their blocks, fields and models differ."""
    messages = [message for _, message in objects(body["messages"], "")]
    if messages and messages[0].get("role") == "system":
        return _chat(body)  # the others say it beside the messages
    if any(message.get("role") in ("tool", "developer") or "tool_calls" in message for message in messages):
        return _chat(body)
    blocks = [block for message in messages for _, block in objects(message.get("content"), "")]
    by_type = next((_TYPES[kind] for block in blocks if (kind := text(block.get("type"))) in _TYPES), None)
    if by_type is not None:
        return _chat(body) if by_type == "openai-chat" else by_type
    if any("type" not in block for block in blocks):
        return "bedrock"
    if any("function" in tool for _, tool in objects(body.get("tools"), "")):
        return _chat(body)
    fields = _BODY if _chat(body) == "openai-chat" else {"system": "anthropic"}
    named = text(body.get("model"))
    # Others than Claude have a `thinking` switch too.
    shared = {"thinking"} if named and "claude" not in named else set()
    by_field = next((wire for field, wire in fields.items() if field in body.keys() - shared), None)
    if by_field or _is_claudes(body, blocks):
        return by_field or "anthropic"
    return found if (found := _chat(body)) != "openai-chat" else otherwise


def _is_claudes(body: JsonObject, blocks: list[JsonObject]) -> bool:
    """Marked blocks, tools with an input_schema, or a Claude that no router's prefix names."""
    schemas = any("input_schema" in tool for _, tool in objects(body.get("tools"), ""))
    model = text(body.get("model"))
    named = "claude" in model and "/" not in model
    return schemas or named or ("/" not in model and any("cache_control" in block for block in blocks))


def _chat(body: JsonObject) -> str:
    """Chat is spoken by many; the model's name may tell which one."""
    model = text(body.get("model"))
    if "/" in model:
        return "openrouter"
    return next((provider for pattern, provider in _MODELS if re.search(pattern, model)), "openai-chat")
