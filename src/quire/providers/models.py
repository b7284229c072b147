"""What is known of each model: window, vocabulary, prices, cache facts, what it accepts.

Numbers live in `data/*.json`, each file with its date; a new model is a row there, not code here.
A model without a row gets its provider's defaults and says `known=False`.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from quire.errors import CallError, nearest
from quire.tokens.vocabularies import vocabulary
from quire.values import JsonObject, read_early

# Names to rows: which provider a name means, and which row of the dated data files a model's id means.
#
# The data files are constants of the package; nothing else is read.


class ModelRow(msgspec.Struct, frozen=True):
    """A model's row: `owner` is the provider whose table has it (another one for Bedrock, OpenRouter, Azure)."""

    owner: str
    id: str
    facts: JsonObject
    known: bool


@functools.cache
def data(name: str) -> JsonObject:
    """One of the data files that ship here: providers, models, prices, caching, rules, shapes, dialects, usage."""
    loaded: JsonObject = msgspec.json.decode((Path(__file__).parent / "data" / f"{name}.json").read_bytes())
    return loaded


def providers() -> tuple[str, ...]:
    """The providers that are known, by their own names."""
    return tuple(data("providers")["providers"])


def provider_facts(provider: str) -> JsonObject:
    """A provider's row of defaults."""
    facts: JsonObject = data("providers")["providers"][provider]
    return facts


@functools.cache
def _names() -> dict[str, tuple[str, str]]:
    """Every name a provider may be called by -> (provider, wire format)."""
    names: dict[str, tuple[str, str]] = {}
    for provider in providers():
        facts = provider_facts(provider)
        names |= dict.fromkeys((provider, *facts["aliases"]), (provider, facts["wire"]))
        names |= {name: (provider, wire) for name, wire in facts["formats"].items()}
    return names


def resolve(name: str) -> tuple[str, str]:
    """A provider or wire format by name: "openai-chat" -> ("openai", "openai-chat")."""
    provider_and_wire = _names().get(name.strip().lower())
    if provider_and_wire is None:
        near = nearest(name.strip().lower(), _names())
        names = ", ".join(providers())
        hint = f"Known: {names}; any other server that speaks OpenAI's Chat format is compatible:MODEL."
        raise CallError(f"unknown provider {name!r}", hint=f"Did you mean {near}?" if near else hint)
    return provider_and_wire


def format_name(provider: str, wire: str) -> str:
    """A provider's name in a wire format: ("openai", "openai-chat") -> "openai-chat"; its own where it has no other."""
    facts = provider_facts(provider)
    if wire == facts["wire"]:
        return provider
    return next((name for name, format in facts["formats"].items() if format == wire), provider)


def is_embedded(target: str) -> bool:
    """Whether a target means the model that Quire starts itself."""
    provider, model = split_target(target)
    embedded: dict[str, str] = provider_facts(resolve(provider)[0]).get("embedded", {})
    return provider == embedded.get("name") or model == embedded.get("model")


def split_target(target: str) -> tuple[str, str]:
    """Split at the first colon: "bedrock:amazon.nova-lite-v1:0" -> ("bedrock", "amazon.nova-lite-v1:0")."""
    if not isinstance(target, str):
        raise CallError(f"{target!r} names no model", hint='Write "provider:model".')
    provider, colon, model = target.partition(":")
    if not colon and provider.strip().lower() not in _names():
        owners = [owner for owner, rows in data("models")["models"].items() if target in rows]
        named = f"{owners[0] if owners else 'provider'}:{target or 'model'}"
        if target.partition("/")[0].lower() in _names():
            named = target.replace("/", ":", 1)
        raise CallError(f"{target!r} does not say which provider", hint=f"Write {named}.")
    resolve(provider)
    return provider.strip().lower(), model.strip()


def named_target(target: str) -> str:
    """A target as it came, if it names a model; a llama.cpp server answers with the one it has."""
    provider, model = split_target(target)
    if not model and not provider_facts(resolve(provider)[0]).get("one_model"):
        raise CallError(
            f"{target!r} names no model", hint=f"Write {provider}:MODEL; `quire models {provider}` lists them."
        )
    return target


