"""Anthropic's cache as its documentation has it: a naive reading of the rules against the simulator, and each rule alone."""

from typing import Any

import pytest
from cache_bodies import MINUTE, OPUS, assistant, claude, marked, simulator, split, text, user
from hypothesis import given
from hypothesis import strategies as st

from quire.providers.simulate import simulate
from quire.values import JsonObject
from toolbox import model_info

SETTINGS = [{}, {"tool_choice": {"type": "none"}}, {"speed": "fast"}, {"output_config": {"effort": "low"}}]
SECOND = 1000


class Naive:
    """The rules read aloud, with no hash and no shortcut: prefixes are compared whole."""

    def __init__(self, minimum: int, lookback: int) -> None:
        self.minimum, self.lookback = minimum, lookback
        self.stored: list[tuple[tuple[Any, ...], int, int]] = []  # prefix, life, last used

    def send(self, at: int, blocks: list[tuple[str, str, str, str, int]]) -> tuple[int, int, int, int]:
        """Blocks are (level, kind, content, mark, tokens); returns read, 5m, 1h, plain."""
        prefixes = [tuple(block[:3] for block in blocks[: end + 1]) for end in range(len(blocks))]
        ends = [sum(block[4] for block in blocks[: end + 1]) for end in range(len(blocks))]
        marks = [n for n, block in enumerate(blocks) if block[3] and ends[n] >= self.minimum]
        hit = self._hit(at, blocks, prefixes, marks)
        behind = [n for n in marks if hit is None or n > hit]
        for n in [hit, *marks] if hit is not None else marks:
            self._use(at, prefixes[n], 3600 if blocks[n][3] == "1h" else 300)
        a = ends[hit] if hit is not None else 0
        b = max([ends[n] for n in behind if blocks[n][3] == "1h"], default=a)
        c = max([ends[n] for n in behind], default=a)
        return a, max(0, c - max(a, b)), max(0, b - a), (ends[-1] if ends else 0) - max(a, b, c)

    def _hit(self, at: int, blocks: list[Any], prefixes: list[Any], marks: list[int]) -> int | None:
        alive = {prefix for prefix, life, used in self.stored if used < at < used + life * SECOND}
        for mark in reversed(marks):
            position, n = 1, mark
            while n >= 0 and position <= self.lookback:
                if prefixes[n] in alive:
                    return n
                run = n > 0 and blocks[n][1] == blocks[n - 1][1] in ("tool_use", "tool_result")
                position += 0 if run else 1
                n -= 1
        return None

    def _use(self, at: int, prefix: tuple[Any, ...], life: int) -> None:
        for n, (known, had, used) in enumerate(self.stored):
            if known == prefix and at < used + had * SECOND:
                self.stored[n] = (known, had, at)
                return
        self.stored = [entry for entry in self.stored if entry[0] != prefix]
        self.stored.append((prefix, life, at))


KINDS = ("text", "tool_use", "tool_result", "thinking")


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[int, list[tuple[str, str, int, str]]]]:
    """Requests at times: growing, edited or cut rows of (role, kind, size, mark), marks in legal order."""
    out = []
    row: list[tuple[str, str, int]] = []
    at = 0
    for _ in range(draw(st.integers(1, 6))):
        at += draw(st.sampled_from([1, 1000, 200_000, 299_999, 300_000, 3_599_999, 3_600_000]))
        row = row[: draw(st.integers(0, len(row)))] if draw(st.booleans()) else row
        kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=25))
        row = row + [
            ("user" if kind == "tool_result" else "assistant", kind, draw(st.sampled_from([1, 40, 300])))
            for kind in kinds
        ]
        places = draw(st.lists(st.integers(0, len(row) - 1), max_size=4, unique=True))
        allowed = sorted(place for place in places if row[place][1] != "thinking")
        longs = draw(st.integers(0, len(allowed)))
        marks = {place: "1h" if n < longs else "5m" for n, place in enumerate(allowed)}
        out.append((at, [(*block, marks.get(n, "")) for n, block in enumerate(row)]))
    return out


def block_json(kind: str, size: int, number: int) -> JsonObject:
    said = " ".join(f"w{number}x{index}" for index in range(size))
    match kind:
        case "tool_use":
            return {"type": "tool_use", "id": f"t{number}", "name": said, "input": {}}
        case "tool_result":
            return {"type": "tool_result", "tool_use_id": f"t{number}", "content": said}
        case "thinking":
            return {"type": "thinking", "thinking": said, "signature": "s"}
    return {"type": "text", "text": said}


