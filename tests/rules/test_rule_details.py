"""What the rules leave alone: requests that look odd and are right."""

from typing import Any

import msgspec
import pytest
from rule_bodies import (
    LONG,
    OPUS,
    SHORT,
    SIGNED,
    answers,
    ask,
    asks,
    chat,
    claude,
    contents,
    fc,
    fr,
    function_call,
    items,
    late,
    model,
    output,
    reply,
    result,
    say,
    thought,
    tool,
    use,
    user,
)

from quire.errors import CallError
from quire.providers.rules import detect, validate
from quire.values import Request

QUESTION = {"role": "user", "content": "q"}


def rows(body: Any, provider: str, name: str | None = None, **given: Any) -> list[str]:
    return [one.row for one in validate(body, provider, name, **given)]


def test_neighbours_of_one_role_are_joined_as_the_api_joins_them() -> None:
    assert rows(claude(user(), user(), model(use()), model(say()), user(result()), user(say())), "anthropic") == []


def test_a_paused_server_tool_is_resumed_not_prefilled() -> None:
    paused = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    assert rows(claude(user(), model(say(), paused)), "anthropic") == []


def test_a_continued_thread_answers_calls_that_the_server_holds() -> None:
    body = claude(user(result()), thread={"type": "continue", "previous_message_id": "msg_1"})
    assert rows(body, "anthropic") == []
    assert rows(claude(user(result())), "anthropic") == ["B2.2"]


def test_an_effort_change_needs_no_text() -> None:
    body = claude(user(), {"role": "system", "output_config": {"effort": "low"}})
    assert rows(body, "anthropic") == []


def test_without_a_model_its_own_rules_are_not_checked() -> None:
    body = {
        "messages": [QUESTION, {"role": "assistant", "content": "a"}],
        "temperature": 0.2,
        "thinking": {"type": "disabled"},
    }
    assert rows(body, "anthropic") == []


def test_the_top_level_mark_walks_back_over_what_cannot_be_marked() -> None:
    thinking = {"type": "thinking", "thinking": "t", "signature": "s"}
    marked = claude(
        user(), model(say("a", cache_control=LONG), thinking), cache_control=LONG, fallback_credit_token="t"
    )
    assert rows(marked, "anthropic") == []
    assert rows({**marked, "cache_control": SHORT}, "anthropic") == ["B2.8"]


def test_the_top_level_mark_on_a_marked_block_takes_no_place() -> None:
    body = claude(user(*[say(cache_control=SHORT)] * 4), cache_control=SHORT)
    assert rows(body, "anthropic") == []


def test_marks_in_tool_results_and_tools_count() -> None:
    results = user(result(content=[say(cache_control=SHORT)], cache_control=SHORT))
    body = claude(user(say(cache_control=SHORT)), model(use()), results, tools=[tool(cache_control=SHORT)])
    assert rows(body, "anthropic") == []
    assert rows({**body, "system": [say(cache_control=SHORT)]}, "anthropic") == ["B2.6"]


def test_betas_are_read_from_headers_from_the_body_and_from_the_sdks_call() -> None:
    beta = "thinking-binding-controls-2026-08-01"
    body = claude(thinking={"type": "adaptive", "block_binding": {}})
    assert rows(body, "anthropic", headers={"Anthropic-Beta": f"other, {beta}"}) == []
    assert rows({**body, "extra_headers": {"anthropic-beta": beta}}, "anthropic") == []
    assert rows(body, "anthropic", headers={}) == ["B2.13"]


def test_late_changes_need_their_betas_where_headers_are_known() -> None:
    added = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}
    inline = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool("g")}}
    body = claude(user(), {**late(), "content": [added, inline], "output_config": {"effort": "low"}})
    assert rows(body, "anthropic") == []
    assert rows(body, "anthropic", headers={}) == ["B.beta"] * 3
    betas = "mid-conversation-tool-changes-2026-07-01,inline-tools-2026-09-15,mid-conversation-output-config-2026-07-01"
    assert rows(body, "anthropic", headers={"anthropic-beta": betas}) == []


def test_ids_may_be_reused_by_later_calls() -> None:
    body = chat(QUESTION, asks("1"), answers("1"), asks("1"), answers("1"), QUESTION)
    assert rows(body, "openai-chat") == []
    again = items(thought(), function_call(), output(), thought("rs_2"), function_call(), output())
    assert rows(again, "openai") == []


def test_reasoning_once_in_a_turn_is_enough_and_other_models_need_none() -> None:
    steps = items(thought(), function_call("a", id="fc_1"), output("a"), function_call("b", id="fc_2"), output("b"))
    assert rows(steps, "openai") == []
    alone = items(function_call(id="fc_1"), output())
    assert rows({**alone, "model": "gpt-4o"}, "openai") == []
    assert rows({**alone, "reasoning": {"effort": "none"}}, "openai") == []
    assert rows({**alone, "previous_response_id": "resp_1"}, "openai") == []


