"""Query blocks answered: rows of notes as a list, a table or tasks, in markdown."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias, cast

import msgspec

from quire.errors import FormatError, QuireError
from quire.notes.note import Note, has_tag, is_within
from quire.values import Json

# What a query can say of a note: its file's facts, its front matter's fields, and a few functions.

_FILE: dict[str, Callable[[Note], Json]] = {
    "name": lambda note: note.title,
    "path": lambda note: note.path,
    "folder": lambda note: note.folder,
    "link": lambda note: f"[[{note.title}]]",
    "tags": lambda note: [f"#{tag}" for tag in note.tags],
    "size": lambda note: note.size,
    "mtime": lambda note: _day(note.mtime_ns),
    "ctime": lambda note: _day(note.ctime_ns),
    "outlinks": lambda note: [link.target for link in note.links],
}


def field(note: Note, name: str) -> Json:
    """file.name and its like, else a field of the front matter, by dotted path; None where there is none."""
    first, _, rest = name.partition(".")
    if first == "file" and rest in _FILE:
        return _FILE[rest](note)
    if name == "tags":
        return [f"#{tag}" for tag in note.tags]
    value: Json = note.fields
    for part in name.split("."):
        value = _member(value, part)
    return value


def _member(value: Json, name: str) -> Json:
    """A field by its name, or by its name in lower case with - for spaces."""
    if not isinstance(value, dict):
        return None
    if name in value:
        return value[name]
    return next((one for key, one in value.items() if key.lower().replace(" ", "-") == name.lower()), None)


def _day(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _contains(whole: Json, part: Json) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part.lower() in whole.lower()
    if isinstance(whole, list):
        return any(one == part or _contains(one, part) for one in whole)
    return isinstance(whole, dict) and part in whole


def _length(value: Json) -> int:
    return len(value) if isinstance(value, str | list | dict) else 0


FUNCTIONS: dict[str, tuple[Callable[..., Json], int]] = {
    "contains": (_contains, 2),
    "default": (lambda value, other: other if value is None else value, 2),
    "endswith": (lambda a, b: isinstance(a, str) and isinstance(b, str) and a.endswith(b), 2),
    "length": (_length, 1),
    "lower": (lambda value: str(value).lower(), 1),
    "startswith": (lambda a, b: isinstance(a, str) and isinstance(b, str) and a.startswith(b), 2),
    "upper": (lambda value: str(value).upper(), 1),
}


def shown(value: Json) -> str:
    """A value as a person reads it in a cell: lists with commas, nothing as a dash."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(shown(one) for one in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}: {shown(one)}" for key, one in value.items())
    return str(value)


# The words of a query block: LIST, TABLE or TASK, FROM, WHERE, SORT, LIMIT, read into one value.

