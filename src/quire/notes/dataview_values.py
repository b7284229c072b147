"""The values of Dataview queries (dates, durations, links, …), their operators, how they are shown, and the functions."""

from __future__ import annotations

import math
import operator
import re
from calendar import monthrange
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cmp_to_key, wraps
from itertools import chain
from typing import Any, TypeAlias

import msgspec

from quire.errors import needs_extra

# null, true, numbers, text, datetime, Duration, Link, lists, mappings, functions: as the language has them.
Value: TypeAlias = Any
# The longest text or list that a query can make.
MOST = 10_000


class Duration(msgspec.Struct, frozen=True, order=False):
    """A span of time: months (and years) apart, since their lengths differ; the rest in seconds."""

    months: float = 0
    seconds: float = 0

    def total(self) -> float:
        """In seconds, with months of 30 days and years of 365."""
        years, months = divmod(self.months, 12)
        return (years * 365 + months * 30) * _DAY + self.seconds

    def scaled(self, by: float) -> Duration:
        return Duration(self.months * by, self.seconds * by)

    def plus(self, other: Duration, sign: int = 1) -> Duration:
        return Duration(self.months + sign * other.months, self.seconds + sign * other.seconds)


class Link(msgspec.Struct, frozen=True):
    """A link; `target` is a file's path, or the written name where no file has it. `embed` stands for ![[…]]."""

    target: str
    heading: str = ""
    alias: str = ""
    embed: bool = False


_DAY = 86_400
_UNITS = {"years": 365 * _DAY, "months": 30 * _DAY, "weeks": 7 * _DAY, "days": _DAY, "hours": 3600, "minutes": 60, "seconds": 1}  # fmt: skip
_SHORT = {"yr": "years", "mo": "months", "wk": "weeks", "w": "weeks", "d": "days", "hr": "hours", "h": "hours", "min": "minutes", "m": "minutes", "sec": "seconds", "s": "seconds"}  # fmt: skip
_SPAN = r"-?\d+(?:\.\d+)?\s*(?:years?|yrs?|months?|mos?|weeks?|wks?|w|days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)"
SPANS = rf"{_SPAN}(?:\s*,?\s*{_SPAN})*"
ISO = r"\d{4}-\d\d(?:-\d\d(?:T\d\d(?::\d\d(?::\d\d(?:\.\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?)?)?"


def read_date(text: str) -> datetime | None:
    """ "2021-08-15", "2021-08", "2021-08-15T20:17+02:00" in local time; None where it is no date."""
    if not re.fullmatch(ISO, text):
        return None
    try:
        read = datetime.fromisoformat(f"{text}-01" if len(text) == 7 else text)
        return read.astimezone().replace(tzinfo=None) if read.tzinfo else read
    except (ValueError, OverflowError):
        return None


def midnight(moment: datetime) -> datetime:
    return datetime(moment.year, moment.month, moment.day)


def read_duration(text: str) -> Duration | None:
    """ "6 hours, 4 minutes" or "6hr4min"; None where it is no duration."""
    if not re.fullmatch(SPANS, text.strip()):
        return None
    span = Duration()
    for count, word in re.findall(r"(-?\d+(?:\.\d+)?)\s*([a-z]+)", text):
        short = word if word in _SHORT else word.removesuffix("s")
        unit = _SHORT.get(short, f"{short}s")
        if unit in ("years", "months"):
            span = span.plus(Duration(months=float(count) * (12 if unit == "years" else 1)))
        else:
            span = span.plus(Duration(seconds=float(count) * _UNITS[unit]))
    return span


def type_field(value: Value, link: Callable[[str], Link]) -> Value:
    """A field's value as Dataview reads it: a text that is a date, a duration or a link becomes one."""
    if isinstance(value, dict):
        return fields_of({name: type_field(item, link) for name, item in value.items()})
    if isinstance(value, list):
        return [type_field(item, link) for item in value]
    if not isinstance(value, str) or len(value) > 500:
        return value
    if value.startswith(("[[", "![[")) and value.endswith("]]") and value.count("[[") == 1:
        return link(value)
    return read_date(value) or read_duration(value) or value


def fields_of(fields: dict[str, Value]) -> dict[str, Value]:
    """Fields under their names and also their simple names: "Basic Field!" is basic-field too."""
    simple = {re.sub(r"[^\w-]", "", re.sub(r"\s+", "-", name.strip().lower())): item for name, item in fields.items()}
    return {**simple, **fields}


