"""Nothing that is left out goes unexplained: the entries that no request holds any more, each with its reason."""

from __future__ import annotations

from collections.abc import Container

from quire.assemble.messages import Epoch, PlacedMessage
from quire.assemble.policy import Promote
from quire.assemble.user_message import query_alone
from quire.items import identity
from quire.log.hashing import sha256_hex
from quire.values import JsonObject, LeftOut

Version = tuple[str, str]


class LeftOutLog:
    """One reason for each entry; what an entry attached counts as shown while the library holds it."""

    def __init__(self) -> None:
        self.left: dict[int, LeftOut] = {}
        # Whether a twin looks at the same reasons, which must then be copied before they change.
        self._shared = False
        self._all: tuple[LeftOut, ...] | None = ()
        # The item that each `attach` entry brought.
        self.attached: dict[int, Version] = {}

    def restore(self, left: dict[int, LeftOut], attached: dict[int, Version]) -> None:
        """Go on from reasons that were found before."""
        self.left, self.attached, self._all = left, attached, None

    def copy(self) -> LeftOutLog:
        self._all = self.all
        self._shared = True
        twin = LeftOutLog()
        twin.__dict__.update(self.__dict__)
        return twin

    @property
    def all(self) -> tuple[LeftOut, ...]:
        if self._all is None:
            self._all = tuple(self.left.values())
        return self._all

    def leave(self, seq: int, reason: str) -> None:
        if seq not in self.left:
            self._own()[seq] = LeftOut(seq, reason)

    def _own(self) -> dict[int, LeftOut]:
        """The reasons, to be changed."""
        if self._shared:
            self.left, self._shared = dict(self.left), False
        self._all = None
        return self.left

    def attach(self, seq: int, item: JsonObject) -> None:
        """An item that waited has been said."""
        self.attached[seq] = identity(item), item.get("sha256") or sha256_hex(item["content"])

    def rebased(
        self, old: Epoch, new: Epoch, reason: str, turn: int, promote: Promote, results: Container[int]
    ) -> None:
        """What a rebase took away, in messages and in the library; `results` do not fold into L1, as notes do."""
        shown, held = _seqs(new), _versions(new)
        if promote == "each-turn":
            self._leave_context(old, shown, held, turn)
        for message in old.strip.messages:
            for seq in message.seqs:
                folds = message.role in ("note", "tools") and seq not in results
                if seq not in shown and not folds and self.attached.get(seq) not in held:
                    self.leave(seq, f"rebase into epoch {new.number} ({reason})")
        self._follow_library(_versions(old), held, _showing(new, turn, promote))

    def _follow_library(self, before: set[Version], held: set[Version], shown: set[int]) -> None:
        """Items that left the library are explained, unless a message shows them; those back in it need not be."""
        for seq, version in self.attached.items():
            if version in held:
                self._own().pop(seq, None)
            elif version in before and seq not in shown:
                self.leave(seq, "its item left the library: unused for long, changed, or beyond its share")

    def _leave_context(self, old: Epoch, shown: set[int], held: set[Version], turn: int) -> None:
        """Each-turn keeps an earlier turn's query alone: its tool outputs and unpromoted items are explained."""
        for user in (
            placed.user for placed in old.strip.leaves if placed.user and holds_context(placed, turn)
        ):
            for seq in user.seqs if user.entry.seq in shown else ():
                if seq not in shown and self.attached.get(seq) not in held:
                    self.leave(seq, "context of an earlier turn, which keeps its query alone")


def holds_context(placed: PlacedMessage, turn: int) -> bool:
    """Whether an earlier turn's message still says more than its query."""
    return placed.user is not None and placed.turn < turn and placed.message != query_alone(placed.user)


def _seqs(epoch: Epoch) -> set[int]:
    return {seq for message in epoch.strip.messages for seq in message.seqs}


def _versions(epoch: Epoch) -> set[Version]:
    return {(block.id, block.sha256) for block in epoch.l2}


def _showing(epoch: Epoch, turn: int, promote: Promote) -> set[int]:
    """The entries whose items a message may still show: each-turn keeps them in the newest turn alone."""
    told = [placed for placed in epoch.strip.leaves if promote == "at-rebase" or placed.turn == turn]
    return {seq for placed in told for seq in placed.message.seqs}
