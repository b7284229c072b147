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
    Counted,
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
from quire.providers.simulate.engine_caches import BlockCache, RadixCache, SlotCache
from quire.providers.simulate.marked_caches import AnthropicCache, BreakpointCache
from quire.providers.simulate.prefix_caches import GeminiCache, StepCache, UnitCache
from quire.providers.usage import Money, cost, storage
from quire.values import JsonObject, Usage

__all__ = ["Block", "Cause", "Predicted", "Simulator", "blocks", "simulate"]

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
        self._counted = Counted(f"{self.info.provider}:{self.info.model}", tokenize)
        self._tally = TokenTally(self._counted)
        self._reader = Reader(self.info.wire, frozen)
        self._prompt_ids = prompt_ids
        self.engine = _engine(self.info, options)
        self._exact = self._counted.exact or prompt_ids is not None
        # Prompts that no answer is known for yet, by the hash of their blocks.
        self._unanswered: dict[bytes, array[int]] = {}
        self._keys: GrowingValues[Block, bytes] = GrowingValues()
        self._gone_through: list[Block] = []
        self._last: tuple[array[int], int] | None = None
        # The latest requests: one that goes on with none of them, as a question for a title, has lost nothing.
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
            return self._counted.spoken(answer)
        if isinstance(answer, dict):
            return self._counted.row(blocks(answer, self.info.wire))
        # Upon the last id of an answer nothing was computed any more.
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
        # What the request before repeats was gone through then.
        for place in range(leading(self._gone_through, request.blocks), len(request.blocks)):
            block = request.blocks[place]
            if block.role in ("assistant", "model"):
                if prompt is None:
                    prompt, answer = self._unanswered.pop(keys[place], None), array("i")
                answer.extend(self._counted.ids(block))
            else:
                self._presume(prompt, answer, at_ms)
                prompt = None
        self._presume(prompt, answer, at_ms)
        self._unanswered[keys[-1]] = request.ids
        self._gone_through = request.blocks

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
