"""Counters: one per vocabulary, loaded when first used, safe to share between threads, with no memory of texts."""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from quire.errors import CallError, FormatError, MissingPart
from quire.log.hashing import canonical
from quire.log.shapes import NOT_UTF8_HINT
from quire.values import (
    SPOKEN,
    Call,
    Count,
    Entry,
    Image,
    Json,
    JsonObject,
    Message,
    Part,
    Result,
    Text,
    Think,
    ToolSet,
)

# Which vocabulary a model's name stands for, and how sure that is.
#
# `exact` is claimed only where the vocabulary of that very model is public and at hand; everything else is an
# estimate: o200k or a near relative, times a factor measured on English prose, chat and code.

DEFAULT = "o200k_base"
# These come with the base install; the rest with the extra `tokenizers`.
BASE = frozenset({"o200k_base", "cl100k_base"})


class Vocabulary(msgspec.Struct, frozen=True):
    """A vocabulary to count with; `factor` scales its count where the model's own is not public."""

    name: str
    exact: bool = True
    factor: float = 1.0


# How many tokens each vocabulary makes of what o200k makes 1 of: the estimate where the extra is missing.
RELATIVE: dict[str, float] = {
    "o200k_base": 1.0,
    "cl100k_base": 1.02,
    "llama3": 1.02,
    "llama2": 1.3,
    "codellama": 1.3,
    "deepseek_v3": 1.05,
    "qwen3": 1.03,
    "glm4": 1.02,
    "kimi_k2": 1.0,
    "kimi_k3": 1.0,
    "phi4": 1.02,
    "olmo2": 1.02,
    "gemma2": 1.14,
    "gemma3": 1.15,
    "gemma4": 1.15,
    "mistral_v1": 1.28,
    "mistral_v2": 1.28,
    "mistral_v3": 1.06,
}

UNKNOWN = Vocabulary(DEFAULT, exact=False, factor=1.1)
# Claude's vocabularies are not public. Reported usage against o200k gave 1.2 to 1.3 for the older one; from
# Opus 4.7 on the same text makes about 30 % more tokens.
CLAUDE_OLDER = Vocabulary(DEFAULT, exact=False, factor=1.2)
CLAUDE_NEWER = Vocabulary(DEFAULT, exact=False, factor=1.55)
CLAUDE_NEWER_FROM = (4, 7)


def _exactly(name: str) -> Vocabulary:
    return Vocabulary(name)


def _about(name: str, factor: float = 1.0) -> Vocabulary:
    return Vocabulary(name, exact=False, factor=factor)


