"""One word, one meaning: what of the table in docs/design.md can be held is held here."""

import ast
import re

import click
import pytest

from conftest import ROOT
from quire.cli.main import quire

SRC = ROOT / "src" / "quire"
# Words for ideas that have a better one (docs/design.md), where nobody else fixed them: as names in the code.
RIDDLES = frozenset(
    (
        "spots places lives keeper vigil told said seen own settle aside kin manner sheet moved absent "
        "exchange tail when write walk fold sealing speech standing claim spending question culprits reach "
        "shown"
    ).split()
)


def commands(command: click.Command, name: str = "quire") -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return [(name, command)]
    inner = [
        (sub, command.get_command(click.Context(command), sub)) for sub in command.list_commands(click.Context(command))
    ]
    return [(name, command), *(pair for sub, found in inner if found for pair in commands(found, f"{name} {sub}"))]


def test_modules_are_named_after_what_they_hold() -> None:
    """`write` is what a wire's folder calls its writer."""
    riddles = [path.relative_to(SRC) for path in SRC.rglob("*.py") if path.stem in RIDDLES]
    assert [str(path) for path in riddles if path.parts[:2] != ("providers", "wires")] == []


def test_a_class_name_stands_once() -> None:
    seen: dict[str, str] = {}
    twice = []
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if node.name in seen and node.name != "Stream":
                    twice.append((node.name, seen[node.name], str(path.relative_to(SRC))))
                seen[node.name] = str(path.relative_to(SRC))
    assert twice == []


@pytest.mark.parametrize(
    ("name", "command"), commands(quire), ids=lambda value: value if isinstance(value, str) else ""
)
def test_help_speaks_the_words_of_the_design(name: str, command: click.Command) -> None:
    """A rebase is a rebase and a mark a mark in every help text; layer ids of the data are for data."""
    text = command.get_help(click.Context(command, info_name=name))
    assert not re.search(r"\b(breakpoints?|compact(?:ion)?|L2_PREVIOUS|L4_STRIP|breadcrumbs?)\b", text), text
