"""Gemini around the turns: explicit caches, schemas and function names (rows 32 to 34)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quire.providers.facts import data
from quire.providers.rules.check import Check
from quire.providers.rules.finding import Finding, at, found, limit
from quire.providers.rules.gemini import contents, declarations, get, setting
from quire.providers.rules.grammar import snake
from quire.providers.rules.shape import obj, objects, text
from quire.tokens import count
from quire.values import Json, JsonObject


def cached(check: Check) -> Iterator[Finding]:
    """Row 32: what is in the cached content is not sent again."""
    if setting(check.body, "cachedContent")[1] is None:
        return
    for name in ("systemInstruction", "tools", "toolConfig"):
        path, value = setting(check.body, name)
        if value:
            yield found("B2.32", path, field=path.rpartition(".")[2])


def is_creation(body: JsonObject) -> bool:
    """Whether a body creates an explicit cache: it says how long it lives."""
    return any(setting(body, name)[1] is not None for name in ("ttl", "expireTime"))


def least(check: Check) -> Iterator[Finding]:
    """Row 33, for a body that creates an explicit cache; media are not counted."""
    if not is_creation(check.body) or not check.model_named:
        return
    parts = [part for turn in contents(check.body) for _, part in turn.parts]
    system = setting(check.body, "systemInstruction")[1]
    parts += [part for _, part in objects(obj(system).get("parts"), "")]
    if any(get(part, name) is not None for part in parts for name in ("inlineData", "fileData")):
        return
    said = "\n".join([text(system), *(text(part.get("text")) for part in parts)])
    tokens = count(said, check.info.model).tokens
    if tokens < check.info.min_cache_tokens:
        yield found(
            "B2.33", setting(check.body, "contents")[0], found=tokens, least=check.info.min_cache_tokens
        )


def schemas(check: Check) -> Iterator[Finding]:
    """Row 34, over every function's `parameters`; parametersJsonSchema takes any JSON schema."""
    for path, declaration in declarations(check.body):
        if isinstance(declaration.get("parameters"), dict):
            yield from _schema(declaration["parameters"], f"{path}.parameters")


def _schema(schema: JsonObject, path: str) -> Iterator[Finding]:
    known = {
        spelling for name in data("rules")["gemini"]["schema_fields"] for spelling in (name, snake(name))
    }
    waiting: list[tuple[str, Json]] = [(path, schema)]
    # A list of its own instead of recursion: schemas from outside may be nested to any depth.
    while waiting:
        place, one = waiting.pop()
        if not isinstance(one, dict):
            continue
        for name in one:
            if name not in known:
                fix = f"Leave {name} out, or send the schema as parametersJsonSchema."
                yield found("B2.34", at(place, name), name=name, fix=fix)
        if isinstance(one.get("type"), list):
            fix = "Use one type, and nullable for null; or send the schema as parametersJsonSchema."
            yield found("B2.34", f"{place}.type", name="type", fix=fix)
        waiting += _children(one, place)


def _children(schema: JsonObject, path: str) -> list[tuple[str, Json]]:
    properties = [
        (at(f"{path}.properties", name), one) for name, one in obj(schema.get("properties")).items()
    ]
    either = get(schema, "anyOf")
    options = list(objects(either, f"{path}.anyOf"))
    items = [(f"{path}.items", schema["items"])] if "items" in schema else []
    return [*properties, *options, *items]


def function_names(check: Check) -> Iterator[Finding]:
    """Gemini's own pattern, wider than row 17's."""
    pattern = limit("gemini_name")
    for path, declaration in declarations(check.body):
        name = declaration.get("name")
        if isinstance(name, str) and not re.fullmatch(pattern, name):
            yield found("B.gemini-name", f"{path}.name", name=name)
