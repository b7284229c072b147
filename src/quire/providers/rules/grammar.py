"""Whether a JSON value is what its description says: `misfits(body, "@body", "$", grammar_of("anthropic"))`.

Descriptions are data (data/shapes.json, which explains how they are written); here is how they are read.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import msgspec

from quire.providers.models import data
from quire.providers.rules.check import Finding, at, finding
from quire.values import Json, JsonObject, as_object

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list, tuple),
    "bytes": (str, bytes, bytearray),
    "any": (object,),
}
_KIND = re.compile(r"('[^']*'|@\w+|\[.*\]|[a-z]+)(?:>=([\d.]+))?(?:<=([\d.]+))?")
_OR = re.compile(r"\[.*?\](?:[<>]=[\d.]+)*|[^|]+")


class Kind(msgspec.Struct, frozen=True):
    """One kind of value: its type, and what an object or a list of this kind holds."""

    type: str
    value: str = ""
    shape: str = ""
    items: str = ""
    least: float | None = None
    most: float | None = None

    def takes(self, value: Json) -> bool:
        """Whether the value's type is this kind's; a boolean is no number."""
        if isinstance(value, bool) and self.type not in ("boolean", "any"):
            return False
        return isinstance(value, _TYPES[self.type]) and self.value in ("", value)


class Grammar(msgspec.Struct, frozen=True):
    """The descriptions of one wire format; `closed` refuses objects whose type is not listed."""

    shapes: JsonObject
    closed: bool = True
    # Gemini's SDK writes mime_type where JSON has mimeType.
    snake: bool = False


@functools.cache
def grammar_of(wire: str, *, closed: bool = True) -> Grammar:
    """What a wire format's requests look like."""
    shapes = data("shapes")[wire]
    return Grammar(shapes, closed, snake="$snake" in shapes["body"])


@functools.cache
def kinds_of(description: str) -> tuple[Kind, ...]:
    """The kinds of "string|[@part]!"."""
    return tuple(_kind(word) for word in _OR.findall(description.removesuffix("!")))


def _kind(text: str) -> Kind:
    match = _KIND.fullmatch(text)
    assert match is not None, text
    name, least, most = match[1], _bound(match[2]), _bound(match[3])
    if name.startswith("'"):
        return Kind("string", value=name[1:-1])
    if name.startswith("@"):
        return Kind("object", shape=name[1:])
    if name.startswith("["):
        return Kind("array", items=name[1:-1], least=least, most=most)
    return Kind(name, least=least, most=most)


def _bound(text: str | None) -> float | None:
    return None if text is None else float(text)


def misfits(value: Json, description: str, path: str, grammar: Grammar) -> Iterator[Finding]:
    """Everything in a value that is not as its description says."""
    kinds = kinds_of(description)
    kind = next((kind for kind in kinds if kind.takes(value)), None)
    if kind is None:
        value_text = f"'{value}'" if isinstance(value, str) and any(kind.value for kind in kinds) else _type_name(value)
        yield shape(path, "kind", kinds=_or(kinds), value=value_text)
        return
    if kind.least is not None or kind.most is not None:
        yield from _bounds(value, kind, path)
    if kind.items:
        for index, item in enumerate(value):
            yield from misfits(item, kind.items, f"{path}[{index}]", grammar)
    if kind.shape:
        yield from _object(value, grammar.shapes[kind.shape], path, grammar)


def fits(value: Json, description: str, grammar: Grammar) -> bool:
    """Whether nothing in a value is other than its description says."""
    return next(misfits(value, description, "$", grammar), None) is None


def _bounds(value: Json, kind: Kind, path: str) -> Iterator[Finding]:
    size = value if kind.type in ("integer", "number") else len(value) if kind.least or kind.most else 0
    subject = "Input" if kind.type in ("integer", "number") else "The length"
    if kind.least is not None and size < kind.least:
        yield shape(path, "least", subject=subject, least=kind.least)
    if kind.most is not None and size > kind.most:
        yield shape(path, "most", subject=subject, most=kind.most)


