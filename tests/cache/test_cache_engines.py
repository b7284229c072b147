"""The other caches: OpenAI's two, Gemini's two, DeepSeek's units, vLLM's blocks, SGLang's tree; and what holds for all."""

import pytest
from cache_bodies import MINUTE, simulator, split
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import CallError
from quire.providers.simulate import Simulator
from quire.values import JsonObject
from toolbox import many_words

OLD, NEW = "openai-chat:gpt-4o", "openai-chat:gpt-5.6"
HOUR = 60 * MINUTE


def chat(*turns: tuple[str, str], **more: object) -> JsonObject:
    return {"model": "m", "messages": [{"role": role, "content": words} for role, words in turns], **more}


def growing(turns: int, system: int = 1100) -> list[JsonObject]:
    """A thread's requests, each one turn longer."""
    spoken = [("system", many_words(system, "s"))]
    out = []
    for turn in range(turns):
        spoken.append(("user", many_words(96, f"u{turn}-")))
        out.append(chat(*spoken))
        spoken.append(("assistant", many_words(46, f"a{turn}-")))
    return out


def run(target: str, *requests: JsonObject, every_ms: int = MINUTE, **options: object) -> list[tuple[int, ...]]:
    cache = simulator(target, **options)
    return [split(cache.step(n * every_ms, body)) for n, body in enumerate(requests)]


@pytest.mark.proves("openai", "cache simulation")
def test_older_openai_models_read_whole_steps_of_128_from_1024_on() -> None:
    first, second, third = run(OLD, *growing(3))
    assert first == (0, 0, 0, 1204)
    assert second == (1152, 0, 0, 1354 - 1152)
    assert third == (1280, 0, 0, 1504 - 1280)
    short = chat(("user", many_words(1000, "x")))
    assert run(OLD, short, short)[1][0] == 0


def test_older_openai_models_forget_what_is_idle_for_five_minutes_unless_kept_for_a_day() -> None:
    body = growing(1)[0]
    assert [one[0] for one in run(OLD, body, body, every_ms=299_999)] == [0, 1152]
    assert [one[0] for one in run(OLD, body, body, every_ms=300_000)] == [0, 0]
    kept = {**body, "prompt_cache_retention": "24h"}
    assert [one[0] for one in run(OLD, kept, kept, every_ms=23 * HOUR)] == [0, 1152]


def test_another_prompt_cache_key_is_another_cache() -> None:
    for target in (OLD, NEW):
        one, other = ({**growing(1)[0], "prompt_cache_key": key} for key in "ab")
        assert run(target, one, other)[1][0] == 0
        assert run(target, one, one)[1][0] > 0


@pytest.mark.proves("openai", "cache simulation")
def test_newer_openai_models_read_exactly_up_to_a_breakpoint_of_the_conversation() -> None:
    first, second, third = run(NEW, *growing(3))
    assert first == (0, 1204, 0, 0)
    assert second == (1204, 150, 0, 0)
    assert third == (1354, 150, 0, 0)


def test_newer_openai_models_do_not_fall_back_to_an_unmarked_prefix() -> None:
    first = chat(("system", many_words(1100, "s")), ("user", many_words(50, "a")))
    second = chat(("system", many_words(1100, "s")), ("user", many_words(50, "b")))
    assert run(NEW, first, second)[1][0] == 0
    system = [{"type": "text", "text": many_words(1100, "s"), "prompt_cache_breakpoint": {"mode": "explicit"}}]
    asks = [chat(("system", system), ("user", many_words(50, name))) for name in "ab"]
    assert [one[0] for one in run(NEW, *asks)] == [0, 1104]


def test_explicit_mode_without_a_breakpoint_uses_no_cache_and_costs_nothing_more() -> None:
    off = {**growing(1)[0], "prompt_cache_options": {"mode": "explicit"}}
    assert run(NEW, off, off) == [(0, 0, 0, 1204)] * 2
    cache = simulator(NEW)
    cache.step(0, off)
    assert cache.step(1000, off).cause == "marker"


def breakpoints(count: int, size: int = 100) -> JsonObject:
    """A request of `count` explicitly marked user messages behind a long one."""
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    head = {"role": "user", "content": [{"type": "text", "text": many_words(1100, "h")}]}
    texts = [{"type": "text", "text": many_words(size, f"m{n}-"), **mark} for n in range(count)]
    marked = [{"role": "user", "content": [text]} for text in texts]
    return {"messages": [head, *marked], "prompt_cache_options": {"mode": "explicit"}}


