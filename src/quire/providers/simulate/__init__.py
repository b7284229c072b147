"""Prompt caches, simulated: what a sequence of requests reads, writes and costs at each provider and engine.

The caches that are written at marks stand here, those that match token ids in `engine_caches`.
"""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice, takewhile
from operator import attrgetter
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
    Shelf,
    Tokenize,
    TokenTally,
    blocks,
    chain_hash,
    continues,
    mark_places,
)
from quire.providers.simulate.engine_caches import BlockCache, GeminiCache, RadixCache, SlotCache, StepCache, UnitCache
from quire.providers.usage import Money, cost
from quire.values import JsonObject, Usage, canonical

__all__ = ["Block", "Cause", "Predicted", "Simulator", "blocks", "simulate"]

# Caches that are written at marks only: a request reads the longest stored prefix that its marks reach, and stores what
# they ask for. Answers are not stored: they are written when the next request marks them.


class MarkedRow(msgspec.Struct, frozen=True):
    """One request as such a cache takes it: at each block, the tokens up to its end and the running hash."""

    blocks: Sequence[Block]
    ends: list[int]
    hashes: list[bytes]
    # The places where a stored prefix is looked for, the longest first; those to be stored, each with its life in ms.
    reach: Iterable[int]
    writes: dict[int, int]
    # Why nothing of this request can be in the cache, where its own marks are the cause.
    cause: tuple[Cause, str] = ("", "")


class MarkedCache(Engine):
    """One workspace's or project's cache."""

    def __init__(self, info: ModelInfo) -> None:
        self._info = info
        self._shelf = Shelf()
        self._hashes: GrowingValues[Block, bytes] = GrowingValues()

    @abstractmethod
    def _row(self, request: EngineView) -> MarkedRow:
        """What the request's marks reach and store."""

    def look(self, at_ms: int, request: EngineView, began_ms: int | None = None) -> Shares:
        """Find the longest stored prefix, then store what the marks ask for."""
        row = self._row(request)
        hit = next((place for place in row.reach if self._shelf.readable(row.hashes[place], at_ms)), None)
        cause, note = self._why(row, hit, at_ms)
        # A prefix that is read starts its own life again.
        for place, life_ms in [*([(hit, 0)] if hit is not None else []), *row.writes.items()]:
            self._shelf.keep(row.hashes[place], life_ms, at_ms, began_ms)
        self._shelf.remember(row.hashes)
        return self._shares(row, hit, cause, note)

    def _shares(self, row: MarkedRow, hit: int | None, cause: Cause, note: str) -> Shares:
        """Read up to the hit (A), the longer life up to its last mark (B), the shorter one up to the last (C)."""
        a = row.ends[hit] if hit is not None else 0
        short_life = self._info.cache.ttl_s[0] * 1000
        b = max([a, *(row.ends[place] for place, life_ms in row.writes.items() if life_ms > short_life)])
        c = max([b, *(row.ends[place] for place in row.writes)])
        return Shares(a, c - b, b - a, cause, note)

    def _why(self, row: MarkedRow, hit: int | None, at_ms: int) -> tuple[Cause, str]:
        if self._shelf.untouched:
            return "first", "nothing was stored before this request"
        return row.cause if row.cause[0] else self._shelf.why(row.hashes, row.blocks, hit, at_ms)


# Anthropic's cache, and Bedrock's: found by walking back from the marks. Entries are keyed by a running hash over tools,
# system and messages; settings that invalidate a level are hashed where that level begins.

# Server tools that change the system prompt, so that only the cache of the tools in front of it is still read.
_WEB = ("web_search", "web_fetch")
_UNMARKABLE = frozenset({"thinking", "redacted_thinking"})
# Runs of these count as one place where the walk back is concerned.
_RUNS = frozenset({"tool_use", "tool_result"})
# From these versions on, earlier thinking stays in the prompt when the user speaks again.
_KEEPS_THINKING = {"opus": (4, 5), "sonnet": (4, 6), "haiku": (5, 5)}
_VERSION = re.compile(r"claude-(opus|sonnet|haiku)-(\d+)-?(\d+)?(?!\d)")


