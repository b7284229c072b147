"""The built-in summary of turns that leave: extractive, deterministic, offline.

Tells the state of the work: what was asked, what is done, what is open, what failed, what was changed, and what was
named that later turns may name again. What the user demanded (constraints, ids, dates, amounts) is told word for word,
before anything else; of other requests at least the first words, of what was settled the newest, in words that can be
read; and how many are not listed. A summariser is a function `(Leaving) -> str`; a model can take this one's place, and
what it forgets of the demands is told beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from quire.assemble.telling import (
    CUT,
    GAP,
    LEAST,
    LINES_REMEMBERED,
    MORE,
    SHORT_FACTS,
    STOPS,
    WHOLES,
    Whole,
    demands,
    first_words,
    is_code,
    is_english,
    leaves,
    likelihood,
    report_label,
    settles,
    telling,
    tells_failure,
    truncate,
    weights,
    within,
)
from quire.tokens import counter
from quire.values import Entry, cached_property, result_text

# An earlier summary, read back: what was listed, what was named, and how much went unlisted even then.

# What a line tells: a request of the user, what the model settled, what it left open, what failed, and what it reported
# in a language in which these are not told apart.
KINDS = ("User", "Done", "Open", "Failed", "Assistant")
_LINE = re.compile(r"(User|Done|Open|Failed|Assistant): (.*)")
_LABEL = re.compile(r"(User|Done|Open|Failed|Assistant|Changed|Used|Named|Not listed): ")
_UNLISTED = re.compile(r"Not listed: (?=\d)(?:(\d{1,9}) requests)?(?:, )?(?:(\d{1,9}) decisions)?")
# What calls changed, what others were made with, and what else was said: words that may be named again.
CHANGED, USED, NAMED = LISTS = ("Changed: ", "Used: ", "Named: ")
# One or more marks in a row for something that was left out.
_GAPS = re.compile(rf"(?:\s*{MORE.strip()})+\s*")


class Line(msgspec.Struct, frozen=True):
    """One request, decision or failure, on one line."""

    who: str
    text: str


class UnlistedCounts(msgspec.Struct, frozen=True):
    """How many requests and decisions have no line of their own, or share one with an equal."""

    requests: int = 0
    decisions: int = 0

    def plus(self, lines: Iterable[Line]) -> UnlistedCounts:
        """The counts with these lines added."""
        speakers = [line.who for line in lines]
        settled = speakers.count("Done") + speakers.count("Open")
        return UnlistedCounts(self.requests + speakers.count("User"), self.decisions + settled)


class EarlierSummary(msgspec.Struct, frozen=True):
    """The parts of a summary; a model's own words are prose."""

    lines: tuple[Line, ...]
    words: dict[str, list[str]]
    prose: str
    missing: UnlistedCounts


def write_lines(lines: Sequence[Line]) -> list[str]:
    """One line each; who speaks is said where it changes, and where the words could be taken for a label."""
    before = [None, *(line.who for line in lines)]
    return [
        f"{line.who}: {line.text}" if line.who != who or _LABEL.match(line.text) else line.text
        for line, who in zip(lines, before, strict=False)
    ]


def tell_unlisted(missing: UnlistedCounts) -> str:
    """Says how many requests and decisions no line tells, if any."""
    counts = ((missing.requests, "requests"), (missing.decisions, "decisions"))
    words = ", ".join(f"{number} {noun}" for number, noun in counts if number)
    return f"Not listed: {words}" if words else ""


def earlier(text: str) -> EarlierSummary:
    """The parts of a summary that the built-in one, or another, has written."""
    lines, prose, missing = list[Line](), list[str](), UnlistedCounts()
    words: dict[str, list[str]] = {label: [] for label in LISTS}
    who = ""
    for line in text.split("\n"):
        if match := _LINE.fullmatch(line):
            who = match[1]
            lines.append(Line(who, match[2]))
        elif label := next((label for label in words if line.startswith(label)), ""):
            words[label] += line.removeprefix(label).replace(",", " ").split()
        elif counted := _UNLISTED.fullmatch(line):
            requests, decisions = (int(number or 0) for number in counted.groups())
            missing = UnlistedCounts(missing.requests + requests, missing.decisions + decisions)
        elif who:
            lines.append(Line(who, line))
        else:
            prose.append(line)
    return EarlierSummary(tuple(lines), words, "\n".join(prose).strip(), missing)


