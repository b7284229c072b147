"""What the model has been given, by identity: decides between a reference, a new block and an update."""

from __future__ import annotations

from collections.abc import Iterable

from quire.assemble.blocks import Block, shown, update
from quire.assemble.policy import Promote

_FIND = {
    "each-turn": "Find them in the Context Library above.",
    "at-rebase": "Find them above in this conversation.",
}


class Library:
    """The versions that stand in front of the model; ids keep the order in which they were first seen."""

    def __init__(self) -> None:
        self.has: dict[str, Block] = {}
        # The turn in which an identity was last attached, so that a rebase can let old ones go.
        self.used: dict[str, int] = {}

    def copy(self) -> Library:
        twin = Library()
        twin.has, twin.used = dict(self.has), dict(self.used)
        return twin

    def place(self, blocks: Iterable[Block], turn: int, promote: Promote) -> tuple[list[str], list[str]]:
        """What one turn says of its items: identities referred to, and texts shown in full or as updates.

        Refers to an item if and only if the model already has exactly this content.
        """
        references: list[str] = []
        texts: list[str] = []
        for one in blocks:
            old = self.has.get(one.id)
            if old is not None and old.sha256 == one.sha256:
                references.append(shown(one.id))
            else:
                texts.append(one.text if old is None else update(one, old))
            # Each-turn takes this turn's context out again at the next one: only promotion makes it known.
            if promote == "at-rebase":
                self.has[one.id] = one
            self.used[one.id] = turn
        return references, texts


def references(ids: list[str], promote: Promote) -> str:
    """The lines that name items the model already has."""
    if not ids:
        return ""
    return "\n".join(["Context attached:", *(f"- {id}" for id in ids), _FIND[promote]])


def unique(blocks: Iterable[Block]) -> list[Block]:
    """One block per identity, the last given wins, in first-seen order."""
    last: dict[str, Block] = {}
    for one in blocks:
        last[one.id] = one
    return list(last.values())
