"""Readers that never raise: what has the wrong type becomes a finding and is left out.

The types are data (data/shapes.json); here is only how they are compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from quire.providers.facts import data
from quire.providers.rules.finding import Finding, found
from quire.values import Json, JsonObject

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list, tuple),
}


def shapes(wire: str) -> JsonObject:
    """The field types of a wire format."""
    facts: JsonObject = data("shapes")[wire]
    return facts


def fields(value: JsonObject, spec: JsonObject, path: str) -> Iterator[Finding]:
    """Compare an object's fields with their types: {"text": "string!"} wants a string to be there."""
    for name, wanted in spec.items():
        kinds, required = wanted.removesuffix("!"), wanted.endswith("!")
        if value.get(name) is None:
            if required:
                yield shape(f"{path}.{name}", "Field required", f"Add {name} ({_or(kinds)}).")
        elif not has_type(value[name], kinds):
            yield shape(
                f"{path}.{name}",
                f"Input should be {_or(kinds)}, not {_kind(value[name])}",
                f"Make it {_or(kinds)}.",
            )


def shape(path: str, problem: str, fix: str) -> Finding:
    return found("B.shape", path, problem=problem, fix=fix)


def has_type(value: Json, kinds: str) -> bool:
    """Whether a value is of one of the kinds in "string|array"; a boolean is no number."""
    for kind in kinds.split("|"):
        if isinstance(value, _TYPES[kind]) and not (isinstance(value, bool) and kind != "boolean"):
            return True
    return False


def objects(value: Json, path: str) -> Iterator[tuple[str, JsonObject]]:
    """The objects of a list, with their paths; anything else is passed over."""
    if isinstance(value, list | tuple):
        for index, one in enumerate(value):
            if isinstance(one, dict):
                yield f"{path}[{index}]", one


def strays(value: Json, path: str) -> Iterator[Finding]:
    """A finding for everything in a list that is no object."""
    if isinstance(value, list | tuple):
        for index, one in enumerate(value):
            if not isinstance(one, dict):
                yield shape(
                    f"{path}[{index}]", f"Input should be an object, not {_kind(one)}", "Make it an object."
                )


def typed(value: Json, path: str, types: JsonObject, *, closed: bool = True) -> Iterator[Finding]:
    """Compare each object of a list with the fields of its `type`; `closed` refuses types that are not listed."""
    yield from strays(value, path)
    for place, block in objects(value, path):
        kind = block.get("type")
        if not isinstance(kind, str):
            yield shape(f"{place}.type", "Field required", "Say which type of block it is.")
        elif kind in types:
            yield from fields(block, types[kind], place)
        elif closed:
            yield shape(
                f"{place}.type", f"Input tag '{kind}' is not known", f"Use one of {', '.join(types)}."
            )


def obj(value: Json) -> JsonObject:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def text(value: Json) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def _or(kinds: str) -> str:
    named = [f"{'an' if kind[0] in 'aio' else 'a'} {kind}" for kind in kinds.split("|")]
    return " or ".join(named)


def _kind(value: Json) -> str:
    for name in ("boolean", "integer", "number", "string", "object", "array"):
        if has_type(value, name):
            return f"{'an' if name[0] in 'aio' else 'a'} {name}"
    return "null" if value is None else type(value).__name__
