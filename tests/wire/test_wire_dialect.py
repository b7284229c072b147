"""The differences between servers: ids, names, turns, arguments, routing keys, images."""

import json
import re

import pytest

from quire import Request, render
from quire.providers import http_body, sdk_kwargs, tool_entries
from quire.providers.incoming import Spelling
from quire.providers.models import data, provider_facts, providers
from quire.testing import assert_valid
from quire.values import Call, Image, JsonObject, Message, Prompt, Result, Text

TOOL = {"name": "f", "description": "d", "parameters": {}}
Q, A = Message("user", (Text("q"),), (1,)), Message("assistant", (Text("a"),), (2,))


def _step(call_id: str, args: object = None) -> tuple[Message, Message]:
    call = Call(call_id, "f", {} if args is None else args, {}, args if isinstance(args, str) else "")
    return Message("assistant", (call,)), Message("tool", (Result(call_id, "f", "ok"),))


def _request(target: str, *messages: Message, tools: tuple[JsonObject, ...] = (), **asked: str) -> Request:
    return render(Prompt("", "", tools, messages), target, **asked)


def test_every_provider_that_speaks_chat_has_a_row() -> None:
    formats = {one: {provider_facts(one)["wire"], *provider_facts(one)["formats"].values()} for one in providers()}
    speakers = {one for one in providers() if formats[one] & {"openai-chat", "openai-responses"}}
    assert set(data("dialects")["dialects"]) == speakers


@pytest.mark.parametrize(
    "target", ["openai-chat:gpt-4o", "openai:gpt-4o", "anthropic:claude-opus-5-5", "bedrock:m", "gemini:m"]
)
def test_an_id_that_is_used_again_gets_a_new_name_and_its_result_follows(target: str) -> None:
    sent = json.dumps(_request(target, Q, *_step("c1"), *_step("c1"), *_step("c1-2"), tools=(TOOL,)).body)
    ids = re.findall(r'"(c1[-0-9]*)"', sent)
    assert sorted(ids) == sorted(["c1", "c1", "c1-2", "c1-2", "c1-2-2", "c1-2-2"])


def test_mistral_takes_ids_of_nine_letters_and_digits() -> None:
    messages = _request("mistral:mistral-large-latest", Q, *_step("call_0123456789"), *_step("abcDEF123")).body[
        "messages"
    ]
    ids = [message["tool_calls"][0]["id"] for message in messages if message.get("tool_calls")]
    assert all(re.fullmatch("[A-Za-z0-9]{9}", one) for one in ids)
    assert ids[1] == "abcDEF123"
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == ids


def test_a_mistral_model_wants_them_wherever_it_is_served() -> None:
    messages = _request("vllm:mistralai/Ministral-8B", Q, *_step("call_0123456789")).body["messages"]
    assert re.fullmatch("[A-Za-z0-9]{9}", messages[1]["tool_calls"][0]["id"])


def test_bedrock_is_told_of_calls_where_no_tools_are_defined() -> None:
    request = _request("bedrock:amazon.nova-lite-v1:0", Q, *_step("c1", {"path": "a"}))
    told = (("assistant", '[Called f with {"path":"a"}]'), ("user", "[Result of f]: ok"))
    assert request.body["messages"][1:] == [{"role": role, "content": [{"text": text}]} for role, text in told]
    assert "toolConfig" not in request.body


def test_mistral_gets_a_turn_of_the_assistant_between_tool_and_user() -> None:
    messages = _request("mistral:mistral-large-latest", Q, *_step("abcDEF123"), Q).body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert messages[3]["content"] == "(no reply)"


