"""How many tokens a model makes of a text: its vocabulary, a counter for it, and what reports say of the estimate.

A counter is loaded when first used, safe to share between threads, and remembers the newest few texts.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec

from quire.errors import FormatError, needs_extra
from quire.values import NOT_UTF8_HINT, Count

# `exact` is claimed only where the vocabulary of that very model is public and at hand; everything else is an
# estimate: o200k or a near relative, times a factor measured on English prose, chat and code.

DEFAULT = "o200k_base"
# These come with the base install; the rest with the extra `tokenizers`.
BASE = frozenset({"o200k_base", "cl100k_base"})


class Counter(Protocol):
    """Counts tokens of ordinary text; special-token strings in it are text like any other."""

    @property
    def vocabulary(self) -> str: ...

    @property
    def exact(self) -> bool: ...
    def count(self, text: str) -> int: ...


class VocabularyCounter(msgspec.Struct, frozen=True):
    """Counts with a vocabulary. For a model whose own is not public, the count times `factor` is an estimate.

    `note` says why an estimate is used for a model.
    """

    vocabulary: str = DEFAULT
    exact: bool = True
    factor: float = 1.0
    note: str = ""

    def count(self, text: str) -> int:
        try:
            tokens = _count_cached(self.vocabulary, text)
        except UnicodeEncodeError as error:
            raise FormatError(
                f"text holds a lone surrogate ({error.object[error.start]!r})", hint=NOT_UTF8_HINT
            ) from error
        return tokens if self.factor == 1.0 else round(tokens * self.factor)


def _about(name: str, factor: float = 1.0, note: str = "") -> VocabularyCounter:
    return VocabularyCounter(name, exact=False, factor=factor, note=note)


# Tokens of each vocabulary per token of o200k: for an estimate where the extra is missing.
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

UNKNOWN = _about(DEFAULT, 1.1)
# Claude's vocabularies are not public. Reported usage against o200k gave 1.2 to 1.3 for the older one; from
# Opus 4.7 on the same text makes about 30 % more tokens.
CLAUDE_OLDER = _about(DEFAULT, 1.2)
CLAUDE_NEWER = _about(DEFAULT, 1.55)
CLAUDE_NEWER_FROM = (4, 7)


# The first pattern that matches at a word's start in the name decides; so special cases stand first.
_FAMILIES: tuple[tuple[str, VocabularyCounter], ...] = (
    # A distilled model uses the vocabulary of its base model.
    (r"deepseek-r1-distill-llama", VocabularyCounter("llama3")),
    (r"deepseek-r1-distill-qwen", VocabularyCounter("qwen3")),
    (r"gpt-oss", VocabularyCounter("o200k_base")),
    (r"code-?llama", VocabularyCounter("codellama")),
    (r"(meta-)?llama-?(v?3)(?![0-9])", VocabularyCounter("llama3")),
    (r"(meta-)?llama-?(v?2)(?![0-9])|tinyllama|vicuna", VocabularyCounter("llama2")),
    (r"(meta-)?llama", _about("o200k_base", 1.02)),
    (r"qwen-?(2|2\.5|2p5|3)(?![0-9.p])|qwq|qvq|baichuan-m2", VocabularyCounter("qwen3")),
    (r"qwen", _about("qwen3")),
    (r"deepseek-?(v3|r1)(?![0-9])", VocabularyCounter("deepseek_v3")),
    (r"deepseek", _about("deepseek_v3")),
    (r"gemma-?2(?![0-9.b])", VocabularyCounter("gemma2")),
    (r"(embedding)?gemma-?3|embeddinggemma", VocabularyCounter("gemma3")),
    (r"gemma-?4(?![0-9.b])", VocabularyCounter("gemma4")),
    (r"(code)?gemma", _about("gemma2")),
    # Google counts Gemini locally with Gemma's vocabularies, as an estimate.
    (r"gemini-(3\.[1-9]|[4-9])", _about("gemma4")),
    (r"gemini", _about("gemma3")),
    (r"kimi-?k2|kimi-linear|moonlight", VocabularyCounter("kimi_k2")),
    (r"kimi-?k3", VocabularyCounter("kimi_k3")),
    (r"kimi|moonshot", _about("kimi_k2")),
    (r"glm-?4", VocabularyCounter("glm4")),
    (r"glm|chatglm", _about("glm4")),
    (r"mixtral-8x7b|mistral-7b(-instruct)?-v0\.[12]", VocabularyCounter("mistral_v1")),
    (r"mixtral-8x22b|mistral-7b(-instruct)?-v0\.3|codestral-(22b|2405)|mistral-large(-instruct)?-24(07|11)",
     VocabularyCounter("mistral_v2")),
    (r"mistral-nemo|pixtral-12b|ministral-8b|mistral-small(-3|-24b|-25)|devstral|magistral",
     VocabularyCounter("mistral_v3")),
    (r"mixtral|mistral:7b", _about("mistral_v1")),
    (r"mistral|ministral|codestral|pixtral|voxtral", _about("mistral_v3")),
    (r"phi-?4-(mini|multimodal)", _about("o200k_base")),
    (r"phi-?4", VocabularyCounter("phi4")),
    (r"olmo-?2", VocabularyCounter("olmo2")),
    (r"smollm", _about("o200k_base", 1.17)),
)  # fmt: skip
_FAMILY = tuple((re.compile(rf"(?<![a-z0-9])(?:{pattern})"), choice) for pattern, choice in _FAMILIES)

# OpenAI's own models. Matched at the beginning only, because names of many other models contain these.
_OPENAI: tuple[tuple[re.Pattern[str], VocabularyCounter], ...] = (
    (re.compile(r"gpt-(4o|4\.1|4\.5|5)(?![0-9])|chatgpt-4o|o[134](?![a-z0-9])|codex-mini"), VocabularyCounter("o200k_base")),
    (re.compile(r"gpt-(4|3\.5|35)(?![0-9.a-z])|text-embedding-(3-|ada-002)|(davinci|babbage)-002"),
     VocabularyCounter("cl100k_base")),
    (re.compile(r"gpt-|chatgpt"), _about("o200k_base")),
)  # fmt: skip
_CLAUDE = re.compile(r"(?<![a-z0-9])claude(?![a-z0-9])")
_CLAUDE_VERSION = re.compile(r"claude-(?:[a-z]+-)?v?(\d+)(?:[-.](\d{1,2})(?!\d))?")
# Bedrock's `us.anthropic.` and the like.
_VENDOR = re.compile(r"^(?:[a-z]{2,6}\.)?(?:anthropic|openai|meta|mistral|deepseek|qwen|google|moonshot(?:ai)?)\.")


@functools.lru_cache(maxsize=512)
def vocabulary(model: str | None) -> VocabularyCounter:
    """The vocabulary of a model (or of that name): "openai:gpt-4o" -> o200k, exact; "claude-opus-5-5" -> o200k x 1.55."""
    if not model:
        return VocabularyCounter(DEFAULT)
    if model in RELATIVE:
        return VocabularyCounter(model)
    return next((found for name in _readings(model) if (found := _vocabulary(name))), UNKNOWN)


def _readings(model: str) -> Iterator[str]:
    """A name without vendor and provider, most specific first: "a:b/qwen3:free" -> "free", "qwen3:free"."""
    name = model.lower().rsplit("/", 1)[-1].strip()
    # A colon may end a provider's name (openai:gpt-4o) or begin a size (llama3.1:8b): try both.
    starts = [0, *(index + 1 for index, char in enumerate(name) if char == ":")]
    for start in starts[1:] + starts[:1]:
        yield _VENDOR.sub("", name[start:]).replace("_", "-")


def _vocabulary(name: str) -> VocabularyCounter | None:
    if _CLAUDE.search(name):
        return _claude(name)
    for pattern, choice in _OPENAI:
        # OpenAI's open models are among _FAMILIES.
        if pattern.match(name) and not name.startswith("gpt-oss"):
            return choice
    return next((choice for pattern, choice in _FAMILY if pattern.search(name)), None)


def _claude(name: str) -> VocabularyCounter:
    version = _CLAUDE_VERSION.search(name)
    if version is None:
        return CLAUDE_NEWER
    major, minor = int(version[1]), int(version[2] or 0)
    return CLAUDE_NEWER if (major, minor) >= CLAUDE_NEWER_FROM else CLAUDE_OLDER


def counter(model: str | None = None) -> VocabularyCounter:
    """The counter for a model's vocabulary; o200k where no model is named."""
    chosen = vocabulary(model)
    if chosen.vocabulary not in BASE and not extra_installed():
        factor = round(chosen.factor * RELATIVE[chosen.vocabulary], 3)
        missing = f"for {chosen.vocabulary} is not installed; pip install 'quire[tokenizers]'"
        return _about(DEFAULT, factor, f"estimate: {DEFAULT} × {factor}, {missing}")
    if chosen.exact:
        return chosen
    by = f" × {chosen.factor}" if chosen.factor != 1.0 else ""
    why = f"the model {model} is unknown" if chosen == UNKNOWN else f"the vocabulary of {model} is not public"
    return _about(chosen.vocabulary, chosen.factor, f"estimate: {chosen.vocabulary}{by}, for {why}")


