"""What is known of each model: window, vocabulary, prices, cache facts, what it accepts.

Numbers live in `data/*.json`, each file with its date; a new model is a row there, not code here.
A model without a row gets its provider's defaults and says `known=False`.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, TypeVar

import msgspec

from quire.providers.registry import (
    ModelRow,
    data,
    find_row,
    is_regional,
    provider_facts,
    providers,
    resolve,
    split_target,
)
from quire.tokens.counting import vocabulary

__all__ = [
    "Cache",
    "Engine",
    "Features",
    "ModelInfo",
    "PriceChange",
    "Prices",
    "Tier",
    "known_models",
    "model_info",
    "providers",
    "resolve",
    "split_target",
]

_F = TypeVar("_F", float, float | None)
Engine = Literal[
    "anthropic",
    "openai-breakpoints",
    "openai-steps",
    "gemini",
    "deepseek-units",
    "blocks",
    "radix",
    "slot",
    "none",
]


class Tier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices in USD per million tokens, for prompts of more than `above` tokens; None is not known."""

    above: int = 0
    input: float | None = None
    read: float | None = None
    # The provider's shortest cache life (Anthropic 5 m, OpenAI 30 m), and its longer one (1 h, 12 h).
    write_5m: float | None = None
    write_1h: float | None = None
    output: float | None = None


class PriceChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"since": "from"}):
    """Prices announced from a day on."""

    since: str
    tiers: tuple[Tier, ...]
    storage_per_hour: float | None = None


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's prices; no tiers means that none are known."""

    tiers: tuple[Tier, ...] = ()
    # Keeping one million tokens in an explicit cache for an hour (Gemini).
    storage_per_hour: float | None = None
    # What a regional endpoint (Bedrock's us., eu., ...) multiplies every price by.
    regional: float = 1.0
    changes: tuple[PriceChange, ...] = ()
    source: str = ""
    as_of: str = ""

    def on(self, day: str) -> Prices:
        """The prices of a day, "2026-12-01": the last change announced for it or before it."""
        past = [change for change in self.changes if change.since <= day]
        if not past:
            return self
        last = past[-1]
        return msgspec.structs.replace(
            self, tiers=last.tiers, storage_per_hour=last.storage_per_hour, changes=()
        )

    def tier(self, prompt_tokens: int) -> Tier:
        """The prices of a prompt of this length; the whole prompt is billed in one tier."""
        fitting = [tier for tier in self.tiers if prompt_tokens > tier.above or tier.above == 0]
        return fitting[-1] if fitting else Tier()


