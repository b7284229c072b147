"""One wrong value anywhere in what comes from outside is an error of Quire's, or is carried along; never a crash."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_wire_convert import MESSAGES
from wire_hosted import OWN, TARGETS, request_of
from wire_replies import REPLIES, calling
from wire_rich import RICH

from quire import Entry, call, note, render, respond, result, think, user
from quire.errors import FormatError, ProviderError
from quire.providers import FORMATS, import_, parse_reply, stream
from quire.providers.convert import project
from quire.providers.incoming import recordable
from quire.testing import assert_valid
from quire.values import Prompt
from toolbox import SCALARS, check, fewer, json_of, places, put

junk = st.sampled_from([None, 0, -1, 10**9, True, "x", "", [], {}, [None], [3], {"a": 1}, "error", 1.5])


@st.composite
def spoiled(draw: st.DrawFn, value: Any) -> Any:
    """The value with one of its parts replaced or missing."""
    found = list(places(value))
    if not found:
        return value
    *way, last = place = draw(st.sampled_from(found))
    changed = holder = put(value, place, draw(junk))
    for key in way:
        holder = holder[key]
    if isinstance(holder, dict) and draw(st.booleans()):
        del holder[last]
    return changed


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
@fewer(8)
def test_a_spoiled_conversation_is_an_error_or_is_imported(format: str, data: st.DataObject) -> None:
    kinds = st.one_of(MESSAGES[format], st.sampled_from(RICH[format]))
    messages = data.draw(st.lists(kinds, min_size=1, max_size=3))
    with contextlib.suppress(FormatError):
        entries = import_(format, data.draw(spoiled(messages)))
        assert [check(entry.body) for entry in entries]
        prompt = Prompt("", "", (), tuple(project(entries)))
        for target in REPLIES:
            assert_valid(render(prompt, target))


@pytest.mark.parametrize("format", OWN)
@given(data=st.data())
@fewer(8)
def test_spoiled_tools_of_a_providers_own_are_an_error_or_never_spoil_a_request(
    format: str, data: st.DataObject
) -> None:
    with contextlib.suppress(FormatError):
        request = request_of(format, data.draw(spoiled(OWN[format])))
        entries = [check(entry.body) for entry in import_(format, request)]
        tools = {tool["name"]: tool for entry in entries for tool in entry.tools}
        messages = project([entry for entry in entries if entry.kind != "tools"])
        prompt = Prompt("", "", tuple(tools.values()), tuple(messages))
        for target in TARGETS.values():
            assert_valid(render(prompt, target))


NAMES = ["format", "type", "text", "role", "thinking", "signature", "data", "name", "input", "toolUse", "parts"]
values = json_of(junk | st.sampled_from(NAMES), st.sampled_from(NAMES), 8)
FIELDS = ("block", "message", "more", "encloses", "content", "model", "arguments", "effort", "after")
wires = st.fixed_dictionaries({"format": st.sampled_from(list(FORMATS))}, optional=dict.fromkeys(FIELDS, values))


@given(drawn=st.lists(wires, min_size=6, max_size=6), target=st.sampled_from(list(REPLIES)))
@fewer(8)
def test_a_wire_field_that_somebody_wrote_by_hand_is_passed_over(drawn: list[Any], target: str) -> None:
    made = [user("q"), think("t"), respond("a"), call("c", "f", {}), result("c", content="r"), note("n")]
    entries = [
        Entry(one.kind, {**one.body, "wire": wire}, seq)
        for seq, (one, wire) in enumerate(zip(made, drawn, strict=True), 1)
    ]
    prompt = Prompt("", "", ({"name": "f"},), tuple(project(entries)))
    with contextlib.suppress(FormatError):
        assert_valid(render(prompt, target))


@pytest.mark.parametrize("target", REPLIES)
@given(data=st.data())
@fewer(8)
def test_a_spoiled_reply_is_an_error_or_is_read(target: str, data: st.DataObject) -> None:
    reply, events = data.draw(REPLIES[target])
    with contextlib.suppress(FormatError, ProviderError):
        assert [check(entry.body) for entry in parse_reply(target, data.draw(spoiled(reply))).entries]
    reader = stream(target)
    with contextlib.suppress(FormatError, ProviderError):
        for event in data.draw(spoiled(events)):
            reader.feed(event)
    assert all(check(entry.body) for entry in reader.partial().entries)


DEEP = {"a": json.loads("[" * 300 + "]" * 300)}


@pytest.mark.parametrize(
    ("args", "recorded"),
    [
        (None, {}),
        (DEEP, json.dumps(DEEP, separators=(",", ":"))),
        ({"t": "\ud83d\ude00"}, {"t": "😀"}),
        ({"t": "\ud83d"}, {"t": "\ufffd"}),
    ],
    ids=["null", "deep", "a character in two halves", "half a character"],
)
@pytest.mark.parametrize("target", REPLIES)
def test_arguments_that_no_log_holds_are_recorded_and_marked(target: str, args: Any, recorded: Any) -> None:
    (made,) = parse_reply(target, calling(target, "f", args)).entries
    assert check(made.body).args == recorded
    assert args is None or made.meta["repaired"]


def test_a_character_split_over_two_deltas_is_put_together() -> None:
    reader = stream("deepseek:deepseek-chat")
    reader.feed({"choices": [{"index": 0, "delta": {"content": "Hi \ud83d"}}]})
    (made,) = reader.feed({"choices": [{"index": 0, "delta": {"content": "\ude00!"}, "finish_reason": "stop"}]})
    assert check(made.body).text == "Hi 😀!"
    assert made.meta["repaired"] == ["half characters were put together or replaced"]


@pytest.mark.parametrize("target", [target for target in REPLIES if "openai" not in target])
def test_numbers_that_json_has_not_are_recorded_as_text_and_marked(target: str) -> None:
    """`1e999` is JSON, and infinite once it is read."""
    args = json.loads('{"a": 1e999, "b": [-1e999, NaN, 1.5, true]}')
    (made,) = parse_reply(target, calling(target, "f", args)).entries
    assert check(made.body).args == {"a": "Infinity", "b": ["-Infinity", "NaN", 1.5, True]}
    assert made.meta["repaired"] == ["numbers that JSON has not were written as text"]


any_text = st.text(st.characters(exclude_categories=()))
json_values = json_of(SCALARS | any_text, any_text, 50)


@fewer(3)
@given(args=json_values, depth=st.sampled_from([0, 100, 245, 251, 400]))
def test_whatever_a_call_holds_can_be_recorded(args: Any, depth: int) -> None:
    for _ in range(depth):
        args = [args]
    made = recordable(call("c1", "f", args, wire={"block": {"input": args}}))
    assert check(made.body)
    assert recordable(made) == made


def test_a_reply_nested_beyond_reading_is_an_error_with_a_hint() -> None:
    value: Any = {}
    for _ in range(5000):
        value = {"a": value}
    for target in ("anthropic:claude-opus-5-5", "gemini:gemini-3.8-flash", "deepseek:deepseek-chat"):
        with pytest.raises(FormatError, match="nested too deeply") as caught:
            stream(target).feed(value)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("target", "event", "lacks"),
    [
        ("anthropic:claude-opus-5-5", {"type": "message_start"}, "message"),
        ("anthropic:claude-opus-5-5", {"type": "content_block_start", "index": 0}, "content_block"),
        ("anthropic:claude-opus-5-5", {"type": "content_block_delta", "index": 0, "delta": None}, "delta"),
        ("openai:gpt-6-sol", {"type": "response.created"}, "response"),
        ("openai:gpt-6-sol", {"type": "response.output_item.added", "output_index": 0}, "item"),
        ("openai:gpt-6-sol", {"type": "response.completed"}, "response"),
    ],
)
def test_an_event_without_what_it_tells_of_is_an_error(target: str, event: Any, lacks: str) -> None:
    with pytest.raises(FormatError, match=f"{lacks} is missing"):
        stream(target).feed(event)


def test_an_event_that_is_an_error_is_one_whatever_it_says() -> None:
    for target in ("anthropic:claude-opus-5-5", "openai:gpt-6-sol"):
        with pytest.raises(ProviderError, match="error: no message"):
            stream(target).feed({"type": "error"})
