"""Which records are meant: by schema, by any, all or none of some tags, and by what their context holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from quire.errors import CallError
from quire.records.expressions import extract
from quire.records.paths import MISSING, HintLimits, Meter, as_text, look_up
from quire.records.record import Record
from quire.values import Json, JsonObject


def _ordered(compare: Callable[[Json, Json], bool]) -> Callable[[Json, Json], bool]:
    """Compare only what can be: numbers with numbers, strings with strings."""

    def holds(found: Json, wanted: Json) -> bool:
        numbers = all(
            isinstance(each, int | float) and not isinstance(each, bool) for each in (found, wanted)
        )
        strings = isinstance(found, str) and isinstance(wanted, str)
        return (numbers or strings) and compare(found, wanted)

    return holds


def same(found: Json, wanted: Json) -> bool:
    """Equal as JSON: true is not 1."""
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def _contains(found: Json, wanted: Json) -> bool:
    if isinstance(found, list):
        return any(same(each, wanted) for each in found)
    return isinstance(wanted, str) and isinstance(found, str | dict) and wanted in found


def _among(found: Json, wanted: Json) -> bool:
    return isinstance(wanted, list) and any(same(found, each) for each in wanted)


OPERATORS: Final[dict[str, Callable[[Json, Json], bool]]] = {
    "eq": same,
    "ne": lambda found, wanted: not same(found, wanted),
    "gt": _ordered(lambda a, b: a > b),
    "gte": _ordered(lambda a, b: a >= b),
    "lt": _ordered(lambda a, b: a < b),
    "lte": _ordered(lambda a, b: a <= b),
    "in": _among,
    "contains": _contains,
    "contains_any": lambda found, wanted: (
        isinstance(wanted, list) and any(_contains(found, each) for each in wanted)
    ),
    "exists": lambda found, wanted: bool(wanted),
}


class Match(msgspec.Struct, frozen=True):
    """A condition on the context: the value at `path` (JSONPath or dotted) stands in `op` to `value`."""

    path: str
    op: str = "eq"
    value: Json = True

    def __post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise CallError(f"no operator {self.op!r}", hint=f"Use one of {', '.join(OPERATORS)}.")

    def holds(self, context: JsonObject) -> bool:
        """Whether any value at the path satisfies it; `ne` and `exists: false` also hold where there is none."""
        found = self._found(context)
        if self.op == "exists":
            return bool(found) == bool(self.value)
        if self.op == "ne":
            return all(OPERATORS["ne"](each, self.value) for each in found)
        return any(OPERATORS[self.op](each, self.value) for each in found)

    def _found(self, context: JsonObject) -> list[Json]:
        if self.path.startswith("$"):
            return extract(self.path, context, Meter(HintLimits()))
        value = look_up(context, self.path.split("."))
        return [] if value is MISSING else [value]


class Selector(msgspec.Struct, frozen=True, kw_only=True):
    """All of its conditions must hold; an empty one is no condition."""

    schemas: tuple[str, ...] = ()
    any_tags: tuple[str, ...] = ()
    all_tags: tuple[str, ...] = ()
    none_tags: tuple[str, ...] = ()
    context_match: tuple[Match, ...] = ()
    owner: str = ""

    def matches(self, record: Record) -> bool:
        tags = set(record.tags)
        return (
            (not self.schemas or record.schema_name in self.schemas)
            and self.owner in ("", record.owner)
            and (not self.any_tags or not tags.isdisjoint(self.any_tags))
            and tags.issuperset(self.all_tags)
            and tags.isdisjoint(self.none_tags)
            and all(match.holds(record.context) for match in self.context_match)
        )


_KEYS = ("schema_name", "tag", "any_tags", "all_tags", "none_tags", "context_match", "owner")


def selector(value: JsonObject, where: str = "selector") -> Selector:
    """Read a selector from JSON; `schema_name` may be a list, `tag` is one more of `all_tags`."""
    unknown = [key for key in value if key not in _KEYS and key != "comment"]
    if unknown:
        raise CallError(f"{where} has no {unknown[0]!r}", hint=f"Use {', '.join(_KEYS)}.")
    tag = [value["tag"]] if value.get("tag") else []
    all_tags = value.get("all_tags") or []
    try:
        return msgspec.convert(
            {
                "schemas": _names(value.get("schema_name")),
                "any_tags": value.get("any_tags") or (),
                "all_tags": [*tag, *all_tags] if isinstance(all_tags, list | tuple) else all_tags,
                "none_tags": value.get("none_tags") or (),
                "context_match": _conditions(value.get("context_match")),
                "owner": value.get("owner") or "",
            },
            Selector,
        )
    except msgspec.ValidationError as error:
        raise CallError(f"{where}: {error}", hint="Tags and schemas are lists of strings.") from error


def _names(value: Json) -> Json:
    """One schema, or a list of them."""
    return (value,) if isinstance(value, str) and value else value or ()


def _conditions(value: Json) -> list[Json]:
    """A list of {path, op, value}, or the short form {path: value} for equality."""
    if isinstance(value, dict):
        return [{"path": path, "op": "eq", "value": wanted} for path, wanted in value.items()]
    if value is None or isinstance(value, list):
        return value or []
    raise CallError(
        f"context_match is a list of conditions, not {as_text(value)[:40]!r}",
        hint='Write [{"path": "$.to", "op": "eq", "value": "chat"}].',
    )
