"""`replay`: a thread's past and its current cycle in the event protocol, so that a model can continue it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Literal, TypeAlias, get_args

import msgspec

from quire import formats
from quire.errors import CallError, FormatError
from quire.formats import Marks, exact, excerpt, fault, well_formed
from quire.log.entries import check
from quire.log.shapes import ANYTHING, NATURAL, NULL, Fields, ListShape, check_shape, either, one_of
from quire.values import Entry, Json, JsonObject

Delimiter = Literal["$", "§"]
DELIMITERS: tuple[str, ...] = get_args(Delimiter)
MARK_KINDS = ("user", "respond", "think", "call", "result")
# Not events, but content that begins so would read as a heading or a count.
GUARDED = ("===", "(showing last ")

HISTORY = "=== HISTORY ==="
CURRENT = "=== CURRENT ==="


class User(msgspec.Struct, frozen=True, tag="user"):
    text: str


class ReplayedThought(msgspec.Struct, frozen=True, tag="think"):
    text: str


class Respond(msgspec.Struct, frozen=True, tag="respond"):
    text: str


class ReplayedCall(msgspec.Struct, frozen=True, tag="exchange"):
    """A call with its result, in one value, so that neither is shown without the other."""

    name: str
    args: Json
    outcome: str
    content: str = ""


Event: TypeAlias = User | ReplayedThought | Respond | ReplayedCall
_SPOKEN: dict[str, Callable[[str], Event]] = {"user": User, "think": ReplayedThought, "respond": Respond}


def count(events: Iterable[Event]) -> int:
    """The number of events in the text: a call and its result are two."""
    return sum(2 if isinstance(event, ReplayedCall) else 1 for event in events)


class Replay(msgspec.Struct, frozen=True):
    """The events of HISTORY and CURRENT; `left_out` is how many older history events are not shown."""

    history: tuple[Event, ...] = ()
    current: tuple[Event, ...] = ()
    left_out: int = 0
    delimiter: Delimiter = "$"

    def __post_init__(self) -> None:
        if problem := _problem(self):
            raise CallError(problem, hint="Use replay.project(entries), which keeps these rules.")


def _problem(value: Replay) -> str:
    """Why a value cannot be written so that `parse` gives it back; "" where it can."""
    first, rest = value.current[:1], value.current[1:]
    if any(isinstance(event, ReplayedThought) for event in value.history):
        return "HISTORY shows no thinking, but this one holds a think event"
    if value.left_out < 0 or (value.left_out and not value.history):
        return f"left_out is {value.left_out}, but only an older part of a shown HISTORY can be left out"
    if first and not (isinstance(first[0], User) and rest and not any(isinstance(e, User) for e in rest)):
        return "CURRENT is one user event and what followed it, or absent"
    if value.delimiter != "$" and not (value.history or value.current):
        return "an empty replay shows no delimiter"
    return ""


# Rendering: events under two headings, a blank line between them, no newline at the end.


@cache
def marks(delimiter: Delimiter) -> Marks:
    """All texts with a meaning at the start of a line."""
    return Marks([*(f"{delimiter}{kind}:" for kind in MARK_KINDS), *GUARDED])


def render(value: Replay) -> str:
    """The text; empty when there is nothing to show."""
    heading = HISTORY
    if value.left_out:
        number = count(value.history)
        heading += f"\n(showing last {number} of {number + value.left_out} messages)"
    lines: list[str] = []
    for head, events in ((heading, value.history), (CURRENT, value.current)):
        lines += [head, *(render_event(event, value.delimiter) for event in events)] if events else []
    return well_formed("\n\n".join(lines))


def render_event(event: Event, delimiter: Delimiter = "$") -> str:
    """One event behind its mark; a call and its result are two."""
    guard = marks(delimiter).guard
    if not isinstance(event, ReplayedCall):
        return f"{delimiter}{event.__struct_config__.tag}: {guard(event.text)}"
    # A blank line ends the outcome: so its later lines that are empty or only backslashes get one more backslash.
    first, *rest = event.outcome.split("\n")
    result = guard("\n".join([first, *(line if line.strip("\\") else line + "\\" for line in rest)]))
    if event.content:
        result += "\n\n" + guard(event.content)
    return f"{delimiter}call: {call_json(event.name, event.args)}\n\n{delimiter}result: {result}"


def call_json(name: str, args: Json) -> str:
    """A call on one line, as the protocol writes it: {"name": "t", "args": {"a": 1}}."""
    try:
        return json.dumps({"name": name, "args": args}, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        hint = "Use null, numbers, strings, lists and objects."
        raise FormatError(f"the arguments of {name!r} are not JSON: {error}", hint=hint) from error


# Parsing: marks are read at line starts only, everything else is content.

_KINDS = "|".join(MARK_KINDS)
_FIRST = re.compile(rf"^([$§])(?:{_KINDS}): ", re.MULTILINE)
_COUNT = re.compile(r"\n\(showing last [0-9]{1,18} of ([0-9]{1,18}) messages\)")
_HINT = "A replay is `=== HISTORY ===` and `=== CURRENT ===`, each with events behind $user:, $call: and so on."


@cache
def _tokens(delimiter: Delimiter) -> re.Pattern[str]:
    return re.compile(rf"^(?:{HISTORY}|{CURRENT}|{re.escape(delimiter)}({_KINDS}): )", re.MULTILINE)


def parse(text: str) -> Replay:
    """The value of a rendered text; the delimiter is the one its first event has."""
    if not well_formed(text):
        return Replay()
    if not text.startswith((HISTORY, CURRENT)):
        raise fault(text, 0, f"expected a heading, found {excerpt(text, 0)}", _HINT)
    first = _FIRST.search(text)
    delimiter: Delimiter = "§" if first and first[1] == "§" else "$"
    reader = _ReplayReader(text, delimiter)
    try:
        value = reader.read()
    except CallError as error:  # no value has this text
        raise fault(text, 0, str(error), _HINT) from error
    exact(text, render(value))
    return value


class _ReplayReader:
    """The text's headings and marks in order, and the content behind each."""

    def __init__(self, text: str, delimiter: Delimiter) -> None:
        self.text, self.delimiter = text, delimiter
        self.tokens = list(_tokens(delimiter).finditer(text))
        self.unguard = marks(delimiter).unguard

    def read(self) -> Replay:
        sections: dict[str, list[Event]] = {HISTORY: [], CURRENT: []}
        total, events, at = 0, sections[HISTORY], 0
        while at < len(self.tokens):
            token = self.tokens[at]
            if token[1]:
                events.append(self._event(at))
            else:
                counted = _COUNT.match(self.text, token.end())
                events, total = sections[token[0]], int(counted[1]) if counted else total
            at += 2 if token[1] == "call" else 1
        left_out = total - count(sections[HISTORY]) if total else 0
        return Replay(tuple(sections[HISTORY]), tuple(sections[CURRENT]), left_out, self.delimiter)

    def _event(self, at: int) -> Event:
        kind, body = self.tokens[at][1], self._body(at)
        if kind == "call":
            return self._exchange(at, body)
        if kind == "result":
            raise self._fault(at, "a result without its call")
        return _SPOKEN[kind](self.unguard(body))

    def _exchange(self, at: int, body: str) -> ReplayedCall:
        if at + 1 == len(self.tokens) or self.tokens[at + 1][1] != "result":
            raise self._fault(at, "a call without its result")
        outcome, _, content = self._body(at + 1).partition("\n\n")
        call = self._call(at, body)
        first, *rest = outcome.split("\n")
        plain = "\n".join([first, *(line if line.strip("\\") else line[1:] for line in rest)])
        return ReplayedCall(call["name"], call["args"], self.unguard(plain), self.unguard(content))

    def _call(self, at: int, body: str) -> Json:
        try:
            call = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._fault(at, f"the call is not JSON ({error})") from error
        if not isinstance(call, dict) or set(call) != {"name", "args"} or not isinstance(call["name"], str):
            raise self._fault(at, "a call is an object with name and args")
        return call

    def _body(self, at: int) -> str:
        """The content between a mark and the blank line before the next one."""
        last = at + 1 == len(self.tokens)
        return self.text[self.tokens[at].end() : None if last else self.tokens[at + 1].start() - 2]

    def _fault(self, at: int, problem: str) -> Exception:
        return fault(self.text, self.tokens[at].start(), problem, _HINT)


