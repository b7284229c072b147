"""Message lists of every format come back as they went in, and entries are valid for the log."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import TRACES, shared_data, traces
from quire import Entry, render
from quire.errors import FormatError
from quire.log.entries import decode_lines
from quire.providers import FORMATS, export, import_
from quire.providers.convert import project
from quire.values import Prompt, call, result, tools, user
from toolbox import assert_in_proportion, chain, check, encode_lines, fewer

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
args = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), st.integers() | texts, max_size=2)
ids = st.sampled_from(["c1", "c2", "c1"])
optional = st.none() | texts


def _fixed(required: dict[str, Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object with the required fields; each of the others may be absent."""
    fixed = {key: value if isinstance(value, st.SearchStrategy) else st.just(value) for key, value in required.items()}
    return st.fixed_dictionaries(fixed, optional=fields)


recorder = {"_ts": st.sampled_from(["2026-01-02T03:04:05.678Z", 17, "later"]), "_x": st.integers()}

urls = st.sampled_from(["https://a/b", "data:image/png;base64,AA=="])
chat_parts = st.lists(
    _fixed({"type": "text", "text": texts})
    | _fixed({"type": "image_url", "image_url": _fixed({"url": urls})})
    | _fixed({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}),
    max_size=3,
)
chat_function = _fixed(
    {"name": texts, "arguments": args.map(json.dumps) | texts | st.sampled_from(['{"a": NaN}', "null", "3"])}
)
chat_call = _fixed({"id": ids, "type": "function", "function": chat_function})
chat_calls = st.lists(chat_call, max_size=2)
chat_said = {"refusal": optional, "annotations": st.just([]), **recorder}
chat = st.one_of(
    _fixed({"role": st.sampled_from(["system", "developer"]), "content": texts}, **recorder),
    _fixed({"role": "user", "content": texts | chat_parts}, name=texts, **recorder),
    _fixed(
        {"role": "assistant", "content": optional},
        tool_calls=st.none() | chat_calls,
        reasoning_content=texts,
        **chat_said,
    ),
    _fixed({"role": "tool", "tool_call_id": ids, "content": texts | chat_parts}, name=texts, _err=st.booleans()),
)

cohere_thinking = st.lists(_fixed({"type": "thinking", "thinking": texts}), max_size=2)
cohere = st.one_of(
    _fixed({"role": "system", "content": texts}),
    _fixed({"role": "user", "content": texts | chat_parts}),
    _fixed({"role": "assistant"}, content=texts | cohere_thinking, tool_plan=texts, tool_calls=chat_calls),
    _fixed({"role": "tool", "tool_call_id": ids, "content": texts | chat_parts}),
)

text_block = _fixed({"type": "text", "text": texts}, citations=st.none() | st.just([{"type": "page_location"}]))
text_blocks = st.lists(text_block, max_size=2)
anthropic_user = st.one_of(
    text_block,
    _fixed({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}),
    _fixed({"type": "document", "source": {"type": "url", "url": "https://a"}}, title=texts),
    _fixed({"type": "tool_result", "tool_use_id": ids}, content=texts | text_blocks, is_error=st.booleans()),
)
anthropic_said = st.one_of(
    text_block,
    _fixed({"type": "thinking", "thinking": texts, "signature": "c2ln"}),
    _fixed({"type": "redacted_thinking", "data": "ZGF0YQ=="}),
    _fixed({"type": "tool_use", "id": ids, "name": texts, "input": args}, caller=st.just({"type": "direct"})),
    _fixed({"type": "server_tool_use", "id": "s1", "name": "web_search", "input": args}),
)
anthropic = st.one_of(
    _fixed({"role": "user", "content": texts | st.lists(anthropic_user, max_size=3)}),
    _fixed({"role": "assistant", "content": texts | st.lists(anthropic_said, max_size=3)}),
    _fixed({"role": "system", "content": texts | text_blocks}, output_config=st.just({"effort": "low"})),
)

