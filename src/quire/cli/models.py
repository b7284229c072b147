"""`quire models`: what is known of each model, with the date it was known."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import click
import msgspec

from quire.cli.common import json_option, print_json, print_table
from quire.errors import NotFound
from quire.providers.models import ModelInfo, known_models, model_info, resolve


@click.command()
@click.argument("target", required=False)
@json_option
def models(target: str | None, as_json: bool) -> None:
    """What is known of each model: window, vocabulary, prices, cache minimum, with dates.

    TARGET is a provider, a provider:model, or a part of a model's name. Prices are USD per million
    tokens; "-" is not known, "~" an estimate, "+" costs more for long prompts.

    \b
    Examples:
      quire models
      quire models anthropic
      quire models anthropic:claude-opus-5-5 --json
    """
    chosen = _chosen(target)
    if as_json:
        print_json([_json(info) for info in chosen])
        return
    for provider, rows in groupby(chosen, key=lambda info: info.provider):
        print_table(_COLUMNS, [_row(info) for info in rows], title=provider)
        click.echo()
    dates = ", ".join(dict.fromkeys(info.as_of for info in chosen))
    click.echo(
        f"{len(chosen)} model{'s' * (len(chosen) != 1)}; prices in USD per million tokens, as of {dates}"
    )


def _chosen(target: str | None) -> list[ModelInfo]:
    if not target:
        return known_models()
    if ":" in target:
        return [model_info(target)]
    listed = known_models()
    found = [info for info in listed if info.provider == _provider(target)]
    found = found or [info for info in listed if target.lower() in info.model.lower()]
    if not found:
        raise NotFound(
            f"no model known by {target!r}", hint="`quire models` lists all; provider:model shows defaults."
        )
    return found


def _provider(name: str) -> str:
    listed = {info.provider for info in known_models()}
    return resolve(name)[0] if name.lower() in listed else name


_COLUMNS = ("model", "window", "vocabulary", "minimum", "in", "read", "write", "out")


def _row(info: ModelInfo) -> tuple[object, ...]:
    """One line: "~" is an estimate, "+" a higher price for long prompts, "/" a longer cache life."""
    prices = info.prices.tier(0)
    more = "+" if len(info.prices.tiers) > 1 else ""
    writes = [price for price in (prices.write_5m, prices.write_1h) if price is not None]
    return (
        info.model + ("" if info.known else " (defaults)"),
        _size(info.window),
        info.vocabulary.removesuffix("_base")
        if info.vocabulary_exact
        else f"~{info.vocabulary.removesuffix('_base')}",
        ("~" if "min_tokens" in info.cache.unsure else "") + str(info.min_cache_tokens),
        _price(prices.input) + more,
        _price(prices.read),
        "/".join(map(_price, writes)) or "-",
        _price(prices.output) + more,
    )


def _size(tokens: int) -> str:
    return f"{tokens // 1000:,}k"


def _price(price: float | None) -> str:
    return "-" if price is None else f"{price:g}"


def _json(info: ModelInfo) -> dict[str, Any]:
    """Every fact, and the two ratios that caching policies use."""
    facts: dict[str, Any] = msgspec.to_builtins(info)
    return {
        **facts,
        "engine": info.engine,
        "read_ratio": info.r,
        "write_ratio": info.w,
        "write_long_ratio": info.w_long,
    }
