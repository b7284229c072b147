"""The words of a query block: LIST, TABLE or TASK, FROM, WHERE, SORT, LIMIT, read into one value."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Literal, TypeAlias, cast

import msgspec

from quire.errors import FormatError
from quire.send.vault.functions import FUNCTIONS, field
from quire.send.vault.note import Note, has_tag, is_within
from quire.values import Json

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


class Query(msgspec.Struct, frozen=True):
    """A query block, read."""

    kind: Kind
    columns: tuple[tuple[str, Expression], ...] = ()
    with_id: bool = True
    source: Source | None = None
    where: Expression | None = None
    sort: tuple[tuple[Expression, bool], ...] = ()
    limit: int | None = None


class Reader:
    """Tokens one after the other; `linked` says whether a note is linked to, or from, another."""

    def __init__(self, text: str, linked: Callable[[str, bool], set[str]]) -> None:
        self.tokens = _tokens(text)
        self.linked = linked
        self.at = 0

    def query(self) -> Query:
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
        return Query(cast(Kind, kind), **parts)  # type: ignore[arg-type]  # each clause gives its own field

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
