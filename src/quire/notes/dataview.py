"""Answers query blocks as Dataview does: a list, a table or tasks, in markdown.

A query is parsed into steps, which run in the order they are written.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from quire.errors import FormatError
from quire.notes.dataview_values import (
    FUNCTIONS,
    ISO,
    MOST,
    SPANS,
    Link,
    Value,
    combine,
    member,
    midnight,
    order,
    read_date,
    read_duration,
    show,
    truthy,
)
from quire.notes.note import Note, Pages, has_tag, is_within

Data: TypeAlias = Mapping[str, Value]
# Computes a value from the fields of one row.
Expression: TypeAlias = Callable[[Data], Value]
Source: TypeAlias = Callable[[Note], bool]


class DataviewRow(msgspec.Struct, frozen=True):
    """A row between the steps: its id (a link to its note, or the key of a group) and its fields."""

    id: Value
    data: Data


Step: TypeAlias = Callable[[list[DataviewRow]], list[DataviewRow]]

_NAME = r"(?:[^\W\d_]|[^\x00-\x7f])(?:[\w-]|[^\x00-\x7f])*"
_TOKEN = re.compile(
    rf"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<link>!?\[\[[^\[\]]*\]\])|(?P<tag>\#[^\s(),!&|]+)
    |date\(\s*(?P<date>{ISO}|now|today|yesterday|tomorrow|[se]o[wmy]|(?:start|end)-of-(?:week|month|year))\s*\)
    |dur\(\s*(?P<dur>{SPANS})\s*\)|(?P<number>\d+(?:\.\d+)?)
    |(?P<sign><=|>=|!=|=>|==|\|\||&&|[=<>(),!+&|*/%.:\[\]{{}}-])|(?P<name>{_NAME}))""",
    re.X,
)
_CLAUSES = frozenset({"from", "where", "sort", "limit", "group", "flatten"})
_MOST_WORDS = 500
_SIGNS_IN_ORDER = (("&", "|"), ("=", "!=", "<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%"))
_SAME_SIGN = {"and": "&", "&&": "&", "or": "|", "||": "|", "==": "="}


class DataviewQuery(msgspec.Struct, frozen=True):
    """A parsed query block."""

    kind: str
    columns: tuple[tuple[str, Expression], ...]
    with_id: bool
    source: Source | None
    steps: tuple[Step, ...]
    grouped: bool


