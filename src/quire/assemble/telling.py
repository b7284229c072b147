"""What of a text matters later: words that are likely to be named again, sentences that demand, settle or leave open.

How likely ids, paths, dotted names, dates, amounts and numbers are named again was counted on recorded agent runs: of
the words in messages that lie a while back, which does a later action name? A word that an action or the user named
before is likelier, a key of a JSON object never is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import msgspec

from quire.tokens import counter
from quire.values import Json

# A run of a word's characters, unless it is the key of a JSON object.
_TERM = re.compile(r'(?<![\w@#$€£./~+-])[\w@#$€£./~+-]{4,}+(?!"\s*:)')
# All of it: a telling word stands within one.
RUN = re.compile(r"[\w@#$€£./~+-]{4,}")
# The same in steps that are quicker where text is ASCII: what ends a key becomes a sign that no word holds, then all
# other signs become white space.
_KEY_ENDS, _KEY = re.compile(r'"\s*:'), "\0"
_SPACED = {code: " " for code in range(1, 128) if not re.match(r"[\w@#$./~+-]", chr(code))}
_TELLING = re.compile(r"\d|\w_\w|\w/|/\w|@\w|[$€£]|\w\.\w|^[A-Z]{5,}$")
# What JSON begins with, and its escapes: behind a line's end a word begins, whatever letter tells of that end.
_JSON = re.compile(r'\s*(?:\{\s*["}]|\[\s*[\[{"\d-]|")')
_ESCAPE, _CODE_POINT = re.compile(r"\\(?:u[\da-fA-F]{4}|.)", re.DOTALL), re.compile(r"\\u[\da-fA-F]{4}")
# Signs of languages that put no space around an id.
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
_FRONT_EDGE, _END_EDGE = re.compile(r"(?:[-+]|\.(?![\w/.])|\.\.(?!/))+"), ".+~-"
# The first that matches tells how likely a word is named again: one that was only said, one that a call was made with.
_KINDS = tuple(
    (re.compile(pattern), when_said, when_used)
    for pattern, when_said, when_used in (
        # What tools print with everything is no fact: speeds and shares of a progress bar, modes of files, parameters
        # of comments.
        (r"^\d[\d.,]*[kKMGT]?i?[bB]?/(?:s$|\d[\d.,]*[kKMGT]i?[bB]?$)|^(\d+)/\1$|^0(?:\.0+)?/\d+$", 0.0, 0.0),
        (r"^(?:100(?:644|755)|0?40000|1[26]0000|0?[67][0-7][0-7])$|^@[a-z]+$", 0.0, 0.0),
        (r"\w*:?//", 0.04, 0.2),
        (r"/.*/|\w/\w|~/", 0.25, 1.5),
        (r"@", 0.06, 0.15),
        (r"^\d{4}-\d\d-\d\d", 0.06, 0.06),
        (r"^[\d.,]*\d[a-zA-Z]{1,3}$|^\d{1,5}[+-]\d{1,5}$", 0.02, 0.02),
        (r"^#?[\da-f]{16,}$", 0.05, 0.1),
        (r"^#?\d{6,}$", 0.1, 0.1),
        (r"^[#$€£+-]?[\d.,]+$", 0.03, 0.2),
        (r"\d", 0.2, 0.3),
        (r"\.(?:py|tsx?|jsx?|md|json|toml|ya?ml|go|rs|c|h|java|txt|sh|sql|css|html)$", 0.2, 0.4),
        (r"\w\.\w", 0.15, 0.4),
    )
)
_OTHER = (0.1, 0.25)
_RATES = (*((when_said, when_used) for _, when_said, when_used in _KINDS), _OTHER)
# What was counted elsewhere is worth as much as so many words of this thread.
_PRIOR = 8
# A word that is less likely than this is not worth its place, nor is one of a kind that this thread's calls name by so
# much less often than others do: the marks of a page, the cells of a table.
LEAST, _HARDLY = 0.03, 0.02
# Counting every number of a long listing would take longer than all the rest.
_MOST = 1_500


# What stays at one cut often goes at the next: its words are looked for once.
@lru_cache(maxsize=4096)
def telling(text: str) -> tuple[str, ...]:
    """The telling words of a text, in order of appearance, each once: 'see /a/b.py, row 7' -> ('/a/b.py',)."""
    words = dict[str, None]()
    for word in dict.fromkeys(_terms(text)):
        if (word.isalpha() and not word.isupper()) or len(word) < 4 or _KEY in word:
            continue  # most words: nothing more need be looked at
        if not (word[0].isalnum() and word[-1].isalnum()):
            word = word.rstrip(_END_EDGE)
            word = word[edge.end() :] if (edge := _FRONT_EDGE.match(word)) else word
        if len(word) >= 4 and _TELLING.search(word):
            words[word] = None
    return tuple(words)


def leaves(args: Json) -> Iterator[str]:
    """What a call was given; the names of its arguments stand in every call."""
    if isinstance(args, dict | list):
        for value in args.values() if isinstance(args, dict) else args:
            yield from leaves(value)
    elif args is not None:
        yield str(args)


def telling_behind(text: str, start: int) -> tuple[str, ...]:
    """The telling words behind the first so many characters; where it can be, from those of the whole text."""
    front, rest = text[:start], text[start:]
    if "\\" in text:
        return telling(_without_escapes(rest, _JSON.match(text) is not None))
    before = telling(front)
    parted = front.endswith('"') or not rest[:1].isspace()
    return telling(rest) if parted or any(word in rest for word in before) else telling(text)[len(before) :]


def _terms(text: str) -> list[str]:
    """The runs of a word's characters; short ones and keys, which then end in a sign of their own, may be among them."""
    if "\\" in text:
        text = _without_escapes(text, _JSON.match(text) is not None)
    if text.isascii() and _KEY not in text:
        return _KEY_ENDS.sub(_KEY + " ", text).translate(_SPACED).split()
    found = _TERM.findall(text)
    if not _UNSPACED.search(text):
        return found
    return [part for term in found for part in ([term] if "/" in term else _UNSPACED.split(term))]


