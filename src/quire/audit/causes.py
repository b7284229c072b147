"""Why a request read less from the cache than the request before it had left there.

The bodies are compared as they were sent, without cache marks. Without bodies, only times, models and sizes tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Literal

import msgspec

from quire.archive.stored_conversations import SentCall
from quire.audit.first_difference import Moved, first_moved, moved_cause, units_before, units_of, where
from quire.providers.models import ModelInfo, model_info
from quire.providers.prefix import Unit, write_value
from quire.providers.usage import cost
from quire.values import JsonObject, Usage, value_at

Confidence = Literal["certain", "likely", "unknown"]
# Who caused a loss. A provider's fault is only ever suspected; a prompt below the minimum is nobody's.
Side = Literal["client", "quire", "ttl", "provider", "unknown", "nobody"]
_SIDES: dict[str, Side] = {"quire": "quire", "ttl": "ttl", "provider": "provider", "unknown": "unknown"}
_SIDES |= {"minimum": "nobody", "retry": "nobody", "first": "nobody"}

# cause -> what it is, and what to change
CAUSES: dict[str, tuple[str, str]] = {
    "clock": ("a date or time stands in the head", "Say the time in the newest message, or not at all."),
    "random-id": ("an id that changes stands in the head", "Leave it out, or send it as metadata."),
    "tools-reordered": ("the same tools came in another order", "Sort the tools once, by name."),
    "tools-changed": ("tools came or went", "Offer all tools from the start; forbid by tool_choice."),
    "key-order": ("the same JSON came with its keys in another order", "Write JSON with sorted keys."),
    "trimmed": ("the oldest messages were dropped", "Cut deep and rarely instead of every turn: quire.fit()."),
    "compaction": ("the history was summed up", "Nothing, if it is rare; else give it more room."),
    "retrieval": ("context stands in front of the history and changes", "Put what was retrieved behind the history."),
    "unpaired": (
        "a call was sent without its result, and mended later",
        "Answer every call before the next request; what was interrupted gets a result that says so.",
    ),
    "edited": ("an earlier message was changed", "Append what is new; leave what was sent as it was."),
    "growing-system": ("the system prompt grows", "Say what is new in a message."),
    "system-changed": ("the system prompt was changed", "Keep it; say what is new in a message."),
    "quire": (
        "Quire changed it on the way",
        "Nothing where a history was cut to fit its budget; else leave out the rule: --without RULE.",
    ),
    "marks-absent": ("no cache mark was set", "Mark the end of the system prompt and the newest message."),
    "marks-moved": (
        "no cache mark reaches where the request before ended",
        "Mark the newest message too, and the one that was the newest before.",
    ),
    "minimum": ("the prompt is below the smallest that is cached", "Nothing: once it is longer, it is cached."),
    "ttl": ("the cache had expired", "Ask sooner, or mark with the longer life where pauses are long."),
    "model": ("another model was asked", "Stay with one model; each has a cache of its own."),
    "settings": ("thinking, effort or another setting was switched", "Choose it once for the conversation."),
    "retry": ("the same request was sent again", "Nothing: one that was aborted may have left no cache."),
    "first": ("the first request of a conversation", "Nothing."),
    "provider": ("the bytes are the same, in time and marked", "Nothing; give a cache key where there is one."),
    "unknown": ("no reason is seen", "Keep the requests' bodies to learn more."),
}


class Verdict(msgspec.Struct, frozen=True):
    """What a request did not read from the cache, and why; `path` and `offset` are the first byte that differs.

    `lost` is 0 where nothing could be read: below the provider's smallest cached prompt.
    """

    cause: str
    confidence: Confidence
    lost: int
    usd: float | None
    source: str
    path: str = ""
    offset: int = 0
    note: str = ""
    # The name of the program whose log this is: its settings may help.
    store: str = ""

    @property
    def what(self) -> str:
        return CAUSES[self.cause][0]

    @property
    def fix(self) -> str:
        return CAUSES[self.cause][1]

    @property
    def side(self) -> Side:
        """Who caused it, as far as the requests show."""
        return _SIDES.get(self.cause, "client")


# Fewer tokens than this, or than this share of a prompt, are no loss: providers cache in steps.
_TOKENS, _SHARE = 1024, 0.05
# The smallest loss at a server that caches to the token.
_FEWEST = 64
# The units of the earlier and of the later request.
Units = tuple[Sequence[Unit], Sequence[Unit]]
# (cause, confidence, first difference, note)
Blamed = tuple[str, Confidence, Moved | None, str]


class _Successors(msgspec.Struct, frozen=True):
    """Two successive requests of a conversation; `size` counts the tokens of a unit."""

    before: SentCall
    now: SentCall
    usage_before: Usage
    usage: Usage
    old: Sequence[Unit]
    new: Sequence[Unit]
    size: Callable[[Unit], int]
    info: ModelInfo

    def tokens(self, units: Iterable[Unit]) -> int:
        return sum(map(self.size, units))

    @property
    def tokens_left(self) -> int:
        """How many tokens the earlier request read from the cache or wrote."""
        used = self.usage_before
        return used.cache_read + used.cache_write_5m + used.cache_write_1h

    @property
    def needs_marks(self) -> bool:
        return bool(self.info.max_breakpoints) and self.info.engine == "anthropic"

    def was_read(self, tokens: int) -> bool:
        """Whether about `tokens` were read from the cache; roughly, since units are counted by another vocabulary."""
        return self.usage.cache_read >= 0.6 * tokens - _TOKENS


def verdict(before: SentCall, now: SentCall, units: Units, size: Callable[[Unit], int]) -> Verdict | None:
    """Why `now` read less than `before` had left; None where it read all, or its provider reports no cache reads."""
    if now.usage is None or before.usage is None or not now.tells_cache:
        return None
    pair = _Successors(before, now, before.usage, now.usage, *units, size, model_info(now.target))
    could = min(pair.usage_before.input_total, pair.usage.input_total)
    lost = could - pair.usage.cache_read
    # Few tokens are a loss at a server that caches to the token: one that is known to, or was seen to do so.
    to_the_token = pair.info.min_cache_tokens < _FEWEST or _caches_less(pair)
    if lost < max(_FEWEST if to_the_token else _TOKENS, _SHARE * could):
        return None
    cause, confidence, place, note = _cause(pair)
    if place is not None and pair.needs_marks and pair.tokens_left:
        lost = min(lost, pair.tokens_left - pair.usage.cache_read)
    set_by_quire = cause == "settings" and not _changed_settings(before.given or before.body, now.given)
    if (
        now.given
        and cause not in _SIDES
        and (_moved_by_quire(before, now, place, (cause, note)) if place else set_by_quire)
    ):
        cause, note = "quire", f"{CAUSES[cause][0]}{': ' if note else ''}{note}"
    if cause == "minimum":
        lost = 0  # nothing could be read
    return Verdict(
        cause=cause,
        confidence=confidence,
        lost=lost,
        usd=_lost_usd(pair.usage, lost, pair.info, now.at_ms),
        source=now.source,
        path=where(place[0]) if place else "",
        offset=place[2] if place else 0,
        note=note,
        store=now.store,
    )


def _moved_by_quire(before: SentCall, now: SentCall, place: Moved, moved: tuple[str, str]) -> bool:
    """Whether Quire's proxy caused the difference, not the application.

    It did where the application's own requests extend each other, or do not contain what changed. It did not where
    they differ for the same reason.
    """
    old, new = (units_of(call, call.given or None) for call in (before, now))
    own_place = first_moved(old, new)
    if own_place is None:
        return True
    if moved_cause(old, new, own_place) == moved:
        return False
    was, is_now, _ = place
    sent = {unit.hashes for unit in new}
    return was.section != "system" and (was.hashes in sent if is_now is None else is_now.hashes not in sent)


def _caches_less(pair: _Successors) -> bool:
    """Whether the earlier request read fewer tokens than the known minimum: then the minimum is lower."""
    return 0 < pair.usage_before.cache_read < pair.info.min_cache_tokens


def _lost_usd(used: Usage, lost: int, info: ModelInfo, at_ms: int | None) -> float | None:
    """How much less the same reply would have cost with everything read that could be."""
    unwritten = min(lost, used.cache_write_5m)
    better = msgspec.structs.replace(
        used,
        cache_read=used.cache_read + lost,
        cache_write_5m=used.cache_write_5m - unwritten,
        cache_write_1h=max(0, used.cache_write_1h - (lost - unwritten)),
        charged=None,
    )
    paid, less = (cost(use, info, at_ms).amount_usd for use in (msgspec.structs.replace(used, charged=None), better))
    return paid - less if paid is not None and less is not None else None


def _cause(pair: _Successors) -> Blamed:
    before, now = pair.before, pair.now
    if before.model != now.model:
        return "model", "certain", None, f"{before.model}, then {now.model}"
    if not now.body or not before.body:
        return _from_usage(pair)
    if _left_nothing(pair) and not _below_minimum(pair):
        return "marks-absent", "certain", None, "in the request before" if _marks(now.body) else ""
    place = first_moved(pair.old, pair.new)
    if place is None:
        return _same_bytes(pair)
    if _below_minimum(pair):
        return _too_small(pair)
    if pair.needs_marks and 0 < pair.tokens_left < pair.usage.cache_read + _TOKENS:
        # All that was left was read, or as much of another's: the byte that moved lost nothing.
        return "marks-moved", "certain", None, f"the request before left {pair.tokens_left:,} tokens"
    same = list(units_before(pair.old, place))
    if blamed := _unread_mark(pair, same):
        return blamed
    # Everything before the first difference can still be read; where less was read, there is another cause as well.
    explained = pair.was_read(pair.tokens(same))
    cause, note = moved_cause(pair.old, pair.new, place)
    return cause, "certain" if explained else "likely", place, note


def _unread_mark(pair: _Successors, same: Sequence[Unit]) -> Blamed | None:
    """The cause where not even the prefix up to an unchanged cache mark was read: not what changed behind it."""
    marked = [at for at, (was, now) in enumerate(zip(same, pair.new, strict=False)) if was.marked and now.marked]
    tokens = pair.tokens(pair.new[: marked[-1] + 1]) if marked else 0
    if tokens < max(2 * _TOKENS, pair.info.min_cache_tokens) or pair.was_read(tokens):
        return None
    if expiry := _expiry(pair):
        return "ttl", "certain", None, expiry
    return "provider", "likely", None, f"the mark at {where(pair.new[marked[-1]])} should have been read"


# Causes when no byte differs.

_SETTINGS = (
    "thinking", "reasoning", "reasoning_effort", "output_config", "tool_choice", "text", "verbosity", "speed",
    "additionalModelRequestFields", "generationConfig.thinkingConfig", "generationConfig.responseSchema",
    "toolConfig.toolChoice", "toolConfig.functionCallingConfig",
)  # fmt: skip


def _changed_settings(before: JsonObject, now: JsonObject) -> list[str]:
    return [name for name in _SETTINGS if value_at(before, *name.split(".")) != value_at(now, *name.split("."))]


def _same_bytes(pair: _Successors) -> Blamed:
    before, now = pair.before, pair.now
    if changed := _changed_settings(before.body, now.body):
        return "settings", "likely", None, ", ".join(changed)
    if _below_minimum(pair):
        return _too_small(pair)
    if expiry := _expiry(pair):
        return "ttl", "certain", None, expiry
    if write_value(before.body) == write_value(now.body):
        return "retry", "likely", None, ""
    if pair.needs_marks:
        if not _marks(now.body):
            return "marks-absent", "certain", None, ""
        reached = _last_reached(pair.old, pair.new)
        if reached + 1 < len(pair.old) and pair.was_read(pair.tokens(pair.old[: reached + 1])):
            last = f"the last that could be read is at {where(pair.old[reached])}" if reached >= 0 else ""
            return "marks-moved", "certain", None, last or "none could be read"
    return "provider", "likely", None, ""


def _left_nothing(pair: _Successors) -> bool:
    """Whether the earlier request wrote no cache because it has no mark: then there was nothing to lose."""
    return pair.needs_marks and not pair.tokens_left and not _marks(pair.before.body)


def _below_minimum(pair: _Successors) -> bool:
    """Whether one of the two requests was too small to be cached, or to read from the cache."""
    smaller = min(pair.usage_before.input_total, pair.usage.input_total)
    return smaller < pair.info.min_cache_tokens and not _caches_less(pair)


def _too_small(pair: _Successors) -> Blamed:
    return "minimum", "certain", None, f"cached from {pair.info.min_cache_tokens:,} tokens on"


# From a mark the provider looks back this many blocks for a cached prefix.
_LOOKBACK = 20


def _last_reached(old: Sequence[Unit], new: Sequence[Unit]) -> int:
    """The index of the last marked unit of `old` that a mark of `new` can find; -1 where there is none."""
    ends = list(accumulate(max(1, len(unit.parts)) for unit in new))
    marks = [at for at, unit in enumerate(new) if unit.marked]
    marked = (at for at, unit in enumerate(old) if unit.marked)
    reached = (at for at in marked if any(at <= mark and ends[mark] - ends[at] <= _LOOKBACK for mark in marks))
    return max(reached, default=-1)


def _from_usage(pair: _Successors) -> Blamed:
    before, now = pair.usage_before.input_total, pair.usage.input_total
    if pair.now.compacted:
        return "compaction", "certain", None, "the client says so"
    if expiry := _expiry(pair):
        return "ttl", "likely", None, expiry
    if now < 0.6 * before:
        return "compaction", "likely", None, f"{before:,} tokens became {now:,}"
    if _below_minimum(pair):
        return _too_small(pair)
    return "unknown", "unknown", None, ""


def _expiry(pair: _Successors) -> str:
    """A sentence where the cached prefix had expired, else ''.

    The cache life is the one that the reply reports, which may be shorter than what was asked for, else that of the
    marks.
    """
    lives, then, now = pair.info.ttl_s, pair.before.at_ms, pair.now.at_ms
    if then is None or now is None or not lives:
        return ""
    asks_longer = b'"ttl":"1h"' in write_value(pair.before.body)
    reported = bool(pair.usage_before.cache_write_5m + pair.usage_before.cache_write_1h)
    longer = bool(pair.usage_before.cache_write_1h) if reported else asks_longer
    life_s = max(lives) if longer else min(lives)
    gap = (now - then) // 1000
    if not life_s or gap < 0.95 * life_s:
        return ""
    wish = " (an hour was asked for)" if life_s < max(lives) and asks_longer else ""
    return f"{gap:,} s after the request before; kept for {life_s:,} s{wish}"


def _marks(body: JsonObject) -> int:
    data = write_value(body)
    return data.count(b'"cache_control":{') + data.count(b'"cachePoint":{')


# Comparing with a provider's own cache diagnostics.

# Anthropic reports no diagnosis where nothing differs; this stands for that.
NOTHING_CHANGED: JsonObject = {"type": "nothing_changed"}

# For each of the provider's reasons: whether Quire's verdict means the same.
_SAME_WORDS: dict[str, Callable[[Verdict], bool]] = {
    "model_changed": lambda lost: lost.cause == "model",
    "tools_changed": lambda lost: lost.path.startswith("tools"),
    "system_changed": lambda lost: lost.path.startswith("system"),
    "messages_changed": lambda lost: lost.path.startswith("messages") or lost.cause == "settings",
    "input_changed": lambda lost: lost.path.startswith(("input", "system")),
    "context_compacted": lambda lost: lost.cause in ("compaction", "trimmed"),
}


def agrees(reason: str, diagnosis: JsonObject, lost: Verdict | None) -> bool:
    """Whether the provider's diagnosis and Quire's verdict agree; where nothing differs, expiry or chance may be left."""
    if reason in ("cache_hit", NOTHING_CHANGED["type"]):
        return lost is None or lost.side in ("ttl", "provider") or lost.cause.startswith("marks")
    if lost is None:
        # Below what Quire calls a loss.
        missed = diagnosis.get("cache_missed_input_tokens") or diagnosis.get("cache_missed_tokens") or 0
        return isinstance(missed, int) and missed < 1_024
    same = _SAME_WORDS.get(reason)
    return same(lost) if same is not None else lost.cause == "settings"