# Comparing and adding

_TYPES: tuple[tuple[str, Any], ...] = (
    ("null", type(None)), ("boolean", bool), ("number", (int, float)), ("string", str), ("date", datetime),
    ("duration", Duration), ("link", Link), ("array", list), ("object", Mapping),
)  # fmt: skip


def type_of(value: Value) -> str:
    return next((name for name, kind in _TYPES if isinstance(value, kind)), "function")


def truthy(value: Value) -> bool:
    """Whether WHERE takes a value for true: null, zero, empty and false values are not."""
    if isinstance(value, Duration):
        return value.total() != 0
    return bool(value) or isinstance(value, datetime | Link)


def compare(a: Value, b: Value) -> int:
    """Negative, zero or positive; null comes first, values of different types go by the names of their types."""
    kind, other = type_of(a), type_of(b)
    if kind != other:
        return -1 if kind == "null" or (other != "null" and kind < other) else 1
    if kind == "array":
        return next((way for way in map(compare, a, b) if way), len(a) - len(b))
    if kind in ("null", "function"):
        return 0
    left, right = (_KEYS[kind](value) if kind in _KEYS else value for value in (a, b))
    return int(left > right) - int(left < right)


_KEYS: dict[str, Callable[[Any], Any]] = {
    "string": lambda text: (text.casefold(), text),
    "duration": lambda span: span.total(),
    "link": lambda link: (link.target, link.heading),
    "object": lambda fields: show(fields),
}
order = cmp_to_key(compare)
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ARITHMETIC: dict[tuple[str, str, str], Callable[[Any, Any], Value]] = {
    ("number", "+", "number"): operator.add,
    ("number", "-", "number"): operator.sub,
    ("number", "*", "number"): operator.mul,
    ("number", "/", "number"): lambda a, b: _whole(a / b) if b else None,
    ("number", "%", "number"): lambda a, b: math.fmod(a, b) if b else None,
    ("string", "*", "number"): lambda a, b: (a * max(0, min(int(b), MOST)))[:MOST],
    ("date", "-", "date"): lambda a, b: _between(a, b),
    ("date", "-", "duration"): lambda a, b: _add_span(a, b.scaled(-1)),
    ("date", "+", "duration"): lambda a, b: _add_span(a, b),
    ("duration", "+", "date"): lambda a, b: _add_span(b, a),
    ("duration", "+", "duration"): lambda a, b: a.plus(b),
    ("duration", "-", "duration"): lambda a, b: a.plus(b, -1),
    ("duration", "*", "number"): lambda a, b: a.scaled(b),
    ("duration", "/", "number"): lambda a, b: a.scaled(1 / b) if b else None,
    ("array", "+", "array"): lambda a, b: (a + b)[:MOST],
    ("object", "+", "object"): lambda a, b: {**a, **b},
}


def combine(sign: str, a: Value, b: Value) -> Value:
    """The value of `a sign b`; null where Dataview does not combine these types."""
    if sign in _COMPARE:
        return _COMPARE[sign](compare(a, b), 0)
    if sign in "&|":
        return (truthy(a) and truthy(b)) if sign == "&" else (truthy(a) or truthy(b))
    if sign == "+" and (isinstance(a, str) or isinstance(b, str)):
        return (show(a) + show(b))[:MOST]
    operation = _ARITHMETIC.get((type_of(a), sign, type_of(b)))
    return operation(a, b) if operation is not None else None


def _whole(number: float) -> float:
    return int(number) if math.isfinite(number) and number == int(number) else number


def _add_span(day: datetime, span: Duration) -> datetime | None:
    months = day.month - 1 + int(span.months)
    year, month = day.year + months // 12, months % 12 + 1
    try:
        last = monthrange(year, month)[1]
        return day.replace(year=year, month=month, day=min(day.day, last)) + timedelta(seconds=span.seconds)
    except (ValueError, OverflowError):
        return None


def _between(late: datetime, early: datetime) -> Duration:
    """The time between two dates: whole months, and the rest in seconds."""
    if late < early:
        return _between(early, late).scaled(-1)
    months = (late.year - early.year) * 12 + late.month - early.month
    begin = _add_span(early, Duration(months))
    if begin is None or begin > late:
        months -= 1
        begin = _add_span(early, Duration(months)) or early
    return Duration(months, (late - begin).total_seconds())


# Members and showing

