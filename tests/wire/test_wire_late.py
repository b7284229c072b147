"""Late notes, tools and effort are appended in each provider's own way, or the request says what moved."""

import pytest

from quire import Request, render
from quire.values import Call, JsonObject, Message, Prompt, Result, Text, ToolSet

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


JOINED, ASIDE = "[Note]: be kind", {"role": "system", "content": "be kind"}
# What the request says of a note behind the question, and, where it says another thing there, behind a result.
NOTES: dict[str, tuple[object, ...]] = {
    "anthropic:claude-sonnet-4-5": ({"role": "user", "content": [_text("q"), _text(JOINED)]},),
    "openai-chat:gpt-4.1-mini": ({"role": "developer", "content": "be kind"},),
    "deepseek:deepseek-v4-flash": (ASIDE,),
    "xai:grok-4.20": (ASIDE,),
    "groq:llama": (ASIDE,),
    "openrouter:x/y": ({"role": "system", "content": [_text("be kind")]},),
    # Where a template decides, they join the message before them.
    **dict.fromkeys(
        "vllm:m sglang:m llamacpp:m ollama:m compatible:m mistral:mistral-large-latest".split(),
        (f"q\n\n{JOINED}", f"ok\n\n{JOINED}"),
    ),
    # Never between call and response.
    "gemini:gemini-3.8-flash": ([{"text": "q"}, {"text": JOINED}], {"role": "user", "parts": [{"text": JOINED}]}),
    "bedrock:anthropic.claude-opus-5-5-v1:0": ({"role": "system", "content": [{"text": "be kind"}]},),
    "bedrock:amazon.nova-lite-v1:0": ({"role": "user", "content": [{"text": "q"}, {"text": JOINED}]},),
}


@pytest.mark.proves(
    "openai deepseek xai groq openrouter vllm sglang llamacpp ollama compatible mistral gemini bedrock", "late notes"
)
@pytest.mark.parametrize("target", NOTES)
def test_notes_are_said_in_each_providers_way(target: str) -> None:
    behind_question, *behind_result = NOTES[target]
    messages = _request(target, Q, NOTE).body
    listed = messages.get("contents") or messages["messages"]
    assert behind_question in (listed[-1], listed[-1].get("content"), listed[-1].get("parts"))
    if behind_result:
        body = _request(target, Q, NOTE, CALL, RESULT, NOTE).body
        last = (body.get("contents") or body["messages"])[-1]
        assert behind_result[0] in (last, last.get("content"))


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
def test_elsewhere_effort_is_set_for_the_whole_request_and_it_says_so(target: str, field: str, value: object) -> None:
    request = _request(target, Q, SLOWER)
    assert request.body[field] == value
    assert request.left_out[0]["entry"] == 3


@pytest.mark.parametrize("target", ["gemini:gemini-2.5-pro", "cohere:command-a-reasoning-08-2025"])
def test_where_effort_has_no_words_a_note_of_it_is_left_out(target: str) -> None:
    request = _request(target, Q, SLOWER)
    assert request.body == _request(target, Q).body
    assert request.left_out == ({"entry": 3, "reason": "reasoning effort has no words here"},)
