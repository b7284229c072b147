"""The JSON that formats take: checked against a shape once, here; a fault names the field and the fields known."""

from __future__ import annotations

import difflib

from quire.errors import FormatError
from quire.log.shapes import Fault, Fields, Listed, Path, Shape, check_json, fit
from quire.values import Json, JsonObject


def checked(shape: Fields, data: Json) -> JsonObject:
    """The object itself, unless it does not fit the shape or holds what is not JSON."""
    try:
        fit(shape, data)
        check_json(data)
    except Fault as problem:
        raise refused(problem, shape) from problem
    out: JsonObject = data
    return out


def refused(problem: Fault, shape: Shape) -> FormatError:
    """A fault as an error: where it is, what is wrong, and the field that was probably meant."""
    place = path_name(problem.path)
    hint = problem.hint or "Correct the field, or leave it out where it is optional."
    if problem.key and problem.problem == "unknown field":
        near = difflib.get_close_matches(str(problem.path[-1]), _names(shape, problem.path[:-1]), 1)
        hint = f"Did you mean {near[0]!r}? {hint}" if near else hint
    return FormatError(f"{place}: {problem.problem}" if place else problem.problem, hint=hint)


def _names(shape: Shape, path: Path) -> list[str]:
    for step in path:
        if isinstance(shape, Fields):
            shape = shape.required.get(str(step)) or shape.optional[str(step)]
        elif isinstance(shape, Listed):
            shape = shape.member
    return [*shape.required, *shape.optional] if isinstance(shape, Fields) else []


def path_name(path: Path) -> str:
    """('items', 0, 'type') -> 'items[0].type', safe to print whatever the keys hold."""
    out = ""
    for step in path:
        out += f"[{step}]" if isinstance(step, int) else f".{step}" if step.isidentifier() else f"[{step!r}]"
    return out.removeprefix(".")
