"""What every command shares: errors on one line with a hint, no escapes under NO_COLOR, odd streams survived."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from quire import __version__, open_store, providers, values
from quire.archive.sessions import STORES
from quire.cli import convert
from quire.cli.output import progress
from quire.records import Records
from toolbox import QUIRE, invoke, on_terminal, run

pytestmark = pytest.mark.xdist_group("sdk")


def shell(tmp_path: Path, command: str, program: Path | None = None, **env: str) -> tuple[int, str, str]:
    """Run `quire …` in a shell, so that it can redirect; a process of its own where no program is given."""
    quire = str(program or " ".join(QUIRE))
    variables = {**os.environ, "QUIRE_DB": str(tmp_path / "q.db"), **env}
    line = f'quire() {{ {quire} "$@"; }}; {command}'
    done = subprocess.run(["bash", "-c", line], env=variables, capture_output=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_the_command_is_a_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "quire", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"quire {__version__}\n")


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("quire nonsense", "error: No such command 'nonsense'."),
        ("quire asemble", "error: No such command 'asemble'. Did you mean 'assemble'?"),
        ("quire logg", "error: No such command 'logg'. Did you mean 'log'?"),
        ("quire log shwo", "error: No such command 'shwo'. Did you mean 'show'?"),
        ("quire log show", "error: Missing argument 'THREAD'."),
        ("quire recall demo words", "error: Got unexpected extra argument (words)"),
        ("quire schema", "error: Missing argument '{item|window|entry}'. Choose from: item, window, entry"),
        ("quire log list --db /", "error: Invalid value for '--db': File '/' is a directory."),
        ("quire tokens x --modle y", "error: No such option '--modle'. Did you mean '--model'?"),
    ],
)
def test_a_wrong_call_is_one_line_and_a_hint(tmp_path: Path, warm: Path, command: str, error: str) -> None:
    code, out, err = shell(tmp_path, command, warm)
    assert (code, out) == (2, "")
    lines = err.splitlines()
    assert lines[0].startswith(error)
    assert ("Did you mean" in lines[0]) == ("Did you mean" in error)
    assert len(lines) == 2
    assert lines[1].startswith("hint: It is `quire" if "argument" in error else "hint: `")
    assert lines[1].endswith("--help` shows how.")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("log import n ''", "The name is empty"),
        ("log append t ''", "The name is empty"),
        ("log list --db ''", "The name is empty"),
        ("audit ''", "The name is empty"),
        ("import ''", "The name is empty"),
        ("record update rec-1 --version 1 ''", "The name is empty"),
        ("audit . --budget 9", "--budget is for the simulation"),
        ("audit . --apply --json", "--apply tells what it does to people alone"),
        ("export t --to openai-chat --vault .", "--vault is for chat files"),
        ("import --from openai-chat f --vault .", "--vault is for chat files"),
        ("render t -m openai:gpt-5 --all --bytes", "--bytes prints the prefix of one request"),
        ("run t x -m vllm:m --base-url ''", "--base-url is empty"),
        ("run t x -m vllm:m --base-url ftp://me:word@x", "'ftp://x' is no base URL"),
        ("run t x -m vllm:m --base-url 'http://[::1'", "'http://[::1' is no base URL"),
        ("run t x -m vllm:m --base-url http://127.0.0.1:99999", "'http://127.0.0.1:99999' is no base URL"),
        (f"run t x -m vllm:m --base-url http://{'a' * 64}.x", "is no base URL"),
        ("chat t -m vllm:m --save ''", "The name is empty"),
        ("render t -m openai:", "openai: names no model"),
        ("render t -p openai:a -m b", "'openai:a' is no provider"),
        ("show 99 --in t", "no entry is called '99' in t\nhint: Give an id, at least 6 of its hex digits, or a seq.\n"),
        ('lint - <<< \'[{"role": "user"}]\'', "standard input holds a message where a request belongs"),
        ("assemble q.db", "q.db is a database\nhint: Name a thread of it, and the file as --db q.db.\n"),
        ("record catalog - <<< null", "holds no list of tools"),
        ("record catalog - <<< '[5]'", "a tool is an object with a name, not '5'\nhint: Write [{"),
        (f"lock {'a' * 300}", "File name too long\nhint: Check the path."),
    ],
)
def test_what_is_meant_by_nobody_is_refused(demo: Path, warm: Path, command: str, told: str) -> None:
    code, out, err = shell(demo, f"cd {demo}; quire {command}", warm)
    assert (code > 0, out) == (True, "")
    assert told in err


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A folder whose database has a thread of one entry."""
    with open_store(tmp_path / "q.db") as store:
        store.append("t", [values.user("x")])
    return tmp_path


