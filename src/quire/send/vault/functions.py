"""What a query can say of a note: its file's facts, its front matter's fields, and a few functions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from quire.send.vault.note import Note
from quire.values import Json

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
