"""Late notes, tools and effort are appended in each provider's own way, or the request says what moved."""

import pytest

from quire.providers import render
from quire.values import Call, JsonObject, Message, Prompt, Request, Result, Text, ToolSet

TOOL = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
Q, A = Message("user", (Text("q"),), (1,)), Message("assistant", (Text("a"),), (4,))
CALL, RESULT = (Message("assistant", (Call("c1", "f", {}),), (1,)), Message("tool", (Result("c1", "f", "ok"),), (2,)))
NOTE = Message("note", (Text("be kind"),), (2,))
LATE = Message("tools", (ToolSet((TOOL,)),), (3,))
SLOWER = Message("note", (Text("", {"effort": "low"}),), (3,))
MORE = Message("user", (Text("and?"),), (5,))


def _request(target: str, *messages: Message) -> Request:
    return render(Prompt("S", "", (), messages), target)


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


@pytest.mark.proves("anthropic", "late notes")
def test_anthropic_takes_late_notes_as_system_messages() -> None:
    body = _request("anthropic:claude-opus-5-5", Q, NOTE, NOTE, A, MORE).body
    assert body["messages"] == [
        {"role": "user", "content": [_text("q")]},
        {"role": "system", "content": [_text("be kind"), _text("be kind")]},
        {"role": "assistant", "content": [_text("a")]},
        {"role": "user", "content": [_text("and?")]},
    ]
    behind_results = _request("anthropic:claude-opus-5-5", Q, CALL, RESULT, NOTE).body["messages"]
    assert [message["role"] for message in behind_results] == ["user", "assistant", "user", "system"]


def test_a_user_who_speaks_behind_a_system_message_is_kept_apart_from_it() -> None:
    messages = _request("anthropic:claude-opus-5-5", Q, NOTE, MORE).body["messages"]
    assert [message["role"] for message in messages] == ["user", "system", "assistant", "user"]
    assert messages[2]["content"] == [_text("(no reply)")]


def test_claudes_without_system_messages_read_notes_in_the_users_text() -> None:
    body = _request("anthropic:claude-sonnet-4-5", Q, NOTE, A, MORE).body
    assert body["messages"][0] == {"role": "user", "content": [_text("q"), _text("[Note]: be kind")]}


@pytest.mark.proves("anthropic", "late tools")
def test_anthropic_takes_late_tools_as_definitions_with_their_betas() -> None:
    request = _request("anthropic:claude-opus-5-5", Q, LATE)
    definition = {"name": "f", "description": "d", "input_schema": TOOL["parameters"]}
    addition = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}}
    assert request.body["messages"][1] == {"role": "system", "content": [addition]}
    assert request.headers == {"anthropic-beta": "mid-conversation-tool-changes-2026-07-01,inline-tools-2026-09-15"}
    assert "tools" not in request.body


@pytest.mark.proves("anthropic", "late effort")
def test_anthropic_takes_effort_on_a_system_message() -> None:
    request = _request("anthropic:claude-opus-5-5", Q, SLOWER)
    assert request.body["messages"][1] == {"role": "system", "content": [], "output_config": {"effort": "low"}}
    assert request.headers == {"anthropic-beta": "mid-conversation-output-config-2026-07-01"}


@pytest.mark.proves("openai", "late notes")
@pytest.mark.proves("openai", "late tools")
@pytest.mark.proves("openai", "late effort")
def test_openai_takes_them_all_as_items() -> None:
    items = _request("openai:gpt-6-sol", Q, NOTE, LATE, SLOWER).body["input"]
    tool = {"type": "function", **TOOL, "strict": False}
    assert items[2:] == [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be kind"}]},
        {"type": "additional_tools", "role": "developer", "tools": [tool]},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
    ]


@pytest.mark.proves("openai", "late notes")
def test_openai_chat_takes_notes_as_developer_messages() -> None:
    messages = _request("openai-chat:gpt-4.1-mini", Q, NOTE).body["messages"]
    assert messages[2] == {"role": "developer", "content": "be kind"}


