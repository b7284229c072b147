"""What a docstring says of a function and of each parameter: Google, NumPy and reST styles."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

_SECTION = re.compile(
    r"(?:Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes)(:?)\s*$"
)
_GOOGLE = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY = re.compile(r"(\*{0,2}\w+)\s*(?::\s*.*)?$")
_REST = re.compile(r":param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")


def described(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The description before any section, and the text of each documented parameter."""
    lines = (inspect.getdoc(function) or "").split("\n")
    parameters = {**_rest(lines), **_sectioned(lines)}
    return "\n".join(_description(lines)).strip(), parameters


def _description(lines: list[str]) -> list[str]:
    for at, line in enumerate(lines):
        if _heads(lines, at) or line.startswith((":param", ":return", ":raise", ":rtype", ":type")):
            return lines[:at]
    return lines


def _heads(lines: list[str], at: int) -> bool:
    """Whether a section begins here: `Args:`, or a NumPy title with a line of dashes under it."""
    match = _SECTION.match(lines[at])
    underlined = at + 1 < len(lines) and set(lines[at + 1].strip()) == {"-"}
    return match is not None and (bool(match[1]) or underlined)


def _rest(lines: list[str]) -> dict[str, str]:
    found = [match for line in lines if (match := _REST.match(line.strip()))]
    return {match[1]: match[2].strip() for match in found}


def _sectioned(lines: list[str]) -> dict[str, str]:
    out: dict[str, list[str]] = {}
    name, inside, numpy = "", False, False
    for at, line in enumerate(lines):
        if _heads(lines, at):
            inside = line.startswith(("Arg", "Param"))
            name, numpy = "", not line.rstrip().endswith(":")
        elif inside and line.strip() and set(line.strip()) != {"-"}:
            found = _parameter(line, numpy)
            if found:
                name, text = found
                out[name] = [text] if text else []
            elif name:
                out[name].append(line.strip())
    return {key: " ".join(texts) for key, texts in out.items()}


def _parameter(line: str, numpy: bool) -> tuple[str, str] | None:
    """The parameter that a line introduces; deeper lines go on with the one before."""
    indent = len(line) - len(line.lstrip())
    if numpy:
        match = _NUMPY.match(line) if indent == 0 else None
        return (match[1].lstrip("*"), "") if match else None
    match = _GOOGLE.match(line.strip()) if 0 < indent <= 4 else None
    return (match[1].lstrip("*"), match[2].strip()) if match else None