def _without_escapes(text: str, is_json: bool) -> str:
    """A text whose escapes are white space, but for quotes and slashes; in other text than JSON code points alone."""
    if not is_json:
        return _CODE_POINT.sub(" ", text)
    return _ESCAPE.sub(" ", text.replace("\\\\", " ").replace('\\"', '"').replace("\\/", "/"))


def likelihood(word: str, used: bool = False) -> float:
    """How likely a later action names this word again; `used`: an action has named it before."""
    return _RATES[_kind(word)][used]


@lru_cache(maxsize=8192)
def _kind(word: str) -> int:
    return next((kind for kind, (pattern, *_) in enumerate(_KINDS) if pattern.search(word)), len(_KINDS))


def weights(offered: Iterable[str], named: Iterable[str]) -> Callable[[str], float]:
    """By how much likelier a word that was said is named in this thread: of those `offered`, its calls have `named` these.

    One agent opens the addresses that a search gave, another looks up orders: what it did so far tells which.
    """
    many_offered, many_named = (Counter(map(_kind, words)) for words in (offered, named))
    by_kind = [
        (_PRIOR + many_named[kind] / rate) / (_PRIOR + many_offered[kind]) if rate else 0.0
        for kind, (rate, _) in enumerate(_RATES)
    ]
    by_kind = [weight if weight >= _HARDLY else 0.0 for weight in by_kind]
    return lambda word: by_kind[_kind(word)]


def likeliest(words: Iterable[str], room: float, used: Container[str], named_elsewhere: Container[str]) -> list[str]:
    """As many of the words as `room` tokens hold, the likeliest for their size first; those named elsewhere are left out."""
    scored = {word: likelihood(word, word in used) for word in words if word not in named_elsewhere}
    return within({word: score for word, score in scored.items() if score >= LEAST}, room)


def within(scored: Mapping[str, float], room: float) -> list[str]:
    """As many words as fit on a line of `room` tokens, those with the highest score for their size."""
    words = list[str]()
    top = sorted(scored, key=lambda word: -scored[word])[:_MOST]
    sizes = {word: _size(word) for word in top}
    for word in sorted(top, key=lambda word: -scored[word] / sizes[word]):
        if sizes[word] <= room:
            room -= sizes[word]
            words.append(word)
        elif room < 2:
            break
    return words


@lru_cache(maxsize=8192)
def _size(word: str) -> int:
    """The tokens of a word in a line."""
    return counter().count(f" {word}")


