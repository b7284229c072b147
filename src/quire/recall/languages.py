"""From a text to its terms, the words that are searched: split, folded, without grammatical words, stemmed.

A compound (`readFile`, `snake_case`, `src/app.py`, `W-12`) gives its parts and, marked with "=", itself. A text is
stemmed by the rules of its language, English by default; where it is too short to tell, also by those of each language
it may be in. These other forms, and the words as written, are marked with "~". Scripts without spaces are split into
pairs of signs, and so is Korean, which attaches particles to words.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import Any

from quire.errors import needs_extra

# Increased when the rules below change, or how much of an entry they cover: stored words are then made again.
VERSION = 13

# The prefix of a whole word: a compound, a single sign, and each word of a query.
WHOLE = "="
# The prefix of another form of a word, which need not be found: the word as written, and its stems by other languages
# that the text may be in.
FORM = "~"
PREFIXES = WHOLE + FORM
# A longer compound is data, not a name.
_LONGEST = 120
# How many words are looked at to tell the language of a text.
_TELLING = 400
# A text that may be in more languages than these is taken for English.
_UNSURE = 4

# Letters, digits, underscores, and the marks that some scripts write as signs of their own.
_MARKS = "".join(chr(sign) for sign in range(0x300, 0x1100) if unicodedata.category(chr(sign))[0] == "M")
_WORD = re.compile(rf"[\w{_MARKS}]+")
_COMPOUND = re.compile(rf"[\w{_MARKS}]+(?:[-./\\@:#+]+[\w{_MARKS}]+)*")
# The same for ASCII text, which is faster: all characters except these become white space.
_JOINED = "-./\\@:#+"
_WORDS_APART, _COMPOUNDS_APART = (
    {code: " " for code in range(128) if not (chr(code).isalnum() or chr(code) in more)} for more in ("", "_" + _JOINED)
)
_JOINTS = re.compile(r"[/\\@:#+]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_+")
# A number directly beside letters; and a hash, which people name by its first characters.
_NUMBERED = re.compile(r"([a-z]{2,})(\d+)|(\d+)([a-z]{2,})", re.I)
_HASH, _SHORT_HASH = re.compile(r"(?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{8,}"), 7
# Figures in groups: "1,200", "1 500 000", "+49 151 2345-6789".
_GROUPED = re.compile(
    r"\d(?<![\d.,]\d)(?<!\d-\d)"
    r"(?:(?=(?:[ -]?\d){6})\d{1,3}(?:[ -]\d{2,4})+|\d{0,2}([.,'’\u00a0\u202f ])\d{3}(?:\1\d{3})*)(?![.,]?\d)"
)
_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3\uf900-\ufaff]+")

# Question words, and endings of questions and words, in scripts that are split into pairs of signs. They are removed from a
# query: paired with their neighbours they would give terms that no text holds.
_ASKS = re.compile(
    "请问|为什么|什么时候|什么|怎么样|怎么|哪里|哪儿|哪[个条张些位家]|多少|多[高大长远久]|几[点个时次]|谁|[吗呢吧了的]"
    "|どのくらい|どのように|どんな|どこ|どの|どれ|どう|いつ|なぜ|何|誰|(?:なり)?(?:でし|まし)たか|(?:し)?て?いますか|(?:です|ます|あります)か|です|ます"
    "|누구|누가|무엇|무슨|어떤|어떻게|어느|어디|언제|얼마나?|^(?:뭐|왜|몇)"
    "|(?<=..)(?:께서|에서|에게|한테|으로|까지|부터|[은는이가을를에의로와과도만])$"
    "|(?:습니|입니|습|입)?(?:니다|니까)$|(?:이에|예|었어|았어|했어|어|아|해|시나|나|까|는가|인가|세|죠|지)?요$|죠$"
    "|อะไร|ใคร|ที่ไหน|ไหน|เมื่อไหร่|เมื่อไร|ทำไม|อย่างไร|ยังไง|เท่าไหร่|เท่าไร|หรือไม่|ไหม|ครับ|ค่ะ"
)
# Signs that are mostly grammatical: hiragana, and a few Chinese ones. A pair with such a sign need not be found; a single
# sign between two of them is a word.
_GRAMMAR_SIGNS = "\u3040-\u309f的了是在我你他她它们这那都也就很和与把被"
_GRAMMAR_SIGN, _TELLING_SIGNS = re.compile(f"[{_GRAMMAR_SIGNS}]"), re.compile(f"[^{_GRAMMAR_SIGNS}]+")

# Grammatical words, which are not searched. English words of order or number (after, before, all, not, …) are searched.
_GRAMMAR = {
    "english": """a an the this that these those and or but nor so than too very just also ever if because as then
        i me my myself we us our ours ourselves you your yours yourself yourselves he him his himself
        she her hers herself it its itself they them their theirs themselves
        am is are was were be been being do does did doing have has had having
        can cannot could shall should will would might must need ought let get got
        what which who whom whose when where why how there here
        of to in on at by for with from into about any some such further
        s t d m ll re ve ain aren couldn didn doesn don hadn hasn haven isn mightn mustn needn shan
        shouldn wasn weren won wouldn""",
    "german": """der die das den dem des ein eine einen einem einer und oder aber ich du er sie es wir ihr mich dich
        mir dir uns euch mein dein sein ihre ist sind war waren bin bist hat habe haben hatte wird werden wurde in im
        an am auf aus bei mit nach von vom zu zum zur für um als wie was wer wo wann warum welche welcher nicht auch
        dass wenn so nur noch""",
    "french": """le la les un une des du de et ou mais je tu il elle nous vous ils elles me te se mon ton son ma ta sa
        mes tes ses notre votre leur ce cette ces est sont était suis as ai a ont avait être avoir dans sur sous avec
        pour par en au aux à que qui quoi où quand comment pourquoi quel quelle ne pas plus on y l d c j qu n s""",
    "spanish": """el la los las un una unos unas de del y o pero yo tú él ella nosotros ellos me te se mi tu su mis sus
        este esta esto ese esa es son era fue estaba está están ha han había ser estar haber en con por para a al que
        qué quién cuándo dónde cómo cuál no lo le les como más""",
    "italian": """il lo la i gli le un uno una di del della dei delle e o ma io tu lui lei noi voi loro mi ti si ci mio
        tuo suo mia questo questa è sono era erano ha hanno ho aveva essere avere in nel nella con per da dal a al
        alla su che chi quando dove come perché quale non più""",
    "portuguese": """o a os as um uma de do da dos das e ou mas eu tu ele ela nós eles me te se meu minha seu sua este
        esta isso é são era foi estava está tem têm tinha ser estar ter em no na nos nas com por para ao à que quem
        quando onde como qual não mais lhe""",
    "dutch": """de het een en of maar ik jij je hij zij ze we wij jullie mij jou hem haar ons mijn jouw zijn is was
        waren ben bent heeft heb hebben had wordt worden in op aan bij met van voor naar om uit te als wat wie waar
        wanneer hoe waarom welke niet ook dat die dit deze er""",
    "swedish": """en ett den det de och eller men jag du han hon vi ni dem mig dig oss min din sin är var har hade vara
        bli i på av med för från till om som vad vem var när hur varför vilken inte att ska kan""",
    "danish": """en et den det de og eller men jeg du han hun vi mig dig os min din sin er var har havde være blive i på
        af med for fra til om som hvad hvem hvor hvornår hvordan hvorfor hvilken ikke at skal kan""",
    "norwegian": """en et ei den det de og eller men jeg du han hun vi meg deg oss min din sin er var har hadde være bli
        i på av med for fra til om som hva hvem hvor når hvordan hvorfor hvilken ikke å skal kan""",
    "finnish": """ja tai mutta minä sinä hän me te he minun sinun hänen on ovat oli olivat ollut olla ei en että kun jos
        mikä kuka missä milloin miten miksi mitä se ne tämä nämä joka jotka kanssa myös niin""",
    "polish": """i oraz lub ale ja ty on ona my wy oni mnie ciebie mój twój jego jej jest są był była było być ma mają
        w we na z ze do od o u po przez dla przy że co kto gdzie kiedy jak dlaczego który która nie się to ten ta""",
    "czech": """a nebo ale já ty on ona my vy oni mě tě můj tvůj jeho její je jsou byl byla bylo být má mají v ve na z ze
        do od o u po pro při že co kdo kde kdy jak proč který která ne se to ten ta si""",
    "romanian": """și sau dar eu tu el ea noi voi ei ele mă te se meu tău său este sunt era au am a fi în din la cu pe de
        pentru că ce cine unde când cum care nu un o unei unui al ale""",
    "hungarian": """a az és vagy de én te ő mi ti van vannak volt voltak lesz lenni nem hogy ha mint mi ki hol mikor
        hogyan miért melyik ez egy is meg el""",
    "turkish": """ve veya ama ben sen o biz siz onlar benim senin onun bu şu bir ile için gibi de da mi ne kim nerede ne
        zaman nasıl neden hangi değil var yok çok olan olarak""",
    "russian": """и или но я ты он она мы вы они меня тебя мне тебе мой твой его её их это этот эта был была было были
        быть есть в во на с со из к ко у о об от до по за для при что кто где когда как почему какой какая не же ли
        бы""",
}  # fmt: skip

_GREEK_ARABIC_HINDI = """
    ο η το οι τα του της των τον την τους τις ένας μια μία ένα και ή αλλά εγώ εσύ αυτός αυτή αυτό εμείς εσείς
    μου σου μας σας με σε στο στη στην στον στα στις στους από για προς είναι ήταν είμαι είσαι έχει έχω έχουν
    είχε θα να δεν μην που πού ποιος ποια ποιο πότε πώς γιατί τι πόσο πόσος πόση πόσα ότι αν όταν
    في من إلى الى على عن مع و أو او ثم لكن أن ان إن أنا انا أنت انت هو هي هم نحن أنتم هذا هذه ذلك تلك الذي التي
    الذين ما ماذا من متى أين اين كيف لماذا كم بكم أي اي هل كان كانت يكون تكون قد لقد لا لم لن ليس ليست كل بعد
    قبل عند عندي لدي لدى له لها لي لك منه منها فيه فيها به بها عليه عليها إليه هناك هنا الآن الان حتى إذا اذا
    का के की को में से पर ने तक और या लेकिन मैं मुझे मेरा मेरी मेरे हम हमें हमारा हमारी हमारे तुम आप आपका आपकी
    आपके वह वे यह ये उस इस उसका उसकी उनका इसका है हैं था थी थे हूँ हो होता होती होते गया गई गए कर करके जो कि तो
    भी ही नहीं न क्या कौन कब कहाँ क्यों कैसे कैसा कितना कितनी कितने किस किसने किसका किसको सा सी एक लिए साथ जी
    वाला वाली वाले अब
