"""The two laws, for every format and any text: what is rendered is read back, and rendered the same again."""

import json
from types import ModuleType

import pytest
from format_texts import CLEAN, MARKDOWN, REPLAY, XML, texts
from format_values import cleans, entries, markdowns, replays, windows
from hypothesis import given
from hypothesis import strategies as st

from conftest import shared_data
from quire import providers
from quire.errors import FormatError, QuireError
from quire.formats import clean, json_, markdown, protocol_stream, replay, xml
from quire.formats.text import Marks, well_formed


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


@pytest.mark.parametrize(
    ("format", "value"),
    [
        (markdown, markdown.Markdown((markdown.MarkdownItem("code", "a\ud800"),))),
        (markdown, markdown.Markdown((), "\udfff")),
        (clean, clean.Clean(request="\ud800")),
        (replay, replay.Replay((replay.User("\ud800"),))),
        (replay, replay.Replay((replay.ReplayedCall("t", {"a": "\ud800"}, ""),))),
    ],
)
def test_a_lone_surrogate_is_an_error(format: ModuleType, value: object) -> None:
    with pytest.raises(FormatError, match="lone surrogate"):
        format.render(value)


@pytest.mark.parametrize("format", [markdown, clean, replay, xml, json_])
def test_a_lone_surrogate_is_an_error_when_parsing(format: ModuleType) -> None:
    with pytest.raises(FormatError, match="lone surrogate"):
        format.parse("\ud800")


@pytest.mark.parametrize("field", ["content", "metadata", "request"])
def test_a_lone_surrogate_in_a_window_is_an_error(field: str) -> None:
    data = {"items": [{"content": "\ud800" if field == "content" else "", "metadata": {"k": ""}}], "request": ""}
    if field == "metadata":
        data["items"][0]["metadata"]["k"] = "\ud800"
    elif field == "request":
        data["request"] = "\ud800"
    with pytest.raises(FormatError, match="lone surrogate"):
        xml.read(data)


def test_the_place_of_an_error_counts_newlines_alone() -> None:
    with pytest.raises(FormatError) as caught:
        well_formed("a\r\u2028b\nc\ud800")
    assert (caught.value.line, caught.value.column) == (2, 2)


FILES = "pi_large_session swe_agent tau2_airline tau_retail_gemini tau_retail_gpt41mini tau_retail_o4mini".split()


@pytest.mark.parametrize("name", FILES)
def test_real_threads_with_reused_ids_unanswered_calls_and_carriage_returns_come_back(name: str) -> None:
    for line in shared_data(f"traces/{name}.jsonl").read_text().split("\n"):
        if not line:
            continue
        entries = list(providers.import_("openai-chat", json.loads(line)["messages"]))
        for value in (replay.project(entries), replay.project(entries, None, "§")):
            text = replay.render(value)
            assert replay.parse(text) == value
            assert replay.read(replay.to_json(value)) == value
            assert "".join(event.raw for event in protocol_stream.read(text)) == text
        talk = clean.project_thread(entries)
        assert clean.parse(clean.render(talk)) == talk
