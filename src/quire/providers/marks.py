"""Cache marks for a rendered request: where the provider shall store, and for how long.

Up to four places: the end of tools and system, the epoch's fold (or what the next rebase will let stand of the
thread's opening), the end of the request before this one, and the end. The place of the request before is
marked again so that what it stored is found however much came since. Marks never change the bytes a cache compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from quire.providers.lives import Lives, lives
from quire.providers.models import ModelInfo
from quire.providers.prefix import MARKS
from quire.providers.simulate.said import said
from quire.providers.spots import Path, Spot, before_user, sizes, spots, turns
from quire.tokens import counter
from quire.values import Call, Json, JsonObject, Message, Prompt, Text

# Content that may carry OpenAI's breakpoint; assistant output may not.
_OPENAI_MARKABLE = frozenset(
    {"input_text", "input_image", "input_file", "text", "image_url", "input_audio", "file"}
)


def mark(
    body: JsonObject,
    prompt: Prompt | None,
    info: ModelInfo,
    *,
    times: Sequence[int] = (),
    previous_id: str | None = None,
    key: str = "",
) -> JsonObject:
    """The body with cache marks; a body that has marks already keeps them.

    `times` are the moments (ms) at which the thread's requests were made: long pauses ask for the longer life.
    `previous_id` is the id of the reply before, for the provider's own account of what it could not reuse.
    """
    marked = body
    row = spots(body, info.wire) if info.engine in _MARKERS else []
    if row and not _has_marks(body, row):
        life = lives(times, info, sizes(row)) if len(times) > 1 else Lives()
        marked = _MARKERS[info.engine](body, _places(row, prompt, info), life, info)
    return _routed(_diagnosed(marked, info, previous_id), info, key, times)


class Places(msgspec.Struct, frozen=True):
    """Where marks go, as places in the row: `lasting` is written once an epoch, `moving` by every request."""

    row: list[Spot]
    lasting: tuple[int, ...]
    moving: tuple[int, ...]

    @property
    def all(self) -> list[int]:
        """Each place once, in the order the provider compares them."""
        return sorted({*self.lasting, *self.moving})


def _places(row: list[Spot], prompt: Prompt | None, info: ModelInfo) -> Places:
    """End of tools and system, opening or fold; end of the request before, end: those long enough to be stored."""
    enough = _enough(row, info)
    head = sum(spot.side == "head" for spot in row) - 1
    lasting = [_settled(row, place) for place in (head, _lasting(row, prompt))]
    moving = [_settled(row, place) for place in (_stable(row, prompt), len(row) - 1)]
    return Places(
        row,
        tuple(place for place in lasting if place >= enough),
        tuple(place for place in moving if place >= enough),
    )


def _settled(row: list[Spot], place: int) -> int:
    """The place itself, or the nearest one before it that may carry a mark; -1 where there is none."""
    return next((one for one in range(place, -1, -1) if row[one].markable), -1)


def _enough(row: list[Spot], info: ModelInfo) -> int:
    """The first spot behind which a prefix is long enough to be stored."""
    count, total = counter(f"{info.provider}:{info.model}").count, 0
    for index, spot in enumerate(row):
        text, extra = said(spot.block) if isinstance(spot.block, dict) else (str(spot.block), 0)
        # More than the minimum need not be known.
        total += extra + count(text[: info.min_cache_tokens * 16])
        if total >= info.min_cache_tokens:
            return index
    return len(row)


def _lasting(row: list[Spot], prompt: Prompt | None) -> int:
    """The spot whose prefix the next rebase lets stand; without an opening, the epoch's own fold."""
    if prompt is None:
        return -1
    ends, asked = turns(row), _runs(prompt.messages[: prompt.opening])
    # Where the model was last asked in the opening: what follows its end may be merged into one message with it.
    return ends[asked - 1] if 0 < asked <= len(ends) else _fold(row, prompt)


def _fold(row: list[Spot], prompt: Prompt) -> int:
    """The spot where the epoch's first request ended, or ends."""
    if not prompt.fold:
        return -1
    if prompt.fold >= len(prompt.messages):
        return len(row) - 1
    ends, spoken = turns(row), _runs(prompt.messages[: prompt.fold])
    return ends[spoken] if spoken < len(ends) else -1


def _stable(row: list[Spot], prompt: Prompt | None) -> int:
    """The spot where the request before this one ended; counted from the end, where the two differ least."""
    ends = turns(row)
    if prompt is None:
        return ends[-1] if ends else -1
    since = prompt.messages[prompt.stable :]
    spoken = _runs(since)
    if not prompt.stable or spoken > len(ends):
        return -1
    if spoken:
        return ends[-spoken]
    # The model's last word was empty or broken off, and is not sent: only the user spoke since.
    return before_user(row, sum(message.role == "user" for message in since))


def _runs(messages: Sequence[Message]) -> int:
    """How often the model speaks; what says nothing is not sent."""
    spoken = [_speaks(message) for message in messages if message.role != "assistant" or _speaks(message)]
    return sum(now and not before for before, now in zip([False, *spoken], spoken, strict=False))


