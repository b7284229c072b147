"""The end of the request before is marked again, whatever came since, and whoever changed the body in place."""

import copy
from collections.abc import Iterator

import pytest
from cache_bodies import simulator
from cache_series import series
from hypothesis import given, settings
from hypothesis import strategies as st

from quire import values
from quire.providers import marked, marker, model_info, rendering
from quire.providers.cache_marks import mark
from quire.providers.simulate import blocks
from quire.thread import Thread, open_store
from quire.values import Entry, JsonObject, Prompt, Reply, Request, Usage

# The models that go on where their own words end, and those that want another's turn behind them.
CLAUDES = (
    "anthropic:claude-opus-5-5",
    "anthropic:claude-sonnet-4-5",
    "bedrock:anthropic.claude-sonnet-4-5",
    "bedrock:anthropic.claude-opus-5-5-v1:0",
)
OPENAIS = ("openai:gpt-5.6", "openai-chat:gpt-5.6", "openrouter:anthropic/claude-opus-5.5")
LONG = " ".join(f"word{index}" for index in range(3000))
TOOLS = values.tools([{"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}])
NOTHING = Reply((), Usage(input_total=9), "end")


def told(kind: str, number: int) -> list[Entry]:
    """What comes of a request, and behind it."""
    match kind:
        case "answer":
            return [values.respond(f"a{number}"), values.user(f"q{number}")]
        case "own words":
            return [values.respond(f"a{number}")]
        case "call":
            return [values.call(f"c{number}", "f", {}), values.result(f"c{number}", None, "ok")]
        case "notes":
            return [values.note(f"n{number}-{one}") for one in range(25)]
        case "note and user":
            return [values.note(f"n{number}"), values.user(f"q{number}")]
        case "thought":
            return [values.think("hm"), values.user(f"q{number}")]
        case _:
            return [values.user(f"q{number}")] if kind == "user" else []


KINDS = ("answer", "own words", "call", "notes", "note and user", "thought", "user", "nothing")


def asked(target: str, kinds: list[str]) -> Iterator[Request]:
    """A thread's requests; the reply to each, and what follows it, is of the next kind."""
    with open_store(":memory:") as store:
        thread = Thread(store, "t", clock=lambda: 1)
        thread.append(TOOLS, values.user(LONG))
        for number, kind in enumerate([*kinds, "nothing"]):
            request = thread.request(target)
            yield request
            thread.append(thread.sent_entry(request, NOTHING), *told(kind, number))


def marks_in(request: Request) -> list[str]:
    return [block.path for block in blocks(request.body, model_info(request.target).wire) if block.ttl_s]


@settings(max_examples=25)
@pytest.mark.parametrize("target", CLAUDES)
@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=6))
def test_the_end_of_the_request_before_is_marked_whatever_came_since(target: str, kinds: list[str]) -> None:
    before: list[str] = []
    for request in asked(target, kinds):
        marks = marks_in(request)
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
    assert marks_in(last) == marks


@settings(max_examples=40)
@pytest.mark.parametrize("target", [CLAUDES[0], "bedrock:anthropic.claude-sonnet-4-5", *OPENAIS[:2]])
@given(st.data())
def test_a_marker_sees_what_was_changed_in_place(target: str, data: st.DataObject) -> None:
    info, kept = model_info(target), marker(target)
    for body in series(data, info.wire, marked=False):
        assert kept.mark(body, None) == mark(copy.deepcopy(body), None, info)


def said(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def test_a_body_grown_and_emptied_in_place_is_marked_as_it_is() -> None:
    by = marker("anthropic:claude-sonnet-4-5")
    content = [said(LONG)]
    body: JsonObject = {"messages": [{"role": "user", "content": content}]}
    assert "cache_control" in by.mark(body, None)["messages"][0]["content"][0]
    content.append(said("more"))
    assert ["cache_control" in one for one in by.mark(body, None)["messages"][0]["content"]] == [False, True]
    content[0]["text"] = "short"
    assert by.mark(body, None)["messages"] == body["messages"]
    content.clear()
    assert by.mark(body, None)["messages"] == [{"role": "user", "content": []}]


@pytest.mark.parametrize("target", CLAUDES)
def test_what_a_rendering_wrote_may_be_emptied_in_place(target: str) -> None:
    """It is not what was asked for any more, but it is marked where it holds something."""
    draws, by = rendering(target), marker(target)
    messages = tuple(values.Message("user", (values.Text(f"{LONG} {number}"),)) for number in range(4))
    for count in range(1, 5):
        prompt = Prompt("", "", (), messages[:count], stable=count - 1, ends=tuple(range(1, count)))
        request = draws.request(prompt)
        assert marked(request, prompt, by) == marked(request, prompt)
        if count > 1:
            request.body["messages"][-1]["content"].clear()
