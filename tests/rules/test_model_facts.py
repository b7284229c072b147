"""What is known of a model, by any of the names it goes by."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import CallError
from quire.providers.models import ModelInfo, known_models, model_info, providers, resolve, split_target
from quire.providers.registry import data

FILES = ("providers", "models", "prices", "caching", "rules", "shapes")


@pytest.mark.parametrize("name", FILES)
def test_data_files_say_when_and_from_where(name: str) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", data(name)["as_of"])
    assert data(name).get("source") or data(name).get("unit")


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


def test_every_price_belongs_to_a_listed_model() -> None:
    for provider, rows in data("prices")["prices"].items():
        assert set(rows) == set(data("models")["models"][provider])


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("anthropic:claude-opus-4-5-20251101", "anthropic:claude-opus-4-5"),
        ("claude:claude-opus-5-5", "anthropic:claude-opus-5-5"),
        ("openai:gpt-5.5-2026-04-23", "openai:gpt-5.5"),
        ("google:models/gemini-3.8-flash", "gemini:gemini-3.8-flash"),
        ("bedrock:anthropic.claude-haiku-4-5-20251001-v1:0", "anthropic:claude-haiku-4-5"),
        ("bedrock:global.anthropic.claude-opus-5-5", "anthropic:claude-opus-5-5"),
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


@pytest.mark.parametrize(
    ("target", "engine", "minimum"),
    [
        ("anthropic:claude-opus-5-5", "anthropic", 512),
        ("anthropic:claude-opus-4-8", "anthropic", 1024),
        ("anthropic:claude-opus-4-7", "anthropic", 2048),
        ("anthropic:claude-haiku-4-5", "anthropic", 4096),
        ("openai:gpt-6-sol", "openai-breakpoints", 1024),
        ("openai:gpt-5.5", "openai-steps", 1024),
        ("gemini:gemini-3.8-flash", "gemini", 4096),
        ("gemini:gemini-2.5-flash", "gemini", 2048),
        ("deepseek:deepseek-v4-pro", "deepseek-units", 0),
        ("vllm:qwen3", "blocks", 16),
        ("sglang:qwen3", "radix", 1),
        ("llama.cpp:smollm2", "slot", 1),
        ("ollama:smollm2", "slot", 1),
        ("openrouter:anthropic/claude-opus-5.5", "anthropic", 512),
    ],
)
def test_each_cache_works_its_own_way_from_its_own_minimum(target: str, engine: str, minimum: int) -> None:
    info = model_info(target)
    assert (info.engine, info.min_cache_tokens) == (engine, minimum)


def test_what_each_claude_accepts_follows_its_generation() -> None:
    def of(model: str) -> tuple[object, ...]:
        features = model_info(f"anthropic:{model}").features
        return (
            features.prefill,
            features.late_system,
            features.thinking,
            "any" in features.tool_choice,
            features.thinking_bound,
        )

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


@pytest.mark.parametrize("target", ["nobody:x", "x", "", ":", "gpt-6-sol"])
def test_an_unknown_provider_is_an_error_with_the_next_step(target: str) -> None:
    with pytest.raises(CallError) as caught:
        model_info(target)
    assert caught.value.hint


def test_a_bare_model_name_is_answered_with_its_target() -> None:
    with pytest.raises(CallError) as caught:
        split_target("gpt-6-sol")
    assert caught.value.hint == "Write openai:gpt-6-sol."


@given(provider=st.sampled_from(providers()), model=st.text(max_size=30))
def test_any_model_name_of_a_known_provider_has_an_answer(provider: str, model: str) -> None:
    assert split_target(f"{provider}:{model}") == (provider, model.strip())
    info = model_info(f"{provider}:{model}")
    assert isinstance(info, ModelInfo)
    assert info.provider == resolve(provider)[0]


def test_a_provider_is_suggested_only_where_one_is_near() -> None:
    with pytest.raises(CallError) as near:
        model_info("antropic:claude")
    assert near.value.hint == "Did you mean anthropic?"
    with pytest.raises(CallError) as far:
        model_info("nope:x")
    assert far.value.hint.startswith("Known: anthropic, ")
