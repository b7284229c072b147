"""The direction of imports and the public names are held here, so that neither drifts unseen."""

import ast
import importlib
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import quire
from conftest import ROOT, source_nodes, source_trees

pytestmark = pytest.mark.xdist_group("source")
SRC = ROOT / "src" / "quire"
RANKS = [
    {"values", "errors", "__init__"},
    {"tokens", "items", "log", "schemas"},
    {"formats", "assemble", "providers", "thread_state"},
    {"recall", "records", "send", "notes", "archive", "audit", "emulate"},
    {"fitting", "thread", "async_thread", "observe", "telemetry"},
    {"server", "cli", "testing", "adapters", "request_recording", "__main__"},
]
# The middle is pure: nothing there may read a clock, roll dice or touch the outside.
PURE = ("assemble", "formats", "providers", "tokens", "values.py", "errors.py")
# Neither Windows nor, for some of them, a browser has these: what needs one asks for it where it uses it.
UNIX_MODULES = {"curses", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
UNIX_NAMES = re.compile(
    r"\b(os\.(fork|forkpty|killpg|get[e]?[ug]id|getpg\w+|setsid|openpty|mkfifo|wait[34p]\w*|nice|O_CLOEXEC|O_NOFOLLOW)"
    r"|signal\.(SIGKILL|SIGHUP|SIGUSR[12]|SIGCHLD|SIGPIPE|SIGWINCH|SIGALRM|alarm|setitimer|pthread_\w+))\b"
)
IMPURE = re.compile(r"^(time|random|secrets|uuid|socket|subprocess|sqlite3|urllib|http|asyncio)(\.|$)")


def rank(package: str) -> int:
    return next(n for n, names in enumerate(RANKS) if package in names)


@cache
def imports() -> list[tuple[Path, str]]:
    found = []
    for path, nodes in source_nodes().items():
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                found.append((path, node.module))
                if node.module == "quire":
                    found += [(path, f"quire.{alias.name}") for alias in node.names]
            elif isinstance(node, ast.Import):
                found += [(path, alias.name) for alias in node.names]
    return found


def package_of(path: Path) -> str:
    relative = path.relative_to(SRC)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


@cache
def edges() -> set[tuple[str, str]]:
    """(importing package, imported package), different ones only."""
    out, packages = set(), {package_of(path) for path in source_trees()}
    for path, module in imports():
        if module.startswith("quire.") and package_of(path) != "__init__":
            target = module.split(".")[1]
            if target in packages and target != package_of(path):
                out.add((package_of(path), target))
    return out


def test_packages_import_only_from_their_own_rank_or_below() -> None:
    upward = [(a, b) for a, b in edges() if rank(b) > rank(a)]
    assert upward == []


def test_the_house_stays_small() -> None:
    """One idea, one file: what comes joins a room that is there, or takes another's place (docs/design.md)."""
    assert len(list(SRC.rglob("*.py"))) <= 170


def test_every_room_is_on_the_map() -> None:
    rooms = {path.name + "/" * path.is_dir() for path in SRC.iterdir() if path.suffix in ("", ".py")}
    rows = re.findall(r"^\| (`.*?`) \|", (ROOT / "docs" / "design.md").read_text(), re.M)
    named = {name for row in rows for name in re.findall(r"`([\w/]+(?:/|\.py))`", row)}
    assert rooms - {"__init__.py", "__pycache__/"} == named


def test_packages_of_one_rank_import_each_other_in_one_direction() -> None:
    mutual = [(a, b) for a, b in edges() if (b, a) in edges() and a < b]
    assert mutual == []


def test_the_middle_imports_no_clock_no_dice_and_nothing_from_outside() -> None:
    bad = [
        (str(path.relative_to(SRC)), module)
        for path, module in imports()
        if str(path.relative_to(SRC)).startswith(PURE) and IMPURE.match(module)
    ]
    assert bad == []


def test_what_only_unix_has_is_asked_for_where_it_is_used_and_with_a_way_without_it() -> None:
    bad = []
    for path, nodes in source_nodes().items():
        text, name = path.read_text(), str(path.relative_to(SRC))
        if not re.search("|".join(UNIX_MODULES), text) and not UNIX_NAMES.search(text):
            continue
        functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        inside = {id(node) for function in functions for node in ast.walk(function)}
        for node in nodes:
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            used = isinstance(node, ast.Attribute) and UNIX_NAMES.fullmatch(ast.unparse(node))
            if used or UNIX_MODULES & {module.split(".")[0] for module in modules}:
                around = text if id(node) in inside else ""
                if not re.search(r"sys\.platform|os\.name|except ImportError|hasattr\(", around):
                    bad.append(f"{name}:{node.lineno}: {ast.unparse(node)}")
    assert bad == []


def test_no_statement_of_sqlite_numbers_its_placeholders() -> None:
    """From Python 3.14 on those are names, and a list of values is refused."""
    texts = ((path, node.value) for path, nodes in source_nodes().items() for node in nodes if isinstance(node, ast.Constant))  # fmt: skip
    assert [str(path) for path, text in texts if isinstance(text, str) and re.search(r"[=,(] ?\?\d", text)] == []


def test_properties_that_are_kept_hold_no_lock_that_a_fork_could_leave_held() -> None:
    """Those of functools do up to Python 3.11: they come from `quire.values`."""
    uses = {
        path.name for path in SRC.rglob("*.py") if re.search(r"functools import .*cached_property", path.read_text())
    }
    assert uses == {"values.py"}


def test_the_public_names_are_these() -> None:
    assert sorted(quire.__all__) == [
        "Assembly", "AsyncThread", "Entry", "Fitter", "Item", "Policy", "QuireError", "Reply", "Request", "Thread", "Usage", "Window",
        "__version__", "attach", "call", "connect", "count", "fit", "note", "open", "open_store", "render", "requests", "respond",
        "result", "system", "think", "tools", "user", "validate",
    ]  # fmt: skip
    for name in quire.__all__:
        assert getattr(quire, name) is not None


@pytest.mark.parametrize("name", sorted(path.parent.name for path in SRC.glob("*/__init__.py") if "__all__" in path.read_text()))  # fmt: skip
def test_every_name_that_a_package_lists_is_there(name: str) -> None:
    package = importlib.import_module(f"quire.{name}")
    assert [listed for listed in package.__all__ if not hasattr(package, listed)] == []


def test_a_type_checker_sees_which_names_there_are() -> None:
    """A `__getattr__` of a module, seen by mypy, makes every misspelt name one of the module's."""
    functions = ((path, node) for path, tree in source_trees().items() for node in tree.body if isinstance(node, ast.FunctionDef))  # fmt: skip
    assert [str(path) for path, node in functions if node.name == "__getattr__"] == []


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path, tree in source_trees().items() if tree.body and not ast.get_docstring(tree)]
    assert silent == []