"""

# Letters that Unicode does not decompose.
_PLAIN = str.maketrans({"ø": "o", "œ": "oe", "æ": "ae", "đ": "d", "ð": "d", "ł": "l", "ı": "i", "þ": "th"})
# Scripts whose words are all stemmed as one language, by the range of their letters.
_SCRIPTS = (
    (0x370, 0x3FF, "greek"),
    (0x400, 0x52F, "russian"),
    (0x531, 0x58F, "armenian"),
    (0x600, 0x6FF, "arabic"),
    (0x900, 0x97F, "hindi"),
    (0xB80, 0xBFF, "tamil"),
)
_LATIN_ENDS = 0x250


def _fold(word: str) -> str:
    """Lower case; Latin letters without accents: "Straße" -> "strasse", "Café" -> "cafe"."""
    folded = word.casefold()
    if folded.isascii() or not is_latin(folded):
        return folded
    parted = unicodedata.normalize("NFD", folded.translate(_PLAIN))
    return "".join(sign for sign in parted if not unicodedata.combining(sign))


def is_latin(word: str) -> bool:
    """Whether a word is written in Latin letters, or without letters."""
    return ord(word[0]) < _LATIN_ENDS or "\u1e00" <= word[0] <= "\u1eff"


FUNCTION_WORDS = {language: frozenset(_fold(word) for word in words.split()) for language, words in _GRAMMAR.items()}
# Words that are grammatical in any text, because only their language is written in that script.
_OF_SCRIPTS = FUNCTION_WORDS["russian"] | {_fold(word) for word in _GREEK_ARABIC_HINDI.split()}
# The languages that a grammatical word is evidence of; single letters are evidence of none.
_LANGUAGES = {
    word: [language for language, words in FUNCTION_WORDS.items() if word in words]
    for word in frozenset().union(*FUNCTION_WORDS.values())
    if len(word) > 1
}

# The languages that a letter is evidence of.
_ALPHABETS = {
    "german": "äöüß", "french": "àâçèéêëîïôùûœ", "spanish": "áéíóúñ¿¡", "italian": "àèéìòù",
    "portuguese": "ãõáéíóúâêôçà", "dutch": "ëï", "swedish": "åäö", "danish": "åæø", "norwegian": "åæø",
    "finnish": "äö", "polish": "ąćęłńóśźż", "czech": "áčďéěíňóřšťúůýž", "romanian": "ăâîșț",
    "hungarian": "áéíóöőúüű", "turkish": "çğıöşü",
}  # fmt: skip
_LETTERS = {
    letter: [language for language, letters in _ALPHABETS.items() if letter in letters]
    for letter in frozenset().union(*_ALPHABETS.values())
}


def tokens(text: str) -> list[str]:
    """All words of a text in order, lower case: "Where's W-12?" -> ["where", "s", "w", "12"]."""
    if text.isascii():
        return text.lower().translate(_WORDS_APART).split()
    return [_fold(part) for word in _WORD.findall(_compose(text)) for part in word.split("_") if part]


def terms(text: str, is_query: bool = False) -> list[str]:
    """The terms of a text: "She reads app.pyFiles" -> ["read", "app", "py", "file", "=app.pyfiles", …].

    The terms of a query (`is_query`) also hold its words as written, for texts in other languages.
    """
    compounds = text.translate(_COMPOUNDS_APART).split() if text.isascii() else _COMPOUND.findall(_compose(text))
    parts, whole = dict[str, tuple[str, ...]](), list[str]()
    for compound in dict.fromkeys(compounds):
        split = _cached_parts if len(compound) <= _LONGEST else _split_compound
        parts[compound], names = split(compound.strip(_JOINED), is_query)
        whole += names
    beginning = islice(chain.from_iterable(map(parts.__getitem__, compounds)), _TELLING)
    language, others = _languages(set(beginning if text.isascii() else map(_fold, beginning)), text)
    # A repeated word is stemmed once.
    stemmed, plain_words = dict[str, list[str]](), list[str]()
    for compound, words in parts.items():
        some, stemmed[compound] = (_cached_stems if len(compound) <= _LONGEST else _stem)(words, language)
        plain_words += some
    out = list(chain.from_iterable(map(stemmed.__getitem__, compounds)))
    if is_query or others:
        forms = {*plain_words, *_other_stems(parts.values(), language, others)}
        out += (FORM + form for form in sorted(forms.difference(out)))
    if is_query:
        whole += (word for word in plain_words if not word.isdigit())
    else:
        out += (FORM + number for number in dict.fromkeys(map(_in_one_piece, _GROUPED.finditer(text))))
    return out + [word if word[0] == FORM else WHOLE + word for word in dict.fromkeys(whole)]


def spell_numbers(query: str) -> tuple[str, str]:
    """A query with its numbers ungrouped, and what else they may be: "1,200 or 3" -> ("1200 or 3", "1,200").

    Between spaces or hyphens may also stand several numbers: "in 2019 2020" -> ("in 2019 2020", "20192020").
    """
    others = list[str]()

    def spell(figures: re.Match[str]) -> str:
        number = _in_one_piece(figures)
        spelled, other = (figures[0], number) if {" ", "-"} & {*figures[0]} else (number, figures[0])
        others.append(other)
        return spelled

    return _GROUPED.sub(spell, query), " ".join(others)


def _in_one_piece(figures: re.Match[str]) -> str:
    return re.sub(r"\D", "", figures[0])


def _other_stems(parts: Iterable[tuple[str, ...]], language: str, others: Iterable[str]) -> Iterator[str]:
    """The stems, by other languages, of all words that are not grammatical in the text's own language."""
    grammar = FUNCTION_WORDS[language]
    words = tuple(part for some in parts for part in some if _fold(part) not in grammar)
    return chain.from_iterable(_stem(words, other)[1] for other in others)


