"""Lines that match a pattern, within a time that no pattern can exceed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from quire.assemble.cuts import truncate
from quire.errors import CallError, MissingPart

# Line numbers, counted from 1, and the text around the match.
Search: TypeAlias = Callable[[Iterable[str]], Iterator[tuple[int, str]]]

_WIDTH = 240
_SECONDS = 10.0
_PLAIN = re.compile(r"[\w\s,;:'\"<>/@#%&=!~-]*\Z")


def matcher(pattern: str, ignore_case: bool = False, seconds: float = _SECONDS) -> Search:
    """A search for one pattern; all its matching together may take `seconds`."""
    compiled = _compiled(pattern, ignore_case)
    until = time.monotonic() + seconds

    def search(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
        for number, line in enumerate(lines, 1):
            left = until - time.monotonic()
            try:
                found = compiled(line, left) if left > 0 else None
            except TimeoutError:
                left = 0
            if left <= 0:
                raise CallError(
                    f"the search took longer than {seconds:g} s",
                    hint="Use a simpler pattern or a smaller folder.",
                )
            if found is not None:
                yield number, _around(line, found.start(), found.end())

    return search


def _compiled(pattern: str, ignore_case: bool) -> Callable[[str, float], Any]:
    """Python's own matcher cannot be stopped, so it is given only patterns that cannot run away."""
    if _PLAIN.match(pattern):
        plain = re.compile(re.escape(pattern), re.IGNORECASE if ignore_case else 0)
        return lambda line, left: plain.search(line)
    try:
        import regex
    except ImportError as error:
        raise MissingPart(
            "regular expressions need the regex package",
            hint="pip install 'quire[tools]', or search for plain words",
        ) from error
    try:
        bounded = regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except regex.error as error:
        raise CallError(f"{pattern!r} is not a regular expression: {error}") from error
    return lambda line, left: bounded.search(line, timeout=left, concurrent=True)


def _around(line: str, start: int, end: int) -> str:
    """A line, or the words around the match where it is long."""
    line = line.rstrip("\r")
    if len(line) <= _WIDTH:
        return line.strip()
    begin = max(0, start - _WIDTH // 3)
    if begin:
        begin = line.find(" ", begin, start + 1) + 1 or begin
    part = truncate(line[begin:], max(_WIDTH, min(end - begin, 2 * _WIDTH)))
    return f"... {part}" if begin else part