def test_a_request_writes_its_latest_four_breakpoints_and_reads_any_of_the_latest_eighty() -> None:
    # Breakpoints 3 to 6 were written, so the request that ends at the second finds nothing.
    assert run(NEW, breakpoints(6), breakpoints(2))[1][0] == 0
    assert run(NEW, breakpoints(6), breakpoints(3))[1][0] == 1104 + 3 * 104
    assert run(NEW, breakpoints(1, 1), breakpoints(80, 1))[1][0] == 1104 + 5
    assert run(NEW, breakpoints(1, 1), breakpoints(81, 1))[1][0] == 0


def test_a_breakpoint_under_1024_tokens_is_not_written() -> None:
    body = chat(("user", many_words(1019, "x")))
    longer = chat(("user", many_words(1020, "x")))
    assert run(NEW, body, body) == [(0, 0, 0, 1023)] * 2
    assert run(NEW, longer, longer) == [(0, 1024, 0, 0), (1024, 0, 0, 0)]


def test_newer_openai_models_keep_for_half_an_hour_or_for_twelve() -> None:
    body = growing(1)[0]
    assert run(NEW, body, body, every_ms=30 * MINUTE)[1][0] == 0
    assert run(NEW, body, body, every_ms=30 * MINUTE - 1)[1][0] == 1204
    response = {"input": many_words(1100, "x"), "prompt_cache_options": {"ttl": "12h"}}
    assert run("openai:gpt-5.6", response, response, every_ms=11 * HOUR) == [(0, 0, 1104, 0), (1104, 0, 0, 0)]


def gemini(*turns: tuple[str, str], **more: object) -> JsonObject:
    return {"contents": [{"role": role, "parts": [{"text": words}]} for role, words in turns], **more}


@pytest.mark.proves("gemini", "cache simulation")
def test_gemini_reads_any_common_prefix_implicitly_and_whole_explicit_caches() -> None:
    target = "gemini:gemini-2.5-flash"
    long = gemini(("user", many_words(3000, "x")))
    longer = gemini(("user", many_words(3000, "x")), ("model", many_words(10, "m")), ("user", many_words(10, "y")))
    assert run(target, long, longer) == [(0, 0, 0, 3004), (3004, 0, 0, 28)]
    made = {**long, "name": "cachedContents/a", "ttl": "3600s"}
    ask = gemini(("user", many_words(6, "q")), cachedContent="cachedContents/a")
    created, read, expired = run(target, made, ask, ask, every_ms=30 * MINUTE)
    assert (created, read) == ((0, 0, 0, 3004), (3004, 0, 0, 10))
    assert expired[0] == 0


def test_an_explicit_gemini_cache_is_paid_for_by_the_hour() -> None:
    cache = simulator("gemini:gemini-2.5-flash")
    cache.step(0, {**gemini(("user", many_words(9996, "x"))), "name": "cachedContents/a", "ttl": "7200s"})
    ask = gemini(("user", many_words(6, "q")), cachedContent="cachedContents/a")
    hour = cache.step(HOUR, ask)
    assert hour.storage_token_hours == pytest.approx(10_000)
    assert hour.money.parts["storage"] == pytest.approx(10_000 * cache.info.prices.storage_per_hour / 1e6)  # type: ignore[operator]
    assert cache.step(HOUR, ask).storage_token_hours == 0


@pytest.mark.proves("deepseek", "cache simulation")
def test_deepseek_reads_whole_stored_units_only() -> None:
    """The two examples of DeepSeek's own guide: A+B then A+B+C hits; A+B, A+C misses, and then A+D hits A."""
    target = "deepseek:deepseek-v4-flash"
    begun = (("system", many_words(50, "a")), ("user", many_words(50, "b")))
    more = chat(*begun, ("assistant", many_words(9, "r")), ("user", "c"))
    # The answer is a unit's end too, so the second turn reads it with its question.
    assert [one[0] for one in run(target, chat(*begun), more)] == [0, 54 + 54 + 13]
    parted = [chat(("system", many_words(50, "a")), ("user", many_words(50, name))) for name in "bcd"]
    reads = [one[0] for one in run(target, *parted)]
    assert reads[:2] == [0, 0]
    assert 54 <= reads[2] <= 58


@pytest.mark.proves("vllm", "cache simulation")
def test_vllm_reads_full_blocks_and_always_computes_the_last_token() -> None:
    body = chat(("user", many_words(60, "x")))
    assert [one[0] for one in run("vllm:m", body, body)] == [0, 48]
    longer = chat(("user", many_words(61, "x")))
    assert [one[0] for one in run("vllm:m", longer, longer)] == [0, 64]
    salted = {**body, "cache_salt": "tenant"}
    assert [one[0] for one in run("vllm:m", body, salted, salted)] == [0, 0, 48]
    assert [one[0] for one in run("vllm:m", {**body, "extra_body": {"cache_salt": "t"}}, body)] == [0, 0]


