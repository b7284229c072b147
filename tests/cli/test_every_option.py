"""Every option of every command is tried through the command line: in a test, or in a console block of the docs."""

import ast
import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click

from quire.cli.main import quire

ROOT = Path(__file__).parents[2]
Words = tuple[str, ...]


def commands(command: click.Command, name: Words = ()) -> Iterator[tuple[Words, click.Command]]:
    """Every command with the words that call it, groups included."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None
            yield from commands(found, (*name, word))


# What is called in one way, which its page shows.
PLAIN = {"serve keys", "serve keys add", "serve keys list", "serve keys revoke", "unwrap", "doctor"}


def test_every_command_helps_with_an_example_of_its_own() -> None:
    helps = {" ".join(name): one.help or "" for name, one in commands(quire)}
    assert {name for name, text in helps.items() if "Examples:" not in text or f"quire {name}" not in text} == PLAIN


def told(source: str) -> Iterator[list[str]]:
    """The words in each test of a module, and in what it names of the module: helpers, fixtures, constants."""
    top = ast.parse(source).body
    named: dict[str, ast.stmt] = {}
    for one in top:
        names = [one.name] if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) else []
        if isinstance(one, ast.Assign):
            names = [target.id for target in one.targets if isinstance(target, ast.Name)]
        named |= dict.fromkeys(names, one)
    for name, one in named.items():
        if not name.startswith("test_"):
            continue
        reached, ahead = [one], [one]
        while ahead:
            called = _named(ahead.pop())
            ahead += (fresh := [named[n] for n in sorted(called & named.keys()) if named[n] not in reached])
            reached += fresh
        yield [word for part in reached for word in _words(part)]


@cache
def _named(node: ast.AST) -> set[str]:
    nodes = list(ast.walk(node))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.arg for node in nodes if isinstance(node, ast.arg)
    }


@cache
def _words(node: ast.AST) -> list[str]:
    return list(_strings(node))


def _strings(node: ast.AST) -> Iterator[str]:
    """The words of the strings below a node, in the order they are written; docstrings are not among them.

    A command that is called itself, `import_.main([...])`, stands by its name.
    """
    for below in ast.iter_child_nodes(node):
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            continue
        if isinstance(below, ast.Constant) and isinstance(below.value, str):
            yield from below.value.split()
        if isinstance(below, ast.Attribute) and below.attr == "main" and isinstance(below.value, ast.Name):
            yield below.value.id.strip("_")
        yield from _strings(below)


def shown(page: str) -> Iterator[list[str]]:
    """The words of each command in the console blocks of a page."""
    for block in re.findall(r"^```console\n(.*?)^```$", page, re.M | re.S):
        for line in re.findall(r"^\$ (.*)$", block.replace("\\\n", " "), re.M):
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            command: list[str] = []
            for word in lexer:
                if set(word) <= set("|&;"):
                    yield command
                    command = []
                else:
                    command.append(word)
            yield command


def trials() -> Iterator[list[str]]:
    for module in sorted((ROOT / "tests").rglob("test_*.py")):
        yield from told(module.read_text("utf-8"))
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        yield from shown(page.read_text("utf-8"))


def untried(lists: Iterator[list[str]]) -> list[str]:
    """Options that no list of words has beside a command that takes them; help is tried for all."""
    takers = [
        (name, spelled)
        for name, command in commands(quire)
        for option in command.params
        if isinstance(option, click.Option) and "--help" not in option.opts
        for spelled in filter(None, (option.opts, option.secondary_opts))
    ]
    used: dict[Words, set[str]] = defaultdict(set)
    every = {name for name, _ in takers}
    lengths = {len(name) for name in every}
    for words in lists:
        options = {word.partition("=")[0] for word in words if word.startswith("-")}
        if options:
            said = {tuple(words[at : at + length]) for length in lengths for at in range(len(words))}
            for name in every & said:
                used[name] |= options
    return [f"{' '.join(('quire', *name))} {spelled[0]}" for name, spelled in takers if not used[name] & set(spelled)]


def test_every_option_is_tried() -> None:
    assert untried(trials()) == []


def test_an_option_that_is_tried_nowhere_is_noticed() -> None:
    page = "```console\n$ quire log show demo --limit 3 | quire record list --owner me\n```\n"
    module = 'MINE = ("--owner", "me")\ndef test_a():\n    run("record", "list", *MINE)\n'
    module += 'def test_b():\n    "record list --limit"\n'
    limit, owner, last = "quire log show --limit", "quire record list --owner", "quire record list --limit"
    assert {limit, owner, last} & set(untried(shown(page))) == {last}
    assert {limit, owner, last} & set(untried(told(module))) == {limit, last}
