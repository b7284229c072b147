"""What all of it comes to: by conversation, by cause, in tokens and in money."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quire.audit.causes import CAUSES, Verdict, verdict
from quire.audit.conversations import Conversation, ConversationKind, conversations
from quire.audit.read import SentCall
from quire.errors import QuireError
from quire.providers.prefix import Unit
from quire.providers.usage import cost
from quire.tokens import counter
from quire.values import JsonObject


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


class Audited(msgspec.Struct, frozen=True):
    """One conversation with its losses."""

    name: str
    kind: ConversationKind
    spent: Spent
    verdicts: tuple[Verdict, ...]
    # Whether the requests themselves were kept, or their usage alone.
    bodies: bool


class Report(msgspec.Struct, frozen=True):
    """Everything that was audited; conversations that lost most come first."""

    total: Spent
    conversations: tuple[Audited, ...]

    @property
    def by_cause(self) -> dict[str, Spent]:
        """What each cause lost, the dearest first."""
        out: dict[str, Spent] = {}
        for audited in self.conversations:
            for found in audited.verdicts:
                row = out.setdefault(found.cause, Spent())
                row += Spent(1, lost=found.lost, lost_usd=found.usd or 0.0)
        return dict(sorted(out.items(), key=lambda item: (-item[1].lost_usd, -item[1].lost)))

    def as_json(self) -> JsonObject:
        causes = [
            {"cause": cause, "what": CAUSES[cause][0], "fix": CAUSES[cause][1], **spent.as_json()}
            for cause, spent in self.by_cause.items()
        ]
        rows = [
            {
                "name": audited.name,
                "kind": audited.kind,
                "bodies": audited.bodies,
                **audited.spent.as_json(),
                "losses": [msgspec.to_builtins(found) for found in audited.verdicts],
            }
            for audited in self.conversations
        ]
        return {"total": self.total.as_json(), "causes": causes, "conversations": rows}


def audit(calls: Iterable[SentCall]) -> Report:
    """What recorded calls lost of the provider's cache, and why."""
    audited = [_audited(found) for found in conversations(calls)]
    total = Spent()
    for each in audited:
        total += each.spent
    return Report(total, tuple(sorted(audited, key=lambda each: (-each.spent.lost_usd, -each.spent.lost))))


def _audited(conversation: Conversation) -> Audited:
    spent, verdicts, sizes = Spent(), list[Verdict](), dict[str, int]()
    before: int | None = None
    for place, call in enumerate(conversation.calls):
        spent += _of(call)
        if call.usage is None:
            continue
        if before is not None:
            pair = conversation.units[before], conversation.units[place]
            found = verdict(conversation.calls[before], call, pair, lambda unit: _size(unit, sizes))
            verdicts += [found] if found is not None else []
        before = place
    for found in verdicts:
        spent.lost += found.lost
        spent.lost_usd += found.usd or 0.0
    bodies = any(call.body for call in conversation.calls)
    return Audited(conversation.name, conversation.kind, spent, tuple(verdicts), bodies)


def _of(call: SentCall) -> Spent:
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


def _size(unit: Unit, known: dict[str, int]) -> int:
    """About how many tokens a unit has; each is counted once."""
    key = "".join(unit.hashes)
    if key not in known:
        known[key] = counter().count(b"".join(unit.lines).decode())
    return known[key]
