"""The one walk through a request body: tools, system and messages as units of blocks, in the order caches compare them.

A wire format says where its units stand (`Layout`); prefix lines, cache marks, simulation and explanation read the
units. `Walk` goes through a thread's bodies one after the other and makes a unit once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import compress, count
from operator import is_not, ne
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from quire.log.hashing import canonical, sha256_hex
from quire.providers.growing import GrowingRow
from quire.values import Json, JsonObject

Path: TypeAlias = tuple[str | int, ...]
Section = Literal["tools", "system", "messages"]

MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})
# What stands for a turn of the model that was never taken, where a provider insists on one.
NO_REPLY = "(no reply)"


class Part(NamedTuple):
    """One block of a unit: where it stands behind the unit's path, as it stands there."""

    path: Path
    value: JsonObject
    # Whether a mark can be put on it without changing what is compared.
    markable: bool = False
    # What is compared along with it: the id of the call that a result answers.
    also: JsonObject | None = None


class Unit(msgspec.Struct, frozen=True, dict=True):
    """A tool, the system prompt or a message: one thing in a body, and the blocks in it."""

    path: Path
    section: Section
    role: str
    # As it stands in the body; it must not be changed there.
    value: Json
    parts: tuple[Part, ...]
    # What a cache compares of it, without marks: a line each.
    compared: tuple[Json, ...]
    # What a definition is that counts as one JSON text: a tool's type, "schema"; "" for content.
    kind: str = ""

    @cached_property
    def lines(self) -> tuple[bytes, ...]:
        """The canonical lines that a cache compares."""
        return tuple(map(line, self.compared))

    @cached_property
    def hashes(self) -> tuple[str, ...]:
        """The sha256 of each line."""
        return tuple(map(sha256_hex, self.lines))

    @cached_property
    def size(self) -> int:
        """Characters in all."""
        return sum(size_of(part.value) for part in self.parts)

    @property
    def speaks(self) -> bool:
        """Whether the model speaks; a turn that was put in because a provider insists on one is nobody's."""
        if self.role not in ("assistant", "model"):
            return False
        return len(self.parts) != 1 or self.parts[0].value.get("text") != NO_REPLY

    @property
    def asks(self) -> bool:
        """Whether the user speaks, and not a tool."""
        first = self.parts[0].value if self.parts else {}
        return self.role == "user" and first.get("type") != "tool_result" and "toolResult" not in first

    @cached_property
    def marked(self) -> bool:
        """Whether a block carries a mark."""
        return any(is_marked(part.value) for part in self.parts)


class Layout(msgspec.Struct, frozen=True):
    """Where a wire format keeps its units: what stands in front, and the messages, all walked the same way."""

    head: Callable[[JsonObject], Iterable[Unit]]
    # The field of the messages.
    field: str
    message: Callable[[Json, int], Unit]
    messages: Callable[[JsonObject], Sequence[Json]]

    def units(self, body: JsonObject) -> list[Unit]:
        """The units of a single body."""
        return [*self.head(body), *map(self.message, self.messages(body), count())]


class Walk:
    """The units of a thread's bodies; one that stands as it stood is the same object again.

    `frozen`: bodies are not changed in place, so the very same message holds what it held. Of others a copy is kept.
    """

    def __init__(self, layout: Layout, frozen: bool = False) -> None:
        self._layout, self._frozen = layout, frozen
        self._head, self._messages = _Values(frozen), _Values(frozen)
        self._paths: list[Path] = []
        self._units: GrowingRow[Unit] = GrowingRow()

    def units(self, body: JsonObject) -> GrowingRow[Unit]:
        """The units of the next body."""
        head, messages = list(self._layout.head(body)), self._layout.messages(body)
        paths = [unit.path for unit in head]
        if paths != self._paths:
            self._paths, self._head, self._units = paths, _Values(self._frozen), GrowingRow()
        in_front = self._head.follow([unit.value for unit in head], lambda place: head[place])
        following = self._messages.follow(
            messages, lambda place: self._layout.message(messages[place], place)
        )
        same = self._head.same if self._head.same < len(head) else len(head) + self._messages.same
        self._units = GrowingRow([*in_front, *following], self._units, min(same, len(self._units)))
        return self._units