said = st.lists(_fixed({"type": "output_text", "text": texts, "annotations": []}), max_size=2)
phases = st.sampled_from(["commentary", "final_answer"])
input_texts = st.lists(_fixed({"type": "input_text", "text": texts}), max_size=2)
summary = st.lists(_fixed({"type": "summary_text", "text": texts}), max_size=1)
speakers = st.sampled_from(["user", "assistant", "system", "developer"])
json_args = args.map(json.dumps) | texts | st.sampled_from(["null", "[]"])
items = st.one_of(
    _fixed({"role": speakers, "content": texts}, type=st.just("message")),
    _fixed({"type": "message", "role": "user", "content": input_texts}),
    _fixed({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}, phase=phases, content=said),
    _fixed({"type": "reasoning", "id": "rs_1", "summary": summary}, encrypted_content=st.just("ZW5j")),
    _fixed({"type": "function_call", "call_id": ids, "name": texts, "arguments": json_args}, id=st.just("fc_1")),
    _fixed({"type": "function_call_output", "call_id": ids, "output": texts | input_texts}),
    _fixed({"type": "custom_tool_call", "call_id": ids, "name": texts, "input": texts}),
    _fixed({"type": "custom_tool_call_output", "call_id": ids, "output": texts}),
    _fixed({"type": "web_search_call", "id": "ws_1", "status": "completed"}),
    _fixed({"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "f"}]}),
    _fixed({"type": "configuration_update", "reasoning": {"effort": "low"}}),
    _fixed({"type": "item_reference", "id": "msg_2"}),
)

gemini_user = st.one_of(
    _fixed({"text": texts}),
    _fixed({"inlineData": {"mimeType": "image/png", "data": "AA=="}}),
    _fixed({"functionResponse": _fixed({"name": texts, "response": st.just({"output": "x"}) | args}, id=ids)}),
)
gemini_said = st.one_of(
    _fixed({"text": texts}, thought=st.just(True), thoughtSignature=st.just("c2ln")),
    _fixed({"functionCall": _fixed({"name": texts, "args": args}, id=ids)}, thoughtSignature=st.just("c2ln")),
    _fixed({"executableCode": {"language": "PYTHON", "code": "1"}}),
)
gemini = st.one_of(
    _fixed({"role": "user", "parts": st.lists(gemini_user, max_size=3)}),
    _fixed({"role": "model", "parts": st.lists(gemini_said, max_size=3)}),
)

told = st.lists(_fixed({"text": texts}) | _fixed({"json": args}), max_size=2)
bedrock_user = st.one_of(
    _fixed({"text": texts}),
    _fixed({"image": {"format": "png", "source": {"bytes": "AA=="}}}),
    _fixed({"toolResult": _fixed({"toolUseId": ids, "content": told}, status=st.just("error"))}),
    _fixed({"cachePoint": {"type": "default"}}),
)
bedrock_said = st.one_of(
    _fixed({"text": texts}),
    _fixed({"toolUse": _fixed({"toolUseId": ids, "name": texts, "input": args})}),
    _fixed({"reasoningContent": {"reasoningText": {"text": "hm", "signature": "c2ln"}}}),
    _fixed({"reasoningContent": {"redactedContent": "cmVk"}}),
)
bedrock = st.one_of(
    _fixed({"role": "user", "content": st.lists(bedrock_user, max_size=3)}),
    _fixed({"role": "assistant", "content": st.lists(bedrock_said, max_size=3)}),
)

_fields = {"additional_kwargs": st.just({}), "id": optional, "name": optional}
calls = st.lists(_fixed({"name": texts, "args": args, "id": ids, "type": "tool_call"}), max_size=2)
outcomes = st.sampled_from(["success", "error"])
langchain_data = {
    "human": _fixed({"content": texts | chat_parts, "type": "human"}, **_fields),
    "system": _fixed({"content": texts, "type": "system"}, **_fields),
    "tool": _fixed({"content": texts, "type": "tool", "tool_call_id": ids}, status=outcomes),
    "ai": _fixed({"content": texts | chat_parts, "type": "ai"}, tool_calls=calls, **_fields),
}
langchain = st.one_of(
    *[_fixed({"type": kind, "data": data}) for kind, data in langchain_data.items()], *langchain_data.values()
)

_kinds = st.sampled_from(["system-prompt", "user-prompt"])
pydantic_content = texts | st.lists(texts | _fixed({"url": texts, "kind": "image-url"}), max_size=2)
pydantic_asked = st.one_of(
    _fixed({"part_kind": _kinds, "content": pydantic_content}, timestamp=st.just("2026-01-01T00:00:00Z")),
    _fixed({"part_kind": "tool-return", "tool_name": texts, "tool_call_id": ids, "content": texts | args}),
    _fixed({"part_kind": "retry-prompt", "content": texts}, tool_name=texts, tool_call_id=ids),
)
pydantic_said = st.one_of(
    _fixed({"part_kind": st.sampled_from(["text", "thinking", "compaction"]), "content": texts}, id=optional),
    _fixed({"part_kind": "tool-call", "tool_name": texts, "tool_call_id": ids, "args": json_args | args}),
)
pydantic_ai = st.one_of(
    _fixed({"kind": "request", "parts": st.lists(pydantic_asked, max_size=3)}, instructions=texts),
    _fixed({"kind": "response", "parts": st.lists(pydantic_said, max_size=3)}, model_name=texts),
)

MESSAGES = {
    "openai-chat": chat,
    "anthropic": anthropic,
    "openai-responses": items,
    "openai-agents": items,
    "gemini": gemini,
    "bedrock": bedrock,
    "cohere": cohere,
    "langchain": langchain,
    "pydantic-ai": pydantic_ai,
}


def test_every_format_is_tried() -> None:
    assert set(MESSAGES) == set(FORMATS)


@pytest.mark.proves("anthropic openai gemini bedrock", "import")
@pytest.mark.proves("anthropic openai gemini bedrock", "export")
@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
@fewer(8)
def test_a_generated_conversation_comes_back_as_it_was(format: str, data: st.DataObject) -> None:
    messages = data.draw(st.lists(MESSAGES[format], max_size=5))
    assert export(format, _through_the_log(import_(format, messages))) == messages


@pytest.mark.parametrize("format", FORMATS)
@given(data=st.data())
@fewer(12)
def test_an_imported_conversation_can_be_sent_to_any_provider(format: str, data: st.DataObject) -> None:
    messages = data.draw(st.lists(MESSAGES[format], max_size=4))
    prompt = Prompt("", "", (), tuple(project(import_(format, messages))))
    targets = "openai:gpt-6-sol openai-chat:gpt-4o anthropic:claude-opus-5-5 gemini:gemini-3.8-flash"
    for target in [*targets.split(), "bedrock:amazon.nova-lite-v1:0"]:
        json.dumps(render(prompt, target).body)


def _through_the_log(entries: list[Entry]) -> list[Entry]:
    return list(decode_lines(encode_lines([check(entry.body) for entry in entries])))


@pytest.mark.parametrize("name", TRACES)
def test_a_recorded_conversation_survives_a_detour_through_every_format(name: str) -> None:
    """From Chat to another format and back: what was said, called and answered stays the same."""
    for trace in traces(name)[:8]:
        entries = import_("openai-chat", trace)
        for format in FORMATS:
            detour = import_(format, json.loads(json.dumps(export(format, entries))))
            assert _gist(detour) == _gist(entries), format


def _gist(entries: list[Entry]) -> list[tuple[object, ...]]:
    """What a conversation says, without what formats cannot agree on: ids, empty messages, blanks."""
    out: list[tuple[object, ...]] = []
    for entry in entries:
        match entry.kind:
            case "call":
                out.append(("call", entry.name, json.dumps(entry.args, sort_keys=True)))
            case "result":
                out.append(("result", entry.body["content"].strip() or "(no output)"))
            case "system" | "note":
                out.append(("system", entry.text))
            case kind if entry.text.strip():
                out.append((kind, entry.text))
    return out


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "value", [None, 3, "text", {"messages": 4}, [3], [None], [{"role": "king"}], [{"content": "x"}], [{"type": 7}]]
)
def test_what_is_no_conversation_is_an_error_that_says_so(format: str, value: Any) -> None:
    with pytest.raises(FormatError) as caught:
        import_(format, value)
    assert caught.value.hint


SYSTEM = {"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}
TOOL = {"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True}
SPEC = {"toolSpec": {"name": "f", "inputSchema": {"json": {}}}}
HI = {"role": "user", "content": "hi"}
WHOLE = {
    "anthropic": {"system": [SYSTEM], "tools": [TOOL], "messages": [HI]},
    "gemini": {
        "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "systemInstruction": {"parts": [{"text": "S"}]},
        "tools": [{"functionDeclarations": [{"name": "f"}]}],
    },
    "bedrock": {
        "messages": [{"role": "user", "content": [{"text": "hi"}]}],
        "system": [{"text": "S"}],
        "toolConfig": {"tools": [SPEC]},
    },
    "openai-responses": {"instructions": "S", "tools": [{"type": "web_search"}], "input": [HI]},
}


EMPTY: dict[str, dict[str, Any]] = {
    "anthropic": {"system": ""},
    "openai-responses": {"instructions": ""},
    "gemini": {"systemInstruction": {"parts": []}},
    "bedrock": {"system": []},
}


@pytest.mark.parametrize("format", WHOLE)
def test_a_request_keeps_its_system_prompt_and_tools(format: str) -> None:
    for body in (WHOLE[format], {**WHOLE[format], **EMPTY[format]}):
        assert export(format, import_(format, body)) == body


def test_tools_that_came_elsewhere_are_exported_beside_those_of_gemini() -> None:
    entries = [tools([{"name": "g", "parameters": {}}]), *import_("gemini", WHOLE["gemini"])]
    assert [
        [tool["name"] for tool in listed["functionDeclarations"]] for listed in export("gemini", entries)["tools"]
    ] == [["f"], ["g"]]


def test_a_message_cut_in_two_by_a_fork_is_written_anew() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    entries = import_("openai-chat", [HI, {"role": "assistant", "content": "x", "tool_calls": [call]}])
    assert export("openai-chat", entries[:2])[-1] == {"role": "assistant", "content": "x"}


@pytest.mark.parametrize(
    ("calls", "wanted"),
    [
        (["a", "b"], ["a", "b"]),
        (["a", "a", "b", "a"], ["a", "a-2", "b", "a-3"]),
        (["a", "a-2", "a"], ["a", "a-2", "a-3"]),
        (["x|y", "x|y"], ["x|y", "x|y-2"]),
    ],
)
def test_calls_that_share_an_id_are_told_apart_where_anthropic_refuses_them(
    calls: list[str], wanted: list[str]
) -> None:
    entries = [entry for n, id in enumerate(calls) for entry in (user("Go"), call(id, "f", {}), result(id, str(n)))]
    blocks = [block for message in export("anthropic", entries) for block in message["content"] if block["type"] != "text"]  # fmt: skip
    assert [block["id"] for block in blocks if block["type"] == "tool_use"] == wanted
    assert [(block["tool_use_id"], block["content"]) for block in blocks if block["type"] == "tool_result"] == [(id, str(n)) for n, id in enumerate(wanted)]  # fmt: skip
    at_once = [user("Go"), *(call(id, "f", {}) for id in calls), *(result(id, str(n)) for n, id in enumerate(calls))]
    (_, asked, answered) = export("anthropic", at_once)
    assert [block["id"] for block in asked["content"]] == wanted
    assert [block["tool_use_id"] for block in answered["content"]] == wanted


@pytest.mark.parametrize("name", TRACES)
def test_no_recorded_conversation_is_exported_with_an_id_twice_to_anthropic(name: str) -> None:
    for conversation in traces(name):
        messages = export("anthropic", import_("openai-chat", conversation["messages"]))
        listed = messages["messages"] if isinstance(messages, dict) else messages
        blocks = [block for message in listed for block in message["content"] if isinstance(block, dict)]
        ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert len(ids) == len(set(ids))


def test_the_time_of_a_recorded_message_becomes_its_entries_time() -> None:
    said = {"role": "assistant", "content": "x", "reasoning_content": "y", "_ts": "2025-11-20T23:33:02.351Z"}
    assert [entry.at for entry in import_("openai-chat", [said])] == [1763681582351, 1763681582351]


@pytest.mark.parametrize("name", TRACES)
def test_a_recorded_conversation_is_exported_verbatim(name: str) -> None:
    for trace in traces(name):
        entries = _through_the_log(import_("openai-chat", trace))
        assert json.dumps(export("openai-chat", entries)) == json.dumps(trace["messages"])


def test_langchains_reasoning_goes_back_to_the_model_that_thought_it() -> None:
    for name, target in (("responses", "openai:gpt-5.4"), ("anthropic", "anthropic:claude-opus-5-5")):
        messages = json.loads((shared_data("sessions") / f"langchain/messages-{name}.json").read_text())
        entries = import_("langchain", messages)
        assert export("langchain", entries) == messages
        thoughts = [entry.text for entry in entries if entry.kind == "think"]
        assert thoughts
        assert all(thoughts)
        body = str(render(Prompt("", "", (), tuple(project(entries))), target).body)
        signed = [block.get("encrypted_content") or block.get("signature") for message in messages
                  for block in message["data"]["content"] if isinstance(block, dict) and block["type"] != "text"]  # fmt: skip
        assert all(one in body for one in signed if one)
        elsewhere = str(render(Prompt("", "", (), tuple(project(entries))), "mistral:m").body)
        assert not any(one in elsewhere for one in signed if one)


def test_an_export_takes_a_time_that_grows_with_the_thread_where_imported_and_new_messages_alternate() -> None:
    def thread(turns: int) -> list[Entry]:
        out = []
        for n in range(turns):
            call = {"id": f"c{n}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
            told = [
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{n}", "content": "x"},
            ]
            out += [user("go on"), *import_("openai-chat", told)]
        return list(chain(out))

    threads = {turns: thread(turns) for turns in (500, 4_000)}
    assert_in_proportion(lambda turns: export("openai-chat", threads[turns]), 4_000)
