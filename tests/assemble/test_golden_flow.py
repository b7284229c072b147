"""The example flow of the layered design, turn by turn, for both promotions."""

import pytest

from quire import Policy, render, requests, values
from quire.assemble.fit import messages_of, segment, system_text
from toolbox import Built, note

SPEC = note("Piano Lessons/project-spec.md", "Build a piano app.", title="project-spec")
API = note("Piano Lessons/api-docs.md", "GET /songs", title="api-docs")
S = (
    "<note_context>\n<title>project-spec</title>\n<path>Piano Lessons/project-spec.md</path>\n"
    "<content>\nBuild a piano app.\n</content>\n</note_context>"
)
D = (
    "<note_context>\n<title>api-docs</title>\n<path>Piano Lessons/api-docs.md</path>\n"
    "<content>\nGET /songs\n</content>\n</note_context>"
)
LIBRARY = "SYS\n\n## Context Library\n\nThe following notes are available for reference:\n\n"
QUERY = "\n\n---\n\n[User query]:\n\n"
FLOW = [
    values.system("SYS"),
    values.user("Summarize this", [SPEC]),
    values.respond("answer 1"),
    values.user("What's the API?", [SPEC, API]),
    values.respond("answer 2"),
    values.user("Explain that", [SPEC]),
    values.respond("answer 3"),
]


def messages(promote: str) -> list[list[tuple[str, str]]]:
    policy = Policy(promote=promote)  # type: ignore[arg-type]
    made = [one for one in requests(FLOW, policy) if isinstance(one, Built)]
    return [[(m["role"], m["content"]) for m in render(one.prompt, "openai-chat:").body["messages"]] for one in made]


def refs(where: str) -> str:
    return f"Context attached:\n- Piano Lessons/project-spec.md\nFind them {where}."


@pytest.mark.moves_prefix(reason="each-turn promotion moves items in front of the history")
def test_each_turn_promotes_the_turn_before_into_the_library() -> None:
    above = refs("in the Context Library above")
    history = [("user", "Summarize this"), ("assistant", "answer 1")]
    assert messages("each-turn") == [
        [("system", "SYS"), ("user", f"{S}{QUERY}Summarize this")],
        [("system", f"{LIBRARY}{S}"), *history, ("user", f"{above}\n\n{D}{QUERY}What's the API?")],
        [
            ("system", f"{LIBRARY}{S}\n\n{D}"),
            *history,
            ("user", "What's the API?"),
            ("assistant", "answer 2"),
            ("user", f"{above}{QUERY}Explain that"),
        ],
    ]


def test_at_rebase_keeps_every_message_as_it_was_sent() -> None:
    above = refs("above in this conversation")
    first = [("system", "SYS"), ("user", f"{S}{QUERY}Summarize this")]
    second = [*first, ("assistant", "answer 1"), ("user", f"{above}\n\n{D}{QUERY}What's the API?")]
    third = [*second, ("assistant", "answer 2"), ("user", f"{above}{QUERY}Explain that")]
    assert messages("at-rebase") == [first, second, third]


def test_layers_given_as_segments_refer_to_what_stands_in_the_library() -> None:
    made = messages_of("SYS", [segment("a.md", "A")], [segment("a.md", "A"), segment("b.md", "B")], "Q")
    assert made == [
        {"role": "system", "content": f"{LIBRARY}A"},
        {
            "role": "user",
            "content": "Context attached:\n- a.md\nFind them in the Context Library above.\n\nB\n\n---\n\n[User query]:\n\nQ",
        },
    ]


def test_an_empty_first_layer_leaves_the_library_alone() -> None:
    made = messages_of("", [segment("a.md", "A")], [], "Q")
    assert made[0]["content"] == LIBRARY.removeprefix("SYS\n\n") + "A"
    assert messages_of("", [], [], "Q") == [{"role": "user", "content": "Q"}]


def test_changed_content_is_an_update_that_names_what_it_replaces() -> None:
    long = "\n".join(f"line {n}" for n in range(80))
    old, new = ({**SPEC, "content": text} for text in (long, long.replace("line 40", "line forty")))
    entries = [values.user("one", [old]), values.respond("ok"), values.user("two", [new]), values.respond("ok")]
    last = [one for one in requests(entries) if isinstance(one, Built)][-1]
    text = render(last.prompt, "openai-chat:").body["messages"][-1]["content"]
    assert text.startswith('<note_context_update replaces="')
    assert "```diff" in text
    assert "+line forty" in text
    short = [values.user("one", [SPEC]), values.respond("ok"), values.user("two", [{**SPEC, "content": "New."}])]
    short += [values.respond("ok")]
    whole = [one for one in requests(short) if isinstance(one, Built)][-1]
    assert "<content>\nNew.\n</content>" in render(whole.prompt, "openai-chat:").body["messages"][-1]["content"]


@pytest.mark.moves_prefix(reason="the tools change, which Chat can only say in front of everything")
def test_late_tools_are_a_recorded_break_in_name_order() -> None:
    def tool(name: str) -> dict[str, object]:
        return {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}}

    entries = [values.tools([tool("b")]), values.user("x"), values.respond("y"), values.tools([tool("a")])]
    entries += [values.user("z"), values.respond("w")]
    first, second = (one for one in requests(entries) if isinstance(one, Built))
    assert [t["name"] for t in first.prompt.tools] == ["b"]
    assert [t["name"] for t in second.prompt.tools] == ["a", "b"]
    assert second.rebase["reason"] == "tools"


