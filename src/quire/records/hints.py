"""`llm_hints`: what a model sees of a record's context. include, then exclude, then transform.

An error changes nothing: the context comes back as it was, with the error beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from quire.errors import DataError, QuireError
from quire.formats import clean
from quire.records import expressions
from quire.records.expressions import extract, one_or_many
from quire.records.paths import HintLimits, Meter, as_text, check_depth, drop, keep, look_up
from quire.records.template import render, view
from quire.values import Json, JsonObject

# The types of transform rule: template, extract, format, literal, jq; and tools, the text of a list of tools.

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
    "jq": ("query", expressions.run),
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


_KEYS = ("include", "exclude", "transform", "mode")


def apply_hints(context: Json, hints: Json, limits: HintLimits | None = None) -> tuple[Json, str | None]:
    """The context as its hints show it, and what went wrong (then the context is untouched).

    {"a": 1, "b": 2}, {"exclude": ["b"]} -> ({"a": 1}, None)
    """
    if hints is None or hints == {}:
        return context, None
    try:
        return _view(context, hints, Meter(limits or HintLimits())), None
    except QuireError as error:
        return context, f"{error} ({error.hint})" if error.hint else str(error)


def _view(context: Json, hints: Json, meter: Meter) -> Json:
    check_hints(hints, meter.limits)
    check_depth([context, hints], meter.limits.data_depth)
    shown = context
    if hints.get("include") is not None:
        shown = (keep(shown, hints["include"]) or {}) if isinstance(shown, dict) else shown
    if hints.get("exclude") is not None:
        shown = drop(shown, hints["exclude"])
    if not hints.get("transform"):
        return shown
    made = {key: _made(key, rule, shown, meter) for key, rule in hints["transform"].items()}
    return {**shown, **made} if hints.get("mode") == "merge" and isinstance(shown, dict) else made


def _made(key: str, rule: Json, context: Json, meter: Meter) -> Json:
    meter.step()
    try:
        return apply_rule(rule, context, meter)
    except DataError as error:
        raise DataError(f"transform.{key}: {error}", hint=error.hint) from error


def check_hints(hints: Json, limits: HintLimits | None = None) -> None:
    """Refuse hints that cannot be right; a misspelt `exclude` must not show what it meant to hide."""
    if not isinstance(hints, dict):
        raise DataError(f"llm_hints is an object, not {as_text(hints)[:40]!r}")
    unknown = [key for key in hints if key not in _KEYS]
    if unknown:
        raise DataError(f"llm_hints has no {unknown[0]!r}", hint=f"Use {', '.join(_KEYS)}.")
    for key in ("include", "exclude"):
        paths = hints.get(key)
        if paths is not None and not (
            isinstance(paths, list) and all(isinstance(path, str) for path in paths)
        ):
            raise DataError(f"llm_hints.{key} is a list of paths, not {as_text(paths)[:40]!r}")
    if hints.get("mode") not in (None, "replace", "merge"):
        raise DataError(f"llm_hints.mode is replace or merge, not {as_text(hints['mode'])[:40]!r}")
    rules = hints.get("transform")
    if rules is not None and not isinstance(rules, dict):
        raise DataError(f"llm_hints.transform is an object of rules, not {as_text(rules)[:40]!r}")
    if rules and len(rules) > (limits or HintLimits()).rules:
        raise DataError(f"{len(rules)} rules; at most {(limits or HintLimits()).rules} are allowed")
