"""Prompt caches, simulated: what a sequence of requests reads, writes and costs at each provider and engine."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from quire.errors import CallError
from quire.providers.models import ModelInfo, model_info
from quire.providers.prefix import GrowingValues, leading
from quire.providers.simulate.blocks import (
    Block,
    Cause,
    Engine,
    EngineView,
    PromptIds,
    Reader,
    Shares,
    Tokenize,
    TokenTally,
    blocks,
    chained,
    continues,
)
from quire.providers.simulate.engine_caches import BlockCache, RadixCache, RadixTree, SlotCache, UnitCache
from quire.providers.simulate.marked_caches import AnthropicCache, BreakpointCache
from quire.providers.usage import Money, cost, storage
from quire.values import JsonObject, Usage

__all__ = ["Block", "Cause", "Predicted", "Simulator", "blocks", "simulate"]

# Automatic prefix caches that read whole steps: OpenAI up to GPT-5.5 (128 tokens), xAI, Groq, Mistral.


class StepCache(Engine):
    """The longest stored prefix, rounded down to a step; lives end when a prefix goes unused too long."""

    by_ids = True

    def __init__(self, info: ModelInfo) -> None:
        self._cache = info.cache
        self._trees: dict[str, RadixTree] = {}
        # The lengths of the prompts that were seen, to tell one that was too short from one that differs.
        self._lengths: dict[str, set[int]] = {}

    def look(self, at_ms: int, request: EngineView, began_ms: int | None = None) -> Shares:
        """Requests with another key are served elsewhere, and share nothing."""
        key = str(request.setting(self._cache.key) or "") if self._cache.key else ""
        tree = self._trees.setdefault(key, RadixTree())
        life_ms = self._life_ms(request)
        stored = tree.match(request.ids)
        # A prefix stored in this same moment cannot be read yet.
        matched = tree.match(
            request.ids, lambda node: node.stored_ms < at_ms and (life_ms is None or at_ms - node.used_ms < life_ms)
        )
        read = self._rounded(matched)
        lengths = self._lengths.setdefault(key, set())
        cause, note = self._why(tree, stored, matched, len(request.ids), lengths)
        tree.insert(request.ids, at_ms)
        lengths.add(len(request.ids))
        return Shares(read, cause=cause, note=note)

    def _rounded(self, tokens: int) -> int:
        whole = tokens // self._cache.step * self._cache.step if self._cache.step else tokens
        return whole if whole >= max(1, self._cache.min_tokens) else 0

    def _life_ms(self, request: EngineView) -> int | None:
        """The idle life in force: `prompt_cache_retention` may ask for the longer one."""
        if not self._cache.ttl_s:
            return None
        longer = request.setting("prompt_cache_retention") == "24h"
        return self._cache.ttl_s[-1 if longer else 0] * 1000

    def _why(self, tree: RadixTree, stored: int, matched: int, total: int, lengths: set[int]) -> tuple[Cause, str]:
        if not tree.size:
            return "first", "nothing was stored before this request"
        if self._rounded(stored) > self._rounded(matched):
            return "ttl", f"{stored:,} tokens were stored, but unused for too long"
        if self._rounded(matched):
            return "", ""
        least = max(self._cache.min_tokens, self._cache.step)
        if total < least:
            return "minimum", f"prompts under {least:,} tokens are not cached"
        # All of an earlier prompt was found again, or none could be stored.
        if matched in lengths or max(lengths) < least:
            return "minimum", f"the requests before had less than {least:,} tokens to store"
        return "moved", "the prompt differs early from every earlier one"


# Gemini's two caches: the implicit one, any common prefix; and explicit `cachedContents`, paid for by the hour.

_HOUR_MS = 3_600_000


class ExplicitCache(msgspec.Struct):
    """One explicit cache: its prompt, and until when it is kept and paid for."""

    ids: array[int]
    paid_ms: int
    expires_ms: int


class GeminiCache(Engine):
    """A request that names a cache reads all of it; any other reads what the implicit cache happens to have."""

    by_ids = True

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._implicit = StepCache(info)
        self._explicit: dict[str, ExplicitCache] = {}

    def look(self, at_ms: int, request: EngineView, began_ms: int | None = None) -> Shares:
        # Token hours of storage since the last request, over all explicit caches.
        token_hours = sum(_token_hours(stored, at_ms) for stored in self._explicit.values())
        if is_cache(request.body):
            return self._create(at_ms, request, token_hours)
        name = request.body.get("cachedContent") or request.body.get("cached_content")
        if not name:
            shares = self._implicit.look(at_ms, request, began_ms)
            return msgspec.structs.replace(shares, storage_token_hours=token_hours)
        return self._read(str(name), at_ms, request, token_hours)

    def prompt(self, body: JsonObject, ids: array[int]) -> array[int]:
        """A request's whole prompt: what its cache holds, then its own."""
        stored = self._explicit.get(str(body.get("cachedContent") or body.get("cached_content") or ""))
        return stored.ids + ids if stored else ids

    def drop(self, name: str, at_ms: int) -> float:
        """Delete an explicit cache; the token hours it was kept since they were last paid."""
        stored = self._explicit.pop(name, None)
        return 0.0 if stored is None else _token_hours(stored, at_ms)

    def extend(self, name: str, at_ms: int, ttl_s: float) -> None:
        """Give an explicit cache a new life from now on."""
        if name in self._explicit:
            self._explicit[name].expires_ms = at_ms + int(ttl_s * 1000)

    def _create(self, at_ms: int, request: EngineView, token_hours: float) -> Shares:
        name = str(request.body.get("name") or f"cachedContents/{len(self._explicit) + 1}")
        ttl_ms = int(seconds(request.body.get("ttl"), self._info.cache.ttl_s[0]) * 1000)
        self._explicit[name] = ExplicitCache(request.ids, at_ms, at_ms + ttl_ms)
        return Shares(cause="first", note=f"{name} created", storage_token_hours=token_hours)

    def _read(self, name: str, at_ms: int, request: EngineView, token_hours: float) -> Shares:
        stored = self._explicit.get(name)
        cause: Cause = "" if stored and at_ms < stored.expires_ms else "ttl" if stored else "first"
        read = len(stored.ids) if stored and not cause else 0
        note = "" if not cause else f"{name} has expired" if stored else f"{name} was never created"
        return Shares(read, cause=cause, note=note, storage_token_hours=token_hours)


