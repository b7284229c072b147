"""Text projections of a window or a thread: each has a value, `project`, `render` and `parse`.

parse(render(value)) == value and render(parse(text)) == text, whatever the content holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from quire.errors import FormatError
from quire.values import INTERRUPTED, NOT_UTF8_HINT, Entry, Json

# Rules of every text format: "\n" is the only line break, lone surrogates are errors, and the backslash rule (`Marks`).
#
# A format's `parse` accepts only what its `render` writes; `exact` enforces it.

# Characters with Unicode's White_Space property; str.isspace() also accepts four separators without it.
WHITE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def well_formed(text: str) -> str:
    """The text itself; a lone surrogate (half a character, which UTF-8 cannot encode) is an error."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise fault(text, error.start, f"lone surrogate U+{ord(text[error.start]):04X}", NOT_UTF8_HINT) from error
    return text


def fault(text: str, at: int, problem: str, hint: str = "") -> FormatError:
    """An error that points at character `at` of a text, by line and column from 1."""
    line = text.count("\n", 0, at) + 1
    return FormatError(problem, line=line, column=at - text.rfind("\n", 0, at), hint=hint)


def excerpt(text: str, at: int, limit: int = 40) -> str:
    """The characters at `at`, for an error message."""
    return repr(text[at : at + limit]) if at < len(text) else "the end of the text"


def exact(text: str, rendered: str) -> None:
    """Refuse a text that differs from its value's rendering; the error names the first difference."""
    if text == rendered:
        return
    shorter = min(len(text), len(rendered))
    at = next((i for i in range(shorter) if text[i] != rendered[i]), shorter)
    raise fault(
        text,
        at,
        f"{excerpt(text, at)} stands where {excerpt(rendered, at)} was expected",
        "parse reads what render writes, to the byte; the text was changed by hand or cut.",
    )


class Marks:
    """The backslash rule: content lines that begin with a mark get a backslash in front.

    The case of ASCII letters does not matter.
    """

    def __init__(self, marks: Iterable[str]) -> None:
        either = "|".join(re.escape(mark) for mark in marks)
        flags = re.MULTILINE | re.IGNORECASE | re.ASCII
        self._bare = re.compile(rf"^(?=\\*(?:{either}))", flags)
        self._guarded = re.compile(rf"^\\(?=\\*(?:{either}))", flags)

    def guard(self, text: str) -> str:
        """Add the backslash: 'a\\n$user: b' -> 'a\\n\\\\$user: b'."""
        return self._bare.sub(r"\\", text)

    def unguard(self, text: str) -> str:
        """Remove the backslashes that `guard` added."""
        return self._guarded.sub("", text)


# Every text format shows calls together with their results.

UNKNOWN = "unknown"


class CallPair(msgspec.Struct, frozen=True):
    """A call and its result; either may be missing in the log, but not both."""

    call: Entry | None
    result: Entry | None = None

    @property
    def name(self) -> str:
        return self.call.name if self.call else UNKNOWN

    @property
    def args(self) -> Json:
        return self.call.args if self.call else {}

    @property
    def outcome(self) -> str:
        """The result's outcome, "Error" for a failure without one, or the text that marks an interrupted call."""
        if not self.result:
            return INTERRUPTED
        outcome: str = self.result.body.get("outcome") or ""
        return outcome or ("Error" if self.result.body.get("error") else "")

    @property
    def content(self) -> str:
        return (self.result.body.get("content") or "") if self.result else ""


def pair_results(entries: Iterable[Entry]) -> list[Entry | CallPair]:
    """The entries in order, each result moved to its call.

    A result belongs to the nearest earlier unanswered call with its id; one without such a call
    stands alone.
    """
    events: list[Entry | CallPair] = []
    open_calls: dict[str, list[int]] = {}
    for entry in entries:
        if entry.kind == "call":
            open_calls.setdefault(entry.call_id, []).append(len(events))
            events.append(CallPair(entry))
        elif entry.kind == "result" and (unanswered := open_calls.get(entry.call_id)):
            at = unanswered.pop()
            call = events[at]
            assert isinstance(call, CallPair)
            events[at] = msgspec.structs.replace(call, result=entry)
        else:
            events.append(CallPair(None, entry) if entry.kind == "result" else entry)
    return events
