"""`make clients`: agents that nobody here wrote, as they ship, against the emulator.

Each is installed on demand into .clients/<name>, holds a conversation of three turns with tool calls, and is
reported: ran, not installable, or what was refused. `make clients ARGS="pi codex"` runs some, `pi:gemini` one wire.
Then some of them do the same behind `quire proxy`, watching and mending: same answers, and the reuse of all three.
`--direct` leaves that out, `--write` puts the table into docs/clients.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire.testing import Emulator, emulator
from turns import FILLING, NOTES, note_file

Through = Callable[[str], contextlib.AbstractContextManager[str]]

HERE = Path(__file__).parent
INSTALLED = HERE.parent.parent / ".clients"
TIMEOUT_S = 120
ALL = ("anthropic", "openai", "openai-chat", "gemini")


@dataclasses.dataclass(frozen=True)
class Client:
    """A client: what to install, the wires it speaks, the call that makes it read a note."""

    name: str
    packages: tuple[str, ...]
    wires: tuple[str, ...]
    tool: str = "read_note"
    args: Callable[[int], Any] = lambda number: {"number": number}
    npm: bool = False
    # A client that works on a task by itself: the call that ends it; the turns are its steps.
    finish: dict[str, Any] | None = None

    @property
    def bin(self) -> Path:
        return INSTALLED / self.name / ("node_modules/.bin" if self.npm else "venv/bin")

    @property
    def streams(self) -> bool:
        return self.name != "mini-swe-agent"


def cat(field: str) -> Callable[[int], dict[str, Any]]:
    """The arguments of a shell tool."""
    return lambda number: {field: f"cat {note_file(number)}"}


def script(number: int) -> str:
    """The argument of a tool that runs programs: free text, no JSON."""
    return f'text(await tools.exec_command({{cmd: "cat {note_file(number)}"}}))'


CLIENTS = (
    Client("pi", ("@mariozechner/pi-coding-agent",), ALL, "bash", cat("command"), npm=True),
    Client(
        "opencode",
        ("opencode-ai",),
        ALL,
        "bash",
        lambda number: {**cat("command")(number), "description": "reads a note"},
        npm=True,
    ),
    Client("codex", ("@openai/codex",), ("openai",), "exec_command", cat("cmd"), npm=True),
    Client("codex", ("@openai/codex",), ("openai-code",), "exec", script, npm=True),
    Client(
        "gemini-cli",
        ("@google/gemini-cli",),
        ("gemini",),
        "read_file",
        lambda number: {"file_path": note_file(number)},
        npm=True,
    ),
    Client("llm", ("llm", "llm-anthropic"), ("anthropic", "openai", "openai-chat")),
    Client("openai-agents", ("openai-agents",), ("openai", "openai-chat")),
    Client("pydantic-ai", ("pydantic-ai",), ALL),
    Client("langchain", ("langchain", "langchain-openai", "langchain-anthropic", "langchain-google-genai"), ALL),
    Client("strands", ("strands-agents[openai,anthropic,gemini]",), ALL),
    Client(
        "mini-swe-agent",
        ("mini-swe-agent", "mcp"),  # litellm, under it, imports mcp without asking for it
        ALL,
        "bash",
        cat("command"),
        finish={"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"},
    ),
    Client("google-adk", ("google-adk",), ("gemini",)),
)


class NotInstallable(Exception):
    """Why a client cannot be had here."""


def install(client: Client) -> str:
    """Install a client into its own folder unless it is there; give its version."""
    folder = INSTALLED / client.name
    ready = folder / ".ready"
    if not ready.exists():
        print(f"installing {client.name}", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        for command in _install_commands(client, folder):
            _quietly(command)
        ready.write_text(_version(client, folder))
    return ready.read_text()


def _install_commands(client: Client, folder: Path) -> list[list[str]]:
    if client.npm:
        npm = shutil.which("npm")
        if npm is None:
            raise NotInstallable("npm is missing")
        quiet = ["--no-audit", "--no-fund", "--loglevel", "error"]
        return [[npm, "install", "--prefix", str(folder), *quiet, *client.packages]]
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return [[sys.executable, "-m", "venv", str(folder / "venv")], [*pip, *client.packages]]


def _quietly(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NotInstallable(said[-1] if said else f"{command[0]} ended with {done.returncode}")
    return done.stdout.strip()


def _version(client: Client, folder: Path) -> str:
    package = client.packages[0].partition("[")[0]
    if client.npm:
        return str(json.loads((folder / "node_modules" / package / "package.json").read_text())["version"])
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return _quietly([str(folder / "venv/bin/python"), "-c", code])


def replies(client: Client) -> Callable[[dict[str, Any]], Any]:
    """What the model says: read the note of this turn, in turn 2 by two equal calls; when it was read, an answer."""

    def reply(body: dict[str, Any]) -> Any:
        text = json.dumps(body)
        if f'"{client.tool}"' not in _tools(body):
            return "A title"
        read = [number for number, note in NOTES.items() if note in text]
        turn = max([number for number in NOTES if f"Turn {number}:" in text], default=1)
        thinking = "I should look."
        if client.finish and len(read) == len(NOTES):
            return {"thinking": thinking, "calls": [{"name": client.tool, "args": client.finish}]}
        turn = len(read) + 1 if client.finish else turn
        if turn in read:
            return {"thinking": thinking, "text": f"Answer {turn}: it was read."}
        call = {"name": client.tool, "args": client.args(turn)}
        calls = [call, call] if turn == 2 else [call]
        return {"thinking": thinking, "text": "One moment.", "calls": calls}

    return reply


def _tools(body: dict[str, Any]) -> str:
    """Everything that offers tools: the request's own list, and those that joined as items."""
    items = body.get("input")
    late = [item for item in items if item.get("type") == "additional_tools"] if isinstance(items, list) else []
    return json.dumps([body.get("tools"), late])


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one conversation went."""

    client: Client
    wire: str
    version: str
    requests: int = 0
    streamed: int = 0
    refusals: tuple[str, ...] = ()
    problem: str = ""
    log: str = ""
    # The share of its requests' tokens that came from the cache, and how many tokens they had.
    reuse: float = 0.0
    tokens: int = 0
    # What it said to the user.
    answers: tuple[str, ...] = ()

    @property
    def green(self) -> bool:
        return not self.refusals and not self.problem

    @property
    def verdict(self) -> str:
        if self.refusals:
            return f"{len(self.refusals)} refused" + (f", {self.problem}" if self.problem else "")
        return self.problem or "ran"


def converse(client: Client, wire: str, version: str, through: Through = contextlib.nullcontext) -> Outcome:
    """Hold the conversation in a folder of its own, and say what the emulator saw of it.

    `through` takes the emulator's address and gives, while it is open, the one that the client is told.
    """
    provider = wire.partition("-")[0]
    with (
        tempfile.TemporaryDirectory(prefix="quire-clients-", ignore_cleanup_errors=True) as folder,
        emulator(provider, replies(client)) as server,
        through(server.url) as url,
    ):
        for number, note in NOTES.items():
            (Path(folder) / note_file(number)).write_text(f"{note}\n{FILLING}")
        code, log = _run(client, wire, url, Path(folder))
        return _outcome(client, wire, version, server, code, log)


def _run(client: Client, wire: str, url: str, folder: Path) -> tuple[int | None, str]:
    """The runner's exit code (None: it took too long) and all it printed."""
    python = sys.executable if client.npm else str(client.bin / "python")
    runner = HERE / f"run_{client.name.replace('-', '_')}.py"
    environment = {
        "PATH": f"{client.bin}:{os.environ['PATH']}",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with subprocess.Popen(
        [python, str(runner), wire, url],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            log, _ = process.communicate(timeout=TIMEOUT_S)
            return process.returncode, log
        except subprocess.TimeoutExpired:
            return None, _ended(process)
        finally:
            _end(process.pid)


def _ended(process: subprocess.Popen[str]) -> str:
    _end(process.pid)
    return process.communicate()[0]


def _end(group: int) -> None:
    """End what the runner started, too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _outcome(client: Client, wire: str, version: str, server: Emulator, code: int | None, log: str) -> Outcome:
    received = list(server.requests)
    tokens = sum(one.predicted.total for one in received if one.predicted)
    counted = Counter(
        f"{one.status} {one.method} {one.path.partition('?')[0]}: {one.error}" for one in received if one.status >= 400
    )
    return Outcome(
        client,
        wire,
        version,
        len(received),
        sum(_is_streamed(one.path, one.body) for one in received),
        tuple(text + f" ({count} times)" * (count > 1) for text, count in counted.items()),
        _problem(client, json.dumps([one.body for one in received]), received, code, log),
        log,
        sum(one.predicted.read for one in received if one.predicted) / max(1, tokens),
        tokens,
        tuple(re.findall(r"Answer \d: it was read\.", log)),
    )


def _is_streamed(path: str, body: Any) -> bool:
    return "streamGenerateContent" in path or (isinstance(body, dict) and body.get("stream") is True)


def _problem(client: Client, sent: str, received: list[Any], code: int | None, log: str) -> str:
    """What is missing of three turns with tool calls."""
    if code is None:
        return f"no end after {TIMEOUT_S} s"
    if code:
        return f"exit code {code}"
    unread = [number for number, note in NOTES.items() if note not in sent]
    if unread:
        return f"no result of turn {unread[0]} arrived"
    silent = [number for number in NOTES if not client.finish and f"Answer {number}" not in log]
    if silent:
        return f"no answer of turn {silent[0]} was shown"
    if client.streams and not any(_is_streamed(one.path, one.body) for one in received):
        return "nothing was streamed"
    return ""


def chosen(names: list[str]) -> list[tuple[Client, str]]:
    """Which clients and wires: [] is all, "pi" all of pi's, "pi:gemini" one."""
    pairs = [(client, wire) for client in CLIENTS for wire in client.wires]
    known = {name for client, wire in pairs for name in (client.name, f"{client.name}:{wire}")}
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no client {unknown[0]!r}; there are {', '.join(client.name for client in CLIENTS)}")
    return [
        (client, wire) for client, wire in pairs if not names or {client.name, f"{client.name}:{wire}"} & set(names)
    ]


def main(words: list[str]) -> int:
    names = [word for word in words if not word.startswith("--")]
    outcomes: list[Outcome] = []
    missing: dict[str, str] = {}
    for client, wire in chosen(names):
        if client.name in missing:
            continue
        try:
            version = install(client)
        except NotInstallable as error:
            missing[client.name] = str(error)
            continue
        print(f"running {client.name} on {wire}", file=sys.stderr)
        outcomes.append(converse(client, wire, version))
    report(outcomes, missing)
    if "--direct" in words:
        return 0 if all(outcome.green for outcome in outcomes) else 1
    from behind_proxy import compare

    same = compare(outcomes, converse, write="--write" in words)
    return 0 if same and all(outcome.green for outcome in outcomes) else 1


def report(outcomes: list[Outcome], missing: dict[str, str]) -> None:
    row = "{:<16}{:<10}{:<13}{:>9}{:>10}  {}".format
    print(row("client", "version", "wire", "requests", "streamed", "result"))
    for outcome in outcomes:
        print(
            row(outcome.client.name, outcome.version, outcome.wire, outcome.requests, outcome.streamed, outcome.verdict)
        )
        for refusal in outcome.refusals:
            print(f"    refused: {refusal}")
        if outcome.problem:
            print("".join(f"    | {line[:160]}\n" for line in outcome.log.strip().splitlines()[-8:]), end="")
    for name, reason in missing.items():
        print(row(name, "-", "-", "-", "-", f"not installable: {reason}"))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a running client is ended, too
    sys.exit(main(sys.argv[1:]))
