"""Predicted against reported, after each reply: an event where they part, with the likely cause.

Counts that rest on an estimated vocabulary are scaled to the reported total first, so that only the cache is
compared and not the counting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal

import msgspec

from quire.providers.gemini_cache import Served
from quire.providers.models import ModelInfo, model_info
from quire.providers.prefix import Section, same_start
from quire.providers.simulate import Block, Predicted, Simulator
from quire.providers.simulate.blocks import continues
from quire.providers.usage import usage
from quire.values import LIBRARY_HEADING, Json, JsonObject, Usage, as_object, value_at

# The first byte in which two requests of a thread part, and the layer it stands in.


class PrefixBreak(msgspec.Struct, frozen=True):
    """Where a request stops being the continuation of the one before: `offset` counts characters of the block's text."""

    section: Section
    layer: str
    path: str
    offset: int


def prefix_break(old: Sequence[Block], new: Sequence[Block]) -> PrefixBreak | None:
    """The first block of `old` that `new` does not repeat in its place; None when it only extends it."""
    for section in ("tools", "system", "messages"):
        before, after = ([block for block in row if block.section == section] for row in (old, new))
        # Messages that only `new` has extend the other request.
        for was, now in zip_longest(before, after if section != "messages" else after[: len(before)]):
            if was is not now and (was is None or now is None or was.data != now.data):
                offset = same_start(was.text, now.text) if was and now else 0
                place: Block = was or now
                return PrefixBreak(section, _layer(old, place, offset), place.path, offset)
    return None


def _layer(row: Sequence[Block], block: Block, offset: int) -> str:
    """Tools, L1 or L2 by the library's heading, the last user message as L5, what stands before it as L4."""
    if block.section == "tools":
        return "tools"
    if block.section == "system":
        library = block.text.find(LIBRARY_HEADING)
        return "L2_PREVIOUS" if 0 <= library <= offset else "L1_SYSTEM"
    user_blocks = [other for other in row if other.role == "user" and other.kind != "tool_result"]
    return "L5_USER" if user_blocks and block in row[row.index(user_blocks[-1]) :] else "L4_STRIP"


Cause = Literal["ttl", "minimum", "marker", "moved", "in-flight", "key", "model", "routing", "first"]

# A difference counts when it is both beyond this share of the prompt and beyond this many tokens.
SHARE = 0.05
TOKENS = 1000


class CacheEvent(msgspec.Struct, frozen=True):
    """A reply that read other than was to be expected."""

    cause: Cause
    note: str
    predicted: int
    reported: int
    # What the request before had left in the cache: the most that could have been read.
    reusable: int
    # Whether the simulation foresaw it: then nothing is wrong with the provider.
    foreseen: bool
    layer: str = ""
    # The provider's own account, as it gave it.
    diagnosis: JsonObject = {}

    def __str__(self) -> str:
        return f"{self.note}: {self.reported:,} tokens came from the cache, {self.predicted:,} were predicted"


class SentRequest(msgspec.Struct, frozen=True):
    """A request as it went out, with what was predicted of it; `before` are the blocks of the thread's request before."""

    at_ms: int
    body: JsonObject
    blocks: Sequence[Block]
    predicted: Predicted
    before: Sequence[Block] | None = None
    before_at_ms: int = 0
    before_total: int = 0


def explain(
    sent: SentRequest, reported: Usage, info: ModelInfo, diagnosis: JsonObject | None = None
) -> CacheEvent | None:
    """The event of a reply, or None where it read what was predicted of it, and all that could be read."""
    if not reported.input_total:
        # An aborted reply reports no usage.
        return None
    predicted, reusable = _scale_prediction(sent, reported)
    unforeseen = _beyond(predicted - reported.cache_read, reported.input_total)
    lost = _beyond(max(0, reusable - reported.cache_read), reported.input_total)
    if not unforeseen and not lost:
        return None
    cause, note, layer = _cause(sent, reported, info, predicted, unforeseen, diagnosis or {})
    return CacheEvent(
        cause=cause,
        note=note,
        predicted=predicted,
        reported=reported.cache_read,
        reusable=reusable,
        foreseen=not unforeseen,
        layer=layer,
        diagnosis=diagnosis or {},
    )


def explain_served(sent: SentRequest, reported: Usage, info: ModelInfo, served: Served) -> CacheEvent | None:
    """The same where an explicit cache stood in for the prefix, or did until it ended.

    What it holds is all that is promised: more is luck, and less is an event.
    """
    share = min(1.0, served.tokens / max(1, sent.predicted.total))
    promised = round(share * reported.input_total)
    if not _beyond(max(0, promised - reported.cache_read), reported.input_total):
        return None
    if served.ended == "dropped":
        # The cache was deleted on purpose, often because the prefix had moved: that it is not read was foreseen.
        event = explain(sent, reported, info)
        cause = {"cause": "routing", "note": served.note} if event and event.cause != "moved" else {}
        return event and msgspec.structs.replace(event, foreseen=True, **cause)
    return CacheEvent(
        cause="ttl" if served.ended == "expired" else "routing",
        note=served.note or "the explicit cache was not read",
        predicted=promised,
        reported=reported.cache_read,
        reusable=promised,
        foreseen=False,
    )


def _scale_prediction(sent: SentRequest, reported: Usage) -> tuple[int, int]:
    """What was predicted to be read and what could be, in the provider's own tokens."""
    counted = sent.predicted.total
    scale = reported.input_total / counted if counted and reported.input_total else 1.0
    reusable = min(sent.before_total, counted) if sent.before is not None else 0
    return round(sent.predicted.read * scale), round(reusable * scale)


