"""What a consumer wants its context built from (`context.config.v1`), and which records a selector means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal, get_args

import msgspec

from quire.errors import CallError
from quire.formats.clean import Detail
from quire.records.paths import MISSING, HintLimits, Meter, as_text, extract, look_up
from quire.records.record import Record
from quire.values import Json, JsonObject

# Which records are meant: by schema, by any, all or none of some tags, and by what their context holds.


def _ordered(compare: Callable[[Json, Json], bool]) -> Callable[[Json, Json], bool]:
    """Compare only what can be: numbers with numbers, strings with strings."""

    def holds(value: Json, operand: Json) -> bool:
        numbers = all(isinstance(side, int | float) and not isinstance(side, bool) for side in (value, operand))
        strings = isinstance(value, str) and isinstance(operand, str)
        return (numbers or strings) and compare(value, operand)

    return holds


def same(value: Json, operand: Json) -> bool:
    """Equal as JSON: true is not 1."""
    return isinstance(value, bool) == isinstance(operand, bool) and bool(value == operand)


def _contains(value: Json, operand: Json) -> bool:
    if isinstance(value, list):
        return any(same(member, operand) for member in value)
    return isinstance(operand, str) and isinstance(value, str | dict) and operand in value


OPERATORS: Final[dict[str, Callable[[Json, Json], bool]]] = {
    "eq": same,
    "ne": lambda value, operand: not same(value, operand),
    "gt": _ordered(lambda a, b: a > b),
    "gte": _ordered(lambda a, b: a >= b),
    "lt": _ordered(lambda a, b: a < b),
    "lte": _ordered(lambda a, b: a <= b),
    "in": lambda value, listed: isinstance(listed, list) and any(same(value, item) for item in listed),
    "contains": _contains,
    "contains_any": lambda value, listed: isinstance(listed, list) and any(_contains(value, item) for item in listed),
    "exists": lambda value, operand: bool(operand),
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
        values = self._values(context)
        if self.op == "exists":
            return bool(values) == bool(self.value)
        if self.op == "ne":
            return all(OPERATORS["ne"](value, self.value) for value in values)
        return any(OPERATORS[self.op](value, self.value) for value in values)

    def _values(self, context: JsonObject) -> list[Json]:
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
    _check_keys(value, where, _KEYS)
    tag = [value["tag"]] if value.get("tag") else []
    all_tags, schemas = value.get("all_tags") or [], value.get("schema_name")
    try:
        return msgspec.convert(
            {
                "schemas": (schemas,) if isinstance(schemas, str) and schemas else schemas or (),
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


def _conditions(value: Json) -> list[Json]:
    """A list of {path, op, value}, or the short form {path: value} for equality."""
    if isinstance(value, dict):
        return [{"path": path, "op": "eq", "value": operand} for path, operand in value.items()]
    if value is None or isinstance(value, list):
        return value or []
    raise CallError(
        f"context_match is a list of conditions, not {as_text(value)[:40]!r}",
        hint='Write [{"path": "$.to", "op": "eq", "value": "chat"}].',
    )


# What a consumer wants its context built from (`context.config.v1`), as one frozen value.

SCHEMA: Final = "context.config.v1"
Method = Literal["vector", "recent", "latest", "tagged", "all"]
# A chain of contexts that is meant ends before this.
Generations = Annotated[int, msgspec.Meta(ge=1, le=32)]
METHODS: Final[tuple[str, ...]] = get_args(Method)
_HINT = 'Write {"consumer_id": "chat", "sources": [{"schema_name": "user.message.v1", "method": "recent"}]}.'
_SOURCE_KEYS = ("method", "nn", "limit", "filters", "conversation_scope", "exchanges", "floor", "role")


class RecordSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where records come from.

    `exchanges`: a message found by `vector` comes with its question or answer, and with what lies between two
    that were found. `floor`: how near to the best hit another must come, from 0 (any) to 1.
    """

    method: Method
    selector: Selector = Selector()
    nn: int = 5
    limit: int | None = None
    current_session: bool = False
    exchanges: bool = True
    floor: float = 0.6
    role: str = ""


class OutputRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record that the builder keeps up to date for its consumer."""

    schema_name: str = "agent.context.v1"
    tags: tuple[str, ...] = ()
    ttl_s: float | None = None


class Formatting(msgspec.Struct, frozen=True, kw_only=True):
    """How much is shown: tokens (o200k) of the whole rendered text; from where on two texts say the same."""

    max_tokens: int | None = 4000
    deduplication_threshold: float | None = 0.95
    detail: Detail = "full"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    consumer_id: str
    sources: tuple[RecordSource, ...] = ()
    update_triggers: tuple[Selector, ...] = ()
    output: OutputRecord = OutputRecord()
    formatting: Formatting = Formatting()
    # A context built from a context built from … stops here.
    max_generation: int = 3

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the output: those configured, and always the consumer's own."""
        return tuple(dict.fromkeys((*(self.output.tags or ("agent:context",)), f"consumer:{self.consumer_id}")))


