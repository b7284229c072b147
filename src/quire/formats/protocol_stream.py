"""The event protocol as a model writes it, token by token: marks at line starts, any case, split anywhere.

Feeding a text in any pieces gives the same events as feeding it whole, and nothing is lost: the `raw`
of all pieces, joined, is the text. What is not a mark stays text (`price is §5`); text before the
first mark is a `respond`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

import msgspec

from quire.errors import FormatError
from quire.formats import WHITE, fault
from quire.formats.replay import GUARDED, MARK_KINDS, Delimiter
from quire.values import Json

_IS_WHITE = re.compile(f"[{WHITE}]").match


class ProtocolDelta(msgspec.Struct, frozen=True):
    """More of event number `index`: what it says, and the characters it came from (marks and gaps too)."""

    index: int
    kind: str
    text: str
    raw: str


class ProtocolEvent(msgspec.Struct, frozen=True):
    """A whole event: without its mark, one space behind it, and the blank line before the next mark."""

    kind: str
    text: str
    raw: str


def read(text: str, delimiter: Delimiter = "$") -> list[ProtocolEvent]:
    """The events of a whole text."""
    stream = ProtocolStream(delimiter)
    return merge([*stream.feed(text), *stream.finish()])


def merge(pieces: Iterable[ProtocolDelta]) -> list[ProtocolEvent]:
    """Pieces joined to whole events."""
    texts: dict[int, tuple[str, list[str], list[str]]] = {}
    for piece in pieces:
        _, text, raw = texts.setdefault(piece.index, (piece.kind, [], []))
        text.append(piece.text)
        raw.append(piece.raw)
    return [ProtocolEvent(kind, "".join(text), "".join(raw)) for kind, text, raw in texts.values()]


def call_of(event: ProtocolEvent) -> tuple[str, Json]:
    """Name and arguments of a call event; a call that is not the protocol's JSON is an error."""
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


class ProtocolStream:
    """One model reply being read. It keeps only what the next character may still decide:

    `_gap` (white space before a possible mark), `_slash` (a backslash that a mark would take) and
    `_mark` (the beginning of a possible mark), in this order.
    """

    def __init__(self, delimiter: Delimiter = "$") -> None:
        self.delimiter = delimiter
        self._marks = frozenset([*(f"{delimiter}{kind}:" for kind in MARK_KINDS), *GUARDED])
        self._beginnings = frozenset(mark[:n] for mark in self._marks for n in range(1, len(mark) + 1))
        self._gap = self._slash = self._mark = ""
        self._last = "\n"  # the character before; the beginning of the text is a line start
        self._guards = True  # a backslash here may stand before a mark
        self._eats_space = False  # directly behind a mark
        self._index, self._kind = -1, "respond"
        self._text: list[str] = []
        self._raw: list[str] = []
        self._out: list[ProtocolDelta] = []

    def feed(self, chunk: str) -> list[ProtocolDelta]:
        """What is certain after this chunk; the rest waits for the next."""
        for char in chunk:
            self._step(char)
        return self._drain()

    def finish(self) -> list[ProtocolDelta]:
        """The end: what was waiting is text."""
        self._release()
        return self._drain()

    def _step(self, char: str) -> None:
        if self._mark:
            if self._continues(char):
                return
            self._release()
            self._guards = False
        if self._eats_space and char == " ":
            self._raw.append(char)
        else:
            self._plain(char)
        self._eats_space, self._last = False, char

    def _continues(self, char: str) -> bool:
        """Whether `char` carries the possible mark on; a complete one takes effect."""
        mark = self._mark + char
        # Only ASCII letters have two cases here; lower() alone would also fold the Kelvin sign.
        if not char.isascii() or mark.lower() not in self._beginnings:
            return False
        self._mark, self._last = mark, char
        if mark.lower() in self._marks:
            self._complete()
        return True

    def _complete(self) -> None:
        """A mark behind a backslash is text without that backslash; any other begins an event."""
        gap, slash, mark = self._gap, self._slash, self._mark
        self._gap = self._slash = self._mark = ""
        if slash:
            self._say(gap)
            self._raw.append(slash)
            self._say(mark)
            self._guards = False
        else:
            self._close()
            self._index, self._kind = self._index + 1, mark[1:-1].lower()
            self._raw.append(gap + mark)
            self._eats_space = self._guards = True

    def _plain(self, char: str) -> None:
        """A character outside any possible mark: it begins one, may stand before one, or is text."""
        after_white = self.delimiter == "§" and _IS_WHITE(self._last)
        starts = self._slash and char in "=("
        if starts or (char == self.delimiter and (self._slash or self._last == "\n" or after_white)):
            self._mark = char
        elif char == "\\" and self._guards:
            if self._slash:
                self._release()
            self._slash = char
        else:
            self._text_or_gap(char)

    def _text_or_gap(self, char: str) -> None:
        if self._slash or self._gap + char not in ("\n\n", "\n\n\n"):
            self._release()
        self._guards = char == "\n"
        if self._gap == "\n\n":
            self._say(char)  # a third newline: one of the three is text, whichever
        elif char == "\n" or (self.delimiter == "§" and _IS_WHITE(char)):
            self._gap += char
        else:
            self._say(char)

    def _release(self) -> None:
        """What was waiting turned out to be text."""
        waiting = self._gap + self._slash + self._mark
        self._gap = self._slash = self._mark = ""
        self._say(waiting)

    def _say(self, text: str) -> None:
        if text:
            self._index = max(self._index, 0)
            self._text.append(text)
            self._raw.append(text)

    def _close(self) -> None:
        if self._raw:
            self._out.append(ProtocolDelta(self._index, self._kind, "".join(self._text), "".join(self._raw)))
            self._text, self._raw = [], []

    def _drain(self) -> list[ProtocolDelta]:
        self._close()
        deltas, self._out = self._out, []
        return deltas
