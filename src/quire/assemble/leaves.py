"""The messages that stand in an epoch, each with its size and what it shrinks to in the handle tier."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from quire.assemble.turn import INTERRUPTED, UserTurn, result_text
from quire.tokens import IMAGE_TOKENS, MESSAGE_TOKENS, counter, message_tokens
from quire.tokens.budget import part_tokens
from quire.values import Call, Entry, Message, Part, Result, Text, Think

# A result up to this many tokens is shorter than the handle that would replace it is useful.
SMALL = 160
_HEAD, _TAIL = 240, 160
# Names that every provider takes as they are; others are spelled anew, with a mark behind, up to 64 characters.
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MARK_TOKENS = 9


class Leaf(msgspec.Struct, frozen=True):
    """One message in place. `handled` is the same with its tool results as handles (None: no shorter)."""

    message: Message
    tokens: int
    turn: int
    handled: Message | None = None
    handled_tokens: int = 0
    user: UserTurn | None = None
    # How much of it is the summary of what went before; the rest is pinned.
    summary_tokens: int = 0


def leaf(
    message: Message,
    turn: int,
    entries: Sequence[Entry] = (),
    user: UserTurn | None = None,
    image_tokens: int = IMAGE_TOKENS,
) -> Leaf:
    """A leaf for a message; `entries` are a tool message's result entries, by which handles are named."""
    if message.role == "tool":
        return _results_leaf(message, turn, {entry.seq: entry.id for entry in entries})
    spelling = sum(_spelling_tokens(part) for part in message.parts)
    tokens = message_tokens(message, image_tokens=image_tokens) + spelling
    return Leaf(message, tokens, turn, None, tokens, user)


def _results_leaf(message: Message, turn: int, ids: dict[int, str]) -> Leaf:
    """A leaf of results, each counted once: what it is, and what it shrinks to."""
    sizes = [part_tokens(part, counter()) for part in message.parts]
    framing = MESSAGE_TOKENS * max(1, len(sizes))
    tokens = framing + sum(sizes)
    if tokens <= SMALL:
        return Leaf(message, tokens, turn, None, tokens)
    parts = tuple(
        _handled(part, size, ids.get(seq, ""))
        for part, size, seq in zip(message.parts, sizes, message.seqs, strict=True)
    )
    if parts == message.parts:
        return Leaf(message, tokens, turn, None, tokens)
    shorter = [
        size if new is old else part_tokens(new, counter())
        for old, new, size in zip(message.parts, parts, sizes, strict=True)
    ]
    return Leaf(message, tokens, turn, Message("tool", parts, message.seqs), framing + sum(shorter))


def _spelling_tokens(part: Part) -> int:
    """Room for a call's name that cannot be sent as it is: what it may take more than its own tokens."""
    if not isinstance(part, Call) or _PLAIN.fullmatch(part.name):
        return 0
    return max(0, min(64, len(part.name)) + _MARK_TOKENS - counter().count(part.name))


def _handled(part: Part, tokens: int, entry_id: str) -> Part:
    if not isinstance(part, Result) or not entry_id or tokens <= SMALL:
        return part
    text = handle_text(part.text, tokens, handle_of(entry_id))
    return msgspec.structs.replace(part, text=text, wire={})


def handle_of(entry_id: str) -> str:
    """The short name of an entry's original: the first 12 hex digits of its id."""
    return entry_id.removeprefix("sha256:")[:12]


def handle_text(text: str, tokens: int, handle: str) -> str:
    """Head and tail of a long text around the handle of the whole."""
    head, tail = _head(text), _tail(text)
    mark = f"[… {tokens} tokens in all; the whole text: recall with handle {handle} …]"
    return "\n".join(part for part in (head, mark, tail) if part)


def _head(text: str) -> str:
    """The first lines that fit, or a cut at white space: never in mid-word where there is a choice."""
    cut = text[:_HEAD]
    end = cut.rfind("\n")
    if end < _HEAD // 2:
        end = max(end, cut.rfind(" "))
    return cut[: end if end > 0 else _HEAD].rstrip()


def _tail(text: str) -> str:
    cut = text[-_TAIL:]
    start = cut.find("\n")
    if start < 0 or start > _TAIL // 2:
        start = min((i for i in (start, cut.find(" ")) if i >= 0), default=-1)
    return cut[start + 1 :].strip()


def assistant(entries: Sequence[Entry], thinking: bool) -> Message:
    """One message of the model from the entries of its run; empty text is left out."""
    kept = [(part, entry.seq) for entry in entries if (part := _spoken(entry, thinking)) is not None]
    return Message("assistant", tuple(part for part, _ in kept), tuple(seq for _, seq in kept))


def _spoken(entry: Entry, thinking: bool) -> Part | None:
    if entry.kind == "think":
        return Think(entry.text, entry.wire) if thinking else None
    if entry.kind == "respond":
        # A blank text may still carry a provider's own block: a signature, a server tool's result.
        return Text(entry.text, entry.wire) if entry.text.strip() or entry.wire.get("block") else None
    raw = entry.wire.get("arguments")
    return Call(entry.call_id, entry.name, entry.args, entry.wire, raw if isinstance(raw, str) else "")


def results(pairs: Sequence[tuple[Entry, Entry | None]]) -> Message:
    """The results of one group of calls, in the calls' order; a missing one is shown as interrupted."""
    parts = tuple(_result(call, result) for call, result in pairs)
    # An interrupted call has no result entry; its own seq stands for the result it should have had.
    return Message("tool", parts, tuple((result or call).seq for call, result in pairs))


def _result(call: Entry, result: Entry | None) -> Result:
    if result is None:
        return Result(call.call_id, call.name, INTERRUPTED, error=True)
    return Result(call.call_id, call.name, result_text(result), bool(result.body.get("error")), result.wire)