def test_vllm_keeps_answers() -> None:
    cache = simulator("vllm:m")
    cache.step(0, chat(("user", many_words(60, "x"))))
    cache.answered(many_words(60, "y"))
    longer = chat(("user", many_words(60, "x")), ("assistant", many_words(60, "y")), ("user", "z"))
    assert cache.step(1000, longer).read == 128


@pytest.mark.proves("sglang", "cache simulation")
def test_sglang_reads_any_common_prefix_but_the_last_token() -> None:
    body = chat(("user", many_words(60, "x")))
    assert [one[0] for one in run("sglang:m", body, body)] == [0, 63]
    forked = [chat(("system", many_words(20, "s")), ("user", many_words(20, name))) for name in "abab"]
    assert [one[0] for one in run("sglang:m", *forked)] == [0, 28, 47, 47]
    assert [one[0] for one in run("sglang:m", body, body, page=64)] == [0, 0]


TARGETS = (
    "anthropic:claude-opus-5-5", "bedrock:anthropic.claude-opus-5-5", OLD, NEW, "openai:gpt-5.6",
    "gemini:gemini-2.5-flash", "deepseek:deepseek-v4-flash", "vllm:m", "sglang:m", "llamacpp:m", "xai:grok-4",
    "azure:gpt-5.6", "groq:m", "mistral:mistral-large", "ollama:m", "compatible:m", "openrouter:anthropic/claude-opus-5.5",
)  # fmt: skip

ROLES = st.sampled_from(["user", "assistant"])
TURNS = st.lists(st.tuples(ROLES, st.integers(1, 900)), min_size=1, max_size=8)


def in_format(wire: str, turns: list[tuple[str, int]]) -> JsonObject:
    """The same turns in any wire format, marked at the end where marks exist."""
    texts = [(role, many_words(size, f"t{n}-")) for n, (role, size) in enumerate(turns)]
    last = len(texts) - 1
    match wire:
        case "gemini":
            return gemini(*((role.replace("assistant", "model"), words) for role, words in texts))
        case "bedrock":
            point = [{"cachePoint": {"type": "default"}}]
            return {"messages": [
                {"role": role, "content": [{"text": words}, *(point if n == last else [])]}
                for n, (role, words) in enumerate(texts)
            ]}  # fmt: skip
        case "openai-responses":
            return {"input": [{"role": role, "content": words} for role, words in texts]}
    control = {"cache_control": {"type": "ephemeral"}}
    return {
        "messages": [
            {"role": role, "content": [{"type": "text", "text": words, **(control if n == last else {})}]}
            for n, (role, words) in enumerate(texts)
        ]
    }


@settings(max_examples=20)
@pytest.mark.parametrize("target", TARGETS)
@given(st.lists(st.tuples(TURNS, st.integers(1, 10**7)), min_size=1, max_size=5))
def test_the_shares_of_any_request_add_up_and_never_go_below_nothing(
    target: str, conversation: list[tuple[list[tuple[str, int]], int]]
) -> None:
    cache = simulator(target)
    at, seen = 0, set()
    for turns, pause in conversation:
        at += pause
        body = in_format(cache.info.wire, turns)
        predicted = cache.step(at, body)
        assert predicted.total == cache.count(body)
        assert min(split(predicted)) >= 0
        assert predicted.money.amount_usd is None or predicted.money.amount_usd >= 0
        if not seen:
            assert predicted.read == 0
        seen.add(str(turns))


def test_an_option_that_an_engine_does_not_take_is_an_error() -> None:
    with pytest.raises(CallError, match="anthropic cache"):
        Simulator(TARGETS[0], unheard_of=2)


@pytest.mark.proves("azure bedrock groq mistral ollama compatible openrouter xai", "cache simulation")
@pytest.mark.parametrize("target", TARGETS)
def test_a_growing_thread_reads_more_each_time_at_every_provider(target: str) -> None:
    cache = simulator(target)
    turns = [("user", 4200), ("assistant", 300), ("user", 300), ("assistant", 300), ("user", 300)]
    reads = [cache.step(n * 1000, in_format(cache.info.wire, turns[: 1 + 2 * n])).read for n in range(3)]
    assert 0 == reads[0] < reads[1] < reads[2]
