"""The tools that come with Quire: calculate, recall, and read, list and grep in one folder. No shell."""

from __future__ import annotations

import ast
import math
import operator
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, TypeAlias

import msgspec

from quire.assemble.telling import truncate
from quire.errors import CallError, MissingPart, QuireError
from quire.items.sources import Root, at_hits, head, heading_lines
from quire.items.symbols import definitions
from quire.log.store import Store
from quire.send.tools import Output, Tool, tool

# calculate: arithmetic on Python's syntax tree, with limits of size and depth; only the listed functions can be called.

Number: TypeAlias = int | float

_MAX_LENGTH = 2_000
_MAX_BITS = 8_192

_CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY: dict[type[ast.unaryop], Callable[[Number], Number]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    **{
        name: getattr(math, name)
        for name in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
                     "sinh", "cosh", "tanh", "degrees", "radians", "hypot", "gcd", "lcm", "floor", "ceil", "trunc")
    },
    "abs": abs,
    "round": round,
    "min": min,
    "max": max,
}  # fmt: skip


@tool(idempotent=True, category="arithmetic", output=("number",), example="(3 + 4) * 12 / 5", timeout_s=5.0)
def calculate(expression: str) -> str:
    """Calculate an arithmetic expression: + - * / // % **, parentheses, sqrt, log, sin, round, min, max, factorial, pi, e.

    Args:
        expression: The expression, as (3 + 4) * 12 / 5.
    """
    value = evaluate(expression)
    if isinstance(value, int):
        return str(value)
    # Without rounding errors and needless digits: 0.1 + 0.2 -> 0.3, 6.0 -> 6.
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.15g}"