# Words of command, by language: no and never, must and may, always and only, until and without; and words of leave, that
# what was forbidden is no longer. What a user demands holds one of these few words, however it is put.
_COMMAND_WORDS = frozenset(
    re.findall(
        r"\S+",
        """
    never must mustn't always don't dont not no nothing nobody none neither nor nowhere only until till by deadline unless
    except without cannot can't won't shouldn't isn't aren't should shall need needs require required ensure remember keep
    avoid stop instead prefer forbid forbidden prohibited frozen before after important refrain leave stay stays stick
    agree agreed strictly confidential whatever every maximum minimum max min limit limits exactly hate allergic allergy
    vegan vegans vegetarian vegetarians
    nie niemals nicht kein keine keinen keinem keiner keines nichts niemand immer stets nur muss musst müssen müsst darf
    darfst dürfen dürft soll sollst sollen sollte sollten bis ohne außer vorher spätestens höchstens mindestens unbedingt
    verboten frist geeinigt vereinbart stattdessen wichtig statt bevor erst jede jeden jedem jeder jedes lieber vermeide
    vermeidet vermeiden verzichte verzichtet ausschließlich ausnahmslos keinesfalls allergisch hasse
    jamais toujours ne pas rien personne aucun aucune seulement uniquement dois doit doivent devez faut sans sauf avant
    après jusqu jusque interdit interdite désormais convenu convenus délai évite évitez assure chaque plutôt surtout arrête
    arrêtez obligatoire obligatoirement exclusivement dorénavant préfère allergique déteste
    nunca jamás siempre nada nadie ningún ninguna ninguno solo sólo solamente únicamente debe debes deben debería sin
    salvo excepto antes después hasta prohibido prohibida asegúrate asegura acordamos acordado plazo evita cada tampoco
    prefiero obligatorio exclusivamente alérgico alérgica odio
    mai sempre non niente nessun nessuno nessuna soltanto deve devi devono bisogna senza tranne prima dopo fino entro
    vietato vietata almeno evitare concordato ogni smetti smettila smettete preferisco obbligatorio esclusivamente
    allergico allergica
    não ninguém nenhum nenhuma só somente apenas devem sem exceto depois até proibido proibida prazo evite combinado pare
    parem prefiro odeio
    nooit altijd niet geen niets niemand alleen slechts moet moeten mag mogen zonder behalve voordat uiterlijk minstens
    hoogstens verboden afgesproken belangrijk elke ieder iedere vermijd liever blijf
    aldrig aldri alltid altid inte ikke ingen inget endast bara kun måste skal skall ska utan uden uten senast senest innan
    før varje hver hvert sluta undvik unngå undgå allergisk
    nigdy zawsze nie nic nikt tylko musi musisz bez najpóźniej zanim przed każdy każda każde każdego każdej każdą unikaj
    przestań wyłącznie dopiero
    никогда всегда не нет ничего никто только должен должна должно должны нужно надо нельзя без кроме после
    обязательно запрещено прежде перед до сначала сперва каждый каждая каждое каждую каждого каждой избегай хватит
    перестань исключительно строго максимум минимум срок аллергия ненавижу ніколи завжди лише тільки треба потрібно перш
    спочатку кожен кожна кожне кожну кожного алергія преди винаги само трябва всеки всяка забранено увек немој
    nikdy vždy pouze jen musí nesmí nesmíš dokud nejpozději než před každý každá každé každou každého skôr niciodată
    mereu întotdeauna nu doar numai trebuie fără până înainte fiecare evită uvijek uvek nikad nikada samo mora prije svaki
    svaka nemoj nemojte abans només
    soha mindig csak ne nem kell tilos nélkül mielőtt előtt minden legfeljebb legalább helyett älä älkää koskaan aina vain
    täytyy pitää ilman saakka mennessä ennen enintään vähintään lopeta vältä
    đừng không luôn chỉ phải cấm trước mỗi mọi tránh chớ jangan tidak selalu hanya harus tanpa sebelum dilarang wajib
    setiap hindari kecuali berhenti huwag kamwe
    אל לא לעולם תמיד רק חייב חייבים אסור בלי עד לפני כל במקום هرگز نباید باید همیشه نکن نکنید نزن قبل هر حتما مت نہیں کبھی
    ہمیشہ صرف پہلے بغیر
    ποτέ πάντα μη μην δεν μόνο πρέπει χωρίς μέχρι πριν κάθε asla daima sadece yalnızca değil sakın gerek önce kadar yerine
    yasak zorunlu hiçbir
    nevermind disregard vergiss vergesst erlaubt aufgehoben oublie oubliez permis
    autorisé autorisée olvida olvide permitido permitida dimentica dimenticate permesso esquece esqueça vergeet toegestaan
    glöm glem tillåtet tilladt tillatt zapomnij wolno забудь забудьте можно можна разрешено дозволено zapomeň smíš uită
    felejtsd szabad unohda sallittu lupakan boleh quên שכח מותר ξέχνα επιτρέπεται unut serbest
    """,
    )
)
# These are words of leave in their place alone: a service may be slow, in May, and some ignore it.
_LEAVE = (
    r"you may\b(?! (?:be|have|want|need|see|notice|find|know)\b)|(?:any|every)(?:one|body) may|may (?:now|again)|changed my mind|"
    r"(?:okay|ok|fine|feel free|you are free|you['’]re free) to|(?:allowed|permitted) (?:now|again)|"
    r"(?:is|are|be|been|now|again) (?:allowed|permitted|lifted|revoked)|(?:please|just|so|and|can|may|now|then|ok|okay|let['’]s),? (?:forget|ignore)"
)
# A rule in a word or two begins with one of these: use tabs.
_USE = r"use(?! cases?\b)|verwendet?|nutzt?e?|benutzt?e?|utilise[zr]?|utiliza|utilizza|gebruik|använd|brug|bruk|użyj|używaj|используй(?:те)?|použij"
# You can now, or again.
_CAN = "you can|kannst|könnt|peux|pouvez|puedes?|pueden|puoi|potete|podes?|kunt|możesz|můžeš|kan du|du kan"
_NOW = "now|again|jetzt|nun|wieder|maintenant|désormais|ahora|ya|ora|adesso|agora|já|nu|weer|teraz|nyní|teď"
_PHRASES = re.compile(
    r"(?i)\b(?:at most|at least|make sure|from now on|may not|ha(?:ve|s) to|hands off|off[- ]limits|(?:i|we) (?:want|insist|expect)|"
    r"(?:(?:ask|check with|wait for) (?:me|us)|my (?:ok|okay|approval|permission|consent)|as of (?:now|today))\b|"
    r"hold off|from here on|going forward|(?:would|['’]d) rather|"
    r"ab (?:jetzt|sofort)|finger (?:weg|von)\b|hört? auf|dej(?:a|en) de|ni se te\b|"
    r"au (?:plus|moins)|à partir d|hay que|tiene[ns]? que|(?:como|al|no) máximo|al menos|a partir d|d'ora in poi|pelo menos|"
    r"al massimo|vanaf nu|her zaman|de a(?:hora|gora) en|"
    rf"(?:(?:{_LEAVE})|(?:{_CAN}) .{{0,60}}\b(?:{_NOW})|(?:{_NOW}),? (?:\S+ ){{0,3}}(?:{_CAN}))\b)|(?:^\W*|[,;] )(?:please )?(?:forget|ignore|{_USE})\b"
)
# The same in languages that put no space around such words, or join them to others.
_PARTS_OF_WORDS = re.compile(
    r"(?<!要)不要|(?<!能)不能|(?<!可)不可|(?<!用)不用|不(?:得|许|准|必|应|该|超|再)|(?<![特分级类区差个识性])别(?![的人处名])|勿|禁止|严禁|切忌|千万|必须|必須|必需|务必|一定|绝对|絶対|总是|永远|从不|始终|一律|只[能用准许可]|仅|除非|除了|"
    r"之前|之后|前[，,]?(?:先|要|请|问|必|得|都)|先(?:问|跟|经|征)|每|[请改都]用|避免|停止|确保|记住|记得|而不是|同意|回[答复]|过敏|以内|最多|至少|最晚|最迟|截止|期限|"
    r"ないで|(?<!すみ)ません(?!か)|なければ|いけない|ならない|[だダ]メ|だめ|[うくぐすつぬぶむる]な(?=[。！!\s]|$)|こと(?=[。！!\s]|$)|ずに|必ず|決して|常に|毎回|"
    r"[る事]前に|だけ|のみ|まで|以外|必要|避け|やめて|控え|勝手に|で(?:答え|回答|返信|書[いく])|代わりに|厳禁|ように(?:して|お願い)|アレルギー|苦手|"
    r"지 ?(?:마|말|않)|절대|반드시|항상|까지|없이|금지|전에|먼저|매번|마다|꼭|무조건|오직|만 (?:사용|써|쓰|이용)|이하|이내|최대|최소|대신|말고|제외|안 ?[돼되됩]|"
    r"야 ?[해하한합돼되됩]|로 (?:답|대답|작성|써)|알레르기|"
    r"(?<!\w)لا |لن |أبد|دائم|فقط|يجب|ممنوع|دون|(?<!\w)(?:قبل|كل|حتى|إلا|عدم) |تجنب|توقف|أجب |حساسية|"
    r"मत |नहीं|(?<!\S)न |कभी|हमेशा|केवल|सिर्फ़?|बिना|पहले|(?<!\S)हर |ज़?ज?रूर|चाहिए|जवाब|एलर्जी|"
    r"ห้าม|อย่า|ต้อง|เสมอ|เท่านั้น|ไม่|ก่อน|ทุก|ภายใน|อย่างน้อย|ยกเว้น|แทน|না(?=[ ।!]|$)|কখনও|শুধু|অবশ্যই|ாதே|ாதீர்|வேண்டாம்|கூடாது|m[ae]y[ıi]n|malı(?!\w)|meli(?!\w)|"
    r"算了|可以了|现在可以|允许|忘れて|取り消|[てで]も?(?:いい|よい|良い|構)|許可|잊어|도 (?:돼|됩|되|괜찮)|허용|مسموح|भूल जा|ลืม|อนุญาต"
)
# Negations that demand nothing: what somebody does not know, see or have ("I don't remember"), and thanks.
_LACKS = re.compile(
    r"(?i)\b(?:(?:I|we|he|she|they) (?:\w+ )?(?:do|did|does|could)(?:n['’]t| not) (?:\w+ )?(?:know|remember|recall|see)|"
    r"I can(?:['’]t|not) (?:\w+ )?(?:remember|recall|see)|I (?:\w+ )?(?:do|did)(?:n['’]t| not) (?:\w+ )?have (?:the|that|those|it|them)|"
    r"(?:am|['’]m) not (?:\w+ )?sure|(?:nobody|no one) knows|no,? (?:thanks|thank you|problem|idea))\b"
)
_SPOKEN_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")


