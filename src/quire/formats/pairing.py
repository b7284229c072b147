"""Calls and their results side by side, as every text format shows them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quire.values import Entry, Json

INTERRUPTED = "(interrupted: no result was recorded)"
UNKNOWN = "unknown"


class Exchange(msgspec.Struct, frozen=True):
    """A call and what came back, as far as each was recorded; one of the two is always there."""

    call: Entry | None
    result: Entry | None = None

    @property
    def name(self) -> str:
        return self.call.name if self.call else UNKNOWN

    @property
    def args(self) -> Json:
        return self.call.args if self.call else {}

    @property
    def outcome(self) -> str:
        """The first thing to say of the result; an interrupted call says so."""
        if not self.result:
            return INTERRUPTED
        outcome: str = self.result.body.get("outcome") or ""
        return outcome or ("Error" if self.result.body.get("error") else "")

    @property
    def content(self) -> str:
        return (self.result.body.get("content") or "") if self.result else ""


def paired(entries: Iterable[Entry]) -> list[Entry | Exchange]:
    """The entries in order, each result moved to its call.

    A result belongs to the nearest earlier unanswered call with its id; one without such a call
    stands alone.
    """
    events: list[Entry | Exchange] = []
    open_calls: dict[str, list[int]] = {}
    for entry in entries:
        if entry.kind == "call":
            open_calls.setdefault(entry.call_id, []).append(len(events))
            events.append(Exchange(entry))
        elif entry.kind == "result":
            _answer(events, open_calls.get(entry.call_id), entry)
        else:
            events.append(entry)
    return events


def _answer(events: list[Entry | Exchange], unanswered: list[int] | None, result: Entry) -> None:
    if not unanswered:
        events.append(Exchange(None, result))
        return
    at = unanswered.pop()
    call = events[at]
    assert isinstance(call, Exchange)
    events[at] = msgspec.structs.replace(call, result=result)
