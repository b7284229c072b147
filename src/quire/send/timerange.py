"""Times as people say them: today, last week, past 3 days, 2025-01, 2025-01-01 to 2025-01-31."""

from __future__ import annotations

import re
import time
from datetime import UTC, date, datetime, timedelta

import msgspec

from quire.errors import CallError

_DAY = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_UNITS = {"day": 1, "week": 7, "month": 30, "year": 365}
_LAST = re.compile(r"(?:the )?(?:last|past)(?: (\d+|two|three|few))? (day|week|month|year)s?")
_NUMBERS = {"two": 2, "three": 3, "few": 3}


class TimeRange(msgspec.Struct, frozen=True):
    """From one day to another, both included."""

    first: date
    last: date

    def holds(self, title: str, mtime_ms: int) -> bool:
        """Whether a note is of this time: by the date in its name, else by when it was changed."""
        named = _DAY.search(title)
        day = _date(named[0]) if named else None
        return self.first <= (day or _day(mtime_ms)) <= self.last


def time_range(text: str, now_ms: int | None = None) -> TimeRange:
    """The days that a phrase means; one that is not understood is an error."""
    today = _day(int(time.time() * 1000) if now_ms is None else now_ms)
    said = " ".join(text.lower().split())
    for read in (_relative, _this, _written):
        if found := read(said, today):
            return found
    raise CallError(
        f"the time range {text!r} is not understood",
        hint="Use today, yesterday, last week, past 3 days, 2025-01, or 2025-01-01 to 2025-01-31.",
    )


def _relative(said: str, today: date) -> TimeRange | None:
    if said == "today":
        return TimeRange(today, today)
    if said == "yesterday":
        return TimeRange(today - timedelta(1), today - timedelta(1))
    match = _LAST.fullmatch(said)
    if match is None:
        return None
    count = _NUMBERS.get(match[1] or "") or int(match[1] or 1)
    days = min(count * _UNITS[match[2]], 100_000)
    return TimeRange(_back(today, days), today)


def _back(day: date, days: int) -> date:
    return date.fromordinal(max(1, day.toordinal() - days))


def _this(said: str, today: date) -> TimeRange | None:
    starts = {
        "this week": today - timedelta(today.weekday()),
        "this month": today.replace(day=1),
        "this year": today.replace(month=1, day=1),
    }
    return TimeRange(starts[said], today) if said in starts else None


def _written(said: str, today: date) -> TimeRange | None:
    """2025, 2025-01, 2025-01-27, or two of them with "to" between."""
    first, _, last = said.removeprefix("from ").partition(" to ")
    begin, end = _span(first), _span(last or first)
    return TimeRange(begin[0], end[1]) if begin and end else None


def _span(text: str) -> tuple[date, date] | None:
    """The first and the last day of a year, a month or a day."""
    if re.fullmatch(r"\d{4}", text, re.ASCII) and (begin := _date(f"{text}-01-01")):
        return begin, date(begin.year, 12, 31)
    if re.fullmatch(r"\d{4}-\d{2}", text, re.ASCII) and (begin := _date(f"{text}-01")):
        after = (
            date(begin.year + begin.month // 12, begin.month % 12 + 1, 1)
            if begin < date(9999, 12, 1)
            else None
        )
        return begin, after - timedelta(1) if after else date(9999, 12, 31)
    day = _date(text) if _DAY.fullmatch(text) else None
    return (day, day) if day else None


def _date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _day(ms: int) -> date:
    return datetime.fromtimestamp(ms / 1000, UTC).date()
