"""Reported usage in one form: {input_total, cache_read, cache_write_5m, cache_write_1h, output, reasoning}.

`input_total` counts every prompt token once, cached or not; `output` includes reasoning.
Takes the usage object or the whole reply, in JSON's or an SDK's spelling. Absent and null are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec

from quire.providers.models import ModelInfo, Tier, model_info
from quire.providers.rules.grammar import snake
from quire.providers.wires import wire_of
from quire.values import COUNTS, Json, JsonObject, Usage

Reader: TypeAlias = Callable[[JsonObject], Usage]


def usage(provider: str, raw: Json) -> Usage:
    """What a reply used; `raw` is its usage object, or the whole reply, which tells more."""
    reported = _reported(raw)
    # By the fields that only one form has, else by the wire format.
    readers = (reader for field, reader in _BY_FIELD.items() if reported.get(field) is not None)
    counts = (next(readers, None) or wire_of(provider).usage)(reported)
    every = counts.input_total + counts.output + counts.reasoning
    if counts.reasoning and token_count(reported, "total_tokens") == every and "prompt_tokens" in reported:
        # Some Chat servers count reasoning beside the completion; their own total tells.
        counts = msgspec.structs.replace(counts, output=counts.output + counts.reasoning)
    besides = tuple(dict.fromkeys(_besides(_object(raw), reported)))
    return msgspec.structs.replace(counts, besides=besides, charged=_charged(reported))


# Items of a response that cost a fee, or another model's tokens.
_CHARGED_ITEMS = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call")
# Where requests cost what they cost in the price tables.
_USUAL_TIERS = ("", "default", "standard", "auto", "on_demand", "none", "unspecified", "traffic_type_unspecified")
_USUAL_PLACES = ("", "global", "not_available")
_TOOLS_USED = ("server_tool_use", "server_tool_use_details", "server_side_tool_usage_details", "serverToolUsage")
_SEARCHES = ("webSearchQueries", "web_search_queries", "imageSearchQueries", "groundingChunks")


def _besides(reply: JsonObject, reported: JsonObject) -> Iterator[str]:
    """What a provider charges for besides the text tokens of the model that was asked."""
    for name in _TOOLS_USED:
        used = _sub(reported, name)
        # Fetching a page costs its tokens alone.
        yield from (f"{tool}: {used[tool]}" for tool in used if token_count(used, tool) and "web_fetch" not in tool)
    if token_count(reported, "num_sources_used"):
        yield "search sources"
    models = {str(step["model"]) for step in map(_object, _list(reported, "iterations")) if step.get("model")}
    yield from (f"the share of {model}" for model in sorted(models - {str(reply.get("model") or "")}))
    kinds = {str(item.get("type")) for item in map(_object, _list(reply, "output"))}
    yield from (kind for kind in _CHARGED_ITEMS if kind in kinds)
    for item in map(_object, _list(reply, "output")):
        if str(_sub(item, "environment").get("type") or "").startswith("container"):
            yield "a container"
    for choice in map(_object, _list(reply, "choices")):
        if _sub(choice, "message").get("executed_tools"):
            yield "executed tools"
    for candidate in map(_object, _list(reply, "candidates")):
        grounding = _sub(candidate, "groundingMetadata") or _sub(candidate, "grounding_metadata")
        if any(grounding.get(name) for name in _SEARCHES):
            yield "grounding"
    if "guardrail" in _sub(reply, "trace"):
        yield "guardrail"
    yield from _other_modalities(reported)
    yield from _other_ways(reply, reported)


def _other_ways(reply: JsonObject, reported: JsonObject) -> Iterator[str]:
    """Ways to be served that have prices of their own: a tier, a place, a speed."""
    for holder in (reported, reply):
        for name in ("service_tier", "serviceTier", "trafficType", "traffic_type"):
            value = holder.get(name)
            tier = str((_object(value).get("type") if isinstance(value, Mapping) else value) or "")
            if tier.lower() not in _USUAL_TIERS:
                yield f"the {tier} tier"
    place, speed = str(reported.get("inference_geo") or ""), str(reported.get("speed") or "")
    if place not in _USUAL_PLACES:
        yield f"inference in {place}"
    if speed.lower() not in _USUAL_TIERS:
        yield f"{speed} speed"
    if _sub(reply, "performanceConfig").get("latency") == "optimized":
        yield "optimized latency"


def _other_modalities(reported: JsonObject) -> Iterator[str]:
    """Tokens that are no text and have prices of their own; images that are read count as text."""
    for name in ("promptTokensDetails", "toolUsePromptTokensDetails", "candidatesTokensDetails"):
        listed = _list(reported, name) or _list(reported, snake(name))
        kinds = {
            str(item.get("modality")) for item in map(_object, listed) if _either(item, "tokenCount", "token_count")
        }
        if "AUDIO" in kinds:
            yield "audio"
        if "IMAGE" in kinds and name == "candidatesTokensDetails":
            yield "images made"
    details = ("prompt_tokens_details", "completion_tokens_details", "input_tokens_details", "output_tokens_details")
    if any(token_count(_sub(reported, name), "audio_tokens") for name in details) or token_count(
        reported, "prompt_audio_seconds"
    ):
        yield "audio"
    if any(token_count(_sub(reported, name), "image_tokens") for name in details[1::2]):
        yield "images made"


def _charged(reported: JsonObject) -> float | None:
    """The provider's own figure; with a key of one's own, its fee and what the upstream takes."""
    fee = reported.get("cost")
    if isinstance(fee, bool) or not isinstance(fee, int | float) or not 0 <= fee < 1e9:
        return None
    upstream = _sub(reported, "cost_details").get("upstream_inference_cost")
    return float(fee) + (float(upstream) if reported.get("is_byok") and isinstance(upstream, int | float) else 0.0)


def _reported(raw: Json) -> JsonObject:
    """The usage object of a reply; llama.cpp's timings stand beside it and are kept."""
    body = _object(raw)
    inner = next((body[name] for name in ("usage", "usageMetadata", "usage_metadata") if body.get(name)), None)
    if inner is None and isinstance(body.get("x_groq"), Mapping):
        inner = body["x_groq"].get("usage")
    if inner is None:
        return body
    timings = {"timings": body["timings"]} if body.get("timings") else {}
    return {**_object(inner), **timings}