# The first pattern that matches at a word's start in the name decides; so special cases stand first.
_FAMILIES: tuple[tuple[str, Vocabulary], ...] = (
    # A distilled model speaks the vocabulary of the model it was built on.
    (r"deepseek-r1-distill-llama", _exactly("llama3")),
    (r"deepseek-r1-distill-qwen", _exactly("qwen3")),
    (r"gpt-oss", _exactly("o200k_base")),
    (r"code-?llama", _exactly("codellama")),
    (r"(meta-)?llama-?(v?3)(?![0-9])", _exactly("llama3")),
    (r"(meta-)?llama-?(v?2)(?![0-9])|tinyllama|vicuna", _exactly("llama2")),
    (r"(meta-)?llama", _about("o200k_base", 1.02)),
    (r"qwen-?(2|2\.5|2p5|3)(?![0-9.p])|qwq|qvq|baichuan-m2", _exactly("qwen3")),
    (r"qwen", _about("qwen3")),
    (r"deepseek-?(v3|r1)(?![0-9])", _exactly("deepseek_v3")),
    (r"deepseek", _about("deepseek_v3")),
    (r"gemma-?2(?![0-9.b])", _exactly("gemma2")),
    (r"(embedding)?gemma-?3|embeddinggemma", _exactly("gemma3")),
    (r"gemma-?4(?![0-9.b])", _exactly("gemma4")),
    (r"(code)?gemma", _about("gemma2")),
    # Google counts Gemini locally with Gemma's vocabularies, as an estimate.
    (r"gemini-(3\.[1-9]|[4-9])", _about("gemma4")),
    (r"gemini", _about("gemma3")),
    (r"kimi-?k2|kimi-linear|moonlight", _exactly("kimi_k2")),
    (r"kimi-?k3", _exactly("kimi_k3")),
    (r"kimi|moonshot", _about("kimi_k2")),
    (r"glm-?4", _exactly("glm4")),
    (r"glm|chatglm", _about("glm4")),
    (r"mixtral-8x7b|mistral-7b(-instruct)?-v0\.[12]", _exactly("mistral_v1")),
    (r"mixtral-8x22b|mistral-7b(-instruct)?-v0\.3|codestral-(22b|2405)|mistral-large(-instruct)?-24(07|11)",
     _exactly("mistral_v2")),
    (r"mistral-nemo|pixtral-12b|ministral-8b|mistral-small(-3|-24b|-25)|devstral|magistral",
     _exactly("mistral_v3")),
    (r"mixtral|mistral:7b", _about("mistral_v1")),
    (r"mistral|ministral|codestral|pixtral|voxtral", _about("mistral_v3")),
    (r"phi-?4-(mini|multimodal)", _about("o200k_base")),
    (r"phi-?4", _exactly("phi4")),
    (r"olmo-?2", _exactly("olmo2")),
    (r"smollm", _about("o200k_base", 1.17)),
)  # fmt: skip
_FAMILY = tuple((re.compile(rf"(?<![a-z0-9])(?:{pattern})"), choice) for pattern, choice in _FAMILIES)

# OpenAI's own names; they must begin the name, for many other models are called after them.
_OPENAI: tuple[tuple[re.Pattern[str], Vocabulary], ...] = (
    (re.compile(r"gpt-(4o|4\.1|4\.5|5)(?![0-9])|chatgpt-4o|o[134](?![a-z0-9])|codex-mini"), _exactly("o200k_base")),
    (re.compile(r"gpt-(4|3\.5|35)(?![0-9.a-z])|text-embedding-(3-|ada-002)|(davinci|babbage)-002"),
     _exactly("cl100k_base")),
    (re.compile(r"gpt-|chatgpt"), _about("o200k_base")),
)  # fmt: skip
_CLAUDE = re.compile(r"(?<![a-z0-9])claude(?![a-z0-9])")
_CLAUDE_VERSION = re.compile(r"claude-(?:[a-z]+-)?v?(\d+)(?:[-.](\d{1,2})(?!\d))?")
# Bedrock's `us.anthropic.` and the like.
_VENDOR = re.compile(
    r"^(?:[a-z]{2,6}\.)?(?:anthropic|openai|meta|mistral|deepseek|qwen|google|moonshot(?:ai)?)\."
)


@functools.lru_cache(maxsize=512)
def vocabulary(model: str | None) -> Vocabulary:
    """The vocabulary of a model (or of that name): "openai:gpt-4o" -> o200k, exact; "claude-opus-5-5" -> o200k x 1.55."""
    if not model:
        return Vocabulary(DEFAULT)
    if model in RELATIVE:
        return Vocabulary(model)
    return next((found for name in _readings(model) if (found := _known(name))), UNKNOWN)


def vocabulary_for(model: str | None) -> tuple[str, bool]:
    """The name of a model's vocabulary, and whether counting with it is exact for that model."""
    found = vocabulary(model)
    return found.name, found.exact


def _readings(model: str) -> Iterator[str]:
    """A name without vendor and provider, most specific first: "a:b/qwen3:free" -> "free", "qwen3:free"."""
    name = model.lower().rsplit("/", 1)[-1].strip()
    # A colon may end a provider's name (openai:gpt-4o) or begin a size (llama3.1:8b): try both.
    starts = [0, *(index + 1 for index, char in enumerate(name) if char == ":")]
    for start in starts[1:] + starts[:1]:
        yield _VENDOR.sub("", name[start:]).replace("_", "-")