@given(conversations(), st.integers(0, 3))
def test_the_simulator_agrees_with_a_naive_reading_of_the_rules(
    conversation: list[tuple[int, list[tuple[str, str, int, str]]]], setting: int
) -> None:
    naive = Naive(model_info(OPUS).min_cache_tokens, model_info(OPUS).cache.lookback)
    cache = simulator()
    for at, row in conversation:
        messages, blocks = [], []
        for number, (role, kind, size, mark) in enumerate(row):
            block = block_json(kind, size, number)
            messages.append({"role": role, "content": [marked(block, mark) if mark else block]})
            # A tool_use counts its empty arguments too: one more word.
            blocks.append(("messages", kind, f"{role} {block}", mark, 4 + size + (kind == "tool_use")))
        predicted = cache.step(at, claude(*messages, **SETTINGS[setting]))
        assert split(predicted) == naive.send(at, blocks)


@pytest.mark.proves("anthropic", "cache simulation")
def test_a_growing_thread_reads_what_the_request_before_marked() -> None:
    system = [text(600, "s", "5m")]
    cache = simulator()
    first = cache.step(0, claude(user(text(100, "a", "5m")), system=system))
    turns = [user(text(100, "a")), assistant(text(50, "b"))]
    second = cache.step(MINUTE, claude(*turns, user(text(20, "c", "5m")), system=system))
    assert split(first) == (0, 604 + 104, 0, 0)
    assert split(second) == (708, 54 + 24, 0, 0)
    assert (first.cause, second.cause) == ("first", "")


@pytest.mark.parametrize(("added", "read"), [(18, 604), (19, 604), (20, 0), (40, 0)])
def test_a_walk_back_looks_at_twenty_places_counting_the_mark(added: int, read: int) -> None:
    first = claude(user(text(600, "a", "5m")))
    blocks = [text(1, f"b{index}-") for index in range(added - 1)] + [text(1, "end", "5m")]
    second = claude(user(text(600, "a"), *blocks))
    assert simulate([(0, first), (1000, second)], OPUS, tokenize=str.split)[1].read == read  # type: ignore[arg-type]