def anthropic_usage(reported: JsonObject) -> Usage:
    # With compaction the top level leaves the summarising call out; the iterations hold everything.
    iterations = [item for item in _list(reported, "iterations") if isinstance(item, Mapping)]
    parts = [_anthropic_part(_object(iteration)) for iteration in iterations] or [_anthropic_part(reported)]
    thoughts = token_count(_sub(reported, "output_tokens_details"), "thinking_tokens")
    total, read, short, long, output = (sum(getattr(part, name) for part in parts) for name in COUNTS[:5])
    return Usage(total, read, short, long, output, thoughts)


def _anthropic_part(reported: JsonObject) -> Usage:
    by_ttl = _sub(reported, "cache_creation")
    long = token_count(by_ttl, "ephemeral_1h_input_tokens")
    short = token_count(by_ttl, "ephemeral_5m_input_tokens")
    written = max(token_count(reported, "cache_creation_input_tokens"), long + short)
    read = token_count(reported, "cache_read_input_tokens")
    return Usage(
        input_total=token_count(reported, "input_tokens") + written + read,
        cache_read=read,
        cache_write_5m=written - long,
        cache_write_1h=long,
        output=token_count(reported, "output_tokens"),
    )


def responses_usage(reported: JsonObject) -> Usage:
    details = _sub(reported, "input_tokens_details")
    long = token_count(_sub(details, "cache_write_tokens_details"), "ttl_12h_tokens")
    short = token_count(_sub(details, "cache_write_tokens_details"), "ttl_30m_tokens")
    written = max(token_count(details, "cache_write_tokens"), long + short)
    return Usage(
        input_total=token_count(reported, "input_tokens"),
        cache_read=token_count(details, "cached_tokens"),
        cache_write_5m=written - long,
        cache_write_1h=long,
        output=token_count(reported, "output_tokens"),
        reasoning=token_count(_sub(reported, "output_tokens_details"), "reasoning_tokens"),
    )