def _commands(sentence: str) -> list[int]:
    """Where words of command stand in a sentence: 'Please never push' -> [7]."""
    places = [word.start() for word in _SPOKEN_WORD.finditer(sentence) if _is_command(word[0])]
    phrases = (_PHRASES,) if sentence.isascii() else (_PHRASES, _PARTS_OF_WORDS)
    places += [found.start() for phrase in phrases for found in phrase.finditer(sentence)]
    lacks = [range(*found.span()) for found in _LACKS.finditer(sentence)] if places else ()
    return sorted(place for place in places if not any(place in lack for lack in lacks))


def _is_command(word: str) -> bool:
    word = word.lower().replace("’", "'")
    # French joins its 'ne' and 'jusque' to what follows.
    return word in _COMMAND_WORDS or word.startswith("n'") or word.partition("'")[0] in _COMMAND_WORDS


# What the user demanded: sentences with a word of command, a date, an id, an amount or a name in them.

# What stands behind words that were cut off, and between those that are whole.
CUT, GAP = " [...]", " … "
MORE = GAP.rstrip()
STOPS = ".!?。！？"
# Where a sentence ends: not behind a letter, a title, 'max.' or 'min.', nor between an ordinal and the name it belongs to.
_SENTENCES = re.compile(
    r" … |(?<=[.!?])(?<!\b[^\W\d_]\.)(?<!\b[A-Z][a-z]\.)(?<!\bMrs\.)(?<!\bProf\.)(?<!\b[Mm]ax\.)(?<!\b[Mm]in\.)(?!(?:(?<=^\d\.)|(?<=\s\d\.)|(?<=\s\d\d\.))\s[^\W\d_a-z])\s+"
    r"|(?<=[。！？])|(?<= \[\.\.\.\]) |\n+"
)
_CAPITAL = "A-ZÀ-ÖØ-ÞŁŚŠŞŻŽČĆĐĞİΑ-ΩЀ-Я"
_FACT = re.compile(
    rf"\d|[$€£@#]|\w_\w|\w/\w|\w\.\w|(?<=[\w,;:] )[{_CAPITAL}][\w'-]+|"
    r"(?i:\b(?:dozen|hundred|thousand|million|dollars|euros|pounds|percent)\b)|[一二两三四五六七八九十百千万]{1,9}[个元块天月日号点年人次岁位折万千百十円名時枚]"
)
# Of a text longer than this sentences of command are demands, and some that state a fact: the rest is most likely pasted.
_LONG_CHARS = 1_200
# A sentence longer than this is told by what stands around the word of command; where room is short, less of it.
_SENTENCE_MOST, _SENTENCE_LEAST = 400, 200
# In a longer one the user's own words stand in front of what is pasted or behind it, within so many characters.
_OWN = 200
# Of a sentence as long as a paste so many words of command are told with what stands around them.
_COMMANDS_TOLD = 4
# Of so many lines it is remembered what they demand and how long they are: a summary is tried at several lengths, and a
# thread's next one holds most of its lines.
LINES_REMEMBERED = 32_768
# A short sentence has three words at least, or five signs that are words: 'go on' and 'thank you' tell nothing.
_THREE_WORDS = re.compile(r"\S\s+\S+\s+\S|[\u3040-\u9fff]{5}")


