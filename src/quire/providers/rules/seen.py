"""What a server has given out: signatures with the prefix they are bound to, and items that belong together.

A strict server keeps one of these (`complete=True`): what it does not know is forged. A linter builds one from
a list of requests (`complete=False`): it can tell that something changed, not that something is foreign.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from quire.errors import FormatError
from quire.log.hashing import canonical
from quire.values import Json, JsonObject


class Issued(msgspec.Struct, frozen=True):
    """One signed block: the prefix before it, its own content, and the signatures of its whole reply."""

    prefix: str
    content: str
    reply: tuple[str, ...] = ()


class Seen:
    """A server's memory of what it issued; `enforce` is false for accounts that may change the prefix."""

    def __init__(self, *, complete: bool = True, enforce: bool = True) -> None:
        self.complete = complete
        self.enforce = enforce
        self.signed: dict[str, Issued] = {}
        # Compaction blocks: signature -> content. Gemini's parts: signature -> content.
        self.sealed: dict[str, str] = {}
        # OpenAI's items: function_call id -> its reasoning's id; reasoning id -> its follower's id.
        self.reasoning_of: dict[str, str] = {}
        self.follower_of: dict[str, str] = {}

    def sign(self, signature: str, issued: Issued) -> None:
        """Remember a block; the first one to carry a signature stays."""
        self.signed.setdefault(signature, issued)


def chain(pieces: Iterable[tuple[str, Json]]) -> Iterator[tuple[str, str]]:
    """The running hash before each piece, and the piece's own: (role, block), ... -> (prefix, content), ..."""
    running = hashlib.sha256()
    for role, piece in pieces:
        content = fingerprint(piece)
        yield running.hexdigest(), content
        running.update(f"{role}\n{content}\n".encode())


def fingerprint(piece: Json) -> str:
    """A hash of a block without its cache marks and nulls, which are no part of what a signature binds."""
    bare = _bare(piece)
    try:
        return hashlib.sha256(canonical(bare)).hexdigest()
    except FormatError:
        # Not JSON text: the rule about that says so; here any stable name will do.
        return hashlib.sha256(repr(bare).encode(errors="backslashreplace")).hexdigest()


def _bare(piece: Json) -> Json:
    if not isinstance(piece, dict):
        return piece
    bare: JsonObject = {k: v for k, v in piece.items() if k != "cache_control" and v is not None}
    if isinstance(bare.get("content"), list):
        bare["content"] = [_bare(inner) for inner in bare["content"]]
    return bare
