"""Where cache marks go: never a byte moved, never a rule broken, the end of the request before marked again."""

import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from cache_bodies import MINUTE, simulator, words
from cache_series import series
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import shared_data
from quire import Entry, Policy, Reply, Request, Thread, Usage, assemble, open_store, render, values
from quire.providers import import_, marked, marker, rendering
from quire.providers.cache_marks import Marker, Pauses, lives, mark
from quire.providers.models import ModelInfo
from quire.providers.prefix import prefix_bytes
from quire.providers.simulate import Simulator, blocks
from quire.testing import assert_valid
from quire.values import JsonObject, Prompt
from toolbox import Built, chain, fewer, many_words, model_info

TARGETS = (
    "anthropic:claude-opus-5-5", "anthropic:claude-haiku-4-5", "bedrock:anthropic.claude-opus-5-5-v1:0",
    "openai:gpt-5.6", "openai-chat:gpt-5.6", "openrouter:anthropic/claude-opus-5.5", "azure:gpt-5.6",
)  # fmt: skip
TOOLS = values.tools([{"name": "read", "description": "reads", "parameters": {"type": "object", "properties": {}}}])


@st.composite
def threads(draw: st.DrawFn) -> list[Entry]:
    """A thread as agents write it: long and short turns, tool loops with many parallel calls, notes between."""
    entries = [values.system(many_words(draw(st.sampled_from([5, 400, 3000])), "s")), TOOLS]
    for turn in range(draw(st.integers(1, 4))):
        entries.append(values.user(many_words(draw(st.integers(1, 700)), f"u{turn}-")))
        for loop in range(draw(st.integers(0, 2))):
            calls = draw(st.integers(1, 24))
            ids = [f"c{turn}-{loop}-{n}" for n in range(calls)]
            entries += [values.call(id, "read", {"path": id}) for id in ids]
            entries += [values.result(id, None, many_words(draw(st.integers(1, 30)), id)) for id in ids]
        # The model answers, says nothing, thinks aloud, or was broken off before a word.
        ending = draw(st.sampled_from(["answer", "answer", "empty", "thought", "nothing"]))
        if ending == "answer":
            entries.append(values.respond(many_words(draw(st.integers(1, 40)), f"a{turn}-")))
        elif ending != "nothing":
            entries.append(values.respond("") if ending == "empty" else values.think("hm"))
        if ending == "answer" and draw(st.booleans()):
            entries.append(values.note(many_words(3, f"n{turn}-")))
    return list(chain(entries))


def rendered(entries: list[Entry], target: str, policy: Policy) -> list[tuple[Built, JsonObject]]:
    info = model_info(target)
    out = []
    for built in assemble.requests(entries, policy):
        request = marked(render(built.prompt, target), built.prompt, key="thread")
        out.append((built, request.body))
        assert prefix_bytes(request.body, info.wire) == request.prefix
    return out


def marks_in(body: JsonObject, info: ModelInfo) -> list[str]:
    return [block.path for block in blocks(body, info.wire) if block.ttl_s]


@fewer(16)
@pytest.mark.parametrize("target", TARGETS)
@given(threads())
def test_marks_move_no_byte_break_no_rule_and_are_at_most_four(target: str, entries: list[Entry]) -> None:
    info = model_info(target)
    for _, body in rendered(entries, target, Policy(budget=200_000)):
        assert_valid(body, target.partition(":")[0], info.model)
        assert len(marks_in(body, info)) <= 4


@pytest.mark.proves("anthropic openai bedrock azure openrouter", "cache marks")
@fewer(16)
@pytest.mark.parametrize("target", TARGETS)
@given(threads())
def test_within_an_epoch_every_request_reads_all_that_the_one_before_it_stored(
    target: str, entries: list[Entry]
) -> None:
    info = model_info(target)
    cache = simulator(target)
    stored, before = 0, b""
    for number, (_, body) in enumerate(rendered(entries, target, Policy(budget=200_000))):
        predicted = cache.step(number * 1000, body)
        prefix = prefix_bytes(body, info.wire)
        if prefix.startswith(before):
            assert predicted.read == stored
        stored, before = predicted.total - predicted.plain, prefix
        # What is long enough is stored to the end, but for what no provider lets us mark.
        if predicted.total > info.min_cache_tokens * 2 and info.wire == "anthropic":
            assert predicted.plain == 0