def config(value: Json) -> Config:
    """Read a configuration from JSON, the context of a `context.config.v1` record."""
    if not isinstance(value, dict):
        raise CallError(f"a configuration is a JSON object, not {as_text(value)[:40]!r}", hint=_HINT)
    if not isinstance(value.get("consumer_id"), str) or not value["consumer_id"]:
        raise CallError("a configuration needs a consumer_id", hint=_HINT)
    _check_keys(value, "the configuration", (*Config.__struct_fields__, "consumer_type", "metadata"))
    output = _object(value, "output")
    _check_keys(output, "output", ("schema_name", "tags", "ttl_s", "ttl_seconds"))
    ttl = {"ttl_s": output["ttl_seconds"]} if "ttl_seconds" in output else {}
    try:
        return Config(
            consumer_id=value["consumer_id"],
            sources=tuple(_source(source, n) for n, source in enumerate(_objects(value, "sources"), 1)),
            update_triggers=tuple(
                selector(row, f"update trigger {n}") for n, row in enumerate(_objects(value, "update_triggers"), 1)
            ),
            output=msgspec.convert({**output, **ttl}, OutputRecord),
            formatting=msgspec.convert(_formatting(_object(value, "formatting")), Formatting),
            max_generation=msgspec.convert(value.get("max_generation", 3), Generations),
        )
    except msgspec.ValidationError as error:
        raise CallError(f"the configuration of {value['consumer_id']!r}: {error}", hint=_HINT) from error


def of_record(record: Record) -> Config:
    """The configuration that a record holds."""
    if record.schema_name != SCHEMA:
        raise CallError(f"{record.id} is a {record.schema_name}, not a {SCHEMA}")
    return config(record.context)


def _objects(value: JsonObject, key: str) -> list[JsonObject]:
    listed = value.get(key) or []
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise CallError(f"{key} is a list of objects, not {as_text(listed)[:40]!r}", hint=_HINT)
    return listed


def _object(value: JsonObject, key: str) -> JsonObject:
    object = value.get(key) or {}
    if not isinstance(object, dict):
        raise CallError(f"{key} is an object, not {as_text(object)[:40]!r}", hint=_HINT)
    return object


def _source(value: JsonObject, number: int) -> RecordSource:
    """A source: its method and bounds, and which records it means (flat or under `filters`)."""
    where = f"source {number}"
    if value.get("method") not in METHODS:
        raise CallError(f"{where} has no method {value.get('method')!r}", hint=f"Use one of {', '.join(METHODS)}.")
    chosen = {key: item for key, item in value.items() if key not in _SOURCE_KEYS} | _object(value, "filters")
    fields = {key: value[key] for key in ("method", "nn", "limit", "exchanges", "floor", "role") if key in value}
    source = msgspec.convert(fields, RecordSource)
    for name, least in (("nn", 1), ("limit", 1), ("floor", 0)):
        if getattr(source, name) is not None and getattr(source, name) < least:
            raise CallError(f"{where}: {name} is at least {least}, not {getattr(source, name)}")
    if value.get("conversation_scope") not in (None, "all", "current"):
        raise CallError(f"{where}: conversation_scope is all or current, not {value['conversation_scope']!r}")
    return msgspec.structs.replace(
        source, selector=selector(chosen, where), current_session=value.get("conversation_scope") == "current"
    )


def _formatting(value: JsonObject) -> JsonObject:
    _check_keys(value, "formatting", (*Formatting.__struct_fields__, "include_metadata"))
    tokens, threshold = value.get("max_tokens", 1), value.get("deduplication_threshold", 1)
    if isinstance(tokens, int) and tokens < 1:
        raise CallError(f"max_tokens is at least 1, not {tokens}")
    if isinstance(threshold, int | float) and not 0 < threshold <= 1:
        raise CallError(f"deduplication_threshold lies above 0 and up to 1, not {threshold}")
    return value


def _check_keys(value: JsonObject, where: str, keys: tuple[str, ...]) -> None:
    unknown = [key for key in value if key not in keys and key != "comment"]
    if unknown:
        raise CallError(f"{where} has no {unknown[0]!r}", hint=f"Use {', '.join(keys)}.")
