"""What of a block is counted: its text, and the tokens that no text stands for."""

from __future__ import annotations

import json

from quire.tokens import IMAGE_TOKENS
from quire.values import Json, JsonObject

# Encrypted reasoning is base64: four characters hold three bytes, about four of which made a token.
OPAQUE_CHARACTERS_PER_TOKEN = 5

# Blocks that name their kind by their only key (Bedrock, Gemini).
_KEYED = {
    "toolUse": "tool_use",
    "toolResult": "tool_result",
    "reasoningContent": "thinking",
    "functionCall": "tool_use",
    "functionResponse": "tool_result",
    "image": "image",
    "inlineData": "image",
    "fileData": "image",
    "cachePoint": "cachePoint",
    "toolSpec": "tool",
}


def kind_of(part: JsonObject) -> str:
    """What a block is: its `type`, or the key that says it."""
    if isinstance(part.get("type"), str):
        return str(part["type"])
    return next((kind for key, kind in _KEYED.items() if key in part), "text")


def said(part: JsonObject) -> tuple[str, int]:
    """What of a block is counted: its text, and the tokens that no text stands for."""
    source = _inner(part.get("source"))
    if part.get("type") == "document" and source.get("type") in ("text", "content"):
        return _text_of(source.get("data") or source.get("content")), 0
    if _is_media(part):
        return "", IMAGE_TOKENS
    return _text_of(part), _opaque(part) + IMAGE_TOKENS * _media_inside(part)


def _is_media(part: JsonObject) -> bool:
    return "image" in kind_of(part) or part.get("type") in ("input_file", "document", "file", "input_audio")


def _media_inside(part: JsonObject) -> int:
    """How many images or files a tool's result holds."""
    result = _inner(part.get("toolResult") or part)
    inner = result.get("content")
    return sum(isinstance(one, dict) and _is_media(one) for one in inner) if isinstance(inner, list) else 0


def _opaque(part: JsonObject) -> int:
    """The tokens of reasoning that is only there encrypted."""
    inner = _inner(part.get("reasoningContent") or part)
    thinking = _inner(inner.get("reasoningText") or inner)
    if thinking.get("thinking") or (thinking.get("text") and "reasoningContent" in part):
        return 0
    hidden = part.get("encrypted_content") or inner.get("redactedContent")
    if part.get("type") in ("thinking", "redacted_thinking"):
        hidden = part.get("signature") or part.get("data")
    return len(hidden) // OPAQUE_CHARACTERS_PER_TOKEN if isinstance(hidden, str | bytes) else 0


# Fields that say what a block is or belongs to, and are no text of their own.
_SILENT = frozenset(
    {"type", "id", "tool_use_id", "toolUseId", "tool_call_id", "call_id", "signature", "thoughtSignature", "data",
     "encrypted_content", "redactedContent", "status", "role", "index", "phase", "annotations", "is_error", "strict"}
)  # fmt: skip
# Fields that hold JSON of the model's or the tool's own, counted as JSON.
_JSON = frozenset({"input", "args", "response", "json", "toolSpec", "definition", "tools"})


def _text_of(value: Json) -> str:
    """Every text in a block: names, arguments, contents; JSON fields as compact JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(filter(None, map(_text_of, value)))
    if not isinstance(value, dict) or _is_media(value):
        return ""
    found = []
    for key, inner in value.items():
        if key in _SILENT:
            continue
        found.append(_compact(inner) if key in _JSON and not isinstance(inner, str) else _text_of(inner))
    return "\n".join(filter(None, found))


def _compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _inner(value: Json) -> JsonObject:
    return value if isinstance(value, dict) else {}
