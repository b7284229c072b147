"""Every code block and command in README and docs runs, and prints what the page says.

```python blocks of a page run in order in one namespace, and what one prints is what stands in a plain block right
behind it; ```console blocks hold `$ command` lines, each
followed by the exact output, in which a line of `...` stands for anything. Behind these, what stands in a table under
`shown by` is tried: `$ command` succeeds, anything else is an expression that holds. All work in one temporary folder.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from conftest import FRAMEWORK_PAGES, ROOT
from quire.testing import emulator

# Pages about frameworks run where those are installed: tests/test_adapters.py.
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if page not in FRAMEWORK_PAGES.values()
]
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$(?:\n\n```\n(.*?)^```$)?", re.M | re.S)


def blocks(page: Path) -> list[tuple[str, str, str | None, int]]:
    """Each block that runs: its language, its code, what stands in a plain block behind it, its line."""
    text = page.read_text()
    return [(m[1], m[2], m[3], text.count("\n", 0, m.start()) + 1) for m in _BLOCK.finditer(text)]


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    """Pages call the SDK as a user would; a strict stand-in answers."""
    with emulator("anthropic", replies=lambda *_: "A piano app. " + "Its keys light up. " * 20) as server:
        yield server.url


@pytest.mark.xdist_group("sdk")
@pytest.mark.moves_prefix(reason="pages show rebases on purpose")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_shows_is_what_happens(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    provider: str,
    warm: Path,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", provider)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    if page.parent.name == "adopt":
        for name, value in request.getfixturevalue("sdks").items():
            monkeypatch.setenv(name, value)
    environment = {
        **os.environ,
        "QUIRE_DB": str(tmp_path / "quire.db"),
        "PATH": os.pathsep.join([str(warm.parent), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "COLUMNS": "110",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # those of other packages take seconds to load
        "NO_COLOR": "1",
    }
    monkeypatch.setenv("QUIRE_DB", environment["QUIRE_DB"])
    with socket.create_server(("127.0.0.1", 0)) as free:  # pages show the port that people use
        port = str(free.getsockname()[1])
    names: dict[str, object] = {"__name__": "__docs__"}
    for language, code, output, line in blocks(page):
        if language == "python":
            with redirect_stdout(StringIO()) as out:
                exec(compile("\n" * line + code, str(page), "exec"), names)  # the page's own code, as printed
            printed = out.getvalue()
            assert output is None or matches(printed, output), f"{page.name}, block at line {line} printed:\n{printed}"
        else:
            for command, expected in commands(code.replace("8765", port)):
                done = subprocess.run(
                    ["bash", "-c", command], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600
                )
                assert matches(done.stdout + done.stderr, expected), (
                    f"{page.name}, block at line {line}: $ {command}\nprinted:\n{done.stdout}{done.stderr}\nexpected:\n{expected}"
                )
    for code in shown_by(page.read_text()):
        if code.startswith("$ "):
            done = subprocess.run(
                ["bash", "-c", code[2:]], env=environment, cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == 0, f"{page.name}: {code}\n{done.stdout}{done.stderr}"
        else:
            assert eval(code, names), f"{page.name}: {code}"


def shown_by(page: str) -> list[str]:
    """The code in the last column of a page's tables whose head says so, in order."""
    tables = re.findall(r"^\|[^\n]*\| shown by \|\n\|[-|]+\|\n((?:\|.*\n?)+)", page, re.M)
    rows = [row for table in tables for row in table.splitlines()]
    cells = [re.split(r"(?<!\\)\|", row)[-2] for row in rows]
    return [code.replace("\\|", "|") for cell in cells for code in re.findall(r"`([^`]+)`", cell)]


def commands(code: str) -> list[tuple[str, str]]:
    """The commands of a console block with the output printed below each; a trailing backslash goes on."""
    out: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", code, flags=re.M)[1:]:
        lines = part.split("\n")
        command = lines.pop(0)
        while command.endswith("\\") and lines:
            command += "\n" + lines.pop(0)
        out.append((command, "\n".join(lines)))
    return out


def matches(printed: str, expected: str) -> bool:
    """Whether output is as shown, line by line, without trailing spaces; a line `...` stands for any lines."""
    wanted = [line.rstrip() for line in expected.rstrip("\n").split("\n")]
    got = "\n".join(line.rstrip() for line in printed.rstrip("\n").split("\n"))
    pattern = "\n".join(".*" if line == "..." else re.escape(line) for line in wanted)
    return re.fullmatch(pattern, got, re.S) is not None


def test_a_page_that_drifts_is_noticed() -> None:
    assert matches("a\nb\n", "a\nb\n")
    assert matches("a\nx\ny\nb\n", "a\n...\nb\n")
    assert not matches("a\nb\n", "a\nc\n")
    page = "| x | shown by |\n|---|---|\n| a \\| b | `1 \\| 2 == 3`<br>`$ false` |\n"
    assert shown_by(page) == ["1 | 2 == 3", "$ false"]


def test_every_page_of_the_docs_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    index = readme + (ROOT / "docs" / "README.md").read_text() if (ROOT / "docs" / "README.md").exists() else readme
    missing = [page.name for page in PAGES[1:] if page.parent.name == "docs" and page.name not in index]
    assert missing == []


def test_the_benchmarks_page_holds_every_section() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "benchmarks_page.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
