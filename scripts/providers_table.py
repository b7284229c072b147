"""Write docs/providers.md (each provider and feature with the tests that prove it) and the rows in docs/rules.md.

    python scripts/providers_table.py          write both
    python scripts/providers_table.py --check  exit 1 if either is out of date

Tests name what they prove, and of whom: @pytest.mark.proves("anthropic openai", "streaming").
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from quire.providers.models import data, model_info, provider_facts, providers

ROOT = Path(__file__).resolve().parent.parent
PROVIDERS, RULES = ROOT / "docs" / "providers.md", ROOT / "docs" / "rules.md"
BEGIN, END = "<!-- rows: written by scripts/providers_table.py -->\n", "<!-- end of rows -->\n"
# Columns in this order; a feature that is not here stands behind them, in its own alphabetical order.
FEATURES = (
    "render", "parse", "streaming", "import", "export", "late notes", "late tools", "thinking kept", "rules",
    "sdk", "emulator", "cache marks", "cache simulation", "cache invalidation", "usage", "prices",
)  # fmt: skip


class Proof(NamedTuple):
    """A test that shows a feature to work with a provider."""

    provider: str
    feature: str
    test: str


def proofs(tests: Path) -> list[Proof]:
    """Every `proves` mark of the tests under a folder, read from their source."""
    found = [proof for file in sorted(tests.rglob("test_*.py")) for proof in _in_file(file, tests.parent)]
    unknown = {proof.provider for proof in found} - set(providers())
    if unknown:
        raise SystemExit(f"proves() names unknown providers: {', '.join(sorted(unknown))}")
    return found


def _in_file(file: Path, root: Path) -> Iterator[Proof]:
    place = file.relative_to(root).as_posix()
    tree = ast.parse(file.read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets):
            yield from (Proof(*pair, place) for pair in _marks(node.value))
    for part in ast.walk(tree):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            pairs = [pair for decorator in part.decorator_list for pair in _marks(decorator)]
            yield from (Proof(*pair, f"{place}::{part.name}") for pair in pairs)


def _marks(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The arguments of every proves(...) in an expression, also inside pytest.param(marks=...)."""
    for one in ast.walk(node):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr == "proves":
            names, feature = (ast.literal_eval(argument) for argument in one.args)
            yield from ((provider, feature) for provider in names.split())


def providers_page(found: list[Proof]) -> str:
    """The whole of docs/providers.md."""
    return "\n".join([*_head(), *_matrix(found), *_facts(), *_details(found)]) + "\n"


def _head() -> list[str]:
    return [
        "# Providers",
        "",
        "Written by `python scripts/providers_table.py`; a test fails when it is out of date.",
        f"Facts are as of {data('providers')['as_of']}; no live API was called.",
        "",
    ]


def _matrix(found: list[Proof]) -> list[str]:
    features = _features(found)
    rows = [f"| {' | '.join(['', *features])} |", f"|{'---|' * (len(features) + 1)}"]
    for provider in providers():
        counts = [sum(p.provider == provider and p.feature == feature for p in found) for feature in features]
        rows.append(f"| [{provider}](#{provider}) | {' | '.join(str(count or '') for count in counts)} |")
    return [
        "## What is proved",
        "",
        "The number of tests for each provider and feature; they are named below.",
        "",
        *rows,
        "",
    ]


def _features(found: list[Proof]) -> list[str]:
    named = {proof.feature for proof in found}
    return [*(feature for feature in FEATURES if feature in named), *sorted(named - set(FEATURES))]


def _facts() -> list[str]:
    rows = [
        "| Provider | Also called | Format | Cache | From tokens | Lives (s) | Marks |",
        "|---|---|---|---|---|---|---|",
    ]
    for provider in providers():
        info, facts = model_info(f"{provider}:"), provider_facts(provider)
        names = ", ".join([*facts["aliases"], *facts["formats"]])
        lives = ", ".join(map(str, info.ttl_s))
        rows.append(
            f"| {provider} | {names} | {info.wire} | {info.engine} | {info.min_cache_tokens} | {lives} | {info.max_breakpoints or ''} |"
        )
    return [
        "## Defaults",
        "",
        "What holds for a model without a row of its own; `quire models` lists the rows.",
        "",
        *rows,
        "",
    ]


def _details(found: list[Proof]) -> list[str]:
    lines = ["## Tests", ""]
    for provider in providers():
        own = [proof for proof in found if proof.provider == provider]
        if own:
            lines += [f"### {provider}", "", "| Feature | Test |", "|---|---|"]
            lines += [f"| {feature} | {_tests(own, feature)} |" for feature in _features(own)]
            lines += [""]
    return lines[:-1]


def _tests(own: list[Proof], feature: str) -> str:
    tests = sorted({proof.test for proof in own if proof.feature == feature})
    return "<br>".join(f"[{test.rpartition('::')[2]}](../{test.partition('::')[0]})" for test in tests)


def rules_page(text: str) -> str:
    """docs/rules.md with its table of rows brought up to date."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + _rows() + END + after


def _rows() -> str:
    lines = ["| Row | Rule | Who | From |", "|---|---|---|---|"]
    for row, facts in data("rules")["rows"].items():
        rule = facts["rule"].replace("|", "\\|")
        lines.append(f"| {row} | {rule} | {facts['providers']} | {facts['source']} |")
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Each page and what it should hold."""
    return {PROVIDERS: providers_page(proofs(ROOT / "tests")), RULES: rules_page(RULES.read_text())}


def main() -> None:
    check = "--check" in sys.argv
    old = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if check and old:
        raise SystemExit(f"out of date: {', '.join(path.name for path in old)}; run python {Path(__file__).name}")
    for path, text in pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
