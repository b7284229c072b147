"""Cache marks for a rendered request: where the provider shall store, and for how long.

Up to four places: the end of tools and system, the end of the epoch's first request (or of the thread's opening,
which the next rebase keeps), the end of the request before this one, and the end of this one. The end of the request
before is marked again so that the prefix it stored is found, however much was added since. Marks never change the
bytes a cache compares.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import chain, pairwise
from operator import getitem
from typing import Any, Literal, NamedTuple

import msgspec

from quire.providers.models import ModelInfo, data
from quire.providers.prefix import GrowingValues, Path, Unit, Walk, changed_body, size_of
from quire.providers.wires import wire_of
from quire.tokens import countable, counter
from quire.values import Call, Json, JsonObject, Message, Prompt, Request, Text

# Which life to buy for stored prefixes: the short one, or the longer and dearer one, judged by past pauses.


class CacheLives(msgspec.Struct, frozen=True):
    """Whether the head, and the tail, of a prompt shall be stored for the longer life."""

    head_long: bool = False
    tail_long: bool = False


class Pauses:
    """The pauses between a thread's requests, by length; a thread that goes on adds only its new ones."""

    def __init__(self, times: Sequence[int] = ()) -> None:
        # The moments that the pauses lie between, as long as they came in order.
        self._moments: list[int] = []
        self._lengths: list[int] = []
        self.go_on(times)

    def go_on(self, times: Sequence[int]) -> None:
        """All moments (ms) at which requests were made, those known already included."""
        count, moments = len(self._moments), list(times)
        new = moments[count - 1 :] if count and moments[:count] == self._moments else moments
        if len(new) < len(moments) and new == sorted(new):
            for pause in _gaps(new):
                insort(self._lengths, pause)
            self._moments = moments
            return
        ordered = sorted(moments)
        self._lengths = sorted(_gaps(ordered))
        self._moments = moments if moments == ordered else []

    def between(self, least_ms: int, most_ms: int) -> int:
        """How many pauses are at least as long as the one, and shorter than the other."""
        return bisect_left(self._lengths, most_ms) - bisect_left(self._lengths, least_ms)

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def longest_ms(self) -> int:
        return self._lengths[-1] if self._lengths else 0


def _gaps(times: list[int]) -> Iterator[int]:
    return (later - earlier for earlier, later in pairwise(times))


def lives(pauses: Pauses, info: ModelInfo, sizes: tuple[int, int]) -> CacheLives:
    """Compare what past pauses would have cost with the short life to what the longer one costs more.

    `sizes` are the prompt's and the newest turn's, in any one unit. The head is written once: a single pause
    that the longer life outlasts repays it. The tail is written by every request, so pauses must be frequent.
    """
    if len(info.ttl_s) < 2 or info.w_long is None:
        return CacheLives()
    short_ms, long_ms = info.ttl_s[0] * 1000, info.ttl_s[1] * 1000
    bridged = pauses.between(short_ms, long_ms)
    saved, dearer = info.w - info.r, info.w_long - info.w
    whole, new = sizes
    return CacheLives(
        head_long=bridged * saved > dearer, tail_long=bridged * saved * whole > len(pauses) * dearer * max(1, new)
    )


# A body as blocks that may carry a mark. Only the shape is looked at: nothing is hashed or counted.

Side = Literal["head", "asking", "speaking"]


class BodyBlock(msgspec.Struct, frozen=True):
    """One block of a body: who speaks there, and whether it may carry a mark."""

    path: Path
    side: Side
    markable: bool
    value: JsonObject


