"""JSON in files, in lines and in options: one reader, so that whatever is wrong with it is an error with a place."""

from __future__ import annotations

import json

from quire.errors import FormatError
from quire.values import Json

HINT = "Check the file."


class _NoNumber(ValueError):
    """NaN and the infinities, which JSON does not have."""


def _refused(name: str) -> Json:
    raise _NoNumber(f"{name} is not a JSON number")


def value_of(text: str, name: str, line: int = 1, hint: str = HINT) -> Json:
    """The JSON value of a text that is called `name` and begins at `line`."""
    try:
        return json.loads(text, parse_constant=_refused)
    except json.JSONDecodeError as error:
        message, place = f"{name} is not JSON: {error.msg}", (line + error.lineno - 1, error.colno)
        raise FormatError(message, line=place[0], column=place[1], hint=hint) from error
    except (_NoNumber, RecursionError, ValueError) as error:
        raise FormatError(f"{name} {_unreadable(error)}", line=line, column=1, hint=hint) from error


def _unreadable(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "is nested too deeply"
    # Besides, Python refuses integers of thousands of digits.
    return f"is not JSON: {error}" if isinstance(error, _NoNumber) else "holds a number that is too long"


def value_or_lines(text: str, name: str, each: str) -> tuple[Json, list[tuple[int, Json]] | None]:
    """One JSON value; or, where the first line is a value and others follow, those of the lines, numbered."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and _is_value(lines[0][1]):
        hint = f"Write one {each} a line."
        return None, [(number, value_of(line, name, number, hint)) for number, line in lines]
    return value_of(text, name), None


def _is_value(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
