"""The two laws, for every format and any text: what is rendered is read back, and rendered the same again."""

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from format_texts import CLEAN, MARKDOWN, REPLAY, XML, texts
from format_values import cleans, entries, markdowns, replays, windows
from hypothesis import given
from hypothesis import strategies as st

from conftest import TRACES, traces
from quire import QuireError, providers
from quire.errors import FormatError
from quire.formats import Marks, clean, json_, markdown, protocol_stream, replay, well_formed, xml


def hold(format: ModuleType, value: object) -> None:
    """Both laws for one value, and that its JSON is input again."""
    text = format.render(value)
    back = format.parse(text)
    assert back == value
    assert format.render(back) == text
    data = json.loads(json.dumps(format.to_json(value)))
    assert format.render(format.read(data)) == text


@given(windows)
def test_xml_and_json_come_back_with_every_field(data: dict) -> None:
    hold(xml, xml.read(data))
    value = json_.read(data)
    hold(json_, value)
    shown = [item["content"] for item in json.loads(json_.render(value))["items"]]
    assert shown == [item["content"] for item in data["items"]][-value.max_items :]


@given(markdowns, replays, cleans)
def test_markdown_replay_and_clean_come_back_whatever_they_hold(
    page: markdown.Markdown, told: replay.Replay, plain: clean.Clean
) -> None:
    hold(markdown, page)
    hold(replay, told)
    text = clean.render(plain)
    assert clean.parse(text) == plain
    assert clean.render(clean.parse(text)) == text


@given(entries, st.none() | st.integers(0, 8), st.sampled_from("$§"))
def test_a_thread_s_replay_comes_back(bodies: list[dict], window: int | None, delimiter: str) -> None:
    hold(replay, replay.read({"entries": bodies, "window": window, "delimiter": delimiter}))


@pytest.mark.parametrize(
    ("format", "grammar"), [(markdown, MARKDOWN), (clean, CLEAN), (replay, REPLAY)], ids=["markdown", "clean", "replay"]
)
def test_any_text_is_refused_or_is_what_its_value_renders_to(format: ModuleType, grammar: list[str]) -> None:
    @given(texts(grammar, size=14))
    def holds(text: str) -> None:
        try:
            value = format.parse(text)
        except FormatError:
            return
        assert format.render(value) == text

    holds()


@given(texts(XML, MARKDOWN, size=14))
def test_any_text_is_refused_as_xml_with_an_error_of_ours(text: str) -> None:
    for shown in (text, f"<context><item>{text}</item></context>", f"<context {text}></context>"):
        try:
            value = xml.parse(shown)
        except QuireError:
            continue
        assert xml.parse(xml.render(value)) == value


@given(st.data())
def test_a_changed_text_never_reads_as_the_same_value(data: st.DataObject) -> None:
    format, values = data.draw(
        st.sampled_from([(markdown, markdowns), (clean, cleans), (replay, replays)]), label="format"
    )
    text = format.render(data.draw(values))
    at = data.draw(st.integers(0, len(text)))
    changed = text[:at] + data.draw(st.sampled_from(["", "\n", " ", "\\", "x", "$user: "])) + text[at + 1 :]
    try:
        assert (format.parse(changed) == format.parse(text)) == (changed == text)
    except FormatError:
        assert changed != text


@given(texts(REPLAY))
def test_the_backslash_rule_is_undone(text: str) -> None:
    marks = Marks(["$user:", "==="])
    guarded = marks.guard(text)
    assert marks.unguard(guarded) == text
    assert not any(line.lower().startswith(("$user:", "===")) for line in guarded.split("\n"))


HALF = "\ud800"
SURROGATES: list[tuple[Callable[..., object], object]] = [
    (markdown.render, markdown.Markdown((markdown.MarkdownItem("code", "a" + HALF),))),
    (markdown.render, markdown.Markdown((), "\udfff")),
    (clean.render, clean.Clean(request=HALF)),
    (replay.render, replay.Replay((replay.User(HALF),))),
    (replay.render, replay.Replay((replay.ReplayedCall("t", {"a": HALF}, ""),))),
    *((format.parse, HALF) for format in (markdown, clean, replay, xml, json_)),
    (xml.read, {"items": [{"content": HALF}]}),
    (xml.read, {"items": [{"content": "", "metadata": {"k": HALF}}]}),
    (xml.read, {"items": [], "request": HALF}),
]


@pytest.mark.parametrize(("work", "value"), SURROGATES)
def test_a_lone_surrogate_is_an_error(work: Callable[..., object], value: object) -> None:
    with pytest.raises(FormatError, match="lone surrogate"):
        work(value)


def test_the_place_of_an_error_counts_newlines_alone() -> None:
    with pytest.raises(FormatError) as caught:
        well_formed("a\r\u2028b\nc\ud800")
    assert (caught.value.line, caught.value.column) == (2, 2)