@pytest.mark.parametrize(("target", "read"), [(OPUS, True), ("bedrock:anthropic.claude-opus-5-5", False)])
def test_a_run_of_tool_blocks_is_one_place_on_the_claude_api_and_many_on_bedrock(target: str, read: bool) -> None:
    uses = [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": {}} for n in range(30)]
    results = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": "ok"} for n in range(30)]
    requests: list[JsonObject]
    if target == OPUS:
        last = [*results[:-1], marked(results[-1])]
        requests = [claude(user(text(600, "a", "5m"))), claude(user(text(600, "a")), assistant(*uses), user(*last))]
    else:
        converse = [{"toolUse": {"toolUseId": f"t{n}", "name": "f", "input": {}}} for n in range(30)]
        answers = [{"toolResult": {"toolUseId": f"t{n}", "content": [{"text": "ok"}]}} for n in range(30)]
        asked, point = {"text": text(600, "a")["text"]}, {"cachePoint": {"type": "default"}}
        talks = [[user(asked, point)], [user(asked), assistant(*converse), user(*answers, point)]]
        requests = [{"messages": talk} for talk in talks]
    cache = simulator(target)
    predicted = [cache.step(n * 1000, body) for n, body in enumerate(requests)]
    assert (predicted[1].read > 0) is read
    assert predicted[1].cause == ("" if read else "marker")


def test_lives_are_measured_from_the_request_that_used_them_last() -> None:
    body = claude(user(text(600, "a", "5m")))
    times = [0, 299_999, 599_998, 899_998]
    predicted = simulate([(at, body) for at in times], OPUS)
    assert [one.read > 0 for one in predicted] == [False, True, True, False]
    assert predicted[-1].cause == "ttl"


def test_under_the_minimum_nothing_is_written_and_nobody_is_told() -> None:
    cache = simulator()
    short = claude(user(text(500, "a", "5m")))
    assert split(cache.step(0, short)) == (0, 0, 0, 504)
    again = cache.step(1000, short)
    assert split(again) == (0, 0, 0, 504)
    assert again.cause == "minimum"


def test_what_is_still_being_written_cannot_be_read() -> None:
    body = claude(user(text(600, "a", "5m")))
    cache = simulator()
    cache.step(0, body, began_ms=2000)
    early = cache.step(1500, body)
    assert (early.read, early.cause) == (0, "in-flight")
    assert cache.step(2000, body).read == 604


TOOL = {"name": "f", "description": "d " * 600, "input_schema": {"type": "object", "properties": {}}}
WEB = {"type": "web_search_20250305", "name": "web_search"}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


def whole(**more: Any) -> JsonObject:
    """A request marked at the end of tools, of system and of its first message."""
    tools = more.pop("tools", [marked(TOOL)])
    tail = more.pop("tail", [])
    system = [text(600, "s", "5m")]
    return claude(user(text(600, "a", "5m")), *tail, system=system, tools=tools, **more)


@pytest.mark.proves("anthropic", "cache invalidation")
@pytest.mark.parametrize(
    ("change", "levels"),
    [
        ({"tools": [marked({**TOOL, "description": "e " * 600})]}, 0),
        ({"tools": [{**TOOL, "name": "g"}, marked(TOOL)]}, 0),
        ({"tools": [WEB, marked(TOOL)]}, 1),
        ({"speed": "fast"}, 1),
        ({"tool_choice": {"type": "none"}}, 2),
        ({"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, 2),
        ({"tail": [assistant(text(1, "b")), user(PICTURE, text(1, "c"))]}, 2),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 2),
        ({"output_config": {"effort": "low"}}, 2),
        ({"output_config": {"effort": "high"}}, 3),
        ({"thinking": {"type": "adaptive"}}, 3),
        ({"tool_choice": {"type": "auto"}}, 3),
        ({"tail": [{"role": "system", "content": "late"}]}, 3),
        ({"tools": [marked(TOOL), {**TOOL, "name": "later", "defer_loading": True}]}, 3),
        ({"temperature": 0.5, "max_tokens": 99, "metadata": {"user_id": "u"}}, 3),
    ],
    ids=lambda value: "".join(value) if isinstance(value, dict) else str(value),
)
def test_each_change_breaks_the_cache_from_the_level_the_documentation_names(
    change: dict[str, Any], levels: int
) -> None:
    cache = simulator()
    tools_end = simulator().count(claude(tools=[TOOL]))
    cache.step(0, whole())
    read = cache.step(1000, whole(**change)).read
    # A web tool is counted where it stands, though it breaks nothing before the system prompt.
    web = simulator().count(claude(tools=[WEB])) if WEB in change.get("tools", ()) else 0
    assert read - (web if read else 0) == [0, tools_end, tools_end + 604, tools_end + 1208][levels]


def test_a_mark_on_the_whole_request_sits_on_the_last_block_that_may_carry_one() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    body = claude(user(text(600, "a")), assistant(thought), cache_control={"type": "ephemeral", "ttl": "1h"})
    assert split(simulator().step(0, body)) == (0, 0, 604, 5)


def test_older_models_forget_thinking_when_the_user_speaks_again() -> None:
    thought = {"type": "thinking", "thinking": "hm " * 50, "signature": "s"}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "ok"}
    loop = [user(text(1200, "a")), assistant(thought, call), user(marked(result))]
    turn = [*loop[:2], user(result)]
    spoken = [*turn, assistant(text(5, "b")), user(text(5, "c", "5m"))]
    kept, forgot = simulator("anthropic:claude-opus-5-5"), simulator("anthropic:claude-sonnet-4-5")
    for cache in (kept, forgot):
        cache.step(0, claude(*loop))
    assert kept.step(1000, claude(*spoken)).read > 1204
    assert forgot.step(1000, claude(*spoken)).read == 0
    assert forgot.step(2000, claude(*spoken)).cause == ""


def test_string_content_is_one_text_block() -> None:
    cache = simulator()
    cache.step(0, claude(user(text(600, "a", "5m"))))
    said = text(600, "a")["text"]
    second = claude({"role": "user", "content": said}, assistant(text(1, "b")), user(text(1, "c", "5m")))
    assert cache.step(1000, second).read == 604


def test_money_is_the_price_of_each_share() -> None:
    cache = simulator()
    body = claude(user(text(996, "a", "5m")))
    first, second = cache.step(0, body), cache.step(1000, body)
    assert first.money.amount_usd == pytest.approx(1000 * 5 / 1e6)
    assert second.money.amount_usd == pytest.approx(1000 * 0.2 / 1e6)


def test_what_a_web_search_found_breaks_no_prefix() -> None:
    found = {"type": "web_search_tool_result", "tool_use_id": "w", "content": []}
    thread = [user(text(1100, "a")), assistant(text(10, "b"), found), user(text(10, "c", ttl="5m"))]
    cache = simulator()
    head = [text(1100, "s", ttl="5m")]
    first = cache.step(0, claude(user(text(1100, "a", ttl="5m")), system=head))
    assert cache.step(1000, claude(*thread, system=head)).read == first.total
    other = [*thread[:1], assistant(text(10, "b"), {**found, "content": ["other"]}), *thread[2:]]
    assert cache.step(2000, claude(*other, system=head)).read == first.total
