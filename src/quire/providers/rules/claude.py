"""What each Claude model accepts: prefill, system messages, tool_choice, thinking modes, headers, size.

Rows 9, 13 to 16 and 20, sampling parameters and the betas that late changes need.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from quire.providers.facts import data
from quire.providers.rules.check import Check
from quire.providers.rules.finding import Finding, found, limit
from quire.providers.rules.shape import obj, text
from quire.providers.rules.turns import Message, Talk, turns
from quire.values import JsonObject


def prefill(check: Check, talk: Talk) -> Iterator[Finding]:
    """Row 9: newer models do not continue a last assistant message."""
    if not check.model_named or check.info.features.prefill or not talk.messages:
        return
    # A compaction request may end on the assistant; this token allows one prefill.
    if check.body.get("compaction") or check.body.get("fallback_credit_token"):
        return
    last = turns(talk.messages)[-1:]
    if (
        last
        and last[0].role == "assistant"
        and talk.messages[-1].role == "assistant"
        and _is_prefill(last[0])
    ):
        yield found("B2.9", talk.messages[-1].path)


def _is_prefill(message: Message) -> bool:
    """Text at the end would be continued; an unfinished server tool or a compaction is resumed, a call is row 1."""
    calls = any(block.type == "tool_use" for block in message.blocks)
    ends = message.blocks[-1].type if message.blocks else "text"
    return not calls and ends in ("text", "thinking", "redacted_thinking", "image", "document")


def late_system(check: Check, talk: Talk) -> Iterator[Finding]:
    """Row 14: where a system message may stand, and on which models."""
    for index, message in enumerate(talk.messages):
        if message.role != "system":
            continue
        if check.model_named and not check.info.features.late_system:
            problem = f"messages.{index}: role 'system' is not supported on this model"
            yield found(
                "B2.14", message.path, problem=problem, fix="Put its text into the next user message."
            )
            continue
        problem = _place(talk.messages, index)
        if problem:
            fix = "Move it behind a user message, before the assistant's next one or to the end."
            yield found("B2.14", message.path, problem=f"messages.{index}: {problem}", fix=fix)


def _place(messages: tuple[Message, ...], index: int) -> str:
    before = messages[index - 1] if index else None
    after = messages[index + 1] if index + 1 < len(messages) else None
    if before is None:
        return "role 'system' cannot be the first message"
    if _has(before, "tool_use") and before.role == "assistant":
        return "role 'system' cannot stand between tool_use and tool_result"
    if before.role != "user" and not _ends_in_server_result(before):
        return "role 'system' must follow a user message"
    if after is not None and after.role != "assistant":
        return "role 'system' must come before an assistant message or last"
    return ""


def _has(message: Message, kind: str) -> bool:
    return any(block.type == kind for block in message.blocks)


def _ends_in_server_result(message: Message) -> bool:
    last = message.blocks[-1].type if message.blocks else ""
    return message.role == "assistant" and last.endswith("_tool_result")


def tool_choice(check: Check) -> Iterator[Finding]:
    """Row 15: newer models choose their tools themselves; so does enabled thinking."""
    kind = obj(check.body.get("tool_choice")).get("type")
    yield from forced(check, kind, "$.tool_choice", obj(check.body.get("thinking")))


def forced(check: Check, kind: object, path: str, thinking: JsonObject) -> Iterator[Finding]:
    refused = check.model_named and kind not in check.info.features.tool_choice
    if kind in ("any", "tool") and (refused or thinking.get("type") == "enabled"):
        yield found("B2.15", path, type=kind)


def thinking_mode(check: Check) -> Iterator[Finding]:
    """Row 16, from the request's own `thinking`."""
    yield from modes(check, obj(check.body.get("thinking")), "$.thinking", check.body.get("max_tokens"))