def _object(value: JsonObject, spec: JsonObject, path: str, grammar: Grammar) -> Iterator[Finding]:
    if "$by" in spec:
        yield from _check_tagged(value, spec, path, grammar)
        return
    for name, description in spec.items():
        if name[0] == "$":
            continue
        spelled = _nearest_spelling(value, name, grammar) if grammar.snake else name
        if (member := value.get(spelled)) is not None:
            yield from misfits(member, description, f"{path}.{spelled}", grammar)
        elif description[-1] == "!":
            yield shape(f"{path}.{name}", "required", name=name, kinds=_or(kinds_of(description)))
    if spec.keys() & {"$closed", "$one"}:
        yield from _strangers(value, spec, path, grammar)
    if "$one" in spec:
        yield from _one(list(value.values()), path)
    if "$data" in spec:
        yield from _one([value.get(_nearest_spelling(value, name, grammar)) for name in spec["$data"]], path)


def _check_tagged(value: JsonObject, spec: JsonObject, path: str, grammar: Grammar) -> Iterator[Finding]:
    """An object that says itself what it is."""
    field = spec["$by"]
    tag = value.get(field)
    if tag is None:
        others = [name for name in value if name != field]
        tag = spec.get(f"$alone_{others[0]}") if len(others) == 1 else None
        tag = tag or spec.get("$untyped")
    if not isinstance(tag, str):
        yield shape(f"{path}.{field}", "type")
    elif tag not in spec or tag.startswith("$"):
        if "$other" in spec:
            yield from _object(value, spec["$other"], path, grammar)
        elif grammar.closed:
            tags = ", ".join(name for name in spec if not name.startswith("$"))
            yield shape(f"{path}.{field}", "tag", tag=tag, tags=tags)
    else:
        described_by = spec[tag]
        described = grammar.shapes[described_by[1:]] if isinstance(described_by, str) else described_by
        yield from _object(value, described, path, grammar)


def _nearest_spelling(value: JsonObject, name: str, grammar: Grammar) -> str:
    return snake(name) if grammar.snake and name not in value else name


@functools.cache
def snake(name: str) -> str:
    """functionCall -> function_call."""
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name)


def _strangers(value: JsonObject, spec: JsonObject, path: str, grammar: Grammar) -> Iterator[Finding]:
    names = {*spec, *map(snake, spec)} if grammar.snake else set(spec)
    for name in value:
        if name not in names and value[name] is not None:
            allowed = ", ".join(field for field in spec if not field.startswith("$")) or "nothing"
            yield shape(at(path, str(name)), "stranger", allowed=allowed)


def _one(members: list[Json], path: str) -> Iterator[Finding]:
    count = len([member for member in members if member is not None])
    if count != 1:
        yield shape(path, "several" if count else "none", count=count)


def shape(path: str, case: str, **details: Json) -> Finding:
    """A finding about what a request looks like."""
    return finding("B.shape", path, case, **details)


def _or(kinds: tuple[Kind, ...]) -> str:
    named = [f"'{kind.value}'" if kind.value else _a(kind.type) for kind in kinds]
    return " or ".join(dict.fromkeys(named))


def _a(name: str) -> str:
    if name in ("any", "bytes"):
        return {"any": "anything", "bytes": "base64 text"}[name]
    return f"{'an' if name[0] in 'aio' else 'a'} {name}"


def _type_name(value: Json) -> str:
    for name in ("boolean", "integer", "number", "string", "object", "array"):
        if Kind(name).takes(value):
            return _a(name)
    return "null" if value is None else type(value).__name__


# JSON schemas that are to be kept to the letter.


def closed(schema: Json, path: str, owner: str) -> Iterator[Finding]:
    """Every object names all its properties as required, and allows no other."""
    if isinstance(schema, list):
        for place, inner in enumerate(schema):
            yield from closed(inner, f"{path}[{place}]", owner)
    if not isinstance(schema, dict):
        return
    properties = as_object(schema.get("properties"))
    if properties or schema.get("type") == "object":
        listed = schema.get("required")
        absent = [name for name in properties if not isinstance(listed, list) or name not in listed]
        if schema.get("additionalProperties") is not False:
            yield finding("B.strict", path, "open", owner=owner)
        elif absent:
            yield finding("B.strict", path, "optional", owner=owner, name=absent[0])
    for name in ("properties", "$defs", "definitions"):
        for key, inner in as_object(schema.get(name)).items():
            yield from closed(inner, f"{path}.{name}.{key}", owner)
    for name in ("items", "anyOf"):
        yield from closed(schema.get(name), f"{path}.{name}", owner)


def objects_at(value: Json, path: str) -> Iterator[tuple[str, JsonObject]]:
    """The objects of a list, with their paths; anything else is passed over."""
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            if isinstance(item, dict):
                yield f"{path}[{index}]", item