@pytest.mark.proves("deepseek xai groq openrouter", "late notes")
@pytest.mark.parametrize("target", ["deepseek:deepseek-v4-flash", "xai:grok-4.20", "groq:llama", "openrouter:x/y"])
def test_other_chat_apis_take_notes_as_system_messages(target: str) -> None:
    last = _request(target, Q, NOTE).body["messages"][-1]
    assert (last["role"], last["content"] in ("be kind", [_text("be kind")])) == ("system", True)


@pytest.mark.proves("vllm sglang llamacpp ollama compatible mistral", "late notes")
@pytest.mark.parametrize(
    "target", ["vllm:m", "sglang:m", "llamacpp:m", "ollama:m", "compatible:m", "mistral:mistral-large-latest"]
)
def test_where_a_template_decides_notes_join_the_message_before_them(target: str) -> None:
    body = _request(target, Q, NOTE, CALL, RESULT, NOTE).body
    assert body["messages"][1]["content"] == "q\n\n[Note]: be kind"
    assert body["messages"][-1]["content"] == "ok\n\n[Note]: be kind"


@pytest.mark.proves("gemini", "late notes")
def test_gemini_reads_notes_in_the_users_text_but_never_between_call_and_response() -> None:
    contents = _request("gemini:gemini-3.8-flash", Q, NOTE, CALL, RESULT, NOTE).body["contents"]
    assert contents[0]["parts"] == [{"text": "q"}, {"text": "[Note]: be kind"}]
    assert contents[3] == {"role": "user", "parts": [{"text": "[Note]: be kind"}]}


@pytest.mark.proves("bedrock", "late notes")
def test_bedrock_takes_notes_as_system_messages_where_the_model_does() -> None:
    claude = _request("bedrock:anthropic.claude-opus-5-5-v1:0", Q, NOTE).body["messages"]
    assert claude[1] == {"role": "system", "content": [{"text": "be kind"}]}
    nova = _request("bedrock:amazon.nova-lite-v1:0", Q, NOTE).body["messages"]
    assert nova == [{"role": "user", "content": [{"text": "q"}, {"text": "[Note]: be kind"}]}]


@pytest.mark.parametrize(
    ("target", "tools"),
    [
        ("anthropic:claude-sonnet-4-5", "tools"),
        ("openai:gpt-4o", "tools"),
        ("openai-chat:gpt-6-sol", "tools"),
        ("gemini:gemini-3.8-flash", "tools"),
        ("bedrock:amazon.nova-lite-v1:0", "toolConfig"),
    ],
)
def test_elsewhere_late_tools_stand_in_front_and_the_request_says_so(target: str, tools: str) -> None:
    request = _request(target, Q, LATE)
    assert '"f"' in str(request.body[tools]).replace("'", '"')
    reason = "late tools join the list in front, which moves the prefix"
    assert request.left_out == ({"entry": 3, "reason": reason},)


@pytest.mark.parametrize(
    ("target", "field", "value"),
    [
        ("openai-chat:gpt-6-sol", "reasoning_effort", "low"),
        ("anthropic:claude-sonnet-4-6", "output_config", {"effort": "low"}),
        ("openai:gpt-5", "reasoning", {"effort": "low"}),
        ("gemini:gemini-3.8-flash", "generationConfig", {"thinkingConfig": {"thinkingLevel": "LOW"}}),
        ("bedrock:anthropic.claude-opus-5-5-v1:0", "outputConfig", {"effort": "low"}),
    ],
)
def test_elsewhere_effort_is_set_for_the_whole_request_and_the_request_says_so(
    target: str, field: str, value: object
) -> None:
    request = _request(target, Q, SLOWER)
    assert request.body[field] == value
    assert request.left_out[0]["entry"] == 3