def count(text: str, model: str | None = None) -> Count:
    """The tokens of a text for a model: count("Hello, world") -> Count(tokens=3, exact=True)."""
    chosen = counter(model)
    return Count(chosen.count(text), chosen.exact, chosen.vocabulary)


def extra_installed() -> bool:
    """Whether the vocabularies other than OpenAI's are installed."""
    return importlib.util.find_spec("splintr") is not None


# The same text is often counted twice in a row: when it is cut to fit, and when it is placed.
@functools.lru_cache(maxsize=128)
def _count_cached(vocabulary: str, text: str) -> int:
    return _counting(vocabulary)(text)


@functools.cache
def _counting(name: str) -> Callable[[str], int]:
    """The counting function of a vocabulary; loading takes up to half a second, so once per process."""
    if name in BASE:
        from rs_bpe import openai

        native: Callable[[str], int] = getattr(openai, name)().count
        return native
    with needs_extra(f"the vocabulary {name} is not installed", "tokenizers"):
        from splintr import Tokenizer
    # `ordinary`: a special token spelled out in the text must not become one.
    encode: Callable[[str], list[int]] = Tokenizer.from_pretrained(name).encode_ordinary
    return lambda text: len(encode(text))


# Calibration corrects estimates by what providers report: a scale (for the vocabulary) and an offset (for what the log
# does not hold, such as a foreign system prompt).
#
# The offset is taken anew from every report, so a fork, a summary or a dropped reply makes one estimate wrong. The scale
# is learned only from growth between reports.