_DATE_PARTS: dict[str, Callable[[datetime], int]] = {
    "weekyear": lambda day: day.isocalendar().week,
    "week": lambda day: day.day // 7 + 1,
    "weekday": lambda day: day.isoweekday(),
    "millisecond": lambda day: day.microsecond // 1000,
}


def member(value: Value, name: Value, page: Callable[[Link], Value]) -> Value:
    """value.name or value[name]; of a list for each element, of a link from the note that it leads to."""
    if isinstance(value, Link):
        value = page(value)
    if isinstance(name, int | float):
        inside = isinstance(value, list | str) and 0 <= name < len(value)
        return value[int(name)] if inside else None
    if not isinstance(name, str):
        return None
    if isinstance(value, list):
        return [member(item, name, page) for item in value]
    if isinstance(value, Mapping):
        return value.get(name, value.get(name.lower()))
    if isinstance(value, datetime):
        part = _DATE_PARTS[name](value) if name in _DATE_PARTS else getattr(value, name, None)
        return part if isinstance(part, int) else None
    if isinstance(value, Duration):
        unit = f"{name.removesuffix('s')}s"
        return _whole(value.total() / _UNITS[unit]) if unit in _UNITS else None
    return None


def show(value: Value) -> str:
    """A value as text: null as a dash, lists with commas, dates as 2025-02-01."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ", ".join(map(show, value))
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d}" if value.time() == value.time().min else f"{value:%Y-%m-%dT%H:%M:%S}"
    if isinstance(value, Duration):
        return _span(value)
    if isinstance(value, Link):
        return _link_text(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {show(item)}" for name, item in value.items())
    return str(_whole(value)) if isinstance(value, float) else str(value)


def _link_text(link: Link) -> str:
    """[[name]], with its heading and alias where it has them."""
    name = link.target.rpartition("/")[2]
    name = name.removesuffix(".md").removesuffix(".markdown")
    inner = f"{name}{'#' * bool(link.heading)}{link.heading}{'|' * bool(link.alias)}{link.alias}"
    return f"{'!' * link.embed}[[{inner}]]"


def _span(span: Duration) -> str:
    years, months = divmod(span.months, 12)
    parts, rest = {"years": years, "months": months}, span.seconds
    for unit in ("weeks", "days", "hours", "minutes", "seconds"):
        parts[unit] = rest if unit == "seconds" else int(rest / _UNITS[unit])
        rest -= parts[unit] * _UNITS[unit]
    units = [f"{_whole(count):g} {unit if count != 1 else unit[:-1]}" for unit, count in parts.items() if count]
    return ", ".join(units) or "0 seconds"


# Functions

_LUXON = {
    "yyyy": "%Y", "yy": "%y", "MMMM": "%B", "MMM": "%b", "MM": "%m", "dd": "%d", "HH": "%H", "hh": "%I", "mm": "%M",
    "ss": "%S", "cccc": "%A", "EEEE": "%A", "ccc": "%a", "EEE": "%a", "a": "%p", "WW": "%V", "kkkk": "%G",
}  # fmt: skip
_LUXON_PLAIN: dict[str, Callable[[datetime], object]] = {
    "M": lambda day: day.month, "d": lambda day: day.day, "H": lambda day: day.hour, "m": lambda day: day.minute,
    "s": lambda day: day.second, "h": lambda day: (day.hour - 1) % 12 + 1, "y": lambda day: day.year,
    "W": lambda day: day.isocalendar().week, "o": lambda day: day.timetuple().tm_yday, "c": lambda day: day.isoweekday(),
    "q": lambda day: (day.month + 2) // 3, "x": lambda day: int(day.timestamp() * 1000), "X": lambda day: int(day.timestamp()),
}  # fmt: skip
_LUXON_TOKEN = re.compile(r"'([^']*)'|(" + "|".join([*_LUXON, *_LUXON_PLAIN]) + r")(?![A-Za-z])|([A-Za-z]+)")


def _date_format(day: Value, form: str) -> str | None:
    if not isinstance(day, datetime):
        return None

    def part(match: re.Match[str]) -> str:
        if match[3]:
            raise ValueError(match[3])
        if match[1] is not None or match[2] is None:
            return match[1] or ""
        return day.strftime(_LUXON[match[2]]) if match[2] in _LUXON else str(_LUXON_PLAIN[match[2]](day))

    return _LUXON_TOKEN.sub(part, form)


def _date_by(text: str, form: str) -> datetime | None:
    if form in ("x", "X"):
        return datetime.fromtimestamp(int(text) / (1000 if form == "x" else 1))
    try:
        return datetime.strptime(
            text, re.sub("|".join(_LUXON), lambda match: _LUXON[match[0]], form.replace("%", "%%"))
        )
    except re.error as error:  # a part of the date that is asked for twice
        raise ValueError(str(error)) from error


def _span_format(span: Duration, form: str) -> str:
    """A duration by a form: each run of y M w d h m s S is a number with that many digits; other text stays."""
    token = re.compile(r"'([^']*)'|\b(y+|M+|w+|d+|h+|m+|s+|S+)\b")
    units = dict(zip("yMwdhmsS", (*_UNITS.values(), 0.001), strict=True))
    letters = {match[2][0] for match in token.finditer(form) if match[2]}
    rest, counts = span.total(), {}
    if letters <= {"y", "M"}:
        rest = span.months * units["M"] if "y" not in letters else rest
    for sign, seconds in units.items():
        if sign in letters:
            counts[sign] = int(rest / seconds + 1e-9)
            rest -= counts[sign] * seconds
    return token.sub(lambda m: m[1] if m[2] is None else str(counts[m[2][0]]).zfill(len(m[2])), form)


def _contains(fold: bool, exact: bool) -> Callable[[Value, Value], bool]:
    def holds(whole: Value, part: Value) -> bool:
        if isinstance(whole, str) and isinstance(part, str):
            return part.lower() in whole.lower() if fold else part in whole
        if isinstance(whole, list):
            return any(compare(item, part) == 0 or (not exact and holds(item, part)) for item in whole)
        if isinstance(whole, Mapping):
            return isinstance(part, str) and whole.get(part) is not None
        return whole is not None and compare(whole, part) == 0

    return holds


def _regex(method: str, pattern: str, *texts: str) -> Any:
    """Run a note's own pattern for at most a second; an invalid pattern is a ValueError, which gives null."""
    with needs_extra("patterns in queries need regex", "vault"):
        import regex
    if re.search(r"\{\d*,?\d{4}", pattern):
        raise ValueError(f"{pattern!r} repeats too often")
    try:
        return getattr(regex, method)(pattern, *texts, timeout=1)
    except regex.error as error:
        raise ValueError(str(error)) from error