class MarkRow(msgspec.Struct, frozen=True):
    """The blocks of a body in the order its provider compares them."""

    blocks: list[BodyBlock]
    # The blocks that end what was asked, each right before the model speaks; -1 where it speaks first.
    ends: list[int]
    # Characters in all.
    size: int
    # Whether somebody marked it already.
    marked: bool

    @property
    def head(self) -> int:
        """The last block of tools and system; -1 where there is none."""
        places = (place for place, block in enumerate(self.blocks) if block.side != "head")
        return next(places, len(self.blocks)) - 1

    @property
    def sizes(self) -> tuple[int, int]:
        """Characters in all, and since the model last spoke: how much a request adds."""
        since = self.ends[-1] + 1 if self.ends else 0
        return self.size, sum(size_of(block.value) for block in self.blocks[since:]) if since else self.size

    def behind(self, messages: int) -> int:
        """The block that ends the first so many messages; where they hold nothing, the end of tools and system."""
        for place in range(len(self.blocks) - 1, -1, -1):
            block = self.blocks[place]
            # Messages may lead as part of the system prompt.
            if block.side == "head" or int(block.path[1]) < messages:
                return place
        return -1


class Piece(msgspec.Struct, frozen=True):
    """One message's blocks, and what is known of the row up to their end."""

    blocks: tuple[BodyBlock, ...] = ()
    ends: tuple[int, ...] = ()
    marked: bool = False
    count: int = 0
    size: int = 0
    # Whether nothing but instructions came so far, and whether the model speaks at its end.
    leading: bool = True
    speaking: bool = False


class MarkRows:
    """The rows of a thread's bodies, from their units; unchanged units are not looked at again."""

    def __init__(self, wire: str, walk: Walk | None = None) -> None:
        self._walk = walk or Walk(wire_of(wire).layout, frozen=True)
        self._pieces: GrowingValues[Unit, Piece] = GrowingValues()
        self._blocks: list[BodyBlock] = []
        self._ends: list[int] = []

    def row(self, body: JsonObject) -> MarkRow:
        """The blocks of a body."""
        pieces = self._pieces.along(self._walk.units(body), Piece(), _next_piece)
        last, new = pieces[-1] if pieces else Piece(), pieces[self._pieces.same :]
        standing = pieces[self._pieces.same - 1].count if self._pieces.same else 0
        del self._blocks[standing:], self._ends[bisect_left(self._ends, standing - 1) :]
        self._blocks += chain.from_iterable(piece.blocks for piece in new)
        self._ends += chain.from_iterable(piece.ends for piece in new)
        return MarkRow(self._blocks, self._ends, last.size, last.marked)


def _next_piece(before: Piece, unit: Unit) -> Piece:
    leading = before.leading and unit.section != "messages"
    side: Side = "head" if leading else "speaking" if unit.speaks else "asking"
    begins = bool(unit.parts) and side == "speaking" and not before.speaking
    return Piece(
        tuple(BodyBlock((*unit.path, *part.path), side, part.markable, part.value) for part in unit.parts),
        (before.count - 1,) if begins else (),
        before.marked or unit.marked,
        before.count + len(unit.parts),
        before.size + unit.size,
        leading,
        side == "speaking" if unit.parts else before.speaking,
    )


# Where a request's cache marks go: the end of tools and system, what lasts, the request before, the end.


class MarkPlaces(msgspec.Struct, frozen=True):
    """Where marks go, as places in the row: `lasting` is written once an epoch, `moving` by every request."""

    row: MarkRow
    lasting: tuple[int, ...]
    moving: tuple[int, ...]

    @property
    def all(self) -> list[int]:
        """Each place once, in the order the provider compares them."""
        return sorted({*self.lasting, *self.moving})

    def stand_in(self, body: JsonObject) -> bool:
        """Whether the body still holds, at each place, the block that the place was chosen for."""
        blocks = [self.row.blocks[place] for place in self.all]
        return all(_block_at(body, block) == block.value for block in blocks)


class TurnCount(NamedTuple):
    """How often the model spoke so far, and whether it speaks now."""

    runs: int = 0
    speaking: bool = False


