"""What comes from a provider, as plain JSON, and what a broken stream leaves behind."""

from __future__ import annotations

import base64
from enum import Enum
from typing import Any

import msgspec

from quire.errors import FormatError, ProviderError
from quire.values import Entry, Json, JsonObject, Usage

# No reply of any model comes near these; a stream that does is not one.
LIMIT_BYTES = 64 * 1024 * 1024
LIMIT_BLOCKS = 10_000


def plain(value: Any) -> Json:
    """JSON of an SDK's object or dictionary; bytes become base64, as they are on the wire."""
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", exclude_none=True, by_alias=True, warnings=False)
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    if isinstance(value, Enum):
        return value.value
    return value


def object_in(value: Any, what: str) -> JsonObject:
    """A JSON object that came from outside, or an error that says what came instead."""
    value = plain(value)
    if not isinstance(value, dict):
        raise FormatError(
            f"{what} is {type(value).__name__}, not an object", hint="Hand over the decoded JSON."
        )
    return value


def sub(holder: JsonObject, field: str) -> JsonObject:
    """An object inside another; absent and null are an empty one."""
    value = holder.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise FormatError(
            f"{field} is {type(value).__name__}, not an object", hint="Hand over the decoded JSON."
        )
    return value


def listed(holder: JsonObject, field: str) -> list[Json]:
    """A list inside an object; absent and null are an empty one."""
    value = holder.get(field)
    if value is None:
        return []
    if not isinstance(value, list):
        raise FormatError(
            f"{field} is {type(value).__name__}, not a list", hint="Hand over the decoded JSON."
        )
    return value


def objects(holder: JsonObject, field: str) -> list[JsonObject]:
    """A list of objects inside an object."""
    values = listed(holder, field)
    if wrong := [value for value in values if not isinstance(value, dict)]:
        raise FormatError(
            f"{field} holds {type(wrong[0]).__name__}, not objects", hint="Hand over the decoded JSON."
        )
    return values


def bytes_of(text: Json) -> bytes:
    """What base64 text stands for, in either of its alphabets."""
    try:
        return base64.b64decode(str(text).translate(str.maketrans("-_", "+/")), validate=True)
    except ValueError as error:
        raise FormatError(f"not base64: {str(text)[:40]!r}", hint="Give bytes, or their base64.") from error


def without_nulls(block: JsonObject) -> JsonObject:
    """A block as it can be sent back: an SDK's absent fields are no part of it."""
    return {key: value for key, value in block.items() if value is not None}


def number_in(event: JsonObject, field: str) -> int:
    """A block's place in a streamed reply."""
    value = event.get(field)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < LIMIT_BLOCKS:
        raise FormatError(
            f"stream event with {field} {value!r}", hint="stream.partial() holds what came before."
        )
    return value


def text_in(holder: JsonObject, field: str) -> str:
    """A text that may be absent."""
    value = holder.get(field)
    if value is not None and not isinstance(value, str):
        raise FormatError(
            f"{field} is {type(value).__name__}, not text", hint="stream.partial() holds what came before."
        )
    return value or ""


class Partial(msgspec.Struct, frozen=True):
    """What a stream has given so far: finished entries, and the pieces that were cut.

    `unfinished` holds {"kind": "respond"|"think"|"call", "text": …} (and "name" of a call); none of it can
    go back to the provider as it is.
    """

    entries: tuple[Entry, ...]
    unfinished: tuple[JsonObject, ...] = ()
    usage: Usage = Usage()
    stop: str = ""
    id: str = ""
    model: str = ""
    # Events of kinds that are not known here; they were passed over.
    unknown: int = 0


class Tally:
    """Counts what a stream received and refuses what no reply can be."""

    def __init__(self) -> None:
        self.bytes = 0
        self.unknown = 0

    def add(self, text: str) -> str:
        self.bytes += len(text)
        if self.bytes > LIMIT_BYTES:
            raise FormatError(
                f"a streamed reply of more than {LIMIT_BYTES:,} characters",
                hint="stream.partial() holds what came before.",
            )
        return text


def cut(missing: str) -> ProviderError:
    """The error of a stream that ended too early."""
    return ProviderError(
        f"the stream ended before {missing}",
        retryable=True,
        hint="stream.partial() holds what was received; send the request again, or ask to continue.",
    )


# What providers call failures that pass by themselves.
_PASSING = ("overload", "rate", "thrott", "timeout", "unavail", "server", "internal", "exhausted")


def refused(error: Json) -> ProviderError:
    """The error that a reply or a stream is itself."""
    given = error if isinstance(error, dict) else {"message": error}
    named = [str(given[field]) for field in ("status", "code", "type") if given.get(field)]
    kind = next((name for name in named if name != "error"), "error")
    return ProviderError(
        f"{kind}: {given.get('message') or 'no message'}",
        retryable=any(word in name.lower() for name in named for word in _PASSING),
        hint="stream.partial() holds what was received before.",
    )
