"""The model's name chooses the vocabulary, whatever stands in front of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.tokens import vocabulary_for
from quire.tokens.counting import BASE, RELATIVE, UNKNOWN, vocabulary

EXACT = {
    "o200k_base": "gpt-4o gpt-4o-mini gpt-4.1 gpt-4.1-nano gpt-5 gpt-5.3-codex gpt-5.5 o1 o3-mini o4-mini gpt-oss-120b "
    "chatgpt-4o-latest ft:gpt-4o-mini-2024-07-18:org::id o200k_base",
    "cl100k_base": "gpt-4 gpt-4-turbo gpt-4-0613 gpt-3.5-turbo gpt-3.5-turbo-0125 gpt-35-turbo text-embedding-3-small",
    "llama3": "llama-3 llama-3.1-8b-instruct llama3.2:1b Llama-3.3-70B llama-v3p1-405b-instruct "
    "hermes-3-llama-3.1-405b deepseek-r1-distill-llama-70b us.meta.llama3-3-70b-instruct-v1:0",
    "llama2": "llama-2-7b-chat llama2:13b",
    "qwen3": "qwen3-235b-a22b qwen3-coder:free qwen2.5-coder:7b Qwen2-72B qwq-32b deepseek-r1-distill-qwen-32b",
    "deepseek_v3": "deepseek-v3 deepseek-v3.2 deepseek-r1 DeepSeek-R1-0528",
    "gemma2": "gemma-2-9b-it gemma2:27b",
    "gemma3": "gemma-3-27b-it gemma3:4b",
    "gemma4": "gemma-4-31b-it",
    "kimi_k2": "kimi-k2-0905-preview Kimi-K2-Instruct",
    "kimi_k3": "kimi-k3",
    "glm4": "glm-4 glm-4.5-air glm-4.6",
    "mistral_v1": "mistral-7b-instruct-v0.2 mixtral-8x7b-instruct",
    "mistral_v2": "mistral-7b-instruct-v0.3 mixtral-8x22b",
    "mistral_v3": "open-mistral-nemo pixtral-12b-2409 mistral-small-2506 devstral-small",
    "phi4": "phi-4 phi4:14b",
}
ESTIMATED = {
    "o200k_base": "claude-opus-5-5 claude-3-5-sonnet-20240620 gpt-6-sol gpt-6.1-sol llama-4-maverick phi-4-mini "
    "grok-4 command-r-plus nova-pro smollm2 gpt-40 o3000 my-gpt-4-clone something-new",
    "gemma3": "gemini-2.5-pro gemini-3-pro-preview",
    "gemma4": "gemini-3.1-pro gemini-3.8-flash",
    "qwen3": "qwen-max qwen3.5-plus",
    "deepseek_v3": "deepseek-chat deepseek-v4",
    "glm4": "glm-5",
    "mistral_v3": "mistral-large-latest codestral-latest",
    "gemma2": "gemma-2b",
}
NAMES = [(name, found, exact) for exact, table in ((True, EXACT), (False, ESTIMATED)) for found in table
         for name in table[found].split()]  # fmt: skip


@pytest.mark.parametrize(("name", "found", "exact"), NAMES)
def test_a_model_has_the_vocabulary_it_was_trained_with(name: str, found: str, exact: bool) -> None:
    assert vocabulary_for(name) == (found, exact)


@given(
    st.sampled_from(NAMES),
    st.sampled_from(["", "openai:", "azure:", "openrouter:", "bedrock:", "together:", "local:", "litellm:groq:"]),
    st.sampled_from(["", "openai/", "anthropic/", "Qwen/", "meta-llama/", "accounts/fireworks/models/"]),
    st.booleans(),
)
def test_provider_vendor_and_case_do_not_matter(
    row: tuple[str, str, bool], provider: str, vendor: str, up: bool
) -> None:
    name, found, exact = row
    # A vocabulary's own name is taken as it is, with nothing in front of it.
    given_name = name if name in RELATIVE else provider + vendor + (name.upper() if up else name)
    assert vocabulary_for(given_name) == (found, exact)


def test_openai_names_agree_with_tiktokens_own_table() -> None:
    from tiktoken.model import MODEL_PREFIX_TO_ENCODING, MODEL_TO_ENCODING

    dated = {prefix.rstrip("-") + "-2030-01-01": name for prefix, name in MODEL_PREFIX_TO_ENCODING.items()}
    ours = {"o200k_base": "o200k_base", "o200k_harmony": "o200k_base", "cl100k_base": "cl100k_base"}
    names = {**MODEL_TO_ENCODING, **dated}
    expected = {name: (ours[theirs], True) for name, theirs in names.items() if theirs in ours}
    assert len(expected) > 25
    assert {name: vocabulary_for(name) for name in expected} == expected


def test_claude_from_opus_4_7_on_makes_about_thirty_per_cent_more_tokens() -> None:
    older = ["claude-3-opus-20240229", "claude-opus-4-20250514", "claude-sonnet-4-5", "claude-opus-4.6", "claude-2.1",
             "anthropic.claude-3-5-sonnet-20240620-v1:0", "claude-instant-1.2"]  # fmt: skip
    newer = ["claude-opus-4-7", "claude-opus-4.7", "claude-fable-5-1", "claude-mythos-5.2", "claude-haiku-5-5", "claude",
             "bedrock:us.anthropic.claude-opus-4-7-v1:0"]  # fmt: skip
    assert {vocabulary(name).factor for name in older} == {1.2}
    assert {vocabulary(name).factor for name in newer} == {1.55}
    assert not any(vocabulary(name).exact for name in older + newer)


@given(st.text(max_size=40))
def test_any_name_has_an_answer(name: str) -> None:
    found = vocabulary(name)
    assert found.name in RELATIVE
    assert found.factor >= 1.0
    assert not found.exact or found.factor == 1.0


def test_an_unknown_name_says_so() -> None:
    assert vocabulary("no-such-model") == UNKNOWN
    assert vocabulary(None).exact
    assert vocabulary("").name in BASE
