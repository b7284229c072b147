"""Arguments against a JSON schema: the keywords that tools use, each fault with its place.

Keywords that are not known here are passed over: a tool still checks what it is given.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator

from quire.values import Json, JsonObject

# References that only lead to references end somewhere.
_MAX_DEPTH = 64

_TYPES: dict[str, Callable[[Json], bool]] = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "integer": lambda v: (
        (isinstance(v, int) and not isinstance(v, bool))
        or (isinstance(v, float) and math.isfinite(v) and v.is_integer())
    ),
}


def faults(value: Json, schema: Json) -> list[str]:
    """What is wrong with a value, each with its place: ["$.limit: must be integer, not 'ten'"]."""
    root = schema if isinstance(schema, dict) else {}
    return list(_faults(value, schema, root, "$", 0))


def _faults(value: Json, schema: Json, root: JsonObject, at: str, depth: int) -> Iterator[str]:
    if schema is False:
        yield f"{at}: nothing may stand here"
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return
    if "$ref" in schema:
        yield from _faults(value, _referred(schema["$ref"], root), root, at, depth + 1)
    kinds = schema.get("type")
    wanted = [kinds] if isinstance(kinds, str) else kinds or []
    if wanted and not any(_TYPES.get(kind, lambda _: True)(value) for kind in wanted):
        yield f"{at}: must be {' or '.join(wanted)}, not {_short(value)}"
        return
    yield from _choices(value, schema, root, at, depth)
    if isinstance(value, dict):
        yield from _members(value, schema, root, at, depth)
    elif isinstance(value, list):
        yield from _elements(value, schema, root, at, depth)
    elif isinstance(value, str):
        yield from _text(value, schema, at)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(value, schema, at)


def _referred(reference: Json, root: JsonObject) -> Json:
    found: Json = root
    for part in str(reference).removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name, {}) if isinstance(found, dict) else {}
    return found


def _choices(value: Json, schema: JsonObject, root: JsonObject, at: str, depth: int) -> Iterator[str]:
    if "enum" in schema and not any(_same(value, one) for one in schema["enum"]):
        yield f"{at}: must be one of {', '.join(map(_short, schema['enum']))}, not {_short(value)}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{at}: must be {_short(schema['const'])}, not {_short(value)}"
    for part in schema.get("allOf") or ():
        yield from _faults(value, part, root, at, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        tried = [list(_faults(value, part, root, at, depth + 1)) for part in schema.get(keyword) or ()]
        fitting = sum(not found for found in tried)
        if tried and not fitting:
            yield min(tried, key=len)[0] if len(tried) == 1 else f"{at}: fits none of {len(tried)} forms"
        elif keyword == "oneOf" and fitting > 1:
            yield f"{at}: fits {fitting} forms, where one is wanted"


def _members(value: JsonObject, schema: JsonObject, root: JsonObject, at: str, depth: int) -> Iterator[str]:
    known: JsonObject = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if name not in value:
            yield f"{at}: {name!r} is missing"
    for name, member in value.items():
        if name in known:
            yield from _faults(member, known[name], root, f"{at}.{name}", depth + 1)
        elif schema.get("additionalProperties") is False:
            yield f"{at}: {name!r} is not known; there is {', '.join(known) or 'nothing'}"
        else:
            yield from _faults(
                member, schema.get("additionalProperties", True), root, f"{at}.{name}", depth + 1
            )


def _elements(value: list[Json], schema: JsonObject, root: JsonObject, at: str, depth: int) -> Iterator[str]:
    first = schema.get("prefixItems") or ()
    for index, element in enumerate(value):
        own = first[index] if index < len(first) else schema.get("items", True)
        yield from _faults(element, own, root, f"{at}[{index}]", depth + 1)
    yield from _bounds(len(value), schema, at, "minItems", "maxItems", "elements")


def _text(value: str, schema: JsonObject, at: str) -> Iterator[str]:
    yield from _bounds(len(value), schema, at, "minLength", "maxLength", "characters")
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        try:
            if not re.search(pattern, value):
                yield f"{at}: {_short(value)} does not match {pattern}"
        except re.error:
            return  # another dialect's pattern; the tool itself will check


def _number(value: float, schema: JsonObject, at: str) -> Iterator[str]:
    tests: list[tuple[str, str, Callable[[float, float], bool]]] = [
        ("minimum", "at least", lambda v, b: v >= b),
        ("maximum", "at most", lambda v, b: v <= b),
        ("exclusiveMinimum", "more than", lambda v, b: v > b),
        ("exclusiveMaximum", "less than", lambda v, b: v < b),
    ]
    for keyword, says, holds in tests:
        bound = schema.get(keyword)
        if isinstance(bound, int | float) and not isinstance(bound, bool) and not holds(value, bound):
            yield f"{at}: must be {says} {bound}, not {value}"


def _bounds(size: int, schema: JsonObject, at: str, low: str, high: str, noun: str) -> Iterator[str]:
    if isinstance(schema.get(low), int) and size < schema[low]:
        yield f"{at}: must have at least {schema[low]} {noun}, not {size}"
    if isinstance(schema.get(high), int) and size > schema[high]:
        yield f"{at}: must have at most {schema[high]} {noun}, not {size}"


def _same(a: Json, b: Json) -> bool:
    """Equal as JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool(a == b)


def _short(value: Json) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
