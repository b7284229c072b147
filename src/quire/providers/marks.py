"""Cache marks for a rendered request: where the provider shall store, and for how long.

Up to four places: the end of tools and system, the epoch's fold (or what the next rebase will let stand of the
thread's opening), the end of the request before this one, and the end. The place of the request before is
marked again so that what it stored is found however much came since. Marks never change the bytes a cache compares.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quire.providers.lives import Lives, Pauses, lives
from quire.providers.models import ModelInfo
from quire.providers.places import Places, Placing
from quire.providers.spots import Path, Spot
from quire.values import Json, JsonObject, Prompt

# Content that may carry OpenAI's breakpoint; assistant output may not.
_OPENAI_MARKABLE = frozenset(
    {"input_text", "input_image", "input_file", "text", "image_url", "input_audio", "file"}
)


def mark(body: JsonObject, prompt: Prompt | None, info: ModelInfo, **how: Any) -> JsonObject:
    """A single body with cache marks; `how` is what `Marker.mark` takes."""
    return Marker(info).mark(body, prompt, **how)


class Marker:
    """Marks one thread's requests for one model, each from where it leaves the one before.

    Of bodies that a `Rendering` wrote, messages that are the very same objects as before are taken to be what they
    were. Other bodies may be changed in place: nothing is kept of them.
    """

    def __init__(self, info: ModelInfo) -> None:
        self.info = info
        self._placing, self._pauses = Placing(info), Pauses()

    def mark(
        self,
        body: JsonObject,
        prompt: Prompt | None,
        *,
        stable: int = 0,
        times: Sequence[int] = (),
        previous_id: str | None = None,
        key: str = "",
    ) -> JsonObject:
        """The body with cache marks; a body that has marks already keeps them.

        `stable` is `Request.stable`, of bodies that a `Rendering` wrote.
        `times` are the moments (ms) at which the thread's requests were made: long pauses ask for the longer life.
        `previous_id` is the id of the reply before, for the provider's own account of what it could not reuse.
        """
        self._pauses.go_on(times)
        marked = self._marked(body, prompt, stable) if self.info.engine in _MARKERS else body
        return self._routed(_diagnosed(marked, self.info, previous_id), key)

    def _marked(self, body: JsonObject, prompt: Prompt | None, stable: int) -> JsonObject:
        places = self._placed(body, prompt, stable)
        row = places.row
        if not row.spots or row.marked or body.get("cache_control") or body.get("prompt_cache_options"):
            return body
        life = lives(self._pauses, self.info, row.sizes)
        return _MARKERS[self.info.engine](body, places, life, self.info)

    def _placed(self, body: JsonObject, prompt: Prompt | None, stable: int) -> Places:
        if not stable:
            return Placing(self.info).places(body, prompt)
        places = self._placing.places(body, prompt, stable)
        if not places.stand_in(body):
            # Even what a rendering wrote was changed in place.
            self._placing = Placing(self.info)
            places = self._placing.places(body, prompt, stable)
        return places

    def _routed(self, body: JsonObject, key: str) -> JsonObject:
        """The key that leads a thread's requests to one cache; where life is free, the longer one after long pauses."""
        out, info = dict(body), self.info
        if key and info.cache.key == "prompt_cache_key":
            out.setdefault("prompt_cache_key", key)
        keeps = info.engine == "openai-steps" and "24h" in info.features.retention
        if keeps and lives(self._pauses, info, (0, 0)).paused:
            out.setdefault("prompt_cache_retention", "24h")
        return out


# One marker per engine: where the marks go is decided, how they are written is the provider's.


def _mark_anthropic(body: JsonObject, places: Places, life: Lives, info: ModelInfo) -> JsonObject:
    """Anthropic's blocks take `cache_control`; Bedrock wants a cache point behind the block."""
    write = _with_point if info.wire == "bedrock" else _with_control
    # Backwards, so that a cache point moves no place that is still to be marked.
    for place in reversed(places.all[-info.max_breakpoints :]):
        # The longer life may not stand behind the shorter one; what lasts stands in front.
        long = life.tail_long or (life.head_long and place in places.lasting)
        body = write(body, places.row.spots[place].path, long)
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
    spots = places.row.spots
    carrying = [spots[place] for place in places.all if _openai_markable(spots[place])]
    explicit = bool(carrying) and carrying[-1] is spots[-1]
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
