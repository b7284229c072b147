"""The blocks that a prompt cache walks: what is compared of each, what is counted, and the mark it carries."""

from __future__ import annotations

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from quire.providers.prefix import (
    MARKS,
    GrowingValues,
    Section,
    Unit,
    UnitPart,
    Walk,
    bare,
    leading,
    same_start,
    without_marks,
)
from quire.providers.wires import wire_of
from quire.tokens import MESSAGE_TOKENS, countable, counter, kind_of
from quire.tokens.vocabularies import BASE, DEFAULT
from quire.values import Json, JsonObject, as_objects, canonical, sha256_hex


class Block(msgspec.Struct, frozen=True):
    """One block of a request: `data` is what is compared, `text` what is counted."""

    section: Section
    role: str
    kind: str
    data: bytes
    text: str
    # Tokens that no text stands for: images, encrypted reasoning.
    extra: int = 0
    # The life in seconds that a mark on this block asks for; 0 without a mark, -1 for the default life.
    ttl_s: int = 0
    # Whether the block opens, or closes, a message of its own.
    opens: bool = True
    closes: bool = True
    # Where it stands in the body: "messages.3.content.1".
    path: str = ""
    # The hash of `data`, so that running hashes need not look at it again.
    digest: bytes = b""
    # Whether it is or holds an image, and whether it asks for citations.
    pictures: bool = False
    cites: bool = False


def chain_hash(before: bytes, block: Block) -> bytes:
    """The running hash of blocks up to the end of this one."""
    return hashlib.sha256(before + block.digest).digest()


def mark_places(blocks: Sequence[Block]) -> Iterator[int]:
    """The places of blocks that carry a mark."""
    return compress(range(len(blocks)), map(attrgetter("ttl_s"), blocks))


def blocks_of(unit: Unit) -> tuple[Block, ...]:
    """The blocks of a unit; cached on it, so that a message that only moved is not read again."""
    path, row = unit.__dict__.get("blocks", ((), ()))
    if path != unit.path:
        # The unit has only moved: its blocks get new places.
        was, now = (".".join(map(str, place)) for place in (path, unit.path))
        row = tuple(msgspec.structs.replace(block, path=now + block.path[len(was) :]) for block in row)
    row = row or _blocks_of(unit)
    unit.__dict__["blocks"] = unit.path, row
    return row


def _blocks_of(unit: Unit) -> tuple[Block, ...]:
    """A definition is one block, and Bedrock's cache points are marks on the blocks before them."""
    if unit.kind:
        return tuple(_definition(unit) for _ in unit.parts)
    row = [_block(unit, part, index) for index, part in enumerate(unit.parts)]
    return tuple(_point_marks(row) if any(block.kind == "cachePoint" for block in row) else row)


def _definition(unit: Unit) -> Block:
    data = canonical(bare(unit.value))
    return Block(
        section=unit.section,
        role=unit.role,
        kind=unit.kind,
        data=data,
        text=data.decode(),
        ttl_s=_life(unit.value),
        opens=False,
        path=".".join(map(str, unit.path)),
        digest=hashlib.sha256(data).digest(),
    )


def _block(unit: Unit, part: UnitPart, index: int) -> Block:
    compared = without_marks({**part.value, **part.also} if part.also else part.value)
    text, extra = countable(compared)
    kind, data = kind_of(compared), unit.role.encode() + canonical(compared)
    return Block(
        section=unit.section,
        role=unit.role,
        kind=kind,
        data=data,
        text=text,
        extra=extra,
        ttl_s=_life(part.value),
        opens=index == 0,
        closes=index == len(unit.parts) - 1,
        path=".".join(map(str, (*unit.path, *part.path))),
        digest=hashlib.sha256(data).digest(),
        pictures=kind == "image" or b'"type":"image"' in data,
        cites=b'"citations":{"enabled":true}' in data,
    )


def _point_marks(row: Iterable[Block]) -> Iterator[Block]:
    before: Block | None = None
    for block in row:
        if block.kind == "cachePoint":
            point = json.loads(block.data[len(block.role.encode()) :])["cachePoint"]
            life = _LIVES.get(str(point.get("ttl") or ""), -1)
            before = msgspec.structs.replace(before, ttl_s=life, closes=block.closes) if before else None
            continue
        if before:
            yield before
        before = block
    if before:
        yield before


