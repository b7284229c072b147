"""Where items come from: files, buffers, regions, pages, REPLs, errors."""

import hashlib
import os
import re
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire import Window
from quire.errors import BudgetError, CallError, FormatError, NotFound
from quire.items import from_error, from_file, from_region, from_repl, from_text, from_url, identity, item
from quire.items.sources import MAX_BYTES, region_of
from quire.values import item_json

HASH_OF_LIST = hashlib.sha256(b"LIST").hexdigest()[:12]


def test_a_file_comes_whole_and_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.lisp"
    path.write_bytes("(defun größe ()\r\n  1)\n\n".encode())
    found = from_file(path)
    assert (found.type, found.metadata) == ("file", {"filename": str(path)})
    assert found.content.encode() == path.read_bytes()
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert from_file(path, name="a.lisp").metadata == {"filename": "a.lisp"}
    assert Window().add(found).id == "ctx-1"


def test_a_file_over_50000_bytes_is_an_error_unless_truncated(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("x" * MAX_BYTES)
    assert from_file(path).content == "x" * MAX_BYTES
    path.write_text("äöü\n" * 7143)
    with pytest.raises(BudgetError, match="50,001 bytes; the limit is 50,000") as caught:
        from_file(path)
    assert "truncate=True" in caught.value.hint
    cut = from_file(path, truncate=True)
    assert len(cut.content.encode()) <= MAX_BYTES
    assert cut.content.endswith("äöü\n[... 6 more lines omitted (42 bytes) ...]")
    assert cut.metadata == {"filename": str(path), "truncated": {"lines": 6, "bytes": 42}}


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no file .*missing\.py"):
        from_file(tmp_path / "missing.py")
    with pytest.raises(CallError, match="cannot read"):
        from_file(tmp_path)
    (tmp_path / "bad").write_bytes(b"ok\nx\xff")
    with pytest.raises(FormatError, match=r"line 2, column 2: .* is not UTF-8"):
        from_file(tmp_path / "bad")


def test_a_region_is_its_lines_both_ends_included(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("one\ntwo\x0cstill two\nthree\u2028still three\nfour\n")
    found = from_region(path, 2, 3, name="a.py")
    assert (found.type, found.content) == ("code", "two\x0cstill two\nthree\u2028still three")
    assert found.metadata == {"filename": "a.py", "start_line": 2, "end_line": 3}
    assert from_region(path, 4, 4).content == "four"


@pytest.mark.parametrize(("start", "end"), [(0, 1), (3, 2), (1, 5), (5, 5), (-1, 2), ("1", 2)])
def test_lines_that_are_not_there_are_an_error(tmp_path: Path, start: int, end: int) -> None:
    path = tmp_path / "a.py"
    path.write_text("1\n2\n3\n4\n")
    with pytest.raises(CallError, match="which has 4"):
        from_region(path, start, end)


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=9
    ),
    st.data(),
)
def test_regions_of_a_text_join_to_the_text(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines) + "\n"
    cut = data.draw(st.integers(1, len(lines)))
    parts = [region_of(text, "t", 1, cut)] + ([region_of(text, "t", cut + 1, len(lines))] if cut < len(lines) else [])
    assert re.fullmatch("".join(re.escape(part.content) + r"\r?\n" for part in parts), text)


def test_a_large_region_is_limited_like_a_file(tmp_path: Path) -> None:
    path = tmp_path / "big.c"
    path.write_text("int x;\n" * 20_000)
    assert from_region(path, 19_000, 19_001).content == "int x;\nint x;"
    with pytest.raises(BudgetError, match=r"big\.c:1-20000 has 139,999 bytes"):
        from_region(path, 1, 20_000)
    assert (from_region(path, 1, 20_000, truncate=True).metadata or {})["truncated"]["lines"] > 10_000


def test_a_buffer_is_text_under_its_name() -> None:
    assert item_json(from_text("hello", "*scratch*"))["metadata"] == {"filename": "*scratch*"}
    assert (from_text("hello").type, from_text("x = 1", type="code").type) == ("text", "code")
    assert len(from_text("x" * 50_001).content) == 50_001  # the limit is for files


def test_a_page_is_known_by_its_url() -> None:
    page = from_url("https://example.org/a", "The text.", title="A")
    assert (page.type, page.metadata) == ("text", {"source": "url", "url": "https://example.org/a", "title": "A"})
    assert identity(item_json(Window().add(page))) == "https://example.org/a"


def test_a_repl_exchange_shows_what_was_typed_and_what_came_back() -> None:
    assert from_repl("(+ 1 2)", "3").content == "> (+ 1 2)\n3"
    exchange = from_repl("def f():\n    return 1", prompt=">>> ", language="python")
    assert (exchange.type, exchange.content) == ("repl-history", ">>> def f():\n        return 1")
    assert exchange.metadata == {"language": "python"}


def test_an_error_brings_its_traceback_and_its_place() -> None:
    try:
        {}["missing"]
    except KeyError as error:
        found = from_error(error)
    assert found.type == "error"
    assert found.content.startswith("Traceback (most recent call last):\n")
    assert found.content.endswith("KeyError: 'missing'")
    metadata = found.metadata or {}
    assert metadata["exception"] == "KeyError"
    assert metadata["filename"] == __file__
    assert metadata["start_line"] == metadata["end_line"] > 1


def test_an_error_without_an_exception_is_its_message() -> None:
    assert from_error("Unbound variable FOO", "  0: (eval FOO)").content == "Unbound variable FOO\n  0: (eval FOO)"
    assert from_error("boom").content == "boom"
    assert from_error(ValueError("never raised")).metadata == {"exception": "ValueError"}


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (None, "ctx-1"),
        ({"source": "note", "path": "Notes/a.md"}, "Notes/a.md"),
        ({"source": "active_note", "path": "a.md"}, "a.md"),
        ({"source": "url", "url": "https://e.org"}, "https://e.org"),
        ({"source": "selection", "path": "a.md", "start_line": 3, "end_line": 9}, "a.md#L3-L9"),
        ({"source": "dataview", "path": "a.md", "query": "LIST"}, f"a.md#dataview-{HASH_OF_LIST}"),
        ({"filename": "a.md"}, "ctx-1"),
        ({"source": "note"}, "ctx-1"),
    ],
)
def test_identity_is_where_an_item_comes_from_else_its_id(metadata: dict[str, object] | None, expected: str) -> None:
    assert identity(item_json(Window().add(item("x", "text", metadata)))) == expected
    assert identity({"content": "LIST"}) == f"ctx-{HASH_OF_LIST}"


def test_a_word_file_that_is_damaged_inside_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "odd.docx", "w") as made:
        made.writestr("[Content_Types].xml", "<Types/>")
    with pytest.raises(FormatError, match="cannot be read as a Word file"):
        from_file(tmp_path / "odd.docx")


def test_a_pipe_is_read_and_a_device_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"through a pipe")
    os.close(writing)
    assert from_file(f"/dev/fd/{reading}").content == "through a pipe"
    os.close(reading)
    with pytest.raises(BudgetError, match="has not ended"):
        from_file("/dev/zero")
