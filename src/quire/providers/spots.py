"""A request body as spots that may carry a cache mark. Only the shape is looked at: nothing is hashed or counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from quire.providers.growing import Running, standing
from quire.providers.prefix import MARKS
from quire.providers.rendering import NO_REPLY
from quire.values import Json, JsonObject

Path: TypeAlias = tuple[str | int, ...]
Side = Literal["head", "asking", "speaking"]

_THINKING = frozenset({"thinking", "redacted_thinking"})
_SYSTEM = ("system", "developer")


class Spot(msgspec.Struct, frozen=True):
    """One block of a body: who speaks there, and whether it may carry a mark."""

    path: Path
    side: Side
    markable: bool
    block: Json
    # Whether the user speaks here, and not a tool or a late instruction.
    user: bool = False


class Row(msgspec.Struct, frozen=True):
    """The spots of a body in the order its provider compares them."""

    spots: list[Spot]
    # The spots that end what was asked, each right before the model speaks; -1 where it speaks first.
    ends: list[int]
    # Characters in all.
    size: int
    # Whether somebody marked it already.
    marked: bool

    @property
    def head(self) -> int:
        """The last spot of tools and system; -1 where there is none."""
        places = (place for place, spot in enumerate(self.spots) if spot.side != "head")
        return next(places, len(self.spots)) - 1

    @property
    def sizes(self) -> tuple[int, int]:
        """Characters in all, and since the model last spoke: how much a request adds."""
        since = self.ends[-1] + 1 if self.ends else 0
        return self.size, _sizes(self.spots[since:]) if since else self.size

    def behind(self, messages: int) -> int:
        """The spot that ends the first so many messages; where they hold nothing, the end of tools and system."""
        for place in range(len(self.spots) - 1, -1, -1):
            spot = self.spots[place]
            # Messages may lead as part of the system prompt.
            if spot.side == "head" or int(spot.path[1]) < messages:
                return place
        return -1

    def before_user(self, count: int) -> int:
        """The spot in front of the last `count` messages of the user; -1 where there are not as many."""
        place = len(self.spots)
        for _ in range(count):
            place = next((one for one in range(place - 1, -1, -1) if self.spots[one].user), -1)
            while place > 0 and self.spots[place - 1].path[:2] == self.spots[place].path[:2]:
                place -= 1
        return place - 1


class Piece(msgspec.Struct, frozen=True):
    """One message's spots, and what is known of the row up to their end."""

    spots: tuple[Spot, ...] = ()
    ends: tuple[int, ...] = ()
    marked: bool = False
    index: int = -1
    count: int = 0
    size: int = 0
    # Whether nothing but instructions came so far, and whether the model speaks at its end.
    leading: bool = True
    speaking: bool = False


class Walk(NamedTuple):
    """How a wire format is walked: what stands in front, and a message, which may lead as part of that."""

    head: Callable[[JsonObject], Iterable[Spot]]
    messages: str
    message: Callable[[JsonObject, int, bool], Iterable[Spot]]
    leads: Callable[[JsonObject], bool] = lambda message: False


class Spots:
    """The rows of a thread's bodies; messages that stand as they stood are not walked again."""

    def __init__(self, wire: str) -> None:
        self._walk = _WALKS[wire]
        self._head: list[Spot] = []
        self._messages: list[JsonObject] = []
        self._pieces: Running[JsonObject, Piece] = Running()

    def row(self, body: JsonObject) -> Row:
        """The spots of a body."""
        self._head = head = standing(self._head, list(self._walk.head(body)))
        given = body.get(self._walk.messages)
        self._messages = standing(self._messages, given if isinstance(given, list | tuple) else ())
        start = Piece(marked=_any_marked(head), count=len(head), size=_sizes(head))
        pieces = self._pieces.along(self._messages, start, self._next, ground=head)
        last = pieces[-1] if pieces else start
        return Row(
            [*head, *chain.from_iterable(map(attrgetter("spots"), pieces))],
            [*chain.from_iterable(map(attrgetter("ends"), pieces))],
            last.size,
            last.marked,
        )

    def _next(self, before: Piece, message: JsonObject) -> Piece:
        index, leading = before.index + 1, before.leading and self._walk.leads(message)
        spots = tuple(self._walk.message(message, index, leading))
        speaks = [before.speaking, *(spot.side == "speaking" for spot in spots)]
        return Piece(
            spots,
            tuple(before.count + at - 1 for at in range(len(spots)) if speaks[at + 1] and not speaks[at]),
            before.marked or _any_marked(spots),
            index,
            before.count + len(spots),
            before.size + _sizes(spots),
            leading,
            speaks[-1],
        )


def _any_marked(spots: Iterable[Spot]) -> bool:
    return any(_is_marked(spot.block) for spot in spots)


def _sizes(spots: Iterable[Spot]) -> int:
    return sum(_size(spot.block) for spot in spots)