class DataviewReader:
    """Parses the text of a query over these pages."""

    def __init__(self, text: str, pages: Pages, note_path: str = "") -> None:
        self.text, self.pages, self.note_path = text, pages, note_path
        self.tokens = _tokens(text)
        self.at = 0

    def query(self) -> DataviewQuery:
        """Parse the whole block."""
        kind = self._word()
        if kind == "calendar":
            raise FormatError("CALENDAR is not supported: it draws dots on a calendar; LIST or TABLE say as much")
        if kind not in ("list", "table", "task"):
            raise FormatError(f"a query begins with LIST, TABLE or TASK, not {kind!r}")
        if without_id := self._takes("without"):
            self._expect("id")
        columns = self._columns()
        source = self._source() if self._takes("from") else None
        steps, grouped = [], False
        while self.at < len(self.tokens):
            word = self._word()
            if word not in _STEPS:
                raise FormatError(f"{word.upper()} is not known here; there is {', '.join(_STEPS).upper()}")
            steps.append(_STEPS[word](self))
            grouped = grouped or word == "group"
        return DataviewQuery(kind, columns, not without_id, source, tuple(steps), grouped)

    # Tokens

    def _peek(self) -> tuple[str, str]:
        return self.tokens[self.at][:2] if self.at < len(self.tokens) else ("end", "")

    def _next(self) -> tuple[str, str]:
        token = self._peek()
        if token[0] == "end":
            raise FormatError("the query ends too early")
        self.at += 1
        return token

    def _word(self) -> str:
        kind, text = self._next()
        if kind != "name":
            raise FormatError(f"{text!r} stands where a word was expected")
        return text.lower()

    def _takes(self, *texts: str) -> bool:
        kind, text = self._peek()
        if kind in ("name", "sign") and text.lower() in texts:
            self.at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise FormatError(f"{self._peek()[1]!r} stands where {text!r} was expected")

    def _list(self, end: str, read: Callable[[], Any]) -> list[Any]:
        """The values between commas, up to the closing sign."""
        values = []
        while not self._takes(end):
            values.append(read())
            if not self._takes(","):
                self._expect(end)
                break
        return values

    # Columns and steps

    def _columns(self) -> tuple[tuple[str, Expression], ...]:
        columns: list[tuple[str, Expression]] = []
        kind, text = self._peek()
        while kind != "end" and not (kind == "name" and text.lower() in _CLAUSES):
            columns.append(self._named_expression())
            if not self._takes(","):
                break
            kind, text = self._peek()
        return tuple(columns)

    def _named_expression(self) -> tuple[str, Expression]:
        """An expression and its name: the one after AS, else the expression's own text."""
        begin = self.at
        expression = self.expression()
        name = self.text[self.tokens[begin][2] : self.tokens[self.at - 1][3]].strip()
        if self._takes("as"):
            kind, text = self._next()
            name = _string(text) if kind == "string" else text
        return name, expression

    def _where(self) -> Step:
        test = self.expression()
        return lambda rows: [row for row in rows if truthy(test(row.data))]

    def _sort(self) -> Step:
        keys: list[tuple[Expression, bool]] = []
        while not keys or self._takes(","):
            key = self.expression()
            descending = self._takes("desc", "descending")
            if not descending:
                self._takes("asc", "ascending")
            keys.append((key, descending))

        def sort(rows: list[DataviewRow]) -> list[DataviewRow]:
            for key, descending in reversed(keys):
                rows = sorted(rows, key=lambda row: order(key(row.data)), reverse=descending)
            return rows

        return sort

    def _limit(self) -> Step:
        kind, text = self._next()
        if kind != "number":
            raise FormatError(f"LIMIT takes a number, not {text!r}")
        most = int(float(text))
        return lambda rows: rows[:most]

    def _group(self) -> Step:
        self._expect("by")
        name, by = self._named_expression()

        def group(rows: list[DataviewRow]) -> list[DataviewRow]:
            keyed = sorted(((by(row.data), row.data) for row in rows), key=lambda pair: order(pair[0]))
            groups: list[tuple[Value, list[Value]]] = []
            for key, data in keyed:
                if not groups or order(groups[-1][0]) != order(key):
                    groups.append((key, []))
                groups[-1][1].append(data)
            return [DataviewRow(key, {"key": key, name: key, "rows": members}) for key, members in groups]

        return group

    def _flatten(self) -> Step:
        name, of = self._named_expression()

        def flatten(rows: list[DataviewRow]) -> list[DataviewRow]:
            flattened = []
            for row in rows:
                value = of(row.data)
                for item in value if isinstance(value, list) else [value]:
                    flattened.append(DataviewRow(row.id, {**row.data, name: item}))
                if len(flattened) > MOST:
                    raise FormatError(f"FLATTEN makes more than {MOST:,} rows")
            return flattened

        return flatten

    # Sources: "and" and "or" from left to right, as in expressions

    def _source(self) -> Source:
        source = self._simple_source()
        while sign := self._sign(("&", "|")):
            source = _either(sign, source, self._simple_source())
        return source

    def _simple_source(self) -> Source:
        if self._takes("-", "!"):
            inner = self._simple_source()
            return lambda note: not inner(note)
        if self._takes("("):
            inner = self._source()
            self._expect(")")
            return inner
        kind, text = self._next()
        if kind == "tag":
            return lambda note: has_tag(note, text)
        if kind == "string":
            place = _string(text)
            return lambda note: is_within(note.path, place) or note.path in (place, f"{place}.md")
        if kind == "link":
            target = self.pages.link(text, self.note_path).target
            return lambda note: any(link.target == target for link in self.pages.outgoing(note))
        if kind == "name" and text.lower() == "outgoing":
            self._expect("(")
            _, text = self._next()
            self._expect(")")
            origin = self.pages.notes.get(self.pages.link(text, self.note_path).target)
            paths = {link.target for link in self.pages.outgoing(origin)} if origin else set()
            return lambda note: note.path in paths
        raise FormatError(f'{text!r} is no source: use #tag, "folder", [[note]] or outgoing([[note]])')

    # Expressions

    def expression(self, level: int = 0) -> Expression:
        """Parse the operators of a level, from left to right; those of the next level bind more strongly."""
        if level == len(_SIGNS_IN_ORDER):
            return self._postfix()
        left = self.expression(level + 1)
        while sign := self._sign(_SIGNS_IN_ORDER[level]):
            left = _combine(sign, left, self.expression(level + 1))
        return left

    def _sign(self, signs: tuple[str, ...]) -> str:
        kind, text = self._peek()
        sign = _SAME_SIGN.get(text.lower(), text)
        if kind not in ("sign", "name") or sign not in signs:
            return ""
        self.at += 1
        return sign

    def _postfix(self) -> Expression:
        """A value with the members behind it: .name, [index]."""
        expression = self._value()
        while True:
            if self._takes("."):
                expression = self._member(expression, _constant(self._next()[1]))
            elif self._takes("["):
                expression = self._member(expression, self.expression())
                self._expect("]")
            else:
                return expression

    def _member(self, of: Expression, name: Expression) -> Expression:
        return lambda data: member(of(data), name(data), self.pages.linked_page)

    def _value(self) -> Expression:
        if self._takes("!"):
            inner = self._postfix()
            return lambda data: not truthy(inner(data))
        if self._takes("-"):
            return _combine("-", _constant(0), self._postfix())
        if self._takes("["):
            parts = self._list("]", self.expression)
            return lambda data: [part(data) for part in parts]
        if self._takes("{"):
            pairs = self._list("}", self._pair)
            return lambda data: {name: pair(data) for name, pair in pairs}
        if self._peek() != ("sign", "("):
            return self._literal(*self._next())
        if (function := self._lambda()) is not None:
            return function
        self._expect("(")
        inside = self.expression()
        self._expect(")")
        return inside

    def _pair(self) -> tuple[str, Expression]:
        kind, text = self._next()
        self._expect(":")
        return _string(text) if kind == "string" else text, self.expression()

    def _lambda(self) -> Expression | None:
        """Parse (a, b) => …; None where the bracket begins something else."""
        close = self.at + 1
        while close < len(self.tokens) and (self.tokens[close][0] == "name" or self.tokens[close][1] == ","):
            close += 1
        if [token[1] for token in self.tokens[close : close + 2]] != [")", "=>"]:
            return None
        names = [token[1] for token in self.tokens[self.at + 1 : close] if token[0] == "name"]
        self.at = close + 2
        body = self.expression()
        return lambda data: lambda *values: body({**data, **dict(zip(names, values, strict=False))})

    def _literal(self, kind: str, text: str) -> Expression:
        if kind in ("string", "tag"):
            return _constant(_string(text) if kind == "string" else text)
        if kind == "link":
            return _constant(self.pages.link(text, self.note_path))
        if kind == "number":
            return _constant(float(text) if "." in text else int(text))
        if kind == "date":
            return _constant(_named_day(text, self.pages.now) or read_date(text))
        if kind == "dur":
            return _constant(read_duration(text))
        if kind != "name":
            raise FormatError(f"{text!r} stands where a value was expected")
        if self._peek()[1] == "(":
            return self._call(text)
        if text.lower() in _CONSTANTS:
            return _constant(_CONSTANTS[text.lower()])
        if text == "this":
            return _constant(self.pages.page(self.note_path) if self.note_path in self.pages.notes else None)
        return (lambda data: data) if text == "row" else lambda data: data.get(text, data.get(text.lower()))

    def _call(self, name: str) -> Expression:
        self._expect("(")
        args = self._list(")", self.expression)
        functions = {**FUNCTIONS, "link": self._link}
        function = functions.get(name.lower())
        if function is None:
            raise FormatError(f"the function {name}() is not supported; there is {', '.join(sorted(functions))}")
        try:
            inspect.signature(function).bind(*args)
        except TypeError as error:
            raise FormatError(f"{name}() does not take {len(args)} values") from error

        def call(data: Data) -> Value:
            try:
                return function(*(arg(data) for arg in args))
            except (TypeError, ValueError, AttributeError, LookupError, OverflowError, TimeoutError):
                return None  # as in Dataview, a value of the wrong type gives null

        return call

    def _link(self, to: Value, display: str = "") -> Link:
        link = to if isinstance(to, Link) else self.pages.link(f"[[{to}]]", self.note_path)
        return msgspec.structs.replace(link, alias=display or link.alias)