def _known(name: str) -> Vocabulary | None:
    if _CLAUDE.search(name):
        return _claude(name)
    for pattern, choice in _OPENAI:
        # Its open models are a family of their own, below.
        if pattern.match(name) and not name.startswith("gpt-oss"):
            return choice
    return next((choice for pattern, choice in _FAMILY if pattern.search(name)), None)


def _claude(name: str) -> Vocabulary:
    version = _CLAUDE_VERSION.search(name)
    if version is None:
        return CLAUDE_NEWER
    major, minor = int(version[1]), int(version[2] or 0)
    return CLAUDE_NEWER if (major, minor) >= CLAUDE_NEWER_FROM else CLAUDE_OLDER


EXTRA_HINT = "pip install 'quire[tokenizers]'"


class Counter(Protocol):
    """Counts tokens of ordinary text; special-token strings in it are text like any other."""

    @property
    def vocabulary(self) -> str: ...

    @property
    def exact(self) -> bool: ...

    def count(self, text: str) -> int: ...


class VocabularyCounter(msgspec.Struct, frozen=True):
    """Counts with a vocabulary; an estimate multiplies what it finds by `factor` and says so in `note`."""

    vocabulary: str = DEFAULT
    exact: bool = True
    factor: float = 1.0
    note: str = ""

    def count(self, text: str) -> int:
        try:
            found = _counting(self.vocabulary)(text)
        except UnicodeEncodeError as error:
            raise FormatError(
                f"text holds a lone surrogate ({error.object[error.start]!r})", hint=NOT_UTF8_HINT
            ) from error
        return found if self.factor == 1.0 else round(found * self.factor)


def counter(model: str | None = None) -> VocabularyCounter:
    """The counter for a model's vocabulary; o200k where no model is named."""
    wanted = vocabulary(model)
    if wanted.name in BASE or extra_installed():
        return VocabularyCounter(wanted.name, wanted.exact, wanted.factor, _note(model, wanted))
    factor = round(wanted.factor * RELATIVE[wanted.name], 3)
    note = f"estimate: {DEFAULT} × {factor}, for {wanted.name} is not installed; {EXTRA_HINT}"
    return VocabularyCounter(DEFAULT, exact=False, factor=factor, note=note)


def count(text: str, model: str | None = None) -> Count:
    """The tokens of a text for a model: count("Hello, world") -> Count(tokens=3, exact=True)."""
    found = counter(model)
    return Count(found.count(text), found.exact, found.vocabulary)


def extra_installed() -> bool:
    """Whether the vocabularies beyond OpenAI's are at hand."""
    return importlib.util.find_spec("splintr") is not None


def _note(model: str | None, wanted: Vocabulary) -> str:
    if wanted.exact:
        return ""
    by = f" × {wanted.factor}" if wanted.factor != 1.0 else ""
    why = f"the model {model} is unknown" if wanted == UNKNOWN else f"the vocabulary of {model} is not public"
    return f"estimate: {wanted.name}{by}, for {why}"


@functools.cache
def _counting(name: str) -> Callable[[str], int]:
    """The counting function of a vocabulary; loading takes up to half a second, so once per process."""
    return _openai(name) if name in BASE else _splintr(name)


def _openai(name: str) -> Callable[[str], int]:
    from rs_bpe import openai

    load = openai.o200k_base if name == "o200k_base" else openai.cl100k_base
    native: Callable[[str], int] = load().count
    return native


def _splintr(name: str) -> Callable[[str], int]:
    try:
        from splintr import Tokenizer
    except ImportError as error:
        raise MissingPart(f"the vocabulary {name} is not installed", hint=EXTRA_HINT) from error
    # `ordinary`: a special token spelled out in the text must not become one.
    encode: Callable[[str], list[int]] = Tokenizer.from_pretrained(name).encode_ordinary
    return lambda text: len(encode(text))


# The budget's count of a prompt's parts, for when no provider has counted them: always o200k, never scaled.

# What a provider's framing of one message costs, whatever is in it.
MESSAGE_TOKENS = 4
# Providers count an image by its size and the model; this is about the middle of what they charge.
IMAGE_TOKENS = 1500