class MarkPlacer:
    """Places the marks of one thread's requests; blocks that a request repeats are not measured again."""

    def __init__(self, info: ModelInfo, walk: Walk | None = None) -> None:
        self._info = info
        self._rows = MarkRows(info.wire, walk)
        self._spoken: GrowingValues[Message, TurnCount] = GrowingValues()

    def places(self, body: JsonObject, prompt: Prompt | None, stable: int = 0) -> MarkPlaces:
        """End of tools and system, opening or fold; end of the request before, end: those long enough to be stored."""
        row = self._rows.row(body)
        if row.marked:
            return MarkPlaces(row, (), ())
        enough = _first_behind(row.blocks, self._info)
        lasting = [_nearest_markable(row, place) for place in (row.head, self._lasting(row, prompt))]
        moving = [_nearest_markable(row, place) for place in (_stable(row, prompt, stable), len(row.blocks) - 1)]
        return MarkPlaces(row, *(tuple(place for place in row if place >= enough) for row in (lasting, moving)))

    def _lasting(self, row: MarkRow, prompt: Prompt | None) -> int:
        """The place of a mark whose prefix the next rebase keeps; without an opening, the end of the epoch's first request."""
        if prompt is None:
            return -1
        runs = self._runs(prompt, prompt.opening)
        # Where the model was last asked in the opening: what follows its end may be merged into one message with it.
        return row.ends[runs - 1] if 0 < runs <= len(row.ends) else self._fold(row, prompt)

    def _fold(self, row: MarkRow, prompt: Prompt) -> int:
        """The place of a mark at the end of the epoch's first request."""
        if not prompt.fold:
            return -1
        if prompt.fold >= len(prompt.messages):
            return len(row.blocks) - 1
        spoken = self._runs(prompt, prompt.fold)
        return row.ends[spoken] if spoken < len(row.ends) else -1

    def _runs(self, prompt: Prompt, count: int) -> int:
        """How often the model speaks in the first `count` messages."""
        spoken = self._spoken.along(prompt.messages, TurnCount(), _next)[:count]
        return spoken[-1].runs if spoken else 0


def _nearest_markable(row: MarkRow, place: int) -> int:
    """The place itself, or the nearest one before it that may carry a mark; -1 where there is none."""
    return next((index for index in range(place, -1, -1) if row.blocks[index].markable), -1)


def _first_behind(blocks: list[BodyBlock], info: ModelInfo) -> int:
    """The first block that ends at least as many tokens as a stored prefix must have; behind the last if none does."""
    count, total = counter(f"{info.provider}:{info.model}").count, 0
    for index, block in enumerate(blocks):
        text, extra = countable(block.value)
        # More than the minimum need not be known.
        total += extra + count(text[: info.min_cache_tokens * 16])
        if total >= info.min_cache_tokens:
            return index
    return len(blocks)


def _block_at(body: JsonObject, block: BodyBlock) -> Json:
    try:
        return reduce(getitem, block.path, body)  # type: ignore[arg-type]
    except (LookupError, TypeError):
        return None


def _stable(row: MarkRow, prompt: Prompt | None, stable: int) -> int:
    """The block where the request before this one ended.

    Where nobody knows how many messages it held, counted from the end, where the two differ least.
    """
    if stable:
        return row.behind(stable)
    if prompt is None:
        return row.ends[-1] if row.ends else -1
    since: Sequence[Message] = prompt.messages[prompt.stable :]
    runs = reduce(_next, since, TurnCount()).runs
    return row.ends[-runs] if prompt.stable and 0 < runs <= len(row.ends) else -1


def _next(before: TurnCount, message: Message) -> TurnCount:
    """How often the model has spoken behind this message; one without content is not sent and does not count."""
    words = (isinstance(part, Call) or (isinstance(part, Text) and part.text.strip()) for part in message.parts)
    speaks = message.role == "assistant" and any(words)
    if message.role == "assistant" and not speaks:
        return before
    return TurnCount(before.runs + (speaks and not before.speaking), speaks)


def mark(body: JsonObject, prompt: Prompt | None, info: ModelInfo, **how: Any) -> JsonObject:
    """A single body with cache marks; `how` is what `Marker.mark` takes."""
    return Marker(info).mark(body, prompt, **how)