class Reader:
    """Reads a thread's bodies one after the other; blocks of unchanged units are not made again."""

    def __init__(self, wire: str, frozen: bool = False) -> None:
        self._walk = Walk(wire_of(wire).layout, frozen)
        self._read: GrowingValues[Unit, _Read] = GrowingValues()
        self._blocks: list[Block] = []

    def read(self, body: JsonObject) -> list[Block]:
        """The blocks of a body."""
        rows = self._read.along(self._walk.units(body), _Read(), _next)
        same = self._read.same
        standing = rows[same - 1].end if same else 0
        new = chain.from_iterable(row.blocks for row in rows[same:])
        self._blocks = [*self._blocks[:standing], *new]
        return self._blocks


def blocks(body: JsonObject, wire: str) -> list[Block]:
    """The blocks of a single request."""
    return Reader(wire, frozen=True).read(body)


class _Read(NamedTuple):
    """A unit's blocks, how many blocks there are up to their end, and whether the conversation has begun with it."""

    blocks: tuple[Block, ...] = ()
    end: int = 0
    talking: bool = False


def _next(before: _Read, unit: Unit) -> _Read:
    """An instruction behind the first message is part of the conversation, not of the system prompt."""
    row = blocks_of(unit)
    if before.talking and unit.section == "system":
        row = tuple(msgspec.structs.replace(block, section="messages") for block in row)
    talks = before.talking or (unit.section == "messages" and bool(row))
    return _Read(row, before.end + len(row), talks)


_LIVES = {"5m": 300, "1h": 3600, "30m": 1800, "12h": 43200}


def _life(part: JsonObject) -> int:
    """The life a mark asks for: {"cache_control": {"type": "ephemeral", "ttl": "1h"}} -> 3600."""
    mark = next((mark for name in MARKS if isinstance(mark := part.get(name), dict) and mark), None)
    if mark is not None:
        return _LIVES.get(str(mark.get("ttl") or ""), -1)
    # A mark inside a tool result counts for the result.
    return next(filter(None, map(_life, as_objects(part.get("content")))), 0)


def continues(old: Sequence[Block], new: Sequence[Block]) -> bool:
    """Whether a request continues the conversation of another, even where bytes moved.

    A side request, for a title say, does not: it has other instructions and repeats one message.
    """
    if old and new and old[0].digest == new[0].digest:
        return True
    # The hashes of what stands in front of the messages, and of the messages.
    old_head, new_head = ({part.digest: part.text for part in row if part.section != "messages"} for row in (old, new))
    old_messages, new_messages = ({part.digest for part in row if part.section == "messages"} for row in (old, new))
    if not old_head.keys().isdisjoint(new_head) or any(
        _alike(value, other) for value in old_head.values() for other in new_head.values()
    ):
        return True
    if old_head or new_head:
        return len(old_messages & new_messages) > 1
    # Nothing stands in front of the messages: the first one may be the same with a change in it.
    return not old_messages.isdisjoint(new_messages) or bool(old and new and _alike(old[0].text, new[0].text))


def _alike(text: str, other: str) -> bool:
    """Whether two texts are one with a change in it: half of the longer one at least is the same at both ends."""
    shorter, longer = sorted((text, other), key=len)
    front = same_start(text, other)
    back = same_start(shorter[front:][::-1], longer[front:][::-1])
    return len(shorter) > 20 and front + back >= len(longer) / 2


# Tokens of blocks, each text looked at once: as counts for engines that match blocks, as ids for the rest.

Tokenize: TypeAlias = Callable[[str], Sequence[int]]


