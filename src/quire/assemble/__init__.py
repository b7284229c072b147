"""From a log to a prompt that fits: selection, library and references, layers, budget, rebase. Pure.

Here stands how a thread is assembled: one frozen value, passed to every step and recorded by none of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from quire.errors import CallError
from quire.tokens import IMAGE_TOKENS
from quire.values import read_early

if TYPE_CHECKING:
    from quire.assemble.fit import Built, Refused, reused_tokens
    from quire.assemble.hindsight import ask, requests, unsent
    from quire.assemble.state import Assembly, Selection

__all__ = [
    "DROP_ONLY", "Assembly", "Built", "Policy", "Refused", "Selection", "ask", "requests", "reused_tokens",
    "unsent",
]  # fmt: skip

Promote = Literal["at-rebase", "each-turn"]
# How items are told: in tags, or under headings with code fences.
ItemForm = Literal["xml", "markdown"]
# rent: rebase when keeping has cost as much as cutting would (ski rental); full: only when the budget is reached.
When = Literal["rent", "full"]
_COUNTS = ("reply", "ttl_s", "unused_turns", "image_tokens")
# The most that older turns whose results are handles take where nobody says how much.
HANDLES = 0.2


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The budget and the choices; shares are of what the budget leaves beside system prompt and tools.

    floor: the newest tokens that always stay verbatim. handles: room for older turns whose tool results
    are cut to handles (None: as much as lets an epoch last as long as the prices say, 0.2 at most). summary: room for
    the summary of what went. opening: room for the thread's oldest entries, which stay verbatim and cached in front of
    what goes. read and write: prices relative to plain input (None: the model's). ttl_s: when an unused cache is cold
    (None: never).

    reply: tokens of the budget that are left to the reply. promote: when items move into the library. items: how they
    are told. when: what ends an epoch. model: the "provider:model" that is asked, where a thread does not say. thinking:
    whether old thoughts are told to a model that did not write them. late_tools: whether tools that come late stand where
    they came. unused_turns: after how many an item leaves the library. times: whether items tell when they were made.
    """

    budget: int = 128_000
    reply: int = 0
    promote: Promote = "at-rebase"
    items: ItemForm = "xml"
    when: When = "rent"
    floor: float = 0.25
    handles: float | None = None
    summary: float = 0.2
    opening: float = 0.0
    read: float | None = None
    write: float | None = None
    ttl_s: int | None = 300
    model: str = ""
    unused_turns: int = 20
    # What an image counts for; a model that takes none is told `[image]`.
    image_tokens: int = IMAGE_TOKENS
    late_tools: bool = False
    thinking: bool = False
    times: bool = False
    # What is recalled unasked, as a share of the budget: 0 nothing, None as the runner has it (a bare request nothing).
    recall: float | None = None
    # Optional ceilings for single layers, as shares of the budget: {"L2": 0.3}. What outgrows L2's leaves the
    # library at a rebase, what outgrows L4's makes one; L1, L3 and L5 cannot be cut and are refused.
    shares: dict[str, float] = {}

    def __post_init__(self) -> None:
        _check_kinds(self)
        if negative := [name for name in _COUNTS if (getattr(self, name) or 0) < 0]:
            given = ", ".join(f"{name} {getattr(self, name)}" for name in negative)
            raise CallError(f"{given} cannot be less than nothing", hint="Give 0 or more.")
        if self.budget - self.reply < 1:
            raise CallError(
                f"budget {self.budget} leaves nothing beside {self.reply} tokens for the reply",
                hint="Raise the budget or ask for a shorter reply.",
            )
        handles = self.handles or 0.0
        tiers = {"handles": handles, "summary": self.summary, "opening": self.opening}
        if not 0 < self.floor <= 1 or not all(share >= 0 for share in tiers.values()):
            raise CallError(
                f"floor {self.floor}, {_list_shares(tiers)} are not shares",
                hint="floor lies in (0, 1]; the others are at least 0.",
            )
        if self.floor + handles + self.opening > 1:
            del tiers["summary"]
            raise CallError(
                f"floor {self.floor}, {_list_shares(tiers)} add up to more than the budget",
                hint="Their sum is at most 1; the rest is the room in which the thread grows.",
            )
        if not all(math.isfinite(price) and price >= 0 for price in self.prices):
            raise CallError(
                f"read {self.prices[0]}, write {self.prices[1]} are not prices",
                hint="They are relative to plain input, such as 0.1 and 1.25.",
            )
        if self.recall is not None and not 0 <= self.recall <= 0.5:
            raise CallError(f"recall {self.recall} is no share of the budget", hint="It lies in 0 to 0.5.")
        unknown = set(self.shares) - {"L1", "L2", "L3", "L4", "L5"}
        if unknown or not all(0 < share <= 1 for share in self.shares.values()):
            raise CallError(
                f"shares {self.shares} are not shares of layers", hint='Write them as {"L2": 0.3, "L4": 0.5}.'
            )

    @property
    def prices(self) -> tuple[float, float]:
        """What a cached token and a written one cost; where nobody says, as most models have it."""
        return 0.1 if self.read is None else self.read, 1.25 if self.write is None else self.write

    @property
    def summary_share(self) -> float:
        """The summary's share: at most half of what the other tiers leave, so that the thread has room to grow."""
        return min(self.summary, (1 - self.floor - self.handles_most - self.opening) / 2)

    @property
    def handles_most(self) -> float:
        """The largest share that handles may take."""
        return min(HANDLES, 1 - self.floor - self.opening) if self.handles is None else self.handles

    def ceiling(self, layer: str) -> int:
        """The tokens that one layer may hold."""
        return int(self.shares.get(layer, 1.0) * self.limit)

    def fits(self, head: int, messages: int) -> bool:
        """Whether a request of these sizes keeps the budget and the history its share."""
        return head + messages <= self.limit and messages <= self.ceiling("L4")

    @property
    def limit(self) -> int:
        """The tokens that one request may hold."""
        return self.budget - self.reply


# The fields of a policy and their kinds, without its rules.
_FIELDS = [(field.name, field.type) for field in msgspec.structs.fields(Policy)]
_KINDS = read_early(msgspec.defstruct("PolicyKinds", _FIELDS))


def _check_kinds(policy: Policy) -> None:
    """Each choice is of its kind, so that budget="16000" is refused here and not where it is used."""
    try:
        msgspec.convert(policy, _KINDS, from_attributes=True)
    except msgspec.ValidationError as error:
        expected, _, name = str(error).partition(" - at `$.")
        name = name.rstrip("`").partition("[")[0]
        choices = {"promote": Promote, "items": ItemForm, "when": When}.get(name)
        hint = f"Use {' or '.join(map(repr, get_args(choices)))}." if choices else f"{expected}."
        raise CallError(f"a policy's {name} cannot be {getattr(policy, name)!r}", hint=hint) from None


def _list_shares(shares: dict[str, float]) -> str:
    return ", ".join(f"{name} {share}" for name, share in shares.items())


# What other designs do, as values of the same policy.
DROP_ONLY = Policy(floor=0.5, handles=0.0, summary=0.0)


# Where the other names stand; loaded when first used, so that whoever only needs a policy does not wait for all.
_HOMES = {
    "fit": ("Built", "Refused", "reused_tokens"),
    "hindsight": ("ask", "requests", "unsent"),
    "state": ("Assembly", "Selection"),
}


if not TYPE_CHECKING:  # a checker that saw it would take any name for one of these

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        for home, names in _HOMES.items():
            if name in names:
                return getattr(import_module(f"quire.assemble.{home}"), name)
        raise AttributeError(f"module 'quire.assemble' has no attribute {name!r}")
