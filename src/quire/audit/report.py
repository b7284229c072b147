"""What all of it comes to: by conversation, by cause, in tokens and in money."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quire.audit.causes import CAUSES
from quire.audit.conversations import Grouping, Spent, WatchedConversation
from quire.audit.read import SentCall
from quire.values import JsonObject


class AuditReport(msgspec.Struct, frozen=True):
    """Everything that was audited; conversations that lost most come first."""

    total: Spent
    conversations: tuple[WatchedConversation, ...]

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


def audit(calls: Iterable[SentCall]) -> AuditReport:
    """What recorded calls lost of the provider's cache, and why."""
    grouping, total = Grouping(), Spent()
    for call in calls:
        grouping.add(call)
    for each in grouping.conversations:
        total += each.spent
    worst = sorted(grouping.conversations, key=lambda each: (-each.spent.lost_usd, -each.spent.lost))
    return AuditReport(total, tuple(worst))
