"""A symbol of a file: found by its syntax tree, by bare or dotted name, with its decorators.

How a language's tree is read is for `python_tree` and `grammar_tree`; this module only chooses among names.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from quire.errors import CallError, NotFound
from quire.items.sources import read_source, region_of
from quire.values import Item

PYTHON = frozenset({".py", ".pyi", ".pyw"})
_SEPARATOR = re.compile(r"\.|::|#")


class Definition(msgspec.Struct, frozen=True):
    """A definition's name with its scopes, and its lines; `whole` unless it only declares (a prototype)."""

    path: tuple[str, ...]
    start: int
    end: int
    whole: bool = True

    @property
    def name(self) -> str:
        return ".".join(self.path)


def from_symbol(path: str | Path, symbol: str, *, name: str = "", truncate: bool = False) -> Item:
    """The definition of `symbol` in a file: "parse", "Window.add", "Outer.Inner.method", "Type::method"."""
    text, shown = read_source(path), name or str(path)
    found = resolve(symbol, _definitions(text, Path(path).suffix.lower(), shown), shown)
    more = {"symbol": found.name}
    return region_of(text, shown, found.start, found.end, more=more, truncate=truncate)


def _definitions(text: str, suffix: str, name: str) -> list[Definition]:
    if suffix in PYTHON:
        from quire.items.python_tree import definitions as python_definitions

        return python_definitions(text, name)
    from quire.items.grammar_tree import definitions as grammar_definitions

    return grammar_definitions(text, suffix, name)


def resolve(symbol: str, definitions: Iterable[Definition], name: str) -> Definition:
    """The one definition a name means: the full path if there is one, else the only path that ends so."""
    merged = _merged(definitions)
    wanted = tuple(part for part in _SEPARATOR.split(symbol) if part and part != "<locals>")
    exact = [one for one in merged if one.path == wanted]
    ending = exact or [one for one in merged if wanted and one.path[-len(wanted) :] == wanted]
    paths = list(dict.fromkeys(one.name for one in ending))
    if not paths:
        raise NotFound(f"no symbol {symbol!r} in {name}", hint=_near(symbol, merged))
    if len(paths) > 1:
        raise CallError(f"{symbol!r} is ambiguous in {name}", hint=f"Use one of {', '.join(paths)}.")
    # Of several with one name the last is in force; a prototype only where nothing else is there.
    return max(ending, key=lambda one: (one.whole, one.start))


def _merged(definitions: Iterable[Definition]) -> list[Definition]:
    """Definitions in a row with one name are one: overloads, a property and its setter."""
    out: list[Definition] = []
    latest: dict[tuple[str, ...], int] = {}
    for one in definitions:
        scope = one.path[:-1]
        before = latest.get(scope)
        if before is not None and out[before].path == one.path:
            last = out[before]
            out[before] = Definition(one.path, last.start, max(last.end, one.end), last.whole or one.whole)
        else:
            latest[scope] = len(out)
            out.append(one)
    return out


def _near(symbol: str, definitions: Iterable[Definition]) -> str:
    names = list(dict.fromkeys(one.name for one in definitions))
    near = difflib.get_close_matches(symbol, names, 3) or names[:5]
    return f"There is {', '.join(near)}." if near else "The file defines nothing."
