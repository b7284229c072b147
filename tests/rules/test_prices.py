"""Money from usage: by part, by tier, by day; unknown prices say so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.providers.models import known_models, model_info
from quire.providers.simulate import simulate
from quire.providers.usage import cost, storage
from quire.values import Usage

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


def test_writes_cost_what_input_costs_where_nothing_is_charged_for_them() -> None:
    with_write = cost(Usage(1000, 0, 1000), "deepseek:deepseek-v4-pro")
    assert with_write.amount_usd == pytest.approx(cost(Usage(1000), "deepseek:deepseek-v4-pro").amount_usd)


@pytest.mark.proves("gemini", "prices")
def test_announced_prices_hold_from_their_day_on() -> None:
    before, after = (
        cost(Usage(1_000_000), "gemini:gemini-3.8-flash", NEW_YEAR_MS - 1),
        cost(Usage(1_000_000), "gemini:gemini-3.8-flash", NEW_YEAR_MS),
    )
    assert (before.amount_usd, after.amount_usd) == (0.75, 1.5)
    kept = storage(1_000_000, 2, "gemini:gemini-3.8-flash", NEW_YEAR_MS - 1)
    assert (kept.amount_usd, storage(1_000_000, 2, "gemini:gemini-3.8-flash", NEW_YEAR_MS).amount_usd) == (1.0, 2.0)


def test_storage_is_free_except_in_explicit_caches() -> None:
    assert storage(1000, 1, "anthropic:claude-opus-5-5").amount_usd == 0
    assert storage(1000, 1, "gemini:gemini-9").amount_usd is None


@pytest.mark.proves("bedrock", "prices")
def test_regional_endpoints_cost_more() -> None:
    home = cost(Usage(1_000_000), "bedrock:anthropic.claude-opus-5-5").amount_usd
    assert home == cost(Usage(1_000_000), "bedrock:global.anthropic.claude-opus-5-5").amount_usd
    assert cost(Usage(1_000_000), "bedrock:us.anthropic.claude-opus-5-5").amount_usd == pytest.approx(1.1 * (home or 0))


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
    money = cost(Usage(1_000_000, 500_000, 0, 0, 100_000), target)
    assert money.amount_usd == pytest.approx(amount)


tokens = st.integers(0, 10**6)


@given(info=st.sampled_from(known_models()), read=tokens, short=tokens, plain=tokens, output=tokens)
def test_money_is_the_sum_of_its_parts_and_reading_never_costs_more(info, read, short, plain, output) -> None:
    used = Usage(read + short + plain, read, short, 0, output)
    money = cost(used, info)
    if money.known:
        assert money.amount_usd == pytest.approx(sum(money.parts.values()))
        uncached = cost(Usage(used.input_total, 0, short, 0, output), info)
        assert (money.amount_usd or 0) <= (uncached.amount_usd or 0) + 1e-9


def test_relative_prices_are_those_of_the_table() -> None:
    expected = {
        "anthropic:claude-opus-5-5": (0.05, 1.25, 2.0),
        "anthropic:claude-fable-5-1": (0.025, 1.25, 2.0),
        "anthropic:claude-haiku-4-5": (0.1, 1.25, 2.0),
        "openai:gpt-6.1-sol": (0.05, 1.25, None),
        "openai:gpt-4o": (0.5, 1.0, 1.0),
        "openai:o4-mini": (0.25, 1.0, 1.0),
        "deepseek:deepseek-v4-flash": (0.02, 1.0, 1.0),
        "bedrock:amazon.nova-lite-v1:0": (0.25, 1.0, 1.0),
        "llamacpp:any": (0.0, 1.0, 1.0),
    }
    assert {target: (i.r, i.w, i.w_long) for target in expected if (i := model_info(target))} == expected


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


RATIOS = {
    "openai:gpt-6-sol": (1024, 0.1, 1.25),
    "openai:gpt-6.1-sol": (1024, 0.05, 1.25),
    "openai:gpt-5": (1024, 0.1, 1.0),
    "openai:gpt-4.1": (1024, 0.25, 1.0),
    "openai:o3": (1024, 0.25, 1.0),
    "openai:o1": (1024, 0.5, 1.0),
    "openai:o3-mini": (1024, 0.5, 1.0),
    "gemini:gemini-3.8-flash": (4096, 0.1, 1.0),
    "gemini:gemini-3.1-pro-preview": (4096, 0.1, 1.0),
    "gemini:gemini-2.5-pro": (2048, 0.1, 1.0),
    "deepseek:deepseek-v4-flash": (0, 0.02, 1.0),
    "deepseek:deepseek-v4-pro": (0, 0.033, 1.0),
    "xai:grok-4.5": (0, 0.15, 1.0),
    "xai:grok-4.7": (0, 0.25, 1.0),
    "groq:openai/gpt-oss-120b": (0, 0.5, 1.0),
    "mistral:mistral-large-latest": (0, 0.1, 1.0),
    "bedrock:amazon.nova-lite-v1:0": (1024, 0.25, 1.0),
    "bedrock:anthropic.claude-opus-5-5": (512, 0.05, 1.25),
}


def test_minimums_and_ratios_of_each_provider_are_those_of_the_summary() -> None:
    found = {target: model_info(target) for target in RATIOS}
    assert {target: (info.min_cache_tokens, round(info.r, 3), info.w) for target, info in found.items()} == RATIOS


def test_a_simulated_request_is_paid_at_the_prices_of_its_day() -> None:
    body = {"contents": [{"role": "user", "parts": [{"text": "word " * 100}]}]}
    before, after = simulate([(NEW_YEAR_MS - 1, body), (NEW_YEAR_MS, body)], "gemini:gemini-3.8-flash")
    assert after.money.amount_usd == pytest.approx(2 * (before.money.amount_usd or 0))


@pytest.mark.parametrize("at", [-(10**20), -1, 0, 10**20])
def test_no_moment_is_too_far_to_have_a_price(at: int) -> None:
    assert cost(Usage(1_000_000), "gemini:gemini-3.8-flash", at).amount_usd in (0.75, 1.5)