@pytest.mark.parametrize("command", ["schema item >&-", "log list >&-", "log list --json >&-", "log export t >&-"])
def test_a_closed_stream_is_an_empty_one(demo: Path, command: str) -> None:
    assert shell(demo, f"quire {command} && quire tokens - <&-") == (0, "0 tokens (o200k_base)\n", "")


@pytest.mark.parametrize(
    "command", ["quire --help", "quire models", "quire models --json", "quire log export t", "quire log show t --json"]
)
def test_a_reader_that_has_gone_is_no_error(demo: Path, command: str) -> None:
    # `true` reads nothing and is gone long before the first line is written.
    assert shell(demo, f"set -o pipefail; {command} | true") == (0, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", ["quire schema item", "quire log list", "quire log list --json"])
def test_a_full_disk_is_an_error_without_a_traceback(demo: Path, command: str) -> None:
    code, _, err = shell(demo, f"{command} > /dev/full")
    assert code == 1
    assert err.splitlines()[0] == "error: No space left on device"
    assert len(err.splitlines()) == 2


def test_a_terminal_that_does_not_know_its_width_is_written_to(demo: Path, warm: Path) -> None:
    assert "user" in shell(demo, "quire log show t", warm, COLUMNS="0")[1]
    assert b"user" in on_terminal(demo, "log", "show", "t", program=[str(warm)], COLUMNS="0")


def test_what_a_narrow_encoding_cannot_say_is_escaped(tmp_path: Path) -> None:
    with open_store(tmp_path / "q.db") as store:
        store.create("é")
    code, out, _ = shell(tmp_path, "quire log list", PYTHONIOENCODING="ascii")
    assert (code, "\\xe9" in out) == (0, True)


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("run", "line 1, column 5: standard input is not UTF-8 (byte 4: 0xff)"),
        ("chat", "lone surrogate (U+DCFF at character 4)"),
    ],
)
def test_words_that_are_not_utf_8_are_an_error_without_a_traceback(tmp_path: Path, command: str, problem: str) -> None:
    said = f"printf 'hall\\377' | quire {command} t --model vllm:m --base-url http://127.0.0.1:9"
    code, _, err = shell(tmp_path, said, PYTHONIOENCODING="utf-8:strict")
    assert (code, problem in err, "Traceback" in err) == (1, True, False)


@pytest.mark.parametrize(
    ("command", "work"), [("plan t", b"policies"), ("report t", b"policies"), ("assemble t --turn 2", b"turns")]
)
def test_long_work_shows_how_far_it_is_on_terminals_that_take_escapes(
    demo: Path, warm: Path, command: str, work: bytes
) -> None:
    run("log", "append", "t", "--respond", "y", "--user", "x", "--respond", "y", "--db", demo / "q.db")
    words = command.split()
    assert work in on_terminal(demo, *words, program=[str(warm)], NO_COLOR="")
    assert b"\x1b" not in on_terminal(demo, *words, program=[str(warm)], NO_COLOR="1")
    piped = subprocess.run([*QUIRE, *words, "--db", str(demo / "q.db")], capture_output=True, cwd=demo)
    assert work not in piped.stderr


def test_who_stops_long_work_is_told_how_far_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    def stopped() -> None:
        with progress() as tell:
            for done in range(2001):
                tell("entries", done, 2000)
            tell("policies", 3, 7)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert capsys.readouterr().err == "entries: 2,000 of 2,000 done\npolicies: 3 of 7 done\n"


