"""What stands in one epoch: L1, tools, the library folded into L2, and the leaves behind them."""

from __future__ import annotations

from bisect import bisect_right

from quire.assemble.blocks import Block
from quire.assemble.leaves import Leaf, leaf
from quire.assemble.policy import Policy
from quire.assemble.references import Library
from quire.assemble.strip import Strip
from quire.assemble.turn import Said, UserTurn, say
from quire.tokens import text_tokens, tools_tokens
from quire.values import Entry, JsonObject, Prompt

SUMMARY_TURN = -1


class Epoch:
    """The derived state of an epoch; a function of the entries and the policy, kept to be extended."""

    def __init__(self) -> None:
        self.number = 1
        self.l1: list[str] = []
        self.tools: tuple[JsonObject, ...] = ()
        self.l2: tuple[Block, ...] = ()
        self.known = Library()
        self.strip = Strip()
        # How many of the first leaves are the thread's opening, which every rebase lets stand.
        self.opening = 0
        # Whether no rebase has dropped anything yet.
        self.whole = True
        # How many leaves stood when the epoch began, and how many were in the newest request.
        self.fold = 0
        self.sent = 0
        # How many leaves each of its requests had that went by.
        self.ends: list[int] = []
        # The newest turn's L3, for the envelope.
        self.said: Said | None = None
        self._head: tuple[object, int] = ((), 0)

    def copy(self) -> Epoch:
        twin = Epoch()
        twin.__dict__.update(self.__dict__)
        twin.l1, twin.known, twin.strip = self.l1[:], self.known.copy(), self.strip.copy()
        twin.ends = self.ends[:]
        return twin

    def pass_by(self) -> None:
        """A request goes by that holds everything so far."""
        self.sent = len(self.strip.leaves)
        if self.ends[-1:] != [self.sent]:
            self.ends.append(self.sent)

    @property
    def l1_text(self) -> str:
        return "\n\n".join(part for part in self.l1 if part)

    @property
    def l2_text(self) -> str:
        return "\n\n".join(one.text for one in self.l2)

    def prompt(self, opening: int = 0) -> Prompt:
        """Everything that the request at this point says."""
        return Prompt(
            self.l1_text,
            self.l2_text,
            self.tools,
            tuple(self.strip.messages),
            epoch=self.number,
            fold=self.fold,
            stable=self.sent,
            opening=opening,
            ends=tuple(self.ends[: bisect_right(self.ends, self.sent)]),
        )

    def head_tokens(self) -> int:
        """Tokens in front of the messages: tools, system prompt, library; counted again only when they change."""
        key = (tuple(self.l1), self.l2, self.tools)
        if self._head[0] != key:
            system = self.prompt().system
            self._head = (key, (text_tokens(system) if system else 0) + tools_tokens(self.tools))
        return self._head[1]

    def total_tokens(self) -> int:
        return self.head_tokens() + self.strip.total

    def say(self, turn: UserTurn, number: int, policy: Policy) -> Leaf:
        """Place a user turn, referring to what the model has."""
        self.said = say(turn, self.known, number, policy.promote)
        one = leaf(self.said.message, number, user=turn, image_tokens=policy.image_tokens)
        self.strip.add(one)
        return one


def ordered(tools: dict[str, JsonObject]) -> tuple[JsonObject, ...]:
    """Tools in name order, as they are frozen for an epoch."""
    return tuple(tools[name] for name in sorted(tools))


def merge_tools(known: dict[str, JsonObject], entry: Entry) -> dict[str, JsonObject]:
    """The tools after a `tools` entry: they join by name; meta.replace makes them the whole set."""
    joined = {} if entry.meta.get("replace") else dict(known)
    joined.update({tool["name"]: tool for tool in entry.tools})
    return joined