class Whole(msgspec.Struct, frozen=True):
    """Up to how many characters a sentence without a command is told whole: one with a fact, and any other.

    `task`: how many characters are told of the commands of a long text; of those that only repeat each other, fewer.
    """

    facts: int = 0
    brief: int = 0
    task: int = _LONG_CHARS


# The first of these at which all that is to be told whole fits; where it is no more than the short facts, even where
# that takes more than the summary's own share.
_TASK = 4_800
SHORT_FACTS = Whole(120, 0, _TASK)
WHOLES = (
    *(Whole(facts, brief, _TASK) for facts, brief in ((400, 120), (400, 60), (200, 60), (120, 60))),
    *(SHORT_FACTS, Whole(120), Whole(60), Whole()),
)
# Code, lines of a log and frames of a traceback; a sentence that ends a list's line with a semicolon, or that names a call, is neither.
_CODE = re.compile(
    r"[{}]\s*$|^[^=<>(){}\[\]\"*]*+.+;\s*$|\w: ?\w+;\s*$|^\s*(?:[-+@|>$#*/]{2}|import |from \S+ import|def |class |const |let |return )|"
    r"^\W*(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d:\d\d\b|^\s*(?:File \"|at [\w.$<>]+ ?\()"
)
_DIGITS = re.compile(r"\d+")
# A line of a list: behind a dash or a star, another mark, a number or a letter.
_ITEM = re.compile(
    r"\s*(?:[-*+]\s+|[\u2010-\u2015\u2022\u2023\u2192\u25a0-\u25ff\u2610-\u2612\u2700-\u274f\u27a1\u30fb\U0001f300-\U0001faff]\s*|"
    r"[\d一二三四五六七八九十]{1,3}(?:[.)]\s+|、)|[A-Za-z][.)]\s+)\S"
)
_CALL, _PROSE = re.compile(r"\w\("), re.compile(r"(?<![^\W\d_])(?:[^\W\d_]{2,}+[,:]?\s++){3}[^\W\d_]{2}")


