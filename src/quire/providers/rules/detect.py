"""Whose request is this? By the fields that only one wire format has, then by the model's name."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from quire.providers.rules.check import Check
from quire.providers.rules.claude import beta_uses
from quire.providers.rules.claude_turns import anthropic_talk, converse_talk
from quire.providers.rules.gemini import contents, setting
from quire.providers.rules.grammar import objects, text
from quire.providers.rules.openai import kind_of
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
}
# Who speaks Chat, by how their models are called.
_MODELS = (
    ("deepseek", "deepseek"),
    ("mistral|codestral|devstral|ministral|magistral", "mistral"),
    ("grok", "xai"),
)


def detect(body: Json) -> str | None:
    """The provider or wire format a body is made for; None when nothing tells."""
    if not isinstance(body, dict):
        return None
    if isinstance(body.get("messages"), list) and "contents" not in body:
        return _by_messages(body)
    return next((wire for field, wire in _BODY.items() if field in body), None)


def _by_messages(body: JsonObject) -> str:
    """Chat, Anthropic and Converse all say `messages`; their blocks, fields and models differ."""
    messages = [message for _, message in objects(body["messages"], "")]
    if any(one.get("role") in ("tool", "developer") or "tool_calls" in one for one in messages):
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
    return by_field or ("anthropic" if _is_claudes(body, blocks) else _chat(body))


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


# What cannot be told from one request: rows that need the replies, the headers or the model.


class Unchecked(msgspec.Struct, frozen=True):
    """A row that was not checked, and what would be needed."""

    row: str
    why: str


def unchecked_notes(check: Check) -> Iterator[Unchecked]:
    """The notes for one request."""
    if not check.model_named:
        yield Unchecked("model", "no model is named: rules about single models were not checked")
    if check.info.wire in ("anthropic", "bedrock"):
        yield from _claude(check)
    if check.info.wire == "gemini":
        yield from _gemini(check)
    reasoned = any(kind_of(item) == "reasoning" for _, item in objects(check.body.get("input"), ""))
    if check.info.wire == "openai-responses" and check.seen is None and reasoned:
        yield Unchecked("B2.23, B2.24", "which reasoning led to which item needs the reply that issued them")


def _claude(check: Check) -> Iterator[Unchecked]:
    talk = (anthropic_talk if check.info.wire == "anthropic" else converse_talk)(check.body)
    kinds = {block.type for message in talk.messages for block in message.blocks}
    if kinds & {"thinking", "redacted_thinking"} and check.seen is None:
        yield Unchecked(
            "B2.10, B2.11, B2.12", "whether thinking is unmodified needs the replies that issued it"
        )
    if "compaction" in kinds and check.seen is None:
        yield Unchecked("B2.19", "whether the compaction block is verbatim needs the reply that issued it")
    if check.info.wire != "anthropic":
        return
    if check.betas is None and any(use.feature != "block_binding" for use in beta_uses(check.body, talk)):
        yield Unchecked("B.beta", "whether the beta headers are sent needs the request's headers")
    if check.body.get("max_tokens") is None:
        yield Unchecked("max_tokens", "the API requires max_tokens; it is not in this body")


def _gemini(check: Check) -> Iterator[Unchecked]:
    if setting(check.body, "cachedContent")[1] is not None:
        yield Unchecked("B2.33", "whether the cached content is large enough needs the cached content")
    signed = any(turn.having("thoughtSignature") for turn in contents(check.body))
    if signed and check.seen is None:
        yield Unchecked(
            "B2.31", "whether thought signatures are the server's own needs the replies that issued them"
        )
