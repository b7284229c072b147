"""Any JSON at all gives findings, never an exception; wrong types and missing fields are found."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_cases import CASES

from quire import validate
from quire.errors import CallError
from quire.providers.models import providers
from quire.providers.rules import ServerMemory, observe, unchecked
from quire.providers.wires import detect
from toolbox import SCALARS, assert_in_proportion, json_of, places, put

WIRES = "anthropic openai-chat openai-responses gemini bedrock bedrock-anthropic mistral deepseek".split()
NAMES = (
    "role content type text messages contents parts input tools system name id tool_use tool_result "
    "tool_use_id user assistant tool model tool_calls tool_call_id function arguments thinking signature "
    "cache_control ttl 1h ephemeral functionCall functionResponse thoughtSignature toolUse toolResult "
    "toolUseId cachePoint reasoningContent reasoning function_call function_call_output call_id compaction "
    "citations config prompt_cache_breakpoint edits status error"
).split()
leaves = SCALARS | st.floats() | st.text(max_size=3) | st.sampled_from(NAMES)
json_values = json_of(leaves, st.sampled_from(NAMES) | st.text(max_size=2), 20)


@given(
    body=json_values,
    provider=st.sampled_from(WIRES),
    model=st.sampled_from(["", "claude-opus-5-5", "gemini-3.8-flash"]),
)
def test_any_json_gives_findings_and_never_an_exception(body: Any, provider: str, model: str) -> None:
    seen = ServerMemory()
    findings = validate(body, provider, model, seen=seen)
    assert all(one.row and one.path.startswith("$") and one.message and one.fix for one in findings)
    assert isinstance(unchecked(body, provider, model), list)
    detect(body)
    if isinstance(body, dict):
        observe(seen, body, provider)
        validate(body, provider, model, seen=seen)


SMALL = [case for case in CASES if len(str(case.good)) < 2000 and len(str(case.bad)) < 2000]


@given(st.data())
def test_good_requests_with_anything_put_anywhere_never_raise(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(SMALL))
    place = data.draw(st.sampled_from(list(places(case.good))))
    broken = put(case.good, place, data.draw(json_values))
    validate(broken, case.provider, case.model, seen=ServerMemory())
    validate(broken, case.provider, case.model, seen=ServerMemory(complete=False))


WRONG = [
    ("anthropic", {"messages": "hello"}, "$.messages"),
    ("anthropic", {}, "$.messages"),
    ("anthropic", {"messages": []}, "$.messages"),
    ("anthropic", {"messages": [None]}, "$.messages[0]"),
    ("anthropic", {"messages": [{"content": "x"}]}, "$.messages[0].role"),
    ("anthropic", {"messages": [{"role": "robot", "content": "x"}]}, "$.messages[0].role"),
    ("anthropic", {"messages": [{"role": "user"}]}, "$.messages[0].content"),
    ("anthropic", {"messages": [{"role": "user", "content": 3}]}, "$.messages[0].content"),
    ("anthropic", {"messages": [{"role": "user", "content": ["x"]}]}, "$.messages[0].content[0]"),
    ("anthropic", {"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "$.messages[0].content[0].type"),
    ("anthropic", {"messages": [{"role": "user", "content": [{"type": "txt"}]}]}, "$.messages[0].content[0].type"),
    *[("anthropic", {"messages": [{"role": "user", "content": "x"}], "max_tokens": tokens}, "$.max_tokens")
      for tokens in (-1, 1.5, "9", True)],
    ("anthropic", {"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "f"}]}, "$.tools[0].input_schema"),
    ("anthropic", {"messages": [{"role": "user", "content": "x"}], "system": [{"type": "image"}]}, "$.system[0].type"),
    ("openai-chat", {}, "$.messages"),
    ("openai-chat", {"messages": []}, "$.messages"),
    ("openai-chat", {"messages": [{"role": "tool", "content": "x"}]}, "$.messages[0].tool_call_id"),
    ("openai-chat", {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "$.messages[0].content[0].type"),
    ("openai-chat", {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "$.messages[0].tool_calls[0].function"),
    ("openai", {"input": [{"type": "nonsense"}]}, "$.input[0].type"),
    ("openai", {"input": [{"role": "user"}]}, "$.input[0].content"),
    ("openai", {"input": [{"type": "function_call_output", "call_id": "1"}]}, "$.input[0].output"),
    ("gemini", {}, "$.contents"),
    ("gemini", {"contents": [3]}, "$.contents[0]"),
    ("gemini", {"contents": [{"role": "user", "parts": [{"functionResponse": {"name": "f"}}]}]},
     "$.contents[0].parts[0].functionResponse.response"),
    ("bedrock", {"messages": [{"role": "user", "content": [{}]}]}, "$.messages[0].content[0]"),
    ("bedrock", {"messages": [{"role": "user", "content": [{"tool_result": None}]}]}, "$.messages[0].content[0]"),
    ("bedrock", {"messages": [{"role": "user", "content": [{"toolResult": {"toolUseId": "1"}}]}]},
     "$.messages[0].content[0].toolResult.content"),
]  # fmt: skip


@pytest.mark.parametrize(("provider", "body", "path"), WRONG)
def test_wrong_types_and_missing_fields_are_found_at_their_place(provider: str, body: Any, path: str) -> None:
    assert ("B.shape", path) in [(one.row, one.path) for one in validate(body, provider, "some-model")]


@pytest.mark.parametrize("body", [None, 3, "text", [], True])
def test_what_is_no_object_is_one_finding(body: Any) -> None:
    assert [(one.row, one.path) for one in validate(body, "anthropic")] == [("B.shape", "$")]


def test_nesting_without_end_is_a_finding() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert [one.row for one in validate({"messages": deep}, "anthropic")] == ["B.json"]


def test_integers_of_any_size_are_json() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "metadata": {"n": 10**40}}
    assert validate(body, "anthropic") == []


LONG_BODIES = [
    ("anthropic", {"messages": [{"role": "user", "content": "x"}]}),
    ("anthropic", {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "s"}]}]}),
    ("bedrock", {"messages": [{"role": "user", "content": [{"text": "x"}]}]}),
    ("openai", {"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]}),
    ("openai", {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}]}),
    ("openai-chat", {"messages": [{"role": "tool", "tool_call_id": "1", "content": "x"}]}),
    ("gemini", {"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f"}}]}]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("provider", "body"), LONG_BODIES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(LONG_BODIES)]
)
def test_absurd_lengths_take_time_in_proportion(provider: str, body: Any) -> None:
    def check(length: int) -> None:
        ((name, (entry,)),) = body.items()
        long = {name: [entry] * length}
        seen = ServerMemory(complete=False)
        observe(seen, long, provider)
        validate(long, provider, "m", seen=seen)

    assert_in_proportion(check, 2_000)


@pytest.mark.parametrize("provider", providers())
def test_every_provider_can_be_named(provider: str) -> None:
    assert isinstance(validate({}, provider), list)


def test_an_unknown_provider_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(CallError, match="nobody") as caught:
        validate({}, "nobody")
    assert "anthropic" in caught.value.hint