@pytest.mark.moves_prefix(reason="a small budget makes the thread rebase")
@fewer(16)
@pytest.mark.parametrize("target", [*TARGETS, "openai:gpt-5", "gemini:gemini-3.8-flash"])
@given(st.lists(threads(), min_size=1, max_size=2), st.data())
def test_marking_on_is_the_same_as_marking_anew(target: str, several: list[list[Entry]], data: st.DataObject) -> None:
    info, policy = model_info(target), Policy(budget=data.draw(st.sampled_from([12_000, 200_000])))
    kept, marker, times = rendering(target), Marker(info), [0]
    for built in itertools.chain(*(assemble.requests(entries, policy) for entries in several)):
        times.append(times[-1] + data.draw(st.sampled_from([MINUTE, 6 * MINUTE, 90 * MINUTE])))
        request = kept.request(built.prompt)
        how: dict[str, Any] = {"stable": request.stable, "times": times}
        anew = mark(copy.deepcopy(request.body), built.prompt, info, **how)
        assert marker.mark(request.body, built.prompt, **how) == anew


@pytest.mark.moves_prefix(reason="a small budget makes the thread rebase")
def test_the_fold_of_an_epoch_is_marked_and_found_again() -> None:
    entries = [values.system(many_words(600, "s")), TOOLS]
    for turn in range(12):
        entries += [values.user(many_words(300, f"u{turn}-")), values.respond(many_words(100, f"a{turn}-"))]
    target = "anthropic:claude-opus-5-5"
    info = model_info(target)
    made = rendered(list(chain(entries)), target, Policy(budget=16_000))
    assert {built.epoch for built, _ in made} > {1}
    cache = simulator(target)
    reads = [cache.step(n * 1000, body).read for n, (_, body) in enumerate(made)]
    folded = [(built, body) for built, body in made if built.epoch > 1 and built.prompt.stable > built.prompt.fold]
    assert folded
    for _, body in folded:
        # Tools and system, the fold, the request before, the end.
        assert len(marks_in(body, info)) == 4
    # A rebase reads the head alone; every other request reads all before it.
    assert min(reads[1:]) > 600


def test_places_are_the_head_the_request_before_and_the_end() -> None:
    info = model_info("anthropic:claude-opus-5-5")
    entries = [values.system(many_words(600, "s")), TOOLS, values.user(many_words(50, "u"))]
    entries += [values.call("c", "read", {}), values.result("c", None, "ok"), values.respond("fine")]
    made = rendered(list(chain(entries)), "anthropic:claude-opus-5-5", Policy())
    assert [marks_in(body, info) for _, body in made] == [
        ["system.0", "messages.0.content.0"],
        ["system.0", "messages.0.content.0", "messages.2.content.0"],
    ]


LONG: JsonObject = {"type": "text", "text": many_words(2000, "w")}
CALL = {"type": "tool_use", "id": "t", "name": "f", "input": {"cache_control": {"type": "ephemeral"}}}


