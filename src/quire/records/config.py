"""What a consumer wants its context built from (`context.config.v1`), as one frozen value."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

import msgspec

from quire.errors import CallError
from quire.formats.clean import Detail
from quire.records.paths import as_text
from quire.records.record import Record
from quire.records.selector import Selector, selector
from quire.values import Json, JsonObject

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
        return tuple(
            dict.fromkeys((*(self.output.tags or ("agent:context",)), f"consumer:{self.consumer_id}"))
        )


def config(value: Json) -> Config:
    """Read a configuration from JSON, the context of a `context.config.v1` record."""
    if not isinstance(value, dict):
        raise CallError(f"a configuration is a JSON object, not {as_text(value)[:40]!r}", hint=_HINT)
    if not isinstance(value.get("consumer_id"), str) or not value["consumer_id"]:
        raise CallError("a configuration needs a consumer_id", hint=_HINT)
    _known(value, "the configuration", (*Config.__struct_fields__, "consumer_type", "metadata"))
    try:
        return Config(
            consumer_id=value["consumer_id"],
            sources=tuple(_source(each, n) for n, each in enumerate(_objects(value, "sources"), 1)),
            update_triggers=tuple(
                selector(each, f"update trigger {n}")
                for n, each in enumerate(_objects(value, "update_triggers"), 1)
            ),
            output=msgspec.convert(_output(_object(value, "output")), OutputRecord),
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
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise CallError(f"{key} is a list of objects, not {as_text(listed)[:40]!r}", hint=_HINT)
    return listed


def _object(value: JsonObject, key: str) -> JsonObject:
    found = value.get(key) or {}
    if not isinstance(found, dict):
        raise CallError(f"{key} is an object, not {as_text(found)[:40]!r}", hint=_HINT)
    return found


def _source(value: JsonObject, number: int) -> RecordSource:
    """A source: its method and bounds, and which records it means (flat or under `filters`)."""
    where = f"source {number}"
    if value.get("method") not in METHODS:
        raise CallError(
            f"{where} has no method {value.get('method')!r}", hint=f"Use one of {', '.join(METHODS)}."
        )
    chosen = {key: item for key, item in value.items() if key not in _SOURCE_KEYS} | _object(value, "filters")
    given = {
        key: value[key] for key in ("method", "nn", "limit", "exchanges", "floor", "role") if key in value
    }
    source = msgspec.convert(given, RecordSource)
    for name, least in (("nn", 1), ("limit", 1), ("floor", 0)):
        if getattr(source, name) is not None and getattr(source, name) < least:
            raise CallError(f"{where}: {name} is at least {least}, not {getattr(source, name)}")
    if value.get("conversation_scope") not in (None, "all", "current"):
        raise CallError(f"{where}: conversation_scope is all or current, not {value['conversation_scope']!r}")
    return msgspec.structs.replace(
        source, selector=selector(chosen, where), current_session=value.get("conversation_scope") == "current"
    )


def _output(value: JsonObject) -> JsonObject:
    _known(value, "output", ("schema_name", "tags", "ttl_s", "ttl_seconds"))
    return {("ttl_s" if key == "ttl_seconds" else key): item for key, item in value.items()}


def _formatting(value: JsonObject) -> JsonObject:
    _known(value, "formatting", (*Formatting.__struct_fields__, "include_metadata"))
    tokens, threshold = value.get("max_tokens", 1), value.get("deduplication_threshold", 1)
    if isinstance(tokens, int) and tokens < 1:
        raise CallError(f"max_tokens is at least 1, not {tokens}")
    if isinstance(threshold, int | float) and not 0 < threshold <= 1:
        raise CallError(f"deduplication_threshold lies above 0 and up to 1, not {threshold}")
    return value


def _known(value: JsonObject, where: str, keys: tuple[str, ...]) -> None:
    unknown = [key for key in value if key not in keys and key != "comment"]
    if unknown:
        raise CallError(f"{where} has no {unknown[0]!r}", hint=f"Use {', '.join(keys)}.")
