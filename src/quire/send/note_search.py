"""The tool `localSearch` over a vault: documents with ids, rules for citing them, and a catalog, in one block of text."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from calendar import monthrange
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, timedelta
from typing import NamedTuple, TypeAlias

import msgspec

from quire.assemble.telling import truncate
from quire.assemble.user_message import escape_tags, printable_id
from quire.errors import CallError
from quire.notes import NoteIndex, Passage
from quire.notes.note import Note, day_in
from quire.send.tools import Output, Tool, tool
from quire.values import Entry

# Times in words: today, last week, on Monday, in March, past 3 days, 2025-01, from 2025-01-01 to 2025-01-31.

Days: TypeAlias = tuple[date, date]
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december")  # fmt: skip
_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "few": 3, "couple of": 2}
_UNITS = {"day": 1, "week": 7, "month": 30, "year": 365}
_COUNT = rf"(\d{{1,5}}|{'|'.join(_NUMBERS)})"
_UNIT = "(day|week|month|year)"
_MONTH = f"({'|'.join(_MONTHS)})"
_NTH = r"(\d{1,2})(?:st|nd|rd|th)?"


class TimeRange(msgspec.Struct, frozen=True):
    """From one day to another, both included."""

    first: date
    last: date

    def holds(self, note: Note) -> bool:
        """Whether a note's day is in the range."""
        return self.first <= day_of(note) <= self.last


def day_of(note: Note) -> date:
    """The day of a note: the date in its name, else in its field `date` or `created`, else when it was changed."""
    stated = (note.title, *(str(note.fields.get(name)) for name in ("date", "created")))
    day = next(filter(None, map(day_in, stated)), None)
    return day.date() if day else _local_day(note.mtime_ms)


def _back(day: date, days: int) -> date:
    return date.fromordinal(max(1, day.toordinal() - days))


def _number(word: str) -> int:
    return _NUMBERS.get(word) or int(word)


