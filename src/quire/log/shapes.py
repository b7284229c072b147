"""Shapes of JSON values: the same shape checks a value and prints its JSON schema.

The end of the module finds the line and column of a value that does not fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import TypeAlias

import msgspec

from quire.errors import FormatError, nearest
from quire.values import NOT_UTF8_HINT, Json, JsonObject

Path: TypeAlias = tuple[str | int, ...]


# Deeper than any real argument, shallow enough for every reader's stack.
MAX_DEPTH = 256


class Fault(Exception):
    """What is wrong at which path; `key` if the key itself is at fault and not its value."""

    def __init__(self, path: Path, problem: str, *, key: bool = False, hint: str = "") -> None:
        super().__init__(problem)
        self.path, self.problem, self.key, self.hint = path, problem, key, hint


class Contradiction(Fault):
    """A value that fits its shape but contradicts another value, which no schema can express."""


class Scalar(msgspec.Struct, frozen=True):
    """A value that one predicate decides; `says` completes 'must be …'."""

    says: str
    schema: JsonObject
    fits: Callable[[Json], bool]
    # Types whose every value fits, so that a long list need not be checked member by member.
    surely: frozenset[type] = frozenset()


class ListShape(msgspec.Struct, frozen=True):
    """A list whose every member has one shape."""

    member: Shape


class Fields(msgspec.Struct, frozen=True):
    """An object with these fields and no others; `also` checks the object as a whole."""

    required: Mapping[str, Shape]
    optional: Mapping[str, Shape] = {}
    also: Callable[[JsonObject, Path], None] | None = None


Shape: TypeAlias = Scalar | ListShape | Fields


def _is_int(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def matching(says: str, pattern: str) -> Scalar:
    """A string that a pattern matches whole."""
    schema = {"type": "string", "pattern": f"^{pattern}$"}
    return Scalar(says, schema, lambda v: isinstance(v, str) and re.fullmatch(pattern, v) is not None)


STRING = Scalar("a string", {"type": "string"}, lambda v: isinstance(v, str), frozenset({str}))
INTEGER = Scalar("an integer", {"type": "integer"}, _is_int, frozenset({int}))
NATURAL = Scalar("an integer of at least 0", {"type": "integer", "minimum": 0}, lambda v: _is_int(v) and v >= 0)
COUNTED = Scalar("an integer of at least 1", {"type": "integer", "minimum": 1}, lambda v: _is_int(v) and v >= 1)
BOOLEAN = Scalar("true or false", {"type": "boolean"}, lambda v: isinstance(v, bool), frozenset({bool}))
OBJECT = Scalar("an object", {"type": "object"}, lambda v: isinstance(v, dict), frozenset({dict}))
ANYTHING = Scalar("JSON", {}, lambda v: True)
SHA256 = matching("64 hexadecimal digits (sha256)", "[0-9a-f]{64}")
ENTRY_ID = matching("sha256: and 64 hexadecimal digits", "sha256:[0-9a-f]{64}")


def one_of(names: tuple[str, ...]) -> Scalar:
    """One of a closed set of strings."""
    listed = ", ".join(names)
    return Scalar(f"one of {listed}", {"enum": list(names)}, lambda v: isinstance(v, str) and v in names)


def either(*shapes: Scalar) -> Scalar:
    """A value that fits any of these."""
    says = " or ".join(shape.says for shape in shapes)
    return Scalar(says, {"anyOf": [shape.schema for shape in shapes]}, lambda v: any(s.fits(v) for s in shapes))


NULL = Scalar("null", {"type": "null"}, lambda v: v is None)


def short(value: Json, limit: int = 60) -> str:
    """A value for an error message: cut if long, without lone surrogates."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = repr(value[:limit] if isinstance(value, str) else value)
    return text if len(text) <= limit + 2 else text[:limit] + "…"


def fit(shape: Shape, value: Json, path: Path = ()) -> None:
    """Raise a Fault for the first place, in the value's order, that does not fit the shape."""
    if isinstance(shape, Scalar):
        if not shape.fits(value):
            raise Fault(path, f"must be {shape.says}, not {short(value)}")
    elif isinstance(shape, ListShape):
        if not isinstance(value, list):
            raise Fault(path, f"must be a list, not {short(value)}")
        if isinstance(shape.member, Scalar) and shape.member.surely.issuperset(map(type, value)):
            return
        for index, member in enumerate(value):
            fit(shape.member, member, (*path, index))
    else:
        _fit_fields(shape, value, path)


