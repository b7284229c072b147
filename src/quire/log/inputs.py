"""JSON from outside, checked against a shape once, here; a fault names the field and the one probably meant."""

from __future__ import annotations

from quire.errors import FormatError
from quire.log.shapes import Fault, Fields, Listed, Path, Shape, check_json, fit
from quire.nearest import nearest
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
    """A fault as an error: where it is, what is wrong, and what to do."""
    place = path_name(problem.path)
    hint = hint_for(problem, shape) or "Correct the field, or leave it out where it is optional."
    return FormatError(f"{place}: {problem.problem}" if place else problem.problem, hint=hint)


def hint_for(problem: Fault, shape: Shape) -> str:
    """A fault's own hint; for an unknown field also the known one that it resembles."""
    if problem.key and problem.problem == "unknown field":
        near = nearest(str(problem.path[-1]), _names(shape, problem.path[:-1]))
        return f"Did you mean {near!r}? {problem.hint}" if near else problem.hint
    return problem.hint


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