@pytest.mark.parametrize(
    "command",
    ["log fork t", "log show t --after 0", "window t", "resume t --list", "record list", "record get rec-1",
     "record history rec-1", "record update rec-1 --version 1 --title y", "record delete rec-1 --yes", "record purge",
     "record catalog", "build desk --request x --config desk.json --words"],
)  # fmt: skip
def test_the_database_that_is_named_is_the_one_that_is_used(
    demo: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(demo)
    sources = [{"schema_name": "tool.v1", "method": "all"}]
    Path("desk.json").write_text(json.dumps({"consumer_id": "desk", "sources": sources}))
    with open_store("q.db") as store:
        Records(store).create("tool.v1", {"name": "echo", "description": "It."}, title="x")
    Path("other.db").write_text("This is no database.")
    assert run(*command.split(), "--db", "q.db", QUIRE_DB="other.db")
    assert Path("other.db").read_text() == "This is no database."


@pytest.mark.parametrize("args", [("log", "list"), ("log", "show", "nope"), ("nonsense",)])
def test_no_color_means_no_escapes_at_all(demo: Path, warm: Path, args: tuple[str, ...]) -> None:
    assert b"\x1b" in on_terminal(demo, *args, program=[str(warm)], NO_COLOR="")
    assert b"\x1b" not in on_terminal(demo, *args, program=[str(warm)], NO_COLOR="1")


@pytest.mark.parametrize(
    ("command", "written"),
    [
        ("quire log import t FILE", '{"kind":"user","text":"a"}\n'),
        ("quire assemble FILE --json", '{"kind":"user","text":"a"}\n{"kind":"respond","text":"b"}\n'),
        ("quire import --from openai-chat FILE", '[{"role":"user","content":"a"}]'),
        ("quire import --from markdown - < FILE", "**user**: a"),
        ("quire format markdown FILE", '{"items":[{"content":"a"}]}'),
        ("quire format replay FILE", '{"kind":"user","text":"a"}\n'),
        ("quire lint FILE -p openai-chat -m x", '{"model":"x","messages":[{"role":"user","content":"a"}]}'),
        ("quire record create FILE", '{"schema_name":"note.v1","title":"a","context":{}}'),
        ("quire tokens FILE", "hello"),
    ],
)
def test_a_byte_order_mark_in_front_of_a_file_is_not_read(tmp_path: Path, command: str, written: str) -> None:
    told = []
    for mark in (b"", b"\xef\xbb\xbf"):
        file = tmp_path / f"file{len(mark)}"
        file.write_bytes(mark + written.encode())
        words = command.replace("FILE", str(file)).removesuffix(f" < {file}").split()[1:]
        done = invoke(*words, stdin=file.read_bytes(), QUIRE_DB=str(tmp_path / f"{file.name}.db"))
        told.append((done.stdout if "record" not in command else "", done.stderr))  # a record's id is its own
    assert told[0] == told[1]


def test_a_text_that_begins_with_a_byte_order_mark_of_its_own_is_parsed_whole(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\ufeffhello", encoding="utf-8")
    assert "\ufeffhello" in run("format", "markdown", "--parse", tmp_path / "text")


def test_brackets_and_colons_in_names_are_printed_as_they_are(tmp_path: Path, warm: Path) -> None:
    name = "[/bold]:warning:[red]x"
    with open_store(tmp_path / "q.db") as store:
        store.append(name, [values.user(name)])
    line = f"quire log list; quire log show '{name}'; quire render '{name}' -p openai-chat -m '{name}'"
    code, out, err = shell(tmp_path, line, warm)
    assert (code, err) == (0, "")
    assert out.count(name) >= 3


@pytest.mark.parametrize("command", ["recall", "record list --tag", "log append t --user", "recall x --thread"])
def test_an_argument_that_is_not_utf_8_is_one_line_and_a_hint(demo: Path, warm: Path, command: str) -> None:
    code, _, err = shell(demo, f"quire {command} $'a\\xff'", warm)
    assert (code, err) == (2, "error: an argument is not UTF-8: 'a\\udcff'\nhint: Give it in UTF-8.\n")


def test_a_file_may_be_called_as_it_likes(tmp_path: Path, warm: Path) -> None:
    file = f"{tmp_path}/$'a\\xff'"
    assert shell(tmp_path, f"printf hi > {file}; quire tokens {file}", warm) == (0, "1 tokens (o200k_base)\n", "")


@pytest.mark.moves_prefix(reason="the log holds a rebase")
def test_no_text_of_others_commands_the_terminal(tmp_path: Path) -> None:
    hostile = "\x1b[31mRED\x1b]0;title\x07\r[/b]"
    rebase = {"kind": "rebase", "before_seq": 0, "library": [], "freed": 0}
    edits = [{"entry": 3, "action": hostile, "replacement": hostile}, {"entry": 4, "action": "drop"}]
    thread = [
        {"kind": "tools", "tools": [{"name": hostile, "description": hostile, "parameters": {}}]},
        {"kind": "user", "text": hostile, "attach": [{"id": hostile, "content": hostile}]},
        {"kind": "respond", "text": hostile},
        {"kind": "respond", "text": hostile},
        {**rebase, "reason": hostile, "edits": edits},
        {"kind": "user", "text": "q"},
        {"kind": "respond", "text": "a"},
    ]
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in thread))
    record = json.dumps({"schema_name": hostile, "title": hostile, "tags": [hostile], "context": {"a": hostile}})
    (tmp_path / "r.json").write_text(record)
    seen = [f"log import t {file}", f"record create {tmp_path / 'r.json'}", "assemble t", "diff t 1 2", "log show t"]
    seen += ["diff t 1 2 --promote each-turn", "render t -p openai -m x", "record list", "record history rec-1"]
    seen += ["record search RED --words", "recall RED --words", "plan t"]
    out = "".join(run(*one.split(), QUIRE_DB=str(tmp_path / "q.db")) for one in seen)
    assert "RED" in out
    assert not [line for line in out.split("\n") if not line.isprintable()]


