"""A function's signature as the JSON schema that models are given, and the type that checks their arguments."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from quire.errors import CallError
from quire.send.tools.docstring import described
from quire.values import Entry, Json, JsonObject


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
            f"the types of tool {name!r} cannot be read: {error}",
            hint="Define the tool where its types can be seen.",
        ) from error


def _field(
    parameter: inspect.Parameter, hints: dict[str, Any], texts: dict[str, str], name: str
) -> tuple[Any, ...]:
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
    if parameter.default is parameter.empty:
        return (parameter.name, kind)
    return (parameter.name, kind, _default(parameter.default))


def _default(value: Any) -> Any:
    """A default as msgspec takes it: one that can be changed is made anew for each call."""
    if isinstance(value, list | dict | set):
        return msgspec.field(default_factory=lambda: type(value)(value))
    return value


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
        return [_inlined(one, defs, inside) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        key = schema["$ref"].removeprefix("#/$defs/")
        if key in inside:
            return schema
        beside = {name: value for name, value in schema.items() if name != "$ref"}
        return {**_inlined(defs[key], defs, (*inside, key)), **beside}
    return {
        key: {name: _inlined(one, defs, inside) for name, one in value.items()}
        if key == "properties"
        else _inlined(value, defs, inside)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }


def _still_named(schema: Json) -> set[str]:
    if isinstance(schema, list):
        return {name for one in schema for name in _still_named(one)}
    if not isinstance(schema, dict):
        return set()
    own = {schema["$ref"].removeprefix("#/$defs/")} if isinstance(schema.get("$ref"), str) else set()
    return own | {name for value in schema.values() for name in _still_named(value)}
