"""What makes any list of messages legal to send: one id per call, one result per call, none left over.

The engine hands over prompts that are whole already; this holds for every other caller, and gives reused
ids a new name. Each decision looks back only, so a longer prompt settles to a longer list.
"""

from __future__ import annotations

import msgspec

from quire.providers.spelling import Spelling
from quire.values import Call, Message, Part, Result

INTERRUPTED = "(interrupted: no result was recorded)"


class Settler:
    """Takes messages one by one; what it gives back can be sent."""

    def __init__(self, ids: Spelling) -> None:
        self.ids = ids
        self.used: set[str] = set()
        self.open: list[tuple[Call, str]] = []
        # (seqs, reason) of what could not stay.
        self.dropped: list[tuple[tuple[int, ...], str]] = []

    def take(self, message: Message) -> list[Message]:
        """The message with unique ids, behind whatever had to be closed before it."""
        if message.role == "tool":
            answered = self._answered(message)
            return [answered] if answered.parts else []
        closing = self.closing()
        self.open = []
        return [*closing, self._named(message) if message.role == "assistant" else message]

    def closing(self) -> list[Message]:
        """The results that are missing if nothing more comes."""
        return [Message("tool", self._interrupted())] if self.open else []

    def _named(self, message: Message) -> Message:
        parts: list[Part] = []
        for part in message.parts:
            if isinstance(part, Call):
                wire_id = next(
                    one for one in self.ids.candidates(part.call_id or "call") if one not in self.used
                )
                self.used.add(wire_id)
                self.open.append((part, wire_id))
                part = msgspec.structs.replace(part, call_id=wire_id)
            parts.append(part)
        return msgspec.structs.replace(message, parts=tuple(parts)) if self.open else message

    def _answered(self, message: Message) -> Message:
        """The results of one group in their own order, then the missing ones."""
        parts: list[Part] = []
        for part in message.parts:
            if not isinstance(part, Result):
                parts.append(part)
            elif (place := self._called(part)) is None:
                self.dropped.append((message.seqs, f"result of {part.call_id!r} has no call before it"))
            else:
                call, wire_id = self.open.pop(place)
                parts.append(msgspec.structs.replace(part, call_id=wire_id, name=call.name))
        parts += self._interrupted()
        self.open = []
        return msgspec.structs.replace(message, parts=tuple(parts))

    def _called(self, result: Result) -> int | None:
        """Which open call a result answers: same id, and among those the same name first."""
        same = [place for place, (call, _) in enumerate(self.open) if call.call_id == result.call_id]
        named = [place for place in same if self.open[place][0].name == result.name]
        return next(iter(named or same), None)

    def _interrupted(self) -> tuple[Result, ...]:
        return tuple(Result(wire_id, call.name, INTERRUPTED, error=True) for call, wire_id in self.open)