_STEPS: dict[str, Callable[[DataviewReader], Step]] = {
    "where": DataviewReader._where,
    "sort": DataviewReader._sort,
    "group": DataviewReader._group,
    "flatten": DataviewReader._flatten,
    "limit": DataviewReader._limit,
}
_CONSTANTS = {"true": True, "false": False, "null": None}


def _tokens(text: str) -> list[tuple[str, str, int, int]]:
    """(kind, text, begin, end) of each word."""
    out: list[tuple[str, str, int, int]] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise FormatError(f"{text[at:].strip()[:20]!r} cannot be read")
        out.append((match.lastgroup, match[match.lastgroup], match.start(), match.end()))
        at = match.end()
        if len(out) > _MOST_WORDS:
            raise FormatError(f"the query has more than {_MOST_WORDS} words")
    return out


def _string(token: str) -> str:
    return re.sub(r'\\(["\\])', r"\1", token[1:-1])


def _constant(value: Value) -> Expression:
    return lambda data: value


def _combine(sign: str, left: Expression, right: Expression) -> Expression:
    return lambda data: combine(sign, left(data), right(data))


def _either(sign: str, left: Source, right: Source) -> Source:
    if sign == "&":
        return lambda note: left(note) and right(note)
    return lambda note: left(note) or right(note)


