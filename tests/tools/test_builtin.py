"""The built-in tools: files of one folder and nothing else, arithmetic that cannot run away."""

import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import run

from quire import QuireError
from quire.errors import CallError, NotFound
from quire.items.sources import Root
from quire.send.builtin import builtin, calculate, evaluate, matcher, piece
from quire.send.tools import Tool, Toolbox

PYTHON = '''"""A module."""

import os


def first() -> int:
    """One."""
    return 1


@decorated
def second() -> int:
    x = 1

    return x


class Third:
    def inner(self) -> None:
        pass

    def other(self) -> None:
        pass
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.py").write_text(PYTHON)
    (folder / "notes.md").write_text("intro\n\n# One\none\n\n# Two\ntwo\n")
    (folder / "empty").write_text("")
    (folder / "image.bin").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "rootless").mkdir()
    (tmp_path / "rootless" / "key").write_text("secret")
    return folder


def box(root: Path, limit: int = 16_000) -> Toolbox:
    from quire.send.builtin import file_tools

    return Toolbox(*file_tools(root, limit))


def test_the_built_in_set_is_read_list_grep_calculate(root: Path) -> None:
    assert [one.name for one in builtin(root)] == ["read", "list", "grep", "calculate"]
    assert [one.name for one in builtin()] == ["calculate"]
    assert all(one.idempotent for one in builtin(root))


def test_read_shows_a_file_and_its_lines(root: Path) -> None:
    tools, whole = box(root), "intro\n\n# One\none\n\n# Two\ntwo"
    assert run(tools, {"path": "notes.md"}, "read") == {"outcome": "notes.md, lines 1-7 of 7", "content": whole}
    some = run(tools, {"path": "./src/../notes.md", "start": 3, "end": 4}, "read")
    assert some == {"outcome": "./src/../notes.md, lines 3-4 of 7", "content": "# One\none"}
    assert run(tools, {"path": "empty"}, "read")["outcome"] == "empty, empty"
    (root / "inside").symlink_to("src/a.py")
    assert run(tools, {"path": "inside", "end": 1}, "read")["content"].startswith('"""A module."""')


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../secret.txt", "src/../../secret.txt", "../rootless/key", "link", "linked/key", "src/up/secret.txt",
     "~/x", "~root", "a\0b", "..", "//etc/passwd", "C:\\x", "\\\\host\\x", "loop", "pipe", "image.bin", "src", "none", ""],
)  # fmt: skip
def test_nothing_outside_the_root_is_read_and_nothing_hangs(root: Path, path: str) -> None:
    (root / "link").symlink_to(root.parent / "secret.txt")
    (root / "linked").symlink_to(root.parent / "rootless")
    (root / "src" / "up").symlink_to("../..")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    for name, more in (("read", {}), ("list", {}), ("grep", {"pattern": "secret"})):
        result = run(box(root), {"path": path, **more}, name)
        assert "secret" not in result.get("content", "")
        assert "root:" not in result.get("content", "")
    assert run(box(root), {"path": path}, "read")["error"] is True


def test_a_link_put_in_after_the_check_is_not_followed(root: Path) -> None:
    checked = Root(root)
    real = checked.resolve("src/a.py")
    (root / "src" / "a.py").unlink()
    (root / "src" / "a.py").symlink_to(root.parent / "secret.txt")
    with pytest.raises(CallError, match="cannot be read"):
        checked._open(real, "src/a.py")


def test_list_names_folders_first_and_does_not_follow_links(root: Path) -> None:
    (root / "linked").symlink_to(root.parent / "rootless")
    with pytest.raises(NotFound):
        Root(root / "none")
    first = "src/\nsrc/a.py (235 bytes)\n"
    whole = f"{first}empty (0 bytes)\nimage.bin (6 bytes)\nlinked (a link)\nnotes.md (28 bytes)"
    assert run(box(root), {"depth": 2}, "list") == {"outcome": ".: 6 entries", "content": whole}
    assert run(box(root, 30), {"depth": 2}, "list")["content"] == f"{first}[… 4 more entries not shown …]"


def test_grep_finds_lines_and_counts_what_it_leaves_out(root: Path) -> None:
    found = "src/a.py:19: def inner(self) -> None:\nsrc/a.py:22: def other(self) -> None:"
    told = run(box(root), {"pattern": r"def \w+\(self\)"}, "grep")
    assert told == {"outcome": "2 hits in 1 file", "content": found}
    told = run(box(root), {"pattern": "ONE", "glob": "*.md", "ignore_case": True, "most": 1}, "grep")
    assert told == {"outcome": "2 hits in 1 file", "content": "notes.md:3: # One\n[… 1 more hit not shown …]"}
    assert run(box(root), {"pattern": "nowhere"}, "grep") == {"outcome": "0 hits in 0 files"}
    assert run(box(root), {"pattern": "(unclosed"}, "grep")["error"] is True


def test_a_pattern_that_explodes_is_stopped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "bad.txt").write_text("a" * 60 + "!\n")
    monkeypatch.setattr("quire.send.builtin.matcher", lambda pattern, case: matcher(pattern, case, seconds=0.2))
    told = "the search took longer than 0.2 s (Use a simpler pattern or a smaller folder.)"
    assert run(box(root), {"pattern": "(a|aa)+$"}, "grep") == {"outcome": told, "error": True}


def test_a_long_line_is_shown_around_its_match(root: Path) -> None:
    (root / "long.txt").write_text("word " * 200 + "needle " + "word " * 200)
    shown = run(box(root), {"pattern": "needle"}, "grep")["content"]
    assert "needle" in shown
    assert len(shown) < 400
    assert set(shown.split(": ", 1)[1].split()) == {"word", "needle", "..."}


def test_code_is_cut_before_a_definition_and_markdown_before_a_section() -> None:
    code = piece(PYTHON, "a.py", 1, 99, 120)
    assert code.text.endswith("return 1")
    assert PYTHON.split("\n")[code.end] == "@decorated"
    rest = piece(PYTHON, "a.py", code.end + 1, 99, 10_000)
    assert PYTHON.rstrip("\n").split("\n")[code.end :] == rest.text.split("\n")
    notes = piece("intro\n\n# One\none\n\n# Two\n" + "two " * 50, "n.md", 1, 99, 40)
    assert notes.text == "intro\n\n# One\none"


@given(st.lists(st.text(st.sampled_from("ab d#"), max_size=30), min_size=1, max_size=40), st.integers(5, 120),
       st.sampled_from(["x.md", "x.py", "x.txt", "x.unknown"]))  # fmt: skip
def test_pieces_follow_one_another_and_lose_no_line(lines: list[str], limit: int, name: str) -> None:
    text = "\n".join(lines)
    start, seen = 1, []
    count = len(text.removesuffix("\n").split("\n"))
    while start <= count:
        part = piece(text, name, start, count, limit)
        assert len(part.text) <= limit
        assert part.start == start
        assert part.end >= start
        if not part.rest:
            assert "\n".join(text.split("\n")[start - 1 : part.end]).rstrip("\n") == part.text.rstrip("\n")
        seen += range(part.start, part.end + 1)
        start = part.end + 1
    assert seen == list(range(1, count + 1))


@given(line=st.text(st.sampled_from("ab é"), min_size=1, max_size=300), limit=st.integers(5, 60))
def test_a_line_of_any_length_can_be_read_to_its_end(line: str, limit: int) -> None:
    """A line that is cut says where it goes on; read so, nothing of it is lost."""
    column, seen = 1, ""
    while column:
        part = piece(line, "x.json", 1, 1, limit, column)
        seen, column = seen + part.text, part.rest
        assert len(part.text) <= limit
    assert seen == line


def test_a_file_of_one_long_line_is_read_on_inside_the_line(root: Path) -> None:
    (root / "one.json").write_text("[" + ", ".join(map(str, range(200))) + "]\nend")
    first = run(box(root, 120), {"path": "one.json"}, "read")["content"]
    assert first.endswith("[… line 1 of 2 goes on; read again with start=1, column=119 …]")
    column = int(first.rpartition("column=")[2].split()[0])
    again = run(box(root, 120), {"path": "one.json", "column": column}, "read")["content"]
    assert (root / "one.json").read_text().startswith(first.split("\n")[0] + again.split("\n")[0])
    beyond = run(box(root, 120), {"path": "one.json", "column": 5000}, "read")
    assert beyond == {"outcome": "line 1 of one.json ends before character 5000", "error": True}


@pytest.mark.parametrize("tool", ["read", "list", "grep"])
def test_a_link_swapped_in_while_a_tool_runs_is_never_followed(tool: str, root: Path) -> None:
    """A file and a folder are exchanged with links that lead out, as fast as can be, while the tool looks."""
    outside = root.parent / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner" / "a.txt").write_text("secret\n")
    (outside / "inner" / "secret-name").write_text("secret\n")
    (root / "deep" / "inner").mkdir(parents=True)
    (root / "deep" / "inner" / "a.txt").write_text("harmless\n")
    (root / "links").mkdir()
    (root / "links" / "inner").symlink_to(outside / "inner")
    (root / "links" / "a.txt").symlink_to(outside / "inner" / "a.txt")
    args = {"read": {"path": "deep/inner/a.txt"}, "list": {"path": "deep/inner"},
            "grep": {"pattern": "secret", "path": "deep"}}[tool]  # fmt: skip
    one = Toolbox(*builtin(root)).get(tool)
    assert one is not None
    swapping = subprocess.Popen([sys.executable, "-c", SWAP, str(root)])
    try:
        answers = [_answer(one, args) for _ in range(2_000)]
    finally:
        swapping.kill()
        swapping.wait()
    assert not [answer for answer in answers if "secret" in answer]
    assert [answer for answer in answers if answer != "refused"]


def _answer(one: Tool, args: dict[str, str]) -> str:
    try:
        return str(one(**args).content)
    except QuireError:
        return "refused"


SWAP = """
import os, sys
os.chdir(sys.argv[1])
while True:
    for name, link in (("deep/inner", "links/inner"), ("deep/inner/a.txt", "links/a.txt")):
        os.rename(name, "aside")
        os.rename(link, name)
        os.rename(name, link)
        os.rename("aside", name)
"""


@pytest.mark.parametrize("pattern", ["a{99999999}", "(a{1000}){1000}", "a{ 1 , 99999999 }", "(?R)?a", "a" * 2000 + "+"])
def test_a_pattern_that_would_take_the_memory_is_refused(pattern: str, root: Path) -> None:
    result = run(box(root), {"pattern": pattern}, "grep")
    assert result["error"] is True
    assert "too large to search with" in result["outcome"]


def test_what_a_pattern_keeps_of_a_long_line_is_bounded(root: Path) -> None:
    (root / "long.txt").write_text("a" * 3_000_000 + "needle")
    tracked = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert run(box(root), {"pattern": "(.)*", "glob": "long.txt"}, "grep")["outcome"] == "1 hit in 1 file"
    assert "needle" in run(box(root), {"pattern": "n[e]+dle", "glob": "long.txt"}, "grep")["content"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - tracked < 100_000


def test_a_long_file_says_where_to_go_on(root: Path) -> None:
    result = run(box(root, 120), {"path": "src/a.py"}, "read")
    assert result["outcome"] == "src/a.py, lines 1-10 of 23"
    assert result["content"].endswith("[… lines 11-23 not shown; read again with start=11 …]")
    assert run(box(root, 1600), {"path": "src/a.py", "start": 11}, "read")["content"].startswith("@decorated")


@pytest.mark.parametrize(
    ("expression", "value"),
    [("1 + 2 * 3", "7"), ("(3 + 4) * 12 / 5", "16.8"), ("0.1 + 0.2", "0.3"), ("2^10", "1024"), ("-7 // 2", "-4"),
     ("7 % 3", "1"), ("sqrt(2) ** 2", "2"), ("factorial(20)", "2432902008176640000"), ("round(2.567, 2)", "2.57"),
     ("max(1, 2, 3) - min(4, 5)", "-1"), ("2 ** -2", "0.25"), ("sin(pi / 2)", "1"), ("10 ** 20", "1" + "0" * 20)],
)  # fmt: skip
def test_arithmetic_is_right(expression: str, value: str) -> None:
    assert run(calculate, {"expression": expression}) == {"content": value}


@pytest.mark.parametrize(
    "expression",
    ["", "1 +", "1 / 0", "9 ** 9 ** 9", "10 ** 100000", "factorial(5000)", "factorial(2.5)", "factorial(10**9)",
     "__import__('os').system('id')", "(1).__class__", "[1][0]", "x", "lambda: 1", "'a' * 9", "True + 1", "1e400",
     "exp(9999)", "(-8) ** 0.5", "1 if 1 else 2", "a := 1", "round(12345678901, -10**9)", "(" * 500 + "1" + ")" * 500,
     "-" * 1500 + "1", "1" * 3000, "sqrt(-1)", "max()", "0 ** -1", "1\0", "2 ** 8000 * 2 ** 8000", "sqrt(x=1)"],
)  # fmt: skip
def test_what_is_not_bounded_arithmetic_is_an_error_at_once(expression: str) -> None:
    result = run(calculate, {"expression": expression})
    assert (result["error"], "did not end" in result["outcome"]) == (True, False)


NUMBERS = st.integers(-99, 99).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS, lambda e: st.builds(lambda a, o, b: f"({a} {o} {b})", e, st.sampled_from("+-*"), e), max_leaves=20
)


@given(EXPRESSIONS)
def test_integers_agree_with_python(expression: str) -> None:
    assert evaluate(expression) == eval(expression)  # the strategy writes nothing but integers and + - *
    assert evaluate("pi + e + tau") == math.pi + math.e + math.tau
