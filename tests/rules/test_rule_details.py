"""What the rules leave alone: requests that look odd and are right."""

from typing import Any

import msgspec
import pytest
from rule_bodies import *

from quire import Request, validate
from quire.errors import CallError
from quire.providers.rules import errors
from quire.providers.wires import detect

QUESTION = {"role": "user", "content": "q"}


THINKING = {"type": "thinking", "thinking": "t", "signature": "s"}
PAUSED = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
EFFORT = {"output_config": {"effort": "low"}}
MARKED = claude(user(), model(say("a", cache_control=LONG), THINKING), cache_control=LONG, fallback_credit_token="t")
MARKED_RESULTS = user(result(content=[say(cache_control=SHORT)], cache_control=SHORT))
MARKED_TOOLS = claude(user(say(cache_control=SHORT)), model(use()), MARKED_RESULTS, tools=[tool(cache_control=SHORT)])
BETA = "thinking-binding-controls-2026-08-01"
BOUND = claude(thinking={"type": "adaptive", "block_binding": {}})
ADDED = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "f"}}
INLINE = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool("g")}}
CHANGED = claude(user(), {**late(), "content": [ADDED, INLINE], **EFFORT})
BETAS = "mid-conversation-tool-changes-2026-07-01,inline-tools-2026-09-15,mid-conversation-output-config-2026-07-01"
STEPS = items(thought(), function_call("a", id="fc_1"), output("a"), function_call("b", id="fc_2"), output("b"))
UNREASONED = items(function_call(id="fc_1"), output())
SDK_CALL = {"function_call": {"name": "f", "args": {}}, "thought_signature": b"s"}
SDK_ANSWER = {"function_response": {"name": "f", "response": {}}}
SDK_TURNS = ["q", {"role": "model", "parts": [SDK_CALL]}, {"role": "user", "parts": [SDK_ANSWER]}]
CALLED = chat(QUESTION, asks("1"), answers("1"))
FLASH, DEEPSEEK = "gemini:gemini-3.8-flash", "deepseek:deepseek-v4-pro"
NAMED = chat(QUESTION, tools=[{"type": "function", "function": {"name": "files.read"}}])

# What is asked of whom, and the rows that it breaks; `headers` where they are known.
CASES: dict[str, list[tuple[Any, ...]]] = {
    "neighbours of one role are joined as the API joins them": [
        (claude(user(), user(), model(use()), model(say()), user(result()), user(say())), "anthropic", [])
    ],
    "a paused server tool is resumed, not prefilled": [(claude(user(), model(say(), PAUSED)), "anthropic", [])],
    "a continued thread answers calls that the server holds": [
        (claude(user(result()), thread={"type": "continue", "previous_message_id": "msg_1"}), "anthropic", []),
        (claude(user(result())), "anthropic", ["B2.2"]),
    ],
    "an effort change needs no text": [(claude(user(), {"role": "system", **EFFORT}), "anthropic", [])],
    "without a model its own rules are not checked": [
        ({"messages": [QUESTION, model()], "temperature": 0.2, "thinking": {"type": "disabled"}}, "anthropic", [])
    ],
    "the top-level mark walks back over what cannot be marked": [
        (MARKED, "anthropic", []),
        ({**MARKED, "cache_control": SHORT}, "anthropic", ["B2.8"]),
    ],
    "the top-level mark on a marked block takes no place": [
        (claude(user(*[say(cache_control=SHORT)] * 4), cache_control=SHORT), "anthropic", [])
    ],
    "marks in tool results and tools count": [
        (MARKED_TOOLS, "anthropic", []),
        ({**MARKED_TOOLS, "system": [say(cache_control=SHORT)]}, "anthropic", ["B2.6"]),
    ],
    "betas are read from headers, from the body and from the SDK's call": [
        (BOUND, "anthropic", [], {"Anthropic-Beta": f"other, {BETA}"}),
        ({**BOUND, "extra_headers": {"anthropic-beta": BETA}}, "anthropic", []),
        (BOUND, "anthropic", ["B2.13"], {}),
    ],
    "late changes need their betas where headers are known": [
        (CHANGED, "anthropic", []),
        (CHANGED, "anthropic", ["B.beta"] * 3, {}),
        (CHANGED, "anthropic", [], {"anthropic-beta": BETAS}),
    ],
    "ids may be reused by later calls": [
        (chat(QUESTION, asks("1"), answers("1"), asks("1"), answers("1"), QUESTION), "openai-chat", []),
        (items(thought(), function_call(), output(), thought("rs_2"), function_call(), output()), "openai", []),
    ],
    "reasoning once in a turn is enough, and other models need none": [
        (STEPS, "openai", []),
        ({**UNREASONED, "model": "gpt-4o"}, "openai", []),
        ({**UNREASONED, "reasoning": {"effort": "none"}}, "openai", []),
        ({**UNREASONED, "previous_response_id": "resp_1"}, "openai", []),
    ],
    "gemini's signatures are asked of the current turn and of newer models only": [
        (contents(ask(), reply(fc()), ask(fr()), reply(), ask()), FLASH, []),
        (contents(ask(), reply(fc()), ask(fr())), "gemini:gemini-2.5-pro", []),
        (contents(ask(), reply(fc(**SIGNED)), ask(fr()), reply(fc()), ask(fr())), FLASH, ["B2.30"]),
    ],
    "gemini takes the SDK's spelling and short forms": [
        ({"model": "gemini-3.8-flash", "contents": SDK_TURNS}, "gemini", []),
        ({"contents": "q"}, FLASH, []),
        ({"contents": [{"text": "q"}]}, FLASH, []),
    ],
    "behind a cached content the conversation has begun": [
        (contents(reply(), ask(), cachedContent="cachedContents/a"), FLASH, [])
    ],
    "an explicit cache with media is not measured": [
        (contents(ask({"inlineData": {"mimeType": "image/png", "data": "AA=="}}), ttl="300s"), FLASH, [])
    ],
    "deepseek without thinking or calls needs no reasoning": [
        (chat(QUESTION, {"role": "assistant", "content": "a"}, QUESTION), DEEPSEEK, []),
        (CALLED, "deepseek:deepseek-chat", []),
        ({**CALLED, "extra_body": {"thinking": {"type": "disabled"}}}, DEEPSEEK, []),
        (chat(QUESTION, asks("1", reasoning_content=""), answers("1")), DEEPSEEK, []),
    ],
    "local servers take any tool name": [(NAMED, "vllm:qwen3", []), (NAMED, "groq:openai/gpt-oss-20b", ["B2.17"])],
    "openai means whichever of its formats the body is in": [
        (chat(QUESTION, asks("1"), QUESTION), "openai", ["B2.21"]),
        (items(function_call(), thought()), "openai-chat", ["B2.24", "B2.25"]),
    ],
}