def test_a_note_stands_behind_the_next_user_or_tool_message() -> None:
    entries = [values.user("go"), values.call("c", "f", {}), values.note("be brief"), values.result("c", None, "r")]
    entries += [values.respond("done"), values.note("stop soon"), values.user("more"), values.respond("ok")]
    last = [one for one in requests(entries) if isinstance(one, Built)][-1]
    assert [m.role for m in last.prompt.messages] == ["user", "assistant", "tool", "note", "assistant", "user", "note"]


def test_context_calls_go_into_the_user_message_and_stay_there() -> None:
    asked, beside = {"q": "new", "timeRange": "last week"}, {"placement": "context", "shown": ["timeRange"]}
    entries = [values.user("what is new?"), values.call("p1", "webSearch", asked, meta=beside)]
    entries += [values.result("p1", None, "found </webSearch> it"), values.respond("this")]
    entries += [values.user("thanks"), values.respond("ok")]
    first, second = (one for one in requests(entries) if isinstance(one, Built))
    text = render(first.prompt, "openai-chat:").body["messages"][0]["content"]
    assert text == (
        '# Additional context:\n\n<webSearch timeRange="last week">\nfound <\\/webSearch> it\n</webSearch>'
        f"{QUERY}what is new?"
    )
    assert render(second.prompt, "openai-chat:").body["messages"][0]["content"] == text


def test_the_system_text_never_says_null() -> None:
    assert system_text("BASE") == "BASE"
    assert system_text("BASE", memory="MEM") == "MEM\nBASE"
    assert system_text("BASE", project_prompt="P", project_context=None) == (
        "BASE\n\n<project_system_prompt>\nP\n</project_system_prompt>"
    )
    assert system_text("BASE", project_prompt="P", project_context="C", tool_text="T") == (
        "BASE\n\n<project_system_prompt>\nP\n</project_system_prompt>\n\n<project_context>\nC\n</project_context>\n\nT"
    )


def _note(content: str, **metadata: object) -> dict[str, object]:
    return {"content": content, "metadata": {"source": "note", "path": "a.md", "title": "a", **metadata}}


@pytest.mark.moves_prefix(reason="each-turn promotes")
def test_each_turn_shows_changed_content_and_promotes_it_to_its_old_place() -> None:
    other = {"content": "O", "metadata": {"source": "note", "path": "o.md", "title": "o"}}
    entries = [values.user("q1", [_note("old"), other]), values.respond("r1"), values.user("q2", [_note("new")])]
    entries += [values.respond("r2"), values.user("q3", [_note("new")]), values.respond("r3")]
    made = [one for one in requests(entries, Policy(promote="each-turn")) if isinstance(one, Built)]
    second, third = made[1], made[2]
    assert "old" in second.prompt.l2
    assert "note_context_update" in str(second.prompt.messages[-1])
    assert "new" in str(second.prompt.messages[-1])
    assert "old" not in third.prompt.l2
    assert third.prompt.l2.index("new") < third.prompt.l2.index("o.md")
    assert "Context attached:\n- a.md\n" in third.prompt.messages[-1].parts[0].text  # type: ignore[union-attr]


@pytest.mark.moves_prefix(reason="each-turn promotes")
def test_each_turn_keeps_the_users_own_images_in_history_but_not_those_of_a_note() -> None:
    active = _note("body", source="active_note", images=["https://example.org/note.png"])
    first = values.user("q1", [active], images=["https://example.org/own.png"])
    entries = [first, values.respond("r1"), values.user("q2"), values.respond("r2")]
    made = [one for one in requests(entries, Policy(promote="each-turn")) if isinstance(one, Built)]
    assert "note.png" in str(made[0].prompt.messages[0])
    assert "note.png" not in str(made[1].prompt.messages[0])
    assert "own.png" in str(made[1].prompt.messages[0])


@pytest.mark.moves_prefix(reason="each-turn promotes")
def test_each_turn_says_why_an_earlier_turns_tool_output_and_selection_are_gone() -> None:
    chosen = {"meta": {"placement": "context"}}
    selection = {"source": "selection", "path": "a.md", "title": "a", "start_line": 1, "end_line": 2}
    entries = [values.attach({"content": "sel", "metadata": selection}), values.attach(_note("kept"))]
    entries += [values.user("q1"), values.call("p", "search", {}, **chosen), values.result("p", None, "found")]
    entries += [values.respond("r1"), values.user("q2"), values.respond("r2")]
    made = [one for one in requests(entries, Policy(promote="each-turn")) if isinstance(one, Built)]
    assert not made[0].left_out
    assert [left.entry for left in made[1].left_out] == [1, 4, 5]


def test_an_item_attached_behind_the_user_waits_and_an_empty_note_or_tool_output_is_explained() -> None:
    entries = [values.user("q1"), values.call("p", "search", {}, meta={"placement": "context"})]
    entries += [values.result("p", None, ""), values.note(" "), values.attach(_note("later")), values.respond("r1")]
    entries += [values.user("q2"), values.respond("r2")]
    first, second = [one for one in requests(entries, Policy()) if isinstance(one, Built)]
    assert {left.entry for left in first.left_out} == {2, 3, 4, 5}
    assert {left.entry for left in second.left_out} == {2, 3, 4}
