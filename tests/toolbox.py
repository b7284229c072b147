"""What the tests of several folders use: the command line, made threads, a clock, a turn against a server."""

import asyncio
import copy
import os
import pty
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from socketserver import StreamRequestHandler
from typing import Any

from click.testing import CliRunner, Result
from hypothesis import settings
from hypothesis import strategies as st

from quire import Entry, Policy, Thread, open_store, requests, values
from quire.assemble import Built, Refused
from quire.cli.main import quire
from quire.log.entries import check, encode_lines
from quire.log.store import Store
from quire.providers.models import model_info
from quire.send.connect import transport_for
from quire.send.cycle import Outcome
from quire.send.cycle import run as run_cycle
from quire.send.events import Event
from quire.send.transport import close
from quire.send.turn import CHAT, Runner
from quire.tokens import counter
from quire.values import SPOKEN, JsonObject, chain, sha256_hex

# Parts of the inside that tests of several folders hold: where one of them moves, this file says so and no other.
__all__ = [
    "CHAT", "Built", "Outcome", "Refused", "Runner", "Store", "chain", "check", "close", "counter", "encode_lines",
    "model_info", "sha256_hex", "transport_for",
]  # fmt: skip


# An image of one pixel.
PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


def invoke(*words: object, stdin: str | bytes | None = None, code: int = 0, **env: str) -> Result:
    """Run `quire` in this process; errors of Quire are raised, and it ends with the code given."""
    done = CliRunner(env=env).invoke(quire, [str(word) for word in words], input=stdin, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done


def new_tenant() -> str:
    """A tenant that nobody has used yet, for a test on the PostgreSQL server that all tests share."""
    return f"t-{uuid.uuid4().hex[:16]}"


def run(*words: object, **how: Any) -> str:
    """What `quire` writes to standard output."""
    return invoke(*words, **how).stdout


# The command in a process of its own.
QUIRE = [sys.executable, "-m", "quire"]


@contextmanager
def running(*words: str, **env: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`quire` in a process of its own, which ends with the block, and the address that it says it listens on."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*QUIRE, *words], text=True, env={**os.environ, **env}, **pipes)
    try:
        said = ""
        while " on http" not in said:
            said += (line := process.stderr.readline())
            assert line, said
        yield said.rpartition(" on ")[2].split()[0], process
    finally:
        process.kill()
        process.communicate()


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """All that a command wrote until it ended by Ctrl-C."""
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=600)


def on_terminal(folder: Path, *words: str, typed: str = "", program: Sequence[str] = QUIRE, **env: str) -> bytes:
    """What a terminal receives of a command, output and errors together; the folder is its home."""
    ours, theirs = pty.openpty()
    settings = {"QUIRE_DB": str(folder / "q.db"), "TERM": "xterm-256color", "COLUMNS": "200"}
    settings |= {"XDG_STATE_HOME": str(folder), "XDG_CACHE_HOME": str(folder), "PROMPT_TOOLKIT_NO_CPR": "1", **env}
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen([*program, *words], cwd=folder, env={**os.environ, **settings}, **streams)
    os.close(theirs)
    os.write(ours, typed.encode())
    received = b""
    try:
        while more := os.read(ours, 65536):
            received += more
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(ours)
    process.wait(600)
    return received


def until(holds: Callable[[], object], what: object = "it did not come") -> None:
    """Wait for what another thread, process or page does; long enough for a machine that is busy with other things."""
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def free_port() -> int:
    """A port that nobody has, and that the system gives to nobody who asks for any."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.SystemRandom().randrange(20_000, 32_000)))
            return int(probe.getsockname()[1])


def assert_in_proportion(work: Callable[[int], object], length: int) -> None:
    """Eight times the length takes far less than sixty-four times the CPU time, in one of ten tries at least."""
    for _ in range(10):
        spent = []
        for size in (length // 8, length):
            begun = time.process_time()
            work(size)
            spent.append(time.process_time() - begun)
        if spent[1] < 0.01 or spent[1] < 24 * spent[0]:
            return
    raise AssertionError(f"{length // 8} take {spent[0]:.3f} s, {length} take {spent[1]:.3f} s")


class Later:
    """A module that is loaded when something of it is used: a package that takes long to load, in a group's tests."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks at every name of a test's module for marks of its own
            raise AttributeError(name)
        return getattr(import_module(self._module), name)


class QuietHandler(BaseHTTPRequestHandler):
    """Answers requests and says nothing about them."""

    def answer(self, body: bytes, kind: str = "application/json", status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def received(self) -> bytes:
        return self.rfile.read(int(self.headers["content-length"]))

    def log_message(self, format: str, *args: object) -> None: ...


@contextmanager
def in_background(server: HTTPServer) -> Iterator[str]:
    """The address of a server that serves while the block runs."""
    with server:
        running = threading.Thread(target=server.serve_forever, args=(0.01,))
        running.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            running.join()


# One target for each wire format; the emulator speaks for all of them.
TARGETS = {
    "anthropic": "anthropic:claude-opus-5-5",
    "openai-chat": "openai-chat:gpt-5",
    "openai": "openai:gpt-5",
    "gemini": "gemini:gemini-3-pro",
    "bedrock": "bedrock:anthropic.claude-opus-4-5",
}


@contextmanager
def no_web_server() -> Iterator[str]:
    """The address of a program that does not speak HTTP."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(b"SSH-2.0-OpenSSH\r\n")

    with in_background(HTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield address


class EventReader:
    """Someone who puts events together; a `sent` where a block should have ended takes the block back."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.open: list[str] = []
        self.last = ""

    def take(self, event: Event) -> None:
        if event.entry is None:
            self.open += [""] * (event.part + 1 - len(self.open))
            self.open[event.part] += event.text
        elif event.entry.kind in SPOKEN:
            begun = self.open.pop(0) if self.open else ""
            self.texts[event.entry.seq] = begun + event.text if event.kind != "call" else ""
        else:
            self.open = []
            self.texts[event.entry.seq] = event.text
        self.last = event.id


_OPENED: list[Store] = []


def closed_later(store: Store) -> Store:
    """The same store; it is closed when the test is over."""
    _OPENED.append(store)
    return store


def close_opened() -> None:
    while _OPENED:
        _OPENED.pop().close()


def fewer(part: int) -> settings:
    """A part of the profile's random cases, where each of them stands for many: `@fewer(5)` is a fifth."""
    return settings(max_examples=max(1, settings.default.max_examples // part))


def at_least(cases: int) -> settings:
    """No fewer random cases than this, for a law that all else rests on."""
    return settings(max_examples=max(cases, settings.default.max_examples))


SCALARS = st.none() | st.booleans() | st.integers()
SHORT_TEXTS = st.text(max_size=5)
WHOLE_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)  # without half a character
Place = tuple[str | int, ...]


def json_of(
    leaves: st.SearchStrategy[Any], names: st.SearchStrategy[str] = SHORT_TEXTS, most: int = 10
) -> st.SearchStrategy[Any]:
    """Any JSON of at most so many leaves."""
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=most
    )


def places(value: Any, path: Place = ()) -> Iterator[Place]:
    """The way to every part of a JSON value."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from places(part, (*path, key))


def put(value: Any, place: Place, part: Any) -> Any:
    """A copy of the value, with another part at one place."""
    changed = copy.deepcopy(value)
    holder = changed
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = part
    return changed


class Clock:
    """Time that moves when told to."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def wait(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)


def note(path: str, content: str = "C", **metadata: object) -> JsonObject:
    """An item that is a note."""
    about = {"source": "note", "path": path, **metadata}
    return {"id": path, "type": "text", "content": content, "metadata": about}


def many_words(count: int, name: str = "w") -> str:
    """So many words that no other name has."""
    return " ".join(f"{name}{index}" for index in range(count))


def talk(turns: int, size: int = 40, answer: int | None = None) -> list[Entry]:
    """Questions and answers of so many words."""
    out = [values.system("Help.")]
    for n in range(turns):
        out.append(values.user(f"question {n} " + "word " * size))
        out.append(values.respond(f"answer {n} " + "word " * (size if answer is None else answer)))
    return out


def users(*texts: str) -> list[Entry]:
    return [values.user(text) for text in texts]


def texts(store: Store, thread: str) -> list[str]:
    return [entry.text for entry in store.read(thread)]


def stored(thread: str = "t") -> list[Entry]:
    """The entries of a thread in the database that the environment names."""
    with open_store(os.environ["QUIRE_DB"]) as store:
        return store.read(thread)


def sent_body(target: str = "vllm:m", **more: Any) -> JsonObject:
    """What the log says of a request; without `usage`, that its reply is still to come."""
    provider, _, model = target.partition(":")
    return {"kind": "sent", "provider": provider, "model": model, "request_sha256": "0" * 64, "segments": [], **more}


def said_in(body: JsonObject) -> list[tuple[str, Any]]:
    """Who says what in a request of OpenAI Chat."""
    return [(message["role"], message["content"]) for message in body["messages"]]


def text_of(one: Built) -> str:
    """All that a request says."""
    parts = [part for message in one.prompt.messages for part in message.parts]
    return "\n".join([one.prompt.system, *(getattr(part, "text", "") for part in parts)])


def built(entries: Sequence[Entry], policy: Policy, **how: Any) -> list[Built]:
    """Every request of a log, none of them refused."""
    made = list(requests(entries, policy, **how))
    assert not [one for one in made if isinstance(one, Refused)]
    return [one for one in made if isinstance(one, Built)]


def written(folder: Path, entries: Sequence[Entry]) -> str:
    """The path of a file with these entries as lines."""
    path = folder / "t.jsonl"
    path.write_text(encode_lines(entries))
    return str(path)


def carry_out(
    thread: Thread, target: str, url: str, runner: Runner = CHAT, *, via: Any = "http", retry: Any = None, **how: Any
) -> Outcome:
    """One turn against a server, with the connection closed behind it."""

    async def main() -> Outcome:
        transport = transport_for(target, url, "key", retry=retry, via=via)
        try:
            return await run_cycle(thread, target, transport, runner, **how)
        finally:
            await close(transport)

    return asyncio.run(main())