class Leaving(msgspec.Struct, frozen=True):
    """What a summary has to stand for, and how long it may be.

    What the user demanded is told even where it takes more than `limit`, up to `most` tokens. `present` are telling words
    that the request holds without it, `staying` the newer entries that it holds as they are.
    """

    entries: tuple[Entry, ...]
    before: str
    limit: int
    most: int = 0
    present: frozenset[str] = frozenset()
    staying: tuple[Entry, ...] = ()


Summarise: TypeAlias = Callable[[Leaving], str]


_OF_THE_USER = re.compile(r"(?i)\byours?\b")
# Code, and what a model that thinks aloud says to itself.
_ASIDE = re.compile(r"(?ms)^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1|\Z)|^<(think(?:ing)?)>.*?(?:</\2>|\Z)")
# Calls that change something, by a word of the tool's name.
_CHANGES = re.compile(
    r"(?i)(?:^|[_-])(?:edit|write|create|patch|apply|replace|insert|delete|remove|move|rename|save|append|update|"
    r"modify|cancel|exchange|return|book|send|set|add)|(?:Edit|Write|Create|Patch)"
)
# Arguments that name what a call is about.
_NAMES = re.compile(r"(?i)path|file|ur[il]$|(?:^|_)id$|name$")
# So many failures are told, and so many things left open: the newest. So many calls, where the model said nothing.
_FEW, _STEPS = {"Open": 5, "Failed": 3}, 3
# A failure is looked for in so many characters of what a call gave, the last; and going to a folder in front of a command.
_FAILURE = 20_000
_FOLDER = re.compile(r"^cd \S+ ?(?:&&|;) ?")
# A plan that the model keeps: steps with their states in a call (`update_plan`, `TodoWrite`), or boxes in its words.
_STEP = ("content", "step", "task", "title", "description", "text")
_TO_DO, _DONE = {"pending", "in_progress", "todo", "blocked"}, {"completed", "done", "cancelled", "skipped"}
_BOX = re.compile(r"(?m)^[^\S\n]*(?:[-*+]|\d+[.)]) \[([ xX])\] (.+)")
# What was settled is told in so many characters at least, in this share of the summary where there is much: the newest.
_DECISION_CHARS, _DECISION_SHARE = 60, 0.2
# What was changed and named takes this share at most.
_WORDS = 0.6
# Requests and decisions take this share of the summary before anything is named; more of it where that leaves each
# of them fewer than 30 characters, and more again for 16 and for 12. Where that is still too little, the oldest go.
_SHARES = ((0.4, 400), (0.5, 30), (0.6, 16), (0.9, 12))
_MOST, _SHORTEST = _SHARES[-1]
_LONGEST = _SHARES[0][1]
_LENGTHS = (_SHORTEST, 16, 20, 25, 30, 40, 50, 65, 80, 100, 130, 160, 200, 260, 320, _LONGEST)
# So many of the newest requests, a sixth of all at most, are told at twice the length of the other lines.
_NEWEST, _PART = 3, 6


