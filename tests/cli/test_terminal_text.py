"""No byte of others commands a terminal: one writer for all output, seen through a real one."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from quire import Entry, open_store, values
from quire.cli.output import print_json, print_table, printable
from quire.testing import Emulator, Refuse, emulator
from quire.values import Call, JsonObject, Text
from toolbox import on_terminal, sent_body

pytestmark = pytest.mark.xdist_group("sdk")
# A window title, the screen's end, colours, a C1 command, letters turned round, a bell.
EVIL = "\x1b]0;evil\x07\x1b[2J\x1b[35mred\x9b5mC1\u202egnorw\u2066\u200f\x07\x08end"
# What a terminal may be told: colours and the like, the cursor, and what prompts and bars need of it.
OURS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|\t|\x1b=|\x1b>|\x08")


@pytest.mark.parametrize("cells", [(7, 1.5, "日本", ""), (1_234_567, 10.25, " [b]x[/b] ", "é")])
def test_a_row_is_the_same_whoever_lays_it_out(cells: tuple[object, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of one line are written as they are; one of two lines is left to Rich, with all others."""
    columns = ("number", "share", "text", "more")
    for rows in ([(50, 0.5, "wide enough", "m"), cells], [cells, (50, 0.5, "wide enough", "m\nm")]):
        print_table(columns, rows)
    plain, laid_out = (text.splitlines() for text in capsys.readouterr().out.split("number")[1:])
    assert plain[0] == laid_out[0]
    assert plain[2] == laid_out[1]
    assert plain[1] == laid_out[2]


def test_a_long_table_is_printed_as_its_rows_come(capsys: pytest.CaptureFixture[str]) -> None:
    def rows() -> Iterator[tuple[int, str]]:
        yield from ((n, "word") for n in range(3_000))
        printed.append(capsys.readouterr().out)

    printed = list[str]()
    print_table(("number", "text"), rows())
    lines = "".join([*printed, capsys.readouterr().out]).splitlines()
    assert printed[0].splitlines()[2_000] == " 1,999  word"
    assert [len(lines), len(set(map(len, lines[1:])))] == [3_001, 1]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_rows_of_json_are_written_as_the_list_of_them(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": "two\nlines", "n": [n, {}]} for n in range(count)]
    print_json(rows)
    print_json(iter(rows))
    whole = capsys.readouterr().out
    assert whole[: len(whole) // 2] == whole[len(whole) // 2 :]


def harmless(received: bytes, *, coloured: bool = True) -> None:
    """Nothing of EVIL is left but its letters."""
    assert not [evil for evil in (b"\x1b]0", b"\x1b[2J", b"\x1b[35m", b"\x08end", b"\x07") if evil in received]
    rest = OURS.sub(b"", received).decode()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", rest), rest
    assert "gnorw" in rest
    if not coloured:
        assert b"\x1b" not in received


def evil(body: JsonObject) -> Any:
    """Calls a tool of an evil name with evil arguments, then answers with evil words."""
    called = any(one["role"] == "tool" for one in body["messages"])
    return [
        Text(EVIL),
        *([] if called else [Call("c1", "read", {"path": EVIL}), Call("c2", "grep", {"pattern": EVIL})]),
    ]


def where(server: Emulator) -> list[str]:
    return ["--model", "vllm:m", "--base-url", f"{server.url}/v1"]


@pytest.mark.parametrize("colour", [True, False])
def test_run_and_resume(tmp_path: Path, warm: Path, colour: bool) -> None:
    (tmp_path / "a.txt").write_text(EVIL)

    def check(*words: str) -> None:
        env = {} if colour else {"NO_COLOR": "1"}
        harmless(on_terminal(tmp_path, *words, program=[str(warm)], **env), coloured=colour)

    with emulator("vllm", evil) as server:
        check("run", "t", "Hi", "--root", ".", *where(server))
        with open_store(tmp_path / "q.db") as store:
            store.append("t", [values.user("Again?"), values.call("c9", EVIL, {"x": EVIL})])
        check("resume", "t", "--list")
        check("resume", "t", "--runner", "agent", *where(server))
    with emulator("vllm", lambda body: Refuse(400, EVIL)) as server:
        check("run", "t", "Hi", *where(server))


def test_chat(tmp_path: Path, warm: Path) -> None:
    (tmp_path / "a.txt").write_text(EVIL)
    typed = "Hi\r/context\r/cost\r/recall red\rAgain\r/undo\r/quit\r"
    with emulator("vllm", evil) as server:
        words = ["chat", "t", "--root", ".", "--attach", "a.txt", *where(server)]
        harmless(on_terminal(tmp_path, *words, typed=typed, program=[str(warm)]))


SHOWING = [
    ["log", "show", "t"],
    ["log", "show", "t", "--json"],
    ["log", "export", "t"],
    ["export", "t", "--to", "markdown"],
    ["assemble", "t", "--json"],
    ["show", "1", "--in", "t"],
    ["render", "t", "-p", "openai-chat", "-m", "m"],
    ["render", "t", "-p", "openai-chat", "-m", "m", "--json"],
    ["render", "t", "-p", "openai-chat", "-m", "m", "--bytes"],
    ["recall", "gnorw", "--thread", "t"],
    ["lint", "body.json", "-p", "openai-chat"],
]


# One process for all of them, with a line in front of what each shows.
EACH = """
import json, sys
from quire.cli.main import quire
for words in json.loads(sys.argv[1]):
    print("%%", flush=True)
    quire.main(words, standalone_mode=False)
    sys.stdout.flush()
"""


def test_commands_that_show_what_others_said(tmp_path: Path) -> None:
    (tmp_path / "body.json").write_text(
        '{"model": "gnorw\\u202e\\u001b[2J", "messages": [{"role": "user", "content": "x"}]}'
    )
    with open_store(tmp_path / "q.db") as store:
        store.append("t", [values.user(EVIL), values.respond(EVIL), values.user(EVIL)])
        store.append("t", [Entry("sent", sent_body(f"vllm:{EVIL}"))])
    _, *shown = on_terminal(tmp_path, json.dumps(SHOWING), program=[sys.executable, "-c", EACH]).split(b"%%\r\n")
    assert len(shown) == len(SHOWING)
    for received in shown:
        harmless(received)


def test_only_one_module_writes() -> None:
    """Whatever is printed goes through quire.cli.output, or through rich with text made by `printable`.

    The package itself says one fixed word, when Ctrl-C comes before anything is loaded.
    """
    writing = re.compile(r"click\.(echo|secho|style|confirm|prompt)|\bprint\(|stdout\.(write|buffer)|stderr\.write")
    found = {
        path.name: writing.findall(path.read_text())
        for path in (ROOT / "src" / "quire" / "cli").glob("*.py")
        if path.name not in ("output.py", "__init__.py") and writing.search(re.sub(r"\.print\(", "", path.read_text()))
    }
    assert found == {}


def test_a_pipe_gets_the_models_words_to_the_byte(tmp_path: Path, warm: Path) -> None:
    with emulator("vllm", [EVIL]) as server:
        env = {**os.environ, "QUIRE_DB": str(tmp_path / "q.db")}
        done = subprocess.run([warm, "run", "t", "Hi", *where(server)], env=env, capture_output=True)
    assert done.stdout.decode() == EVIL + "\n"
    assert b"\x1b" not in done.stderr


def test_letters_of_every_script_and_joined_emoji_are_shown_as_they_are() -> None:
    text = "Grüße, 你好, שלום, مرحبا, 👩‍🚀\tend\n"
    assert printable(text) == text
    assert printable("a\r\nb\rc") == "a\nb·c"
