"""Cohere's Chat API v2: what was said goes out and comes back in its documented form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_replies import fed

from quire import Thread, Usage, render, user, validate
from quire.errors import CallError, ProviderError
from quire.providers import export, import_, parse_reply
from quire.providers.convert import project
from quire.providers.simulate import Simulator
from quire.providers.usage import usage
from quire.testing import assert_valid
from quire.values import JsonObject, Prompt

TARGET = "cohere:command-a-reasoning-08-2025"
CALL = {"id": "weather_1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
THOUGHT = {"type": "thinking", "thinking": "It is north."}
USED = {
    "billed_units": {"input_tokens": 5, "output_tokens": 3},
    "tokens": {"input_tokens": 71, "output_tokens": 9},
    "cached_tokens": 64,
}
REPLY = {
    "id": "r1",
    "finish_reason": "TOOL_CALL",
    "message": {"role": "assistant", "tool_plan": "I will ask.", "content": [THOUGHT], "tool_calls": [CALL]},
    "usage": USED,
}
TOOL = {"name": "weather", "description": "", "parameters": {"type": "object", "properties": {}}}


def events(cut: int) -> list[JsonObject]:
    """The reply above, its texts in two pieces."""
    text, arguments = THOUGHT["thinking"], str(CALL["function"]["arguments"])  # type: ignore[index]
    started = {"id": CALL["id"], "type": "function", "function": {"name": "weather", "arguments": arguments[:cut]}}
    return [
        {"type": "message-start", "id": "r1", "delta": {"message": {"role": "assistant"}}},
        {"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": "thinking", "thinking": text[:cut]}}}},
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"thinking": text[cut:]}}}},
        {"type": "content-end", "index": 0},
        {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": "I will ask."}}},
        {"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": started}}},
        {"type": "tool-call-delta", "index": 0, "delta": {"message": {"tool_calls": {"function": {"arguments": arguments[cut:]}}}}},
        {"type": "tool-call-end", "index": 0},
        {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL", "usage": USED}},
    ]  # fmt: skip


@pytest.mark.proves("cohere", "render")
@pytest.mark.proves("cohere", "thinking kept")
@pytest.mark.proves("cohere", "rules")
def test_the_models_own_words_go_back_to_it() -> None:
    asked = import_("cohere", [{"role": "user", "content": "Weather in Oslo?"}])
    answer = import_("cohere", [{"role": "tool", "tool_call_id": "weather_1", "content": "rain"}])
    messages = tuple(project([*asked, *parse_reply(TARGET, REPLY).entries, *answer]))
    request = render(Prompt("Be brief.", "", (TOOL,), messages), TARGET, max_tokens=50)
    assert request.body == {
        "model": "command-a-reasoning-08-2025",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
            {"role": "assistant", "content": [THOUGHT], "tool_plan": "I will ask.", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "weather_1", "content": [{"type": "text", "text": "rain"}]},
        ],
        "tools": [{"type": "function", "function": TOOL}],
        "max_tokens": 50,
    }
    assert_valid(request)
    assert [line for line in request.lines.rows if b"Oslo?" in line]
    assert Simulator(TARGET).count(request.body) > 20
    foreign = render(Prompt("", "", (), messages), "openai-chat:gpt-4o")
    assert "I will ask." not in str(foreign.body)


@pytest.mark.proves("cohere", "parse")
@pytest.mark.proves("cohere", "streaming")
@pytest.mark.proves("cohere", "usage")
@given(st.integers(0, 15))
def test_a_stream_gives_the_reply_it_brings(cut: int) -> None:
    reader = fed(TARGET, events(cut))
    assert reader.reply() == parse_reply(TARGET, REPLY)
    assert reader.reply().usage == usage("cohere", REPLY) == Usage(input_total=71, cache_read=64, output=9)


def test_what_a_reply_cites_is_read_of_a_stream_too_and_goes_back() -> None:
    cited = {"start": 0, "end": 4, "text": "Rain", "sources": [{"type": "tool", "id": "weather_1:0"}]}
    message: JsonObject = {"role": "assistant", "content": [{"type": "text", "text": "Rain."}], "citations": [cited]}
    whole = parse_reply(TARGET, {"message": message, "finish_reason": "COMPLETE", "usage": USED})
    streamed = [
        {"type": "content-start", "index": 0, "delta": {"message": {"content": {"type": "text", "text": ""}}}},
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "Rain."}}}},
        {"type": "citation-start", "index": 0, "delta": {"message": {"citations": cited}}},
        {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": USED}},
    ]
    assert fed(TARGET, streamed).reply() == whole
    asked = import_("cohere", [{"role": "user", "content": "Weather in Oslo?"}])
    request = render(Prompt("", "", (), tuple(project([*asked, *whole.entries, user("So?")]))), TARGET)
    assert request.body["messages"][1] == message
    assert_valid(request)


@given(st.integers(0, 7), st.integers(0, 15))
def test_a_stream_that_is_cut_keeps_what_came(count: int, cut: int) -> None:
    reader = fed(TARGET, events(cut)[:count])
    with pytest.raises(ProviderError):
        reader.reply()
    assert reader.partial().stop == ""


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "assistant", "tool_calls": [CALL]}, "no tool message behind it"),
        ({"role": "tool", "tool_call_id": "x", "content": "y"}, "answers no call"),
        ({"role": "tool", "content": "y"}, "tool_call_id"),
        ({"role": "narrator", "content": "y"}, "role"),
    ],
)
def test_what_would_be_refused_is_found(message: JsonObject, problem: str) -> None:
    found = validate({"model": "m", "messages": [{"role": "user", "content": "q"}, message]}, "cohere")
    assert any(problem in f"{one.path} {one.message}" for one in found)


def test_an_effort_that_it_has_no_words_for_is_an_error(thread: Thread) -> None:
    thread.user("Hello")
    with pytest.raises(CallError, match="effort") as raised:
        thread.request(TARGET, effort="high")
    assert "thinking=" in raised.value.hint
    assert thread.request(TARGET, thinking={"type": "disabled"}).body["thinking"] == {"type": "disabled"}


@pytest.mark.proves("cohere", "import")
@pytest.mark.proves("cohere", "export")
def test_a_conversation_comes_back_as_it_was() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x.org/a.png"}}]},
        REPLY["message"],
        {"role": "tool", "tool_call_id": "weather_1", "content": [{"type": "document", "document": {"data": "rain"}}]},
        {"role": "assistant", "content": "Rain.", "citations": [{"start": 0, "end": 4}]},
    ]
    assert export("cohere", import_("cohere", messages)) == messages