def lookups(text: str, is_query: bool = False) -> set[str]:
    """The terms of a text or query, with other forms unmarked, like any term."""
    return {term.removeprefix(FORM) for term in terms(text, is_query)}


def _compose(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


def _split_compound(compound: str, is_query: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parts of a compound, and its names: itself, its steps ("app.py" of a path), its words."""
    parts: list[str] = []
    whole: list[str] = []
    words = _WORD.findall(compound)
    for word in words:
        if word.isascii():
            humps = [word] if word.islower() and "_" not in word else list(filter(None, _HUMP.split(word)))
            if _HASH.fullmatch(word):
                humps = [word[:_SHORT_HASH]]
            elif not word.isalpha() and (numbered := _NUMBERED.fullmatch(word)):
                whole += (FORM + part.lower() for part in numbered.groups() if part)
            parts += (hump.lower() for hump in humps)
            if humps and humps != [word]:
                whole.append(word.lower())
        else:
            for piece in word.split("_"):
                _take_signs(piece, parts, whole, is_query)
    if len(words) > 1 and len(compound) <= _LONGEST:
        steps = _JOINTS.split(compound)
        whole += (_fold(step) for step in steps if len(_WORD.findall(step)) > 1)
        if len(steps) > 1:
            whole.append(_fold(compound))
    return tuple(parts), tuple(whole)


def _stem(parts: tuple[str, ...], language: str) -> tuple[list[str], list[str]]:
    """The parts of a compound that are not grammatical, and their stems, both without accents."""
    grammar = FUNCTION_WORDS[language]
    plain = [part for part in parts if part and (word := _fold(part)) not in grammar and word not in _OF_SCRIPTS]
    folded = [*map(_fold, plain)]
    # The English stemmer expects no accents; others need them.
    return folded, [_fold(stem) for stem in stems(folded if language == "english" else plain, language)]


# The texts of one thread repeat the same words.
_cached_parts, _cached_stems = lru_cache(maxsize=1 << 15)(_split_compound), lru_cache(maxsize=1 << 15)(_stem)


def _take_signs(word: str, parts: list[str], whole: list[str], is_query: bool) -> None:
    """Add a word that is not ASCII: runs of a script without spaces as pairs of signs, and as single signs."""
    at = 0
    for run in _UNSPACED.finditer(word):
        if run.start() > at:
            parts.append(word[at : run.start()].casefold())
        for signs in filter(None, _ASKS.split(run[0]) if is_query else (run[0],)):
            parts += (first + second for first, second in pairwise(signs))
            whole += signs if not is_query or len(signs) == 1 else filter(is_sign, _TELLING_SIGNS.findall(signs))
        at = run.end()
    if at < len(word):
        parts.append(word[at:].casefold())


def is_sign(word: str) -> bool:
    """Whether a word is a single sign of a script that is split into pairs."""
    return len(word) == 1 and _UNSPACED.match(word) is not None


def tells(word: str) -> bool:
    """Whether an answer should hold this term of the query; a pair with a grammatical sign need not be found."""
    return _GRAMMAR_SIGN.search(word) is None


def _languages(words: set[str], text: str) -> tuple[str, list[str]]:
    """The language whose grammatical words and letters occur most in a text; if that is unsure, English and the candidates.

    Names and code hold a word or a letter of some language by chance. So a language other than English needs more
    grammatical words than English has, and two signs at least, as many as a fifth of the words; with half as many
    signs it is a candidate.
    """
    spoken = Counter(chain.from_iterable(map(_LANGUAGES.__getitem__, _LANGUAGES.keys() & words)))
    english = spoken["english"]
    if english and english == max(spoken.values()):
        return "english", []
    letters = () if text.isascii() else _LETTERS.keys() & text[: 8 * _TELLING].lower()
    signs = spoken + Counter(chain.from_iterable(map(_LETTERS.__getitem__, letters)))
    foreign = {language: count for language, count in signs.items() if not english or spoken[language] > english}
    most = max(foreign.values(), default=0)
    best = [language for language, count in foreign.items() if count == most]
    if not best or len(best) > _UNSURE or 10 * most < len(words):
        return "english", []
    is_sure = len(best) == 1 and spoken[best[0]] and most > 1 and 5 * most >= len(words)
    return (best[0], ["english"]) if is_sure else ("english", best)


def is_english(text: str) -> bool:
    """Whether a text shows no sign of another language than English."""
    return readable(text) and _languages(set(tokens(text)), text) == ("english", [])


# A stemmer has state, so each OS thread has its own.
_local = threading.local()


def stems(words: Iterable[str], language: str = "english") -> list[str]:
    """The stems of words, in order: by the language of their script if it has one, else by `language`."""
    words = list(words)
    if all(map(str.isascii, words)):
        return list(_stemmer(language).stemWords(words))
    scripts = [next((name for low, high, name in _SCRIPTS if low <= ord(word[0]) <= high), language) for word in words]
    return [_stemmer(script).stemWord(word) for word, script in zip(words, scripts, strict=True)]


def _stemmer(language: str) -> Any:
    stemmers = _local.__dict__.setdefault("stemmers", {})
    if language not in stemmers:
        with needs_extra("recall needs PyStemmer and numpy", "recall"):
            import Stemmer
        stemmers[language] = Stemmer.Stemmer(language)
    return stemmers[language]


def readable(text: str) -> bool:
    """Whether an English model can read a text: at least half of its letters are Latin."""
    letters = [sign for sign in text[:400] if sign.isalpha()] if not text.isascii() else []
    return sum(map(is_latin, letters)) * 2 >= len(letters)


# Dates: "yesterday", "last Friday" or 2026-03-14 are searched as a day in words, "14 March 2026".

# The names of each month in several languages; the first is the one that is searched.
_MONTH_NAMES = """january jan januar janvier enero gennaio janeiro januari января
february feb februar février febrero febbraio fevereiro februari февраля
march mar märz mars marzo março maart марта
april apr avril abril aprile апреля
may mai mayo maggio maio mei мая
june jun juni juin junio giugno junho июня
july jul juli juillet julio luglio julho июля
august aug août agosto augustus августа
september sep sept septembre septiembre settembre setembro сентября
october oct oktober octobre octubre ottobre outubro октября
november nov novembre noviembre novembro ноября
december dec dezember décembre diciembre dicembre dezembro декабря"""
_MONTHS = [names.split()[0].capitalize() for names in _MONTH_NAMES.split("\n")]
_MONTH = {name: str(month) for month, names in enumerate(_MONTH_NAMES.split("\n"), 1) for name in names.split()}
_DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_UNITS = {"day": 1, "week": 7}
_NUMBERS = "one two three four five six seven eight nine ten eleven twelve"
_COUNTS = {**{word: n for n, word in enumerate(_NUMBERS.split(), 1)}, "a": 1, "an": 1, "a couple of": 2}
# How many days ago each of these words means; not "hier", which in German means "here".
_DAYS_AGO = {
    word.replace("_", " "): days
    for days, words in {
        0: "today tonight this_morning this_afternoon this_evening heute hoy oggi hoje vandaag сегодня 今天 今日 오늘",
        1: "yesterday last_night gestern ayer ieri ontem gisteren igår wczoraj včera вчера вчора 昨天 昨日 어제",
        2: "the_day_before_yesterday vorgestern avant-hier anteayer anteontem eergisteren позавчера 前天 그저께",
        -1: "tomorrow",
    }.items()
    for word in words.split()
}
_WAYS = {"last": 1, "this": 0, "next": -1}
# For lower-case text: matching any case is slow.
_RELATIVE = re.compile(
    rf"\b(?:({'|'.join(word for word in _DAYS_AGO if not _UNSPACED.match(word))})"
    rf"|({'|'.join(_WAYS)}) (week|month|year|{'|'.join(_DAYS)})"
    rf"|(\d{{1,3}}|{'|'.join(_COUNTS)}) (day|week|month|year)s? ago)\b"
    rf"|({'|'.join(word for word in _DAYS_AGO if _UNSPACED.match(word))})"
)

# Every ASCII match of that slow pattern holds one of these words, and most texts hold none.
_RELATIVE_WORDS = {"ago", "week", "month", "year", *_DAYS, *(tokens(word)[-1] for word in _DAYS_AGO)}

# The last moment (ms) whose dates are computed: far enough from the calendar's end for dates ahead of it.
_END = 252_000_000_000_000
_YEAR = r"(?:19|20)\d\d"
_FIGURES = re.compile(
    # Not inside a number, a version, a path or an id; a time may follow.
    rf"(?<![\w./-])(?:({_YEAR})-(\d\d)(?:-(\d\d))?|(\d\d?)\.(\d\d?)\.({_YEAR})|(\d\d?)/(\d\d?)/({_YEAR}|\d\d))"
    rf"(?=T\d|(?![\w/-]|\.\d))|({_YEAR})年(\d\d?)月(?:(\d\d?)日)?"
)
# Where such a date may begin: a fast pattern, so that long texts without dates cost little.
_DATE_START = re.compile(r"[0-9]+(?=[-./年][0-9])")
_NAMES = "|".join(sorted(_MONTH, key=len, reverse=True))
_NAMED = re.compile(
    rf"\b(?:(\d\d?)(?:st|nd|rd|th|\.)? (?:of |de )?({_NAMES})|({_NAMES})\.? (\d\d?)(?:st|nd|rd|th)?)\b(?:,? (?:de )?({_YEAR})\b)?",
    re.I,
)


def date_words(at: int | None) -> str:
    """A moment's day in words, UTC: 1683554160000 -> "8 May 2023"."""
    if at is None or not 0 <= at < _END:
        return ""
    return _day_words(datetime.fromtimestamp(at / 1000, UTC))


def _day_words(day: datetime) -> str:
    return f"{day.day} {day:%B %Y}"


def meant_dates(text: str, at: int | None) -> list[str]:
    """The days, months and years that a text names in figures, or relative to its own time.

    "last month, until 2023-06-01" on 8 May 2023 -> ["April 2023", "1 June 2023"]
    """
    relative = list[str]()
    if date_words(at) and not (text.isascii() and _RELATIVE_WORDS.isdisjoint(tokens(text))):
        day = datetime.fromtimestamp((at or 0) / 1000, UTC)
        relative = [_relative_date(day, match) for match in _RELATIVE.finditer(text.lower())]
    in_figures = (words for _, words in _in_figures(text) if words) if "20" in text or "19" in text else ()
    return list(dict.fromkeys([*relative, *in_figures]))


def spell_dates(query: str, at: int | None = None) -> tuple[str, str]:
    """A query with its dates (also those relative to `at`) in words, and other forms in which texts may write them.

    "on 2026-03-14?" -> ("on 14 March 2026?", "2026-03-14 14th Mar")
    """
    forms = list[str]()
    if at is not None and date_words(at):
        day = datetime.fromtimestamp(at / 1000, UTC)

        def in_words(found: re.Match[str]) -> str:
            if (match := _RELATIVE.fullmatch(found[0].lower())) is None:
                return found[0]
            words = _relative_date(day, match)
            forms.extend([found[0], *_other_forms(words)])
            if "week" in (match[3], match[5]):
                monday = day - timedelta(days=day.weekday() + 7 * _ago(match))
                forms.extend(_day_words(monday + timedelta(days=n)) for n in range(7))
            return f" {words} "

        query = re.sub(_RELATIVE.pattern, in_words, query, flags=re.I)
    for match, words in [*_in_figures(query), *_named_dates(query)]:
        if words:
            # Dates in other languages stay, as texts in these languages are not rewritten; so do dates in words already.
            foreign = match.re is _NAMED and not words.split()[1].lower().startswith((match[2] or match[3]).lower())
            if not foreign and set(tokens(match[0])) != set(tokens(words)):
                query = query.replace(match[0], words)
            forms += [words if foreign else match[0], *_other_forms(words)]
    return query, " ".join(dict.fromkeys(forms))


def _other_forms(words: str) -> Iterator[str]:
    """Other ways to write a day: "14 March 2026" -> "2026-03-14", "14th", "Mar"."""
    day, month, *year = *words.split(), ""
    if not day.isdigit() or not month:
        return
    if year[0]:
        yield f"{year[0]}-{_MONTHS.index(month) + 1:02}-{int(day):02}"
    yield day + ("th" if day in ("11", "12", "13") else {"1": "st", "2": "nd", "3": "rd"}.get(day[-1], "th"))
    yield month[:3]


def _in_figures(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """The dates in figures, each with its day in words, or "" where it is invalid or ambiguous."""
    for figure in _DATE_START.finditer(text):
        if (match := _FIGURES.match(text, figure.start())) is None:
            continue
        year, month, day, day2, month2, year2, first, second, year3, year4, month4, day4 = match.groups()
        if first:
            # Day or month may come first; where both could be either, the date is ambiguous.
            day, month = (first, second) if int(first) > 12 else (second, first) if int(second) > 12 else ("", "0")
        else:
            day, month = day or day2 or day4, month or month2 or month4
        yield match, _words(day, month, year or year2 or year3 or year4)


def _named_dates(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """The dates with the name of a month, each with its day in words."""
    for match in _NAMED.finditer(text):
        yield match, _words(match[1] or match[4], _MONTH[(match[2] or match[3]).lower()], match[5] or "")


def _words(day: str | None, month: str, year: str) -> str:
    """ "14", "03", "26" -> "14 March 2026"; "" where there is no such day."""
    if not 1 <= int(month) <= 12 or (day and not 1 <= int(day) <= 31):
        return ""
    year = f"20{year}" if len(year) == 2 else year
    return " ".join(filter(None, (str(int(day)) if day else "", _MONTHS[int(month) - 1], year)))


def _relative_date(since: datetime, match: re.Match[str]) -> str:
    """A relative date in words: days exactly, weeks and months as a month, years as a year."""
    ago, of = _ago(match), match[3] or match[5] or "day"
    if of in _DAYS:
        away = (since.weekday() - _DAYS.index(of)) % 7
        ago, of = {1: away or 7, 0: away and away - 7, -1: away - 7}[ago], "day"
    if of == "year":
        return str(since.year - ago)
    if of == "month":
        months = 12 * since.year + since.month - 1 - ago
        return f"{_MONTHS[months % 12]} {months // 12}"
    moved = since - timedelta(days=_UNITS[of] * ago)
    return _day_words(moved) if of == "day" else f"{moved:%B %Y}"


def _ago(match: re.Match[str]) -> int:
    """How many days, weeks, months or years ago a relative date is."""
    name, way, _, count, _, sign = match.groups()
    if count:
        return int(count) if count.isdigit() else _COUNTS[count]
    return _WAYS[way] if way else _DAYS_AGO[name or sign]