# How many steps of growth are remembered: enough for a stable median, few enough to follow a change.
STEPS = 32
# The prior scale weighs as much as a step of this many tokens.
PRIOR_WEIGHT = 500.0
# A step whose ratio differs from the prior by more than this factor is a cut or a switch, not growth of the same text.
PLAUSIBLE = 2.5


class Calibration(msgspec.Struct, frozen=True):
    """What a model has reported for a thread so far; `predict` corrects the next o200k estimate by it."""

    scale: float = 1.0
    offset: float = 0.0
    prior: float = 1.0
    reports: int = 0
    estimate: int = 0
    reported: int = 0
    steps: tuple[tuple[float, float], ...] = ()

    def predict(self, estimate: int) -> Count:
        """The tokens to expect for an estimate; before the first report, by the prior alone."""
        return Count(max(0, round(self.scale * estimate + self.offset)), exact=False, vocabulary=DEFAULT)

    def room(self, limit: int) -> int:
        """A limit in the model's tokens as a limit of estimates, less the offset."""
        return max(0, int((limit - self.offset) / max(self.scale, 1 / PLAUSIBLE)))

    def unseen_apart(self) -> Calibration:
        """The same without the offset, which may no longer hold."""
        return msgspec.structs.replace(self, offset=0.0)

    def observe(self, estimate: int, reported: int) -> Calibration:
        """Learn from the total input that a reply reports; a reply without a report (aborted) is ignored."""
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
        """The steps (ratio, weight), with the step since the last report if it is plausible."""
        grown = estimate - self.estimate
        if not self.reports or not grown:
            return self.steps
        ratio = (reported - self.reported) / grown
        if not self.prior / PLAUSIBLE <= ratio <= self.prior * PLAUSIBLE:
            return self.steps
        return (*self.steps, (ratio, float(abs(grown))))[-STEPS:]


# A report is far off if it differs by more than half and by more than this many tokens.
FAR_TOKENS = 2000


def far_off(expected: float, reported: int) -> bool:
    """Whether a report shows that the estimate was wrong, not just inexact: 10, 94_032 -> True."""
    low, high = sorted((expected, float(reported)))
    return low > 0 and high > 1.5 * low and high - low > FAR_TOKENS


class Calibrations(msgspec.Struct, frozen=True):
    """A thread's calibrations by model, so that a switch of models does not mix them."""

    by_model: dict[str, Calibration] = {}

    def of(self, model: str) -> Calibration:
        return self.by_model.get(model) or uncalibrated(model)

    def predict(self, model: str, estimate: int) -> Count:
        return self.of(model).predict(estimate)

    def observe(self, model: str, estimate: int, reported: int) -> Calibrations:
        return Calibrations({**self.by_model, model: self.of(model).observe(estimate, reported)})


def uncalibrated(model: str) -> Calibration:
    """The calibration before any report: the factor of the model's vocabulary."""
    chosen = vocabulary(model)
    prior = chosen.factor * RELATIVE[chosen.vocabulary]
    return Calibration(scale=prior, prior=prior)


def _weighted_median(values: list[tuple[float, float]]) -> float:
    half = sum(weight for _, weight in values) / 2
    for value, weight in sorted(values):
        half -= weight
        if half <= 0:
            return value
    return values[-1][0]
