"""Going on with a thread is the same as beginning anew: what is kept from request to request changes no result."""

import copy
from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec
import pytest
from cache_bodies import simulator
from cache_series import series
from hypothesis import given
from hypothesis import strategies as st

from quire.providers.cache_marks import Pauses
from quire.providers.simulate import Block, Simulator, blocks
from quire.providers.simulate.blocks import Reader
from quire.providers.simulate.engine_caches import Node, RadixTree
from quire.values import JsonObject
from toolbox import fewer

TARGETS = (
    "anthropic:claude-opus-5-5", "anthropic:claude-opus-4-1", "bedrock:anthropic.claude-opus-4-8", "openai-chat:gpt-5",
    "openai-chat:gpt-5.6", "openai-responses:gpt-5", "openai-responses:gpt-5.6", "gemini:gemini-3.8-flash",
    "deepseek:deepseek-chat", "vllm:m", "sglang:m", "llamacpp:m", "ollama:m", "compatible:m",
)  # fmt: skip


class Forgetful(Reader):
    """Reads every body as if it were the first, and no block is an object that was seen before."""

    def read(self, body: JsonObject) -> list[Block]:
        return [msgspec.structs.replace(block) for block in blocks(copy.deepcopy(body), self.wire)]

    def __init__(self, wire: str) -> None:
        self.wire = wire


@fewer(10)
@pytest.mark.parametrize("target", TARGETS)
@given(st.data())
def test_every_engine_predicts_the_same_going_on_and_beginning_anew(target: str, data: st.DataObject) -> None:
    keeping, anew = simulator(target), simulator(target)
    anew._reader = Forgetful(anew.info.wire)
    at_ms = 0
    for body in series(data, keeping.info.wire):
        at_ms += data.draw(st.sampled_from([0, 1000, 1000, 400_000]))
        assert keeping.step(at_ms, body) == anew.step(at_ms, body)


@given(st.lists(st.lists(st.integers(0, 50), max_size=6), max_size=6), st.booleans())
def test_pauses_that_go_on_are_those_of_all_times(parts: list[list[int]], in_order: bool) -> None:
    pauses, times = Pauses(), list[int]()
    for part in parts:
        times += sorted(part) if in_order else part
        times = sorted(times) if in_order else times
        pauses.go_on(times)
        lengths = [later - earlier for earlier, later in pairwise(sorted(times))]
        assert len(pauses) == len(lengths)
        assert pauses.longest_ms == max(lengths, default=0)
        assert pauses.between(3, 9) == sum(3 <= one < 9 for one in lengths)


prompts = st.lists(st.integers(0, 2), max_size=8).map(lambda ids: array("i", ids))


@given(st.lists(st.tuples(prompts, st.booleans()), max_size=12), st.integers(1, 12))
def test_a_tree_finds_the_longest_common_prefix_whatever_was_looked_up_before(
    steps: "list[tuple[array[int], bool]]", fresh_ms: int
) -> None:
    tree = RadixTree()
    stored: list[tuple[array[int], int]] = []
    for at_ms, (ids, keep) in enumerate(steps, 1):
        assert tree.match(ids) == _longest(ids, (one for one, _ in stored))
        used = [one for one, ms in stored if ms >= fresh_ms]
        assert tree.match(ids, lambda node: _fresh(node, fresh_ms)) == _longest(ids, used)
        if keep:
            tree.insert(ids, at_ms)
            stored.append((ids, at_ms))
    # Shared beginnings are stored once.
    assert tree.size == len({tuple(ids[: n + 1]) for ids, _ in stored for n in range(len(ids))})


def _fresh(node: Node, since_ms: int) -> bool:
    return node.used_ms >= since_ms


def _longest(ids: Sequence[int], stored: Iterable[Sequence[int]]) -> int:
    return max((_common(ids, one) for one in stored), default=0)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


asked = st.lists(st.tuples(prompts.map(list), st.lists(st.integers(0, 2), max_size=4)), max_size=10)


def _by_ids(target: str, **options: int) -> Simulator:
    return Simulator(target, prompt_ids=lambda body: body["ids"], **options)


@pytest.mark.parametrize(("target", "options"), [("vllm:m", {"size": 2}), ("sglang:m", {"page": 1})])
@given(asked)
def test_pages_are_read_as_far_as_they_are_stored(
    target: str, options: dict[str, int], thread: list[tuple[list[int], list[int]]]
) -> None:
    """Against the rule itself: each full page by all ids up to its end."""
    (size,), stored = options.values(), set[tuple[int, ...]]()
    cache = _by_ids(target, **options)

    def store(ids: list[int]) -> None:
        stored.update(tuple(ids[:end]) for end in range(size, len(ids) + 1, size))

    for at_ms, (ids, answer) in enumerate(thread):
        ends = range(size, len(ids), size)
        read = next((end - size for end in ends if tuple(ids[:end]) not in stored), len(ends) * size)
        assert cache.step(at_ms, {"ids": ids}).read == read
        store(ids)
        cache.answered(answer)
        store(ids + answer[:-1])


@given(asked)
def test_units_are_read_whole_wherever_one_was_stored(thread: list[tuple[list[int], list[int]]]) -> None:
    """Against the rule itself: ends of prompts and answers, and common beginnings."""
    cache = _by_ids("deepseek:deepseek-chat")
    units, earlier = set[tuple[int, ...]](), list[list[int]]()
    for at_ms, (ids, answer) in enumerate(thread):
        read = max((len(one) for one in units if tuple(ids[: len(one)]) == one), default=0)
        assert cache.step(at_ms, {"ids": ids}).read == read
        common = max((_common(ids, one) for one in earlier), default=0)
        cache.answered(answer)
        whole = ids + answer[:-1]
        units |= {tuple(ids), tuple(ids[:common]), tuple(whole)}
        earlier += [ids, whole]


@pytest.mark.parametrize("target", ["deepseek:deepseek-chat", "sglang:m", "llamacpp:m"])
def test_words_that_were_put_into_the_models_mouth_are_not_kept_twice(target: str) -> None:
    spoken = [("user", "one two"), ("assistant", "three four"), ("assistant", "five six"), ("user", "seven")]
    said: list[JsonObject] = [{"role": role, "content": words} for role, words in spoken]
    cache = simulator(target)
    cache.step(0, {"messages": said[:2]})
    assert cache.step(1000, {"messages": said}).read == cache.count({"messages": said[:3]})
