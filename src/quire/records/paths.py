"""Dotted paths into a JSON value: looking one up, keeping or dropping what they name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from quire.errors import DataError
from quire.values import Json


class NoValue:
    """The answer for a path that leads nowhere; null is a value, this is not."""

    def __bool__(self) -> bool:
        return False


MISSING: Final = NoValue()


def child(value: Json, name: str) -> Json:
    """One step: a key of an object, an index or `length` of a list, `length` of a string."""
    if isinstance(value, dict):
        return value.get(name, MISSING)
    if isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 10:
        return value[int(name)] if int(name) < len(value) else MISSING
    if isinstance(value, list | str) and name == "length":
        return len(value)
    return MISSING


def look_up(value: Json, names: Iterable[str]) -> Json:
    """Follow the names as far as they lead: {"a": [{"b": 1}]}, a 0 b -> 1."""
    for name in names:
        value = child(value, name)
        if value is MISSING:
            break
    return value


def as_text(value: Json) -> str:
    """A value inside a text: strings as they are, nothing for missing and null, else compact JSON."""
    if isinstance(value, str):
        return value
    if value is MISSING or value is None:
        return ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def drop(value: Json, paths: Sequence[str]) -> Json:
    """The value without what the paths name; parents stay, lists are looked through."""
    if isinstance(value, list):
        return [drop(each, paths) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: drop(item, below(paths, key)) for key, item in value.items() if key not in paths}


def keep(value: Json, paths: Sequence[str]) -> Json:
    """Only what the paths name, in the value's own order; MISSING where they name nothing of it."""
    if not paths:
        return MISSING
    if isinstance(value, list):
        kept = [one for one in (keep(each, paths) for each in value) if one is not MISSING]
        return kept if kept or not value else MISSING
    if not isinstance(value, dict):
        return MISSING
    named = {key: item if key in paths else keep(item, below(paths, key)) for key, item in value.items()}
    return {key: item for key, item in named.items() if item is not MISSING} or MISSING


def below(paths: Sequence[str], key: str) -> list[str]:
    """The paths that lead through `key`, from there on: [a.b, c], a -> [b]."""
    return [path[len(key) + 1 :] for path in paths if path.startswith(key + ".")]


# How much work one record's hints may cause, and the meter that stops them there.


class HintLimits(msgspec.Struct, frozen=True):
    """The bounds of one `apply_hints`; all its rules together share steps and output."""

    rules: int = 64
    source_chars: int = 64_000
    depth: int = 16
    data_depth: int = 100
    steps: int = 100_000
    output_chars: int = 1_000_000
    jq_seconds: int = 2
    jq_memory: int = 512 * 1024 * 1024


class Meter:
    """What is left of the limits; spending more than there is raises."""

    def __init__(self, limits: HintLimits) -> None:
        self.limits = limits
        self.steps = limits.steps
        self.chars = limits.output_chars

    def step(self, count: int = 1) -> None:
        self.steps -= count
        if self.steps < 0:
            raise DataError(f"more than {self.limits.steps:,} steps", hint="Ask for less of the context.")

    def write(self, text: str) -> str:
        """Pass a piece of output through, charged by its length."""
        self.chars -= len(text)
        if self.chars < 0:
            raise DataError(f"more than {self.limits.output_chars:,} characters of output", hint="Show less.")
        return text

    def source(self, text: Json) -> str:
        """A rule's program text: a string of bounded length."""
        if not isinstance(text, str):
            raise DataError(f"expected a string, not {type(text).__name__}")
        if len(text) > self.limits.source_chars:
            raise DataError(
                f"{len(text):,} characters long; at most {self.limits.source_chars:,} are allowed"
            )
        return text


def check_depth(value: Json, most: int) -> None:
    """Refuse data nested deeper than `most`, without recursion of our own."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > most + 1:
            raise DataError(f"nested deeper than {most} levels", hint="Flatten the value.")
        level = [child for each in level for child in _children(each)]


def _children(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []
