"""`quire log`, as a person and as a script use it."""

import io
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quire import open_store, values
from quire.cli.main import main, quire
from quire.log.entries import decode_lines

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "made" / "on demand" / "q.db"
    monkeypatch.setenv("QUIRE_DB", str(path))
    monkeypatch.chdir(tmp_path)
    return path


@pytest.fixture
def run(db: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Run the command in this process: exit code, stdout, stderr."""

    def call(*args: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["quire", *args])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code: Any = 0
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code or 0
        out, err = capsysbinary.readouterr()
        return code, out.decode(), err.decode()

    return call


@pytest.fixture
def demo(run: Run) -> Run:
    run("log", "new", "demo")
    run("log", "append", "demo", "--system", "Be brief.", "--user", "Hello", "--respond", "Hi.", "--user", "More")
    return run


def kinds(run: Run, thread: str = "demo") -> list[tuple[str, str]]:
    entries = json.loads(run("log", "show", thread, "--json")[1])
    return [(entry["kind"], entry["text"]) for entry in entries]


def test_a_thread_grows_in_the_order_typed(demo: Run) -> None:
    assert kinds(demo) == [("system", "Be brief."), ("user", "Hello"), ("respond", "Hi."), ("user", "More")]
    code, out, err = demo("log", "append", "demo", "--note", "Stop.", "--expected-seq", "4", "--at", "1700000000000")
    assert (code, err) == (0, "")
    assert out.startswith("demo: seq 5 (1 new, now ")
    assert json.loads(demo("log", "show", "demo", "--last", "1", "--json")[1])[0]["at"] == 1700000000000


def test_appending_takes_lines_from_a_file_and_from_stdin(demo: Run, tmp_path: Path) -> None:
    (tmp_path / "more.jsonl").write_text('{"kind":"think","text":"hm"}\n', encoding="utf-8")
    assert demo("log", "append", "demo", "more.jsonl", "--user", "first")[0] == 0
    assert demo("log", "append", "demo", "-", stdin='{"kind":"note","text":"last"}')[0] == 0
    assert demo("log", "append", "demo", '{"kind": "think", "text": "typed"}')[0] == 0
    assert kinds(demo)[4:] == [("user", "first"), ("think", "hm"), ("note", "last"), ("think", "typed")]
    code, out, _ = demo("log", "append", "demo", "--json", "--user", "x")
    assert (code, [entry["seq"] for entry in json.loads(out)]) == (0, [9])
    code, _, err = demo("log", "append", "demo", '{"kind": "thnk"}')
    assert (code, err[:23]) == (1, "error: line 1, column 1")


def test_a_bad_line_appends_nothing_and_is_named(demo: Run) -> None:
    lines = '{"kind":"note","text":"n"}\n{"kind":"note","txt":"n"}\n'
    for command in (("log", "append", "demo", "-"), ("log", "import", "demo", "-"), ("log", "import", "fresh", "-")):
        code, out, err = demo(*command, stdin=lines)
        assert (code, out) == (1, "")
        assert err.splitlines() == [
            "error: line 2, column 16: note field txt: unknown field",
            "hint: Did you mean 'text'? Known here: kind, text, at?, meta?, wire?, id?, seq?.",
        ]
    assert len(kinds(demo)) == 4
    assert [info["thread"] for info in json.loads(demo("log", "list", "--json")[1])] == ["demo"]


def test_a_conflict_says_what_is_there_now(demo: Run) -> None:
    last = json.loads(demo("log", "list", "--json")[1])[0]["id"]
    code, _, err = demo("log", "append", "demo", "--user", "x", "--expected-seq", "3")
    assert code == 1
    assert f"thread 'demo' is at seq 4 ({last}), not at seq 3" in err
    assert demo("log", "import", "demo", "-", "--expected-seq", "3", stdin='{"kind":"note","text":"n"}')[0] == 1
    assert len(kinds(demo)) == 4


def test_export_and_import_lose_nothing(demo: Run) -> None:
    exported = demo("log", "export", "demo")[1]
    code, out, _ = demo("log", "import", "copy", "-", stdin=exported)
    assert (code, out[:27]) == (0, "copy: seq 1 to 4 (4 new, no")
    assert demo("log", "export", "copy")[1] == exported
    bare = demo("log", "export", "demo", "--no-ids")[1]
    assert [set(json.loads(line)) for line in bare.splitlines()] == [{"kind", "text"}] * 4
    # Without ids the lines go behind any thread, with ids only where they belong.
    assert demo("log", "import", "copy", "-", stdin=bare)[0] == 0
    code, _, err = demo("log", "import", "demo", "-", stdin=exported)
    assert code == 1
    assert "line 1, column 87: seq is 1, but the entry stands at 5" in err


def test_the_end_of_an_export_continues_its_beginning(demo: Run) -> None:
    whole = demo("log", "export", "demo")[1]
    demo("log", "import", "copy", stdin="".join(whole.splitlines(keepends=True)[:2]))
    tail = demo("log", "export", "demo", "--after", "2")[1]
    assert demo("log", "import", "copy", stdin=tail)[0] == 0
    assert demo("log", "export", "copy")[1] == whole


def test_entries_go_out_in_pages_without_a_seam(run: Run, db: Path) -> None:
    db.parent.mkdir(parents=True)
    with open_store(db) as store:
        stored = store.append("long", [values.user(str(number)) for number in range(2500)])
    assert list(decode_lines(run("log", "export", "long")[1])) == stored


def test_show_prints_a_table_that_no_content_can_break(run: Run) -> None:
    run("log", "new", "odd [/x]")
    lines = [
        {"kind": "user", "text": "[/x] [bold]b[/bold]\nnext \x1b[31m" + "long " * 50},
        {"kind": "call", "call_id": "1", "name": "file_read", "args": {"file": "t"}},
        {"kind": "result", "call_id": "1", "outcome": "ok", "content": "done"},
        {"kind": "result", "call_id": "1"},
        {"kind": "tools", "tools": [{"name": n, "description": "", "parameters": {}} for n in ("a", "b")]},
        {"kind": "attach", "item": {"id": "notes/a.md", "content": "A"}},
        {"kind": "attach", "item": {"content": "no id"}},
        {"kind": "rebase", "reason": "size", "before_seq": 3, "library": [], "edits": [], "freed": 9},
        {"kind": "sent", "provider": "p", "model": "m", "request_sha256": "0" * 64, "segments": []},
    ]
    run("log", "append", "odd [/x]", "-", stdin="\n".join(map(json.dumps, lines)))
    code, out, _ = run("log", "show", "odd [/x]")
    assert code == 0
    assert "\x1b" not in out
    rows = [line.split(maxsplit=2) for line in out.splitlines()]
    assert rows[0][:2] == ["seq", "kind"]
    assert [row[2].rsplit(maxsplit=1)[0].strip() for row in rows[1:]] == [
        "[/x] [bold]b[/bold]␤next ·[31mlong long long lo…",
        'file_read {"file": "t"}',
        "ok␤␤done",
        "(no output)",
        "a, b",
        "notes/a.md",
        "no id",
        "size (before 3, freed 9)",
        "p:m 000000000000",
    ]
    assert "odd [/x]" in run("log", "list")[1]


def test_forks_are_listed_with_their_origin(demo: Run) -> None:
    assert demo("log", "fork", "demo", "--at", "2", "--name", "other")[1] == (
        "new thread other, sharing 2 entries with demo\n"
    )
    assert json.loads(demo("log", "fork", "demo", "--json")[1])["thread"] == "demo@4"
    out = demo("log", "list")[1]
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["demo", "4"], ["other", "2"], ["demo@4", "4"]]
    assert "demo at 2" in out
    assert demo("log", "fork", "demo", "--at", "9")[0] == 2
    demo("log", "delete", "demo", "--yes")
    assert kinds(demo, "other") == [("system", "Be brief."), ("user", "Hello")]
    assert "(a deleted thread) at 2" in demo("log", "list")[1]


def test_deleting_asks_first(demo: Run) -> None:
    code, out, err = demo("log", "delete", "demo")
    assert (code, out) == (2, "")
    assert err.splitlines()[1:] == [
        "error: nobody answered, and nothing was deleted",
        "hint: Give --yes to delete without asking.",
    ]
    assert demo("log", "delete", "demo", stdin="n\n")[0] == 2
    assert len(kinds(demo)) == 4
    assert demo("log", "delete", "demo", stdin="y\n")[:2] == (0, "deleted demo (4 entries)\n")
    assert demo("log", "show", "demo")[0] == 1


def test_verify_says_what_holds(demo: Run) -> None:
    assert demo("log", "verify")[:2] == (0, "1 thread, 4 entries: every hash holds\n")
    assert json.loads(demo("log", "verify", "demo", "--json")[1]) == {"ok": True, "threads": 1, "entries": 4}
    assert demo("log", "verify", "nope")[0] == 1


def test_verify_exits_1_and_prints_the_first_bad_entry(demo: Run, db: Path) -> None:
    assert demo("log", "export", "demo", "--salvage") == demo("log", "export", "demo")
    data = db.read_bytes()
    db.write_bytes(data.replace(b'"Hi."', b'"Ho."'))
    for command in (("log", "verify"), ("log", "verify", "demo"), ("log", "show", "demo"), ("log", "export", "demo")):
        code, out, err = demo(*command)
        assert code == 1
        assert out == ("first bad entry: seq 3 of thread 'demo'\n" if "verify" in command else "")
        assert err.startswith("error: entry 3 of thread 'demo' is damaged")
        assert "\nhint: Nothing was changed." in err
    for sound in (("--limit", "2"), ("--last", "1")):
        assert demo("log", "show", "demo", *sound)[0] == 0
    code, out, _ = demo("log", "verify", "--json")
    assert code == 1
    assert (json.loads(out)["ok"], json.loads(out)["thread"], json.loads(out)["seq"]) == (False, "demo", 3)
    for after, lines in (("0", 2), ("1", 1)):
        code, out, err = demo("log", "export", "demo", "--salvage", "--no-ids", "--after", after)
        assert (code, len(out.splitlines())) == (1, lines)
        assert "entry 3" in err
    db.write_bytes(b"")
    assert demo("log", "verify")[0] == 1
    db.write_bytes(data[: len(data) // 8])
    code, _, err = demo("log", "verify")
    assert (code, "entry 1" in err) == (1, True)


def test_commands_that_only_look_make_no_database(run: Run, db: Path) -> None:
    for command in (("list",), ("show", "x"), ("export", "x"), ("verify",), ("fork", "x"), ("delete", "x", "--yes")):
        code, _, err = run("log", *command)
        assert code == 1
        assert "there is no database at" in err
    assert not db.parent.exists()


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("append", "nope", "--user", "x"), 1, "there is no thread 'nope'"),
        (("append", "demo"), 2, "nothing to append"),
        (("append", "demo", "--user", "x", "--at", "noon"), 2, "neither Unix milliseconds nor 'now'"),
        (("new", "demo"), 2, "exists already"),
        (("new", "more", "--db", "http://127.0.0.1:8765"), 2, "'http://127.0.0.1:8765' is no database"),
        (("new", "a\tb"), 2, "cannot be a thread's name"),
        (("import", "demo", "missing.jsonl"), 2, "cannot read missing.jsonl"),
        (("import", "-"), 2, "no thread is named to read - into"),
        (("fork", "demo", "--at", "9"), 2, "cannot fork 'demo' at seq 9: it ends at 4"),
        (("append", "demo", "--expected-seq", "-1", "--user", "x"), 2, "-1 is not in the range"),
    ],
)
def test_errors_are_a_line_with_the_value_and_a_code(demo: Run, args: tuple[str, ...], code: int, words: str) -> None:
    found, out, err = demo("log", *args)
    assert (found, out) == (code, "")
    assert words in err
    assert "Traceback" not in err


def test_a_file_given_without_a_thread_is_not_taken_for_one(demo: Run, tmp_path: Path) -> None:
    (tmp_path / "more.jsonl").write_text('{"kind":"think","text":"hm"}\n', encoding="utf-8")
    code, _, err = demo("log", "import", "more.jsonl")
    assert (code, err.splitlines()[1]) == (2, "hint: quire log import THREAD more.jsonl")
    assert [info["thread"] for info in json.loads(demo("log", "list", "--json")[1])] == ["demo"]


@pytest.mark.parametrize("line", ["5", '{"kind":"user","text":5}', '{"kind":"user","text":"a","at":1.5}', "["])
def test_every_refused_line_comes_with_a_hint(demo: Run, line: str) -> None:
    code, _, err = demo("log", "import", "demo", "-", stdin=line)
    assert (code, len(err.splitlines())) == (1, 2)
    assert err.splitlines()[1].startswith("hint: ")


def test_a_newer_file_and_bytes_that_are_not_utf8_are_data_errors(demo: Run, db: Path, tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"kind":"user","text":"a"}\n{"kind":"user","text":"\xe9"}\n')
    code, _, err = demo("log", "import", "x", "latin.jsonl")
    assert (code, "line 2, column 24: latin.jsonl is not UTF-8" in err) == (1, True)
    conn = sqlite3.connect(db)
    conn.execute("UPDATE versions SET version = 99")
    conn.commit()
    conn.close()
    code, _, err = demo("log", "list")
    assert code == 1
    assert err.splitlines()[1] == "hint: Upgrade Quire to open this file."


def test_the_commands_of_a_log_are_these() -> None:
    group: Any = quire.get_command(None, "log")  # type: ignore[arg-type]  # the context is not used
    assert set(group.commands) == set("new append show list fork verify export import delete".split())


def test_the_installed_command_pipes_from_one_thread_into_another(tmp_path: Path) -> None:
    """Once through real processes: no colour with NO_COLOR, and a reader that goes away is no error."""
    script = (
        "set -eo pipefail; q='{q} -m quire log'; $q new a; $q append a --user é --respond b >/dev/null;"
        "$q export a | $q import b -; $q export b | head -c 5 >/dev/null; $q verify"
    ).replace("{q}", sys.executable)
    env = {"QUIRE_DB": str(tmp_path / "q.db"), "NO_COLOR": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "2 threads, 4 entries: every hash holds"
    assert done.returncode == 0


@pytest.mark.parametrize("at", [str(2**63), "9" * 23, "-5"])
def test_any_whole_number_is_a_time(demo: Run, at: str) -> None:
    line = f'{{"kind": "user", "text": "x", "at": {at}}}'
    for args in (("--user", "x", "--at", at), (line,)):
        assert demo("log", "append", "demo", *args)[0] == 0
    assert demo("log", "export", "demo")[1].count(f'"at":{at}') == 2
