"""The bytes of clean: sections, escapes, indentation, what projecting leaves out."""

import pytest
from format_texts import CLEAN, texts
from format_values import cleans
from hypothesis import given

from quire import call, note, respond, result, system, think, tools, user
from quire.errors import CallError
from quire.formats import clean
from quire.formats.clean import Clean, CleanMessage, CleanTool, ToolResult


def test_all_four_sections_in_their_order() -> None:
    value = clean.read(
        {
            "request": "Now?",
            "tool_results": [{"tool": "echo", "output": {"b": 1, "a": "é"}}, {"tool": "timer"}],
            "conversation": [{"role": "user", "content": "Hi"}, {"role": "tool", "content": "Hello"}],
            "tools": [
                {"name": "echo", "description": "Returns it", "output": ["echo"], "example": "one\ntwo"},
                {"name": "b", "category": "x"},
            ],
        }
    )
    assert clean.render(value) == (
        "# Available Tools\nYou have access to 2 tools:\n\n"
        "• echo (general): Returns it\n  Output: echo\n  Example: one\n    two\n\n"
        "• b (x): \n\n"
        "# Relevant Conversation\nUser: Hi\nAssistant: Hello\n\n"
        '# Recent Tool Results\n• echo: {"a":"é","b":1}\n• timer: No output\n\n'
        "# Current Request\nNow?"
    )


def test_short_detail_has_no_blank_lines() -> None:
    data = {"tools": [{"name": "a", "description": "x\ny", "category": "c", "output": ["o"]}, {"name": "b"}]}
    assert clean.render(clean.read({**data, "detail": "short"})) == (
        "# Available Tools\nYou have access to 2 tools:\n• a: x\n    y\n• b: "
    )
    assert clean.tool_list([CleanTool("a")]).startswith("You have access to 1 tool:\n\n• a (general): ")
    assert clean.render(Clean()) == ""


def test_names_categories_and_output_fields_are_escaped() -> None:
    tool = CleanTool("a(b):c,d\\e\nf", "x (y): z", "c)d", ("p, q", "r:s", ""))
    assert clean.tool_list([tool]).split("\n\n")[1] == (
        r"• a\(b\)\:c\,d\\e\nf (c\)d): x (y): z" + "\n" + r"  Output: p\, q, r\:s, "
    )


def test_continuation_lines_are_indented_also_where_they_are_blank() -> None:
    value = Clean(conversation=(CleanMessage("user", "a\n\nUser: b\n"),), tool_results=(ToolResult("t", "\n# x\n\ny"),))
    assert clean.render(value) == (
        "# Relevant Conversation\nUser: a\n  \n  User: b\n  \n\n# Recent Tool Results\n• t: \n    # x\n    \n    y"
    )


@given(cleans)
def test_appending_the_request_gives_the_same_bytes(value: Clean) -> None:
    assert clean.with_request(clean.formatted_context(value), value.request) == clean.render(value)


@given(texts(CLEAN))
def test_the_request_is_verbatim_to_the_end(request: str) -> None:
    text = clean.render(Clean(conversation=(CleanMessage("user", "a"),), request=request))
    assert text == "# Relevant Conversation\nUser: a" + (f"\n\n# Current Request\n{request}" if request else "")


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (None, "No output"),
        ("", "No output"),
        (" ", " "),
        ("a\nb", "a\nb"),
        (0, "0"),
        (False, "false"),
        ([], "[]"),
        ({"b": [1.5, None], "a": "é"}, '{"a":"é","b":[1.5,null]}'),
    ],
)
def test_tool_output_when_projecting(output: object, text: str) -> None:
    assert clean.project(tool_results=[{"tool": "t", "output": output}]).tool_results[0].output == text


def test_empty_messages_ids_and_times_are_left_out() -> None:
    conversation = [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "system", "content": " ", "timestamp": "2025-10-03T02:41:28Z", "id": "m1"},
    ]
    assert clean.read({"conversation": conversation}).conversation == (CleanMessage("assistant", " "),)


def test_a_thread_projects_to_its_conversation_results_and_last_request() -> None:
    entries = [system("S"), tools([{"name": "old", "description": "", "parameters": {}}])]
    entries += [tools([{"name": "t", "description": "D", "parameters": {}, "category": "c"}]), user("one")]
    entries += [think("hm"), call("1", "t", {}), call("1", "t", {}), result("1", outcome="Read", content="text")]
    entries += [respond("two"), result("9", error=True), user("three"), note("n")]
    results = [("t", "(interrupted: no result was recorded)"), ("t", "Read\n\ntext"), ("unknown", "Error")]
    assert clean.project_thread(entries) == Clean(
        (CleanTool("t", "D", "c"),),
        (CleanMessage("user", "one"), CleanMessage("assistant", "two")),
        tuple(ToolResult(*told) for told in results),
        "three",
    )


def test_no_value_holds_details_that_it_would_not_show() -> None:
    with pytest.raises(CallError, match="short"):
        Clean((CleanTool("a", category="c"),), detail="short")


def test_the_json_of_a_value_is_read_back() -> None:
    tools = [{"name": "t", "description": "d", "input": ["a"], "output": ["b"]}]
    value = clean.project(tools, [{"role": "user", "content": "Hi"}], [{"tool": "t", "output": 1}], "Why?")
    assert clean.read(clean.to_json(value)) == value
    bare = Clean(conversation=(CleanMessage("user", ""),), tool_results=(ToolResult("t", ""),), request="Why?")
    assert clean.read(clean.to_json(bare)) == bare