def modes(check: Check, thinking: JsonObject, path: str, max_tokens: object) -> Iterator[Finding]:
    kind, allowed = thinking.get("type"), check.info.features.thinking
    if not thinking:
        return
    if check.model_named and allowed and kind not in allowed:
        problem = f'"thinking.type.{kind}" is not supported for this model.'
        fix = f"Use {' or '.join(allowed)}"
        fix += "; output_config.effort says how much to think." if "adaptive" in allowed else "."
        yield found("B2.16", path, problem=problem, fix=fix)
    elif kind == "enabled":
        yield from _budget(thinking.get("budget_tokens"), max_tokens, path)


def _budget(budget: object, max_tokens: object, path: str) -> Iterator[Finding]:
    least = limit("thinking_budget")
    if not isinstance(budget, int) or budget < least:
        problem = f"thinking.enabled.budget_tokens: Input should be greater than or equal to {least}"
        yield found("B2.16", path, problem=problem, fix=f"Set budget_tokens to {least} or more.")
    elif isinstance(max_tokens, int) and budget >= max_tokens:
        problem = "`max_tokens` must be greater than `thinking.budget_tokens`."
        yield found("B2.16", path, problem=problem, fix="Raise max_tokens or lower budget_tokens.")


def size(check: Check, encoded: bytes) -> Iterator[Finding]:
    """Row 20: the body as it goes over the wire."""
    most = limit("anthropic_bytes")
    if len(encoded) > most:
        yield found("B2.20", "$", size=len(encoded), most=most)


def sampling(check: Check) -> Iterator[Finding]:
    """Sampling parameters are refused by newer models and by the newest API version."""
    gone = check.version >= data("rules")["versions"]["anthropic_no_sampling"]
    if not (gone or (check.model_named and not check.info.features.sampling)):
        return
    for name in ("temperature", "top_p", "top_k"):
        if check.body.get(name) is not None:
            yield found("B.sampling", f"$.{name}", name=name)


def prewarm(check: Check) -> Iterator[Finding]:
    """A3: max_tokens 0 only fills the cache and goes with nothing that shapes a reply."""
    if check.body.get("max_tokens") != 0 or isinstance(check.body.get("max_tokens"), bool):
        return
    body = check.body
    clashes = {
        "stream": body.get("stream") is True,
        "thinking": obj(body.get("thinking")).get("type") == "enabled",
        "output_config": obj(body.get("output_config")).get("format") is not None,
        "tool_choice": obj(body.get("tool_choice")).get("type") in ("any", "tool"),
    }
    for name, clash in clashes.items():
        if clash:
            yield found("A3.prewarm", f"$.{name}", with_=name)


class Beta(msgspec.Struct, frozen=True):
    """A use of a feature that needs a beta header."""

    feature: str
    path: str


def betas(check: Check, talk: Talk) -> Iterator[Finding]:
    """Row 13, and the other betas where the headers are known."""
    headers = data("rules")["betas"]
    for use in beta_uses(check.body, talk):
        beta = headers[use.feature]
        if beta in (check.betas or ()):
            continue
        if use.feature == "block_binding":
            kind = text(obj(check.body.get("thinking")).get("type"))
            yield found("B2.13", use.path, beta=beta, type=kind)
        elif check.betas is not None:
            yield found("B.beta", use.path, beta=beta)


def beta_uses(body: JsonObject, talk: Talk) -> Iterator[Beta]:
    if obj(body.get("thinking")).get("block_binding") is not None:
        yield Beta("block_binding", "$.thinking.block_binding")
    for name in ("context_management", "compaction", "thread"):
        if body.get(name):
            yield Beta(name, f"$.{name}")
    for message in talk.messages:
        if message.raw.get("clear_at"):
            yield Beta("clear_at", f"{message.path}.clear_at")
        if message.role == "system" and message.raw.get("output_config"):
            yield Beta("output_config", f"{message.path}.output_config")
        for block in message.blocks:
            if block.type in ("tool_addition", "tool_removal"):
                inline = obj(block.raw.get("tool")).get("type") == "tool_definition"
                yield Beta("inline_tools" if inline else "tool_changes", block.path)
