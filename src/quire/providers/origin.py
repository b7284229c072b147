"""Where an entry came from: its `wire` field, written on import and read again on export.

The first entry of a message holds the whole message verbatim, the further ones say `more`; so a list of
messages goes out as it came in, whatever the entries between can express.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TypeAlias

import msgspec

from quire.errors import FormatError
from quire.values import Entry, JsonObject

# From the entries of one message and a format to the messages they came from, if they came in it.
Original: TypeAlias = Callable[[list[Entry], str], list[JsonObject] | None]


class Whole(msgspec.Struct, frozen=True):
    """Messages to go out as they came in."""

    messages: list[JsonObject]


def tagged(entries: Iterable[Entry], format: str, message: JsonObject, model: str = "") -> list[Entry]:
    """The entries of one imported message, with the message kept on the first of them."""
    out = [
        _with_wire(entry, {**_origin(format, model), **({"message": message} if first else {"more": True})})
        for first, entry in _marked_first(entries)
    ]
    at = _recorded_at(message)
    return out if at is None else [msgspec.structs.replace(one, body={**one.body, "at": at}) for one in out]


def said(
    entries: Iterable[Entry],
    format: str,
    model: str,
    names: Mapping[str, str] | None = None,
    *,
    begun: bool = False,
) -> list[Entry]:
    """Entries of one reply (`begun`: not its first); `names` turns respelled tool names back."""
    return [
        _with_wire(
            _renamed(entry, names or {}),
            {**_origin(format, model), **({"more": True} if begun or not first else {})},
        )
        for first, entry in _marked_first(entries)
    ]


def regrouped(entries: Iterable[Entry], format: str, original: Original) -> Iterator[Whole | list[Entry]]:
    """Whole messages of this format as they came in, and runs of entries that have to be written anew."""
    run: list[Entry] = []
    for group in _groups(entries):
        if (messages := original(group, format)) is None:
            run.extend(group)
            continue
        if run:
            yield run
        yield Whole(messages)
        run = []
    if run:
        yield run


def whole_message(read: Callable[[JsonObject], list[Entry]]) -> Original:
    """How to find the message that a group of entries came from: kept on the first, if none is missing."""

    def original(group: list[Entry], format: str) -> list[JsonObject] | None:
        wire = group[0].wire
        message = wire.get("message") if wire.get("format") == format else None
        return [message] if message is not None and len(read(message)) == len(group) else None

    return original


def _groups(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    group: list[Entry] = []
    for entry in entries:
        if group and not entry.wire.get("more"):
            yield group
            group = []
        group.append(entry)
    if group:
        yield group


def identified(entries: Iterable[Entry], made_up: bool = False) -> Iterator[Entry]:
    """Entries of a reply, whose calls must have ids: without one no result could answer them."""
    for place, entry in enumerate(entries, 1):
        if entry.kind != "call" or entry.call_id:
            yield entry
        elif made_up:
            yield msgspec.structs.replace(entry, body={**entry.body, "call_id": f"call-{place}"})
        else:
            raise FormatError(
                f"a call of {entry.name!r} without an id",
                hint="The reply is broken; what came before it is kept.",
            )


def _marked_first(entries: Iterable[Entry]) -> Iterator[tuple[bool, Entry]]:
    for place, entry in enumerate(entries):
        yield place == 0, entry


def _origin(format: str, model: str) -> JsonObject:
    return {"format": format, "model": model} if model else {"format": format}


def _with_wire(entry: Entry, origin: JsonObject) -> Entry:
    return msgspec.structs.replace(entry, body={**entry.body, "wire": {**origin, **entry.wire}})


def _renamed(entry: Entry, names: Mapping[str, str]) -> Entry:
    if entry.kind != "call" or entry.name not in names:
        return entry
    return msgspec.structs.replace(entry, body={**entry.body, "name": names[entry.name]})


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