def _named_day(word: str, now: datetime) -> datetime | None:
    """today, eom, start-of-week and their like; None where it is none of them."""
    today = midnight(now)
    monday = today - timedelta(today.weekday())
    month, year = today.replace(day=1), today.replace(month=1, day=1)
    begin = {"w": monday, "m": month, "y": year}
    after = {"w": monday + timedelta(7), "m": (month + timedelta(32)).replace(day=1)}
    after["y"] = year.replace(year=year.year + 1)
    if match := re.fullmatch(r"(?:(s)o|(e)o|(start)-of-|(end)-of-)([wmy])(?:eek|onth|ear)?", word):
        return begin[match[5]] if match[1] or match[3] else after[match[5]] - timedelta(milliseconds=1)
    days = {"now": now, "today": today, "yesterday": today - timedelta(1), "tomorrow": today + timedelta(1)}
    return days.get(word)


# Running a query and showing its result.

# More rows are of no use to a model.
_MOST_ROWS = 200


def evaluate(
    query: str,
    notes: Sequence[Note],
    resolve: Callable[[str], str],
    text: Callable[[str], str],
    note_path: str = "",
    now: datetime | None = None,
) -> str:
    """The answer of a query over notes, as markdown; a query that cannot be parsed is a FormatError."""
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
    rows = [DataviewRow(Link(note.path), pages.page(note.path)) for note in notes]
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
    """The lines of tasks, or of groups of tasks, each group under its name and number of tasks."""
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
    """Tasks without those that are below another of them."""
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
    where = f" ({show(Link(task['path']))})" if named else ""
    yield f"{'    ' * depth}- {box}{task['text']}{where}".replace("\n", f"\n{'    ' * depth}  ")
    for child in _children(task):
        yield from _task(child, depth + 1)


_VIEWS: dict[str, Callable[[DataviewQuery, Sequence[DataviewRow]], list[str]]] = {
    "list": _list,
    "table": _table,
    "task": lambda query, rows: _grouped_tasks([row.data for row in rows], named=True),
}