def text_tokens(text: str, with_: Counter | None = None) -> int:
    """The tokens of one message's text, its framing included (a system message, say)."""
    return MESSAGE_TOKENS + (with_ or counter()).count(text)


def message_tokens(message: Message, with_: Counter | None = None, image_tokens: int = 0) -> int:
    """A message's text, call names and arguments, and 4 for each message it becomes on the wire."""
    chosen = with_ or counter()
    # Each result of a group of parallel calls is a wire message of its own.
    results = sum(isinstance(part, Result) for part in message.parts)
    framing = MESSAGE_TOKENS * max(1, results if message.role == "tool" else 1)
    texts = [part.text for part in message.parts if isinstance(part, Text) and part.text]
    others = [part for part in message.parts if not isinstance(part, Text)]
    # Several texts of one message are one text on the wire, a blank line between them.
    words = chosen.count("\n\n".join(texts)) if texts else 0
    return framing + words + sum(part_tokens(part, chosen, image_tokens) for part in others)


def part_tokens(part: Part, with_: Counter, image_tokens: int = 0) -> int:
    """The tokens of one part, without framing."""
    match part:
        case Text(text=text) | Think(text=text) | Result(text=text):
            return with_.count(text)
        case Call(name=name):
            return with_.count(name) + with_.count(arguments_text(part))
        case ToolSet(tools=tools):
            return tools_tokens(tools, with_)
        case Image():
            return image_tokens


def arguments_text(call: Call) -> str:
    """A call's arguments as they go over the wire: the model's own string, else compact JSON."""
    return call.arguments or compact(call.args)


def compact(value: Json) -> str:
    """JSON without spaces, keys in the order given, no ASCII escapes."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def tools_tokens(tools: Iterable[JsonObject], with_: Counter | None = None) -> int:
    """The tokens of the tools' canonical JSON; no tools cost nothing."""
    listed = list(tools)
    return (with_ or counter()).count(canonical(listed).decode()) if listed else 0


# Correcting an estimate from what providers report: a scale (the vocabulary) and an offset (the unseen).
#
# The offset is what the log does not hold, such as a foreign system prompt; it is taken afresh from every report,
# so a fork, a summary or a dropped reply costs one miss. The scale is learned from growth between reports only.

# Steps of growth kept: enough for a steady median, few enough to follow a change.
STEPS = 32
# The prior scale weighs as much as a step of this many tokens.
PRIOR_WEIGHT = 500.0
# A step whose ratio is further than this from the prior is no growth of the same text, but a cut or a switch.
PLAUSIBLE = 2.5
# Reports after which a thread's scale is worth handing on.
SETTLED = 3


class Calibration(msgspec.Struct, frozen=True):
    """What one model reported for one thread so far; `predict` corrects the next o200k estimate."""

    scale: float = 1.0
    offset: float = 0.0
    prior: float = 1.0
    reports: int = 0
    estimate: int = 0
    reported: int = 0
    steps: tuple[tuple[float, float], ...] = ()

    def predict(self, estimate: int) -> Count:
        """The tokens to expect for an estimate; before any report, the prior alone."""
        return Count(max(0, round(self.scale * estimate + self.offset)), exact=False, vocabulary=DEFAULT)

    def room(self, limit: int) -> int:
        """How many of our own tokens a limit in the model's leaves, beside what we do not see."""
        return max(0, int((limit - self.offset) / max(self.scale, 1 / PLAUSIBLE)))

    def unseen_apart(self) -> Calibration:
        """The same without what we do not see: it may be gone."""
        return msgspec.structs.replace(self, offset=0.0)

    def observe(self, estimate: int, reported: int) -> Calibration:
        """Learn from a reply's total input; a reply that reported nothing (aborted) teaches nothing."""
        if reported <= 0:
            return self
        steps = self._grown(estimate, reported)
        scale = _weighted_median([(self.prior, PRIOR_WEIGHT), *steps])
        return Calibration(
            scale=scale,
            offset=reported - scale * estimate,
            prior=self.prior,
            reports=self.reports + 1,
            estimate=estimate,
            reported=reported,
            steps=steps,
        )

    def _grown(self, estimate: int, reported: int) -> tuple[tuple[float, float], ...]:
        """The steps (ratio, weight), with the one since the last report where it is plausible."""
        grown = estimate - self.estimate
        if not self.reports or not grown:
            return self.steps
        ratio = (reported - self.reported) / grown
        if not self.prior / PLAUSIBLE <= ratio <= self.prior * PLAUSIBLE:
            return self.steps
        return (*self.steps, (ratio, float(abs(grown))))[-STEPS:]