def chat_usage(reported: JsonObject) -> Usage:
    details = _sub(reported, "prompt_tokens_details")
    hit, missed = token_count(reported, "prompt_cache_hit_tokens"), token_count(reported, "prompt_cache_miss_tokens")
    groq = token_count(reported, "dram_cached_tokens") + token_count(reported, "sram_cached_tokens")
    xai = token_count(reported, "cached_prompt_text_tokens")
    mistral = token_count(reported, "num_cached_tokens") or token_count(reported, "cached_tokens")
    return Usage(
        input_total=token_count(reported, "prompt_tokens") or hit + missed,
        cache_read=token_count(details, "cached_tokens") or hit or xai or groq or mistral,
        cache_write_5m=token_count(details, "cache_write_tokens"),
        output=token_count(reported, "completion_tokens"),
        reasoning=token_count(_sub(reported, "completion_tokens_details"), "reasoning_tokens"),
    )


def gemini_usage(reported: JsonObject) -> Usage:
    thoughts = _either(reported, "thoughtsTokenCount", "thoughts_token_count")
    answered = _either(reported, "candidatesTokenCount", "candidates_token_count")
    answered = answered or _either(reported, "responseTokenCount", "response_token_count")
    fetched = _either(reported, "toolUsePromptTokenCount", "tool_use_prompt_token_count")
    by_kind = _list(reported, "cacheTokensDetails") or _list(reported, "cache_tokens_details")
    details = sum(_either(_object(detail), "tokenCount", "token_count") for detail in by_kind)
    return Usage(
        input_total=_either(reported, "promptTokenCount", "prompt_token_count") + fetched,
        cache_read=_either(reported, "cachedContentTokenCount", "cached_content_token_count") or details,
        output=answered + thoughts,
        reasoning=thoughts,
    )


def _interactions(reported: JsonObject) -> Usage:
    thoughts = token_count(reported, "total_thought_tokens")
    return Usage(
        input_total=token_count(reported, "total_input_tokens") + token_count(reported, "total_tool_use_tokens"),
        cache_read=token_count(reported, "total_cached_tokens"),
        output=token_count(reported, "total_output_tokens") + thoughts,
        reasoning=thoughts,
    )


def bedrock_usage(reported: JsonObject) -> Usage:
    read, written = token_count(reported, "cacheReadInputTokens"), token_count(reported, "cacheWriteInputTokens")
    details = [_object(item) for item in _list(reported, "cacheDetails")]
    long = sum(token_count(detail, "inputTokens") for detail in details if detail.get("ttl") == "1h")
    short = sum(token_count(detail, "inputTokens") for detail in details if detail.get("ttl") != "1h")
    written = max(written, long + short)
    return Usage(
        input_total=token_count(reported, "inputTokens") + read + written,
        cache_read=read,
        cache_write_5m=written - long,
        cache_write_1h=long,
        output=token_count(reported, "outputTokens"),
    )


def _llamacpp(reported: JsonObject) -> Usage:
    timings = _sub(reported, "timings")
    fresh, cached = token_count(timings, "prompt_n"), token_count(timings, "cache_n")
    return Usage(input_total=fresh + cached, cache_read=cached, output=token_count(timings, "predicted_n"))


# Looked at in this order: a field here says which form it is, whoever sent it.
_BY_FIELD: dict[str, Reader] = {
    "timings": _llamacpp,
    **dict.fromkeys(("promptTokenCount", "prompt_token_count", "totalTokenCount", "total_token_count"), gemini_usage),
    **dict.fromkeys(("total_input_tokens", "total_cached_tokens"), _interactions),
    "inputTokens": bedrock_usage,
    **dict.fromkeys(("prompt_tokens", "prompt_cache_hit_tokens", "completion_tokens"), chat_usage),
    **dict.fromkeys(("cache_read_input_tokens", "cache_creation_input_tokens"), anthropic_usage),
    "input_tokens_details": responses_usage,
}


def _object(value: Json) -> JsonObject:
    return dict(value) if isinstance(value, Mapping) else {}


def _sub(reported: JsonObject, name: str) -> JsonObject:
    return _object(reported.get(name))


def _list(reported: JsonObject, name: str) -> list[Json]:
    value = reported.get(name)
    return list(value) if isinstance(value, list | tuple) else []


def token_count(reported: JsonObject, name: str) -> int:
    """A count; null, absent and what is no count are 0."""
    value = reported.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return 0
    return max(0, int(value)) if value < float("inf") else 0


