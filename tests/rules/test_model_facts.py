"""What is known of a model, by any of the names it goes by, and what its tokens cost."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import ROOT
from quire import Usage
from quire.errors import CallError
from quire.providers.models import ModelInfo, data, known_models, providers, resolve, split_target
from quire.providers.simulate import simulate
from quire.providers.usage import cost
from toolbox import model_info

FILES = sorted((ROOT / "src").glob("quire/*/data/*.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_data_files_say_when_and_from_where(file: Path) -> None:
    facts = json.loads(file.read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", facts["as_of"])
    assert facts.get("source") or facts.get("unit")


def test_every_listed_model_has_all_its_facts() -> None:
    listed = known_models()
    assert len(listed) > 90
    for info in listed:
        assert info.known, info.model
        assert info.window >= 1000, info.model
        assert info.max_output > 0, info.model
        assert info.prices.tiers, info.model
        assert 0 <= info.r <= 1 <= info.w, info.model
        assert info.prices.source, info.model


def test_every_listed_model_has_a_price_and_one_that_is_gone_has_nothing_else() -> None:
    for provider, rows in data("prices")["prices"].items():
        listed = set(data("models")["models"][provider])
        assert listed <= set(rows)
        for gone in set(rows) - listed:
            info = model_info(f"{provider}:{gone}")
            assert (info.known, bool(info.prices.tiers)) == (False, True), gone


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("anthropic:claude-opus-4-5-20251101", "anthropic:claude-opus-4-5"),
        ("claude:claude-opus-5-5", "anthropic:claude-opus-5-5"),
        ("openai:gpt-5.5-2026-04-23", "openai:gpt-5.5"),
        ("google:models/gemini-3.8-flash", "gemini:gemini-3.8-flash"),
        ("gemini:publishers/google/models/gemini-2.5-pro", "gemini:gemini-2.5-pro"),
        ("gemini:projects/p/locations/l/publishers/google/models/gemini-2.5-pro", "gemini:gemini-2.5-pro"),
        ("bedrock:anthropic.claude-haiku-4-5-20251001-v1:0", "anthropic:claude-haiku-4-5"),
        ("bedrock:global.anthropic.claude-opus-5-5", "anthropic:claude-opus-5-5"),
        ("bedrock:arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-opus-4-5", "anthropic:claude-opus-4-5"),
        ("openrouter:anthropic/claude-opus-5.5", "anthropic:claude-opus-5-5"),
        ("openrouter:openai/gpt-6-sol:nitro", "openai:gpt-6-sol"),
        ("azure:gpt-6-sol", "openai:gpt-6-sol"),
        ("deepseek:deepseek-flash", "deepseek:deepseek-v4-flash"),
    ],
)
def test_a_model_is_found_by_its_other_names(name: str, listed: str) -> None:
    found, other = model_info(name), model_info(listed)
    assert found.known
    assert (found.window, found.prices, found.min_cache_tokens) == (other.window, other.prices, other.min_cache_tokens)


def test_what_each_claude_accepts_follows_its_generation() -> None:
    def of(model: str) -> tuple[object, ...]:
        has = model_info(f"anthropic:{model}").features
        return (has.prefill, has.late_system, has.thinking, "any" in has.tool_choice, has.thinking_bound)

    assert of("claude-opus-4-5") == (True, False, ("enabled", "disabled"), True, "no")
    assert of("claude-sonnet-4-20250514") == of("claude-opus-4-5")
    assert of("claude-opus-4-6") == (False, False, ("enabled", "disabled", "adaptive"), True, "no")
    assert of("claude-opus-5") == (False, True, ("disabled", "adaptive"), True, "no")
    assert of("claude-haiku-5-5") == (False, True, ("disabled", "adaptive"), True, "by-account")
    assert of("claude-opus-5-5") == (False, True, ("adaptive",), False, "by-account")
    assert of("claude-fable-5-2") == (False, True, ("adaptive",), False, "always")


def test_an_unknown_model_of_a_known_provider_gets_defaults_and_says_so() -> None:
    info = model_info("openai:gpt-7-nova")
    assert (info.known, info.engine, info.prices.tiers) == (False, "openai-breakpoints", ())


def test_openai_is_spoken_in_two_formats() -> None:
    assert model_info("openai:gpt-6-sol").wire == "openai-responses"
    assert model_info("openai-chat:gpt-6-sol").wire == "openai-chat"
    assert model_info("openai-chat:gpt-6-sol").provider == "openai"


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("gpt-6-sol", "Write openai:gpt-6-sol."),
        ("antropic:claude", "Did you mean anthropic?"),
        ("nope:x", "Known: anthropic, "),
        ("nobody:x", "Known: anthropic, "),
        ("x", "Write provider:x."),
        ("anthropic/claude-opus-5-5", "Write anthropic:claude-opus-5-5."),
        ("", "Write provider:model."),
        (":", "Known: anthropic, "),
    ],
)
def test_an_unknown_provider_is_an_error_with_the_next_step(target: str, hint: str) -> None:
    with pytest.raises(CallError) as caught:
        model_info(target)
    assert caught.value.hint.startswith(hint)


@given(provider=st.sampled_from(providers()), model=st.text(max_size=30))
def test_any_model_name_of_a_known_provider_has_an_answer(provider: str, model: str) -> None:
    assert split_target(f"{provider}:{model}") == (provider, model.strip())
    info = model_info(f"{provider}:{model}")
    assert isinstance(info, ModelInfo)
    assert info.provider == resolve(provider)[0]


NEW_YEAR_MS = 1_798_761_600_000  # 2027-01-01T00:00:00Z


@pytest.mark.proves("anthropic", "prices")
def test_every_part_has_its_own_price() -> None:
    money = cost(Usage(1_000_000, 400_000, 200_000, 100_000, 50_000), "anthropic:claude-opus-5-5")
    assert money.parts == pytest.approx({"plain": 1.2, "read": 0.08, "write_5m": 1.0, "write_1h": 0.8, "output": 1.0})
    assert money.amount_usd == pytest.approx(4.08)
    assert (money.known, money.as_of, money.unknown) == (True, "2026-11-15", ())


def test_a_long_prompt_is_billed_in_its_tier_as_a_whole() -> None:
    target = "anthropic:claude-haiku-5-5"
    short, long = cost(Usage(100_000), target), cost(Usage(100_001), target)
    assert short.amount_usd == pytest.approx(0.01)
    assert long.amount_usd == pytest.approx(100_001 * 0.5 / 1e6)


@pytest.mark.proves("openai", "prices")
def test_the_price_of_twelve_hour_writes_is_not_known_and_said() -> None:
    money = cost(Usage(1000, 0, 0, 500, 10), "openai:gpt-6-sol")
    assert (money.amount_usd, money.known, money.unknown) == (None, False, ("write_1h",))
    assert str(money) == "price not known (write_1h)"
    assert cost(Usage(1000, 0, 500, 0, 10), "openai:gpt-6-sol").amount_usd == pytest.approx(0.001 + 0.00125 + 0.0001)


def test_a_model_without_prices_costs_an_unknown_amount_even_for_nothing() -> None:
    assert cost(Usage(), "vllm:qwen3").amount_usd is None
    assert cost(Usage(10), "anthropic:claude-opus-9").known is False
    assert cost(Usage(10, 5), "anthropic:claude-fable-5-2").unknown == ("read",)
    # Where nothing is charged for writes, they cost what input costs.
    written, plain = (cost(Usage(1000, 0, write), "deepseek:deepseek-v4-pro").amount_usd for write in (1000, 0))
    assert written == pytest.approx(plain)


@pytest.mark.proves("gemini", "prices")
@pytest.mark.parametrize(
    ("at", "price"),
    [(-(10**20), 0.75), (-1, 0.75), (0, 0.75), (NEW_YEAR_MS - 1, 0.75), (NEW_YEAR_MS, 1.5), (10**20, 1.5)],
)
def test_announced_prices_hold_from_their_day_on(at: int, price: float) -> None:
    assert cost(Usage(1_000_000), "gemini:gemini-3.8-flash", at).amount_usd == price
    assert cost(Usage(), "gemini:gemini-3.8-flash", at, token_hours=2_000_000).amount_usd == price / 0.75
    # Nobody else charges for it.
    assert cost(Usage(), "anthropic:claude-opus-5-5", at, token_hours=1000).amount_usd == 0
    assert cost(Usage(), "gemini:gemini-9", at, token_hours=1000).amount_usd is None


@pytest.mark.proves("bedrock", "prices")
def test_regional_endpoints_cost_more() -> None:
    home = cost(Usage(1_000_000), "bedrock:anthropic.claude-opus-5-5").amount_usd
    assert home == cost(Usage(1_000_000), "bedrock:global.anthropic.claude-opus-5-5").amount_usd
    for name in (
        "us.anthropic.claude-opus-5-5",
        "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-opus-5-5",
    ):
        assert cost(Usage(1_000_000), f"bedrock:{name}").amount_usd == pytest.approx(1.1 * (home or 0))


MONEY = [
    ("azure:gpt-6-sol", 2.0 + 0.2 + 1.5),  # above 272k tokens
    ("deepseek:deepseek-v4-pro", 0.66 + 0.022 + 0.396),
    ("xai:grok-4.5", 2.0 + 0.3 + 1.2),  # above 200k tokens everything costs double
    ("groq:openai/gpt-oss-120b", 0.075 + 0.0375 + 0.06),
    ("mistral:mistral-large-latest", 0.25 + 0.025 + 0.15),
    ("openrouter:anthropic/claude-opus-5.5", 2.0 + 0.1 + 2.0),
    ("bedrock:amazon.nova-pro-v1:0", 0.4 + 0.1 + 0.32),
    ("gemini:gemini-2.5-pro", 1.25 + 0.125 + 1.5),
]


@pytest.mark.proves("azure deepseek xai groq mistral openrouter", "prices")
@pytest.mark.parametrize(("target", "amount"), MONEY)
def test_half_a_million_plain_half_read_and_a_tenth_out(target: str, amount: float) -> None:
    assert cost(Usage(1_000_000, 500_000, 0, 0, 100_000), target).amount_usd == pytest.approx(amount)


tokens = st.integers(0, 10**6)


@given(info=st.sampled_from(known_models()), read=tokens, short=tokens, plain=tokens, output=tokens)
def test_money_is_the_sum_of_its_parts_and_reading_never_costs_more(info, read, short, plain, output) -> None:
    used = Usage(read + short + plain, read, short, 0, output)
    money = cost(used, info)
    if money.known:
        assert money.amount_usd == pytest.approx(sum(money.parts.values()))
        uncached = cost(Usage(used.input_total, 0, short, 0, output), info)
        assert (money.amount_usd or 0) <= (uncached.amount_usd or 0) + 1e-9


# How the cache matches, its minimum, and what reading and writing a token cost relative to an uncached one.
CACHES = {
    "openai:gpt-6-sol": ("openai-breakpoints", 1024, 0.1, 1.25),
    "openai:gpt-6.1-sol": ("openai-breakpoints", 1024, 0.05, 1.25),
    "openai:gpt-5.5": ("openai-steps", 1024, 0.1, 1.0),
    "openai:gpt-5": ("openai-steps", 1024, 0.1, 1.0),
    "openai:gpt-4.1": ("openai-steps", 1024, 0.25, 1.0),
    "openai:o3": ("openai-steps", 1024, 0.25, 1.0),
    "openai:o1": ("openai-steps", 1024, 0.5, 1.0),
    "openai:o3-mini": ("openai-steps", 1024, 0.5, 1.0),
    "openai:o4-mini": ("openai-steps", 1024, 0.25, 1.0),
    "openai:gpt-4o": ("openai-steps", 1024, 0.5, 1.0),
    "llama.cpp:any": ("slot", 1, 0.0, 1.0),
    "ollama:smollm2": ("slot", 1, 0.0, 1.0),
    "vllm:qwen3": ("blocks", 16, 0.0, 1.0),
    "sglang:qwen3": ("radix", 1, 0.0, 1.0),
    "gemini:gemini-3.8-flash": ("gemini", 4096, 0.1, 1.0),
    "gemini:gemini-3.1-pro-preview": ("gemini", 4096, 0.1, 1.0),
    "gemini:gemini-2.5-pro": ("gemini", 2048, 0.1, 1.0),
    "deepseek:deepseek-v4-flash": ("deepseek-units", 0, 0.02, 1.0),
    "deepseek:deepseek-v4-pro": ("deepseek-units", 0, 0.033, 1.0),
    "xai:grok-4.5": ("openai-steps", 0, 0.15, 1.0),
    "xai:grok-4.7": ("openai-steps", 0, 0.25, 1.0),
    "groq:openai/gpt-oss-120b": ("openai-steps", 0, 0.5, 1.0),
    "mistral:mistral-large-latest": ("openai-steps", 0, 0.1, 1.0),
    "bedrock:amazon.nova-lite-v1:0": ("anthropic", 1024, 0.25, 1.0),
    "bedrock:anthropic.claude-opus-5-5": ("anthropic", 512, 0.05, 1.25),
    "openrouter:anthropic/claude-opus-5.5": ("anthropic", 512, 0.05, 1.25),
}


def test_each_cache_works_its_own_way_from_its_own_minimum_at_its_own_price() -> None:
    found = {target: model_info(target) for target in CACHES}
    told = {target: (info.engine, info.min_cache_tokens, round(info.r, 3), info.w) for target, info in found.items()}
    assert told == CACHES


# minimum, then input, shorter write, longer write, read and output, in USD per million tokens
CLAUDES = {
    "claude-fable-5-1": (512, 10, 12.5, 20, 0.25, 50),
    "claude-mythos-5-1": (512, 10, 12.5, 20, 0.25, 50),
    "claude-fable-5": (512, 10, 12.5, 20, 1, 50),
    "claude-mythos-5": (512, 10, 12.5, 20, 1, 50),
    "claude-opus-5-5": (512, 4, 5, 8, 0.2, 20),
    "claude-opus-5": (512, 5, 6.25, 10, 0.5, 25),
    "claude-opus-4-8": (1024, 5, 6.25, 10, 0.5, 25),
    "claude-opus-4-7": (2048, 5, 6.25, 10, 0.5, 25),
    "claude-opus-4-6": (4096, 5, 6.25, 10, 0.5, 25),
    "claude-opus-4-5": (4096, 5, 6.25, 10, 0.5, 25),
    "claude-sonnet-5-5": (512, 2, 2.5, 4, 0.1, 10),
    "claude-sonnet-5": (1024, 2, 2.5, 4, 0.2, 10),
    "claude-sonnet-4-6": (1024, 3, 3.75, 6, 0.3, 15),
    "claude-sonnet-4-5": (1024, 3, 3.75, 6, 0.3, 15),
    "claude-haiku-5-5": (512, 0.1, 0.125, 0.2, 0.01, 0.5),
    "claude-haiku-4-5": (4096, 1, 1.25, 2, 0.1, 5),
}


def test_the_minimums_and_prices_of_claude_are_those_of_its_documentation() -> None:
    def row(model: str) -> tuple[float | None, ...]:
        info = model_info(f"anthropic:{model}")
        tier = info.prices.tier(0)
        return (info.min_cache_tokens, tier.input, tier.write_5m, tier.write_1h, tier.read, tier.output)

    assert {model: row(model) for model in CLAUDES} == CLAUDES


def test_a_simulated_request_is_paid_at_the_prices_of_its_day() -> None:
    body = {"contents": [{"role": "user", "parts": [{"text": "word " * 100}]}]}
    before, after = simulate([(NEW_YEAR_MS - 1, body), (NEW_YEAR_MS, body)], "gemini:gemini-3.8-flash")
    assert after.money.amount_usd == pytest.approx(2 * (before.money.amount_usd or 0))