def test_help_loads_no_engine() -> None:
    """Every command's module loads without the thread and the engine: help and completion are quick."""
    heavy = ("quire.thread", "quire.assemble.fit", "quire.send.cycle", "quire.archive.sessions", "asyncio")
    code = (
        "import sys, importlib\nfrom quire.cli.main import COMMANDS\n"
        "for module, _ in COMMANDS.values(): importlib.import_module('quire.cli.' + module)\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    "command", ["proxy --to x --mend --holdout", "serve --grace", "serve --rate", "audit --fail-under", "plan t --read"]
)
def test_nan_is_no_number(command: str) -> None:
    assert "'nan' is no number" in invoke(*command.split(), "nan", code=2).output


def test_import_names_every_format_and_program() -> None:
    assert {*providers.FORMATS, convert.MARKDOWN} == set(convert.FORMATS)
    assert {store.name for store in STORES} == set(convert.PROGRAMS)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("assemble al", ["alpha", "alpine"]),
        ("log show alpi", ["alpine"]),
        ("chat --model anthropic:claude-opus-5-", ["anthropic:claude-opus-5-5"]),
        ("models anthropic:claude-opus-5-", ["anthropic:claude-opus-5-5"]),
        ("lint --provider cohe", ["cohere"]),
        ("run --vault {vault} --note te", ["tea"]),
        ("assemble --db {vault}/absent.db al", []),
    ],
)
def test_the_shell_completes_threads_models_and_notes(typed: str, offered: list[str], home: Path, warm: Path) -> None:
    (home / "vault").mkdir()
    (home / "vault" / "tea.md").write_text("green")
    with open_store(os.environ["QUIRE_DB"]) as store:
        store.append("alpha", [])
        store.append("alpine", [])
    words = f"quire {typed}".format(vault=home / "vault")
    told = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_QUIRE_COMPLETE": "bash_complete"}
    done = subprocess.run(warm, env={**os.environ, **told}, capture_output=True, text=True)
    assert [line.removeprefix("plain,") for line in done.stdout.split()] == offered, done.stderr


# What each shell makes of a line: bash puts in what follows the last colon, the others the whole word.
SHELLS = {
    "bash": (
        "--norc",
        """COMP_LINE='{0}' COMP_POINT={1}; _quire_completion quire; printf '%s\\n' "${{COMPREPLY[@]}}" """,
    ),
    "fish": ("--no-config", "complete -C '{0}'"),
    "zsh": ("-f", "compadd() {{ print -rl -- $completions; }}; words=({0}); CURRENT={2}; _quire_completion"),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_names_with_a_colon_or_a_space(shell: str, home: Path, warm: Path) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    with open_store(os.environ["QUIRE_DB"]) as store:
        store.append("my notes", [])
    option, script = SHELLS[shell]
    source = f"_QUIRE_COMPLETE={shell}_source quire"
    source = f"{source} | source" if shell == "fish" else f'compdef() {{ :; }}; eval "$({source})"'
    environment = {**os.environ, "PATH": f"{warm.parent}:{os.environ['PATH']}"}
    offered = []
    for typed in ("quire chat --model anthropic:claude-opus-5-", "quire where my"):
        line = f"{source}; {script.format(typed, len(typed), len(typed.split()))}"
        done = subprocess.run([shell, option, "-c", line], env=environment, capture_output=True, text=True)
        offered.append(done.stdout.strip())
    by_bash = ["claude-opus-5-5", "my\\ notes"]
    assert offered == (by_bash if shell == "bash" else ["anthropic:claude-opus-5-5", "my notes"]), done.stderr
