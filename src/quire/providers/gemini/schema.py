"""Tools as Gemini declares them: its own schema where that says it all, else the JSON schema itself."""

from __future__ import annotations

from quire.providers.incoming import sub
from quire.providers.spelling import Spelling
from quire.values import Json, JsonObject

NAMES = Spelling(first="A-Za-z_")

# The fields of Gemini's Schema message; any other is refused as an unknown name.
_FIELDS = frozenset(
    [
        "type",
        "format",
        "title",
        "description",
        "nullable",
        "enum",
        "items",
        "maxItems",
        "minItems",
        "properties",
        "required",
        "minProperties",
        "maxProperties",
        "minLength",
        "maxLength",
        "pattern",
        "example",
        "anyOf",
        "propertyOrdering",
        "default",
        "minimum",
        "maximum",
    ]
)


def declaration(tool: JsonObject) -> JsonObject:
    """One function declaration."""
    out: JsonObject = {"name": NAMES.spell(tool["name"])}
    if tool.get("description"):
        out["description"] = tool["description"]
    schema = tool.get("parameters") or {}
    if not schema.get("properties") and not set(schema) - {
        "type",
        "properties",
        "required",
        "additionalProperties",
    }:
        return out  # an object without fields is refused; a function without parameters is not
    own = _schema(schema)
    return {**out, "parameters": own} if own is not None else {**out, "parametersJsonSchema": schema}


def _schema(schema: Json) -> JsonObject | None:
    """The schema in Gemini's words, or None where they do not suffice."""
    if (
        not isinstance(schema, dict)
        or not set(schema) <= _FIELDS
        or not isinstance(schema.get("type", ""), str)
    ):
        return None
    if not all(isinstance(one, str) for one in schema.get("enum") or ()):
        return None
    out = dict(schema)
    if "type" in schema:
        out["type"] = schema["type"].upper()
    for field, inner in _inner(schema):
        if inner is None:
            return None
        out[field] = inner
    return out


def _inner(schema: JsonObject) -> list[tuple[str, Json]]:
    """The schemas inside a schema, each in Gemini's words, or None."""
    out: list[tuple[str, Json]] = []
    if "items" in schema:
        out.append(("items", _schema(schema["items"])))
    if "anyOf" in schema:
        options = [_schema(one) for one in schema["anyOf"]]
        out.append(("anyOf", None if None in options else options))
    if "properties" in schema:
        fields = {name: _schema(one) for name, one in schema["properties"].items()}
        out.append(("properties", None if None in fields.values() else fields))
    return out


def tool_entry(declared: JsonObject) -> JsonObject:
    """A declared function as entries define a tool."""
    schema = sub(declared, "parametersJsonSchema") or sub(declared, "parameters")
    return {
        "name": str(declared.get("name") or ""),
        "description": str(declared.get("description") or ""),
        "parameters": _json_schema(schema) if schema else {"type": "object", "properties": {}},
    }


def _json_schema(schema: Json) -> Json:
    """Gemini's upper-case types in JSON schema's lower case."""
    if isinstance(schema, list):
        return [_json_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    lower = {"type": schema["type"].lower()} if isinstance(schema.get("type"), str) else {}
    return {**{key: _json_schema(value) for key, value in schema.items()}, **lower}