def _elementwise(function: Callable[..., Value]) -> Callable[..., Value]:
    """The function applied to a value, or to each element of a list; null stays null."""

    @wraps(function)
    def applied(first: Value, *rest: Value) -> Value:
        if isinstance(first, list):
            return [applied(item, *rest) for item in first]
        return None if first is None else function(first, *rest)

    return applied


def _list(values: tuple[Value, ...]) -> list[Value]:
    """The arguments of a function: a single list, or the values themselves."""
    return values[0] if len(values) == 1 and isinstance(values[0], list) else list(values)


def _truths(values: tuple[Value, ...]) -> Iterable[bool]:
    """The truth of each value; with a list and a function, of the function's values."""
    if len(values) == 2 and isinstance(values[0], list) and callable(values[1]):
        return [truthy(values[1](value)) for value in values[0]]
    return map(truthy, _list(values))


def _reduce(values: list[Value], sign: str) -> Value:
    total = values[0] if values else None
    for value in values[1:]:
        total = combine(sign, total, value)
    return total


def _default(value: Value, other: Value) -> Value:
    if isinstance(value, list):
        return [_default(item, other) for item in value]
    return other if value is None else value


def _number(text: str) -> float | None:
    match = re.search(r"-?\d+(?:\.\d+)?", text)
    return _whole(float(match[0])) if match else None


def _flat(values: list[Value], depth: int = 1) -> list[Value]:
    for _ in range(min(int(depth), 50)):
        values = list(chain.from_iterable(value if isinstance(value, list) else [value] for value in values))
    return values


def _read_as(read: Callable[[str], Value], kind: type) -> Callable[..., Value]:
    return _elementwise(lambda value: value if isinstance(value, kind) else read(show(value)))


def _to_date(value: Value, form: str | None = None) -> Value:
    if isinstance(value, Link):
        match = re.search(r"\d{4}-\d\d-\d\d", value.target)
        return read_date(match[0]) if match else None
    if isinstance(value, str) and form is not None:
        return _date_by(value, form)
    return value if isinstance(value, datetime) else read_date(show(value))