def _beyond(difference: int, total: int) -> bool:
    return abs(difference) > TOKENS and abs(difference) > SHARE * total


def _cause(
    sent: SentRequest, reported: Usage, info: ModelInfo, predicted: int, unforeseen: bool, diagnosis: JsonObject
) -> tuple[Cause, str, str]:
    """The likely cause, what speaks for it, and the layer where bytes moved."""
    if unforeseen and reported.cache_read > predicted:
        return _more(sent)
    place = prefix_break(sent.before, sent.blocks) if sent.before is not None else None
    diagnosed = _by_diagnosis(diagnosis, place)
    if diagnosed is not None:
        return diagnosed
    if place is not None:
        return "moved", f"{place.path} moved in {place.layer}, {place.offset:,} characters in", place.layer
    if not unforeseen and (cause := sent.predicted.cause):
        return cause, sent.predicted.note, ""
    return _guess_cause(sent, reported, info)


def _more(sent: SentRequest) -> tuple[Cause, str, str]:
    """More was read than predicted: kept longer than promised, or stored by somebody else."""
    if sent.predicted.cause in ("ttl", "in-flight"):
        return "ttl", "the provider kept it longer than it promises", ""
    if sent.predicted.cause == "minimum":
        return "minimum", "the provider stores shorter prefixes than it says", ""
    return "routing", "another request had stored this prefix", ""


def _guess_cause(sent: SentRequest, reported: Usage, info: ModelInfo) -> tuple[Cause, str, str]:
    """The likely cause where no byte moved and the provider says nothing: expiry, size or routing."""
    gap_s = (sent.at_ms - sent.before_at_ms) // 1000
    lives = [block.ttl_s if block.ttl_s > 0 else info.ttl_s[0] for block in sent.blocks if block.ttl_s and info.ttl_s]
    longest = max(lives, default=info.ttl_s[0] if info.ttl_s else 0)
    # The provider counts a life from its own clock, so a prefix close to its end is taken to have expired.
    if longest and gap_s >= 0.95 * longest:
        return ("ttl", f"{gap_s:,} s passed since the request before, and prefixes are kept for {longest:,} s", "")
    if reported.input_total < info.min_cache_tokens:
        return ("minimum", f"{reported.input_total:,} tokens are under the minimum of {info.min_cache_tokens:,}", "")
    return ("routing", "same bytes, in time, long enough, marked: the provider served it elsewhere or evicted it", "")


# The providers' own words for what changed.
_LAYERS = {
    "tools_changed": "tools",
    "system_changed": "L1_SYSTEM",
    "messages_changed": "L4_STRIP",
    "input_changed": "L4_STRIP",
}
_MOVED = (*_LAYERS, "text_format_changed", "reasoning_effort_changed", "verbosity_changed", "context_compacted")
_TOLD: dict[str, Cause] = {
    "model_changed": "model",
    "prompt_cache_key_changed": "key",
    "service_tier_changed": "routing",
    **dict.fromkeys(_MOVED, "moved"),
}


def _by_diagnosis(diagnosis: JsonObject, place: PrefixBreak | None) -> tuple[Cause, str, str] | None:
    """The provider's account, joined with where our own comparison sees the change."""
    reason = str(diagnosis.get("reason") or diagnosis.get("type") or "")
    if reason not in _TOLD:
        return None
    note = f"the provider says {reason}"
    if place is not None:
        return _TOLD[reason], f"{note}; {place.path} moved, {place.offset:,} characters in", place.layer
    return _TOLD[reason], f"{note}; our bytes did not move", _LAYERS.get(reason, "")


def diagnosis_of(reply: Json) -> JsonObject:
    """The cache diagnosis in a provider's reply, if it gave one."""
    diagnosis = value_at(reply, "diagnostics", "cache_miss_reason") or value_at(reply, "prompt_cache_diagnostics")
    return dict(as_object(diagnosis))


class Watch:
    """One thread's requests at one provider: predicts each, then compares with what the reply reports.

    `frozen`: their messages are not changed in place.
    """

    def __init__(self, target: str | ModelInfo, frozen: bool = False) -> None:
        self.info = model_info(target) if isinstance(target, str) else target
        self.simulator = Simulator(self.info, frozen=frozen)
        # The latest requests; the newest of them that another goes on with is what it is compared with.
        self._recent: deque[SentRequest] = deque(maxlen=8)

    def sent(self, at_ms: int, body: JsonObject) -> Predicted:
        """A request goes out."""
        predicted = self.simulator.step(at_ms, body)
        blocks = self.simulator.newest
        before = next((request for request in reversed(self._recent) if continues(request.blocks, blocks)), None)
        earlier = (before.blocks, before.at_ms, before.predicted.total) if before is not None else ()
        self._recent.append(SentRequest(at_ms, body, blocks, predicted, *earlier))
        return predicted

    def replied(self, reply: Json) -> CacheEvent | None:
        """Its reply came: the provider's JSON, whole."""
        return self.reported(usage(self.info.provider, reply), diagnosis_of(reply))

    def reported(
        self, used: Usage, diagnosis: JsonObject | None = None, served: Served | None = None
    ) -> CacheEvent | None:
        """The same for a reply that was parsed already; `served` is what an explicit cache did for it."""
        if not self._recent:
            return None
        if served is not None:
            return explain_served(self._recent[-1], used, self.info, served)
        return explain(self._recent[-1], used, self.info, diagnosis)