def _either(reported: JsonObject, name: str, other: str) -> int:
    return token_count(reported, name) or token_count(reported, other)


# Money from usage: dated prices, by tier; a price that is not known is said, never guessed.

_MILLION = 1_000_000
# llama.cpp and Ollama serve from one's own machine, where nothing is charged for a token.
_LOCAL = "a local model"
_LAST_MS = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp() * 1000)


class Money(msgspec.Struct, frozen=True):
    """What a call cost in USD: None when a part of it has no known price; `unknown` names those parts."""

    amount_usd: float | None
    known: bool
    # plain, read, write_5m, write_1h, output -> USD; parts without a known price are missing.
    parts: dict[str, float]
    unknown: tuple[str, ...] = ()
    as_of: str = ""
    source: str = ""

    def __str__(self) -> str:
        if self.amount_usd is None:
            return "price not known" + (f" ({', '.join(self.unknown)})" if self.unknown else "")
        return f"$0 ({self.source})" if self.source == _LOCAL else f"${self.amount_usd:.6f}"


def cost(usage: Usage, target: str | ModelInfo, at: int | None = None) -> Money:
    """What a call costs, at the prices of `at` (ms): 1,000 tokens in on anthropic:claude-opus-5-5 are $0.004.

    A model on one's own machine costs nothing for a token.
    """
    info = _at(model_info(target) if isinstance(target, str) else target, at)
    tier = info.prices.tier(usage.input_total)
    amounts = _amounts(usage)
    prices = _per_token(tier, info)
    parts = {name: tokens * price / _MILLION for name, tokens in amounts.items() if (price := prices[name]) is not None}
    if usage.charged is not None:
        return Money(usage.charged, True, {"charged": usage.charged}, (), "", "the provider's own figure")
    if info.engine == "slot" and not info.prices.tiers:
        return Money(0.0, True, dict.fromkeys(amounts, 0.0), (), "", _LOCAL)
    unknown = tuple(name for name, tokens in amounts.items() if tokens and prices[name] is None)
    unknown += usage.besides
    priced = bool(info.prices.tiers) and not unknown
    return Money(
        amount_usd=sum(parts.values()) if priced else None,
        known=priced,
        parts=parts,
        unknown=unknown,
        as_of=info.prices.as_of,
        source=info.prices.source,
    )


def _at(info: ModelInfo, at: int | None) -> ModelInfo:
    """The model with the prices of a moment; without one, those of the data's own date."""
    if at is None or not info.prices.changes:
        return info
    # A clock that counts from its own beginning is before every change, one beyond all dates behind them.
    day = datetime.fromtimestamp(min(max(at, 0), _LAST_MS) / 1000, UTC).date().isoformat()
    return msgspec.structs.replace(info, prices=info.prices.on(day))


def storage(tokens: int, hours: float, target: str | ModelInfo, at: int | None = None) -> Money:
    """What keeping `tokens` in an explicit cache for `hours` costs (Gemini); nothing where storage is free."""
    info = _at(model_info(target) if isinstance(target, str) else target, at)
    price = info.prices.storage_per_hour
    if price is None:
        free = info.engine != "gemini"
        return Money(
            0.0 if free else None, free, {}, () if free else ("storage",), info.prices.as_of, info.prices.source
        )
    amount = tokens * price * hours / _MILLION
    return Money(amount, True, {"storage": amount}, (), info.prices.as_of, info.prices.source)


def _amounts(usage: Usage) -> dict[str, int]:
    written = usage.cache_write_5m + usage.cache_write_1h
    return {
        "plain": max(0, usage.input_total - usage.cache_read - written),
        "read": usage.cache_read,
        "write_5m": usage.cache_write_5m,
        "write_1h": usage.cache_write_1h,
        "output": usage.output,
    }


def _per_token(tier: Tier, info: ModelInfo) -> dict[str, float | None]:
    """USD per million tokens; providers that do not charge for writing bill them as input."""
    free_writes = tier.input if info.cache.write_x == 1.0 else None
    return {
        "plain": tier.input,
        "read": tier.read,
        "write_5m": tier.write_5m if tier.write_5m is not None else free_writes,
        "write_1h": tier.write_1h if tier.write_1h is not None else free_writes,
        "output": tier.output,
    }
