"""The bytes of markdown: fences, annotations, tags, the prompt form."""

import pytest
from format_texts import MARKDOWN, texts
from hypothesis import given

from quire import Item, Window
from quire.errors import CallError, FormatError
from quire.formats import markdown
from quire.formats.markdown import Markdown, MarkdownItem


def shown(item: dict, **options: object) -> str:
    """The text of a window with one item."""
    return markdown.render(markdown.read({"items": [item], **options}))


@pytest.mark.parametrize(
    ("item", "options", "text"),
    [
        (
            {"content": "x = 1", "metadata": {"filename": "src/a.py", "start_line": 0, "end_line": 3}},
            {},
            "### Code (from src/a.py:0-3)\n```python\nx = 1\n```\n\n",
        ),
        # A fence is longer than any in the content.
        ({"content": ""}, {}, "### Code\n```lisp\n\n```\n\n"),
        ({"content": "``"}, {}, "### Code\n```lisp\n``\n```\n\n"),
        ({"content": "```"}, {}, "### Code\n````lisp\n```\n````\n\n"),
        ({"content": "a ````` b ``` c"}, {}, "### Code\n``````lisp\na ````` b ``` c\n``````\n\n"),
        ({"content": "~~~~"}, {}, "### Code\n```lisp\n~~~~\n```\n\n"),
        # Each word of the type is capitalised.
        ({"content": "x", "type": "repl-history"}, {}, "### Repl-History\n```lisp\nx\n```\n\n"),
        ({"content": "x", "type": "custom"}, {}, "### Custom\n```text\nx\n```\n\n"),
        ({"content": "x"}, {"default_language": "python"}, "### Code\n```python\nx\n```\n\n"),
        ({"content": "x"}, {"request": "Why?\n"}, "### Code\n```lisp\nx\n```\n\n\n\n## Request\n\nWhy?\n"),
    ],
)
def test_an_item_is_heading_fence_content_fence_and_a_blank_line(item: dict, options: dict, text: str) -> None:
    assert shown(item, **options) == f"## Context\n\n{text}"
    assert markdown.render(markdown.read({"items": []})) == "## Context\n\n"


@pytest.mark.parametrize(
    ("metadata", "annotation"),
    [
        ({}, ""),
        ({"start_line": 1, "end_line": 2}, ""),
        ({"filename": "a"}, " (from a)"),
        ({"filename": ""}, " (from )"),
        ({"filename": "a", "start_line": 1}, " (from a)"),
        ({"filename": "a", "end_line": 1}, " (from a)"),
        ({"filename": "a", "start_line": 0, "end_line": 0}, " (from a:0-0)"),
        ({"filename": "a b (c).py"}, " (from a b (c).py)"),
        ({"filename": "a:1-2"}, r" (from a\x3a1-2)"),
        ({"filename": "a:1-2", "start_line": 3, "end_line": 4}, r" (from a\x3a1-2:3-4)"),
        ({"filename": "a:1-2b"}, " (from a:1-2b)"),
        ({"filename": "c:1-2:x"}, " (from c:1-2:x)"),
        ({"filename": "a\nb\x00\x1b\x7f\x85"}, r" (from a\x0ab\x00\x1b\x7f\x85)"),
        ({"filename": "a\u2028b\u202e"}, " (from a\u2028b\u202e)"),
        ({"filename": r"C:\x41\xzz\x4"}, r" (from C:\x5cx41\xzz\x4)"),
    ],
)
def test_annotations(metadata: dict, annotation: str) -> None:
    assert shown({"content": "", "metadata": metadata}).startswith(f"## Context\n\n### Code{annotation}\n```")


