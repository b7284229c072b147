"""Counts agree with tiktoken to the token, no input is slow or fatal, and a model's name chooses its vocabulary."""

import importlib.util
import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire import count
from quire.errors import CallError, FormatError
from quire.tokens import vocabularies
from quire.tokens.vocabularies import BASE, RELATIVE, UNKNOWN, vocabulary
from quire.values import Count
from toolbox import assert_in_proportion, counter, run

SIZE = 300_000
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|fim_prefix|>", "<|endofprompt|>", "</s>", "<s>", "[INST]", "<bos>",
           "<|eot_id|>", "<|begin_of_text|>", "<｜User｜>", "<start_of_turn>"]  # fmt: skip
_random = random.Random(20260)
HOSTILE = {
    "spaces": " " * SIZE,
    "spaces and a letter": " " * SIZE + "x",
    "a": "a" * SIZE,
    "newlines": "\n" * SIZE,
    "one CJK sign": "漢" * (SIZE // 3),
    "many CJK signs": "".join(map(chr, _random.choices(range(0x4E00, 0x9FFF), k=SIZE // 3))),
    "random bytes": _random.randbytes(SIZE).decode("utf-8", "replace"),
    "special tokens": "".join(SPECIAL) * (SIZE // len("".join(SPECIAL).encode())),
    "punctuation": "!" * SIZE,
}
# Vocabularies of one library and one kind behave alike: byte pairs by two libraries, and pieces (Spm).
HOSTILE_TO = ["o200k_base", "cl100k_base", "qwen3", "gemma3"]
OTHERS = sorted(RELATIVE.keys() - set(HOSTILE_TO))

runs = st.builds(lambda char, times: char * times, st.characters(exclude_categories=["Cs"]), st.integers(1, 3000))
hostile_text = st.lists(
    st.one_of(
        st.text(), runs, st.sampled_from(SPECIAL), st.sampled_from([" ", "\n", "\r\n", "'s", "'LL", "\u0301", "7"])
    ),
    max_size=12,
).map("".join)


@pytest.fixture(scope="session")
def tiktoken_cache() -> Path:
    """Where a peer keeps tiktoken's vocabulary files; nothing is downloaded."""
    found = importlib.util.find_spec("llama_index.core")
    if found is None or found.origin is None:
        pytest.skip("tiktoken's vocabulary files are not here (llama-index-core brings them)")
    return Path(found.origin).parent / "_static" / "tiktoken_cache"


@pytest.fixture(scope="session", params=sorted(BASE))
def reference(request: pytest.FixtureRequest, tiktoken_cache: Path) -> object:
    import tiktoken

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(tiktoken_cache))
        return tiktoken.get_encoding(request.param)


@given(text=hostile_text)
@example(text=" " * 10_000 + "x")
@example(text="<|endoftext|>")
def test_counts_equal_tiktokens(reference: object, text: str) -> None:
    name = reference.name  # type: ignore[attr-defined]  # tiktoken's Encoding
    expected = len(reference.encode_ordinary(text))  # type: ignore[attr-defined]
    assert counter(name).count(text) == expected


@pytest.mark.parametrize("vocabulary", HOSTILE_TO)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_counted_in_proportion_to_its_length(vocabulary: str, text: str) -> None:
    chosen = counter(vocabulary)
    chosen.count("loaded")

    def check(length: int) -> None:
        assert 0 < chosen.count(text[:length]) <= len(text[:length].encode())

    assert_in_proportion(check, len(text))


@pytest.mark.parametrize("vocabulary", OTHERS)
def test_every_other_vocabulary_takes_hostile_text_too(vocabulary: str) -> None:
    chosen = counter(vocabulary)
    for text in HOSTILE.values():
        assert chosen.count(text[:500]) > 0
        assert_in_proportion(lambda length: chosen.count(text[:length]), 50_000)  # noqa: B023


@pytest.mark.parametrize("vocabulary", RELATIVE)
def test_a_special_tokens_string_is_ordinary_text_nothing_is_nothing_and_half_a_character_an_error(
    vocabulary: str,
) -> None:
    chosen = counter(vocabulary)
    # A real special token would be one; as text it is several.
    assert min(map(chosen.count, SPECIAL)) > 1
    assert chosen.count("") == 0
    with pytest.raises(FormatError, match="lone surrogate") as caught:
        chosen.count("a\ud800b")
    assert "replace" in caught.value.hint


def test_what_is_counted_says_whether_it_is_exact() -> None:
    text = "def add(a, b):\n    return a + b\n" * 20
    assert count(text) == Count(count(text, "gpt-5").tokens, exact=True, vocabulary="o200k_base")
    assert count(text, "gpt-4") == Count(counter("cl100k_base").count(text), exact=True, vocabulary="cl100k_base")
    claude = count(text, "claude-opus-5-5")
    assert claude == Count(round(count(text).tokens * 1.55), exact=False, vocabulary="o200k_base")
    assert count(text, "no-such-model") == Count(round(count(text).tokens * 1.1), exact=False, vocabulary="o200k_base")


def test_without_the_extra_the_count_is_a_stated_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "A sentence of some length, to be counted twice. " * 50
    real = counter("llama-3.3-70b").count(text)
    monkeypatch.setattr(vocabularies, "extra_installed", lambda: False)
    chosen = counter("llama-3.3-70b")
    assert (chosen.exact, chosen.vocabulary) == (False, "o200k_base")
    assert "quire[tokenizers]" in chosen.note
    assert abs(chosen.count(text) - real) < 0.1 * real


def test_a_counter_can_be_shared_between_threads() -> None:
    texts = [f"text {n} " * 200 for n in range(64)]
    for name in ("o200k_base", "qwen3", "gemma3"):
        chosen = counter(name)
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(chosen.count, texts)) == [chosen.count(text) for text in texts]


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


def answer(name: str) -> tuple[str, bool]:
    return vocabulary(name).vocabulary, vocabulary(name).exact


@pytest.mark.parametrize(("name", "found", "exact"), NAMES)
def test_a_model_has_the_vocabulary_it_was_trained_with(name: str, found: str, exact: bool) -> None:
    assert answer(name) == (found, exact)


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
    assert answer(given_name) == (found, exact)


def test_openai_names_agree_with_tiktokens_own_table() -> None:
    from tiktoken.model import MODEL_PREFIX_TO_ENCODING, MODEL_TO_ENCODING

    dated = {prefix.rstrip("-") + "-2030-01-01": name for prefix, name in MODEL_PREFIX_TO_ENCODING.items()}
    ours = {"o200k_base": "o200k_base", "o200k_harmony": "o200k_base", "cl100k_base": "cl100k_base"}
    names = {**MODEL_TO_ENCODING, **dated}
    expected = {name: (ours[theirs], True) for name, theirs in names.items() if theirs in ours}
    assert len(expected) > 25
    assert {name: answer(name) for name in expected} == expected


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
    assert found.vocabulary in RELATIVE
    assert found.factor >= 1.0
    assert not found.exact or found.factor == 1.0


def test_an_unknown_name_says_so() -> None:
    assert vocabulary("no-such-model") == UNKNOWN
    assert vocabulary(None).exact
    assert vocabulary("").vocabulary in BASE


def test_the_command_prints_the_count_and_the_vocabulary(tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("The quick brown fox jumps over the lazy dog.\n" * 100)
    assert run("tokens", file) == f"{count(file.read_text()).tokens:,} tokens (o200k_base)\n"
    estimate = run("tokens", file, "--model", "no-such-model")
    assert estimate.startswith("~")
    assert "estimate" in estimate
    assert "no-such-model is unknown" in estimate
    told = {"tokens": count(file.read_text(), "gpt-4").tokens, "exact": True, "vocabulary": "cl100k_base"}
    told |= {"factor": 1.0, "model": "openai:gpt-4", "bytes": 4500, "note": ""}
    assert json.loads(run("tokens", file, "--model", "openai:gpt-4", "--json")) == told
    assert run("tokens", "-", stdin="Hello, world") == f"{count('Hello, world').tokens} tokens (o200k_base)\n"


def test_what_cannot_be_read_is_an_error_with_a_place(tmp_path: Path) -> None:
    with pytest.raises(CallError, match=r"missing\.txt"):
        run("tokens", tmp_path / "missing.txt")
    (tmp_path / "bad").write_bytes(b"ok\nbad \xff")
    with pytest.raises(FormatError, match="line 2, column 5"):
        run("tokens", tmp_path / "bad")
