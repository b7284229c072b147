"""A known client behind the proxy by one word, and nothing left behind of it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from behind import Watching, body, watching
from test_mend import claude as claude_request
from test_mend import clocked

from quire.cli import proxy
from quire.cli.proxy import CLIENTS, keep, passing_for, restore
from quire.errors import QuireError
from quire.providers.prefix import prefix_bytes
from toolbox import QUIRE, invoke, run

pytestmark = pytest.mark.xdist_group("sdk")
# A client that asks each address it was told, and says what it was told.
CLIENT = f"""#!{sys.executable}
import json, os, pathlib, sys, urllib.request
told = {{name: value for name, value in os.environ.items() if "127.0.0.1" in value and "PYTEST" not in name}}
file = pathlib.Path(os.environ["HOME"]) / ".pi/agent/models.json"
print(json.dumps({{"told": told, "args": sys.argv[1:], "file": file.read_text() if file.exists() else None}}))
for url in [value for name, value in told.items() if name.startswith("ANTHROPIC")]:
    headers = {{"content-type": "application/json", "x-api-key": "k", "anthropic-version": "2023-06-01"}}
    asked = urllib.request.Request(url + "/v1/messages", os.environ["BODY"].encode(), headers)
    print(urllib.request.urlopen(asked).status)
sys.exit(3 if "fail" in sys.argv else 0)
"""


@pytest.fixture(scope="module")
def claude() -> Any:
    yield from watching("anthropic")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, with all clients in its PATH."""
    for each in CLIENTS.values():
        (tmp_path / each.command).write_text(CLIENT)
        (tmp_path / each.command).chmod(0o755)
    for name in (
        "ANTHROPIC_BASE_URL",
        "OPENAI_BASE_URL",
        "GOOGLE_GEMINI_BASE_URL",
        "PI_CODING_AGENT_DIR",
        "CODEX_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    settings = {"HOME": tmp_path, "XDG_STATE_HOME": tmp_path / "state", "PATH": tmp_path}
    for name, value in {**settings, "BODY": json.dumps(body("Hi"))}.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path


@pytest.fixture
def models(home: Path) -> Path:
    """The file in which pi is told of its models; it is not there yet."""
    (home / ".pi/agent").mkdir(parents=True)
    return home / ".pi/agent/models.json"


def wrapped(capfd: pytest.CaptureFixture[str], *words: str, code: int = 0) -> tuple[dict[str, Any], str]:
    done = invoke("wrap", *words, code=code)
    shown = capfd.readouterr().out
    return json.loads(shown.splitlines()[0]), shown + done.output


@pytest.mark.parametrize(
    ("client", "names"),
    [
        ("claude", {"ANTHROPIC_BASE_URL"}),
        ("llm", {"ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"}),
        ("aider", {"ANTHROPIC_API_BASE", "OPENAI_API_BASE"}),
        ("gemini-cli", {"GOOGLE_GEMINI_BASE_URL"}),
        ("opencode", {"OPENCODE_CONFIG_CONTENT"}),
        ("codex", set()),
        ("pi", set()),
    ],
)
def test_a_client_is_told_the_proxy_and_keeps_its_own_words(
    client: str, names: set[str], home: Path, claude: Watching, capfd: pytest.CaptureFixture[str]
) -> None:
    said, shown = wrapped(capfd, "--to", claude.server.url, client, "--model", "x", "-p", "hello")
    assert set(said["told"]) == names
    assert said["args"][-4:] == ["--model", "x", "-p", "hello"]
    if client == "codex":
        assert said["args"][0] == "-c"
        assert said["args"][1].startswith('openai_base_url="http://127.0.0.1:')
    if client == "pi":
        assert "127.0.0.1" in json.loads(said["file"])["providers"]["anthropic"]["baseUrl"]
    assert not (home / ".pi/agent/models.json").exists()
    asks = any(name.startswith("ANTHROPIC") for name in names)
    assert f"stopped after {int(asks)} request" in shown
    assert (home / "state/quire/requests.jsonl").exists() is asks


@pytest.mark.parametrize(
    ("login", "address"),
    [
        ({"OPENAI_API_KEY": None, "tokens": {"id_token": "a"}}, "https://chatgpt.com/backend-api/codex"),
        ({"OPENAI_API_KEY": "sk-1", "tokens": None}, ""),
        (None, ""),
    ],
)
def test_codex_asks_where_its_login_leads(
    login: Any, address: str, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if login:
        (home / ".codex").mkdir()
        (home / ".codex/auth.json").write_text(json.dumps(login))
    assert CLIENTS["codex"].address() == address
    said, _ = wrapped(capfd, "codex")
    assert said["args"][1].endswith('/v1"') is (not address)


def test_its_code_its_log_and_a_base_url_that_was_set_are_kept(
    home: Path, claude: Watching, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", claude.server.url)
    log = home / "own.jsonl"
    said, _ = wrapped(capfd, "--mend", "--log", str(log), "claude", "fail", code=3)
    assert said["told"]["ANTHROPIC_BASE_URL"] != claude.server.url
    assert "1 request in 1 conversation" in run("audit", log)
    found = json.loads(run("doctor", "--json"))
    assert found["set"]["ANTHROPIC_BASE_URL"] == {"url": claude.server.url, "reachable": True}
    assert found["clients"]["pi"] == str(home / "pi")
    assert (found["missing"], found["recorded"]) == ([], 0)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://me:password@127.0.0.1:9?key=password")
    assert "http://127.0.0.1:9, which does not answer" in run("doctor")
    assert "password" not in run("doctor", "--json")


def test_what_is_kept_of_others_words_and_settings_its_owner_alone_may_read(
    home: Path, models: Path, claude: Watching, capfd: pytest.CaptureFixture[str]
) -> None:
    models.write_text('{"apiKey": "theirs"}')
    before, usual = set(home.rglob("*")), os.umask(0o022)
    try:
        wrapped(capfd, "--to", claude.server.url, "claude")
        keep("wrapped.json", {str(models): {"before": "{}", "after": "other"}})
        restore(models)  # changed since: what stood there is put beside it
        run("log", "new", "t", "--db", home / "q.db")
        unset = ("key_from", "budget", "mend", "dry_run", "mend_subscriptions", "ask_provider")
        given = {**dict.fromkeys(unset), "log": home / "passed.jsonl", "rules": (), "without": (), "holdout": 0.0}
        passing_for("https://a", **given)
        made = {path for path in home.rglob("*") if path.is_file()} - before
    finally:
        os.umask(usual)
    names = {"requests.jsonl", "wrapped.json", "models.json.before-quire", "q.db", "passed.jsonl"}
    assert {path.name for path in made} >= names
    assert [path.name for path in made if path.stat().st_mode & 0o077] == []


def test_a_conversation_that_a_later_call_goes_on_with_is_mended_as_it_was(
    home: Path, claude: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    for turn in (1, 2, 3):
        monkeypatch.setenv("BODY", json.dumps(clocked(claude_request(turn), turn)))
        invoke("wrap", "--mend", "--to", claude.server.url, "claude")
    first, second, third = (prefix_bytes(each.body, "anthropic") for each in claude.server.requests[-3:])
    assert second.startswith(first)
    assert third.startswith(second)


def test_what_was_changed_is_put_back_also_later(home: Path, models: Path, claude: Watching) -> None:
    file, state = models, home / "state/quire/wrapped.json"
    own = json.dumps({"providers": {"mine": {"baseUrl": "http://x"}, "openai": {"apiKey": "k"}}})
    file.write_text(own)
    (home / "pi").write_text(f"#!/bin/sh\n/bin/cp {state} {home}/copy\n/bin/cp {file} {home}/during\n")
    invoke("wrap", "--to", claude.server.url, "pi")
    assert file.read_text() == own
    during = json.loads((home / "during").read_text())["providers"]
    assert (during["mine"], during["openai"]["apiKey"]) == ({"baseUrl": "http://x"}, "k")
    # As if it had been killed: the file stands changed, and what stood there is remembered.
    file.write_text((home / "during").read_text())
    state.write_text((home / "copy").read_text())
    assert "models.json is changed" in run("doctor")
    assert "put back" in run("unwrap")
    assert file.read_text() == own
    assert "nothing is changed" in run("unwrap")


def test_two_clients_at_once_and_one_after_a_kill_leave_the_file_as_it_was(
    home: Path, models: Path, claude: Watching
) -> None:
    file, state = models, home / "state/quire/wrapped.json"
    own = b'{"providers": {"openai": {"apiKey": "k"}}}\r\n'  # its line ends, too
    file.write_bytes(own)
    within = f"{sys.executable} -m quire wrap --to {claude.server.url} pi inner"
    (home / "pi").write_text(f'#!/bin/sh\n[ "$1" = inner ] || {within}\n/bin/cp {file} {home}/after-$1\n')
    invoke("wrap", "--to", claude.server.url, "pi", "outer")
    assert b"127.0.0.1" in (home / "after-inner").read_bytes()
    assert file.read_bytes() == own
    # One was killed, and another starts before anybody has put the file back.
    killed = f"#!/bin/sh\n/bin/cp {state} {home}/state.json\n/bin/cp {file} {home}/during\n"
    (home / "pi").write_text(killed)
    invoke("wrap", "--to", claude.server.url, "pi")
    for place, copy in ((file, "during"), (state, "state.json")):
        place.write_bytes((home / copy).read_bytes())
    invoke("wrap", "--to", claude.server.url, "pi")
    assert file.read_bytes() == own
    assert "nothing is changed" in run("unwrap")


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_the_clients_and_what_was_changed_is_put_back(
    home: Path, claude: Watching, kind: signal.Signals
) -> None:
    """Ctrl-C reaches both and may mean the client's answer alone; to be told to end, or to lose its terminal, ends it."""
    file = home / ".pi/agent/models.json"
    goes_on = "import signal, time\nsignal.signal(signal.SIGINT, lambda *_: (time.sleep(1), print('on'), exit(5)))"
    (home / "pi").write_text(f"#!{sys.executable}\n{goes_on}\nprint('ready', flush=True)\ntime.sleep(60)")
    words = [*QUIRE, "wrap", "--to", claude.server.url, "pi"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, text=True, start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert file.exists()
        if kind == signal.SIGINT:
            os.killpg(process.pid, kind)
        else:
            process.send_signal(kind)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == ((5, "on\n") if kind == signal.SIGINT else (128 + kind, ""))
    assert "stopped after 0 requests" in err
    assert not file.exists()


def test_a_signal_that_comes_while_the_client_is_started_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **how: Any) -> None:
            super().__init__(*args, **how)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        assert proxy._run_client(["sleep", "60"], {**os.environ}) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("odd", [b"[]", b'"text"', b"{ // a comment\n}", b"\xff\xfe", b"{"])
def test_settings_that_cannot_be_read_are_an_error_and_stay(
    home: Path, models: Path, claude: Watching, odd: bytes
) -> None:
    models.write_bytes(odd)
    with pytest.raises(QuireError, match=r"models\.json is no") as raised:
        run("wrap", "--to", claude.server.url, "pi")
    assert raised.value.hint
    assert models.read_bytes() == odd
    state = home / "state/quire/wrapped.json"
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text("{")
    with pytest.raises(QuireError, match=r"wrapped\.json cannot be read"):
        run("unwrap")


def test_what_opencode_was_told_already_stays(
    home: Path, claude: Watching, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENCODE_CONFIG_CONTENT", '{"theme": "x", "provider": {"openai": {"models": {"m": {}}}}}')
    said, _ = wrapped(capfd, "--to", claude.server.url, "opencode")
    told = json.loads(said["told"]["OPENCODE_CONFIG_CONTENT"])
    assert (told["theme"], told["provider"]["openai"]["models"]) == ("x", {"m": {}})
    assert "127.0.0.1" in told["provider"]["openai"]["options"]["baseURL"]


@pytest.mark.parametrize("chosen", ["", '{"security": {"auth": {"selectedType": "oauth-personal"}}}'])
def test_gemini_cli_is_told_that_its_key_counts_unless_it_was_told_otherwise(
    home: Path, claude: Watching, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    file = home / ".gemini/settings.json"
    file.parent.mkdir()
    file.write_text(chosen or "{}")
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    monkeypatch.setenv("GEMINI_CLI_HOME", str(home))
    (home / "gemini").write_text(f"#!/bin/sh\n/bin/cp {file} {home}/during\n")
    invoke("wrap", "--to", claude.server.url, "gemini-cli")
    during = json.loads((home / "during").read_text())
    assert during["security"]["auth"]["selectedType"] == ("oauth-personal" if chosen else "gemini-api-key")
    assert file.read_text() == (chosen or "{}")


def test_a_client_that_is_not_there_is_named(home: Path) -> None:
    (home / "pi").unlink()
    with pytest.raises(Exception, match="pi is not installed"):
        invoke("wrap", "pi")
    assert "'nobody' is not one of" in invoke("wrap", "nobody", code=2).output


@pytest.mark.parametrize("url", ["http://[::1", "localhost:8080", "ftp://a"])
def test_a_variable_that_names_no_address_is_said(home: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
    with pytest.raises(QuireError, match="is no base URL"):
        run("wrap", "claude")