def extract(leaving: Leaving) -> str:
    """Requests and decisions in their order, then what was changed and named, as much as the limit holds."""
    before = earlier(leaving.before)
    all_lines = _each_demand_once([*_summary_lines(before.lines, leaving)])
    most = max(leaving.limit, min(leaving.most, _demand_tokens(all_lines, SHORT_FACTS)))
    prose = _cut_to_tokens(before.prose, leaving.limit // 2)
    limit = most - _count(prose)
    fits = (bound for bound in WHOLES if _demand_tokens(all_lines, bound) <= limit * (1.0 if _is_short(bound) else 0.5))
    whole = next(fits, Whole())
    lines, missing = _choose_lines(all_lines, before.missing, limit, whole)
    limit -= _count(tell_unlisted(missing)) + 1
    size = cache(partial(_size, lines, whole=whole))
    length = 0
    for share, longest in _SHARES:
        if length < longest:
            length = max(length, min(longest, _length(size, limit * share)))
    named_elsewhere = {*leaving.present, *telling("\n".join([prose, *_cut(lines, length, whole)]))}
    words = _words(leaving.entries, before, named_elsewhere, min(limit - size(length), limit * _WORDS))
    # Tokens that the named words do not need go to the lines.
    length = max(length, _length(size, limit - _count(words)))
    return _within(_Draft(prose, missing, tuple(lines), length, whole, words), most)


def _is_short(whole: Whole) -> bool:
    return whole.facts <= SHORT_FACTS.facts and not whole.brief


def _demand_tokens(lines: Sequence[Line], whole: Whole) -> int:
    """The tokens that it takes to tell all demands."""
    demanding = [line for line in dict.fromkeys(lines) if _is_demand(line, whole)]
    unlisted = _count(tell_unlisted(UnlistedCounts(9_999, 9_999))) + 1
    return _size(demanding, _SHORTEST, whole) + unlisted if demanding else 0


def forgotten(leaving: Leaving, text: str) -> str:
    """What a summary by another leaves out of the demands and of what was named, as lines to stand behind it."""
    before = earlier(leaving.before)
    all_lines = _each_demand_once([*_summary_lines(before.lines, leaving)])
    room = {bound: max(leaving.limit // 2, leaving.most if _is_short(bound) else 0) for bound in WHOLES}
    whole = next((bound for bound in WHOLES if _demand_tokens(all_lines, bound) <= room[bound]), Whole())
    demanded = [demand for line in all_lines if line.who == "User" for demand in demands(line.text, whole)]
    lines = [Line("User", demand) for demand in dict.fromkeys(demanded) if demand not in text]
    while lines and _count("\n".join(write_lines(lines))) > room[whole]:
        del lines[0]
    left = leaving.limit - _count("\n".join([text, *write_lines(lines)]))
    named_elsewhere = {*leaving.present, *telling(text)}
    words = _words(leaving.entries, before, named_elsewhere, max(leaving.limit / 4, left * _WORDS))
    return "\n".join(part for part in (*write_lines(lines), words) if part)


class _Draft(msgspec.Struct, frozen=True, dict=True):
    """The parts of a summary that is being fitted."""

    prose: str
    missing: UnlistedCounts
    lines: tuple[Line, ...]
    length: int
    whole: Whole
    words: str

    @cached_property
    def text(self) -> str:
        parts = (self.prose, tell_unlisted(self.missing), *_cut(self.lines, self.length, self.whole), self.words)
        return "\n".join(part for part in parts if part)

    def fits(self, limit: int) -> bool:
        return _count(self.text) <= limit

    def without_one(self) -> _Draft:
        """The draft with the line that matters least counted instead of told."""
        least = _leaving(self.lines, self.whole)[0]
        lines = [*self.lines]
        del lines[least]
        return replace(self, lines=tuple(lines), missing=self.missing.plus([self.lines[least]]))


def _within(draft: _Draft, limit: int) -> str:
    """The draft as text of at most so many tokens: words give way first, then other prose, then lines."""
    while draft.words and not draft.fits(limit):
        draft = replace(draft, words=draft.words.rpartition(" ")[0].rstrip(": "))
    if not draft.fits(limit):
        draft = replace(draft, length=_SHORTEST)
    if not draft.fits(limit):
        draft = replace(draft, prose="")
    while draft.lines and not draft.fits(limit):
        draft = draft.without_one()
    # With too little room even to say how much is left out, there is no summary.
    return draft.text if draft.fits(limit) else ""


def _summary_lines(before: Sequence[Line], leaving: Leaving) -> Iterator[Line]:
    """Earlier lines, then what the user asked, what the model settled or left open, and the newest failures.

    Of a model that said nothing, the newest calls.
    What failed and then worked with the same tool on the same thing is no failure any more; what was open before the
    model's newest plan is what that plan says, and what it wanted of the user is open until the user speaks.
    """
    entries, staying = leaving.entries, leaving.staying
    spoke = next((entry.seq for entry in reversed(entries) if entry.kind == "user"), 0)
    plan = next((entry.seq for entry in reversed((*entries, *staying)) if _open_steps(entry) is not None), None)
    done = _calls(entries, failed=False)
    worked = {_target(call): seq for seq, call in (done | _calls(staying, failed=False)).items()}
    failed = _calls(entries, failed=True)
    newest = [seq for seq, call in failed.items() if worked.get(_target(call), 0) < seq][-_FEW["Failed"] :]
    texts = (entry.text for entry in entries if entry.kind in ("user", "respond"))
    closing = set[int]() if is_english(texts) else _closing(entries)
    for line in before:
        if line.who == "Open" and (plan is not None or (spoke and _OF_THE_USER.search(line.text))):
            continue
        if line.who != "Failed" or not any(tool in line.text and target in line.text for tool, target in worked):
            yield Line(line.who, line.text.removesuffix(MORE))
    for entry in entries:
        if entry.kind == "user" and (request := _request_text(entry.text)):
            yield Line("User", request)
        elif entry.kind == "respond":
            sentences = re.split(r"(?<=[.!?])\s+|(?<=[。！？])|\n+", _BOX.sub("", _ASIDE.sub("\n", entry.text)))
            reports = entry.seq in closing
            kinds = (settles(sentence) or (report_label(sentence) if reports else "") for sentence in sentences)
            settled = (Line(kind, _flat(text)) for kind, text in zip(kinds, sentences, strict=True) if kind)
            for line in settled:
                since = max(plan or 0, spoke if _OF_THE_USER.search(line.text) else 0)
                if line.who != "Open" or entry.seq >= since:
                    yield line
        elif entry.seq in newest and (text := _failure(result_text(entry))):
            tool, target = _target(failed[entry.seq])
            called = first_words(_call_line(failed[entry.seq]), _DECISION_CHARS // 2)
            yield Line("Failed", f"{text} {tool}{called if target in called else target})")
        if entry.seq == plan:
            yield from (Line("Open", _flat(step)) for step in _next_steps(_open_steps(entry) or []))
    if not any(entry.kind == "respond" and entry.text.strip() for entry in entries):
        steps = [call for call in done.values() if _open_steps(call) is None]
        for call in steps[-_STEPS:]:
            yield Line("Assistant", first_words(f"{call.name} {_call_line(call)}".strip(), _DECISION_CHARS))


def _calls(entries: Sequence[Entry], failed: bool) -> dict[int, Entry]:
    """The calls that failed, or all others, by the seq of their result."""
    calls = {entry.call_id: entry for entry in entries if entry.kind == "call"}
    results = [entry for entry in entries if entry.kind == "result" and entry.call_id in calls]
    return {entry.seq: calls[entry.call_id] for entry in results if _is_failure(entry) == failed}


def _is_failure(result: Entry) -> bool:
    """Whether a call failed: as its result is marked, or, since most formats have no such mark, as its last line says."""
    last = result_text(result)[-_LONGEST:].rstrip().rpartition("\n")[2]
    return bool(result.body.get("error")) or tells_failure(last)


def _each_demand_once(lines: Sequence[Line]) -> list[Line]:
    """The lines, with a demand that the user repeats (a reminder in each message) only in the newest that says it.

    A message that says nothing else becomes a copy of that one.
    """
    once, line_of = dict[Line, Line](), dict[str, Line]()
    for line in reversed(lines):
        if line.who != "User" or line in once:
            continue
        demanded, text, newer = demands(line.text), line.text, line
        for demand in demanded:
            before, _, behind = text.partition(demand)
            if demand in line_of and before.strip()[-1:] in STOPS + MORE:
                text, newer = f"{before}{MORE}{behind}", line_of[demand]
        text = text if newer is line else _GAPS.sub(GAP, text).strip(GAP)
        once[line] = Line(line.who, text) if text else newer
        line_of |= dict.fromkeys(set(demanded).difference(line_of), once[line])
    return [once.get(line, line) for line in lines]


def _closing(entries: Sequence[Entry]) -> set[int]:
    """The replies that end a turn: no call comes behind them before the user speaks."""
    closing, behind = set[int](), "user"
    for entry in reversed(entries):
        if entry.kind == "respond" and behind == "user":
            closing.add(entry.seq)
        elif entry.kind in ("user", "call"):
            behind = entry.kind
    return closing


def _open_steps(entry: Entry) -> list[str] | None:
    """What the plan that an entry holds leaves to do; None where it holds none."""
    if entry.kind == "respond":
        boxes = _BOX.findall(_ASIDE.sub("\n", entry.text))
        return [text for mark, text in boxes if mark == " "] if boxes else None
    listed = entry.args.values() if entry.kind == "call" and isinstance(entry.args, dict) else ()
    for steps in listed:
        if steps and isinstance(steps, list) and all(map(_step, steps)):
            return [_step(step) for step in steps if step["status"] in _TO_DO]
    return None


def _step(step: object) -> str:
    """The words of a step of a plan, '' where it is none."""
    if not isinstance(step, dict) or step.get("status") not in _TO_DO | _DONE:
        return ""
    return next((text for key in _STEP if isinstance(text := step.get(key), str) and text.strip()), "")


def _next_steps(steps: list[str]) -> list[str]:
    """The first of them, and how many more there are."""
    more = len(steps) - _FEW["Open"]
    return [*steps[: _FEW["Open"] - 1], f"{steps[_FEW['Open'] - 1]} (and {more} more)"] if more > 0 else steps


def _failure(text: str) -> str:
    """What a failed call says of it: from the first line on that speaks of a failure, else from the first."""
    lines = [flat for line in text[-_FAILURE:].split("\n") if (flat := _flat(line))]
    speaks = (at for at, line in enumerate(lines) if tells_failure(line))
    return first_words(_flat("\n".join(lines[next(speaks, 0) :])[:_LONGEST]), _DECISION_CHARS)


def _target(call: Entry) -> tuple[str, str]:
    """The tool, and what it was called with: the first telling word, else its first words."""
    text = _call_line(call)
    return f"({call.name} ", next(iter(telling(text)), first_words(text, _DECISION_CHARS))


def _call_line(call: Entry) -> str:
    """What a call was made with, on one line; where a command begins with going to a folder, the rest of it."""
    return _FOLDER.sub("", _flat(_text(call)))


def _choose_lines(
    lines: Sequence[Line], missing: UnlistedCounts, limit: int, whole: Whole
) -> tuple[list[Line], UnlistedCounts]:
    """The lines that can be told at least by their first words, and how many are missing with all others.

    Equal ones are told once. All others give way to requests, older ones to newer ones, all to demands.
    """
    newest = {line: place for place, line in enumerate(lines)}
    missing = missing.plus(line for place, line in enumerate(lines) if newest[line] != place)
    by_age = sorted(newest, key=newest.__getitem__)
    kinds = {kind: [line for line in by_age if line.who == kind] for kind in KINDS}
    room = max(_DECISION_SHARE * limit, _SHARES[0][0] * limit - _size(kinds["User"], _SHORTEST, whole))
    few = {kind: _newest_within(kinds[kind], room) for kind in ("Done", "Assistant")}
    few |= {kind: kinds[kind][-number:] for kind, number in _FEW.items()}
    for kind, some in few.items():
        missing = missing.plus(kinds[kind][: len(kinds[kind]) - len(some)])
    candidates = [line for kind in KINDS for line in few.get(kind, kinds[kind])]
    size, texts = _size(candidates, _SHORTEST, whole), _cut(candidates, _SHORTEST, whole)
    dropped = set[int]()
    for place in _leaving(candidates, whole):
        room = limit * (1 if _is_demand(candidates[place], whole) else _MOST)
        if size <= room and size + _count(tell_unlisted(missing)) <= room:
            break
        size -= _count(texts[place]) + 1
        missing = missing.plus([candidates[place]])
        dropped.add(place)
    return [line for place, line in enumerate(candidates) if place not in dropped], missing


def _newest_within(lines: Sequence[Line], room: float) -> Sequence[Line]:
    """The newest lines that fit into `room` tokens, each shortened to its first words."""
    start = len(lines)
    while start and (room := room - _count(first_words(lines[start - 1].text, _DECISION_CHARS)) - 1) >= 0:
        start -= 1
    return lines[start:]


def _is_demand(line: Line, whole: Whole) -> bool:
    return line.who == "User" and bool(demands(line.text, whole))


def _leaving(lines: Sequence[Line], whole: Whole) -> list[int]:
    """The places of lines in the order in which they give way."""
    order = {kind: rank for rank, kind in enumerate(reversed(KINDS))}
    return sorted(range(len(lines)), key=lambda at: (_is_demand(lines[at], whole), order[lines[at].who]))


def _length(size: Callable[[int], int], room: float) -> int:
    """How many characters each line may have at most so that all of them, of that `size` in tokens, fit."""
    low, high = 0, len(_LENGTHS) - 1
    while low < high:
        middle = (low + high + 1) // 2
        fits = size(_LENGTHS[middle]) <= room
        low, high = (middle, high) if fits else (low, middle - 1)
    return _LENGTHS[low]


def _size(lines: Sequence[Line], length: int, whole: Whole) -> int:
    return _lines_count(_cut(lines, length, whole)) + 1 if lines else 0


# The end of a line over which no token reaches.
_APART = re.compile(r"\n(?=[^\s/])")


def _lines_count(lines: Sequence[str]) -> int:
    """The tokens of lines in a row: no token reaches over a line's end, unless the next begins with a slash or a space."""
    *rest, last = _APART.split("\n".join(lines))
    return sum(map(_line_count, rest)) + _count(last)


@lru_cache(maxsize=LINES_REMEMBERED)
def _line_count(line: str) -> int:
    """The tokens of a line and its end."""
    return _count(f"{line}\n")


def _cut(lines: Sequence[Line], length: int, whole: Whole) -> list[str]:
    """Requests and all others, each by its first words and its demands; of the newest requests twice as many.

    Where room is shortest no line is told at greater length, so that none takes the place of another's demands.
    """
    requests = sum(line.who == "User" for line in lines)
    newest = range(requests - min(_NEWEST, requests // _PART), requests if length > _SHORTEST else 0)
    lengths = (length * (2 if place in newest else 1) for place in range(len(lines)))
    return write_lines(
        [Line(line.who, _first_words_and_demands(line, most, whole)) for line, most in zip(lines, lengths, strict=True)]
    )


@lru_cache(maxsize=LINES_REMEMBERED)
def _first_words_and_demands(line: Line, length: int, whole: Whole) -> str:
    """A line by its first words; of a request the demands behind them are told whole."""
    if line.who != "User":
        # What failed is told with the call that it was, so that it is known again once that works.
        return first_words(line.text, max(length, 3 * _DECISION_CHARS if line.who == "Failed" else _DECISION_CHARS))
    text = line.text.removesuffix(MORE)
    demanded = demands(text, whole)
    head = first_words(text, length)
    start = head.removesuffix(CUT)
    if head == text:
        return text
    behind = [demand for demand in demanded if not _stands(demand, start)]
    if not behind:
        return start + MORE if any(map(start.endswith, demanded)) else head
    if length <= _SHORTEST:
        return _join_demands(demanded, text)
    # A demand that the cut has parted is told whole instead.
    parted = [place for demand in behind if 0 <= (place := text.find(demand)) < len(start)]
    first = (start[: min(parted)].strip() if parted else start).removesuffix(CUT).removesuffix(MORE)
    behind = [demand for demand in demanded if not _stands(demand, first)]
    mark = GAP if any(map(first.endswith, demanded)) else f"{CUT} "
    if text.removeprefix(first).lstrip().startswith(behind[0]):
        mark = " "
    return (first and first + mark) + _join_demands(behind, text)


def _join_demands(demanded: Sequence[str], text: str) -> str:
    """Demands of a text in a row, with a mark where something of it stands between them, or behind the last."""
    out, end = "", -1
    for demand in demanded:
        start = text.find(demand, max(end, 0))
        out += ("" if not out else " " if start >= 0 and not text[end:start].strip() else GAP) + demand
        end = start + len(demand) if start >= 0 else len(text)
    return out if end == len(text) and text.endswith(demanded[-1]) else out + MORE


def _stands(demand: str, text: str) -> bool:
    """Whether a demand stands in a text as a sentence that a cut behind it leaves whole."""
    before, _, behind = text.partition(demand)
    return before != text and (not behind or demand[-1] in STOPS or behind.startswith(MORE))


def _cut_to_tokens(text: str, limit: int) -> str:
    """A text of at most so many tokens, cut at a sentence where there is one."""
    tokens = _count(text)
    characters, cut = len(text), text
    while cut and _count(cut) > limit:
        characters = min(characters * 9 // 10, int(len(text) * limit / tokens))
        cut = truncate(text, characters) if characters > 0 else ""
    return cut


def _words(entries: Sequence[Entry], before: EarlierSummary, named_elsewhere: set[str], room: float) -> str:
    """The words that are likeliest named again, within `room` tokens, under what was done with them."""
    # A line that was told before may have no place any more: what it named is as likely as what was used.
    label = {word: USED for line in before.lines if line.who != "Failed" for word in telling(line.text)}
    label |= {word: label for label in reversed(LISTS) for word in before.words[label]}
    weight = dict.fromkeys(label, 1.0)
    offered, called = set(before.words[NAMED]), set[str]()
    for place, entry in enumerate(entries, 1):
        words_of_entry = telling(_text(entry))
        changes = entry.kind == "call" and _CHANGES.search(entry.name) and _open_steps(entry) is None
        if entry.kind == "call":
            called |= offered.intersection(words_of_entry)
        else:
            offered.update(words_of_entry)
        for word in words_of_entry:
            weight[word] = weight.get(word, 0.0) + 0.5 + place / len(entries)
            if entry.kind == "call" and label.get(word) != CHANGED:
                label[word] = CHANGED if word == words_of_entry[0] and changes else USED
    scored = {
        word: likelihood(word, label.get(word, NAMED) != NAMED) * times**0.5
        for word, times in weight.items()
        # That a file was changed is told wherever else it is named.
        if word not in named_elsewhere or label.get(word) == CHANGED
    }
    here = weights(offered, called)
    likely = {
        word: weighted
        for word, score in scored.items()
        if score >= LEAST and (weighted := score * (1 if label.get(word, NAMED) != NAMED else here(word)))
    }
    top = within(likely, room - 3 * len(LISTS))
    lines = {name: [word for word in top if label.get(word, NAMED) == name] for name in LISTS}
    return "\n".join(f"{name}{' '.join(words)}" for name, words in lines.items() if words)


def _text(entry: Entry) -> str:
    if entry.kind == "result":
        return result_text(entry)
    if entry.kind == "call":
        args = entry.args if isinstance(entry.args, dict) else {}
        # First what it is about: models give arguments in any order.
        names = sorted(args, key=lambda name: _NAMES.search(name) is None)
        return " ".join(text for name in names for text in leaves(args[name]))
    return entry.text


def _flat(text: str) -> str:
    """On one line; what stands between the words of a line stays."""
    return " ".join(part for line in text.split("\n") if (part := line.strip()))


# What begins a line that is none of the sentence before it: a mark of a list, a time, a capital, a sign.
_BEGINS = re.compile(r"[^\w\s('\"]|\d+[.)]\s|\d+[-/:]\d|[^\W\d_a-z]")


# What Claude Code says in the user's place: that commands of its own were run, what they gave, that the user stopped it.
_NOTICE = re.compile(
    r"(?m)^(?:Caveat: The messages below were generated by the user .*|\[Request interrupted by user.*\])$|"
    r"(?:^|(?<=</bash-stdout>))<(local-command-\w+|bash-std\w+)>[^<]*+(?:<(?!local-command-|bash-std|/\1>)[^<]*+)*+</\1>"
)


def _request_text(text: str) -> str:
    """A request on one line; where a line ends a sentence that has no full stop, a list's say, it is seen."""
    out, code = "", False
    for line in filter(None, map(str.strip, _NOTICE.sub("", text).split("\n"))):
        begins = _BEGINS.match(line) and line[0] == line[0].upper()
        out += ("" if not out else GAP if code or (begins and out[-1] not in STOPS) else " ") + line
        code = is_code(line)
    return out


def _count(text: str) -> int:
    return counter().count(text) if text else 0
