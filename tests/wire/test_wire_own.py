"""A provider's own blocks go back verbatim to the model that wrote them, and to no other."""

from typing import Any

import pytest

from quire import Entry, Request, render, respond, think, user
from quire.providers import parse_reply, sdk_kwargs
from quire.providers.convert import project
from quire.providers.models import same_model
from quire.values import JsonObject, Message, Prompt, Text

OPUS, SONNET = "anthropic:claude-opus-5-5", "anthropic:claude-sonnet-5"
BEDROCK = "bedrock:us.anthropic.claude-opus-5-5-v1:0"
THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "cmVk"}
CITED = {"type": "text", "text": "said", "citations": [{"type": "char_location", "cited_text": "x"}]}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"}
CALLING = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"}
FUNCTION_CALL = {**CALLING, "status": "completed"}
SAID = {"type": "output_text", "text": "a", "annotations": [{"type": "url_citation"}]}
ANSWER = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "final_answer", "content": [SAID]}  # fmt: skip


def _prompt(*entries: Entry, **fields: Any) -> Prompt:
    numbered = [Entry(entry.kind, entry.body, seq) for seq, entry in enumerate(entries, 1)]
    return Prompt("", "", (), tuple(project(numbered)), **fields)


def _after(target: str, reply: JsonObject, to: str, **fields: Any) -> Request:
    """The request to a provider after another one's (or its own) reply."""
    return render(_prompt(user("q"), *parse_reply(target, reply).entries, user("and?"), **fields), to)


def _anthropic(*content: JsonObject) -> JsonObject:
    return {"model": "claude-opus-5-5", "content": [*content, {"type": "text", "text": "a"}]}


@pytest.mark.proves("anthropic", "thinking kept")
def test_anthropic_gets_its_thinking_and_citations_back() -> None:
    reply = _anthropic(THINKING, REDACTED, CITED)
    request = _after(OPUS, reply, OPUS)
    assert request.body["messages"][1] == {"role": "assistant", "content": reply["content"]}
    assert request.left_out == ()


def test_another_claude_does_not_get_it_and_the_request_says_why() -> None:
    request = _after(OPUS, _anthropic(THINKING, REDACTED), SONNET)
    assert request.body["messages"][1]["content"] == [{"type": "text", "text": "a"}]
    reason = "thinking of claude-opus-5-5 means nothing to anthropic:claude-sonnet-5"
    assert request.left_out == ({"entry": 2, "reason": reason}, {"entry": 3, "reason": reason})


@pytest.mark.proves("bedrock", "thinking kept")
def test_the_same_model_on_bedrock_reads_the_same_signatures_where_they_are_bound_to_no_prefix() -> None:
    there, here = "bedrock:us.anthropic.claude-opus-5-v1:0", "anthropic:claude-opus-5"
    request = _after(here, {**_anthropic(THINKING, REDACTED), "model": "claude-opus-5"}, there)
    reasoned = [{"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln"}}}]
    reasoned += [{"reasoningContent": {"redactedContent": "cmVk"}}, {"text": "a"}]
    assert request.body["messages"][1]["content"] == reasoned
    assert sdk_kwargs(request)["messages"][1]["content"][1] == {"reasoningContent": {"redactedContent": b"red"}}
    converse = {"output": {"message": {"content": reasoned}}}
    assert _after(there, converse, there).body["messages"][1]["content"] == reasoned
    back = _after(there, converse, here)
    assert back.body["messages"][1]["content"] == [THINKING, REDACTED, {"type": "text", "text": "a"}]


def test_thinking_that_is_bound_to_its_prefix_does_not_move_to_another_host() -> None:
    request = _after(OPUS, _anthropic(THINKING), BEDROCK)
    assert request.body["messages"][1]["content"] == [{"text": "a"}]
    [left] = request.left_out
    assert left["reason"].startswith("thinking of claude-opus-5-5 is bound to the request it came from")
    reasoned = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln"}}}
    converse = {"output": {"message": {"content": [reasoned, {"text": "a"}]}}}
    assert _after(BEDROCK, converse, OPUS).body["messages"][1]["content"] == [{"type": "text", "text": "a"}]
    assert len(_after(BEDROCK, converse, BEDROCK).body["messages"][1]["content"]) == 2


