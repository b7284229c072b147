"""From a thread to what a replay shows of it. What is left out here:

every kind but user, think, call, result and respond; attachments and images; thinking before the
last user entry; history events before the window; whether an outcome was an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

from quire.errors import CallError, FormatError
from quire.formats import pairing
from quire.formats.replay.value import (
    DELIMITERS,
    Delimiter,
    Event,
    Exchange,
    Replay,
    Respond,
    Think,
    User,
    count,
)
from quire.log.entries import check
from quire.log.inputs import checked
from quire.log.shapes import ANYTHING, NATURAL, NULL, Fields, Listed, either, one_of
from quire.values import Entry, Json, JsonObject

WINDOW = 15

INPUT = Fields(
    {"entries": Listed(ANYTHING)},
    {
        "window": either(NATURAL, NULL),
        "delimiter": one_of(DELIMITERS),
        "history": NATURAL,
        "left_out": NATURAL,
    },
)


def project(entries: Iterable[Entry], window: int | None = WINDOW, delimiter: Delimiter = "$") -> Replay:
    """HISTORY is the last `window` events (None: all) before the last user entry, CURRENT what came since."""
    if window is not None and window < 0:
        raise CallError(f"window is {window}", hint="Give 0 or more events, or None for all.")
    events = [event for one in pairing.paired(entries) if (event := _event(one))]
    users = [at for at, event in enumerate(events) if isinstance(event, User)]
    if not users:
        return Replay()
    past = [event for event in events[: users[-1]] if not isinstance(event, Think)]
    shown = past if window is None else _last(past, window)
    current = events[users[-1] :]
    return _replay(shown, current if len(current) > 1 else (), count(past) - count(shown), delimiter)


def read(data: Json) -> Replay:
    """The value of the JSON object that `quire format replay` takes, or of the one that `--parse` prints."""
    fields = checked(INPUT, data)
    entries = [_entry(body, at) for at, body in enumerate(fields["entries"])]
    delimiter = fields.get("delimiter", "$")
    if "history" in fields:
        if "window" in fields:
            raise FormatError("window and history do not go together", hint="history says what to show.")
        return _sections(entries, fields["history"], fields.get("left_out", 0), delimiter)
    if fields.get("left_out"):
        raise FormatError("left_out needs history", hint="history is how many of the entries are HISTORY.")
    return project(entries, fields.get("window", WINDOW), delimiter)


def to_json(value: Replay) -> JsonObject:
    """A value as JSON that `read` takes back: entries, how many of them are HISTORY, and what is left out."""
    return {
        "entries": to_entries([*value.history, *value.current]),
        "history": count(value.history),
        "left_out": value.left_out,
        "delimiter": value.delimiter,
    }


def to_entries(events: Iterable[Event]) -> list[JsonObject]:
    """Events as entries; calls are numbered call-1, call-2, …"""
    out: list[JsonObject] = []
    calls = 0
    for event in events:
        if not isinstance(event, Exchange):
            out.append({"kind": event.__struct_config__.tag, "text": event.text})
            continue
        calls += 1
        id = f"call-{calls}"
        out.append({"kind": "call", "call_id": id, "name": event.name, "args": event.args})
        out.append({"kind": "result", "call_id": id, "outcome": event.outcome})
        if event.content:
            out[-1]["content"] = event.content
    return out


def _event(one: Entry | pairing.Exchange) -> Event | None:
    if isinstance(one, pairing.Exchange):
        return Exchange(one.name, one.args, one.outcome, one.content)
    match one.kind:
        case "user":
            return User(one.text)
        case "think":
            return Think(one.text)
        case "respond":
            return Respond(one.text)
    return None


def _last(events: Sequence[Event], window: int) -> Sequence[Event]:
    """The last `window` events; one more where the cut would part a call from its result."""
    room, at = window, len(events)
    while at and room > 0:
        at -= 1
        room -= count(events[at : at + 1])
    return events[at:]


def _sections(entries: list[Entry], history: int, left_out: int, delimiter: Delimiter) -> Replay:
    """Entries that are shown as they are, the first `history` of them under HISTORY."""
    events = [event for one in pairing.paired(entries) if (event := _event(one))]
    older = accumulate((count([event]) for event in events), initial=0)
    split = next((at for at, shown in enumerate(older) if shown >= history), len(events))
    try:
        return _replay(events[:split], events[split:], left_out, delimiter)
    except CallError as error:
        raise FormatError(str(error), hint="Leave history and left_out away to show a thread.") from error


def _replay(
    history: Sequence[Event], current: Sequence[Event], left_out: int, delimiter: Delimiter
) -> Replay:
    shown = bool(history or current)
    return Replay(tuple(history), tuple(current), left_out if history else 0, delimiter if shown else "$")


def _entry(body: Json, at: int) -> Entry:
    try:
        return check(body)
    except FormatError as error:
        raise FormatError(f"entries[{at}]: {error}", hint=error.hint) from error
