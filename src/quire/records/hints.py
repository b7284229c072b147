"""`llm_hints`: what a model sees of a record's context. include, then exclude, then transform.

An error changes nothing: the context comes back as it was, with the error beside it.
"""

from __future__ import annotations

from quire.errors import DataError, QuireError
from quire.records.limits import Limits, Meter, check_depth
from quire.records.paths import as_text, drop, keep
from quire.records.rules import apply_rule
from quire.values import Json

_KEYS = ("include", "exclude", "transform", "mode")


def apply_hints(context: Json, hints: Json, limits: Limits | None = None) -> tuple[Json, str | None]:
    """The context as its hints show it, and what went wrong (then the context is untouched).

    {"a": 1, "b": 2}, {"exclude": ["b"]} -> ({"a": 1}, None)
    """
    if hints is None or hints == {}:
        return context, None
    try:
        return _view(context, hints, Meter(limits or Limits())), None
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


def check_hints(hints: Json, limits: Limits | None = None) -> None:
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
    if rules and len(rules) > (limits or Limits()).rules:
        raise DataError(f"{len(rules)} rules; at most {(limits or Limits()).rules} are allowed")
