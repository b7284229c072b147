"""Reported usage in one form: {input_total, cache_read, cache_write_5m, cache_write_1h, output, reasoning}.

`input_total` counts every prompt token once, cached or not; `output` includes reasoning.
Takes the usage object or the whole reply, in JSON's or an SDK's spelling. Absent and null are 0.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec

from quire.errors import QuireError
from quire.providers.models import ModelInfo, Tier, data, model_info
from quire.providers.rules.grammar import snake
from quire.providers.wires import wire_of
from quire.values import COUNTS, Entry, Json, JsonObject, Usage, as_object, as_objects, read_early


def usage(provider: str, raw: Json) -> Usage:
    """What a reply used; `raw` is its usage object, or the whole reply, which tells more."""
    reported = _usage_object(raw)
    # By the fields that only one form has, else by the wire format.
    by_field = (form for field, form in data("usage")["by_field"].items() if reported.get(field) is not None)
    counts = _forms()[next(by_field, None) or wire_of(provider).name].counts(reported)
    every = counts.input_total + counts.output + counts.reasoning
    if counts.reasoning and token_count(reported, "total_tokens") == every and "prompt_tokens" in reported:
        # Some Chat servers count reasoning beside the completion; their own total tells.
        counts = msgspec.structs.replace(counts, output=counts.output + counts.reasoning)
    besides = tuple(dict.fromkeys(_besides(as_object(raw), reported)))
    return msgspec.structs.replace(counts, besides=besides, charged=_reported_cost(reported))


def usage_in(form: str, reported: Json) -> Usage:
    """What a program counted, in its own form."""
    return _forms()[form].counts(as_object(reported))


def sent_usage(sent: Entry) -> Usage:
    """What a `sent` entry says was used; a log from elsewhere may hold anything."""
    reported = as_object(sent.body["usage"])
    with suppress(msgspec.ValidationError):
        return msgspec.convert(reported, Usage, strict=False)
    counts: dict[str, Any] = {
        name: round(value) for name in COUNTS if isinstance(value := reported.get(name), int | float)
    }
    charged = reported.get("charged")
    return Usage(**counts, charged=charged if isinstance(charged, int | float) else None)


# Service tiers and regions that are billed by the price tables.
_USUAL_TIERS = ("", "default", "standard", "auto", "on_demand", "none", "unspecified", "traffic_type_unspecified")
_USUAL_PLACES = ("", "global", "not_available")
_TOOLS_USED = ("server_tool_use", "server_tool_use_details", "server_side_tool_usage_details", "serverToolUsage")


def _besides(reply: JsonObject, reported: JsonObject) -> Iterator[str]:
    """What a provider charges for besides the text tokens of the model that was asked."""
    for name in _TOOLS_USED:
        used = as_object(reported.get(name))
        # Fetching a page costs its tokens alone.
        yield from (f"{tool}: {used[tool]}" for tool in used if token_count(used, tool) and "web_fetch" not in tool)
    models = {str(step["model"]) for step in as_objects(reported.get("iterations")) if step.get("model")}
    yield from (f"the share of {model}" for model in sorted(models - {str(reply.get("model") or "")}))
    for item in as_objects(reply.get("output")):
        if str(as_object(item.get("environment")).get("type") or "").startswith("container"):
            yield "a container"
    whole = {**reply, **reported}
    yield from (name for name, counted in data("usage")["besides"].items() if _tokens(whole, counted))
    yield from _other_ways(reply, reported)


def _other_ways(reply: JsonObject, reported: JsonObject) -> Iterator[str]:
    """What a reply says of how it was served that has another price: a service tier, a region, a speed."""
    for holder in (reported, reply):
        for name in ("service_tier", "serviceTier", "trafficType", "traffic_type"):
            value = holder.get(name)
            tier = str((as_object(value).get("type") if isinstance(value, dict) else value) or "")
            if tier.lower() not in _USUAL_TIERS:
                yield f"the {tier} tier"
    place, speed = str(reported.get("inference_geo") or ""), str(reported.get("speed") or "")
    if place not in _USUAL_PLACES:
        yield f"inference in {place}"
    if speed.lower() not in _USUAL_TIERS:
        yield f"{speed} speed"
    if as_object(reply.get("performanceConfig")).get("latency") == "optimized":
        yield "optimized latency"


def _reported_cost(reported: JsonObject) -> float | None:
    """The provider's own figure; with a key of one's own, its fee and what the upstream takes."""
    fee = reported.get("cost")
    if isinstance(fee, bool) or not isinstance(fee, int | float) or not 0 <= fee < 1e9:
        return None
    upstream = as_object(reported.get("cost_details")).get("upstream_inference_cost")
    return float(fee) + (float(upstream) if reported.get("is_byok") and isinstance(upstream, int | float) else 0.0)


def _usage_object(raw: Json) -> JsonObject:
    """The usage object of a reply; llama.cpp's timings stand beside it and are kept."""
    body = as_object(raw)
    inner = next((body[name] for name in ("usage", "usageMetadata", "usage_metadata") if body.get(name)), None)
    if inner is None and isinstance(body.get("x_groq"), dict):
        inner = body["x_groq"].get("usage")
    if inner is None:
        return body
    timings = {"timings": body["timings"]} if body.get("timings") else {}
    return {**as_object(inner), **timings}


