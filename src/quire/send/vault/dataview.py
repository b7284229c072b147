"""Query blocks answered: rows of notes as a list, a table or tasks, in markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from quire.errors import QuireError
from quire.send.vault.functions import shown
from quire.send.vault.note import Note
from quire.send.vault.query import Expression, Query, Reader
from quire.values import Json

_TASK = re.compile(r"^\s*(?:[-*+]|\d+[.)]) \[(.)\] (.*)$")
# More rows than a model has use for.
_MOST_ROWS = 200


def evaluate(
    query: str,
    notes: Sequence[Note],
    resolve: Callable[[str], str],
    text: Callable[[str], str],
    own: str = "",
) -> str:
    """The answer of a query over notes; a FormatError says what was not understood."""
    read = Reader(query, lambda name, outgoing: _linked(name, outgoing, notes, resolve, own)).query()
    rows = _rows(read, notes)
    if read.kind == "task":
        return _limited(_tasks(rows, text), read.limit)
    lines = _table(read, rows) if read.kind == "table" else _list(read, rows)
    return "\n".join(lines) if rows else "(no notes match)"


def _linked(
    name: str, outgoing: bool, notes: Iterable[Note], resolve: Callable[[str], str], own: str
) -> set[str]:
    """The notes that link to a note, or those it links to; [[]] and [[#]] are the query's own note."""
    bare = name[2:-2].partition("|")[0].partition("#")[0].strip()
    target = resolve(bare) if bare else own
    if outgoing:
        return {path for note in notes if note.path == target for path in _targets(note, resolve)}
    title = target.rpartition("/")[2].rpartition(".")[0].casefold()
    near = [note for note in notes if any(title in link.target.casefold() for link in note.links)]
    return {note.path for note in near if target in _targets(note, resolve)}


def _targets(note: Note, resolve: Callable[[str], str]) -> set[str]:
    out = set()
    for link in note.links:
        try:
            out.add(resolve(link.target))
        except QuireError:
            continue  # a link to nothing links to no note
    return out


def _rows(query: Query, notes: Sequence[Note]) -> list[Note]:
    kept = [note for note in notes if query.source is None or query.source(note)]
    if query.where is not None:
        kept = [note for note in kept if query.where(note)]
    kept.sort(key=lambda note: note.path)
    for expression, down in reversed(query.sort):
        kept.sort(key=_key(expression), reverse=down)
    most = _MOST_ROWS if query.limit is None or query.kind == "task" else min(query.limit, _MOST_ROWS)
    return kept[:most]


def _key(expression: Expression) -> Callable[[Note], tuple[int, float, str]]:
    """Numbers before texts, what is missing first."""

    def key(note: Note) -> tuple[int, float, str]:
        value: Json = expression(note)
        if value is None:
            return (0, 0.0, "")
        if isinstance(value, int | float):
            return (1, float(value), "")
        return (2, 0.0, shown(value).casefold())

    return key


def _list(query: Query, rows: Sequence[Note]) -> list[str]:
    if not query.columns:
        return [f"- [[{note.title}]]" for note in rows]
    expression = query.columns[0][1]
    values = [shown(expression(note)) for note in rows]
    return [f"- [[{n.title}]]: {v}" if query.with_id else f"- {v}" for n, v in zip(rows, values, strict=True)]


def _table(query: Query, rows: Sequence[Note]) -> list[str]:
    names = [*(["File"] if query.with_id else []), *(name for name, _ in query.columns)]
    lines = [_row(names), _row(["---"] * len(names))]
    for note in rows:
        cells = [shown(expression(note)) for _, expression in query.columns]
        lines.append(_row([f"[[{note.title}]]", *cells] if query.with_id else cells))
    return lines


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _tasks(rows: Sequence[Note], text: Callable[[str], str]) -> list[str]:
    found = []
    for note in rows:
        tasks = [match for line in text(note.path).split("\n") if (match := _TASK.match(line))]
        found += [f"- [{match[1]}] {match[2]} ([[{note.title}]])" for match in tasks]
    return found


def _limited(lines: Sequence[str], limit: int | None) -> str:
    kept = lines[: _MOST_ROWS if limit is None else min(limit, _MOST_ROWS)]
    return "\n".join(kept) if kept else "(no tasks match)"
