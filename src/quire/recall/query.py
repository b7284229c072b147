"""What a query asks for: its words, whom it is about, whether for a time or a name, and the text whose meaning counts."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from quire.errors import MissingPart
from quire.values import Entry

# From text to the words that are searched: lower case, function words dropped, irregular forms and stems joined.
#
# English stems and forms; other languages are searched by whole words, scripts without spaces by pairs of signs.

# Raised when the rules below change, or how much of an entry they see, so that stored words are made again.
VERSION = 3

# Letters and digits; scripts that write no spaces are cut into overlapping pairs below.
_TOKEN = re.compile(r"[^\W_]+")
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")

# Words that carry grammar alone. Words that order or count (after, before, all, other, not, …) are searched.
_GRAMMAR = """
a an the this that these those and or but nor so than too very just also ever if because as then
i me my myself we us our ours ourselves you your yours yourself yourselves he him his himself
she her hers herself it its itself they them their theirs themselves
am is are was were be been being do does did doing have has had having
can cannot could shall should will would might must need ought let get got
what which who whom whose when where why how there here
of to in on at by for with from into about any some such further
s t d m ll re ve ain aren couldn didn doesn don hadn hasn haven isn mightn mustn needn shan
shouldn wasn weren won wouldn
"""
FUNCTION_WORDS = frozenset(_GRAMMAR.split())

# Forms that stemming cannot join, each line led by the form they become.
_FORMS = """
become became|begin began begun|bend bent|bite bit bitten|bleed bled|blow blew blown|break broke broken
breed bred|bring brought|build built|burn burnt|buy bought|catch caught|choose chose chosen|come came
deal dealt|dig dug|do done|draw drew drawn|dream dreamt|drink drank drunk|drive drove driven|eat ate eaten
fall fell fallen|feed fed|feel felt|fight fought|find found|flee fled|fly flew flown|forbid forbade forbidden
forget forgot forgotten|forgive forgave forgiven|freeze froze frozen|give gave given|go went gone
grow grew grown|hang hung|hear heard|hide hid hidden|hold held|keep kept|kneel knelt|know knew known
lay laid|lead led|lean leant|leap leapt|learn learnt|leave left|lend lent|light lit|lose lost|make made
mean meant|meet met|mistake mistook mistaken|overcome overcame|pay paid|ride rode ridden|ring rang rung
rise rose risen|run ran|say said|see saw seen|seek sought|sell sold|send sent|shake shook shaken
shine shone|shoot shot|show shown|shrink shrank shrunk|sing sang sung|sink sank sunk|sit sat|sleep slept
slide slid|speak spoke spoken|spend spent|spin spun|spring sprang sprung|stand stood|steal stole stolen
stick stuck|sting stung|strike struck|swear swore sworn|sweep swept|swim swam swum|swing swung
take took taken|teach taught|tear tore torn|tell told|think thought|throw threw thrown
understand understood|wake woke woken|wear wore worn|weep wept|win won|wind wound|write wrote written
child children|foot feet|goose geese|man men|mouse mice|person people|tooth teeth|woman women
knife knives|leaf leaves|life lives|shelf shelves|wife wives|wolf wolves
good better best|bad worse worst
1 one|2 two|3 three|4 four|5 five|6 six|7 seven|8 eight|9 nine|10 ten|11 eleven|12 twelve
"""
FORMS = {
    form: line.split()[0]
    for line in _FORMS.replace("\n", "|").split("|")
    for form in line.split()[1:]
}  # fmt: skip


def tokens(text: str) -> list[str]:
    """All words of a text in order, lower case: "Where's W-12?" -> ["where", "s", "w", "12"]."""
    found = _TOKEN.findall(text.lower())
    if text.isascii():
        return found
    return [part for token in found for part in _cut(token)]


def content(text: str) -> list[str]:
    """The searched words of a text, in order: "She bought two hats" -> ["buy", "2", "hats"]."""
    return [FORMS.get(token, token) for token in tokens(text) if token not in FUNCTION_WORDS]


# A stemmer keeps state while it works, so each Python thread has its own.
_local = threading.local()


def stem(words: Iterable[str]) -> list[str]:
    """The stems of words, in order."""
    stemmer = getattr(_local, "stemmer", None)
    if stemmer is None:
        stemmer = _local.stemmer = _load()
    stems: list[str] = stemmer.stemWords(list(words))
    return stems


def _load() -> Any:
    try:
        import Stemmer
    except ImportError as error:
        raise MissingPart("recall needs PyStemmer and numpy", hint="pip install 'quire[recall]'") from error
    return Stemmer.Stemmer("english")


def _cut(token: str) -> Iterable[str]:
    """A token, or the pairs of neighbouring signs of an unspaced script in it."""
    if token.isascii() or not _UNSPACED.search(token):
        yield token
        return
    at = 0
    for run in _UNSPACED.finditer(token):
        if run.start() > at:
            yield token[at : run.start()]
        yield from _pairs(run[0])
        at = run.end()
    if at < len(token):
        yield token[at:]


def _pairs(run: str) -> Iterable[str]:
    """Overlapping pairs: "abc" -> "ab", "bc"; a single sign is itself."""
    if len(run) == 1:
        yield run
    for first, second in pairwise(run):
        yield first + second


# What is said before the last turn helps to understand it, and counts this much.
EARLIER = 0.25
_NAME = re.compile(r"[^\W_]+(?:['’]s\b)?")
_ASKS_WHEN = re.compile(
    r"\W*(when|since when|how long|(on |in )?(what|which) (date|day|month|year|time))\b", re.I
)

# What has a name of its own: "what film", "which of her books", "what's the name", but not "what did the team".
_NAMED = """
book novel movie film series show game song album band artist author singer musician composer
city cities country countries place town state location
company companies brand organization team school name title
"""
_VERBS = "do|does|did|has|have|had|can|could|will|would|should"
# Several things: "how many", "what are", "which old books"; the noun stands in front of the verb.
_PLURAL = r"(people|children|men|women|\w{2,}[^\Wsui]s(?!['’]))"
_BREAKS = f"{_VERBS}|is|was|of|in|to|for|that|and"


def _asks(what: str, breaks: str) -> re.Pattern[str]:
    """A pattern for "what" or "which", up to three words that are none of `breaks`, and what is asked for."""
    space = rf"\s+(?!({breaks})\b)"
    return re.compile(rf"\W*(\w+\s+)?(what|which)(['’]s)?({space}[\w'’/+-]+){{0,3}}?{space}{what}\b", re.I)


_WHICH = _asks(f"({'|'.join(_NAMED.split())})s?", _VERBS)
_SEVERAL = _asks(_PLURAL, _BREAKS)
_MANY = re.compile(r"\W*(\w+\s+)?(how many|(what|which) (are|were))\b", re.I)


class Query(msgspec.Struct, frozen=True):
    """A query, and the turn before it where it continues a conversation."""

    text: str
    earlier: str = ""


class QueryTerms(msgspec.Struct, frozen=True):
    """A query taken apart for one collection.

    `words` holds (word, its stem, weight); `subject` is the one speaker it is about, -1 for none,
    and `sure` whether nobody else is named. `when`, `name`, `several`: it asks for a time,
    for something with a name, for a list. `meaning` is the text to embed, `earlier` that of the turn before.
    """

    words: tuple[tuple[str, str, float], ...]
    subject: int = -1
    sure: bool = False
    when: bool = False
    name: bool = False
    several: bool = False
    meaning: str = ""
    earlier: str = ""


def ask(query: Query, names: Mapping[str, int]) -> QueryTerms:
    """Take a query apart; `names` gives the speaker that a lower-case word names."""
    found = [
        (match, names[_bare(match[0])]) for match in _NAME.finditer(query.text) if _bare(match[0]) in names
    ]
    subject, sure = _subject(query.text, found)
    return QueryTerms(
        _weighed(query),
        subject,
        sure,
        _ASKS_WHEN.match(query.text) is not None,
        _WHICH.match(query.text) is not None,
        _MANY.match(query.text) is not None or _SEVERAL.match(query.text) is not None,
        in_first_person(query.text, names),
        in_first_person(query.earlier, names),
    )


def in_first_person(text: str, names: Mapping[str, int]) -> str:
    """The query as the person named would say it: "What did Ann's son eat?" -> "What did my son eat?"."""

    def said(match: re.Match[str]) -> str:
        if _bare(match[0]) not in names:
            return match[0]
        return "I" if match[0].lower() == _bare(match[0]) else "my"

    return " ".join(_NAME.sub(said, text).split())


def _bare(word: str) -> str:
    """A word without its possessive, lower case: "Ann's" -> "ann"."""
    return re.sub(r"['’]s$", "", word.lower())


def _subject(text: str, found: list[tuple[re.Match[str], int]]) -> tuple[int, bool]:
    """Whom the query is about: the only one named, else the first who is not merely an owner."""
    people = list(dict.fromkeys(speaker for _, speaker in found))
    if len(people) < 2:
        return (people[0], True) if people else (-1, False)
    (first, one), (second, other) = next((a, b) for a, b in pairwise(found) if a[1] != b[1])
    if one != other and text[first.end() : second.start()].strip().lower() in ("and", "&", "or", ","):
        return -1, False
    acting = [speaker for match, speaker in found if match[0].lower() == _bare(match[0])]
    return (acting or people)[0], False


def _weighed(query: Query) -> tuple[tuple[str, str, float], ...]:
    """The words of the query, each once; those of the turn before at less weight."""
    out: dict[str, tuple[str, str, float]] = {}
    for text, weight in ((query.text, 1.0), (query.earlier, EARLIER)):
        words = content(text)
        for word, stemmed in zip(words, stem(words), strict=True):
            out.setdefault(stemmed, (word, stemmed, weight))
    return tuple(sorted(out.values(), key=lambda one: one[1]))


# How something is said, from its words alone: whether it asks, who it is about, whether it speaks of time or names.
#
# English cues; in other languages they are silent, and nothing is gained or lost.

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
_NAMELESS = _FIRST | _TIMES
# A word inside a sentence, where a capital means a name; and the one spoken to ("Hey Ann!", "Thanks, Ann.").
_INSIDE = re.compile(r" (?<=[^\s.!?…] )[\"“‘'(]*([^\W\d_]\w*)")
_SPOKEN_TO = re.compile(r"(?:,|(?:^|[.!?…])\s*[^\W\d_]+,?)\s+[^\W\d_]+(?=\s*(?:[,.!?…]|$))")


class SpeechSigns(msgspec.Struct, frozen=True):
    """`person` is above a half when the speaker tells of themselves, below when they speak of the listener."""

    asks: bool
    person: float
    times: int
    names: int
    length: int


def speech(text: str) -> SpeechSigns:
    """The manner of one utterance: "When did you go?" -> Speech(True, 1/3, 0, 0, 4)."""
    said = tokens(text)
    first = sum(word in _FIRST for word in said)
    second = sum(word in _SECOND for word in said)
    return SpeechSigns(
        asks=text.rstrip().endswith(("?", "？", "؟")),
        person=(first + 1) / (first + second + 2),
        times=min(2, sum(word in _TIMES for word in said)),
        names=min(2, _names(text)),
        length=len(said),
    )


def _names(text: str) -> int:
    """How many words name something: "Hey Ann! I saw Rome in May." -> 1, Rome."""
    inside = _INSIDE.findall(_SPOKEN_TO.sub(" ", text))
    return sum(word[0].isupper() and word.lower() not in _NAMELESS for word in inside)


# The query of a conversation: what the user said last, and at less weight what they said before.


def query_for(entries: Iterable[Entry]) -> Query:
    """The last user turn, with the one before it for what it leaves unsaid."""
    said = [entry.text for entry in entries if entry.kind == "user" and entry.text.strip()]
    return Query(said[-1] if said else "", said[-2] if len(said) > 1 else "")