def _fit_fields(shape: Fields, value: Json, path: Path) -> None:
    if not isinstance(value, dict):
        raise Fault(path, f"must be an object, not {short(value)}")
    for key, member in value.items():
        member_shape = shape.required.get(key) or shape.optional.get(key)
        if member_shape is None:
            raise Fault((*path, key), "unknown field", key=True, hint=f"Known here: {_names(shape)}.")
        fit(member_shape, member, (*path, key))
    for key in shape.required:
        if key not in value:
            raise Fault(path, f"field {key!r} is missing", hint=f"Known here: {_names(shape)}.")
    if shape.also:
        shape.also(value, path)


def _names(shape: Fields) -> str:
    return ", ".join([*shape.required, *(f"{name}?" for name in shape.optional)])


def check_json(value: Json, path: Path = ()) -> None:
    """Raise a Fault unless a value is JSON: string keys, finite numbers, no lone surrogate, not too deep."""
    if isinstance(value, dict):
        _check_depth(path)
        for key, member in value.items():
            if not isinstance(key, str):
                raise Fault(path, f"key {key!r} is not a string")
            if not key.isascii():
                _check_text(key, (*path, key), key=True)
            if not _is_plain(member):
                check_json(member, (*path, key))
    elif isinstance(value, list):
        _check_depth(path)
        if _STRINGS.issuperset(map(type, value)) and all(map(str.isascii, value)):
            return
        for index, member in enumerate(value):
            if not _is_plain(member):
                check_json(member, (*path, index))
    else:
        _check_leaf(value, path)


_STRINGS = frozenset({str})


def _is_plain(value: Json) -> bool:
    """A quick check for most values, so that their paths need not be built."""
    kind = type(value)
    return value.isascii() if kind is str else kind is int or kind is bool or value is None


def _check_leaf(value: Json, path: Path) -> None:
    if isinstance(value, str):
        _check_text(value, path)
    elif isinstance(value, float):
        if not isfinite(value):
            raise Fault(path, f"{value} is not a JSON number", hint="Use null where there is no number.")
    elif value is not None and not isinstance(value, int):
        kind = type(value).__name__
        raise Fault(path, f"{kind} is not JSON", hint="Use null, numbers, strings, lists and objects.")


def _check_depth(path: Path) -> None:
    if len(path) >= MAX_DEPTH:
        raise Fault(path, f"nested deeper than {MAX_DEPTH} levels")


def _check_text(text: str, path: Path, *, key: bool = False) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Fault(
            path,
            f"holds a lone surrogate (U+{ord(text[error.start]):04X} at character {error.start})",
            key=key,
            hint=NOT_UTF8_HINT,
        ) from error


def json_schema(shape: Shape) -> JsonObject:
    """The JSON schema of a shape, without what `also` checks."""
    if isinstance(shape, Scalar):
        return dict(shape.schema)
    if isinstance(shape, ListShape):
        return {"type": "array", "items": json_schema(shape.member)}
    fields = {**shape.required, **shape.optional}
    return {
        "type": "object",
        "properties": {name: json_schema(field) for name, field in fields.items()},
        "required": list(shape.required),
        "additionalProperties": False,
    }


# JSON from outside is checked against a shape here; a fault names the field and the one that was probably meant.


def check_shape(shape: Fields, data: Json) -> JsonObject:
    """The object itself; a FormatError if it does not fit the shape or is not JSON."""
    try:
        fit(shape, data)
        check_json(data)
    except Fault as problem:
        raise shape_error(problem, shape) from problem
    out: JsonObject = data
    return out


def shape_error(problem: Fault, shape: Shape) -> FormatError:
    """A fault as an error that says where it is, what is wrong, and what to do."""
    place = path_name(problem.path)
    hint = hint_for(problem, shape) or "Correct the field, or leave it out where it is optional."
    return FormatError(f"{place}: {problem.problem}" if place else problem.problem, hint=hint)


def hint_for(problem: Fault, shape: Shape) -> str:
    """A fault's own hint; for an unknown field also the most similar known one."""
    if problem.key and problem.problem == "unknown field":
        near = nearest(str(problem.path[-1]), _field_names(shape, problem.path[:-1]))
        return f"Did you mean {near!r}? {problem.hint}" if near else problem.hint
    return problem.hint


