"""Where each key and value stands in a line of JSON; needed only to point at a fault.

The standard reader is quick but knows no places; this one reads a line again, strictly, and keeps them.
"""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # there, but not in the stubs
from math import isfinite

from quire.errors import FormatError
from quire.log.shapes import MAX_DEPTH, Path

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = ("true", "false", "null")
_NOT_JSON = ("NaN", "Infinity", "-Infinity")


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
        """The column of a path's value, or of its key; of the nearest object around it when it is absent."""
        found = self.keys.get(path) if key else self.values.get(path)
        return found if found is not None else self.column(path[:-1])

    def _error(self, problem: str, at: int, hint: str = "") -> FormatError:
        return FormatError(
            problem, line=self.line, column=at + 1, hint=hint or "Each line is one JSON object."
        )

    def _space(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def _value(self, at: int, path: Path) -> int:
        """Read one value, note its place, and return where it ends."""
        self.values[path] = at + 1
        start = self.text[at : at + 1]
        if start in ("{", "["):
            if len(path) >= MAX_DEPTH:
                raise self._error(f"nested deeper than {MAX_DEPTH} levels", at)
            return self._object(at + 1, path) if start == "{" else self._list(at + 1, path)
        if start == '"':
            return self._string(at)[1]
        return self._scalar(at)

    def _string(self, at: int) -> tuple[str, int]:
        try:
            text, end = scanstring(self.text, at + 1, True)
        except json.JSONDecodeError as error:
            raise self._error(error.msg.removesuffix(" at"), error.pos) from error
        return text, end

    def _scalar(self, at: int) -> int:
        for word in _WORDS:
            if self.text.startswith(word, at):
                return at + len(word)
        for word in _NOT_JSON:
            if self.text.startswith(word, at):
                raise self._error(f"{word} is not a JSON number", at, "Use null where there is no number.")
        match = _NUMBER.match(self.text, at)
        if not match:
            raise self._error(f"a JSON value is missing before {self.text[at : at + 20]!r}", at)
        self._check_number(match, at)
        return match.end()

    def _check_number(self, match: re.Match[str], at: int) -> None:
        if match[1] or match[2]:
            if not isfinite(float(match[0])):
                raise self._error(f"the number {match[0][:40]} is too large", at, "Use a string instead.")
            return
        try:
            int(match[0])
        except ValueError as error:  # Python refuses integers of more than some thousand digits
            raise self._error(
                f"an integer of {len(match[0])} digits is too long", at, "Use a string instead."
            ) from error

    def _object(self, at: int, path: Path) -> int:
        seen: set[str] = set()
        at = self._space(at)
        if self.text[at : at + 1] == "}":
            return at + 1
        while True:
            at = self._member(self._space(at), path, seen)
            at = self._space(at)
            if self.text[at : at + 1] == "}":
                return at + 1
            if self.text[at : at + 1] != ",":
                raise self._error("expected ',' or '}'", at)
            at += 1

    def _member(self, at: int, path: Path, seen: set[str]) -> int:
        if self.text[at : at + 1] != '"':
            raise self._error("expected a key in double quotes", at)
        key, end = self._string(at)
        if key in seen:
            raise self._error(f"key {key!r} stands twice in one object", at, "Keep one of the two.")
        seen.add(key)
        self.keys[*path, key] = at + 1
        end = self._space(end)
        if self.text[end : end + 1] != ":":
            raise self._error("expected ':'", end)
        return self._value(self._space(end + 1), (*path, key))

    def _list(self, at: int, path: Path) -> int:
        at = self._space(at)
        if self.text[at : at + 1] == "]":
            return at + 1
        index = 0
        while True:
            at = self._space(self._value(self._space(at), (*path, index)))
            if self.text[at : at + 1] == "]":
                return at + 1
            if self.text[at : at + 1] != ",":
                raise self._error("expected ',' or ']'", at)
            at, index = at + 1, index + 1
