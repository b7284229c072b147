"""`pip install quire` without extras: every command works or names the extra it needs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.testing import Emulator
from warm_quire import warm_quire

# Every package that only an extra brings.
NAMES = """numpy Stemmer onnxruntime onnx tokenizers safetensors jsonpath jq openai anthropic google.genai
boto3 botocore xllamacpp gguf mcp httpx regex prompt_toolkit yaml watchfiles starlette uvicorn splintr tree_sitter psycopg psycopg_pool"""
EXTRAS = NAMES.split()


def base(folder: Path, *args: str, text: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "QUIRE_DB": str(folder / "base.db")}
    return subprocess.run(
        [folder / "quire", *args], input=text, env=environ, cwd=folder, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("base")
    with warm_quire(made, *EXTRAS):
        assert base(made, "log", "new", "demo").returncode == 0
        said = base(made, "log", "append", "demo", "--user", "What is a quire?", "--respond", "Leaves.")
        assert said.returncode == 0
        yield made


@pytest.mark.parametrize(
    "args",
    ["--help", "log verify", "assemble demo", "plan demo", "render demo -p anthropic -m claude-opus-5-5",
     "export demo --to bedrock", "models", "schema entry", "record list", "tokens -", "log export demo"],
)  # fmt: skip
def test_a_command_of_the_base_package_needs_no_extra(folder: Path, args: str) -> None:
    ran = base(folder, *args.split())
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout


@pytest.mark.parametrize(
    ("args", "extra"),
    [("recall quire", "recall"), ("recall quire --words", "recall"), ("index", "recall"),
     ("record search quire", "recall"), ("emulate -p anthropic", "emulate"), ("run demo hello", "local"), ("mcp", "mcp"),
     ("serve", "serve"), ("proxy --to http://127.0.0.1:9", "proxy"),
     ("log list --db postgresql://localhost/none", "postgres")],
)  # fmt: skip
def test_a_command_that_needs_an_extra_names_it(folder: Path, args: str, extra: str) -> None:
    ran = base(folder, *args.split())
    assert ran.returncode == 2
    assert f"pip install 'quire[{extra}]'" in ran.stderr
    assert "Traceback" not in ran.stderr


STAND_IN = "from quire.testing import Emulator; Emulator('anthropic', ['Hello.']).start()"


@pytest.mark.parametrize(
    ("part", "start", "extra"),
    [("uvicorn", STAND_IN, "emulate"), ("httptools", STAND_IN, "emulate"), ("websockets", STAND_IN, "emulate"),
     ("httptools", "main(['proxy', '--to', 'http://127.0.0.1:9', '--port', '0'])", "proxy"),
     ("httptools", "main(['serve', '--port', '0'])", "serve"), ("numpy", "main(['serve', '--port', '0'])", "serve")],
)  # fmt: skip
def test_a_server_names_the_extra_where_only_a_part_of_it_is_there(
    part: str, start: str, extra: str, tmp_path: Path
) -> None:
    """Its parts come with other packages, too."""
    command = f"""
import sys; sys.modules[{part!r}] = None
from quire.cli.main import quire
main = lambda words: quire.main(words, standalone_mode=False)
try: {start}
except Exception as error: print(error.hint)
"""
    environ = {**os.environ, "QUIRE_DB": str(tmp_path / "q.db")}
    ran = subprocess.run([sys.executable, "-c", command], env=environ, capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == (f"pip install 'quire[{extra}]'\n", "")


def test_rendered_requests_pass_lint_without_extras(folder: Path) -> None:
    body = base(folder, "render", "demo", "-p", "openai", "-m", "gpt-6-sol", "--json").stdout
    assert json.loads(body)["model"] == "gpt-6-sol"
    assert base(folder, "lint", "-", text=body).returncode == 0


def test_a_thread_is_cut_without_extras_and_offers_no_tool_that_nobody_could_answer(tmp_path: Path) -> None:
    talk = f"""
import sys; sys.modules.update(dict.fromkeys({EXTRAS}))
import quire
thread = quire.open("t.db", "t", quire.Policy(budget=1500, floor=0.3, handles=0.5))
thread.on_warning = lambda what: None
for n in range(12):
    thread.user(f"Look at shelf {{n}}.")
    thread.request("openai-chat:gpt-5")
    thread.append(quire.call(f"c{{n}}", "look", {{}}), quire.result(f"c{{n}}", content=f"bolt {{n}} " * 150))
    request = thread.request("openai-chat:gpt-5")
    thread.append(quire.respond("Seen."))
assert "recall with handle" in str(request.body), request.body
print(request.epoch, request.body.get("tools"))
"""
    ran = subprocess.run([sys.executable, "-c", talk], cwd=tmp_path, capture_output=True, text=True)
    assert ran.stderr == ""
    assert ran.stdout.endswith(" None\n")


@pytest.mark.parametrize("runner", ["chat", "agent"])
def test_a_turn_needs_the_extra_that_sends_it_and_no_other(tmp_path: Path, runner: str) -> None:
    without = [name for name in EXTRAS if name != "httpx"]
    command = f"import sys; sys.modules.update(dict.fromkeys({without})); from quire.cli.main import main; main()"
    with Emulator("anthropic", ["Leaves."]) as server:
        words = ["run", "demo", "What is a quire?", "-m", "anthropic:claude-opus-5-5", "--base-url", server.url]
        run = [sys.executable, "-c", command, *words, "--runner", runner]
        environ = {**os.environ, "QUIRE_DB": str(tmp_path / "q.db"), "ANTHROPIC_API_KEY": "any"}
        ran = subprocess.run(run, env=environ, capture_output=True, text=True)
    assert (ran.returncode, "Traceback" in ran.stderr) == (0, False), ran.stderr
    assert ran.stdout == "Leaves.\n"


@pytest.mark.parametrize("call", ["t.recall('leaves')", "t.user('And?', recall=3)", "t.answer_recall(t.entries[-1])"])
def test_a_long_thread_is_written_without_extras_and_its_recall_names_one(call: str) -> None:
    talk = f"""
import sys; sys.modules.update(dict.fromkeys({EXTRAS}))
import quire
t = quire.open(":memory:", "t")
for n in range(600):
    t.append(quire.note("A leaf."))
t.append(quire.user("Leaves?"), quire.call("c1", "recall", {{"query": "leaves"}}))
try: {call}
except quire.QuireError as error: print(error.hint)
"""
    ran = subprocess.run([sys.executable, "-c", talk], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("pip install 'quire[recall]'\n", "")