def is_code(sentence: str) -> bool:
    if _CODE.search(sentence):
        return True
    call = _CALL.search(sentence)
    return call is not None and sentence.find(")", call.end()) > 0 and not _PROSE.search(sentence)


# What speaks of a failure; a count of none does not, nor does the name of a file.
_FAILS = re.compile(
    r"(?i)(?<!\bno )(?<!\b0 )(?<!\bwithout )(?<!\bx)(?:fail|error|exception|panic|fatal)(?!\w*[:=]? ?(?:0|none)\b|[\w/-]*(?-i:\.[a-z]))|"
    r"denied|refused|cannot|not found|exited with (?:code|status) [1-9]"
)


def tells_failure(line: str) -> bool:
    """Whether a line of what a tool gave says that something failed: "2 failed, 9 passed", and not code that could."""
    return _FAILS.search(line) is not None and not is_code(line)


class _Sentence(NamedTuple):
    """A sentence of a user's message: whether they typed it or pasted it, and where words of command stand in it."""

    text: str
    typed: bool
    commands: tuple[int, ...]


@lru_cache(maxsize=LINES_REMEMBERED)
def _sentences(text: str) -> tuple[_Sentence, ...]:
    sentences, place = list[_Sentence](), 0
    for sentence in _SENTENCES.split(text):
        place = text.index(sentence, place)
        if not sentence.endswith(CUT):
            code = is_code(sentence)
            typed = len(text) <= _LONG_CHARS or not (code or _OWN < place < len(text) - _OWN)
            sentences.append(_Sentence(sentence, typed, () if code else tuple(_commands(sentence))))
    return tuple(_commanding_lists(sentences))


