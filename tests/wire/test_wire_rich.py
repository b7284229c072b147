"""Rich conversations: verbatim to their own format, legal for every other provider, before and after a rebase."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_wire_convert import MESSAGES, _through_the_log
from wire_prompts import TARGETS
from wire_rich import RICH

import quire
from quire import Entry, render
from quire.providers import FORMATS, export, import_
from quire.providers.convert import project, strange_kinds
from quire.testing import assert_valid
from quire.tokens import IMAGE_TOKENS
from quire.values import JsonObject, Message, Prompt, Text
from toolbox import closed_later, fewer

LOOK: JsonObject = {"name": "look", "description": "d", "parameters": {"type": "object", "properties": {}}}
# Who may have written a conversation, as far as its format says.
WRITERS = {"anthropic": "claude-opus-5-5", "gemini": "gemini-3.8-flash", "bedrock": "anthropic.claude-opus-5-5"}


def prompt_of(entries: list[Entry], **fields: Any) -> Prompt:
    numbered = [Entry(entry.kind, entry.body, seq) for seq, entry in enumerate(entries, 1)]
    messages = tuple(project(numbered))
    fold = min(fields.pop("fold", 0), len(messages))
    return Prompt("", fields.pop("system", "S"), fields.pop("tools", (LOOK,)), messages, fold=fold, **fields)


@pytest.mark.parametrize("format", FORMATS)
def test_a_rich_conversation_comes_back_as_it_was(format: str) -> None:
    entries = _through_the_log(import_(format, RICH[format]))
    assert json.dumps(export(format, entries)) == json.dumps(RICH[format])
    for message in RICH[format]:
        assert export(format, _through_the_log(import_(format, [message]))) == [message]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("format", FORMATS)
def test_a_rich_conversation_is_legal_at_every_step_for_every_provider(format: str, target: str) -> None:
    entries = import_(format, RICH[format], WRITERS.get(format, "gpt-6-sol"))
    for length in range(1, len(entries)):
        assert_valid(render(prompt_of(entries[:length]), target))
    for tools, epoch, cache in product(((LOOK,), ()), (1, 2), (False, True)):
        prompt = prompt_of(entries, tools=tools, epoch=epoch, fold=3 * (epoch - 1))
        assert_valid(render(prompt, target, cache=cache))


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
@fewer(6)
def test_a_generated_conversation_is_legal_for_any_provider(format: str, data: st.DataObject) -> None:
    kinds = st.one_of(MESSAGES[format], st.sampled_from(RICH[format]))
    messages = data.draw(st.lists(kinds, max_size=5))
    model = data.draw(st.sampled_from(["", "claude-opus-5-5", "gpt-6-sol", "gemini-3.8-flash"]))
    prompt = prompt_of(
        import_(format, messages, model),
        system=data.draw(st.sampled_from(["", "S", " "])),
        tools=data.draw(st.sampled_from([(), (LOOK,)])),
        epoch=data.draw(st.sampled_from([1, 2])),
        fold=data.draw(st.integers(0, 3)),
    )
    for target in data.draw(st.lists(st.sampled_from(TARGETS), min_size=1, max_size=3)):
        request = render(prompt, target, cache=data.draw(st.booleans()))
        json.dumps(request.body)
        assert_valid(request)


SAME = [
    ("anthropic", "anthropic:claude-opus-5-5", "messages", "content"),
    ("openai-chat", "openai-chat:gpt-6-sol", "messages", "content"),
    ("openai-responses", "openai:gpt-6-sol", "input", "content"),
    ("openai-agents", "openai:gpt-6-sol", "input", "content"),
    ("gemini", "gemini:gemini-3.8-flash", "contents", "parts"),
    ("bedrock", "bedrock:anthropic.claude-opus-5-5", "messages", "content"),
]


@pytest.mark.parametrize(("format", "target", "messages", "content"), SAME)
def test_documents_audio_and_files_go_back_to_the_provider_they_came_from(
    format: str, target: str, messages: str, content: str
) -> None:
    given = next(one for one in RICH[format] if one.get("role") == "user")
    body = render(prompt_of(import_(format, [given]), system=""), target).body
    marks = {"cache_control", "prompt_cache_breakpoint"}
    bare = [
        {key: value for key, value in block.items() if key not in marks}
        for block in given[content]
        if "cachePoint" not in block
    ]
    assert body[messages][0][content] == bare


@pytest.mark.parametrize(("format", "target", "messages", "content"), SAME)
def test_where_the_text_changed_they_stand_behind_it(format: str, target: str, messages: str, content: str) -> None:
    given = next(one for one in RICH[format] if one.get("role") == "user")
    first, *more = project(import_(format, [given]))
    asked = Text(f"Context.\n\n{first.parts[0].text}", first.parts[0].wire)
    request = render(Prompt("", "", (), (Message("user", (asked, *first.parts[1:])), *more)), target)
    blocks = request.body[messages][0][content]
    assert blocks[0].get("text", "").startswith("Context.")
    assert "[" in blocks[0]["text"]
    assert len(json.dumps(blocks)) > len(json.dumps(given[content])) // 2
    assert_valid(request)


def test_another_provider_is_told_what_is_missing_and_the_request_says_why() -> None:
    request = render(prompt_of(import_("anthropic", RICH["anthropic"][:1])), "openai:gpt-6-sol")
    assert request.left_out[0]["reason"].startswith("document, image file, search_result from anthropic")
    assert "[document: T]" in json.dumps(request.body)


PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
SHOWN: list[JsonObject] = [
    {"role": "user", "content": "Look."},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "a"}, PICTURE]}]},
]  # fmt: skip


@pytest.mark.parametrize("target", [*TARGETS, "cohere:command-a-03-2025"])
def test_an_image_in_a_result_goes_along_or_the_request_says_that_it_does_not(target: str) -> None:
    request = render(prompt_of(import_("anthropic", SHOWN, "claude-opus-5-5")), target)
    reason = "image in a result from anthropic cannot go along"
    told = [one for one in request.left_out if one["reason"] == reason]
    assert told == ([] if "aGk=" in json.dumps(request.body) else [{"entry": 3, "reason": reason}])
    assert ("aGk=" in json.dumps(request.body)) == (target.startswith(SEEING))
    assert_valid(request)


@pytest.mark.parametrize("tools", [(), (LOOK,)])
@pytest.mark.parametrize("model", [WRITERS["bedrock"], "anthropic.claude-haiku-4-5", "amazon.nova-pro-v1:0"])
def test_an_image_in_a_result_of_converse_goes_along_where_the_result_is_told_as_text(
    model: str, tools: tuple[JsonObject, ...]
) -> None:
    picture = {"image": {"format": "png", "source": {"bytes": "aGk="}}}
    result = {"toolResult": {"toolUseId": "c1", "content": [{"text": "a"}, picture]}}
    calling = {"toolUse": {"toolUseId": "c1", "name": "look", "input": {}}}
    messages = [("user", {"text": "Look."}), ("assistant", calling), ("user", result)]
    entries = import_("bedrock", [{"role": role, "content": [block]} for role, block in messages], WRITERS["bedrock"])
    request = render(prompt_of(entries, tools=tools), f"bedrock:{model}")
    assert (json.dumps(request.body).count("aGk="), "image" in str(request.left_out)) == (1, False)
    assert_valid(request)


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": "a"}], [{"type": "text", "text": ""}]])
def test_a_result_without_images_is_written_anew_for_another_model(content: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": "c1", "content": content}
    entries = import_("anthropic", [*SHOWN[:2], {"role": "user", "content": [result]}], "claude-opus-5-5")
    request = render(prompt_of(entries), "anthropic:claude-haiku-4-5")
    assert request.body["messages"][2]["content"][0]["content"] == (entries[2].body["content"] or "(no output)")


# Other models of the same format, and those of Chat, whose tool messages hold text alone.
SEEING = ("anthropic:", "openai-chat:", "xai:", "openrouter:")


def test_images_of_results_stand_behind_all_of_them_where_results_are_text() -> None:
    calls = [{"type": "tool_use", "id": id, "name": "look", "input": {}} for id in ("c1", "c2")]
    results = [{"type": "tool_result", "tool_use_id": id, "content": [PICTURE]} for id in ("c1", "c2")]
    messages = [SHOWN[0], {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    messages += [{"role": "assistant", "content": "Two."}, {"role": "user", "content": "And now?"}]
    entries = import_("anthropic", messages, "claude-opus-5-5")
    shorter, longer = (render(prompt_of(entries[:count]), "openai-chat:gpt-6-sol").body for count in (5, 7))
    assert [
        message["role"] for message in longer["messages"][1:]
    ] == "user assistant tool tool user assistant user".split()
    pictures = [part["image_url"]["url"] for part in longer["messages"][5]["content"] if part["type"] == "image_url"]
    assert pictures == ["data:image/png;base64,aGk="] * 2
    assert longer["messages"][: len(shorter["messages"])] == shorter["messages"]
    assert "image_url" not in json.dumps(export("openai-chat", entries))


@pytest.mark.parametrize("target", [*TARGETS, "cohere:command-a-03-2025"])
def test_an_image_in_a_tool_message_goes_along_or_the_request_says_that_it_does_not(target: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    content = [{"type": "text", "text": "a"}, picture]
    messages = [SHOWN[0], {"role": "assistant", "content": None, "tool_calls": [call]}]
    entries = import_(
        "openai-chat", [*messages, {"role": "tool", "tool_call_id": "c1", "content": content}], "gpt-6-sol"
    )
    request = render(prompt_of(entries), target)
    told = [{"entry": 3, "reason": "image_url in a result from openai-chat cannot go along"}]
    shown = json.dumps(request.body).count("aGk=")
    assert (shown, list(request.left_out)) in [(1, []), (0, told)]
    assert shown == target.startswith(SEEING[1:])


def test_images_of_results_count_where_they_are_shown(tmp_path: Path) -> None:
    thread = closed_later(quire.open(tmp_path / "t.db", "t"))
    thread.append(*import_("anthropic", SHOWN, "claude-opus-5-5"))
    sizes = {
        target: thread.build(target).sizes[-1] for target in ("openai-chat:gpt-6-sol", "deepseek:deepseek-v4-flash")
    }
    assert [size > IMAGE_TOKENS for size in sizes.values()] == [True, False]


def test_what_no_provider_would_take_is_named_in_the_text_alone() -> None:
    odd = {"role": "user", "content": [{"type": "document", "source": {}}, {"type": "text", "text": "q"}]}
    request = render(prompt_of(import_("anthropic", [odd]), system="", tools=()), "anthropic:claude-opus-5-5")
    assert request.body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "[document]\nq"}]}]
    assert request.left_out == ({"entry": 1, "reason": "document from anthropic cannot go along; the text names what is missing"},)  # fmt: skip


def test_results_without_an_id_answer_the_calls_without_one() -> None:
    entries = import_("gemini", RICH["gemini"][:3])
    calls = {entry.call_id: entry for entry in entries if entry.kind == "call"}
    results = [entry for entry in entries if entry.kind == "result"]
    assert [entry.call_id for entry in results] == list(calls)
    assert [entry.body["content"] for entry in results] == ['{"output":"ok","more":1}', "boom"]


def test_a_providers_own_search_is_left_out_elsewhere_and_the_request_says_so() -> None:
    request = render(prompt_of(import_("anthropic", RICH["anthropic"], "claude-opus-5-5")), "openai-chat:gpt-4o")
    reasons = [one["reason"] for one in request.left_out]
    assert "server_tool_use of claude-opus-5-5 means nothing to openai:gpt-4o" in reasons
    # Marks of an earlier request are not sent again.
    again = render(prompt_of(import_("anthropic", RICH["anthropic"], "claude-opus-5-5")), "anthropic:claude-opus-5-5")
    assert "cache_control" not in json.dumps(again.body)


UNSIGNED = [
    ("anthropic", "anthropic:claude-opus-5-5", {"type": "thinking", "thinking": "hm"}),
    ("bedrock", "bedrock:anthropic.claude-opus-5-5", {"reasoningContent": {"reasoningText": {"text": "hm"}}}),
]


@pytest.mark.parametrize(("format", "target", "block"), UNSIGNED)
def test_thinking_that_nobody_signed_is_left_out(format: str, target: str, block: JsonObject) -> None:
    said = {"type": "text", "text": "a"} if format == "anthropic" else {"text": "a"}
    asked = {**said, "text": "q"}
    messages = [{"role": "user", "content": [asked]}, {"role": "assistant", "content": [block, said]}]
    entries = import_(format, messages)
    assert export(format, entries) == messages
    request = render(prompt_of(entries), target)
    assert_valid(request)
    assert "hm" not in json.dumps(request.body)
    assert len(request.left_out) == 1


STRANGE = [
    ("openai-responses", {"type": "levitation_call", "id": "lc_1"}, "openai:gpt-6-sol"),
    ("openai-agents", {"type": "levitation_call", "id": "lc_1"}, "openai:gpt-6-sol"),
    ("anthropic", {"role": "assistant", "content": [{"type": "levitation"}]}, "anthropic:claude-opus-5-5"),
    ("bedrock", {"role": "assistant", "content": [{"levitation": {}}]}, "bedrock:amazon.nova-lite-v1:0"),
    ("gemini", {"role": "model", "parts": [{"levitation": {}}]}, "gemini:gemini-3.8-flash"),
]


@pytest.mark.parametrize(("format", "message", "target"), STRANGE)
def test_what_nobody_knows_is_kept_and_named_but_not_sent(format: str, message: JsonObject, target: str) -> None:
    entries = import_(format, [message])
    assert export(format, entries) == [message]
    assert strange_kinds(entries)[0].startswith("levitation")
    request = render(prompt_of(entries), target)
    assert_valid(request)
    assert "levitation" in request.left_out[0]["reason"]


def test_nothing_of_the_rich_conversations_is_strange() -> None:
    for format, messages in RICH.items():
        assert strange_kinds(import_(format, messages)) == []


def test_a_chat_request_keeps_its_tools() -> None:
    function = {"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}
    request = {"tools": [function, {"type": "web_search"}], "messages": RICH["openai-chat"]}
    assert export("openai-chat", _through_the_log(import_("openai-chat", request))) == request


def test_what_only_the_model_says_is_not_sent_in_the_users_name() -> None:
    call = {"role": "user", "parts": [{"functionCall": {"name": "f"}}, {"text": "q"}]}
    spelled = {"role": "user", "parts": [{"file_data": {"file_uri": "gs://a", "mime_type": "a/b"}}, {"text": "q"}]}
    for content, sent in ((call, {"text": "[functionCall]\nq"}), (spelled, spelled["parts"][0])):
        prompt = prompt_of(import_("gemini", [content]), system="", tools=())
        request = render(prompt, "gemini:gemini-3.8-flash")
        assert_valid(request)
        assert request.body["contents"][0]["parts"][0] == sent


@pytest.mark.parametrize(
    ("format", "target", "field", "content", "image"),
    [
        ("openai-chat", "openai-chat:gpt-5", "messages", "text", {"type": "image_url", "image_url": {"url": "https://a/b"}}),
        ("anthropic", "anthropic:claude-opus-5-5", "messages", "text",
         {"type": "image", "source": {"type": "url", "url": "https://a/b"}}),
        ("openai-responses", "openai:gpt-5.6", "input", "input_text", {"type": "input_image", "image_url": "https://a/b"}),
        ("gemini", "gemini:gemini-3-pro", "contents", "",
         {"fileData": {"fileUri": "https://a/b", "mimeType": "image/webp"}}),
    ],
)  # fmt: skip
def test_a_null_text_says_nothing_and_images_stay_between_the_words(
    format: str, target: str, field: str, content: str, image: dict[str, Any]
) -> None:
    def said(text: str | None) -> dict[str, Any]:
        return {"type": content, "text": text} if content else {"text": text}

    parts = [said(None), said("one"), image, said("two")]
    body = {"model": target.partition(":")[2], field: [{"role": "user", "parts" if not content else "content": parts}]}
    prompt = Prompt("", "", (), tuple(project(import_(format, body))))
    assert render(prompt, target).body[field][0].get("parts" if not content else "content") == parts[1:]
    assert "None" not in str(render(prompt, "mistral:pixtral").body)


def test_what_an_old_function_gave_stays_a_text_where_other_content_is_parts() -> None:
    called = {"role": "assistant", "content": "", "function_call": {"name": "old", "arguments": "{}"}}
    gave = {"role": "function", "name": "old", "content": "1"}
    entries = import_("openai-chat", [{"role": "user", "content": "q"}, called, gave], "gpt-6-sol")
    assert render(prompt_of(entries), "openai-chat:gpt-6-sol").body["messages"][-2:] == [called, gave]


@pytest.mark.parametrize("refusal", ["Then not.", "", None, ["odd"], 5])
def test_an_imported_refusal_of_any_type_goes_back_beside_its_words(refusal: Any) -> None:
    message = {"role": "assistant", "content": "At first.", "refusal": refusal}
    entries = import_("openai-chat", [SHOWN[0], message, SHOWN[0]], "gpt-6-sol")
    sent = render(prompt_of(entries), "openai-chat:gpt-6-sol").body["messages"][2]
    assert sent | {"refusal": refusal} == message