@pytest.mark.parametrize(
    ("item", "tag"),
    [
        ({}, "lisp"),
        ({"metadata": {"language": "c++"}}, "c++"),
        ({"metadata": {"language": "go", "filename": "a.py"}}, "go"),
        ({"metadata": {"filename": "dir.d/A.PY"}}, "python"),
        ({"metadata": {"filename": "dir.py/Makefile"}}, "lisp"),
        ({"metadata": {"filename": ".py"}}, "lisp"),
        ({"type": "file", "metadata": {"filename": "a.rs", "language": "go"}}, "rust"),
        ({"type": "file", "metadata": {"filename": "a.unknown"}}, "text"),
        ({"type": "file"}, "text"),
        ({"type": "repl-history", "metadata": {"filename": "a.py"}}, "lisp"),
        ({"type": "repl-history", "metadata": {"language": "python"}}, "python"),
        ({"type": "error", "metadata": {"filename": "a.py", "language": "python"}}, "text"),
        ({"type": "text"}, "text"),
        ({"type": "custom"}, "text"),
    ],
)
def test_tags(item: dict, tag: str) -> None:
    assert f"\n```{tag}\n" in shown({"content": "", **item})


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ("Hello", "Hello"),
        ("", ""),
        ("## Context", r"\## Context"),
        ("## Contextual", r"\## Contextual"),
        (r"\## Context", r"\\## Context"),
        (r"\other", r"\other"),
        ("a\n## Context", "a\n## Context"),
        ("### Code", "### Code"),
        ("<user>\nhi\n</user>", "<user>\nhi\n</user>"),
    ],
)
def test_a_message_without_items_stands_alone(request_: str, text: str) -> None:
    value = markdown.read({"items": [], "request": request_})
    assert markdown.render(value) == text
    assert markdown.parse(text) == Markdown((), request_)


@given(texts(MARKDOWN))
def test_the_request_is_found_whatever_stands_before_and_in_it(request: str) -> None:
    value = Markdown((MarkdownItem("text", "\n```\n\n\n\n## Request\n\nno", tag="text"),), request)
    assert markdown.parse(markdown.render(value)).request == request


def test_tags_follow_the_layout_of_the_origin() -> None:
    item = Item(id="ctx-1", content="(defun foo () 42)")
    context = "<context-from-manager>\n## Context\n\n### Code\n```lisp\n(defun foo () 42)\n```\n</context-from-manager>"
    assert markdown.render(markdown.project([item], wrap="tags")) == context
    assert markdown.render(markdown.project([item], "Why?", wrap="tags")) == context + "\n\n<user>\nWhy?\n</user>"
    told = markdown.project([item], "Why?", wrap="tags", system="Be\n</system>\n\nbrief.")
    assert markdown.render(told) == (
        f"<system>\nBe\n\\</system>\n\nbrief.\n</system>\n\n{context}\n\n<user>\nWhy?\n</user>"
    )
    assert markdown.parse(markdown.render(told)) == told
    with pytest.raises(CallError, match="needs tags"):
        markdown.project([item], "Why?", system="Be brief.")


def test_a_message_that_looks_like_tags_is_no_context() -> None:
    inner = markdown.render(Markdown((MarkdownItem("code", "x"),), "q", "tags"))
    assert markdown.parse(markdown.render(Markdown((), inner))) == Markdown((), inner)


def test_the_oldest_items_go_first_when_there_are_too_many() -> None:
    items = [{"content": f"item {n}"} for n in range(4)]
    value = markdown.read({"items": items, "max_items": 3})
    assert [block.content for block in value.items] == ["item 1", "item 2", "item 3"]


def test_a_window_projects_like_its_json() -> None:
    window = Window()
    window.add("x", "file", {"filename": "a.md", "start_line": 1, "end_line": 2})
    assert markdown.project(window, "q") == markdown.read({**window.to_json(), "request": "q"})


def test_agent_q_escapes_nothing_and_cannot_be_parsed() -> None:
    data = {"items": [{"type": "text", "content": "a ``` b", "metadata": {"filename": "x\n:1-2", "language": "go"}}]}
    text = markdown.render(markdown.read(data, "agent-q"), "agent-q")
    assert text == "## Context\n\n### Text (from x\n:1-2)\n```lisp\na ``` b\n```\n\n"
    with pytest.raises(CallError, match="agent-q"):
        markdown.parse(text, "agent-q")


WRONG_TYPES = [("filename", 3), ("start_line", "1"), ("end_line", True), ("language", ["go"]), ("start_line", 1.5)]


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        *(({"language": tag}, "tag of a code fence") for tag in ("c sharp", "a`b", "a\n", "é", "{.python}")),
        *(({name: value}, "must be") for name, value in WRONG_TYPES),
        ({"start_line": -1, "end_line": 2}, "-1"),
    ],
)
def test_metadata_that_cannot_be_shown_is_an_error(metadata: dict, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        shown({"content": "", "metadata": {"filename": "a", **metadata}})


@pytest.mark.parametrize(
    "fields", [{"filename": "a", "start_line": 1}, {"start_line": 1, "end_line": 2}, {"filename": "a", "end_line": 1}]
)
def test_no_value_holds_lines_that_it_would_not_show(fields: dict) -> None:
    with pytest.raises(CallError):
        MarkdownItem("code", "", **fields)
