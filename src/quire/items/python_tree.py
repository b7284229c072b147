"""The definitions of a Python file, by its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from quire.errors import FormatError
from quire.items.symbols import Definition

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def definitions(text: str, name: str) -> list[Definition]:
    """Functions and classes at any depth, and names assigned in modules and classes, in the file's order."""
    try:
        # A lone \\r ends a line for the parser but not for us; nor is a byte order mark code.
        tree = ast.parse(text.removeprefix("\ufeff").replace("\r\n", " \n").replace("\r", " "))
    except SyntaxError as error:
        raise FormatError(
            f"{name} is not valid Python: {error.msg}",
            line=error.lineno or 0,
            column=error.offset or 0,
            hint="Take a region of the file instead.",
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise FormatError(
            f"{name} cannot be parsed: {error}", hint="Take a region of the file instead."
        ) from error
    return list(_of(tree.body, (), in_function=False))


def _of(body: list[ast.stmt], scope: tuple[str, ...], in_function: bool) -> Iterator[Definition]:
    for node in body:
        if isinstance(node, _Function | ast.ClassDef):
            path = (*scope, node.name)
            start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            yield Definition(path, start, node.end_lineno or start)
            yield from _of(node.body, path, in_function=isinstance(node, _Function))
            continue
        if not in_function:
            for name in _assigned(node):
                yield Definition((*scope, name), node.lineno, node.end_lineno or node.lineno)
        for inner in _blocks(node):
            yield from _of(inner, scope, in_function)


def _assigned(node: ast.stmt) -> Iterator[str]:
    """The names a statement binds: NAME = …, NAME: T = …, (A, B) = …, type NAME = …."""
    if isinstance(node, ast.Assign):
        targets: list[ast.expr] = node.targets
    elif isinstance(node, ast.AnnAssign) or type(node).__name__ == "TypeAlias":
        targets = [node.target if isinstance(node, ast.AnnAssign) else node.name]  # type: ignore[attr-defined]  # TypeAlias is new in 3.12
    else:
        return
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            if isinstance(part, ast.Name):
                yield part.id


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of a compound statement (if, try, with, for, match), which open no scope."""
    for field in ("body", "handlers", "cases", "orelse", "finalbody"):
        for part in getattr(node, field, None) or ():
            if isinstance(part, ast.ExceptHandler | ast.match_case):
                yield part.body
            elif isinstance(part, ast.stmt):
                yield [part]
