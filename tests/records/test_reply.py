"""Agent replies: the seed's JSON, bare or fenced; anything else is a plain message, and nothing is lost silently."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.records import AgentReply, Records, ToolRequest, carry_out, parse_reply
from quire.send.tools import Toolbox
from toolbox import Store


def response(**context: object) -> str:
    about = {"schema_name": "agent.response.v1", "title": "Chat Response", "tags": ["agent:response", "chat:output"]}
    breadcrumb = {**about, "context": context}
    return json.dumps({"action": "create", "breadcrumb": breadcrumb}, indent=2)


REQUEST = {"tool": "calculator", "input": {"expression": "2+2"}, "requestId": "unique-id"}
FULL = response(message="Let me see ```code```", tool_requests=[REQUEST])


@pytest.mark.parametrize(
    "text",
    [
        FULL,
        f"\n  {FULL}\n\n",
        f"```json\n{FULL}\n```",
        f"```\n{FULL}\n```\n",
        f"Sure, here it is:\n\n```json\n{FULL}\n```\nThat is all.",
        f"~~~~JSON\n{FULL}\n~~~~",
        f"```python\nprint(1)\n```\nand\n```json\n{FULL}\n```",
        f"```{FULL}```",
        f"```json {FULL} ```",
        f"```json\n{FULL}",
    ],
)
def test_the_json_is_read_bare_and_inside_a_code_fence(text: str) -> None:
    assert parse_reply(text) == AgentReply(
        message="Let me see ```code```",
        tool_requests=(ToolRequest("calculator", {"expression": "2+2"}, "unique-id"),),
        structured=True,
        title="Chat Response",
        tags=("agent:response", "chat:output"),
        context={"message": "Let me see ```code```", "tool_requests": [REQUEST]},
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello",
        "{}",
        "[1]",
        '{"action": "create"}',
        '{"action": "create", "breadcrumb": []}',
        FULL.replace("agent.response.v1", "note.v1"),
        FULL.replace('"create"', '"delete"'),
        FULL[:-1],
        f"Here: {FULL}",
        response(message="\ud800").replace("\\\\", "\\"),
        '{"action": "create", "breadcrumb": {"schema_name": "agent.response.v1", "context": {"message": NaN}}}',
        "```json\n{}\n```",
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_any_other_reply_is_a_plain_message(text: str) -> None:
    assert parse_reply(text) == AgentReply(message=text)


def test_requests_without_tool_or_input_are_reported_and_skipped() -> None:
    requests = [{"tool": "echo", "input": {"a": 1}}, {"input": {}}, {"tool": "", "input": {}}, {"tool": "echo"}]
    requests += [{"tool": "echo", "input": None}, "echo", {"tool": "timer", "input": {}, "requestId": 7}]
    reply = parse_reply(response(message="m", tool_requests=requests))
    assert reply.tool_requests == (ToolRequest("echo", {"a": 1}, "request-1"), ToolRequest("timer", {}, "request-7"))
    assert reply.problems == (
        'tool request 2 names no tool: {"input":{}}',
        'tool request 3 names no tool: {"tool":"","input":{}}',
        'tool request 4 has no input: {"tool":"echo"}',
        'tool request 5 has no input: {"tool":"echo","input":null}',
        "tool request 6 is not an object: echo",
    )


def test_requests_that_are_no_list_are_reported() -> None:
    reply = parse_reply(response(message="m", tool_requests={"tool": "echo"}))
    assert (reply.message, reply.tool_requests) == ("m", ())
    assert reply.problems == ("""tool_requests is a list, not '{"tool":"echo"}'""",)


def test_a_reply_becomes_entries_and_a_record() -> None:
    reply = parse_reply(FULL)
    assert [entry.body for entry in reply.entries()] == [
        {"kind": "respond", "text": "Let me see ```code```"},
        {"kind": "call", "call_id": "unique-id", "name": "calculator", "args": {"expression": "2+2"}},
    ]
    assert reply.fields()["context"] == {"message": "Let me see ```code```", "tool_requests": [REQUEST]}
    assert [entry.kind for entry in parse_reply(response(tool_requests=[REQUEST])).entries()] == ["call"]
    plain = parse_reply("Hi")
    assert [entry.body for entry in plain.entries()] == [{"kind": "respond", "text": "Hi"}]
    assert plain.fields() == {"schema_name": "agent.response.v1", "title": "", "tags": [], "context": {"message": "Hi"}}


@given(st.text() | st.lists(st.sampled_from(["```", "~~~", "json", "\n", FULL, "{", "}", " "])).map("".join))
def test_every_text_is_a_reply(text: str) -> None:
    reply = parse_reply(text)
    assert reply.structured or reply.message == text


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_message_survives_the_json_and_the_fence(message: str) -> None:
    for text in (response(message=message), f"```json\n{response(message=message)}\n```"):
        assert parse_reply(text).message == message


def test_the_tools_a_reply_asks_for_are_run_and_what_they_return_is_shown_next(store: Store) -> None:
    def calculator(expression: str) -> str:
        """Perform mathematical calculations."""
        return {"2+2": "4"}[expression]

    wanted = [
        {"tool": "calculator", "input": {"expression": "2+2"}, "requestId": "a"},
        {"tool": "calculator"},
        {"tool": "calculater", "input": {}, "requestId": "b"},
        {"tool": "calculator", "input": {"expression": "1/0"}, "requestId": "c"},
    ]
    records = Records(store)
    config = {"consumer_id": "chat", "sources": [{"schema_name": "tool.response.v1", "method": "recent"}]}
    records.create("context.config.v1", {**config, "update_triggers": [{"schema_name": "tool.response.v1"}]})
    text = response(message="Let me see", tool_requests=wanted)
    done = asyncio.run(carry_out(records, text, Toolbox(calculator), tags=["session:a"]))
    (output,) = done.reaction.outputs
    shown = records.read(output.id).context["formatted_context"]
    assert [one.context for one in done.responses] == [
        {"tool": "calculator", "requestId": "a", "output": "4"},
        {"tool": "calculater", "requestId": "b", "error": "there is no tool 'calculater'; there is calculator"},
        {"tool": "calculator", "requestId": "c", "error": "KeyError: '1/0'"},
    ]
    assert {one.tags for one in done.responses} == {("session:a",)}
    assert done.record.tags == ("agent:response", "chat:output", "session:a")
    assert done.reply.problems == ('tool request 2 has no input: {"tool":"calculator"}',)
    assert shown.splitlines()[:2] == ["# Recent Tool Results", "• calculator: 4"]


def test_a_plain_reply_is_kept_as_a_message_and_runs_nothing(store: Store) -> None:
    done = asyncio.run(carry_out(Records(store), "Hello", Toolbox()))
    assert (done.record.schema_name, done.record.context) == ("agent.response.v1", {"message": "Hello"})
    assert done.responses == ()
