"""`quire format`: bytes in, bytes out, the printed examples to the byte, and errors that say what to do."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from format_values import entries
from hypothesis import given, settings

from quire import QuireError
from quire.cli.convert import text_format
from toolbox import invoke


def out(*args: str, input: str | bytes | object = "") -> str:
    given_ = input if isinstance(input, str | bytes) else json.dumps(input)
    return invoke("format", *args, stdin=given_).stdout_bytes.decode()


WINDOW = {"items": [{"content": "a\r\n```\x00", "metadata": {"filename": "x:1-2"}}], "request": "q\r\n"}
TALK = {
    "tools": [{"name": "t", "output": ["o"]}],
    "conversation": [{"role": "user", "content": "a\r\nb"}],
    "request": "q",
}
THREAD = [
    {"kind": "user", "text": "one\r"},
    {"kind": "call", "call_id": "x", "name": "t", "args": {"b": 1, "a": 2}},
    {"kind": "user", "text": "two"},
    {"kind": "respond", "text": "three"},
]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("markdown", WINDOW),
        ("markdown", {**WINDOW, "wrap": "tags"}),
        ("xml", WINDOW),
        ("json", WINDOW),
        ("clean", TALK),
        ("clean", {**TALK, "detail": "short"}),
        ("replay", {"entries": THREAD}),
        ("replay", {"entries": THREAD, "window": 1, "delimiter": "§"}),
    ],
)
def test_a_format_goes_to_text_and_back_and_to_the_same_text(name: str, data: object) -> None:
    text = out(name, input=data)
    parsed = out(name, "--parse", input=text.encode())
    assert out(name, input=parsed) == text
    assert json.loads(out(name, "--parse", input=out(name, input=parsed).encode())) == json.loads(parsed)


def test_parsed_calls_are_numbered() -> None:
    parsed = json.loads(out("replay", "--parse", input=out("replay", input={"entries": THREAD}).encode()))
    first, called, *rest = THREAD
    missing = {"kind": "result", "call_id": "call-1", "outcome": "(interrupted: no result was recorded)"}
    entries = [first, {**called, "call_id": "call-1"}, missing, *rest]
    assert parsed == {"entries": entries, "history": 3, "left_out": 0, "delimiter": "$"}


@settings(max_examples=50)
@given(entries)
def test_replay_takes_an_object_or_json_lines(bodies: list[dict]) -> None:
    lines = "".join(json.dumps(body) + "\n" for body in bodies)
    assert out("replay", input=lines) == out("replay", input={"entries": bodies})


def test_replay_takes_one_line() -> None:
    assert out("replay", input='{"kind": "user", "text": "a"}') == ""


@pytest.mark.parametrize(
    ("args", "data", "wanted"),
    [
        (("markdown", "--wrap", "tags"), {"items": []}, "<context-from-manager>\n## Context\n</context-from-manager>"),
        (
            ("markdown", "--wrap", "tags", "--system", "Be brief."),
            {"items": [], "request": "Why?"},
            "<system>\nBe brief.\n</system>\n\n<context-from-manager>\n## Context\n</context-from-manager>"
            "\n\n<user>\nWhy?\n</user>",
        ),
        (
            ("markdown", "--default-language", "go"),
            {"items": [{"content": ""}], "default_language": "c"},
            "## Context\n\n### Code\n```go\n\n```\n\n",
        ),
        (
            ("clean", "--detail", "full"),
            {"tools": [{"name": "t"}], "detail": "short"},
            "# Available Tools\nYou have access to 1 tool:\n\n• t (general): ",
        ),
        (
            ("replay", "--window", "1", "--delimiter", "§"),
            {"entries": THREAD[-1:] * 3 + THREAD[2:3], "window": 9},
            "=== HISTORY ===\n(showing last 1 of 3 messages)\n\n§respond: three",
        ),
        (
            ("replay", "--window", "all"),
            {"entries": THREAD[-1:] * 2 + THREAD[2:3], "window": 1},
            "=== HISTORY ===\n\n$respond: three\n\n$respond: three",
        ),
    ],
)
def test_options_win_over_the_json_s_fields(args: tuple[str, ...], data: object, wanted: str) -> None:
    assert out(*args, input=data) == wanted


def test_agent_q_cannot_be_parsed() -> None:
    with pytest.raises(QuireError) as raised:
        out("markdown", "--profile", "agent-q", "--parse", input="## Context\n\n")
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("args", "text", "code", "problem"),
    [
        (("markdown",), '{"items": [{"contnt": ""}]}', 1, "items[0].contnt: unknown field"),
        (("clean",), '{"tols": []}', 1, "tols: unknown field"),
        (("replay",), '{"entries": [{"kind": "user"}]}', 1, "entries[0]"),
        (("replay",), '{"kind": "user", "text": "a"}\n{"kind": "user", "txt": "a"}', 1, "line 2, column 18"),
        (("json",), "{", 1, "line 1, column 2"),
        (("json",), b"\xff", 1, "not UTF-8"),
        (("xml",), '{"items": [{"content": "\\ud800"}]}', 1, "lone surrogate"),
        (("clean", "--parse"), "# Nothing", 1, "line 1, column 1"),
        (("clean", "--window", "3"), "{}", 2, "--window does not go with clean"),
        (("clean", "--profile", "agent-q"), "{}", 2, "clean has no profile agent-q"),
        (("replay", "--window", "-3"), "{}", 2, "--window is '-3'"),
        (("markdown", "/no/such/file"), "", 2, "cannot read"),
    ],
)
def test_an_error_says_what_and_what_next(args: tuple[str, ...], text: str | bytes, code: int, problem: str) -> None:
    with pytest.raises(QuireError) as raised:
        out(*args, input=text)
    assert problem in str(raised.value)
    assert raised.value.exit_code == code
    assert raised.value.hint


def test_the_command_writes_bytes_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "in.json"
    file.write_text(json.dumps(WINDOW))
    command = [sys.executable, "-m", "quire", "format", "markdown", str(file)]
    done = subprocess.run(command, capture_output=True, check=True, env={"PYTHONIOENCODING": "ascii"})
    assert done.stdout == (
        b"## Context\n\n### Code (from x\\x3a1-2)\n````lisp\na\r\n```\x00\n````\n\n\n\n## Request\n\nq\r\n"
    )
    assert done.stderr == b""
    bad = subprocess.run([*command[:-1]], input=b'{"item": []}', capture_output=True, check=False)
    assert bad.returncode == 1
    assert bad.stderr.decode().startswith("error: item: unknown field\nhint: Did you mean 'items'?")


def test_every_process_writes_the_same_bytes() -> None:
    code = (
        "import sys; from quire.cli.convert import text_format as f; [print(f(n).render(f(n).read(d))) for n, d in %r]"
    )
    made = [("markdown", WINDOW), ("xml", WINDOW), ("json", WINDOW), ("clean", TALK), ("replay", {"entries": THREAD})]
    command, environments = [sys.executable, "-c", code % made], [{"PYTHONHASHSEED": seed} for seed in "12"]
    seen = {subprocess.run(command, capture_output=True, check=True, env=env).stdout for env in environments}
    assert len(seen) == 1
    assert b"=== CURRENT ===" in seen.pop()


GOLDEN = Path(__file__).parent.parent / "golden" / "formats"
CASES = sorted(path.stem for path in GOLDEN.glob("*.json"))


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    made = json.loads((GOLDEN / f"{case}.json").read_bytes())
    golden = (GOLDEN / f"{case}.txt").read_bytes()
    assert out(made["format"], *made["options"], input=made["input"]).encode() == golden
    if "agent-q" not in made["options"]:
        format = text_format(made["format"])
        assert format.render(format.parse(golden.decode())).encode() == golden


def test_there_are_goldens() -> None:
    assert len(CASES) >= 12
