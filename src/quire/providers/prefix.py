"""A request body in the order its provider caches it: units, their lines and hashes, and the prefix bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress, count, islice
from operator import is_, is_not, ne
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from quire.providers.wires import wire_of
from quire.values import Json, JsonObject, Lines, as_list, cached_property, canonical, sha256_hex

# Rows that grow: values are computed only for the items behind those that the row before held.

Item = TypeVar("Item")
Value = TypeVar("Value")


def leading(old: Sequence[object], new: Sequence[object]) -> int:
    """How many leading items are the very same objects: [a, b, c], [a, b, d] -> 2."""
    parted = bytes(map(is_, old, new)).find(0)
    return parted if parted >= 0 else min(len(old), len(new))


def same_start(first: Sequence[object], other: Sequence[object]) -> int:
    """How many leading characters, bytes or items are equal, by halving: slices compare fast."""
    low, high = 0, min(len(first), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == other[low:middle] else (low, middle - 1)
    return low


class GrowingValues(Generic[Item, Value]):
    """One value for each thing of a row, made of the value before it and the thing itself.

    Things must be frozen: one that is the same object as before is taken to be what it was.
    """

    def __init__(self) -> None:
        self._row: Sequence[Item] = ()
        self._values: list[Value] = []
        self._ground: object = None
        # How many leading values of the newest row were reused.
        self.same = 0

    def along(
        self, row: Sequence[Item], start: Value, step: Callable[[Value, Item], Value], ground: object = None
    ) -> list[Value]:
        """The values of a row; `ground` is what start and step depend on besides: a change computes all anew."""
        self.same = same = leading(self._row, row) if ground == self._ground else 0
        values = self._values[:same]
        values += islice(accumulate(row[same:], step, initial=values[-1] if values else start), 1, None)
        self._row, self._values, self._ground = row, values, ground
        return values


# The one walk through a request body: tools, system and messages as units of blocks, in the order caches compare them.
#
# A wire format says where its units stand (`Layout`); prefix lines, cache marks, simulation and explanation read the
# units. `Walk` goes through a thread's bodies one after the other and makes a unit once.

Path: TypeAlias = tuple[str | int, ...]
Section = Literal["tools", "system", "messages"]

MARKS = frozenset({"cache_control", "prompt_cache_breakpoint"})
# What stands for a turn of the model that was never taken, where a provider insists on one.
NO_REPLY = "(no reply)"


class UnitPart(NamedTuple):
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
    parts: tuple[UnitPart, ...]
    # What a cache compares of it, without marks: a line each.
    compared_lines: tuple[Json, ...]
    # What kind of definition it is (a tool's type, "schema"), which is counted as one JSON text; "" for content.
    kind: str = ""

    @cached_property
    def lines(self) -> tuple[bytes, ...]:
        """The canonical lines that a cache compares."""
        return tuple(map(line, self.compared_lines))

    @cached_property
    def hashes(self) -> tuple[str, ...]:
        """The sha256 of each line."""
        return tuple(map(sha256_hex, self.lines))

    @cached_property
    def digest(self) -> bytes:
        """The sha256 of the value as it is written, marks and all."""
        return hashlib.sha256(write_value(self.value)).digest()

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

    def at(self, place: str | int, section: Section | None = None) -> Unit:
        """The same message at another place or in another section, with what was computed for it already."""
        section = section or self.section
        if (self.path[-1], self.section) == (place, section):
            return self
        moved = msgspec.structs.replace(self, path=(*self.path[:-1], place), section=section)
        moved.__dict__.update(self.__dict__)
        return moved


class Layout(msgspec.Struct, frozen=True):
    """Where a wire format keeps its units: what stands in front, and the messages, all walked the same way."""

    head: Callable[[JsonObject], Iterable[Unit]]
    # The field of the messages.
    field: str
    message: Callable[[Json, int], Unit]
    messages: Callable[[JsonObject], Sequence[Json]] = lambda body: as_list(body.get("messages"))

    def units(self, body: JsonObject) -> list[Unit]:
        """The units of a single body."""
        return [*self.head(body), *map(self.message, self.messages(body), count())]


class Walk:
    """The units of a thread's bodies; an unchanged one is the same object again.

    `frozen`: bodies are not changed in place, so the very same message holds what it held. Of others a copy is kept.
    """

    def __init__(self, layout: Layout, frozen: bool = False) -> None:
        self._layout, self._frozen = layout, frozen
        self._head, self._messages = _Values(frozen), _Values(frozen, moving=True)
        self._paths: list[Path] = []

    def units(self, body: JsonObject) -> list[Unit]:
        """The units of the next body."""
        head, messages = list(self._layout.head(body)), self._layout.messages(body)
        paths = [unit.path for unit in head]
        if paths != self._paths:
            self._paths, self._head = paths, _Values(self._frozen)
        in_front = self._head.follow([unit.value for unit in head], lambda place: head[place])
        following = self._messages.follow(messages, lambda place: self._layout.message(messages[place], place))
        return [*in_front, *following]

    def message(self, message: Json, place: int) -> Unit:
        """The unit of a message, not made again where it is the newest body's."""
        return self._messages.at(place, message) or self._layout.message(message, place)


