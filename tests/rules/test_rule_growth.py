"""A thread's requests are checked as they grow: what is found is what a check of the whole body finds."""

import copy
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rule_cases import CASES, DEFAULT_MODEL

import quire
from quire import Request, call, respond, result, tools, user, validate
from quire.errors import FormatError, RuleError
from quire.providers.prefix import lines_of
from quire.providers.rules import GrowingCheck
from quire.providers.wires import wire_of
from toolbox import assert_in_proportion, fewer

PROVIDERS = sorted({case.provider for case in CASES})


@cache
def pieces(provider: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What bodies hold around their messages, and the messages, of every request that breaks or keeps a rule."""
    around, messages = [], []
    for body in (body for case in CASES if case.provider == provider for body in (case.good, case.bad)):
        layout = wire_of(provider, body).layout
        try:
            lines_of(body, provider)
        except (FormatError, AttributeError):
            continue  # not JSON, or no message at all
        listed = [one for one in layout.messages(body) if isinstance(one, dict)]
        if len(listed) < 20:
            around.append({name: value for name, value in body.items() if name != layout.field})
            messages += listed
    return around, messages


def request(provider: str, around: dict[str, Any], messages: list[Any], marked: set[int]) -> Request:
    layout = wire_of(provider, {**around, "messages": messages}).layout
    body = {**around, layout.field: [_marked(one) if n in marked else one for n, one in enumerate(messages)]}
    return Request(provider, DEFAULT_MODEL.get(provider, ""), body, lines_of(body, provider))


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    """The message with a mark on its last block, where it holds blocks."""
    content = message.get("content")
    if not isinstance(content, list) or not content or not isinstance(content[-1], dict):
        return message
    return {**message, "content": [*content[:-1], {**content[-1], "cache_control": {"type": "ephemeral"}}]}


@pytest.mark.parametrize("provider", PROVIDERS)
@given(data=st.data())
@fewer(5)
def test_a_growing_request_is_found_to_break_what_it_breaks_as_a_whole(provider: str, data: st.DataObject) -> None:
    around, known = pieces(provider)
    head = data.draw(st.sampled_from(around))
    messages = list[Any]()
    check = GrowingCheck()
    for _ in range(data.draw(st.integers(1, 8))):
        new = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))
        # A cut takes away what is newest, or what is oldest, so that the others stand elsewhere.
        kept = data.draw(st.sampled_from([slice(99), slice(99), slice(1), slice(1, 99), slice(2, 99)]))
        messages = [*messages[kept], *new]
        if data.draw(st.booleans()):
            check = GrowingCheck(check.checked())  # opened again
        if data.draw(st.booleans()):
            head = {**head, **data.draw(st.sampled_from([{}, {}, {"diagnostics": {}}, {"max_tokens": 7}]))}
        sent = request(provider, head, messages, data.draw(st.sets(st.integers(0, 9), max_size=2)))
        assert check.of(sent) == validate(copy.deepcopy(sent))


def test_a_mark_that_comes_to_an_empty_text_is_named_instead_of_the_text() -> None:
    empty, check = [{"role": "user", "content": [{"type": "text", "text": ""}]}] * 2, GrowingCheck()
    for marked, rows in ((set[int](), ["B2.4", "B2.4"]), ({0}, ["B2.5", "B2.4"]), ({1}, ["B2.4", "B2.5"])):
        assert [one.row for one in check.of(request("anthropic", {"max_tokens": 9}, empty, marked))] == rows


@pytest.mark.parametrize("provider", ["anthropic", "openai-chat", "gemini"])
def test_what_was_looked_at_is_not_looked_at_again(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = quire.Thread(quire.open_store(":memory:"), "t")
    looked = list[int]()
    look = GrowingCheck._look
    monkeypatch.setattr(GrowingCheck, "_look", lambda self, *how: (looked.append(how[-1]), look(self, *how)))
    thread.append(tools([{"name": "f", "description": "", "parameters": {"type": "object"}}]), user("q"))
    for n in range(20):
        looked.clear()
        thread.request(f"{provider}:m")
        thread.append(call(f"c{n}", "f", {}), result(f"c{n}", "ok"))
    # The call and its result, and a message or two that a mark went to or left.
    assert len(looked) <= 5, looked


def test_a_request_that_would_be_refused_is_not_handed_out() -> None:
    thread, target = quire.Thread(quire.open_store(":memory:"), "t"), "anthropic:claude-opus-5-5"
    thread.append(user("q"), respond("a"), user("q"))
    for _ in range(2):
        with pytest.raises(RuleError, match=r"B\.field of anthropic at \$\.max_token\b") as caught:
            thread.request(target, max_tokens=100, extra={"max_token": 5})
        assert caught.value.hint == "Did you mean max_tokens?"
    assert thread.request(target, check=False, extra={"max_token": 5}).body["max_token"] == 5
    # A warning keeps no request back.
    advised = thread.request(target, temperature=1.0)
    assert [(one.row, one.severity) for one in validate(advised)] == [("B.sampling", "warning")]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_named_with_its_place(number: float) -> None:
    body = {"messages": [{"role": "user", "content": "q", "extra": [{"a.b": number}]}], "temperature": number}
    findings = [(one.row, one.path, one.severity) for one in validate(body, "openai-chat") if one.row == "B.json"]
    assert findings == [("B.json", "$.temperature", "error"), ("B.json", "$.messages[0].extra[0]['a.b']", "error")]


@pytest.mark.parametrize("sign", [" ", "\n", "=", "A"])
def test_data_that_are_no_base64_are_found_in_a_time_that_grows_with_them(sign: str) -> None:
    def look(size: int) -> None:
        source = {"type": "base64", "media_type": "image/png", "data": f"A{sign * size}!"}
        asked = [{"role": "user", "content": [{"type": "image", "source": source}]}]
        found = validate({"model": "claude-opus-5-5", "max_tokens": 9, "messages": asked}, "anthropic")
        assert [one.row for one in found] == ["B.base64"]

    assert_in_proportion(look, 16_000)