class TokenTally:
    """Counts and ids of blocks for one model; `tokenize` replaces the model's own vocabulary.

    A thread's requests are counted one after the other, each from where its blocks part with those of the one before.
    """

    def __init__(self, model: str, tokenize: Tokenize | None = None) -> None:
        self._counter = counter(model)
        self._tokenize = tokenize
        self.exact = tokenize is not None or self._counter.exact
        self._counts: dict[tuple[bytes, bool], int] = {}
        self._rows: dict[tuple[bytes, bool], array[int]] = {}
        self._lengths: GrowingValues[Block, int] = GrowingValues()
        self._blocks: Sequence[Block] = ()
        self._prompt = array("i")

    def count(self, block: Block) -> int:
        """The tokens of a block, the framing of the message it opens included."""
        key = (block.digest, block.opens)
        if key not in self._counts:
            text = len(self._tokenize(block.text)) if self._tokenize else self._counter.count(block.text)
            self._counts[key] = text + block.extra + (MESSAGE_TOKENS if block.opens else 0)
        return self._counts[key]

    def ids(self, block: Block) -> array[int]:
        """The block's tokens; what no text stands for becomes ids that only the same block has."""
        key = (block.digest, block.opens)
        if key not in self._rows:
            encode = self._tokenize or encoder(self._counter.vocabulary)
            stand_in = -1 - int.from_bytes(block.digest[:3], "big")
            framing = [-1 - sum(block.role.encode())] * MESSAGE_TOKENS if block.opens else []
            self._rows[key] = array("i", [*framing, *encode(block.text), *[stand_in] * block.extra])
        return self._rows[key]

    def spoken(self, text: str) -> array[int]:
        """The ids of an answer as it will stand in the next request."""
        return self.ids(Block("messages", "assistant", "text", b"", text, digest=sha256_hex(text).encode()))

    def row(self, blocks: Sequence[Block]) -> array[int]:
        """The ids of a whole request."""
        ids = array("i")
        for block in blocks:
            ids.extend(self.ids(block))
        return ids

    def ends(self, blocks: Sequence[Block]) -> list[int]:
        """The tokens up to and including each block."""
        return list(accumulate(map(self.count, blocks)))

    def prompt(self, blocks: Sequence[Block]) -> array[int]:
        """The ids of the thread's next request."""
        same = leading(self._blocks, blocks)
        lengths = self._lengths.along(blocks, 0, lambda total, block: total + len(self.ids(block)))
        self._prompt = self._prompt[: lengths[same - 1] if same else 0]
        self._prompt.extend(self.row(blocks[same:]))
        self._blocks = blocks
        return self._prompt


@functools.cache
def encoder(vocabulary: str) -> Tokenize:
    """Text to ids in a vocabulary; o200k where that vocabulary is not installed."""
    if vocabulary not in BASE:
        try:
            from splintr import Tokenizer
        except ImportError:
            return encoder(DEFAULT)
        ordinary: Tokenize = Tokenizer.from_pretrained(vocabulary).encode_ordinary
        return ordinary
    from rs_bpe import openai

    native: Tokenize = getattr(openai, vocabulary)().encode
    return native


# What an engine is shown of a request, and what it says of it.

# Why less was read from the cache than the request before left there.
Cause = Literal["", "first", "ttl", "minimum", "marker", "moved", "in-flight"]
PromptIds: TypeAlias = Callable[[JsonObject], Sequence[int]]


class Shares(msgspec.Struct, frozen=True):
    """How a cache splits a request's tokens; what is neither read nor written is plain."""

    read: int = 0
    # Written for the provider's shorter and longer life.
    write_short: int = 0
    write_long: int = 0
    cause: Cause = ""
    note: str = ""
    # Tokens kept in explicit caches since the request before, times hours.
    storage_token_hours: float = 0.0


class EngineView:
    """One request as engines see it: its blocks, and its tokens as counts or as ids."""

    def __init__(
        self, body: JsonObject, blocks: list[Block], tally: TokenTally, prompt_ids: PromptIds | None = None
    ) -> None:
        self.body = body
        self.blocks = blocks
        self._tally = tally
        self._prompt_ids = prompt_ids

    def setting(self, name: str) -> Json:
        """A field of the body, also where the OpenAI SDK puts what it does not know."""
        extra = self.body.get("extra_body") or {}
        return self.body.get(name, extra.get(name))

    def count(self, block: Block) -> int:
        """The tokens of one block."""
        return self._tally.count(block)

    @functools.cached_property
    def ends(self) -> list[int]:
        """The tokens up to and including each block."""
        return self._tally.ends(self.blocks)

    @functools.cached_property
    def ids(self) -> array[int]:
        """The whole prompt as token ids."""
        if self._prompt_ids is not None:
            return array("i", self._prompt_ids(self.body))
        return self._tally.prompt(self.blocks)


