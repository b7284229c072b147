"""Whose request is this? By the fields that only one wire format has, then by the model's name."""

from __future__ import annotations

import re

from quire.providers.rules.shape import objects, text
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
    "max_completion_tokens": "openai-chat",
    "stream_options": "openai-chat",
}
_TYPES = {
    "tool_use": "anthropic",
    "tool_result": "anthropic",
    "thinking": "anthropic",
    "redacted_thinking": "anthropic",
    "image": "anthropic",
    "document": "anthropic",
    "image_url": "openai-chat",
}
_BLOCKS = ("toolUse", "toolResult", "cachePoint", "reasoningContent")
_MODELS = (
    ("claude", "anthropic"),
    ("deepseek", "deepseek"),
    ("mistral|codestral|devstral|ministral|magistral", "mistral"),
    ("grok", "xai"),
)


def detect(body: Json) -> str | None:
    """The provider or wire format a body is made for; None when nothing tells."""
    if not isinstance(body, dict):
        return None
    if "contents" in body:
        return "gemini"
    if not isinstance(body.get("messages"), list):
        return next((wire for field, wire in _BODY.items() if field in body), None)
    return _by_messages(body)


def _by_messages(body: JsonObject) -> str:
    messages = [message for _, message in objects(body["messages"], "")]
    blocks = [block for message in messages for _, block in objects(message.get("content"), "")]
    if any(
        "role" in one and (one["role"] in ("tool", "developer") or "tool_calls" in one) for one in messages
    ):
        return _chat(body)
    untyped = any("type" not in block for block in blocks)
    if untyped or any(name in block for block in blocks for name in _BLOCKS):
        return "bedrock"
    by_type = next((_TYPES[kind] for block in blocks if (kind := text(block.get("type"))) in _TYPES), None)
    by_field = next((wire for field, wire in _BODY.items() if field in body), None)
    marked = any("cache_control" in block for block in blocks)
    if by_type == "anthropic" or by_field in ("anthropic", "bedrock") or _has_schema(body):
        return by_field if by_field == "bedrock" and by_type is None else "anthropic"
    if by_type is None and (
        marked or (re.search("claude", text(body.get("model"))) and "/" not in text(body.get("model")))
    ):
        return "anthropic"
    return _chat(body)


def _has_schema(body: JsonObject) -> bool:
    return any("input_schema" in tool for _, tool in objects(body.get("tools"), ""))


def _chat(body: JsonObject) -> str:
    """Chat is spoken by many; the model's name may tell which one."""
    model = text(body.get("model"))
    if "/" in model:
        return "openrouter"
    named = (provider for pattern, provider in _MODELS[1:] if re.search(pattern, model))
    return next(named, "openai-chat")