class Marker:
    """Marks one thread's requests for one model; of each it looks only at what the request before did not hold.

    Of bodies that a `Rendering` wrote, messages that are the very same objects as before are taken to be what they
    were. Other bodies may be changed in place: nothing is kept of them, unless all are `frozen`. `walk` is that rendering's.
    """

    def __init__(self, info: ModelInfo, walk: Walk | None = None, *, frozen: bool = False) -> None:
        self.info, self._frozen = info, frozen
        self._placing, self._pauses = MarkPlacer(info, walk), Pauses()

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
        marked = self._mark_body(body, prompt, stable) if self.info.engine in _MARKERS else body
        if self.info.features.diagnostics and (marked.get("messages") or marked.get("input")):
            # Ask the provider to say why it could not reuse more, compared with the reply before.
            marked = wire_of(self.info.wire).diagnosed(marked, previous_id)
        return self._with_routing_key(marked, key)

    def _mark_body(self, body: JsonObject, prompt: Prompt | None, stable: int) -> JsonObject:
        places = self._mark_places(body, prompt, stable)
        row = places.row
        if not row.blocks or row.marked or body.get("cache_control") or body.get("prompt_cache_options"):
            return body
        life = lives(self._pauses, self.info, row.sizes)
        return _MARKERS[self.info.engine](body, places, life, self.info)

    def _mark_places(self, body: JsonObject, prompt: Prompt | None, stable: int) -> MarkPlaces:
        if not stable and not self._frozen:
            return MarkPlacer(self.info).places(body, prompt)
        places = self._placing.places(body, prompt, stable)
        if not places.stand_in(body):
            # Somebody changed the body in place, although a rendering wrote it: all places are found anew.
            self._placing = MarkPlacer(self.info)
            places = self._placing.places(body, prompt, stable)
        return places

    def _with_routing_key(self, body: JsonObject, key: str) -> JsonObject:
        """The body with the key that routes a thread to one cache; after long pauses, with the longer life where it is free."""
        out, info = dict(body), self.info
        if key and info.cache.key == "prompt_cache_key":
            out.setdefault("prompt_cache_key", key)
        keeps = info.engine == "openai-steps" and "24h" in info.features.retention
        # A pause has outlasted the short life.
        if keeps and self._pauses.longest_ms >= info.ttl_s[0] * 1000:
            out.setdefault("prompt_cache_retention", "24h")
        return out

    def marked(self, request: Request, prompt: Prompt | None, **how: Any) -> Request:
        """The next request with cache marks; its prefix stays what it was."""
        return msgspec.structs.replace(request, body=self.mark(request.body, prompt, stable=request.stable, **how))


# One marker per engine: where the marks go is decided, how they are written is the provider's.


def _mark_anthropic(body: JsonObject, places: MarkPlaces, life: CacheLives, info: ModelInfo) -> JsonObject:
    """A mark on each of the last places, as the wire format writes it."""
    write = wire_of(info.wire).mark
    # Backwards, so that a cache point moves no place that is still to be marked.
    for place in reversed(places.all[-info.max_breakpoints :]):
        # The longer life may not stand behind the shorter one; what lasts stands in front.
        long = life.tail_long or (life.head_long and place in places.lasting)
        body = write(body, places.row.blocks[place].path, long)
    return body


def _mark_openai(body: JsonObject, places: MarkPlaces, life: CacheLives, info: ModelInfo) -> JsonObject:
    """Breakpoints on input blocks; where the end cannot carry one, OpenAI's own implicit one stays on."""
    blocks = places.row.blocks
    inputs = [blocks[place] for place in places.all if blocks[place].side != "speaking"]
    carrying = [block for block in inputs if block.value.get("type") in data("rules")["openai"]["blocks"][info.wire]]
    explicit = bool(carrying) and carrying[-1] is blocks[-1]
    most = info.max_breakpoints if explicit else info.max_breakpoints - 1
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    for block in carrying[-most:]:
        body = changed_body(body, block.path, lambda value: {**value, **mark})
    return {**body, "prompt_cache_options": {"mode": "explicit" if explicit else "implicit", "ttl": "30m"}}


_MARKERS: dict[str, Callable[[JsonObject, MarkPlaces, CacheLives, ModelInfo], JsonObject]] = {
    "anthropic": _mark_anthropic,
    "openai-breakpoints": _mark_openai,
}