def _link_facts(link: Link) -> dict[str, Value]:
    block = link.heading.startswith("^")
    return {
        "display": link.alias or None,
        "embed": link.embed,
        "path": link.target,
        "subpath": link.heading.removeprefix("^") or None,
        "type": "block" if block else "header" if link.heading else "file",
    }


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "all": lambda *values: all(_truths(values)),
    "any": lambda *values: any(_truths(values)),
    "none": lambda *values: not any(_truths(values)),
    "average": lambda values: _whole(_reduce(values, "+") / len(values)) if values else None,
    "ceil": _elementwise(math.ceil),
    "choice": lambda test, yes, no: yes if truthy(test) else no,
    "contains": _contains(False, False),
    "containsword": _elementwise(lambda text, word: word.lower() in re.findall(r"\w+", text.lower())),
    "date": _elementwise(_to_date),
    "dateformat": _elementwise(_date_format),
    "default": _default,
    "dur": _read_as(read_duration, Duration),
    "durationformat": _elementwise(_span_format),
    "econtains": _contains(False, True),
    "elink": lambda url, name=None: f"[{name or url}]({url})",
    "embed": lambda link, on=True: msgspec.structs.replace(link, embed=truthy(on)),
    "endswith": _elementwise(lambda text, end: text.endswith(end)),
    "extract": lambda whole, *names: {name: whole.get(name) for name in names},
    "filter": lambda values, test: [value for value in values if truthy(test(value))],
    "flat": _flat,
    "floor": _elementwise(math.floor),
    "icontains": _contains(True, False),
    "join": lambda values, by=", ": by.join(map(show, values if isinstance(values, list) else [values])),
    "ldefault": lambda value, other: other if value is None else value,
    "length": lambda value: len(value) if isinstance(value, str | list | Mapping) else 0,
    "list": lambda *values: list(values),
    "localtime": lambda value: value,
    "lower": _elementwise(lambda text: text.lower()),
    "map": lambda values, function: [function(value) for value in values],
    "max": lambda *values: max(_list(values), key=order, default=None),
    "maxby": lambda values, by: max(values, key=lambda value: order(by(value)), default=None),
    "meta": _elementwise(_link_facts),
    "min": lambda *values: min(_list(values), key=order, default=None),
    "minby": lambda values, by: min(values, key=lambda value: order(by(value)), default=None),
    "nonnull": lambda values: [value for value in values if value is not None],
    "number": _read_as(_number, int | float),  # type: ignore[arg-type]  # isinstance takes it
    "object": lambda *values: dict(zip(values[::2], values[1::2], strict=True)),
    "padleft": _elementwise(lambda text, width, by=" ": text.rjust(min(int(width), MOST), by)),
    "padright": _elementwise(lambda text, width, by=" ": text.ljust(min(int(width), MOST), by)),
    "product": lambda values: _reduce(values, "*"),
    "reduce": _reduce,
    "regexmatch": lambda pattern, text: _regex("fullmatch", pattern, text) is not None,
    "regexreplace": _elementwise(lambda text, old, new: _regex("sub", old, re.sub(r"\$(\d)", r"\\\1", new), text)),
    "regextest": lambda pattern, text: _regex("search", pattern, text) is not None,
    "replace": _elementwise(lambda text, old, new: text.replace(old, new)[:MOST]),
    "reverse": lambda values: values[::-1],
    "round": _elementwise(lambda number, digits=0: _whole(math.floor(number * 10**digits + 0.5) / 10**digits)),
    "slice": lambda values, start=0, end=None: values[int(start) : None if end is None else int(end)],
    "sort": lambda values, by=None: sorted(values, key=lambda value: order(by(value) if by else value)),
    "split": _elementwise(lambda text, by, limit=MOST: [part or "" for part in _regex("split", by, text)][: int(limit)]),
    "startswith": _elementwise(lambda text, start: text.startswith(start)),
    "string": show,
    "striptime": _elementwise(midnight),
    "substring": _elementwise(lambda text, start, end=None: text[int(start) : None if end is None else int(end)]),
    "sum": lambda values: _reduce(values, "+"),
    "trunc": _elementwise(math.trunc),
    "truncate": _elementwise(lambda text, size, end="...": text if len(text) <= size else text[: int(size) - len(end)] + end),
    "typeof": type_of,
    "upper": _elementwise(lambda text: text.upper()),
}  # fmt: skip
FUNCTIONS["array"] = FUNCTIONS["list"]
