"""What goes wrong around a turn is said in a line, and leaves the log as it should be."""

import os
import pty
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from quire import Entry, QuireError, open_store, values
from quire.archive import autosave
from quire.cli.attachments import attached_items
from quire.cli.main import quire
from quire.errors import ProviderError
from quire.providers.convert import project
from quire.send.cycle import BEGIN, GO_ON
from quire.send.transport import unreachable
from quire.testing import Refuse, Slow, emulator
from quire.values import INTERRUPTED, result_text
from toolbox import QUIRE, QuietHandler, in_background, sent_body, until

pytestmark = pytest.mark.usefixtures("home")


def run(*words: str) -> tuple[str, str, BaseException | None]:
    done = CliRunner().invoke(quire, list(words))
    return done.stdout, done.stderr, done.exception


@pytest.mark.parametrize("at", ["wait()", "class Slow:\n    __set_name__ = wait\nclass Made:\n    part = Slow()"])
def test_ctrl_c_while_the_command_is_loaded_is_no_traceback(home: Path, at: str) -> None:
    wait = "def wait(*_):\n    open('up', 'w').close()\n    time.sleep(600)\n"
    (home / "click.py").write_text(f"import time\n{wait}{at}\n")
    env = {**os.environ, "PYTHONPATH": f"{home}:{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(QUIRE, env=env, stderr=subprocess.PIPE)
    until((home / "up").exists)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert err == b"stopped\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("emulate", "--provider", "anthropic", "--port", "0"), "stopped after 0 requests"),
        (("proxy", "--to", "http://127.0.0.1:9", "--port", "0"), "0 requests"),
    ],
)
def test_a_service_that_is_told_to_end_ends_as_by_ctrl_c(words: tuple[str, ...], told: str) -> None:
    process = subprocess.Popen([*QUIRE, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert " on http" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    assert told in out


@pytest.mark.parametrize("ignored", [False, True], ids=["", "nohup"])
def test_a_turn_ends_in_order_with_its_terminal(home: Path, ignored: bool) -> None:
    with emulator("vllm", [Slow("Here.", 1 if ignored else 600)]) as server:
        words = [*QUIRE, "run", "t", "Hi", "--model", "vllm:m", "--base-url", f"{server.url}/v1"]
        # Said in both cases: the suite itself may run under nohup.
        nohup = partial(signal.signal, signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(words, **pipes, text=True, preexec_fn=nohup)
        until(lambda: server.requests)
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=600)
    assert (process.returncode, out, "Traceback" in err) == ((0, "Here.\n", False) if ignored else (129, "", False))
    assert not list(home.glob("*-turn-*"))


def test_nothing_is_loaded_before_ctrl_c_is_heeded() -> None:
    loaded = "import sys; before = {*sys.modules}; import quire.cli; print(*sorted({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True)
    assert done.stdout.split() == ["__future__", "quire", "quire.cli"]


def test_a_file_whose_name_is_not_utf_8_is_attached_under_a_name_that_can_be_read(home: Path) -> None:
    name = os.fsdecode(b"caf\xe9.txt")
    Path(name).write_text("Crema.")
    (found,) = attached_items(name, None)
    assert (found.item["id"], found.item["content"]) == ("caf\\xe9.txt", "Crema.")
    words = [*QUIRE, "run", "t", "Hi", "--model", "vllm:m", "--base-url", "http://127.0.0.1:9", "--file", name]
    done = subprocess.run(words, capture_output=True, env=dict(os.environ))
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
    assert b"is not UTF-8" in done.stderr


@pytest.mark.parametrize("words", ["Once upon", ""], ids=["in its middle", "before its first word"])
def test_an_answer_that_was_stopped_is_gone_on_with(words: str) -> None:
    end = sent_body(usage={"input_total": 0}, stop="stopped", meta={"stopped": True})
    with open_store("quire.db") as store:
        said = [values.respond(words, meta={"stopped": True})] if words else []
        store.append("t", [values.user("A story"), Entry("sent", sent_body()), *said, Entry("sent", end)])
    with emulator("vllm", [" a time."]) as server:
        where = ["--base-url", f"{server.url}/v1"]
        assert run("resume", "t", "--list")[0] == "the model is to be asked to go on (vllm:m)\n"
        assert run("resume", "t", *where)[0] == " a time.\n"
        asked = [(one["role"], one["content"]) for one in server.requests[0].body["messages"]]
        assert [said for role, said in asked if role == "assistant"] == [words or "(no reply)"]
        assert (GO_ON if words else BEGIN) in asked[-1][1]
        assert run("resume", "t", *where)[0] == "the newest turn of t is answered\n"


def test_a_password_in_an_address_is_not_repeated() -> None:
    error = unreachable("vllm", "http://me:secret@host:1/v1", OSError("no route"))
    assert error.hint == "Check that http://host:1/v1 can be reached."
    failed = run("run", "t", "Hi", "--model", "vllm:m", "--base-url", "http://me:secret@127.0.0.1:9/v1")
    assert "secret" not in f"{failed[1]}{failed[2]}{getattr(failed[2], 'hint', '')}"


def test_waiting_for_a_locked_file_is_said(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_store("quire.db") as store:
        store.create("t")
        other = sqlite3.connect("quire.db", isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        said = f"waiting for {home / 'quire.db'}: another process is writing to it"
        with ThreadPoolExecutor(1) as pool:
            appended = pool.submit(store.append, "t", [values.user("Hi")])
            until(lambda: said in caplog.text)
            other.execute("COMMIT")
            assert appended.result(600)
        other.close()


def test_whoever_waits_for_a_locked_file_can_be_stopped() -> None:
    with open_store("quire.db") as store:
        store.create("t")
    other = sqlite3.connect("quire.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    words = [*QUIRE, "log", "append", "t", "--user", "Hi", "--db", "quire.db"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline().startswith("waiting for ")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err.strip()) == (130, "stopped; what was acknowledged is stored")
    other.close()


def test_ctrl_c_at_a_question_is_no_silence() -> None:
    with open_store("quire.db") as store:
        store.create("t")
    keyboard, stdin = pty.openpty()
    words = [*QUIRE, "log", "delete", "t", "--db", "quire.db"]
    process = subprocess.Popen(words, stdin=stdin, stderr=subprocess.PIPE, text=True)
    asked = "Delete thread 't' with 0 entries for ever? [y/N]: "
    assert process.stderr.read(len(asked)) == asked
    until(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "S")  # it waits for a line
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    os.close(keyboard)
    os.close(stdin)
    assert (process.returncode, err) == (130, "\nstopped; what was acknowledged is stored\n")


def test_waiting_on_a_refusal_is_said() -> None:
    with emulator("vllm", [Refuse(429, "slow down", retry_after_s=0), "Fine."]) as server:
        out, err, _ = run("run", "t", "Hi", "--model", "vllm:m", "--base-url", f"{server.url}/v1")
    assert out == "Fine.\n"
    assert "slow down; trying again in 0 s" in err


def test_a_missing_extra_leaves_no_turn_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    failed = run("run", "t", "Hi", "--model", "vllm:m", "--base-url", "http://127.0.0.1:9")[2]
    assert isinstance(failed, QuireError)
    assert failed.hint == "pip install 'quire[send]'"
    assert not Path("quire.db").exists()


def test_an_image_counts_for_what_a_model_is_shown() -> None:
    Path("dot.png").write_bytes(b"\x89PNG")
    (found,) = attached_items("dot.png", None)
    assert found.tokens == 1500


def test_a_thread_of_a_long_name_is_saved() -> None:
    name = "é" * 200
    with open_store("quire.db") as store:
        store.append(name, [values.user("Hi")])
        store.append(name, [values.respond("Hello")])
        saved = autosave(store, name, "chats")
    assert saved.path.read_text().startswith("---")
    for words in (("export", name, "--to", "markdown"), ("render", name, "-p", "openai-chat", "-m", "gpt-5")):
        assert run(*words)[2] is None, "no file can have this name, and a thread has it"


class Page(QuietHandler):
    """A web server that is no API."""

    said = b""

    def do_POST(self) -> None:
        self.received()
        self.answer(self.said)


@pytest.mark.parametrize("model", ["vllm:m", "openai-chat:gpt-5", "openai:gpt-5.6", "anthropic:claude-opus-5-5"])
@pytest.mark.parametrize(
    ("said", "told"),
    [(b"Proxy says no\nmore of it", "Proxy says no"), (b"<html><title>Sign in</title></html>", "a web page (Sign in)")],
)
def test_what_comes_and_is_no_api_is_shown(monkeypatch: pytest.MonkeyPatch, model: str, said: bytes, told: str) -> None:
    monkeypatch.setattr(Page, "said", said)
    with in_background(HTTPServer(("127.0.0.1", 0), Page)) as url:
        failed = run("run", "t", "Hi", "--model", model, "--base-url", f"{url}/v1")[2]
    assert isinstance(failed, ProviderError)
    assert str(failed).startswith(f"{model.partition(':')[0]} sent no stream but {told}")


def test_a_result_is_one_text_everywhere() -> None:
    """Imported or assembled, shown or sent: a bare failure says so, and data is written as JSON."""
    bare = Entry("result", {"kind": "result", "call_id": "c", "error": True})
    assert result_text(bare) == "Error"
    (message,) = project([values.call("c", "f", {}), bare])[1:]
    assert [part.text for part in message.parts] == ["Error"]  # type: ignore[union-attr]
    assert result_text(values.result("c", "done", "more")) == "done\n\nmore"
    assert result_text(Entry("result", {"call_id": "c", "content": {"b": 1, "a": 2}})) == '{"a":2,"b":1}'
    assert INTERRUPTED == "(interrupted: no result was recorded)"