def _size(value: Json) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 1


def _is_marked(block: Json) -> bool:
    """Whether a block carries a mark; what arguments and schemas call their fields is their business."""
    if not isinstance(block, dict):
        return False
    inner = block.get("content")
    return (
        not MARKS.isdisjoint(block)
        or "cachePoint" in block
        or (isinstance(inner, list) and any(map(_is_marked, inner)))
    )


def _anthropic(body: JsonObject) -> Iterator[Spot]:
    yield from _listed(body.get("tools"), ("tools",), "head")
    yield from _listed(body.get("system"), ("system",), "head")


def _anthropic_message(message: JsonObject, index: int, leading: bool) -> Iterator[Spot]:
    passing = message.get("role") == "system" and message.get("clear_at")
    for spot in _message(message, index, leading):
        yield msgspec.structs.replace(spot, markable=False) if passing else spot


def _bedrock(body: JsonObject) -> Iterator[Spot]:
    yield from _listed((body.get("toolConfig") or {}).get("tools"), ("toolConfig", "tools"), "head")
    yield from _listed(body.get("system"), ("system",), "head")


def _message(message: JsonObject, index: int, leading: bool) -> Iterator[Spot]:
    """The blocks of a message whose tool results, if it has any, are blocks of the user's."""
    side: Side = "speaking" if _speaks(message) else "asking"
    content = message.get("content")
    first = content[0] if isinstance(content, list) and content else {}
    answers = isinstance(first, dict) and (first.get("type") == "tool_result" or "toolResult" in first)
    path = ("messages", index, "content")
    yield from _listed(content, path, side, message.get("role") == "user" and not answers)


def _chat(body: JsonObject) -> Iterator[Spot]:
    yield from _unmarkable(body.get("tools"), ("tools",))


def _chat_leads(message: JsonObject) -> bool:
    return message.get("role") in _SYSTEM


def _chat_message(message: JsonObject, index: int, leading: bool) -> Iterator[Spot]:
    side: Side = "head" if leading else "speaking" if _speaks(message) else "asking"
    path = ("messages", index, "content")
    yield from _listed(message.get("content"), path, side, message.get("role") == "user")
    if message.get("tool_calls"):
        calls = {"tool_calls": message["tool_calls"]}
        yield Spot(("messages", index, "tool_calls"), "speaking", False, calls)


def _responses(body: JsonObject) -> Iterator[Spot]:
    yield from _unmarkable(body.get("tools"), ("tools",))
    if body.get("instructions"):
        yield Spot(("instructions",), "head", False, {"text": body["instructions"]})


def _item_leads(item: JsonObject) -> bool:
    return item.get("role") in _SYSTEM and str(item.get("type", "message")) == "message"


def _item(item: JsonObject, index: int, leading: bool) -> Iterator[Spot]:
    kind, role = str(item.get("type", "message")), item.get("role")
    asking = role in ("user", *_SYSTEM) or kind.endswith("_output")
    side: Side = "head" if leading else "asking" if asking else "speaking"
    field = "content" if kind == "message" else "output"
    if isinstance(item.get(field), list):
        yield from _listed(item[field], ("input", index, field), side, role == "user")
    else:
        yield Spot(("input", index), side, False, item, role == "user")


_WALKS: dict[str, Walk] = {
    "anthropic": Walk(_anthropic, "messages", _anthropic_message),
    "bedrock": Walk(_bedrock, "messages", _message),
    "openai-chat": Walk(_chat, "messages", _chat_message, _chat_leads),
    "openai-responses": Walk(_responses, "input", _item, _item_leads),
    # Nothing in it can be marked.
    "gemini": Walk(lambda body: (), "", _message),
}


def _speaks(message: JsonObject) -> bool:
    """Whether the model speaks; a turn that was put in because a provider insists on one is nobody's."""
    if message.get("role") != "assistant":
        return False
    content = message.get("content")
    only = content[0].get("text") if isinstance(content, list) and len(content) == 1 else content
    return only != NO_REPLY


def _listed(blocks: Json, path: Path, side: Side, user: bool = False) -> Iterator[Spot]:
    """The blocks of a list; a string cannot be marked without changing what is compared."""
    if isinstance(blocks, str):
        yield Spot(path, side, False, {"type": "text", "text": blocks}, user)
        return
    for index, block in enumerate(blocks or ()):
        yield Spot((*path, index), side, _may_carry(block), block, user)


def _unmarkable(tools: Json, path: Path) -> Iterator[Spot]:
    for index, tool in enumerate(tools or ()):
        yield Spot((*path, index), "head", False, {"input": tool})


def _may_carry(block: Json) -> bool:
    if not isinstance(block, dict) or block.get("defer_loading"):
        return False
    if block.get("type") in _THINKING or "reasoningContent" in block or "cachePoint" in block:
        return False
    return not ("text" in block and not str(block["text"]).strip())