# Projection from a thread. Left out are all kinds but user, think, call, result and respond; attachments and images;
# thinking before the last user entry; history events before the window; whether an outcome was an error.

WINDOW = 15

INPUT = Fields(
    {"entries": ListShape(ANYTHING)},
    {"window": either(NATURAL, NULL), "delimiter": one_of(DELIMITERS), "history": NATURAL, "left_out": NATURAL},
)


def project(entries: Iterable[Entry], window: int | None = WINDOW, delimiter: Delimiter = "$") -> Replay:
    """HISTORY is the last `window` events (None: all) before the last user entry, CURRENT is that entry and all behind it."""
    if window is not None and window < 0:
        raise CallError(f"window is {window}", hint="Give 0 or more events, or None for all.")
    events = [event for entry in formats.pair_results(entries) if (event := _event(entry))]
    users = [at for at, event in enumerate(events) if isinstance(event, User)]
    if not users:
        return Replay()
    past = [event for event in events[: users[-1]] if not isinstance(event, ReplayedThought)]
    recent = past if window is None else _last(past, window)
    current = events[users[-1] :]
    return _replay(recent, current if len(current) > 1 else (), count(past) - count(recent), delimiter)


def read(data: Json) -> Replay:
    """The value of the JSON object that `quire format replay` takes, or of the one that `--parse` prints."""
    fields = check_shape(INPUT, data)
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
    """A value as JSON that `read` accepts: entries, how many of them are HISTORY, and how many are left out."""
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
        if not isinstance(event, ReplayedCall):
            out.append({"kind": event.__struct_config__.tag, "text": event.text})
            continue
        calls += 1
        id = f"call-{calls}"
        out.append({"kind": "call", "call_id": id, "name": event.name, "args": event.args})
        out.append({"kind": "result", "call_id": id, "outcome": event.outcome})
        if event.content:
            out[-1]["content"] = event.content
    return out