@pytest.mark.parametrize(
    ("turns", "marks"),
    [
        ([[{"type": "text", "text": "too short to be stored"}]], []),
        ([[LONG], [{"type": "thinking", "thinking": "hm", "signature": "s"}]], ["0.content.0"]),
        ([[{**LONG, "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "end"}]], ["0.content.0"]),
        # A field of an argument is no mark.
        ([[LONG], [CALL], [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]], ["0.content.0", "2.content.0"]),
    ],
    ids=["short", "thinking", "marked already", "an argument"],
)  # fmt: skip
def test_a_mark_stands_where_one_may_stand_and_where_none_is_yet(turns: Any, marks: list[str]) -> None:
    messages = [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(turns)]
    info = model_info("anthropic:claude-opus-5-5")
    assert marks_in(mark({"messages": messages}, None, info), info) == [f"messages.{path}" for path in marks]
    for target in ("llamacpp:m", "gemini:gemini-2.5-flash", "deepseek:deepseek-v4-flash"):
        assert mark({"messages": messages}, None, model_info(target)) == {"messages": messages}


HOUR = 60 * MINUTE


@pytest.mark.parametrize(
    ("times", "sizes", "head", "tail"),
    [
        ([], (10_000, 100), False, False),
        ([0, MINUTE, 2 * MINUTE], (10_000, 100), False, False),
        ([0, 6 * MINUTE], (10_000, 100), True, True),
        ([0, 6 * MINUTE], (10_000, 10_000), True, True),
        ([*range(0, 30 * MINUTE, MINUTE), 40 * MINUTE], (10_000, 5_000), True, False),
        ([*range(0, 30 * MINUTE, MINUTE), 40 * MINUTE], (100_000, 1_000), True, True),
        ([0, 2 * HOUR], (10_000, 100), False, False),
    ],
)
def test_the_longer_life_is_bought_where_past_pauses_repay_it(
    times: list[int], sizes: tuple[int, int], head: bool, tail: bool
) -> None:
    chosen = lives(Pauses(times), model_info("anthropic:claude-opus-5-5"), sizes)
    assert (chosen.head_long, chosen.tail_long) == (head, tail)


def test_long_pauses_put_the_longer_life_in_front_of_the_shorter() -> None:
    info = model_info("anthropic:claude-opus-5-5")
    body: JsonObject = {
        "system": [{"type": "text", "text": many_words(2000, "s")}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": many_words(3000, "w")}]}],
    }
    made = mark(body, None, info, times=[*range(0, 30 * MINUTE, MINUTE), 40 * MINUTE])
    assert made["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert made["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral"}
    assert_valid({**made, "model": info.model, "max_tokens": 1}, "anthropic")


@pytest.mark.proves("openai", "cache marks")
def test_openai_requests_name_their_thread_and_how_they_are_cached() -> None:
    entries = list(chain([values.system(many_words(2000, "s")), values.user("q"), values.respond("a")]))
    [(_, body)] = rendered(entries, "openai:gpt-5.6", Policy())
    assert body["prompt_cache_key"] == "thread"
    assert body["prompt_cache_options"] == {"mode": "explicit", "ttl": "30m"}
    info = model_info("openai:gpt-5.6")
    assert marks_in(body, info) == ["input.0.content.0", "input.1.content.0"]


def test_older_openai_models_are_asked_for_a_day_after_a_long_pause() -> None:
    info = model_info("openai:gpt-5")
    body: JsonObject = {"input": "hello"}
    assert "prompt_cache_retention" not in mark(body, None, info, times=[0, MINUTE])
    assert mark(body, None, info, times=[0, 10 * MINUTE])["prompt_cache_retention"] == "24h"


@pytest.mark.proves("anthropic openai", "cache diagnostics")
def test_the_provider_is_asked_why_it_could_not_reuse_more() -> None:
    anthropic, openai = model_info("anthropic:claude-opus-5-5"), model_info("openai:gpt-5.6")
    body: JsonObject = {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}]}
    assert mark(body, None, anthropic)["diagnostics"] == {"previous_message_id": None}
    assert mark(body, None, anthropic, previous_id="msg_1")["diagnostics"] == {"previous_message_id": "msg_1"}
    asked = mark({"input": [{"role": "user", "content": "q"}]}, None, openai, previous_id="resp_1")
    assert asked["prompt_cache_options"]["comparison_response_id"] == "resp_1"


@pytest.mark.parametrize("target", ["anthropic:claude-opus-5-5", "openai:gpt-5.6"])
def test_marked_real_traces_cost_a_fraction_of_unmarked_ones(target: str) -> None:
    path = shared_data("traces/tau_retail_gpt41mini.jsonl")
    with path.open() as lines:
        messages: Any = json.loads(next(lines))["messages"]
    entries = list(chain(import_("openai-chat", messages)))
    on, off = Simulator(target, tokenize=words), Simulator(target, tokenize=words)
    sums = [0.0, 0.0]
    for number, (_, body) in enumerate(rendered(entries, target, Policy())):
        plain = _without_marks(body)
        for which, (cache, sent) in enumerate(((on, body), (off, plain))):
            sums[which] += cache.step(number * 20_000, sent).money.amount_usd or 0.0
    assert sums[0] < sums[1] / 3


def _without_marks(body: JsonObject) -> JsonObject:
    text = json.dumps(body).replace('"cache_control"', '"x"').replace('"prompt_cache_breakpoint"', '"y"')
    bare: JsonObject = json.loads(text)
    return bare


# The models that go on where their own words end, and those that want another's turn behind them.
CLAUDES = ("anthropic:claude-opus-5-5", "anthropic:claude-sonnet-4-5")
CLAUDES += ("bedrock:anthropic.claude-sonnet-4-5", "bedrock:anthropic.claude-opus-5-5-v1:0")
OPENAIS = ("openai:gpt-5.6", "openai-chat:gpt-5.6", "openrouter:anthropic/claude-opus-5.5")
WORDS_LONG = " ".join(f"word{index}" for index in range(3000))
CALLABLE = values.tools([{"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}])
NOTHING = Reply((), Usage(input_total=9), "end")


def told(kind: str, number: int) -> list[Entry]:
    """What comes of a request, and behind it."""
    asked, answered = values.user(f"q{number}"), values.respond(f"a{number}")
    return {
        "user": [asked],
        "answer": [answered, asked],
        "own words": [answered],
        "call": [values.call(f"c{number}", "f", {}), values.result(f"c{number}", None, "ok")],
        "notes": [values.note(f"n{number}-{one}") for one in range(25)],
        "note and user": [values.note(f"n{number}"), asked],
        "thought": [values.think("hm"), asked],
    }.get(kind, [])


KINDS = ("answer", "own words", "call", "notes", "note and user", "thought", "user", "nothing")


def asked(target: str, kinds: list[str]) -> Iterator[Request]:
    """A thread's requests; the reply to each, and what follows it, is of the next kind."""
    with open_store(":memory:") as store:
        thread = Thread(store, "t", clock=lambda: 1)
        thread.append(CALLABLE, values.user(WORDS_LONG))
        for number, kind in enumerate([*kinds, "nothing"]):
            request = thread.request(target)
            yield request
            thread.append(thread.sent_entry(request, NOTHING), *told(kind, number))


def marks_of(request: Request) -> list[str]:
    return [block.path for block in blocks(request.body, model_info(request.target).wire) if block.ttl_s]


@settings(max_examples=25)
@pytest.mark.parametrize("target", CLAUDES)
@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
def test_the_end_of_the_request_before_is_marked_whatever_came_since(target: str, kinds: list[str]) -> None:
    before: list[str] = []
    for request in asked(target, kinds):
        marks = marks_of(request)
        assert 0 < len(marks) <= 4
        assert not before or before[-1] in marks[-2:]
        before = marks


@settings(max_examples=15)
@pytest.mark.parametrize("target", [*CLAUDES, *OPENAIS])
@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
def test_every_request_reads_all_that_the_one_before_it_stored(target: str, kinds: list[str]) -> None:
    cache, stored = simulator(target), 0
    for number, request in enumerate(asked(target, kinds)):
        seen = cache.step(number * 1000, request.body)
        assert seen.read >= stored
        stored = seen.total - seen.plain


@pytest.mark.parametrize(
    ("target", "kinds", "marks"),
    [
        ("anthropic:claude-sonnet-4-5", ["notes"], ["messages.0.content.0", "messages.1.content.24"]),
        ("anthropic:claude-opus-5-5", ["notes"], ["messages.0.content.0", "messages.1.content.24"]),
        # A turn that was put in between is no part of the request before.
        ("bedrock:anthropic.claude-sonnet-4-5", ["answer", "user"], ["messages.2.content.0", "messages.4.content.0"]),
        ("anthropic:claude-sonnet-4-5", ["own words", "own words"], ["messages.1.content.0", "messages.2.content.0"]),
    ],
)
def test_marks_sit_where_the_request_before_ended(target: str, kinds: list[str], marks: list[str]) -> None:
    *_, last = asked(target, kinds)
    assert marks_of(last) == marks


@settings(max_examples=40)
@pytest.mark.parametrize("target", [CLAUDES[0], "bedrock:anthropic.claude-sonnet-4-5", *OPENAIS[:2]])
@given(st.data())
def test_a_marker_sees_what_was_changed_in_place(target: str, data: st.DataObject) -> None:
    info, kept = model_info(target), marker(target)
    for body in series(data, info.wire, marked=False):
        assert kept.mark(body, None) == mark(copy.deepcopy(body), None, info)


@pytest.mark.parametrize("target", CLAUDES)
def test_what_a_rendering_wrote_may_be_emptied_in_place(target: str) -> None:
    """It is not what was asked for any more, but it is marked where it holds something."""
    draws, by = rendering(target), marker(target)
    messages = tuple(values.Message("user", (values.Text(f"{WORDS_LONG} {number}"),)) for number in range(4))
    for count in range(1, 5):
        prompt = Prompt("", "", (), messages[:count], stable=count - 1, ends=tuple(range(1, count)))
        request = draws.request(prompt)
        assert marked(request, prompt, by) == marked(request, prompt)
        if count > 1:
            request.body["messages"][-1]["content"].clear()
