"""Which requests belong together, by the names that clients give or by the messages they share; and what each lost.

Of a conversation only the newest request is kept: logs may be larger than memory.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from quire.audit.causes import Verdict, verdict
from quire.audit.read import SentCall
from quire.errors import QuireError
from quire.providers.prefix import Unit
from quire.providers.simulate.blocks import blocks_of, continues
from quire.providers.usage import cost
from quire.providers.wires import wire_of
from quire.tokens import counter
from quire.values import JsonObject

ConversationKind = Literal["main", "side", "agent"]


class Spent(msgspec.Struct):
    """Tokens and money of some requests; `lost` could have been read from the cache and was not."""

    requests: int = 0
    input: int = 0
    read: int = 0
    written: int = 0
    lost: int = 0
    usd: float = 0.0
    lost_usd: float = 0.0
    # Requests whose usage, or whose price, is not known: they are in no other figure.
    untold: int = 0
    unpriced: int = 0

    @property
    def reuse(self) -> float:
        """The share of what could have been read that was; 1 where there was nothing to read."""
        return self.read / (self.read + self.lost) if self.read + self.lost else 1.0

    def __iadd__(self, other: Spent) -> Spent:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def as_json(self) -> JsonObject:
        return {**msgspec.to_builtins(self), "reuse": round(self.reuse, 4)}


class WatchedConversation:
    """Requests of one conversation in the order they were sent: what they used, and what they lost."""

    def __init__(self, name: str, session: str, kind: ConversationKind = "main") -> None:
        self.name, self.session, self.kind = name, session, kind
        self.spent = Spent()
        self.verdicts: list[Verdict] = []
        # Whether the requests themselves were kept, or their usage alone.
        self.bodies = False
        # What its requests said, by hash.
        self.messages: set[str] = set()
        self.has_tools = False
        self._before: tuple[SentCall, tuple[Unit, ...]] | None = None
        self._sizes: dict[str, int] = {}

    def add(self, call: SentCall, units: tuple[Unit, ...]) -> Verdict | None:
        """One more request; what it lost against the one before it, if anything."""
        self.spent += _spent(call)
        self.bodies = self.bodies or bool(call.body)
        self.has_tools = self.has_tools or any(unit.section == "tools" for unit in units)
        if call.usage is None:
            return None
        found = None
        if self._before is not None:
            found = verdict(self._before[0], call, (self._before[1], units), self._size)
        if found is not None:
            self.verdicts.append(found)
            self.spent.lost += found.lost
            self.spent.lost_usd += found.usd or 0.0
        self._before = call, units
        return found

    def goes_on(self, units: tuple[Unit, ...]) -> bool:
        """Whether a request goes on with the newest one here, wherever its bytes moved."""
        if self._before is None:
            return True
        old, new = ([block for unit in row for block in blocks_of(unit)] for row in (self._before[1], units))
        return continues(old, new)

    def _size(self, unit: Unit) -> int:
        """About how many tokens a unit has; each is counted once."""
        key = "".join(unit.hashes)
        if key not in self._sizes:
            self._sizes[key] = counter().count(b"".join(unit.lines).decode())
        return self._sizes[key]


class Grouping:
    """Puts calls into conversations as they come; what is asked beside one (a title, a summary) stands apart."""

    def __init__(self) -> None:
        self.conversations: list[WatchedConversation] = []
        # Which conversations hold a message, and which one a session's usage belongs to.
        self._holders: dict[str, list[int]] = {}
        self._by_session: dict[tuple[str, str], int] = {}

    def add(self, call: SentCall) -> tuple[WatchedConversation, Verdict | None]:
        """The conversation that a call goes on with, or begins, and what it lost."""
        units = tuple(wire_of(call.provider, call.body).layout.units(call.body)) if call.body else ()
        messages = [hash for unit in units if unit.section == "messages" for hash in unit.hashes]
        at = self._place(call, messages, units)
        if at is None:
            at = len(self.conversations)
            self.conversations.append(
                WatchedConversation(call.session or call.source, call.session, self._kind(call, units))
            )
            if not call.body:
                self._by_session[call.session, call.agent] = at
        conversation = self.conversations[at]
        for hash in set(messages) - conversation.messages:
            self._holders.setdefault(hash, []).append(at)
        conversation.messages.update(messages)
        return conversation, conversation.add(call, units)

    def _place(self, call: SentCall, messages: list[str], units: tuple[Unit, ...]) -> int | None:
        """The conversation that shares most of a call's messages."""
        if not call.body:
            return self._by_session.get((call.session, call.agent))
        votes = Counter(at for hash in dict.fromkeys(messages) for at in self._holders.get(hash, ())[-8:])
        same = {at: count for at, count in votes.items() if self.conversations[at].session == call.session}
        # A question for a title repeats the user's first message under instructions of its own.
        going_on = (at for at in same if same[at] > 1 or self.conversations[at].goes_on(units))
        best = max(going_on, key=lambda at: (same[at], at), default=None)
        if best is None:
            return None
        # One message in common, of several, is a coincidence: "continue", an equal greeting.
        enough = same[best] >= min(2, len(set(messages))) or len(self.conversations[best].messages) <= 2
        return best if enough else None

    def _kind(self, call: SentCall, units: tuple[Unit, ...]) -> ConversationKind:
        """Whether something new in a session is asked beside it, or is another agent's work."""
        others = [each for each in self.conversations if each.session == call.session]
        if call.agent:
            return "agent"
        if not call.session or not others:
            return "main"
        has_tools = any(unit.section == "tools" for unit in units)
        asks_once = sum(unit.section == "messages" for unit in units) <= 2 and not has_tools
        return "side" if asks_once and any(each.has_tools for each in others) else "agent"


def _spent(call: SentCall) -> Spent:
    if call.usage is None:
        return Spent(requests=1, untold=1)
    used = call.usage
    try:
        money = cost(used, f"{call.provider}:{call.model}", call.at_ms).amount_usd
    except QuireError:
        money = None
    return Spent(
        requests=1,
        input=used.input_total,
        read=used.cache_read,
        written=used.cache_write_5m + used.cache_write_1h,
        usd=money or 0.0,
        unpriced=int(money is None),
    )