def test_no_module_gives_a_name_twice() -> None:
    """A constant that is set again further down is another one for everything above it, too."""
    bad = []
    for path, tree in source_trees().items():
        targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
        targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
        names = [node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        named = Counter(node.id for node in names if isinstance(node.ctx, ast.Store))
        bad += [(str(path.relative_to(SRC)), name) for name, times in named.items() if times > 1]
    assert bad == []


def test_the_project_speaks_of_itself_alone() -> None:
    """No machine paths, no development places, in any file that is kept."""
    words = re.compile("/ro" + "ot/|/wo" + "rk/|\\.lib" + "rary|sub" + "agent|before" + "-stop|\\.py" + "env")
    kept = [p for folder in ("src", "docs", "bench", "scripts", "tests") for p in (ROOT / folder).rglob("*")]
    kept += [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml")]
    texts = [p for p in kept if p.is_file() and p.suffix in {".py", ".md", ".toml", ".json", ".sh", ""}]
    bad = [str(p.relative_to(ROOT)) for p in texts if words.search(p.read_text(errors="ignore"))]
    assert bad == []


def test_a_users_message_passes_at_most_45_modules() -> None:
    told = subprocess.run([sys.executable, ROOT / "scripts" / "message_path.py"], capture_output=True, text=True).stdout
    assert int(told.splitlines()[-1].split()[0]) <= 45, told