def _field_names(shape: Shape, path: Path) -> list[str]:
    for step in path:
        if isinstance(shape, Fields):
            shape = shape.required.get(str(step)) or shape.optional[str(step)]
        elif isinstance(shape, ListShape):
            shape = shape.member
    return [*shape.required, *shape.optional] if isinstance(shape, Fields) else []


def path_name(path: Path) -> str:
    """('items', 0, 'type') -> 'items[0].type', safe to print whatever the keys hold."""
    out = ""
    for step in path:
        out += f"[{step}]" if isinstance(step, int) else f".{step}" if step.isidentifier() else f"[{step!r}]"
    return out.removeprefix(".")


# The column of each key and value in a line of JSON, to point at a fault. The standard reader is quick but does not give
# them, so a line with a fault is read again here.

_SPACE = re.compile(r"[ \t\n\r]*")


def not_json(word: str) -> Json:
    raise Fault((), f"{word} is not a JSON number", hint="Use null where there is no number.")


def finite(number: str) -> float:
    if not isfinite(value := float(number)):
        raise Fault((), f"the number {number[:40]} is too large", hint="Use a string instead.")
    return value


def _integer(number: str) -> int:
    try:
        return int(number)
    except ValueError as error:  # Python refuses integers of more than a few thousand digits
        raise Fault((), f"an integer of {len(number)} digits is too long", hint="Use a string instead.") from error


_decoder = json.JSONDecoder(parse_constant=not_json, parse_float=finite, parse_int=_integer)
_scan: Callable[[str, int], tuple[Json, int]] = _decoder.scan_once  # type: ignore[attr-defined]  # not in the stubs


class Positions:
    """The columns (from 1) of all keys and values of one line of JSON, by path."""

    def __init__(self, text: str, line: int) -> None:
        self.text, self.line = text, line
        self.keys: dict[Path, int] = {}
        self.values: dict[Path, int] = {}
        end = self._space(self._value(self._space(0), ()))
        if end != len(text):
            raise self._error("more text behind the JSON value", end)

    def column(self, path: Path, *, key: bool = False) -> int:
        """The column of a path's value, or of its key; if absent, that of the nearest object around it."""
        column = self.keys.get(path) if key else self.values.get(path)
        return column if column is not None else self.column(path[:-1])

    def _error(self, problem: str, at: int, hint: str = "") -> FormatError:
        return FormatError(problem, line=self.line, column=at + 1, hint=hint or "Each line is one JSON object.")

    def _space(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def _value(self, at: int, path: Path) -> int:
        """Read one value, note its column, and return where it ends."""
        self.values[path] = at + 1
        start = self.text[at : at + 1]
        if start in ("{", "["):
            if len(path) >= MAX_DEPTH:
                raise self._error(f"nested deeper than {MAX_DEPTH} levels", at)
            if start == "[":
                return self._inside(at + 1, "]", lambda place, index: self._value(place, (*path, index)))
            keys: set[str] = set()
            return self._inside(at + 1, "}", lambda place, _: self._member(place, path, keys))
        return self._leaf(at)[1]

    def _leaf(self, at: int) -> tuple[Json, int]:
        """A string, a number, true, false or null, and where it ends."""
        try:
            return _scan(self.text, at)
        except StopIteration as error:
            raise self._error(f"a JSON value is missing before {self.text[at : at + 20]!r}", at) from error
        except json.JSONDecodeError as error:
            raise self._error(error.msg.removesuffix(" at"), error.pos) from error
        except Fault as fault:
            raise self._error(fault.problem, at, fault.hint) from fault

    def _inside(self, at: int, end: str, member: Callable[[int, int], int]) -> int:
        """Read the members of an object or a list up to its end; `member` reads one, by its place and number."""
        at, number = self._space(at), 0
        while self.text[at : at + 1] != end or number:
            at = self._space(member(self._space(at), number))
            if self.text[at : at + 1] == end:
                break
            if self.text[at : at + 1] != ",":
                raise self._error(f"expected ',' or '{end}'", at)
            at, number = at + 1, number + 1
        return at + 1

    def _member(self, at: int, path: Path, keys: set[str]) -> int:
        if self.text[at : at + 1] != '"':
            raise self._error("expected a key in double quotes", at)
        key, end = self._leaf(at)
        if key in keys:
            raise self._error(f"key {key!r} stands twice in one object", at, "Keep one of the two.")
        keys.add(key)
        self.keys[*path, key] = at + 1
        end = self._space(end)
        if self.text[end : end + 1] != ":":
            raise self._error("expected ':'", end)
        return self._value(self._space(end + 1), (*path, key))