class Engine(ABC):
    """A prompt cache: looks a request up, keeps what it would keep, and says how the tokens split."""

    # Whether the prompt is a row of ids here, or one of counted blocks.
    by_ids = False
    # Whether the model's answers are kept as well as its prompts.
    keeps_answers = False

    @abstractmethod
    def look(self, at_ms: int, request: EngineView, began_ms: int | None = None) -> Shares:
        """One more request; `began_ms` is when its answer began, if that is known."""

    def total(self, request: EngineView) -> int:
        """The tokens of a request's whole prompt."""
        return len(request.ids) if self.by_ids else request.ends[-1] if request.blocks else 0

    def take_answer(self, prompt: array[int], answer: array[int], at_ms: int) -> None:  # noqa: B027  # most keep no answers
        """The model answered this prompt, and `answer` was computed upon it; engines that keep answers keep it."""


# Stored prefixes by their running hashes, for caches that store at marked places only.


class StoredPrefix(msgspec.Struct):
    """One stored prefix: its life starts again with each request that uses it."""

    life_ms: int
    used_ms: int
    readable_ms: int

    def alive(self, at_ms: int) -> bool:
        return at_ms - self.used_ms < self.life_ms


class Shelf:
    """What one cache has stored, and the latest requests, to tell what a new one has in common with them."""

    def __init__(self) -> None:
        self._entries: dict[bytes, StoredPrefix] = {}
        # Threads may alternate, so a new request is compared with several.
        self._recent: deque[list[bytes]] = deque(maxlen=16)

    @property
    def untouched(self) -> bool:
        return not self._recent

    def readable(self, key: bytes, at_ms: int) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.alive(at_ms) and entry.readable_ms <= at_ms

    def keep(self, key: bytes, life_ms: int, at_ms: int, began_ms: int | None) -> None:
        """Store a prefix; one that is there already starts its own life again, and no other is bought."""
        entry = self._entries.get(key)
        if entry is not None and entry.alive(at_ms):
            entry.used_ms = at_ms
        else:
            # What a request stores can be read once its answer has begun.
            self._entries[key] = StoredPrefix(life_ms, at_ms, max(at_ms + 1, began_ms or 0))

    def remember(self, hashes: list[bytes]) -> None:
        self._recent.append(hashes)

    def why(self, hashes: list[bytes], blocks: Sequence[Block], hit: int | None, at_ms: int) -> tuple[Cause, str]:
        """Why a request that read up to `hit` did not read all that an earlier one had in common with it."""
        before = max(reversed(self._recent), key=lambda earlier: same_start(earlier, hashes))
        same = same_start(before, hashes)
        stored = next((place for place in range(same - 1, -1, -1) if hashes[place] in self._entries), None)
        if stored is not None and (hit is None or hit < stored):
            return self._loss_cause(self._entries[hashes[stored]], blocks[stored], at_ms)
        if stored is None and (same == len(before) or self._entries.keys().isdisjoint(before)):
            return "minimum", "the request before had nothing long enough to store"
        if same == len(before):
            return "", ""
        if same >= len(blocks):
            return "moved", "the request is shorter than the one before"
        return "moved", f"{blocks[same].path} differs from the request before"

    def _loss_cause(self, entry: StoredPrefix, block: Block, at_ms: int) -> tuple[Cause, str]:
        if entry.readable_ms > at_ms:
            return "in-flight", "the request that stores it had not begun to answer"
        if not entry.alive(at_ms):
            passed, life = (at_ms - entry.used_ms) // 1000, entry.life_ms // 1000
            return "ttl", f"last used {passed:,} s before, kept for {life:,} s"
        return "marker", f"what is stored up to {block.path} is out of reach of every mark"