class Calibrations(msgspec.Struct, frozen=True):
    """One thread's calibrations, by model: a switch of models neither forgets nor confuses."""

    by_model: dict[str, Calibration] = {}

    def of(self, model: str) -> Calibration:
        return self.by_model.get(model) or uncalibrated(model)

    def predict(self, model: str, estimate: int) -> Count:
        return self.of(model).predict(estimate)

    def observe(self, model: str, estimate: int, reported: int) -> Calibrations:
        return Calibrations({**self.by_model, model: self.of(model).observe(estimate, reported)})


def uncalibrated(model: str, like: Iterable[Calibration] = ()) -> Calibration:
    """A calibration to begin a thread with: the scale other threads found for the model, else the stated factor."""
    found = [other.scale for other in like if other.reports >= SETTLED]
    chosen = vocabulary(model)
    prior = statistics.median(found) if found else chosen.factor * RELATIVE[chosen.name]
    return Calibration(scale=prior, prior=prior)


def _weighted_median(values: list[tuple[float, float]]) -> float:
    half = sum(weight for _, weight in values) / 2
    for value, weight in sorted(values):
        half -= weight
        if half <= 0:
            return value
    return values[-1][0]


# A thread's running count: what was counted once is never counted again.

# Entries that say something about the thread, not to the model.
SILENT = frozenset({"sent", "rebase"})


class Ledger:
    """Tokens of an append-only list of entries, as sums up to each entry; growing it costs the new text only."""

    def __init__(self, with_: Counter | None = None) -> None:
        self._with = with_ or counter()
        self._sums = [0]
        self._last: Entry | None = None

    def __len__(self) -> int:
        return len(self._sums) - 1

    @property
    def total(self) -> int:
        return self._sums[-1]

    def extend(self, entries: Iterable[Entry]) -> int:
        """Count entries behind those already here; returns what they add."""
        before = self.total
        for entry in entries:
            self._sums.append(self.total + entry_tokens(entry, self._with, self._last))
            self._last = entry
        return self.total - before

    def follow(self, thread: Sequence[Entry]) -> int:
        """The total of a whole thread of which the part already here is not looked at again."""
        if len(thread) < len(self):
            raise CallError(
                f"{len(self)} entries were counted but the thread has {len(thread)}",
                hint="A thread only grows; start a new ledger for a fork.",
            )
        self.extend(thread[len(self) :])
        return self.total

    def between(self, start: int, stop: int) -> int:
        """Tokens of entries start..stop-1, counted from 0."""
        return self._sums[stop] - self._sums[start]


def entry_tokens(entry: Entry, with_: Counter | None = None, before: Entry | None = None) -> int:
    """An entry's tokens, and its message's framing where it begins one (a model's entries in a row are one)."""
    if entry.kind in SILENT:
        return 0
    chosen = with_ or counter()
    if entry.kind == "tools":
        return tools_tokens(entry.tools, chosen)
    joins = entry.kind in SPOKEN and before is not None and before.kind in SPOKEN
    return sum(map(chosen.count, entry_texts(entry))) + (0 if joins else MESSAGE_TOKENS)


def entry_texts(entry: Entry) -> list[str]:
    """Every text of an entry that a model would read."""
    body = entry.body
    texts = [str(body[key]) for key in ("text", "name", "outcome", "content") if body.get(key)]
    if entry.kind == "call":
        texts.append(compact(entry.args))
    return texts + [str(item.get("content", "")) for item in entry.attached]
