"""A function's signature as the JSON schema that models are given, and the type that checks their arguments."""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from quire.errors import CallError
from quire.values import Entry, Json, JsonObject

# What a docstring says of a function and of each parameter: Google, NumPy and reST styles.

_SECTION = re.compile(r"(?:Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes)(:?)\s*$")
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
    matches = [match for line in lines if (match := _REST.match(line.strip()))]
    return {match[1]: match[2].strip() for match in matches}


def _sectioned(lines: list[str]) -> dict[str, str]:
    out: dict[str, list[str]] = {}
    name, inside, numpy = "", False, False
    for at, line in enumerate(lines):
        if _heads(lines, at):
            inside = line.startswith(("Arg", "Param"))
            name, numpy = "", not line.rstrip().endswith(":")
        elif inside and line.strip() and set(line.strip()) != {"-"}:
            parameter = _parameter(line, numpy)
            if parameter:
                name, text = parameter
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


class Signature(msgspec.Struct, frozen=True):
    """What is known of a function: its text, its parameters, and the struct that arguments convert to."""

    description: str
    parameters: JsonObject
    arguments: Any
    names: tuple[str, ...]
    # The parameter that receives the call's own entry, empty where there is none.
    call: str = ""


def signature(function: Callable[..., Any]) -> Signature:
    """Read a function; a parameter annotated `Entry` gets the call's entry and is not shown to the model."""
    name = getattr(function, "__name__", "tool")
    description, texts = described(function)
    hints = _hints(function, name)
    fields: list[Any] = []
    call = ""
    for parameter in inspect.signature(function).parameters.values():
        if hints.get(parameter.name) is Entry:
            call = parameter.name
            continue
        fields.append(_field(parameter, hints, texts, name))
    arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
    names = tuple(field[0] for field in fields)
    return Signature(description, _schema(arguments, name), arguments, names, call)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise CallError(
            f"the types of tool {name!r} cannot be read: {error}", hint="Define the tool where its types can be seen."
        ) from error


def _field(parameter: inspect.Parameter, hints: dict[str, Any], texts: dict[str, str], name: str) -> tuple[Any, ...]:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise CallError(
            f"tool {name!r} takes {parameter}, which no schema can describe",
            hint="Use named parameters, each with a type.",
        )
    if parameter.name not in hints:
        raise CallError(
            f"parameter {parameter.name!r} of tool {name!r} has no type",
            hint="Annotate it: models are told types, and arguments are checked against them.",
        )
    kind = hints[parameter.name]
    if text := texts.get(parameter.name):
        kind = typing.Annotated[kind, msgspec.Meta(description=text)]
    value = parameter.default
    if value is parameter.empty:
        return (parameter.name, kind)
    # A default that can be changed is made anew for each call.
    changeable = isinstance(value, list | dict | set)
    return (parameter.name, kind, msgspec.field(default_factory=lambda: type(value)(value)) if changeable else value)


def _schema(arguments: Any, name: str) -> JsonObject:
    try:
        whole = msgspec.json.schema(arguments)
    except (TypeError, NotImplementedError) as error:
        raise CallError(
            f"tool {name!r} has a type that JSON cannot carry: {error}",
            hint="Use str, int, float, bool, lists, dictionaries, Literal, Enum, TypedDict or dataclasses.",
        ) from error
    defs: JsonObject = whole.pop("$defs", {})
    out = _inlined(whole, defs, ())
    recursive = {key: _inlined(defs[key], defs, (key,)) for key in sorted(_still_named(out))}
    plain: JsonObject = {"type": "object", "properties": out["properties"], "required": out["required"]}
    plain["additionalProperties"] = False
    return {**plain, "$defs": recursive} if recursive else plain


def _inlined(schema: Json, defs: JsonObject, inside: tuple[str, ...]) -> Json:
    """Definitions where they are used: only a type that holds itself keeps its reference."""
    if isinstance(schema, list):
        return [_inlined(part, defs, inside) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        key = schema["$ref"].removeprefix("#/$defs/")
        if key in inside:
            return schema
        beside = {name: value for name, value in schema.items() if name != "$ref"}
        return {**_inlined(defs[key], defs, (*inside, key)), **beside}
    return {
        key: {name: _inlined(item, defs, inside) for name, item in value.items()}
        if key == "properties"
        else _inlined(value, defs, inside)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }


def _still_named(schema: Json) -> set[str]:
    if isinstance(schema, list):
        return {name for part in schema for name in _still_named(part)}
    if not isinstance(schema, dict):
        return set()
    refs = {schema["$ref"].removeprefix("#/$defs/")} if isinstance(schema.get("$ref"), str) else set()
    return refs | {name for value in schema.values() for name in _still_named(value)}


# Arguments against a JSON schema: the keywords that tools use, each fault with its place.
#
# Keywords that are not known here are passed over: a tool still checks what it is given.

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
    types = [kinds] if isinstance(kinds, str) else kinds or []
    if types and not any(_TYPES.get(kind, lambda _: True)(value) for kind in types):
        yield f"{at}: must be {' or '.join(types)}, not {_short(value)}"
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
    value: Json = root
    for part in str(reference).removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        value = value.get(name, {}) if isinstance(value, dict) else {}
    return value


def _choices(value: Json, schema: JsonObject, root: JsonObject, at: str, depth: int) -> Iterator[str]:
    if "enum" in schema and not any(_same(value, option) for option in schema["enum"]):
        yield f"{at}: must be one of {', '.join(map(_short, schema['enum']))}, not {_short(value)}"
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{at}: must be {_short(schema['const'])}, not {_short(value)}"
    for part in schema.get("allOf") or ():
        yield from _faults(value, part, root, at, depth + 1)
    for keyword in ("anyOf", "oneOf"):
        tried = [list(_faults(value, part, root, at, depth + 1)) for part in schema.get(keyword) or ()]
        fitting = sum(not problems for problems in tried)
        if tried and not fitting:
            yield min(tried, key=len)[0] if len(tried) == 1 else f"{at}: fits none of {len(tried)} forms"
        elif keyword == "oneOf" and fitting > 1:
            yield f"{at}: fits {fitting} forms, where one is wanted"


def _members(value: JsonObject, schema: JsonObject, root: JsonObject, at: str, depth: int) -> Iterator[str]:
    properties: JsonObject = schema.get("properties") or {}
    for name in schema.get("required") or ():
        if name not in value:
            yield f"{at}: {name!r} is missing"
    for name, member in value.items():
        if name in properties:
            yield from _faults(member, properties[name], root, f"{at}.{name}", depth + 1)
        elif schema.get("additionalProperties") is False:
            yield f"{at}: {name!r} is not known; there is {', '.join(properties) or 'nothing'}"
        else:
            yield from _faults(member, schema.get("additionalProperties", True), root, f"{at}.{name}", depth + 1)


def _elements(value: list[Json], schema: JsonObject, root: JsonObject, at: str, depth: int) -> Iterator[str]:
    first = schema.get("prefixItems") or ()
    for index, element in enumerate(value):
        element_schema = first[index] if index < len(first) else schema.get("items", True)
        yield from _faults(element, element_schema, root, f"{at}[{index}]", depth + 1)
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
