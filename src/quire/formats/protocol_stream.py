"""Reads the event protocol from a model's reply as it streams in: marks at line starts, in any case, split anywhere.

The events do not depend on how the text is split, and the `raw` of all pieces, joined, is the text. Whatever is not a
mark is text (`price is §5`); text before the first mark is a `respond`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache

import msgspec

from quire.errors import FormatError
from quire.formats import WHITE, fault
from quire.formats.replay import GUARDED, MARK_KINDS, Delimiter
from quire.values import Json


class ProtocolDelta(msgspec.Struct, frozen=True):
    """The next piece of event number `index`: its text, and the raw characters it came from (marks and gaps too)."""

    index: int
    kind: str
    text: str
    raw: str


class ProtocolEvent(msgspec.Struct, frozen=True):
    """A whole event; `text` is without the mark, one space behind it, and the blank line before the next mark."""

    kind: str
    text: str
    raw: str


def read(text: str, delimiter: Delimiter = "$") -> list[ProtocolEvent]:
    """The events of a whole text."""
    stream = ProtocolStream(delimiter)
    return merge([*stream.feed(text), *stream.finish()])


def merge(pieces: Iterable[ProtocolDelta]) -> list[ProtocolEvent]:
    """Join pieces to whole events."""
    texts: dict[int, tuple[str, list[str], list[str]]] = {}
    for piece in pieces:
        _, text, raw = texts.setdefault(piece.index, (piece.kind, [], []))
        text.append(piece.text)
        raw.append(piece.raw)
    return [ProtocolEvent(kind, "".join(text), "".join(raw)) for kind, text, raw in texts.values()]


def call_of(event: ProtocolEvent) -> tuple[str, Json]:
    """Name and arguments of a call event; invalid JSON is an error."""
    hint = 'A call is one line: {"name": "tool", "args": {…}}.'
    try:
        call = json.loads(event.text)
    except json.JSONDecodeError as error:
        raise fault(event.text, error.pos, f"the call is not JSON: {error.msg}", hint) from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the call is not JSON: {error}", hint=hint) from error
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise FormatError(f"the call has no name: {event.text[:80]!r}", hint=hint)
    return call["name"], call.get("args", {})


# The most characters that are held back as the possible beginning of a mark; no mark is nearly as long.
_MOST_WAITING = 4096


@cache
def _patterns(delimiter: Delimiter) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Two patterns: a mark with the white space around it (or an escaped one), and the end of a text that may become a mark."""
    white, sign = WHITE if delimiter == "§" else "\n", re.escape(delimiter)
    marks = [*(f"{delimiter}{kind}:" for kind in MARK_KINDS), *GUARDED]
    either = "|".join(map(re.escape, marks))
    begun = [[re.escape(mark[:end]) for end in range(len(mark) - 1, 0, -1)] for mark in marks]
    some, signed = ("|".join(part for parts in rows for part in parts) for rows in (begun, begun[: len(MARK_KINDS)]))
    mark = rf"{sign}(?:{'|'.join(MARK_KINDS)}):"
    # A mark begins a line (§: follows any white space). A backslash that escapes a mark begins a line or follows a mark.
    gap, line = rf"(?:\n\n?|[{white}])?", r"(?<![^\n])"
    token = (
        rf"(?:(?P<gap>{gap})(?<![^{white}])(?P<mark>{mark})(?P<space> ?)|{line})(?:(?P<run>\\*)\\(?P<said>{either}))?"
    )
    waiting = rf"(?:{gap}(?:(?<![^{white}])(?:{mark} ?(?:\\+(?:{some})?)?|{signed}))?|{line}\\+(?:{some})?)\Z"
    # re.ASCII: otherwise the Kelvin sign would match k.
    return re.compile(token, re.IGNORECASE | re.ASCII), re.compile(waiting, re.IGNORECASE | re.ASCII)


class ProtocolStream:
    """Reads one reply; only characters whose meaning depends on the next ones are held back."""

    def __init__(self, delimiter: Delimiter = "$") -> None:
        self._token, self._may_be_one = _patterns(delimiter)
        # The last character read and the characters held back behind it; a text begins like a line.
        self._waiting = "\n"
        self._index, self._kind = -1, "respond"
        self._text: list[str] = []
        self._raw: list[str] = []
        self._out: list[ProtocolDelta] = []

    def feed(self, chunk: str) -> list[ProtocolDelta]:
        """The pieces that are certain after this chunk."""
        text = self._waiting + chunk
        waits = self._may_be_one.search(text, max(1, len(text) - _MOST_WAITING))
        return self._read(text, waits.start() if waits else len(text))

    def finish(self) -> list[ProtocolDelta]:
        """The last pieces: whatever was held back is text."""
        return self._read(self._waiting, len(self._waiting))

    def _read(self, text: str, end: int) -> list[ProtocolDelta]:
        at = 1
        for token in self._token.finditer(text, 1):
            if token.start() >= end:
                break
            if token["mark"] is None and token["said"] is None:
                continue
            self._say(text[at : token.start()])
            if token["mark"] is not None:
                self._close()
                self._index, self._kind = self._index + 1, token["mark"][1:-1].lower()
                self._raw.append(token["gap"] + token["mark"] + token["space"])
            if token["said"] is not None:
                # An escaped mark is text, without the backslash.
                self._say(token["run"])
                self._raw.append("\\")
                self._say(token["said"])
            at = token.end()
        # The space behind a mark belongs to that mark, even where it could begin another one.
        end = max(at, end)
        self._say(text[at:end])
        self._waiting = text[end - 1 :]
        self._close()
        deltas, self._out = self._out, []
        return deltas

    def _say(self, text: str) -> None:
        if text:
            self._index = max(self._index, 0)
            self._text.append(text)
            self._raw.append(text)

    def _close(self) -> None:
        if self._raw:
            self._out.append(ProtocolDelta(self._index, self._kind, "".join(self._text), "".join(self._raw)))
            self._text, self._raw = [], []
