"""What makes any list of messages legal to send: one id per call, one result per call, none left over.

The engine hands over prompts that are whole already; this holds for every other caller, and gives reused
ids a new name. Each decision looks back only, so a longer prompt settles to a longer list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from quire.log.hashing import sha256_hex
from quire.values import Call, Message, Part, Result

INTERRUPTED = "(interrupted: no result was recorded)"


class Spelling(msgspec.Struct, frozen=True):
    """Which strings a provider takes as a name or an id."""

    allowed: str = "A-Za-z0-9_-"
    longest: int = 64
    # Ids of exactly `longest` letters and digits (Mistral): anything else is replaced by a digest.
    exact: bool = False

    def spell(self, text: str) -> str:
        """The text itself where it fits, else a readable replacement that depends on nothing else."""
        least = self.longest if self.exact else 1
        if re.fullmatch(f"[{self.allowed}]{{{least},{self.longest}}}", text):
            return text
        digest = sha256_hex(text)
        if self.exact:
            return digest[: self.longest]
        readable = re.sub(f"[^{self.allowed}]", "_", text)[: self.longest - 9]
        return f"{readable}_{digest[:8]}"


class Settled(msgspec.Struct):
    """Messages as they can be sent, and what had to go: (seqs, reason)."""

    messages: list[Message]
    dropped: list[tuple[tuple[int, ...], str]]


def settle(messages: Iterable[Message], ids: Spelling) -> Settled:
    """Give every call a unique id and exactly one result directly behind its group."""
    out = Settled([], [])
    used: set[str] = set()
    open_calls: list[tuple[Call, str]] = []
    for message in messages:
        if message.role == "tool":
            answered = _answer(message, open_calls, out)
            if answered.parts:
                out.messages.append(answered)
            open_calls = []
            continue
        _interrupt(open_calls, out)
        open_calls = []
        if message.role == "assistant":
            message = _with_unique_ids(message, ids, used, open_calls)
        out.messages.append(message)
    _interrupt(open_calls, out)
    return out


def _with_unique_ids(
    message: Message, ids: Spelling, used: set[str], open_calls: list[tuple[Call, str]]
) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, Call):
            wire_id = next(one for one in _candidates(part.call_id, ids) if one not in used)
            used.add(wire_id)
            open_calls.append((part, wire_id))
            part = msgspec.structs.replace(part, call_id=wire_id)
        parts.append(part)
    return msgspec.structs.replace(message, parts=tuple(parts)) if open_calls else message


def _candidates(call_id: str, ids: Spelling) -> Iterator[str]:
    """call_1 -> call_1, call_1-2, call_1-3, … in the provider's spelling."""
    call_id = call_id or "call"
    yield ids.spell(call_id)
    count = 2
    while True:
        yield ids.spell(f"{call_id}-{count}")
        count += 1


def _answer(message: Message, open_calls: list[tuple[Call, str]], out: Settled) -> Message:
    """The results of one group in their own order, then the missing ones."""
    parts: list[Part] = []
    for part in message.parts:
        if not isinstance(part, Result):
            parts.append(part)
            continue
        place = _matching(part, open_calls)
        if place is None:
            out.dropped.append((message.seqs, f"result of {part.call_id!r} has no call before it"))
        else:
            parts.append(msgspec.structs.replace(part, call_id=open_calls.pop(place)[1]))
    parts += [Result(wire_id, call.name, INTERRUPTED, error=True) for call, wire_id in open_calls]
    return msgspec.structs.replace(message, parts=tuple(parts))


def _matching(result: Result, open_calls: list[tuple[Call, str]]) -> int | None:
    """Which open call a result answers: same id, and among those the same name first."""
    same = [place for place, (call, _) in enumerate(open_calls) if call.call_id == result.call_id]
    named = [place for place in same if open_calls[place][0].name == result.name]
    return next(iter(named or same), None)


def _interrupt(open_calls: list[tuple[Call, str]], out: Settled) -> None:
    if open_calls:
        missing = tuple(Result(wire_id, call.name, INTERRUPTED, error=True) for call, wire_id in open_calls)
        out.messages.append(Message("tool", missing))