# What names a snapshot or a serving variant of a model: -20251101, -2026-04-23, @20251001, -v1:0, :free.
_SNAPSHOT = re.compile(r"(-v\d+(:\d+)?|[-@]\d{8}|-\d{4}-\d{2}-\d{2}|:[a-z]+|-latest)$")
_PLACE = re.compile(r"^(arn:[^/]+/|(.*publishers/google/)?models/)?((us|eu|apac|jp|au|ca|us-gov|global)\.)?")


def find_row(provider: str, model: str) -> ModelRow:
    """A model's row in its provider's table, else in its maker's, else its family's, else empty."""
    if row := _own_row(provider, model):
        return row
    maker, rest = _maker(provider, model)
    if maker:
        return _row_elsewhere(provider, _own_row(maker, rest) or ModelRow(maker, rest, _family(maker, rest), False))
    return ModelRow(provider, model, _family(provider, model), False)


def _own_row(provider: str, model: str) -> ModelRow | None:
    rows: dict[str, JsonObject] = data("models")["models"].get(provider, {})
    for spelling in _spellings(model):
        for id, facts in rows.items():
            if spelling == id or spelling in facts.get("aliases", ()):
                return ModelRow(provider, id, facts, True)
    return None


def exists(provider: str, model: str) -> bool:
    """Whether a provider may have a model: its table names it, or the table is not complete."""
    others: JsonObject = data("models")["others"]
    known = provider not in others or find_row(provider, model).known
    return known or any(re.fullmatch(others[provider], spelling) for spelling in _spellings(model))


def _spellings(model: str) -> list[str]:
    """The ids a model may be listed under, nearest first; place (models/, arn:…/, us.) and snapshot fall away."""
    ids = [model, _PLACE.sub("", model)]
    while (shorter := _SNAPSHOT.sub("", ids[-1])) != ids[-1]:
        ids.append(shorter)
    return ids


def _family(provider: str, model: str) -> JsonObject:
    for family in data("models")["families"].get(provider, ()):
        if model and any(re.search(family["pattern"], spelling) for spelling in _spellings(model)):
            return {name: fact for name, fact in family.items() if name != "pattern"}
    return {}


def _maker(provider: str, model: str) -> tuple[str, str]:
    """Who makes a model that this provider serves: anthropic.claude-opus-5-5 -> ("anthropic", "claude-opus-5-5")."""
    upstream = provider_facts(provider).get("upstream", {})
    bare = _PLACE.sub("", model)
    for prefix, maker in upstream.get("prefixes", {}).items():
        if bare.startswith(prefix):
            rest = bare.removeprefix(prefix)
            return maker, rest.replace(".", "-") if maker in upstream.get("dotted", ()) else rest
    return "", model


def _row_elsewhere(provider: str, row: ModelRow) -> ModelRow:
    """The facts of a maker's row that still hold where another provider serves the model."""
    carries = provider_facts(provider)["upstream"]["carries"]
    maker = provider_facts(row.owner)
    excluded = ("features", "aliases", "cache")
    facts: JsonObject = {name: fact for name, fact in row.facts.items() if name not in excluded}
    facts["features"] = {k: v for k, v in row.facts.get("features", {}).items() if k in carries}
    if "cache" in carries:
        facts["cache"] = row.facts.get("cache", maker["cache"])
    return ModelRow(row.owner, row.id, facts, row.known)


# Two names of one model.

_DATED = re.compile(r"(-v\d+(:\d+)?|[-@]20\d{6}|-20\d\d-\d\d-\d\d|[-:]latest)$")
_HOSTED = re.compile(r"^([a-z-]+\.)?(anthropic|amazon|openai|google|models)[./]")


def same_model(name: str, other: str) -> bool:
    """Whether two names mean one model: claude-opus-5-5 and us.anthropic.claude-opus-5-5-20261001-v1:0 do."""
    return not name or not other or model_name(name) == model_name(other)


