"""Tokens of blocks, each text looked at once: as counts for engines that match blocks, as ids for the rest."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from typing import TypeAlias

from quire.log.hashing import sha256_hex
from quire.providers.running import Running, leading
from quire.providers.simulate.blocks import Block
from quire.tokens import MESSAGE_TOKENS, counter
from quire.tokens.vocabulary import BASE, DEFAULT

Tokenize: TypeAlias = Callable[[str], Sequence[int]]


class Counted:
    """Counts and ids of blocks for one model; `tokenize` replaces the model's own vocabulary."""

    def __init__(self, model: str, tokenize: Tokenize | None = None) -> None:
        self._counter = counter(model)
        self._tokenize = tokenize
        self.exact = tokenize is not None or self._counter.exact
        self._counts: dict[tuple[bytes, bool], int] = {}
        self._rows: dict[tuple[bytes, bool], array[int]] = {}

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


class Tally:
    """The tokens of a thread's requests, each counted from where its blocks part with those of the one before."""

    def __init__(self, counted: Counted) -> None:
        self._counted = counted
        self.count = counted.count
        self._ends: Running[Block, int] = Running()
        self._lengths: Running[Block, int] = Running()
        self._blocks: Sequence[Block] = ()
        self._ids = array("i")

    def ends(self, blocks: Sequence[Block]) -> list[int]:
        """The tokens up to and including each block."""
        return self._ends.along(blocks, 0, lambda total, block: total + self.count(block))

    def ids(self, blocks: Sequence[Block]) -> array[int]:
        """The ids of a whole request."""
        same = leading(self._blocks, blocks)
        lengths = self._lengths.along(blocks, 0, lambda total, block: total + len(self._counted.ids(block)))
        self._ids = self._ids[: lengths[same - 1] if same else 0]
        self._ids.extend(self._counted.row(blocks[same:]))
        self._blocks = blocks
        return self._ids


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