def rows(body: Any, target: str, headers: dict[str, str] | None = None) -> list[str]:
    provider, _, name = target.partition(":")
    return [one.row for one in validate(body, provider, name or None, headers=headers)]


@pytest.mark.parametrize("case", CASES)
def test_a_request_breaks_these_rows_and_no_other(case: str) -> None:
    for body, target, broken, *headers in CASES[case]:
        assert rows(body, target, *headers) == broken


SPOKEN_BLANK = converse(turn("user", {"text": "q"}), turn("assistant", {"text": " "}), turn("user", {"text": "q"}))
# What providers were recorded to take is advice; the nearest thing that they refuse is an error.
ASKED = turn("user")
SEVERITIES = {
    "a system message behind the assistant": (claude(user(), model(), late()), "anthropic", "B2.14", "warning"),
    "a system message before the user": (claude(user(), late(), user()), "anthropic", "B2.14", "warning"),
    "a system message in front": (claude(late(), user()), "anthropic", "B2.14", "error"),
    "a blank text of the model": (SPOKEN_BLANK, "bedrock", "B2.35", "warning"),
    "a blank text of the user": (converse(turn("user", {"text": " "})), "bedrock", "B2.35", "error"),
    "words of the model in front": (contents(reply(), ask()), FLASH, "B2.28", "warning"),
    "a call in front": (contents(reply(fc(**SIGNED)), ask(fr())), FLASH, "B2.28", "error"),
    "responses one by one": (
        contents(ask(), reply(fc(**SIGNED), fc()), ask(fr()), ask(fr())),
        FLASH,
        "B2.29",
        "warning",
    ),
    "a response too few": (contents(ask(), reply(fc(**SIGNED), fc()), ask(fr()), ask()), FLASH, "B2.29", "error"),
    "the user twice": (
        {**converse(ASKED, ASKED), "modelId": "us.amazon.nova-pro-v1:0"},
        "bedrock",
        "B.converse",
        "warning",
    ),
    "no tokens at OpenAI": ({**chat(QUESTION), "model": "gpt-4o", "max_tokens": 0}, "openai-chat", "B.shape", "error"),
}


@pytest.mark.parametrize("case", SEVERITIES)
def test_what_providers_take_is_a_warning_and_what_they_refuse_an_error(case: str) -> None:
    body, target, row, severity = SEVERITIES[case]
    provider, _, name = target.partition(":")
    assert [(one.row, one.severity) for one in validate(body, provider, name or None)] == [(row, severity)]


@pytest.mark.parametrize(("provider", "least"), [("ollama", 0), ("llamacpp", 0), ("vllm", 1), ("sglang", 1)])
def test_servers_of_open_models_take_any_most_of_tokens(provider: str, least: int) -> None:
    assert errors(validate(chat(QUESTION, max_tokens=-1), provider, "m")) == []
    refused = [one.path for one in errors(validate(chat(QUESTION, max_tokens=0), provider, "m"))]
    assert refused == ["$.max_tokens"] * least


@pytest.mark.proves("azure xai groq openrouter sglang llamacpp", "rules")
@pytest.mark.parametrize("provider", ["azure-chat", "xai", "groq", "openrouter", "sglang", "llamacpp", "local", "vllm"])
def test_every_server_that_speaks_chat_wants_results_behind_their_calls(provider: str) -> None:
    def refused(*messages: Any) -> list[str]:
        return [one.row for one in errors(validate(chat(*messages), provider, "m"))]

    assert refused(QUESTION, asks("1"), answers("1")) == []
    assert refused(QUESTION, asks("1"), QUESTION) == ["B2.21"]
    assert refused(QUESTION, answers("1")) == ["B2.22"]


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