class AnthropicCache(MarkedCache):
    """Looks back from each mark, the last one first, over so many blocks."""

    def _row(self, request: EngineView) -> MarkedRow:
        """The request's blocks; their hashes go on from where they part with those of the one before."""
        info, least = self._info, self._info.min_cache_tokens
        blocks = _prompt_blocks(request.blocks, info)
        ends = list(accumulate(map(request.count, blocks)))
        lives = _lives(blocks, request.body)
        # A mark before the minimum is passed over in silence.
        marks = [place for place in sorted(lives) if ends[place] >= least]
        cause: tuple[Cause, str] = ("", "")
        if not lives and (not ends or ends[-1] >= least):
            cause = "marker", "no block carries a mark"
        elif not marks:
            cause = "minimum", f"no mark stands behind {least:,} tokens"
        reach = (place for mark in reversed(marks) for place in self._back_from(mark, blocks))
        writes = {place: (lives[place] if lives[place] > 0 else info.cache.ttl_s[0]) * 1000 for place in marks}
        return MarkedRow(blocks, ends, _hashes(self._hashes, blocks, request.body, info), reach, writes, cause)

    def _back_from(self, mark: int, blocks: Sequence[Block]) -> Iterator[int]:
        """The blocks a walk back from a mark looks at, the mark's own first; a run of tool blocks is one step."""
        # The Claude API counts a run of tool blocks once, Bedrock each of them.
        runs = _RUNS if not self._info.features.on_bedrock else ()
        steps, lookback = 0, self._info.cache.lookback
        for place in range(mark, -1, -1):
            kind = blocks[place].kind
            steps += place < mark and not (kind in runs and kind == blocks[place + 1].kind)
            if steps >= lookback:
                return
            yield place


def _prompt_blocks(blocks: list[Block], info: ModelInfo) -> list[Block]:
    """The blocks that are in the prompt: older models forget thinking once the user says something new."""
    if _keeps_thinking(info.model):
        return blocks
    user_places = [place for place, block in enumerate(blocks) if block.role == "user" and block.kind != "tool_result"]
    spoken = user_places[-1] if user_places else -1
    return [block for place, block in enumerate(blocks) if place > spoken or block.kind not in _UNMARKABLE]


def _keeps_thinking(model: str) -> bool:
    version = _VERSION.search(model)
    if version is None:
        return True
    return (int(version[2]), int(version[3] or 0)) >= _KEEPS_THINKING[version[1]]


def _hashes(
    running: GrowingValues[Block, bytes], blocks: list[Block], body: JsonObject, info: ModelInfo
) -> list[bytes]:
    """The running hash at each block; a level's settings, and those of the levels before it, go into its blocks'."""
    system = _system_settings(blocks, body)
    settings = {"tools": b"", "system": system, "messages": system + _message_settings(blocks, body, info)}

    def step(before: bytes, block: Block) -> bytes:
        if _is_web(block):
            return before
        return hashlib.sha256(before + settings[block.section] + block.digest).digest()

    return running.along(blocks, hashlib.sha256(info.model.encode()).digest(), step, ground=settings)


def _is_web(block: Block) -> bool:
    return block.section == "tools" and block.kind.startswith(_WEB)


def _system_settings(blocks: list[Block], body: JsonObject) -> bytes:
    """What breaks the cache from the system prompt on: web tools, citations, speed."""
    tools = takewhile(lambda block: block.section == "tools", blocks)
    web = [block.data.decode() for block in tools if _is_web(block)]
    citations = any(map(attrgetter("cites"), blocks))
    return canonical([sorted(web), citations, body.get("speed") or "standard"])


def _message_settings(blocks: list[Block], body: JsonObject, info: ModelInfo) -> bytes:
    """What breaks the cache from the messages on: tool choice, images at all, thinking and effort."""
    choice = body.get("tool_choice")
    images = any(map(attrgetter("pictures"), blocks))
    thinking = body.get("thinking") or {}
    usual = "disabled" if "disabled" in info.features.thinking else "adaptive"
    effort = (body.get("output_config") or {}).get("effort") or "high"
    chosen = None if choice == {"type": "auto"} else choice
    return canonical([chosen, images, thinking.get("type") or usual, thinking.get("budget_tokens"), effort])


def _lives(blocks: list[Block], body: JsonObject) -> dict[int, int]:
    """Marked places and the lives they ask for; a mark on the request itself sits on the last block that may have one."""
    lives = {place: blocks[place].ttl_s for place in mark_places(blocks) if markable(blocks[place])}
    auto = body.get("cache_control")
    if auto:
        last = next((place for place in range(len(blocks) - 1, -1, -1) if markable(blocks[place])), None)
        if last is not None:
            lives.setdefault(last, 3600 if auto.get("ttl") == "1h" else -1)
    return lives


def markable(block: Block) -> bool:
    """Whether a block may carry a mark: thinking and empty text may not."""
    return block.kind not in _UNMARKABLE and not (block.kind == "text" and not block.text)


# OpenAI's cache from GPT-5.6 on: exact prefixes at breakpoints, and `prompt_cache_key` is part of the match.