def _commanding_lists(sentences: Iterable[_Sentence]) -> Iterator[_Sentence]:
    """The sentences; short lines of a list command where one of them does, or the line in front of it."""
    in_front: tuple[int, ...] = ()
    for is_list, group in groupby(sentences, lambda sentence: _ITEM.match(sentence.text) is not None):
        lines = [*group]
        commands = is_list and (in_front or any(line.commands for line in lines))
        for line in lines:
            is_command = (
                commands and not line.commands and len(line.text) <= SHORT_FACTS.facts and not is_code(line.text)
            )
            yield line._replace(commands=(0,)) if is_command else line
        in_front = lines[-1].commands


@lru_cache(maxsize=LINES_REMEMBERED)
def demands(text: str, whole: Whole = WHOLES[0]) -> tuple[str, ...]:
    """The sentences of a user's message that are kept word for word: those of command, and others by their length."""
    demanding = list[str]()
    longest = _SENTENCE_MOST if whole.facts > SHORT_FACTS.facts else _SENTENCE_LEAST
    # Of a long text so many characters state something: it may be a task as well as a paste.
    pasted, shapes = 0, set[str]()
    for sentence, typed, commanding in _sentences(text.removesuffix(MORE)):
        if commanding and len(sentence) > longest:
            many = len(commanding) if len(sentence) <= _LONG_CHARS else _COMMANDS_TOLD
            parts = [*_around(sentence, commanding[:many], longest // 2)]
        elif commanding or (typed and _states(sentence, whole)):
            parts = [sentence.strip()]
        else:
            if not typed and pasted < _LONG_CHARS and _tells(sentence, whole):
                demanding.append(sentence.strip())
                pasted += len(demanding[-1])
            continue
        # A paste may be full of words of command: it takes no more than a long message would, unless each says its own.
        shape = _DIGITS.sub("", sentence)
        most = _LONG_CHARS if shape in shapes or _PROSE.search(sentence) is None else whole.task
        shapes.add(shape)
        if typed or sum(map(len, demanding)) - pasted < most:
            demanding += parts
    return tuple(dict.fromkeys(filter(None, demanding)))


def has_fact(sentence: str) -> bool:
    """Whether a sentence, no mere word or two, holds a date, an id, an amount or a name."""
    return _FACT.search(sentence) is not None and _THREE_WORDS.search(sentence) is not None


def _states(sentence: str, whole: Whole) -> bool:
    """Whether a sentence is told whole for its fact, or because it is short; a question asks for one."""
    size = len(sentence)
    if size > whole.facts or sentence.rstrip().endswith("?"):
        return False
    return _FACT.search(sentence) is not None or (size <= whole.brief and _THREE_WORDS.search(sentence) is not None)


def _tells(sentence: str, whole: Whole) -> bool:
    """Whether a sentence of a long text is one in words and short, and states a fact."""
    short = Whole(min(whole.facts, SHORT_FACTS.facts))
    return _states(sentence, short) and _PROSE.search(sentence) is not None and not is_code(sentence)


def _around(text: str, places: Iterable[int], characters: int) -> Iterator[str]:
    """What stands around each of the places, in whole words; what overlaps is one."""
    begun, end_before = 0, -1
    for place in places:
        start = text.rfind(" ", 0, max(0, place - characters)) + 1
        if start > end_before >= 0:
            yield text[begun:end_before]
        begun = begun if start <= end_before else start
        end = text.find(" ", place + characters)
        end_before = end if end > 0 else len(text)
    if end_before > begun:
        yield text[begun:end_before]


# What the model settled or left open: sentences that say so in words of English, or state a fact in another language.

# What was done is told by a verb of the past that begins a sentence or follows its subject, what was settled by its own word.
_DID = re.compile(
    r"(?i)(?:^[\W\d]*+(?:I|we)?|\b(?:ha[sd]|have|was|were|been|will be|(?:is|are) now|I|we|and|['’]ve))[\s*]*\b(?:(?:also|now|just|successfully|been) )*"
    r"(?:added|booked|bumped|cancell?ed|changed|chose|committed|completed|confirmed|created|decided|deleted|deployed|disabled|"
    r"dropped|enabled|exchanged|extracted|finished|fixed|implemented|installed|merged|moved|processed|pushed|refactored|refunded|"
    r"removed|renamed|replaced|resolved|returned|reverted|scheduled|sent|set up|submitted|switched|updated|wrote|written)\b"
)
_SETTLES = re.compile(
    r"(?i)\b(?:decided|decision|agreed|conclusion|root cause|will use|go(?:ing)? with|(?:bug|problem|cause) (?:was|is) (?:in|that)|"
    r"turns out|(?:tests?|checks?) (?:now )?pass(?:es|ed)?|now works|we must)\b"
)
# Whether what is said to be done was done is guessed here, or hoped.
_GUESSED = re.compile(
    r"(?i)\b(?:maybe|perhaps|probably|possibly|alternatively|might|could|should|would|if|unless|suppose)\b"
)
# 'Still' and 'pending' alone tell how things are; these tell what is to be done.
_LEFT_OPEN = re.compile(
    r"(?i)\b(?:todo|next:|next steps?|remaining:|what['’]s left|haven['’]t .{1,60}\byet|open questions?|"
    r"(?:left|remains|still) to\b|still (?:needs?|fail|missing|broken|ha(?:s|ve) to\b)|remaining (?:work|tasks?|steps?|issues?|problems?)|not yet (?:\w+ed|done|sent|built)|not (?:done|finished)|blocked (?:by|on)|waiting (?:for|on))"
)
# Announcements ('Let me …', 'Here is …', 'I will …') and regrets are neither done nor open.
_ANNOUNCED = re.compile(
    r"(?i)(?:\w+,? )?(?:let me|let['’]s(?! go with\b)|let us|here(?:['’]s| is| are)|(?:I|we)(?:['’]ll| will)(?! (?:use|go with)\b)|I(?:['’]m| am) (?:\w+ )?sorry)\b"
)
# A settled thing takes a few words to say.
_DECISION_WORDS = 4
# Words that hardly any English text of some length goes without.
_ENGLISH = re.compile(r"(?i)\b(?:the|and|are|if|it|now|let|you|your|this|that|these|with|from|have|been)\b")


def is_english(texts: Iterable[str]) -> bool:
    """Whether what was said is English: a quarter of the texts has one of its commonest words."""
    english = [_ENGLISH.search(text) is not None for text in texts]
    return 4 * sum(english) >= len(english)


def settles(sentence: str) -> str:
    """Whether a sentence says that something is so from now on, or that it is not yet: 'Done', 'Open' or ''.

    A question, code, an announcement and a mere 'Done.' say neither.
    """
    if len(sentence.split()) < _DECISION_WORDS or sentence.endswith("?") or is_code(sentence):
        return ""
    if _ANNOUNCED.match(sentence):
        return ""
    if _LEFT_OPEN.search(sentence):
        return "Open"
    done = _DID.search(sentence) and not _GUESSED.search(sentence)
    return "Done" if done or _SETTLES.search(sentence) else ""


def report_label(sentence: str) -> str:
    """'Assistant' where a sentence in whatever language states something with a fact in it, else ''."""
    return "Assistant" if has_fact(sentence) and sentence[-1] not in "?？:：" and not is_code(sentence) else ""


# Where text is cut: at sentence ends, white space and lines, never in mid-word where there is a choice.

# What ends a word that a cut would part.
_WORD_ENDS = 16
_FULL_STOP = re.compile(r"[.!?](?=\s)")


def truncate(text: str, limit: int) -> str:
    """Cut to `limit` characters at a sentence end that keeps half, else white space, else hard; then '...'."""
    if len(text) <= limit:
        return text
    cut = text[: limit + 1]
    ends = [match.end() for match in _FULL_STOP.finditer(cut) if match.end() <= limit]
    if ends and ends[-1] >= limit / 2:
        return f"{text[: ends[-1]]} ..."
    space = max(text[:limit].rfind(" "), text[:limit].rfind("\n"), text[:limit].rfind("\t"))
    return f"{text[:space]} ..." if space > 0 else f"{text[:limit]}..."


def first_words(text: str, length: int) -> str:
    """At least the first `length` characters, to the end of a word that ends soon; then ' [...]'."""
    end = text.find(" ", length)
    if end < 0 or end > length + _WORD_ENDS:
        end = length if len(text) > length + _WORD_ENDS else len(text)
    return f"{text[:end].removesuffix(CUT)}{CUT}" if end < len(text) else text


def lines_that_fit(text: str, characters: int) -> str:
    """The longest run of whole first lines within `characters`; of a single long line, a cut at white space."""
    if len(text) <= characters:
        return text
    cut = text[:characters]
    end = max(cut.rfind("\n"), 0) or max(cut.rfind(" "), 0) or characters
    return cut[:end]