@read_early
class UsageForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of data/usage.json, where the fields are explained."""

    total: str
    read: str
    output: str
    written: str = ""
    lives: str = ""
    long: str = ""
    reasoning: str = ""
    cache_apart: bool = False
    reasoning_apart: bool = False
    parts: str = ""
    whole: str = ""

    def counts(self, reported: JsonObject) -> Usage:
        """The counts of a usage object in this form."""
        # With compaction the top level leaves the summarising call out; the iterations hold everything.
        parts = as_objects(reported.get(self.parts)) or [reported]
        total, read, short, long, output = map(sum, zip(*map(self._part, parts), strict=True))
        reasoning = _tokens(reported, self.reasoning)
        return Usage(total, read, short, long, output + reasoning * self.reasoning_apart, reasoning)

    def _part(self, reported: JsonObject) -> tuple[int, ...]:
        read, long = _tokens(reported, self.read), _tokens(reported, self.long)
        written = max(_tokens(reported, self.written), _tokens(reported, self.lives))
        total, output = _tokens(reported, self.total), _tokens(reported, self.output)
        whole = _tokens(reported, self.whole)
        is_apart = self.cache_apart and not (whole and whole == total + output)
        return total + (read + written) * is_apart, read, written - long, long, output


@functools.cache
def _forms() -> dict[str, UsageForm]:
    return msgspec.convert(data("usage")["forms"], dict[str, UsageForm])


def _tokens(reported: JsonObject, counted: str) -> int:
    """The first of several sums that is not 0: "a.b | c + d"."""
    sums = (sum(_at_path(reported, path) for path in paths) for paths in _paths(counted))
    return next(filter(None, sums), 0)


@functools.cache
def _paths(counted: str) -> list[list[list[str]]]:
    return [[path.strip().split(".") for path in paths.split("+")] for paths in counted.split("|")]


def _at_path(value: Json, path: list[str]) -> int:
    """The count at a path; along a list the sum over its members, `name[word]` over those that say the word."""
    if isinstance(value, list | tuple):
        return sum(_at_path(as_object(member), path) for member in value)
    name, _, word = path[0].removesuffix("]").partition("[")
    held = as_object(value)
    name = name if held.get(name) is not None else snake(name)
    inner = [member for member in as_objects(held.get(name)) if word in member.values()] if word else held.get(name)
    if len(path) > 1:
        return _at_path(inner, path[1:])
    return len(inner) if isinstance(inner, list | tuple | dict) else token_count(held, name)


def token_count(reported: JsonObject, name: str) -> int:
    """A count; null, absent and what is no count are 0."""
    value = reported.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return 0
    return max(0, int(value)) if value < float("inf") else 0


# Money from usage: dated prices, by tier; a price that is not known is said, never guessed.

_MILLION = 1_000_000
# llama.cpp and Ollama serve from one's own machine, where nothing is charged for a token.
_LOCAL = "a local model"
_LAST_MS = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp() * 1000)


class Money(msgspec.Struct, frozen=True):
    """What a call cost in USD: None when a part of it has no known price; `unknown` names those parts."""

    amount_usd: float | None
    known: bool
    # plain, read, write_5m, write_1h, output, storage -> USD; parts without a known price are missing.
    parts: dict[str, float]
    unknown: tuple[str, ...] = ()
    as_of: str = ""
    source: str = ""

    def __str__(self) -> str:
        if self.amount_usd is None:
            return "price not known" + (f" ({', '.join(self.unknown)})" if self.unknown else "")
        return f"$0 ({self.source})" if self.source == _LOCAL else f"${self.amount_usd:.6f}"


def cost(usage: Usage, target: str | ModelInfo, at: int | None = None, token_hours: float = 0.0) -> Money:
    """What a call costs, at the prices of `at` (ms): 1,000 tokens in on anthropic:claude-opus-5-5 are $0.004.

    A model on one's own machine costs nothing for a token. `token_hours` were kept in an explicit cache (Gemini).
    """
    info = _at(model_info(target) if isinstance(target, str) else target, at)
    tier = info.prices.tier(usage.input_total)
    amounts: dict[str, float] = {
        "plain": max(0, usage.input_total - usage.cache_read - usage.cache_write_5m - usage.cache_write_1h),
        "read": usage.cache_read,
        "write_5m": usage.cache_write_5m,
        "write_1h": usage.cache_write_1h,
        "output": usage.output,
        **({"storage": token_hours} if token_hours else {}),
    }
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


def known_cost(usage: Usage, target: str, at: int | None = None) -> float | None:
    """What a call costs in USD; None where its provider, or its price, is not known here."""
    try:
        return cost(usage, target, at).amount_usd
    except QuireError:
        return None


def _at(info: ModelInfo, at: int | None) -> ModelInfo:
    """The model with the prices of a moment; without one, those of the data's own date."""
    if at is None or not info.prices.changes:
        return info
    # A test clock may start at 0 or lie beyond any calendar: then the first, or the last, prices hold.
    day = datetime.fromtimestamp(min(max(at, 0), _LAST_MS) / 1000, UTC).date().isoformat()
    return msgspec.structs.replace(info, prices=info.prices.on(day))


def _per_token(tier: Tier, info: ModelInfo) -> dict[str, float | None]:
    """USD per million tokens; providers that do not charge for writing bill them as input."""
    free_writes = tier.input if info.cache.write_x == 1.0 else None
    # Only Gemini charges for keeping what is cached.
    stored = info.prices.storage_per_hour if info.engine == "gemini" else 0.0
    return {
        "plain": tier.input,
        "read": tier.read,
        "write_5m": tier.write_5m if tier.write_5m is not None else free_writes,
        "write_1h": tier.write_1h if tier.write_1h is not None else free_writes,
        "output": tier.output,
        "storage": stored,
    }