def test_gemini_signatures_are_asked_of_the_current_turn_and_of_newer_models_only() -> None:
    old = (ask(), reply(fc()), ask(fr()), reply())
    assert rows(contents(*old, ask()), "gemini", "gemini-3.8-flash") == []
    assert rows(contents(ask(), reply(fc()), ask(fr())), "gemini", "gemini-2.5-pro") == []
    steps = (ask(), reply(fc(**SIGNED)), ask(fr()), reply(fc()), ask(fr()))
    assert rows(contents(*steps), "gemini", "gemini-3.8-flash") == ["B2.30"]


def test_gemini_takes_the_sdks_spelling_and_short_forms() -> None:
    call = {"function_call": {"name": "f", "args": {}}, "thought_signature": b"s"}
    answer = {"function_response": {"name": "f", "response": {}}}
    body = {
        "model": "gemini-3.8-flash",
        "contents": ["q", {"role": "model", "parts": [call]}, {"role": "user", "parts": [answer]}],
    }
    assert rows(body, "gemini") == []
    assert rows({"contents": "q"}, "gemini", "gemini-3.8-flash") == []
    assert rows({"contents": [{"text": "q"}]}, "gemini", "gemini-3.8-flash") == []


def test_behind_a_cached_content_the_conversation_has_begun() -> None:
    body = contents(reply(), ask(), cachedContent="cachedContents/a")
    assert rows(body, "gemini", "gemini-3.8-flash") == []


def test_an_explicit_cache_with_media_is_not_measured() -> None:
    body = contents(ask({"inlineData": {"mimeType": "image/png", "data": "AA=="}}), ttl="300s")
    assert rows(body, "gemini", "gemini-3.8-flash") == []


def test_deepseek_without_thinking_or_calls_needs_no_reasoning() -> None:
    plain = chat(QUESTION, {"role": "assistant", "content": "a"}, QUESTION)
    assert rows(plain, "deepseek", "deepseek-v4-pro") == []
    called = chat(QUESTION, asks("1"), answers("1"))
    assert rows(called, "deepseek", "deepseek-chat") == []
    assert rows({**called, "extra_body": {"thinking": {"type": "disabled"}}}, "deepseek", "deepseek-v4-pro") == []
    assert rows(chat(QUESTION, asks("1", reasoning_content=""), answers("1")), "deepseek", "deepseek-v4-pro") == []


@pytest.mark.proves("azure xai groq openrouter sglang llamacpp", "rules")
@pytest.mark.parametrize("provider", ["azure-chat", "xai", "groq", "openrouter", "sglang", "llamacpp", "local", "vllm"])
def test_every_server_that_speaks_chat_wants_results_behind_their_calls(provider: str) -> None:
    assert rows(chat(QUESTION, asks("1"), answers("1")), provider, "m") == []
    assert rows(chat(QUESTION, asks("1"), QUESTION), provider, "m") == ["B2.21"]
    assert rows(chat(QUESTION, answers("1")), provider, "m") == ["B2.22"]


def test_local_servers_take_any_tool_name() -> None:
    named = [{"type": "function", "function": {"name": "files.read"}}]
    assert rows(chat(QUESTION, tools=named), "vllm", "qwen3") == []
    assert rows(chat(QUESTION, tools=named), "groq", "openai/gpt-oss-20b") == ["B2.17"]


@pytest.mark.parametrize(
    ("body", "whose"),
    [
        (claude(), "anthropic"),
        ({"messages": [QUESTION], "system": "S"}, "anthropic"),
        ({"model": OPUS, "messages": [QUESTION]}, "anthropic"),
        (chat(QUESTION), "openai-chat"),
        (chat(QUESTION, asks("1"), answers("1")), "openai-chat"),
        ({"model": "deepseek-v4-pro", "messages": [QUESTION]}, "deepseek"),
        ({"model": "deepseek-v4-pro", "messages": [QUESTION], "thinking": {"type": "disabled"}}, "deepseek"),
        ({"model": "mistral-large-latest", "messages": [QUESTION]}, "mistral"),
        ({"model": "anthropic/claude-opus-5.5", "messages": [QUESTION]}, "openrouter"),
        (items(), "openai-responses"),
        (contents(ask()), "gemini"),
        ({"messages": [{"role": "user", "content": [{"text": "q"}]}]}, "bedrock"),
        ({"modelId": "x", "messages": []}, "bedrock"),
        ({}, None),
        (3, None),
    ],
)
def test_a_request_tells_whose_it_is(body: Any, whose: str | None) -> None:
    assert detect(body) == whose


def test_a_rendered_request_says_whose_it_is_itself() -> None:
    body = claude(context_management={"edits": [{"type": "clear_thinking_20251015"}]})
    request = Request(provider="anthropic", model=OPUS, body=body)
    assert [one.row for one in validate(request)] == ["B.beta"]
    beta = {"anthropic-beta": "context-management-2025-06-27"}
    assert validate(msgspec.structs.replace(request, headers=beta)) == []
    assert validate(body) == []


def test_a_request_that_tells_nothing_needs_a_provider() -> None:
    with pytest.raises(CallError, match="whose request"):
        validate({})


def test_openai_means_whichever_of_its_formats_the_body_is_in() -> None:
    assert rows(chat(QUESTION, asks("1"), QUESTION), "openai") == ["B2.21"]
    assert rows(items(function_call(), thought()), "openai-chat") == ["B2.24", "B2.25"]