class _Values:
    """Values in a row, each with the unit it is; `moving`: the very same value may come again at another place."""

    def __init__(self, frozen: bool, moving: bool = False) -> None:
        self._frozen, self._moving = frozen, moving
        self._values: list[Json] = []
        self._copies: list[bytes] = []
        self._units: list[Unit] = []
        # The units of values that have moved, by the identity of the value.
        self._moved: dict[int, Unit] = {}

    def follow(self, values: Sequence[Json], make: Callable[[int], Unit]) -> list[Unit]:
        """The units of the next row; those at places where a value is new or has changed are made."""
        common = min(len(self._units), len(values))
        changed = list(self._changed(values, common))
        del self._units[common:]
        for place in (*changed, *range(common, len(values))):
            unit = self._moved.get(id(values[place]))
            self._units[place : place + 1] = [make(place) if unit is None else unit.at(place)]
        self._values = list(values)
        return self._units

    def at(self, place: int, value: Json) -> Unit | None:
        """The unit of the very value that stands at a place."""
        return self._units[place] if place < len(self._values) and self._values[place] is value else None

    def _changed(self, values: Sequence[Json], common: int) -> Iterable[int]:
        # Over all of them at the speed of C: nearly every value is unchanged.
        if not self._frozen:
            before, self._copies = self._copies, list(map(write_value, values))
            return compress(range(common), map(ne, before, self._copies))
        others = list(compress(range(common), map(is_not, self._values, values)))
        if not self._moving:
            return [place for place in others if write_value(self._values[place]) != write_value(values[place])]
        # A message that is another object has changed, or has moved.
        old_places = (*others, *range(common, len(self._units))) if others else ()
        self._moved = {id(self._values[place]): self._units[place] for place in old_places}
        return others


def write_value(value: Json, order: Literal["sorted"] | None = None) -> bytes:
    """A value as it is written, or with its keys sorted: 1, 1.0 and true are equal in Python and differ here."""
    try:
        return msgspec.json.encode(value, order=order)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return repr(value).encode(errors="backslashreplace")


def line(piece: Json) -> bytes:
    """A piece of a request as caches compare it."""
    return canonical(piece) + b"\n"


# What wire formats make their units of.


def definition(path: Path, value: JsonObject, kind: str = "tool", markable: bool = False) -> Unit:
    """A tool, which is compared and counted as JSON."""
    part = UnitPart((), value if markable else {"input": value}, markable and may_carry(value))
    return Unit(path, "tools", "tool", value, (part,), (bare(value),), kind)


def tool_units(body: JsonObject, markable: bool = False) -> Iterator[Unit]:
    """The tools of a list, each by its type; a deferred one is not in the prompt until the conversation refers to it."""
    for index, tool in enumerate(map(as_block, as_list(body.get("tools")))):
        unit = definition(("tools", index), tool, str(tool.get("type") or "tool"), markable)
        yield msgspec.structs.replace(unit, parts=()) if tool.get("defer_loading") else unit