def model_name(model: str) -> str:
    """A model's name without the host in front, and without date and version of the host behind."""
    name = _HOSTED.sub("", _PLACE.sub("", model.lower()))
    while name != (shorter := _DATED.sub("", name)):
        name = shorter
    return name


_F = TypeVar("_F", float, float | None)
Engine = Literal[
    "anthropic", "openai-breakpoints", "openai-steps", "gemini", "deepseek-units", "blocks", "radix", "slot", "none"
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


@read_early
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
        return msgspec.structs.replace(self, tiers=last.tiers, storage_per_hour=last.storage_per_hour, changes=())

    def tier(self, prompt_tokens: int) -> Tier:
        """The prices of a prompt of this length; the whole prompt is billed in one tier."""
        fitting = [tier for tier in self.tiers if prompt_tokens > tier.above or tier.above == 0]
        return fitting[-1] if fitting else Tier()


@read_early
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
    key: str = ""
    unsure: tuple[str, ...] = ()


@read_early
class Features(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a model's requests may hold."""

    late_system: bool = False  # an instruction in the middle of the conversation
    late_tools: bool = False  # tools defined by an appended item
    late_effort: bool = False  # reasoning effort changed by an appended item
    prefill: bool = False  # a last assistant message to be continued
    blank_prefill: bool = True  # it may end in white space
    thinking: tuple[str, ...] = ()  # values of thinking.type
    tool_choice: tuple[str, ...] = ("auto", "any", "tool", "none")
    thinking_bound: Literal["no", "by-account", "always"] = "no"  # thinking refuses a changed prefix
    sampling: bool = False  # temperature, top_p, top_k
    images: bool = False
    signatures: bool = False  # function calls carry a thought signature (Gemini 3+)
    thinking_level: bool = False  # thinking goes by a level instead of a budget (Gemini 3+)
    result_media: bool = False  # what a function gives may hold pictures and documents (Gemini 3+)
    reasoning: bool = True
    reasoning_content: Literal["never", "optional", "required"] = "never"
    developer_role: bool = True
    user_after_tool: bool = True
    template: bool = False  # the model's chat template decides what is accepted
    alternation: bool = False  # that template wants user and assistant in turn
    legacy_bedrock: bool = False  # on Bedrock, an older interface without top-level cache_control
    explicit_cache: bool = True  # Gemini's cachedContents
    retention: tuple[str, ...] = ()  # values of prompt_cache_retention
    diagnostics: bool = False  # cache-miss diagnostics can be asked for
    system_role: bool = True  # messages of role system or developer
    effort: tuple[str, ...] = ()  # levels of reasoning effort; none listed: not known
    media: tuple[str, ...] | None = None  # image, document, audio, video; None: not known
    strict: bool = False  # OpenAI's own servers: what their types do not list is refused
    own_names: str = ""  # how the provider's own models are called, where others speak its format by its name
    signed_thinking: bool = False  # thinking goes back with its signature
    on_bedrock: bool = False  # served by Amazon Bedrock


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
    return [model_info(f"{provider}:{model}") for provider, rows in data("models")["models"].items() for model in rows]


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
        vocabulary=words.vocabulary,
        vocabulary_exact=words.exact,
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
    of_owner = table["prices"].get(row.owner, {})
    # Retired models have prices alone, for logs of their time.
    price_row: JsonObject = next((of_owner[id] for id in _spellings(row.id) if id in of_owner), {})
    prices = msgspec.convert({**price_row, "as_of": table["as_of"]}, Prices)
    served = provider_facts(provider).get("upstream", {}).get("regional", 1.0)
    factor = prices.regional if row.owner == provider else served
    # On Bedrock a regional endpoint costs more than the global one.
    place = _PLACE.match(model)
    if factor == 1.0 or not row.known or place is None or place[4] in (None, "global"):
        return prices
    return msgspec.structs.replace(prices, tiers=tuple(_times(tier, factor) for tier in prices.tiers))


def _times(tier: Tier, factor: float) -> Tier:
    names = ("input", "read", "write_5m", "write_1h", "output")
    scaled = {name: round(price * factor, 6) for name in names if (price := getattr(tier, name)) is not None}
    return msgspec.structs.replace(tier, **scaled)
