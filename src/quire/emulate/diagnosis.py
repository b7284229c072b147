"""Why a request could not reuse another's prefix, in Anthropic's words and in OpenAI's."""

from __future__ import annotations

from quire.providers.simulate import Block, Predicted, blocks
from quire.values import JsonObject

# A prefix that was stored, compared with what came: where they part, by section.
_ANTHROPIC = {"tools": "tools_changed", "system": "system_changed", "messages": "messages_changed"}


def anthropic(
    body: JsonObject, model: str, earlier: dict[str, JsonObject], tokens: dict[str, int], predicted: Predicted
) -> JsonObject | None:
    """The `cache_miss_reason` of a request that names the message before it; None when nothing diverged."""
    asked = body.get("diagnostics")
    previous_id = asked.get("previous_message_id") if isinstance(asked, dict) else None
    if previous_id is None:
        return None
    before = earlier.get(previous_id)
    if before is None:
        return {"type": "previous_message_not_found"}
    missed = max(0, tokens[previous_id] - predicted.read)
    if before.get("model") != model:
        return {"type": "model_changed", "cache_missed_input_tokens": missed}
    section = _parted(blocks(before, "anthropic"), blocks(body, "anthropic"))
    if section is not None:
        return {"type": _ANTHROPIC[section], "cache_missed_input_tokens": missed}
    settings = ("thinking", "tool_choice", "output_config", "speed")
    if any(before.get(name) != body.get(name) for name in settings):
        return {"type": "unavailable"}
    return None


def openai(
    body: JsonObject, model: str, earlier: dict[str, JsonObject], tokens: dict[str, int], predicted: Predicted
) -> JsonObject | None:
    """The `prompt_cache_diagnostics` of a request that names the response to compare with."""
    compared = (body.get("prompt_cache_options") or {}).get("comparison_response_id")
    if compared is None:
        return None
    before = earlier.get(compared)
    if before is None:
        return {"type": "comparison_response_not_found"}
    reason = _openai_reason(before, body, model)
    if reason is None:
        return {"type": "cache_hit"}
    missed = max(0, tokens[compared] - predicted.read)
    return {"type": "cache_miss", "reason": reason, "cache_missed_tokens": missed}


def _openai_reason(before: JsonObject, body: JsonObject, model: str) -> str | None:
    if before.get("model") != model:
        return "model_changed"
    changed = (
        ("prompt_cache_key_changed", "prompt_cache_key", ()),
        ("tools_changed", "tools", ()),
        ("text_format_changed", "text", ("format",)),
        ("reasoning_effort_changed", "reasoning", ("effort",)),
        ("verbosity_changed", "text", ("verbosity",)),
        ("service_tier_changed", "service_tier", ()),
    )
    for reason, field, inner in changed:
        if _field(before, field, inner) != _field(body, field, inner):
            return reason
    parted = _parted(blocks(before, "openai-responses"), blocks(body, "openai-responses"))
    return "input_changed" if parted is not None else None


def _field(body: JsonObject, name: str, inner: tuple[str, ...]) -> object:
    value = body.get(name)
    for step in inner:
        value = value.get(step) if isinstance(value, dict) else None
    return value or None


def _parted(before: list[Block], after: list[Block]) -> str | None:
    """The first section that is not the same, or (for messages) not repeated and extended."""
    for section in ("tools", "system", "messages"):
        old, new = ([one.data for one in row if one.section == section] for row in (before, after))
        if new[: len(old)] != old or (section != "messages" and len(new) > len(old)):
            return section
    return None