Kind = Literal["list", "table", "task"]
# What an expression says of one note.
Expression: TypeAlias = Callable[[Note], Json]
Source: TypeAlias = Callable[[Note], bool]

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*")|(?P<link>\[\[[^\[\]]+\]\])|(?P<tag>\#[^\s(),!&|]+)
    |(?P<number>-?\d+(?:\.\d+)?(?![\w-]))|(?P<sign><=|>=|!=|==|[=<>(),!+&|-])|(?P<name>[\w.-]+))""",
    re.X,
)
_CLAUSES = frozenset({"from", "where", "sort", "limit", "group", "flatten"})
_MOST = 500


class DataviewQuery(msgspec.Struct, frozen=True):
    """A query block, read."""

    kind: Kind
    columns: tuple[tuple[str, Expression], ...] = ()
    with_id: bool = True
    source: Source | None = None
    where: Expression | None = None
    sort: tuple[tuple[Expression, bool], ...] = ()
    limit: int | None = None


class DataviewReader:
    """Tokens one after the other; `linked` says whether a note is linked to, or from, another."""

    def __init__(self, text: str, linked: Callable[[str, bool], set[str]]) -> None:
        self.tokens = _tokens(text)
        self.linked = linked
        self.at = 0

    def query(self) -> DataviewQuery:
        """The whole block."""
        kind = self._word()
        if kind not in ("list", "table", "task"):
            raise FormatError(f"a query begins with LIST, TABLE or TASK, not {kind!r}")
        with_id = True
        if self._takes("without"):
            self._expect("id")
            with_id = False
        parts: dict[str, object] = {"columns": self._columns(), "with_id": with_id}
        while self.at < len(self.tokens):
            parts |= self._clause()
        return DataviewQuery(cast(Kind, kind), **parts)  # type: ignore[arg-type]  # each clause gives its own field

    def _clause(self) -> dict[str, object]:
        word = self._word()
        if word == "from":
            return {"source": self._any_source()}
        if word == "where":
            return {"where": self._either()}
        if word == "sort":
            return {"sort": self._sorts()}
        if word == "limit":
            kind, text = self._next()
            if kind != "number":
                raise FormatError(f"LIMIT takes a number, not {text!r}")
            return {"limit": max(0, int(float(text)))}
        raise FormatError(f"{word.upper()} is not known here")

    # Tokens

    def _peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

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
        if self._peek()[1].lower() in texts and self._peek()[0] in ("name", "sign"):
            self.at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            raise FormatError(f"{self._peek()[1]!r} stands where {text!r} was expected")

    def _ends(self) -> bool:
        kind, text = self._peek()
        return kind == "end" or (kind == "name" and text.lower() in _CLAUSES)

    # Columns and sorting

    def _columns(self) -> tuple[tuple[str, Expression], ...]:
        found: list[tuple[str, Expression]] = []
        while not self._ends():
            begin = self.at
            expression = self._either()
            name = "".join(text for _, text in self.tokens[begin : self.at])
            if self._takes("as"):
                kind, text = self._next()
                name = _string(text) if kind == "string" else text
            found.append((name, expression))
            if not self._takes(","):
                break
        return tuple(found)

    def _sorts(self) -> tuple[tuple[Expression, bool], ...]:
        found = []
        while True:
            expression = self._either()
            down = self._takes("desc", "descending")
            if not down:
                self._takes("asc", "ascending")
            found.append((expression, down))
            if not self._takes(","):
                return tuple(found)

    # Sources

    def _any_source(self) -> Source:
        sources = [self._all_sources()]
        while self._takes("or", "|"):
            sources.append(self._all_sources())
        return lambda note: any(one(note) for one in sources)

    def _all_sources(self) -> Source:
        sources = [self._one_source()]
        while self._takes("and", "&"):
            sources.append(self._one_source())
        return lambda note: all(one(note) for one in sources)

    def _one_source(self) -> Source:
        if self._takes("-", "!"):
            inner = self._one_source()
            return lambda note: not inner(note)
        if self._takes("("):
            inner = self._any_source()
            self._expect(")")
            return inner
        kind, text = self._next()
        if kind == "tag":
            return lambda note: has_tag(note, text)
        if kind == "string":
            place = _string(text)
            return lambda note: is_within(note.path, place) or note.path in (place, f"{place}.md")
        outgoing = kind == "name" and text.lower() == "outgoing"
        if outgoing:
            self._expect("(")
            kind, text = self._next()
            self._expect(")")
        if kind == "link":
            paths = self.linked(text, outgoing)
            return lambda note: note.path in paths
        raise FormatError(f'{text!r} is no source: use #tag, "folder" or [[note]]')

    # Expressions

    def _either(self) -> Expression:
        parts = [self._both()]
        while self._takes("or", "|"):
            self._takes("|")
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else lambda note: any(one(note) for one in parts)

    def _both(self) -> Expression:
        parts = [self._compared()]
        while self._takes("and", "&"):
            self._takes("&")
            parts.append(self._compared())
        return parts[0] if len(parts) == 1 else lambda note: all(one(note) for one in parts)

    def _compared(self) -> Expression:
        left = self._value()
        sign = self._peek()[1] if self._peek()[0] == "sign" else ""
        if sign not in _COMPARE:
            return left
        self.at += 1
        right, compare = self._value(), _COMPARE[sign]
        return lambda note: compare(left(note), right(note))

    def _value(self) -> Expression:
        if self._takes("!", "not"):
            inner = self._value()
            return lambda note: not inner(note)
        if self._takes("("):
            inner = self._either()
            self._expect(")")
            return inner
        kind, text = self._next()
        if kind in ("string", "tag", "link"):
            value = _string(text) if kind == "string" else text
            return lambda note: value
        if kind == "number":
            number = float(text) if "." in text else int(text)
            return lambda note: number
        if kind != "name":
            raise FormatError(f"{text!r} stands where a value was expected")
        return self._called(text) if self._peek()[1] == "(" else _named(text)

    def _called(self, name: str) -> Expression:
        self._expect("(")
        args: list[Expression] = []
        while not self._takes(")"):
            args.append(self._either())
            self._takes(",")
        if name.lower() not in FUNCTIONS:
            raise FormatError(f"there is no function {name!r}; there is {', '.join(sorted(FUNCTIONS))}")
        function, count = FUNCTIONS[name.lower()]
        if len(args) != count:
            raise FormatError(f"{name} takes {count} values, not {len(args)}")
        return lambda note: function(*(one(note) for one in args))


def _tokens(text: str) -> list[tuple[str, str]]:
    out, at = [], 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.end() == at:
            if not text[at:].strip():
                break
            raise FormatError(f"{text[at : at + 20]!r} cannot be read")
        kind = match.lastgroup or ""
        out.append((kind, match[kind]))
        at = match.end()
        if len(out) > _MOST:
            raise FormatError(f"the query has more than {_MOST} words")
    return out


def _string(token: str) -> str:
    return re.sub(r"\\(.)", r"\1", token[1:-1])


def _named(name: str) -> Expression:
    """A field of the file or of the front matter; true, false and null are themselves."""
    constant = {"true": True, "false": False, "null": None}
    if name.lower() in constant:
        return lambda note: constant[name.lower()]
    return lambda note: field(note, name)


def _ordered(compare: Callable[[Json, Json], bool]) -> Callable[[Json, Json], bool]:
    """Values of one kind are ordered; others are not, and so no comparison holds."""

    def holds(a: Json, b: Json) -> bool:
        numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (a, b))
        return compare(a, b) if numbers or (isinstance(a, str) and isinstance(b, str)) else False

    return holds


_COMPARE: dict[str, Callable[[Json, Json], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": _ordered(operator.lt),
    "<=": _ordered(operator.le),
    ">": _ordered(operator.gt),
    ">=": _ordered(operator.ge),
}


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
    read = DataviewReader(query, lambda name, outgoing: _linked(name, outgoing, notes, resolve, own)).query()
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


def _rows(query: DataviewQuery, notes: Sequence[Note]) -> list[Note]:
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


def _list(query: DataviewQuery, rows: Sequence[Note]) -> list[str]:
    if not query.columns:
        return [f"- [[{note.title}]]" for note in rows]
    expression = query.columns[0][1]
    values = [shown(expression(note)) for note in rows]
    return [f"- [[{n.title}]]: {v}" if query.with_id else f"- {v}" for n, v in zip(rows, values, strict=True)]


def _table(query: DataviewQuery, rows: Sequence[Note]) -> list[str]:
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
