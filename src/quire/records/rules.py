"""The types of transform rule: template, extract, format, literal, jq; and tools, the text of a list of tools."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from quire.errors import DataError, QuireError
from quire.formats import clean
from quire.records import jq_program
from quire.records.extract import extract, one_or_many
from quire.records.limits import Meter
from quire.records.paths import as_text, look_up
from quire.records.template import render, view
from quire.values import Json, JsonObject

_FIELD = re.compile(r"\{([^\s{}\"':,]+)\}")


def fill(pattern: str, context: Json, meter: Meter) -> str:
    """`{a.b}` replaced by the value there; what a value brings is not looked at again."""
    fields = view(context)

    def value(field: re.Match[str]) -> str:
        meter.step()
        return meter.write(as_text(look_up(fields, field[1].split("."))))

    return _FIELD.sub(value, meter.source(pattern))


def literal(value: Json, context: Json, meter: Meter) -> Json:
    """The value itself."""
    return value


def tools(path: str, context: Json, meter: Meter) -> str:
    """The list of tools at a path, as the clean format shows it below its heading."""
    listed = one_or_many(extract(path, context, meter))
    if not isinstance(listed, list) or not all(isinstance(tool, dict) for tool in listed):
        raise DataError(f"no list of tools at {path!r}")
    try:
        return meter.write(clean.tool_list(clean.project(tools=listed).tools))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"a tool at {path!r} is not {{name, description, …}}: {error}") from error


Carried: TypeAlias = Callable[[Json, Json, Meter], Json]
# type -> the key that holds its program, and what carries it out
_VALUES: Final[dict[str, tuple[str, Carried]]] = {
    "template": ("template", render),
    "format": ("format", fill),
    "literal": ("literal", literal),
    "tools": ("tools", tools),
}
# The same for those that find any number of values; one is shown bare unless the rule says `"many": true`.
_HITS: Final[dict[str, tuple[str, Callable[[Json, Json, Meter], list[Json]]]]] = {
    "extract": ("value", extract),
    "jq": ("query", jq_program.run),
}
TYPES: Final = {name: key for name, (key, _) in (_VALUES | _HITS).items()}
_BY_KEY: Final = {key: name for name, key in TYPES.items()}


def apply_rule(rule: Json, context: Json, meter: Meter) -> Json:
    """Carry out one rule over the context."""
    if not isinstance(rule, dict):
        raise DataError(f"a rule is an object, not {as_text(rule)[:40]!r}", hint='Write {"template": "…"}.')
    name = _type(rule)
    try:
        if name in _VALUES:
            return _VALUES[name][1](_program(rule, name), context, meter)
        hits = _HITS[name][1](_program(rule, name), context, meter)
        return hits if rule.get("many") is True else one_or_many(hits)
    except QuireError as error:
        raise DataError(f"{name}: {error}", hint=error.hint) from error


def _type(rule: JsonObject) -> str:
    """The rule's type: named, or told by the one key that only it has."""
    if "type" in rule:
        if not isinstance(rule["type"], str) or rule["type"] not in TYPES:
            raise DataError(
                f"no rule type {as_text(rule['type'])[:40]!r}", hint=f"Use one of {', '.join(TYPES)}."
            )
        return str(rule["type"])
    found = [_BY_KEY[key] for key in rule if key in _BY_KEY]
    if len(found) != 1:
        keys = ", ".join(rule) or "no keys"
        raise DataError(f"the type of a rule with {keys[:60]} is not clear", hint="Name its type.")
    return found[0]


def _program(rule: JsonObject, name: str) -> Json:
    """What the rule carries out: under its type's key or, when that is absent, under the only other one."""
    key = TYPES[name]
    others = [other for other in rule if other not in ("type", "many")]
    if key in rule:
        return rule[key]
    if len(others) == 1:
        return rule[others[0]]
    raise DataError(f"needs {key!r}")
