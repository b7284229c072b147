"""Query blocks answered as Dataview answers them: a list, a table or tasks, in markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any

from quire.errors import FormatError, QuireError
from quire.notes.dataview_query import Data, DataviewQuery, DataviewReader, DataviewRow, midnight
from quire.notes.dataview_values import LinkValue, Value, fields_of, read_date, show, typed
from quire.notes.note import Note, aliases, inline_fields, links, list_items, tags

# The notes that a query asks about, with the fields that Dataview gives them.

_DATE_IN_NAME = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)")
# What a task says by a sign instead of a field.
_SIGNS = {"🗓️": "due", "🗓": "due", "📅": "due", "✅": "completion", "➕": "created", "🛫": "start", "⏳": "scheduled"}
_SIGNED = re.compile(rf"({'|'.join(_SIGNS)})\s*(\d{{4}}-\d\d-\d\d)")


class Pages:
    """Notes by path; what a query needs of them is made when it is asked for, once."""

    def __init__(
        self, notes: Sequence[Note], resolve: Callable[[str], str], text: Callable[[str], str], now: datetime
    ) -> None:
        self.notes = {note.path: note for note in notes}
        self._resolve, self.text, self.now = resolve, text, now
        self._resolved: dict[str, str] = {}
        self._pages: dict[str, dict[str, Value]] = {}
        self._incoming: dict[str, list[LinkValue]] | None = None

    def path(self, name: str) -> str:
        """The note that a link's name means; the name itself where there is none."""
        if name not in self._resolved:
            try:
                self._resolved[name] = self._resolve(name)
            except QuireError:
                self._resolved[name] = name
        return self._resolved[name]

    def link(self, text: str, note_path: str = "") -> LinkValue:
        """[[name#heading|shown]] as a value; without a name, the note it stands in."""
        place, _, display = text.lstrip("!")[2:-2].partition("|")
        name, _, heading = place.partition("#")
        path = self.path(name.strip()) if name.strip() else note_path
        return LinkValue(path, heading.strip(), display.strip(), text.startswith("!"))

    def page(self, path: str) -> dict[str, Value]:
        """A note's row: its own fields, and what is known of its file under `file`."""
        if path not in self._pages:
            note = self.notes[path]
            fields = typed(note.fields, lambda text: self.link(text, path))
            self._pages[path] = {**fields, "file": FileFacts(self, note)}
        return self._pages[path]

    def linked_page(self, link: LinkValue) -> Value:
        return self.page(link.path) if link.path in self.notes else None

    def outgoing(self, note: Note) -> list[LinkValue]:
        targets = (LinkValue(self.path(link.target), link.heading, link.alias, link.embed) for link in note.links)
        return list(dict.fromkeys(targets))

    def incoming(self, path: str) -> list[LinkValue]:
        """The notes that link to a note, in the order of their paths."""
        if self._incoming is None:
            self._incoming = {}
            for other in sorted(self.notes):
                for target in dict.fromkeys(link.path for link in self.outgoing(self.notes[other])):
                    self._incoming.setdefault(target, []).append(LinkValue(other))
        return self._incoming.get(path, [])

    def items(self, note: Note) -> list[dict[str, Value]]:
        """The list items of a note as rows, each below the item it is indented under."""
        rows = [self._item(note, item) for item in list_items(self.text(note.path))]
        by_line = {row["line"]: row for row in rows}
        for row in rows:
            if row["parent"] is not None:
                by_line[row["parent"]]["children"].append(row)
        for row in reversed(rows):
            row["subtasks"] = row["children"]
            below = (cell["fullyCompleted"] for cell in row["children"] if cell["task"])
            row["fullyCompleted"] = row["completed"] and all(below)
        return rows

    def _item(self, note: Note, listed: Any) -> dict[str, Value]:
        fields = inline_fields(listed.text) | {_SIGNS[sign]: day for sign, day in _SIGNED.findall(listed.text)}
        section = LinkValue(note.path, listed.heading)
        block = re.search(r"\^([\w-]+)$", listed.text)
        return {
            **fields_of(typed(fields, lambda text: self.link(text, note.path))),
            "text": listed.text,
            "task": listed.status is not None,
            "status": listed.status,
            "checked": (listed.status or " ") != " ",
            "completed": listed.status in ("x", "X"),
            "line": listed.line,
            "lineCount": listed.text.count("\n") + 1,
            "parent": listed.parent,
            "path": note.path,
            "section": section,
            "header": section,
            "link": section,
            "tags": [f"#{tag}" for tag in tags(listed.text, {})],
            "outlinks": [LinkValue(self.path(to.target), to.heading, to.alias) for to in links(listed.text)],
            "annotated": bool(fields),
            "blockId": block[1] if block else None,
            "children": [],
        }


