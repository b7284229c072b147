"""Times in chat files: YYYY/MM/DD HH:mm:ss in UTC, nothing smaller than a second."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from quire.errors import CallError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STAMP = re.compile(r"(\d{4})[/-](\d{2})[/-](\d{2})[ T](\d{2}):(\d{2}):(\d{2})", re.ASCII)


def moment(at: int) -> datetime:
    """A time in milliseconds as a date; one that no calendar has is an error."""
    try:
        return _EPOCH + timedelta(milliseconds=at)
    except OverflowError as error:
        raise CallError(
            f"{at} ms is outside the years 1 to 9999", hint="Times are Unix milliseconds."
        ) from error


def stamp(at: int) -> str:
    """1737972000000 -> 2025/01/27 10:00:00."""
    # Years before 1000 keep their four digits, which strftime does not promise.
    when = moment(at)
    return f"{when.year:04}/{when.month:02}/{when.day:02} {when.hour:02}:{when.minute:02}:{when.second:02}"


def iso(at: int) -> str:
    """1737972000000 -> 2025-01-27T10:00:00Z."""
    return stamp(at).replace("/", "-").replace(" ", "T") + "Z"


def read_stamp(text: str) -> int | None:
    """Milliseconds of a stamp, taken as UTC; None for anything that is no time."""
    match = _STAMP.match(text.strip())
    if match is None:
        return None
    try:
        when = datetime(*map(int, match.groups()), tzinfo=UTC)  # type: ignore[misc,arg-type]  # six numbers
    except ValueError:
        return None
    return (when - _EPOCH) // timedelta(milliseconds=1)


def whole_second(at: int | None) -> int | None:
    """A time as a chat file can show it; None where there is none, or no calendar has it."""
    if at is None:
        return None
    try:
        moment(at)
    except CallError:
        return None
    return at // 1000 * 1000
