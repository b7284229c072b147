"""From text to the words that are searched: lower case, function words dropped, irregular forms and stems joined.

English stems and forms; other languages are searched by whole words, scripts without spaces by pairs of signs.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from quire.errors import MissingPart

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
