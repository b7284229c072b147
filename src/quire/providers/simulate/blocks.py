"""The blocks that a prompt cache walks: what is compared of each, what is counted, and the mark it carries."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from operator import attrgetter
from typing import Literal

import msgspec

from quire.log.hashing import canonical
from quire.providers.prefix import MARKS
from quire.providers.simulate.said import kind_of, said
from quire.values import Json, JsonObject

Section = Literal["tools", "system", "messages"]


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


def marked(blocks: Sequence[Block]) -> Iterator[int]:
    """The places of blocks that carry a mark."""
    return compress(range(len(blocks)), map(attrgetter("ttl_s"), blocks))


def tool_block(tool: JsonObject, path: str, kind: str = "tool") -> Block:
    """A tool's definition (or an output schema) as one block."""
    data = canonical({key: value for key, value in tool.items() if key not in MARKS})
    return Block(
        section="tools",
        role="tool",
        kind=kind or "tool",
        data=data,
        text=data.decode(),
        ttl_s=_life(tool),
        opens=False,
        path=path,
        digest=hashlib.sha256(data).digest(),
    )


def message_blocks(parts: Iterable[Json], section: Section, role: str, path: str) -> Iterator[Block]:
    """The blocks of one message; Bedrock's cache points come out as blocks of kind `cachePoint`."""
    kept = [as_object(part) for part in parts]
    last = len(kept) - 1
    for index, part in enumerate(kept):
        bare = _unmarked(part)
        text, extra = said(bare)
        data = role.encode() + canonical(bare)
        yield Block(
            section=section,
            role=role,
            kind=kind_of(bare),
            data=data,
            text=text,
            extra=extra,
            ttl_s=_life(part),
            opens=index == 0,
            closes=index == last,
            path=f"{path}.{index}",
            digest=hashlib.sha256(data).digest(),
            pictures=kind_of(bare) == "image" or b'"type":"image"' in data,
            cites=b'"citations":{"enabled":true}' in data,
        )


def pointed(row: Iterator[Block]) -> Iterator[Block]:
    """Bedrock's cache points as marks on the blocks before them."""
    held: Block | None = None
    for block in row:
        if block.kind == "cachePoint":
            point = json.loads(block.data[len(block.role.encode()) :])["cachePoint"]
            life = _LIVES.get(str(point.get("ttl") or ""), -1)
            held = msgspec.structs.replace(held, ttl_s=life, closes=block.closes) if held else None
            continue
        if held:
            yield held
        held = block
    if held:
        yield held


def as_blocks(content: Json) -> list[Json]:
    """Content as blocks: a string is one text block, which is how providers read it."""
    if content is None or content == "":
        return []
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def as_object(part: Json) -> JsonObject:
    return part if isinstance(part, dict) else {"type": "text", "text": str(part)}


def _unmarked(part: JsonObject) -> JsonObject:
    """A block without its mark and the marks of the blocks inside it."""
    bare = {key: value for key, value in part.items() if key not in MARKS}
    if isinstance(bare.get("content"), list):
        bare["content"] = [
            _unmarked(inner) if isinstance(inner, dict) else inner for inner in bare["content"]
        ]
    return bare


_LIVES = {"5m": 300, "1h": 3600, "30m": 1800, "12h": 43200}


def _life(part: JsonObject) -> int:
    """The life a mark asks for: {"cache_control": {"type": "ephemeral", "ttl": "1h"}} -> 3600."""
    mark = next((mark for name in MARKS if isinstance(mark := part.get(name), dict) and mark), None)
    if mark is not None:
        return _LIVES.get(str(mark.get("ttl") or ""), -1)
    # A mark inside a tool result counts for the result.
    inner = part.get("content")
    lives = [_life(one) for one in inner if isinstance(one, dict)] if isinstance(inner, list) else []
    return next((life for life in lives if life), 0)
