"""Readers that never raise: what has the wrong type is passed over here, and found by the grammar."""

from __future__ import annotations

from collections.abc import Iterator

from quire.values import Json, JsonObject


def objects(value: Json, path: str) -> Iterator[tuple[str, JsonObject]]:
    """The objects of a list, with their paths; anything else is passed over."""
    if isinstance(value, list | tuple):
        for index, one in enumerate(value):
            if isinstance(one, dict):
                yield f"{path}[{index}]", one


def obj(value: Json) -> JsonObject:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: Json) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""