class BreakpointCache(MarkedCache):
    """Up to four writes a request, read at any of the latest breakpoints; assistant output takes none."""

    def _row(self, request: EngineView) -> MarkedRow:
        """Read at the latest breakpoint that is stored, write the latest ones."""
        info, least, most = self._info, self._info.min_cache_tokens, self._info.max_breakpoints
        implicit = _options(request).get("mode", "implicit") != "explicit"
        start = _settings(request.body, info.model)
        hashes = self._hashes.along(request.blocks, start, chain_hash, ground=start)
        breakpoints = list(mark_places(request.blocks))
        marks = [place for place in breakpoints if request.ends[place] >= least]
        asks = list(self._implicit_marks(request)) if implicit else []
        places = sorted({*marks, *asks})[-info.cache.lookback :]
        # The latest marks; unless they are off, one implicit breakpoint at the latest message that asks.
        writes = sorted({*marks[-(most - 1) :], *asks[:1]}) if implicit else marks[-most:]
        short, *longer = info.cache.ttl_s
        life_s = longer[0] if longer and _options(request).get("ttl") == "12h" else short
        cause: tuple[Cause, str] = ("", "")
        if not places and not implicit and not breakpoints:
            cause = "marker", "explicit mode without a breakpoint uses no cache"
        elif not places:
            cause = "minimum", f"no breakpoint stands behind {least:,} tokens"
        lives = dict.fromkeys(writes, life_s * 1000)
        return MarkedRow(request.blocks, request.ends, hashes, reversed(places), lives, cause)

    def _implicit_marks(self, request: EngineView) -> Iterator[int]:
        """Implicit breakpoints, the latest first: ends of what the user or a tool says, as many as are looked at."""
        back = range(len(request.blocks) - 1, -1, -1)
        long = takewhile(lambda place: request.ends[place] >= self._info.min_cache_tokens, back)
        asks = (
            place for place in long if request.blocks[place].closes and request.blocks[place].role in ("user", "tool")
        )
        return islice(asks, self._info.cache.lookback)


def _options(request: EngineView) -> JsonObject:
    options: JsonObject = request.setting("prompt_cache_options") or {}
    return options


def _settings(body: JsonObject, model: str) -> bytes:
    """What stands in front of the first block's hash: whatever OpenAI's diagnostics name as a change."""
    settings = [
        model,
        body.get("prompt_cache_key"),
        (body.get("reasoning") or {}).get("effort") or body.get("reasoning_effort"),
        (body.get("text") or {}).get("verbosity") or body.get("verbosity"),
        body.get("service_tier") or "auto",
    ]
    return hashlib.sha256(canonical(settings)).digest()


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
    """One cache, request after request; `options` are the engine's own (slots, memory_tokens, size, page).

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
        return self._prediction(request, shares, at_ms)

    def count(self, body: JsonObject) -> int:
        """The tokens of a request, without sending it."""
        return self.engine.total(self._view(body))

    def answered(self, answer: str | Sequence[int] | JsonObject) -> None:
        """The answer to the last request, which some engines keep behind its prompt.

        As text, as all its token ids, or as a body that holds it alone: {"messages": [answer]}.
        """
        if self._last is None:
            return
        prompt, at_ms = self._last
        ids = self._answer_ids(answer)
        self._unanswered = {key: waiting for key, waiting in self._unanswered.items() if waiting is not prompt}
        self.engine.take_answer(prompt, ids, at_ms)

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
        keys = [b"", *self._keys.along(request.blocks, b"", chain_hash)]
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
            self.engine.take_answer(prompt, answer, at_ms - 1)

    def _prediction(self, request: EngineView, shares: Shares, at_ms: int) -> Predicted:
        total = self.engine.total(request)
        written = shares.write_short + shares.write_long
        read = min(shares.read, total)
        usage = Usage(total, read, shares.write_short, shares.write_long)
        return Predicted(
            read=read,
            write_5m=shares.write_short,
            write_1h=shares.write_long,
            plain=total - read - written,
            money=cost(usage, self.info, at_ms, shares.storage_token_hours),
            cause=shares.cause,
            note=shares.note,
            exact=self._exact,
            storage_token_hours=shares.storage_token_hours,
        )


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
    try:
        return _ENGINES[info.engine](info, **options)
    except TypeError as error:
        raise CallError(
            f"the {info.engine} cache of {info.provider} takes no such option: {', '.join(options)}",
            hint="Options belong to engines: slots and memory_tokens to llama.cpp, size to vLLM, page to SGLang.",
        ) from error