def _event(entry: Entry | formats.CallPair) -> Event | None:
    if isinstance(entry, formats.CallPair):
        return ReplayedCall(entry.name, entry.args, entry.outcome, entry.content)
    return _SPOKEN[entry.kind](entry.text) if entry.kind in _SPOKEN else None


def _last(events: Sequence[Event], window: int) -> Sequence[Event]:
    """The last `window` events, or one more where a call would be cut from its result."""
    room, at = window, len(events)
    while at and room > 0:
        at -= 1
        room -= count(events[at : at + 1])
    return events[at:]


def _sections(entries: list[Entry], history: int, left_out: int, delimiter: Delimiter) -> Replay:
    """A replay that shows all entries, the first `history` of them under HISTORY."""
    events = [event for entry in formats.pair_results(entries) if (event := _event(entry))]
    older = accumulate((count([event]) for event in events), initial=0)
    split = next((at for at, number in enumerate(older) if number >= history), len(events))
    try:
        return _replay(events[:split], events[split:], left_out, delimiter)
    except CallError as error:
        raise FormatError(str(error), hint="Leave history and left_out away to show a thread.") from error


def _replay(history: Sequence[Event], current: Sequence[Event], left_out: int, delimiter: Delimiter) -> Replay:
    has_events = bool(history or current)
    return Replay(tuple(history), tuple(current), left_out if history else 0, delimiter if has_events else "$")


def _entry(body: Json, at: int) -> Entry:
    try:
        return check(body)
    except FormatError as error:
        raise FormatError(f"entries[{at}]: {error}", hint=error.hint) from error