def _moment(ns: int) -> datetime:
    return datetime.fromtimestamp(ns // 1_000_000_000)


def _levels(tags: Sequence[str]) -> list[str]:
    """Tags with those above them: a/b -> #a, #a/b."""
    return list(dict.fromkeys(f"#{above}" for tag in tags for above in accumulate(tag.split("/"), "{}/{}".format)))


def _day_of(pages: Pages, note: Note) -> datetime | None:
    """The day in a note's name, else in its field `date`."""
    match = _DATE_IN_NAME.search(note.title)
    day = read_date("-".join(match.groups())) if match else pages.page(note.path).get("date")
    return day if isinstance(day, datetime) else None


_FILE: dict[str, Callable[[Pages, Note], Value]] = {
    "name": lambda pages, note: note.title,
    "path": lambda pages, note: note.path,
    "folder": lambda pages, note: note.folder,
    "ext": lambda pages, note: note.path.rpartition(".")[2],
    "link": lambda pages, note: LinkValue(note.path),
    "size": lambda pages, note: note.size,
    "ctime": lambda pages, note: _moment(note.ctime_ns),
    "cday": lambda pages, note: midnight(_moment(note.ctime_ns)),
    "mtime": lambda pages, note: _moment(note.mtime_ns),
    "mday": lambda pages, note: midnight(_moment(note.mtime_ns)),
    "day": _day_of,
    "tags": lambda pages, note: _levels(note.tags),
    "etags": lambda pages, note: [f"#{tag}" for tag in note.tags],
    "aliases": lambda pages, note: list(aliases(note.fields)),
    "inlinks": lambda pages, note: pages.incoming(note.path),
    "outlinks": lambda pages, note: pages.outgoing(note),
    "lists": lambda pages, note: pages.items(note),
    "tasks": lambda pages, note: [row for row in pages.items(note) if row["task"]],
    "frontmatter": lambda pages, note: note.fields,
}


class FileFacts(Mapping[str, Value]):
    """What is known of a note's file; each fact is made when it is asked for."""

    def __init__(self, pages: Pages, note: Note) -> None:
        self._pages, self._note = pages, note

    def __getitem__(self, name: str) -> Value:
        return _FILE[name](self._pages, self._note)

    def __iter__(self) -> Iterator[str]:
        return iter(_FILE)

    def __len__(self) -> int:
        return len(_FILE)


# Carrying a query out, and showing what it gave.

# More rows than a model has use for.
_MOST_ROWS = 200


def evaluate(
    query: str,
    notes: Sequence[Note],
    resolve: Callable[[str], str],
    text: Callable[[str], str],
    note_path: str = "",
    now: datetime | None = None,
) -> str:
    """The answer of a query over notes; a FormatError says what was not understood."""
    pages = Pages(notes, resolve, text, now or datetime.now())
    try:
        read = DataviewReader(query, pages, note_path).query()
        rows = _rows(read, pages)
    except RecursionError as error:
        raise FormatError("the query is nested too deeply") from error
    lines = _VIEWS[read.kind](read, rows[:_MOST_ROWS])
    if not rows:
        return "(no tasks match)" if read.kind == "task" else "(no notes match)"
    return "\n".join([*lines, *([f"(and {len(rows) - _MOST_ROWS:,} more)"] if len(rows) > _MOST_ROWS else [])])


def _rows(query: DataviewQuery, pages: Pages) -> list[DataviewRow]:
    notes = [note for _, note in sorted(pages.notes.items()) if query.source is None or query.source(note)]
    rows = [DataviewRow(LinkValue(note.path), pages.page(note.path)) for note in notes]
    if query.kind == "task":
        rows = [
            DataviewRow(row.id, {**row.data, **task})
            for row, note in zip(rows, notes, strict=True)
            for task in pages.items(note)
            if task["task"]
        ]
    for step in query.steps:
        rows = step(rows)
    return rows


def _list(query: DataviewQuery, rows: Sequence[DataviewRow]) -> list[str]:
    if not query.columns:
        return [f"- {show(row.id)}" for row in rows]
    lines = []
    for row in rows:
        value = query.columns[0][1](row.data)
        lead = f"{show(row.id)}:" if query.with_id else ""
        if isinstance(value, list):
            lines += [f"- {lead}".rstrip(), *(f"    - {show(item)}" for item in value)]
        else:
            lines.append(f"- {lead}{' ' * query.with_id}{show(value)}".rstrip())
    return lines


def _table(query: DataviewQuery, rows: Sequence[DataviewRow]) -> list[str]:
    first = ["Group" if query.grouped else "File"] if query.with_id else []
    names = [*first, *(name for name, _ in query.columns)]
    lines = [_line(names), _line(["---"] * len(names))]
    for row in rows:
        cells = [show(expression(row.data)) for _, expression in query.columns]
        lines.append(_line([show(row.id), *cells] if query.with_id else cells))
    return lines


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _grouped_tasks(rows: Sequence[Data], named: bool = False) -> list[str]:
    """Tasks, or groups of them, each under its name and how many there are."""
    groups = [row for row in rows if isinstance(row.get("rows"), list)]
    if not groups:
        return [line for task in _topmost(rows) for line in _task(task, named=named)]
    lines: list[str] = []
    for group in groups:
        inner = [row for row in group["rows"] if isinstance(row, Mapping)]
        lines += [*([""] if lines else []), f"{show(group['key'])} ({_count(inner)})", ""]
        lines += _grouped_tasks(inner)
    return lines


def _count(rows: Sequence[Data]) -> int:
    groups = [row["rows"] for row in rows if isinstance(row, Mapping) and isinstance(row.get("rows"), list)]
    return sum(map(_count, groups)) if groups else len(_topmost(rows))


def _topmost(rows: Sequence[Data]) -> list[Data]:
    """Tasks without those that come with a task above them."""
    tasks = [row for row in rows if isinstance(row, Mapping) and "task" in row]
    within = {(task["path"], line) for task in tasks for line in _lines_below(task)}
    return [task for task in tasks if (task["path"], task["line"]) not in within]


def _children(task: Data) -> list[Data]:
    listed = task["children"] if isinstance(task["children"], list) else []
    return [child for child in listed if isinstance(child, Mapping) and "task" in child]


def _lines_below(task: Data) -> Iterator[int]:
    for child in _children(task):
        yield child["line"]
        yield from _lines_below(child)


def _task(task: Data, depth: int = 0, named: bool = False) -> Iterator[str]:
    box = f"[{task['status']}] " if task["task"] else ""
    where = f" ({show(LinkValue(task['path']))})" if named else ""
    yield f"{'    ' * depth}- {box}{task['text']}{where}".replace("\n", f"\n{'    ' * depth}  ")
    for child in _children(task):
        yield from _task(child, depth + 1)


_VIEWS: dict[str, Callable[[DataviewQuery, Sequence[DataviewRow]], list[str]]] = {
    "list": _list,
    "table": _table,
    "task": lambda query, rows: _grouped_tasks([row.data for row in rows], named=True),
}
