"""Which requests belong together: by the names that clients give, else by the messages they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from quire.audit.read import SentCall
from quire.providers.prefix import Unit
from quire.providers.wires import wire_of

ConversationKind = Literal["main", "side", "agent"]


class Conversation:
    """Requests of one conversation in the order they were sent."""

    def __init__(self, session: str, kind: ConversationKind = "main") -> None:
        self.session, self.kind = session, kind
        self.calls: list[SentCall] = []
        self.units: list[tuple[Unit, ...]] = []

    @property
    def name(self) -> str:
        return self.session or (self.calls[0].source if self.calls else "")


class _Place(msgspec.Struct):
    conversation: Conversation
    messages: frozenset[str] = frozenset()
    tools: bool = False


def units_of(call: SentCall) -> tuple[Unit, ...]:
    """What a cache compares of a request, tools and system prompt first; nothing where no body was kept."""
    return tuple(wire_of(call.provider, call.body).layout.units(call.body)) if call.body else ()


def conversations(calls: Iterable[SentCall]) -> list[Conversation]:
    """The conversations of some calls, each with its own; what is asked beside one (a title, a summary) stands apart."""
    found: list[Conversation] = []
    places: list[_Place] = []
    holders: dict[str, list[int]] = {}
    by_name: dict[tuple[str, str], int] = {}
    for call in calls:
        units = units_of(call)
        messages = [hash for unit in units if unit.section == "messages" for hash in unit.hashes]
        at = _where(call, messages, places, holders, by_name)
        if at is None:
            kind = _kind(
                call, units, [place for place in places if place.conversation.session == call.session]
            )
            at = len(places)
            places.append(_Place(Conversation(call.session, kind)))
            found.append(places[at].conversation)
            if not call.body:
                by_name[call.session, call.agent] = at
        place = places[at]
        place.conversation.calls.append(call)
        place.conversation.units.append(units)
        place.tools = place.tools or any(unit.section == "tools" for unit in units)
        for hash in set(messages) - place.messages:
            holders.setdefault(hash, []).append(at)
        place.messages |= frozenset(messages)
    return found


def _where(
    call: SentCall,
    messages: list[str],
    places: list[_Place],
    holders: dict[str, list[int]],
    by_name: dict[tuple[str, str], int],
) -> int | None:
    """The conversation that a call goes on with: the one that shares most of its messages, all but the newest."""
    if not call.body:
        return by_name.get((call.session, call.agent))
    votes = Counter(at for hash in dict.fromkeys(messages) for at in holders.get(hash, ())[-8:])
    same = {at: count for at, count in votes.items() if places[at].conversation.session == call.session}
    best = max(same, key=lambda at: (same[at], at), default=None)
    if best is None:
        return None
    # One message in common, of several, is a coincidence: "continue", an equal greeting.
    return best if same[best] >= min(2, len(set(messages))) or len(places[best].messages) <= 2 else None


def _kind(call: SentCall, units: tuple[Unit, ...], others: list[_Place]) -> ConversationKind:
    """Whether something new in a session is asked beside it, or is another agent's work."""
    if call.agent:
        return "agent"
    if not call.session or not others:
        return "main"
    has_tools = any(unit.section == "tools" for unit in units)
    asks_once = sum(unit.section == "messages" for unit in units) <= 2 and not has_tools
    return "side" if asks_once and any(place.tools for place in others) else "agent"