def _speaks(message: Message) -> bool:
    return message.role == "assistant" and any(
        isinstance(part, Call) or (isinstance(part, Text) and part.text.strip()) for part in message.parts
    )


def _has_marks(body: JsonObject, row: list[Spot]) -> bool:
    """Whether somebody marked this body already; what arguments and schemas call their fields is their business."""
    if body.get("cache_control") or body.get("prompt_cache_options"):
        return True
    return any(_is_marked(spot.block) for spot in row)


def _is_marked(block: Json) -> bool:
    if not isinstance(block, dict):
        return False
    inner = block.get("content")
    return (
        not MARKS.isdisjoint(block)
        or "cachePoint" in block
        or (isinstance(inner, list) and any(map(_is_marked, inner)))
    )


# One marker per engine: where the marks go is decided, how they are written is the provider's.


def _mark_anthropic(body: JsonObject, places: Places, life: Lives, info: ModelInfo) -> JsonObject:
    """Anthropic's blocks take `cache_control`; Bedrock wants a cache point behind the block."""
    write = _with_point if info.wire == "bedrock" else _with_control
    # Backwards, so that a cache point moves no place that is still to be marked.
    for place in reversed(places.all[-info.max_breakpoints :]):
        # The longer life may not stand behind the shorter one; what lasts stands in front.
        long = life.tail_long or (life.head_long and place in places.lasting)
        body = write(body, places.row[place].path, long)
    return body


def _with_control(body: JsonObject, path: Path, long: bool) -> JsonObject:
    control: JsonObject = {"type": "ephemeral", "ttl": "1h"} if long else {"type": "ephemeral"}
    return _changed_body(body, path, lambda block: {**block, "cache_control": control})


def _with_point(body: JsonObject, path: Path, long: bool) -> JsonObject:
    point: JsonObject = {"type": "default", "ttl": "1h"} if long else {"type": "default"}
    *outer, index = path
    assert isinstance(index, int)
    behind = index + 1
    return _changed_body(
        body, tuple(outer), lambda blocks: [*blocks[:behind], {"cachePoint": point}, *blocks[behind:]]
    )


def _mark_openai(body: JsonObject, places: Places, life: Lives, info: ModelInfo) -> JsonObject:
    """Breakpoints on input blocks; where the end cannot carry one, OpenAI's own implicit one stays on."""
    carrying = [places.row[place] for place in places.all if _openai_markable(places.row[place])]
    explicit = bool(carrying) and carrying[-1] is places.row[-1]
    most = info.max_breakpoints if explicit else info.max_breakpoints - 1
    for spot in carrying[-most:]:
        body = _changed_body(body, spot.path, _with_breakpoint)
    return {**body, "prompt_cache_options": {"mode": "explicit" if explicit else "implicit", "ttl": "30m"}}


def _with_breakpoint(block: JsonObject) -> JsonObject:
    return {**block, "prompt_cache_breakpoint": {"mode": "explicit"}}


def _openai_markable(spot: Spot) -> bool:
    return (
        spot.side != "speaking"
        and isinstance(spot.block, dict)
        and spot.block.get("type") in _OPENAI_MARKABLE
    )


_MARKERS: dict[str, Callable[[JsonObject, Places, Lives, ModelInfo], JsonObject]] = {
    "anthropic": _mark_anthropic,
    "openai-breakpoints": _mark_openai,
}


def _changed_body(body: JsonObject, path: Path, change: Callable[[Json], Json]) -> JsonObject:
    """The body with one place in it changed; everything off the path is shared, nothing is mutated."""
    changed: JsonObject = _changed(body, path, change)
    return changed


def _changed(value: Json, path: Path, change: Callable[[Json], Json]) -> Json:
    if not path:
        return change(value)
    step, *rest = path
    inner = _changed(value[step], tuple(rest), change)
    if isinstance(step, int):
        return [*value[:step], inner, *value[step + 1 :]]
    return {**value, step: inner}


def _diagnosed(body: JsonObject, info: ModelInfo, previous_id: str | None) -> JsonObject:
    """Ask the provider to say why it could not reuse more, compared with the reply before."""
    if not info.features.diagnostics or not (body.get("messages") or body.get("input")):
        return body
    if info.wire == "anthropic" and "diagnostics" not in body:
        return {**body, "diagnostics": {"previous_message_id": previous_id}}
    if info.wire == "openai-responses" and previous_id:
        options = {**(body.get("prompt_cache_options") or {}), "comparison_response_id": previous_id}
        return {**body, "prompt_cache_options": options}
    return body


def _routed(body: JsonObject, info: ModelInfo, key: str, times: Sequence[int]) -> JsonObject:
    """The key that leads a thread's requests to one cache; where life is free, the longer one after long pauses."""
    out = dict(body)
    if key and info.cache.key == "prompt_cache_key":
        out.setdefault("prompt_cache_key", key)
    if (
        info.engine == "openai-steps"
        and "24h" in info.features.retention
        and lives(times, info, (0, 0)).paused
    ):
        out.setdefault("prompt_cache_retention", "24h")
    return out
