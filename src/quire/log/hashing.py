"""Canonical JSON and the chained ids of entries. Hashing only: what is stored keeps its own order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator

import msgspec

from quire.errors import FormatError
from quire.log.shapes import NOT_UTF8_HINT
from quire.values import Entry, Json, JsonObject

_writer = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(value: Json) -> bytes:
    """Sorted keys, no spaces, UTF-8, no NaN: {"b": 1, "a": "é"} -> b'{"a":"\\xc3\\xa9","b":1}'."""
    try:
        return _writer.encode(value).encode()
    except UnicodeEncodeError as error:
        raise FormatError(
            f"text holds a lone surrogate ({error.object[error.start]!r})", hint=NOT_UTF8_HINT
        ) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(
            f"not JSON: {error}", hint="Use null, numbers, strings, lists and objects."
        ) from error


def sha256_hex(data: str | bytes) -> str:
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


def entry_id(parent: str, body: JsonObject) -> str:
    """The id of an entry behind `parent` (empty for the first); the thread's name is no part of it."""
    return "sha256:" + sha256_hex(parent.encode() + b"\n" + canonical(body))


def chain(entries: Iterable[Entry], parent: str = "", seq: int = 0) -> Iterator[Entry]:
    """Give each entry the id and seq it has directly behind the one before it."""
    for entry in entries:
        seq += 1
        parent = entry_id(parent, entry.body)
        yield msgspec.structs.replace(entry, seq=seq, id=parent)