class Cache(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a provider's prompt cache matches; the fields are explained in data/caching.json."""

    engine: Engine
    min_tokens: int
    step: int
    ttl_s: tuple[int, ...]
    max_breakpoints: int
    lookback: int
    read_x: float
    write_x: float
    write_long_x: float | None
    refreshed: bool
    key: str = ""
    unsure: tuple[str, ...] = ()


class Features(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model's requests may hold."""

    late_system: bool = False  # an instruction in the middle of the conversation
    late_tools: bool = False  # tools added by an appended item
    inline_tools: bool = False  # their definitions inside that item
    late_effort: bool = False  # reasoning effort changed by an appended item
    prefill: bool = False  # a last assistant message to be continued
    thinking: tuple[str, ...] = ()  # values of thinking.type
    tool_choice: tuple[str, ...] = ("auto", "any", "tool", "none")
    thinking_bound: Literal["no", "by-account", "always"] = "no"  # thinking refuses a changed prefix
    sampling: bool = False  # temperature, top_p, top_k
    images: bool = False
    tool_images: bool = False  # images inside tool results
    tool_error: bool = False  # tool results carry an error flag
    signatures: bool = False  # function calls carry a thought signature (Gemini 3+)
    reasoning: bool = True
    reasoning_content: Literal["never", "optional", "required"] = "never"
    developer_role: bool = True
    user_after_tool: bool = True
    template: bool = False  # the model's chat template decides what is accepted
    alternation: bool = False  # that template wants user and assistant in turn
    cache_control: bool = False  # Anthropic's marks are passed on
    legacy_bedrock: bool = False  # on Bedrock, an older interface without top-level cache_control
    explicit_cache: bool = True  # Gemini's cachedContents
    phase: bool = False
    retention: tuple[str, ...] = ()  # values of prompt_cache_retention
    diagnostics: bool = False  # cache-miss diagnostics can be asked for
    system_role: bool = True  # messages of role system or developer
    effort: tuple[str, ...] = ()  # levels of reasoning effort; none listed: not known
    media: tuple[str, ...] | None = None  # image, document, audio, video; None: not known


class ModelInfo(msgspec.Struct, frozen=True):
    """One model at one provider, with where the facts are from and when they were true."""

    provider: str
    model: str
    wire: str
    known: bool
    window: int
    max_output: int
    vocabulary: str
    vocabulary_exact: bool
    # Tokens this model counts for one of `vocabulary`, where the real vocabulary is not public.
    token_factor: float
    prices: Prices
    cache: Cache
    features: Features
    as_of: str
    source: str
    note: str = ""

    @property
    def engine(self) -> Engine:
        return self.cache.engine

    @property
    def min_cache_tokens(self) -> int:
        return self.cache.min_tokens

    @property
    def max_breakpoints(self) -> int:
        return self.cache.max_breakpoints

    @property
    def ttl_s(self) -> tuple[int, ...]:
        return self.cache.ttl_s

    @property
    def r(self) -> float:
        """What a cached token costs, relative to an uncached one."""
        return self._relative("read", self.cache.read_x)

    @property
    def w(self) -> float:
        """What writing a token to the cache costs, relative to an uncached one."""
        return self._relative("write_5m", self.cache.write_x)

    @property
    def w_long(self) -> float | None:
        """The same for the longer cache life; None where the price is not known."""
        return self._relative("write_1h", self.cache.write_long_x)

    def _relative(self, name: str, otherwise: _F) -> float | _F:
        first = self.prices.tier(0)
        price: float | None = getattr(first, name)
        return round(price / first.input, 6) if price is not None and first.input else otherwise


def model_info(target: str) -> ModelInfo:
    """Everything known of "provider:model"; a model without a row gets its family's or provider's defaults."""
    name, model = split_target(target)
    return _info(*resolve(name), model)


def known_models() -> list[ModelInfo]:
    """Every model with a row, provider by provider."""
    return [
        model_info(f"{provider}:{model}")
        for provider, rows in data("models")["models"].items()
        for model in rows
    ]


@functools.lru_cache(maxsize=1024)
def _info(provider: str, wire: str, model: str) -> ModelInfo:
    row, defaults = find_row(provider, model), provider_facts(provider)
    facts = {**defaults, **row.facts}
    # Without a model nothing is known of its vocabulary; tokens would take that for "the default one".
    words = vocabulary(model or provider)
    features = {**defaults["features"], **row.facts.get("features", {})}
    return ModelInfo(
        provider=provider,
        model=model,
        wire=wire,
        known=row.known,
        window=facts["window"],
        max_output=facts["max_output"],
        vocabulary=words.name,
        vocabulary_exact=words.exact,
        token_factor=words.factor,
        prices=_prices(provider, model, row),
        cache=_cache(facts),
        features=msgspec.convert(features, Features),
        as_of=data("models")["as_of"],
        source=data("models" if row.known else "providers")["source"],
        note=facts.get("note", ""),
    )


def _cache(facts: dict[str, Any]) -> Cache:
    cache = msgspec.convert(data("caching")["caches"][facts["cache"]], Cache)
    least = facts.get("min_cache_tokens", cache.min_tokens)
    return msgspec.structs.replace(cache, min_tokens=least, unsure=(*cache.unsure, *facts.get("unsure", ())))


def _prices(provider: str, model: str, row: ModelRow) -> Prices:
    table = data("prices")
    found = table["prices"].get(row.owner, {}).get(row.id, {}) if row.known else {}
    prices = msgspec.convert({**found, "as_of": table["as_of"]}, Prices)
    served = provider_facts(provider).get("upstream", {}).get("regional", 1.0)
    factor = prices.regional if row.owner == provider else served
    if factor == 1.0 or not is_regional(model):
        return prices
    return msgspec.structs.replace(prices, tiers=tuple(_times(tier, factor) for tier in prices.tiers))


def _times(tier: Tier, factor: float) -> Tier:
    names = ("input", "read", "write_5m", "write_1h", "output")
    scaled = {name: round(price * factor, 6) for name in names if (price := getattr(tier, name)) is not None}
    return msgspec.structs.replace(tier, **scaled)
