"""Where an entry came from: its `wire` field, written on import and read again on export.

The first entry of a message holds the whole message verbatim, the further ones say `more`; so a list of
messages goes out as it came in, whatever the entries between can express.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TypeAlias

import msgspec

from quire.values import Entry, Json, JsonObject

Read: TypeAlias = Callable[[JsonObject], list[Entry]]


def tagged(entries: Iterable[Entry], format: str, message: JsonObject, model: str = "") -> list[Entry]:
    """The entries of one message, with the message kept on the first of them."""
    origin: JsonObject = {"format": format, "model": model} if model else {"format": format}
    at = _recorded_at(message)
    out = []
    for place, entry in enumerate(entries):
        kept = {"message": message} if place == 0 else {"more": True}
        body = {**entry.body, "wire": {**origin, **kept, **entry.wire}}
        out.append(msgspec.structs.replace(entry, body=body if at is None else {**body, "at": at}))
    return out


def regrouped(entries: Iterable[Entry], format: str, read: Read) -> Iterator[JsonObject | list[Entry]]:
    """Whole messages of this format as they came in, and runs of entries that have to be written anew."""
    run: list[Entry] = []
    for group in _groups(entries):
        message = group[0].wire.get("message")
        if group[0].wire.get("format") == format and message is not None and len(read(message)) == len(group):
            if run:
                yield run
            yield message
            run = []
        else:
            run.extend(group)
    if run:
        yield run


def _groups(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    group: list[Entry] = []
    for entry in entries:
        if group and not entry.wire.get("more"):
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


def parsed_arguments(text: str) -> tuple[Json, JsonObject]:
    """A call's arguments and what `wire` must keep: the string itself, unless it can be written again."""
    if not text:
        return {}, {}
    try:
        args = json.loads(text, parse_constant=_refuse)
        written = compact(args)
        written.encode()  # an escaped lone surrogate parses, but no log can hold it
    except (ValueError, RecursionError):
        return text, {"arguments": text}
    return args, {} if written == text else {"arguments": text}


def compact(value: Json) -> str:
    """JSON as models write arguments: no spaces, keys in the order given, no ASCII escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant} is not JSON")


def _recorded_at(message: JsonObject) -> int | None:
    """Milliseconds of a recorder's `_ts` (ISO 8601 or a number), if there is one."""
    stamp = message.get("_ts")
    if isinstance(stamp, int | float) and not isinstance(stamp, bool):
        return int(stamp)
    if not isinstance(stamp, str):
        return None
    try:
        return round(datetime.fromisoformat(stamp).timestamp() * 1000)
    except ValueError:
        return None