def _token_hours(stored: ExplicitCache, at_ms: int) -> float:
    until = min(at_ms, stored.expires_ms)
    hours = max(0, until - stored.paid_ms) / _HOUR_MS
    stored.paid_ms = max(stored.paid_ms, until)
    return hours * len(stored.ids)


def is_cache(body: JsonObject) -> bool:
    """Whether a body creates an explicit cache rather than asks for an answer."""
    return "ttl" in body or "expireTime" in body or str(body.get("name", "")).startswith("cachedContents/")


def seconds(ttl: object, default: float) -> float:
    """A duration as Google writes it: "300s" -> 300.0."""
    text = str(ttl or "").removesuffix("s")
    return float(text) if text.replace(".", "", 1).isdigit() else default


# A provider's cache over a sequence of requests: each request's tokens read, written and plain, and their money.


class NoCache(Engine):
    """Of providers without a prompt cache that is known: reads nothing, writes nothing."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info

    def look(self, at_ms: int, request: EngineView, began_ms: int | None = None) -> Shares:
        return Shares(note=f"no prompt cache of {self._info.provider} is known")


class Predicted(msgspec.Struct, frozen=True):
    """How one request's tokens split, what that costs, and why not more was read."""

    read: int
    write_5m: int
    write_1h: int
    plain: int
    money: Money
    cause: Cause = ""
    note: str = ""
    # Whether the tokens were counted with the model's own vocabulary.
    exact: bool = False
    # Tokens kept in explicit caches since the request before, times hours (Gemini).
    storage_token_hours: float = 0.0

    @property
    def total(self) -> int:
        return self.read + self.write_5m + self.write_1h + self.plain

    @property
    def usage(self) -> Usage:
        return Usage(self.total, self.read, self.write_5m, self.write_1h)


# The marks' longer and shorter life are `write_1h` and `write_5m` for every provider (OpenAI: 12 h and 30 min).
_ENGINES: dict[str, Callable[..., Engine]] = {
    "anthropic": AnthropicCache,
    "openai-breakpoints": BreakpointCache,
    "openai-steps": StepCache,
    "gemini": GeminiCache,
    "deepseek-units": UnitCache,
    "blocks": BlockCache,
    "radix": RadixCache,
    "slot": SlotCache,
    "none": NoCache,
}