def evaluate(expression: str) -> Number:
    """The value of an expression; anything but plain arithmetic is an error."""
    if len(expression) > _MAX_LENGTH:
        raise CallError(f"the expression has {len(expression):,} characters; at most {_MAX_LENGTH:,} are read")
    try:
        tree = ast.parse(expression.strip().replace("^", "**").replace("×", "*").replace("÷", "/"), mode="eval")
        return _value(tree.body)
    except SyntaxError as error:
        raise CallError(f"{expression!r} is not an expression: {error.msg}") from error
    except ZeroDivisionError as error:
        raise CallError(f"{expression!r} divides by zero") from error
    except (OverflowError, ValueError, TypeError) as error:
        raise CallError(f"{expression!r} has no value: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise CallError("the expression is nested too deeply") from error


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _check_bounds(value)
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=sign, operand=inner) if type(sign) in _UNARY:
            return _UNARY[type(sign)](_value(inner))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _check_bounds(_BINARY[type(sign)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return _call_function(name, [_value(arg) for arg in args])
    raise CallError(
        f"{ast.unparse(node)[:80]!r} is not arithmetic", hint="Numbers, + - * / // % **, and named functions."
    )


def _call_function(name: str, args: list[Number]) -> Number:
    if name == "factorial":
        if len(args) != 1 or not 0 <= args[0] <= 1000:
            raise CallError("factorial takes one whole number from 0 to 1000")
        return _check_bounds(math.factorial(int(args[0]) if float(args[0]).is_integer() else args[0]))  # type: ignore[arg-type]  # a fraction is its own error
    if name not in _FUNCTIONS:
        raise CallError(f"there is no function {name!r}", hint=f"There is {', '.join([*_FUNCTIONS, 'factorial'])}.")
    if name == "round" and len(args) == 2 and abs(args[1]) > 300:
        raise CallError(f"round takes at most 300 digits, not {args[1]}")
    return _check_bounds(_FUNCTIONS[name](*args))


def _power(base: Number, exponent: Number) -> Number:
    """A power; one that would be too large is refused before it is computed."""
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1:
        if exponent > 0 and exponent * base.bit_length() > _MAX_BITS:
            raise CallError(f"{base}**{exponent} is too large")
        if exponent < 0:
            return _check_bounds(float(base) ** exponent)
    value = base**exponent
    if isinstance(value, complex):
        raise CallError(f"{base}**{exponent} is not a real number")
    return _check_bounds(value)


def _check_bounds(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise CallError("the number is too large", hint=f"At most {_MAX_BITS} bits.")
    if isinstance(value, float) and not math.isfinite(value):
        raise CallError("the result is not a finite number")
    return value


# recall: earlier entries of the thread, found by a search or by their handle.

_LIMIT = 16_000
_Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


def recall_tool(store: Store, thread: str, limit: int = _LIMIT) -> Tool:
    """The tool `recall` as RECALL_TOOL defines it; it searches only this thread."""
    from quire.recall import MOST, RECALL_TOOL, Recall
    from quire.recall.placement import VisibleEntries, look_up

    asked = Recall(store), thread, VisibleEntries(store, thread), limit // 4

    def recall(query: str = "", handle: str = "", k: _Positive = 5, start: _Positive = 1) -> Output:
        if k > MOST:
            raise CallError(f"k is {k}; at most {MOST} are found at once")
        answer = look_up(*asked, query, handle, k, start)
        return Output(answer.text, answer.about)

    about = {name: RECALL_TOOL[name] for name in ("name", "description", "category", "output")}
    base = tool(idempotent=True, limit=limit * 2, **about)(recall)
    return msgspec.structs.replace(base, parameters=RECALL_TOOL["parameters"])


# read, list and grep, in one folder.

# A long file is cut, by preference, before a definition or section, at a blank line, at any line.

_MARKDOWN = frozenset({".md", ".markdown", ".mdx", ".rst", ".txt"})


class FileLines(msgspec.Struct, frozen=True):
    """Lines `start` to `end` of a file, counted from 1; `rest` is the column at which a cut line continues, else 0."""

    text: str
    start: int
    end: int
    rest: int = 0


def piece(text: str, name: str, start: int, end: int, limit: int, column: int = 1) -> FileLines:
    """Lines `start` to `end`, or as many as fit, preferably up to the beginning of a definition or section."""
    lines = text.removesuffix("\n").split("\n")[start - 1 : end]
    if column > 1:
        lines[0] = lines[0][column - 1 :]
    whole = "\n".join(lines)
    if len(whole) <= limit:
        return FileLines(whole, start, start + len(lines) - 1)
    count = _cut_at(lines, limit, _levels(text, name, start, lines))
    if count == 0:
        beginning = head(lines[0], limit) or lines[0][:limit]
        return FileLines(beginning, start, start, column + len(beginning))
    return FileLines("\n".join(lines[:count]).rstrip("\n"), start, start + count - 1)


def _cut_at(lines: Sequence[str], limit: int, levels: Sequence[set[int]]) -> int:
    """How many lines to keep: up to the last place of the first level that keeps at least a quarter of what fits."""
    fitting, used = 0, 0
    for line in lines:
        used += len(line) + 1
        if used > limit + 1:
            break
        fitting += 1
    for level in levels:
        places = [place for place in level if 0 < place <= fitting]
        if places and sum(len(line) + 1 for line in lines[: max(places)]) * 4 >= min(used, limit):
            return max(places)
    return fitting


def _levels(text: str, name: str, start: int, lines: Sequence[str]) -> list[set[int]]:
    """Places to cut, counted in lines from `start`: outer ones, inner ones, then blank lines."""
    suffix = PurePosixPath(name).suffix.lower()
    blank = {number + 1 for number, line in enumerate(lines) if not line.strip()}
    if suffix in _MARKDOWN:
        return [set(heading_lines(lines)), blank]
    outer, inner = _definition_lines(text, name, suffix)
    return [{at - start for at in outer}, {at - start for at in inner}, blank]


def _definition_lines(text: str, name: str, suffix: str) -> tuple[set[int], set[int]]:
    """The first lines of top-level definitions, and of all definitions; none for an unknown language."""
    try:
        symbols = definitions(text, suffix, name)
    except QuireError:
        return set(), set()
    return {symbol.start for symbol in symbols if len(symbol.path) == 1}, {symbol.start for symbol in symbols}


# Searching for a pattern, within a limit of time.

# Returns (line number from 1, text around the match) for each line that matches.
Search: TypeAlias = Callable[[Iterable[str]], Iterator[tuple[int, str]]]

_WIDTH = 240
_SECONDS = 10.0
# Limits of memory: compiling writes out the repetitions of a pattern, and matching keeps what it matched.
_MOST_REPEATED = 200_000
_LONGEST_PATTERN = 1_000
_LONGEST_LINE = 100_000
_OVERLAP = 1_000
_REPEAT = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")
_RECURSION = re.compile(r"\(\?(?:R|[+-]?\d|&|P>)")
_PLAIN = re.compile(r"[\w\s,;:'\"<>/@#%&=!~-]*\Z")


def matcher(pattern: str, ignore_case: bool = False, seconds: float = _SECONDS) -> Search:
    """A search for one pattern, which may take `seconds` over all its lines."""
    compiled = _compile(pattern, ignore_case)
    until = time.monotonic() + seconds

    def search(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(lines, 1):
            for begin, part in _parts(line):
                time_left = until - time.monotonic()
                try:
                    match = compiled(part, time_left) if time_left > 0 else None
                except TimeoutError:
                    time_left = 0
                if time_left <= 0:
                    raise CallError(
                        f"the search took longer than {seconds:g} s", hint="Use a simpler pattern or a smaller folder."
                    )
                if match is not None:
                    yield number, _around(line, begin + match.start(), begin + match.end())
                    break

    return search


def _parts(line: str) -> Iterator[tuple[int, str]]:
    """A line in one piece, a very long one in overlapping pieces, since the memory of a search grows with its text."""
    for begin in range(0, max(len(line) - _OVERLAP, 1), _LONGEST_LINE):
        yield begin, line[begin : begin + _LONGEST_LINE + _OVERLAP]


def _compile(pattern: str, ignore_case: bool) -> Callable[[str, float], Any]:
    """A matcher with a time limit. Python's `re` has none, so it only gets patterns without special characters."""
    if _PLAIN.match(pattern):
        plain = re.compile(re.escape(pattern), re.IGNORECASE if ignore_case else 0)
        return lambda line, time_left: plain.search(line)
    try:
        import regex
    except ImportError as error:
        raise MissingPart(
            "regular expressions need the regex package", hint="pip install 'quire[tools]', or search for plain words"
        ) from error
    _check_size(pattern)
    try:
        bounded = regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except regex.error as error:
        raise CallError(f"{pattern!r} is not a regular expression: {error}") from error
    return lambda line, time_left: bounded.search(line, timeout=time_left, concurrent=True)


def _check_size(pattern: str) -> None:
    """Refuse a pattern that could take much memory: by the product of its {n}, or by recursion."""
    repeated = 1
    for low, high in _REPEAT.findall(pattern):
        repeated *= max(int(low[:9] or 1), int(high[:9] or 1), 1)
    if repeated > _MOST_REPEATED or len(pattern) > _LONGEST_PATTERN or _RECURSION.search(pattern):
        raise CallError(
            f"the pattern {pattern[:60]!r} is too large to search with",
            hint=f"At most {_LONGEST_PATTERN:,} characters and {_MOST_REPEATED:,} repetitions, no (?R); use + or *.",
        )


def _around(line: str, start: int, end: int) -> str:
    """A line; of a long one, the words around the match."""
    line = line.rstrip("\r")
    if len(line) <= _WIDTH:
        return line.strip()
    begin = max(0, start - _WIDTH // 3)
    if begin:
        begin = line.find(" ", begin, start + 1) + 1 or begin
    part = truncate(line[begin:], max(_WIDTH, min(end - begin, 2 * _WIDTH)))
    return f"... {part}" if begin else part


_MAX_BYTES = 20_000_000
Line = Annotated[int, msgspec.Meta(ge=1)]


def file_tools(root: str | Path, limit: int = _LIMIT) -> list[Tool]:
    """The tools read, list and grep for the folder `root`; an output has at most about `limit` characters."""
    inside = Root(root)
    return [_read_tool(inside, limit), _list_tool(inside, limit), _grep_tool(inside, limit)]


def _read_tool(inside: Root, limit: int) -> Tool:
    @tool(name="read", idempotent=True, category="files", output=("text",), limit=limit * 2)
    def read(path: str, start: Line = 1, end: Line | None = None, column: Line = 1) -> Output:
        """Read a text file, or some lines of it. Long files come in pieces that end where a function or section does.

        Args:
            path: The file, relative to the root folder.
            start: The first line to read, counted from 1.
            end: The last line to read; the end of the file if not given.
            column: The character of the first line to begin with, to go on in a line that is too long to show.
        """
        text = _text(inside, path)
        count = text.removesuffix("\n").count("\n") + 1 if text else 0
        if start > max(count, 1) or (end is not None and end < start):
            raise CallError(f"{path} has {count} lines; {start} to {end or count} are not in it")
        if column > 1 and column > len(text.split("\n", start)[start - 1]):
            raise CallError(f"line {start} of {path} ends before character {column}")
        lines = piece(text, path, start, min(end or count, count), limit, column)
        about = f"{path}, lines {lines.start}-{lines.end} of {count}" if count else f"{path}, empty"
        return Output(_text_and_rest(lines, min(end or count, count)), about)

    return read


def _list_tool(inside: Root, limit: int) -> Tool:
    @tool(name="list", idempotent=True, category="files", output=("names",), limit=limit * 2)
    def list_(path: str = ".", depth: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1) -> Output:
        """List a folder: folders end in /, files come with their size in bytes.

        Args:
            path: The folder, relative to the root folder.
            depth: How many levels of folders to show.
        """
        about = {"folder": "/", "link": " (a link)", "other": " (no file)"}
        entries = inside.entries(path, depth)
        names = [f"{entry.path}{about.get(entry.kind) or f' ({entry.size:,} bytes)'}" for entry in entries]
        listing = at_hits(names, limit).replace(" more hits not shown", " more entries not shown")
        place = inside.relative(inside.resolve(path))
        return Output(listing, f"{place}: {len(names)} {'entry' if len(names) == 1 else 'entries'}")

    return list_


def _grep_tool(inside: Root, limit: int) -> Tool:
    @tool(name="grep", idempotent=True, category="files", output=("hits",), limit=limit * 2, timeout_s=30.0)
    def grep(
        pattern: str,
        path: str = ".",
        glob: str = "*",
        ignore_case: bool = False,
        most: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100,
    ) -> Output:
        """Find lines that match a regular expression, in all text files under a folder.

        Args:
            pattern: The regular expression; each line is searched by itself.
            path: The folder or file to search in, relative to the root folder.
            glob: Only files whose name or path matches this, as *.py.
            ignore_case: Whether upper and lower case are the same.
            most: How many hits to show at most.
        """
        search = matcher(pattern, ignore_case)
        hits: list[str] = []
        files = 0
        for name in inside.walk(path):
            if fnmatch(name.rpartition("/")[2], glob) or fnmatch(name, glob):
                lines = [f"{name}:{number}: {line}" for number, line in search(_lines_of(inside, name))]
                files += bool(lines)
                hits += lines
        outcome = f"{len(hits)} hit{'' if len(hits) == 1 else 's'} in {files} file{'' if files == 1 else 's'}"
        return Output(at_hits(hits[:most], limit, len(hits[most:])), outcome)

    return grep


def _text(root: Root, path: str) -> str:
    data = root.read_bytes(path, _MAX_BYTES)
    if b"\0" in data[:8192]:
        raise CallError(f"{path!r} is not text ({len(data):,} bytes)", hint="Read another file.")
    return data.decode(errors="replace").replace("\r\n", "\n")


def _text_and_rest(lines: FileLines, until: int) -> str:
    """The text, with a note how to read on where there is more."""
    if lines.rest:
        again = f"start={lines.end}, column={lines.rest}"
        return f"{lines.text}\n[… line {lines.end} of {until} goes on; read again with {again} …]"
    if lines.end >= until:
        return lines.text
    return f"{lines.text}\n[… lines {lines.end + 1}-{until} not shown; read again with start={lines.end + 1} …]"


def _lines_of(root: Root, name: str) -> list[str]:
    """A file's lines; none where it cannot be read or is not text, so that grep goes on with other files."""
    data = root.content(name, _MAX_BYTES) or b""
    return [] if b"\0" in data[:8192] else data.decode(errors="replace").split("\n")


def builtin(root: str | Path | None = None, store: Store | None = None, thread: str = "") -> list[Tool]:
    """The built-in tools: calculate; with a root folder, those for files; with a thread, recall (where installed)."""
    from quire.recall import installed

    recall = [recall_tool(store, thread)] if store is not None and thread and installed() else []
    return [*(file_tools(root) if root is not None else ()), calculate, *recall]
