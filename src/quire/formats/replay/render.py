"""A replay as text: events under two headings, one blank line between them, no newline at the end."""

from __future__ import annotations

import json
from functools import cache

from quire.errors import FormatError
from quire.formats.replay.value import (
    CURRENT,
    GUARDED,
    HISTORY,
    MARK_KINDS,
    Delimiter,
    Event,
    Exchange,
    Replay,
    count,
)
from quire.formats.text import Marks, well_formed
from quire.values import Json


@cache
def marks(delimiter: Delimiter) -> Marks:
    """Everything that has a meaning at the start of a line."""
    return Marks([*(f"{delimiter}{kind}:" for kind in MARK_KINDS), *GUARDED])


def render(value: Replay) -> str:
    """The text; empty when there is nothing to show."""
    sections = [_history(value), _section(CURRENT, value.current, value.delimiter)]
    return well_formed("\n\n".join(section for section in sections if section))


def render_event(event: Event, delimiter: Delimiter = "$") -> str:
    """One event behind its mark; a call and its result are two."""
    guard = marks(delimiter).guard
    if not isinstance(event, Exchange):
        return f"{delimiter}{event.__struct_config__.tag}: {guard(event.text)}"
    result = guard(guard_outcome(event.outcome))
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


def guard_outcome(outcome: str) -> str:
    """Every line after the first that is empty or only backslashes gets one more backslash."""
    first, *rest = outcome.split("\n")
    return "\n".join([first, *(line if line.strip("\\") else line + "\\" for line in rest)])


def _history(value: Replay) -> str:
    heading = HISTORY
    if value.left_out:
        shown = count(value.history)
        heading += f"\n(showing last {shown} of {shown + value.left_out} messages)"
    return _section(heading, value.history, value.delimiter)


def _section(heading: str, events: tuple[Event, ...], delimiter: Delimiter) -> str:
    if not events:
        return ""
    return "\n\n".join([heading, *(render_event(event, delimiter) for event in events)])