def schema(path: Path, value: JsonObject) -> Unit:
    """An output schema: part of the prompt, but no line of the prefix."""
    return Unit(path, "tools", "tool", value, (UnitPart((), {"input": value}),), (), "schema")


def parts_of(content: Json, *path: str | int) -> list[UnitPart]:
    """The blocks of a list; a text is one block, which cannot be marked without changing what is compared."""
    if isinstance(content, str):
        return [UnitPart((*path, 0), {"type": "text", "text": content})] if content else []
    return [UnitPart((*path, at), as_block(block), may_carry(block)) for at, block in enumerate(as_list(content))]


def as_block(value: Json) -> JsonObject:
    """A block; a text alone is one."""
    return value if isinstance(value, dict) else {"type": "text", "text": str(value)}


_THINKING = ("thinking", "redacted_thinking")


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
        not MARKS.isdisjoint(block) or "cachePoint" in block or (isinstance(inner, list) and any(map(is_marked, inner)))
    )


def without_marks(block: JsonObject) -> JsonObject:
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
    return {**holder, field: [*map(bare, blocks)]} if isinstance(blocks, list) else holder


def changed_body(body: JsonObject, path: Path, change: Callable[[Json], Json]) -> JsonObject:
    """The body with one place in it changed; everything off the path is shared, nothing is mutated."""
    changed: JsonObject = _change_at(body, path, change)
    return changed


def _change_at(value: Json, path: Path, change: Callable[[Json], Json]) -> Json:
    if not path:
        return change(value)
    step, *rest = path
    inner = _change_at(value[step], tuple(rest), change)
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


# The bytes a provider's cache compares: tools, system blocks and messages, without cache marks.
#
# One canonical JSON line each, in the order the provider hashes them. Marks are taken off blocks only,
# so an argument or a schema field that happens to be called `cache_control` stays.


def prefix_parts(body: JsonObject, provider: str) -> list[bytes]:
    """One line for each tool, system block and message of a request body."""
    return [*chain.from_iterable(unit.lines for unit in wire_of(provider, body).layout.units(body))]


def prefix_bytes(body: JsonObject, provider: str) -> bytes:
    """All prefix lines of a request; a request extends another if these bytes begin with the other's."""
    return b"".join(prefix_parts(body, provider))


def lines_of(body: JsonObject, provider: str) -> Lines:
    """The lines of a single request, with their hashes."""
    return hash_lines(prefix_parts(body, provider))


def hash_lines(lines: Iterable[bytes]) -> Lines:
    """Lines with their hashes."""
    all_lines = tuple(lines)
    return Lines(all_lines, tuple(map(sha256_hex, all_lines)), sha256_hex(b"".join(all_lines)))


class PrefixLines:
    """The lines of a thread's requests: what has not changed is neither written nor hashed again."""

    def __init__(self) -> None:
        self._units: Sequence[Unit] = ()
        self._lines: list[bytes] = []
        self._hashes: list[str] = []
        # The hash of the first lines, those that two requests have held.
        self._hash, self._settled = hashlib.sha256(), 0

    def of(self, units: Sequence[Unit]) -> Lines:
        """The lines of the thread's next request."""
        same = leading(self._units, units)
        standing = len(self._lines) - sum(len(unit.lines) for unit in self._units[same:])
        self._units = units
        del self._lines[standing:], self._hashes[standing:]
        self._lines += chain.from_iterable(unit.lines for unit in units[same:])
        self._hashes += chain.from_iterable(unit.hashes for unit in units[same:])
        if standing < self._settled:
            self._hash, self._settled = hashlib.sha256(), 0
        # Bring the running hash up to the first line that is new.
        self._hash.update(b"".join(self._lines[self._settled : standing]))
        self._settled, whole = standing, self._hash.copy()
        whole.update(b"".join(self._lines[standing:]))
        return Lines(tuple(self._lines), tuple(self._hashes), whole.hexdigest())
