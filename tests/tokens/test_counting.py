"""Counts agree with tiktoken to the token, and no input is slow or fatal."""

import importlib.util
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from quire.errors import FormatError
from quire.tokens import count, counter, counting
from quire.tokens.counting import BASE, RELATIVE
from quire.values import Count

MEGABYTE = 1_000_000
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|fim_prefix|>", "<|endofprompt|>", "</s>", "<s>", "[INST]", "<bos>",
           "<|eot_id|>", "<|begin_of_text|>", "<｜User｜>", "<start_of_turn>"]  # fmt: skip
_random = random.Random(20260)
HOSTILE = {
    "spaces": " " * MEGABYTE,
    "spaces and a letter": " " * MEGABYTE + "x",
    "a": "a" * MEGABYTE,
    "newlines": "\n" * MEGABYTE,
    "one CJK sign": "漢" * (MEGABYTE // 3),
    "many CJK signs": "".join(chr(_random.randrange(0x4E00, 0x9FFF)) for _ in range(MEGABYTE // 3)),
    "random bytes": _random.randbytes(MEGABYTE).decode("utf-8", "replace"),
    "special tokens": "".join(SPECIAL) * (MEGABYTE // len("".join(SPECIAL).encode())),
    "punctuation": "!" * MEGABYTE,
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


@settings(max_examples=300)
@given(text=hostile_text)
@example(text=" " * 10_000 + "x")
@example(text="<|endoftext|>")
def test_counts_equal_tiktokens(reference: object, text: str) -> None:
    name = reference.name  # type: ignore[attr-defined]  # tiktoken's Encoding
    expected = len(reference.encode_ordinary(text))  # type: ignore[attr-defined]
    assert counter(name).count(text) == expected


@pytest.mark.parametrize("vocabulary", HOSTILE_TO)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_megabyte_is_counted_in_seconds(vocabulary: str, text: str) -> None:
    chosen = counter(vocabulary)
    chosen.count("loaded")
    start = time.process_time()
    assert 0 < chosen.count(text) <= len(text.encode())
    # Quadratic work on a megabyte takes hours; the bound only has to tell that from a busy machine.
    assert time.process_time() - start < 20


@pytest.mark.parametrize("vocabulary", OTHERS)
def test_every_other_vocabulary_takes_hostile_text_too(vocabulary: str) -> None:
    chosen = counter(vocabulary)
    start = time.process_time()
    for text in HOSTILE.values():
        assert chosen.count(text[:50_000]) > 0
    assert time.process_time() - start < 20


@pytest.mark.parametrize("vocabulary", RELATIVE)
def test_a_special_tokens_string_is_ordinary_text(vocabulary: str) -> None:
    chosen = counter(vocabulary)
    for special in SPECIAL:
        # A real special token would be one; as text it is several.
        assert chosen.count(special) > 1


@pytest.mark.parametrize("vocabulary", RELATIVE)
def test_a_lone_surrogate_is_an_error_with_a_hint(vocabulary: str) -> None:
    with pytest.raises(FormatError, match="lone surrogate") as caught:
        counter(vocabulary).count("a\ud800b")
    assert "replace" in caught.value.hint


@pytest.mark.parametrize("vocabulary", RELATIVE)
def test_nothing_is_nothing(vocabulary: str) -> None:
    assert counter(vocabulary).count("") == 0


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
    monkeypatch.setattr(counting, "extra_installed", lambda: False)
    chosen = counter("llama-3.3-70b")
    assert (chosen.exact, chosen.vocabulary) == (False, "o200k_base")
    assert "quire[tokenizers]" in chosen.note
    assert abs(chosen.count(text) - real) < 0.1 * real


def test_a_counter_can_be_shared_between_threads() -> None:
    texts = [f"text {n} " * 200 for n in range(64)]
    for vocabulary in ("o200k_base", "qwen3", "gemma3"):
        chosen = counter(vocabulary)
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(chosen.count, texts)) == [chosen.count(text) for text in texts]