class _Values:
    """Values in a row, each with the unit it is."""

    def __init__(self, frozen: bool) -> None:
        self._frozen = frozen
        self._values: list[Json] = []
        self._copies: list[bytes] = []
        self._units: list[Unit] = []
        # How many of the newest row's first units were not made again.
        self.same = 0

    def follow(self, values: Sequence[Json], make: Callable[[int], Unit]) -> list[Unit]:
        """The units of the next row; those at places where a value is new or has changed are made."""
        known = min(len(self._units), len(values))
        changed = list(self._changed(values, known))
        self.same = changed[0] if changed else known
        del self._units[known:]
        for place in (*changed, *range(known, len(values))):
            self._units[place : place + 1] = [make(place)]
        self._values = list(values)
        return self._units

    def _changed(self, values: Sequence[Json], known: int) -> Iterator[int]:
        # Over all of them at the speed of C: nearly every value stands as it stood.
        if self._frozen:
            others = compress(range(known), map(is_not, self._values, values))
            return (place for place in others if written(self._values[place]) != written(values[place]))
        before, self._copies = self._copies, list(map(written, values))
        return compress(range(known), map(ne, before, self._copies))


def written(value: Json) -> bytes:
    """A value as it is written: 1, 1.0 and true are equal in Python and differ here."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(value).encode(errors="backslashreplace")


def line(piece: Json) -> bytes:
    """A piece of a request as caches compare it."""
    return canonical(piece) + b"\n"


# What wire formats make their units of.


def definition(path: Path, value: JsonObject, kind: str = "tool", markable: bool = False) -> Unit:
    """A tool, which is compared and counted as JSON."""
    part = Part((), value if markable else {"input": value}, markable and may_carry(value))
    return Unit(path, "tools", "tool", value, (part,), (bare(value),), kind)


def schema(path: Path, value: JsonObject) -> Unit:
    """An output schema: part of the prompt, but no line of the prefix."""
    return Unit(path, "tools", "tool", value, (Part((), {"input": value}),), (), "schema")


def parts_of(content: Json, *path: str | int) -> list[Part]:
    """The blocks of a list; a text is one block, which cannot be marked without changing what is compared."""
    if isinstance(content, str):
        return [Part((*path, 0), {"type": "text", "text": content})] if content else []
    return [Part((*path, at), as_block(one), may_carry(one)) for at, one in enumerate(listed(content))]


def listed(value: Json) -> Sequence[Json]:
    """A list as it is; of anything else, nothing."""
    return value if isinstance(value, list | tuple) else ()


def as_block(value: Json) -> JsonObject:
    """A block; a text alone is one."""
    return value if isinstance(value, dict) else {"type": "text", "text": str(value)}


_THINKING = frozenset({"thinking", "redacted_thinking"})


def may_carry(block: Json) -> bool:
    """Whether a block may carry a mark."""
    if not isinstance(block, dict) or block.get("defer_loading"):
        return False
    if block.get("type") in _THINKING or "reasoningContent" in block or "cachePoint" in block:
        return False
    return not ("text" in block and not str(block["text"]).strip())


def is_marked(block: Json) -> bool:
    """Whether a block carries a mark; what arguments and schemas call their fields is their business."""
    if not isinstance(block, dict):
        return False
    inner = block.get("content")
    return (
        not MARKS.isdisjoint(block)
        or "cachePoint" in block
        or (isinstance(inner, list) and any(map(is_marked, inner)))
    )


def unmarked(block: JsonObject) -> JsonObject:
    """A block without its cache marks, and without those of the blocks in it."""
    whole: JsonObject = unmarked_in(unmarked_in(bare(block), "content"), "output")
    return whole


def bare(block: Json) -> Json:
    """A block without its own mark."""
    if not isinstance(block, dict) or MARKS.isdisjoint(block):
        return block
    return {key: value for key, value in block.items() if key not in MARKS}


def unmarked_in(holder: Json, field: str) -> Json:
    """What holds a list of blocks, without their marks."""
    blocks = holder.get(field) if isinstance(holder, dict) else None
    return {**holder, field: [bare(block) for block in blocks]} if isinstance(blocks, list) else holder


def changed_body(body: JsonObject, path: Path, change: Callable[[Json], Json]) -> JsonObject:
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


def with_control(body: JsonObject, path: Path, long: bool) -> JsonObject:
    """Anthropic's mark on a block, for the shorter or the longer life."""
    control: JsonObject = {"type": "ephemeral", "ttl": "1h"} if long else {"type": "ephemeral"}
    return changed_body(body, path, lambda block: {**block, "cache_control": control})


def size_of(value: Json) -> int:
    """The characters of a value's texts."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, list) else 1
