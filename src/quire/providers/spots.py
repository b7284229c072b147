"""A request body as spots that may carry a cache mark. Only the shape is looked at: nothing is hashed or counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

import msgspec

from quire.providers.sheet import NO_REPLY
from quire.values import Json, JsonObject

Path: TypeAlias = tuple[str | int, ...]
Side = Literal["head", "asking", "speaking"]

_THINKING = frozenset({"thinking", "redacted_thinking"})


class Spot(msgspec.Struct, frozen=True):
    """One block of a body: who speaks there, and whether it may carry a mark."""

    path: Path
    side: Side
    markable: bool
    block: Json
    # Whether the user speaks here, and not a tool or a late instruction.
    user: bool = False


def spots(body: JsonObject, wire: str) -> list[Spot]:
    """The blocks of a body in the order its provider compares them."""
    return list(_WALKS[wire](body))


def turns(row: list[Spot]) -> list[int]:
    """The spots that end what was asked, each right before the model speaks; -1 where it speaks first."""
    speaks = [False, *(spot.side == "speaking" for spot in row)]
    return [index - 1 for index in range(len(row)) if speaks[index + 1] and not speaks[index]]


def before_user(row: list[Spot], count: int) -> int:
    """The spot in front of the last `count` messages of the user; -1 where there are not as many."""
    place = len(row)
    for _ in range(count):
        place = next((one for one in range(place - 1, -1, -1) if row[one].user), -1)
        while place > 0 and row[place - 1].path[:2] == row[place].path[:2]:
            place -= 1
    return place - 1


def sizes(row: list[Spot]) -> tuple[int, int]:
    """Characters in all, and since the model last spoke: how much a request adds."""
    ends = turns(row)
    new = row[ends[-1] + 1 :] if ends else row
    return sum(_size(spot.block) for spot in row), sum(_size(spot.block) for spot in new)


def _size(value: Json) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list) else 1


def _anthropic(body: JsonObject) -> Iterator[Spot]:
    yield from _listed(body.get("tools"), ("tools",), "head")
    yield from _listed(body.get("system"), ("system",), "head")
    for index, message in enumerate(body.get("messages") or ()):
        passing = message.get("role") == "system" and message.get("clear_at")
        for spot in _message(message, ("messages", index, "content")):
            yield msgspec.structs.replace(spot, markable=False) if passing else spot


def _bedrock(body: JsonObject) -> Iterator[Spot]:
    yield from _listed((body.get("toolConfig") or {}).get("tools"), ("toolConfig", "tools"), "head")
    yield from _listed(body.get("system"), ("system",), "head")
    for index, message in enumerate(body.get("messages") or ()):
        yield from _message(message, ("messages", index, "content"))


def _message(message: JsonObject, path: Path) -> Iterator[Spot]:
    """The blocks of a message whose tool results, if it has any, are blocks of the user's."""
    side: Side = "speaking" if _speaks(message) else "asking"
    content = message.get("content")
    first = content[0] if isinstance(content, list) and content else {}
    answers = isinstance(first, dict) and (first.get("type") == "tool_result" or "toolResult" in first)
    yield from _listed(content, path, side, message.get("role") == "user" and not answers)


def _chat(body: JsonObject) -> Iterator[Spot]:
    yield from _unmarkable(body.get("tools"), ("tools",))
    leading = True
    for index, message in enumerate(body.get("messages") or ()):
        role = message.get("role")
        leading = leading and role in ("system", "developer")
        side: Side = "head" if leading else "speaking" if _speaks(message) else "asking"
        yield from _listed(message.get("content"), ("messages", index, "content"), side, role == "user")
        if message.get("tool_calls"):
            calls = {"tool_calls": message["tool_calls"]}
            yield Spot(("messages", index, "tool_calls"), "speaking", False, calls)


def _responses(body: JsonObject) -> Iterator[Spot]:
    yield from _unmarkable(body.get("tools"), ("tools",))
    if body.get("instructions"):
        yield Spot(("instructions",), "head", False, {"text": body["instructions"]})
    leading = True
    items = body.get("input")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        kind, role = str(item.get("type", "message")), item.get("role")
        leading = leading and role in ("system", "developer") and kind == "message"
        asking = role in ("user", "system", "developer") or kind.endswith("_output")
        side: Side = "head" if leading else "asking" if asking else "speaking"
        field = "content" if kind == "message" else "output"
        if isinstance(item.get(field), list):
            yield from _listed(item[field], ("input", index, field), side, role == "user")
        else:
            yield Spot(("input", index), side, False, item, role == "user")


_WALKS: dict[str, Callable[[JsonObject], Iterator[Spot]]] = {
    "anthropic": _anthropic,
    "bedrock": _bedrock,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": lambda body: iter(()),
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