def _unit_before(today: date, unit: str, count: int) -> Days:
    """The calendar day, week, month or year that is `count` units before today's."""
    if unit in ("day", "week"):
        first = _back(today, today.weekday() if unit == "week" else 0)
        first = _back(first, count * _UNITS[unit])
        return first, first + timedelta(_UNITS[unit] - 1)
    months = max(0, today.year * 12 + today.month - 1 - count * (12 if unit == "year" else 1))
    year = max(1, months // 12)
    return _year(year) if unit == "year" else _month(year, months % 12 + 1)


def _month(year: int, month: int) -> Days:
    return date(year, month, 1), date(year, month, monthrange(year, month)[1])


def _year(year: int) -> Days:
    return date(year, 1, 1), date(year, 12, 31)


def _weekday(today: date, which: str, name: str) -> Days:
    back = (today.weekday() - _WEEKDAYS.index(name)) % 7
    day = _back(today, 7 if which.strip() == "last" and not back else back)
    return day, day


def _named_month(today: date, name: str, year: str | None, day: str | None = None) -> Days:
    """The month, or a day of it, in the given year; without a year, the latest one that has begun."""
    month = _MONTHS.index(name) + 1
    begun = (month, int(day or 1)) <= (today.month, today.day)
    in_year = int(year) if year else today.year - (not begun)
    return (date(in_year, month, int(day)),) * 2 if day else _month(in_year, month)


class Period(NamedTuple):
    """A phrase for a time, the days it means, and whether it needs a preposition ("on", "in") within a sentence."""

    pattern: str
    days: Callable[[date, re.Match[str]], Days]
    led: bool = False


_PERIODS = (
    Period("(?:today|tonight|this (?:morning|afternoon|evening))", lambda today, match: (today, today)),
    Period("the day before yesterday", lambda today, match: _unit_before(today, "day", 2)),
    Period("(?:yesterday|last night)", lambda today, match: _unit_before(today, "day", 1)),
    Period(rf"{_COUNT} {_UNIT}s? ago", lambda today, match: _unit_before(today, match[2], _number(match[1]))),
    Period(
        rf"(?:the )?(?:last|past|previous) (?:{_COUNT} )?{_UNIT}s",
        lambda today, match: (_back(today, _number(match[1] or "few") * _UNITS[match[2]]), today),
    ),
    Period(f"(?:the )?past {_UNIT}", lambda today, match: (_back(today, _UNITS[match[1]]), today)),
    Period(f"(?:the )?(?:last|previous) {_UNIT}", lambda today, match: _unit_before(today, match[1], 1)),
    Period(f"this {_UNIT}", lambda today, match: (_unit_before(today, match[1], 0)[0], today)),
    Period(f"(last |this )({'|'.join(_WEEKDAYS)})", lambda today, match: _weekday(today, match[1], match[2])),
    Period(f"()({'|'.join(_WEEKDAYS)})", lambda today, match: _weekday(today, "", match[2]), led=True),
    Period(rf"(?:the )?{_NTH}(?: of)? {_MONTH}(?:,? (\d{{4}}))?", lambda today, match: _named_month(today, match[2], match[3], match[1])),
    Period(rf"{_MONTH} {_NTH}(?:,? (\d{{4}}))?", lambda today, match: _named_month(today, match[1], match[3], match[2])),
    Period(rf"{_MONTH},? (\d{{4}})", lambda today, match: _named_month(today, match[1], match[2])),
    Period(f"(?:last|this) {_MONTH}", lambda today, match: _named_month(today, match[1], None)),
    Period(_MONTH, lambda today, match: _named_month(today, match[1], None), led=True),
    Period(r"(\d{4})-(\d{2})-(\d{2})", lambda today, match: (date.fromisoformat(match[0]),) * 2),
    Period(r"(\d{4})-(\d{2})", lambda today, match: _month(int(match[1]), int(match[2]))),
    Period(r"(\d{4})", lambda today, match: _year(int(match[1])), led=True),
)  # fmt: skip
_LEAD = r"(?:on|in|during|of|over|within|for) "


def _alternatives(led: bool) -> str:
    sources = (f"{_LEAD if period.led and led else f'(?:{_LEAD})?'}{period.pattern}" for period in _PERIODS)
    return "|".join(re.sub(r"(?<!\\)\((?!\?)", "(?:", source) for source in sources)


_BOTH = re.compile(rf"(?:from |between )?({_alternatives(False)}) (?:to|and|until|till|-) ({_alternatives(False)})")
_SINCE = re.compile(rf"(since|after|before|until) ({_alternatives(False)})")
_SPOKEN = re.compile(
    rf"\b(?:(?:from|between) (?:{_alternatives(False)}) (?:to|and|until|till) (?:{_alternatives(False)})"
    rf"|(?:since|after|before|until) (?:{_alternatives(False)})|{_alternatives(True)})\b"
)


def time_range(text: str, now_ms: int | None = None) -> TimeRange:
    """The days that a phrase means; an error for an unknown phrase."""
    today = _local_day(int(time.time() * 1000) if now_ms is None else now_ms)
    lowered = " ".join(text.lower().split())
    if both := _BOTH.fullmatch(lowered):
        first, last = _period(both[1], today), _period(both[2], today)
        if first and last:
            # In "from Friday to Monday" the Friday is the one before that Monday; so for months, a year before.
            before = 0 if first[0] <= last[1] else 7 if (first[0] - last[1]).days < 7 else 365
            return TimeRange(_back(first[0], before), last[1])
    elif (since := _SINCE.fullmatch(lowered)) and (days := _period(since[2], today)):
        ranges = {
            "since": (days[0], today),
            "after": (days[1] + timedelta(1), today),
            "before": (date.min, _back(days[0], 1)),
            "until": (date.min, days[1]),
        }
        return TimeRange(*ranges[since[1]])
    elif days := _period(lowered, today):
        return TimeRange(*days)
    raise CallError(
        f"the time range {text!r} is not understood",
        hint="Use today, yesterday, last week, on Monday, in March, past 3 days, since 2025-01, or 2025-01-01 to 2025-01-31.",
    )


def spoken_time(text: str, now_ms: int | None = None) -> str:
    """The phrase for a time in a question: "What did we decide on Monday?" -> "on Monday"; else ""."""
    line = " ".join(text.split())
    for match in sorted(_SPOKEN.finditer(line.lower()), key=lambda match: -len(match[0])):
        phrase = line[match.start() : match.end()]
        with contextlib.suppress(CallError):
            time_range(phrase, now_ms)
            return phrase
    return ""


def _period(phrase: str, today: date) -> Days | None:
    bare = re.sub(f"^{_LEAD}", "", phrase)
    for period in _PERIODS:
        if match := re.fullmatch(period.pattern, bare):
            try:
                return period.days(today, match)
            except (ValueError, OverflowError):
                return None
    return None


def _local_day(ms: int) -> date:
    return datetime.fromtimestamp(ms / 1000).date()


INSTRUCTION = "Answer the question based only on the following context:"
NONE_FOUND = "No relevant documents found."
CITING = """CITATION RULES:
1. Cite a document by its id in brackets with a caret, as [^1], directly behind the claim it supports.
2. Cite new facts, numbers and quotations only; not general knowledge, and not every sentence.
3. Use only the ids given above; numbers in brackets inside a document are part of its text.
4. If the documents do not answer the question, say so."""
_CATALOG = "Source Catalog (for reference only):"
_MOST_LISTED = 20
_TAGS = ("content", "document", "guidance", "localSearch")
_CITED_GROUP = re.compile(r"\[((?:\^?\d+)(?:\s*,\s*\^?\d+)*)\](?!\()")


class FoundNote(msgspec.Struct, frozen=True):
    """The found passages of one note; ids count from 1."""

    id: int
    title: str
    path: str
    content: str


class Source(msgspec.Struct, frozen=True):
    """A document that an answer uses."""

    id: int
    title: str
    path: str


def documents(passages: Iterable[Passage], limit: int = 12_000, each: int = 4_000, after: int = 0) -> list[FoundNote]:
    """Passages grouped by note, the best note first, within `limit` characters in all and `each` for one note."""
    by_note: dict[str, list[Passage]] = {}
    for passage in passages:
        by_note.setdefault(passage.path, []).append(passage)
    notes: list[FoundNote] = []
    room = limit
    for path, of_note in by_note.items():
        if room <= 0:
            break
        ordered = sorted(of_note, key=lambda passage: passage.line)
        content = truncate("\n\n".join(passage.text.strip() for passage in ordered), min(each, room))
        room -= len(content)
        notes.append(FoundNote(after + len(notes) + 1, of_note[0].title, path, content))
    return notes


class SourceNumbers:
    """Numbers notes so that a note has the same number in all searches of a turn; searches may run in parallel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[str, dict[str, int]] = {}

    def number(self, notes: Sequence[FoundNote], call: Entry) -> list[FoundNote]:
        """The notes with their numbers in the call's turn; without a turn they count from 1."""
        turn = str(call.meta.get("turn") or "")
        with self._lock:
            numbers = {
                **self._turns.pop(turn, {}),
                **{source["path"]: source["id"] for source in call.meta.get("sources") or ()},
            }
            for note in notes:
                numbers.setdefault(note.path, max(numbers.values(), default=0) + 1)
            if turn:
                self._turns[turn] = numbers
            while len(self._turns) > _MOST_TURNS:
                del self._turns[next(iter(self._turns))]
        return [msgspec.structs.replace(note, id=numbers[note.path]) for note in notes]


_MOST_TURNS = 64
# The most passages that get their missing vectors before a search; `quire index` makes the others.
_MOST_EMBEDDED = 256
# The least characters of a note in a search by time, where there are many notes.
_LEAST_SHARE = 300


def local_search(notes: Sequence[FoundNote], time_range: str = "") -> str:
    """The whole block; no text in a document can end it."""
    quoted = _field(time_range).replace('"', "&quot;")
    attribute = f' timeRange="{quoted}"' if time_range else ""
    body = "\n\n".join(map(_document, notes)) or NONE_FOUND
    listed = [f"- [[{note.title}]] ({note.path})" for note in notes[:_MOST_LISTED]]
    catalog = [escape_tags(printable_id(line), *_TAGS) for line in listed]
    guidance = "\n".join([CITING, "", _CATALOG, *catalog]) if catalog else CITING
    inner = f"{INSTRUCTION}\n\n{body}\n\n<guidance>\n{guidance}\n</guidance>"
    return f"<localSearch{attribute}>\n{inner}\n</localSearch>"


def _document(note: FoundNote) -> str:
    content = escape_tags(note.content, *_TAGS)
    lines = [f"<id>{note.id}</id>", f"<title>{_field(note.title)}</title>", f"<path>{_field(note.path)}</path>"]
    return "\n".join(["<document>", *lines, f"<content>\n{content}\n</content>", "</document>"])


def _field(text: str) -> str:
    return printable_id(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def local_search_tool(
    index: NoteIndex, *, k: int = 8, limit: int = 12_000, question: Callable[[Entry], str] | None = None
) -> Tool:
    """The tool `localSearch` over a vault; `question` returns the user's question, which is repeated after the documents.

    Calls that run before the model is asked stand above the question anyway, and do not repeat it.
    """
    numbers = SourceNumbers()

    @tool(
        name="localSearch",
        idempotent=True,
        shown=("timeRange",),
        category="search",
        output=("documents",),
        limit=4 * limit + 8_000,
        timeout_s=300.0,
    )
    def search(query: str, call: Entry, timeRange: str = "") -> Output:
        """Search the user's notes and get the passages that fit, with ids to cite.

        Args:
            query: What to look for, in the words that a note would use.
            timeRange: Only notes of this time, as "last week", "on Monday", "2025-01" or "2025-01-01 to 2025-01-31".
        """
        if not index.vault.watched:
            index.update()
            index.embed(most=_MOST_EMBEDDED)
        span = timeRange or spoken_time(query)
        found = (
            _of_time(index, query, span, k, limit)
            if span
            else documents(index.search(query, k, earlier=str(call.meta.get("earlier") or "")), limit)
        )
        notes = numbers.number(found, call)
        text = local_search(notes, span)
        if user_words := question(call).strip() if question and call.meta.get("placement") != "context" else "":
            text += f"\n\n[User query]:\n\n{user_words}"
        listed = [msgspec.to_builtins(Source(note.id, note.title, note.path)) for note in notes]
        return Output(text, meta={"sources": listed})

    return search


def _of_time(index: NoteIndex, query: str, span: str, k: int, limit: int) -> list[FoundNote]:
    """The notes of a time: first those that match the rest of the query, then the others, newest first."""
    within, words = time_range(span), re.sub(rf"\b{re.escape(span)}\b", " ", " ".join(query.split()), flags=re.I)
    fitting = documents(index.search(words, k, within.holds), limit) if words.strip(" ?!.,") else []
    paths = {note.path for note in fitting}
    others = index.passages(
        lambda note: note.path not in paths and within.holds(note), lambda note: -day_of(note).toordinal()
    )
    room = limit - sum(len(note.content) for note in fitting)
    fair = max(_LEAST_SHARE, room // max(1, len({other.path for other in others})))
    return [*fitting, *documents(others, room, min(4_000, fair), after=len(fitting))]


def sources(entries: Sequence[Entry]) -> list[Source]:
    """The sources of the newest answer: the documents that it cites, else all that were found for it."""
    begins = [place for place, entry in enumerate(entries) if entry.kind == "user"]
    turn = entries[begins[-1] :] if begins else entries
    named = [msgspec.convert(source, Source) for entry in turn for source in entry.meta.get("sources") or ()]
    answer = "".join(entry.text for entry in turn if entry.kind == "respond")
    numbers = {int(number.lstrip("^ ")) for group in _CITED_GROUP.findall(answer) for number in group.split(",")}
    cited = [source for source in named if source.id in numbers]
    return list({(source.id, source.path): source for source in cited or named}.values())


def sources_text(cited: Sequence[Source]) -> str:
    """The list of sources below an answer; "" where there are none."""
    lines = [f"[^{source.id}]: [[{source.title}]] ({source.path})" for source in cited]
    return "\n".join(["#### Sources", "", *lines]) if lines else ""