def test_after_a_rebase_thinking_that_is_bound_to_the_old_prefix_stays_behind() -> None:
    reply = _anthropic(THINKING)
    folded = _after(OPUS, reply, OPUS, epoch=2, fold=2)
    assert folded.body["messages"][1]["content"] == [{"type": "text", "text": "a"}]
    assert folded.left_out == ({"entry": 2, "reason": "thinking is bound to the prefix before the rebase"},)
    assert _after(OPUS, reply, OPUS, epoch=2, fold=1).body["messages"][1]["content"][0] == THINKING
    unbound = {"model": "claude-sonnet-4-5", "content": reply["content"]}
    older = _after("anthropic:claude-sonnet-4-5", unbound, "anthropic:claude-sonnet-4-5", epoch=2, fold=2)
    assert older.body["messages"][1]["content"][0] == THINKING


@pytest.mark.proves("openai", "thinking kept")
def test_openai_gets_its_reasoning_phase_and_annotations_back() -> None:
    reply = {"model": "gpt-6-sol", "output": [REASONING, FUNCTION_CALL, ANSWER]}
    items = _after("openai:gpt-6-sol", reply, "openai:gpt-6-sol").body["input"]
    assert items[1:4] == [REASONING, FUNCTION_CALL, ANSWER]


def test_a_call_without_its_reasoning_goes_without_its_id() -> None:
    """OpenAI misses the reasoning of an item whose id it knows."""
    reply = {"model": "gpt-6-sol", "output": [REASONING, FUNCTION_CALL]}
    spoken = [entry for entry in parse_reply("openai:gpt-6-sol", reply).entries if entry.kind != "think"]
    items = render(_prompt(user("q"), *spoken), "openai:gpt-6-sol").body["input"]
    assert items[1] == {key: value for key, value in FUNCTION_CALL.items() if key != "id"}
    for model in ("gpt-6-sol", "gpt-4o"):
        # A call that followed from no reasoning misses none.
        plain = {"model": model, "output": [FUNCTION_CALL]}
        assert _after(f"openai:{model}", plain, f"openai:{model}").body["input"][1] == FUNCTION_CALL


def test_reasoning_with_nothing_behind_it_is_left_out() -> None:
    reply = {"model": "gpt-6-sol", "output": [ANSWER, REASONING]}
    request = _after("openai:gpt-6-sol", reply, "openai:gpt-6-sol")
    assert REASONING not in request.body["input"]
    assert request.left_out == ({"entry": 3, "reason": "reasoning without an item behind it"},)


def test_reasoning_that_nobody_stored_is_left_out() -> None:
    bare = {"type": "reasoning", "id": "rs_1", "summary": []}
    reply = {"model": "gpt-6-sol", "output": [bare, ANSWER]}
    request = _after("openai:gpt-6-sol", reply, "openai:gpt-6-sol")
    assert bare not in request.body["input"]
    prompt = _prompt(user("q"), *parse_reply("openai:gpt-6-sol", reply).entries)
    assert bare in render(prompt, "openai:gpt-6-sol", store=True).body["input"]


CALLED = {"functionCall": {"id": "1", "name": "f", "args": {}}, "thoughtSignature": "c2ln"}
SECOND = {"functionCall": {"id": "2", "name": "f", "args": {}}}


def _gemini(*parts: JsonObject) -> JsonObject:
    return {"modelVersion": "gemini-3.8-flash", "candidates": [{"content": {"role": "model", "parts": list(parts)}}]}


@pytest.mark.proves("gemini", "thinking kept")
def test_gemini_gets_its_thought_signatures_back_on_the_same_parts() -> None:
    thought, empty = {"text": "hm", "thought": True}, {"text": "", "thoughtSignature": "ZW5k"}
    reply = _gemini(thought, CALLED, SECOND, empty)
    request = _after("gemini:gemini-3.8-flash", reply, "gemini:gemini-3.8-flash")
    assert request.body["contents"][1]["parts"] == [thought, CALLED, SECOND, empty]


