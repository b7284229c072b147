"""Retrieval as a model reads it: documents with ids, the rule for citing them, and their catalog, in one block."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta

import msgspec

from quire.assemble.summary import truncate
from quire.assemble.user_message import escaped, shown
from quire.errors import CallError
from quire.notes.index import NoteIndex, Passage
from quire.notes.note import Note
from quire.send.tools import Output, Tool, tool
from quire.values import Entry

# Times as people say them: today, last week, past 3 days, 2025-01, 2025-01-01 to 2025-01-31.

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
    """One note as far as it was found; ids count from 1."""

    id: int
    title: str
    path: str
    content: str


class Source(msgspec.Struct, frozen=True):
    """A document that an answer rests on."""

    id: int
    title: str
    path: str


def documents(passages: Iterable[Passage], limit: int = 12_000, each: int = 4_000) -> list[FoundNote]:
    """Passages gathered by note, best note first, within `limit` characters in all and `each` for one note."""
    by_note: dict[str, list[Passage]] = {}
    for one in passages:
        by_note.setdefault(one.path, []).append(one)
    found: list[FoundNote] = []
    left = limit
    for path, own in by_note.items():
        if left <= 0:
            break
        ordered = sorted(own, key=lambda one: one.line)
        content = truncate("\n\n".join(one.text.strip() for one in ordered), min(each, left))
        left -= len(content)
        found.append(FoundNote(len(found) + 1, own[0].title, path, content))
    return found


class SourceNumbers:
    """Each note has one number in a turn, whichever of its searches finds it; searches may run side by side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[str, dict[str, int]] = {}

    def numbered(self, found: Sequence[FoundNote], call: Entry) -> list[FoundNote]:
        """The notes with the numbers they have in the call's turn; outside of any turn they count from 1."""
        turn = str(call.meta.get("turn") or "")
        with self._lock:
            known = {
                **self._turns.pop(turn, {}),
                **{one["path"]: one["id"] for one in call.meta.get("sources") or ()},
            }
            for one in found:
                known.setdefault(one.path, max(known.values(), default=0) + 1)
            if turn:
                self._turns[turn] = known
            while len(self._turns) > _MOST_TURNS:
                del self._turns[next(iter(self._turns))]
        return [msgspec.structs.replace(one, id=known[one.path]) for one in found]


_MOST_TURNS = 64


def local_search(found: Sequence[FoundNote], time_range: str = "") -> str:
    """The whole block; documents cannot end it."""
    attribute = f' timeRange="{_attribute(time_range)}"' if time_range else ""
    body = "\n\n".join(map(_document, found)) or NONE_FOUND
    inner = f"{INSTRUCTION}\n\n{body}\n\n<guidance>\n{_guidance(found)}\n</guidance>"
    return f"<localSearch{attribute}>\n{inner}\n</localSearch>"


def _document(one: FoundNote) -> str:
    content = escaped(one.content, *_TAGS)
    lines = [f"<id>{one.id}</id>", f"<title>{_field(one.title)}</title>", f"<path>{_field(one.path)}</path>"]
    return "\n".join(["<document>", *lines, f"<content>\n{content}\n</content>", "</document>"])


def _guidance(found: Sequence[FoundNote]) -> str:
    listed = [f"- [[{one.title}]] ({one.path})" for one in found[:_MOST_LISTED]]
    catalog = [escaped(shown(line), *_TAGS) for line in listed]
    return "\n".join([CITING, "", _CATALOG, *catalog]) if catalog else CITING


def _field(text: str) -> str:
    return shown(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _attribute(text: str) -> str:
    return _field(text).replace('"', "&quot;")


def local_search_tool(
    index: NoteIndex,
    *,
    k: int = 8,
    limit: int = 12_000,
    question: Callable[[Entry], str] | None = None,
    now_ms: Callable[[], int] | None = None,
) -> Tool:
    """The tool `localSearch` over a vault; `question` gives the user's words, to be said again behind documents.

    Calls chosen before the model speaks stand above the question anyway, and do not repeat it.
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
            timeRange: Only notes of this time, as "last week", "today", "2025-01" or "2025-01-01 to 2025-01-31".
        """
        if not index.vault.watched:
            index.update()
        within = time_range(timeRange, now_ms() if now_ms else None) if timeRange else None
        passages = index.search(query, k, _when(within), str(call.meta.get("earlier") or ""))
        found = numbers.numbered(documents(passages, limit), call)
        asked = question(call).strip() if question and call.meta.get("placement") != "context" else ""
        return _output(found, timeRange, asked)

    return search


def _output(found: Sequence[FoundNote], time_range: str, asked: str) -> Output:
    """What a model reads of a search, and the documents for whoever lists sources."""
    text = local_search(found, time_range)
    told = [msgspec.to_builtins(Source(one.id, one.title, one.path)) for one in found]
    return Output(f"{text}\n\n[User query]:\n\n{asked}" if asked else text, meta={"sources": told})


def _when(within: TimeRange | None) -> Callable[[Note], bool] | None:
    if within is None:
        return None
    return lambda note: within.holds(note.title, note.mtime_ms)


def sources(entries: Sequence[Entry]) -> list[Source]:
    """What the newest answer rests on: the documents it cites, else all that were found for it."""
    turn = _newest_turn(entries)
    given = [msgspec.convert(one, Source) for entry in turn for one in entry.meta.get("sources") or ()]
    answer = "".join(entry.text for entry in turn if entry.kind == "respond")
    numbers = {int(one.lstrip("^ ")) for group in _CITED_GROUP.findall(answer) for one in group.split(",")}
    cited = [one for one in given if one.id in numbers]
    return list({(one.id, one.path): one for one in cited or given}.values())


def sources_text(found: Sequence[Source]) -> str:
    """The list behind an answer; empty where nothing was found."""
    lines = [f"[^{one.id}]: [[{one.title}]] ({one.path})" for one in found]
    return "\n".join(["#### Sources", "", *lines]) if lines else ""


def _newest_turn(entries: Sequence[Entry]) -> Sequence[Entry]:
    for place in range(len(entries) - 1, -1, -1):
        if entries[place].kind == "user":
            return entries[place:]
    return entries
