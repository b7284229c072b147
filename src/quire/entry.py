"""Entries as text and as bytes: what a result says, canonical JSON, and the chained ids of the log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator

import msgspec

from quire.errors import FormatError
from quire.values import Entry, Json, JsonObject

# What stands for the result of a call that was cut off.
INTERRUPTED = "(interrupted: no result was recorded)"


def result_text(result: Entry) -> str:
    """A result's outcome and content as one text, with a blank line between; a bare failure says that it is one."""
    return result_words(result) or ("Error" if result.body.get("error") else "")


def result_words(result: Entry) -> str:
    """The same, empty where a result says nothing."""
    outcome, content = result.body.get("outcome"), result.body.get("content")
    if content is not None and not isinstance(content, str):
        content = json.dumps(content, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return "\n\n".join(filter(None, (outcome, content)))


def whole_characters(text: str) -> str:
    """Text that UTF-8 can hold: two halves of a character are put together, one alone becomes U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# Canonical JSON and the chained ids of entries. Hashing only: what is stored keeps its own order.

NOT_UTF8_HINT = "Decode the bytes with errors='replace' before handing them over."
_writer = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_fast_writer = msgspec.json.Encoder(order="sorted")
_STRINGS, _PLAIN = frozenset({str}), frozenset({str, int, bool, type(None)})


def is_plain(value: Json) -> bool:
    """Whether a value holds only what both writers write alike: no fraction, and no kind that JSON has not."""
    kind = type(value)
    if kind is dict:
        return _STRINGS.issuperset(map(type, value)) and _are_plain(value.values())
    return _are_plain(value) if kind is list else kind in _PLAIN


def _are_plain(values: Collection[Json]) -> bool:
    return _PLAIN.issuperset(map(type, values)) or all(is_plain(value) for value in values if type(value) not in _PLAIN)


def canonical(value: Json) -> bytes:
    """Sorted keys, no spaces, UTF-8, no NaN: {"b": 1, "a": "é"} -> b'{"a":"\\xc3\\xa9","b":1}'."""
    try:
        if is_plain(value):
            return _fast_writer.encode(value)
    except (ValueError, OverflowError, RecursionError):
        pass  # an integer of more than 64 bits, or what the other one says is wrong
    try:
        return _writer.encode(value).encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"text holds a lone surrogate ({error.object[error.start]!r})", hint=NOT_UTF8_HINT) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}", hint="Use null, numbers, strings, lists and objects.") from error


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
        yield Entry(entry.kind, entry.body, seq, parent)