class Simulator:
    """One cache, request after request; `options` are the engine's own (slots, size, capacity_tokens, …).

    `frozen`: messages of the bodies are not changed in place, so that one which comes again need not be read again.
    """

    def __init__(
        self,
        target: str | ModelInfo,
        tokenize: Tokenize | None = None,
        prompt_ids: PromptIds | None = None,
        frozen: bool = False,
        **options: Any,
    ) -> None:
        self.info = model_info(target) if isinstance(target, str) else target
        self._tally = TokenTally(f"{self.info.provider}:{self.info.model}", tokenize)
        self._reader = Reader(self.info.wire, frozen)
        self._prompt_ids = prompt_ids
        self.engine = _engine(self.info, options)
        self._exact = self._tally.exact or prompt_ids is not None
        # Prompts that no answer is known for yet, by the hash of their blocks.
        self._unanswered: dict[bytes, array[int]] = {}
        self._keys: GrowingValues[Block, bytes] = GrowingValues()
        self._blocks_before: list[Block] = []
        self._last: tuple[array[int], int] | None = None
        # The latest requests: one that continues none of them (a request for a title) has lost nothing.
        self._recent: deque[Sequence[Block]] = deque(maxlen=16)
        # The blocks of the newest body that was read.
        self.newest: Sequence[Block] = ()

    def step(self, at_ms: int, body: JsonObject, began_ms: int | None = None) -> Predicted:
        """Send one more request at `at_ms`; `began_ms` is when its answer began, if that is known."""
        request = self._view(body)
        if self.engine.keeps_answers and self._prompt_ids is None:
            self._presume_answers(request, at_ms)
        shares = self.engine.look(at_ms, request, began_ms)
        if shares.cause == "moved" and not any(continues(old, request.blocks) for old in self._recent):
            shares = msgspec.structs.replace(shares, cause="first", note="it goes on with no earlier request")
        self._recent.append(request.blocks)
        if self.engine.keeps_answers:
            self._last = (request.ids, at_ms)
        return self._predicted(request, shares, at_ms)

    def count(self, body: JsonObject) -> int:
        """The tokens of a request, without sending it."""
        return self._total(self._view(body))

    def answered(self, answer: str | Sequence[int] | JsonObject) -> None:
        """The answer to the last request, which some engines keep behind its prompt.

        As text, as all its token ids, or as a body that holds it alone: {"messages": [answer]}.
        """
        if self._last is None:
            return
        prompt, at_ms = self._last
        ids = self._answer_ids(answer)
        self._unanswered = {key: waiting for key, waiting in self._unanswered.items() if waiting is not prompt}
        self.engine.answered(prompt, ids, at_ms)

    def _answer_ids(self, answer: str | Sequence[int] | JsonObject) -> array[int]:
        if isinstance(answer, str):
            return self._tally.spoken(answer)
        if isinstance(answer, dict):
            return self._tally.row(blocks(answer, self.info.wire))
        # The last token of an answer was never fed back into the model, so it is in no cache.
        return array("i", answer[:-1])

    def _view(self, body: JsonObject) -> EngineView:
        blocks = self._reader.read(body)
        self.newest = blocks
        return EngineView(body, blocks, self._tally, self._prompt_ids)

    def _presume_answers(self, request: EngineView, at_ms: int) -> None:
        """Take what the assistant says behind an earlier prompt as the answer that prompt was given."""
        keys = [b"", *self._keys.along(request.blocks, b"", chained)]
        prompt: array[int] | None = None
        answer = array("i")
        # Blocks that the request before held were looked at then.
        for place in range(leading(self._blocks_before, request.blocks), len(request.blocks)):
            block = request.blocks[place]
            if block.role in ("assistant", "model"):
                if prompt is None:
                    prompt, answer = self._unanswered.pop(keys[place], None), array("i")
                answer.extend(self._tally.ids(block))
            else:
                self._presume(prompt, answer, at_ms)
                prompt = None
        self._presume(prompt, answer, at_ms)
        self._unanswered[keys[-1]] = request.ids
        self._blocks_before = request.blocks

    def _presume(self, prompt: array[int] | None, answer: array[int], at_ms: int) -> None:
        if prompt is not None and answer:
            self.engine.answered(prompt, answer, at_ms - 1)

    def _predicted(self, request: EngineView, shares: Shares, at_ms: int) -> Predicted:
        total = self._total(request)
        written = shares.write_short + shares.write_long
        read = min(shares.read, total)
        usage = Usage(total, read, shares.write_short, shares.write_long)
        return Predicted(
            read=read,
            write_5m=shares.write_short,
            write_1h=shares.write_long,
            plain=total - read - written,
            money=_with_storage(cost(usage, self.info, at_ms), shares.storage_token_hours, self.info, at_ms),
            cause=shares.cause,
            note=shares.note,
            exact=self._exact,
            storage_token_hours=shares.storage_token_hours,
        )

    def _total(self, request: EngineView) -> int:
        if isinstance(self.engine, GeminiCache):
            return len(self.engine.prompt(request.body, request.ids))
        return len(request.ids) if self.engine.by_ids else request.total_counted


def simulate(
    requests: Iterable[tuple[int, JsonObject]],
    target: str | ModelInfo,
    tokenize: Tokenize | None = None,
    prompt_ids: PromptIds | None = None,
    **options: Any,
) -> list[Predicted]:
    """What each of a sequence of (time in ms, request body) reads, writes and costs."""
    simulator = Simulator(target, tokenize, prompt_ids, **options)
    return [simulator.step(at_ms, body) for at_ms, body in requests]


def _engine(info: ModelInfo, options: dict[str, Any]) -> Engine:
    if info.engine == "anthropic":
        options = {"runs_as_one": not info.features.on_bedrock, **options}
    try:
        return _ENGINES[info.engine](info, **options)
    except TypeError as error:
        raise CallError(
            f"the {info.engine} cache of {info.provider} takes no such option: {', '.join(options)}",
            hint="Options belong to engines: slots and memory_tokens to llama.cpp, size to vLLM, page to SGLang.",
        ) from error


def _with_storage(money: Money, token_hours: float, info: ModelInfo, at_ms: int) -> Money:
    if not token_hours:
        return money
    stored = storage(1, token_hours, info, at_ms)
    if money.amount_usd is None or stored.amount_usd is None:
        return msgspec.structs.replace(money, amount_usd=None, known=False, unknown=(*money.unknown, *stored.unknown))
    parts = {**money.parts, **stored.parts}
    return msgspec.structs.replace(money, amount_usd=money.amount_usd + stored.amount_usd, parts=parts)