def test_a_call_that_gemini_did_not_make_says_so() -> None:
    other = {"content": [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": {}} for n in (1, 2)]}
    parts = _after(OPUS, other, "gemini:gemini-3.8-flash").body["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == ["skip_thought_signature_validator", None]
    moved = _after("gemini:gemini-3.8-flash", _gemini(CALLED), "gemini:gemini-3.1-pro-preview")
    assert moved.body["contents"][1]["parts"][0]["thoughtSignature"] == "skip_thought_signature_validator"
    assert moved.left_out[0]["reason"] == "thought signature of gemini-3.8-flash means nothing here"
    assert "thoughtSignature" not in _after(OPUS, other, "gemini:gemini-2.5-pro").body["contents"][1]["parts"][0]


def test_a_call_without_an_id_is_answered_without_one() -> None:
    reply = _gemini({"functionCall": {"name": "f", "args": {}}}, {"functionCall": {"name": "g", "args": {}}})
    contents = _after("gemini:gemini-3.8-flash", reply, "gemini:gemini-3.8-flash").body["contents"]
    assert [sorted(part["functionResponse"]) for part in contents[2]["parts"]] == [["name", "response"]] * 2
    assert [part["functionResponse"]["name"] for part in contents[2]["parts"]] == ["f", "g"]


@pytest.mark.proves("deepseek", "thinking kept")
def test_deepseek_gets_every_thought_back_whoever_thought_it() -> None:
    request = render(_prompt(user("q"), think("hm"), respond("a"), user("and?")), "deepseek:deepseek-v4-flash")
    assert request.body["messages"][1] == {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    without = render(_prompt(user("q"), respond("a"), user("and?")), "deepseek:deepseek-v4-flash")
    assert without.body["messages"][1]["reasoning_content"] == ""


@pytest.mark.proves("openrouter", "thinking kept")
def test_openrouter_gets_its_reasoning_details_back() -> None:
    details = [{"type": "reasoning.encrypted", "data": "ZW5j"}]
    message = {"role": "assistant", "content": "a", "reasoning": "hm", "reasoning_details": details}
    reply = {"model": "anthropic/claude-opus-5.5", "choices": [{"message": message}]}
    target = "openrouter:anthropic/claude-opus-5.5"
    assert _after(target, reply, target).body["messages"][1] == message


def test_a_thought_without_a_provider_is_not_sent_to_one_that_signs_them() -> None:
    request = render(_prompt(user("q"), think("hm"), respond("a"), user("and?")), OPUS)
    assert request.left_out == ({"entry": 2, "reason": "thinking without a provider's signature is not sent"},)


def test_text_that_was_cut_is_not_replaced_by_its_original_block() -> None:
    cited = Text("sa...", {"format": "anthropic", "model": "claude-opus-5-5", "block": CITED})
    asked = Message("user", (Text("q"),))
    prompt = Prompt("", "", (), (asked, Message("assistant", (cited,)), asked))
    assert render(prompt, OPUS).body["messages"][1]["content"] == [{"type": "text", "text": "sa..."}]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("claude-opus-5-5", "claude-opus-5-5-20261001", True),
        ("us.anthropic.claude-opus-5-5-20261001-v1:0", "claude-opus-5-5", True),
        ("gpt-6-sol", "gpt-6-sol-2026-05-01", True),
        ("models/gemini-3.8-flash", "gemini-3.8-flash", True),
        ("publishers/google/models/gemini-3.8-flash", "gemini-3.8-flash", True),
        ("arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-opus-5-5", "claude-opus-5-5", True),
        ("", "anything", True),
        ("claude-opus-5", "claude-opus-5-5", False),
        ("gpt-5", "gpt-5-mini", False),
    ],
)
def test_a_model_is_known_under_all_its_names(one: str, other: str, same: bool) -> None:
    assert same_model(one, other) is same
