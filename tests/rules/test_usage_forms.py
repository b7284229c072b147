"""Usage of every provider comes out in one form, whatever is missing from it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import Usage
from quire.providers.models import providers
from quire.providers.usage import usage
from toolbox import SCALARS, json_of

FORMS = [
    ("anthropic",
     {"input_tokens": 10, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 500, "output_tokens": 7,
      "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20},
      "output_tokens_details": {"thinking_tokens": 3}},
     Usage(540, 500, 10, 20, 7, 3)),
    ("anthropic", {"input_tokens": 10, "cache_creation_input_tokens": 30, "output_tokens": 7}, Usage(40, 0, 30, 0, 7)),
    ("anthropic",
     {"input_tokens": 10, "cache_creation_input_tokens": None, "cache_read_input_tokens": None, "cache_creation": None,
      "output_tokens": 7, "iterations": None, "output_tokens_details": None},
     Usage(10, 0, 0, 0, 7)),
    ("openai-chat",
     {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
      "completion_tokens_details": {"reasoning_tokens": 5}},
     Usage(100, 60, 30, 0, 20, 5)),
    ("openai-chat", {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": None}, Usage(100, 0, 0, 0, 20)),
    ("openai",
     {"input_tokens": 100, "output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 5},
      "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30,
                               "cache_write_tokens_details": {"ttl_30m_tokens": 10, "ttl_12h_tokens": 20}}},
     Usage(100, 60, 10, 20, 20, 5)),
    ("openai", {"input_tokens": 100, "output_tokens": 20}, Usage(100, 0, 0, 0, 20)),
    ("azure-chat", {"prompt_tokens": 100, "completion_tokens": 20}, Usage(100, 0, 0, 0, 20)),
    ("gemini",
     {"usageMetadata": {"promptTokenCount": 100, "cachedContentTokenCount": 60, "candidatesTokenCount": 20,
                        "thoughtsTokenCount": 5, "toolUsePromptTokenCount": 8}},
     Usage(108, 60, 0, 0, 25, 5)),
    ("gemini", {"promptTokenCount": 100, "cacheTokensDetails": [{"modality": "TEXT", "tokenCount": 60}], "totalTokenCount": 100},
     Usage(100, 60)),
    ("gemini", {"prompt_token_count": 100, "cached_content_token_count": None, "candidates_token_count": 20}, Usage(100, 0, 0, 0, 20)),
    ("gemini", {"total_input_tokens": 100, "total_cached_tokens": 60, "total_output_tokens": 20, "total_thought_tokens": 5},
     Usage(100, 60, 0, 0, 25, 5)),
    ("bedrock",
     {"inputTokens": 10, "outputTokens": 7, "cacheReadInputTokens": 500, "cacheWriteInputTokens": 30,
      "cacheDetails": [{"ttl": "1h", "inputTokens": 20}, {"ttl": "5m", "inputTokens": 10}]},
     Usage(540, 500, 10, 20, 7)),
    ("bedrock", {"inputTokens": 10, "outputTokens": 7, "cacheWriteInputTokens": 30}, Usage(40, 0, 30, 0, 7)),
    ("bedrock", {"inputTokens": 0, "outputTokens": 0, "cacheWriteInputTokens": 30}, Usage(30, 0, 30)),
    ("anthropic", {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 30}, Usage(30, 30)),
    ("bedrock", {"input_tokens": 10, "output_tokens": 7}, Usage(10, 0, 0, 0, 7)),
    ("bedrock", {"inputTokens": 10, "outputTokens": 7, "cacheReadInputTokens": 500, "totalTokens": 517}, Usage(510, 500, 0, 0, 7)),
    # strands writes OpenAI's and Gemini's counts into Bedrock's fields: their input holds what was read.
    ("bedrock", {"inputTokens": 510, "outputTokens": 7, "cacheReadInputTokens": 500, "totalTokens": 517}, Usage(510, 500, 0, 0, 7)),
    ("deepseek", {"prompt_tokens": 100, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36, "completion_tokens": 20},
     Usage(100, 64, 0, 0, 20)),
    ("deepseek", {"prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36}, Usage(100, 64)),
    ("xai",
     {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 125, "prompt_tokens_details": {"cached_tokens": 64},
      "completion_tokens_details": {"reasoning_tokens": 5}},
     Usage(100, 64, 0, 0, 25, 5)),
    ("xai", {"prompt_tokens": 100, "completion_tokens": 20, "cached_prompt_text_tokens": 64}, Usage(100, 64, 0, 0, 20)),
    ("groq", {"prompt_tokens": 100, "completion_tokens": 20, "dram_cached_tokens": 32, "sram_cached_tokens": 32}, Usage(100, 64, 0, 0, 20)),
    ("groq", {"x_groq": {"usage": {"prompt_tokens": 100, "completion_tokens": 20}}}, Usage(100, 0, 0, 0, 20)),
    ("mistral", {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 64}}, Usage(100, 64, 0, 0, 20)),
    ("openrouter",
     {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 30}, "cache_discount": 0.1},
     Usage(100, 64, 30, 0, 20)),
    ("vllm", {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 96}}, Usage(100, 96, 0, 0, 20)),
    ("sglang", {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": None}, Usage(100, 0, 0, 0, 20)),
    ("llamacpp", {"usage": {"prompt_tokens": 91, "completion_tokens": 4}, "timings": {"prompt_n": 1, "cache_n": 90, "predicted_n": 4}},
     Usage(91, 90, 0, 0, 4)),
    ("llamacpp", {"prompt_tokens": 91, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 90}}, Usage(91, 90, 0, 0, 4)),
    ("llamacpp-anthropic", {"usage": {"cache_read_input_tokens": 90, "input_tokens": 1, "output_tokens": 4}}, Usage(91, 90, 0, 0, 4)),
    ("ollama", {"prompt_tokens": 9, "completion_tokens": 4}, Usage(9, 0, 0, 0, 4)),
    ("compatible", {"prompt_tokens": 9, "completion_tokens": 4}, Usage(9, 0, 0, 0, 4)),
]  # fmt: skip


@pytest.mark.proves(
    "anthropic openai azure gemini bedrock deepseek xai groq mistral openrouter vllm sglang llamacpp ollama compatible",
    "usage",
)
@pytest.mark.parametrize(("provider", "reported", "normal"), FORMS)
def test_usage_comes_out_in_one_form(provider: str, reported: Any, normal: Usage) -> None:
    assert usage(provider, reported) == normal


def test_compaction_is_counted_with_the_reply_it_made_room_for() -> None:
    """The top level leaves the summarising call out; the iterations hold both."""
    reported = {
        "input_tokens": 20, "output_tokens": 7, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 0,
        "iterations": [
            {"type": "compaction", "input_tokens": 5000, "output_tokens": 900, "cache_read_input_tokens": 150_000,
             "cache_creation_input_tokens": 40, "cache_creation": {"ephemeral_1h_input_tokens": 40}},
            {"type": "message", "input_tokens": 20, "output_tokens": 7, "cache_read_input_tokens": 100,
             "cache_creation_input_tokens": 0},
        ],
    }  # fmt: skip
    assert usage("anthropic", reported) == Usage(155_160, 150_100, 0, 40, 907)


fields = st.sampled_from(sorted({name for _, reported, _ in FORMS for name in str(reported).split("'")[1::2]}))
anything = json_of(SCALARS | st.floats() | st.text(max_size=3), fields, 15)


@given(provider=st.sampled_from(providers()), raw=anything)
def test_malformed_usage_counts_as_nothing_and_never_raises(provider: str, raw: Any) -> None:
    counted = usage(provider, raw)
    assert all(
        isinstance(tokens, int) and tokens >= 0 for tokens in (counted.input_total, counted.cache_read, counted.output)
    )


@pytest.mark.xdist_group("sdk")
def test_the_official_sdks_usage_objects_are_understood() -> None:
    anthropic = pytest.importorskip("anthropic.types.beta")
    openai = pytest.importorskip("openai.types")
    genai = pytest.importorskip("google.genai.types")
    creation = anthropic.BetaCacheCreation(ephemeral_1h_input_tokens=1, ephemeral_5m_input_tokens=2)
    plain = {"input_tokens": 10, "output_tokens": 5}
    cached = {"cache_creation_input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation": creation}
    claude = anthropic.BetaUsage(**plain, **cached)
    assert usage("anthropic", claude.model_dump()) == Usage(17, 4, 2, 1, 5)
    details = openai.completion_usage.PromptTokensDetails(cached_tokens=4)
    chat = openai.CompletionUsage(prompt_tokens=10, completion_tokens=5, total_tokens=15, prompt_tokens_details=details)
    assert usage("openai-chat", chat.model_dump()) == Usage(10, 4, 0, 0, 5)
    gemini = genai.GenerateContentResponseUsageMetadata(
        prompt_token_count=10, candidates_token_count=5, cached_content_token_count=4
    )
    assert usage("gemini", gemini.model_dump()) == Usage(10, 4, 0, 0, 5)