REFUSED_TEXTS: dict[ModuleType, list[str]] = {
    markdown: [
        "## Context",
        "## Context\n",
        "## Context\n\n### Code\n```lisp\nx\n```\n",
        "## Context\n\n### Nonsense\n```\nx\n```\n\n",
        "## Context\n\n### Code\n````lisp\nx\n````\n\n",
        "## Context\n\n### Code\n```lisp\nx\n",
        "## Context\n\n### Code (from a:01-2)\n```lisp\nx\n```\n\n",
        "## Context\n\n\n\n## Request\n\nx",
        "## Context\n\n### Code (from \\x0A)\n```\nx\n```\n\n",
        "<context-from-manager>\n## Context\n</context-from-manager>\n\n<user>\nx\n</user>",
        "<context-from-manager>\n## Context\n",
    ],
    clean: [
        "hello",
        "# Available Tools",
        "# Available Tools\nYou have access to 2 tools:\n\n• a (b): c",
        "# Available Tools\nYou have access to 1 tools:\n\n• a (b): c",
        "# Available Tools\nYou have access to 1 tool:\n• a (b): c",
        "# Relevant Conversation\n",
        "# Relevant Conversation\nuser: a",
        "# Relevant Conversation\nUser: a\nb",
        "# Recent Tool Results\n• a",
        "# Recent Tool Results\n• a: b\n\n# Relevant Conversation\nUser: x",
        "# Current Request\n",
    ],
    replay: [
        "hello",
        "=== HISTORY ===",
        "=== HISTORY ===\n$user: x",
        "=== HISTORY ===\n\n$think: x",
        "=== HISTORY ===\n(showing last 15 of 73 messages)\n\n$user: x",
        "=== HISTORY ===\n(showing last 1 of 1 messages)\n\n$user: x",
        "=== HISTORY ===\n\n$call: {}\n\n$result: x",
        '=== HISTORY ===\n\n$call: {"name": "t", "args": {}}',
        '=== HISTORY ===\n\n$call: {"args": {}, "name": "t"}\n\n$result: x',
        "=== HISTORY ===\n\n$result: x",
        "=== HISTORY ===\n\n$user: x\n\n=== HISTORY ===\n\n$user: x",
        "=== CURRENT ===\n\n$user: x",
        "=== CURRENT ===\n\n$respond: x\n\n$respond: x",
        "=== CURRENT ===\n\n$user: x\n\n$user: y",
        "=== CURRENT ===\n\n$user: x\n\n$respond: x\n\n=== HISTORY ===\n\n$user: y",
        "=== CURRENT ===\n\n$user: x\n\n$respond: a\n$User: b",
    ],
    json_: ["", "[", "[]", "{}", '{"items": [{}]}', '{"items": [], "max_items": 0}', "9" * 5000],
}


@pytest.mark.parametrize(("format", "text"), [(form, text) for form, texts in REFUSED_TEXTS.items() for text in texts])
def test_what_render_does_not_write_is_refused_with_its_place(format: ModuleType, text: str) -> None:
    with pytest.raises(FormatError) as caught:
        format.parse(text)
    assert caught.value.hint
    assert caught.value.line or format is json_


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not XML"),
        ("<context>", "not XML"),
        ("<contexts></contexts>", "unexpected <contexts>"),
        ("<context><items/></context>", "unexpected <items>"),
        ('<context size="1"></context>', "unknown attribute 'size'"),
        ('<context><item name="a"></item></context>', "unknown attribute 'name'"),
        ("<context>a</context>", "text between elements"),
        ("<context><item><b/></item></context>", "holds <b>"),
        ('<context><item encoding="hex">00</item></context>', "unknown encoding"),
        ('<context><item encoding="base64">0</item></context>', "not base64"),
        ('<context><item encoding="base64">/w==</item></context>', "not base64"),
        ('<context><item metadata="[]"></item></context>', "metadata"),
        ('<context><item metadata="{"></item></context>', "metadata is not JSON"),
        ('<context><item timestamp="x"></item></context>', "timestamp"),
        ('<context><item id="a"></item></context>', "id"),
        ("<context><request/><item>a</item></context>", "behind <request>"),
        ('<context><item pinned="yes" id="ctx-1"></item></context>', "pinned"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><context>&a;</context>', "document types"),
    ],
)
def test_other_xml_is_refused(text: str, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        xml.parse(text)


REFUSED_JSON: dict[ModuleType, list[Any]] = {
    clean: [
        {"tool": []},
        {"tools": [{"description": "x"}]},
        {"tools": [{"name": "a", "outputs": []}]},
        {"tools": [{"name": "a", "output": "x"}]},
        {"conversation": [{"role": "user"}]},
        {"conversation": [{"role": "user", "content": ["x"]}]},
        {"tool_results": [{"output": "x"}]},
        {"detail": "long"},
        {"request": 3},
        [],
    ],
    replay: [
        {},
        {"entries": [{"kind": "user"}]},
        {"entries": [{"kind": "chat", "text": ""}]},
        {"entries": [], "window": -1},
        {"entries": [], "delimiter": "%"},
        {"entries": [], "left_out": 3},
        {"entries": [{"kind": "think", "text": ""}], "history": 1},
        {"entries": [], "history": 0, "window": 3},
        {"entries": [], "windows": 3},
    ],
}


@pytest.mark.parametrize(("format", "data"), [(form, data) for form, many in REFUSED_JSON.items() for data in many])
def test_other_json_is_refused(format: ModuleType, data: Any) -> None:
    with pytest.raises(FormatError) as caught:
        format.read(data)
    assert caught.value.hint


@pytest.mark.parametrize("name", TRACES)
def test_real_threads_with_reused_ids_unanswered_calls_and_carriage_returns_come_back(name: str) -> None:
    for trace in traces(name):
        entries = list(providers.import_("openai-chat", trace["messages"]))
        for value in (replay.project(entries), replay.project(entries, None, "§")):
            text = replay.render(value)
            assert replay.parse(text) == value
            assert replay.read(replay.to_json(value)) == value
            assert "".join(event.raw for event in protocol_stream.read(text)) == text
        talk = clean.project_thread(entries)
        assert clean.parse(clean.render(talk)) == talk
