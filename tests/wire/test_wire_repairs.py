"""A reply that no log could hold as it came is recorded all the same, repaired and marked."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import FormatError
from quire.log.entries import check
from quire.providers import parse_reply, stream
from quire.providers.incoming import recordable
from quire.values import call
from toolbox import SCALARS, fewer, json_of

DEEP = {"a": json.loads("[" * 300 + "]" * 300)}


def anthropic(args: Any) -> dict[str, Any]:
    return {"content": [{"type": "tool_use", "id": "c1", "name": "f", "input": args}], "stop_reason": "tool_use"}


def gemini(args: Any) -> dict[str, Any]:
    parts = [{"functionCall": {"name": "f", "args": args}}]
    return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}


def bedrock(args: Any) -> dict[str, Any]:
    content = [{"toolUse": {"toolUseId": "c1", "name": "f", "input": args}}]
    return {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": "tool_use"}


def chat(args: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": json.dumps(args, ensure_ascii=False)}
    message = {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    return {"choices": [{"message": message, "finish_reason": "tool_calls"}]}


def responses(args: Any) -> dict[str, Any]:
    item = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": json.dumps(args, ensure_ascii=False)}
    return {"status": "completed", "output": [item]}


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
@pytest.mark.parametrize(
    ("target", "reply"),
    [("anthropic:claude-opus-5-5", anthropic), ("gemini:gemini-3.8-flash", gemini),
     ("bedrock:amazon.nova-lite-v1:0", bedrock), ("deepseek:deepseek-chat", chat), ("openai:gpt-5.6", responses)],
)  # fmt: skip
def test_arguments_that_no_log_holds_are_recorded_and_marked(target: str, reply: Any, args: Any, recorded: Any) -> None:
    (made,) = parse_reply(target, reply(args)).entries
    assert check(made.body).args == recorded
    assert args is None or made.meta["repaired"]


def test_a_character_split_over_two_deltas_is_put_together() -> None:
    reader = stream("deepseek:deepseek-chat")
    reader.feed({"choices": [{"index": 0, "delta": {"content": "Hi \ud83d"}}]})
    (made,) = reader.feed({"choices": [{"index": 0, "delta": {"content": "\ude00!"}, "finish_reason": "stop"}]})
    assert check(made.body).text == "Hi 😀!"
    assert made.meta["repaired"] == ["half characters were put together or replaced"]


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
