"""Names to rows: which provider a name means, and which row of the dated data files a model's id means.

The data files are constants of the package; nothing else is read.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import msgspec

from quire.errors import CallError, nearest
from quire.values import JsonObject


class ModelRow(msgspec.Struct, frozen=True):
    """A model's row: `owner` is the provider whose table has it (another one for Bedrock, OpenRouter, Azure)."""

    owner: str
    id: str
    facts: JsonObject
    known: bool


@functools.cache
def data(name: str) -> JsonObject:
    """One of the data files that ship with the package: providers, models, prices, caching, rules."""
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
    found = _names().get(name.strip().lower())
    if found is None:
        raise CallError(f"unknown provider {name!r}", hint=_meant(name))
    return found


def _meant(name: str) -> str:
    """The nearest name, where one is near; else the providers, without their other names."""
    near = nearest(name.strip().lower(), _names())
    return f"Did you mean {near}?" if near else f"Known: {', '.join(providers())}."


def split_target(target: str) -> tuple[str, str]:
    """Split at the first colon: "bedrock:amazon.nova-lite-v1:0" -> ("bedrock", "amazon.nova-lite-v1:0")."""
    provider, colon, model = target.partition(":")
    if not colon and provider.strip().lower() not in _names():
        raise CallError(f"{target!r} does not say which provider", hint=_suggestion(target))
    resolve(provider)
    return provider.strip().lower(), model.strip()


def _suggestion(model: str) -> str:
    owners = [owner for owner, rows in data("models")["models"].items() if model in rows]
    return f"Write {owners[0] if owners else 'provider'}:{model}."


# What names a snapshot or a serving variant of a model: -20251101, -2026-04-23, @20251001, -v1:0, :free.
_SNAPSHOT = re.compile(r"(-v\d+(:\d+)?|[-@]\d{8}|-\d{4}-\d{2}-\d{2}|:[a-z]+|-latest)$")
_REGION = re.compile(r"^(us|eu|apac|jp|au|ca|us-gov|global)\.")


def is_regional(model: str) -> bool:
    """Whether a Bedrock id names a regional endpoint, which costs more than the global one."""
    return bool(_REGION.match(model)) and not model.startswith("global.")


def find_row(provider: str, model: str) -> ModelRow:
    """A model's row in its provider's table, else in its maker's, else its family's, else empty."""
    own = _listed(provider, model)
    if own is not None:
        return own
    maker, rest = _maker(provider, model)
    if maker:
        return _served(provider, _listed(maker, rest) or ModelRow(maker, rest, _family(maker, rest), False))
    return ModelRow(provider, model, _family(provider, model), False)


def _listed(provider: str, model: str) -> ModelRow | None:
    rows: dict[str, JsonObject] = data("models")["models"].get(provider, {})
    for spelling in _spellings(model):
        for id, facts in rows.items():
            if spelling == id or spelling in facts.get("aliases", ()):
                return ModelRow(provider, id, facts, True)
    return None


def exists(provider: str, model: str) -> bool:
    """Whether a provider is known to have a model, its facts aside; True where its catalogue is not known in full."""
    others: JsonObject = data("models")["others"]
    if provider not in others or find_row(provider, model).known:
        return True
    return any(re.fullmatch(others[provider], spelling) for spelling in _spellings(model))


def _spellings(model: str) -> list[str]:
    """The ids a model may be listed under, nearest first; region and snapshot fall away."""
    found = [model, _REGION.sub("", model.removeprefix("models/"))]
    while (shorter := _SNAPSHOT.sub("", found[-1])) != found[-1]:
        found.append(shorter)
    return found


def _family(provider: str, model: str) -> JsonObject:
    for family in data("models")["families"].get(provider, ()):
        if model and any(re.search(family["pattern"], one) for one in _spellings(model)):
            return {name: fact for name, fact in family.items() if name != "pattern"}
    return {}


def _maker(provider: str, model: str) -> tuple[str, str]:
    """Who makes a model that this provider serves: anthropic.claude-opus-5-5 -> ("anthropic", "claude-opus-5-5")."""
    upstream = provider_facts(provider).get("upstream", {})
    bare = _REGION.sub("", model)
    for prefix, maker in upstream.get("prefixes", {}).items():
        if bare.startswith(prefix):
            rest = bare.removeprefix(prefix)
            return maker, rest.replace(".", "-") if maker in upstream.get("dotted", ()) else rest
    return "", model


def _served(provider: str, row: ModelRow) -> ModelRow:
    """What of a maker's row holds where another provider serves the model."""
    carries = provider_facts(provider)["upstream"]["carries"]
    maker = provider_facts(row.owner)
    own = ("features", "aliases", "cache")
    facts: JsonObject = {name: fact for name, fact in row.facts.items() if name not in own}
    facts["features"] = {k: v for k, v in row.facts.get("features", {}).items() if k in carries}
    if "cache" in carries:
        facts["cache"] = row.facts.get("cache", maker["cache"])
    return ModelRow(row.owner, row.id, facts, row.known)


# Two names of one model.

_DATED = re.compile(r"(-v\d+(:\d+)?|[-@]20\d{6}|-20\d\d-\d\d-\d\d|[-:]latest)$")
_HOSTED = re.compile(r"^([a-z-]+\.)?(anthropic|amazon|openai|google|models)[./]")


def same_model(one: str, other: str) -> bool:
    """Whether two names mean one model: claude-opus-5-5 and us.anthropic.claude-opus-5-5-20261001-v1:0 do."""
    return not one or not other or model_name(one) == model_name(other)


def model_name(model: str) -> str:
    """A model's name without the host in front, and without date and version of the host behind."""
    name = _HOSTED.sub("", model.lower())
    while name != (shorter := _DATED.sub("", name)):
        name = shorter
    return name