@pytest.mark.parametrize("target", ["vllm:m", "bedrock:amazon.nova-lite-v1:0"])
def test_where_turns_alternate_none_is_changed_by_the_next(target: str) -> None:
    messages = _request(target, A, Q, Q, A, A, Q).body["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 4 + ["user"]


@pytest.mark.parametrize("target", ["anthropic:claude-opus-4-5", "bedrock:anthropic.claude-opus-4-5-20251101-v1:0"])
@pytest.mark.parametrize(("said", "roles"), [("a", ["user", "assistant"]), ("a\n", ["user", "assistant", "user"])])
def test_claude_goes_on_with_its_own_words_where_no_white_space_ends_them(
    target: str, said: str, roles: list[str]
) -> None:
    request = _request(target, Q, Message("assistant", (Text(said),), (2,)))
    assert [message["role"] for message in request.body["messages"]] == roles
    assert_valid(request)


def test_arguments_that_are_no_object_are_wrapped_for_servers_that_parse_them() -> None:
    def sent(target: str) -> str:
        message = _request(target, Q, *_step("c1", "{broken")).body["messages"][1]
        return str(message["tool_calls"][0]["function"]["arguments"])

    assert sent("openai-chat:gpt-4o") == "{broken"
    assert json.loads(sent("vllm:m")) == {"arguments": "{broken"}
    body = _request("anthropic:claude-opus-5-5", Q, *_step("c1", "{broken")).body
    assert body["messages"][1]["content"][0]["input"] == {"arguments": "{broken"}


@pytest.mark.parametrize(
    ("target", "body", "headers"),
    [
        ("openai:gpt-6-sol", {"prompt_cache_key": "t"}, {}),
        ("openai-chat:gpt-4o", {"prompt_cache_key": "t"}, {}),
        ("mistral:mistral-large-latest", {"prompt_cache_key": "t"}, {}),
        ("xai:grok-4.20", {}, {"x-grok-conv-id": "t"}),
        ("xai-responses:grok-4.20", {"prompt_cache_key": "t"}, {}),
        ("openrouter:x/y", {"session_id": "t"}, {}),
        ("vllm:m", {"cache_salt": "t"}, {}),
        ("sglang:m", {"cache_salt": "t"}, {}),
        ("anthropic:claude-opus-5-5", {}, {}),
        ("gemini:gemini-3.8-flash", {}, {}),
    ],
)
def test_the_routing_key_stands_where_it_is_read(target: str, body: dict[str, str], headers: dict[str, str]) -> None:
    request = _request(target, Q, key="t")
    known = {"prompt_cache_key", "session_id", "cache_salt", "extra_key", "id_slot"}
    assert {key: value for key, value in http_body(request).items() if key in known} == body
    assert request.headers == headers
    assert not known - {"prompt_cache_key"} & set(sdk_kwargs(request))


def test_llamacpp_takes_a_slot_by_number() -> None:
    assert http_body(_request("llamacpp:m", Q, key="3"))["id_slot"] == 3
    assert "id_slot" not in http_body(_request("llamacpp:m", Q, key="my thread"))


def test_an_image_that_a_server_cannot_take_is_named_in_the_text() -> None:
    shown = Message("user", (Text("look"), Image(media_type="image/png", data="AA==")), (1, 2))
    request = _request("groq:llama", shown)
    assert request.body["messages"][0]["content"] == "look\n\n[image]"
    assert request.left_out[0]["reason"] == "groq:llama takes no images"
    linked = Message("user", (Image(url="https://example.org/a.png"),), (1,))
    for target in ("bedrock:m", "bedrock-anthropic:us.anthropic.claude-sonnet-4-5-20250929-v1:0"):
        (named,) = _request(target, linked).body["messages"][0]["content"]
        assert named["text"] == "[image: https://example.org/a.png]"


def test_a_result_without_its_call_is_left_out_and_a_call_without_its_result_is_answered() -> None:
    call, _ = _step("c1")
    orphan = Message("tool", (Result("c9", "f", "x"),), (4,))
    request = _request("anthropic:claude-opus-5-5", Q, call, Q, orphan)
    told = {"type": "tool_result", "tool_use_id": "c1", "content": "(interrupted: no result was recorded)"}
    assert request.body["messages"][2]["content"][0] == {**told, "is_error": True}
    assert request.left_out == ({"entry": 4, "reason": "result of 'c9' has no call before it"},)


@pytest.mark.parametrize("text", ["", " ", "get.weather", "ü", "x" * 65, "a b", "9x"])
def test_a_spelling_is_always_allowed_and_always_the_same(text: str) -> None:
    for spelling in (Spelling(), Spelling(first="A-Za-z_"), Spelling("A-Za-z0-9", 9, exact=True), Spelling(longest=40)):
        spelled = spelling.spell(text)
        assert 0 < len(spelled) <= spelling.longest
        assert spelling.spell(spelled) == spelled == spelling.spell(text)


def test_types_of_gemini_that_are_numbers_are_read_as_their_words() -> None:
    numbered = {"type": 6, "properties": {"p": {"type": 5, "items": {"type": 1}}}}
    (offer,) = tool_entries([{"functionDeclarations": [{"name": "f", "parameters": numbered}]}])
    worded = {"type": "object", "properties": {"p": {"type": "array", "items": {"type": "string"}}}}
    assert offer.body["tools"][0]["parameters"] == worded


def test_gemini_declares_what_its_schema_can_say_and_hands_over_the_rest_as_it_is() -> None:
    def declared(parameters: object) -> dict[str, object]:
        tool = {"name": "f", "description": "d", "parameters": parameters}
        body = render(Prompt("", "", (tool,), (Q,)), "gemini:gemini-3.8-flash").body
        return dict(body["tools"][0]["functionDeclarations"][0])

    simple = {"type": "object", "properties": {"p": {"type": "string", "enum": ["a"]}}, "required": ["p"]}
    properties = {"p": {"type": "STRING", "enum": ["a"]}}
    assert declared(simple)["parameters"] == {"type": "OBJECT", "properties": properties, "required": ["p"]}
    closed = {**simple, "additionalProperties": False}
    assert declared(closed) == {"name": "f", "description": "d", "parametersJsonSchema": closed}
    assert declared({"type": "object", "properties": {}}) == {"name": "f", "description": "d"}


UNREADABLE = [Image(media_type="image/heic", data="AA=="), Image(url="gs://bucket/a.png"), Image()]


@pytest.mark.parametrize("image", UNREADABLE, ids=["type", "place", "nothing"])
@pytest.mark.parametrize("target", ["anthropic:claude-opus-5-5", "bedrock:amazon.nova-lite-v1:0", "openai:gpt-6-sol"])
def test_an_image_that_cannot_be_read_is_named_and_the_request_says_so(target: str, image: Image) -> None:
    request = render(Prompt("", "", (), (Message("user", (Text("q"), image), (1,)),)), target)
    assert_valid(request)
    if not (target.startswith("openai") and image.data):
        assert "[image" in json.dumps(request.body)
        assert request.left_out[0]["reason"].startswith("image ")
