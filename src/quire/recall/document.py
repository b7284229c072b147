"""Documents, queries and hits: what of an entry is searched, what a query asks for, and the passage that answers it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Protocol

import msgspec

from quire.assemble.telling import truncate
from quire.assemble.user_message import whole_text
from quire.errors import MissingPart
from quire.log.store import EntryWords
from quire.recall.languages import (
    FORM,
    PREFIXES,
    VERSION,
    date_words,
    is_english,
    lookups,
    meant_dates,
    readable,
    spell_dates,
    spell_numbers,
    stems,
    tells,
    terms,
    tokens,
)
from quire.values import Entry, Json, result_words

# The speaker of what tools return.
TOOL = "tool"
# Meaning and manner of speech are taken from this many first characters of a text; words from all of it.
_BEGINNING = 20_000
# Speakers that are roles, not people whom a query would name.
_PARTS = "user assistant tool system human ai model bot agent note record"
ROLES = frozenset(_PARTS.split())


def is_name(speaker: str) -> bool:
    """Whether a speaker is a person with a name, not a role."""
    return speaker != "" and speaker.lower() not in ROLES


class Document(msgspec.Struct, frozen=True):
    """A text to be found, and what is known about it.

    `extra` holds words that are not part of the text (a title, tags, a caption); `date` is its day in words ("8 May
    2023"). Documents of one session are neighbours, in the order in which they were added.
    """

    id: str
    text: str
    extra: str = ""
    speaker: str = ""
    session: str = ""
    date: str = ""

    @property
    def meaning(self) -> str:
        """The text from which vectors are made."""
        text = f"{self.text} [{self.extra}]" if self.extra else self.text
        return text[:_BEGINNING]


# An embedding model reads a few hundred words: a longer text has a vector for each piece, up to this many.
_PIECE = 1_000
_PIECES = 20


def pieces(text: str) -> list[str]:
    """A text in pieces that an embedding model can read whole, split at white space where possible."""
    parts: list[str] = []
    while len(text) > _PIECE * 1.3 and len(parts) < _PIECES - 1:
        ends = max(text.rfind("\n", _PIECE // 2, _PIECE), text.rfind(" ", _PIECE // 2, _PIECE))
        end = ends if ends > 0 else _PIECE
        parts.append(text[:end])
        text = text[end:]
    return [*parts, text[: 2 * _PIECE]]


# What a hit was found by: without a vector, and with one.
BY = ("words", "words and meaning")


class Found(msgspec.Struct, frozen=True):
    """A document that was found: `score` is the sum of `parts`.

    Scores are comparable within one search only. `relevance` is comparable between searches: the share of the query's
    words that the document holds, weighted by rarity, plus the cosine of their meanings; more where that cosine stands
    out from all others. `by_meaning` says whether it is known.
    """

    id: str
    score: float
    parts: dict[str, float]
    relevance: float = 0.0
    by_meaning: bool = False

    @property
    def by(self) -> str:
        """What it was found by."""
        return BY[self.by_meaning]


# The least relevance of a hit that answers: if no hit reaches it, nothing relevant was found.
FLOOR = 0.75
# Used where the cosine is not known.
USUAL_COSINE = 0.37


class HasRelevance(Protocol):
    """A hit of any kind of search."""

    @property
    def relevance(self) -> float: ...


def relevant(found: Iterable[HasRelevance]) -> bool:
    """Whether any of the hits is relevant to the query."""
    return any(hit.relevance >= FLOOR for hit in found)


# Signs of speech: whether a text asks, whom it speaks about, whether it mentions a time or a name.
#
# The cues are English words. In other languages none is found, and the ranking does without them.

_I = "i my me mine myself we our ours us ourselves"
_YOU = "you your yours yourself yourselves"
_TIME_WORDS = """
yesterday today tonight tomorrow last next ago since recently soon morning night
week weeks weekend month months year years
monday tuesday wednesday thursday friday saturday sunday mon tue wed thu fri sat sun
spring summer fall autumn winter
january february march april may june july august september october november december
"""
_FIRST, _SECOND, _TIMES = (frozenset(words.split()) for words in (_I, _YOU, _TIME_WORDS))
_NAMELESS, _CUES = _FIRST | _TIMES, _FIRST | _SECOND | _TIMES
# A word inside a sentence, where a capital letter means a name; and the name of whom is addressed ("Hey Ann!").
_INSIDE = re.compile(r" (?<=[^\s.!?…] )[\"“‘'(]*([^\W\d_]\w*)")
_ASCII_NAME = re.compile(r" (?<=[^\s.!?] )[\"'(]*([A-Z]\w*)", re.ASCII)
_SPOKEN_TO = re.compile(r"(?:,|(?:^|[.!?…])\s*[^\W\d_]+,?)\s+[^\W\d_]+(?=\s*(?:[,.!?…]|$))")


class SpeechSigns(msgspec.Struct, frozen=True):
    """How a text is said. `person` is above 0.5 where the speaker talks about themselves, below where about the listener."""

    asks: bool
    person: float
    times: int
    names: int
    length: int


def speech(text: str) -> SpeechSigns:
    """The signs in one text: "When did you go?" -> SpeechSigns(True, 1/3, 0, 0, 4)."""
    row = tokens(text)
    cues = list(filter(_CUES.__contains__, row))
    first, second, times = (sum(map(words.__contains__, cues)) for words in (_FIRST, _SECOND, _TIMES))
    return SpeechSigns(
        asks=text.rstrip().endswith(("?", "？", "؟")),
        person=(first + 1) / (first + second + 2),
        times=min(2, times),
        names=len(list(islice(_names(text), 2))),
        length=len(row),
    )


def _names(text: str) -> Iterator[str]:
    """Words that name something, but not the person addressed: "Hey Ann! I saw Rome in May." -> "Rome"."""
    for match in (_ASCII_NAME if text.isascii() else _INSIDE).finditer(text):
        if match[1][0].isupper() and match[1].lower() not in _NAMELESS:
            # Whoever is addressed is named right behind a punctuation mark or at the beginning.
            mark = max(text.rfind(sign, 0, match.start()) for sign in ",.!?…")
            addressed = _SPOKEN_TO.match(text, max(0, mark))
            if addressed is None or addressed.end() <= match.start():
                yield match[1]


class DocumentTerms(msgspec.Struct, frozen=True):
    """A document reduced to what a search needs, so that it can be stored and loaded without its text."""

    id: str
    words: str
    speaker: str
    session: str
    speech: SpeechSigns
    # The text to embed; empty where the vectors come from the store.
    meaning: str = ""


def index_terms(document: Document) -> DocumentTerms:
    """Reduce a document to its words (speaker's name, text, extra, date) and its signs of speech."""
    name = document.speaker if is_name(document.speaker) else ""
    parts = (name, document.text, document.extra, document.date)
    return DocumentTerms(
        document.id,
        " ".join(terms("\n".join(parts))),
        document.speaker,
        document.session,
        speech(document.text[:_BEGINNING]),
        document.meaning,
    )


# Entries that are searched: what was said, what tools returned, notes and items.
#
# Not searched: system text, tool definitions, thinking, the log's bookkeeping, and what recall itself repeated. A call is
# found through its result, by the call's name and arguments too; a call without a result is found itself.

# Marks entries that only repeat others: searches leave them out.
RECALLED = "(recalled)"
_RECALL_ARGUMENTS = {"query", "handle", "k", "start"}
# The kinds that can be searched; by default all of them are.
KINDS: tuple[str, ...] = ("user", "respond", "result", "note", "attach", "call")
ROLE = {"user": "user", "respond": "assistant", "result": TOOL, "note": "note"}
# How many characters of an entry are searched, items included; anything longer is hardly text.
TEXT_LIMIT = 1_000_000


def document(entry: Entry) -> Document:
    """An entry as a document, without a session, which depends on the entries around it."""
    speaker = RECALLED if _tells_again(entry) else entry.meta.get("speaker") or ROLE.get(entry.kind, "")
    text = _text(entry)[:TEXT_LIMIT]
    return Document(
        entry.id,
        text,
        extra=_extra(entry)[: TEXT_LIMIT - len(text)],
        speaker=str(speaker),
        date=" ".join(dict.fromkeys([date_words(entry.at), *meant_dates(text[:_BEGINNING], entry.at)])),
    )


def is_blank(entry: Entry) -> bool:
    """Whether an entry has no text to show; a result always has its call."""
    return entry.kind != "result" and not Document(entry.id, _text(entry), _extra(entry)).meaning.strip()


def _tells_again(entry: Entry) -> bool:
    """Whether an entry only repeats others: a call of Quire's own `recall`, or a note of what was recalled."""
    if entry.kind == "call":
        return entry.name == "recall" and isinstance(entry.args, dict) and _RECALL_ARGUMENTS.issuperset(entry.args)
    return entry.kind == "note" and "recalled_ids" in entry.meta


def _text(entry: Entry) -> str:
    if entry.kind == "result":
        return result_words(entry)
    if entry.kind == "call":
        return f"{entry.name} {' '.join(_values(entry.args))}"
    if entry.kind == "attach":
        return "\n".join(_item(item) for item in entry.attached)
    # Results of a provider's own search, and documents of a user, are native blocks without plain text.
    shows_all = entry.text.strip() and "encloses" not in entry.wire
    return entry.text if shows_all or not entry.wire else whole_text(entry)


def _extra(entry: Entry) -> str:
    """Captions (`meta.caption` and those of images), and the items that a user attached."""
    images = [image for image in entry.body.get("images") or () if isinstance(image, dict)]
    captions = [entry.meta.get("caption"), *(image.get("caption") for image in images)]
    items = [_item(item) for item in entry.attached] if entry.kind == "user" else []
    return "\n".join([str(caption) for caption in captions if caption] + items)


def _item(item: dict[str, Json]) -> str:
    return f"{item.get('id', '')}\n{item.get('content', '')}"


def _values(args: Json) -> Iterable[str]:
    """The names and values of a call's arguments, at every depth."""
    if isinstance(args, dict):
        for name, value in args.items():
            yield str(name)
            yield from _values(value)
    elif isinstance(args, list):
        for value in args:
            yield from _values(value)
    elif args is not None:
        yield str(args)


# The words of entries, as a store holds them.


def words_of(entries: Iterable[Entry]) -> list[EntryWords]:
    """The words of the entries that are searched; none where the stemmer is missing (`quire index` makes them later)."""
    return [entry_words(entry) for entry in entries if entry.kind in KINDS] if can_stem() else []


def entry_words(entry: Entry) -> EntryWords:
    """An entry's words and signs of speech."""
    words, session = index_terms(document(entry)), str(entry.meta.get("session") or "")
    signs = words.speech
    # A time that does not fit a database column is ignored.
    at = entry.at if entry.at is not None and abs(entry.at) < 2**63 else None
    about = (entry.id, entry.kind, VERSION, words.speaker, session, entry.call_id, at)
    return EntryWords(*about, signs.asks, signs.person, signs.times, signs.length, words.words, signs.names)


def can_stem() -> bool:
    """Whether the stemmer is installed."""
    try:
        stems(())
    except MissingPart:
        return False
    return True


# What a query asks for: its words, whom it is about, whether it asks for a time or a name, and the text to embed.


# The weight of the turn before, which helps to understand the query.
EARLIER = 0.25
# The weight of a pair of adjacent words that is adjacent in the text too.
SIDE_BY_SIDE = 0.4
# The weight of a date or number written in another form than in the query; it need not be found.
_OTHERWISE = 0.25
# The weight of a pair of signs with a grammatical sign, where the query has other words; it need not be found.
_BESIDE = 0.5
_NAME = re.compile(r"[^\W_]+(?:['’]s\b)?")
_ASKS_WHEN = re.compile(r"\W*(when|since when|how long|(on |in )?(what|which) (date|day|month|year|time))\b", re.I)

# Questions for something with a name: "what film", "which of her books", "what's the name", not "what did the team".
_NAMED = """
book novel movie film series show game song album band artist author singer musician composer
city cities country countries place town state location
company companies brand organization team school name title
"""
_VERBS = "do|does|did|has|have|had|can|could|will|would|should"
_SPACE = rf"\s+(?!({_VERBS})\b)"
_WHICH = re.compile(
    rf"\W*(\w+\s+)?(what|which)(['’]s)?({_SPACE}[\w'’/+-]+){{0,3}}?{_SPACE}({'|'.join(_NAMED.split())})s?\b", re.I
)


class Query(msgspec.Struct, frozen=True):
    """A query, and the turn before it where it continues a conversation; "yesterday" is relative to `at` (ms)."""

    text: str
    earlier: str = ""
    at: int | None = None


class QueryTerms(msgspec.Struct, frozen=True):
    """A query prepared for one collection.

    `words` are the words and pairs of adjacent words to look up, each with its weight; `subject` is the speaker whom
    the query is about, -1 for none. `when` and `name`: whether it asks for a time, or for something with a name.
    `english`: whether it is in the language of the embedding model. `meaning` and `earlier` are the texts to embed, of
    the query and of the turn before; empty where the model does not read their script.
    """

    words: tuple[tuple[str, float], ...]
    subject: int = -1
    when: bool = False
    name: bool = False
    english: bool = True
    meaning: str = ""
    earlier: str = ""


def ask(query: Query, names: Mapping[str, int]) -> QueryTerms:
    """Prepare a query; `names` maps lower-case words to the speakers whom they name."""
    named = [(match, names[_bare(match[0])]) for match in _NAME.finditer(query.text) if _bare(match[0]) in names]
    return QueryTerms(
        _weigh(query),
        _subject(query.text, named),
        _ASKS_WHEN.match(query.text) is not None,
        _WHICH.match(query.text) is not None,
        is_english(query.text),
        *(in_first_person(text, names) if readable(text) else "" for text in (query.text, query.earlier)),
    )


def in_first_person(text: str, names: Mapping[str, int]) -> str:
    """The query as the person named would say it: "What did Ann's son eat?" -> "What did my son eat?"."""

    def spoken(match: re.Match[str]) -> str:
        if _bare(match[0]) not in names:
            return match[0]
        return "I" if match[0].lower() == _bare(match[0]) else "my"

    return " ".join(_NAME.sub(spoken, text).split())


def _bare(word: str) -> str:
    """A word without its possessive, lower case: "Ann's" -> "ann"."""
    return re.sub(r"['’]s$", "", word.lower())


def _subject(text: str, named: list[tuple[re.Match[str], int]]) -> int:
    """Whom the query is about: the only person named, else the first without a possessive; -1 for nobody."""
    people = list(dict.fromkeys(speaker for _, speaker in named))
    if len(people) < 2:
        return people[0] if people else -1
    (first, former), (second, latter) = next((a, b) for a, b in pairwise(named) if a[1] != b[1])
    if former != latter and text[first.end() : second.start()].strip().lower() in ("and", "&", "or", ","):
        return -1
    acting = [speaker for match, speaker in named if match[0].lower() == _bare(match[0])]
    return (acting or people)[0]


def _weigh(query: Query) -> tuple[tuple[str, float], ...]:
    """The words and pairs of adjacent words of the query, each once with its weight; those of the turn before count less."""
    out: dict[str, float] = {}
    for text, weight in ((query.text, 1.0), (query.earlier, EARLIER)):
        dates, forms = spell_dates(text, query.at)
        spelled, as_written = spell_numbers(dates)
        words, forms = terms(spelled, is_query=True), f"{forms} {as_written}".strip()
        row = [word for word in words if word[0] not in PREFIXES]
        beside = _BESIDE if any(map(tells, words)) else 1.0
        for word in words:
            if word[0] == FORM:
                out.setdefault(word[1:], weight * _OTHERWISE)
            else:
                out.setdefault(word, weight if tells(word) else weight * beside)
        for first, second in pairwise(row):
            out.setdefault(f"{first} {second}", weight * SIDE_BY_SIDE)
        others = terms(forms, is_query=True) if forms else []
        for word in [*others, *map(" ".join, pairwise(word for word in others if word[0] not in PREFIXES))]:
            out.setdefault(word, weight * _OTHERWISE)
    return tuple(sorted(out.items()))


def query_for(entries: Iterable[Entry]) -> Query:
    """The query of a conversation: the newest user text, and the one before it as context."""
    texts = [entry.text for entry in entries if entry.kind == "user" and entry.text.strip()]
    return Query(texts[-1] if texts else "", texts[-2] if len(texts) > 1 else "")


# Passages: of a long text, its first words and the lines that answer a query.

# Texts are compared in stretches of at most this many characters: lines, or parts of long lines.
_STRETCH = 120
_OPENING = 80
_MARK = " ..."

Span = tuple[int, int]


def passage(text: str, limit: int, query: str = "") -> str:
    """About `limit` characters of a text: its first words and the part that holds the query's words, or just the beginning."""
    if len(text) <= limit:
        return text
    spans = list(_spans(text))
    best = _best([text[start:end] for start, end in spans], query)
    opening = first_words(text, min(_OPENING, limit // 4))
    room = limit - len(opening)
    if best is None or spans[best][1] <= limit // 2:
        return truncate(text, limit)
    start, end = _widen(spans, best, room)
    part = truncate(text[start:end].strip("\n"), room)
    more = _MARK if end < len(text) and not part.endswith("...") else ""
    return f"{opening}\n{part}{more}"


def first_words(text: str, limit: int) -> str:
    """The first line of a text, at most `limit` characters; " ..." shows that more follows."""
    line = text.strip().split("\n", 1)[0].rstrip()
    if len(line) > limit:
        return truncate(line, limit)
    return line + _MARK if len(text.strip()) > len(line) else line


def _spans(text: str) -> Iterator[Span]:
    """Start and end of each line of a text; long lines are split, at white space where possible."""
    for line in re.finditer(r"[^\n]+", text):
        start = line.start()
        while line.end() - start > _STRETCH:
            space = text.rfind(" ", start + 1, start + _STRETCH)
            end = space if space > 0 else start + _STRETCH
            yield start, end
            start = end
        yield start, line.end()


def _best(parts: Sequence[str], query: str) -> int | None:
    """The index of the part that holds most of the query's words, rare ones counting more; None if no part holds any."""
    asked = lookups(query, is_query=True)
    matches = [asked & lookups(part) for part in parts]
    holders = Counter(word for some in matches for word in some)
    weights = [sum(1 / holders[word] for word in some) for some in matches]
    if not any(weights):
        return None
    # Neighbouring parts count a little, because an answer often spreads over several lines.
    padded = [0.0, *weights, 0.0]
    near = [weight + (padded[at] + padded[at + 2]) / 4 if weight else 0.0 for at, weight in enumerate(weights)]
    return max(range(len(near)), key=lambda at: (near[at], -at))


def _widen(spans: Sequence[Span], best: int, room: int) -> Span:
    """The stretch around the best part, extended behind and before it in turns as far as there is room."""
    first = last = best
    grows = True
    while grows:
        grows = False
        if last + 1 < len(spans) and spans[last + 1][1] - spans[first][0] <= room:
            last, grows = last + 1, True
        if first > 0 and spans[last][1] - spans[first - 1][0] <= room:
            first, grows = first - 1, True
    return spans[first][0], spans[last][1]
