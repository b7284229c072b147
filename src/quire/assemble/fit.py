"""A request before any provider's format, with what it is made of: layers, sizes, reuse, what was left out."""

from __future__ import annotations

from typing import Literal

import msgspec

from quire.assemble.messages import SUMMARY_TURN, Epoch, History
from quire.assemble.policy import Policy
from quire.assemble.user_message import ItemBlock, UserMessage
from quire.tokens import tools_tokens
from quire.values import JsonObject, LeftOut, Prompt

# Which leaves stay at a rebase, which shrink to handles, which go: the deepest legal cut that keeps the floor.


class Cuts(msgspec.Struct, frozen=True):
    """leaves[opening:drop] go (but for a kept request), leaves[drop:handle] become handles, the rest is verbatim."""

    drop: int
    handle: int
    # The user leaf of the turn that is cut into, which stays.
    request: int | None
    summary_limit: int
    kept: int
    removed: int
    # Tokens in front of the first byte that the plan changes.
    same: int = 0
    opening: int = 0


class Rung(msgspec.Struct, frozen=True):
    """How hard to cut: what stays verbatim, and whether turns before the current one may be cut into.

    floor: the policy's floor. most: it cannot be had (one group of calls is too large), so the longest tail
    that fits. least: the part that is never cut. Of the opening, the whole, what still fits, or nothing.
    """

    keeps: Literal["floor", "most", "least"] = "floor"
    everywhere: bool = True
    summary: bool = True
    handles: bool = True
    opening: Literal["whole", "less", "none"] = "whole"


# Tried in order until the request fits: the policy's tiers, then inside older turns, then the floor with nothing
# between it and the opening, then a shorter opening, then less than the floor: what is newest gives way last.
RUNGS = (
    Rung(everywhere=False),
    Rung(),
    Rung(handles=False),
    Rung(handles=False, summary=False),
    Rung(handles=False, summary=False, opening="less"),
    Rung("most", handles=False, opening="none"),
    Rung("least", handles=False, opening="none"),
    Rung("least", handles=False, summary=False, opening="none"),
)


def plan(epoch: Epoch, policy: Policy, rung: Rung = RUNGS[0], head: int | None = None) -> Cuts:
    """The deepest legal cut that keeps the floor, and how far back the handle tier reaches."""
    strip, room = epoch.strip, room_of(epoch, policy, head)
    tier = policy.handles * room if rung.handles else 0
    handle = _verbatim_from(strip, policy, rung, room)
    opening = opening_within(epoch, _opening_room(strip, policy, rung, room, handle))
    handle = max(opening, handle)
    drop = strip.shallowest_handled(handle, tier, rung.everywhere) if tier else handle
    old = strip.leaves[opening : opening + 1]
    summed_up = bool(old) and old[0].turn == SUMMARY_TURN
    if drop <= opening + summed_up:
        drop = 0
    request = strip.turn_of(drop) if drop and drop not in strip.turn_starts else None
    if request is not None and request < opening:
        request = None
    asked = strip.leaves[request].tokens if request is not None else 0
    told = old[0].summary_tokens if summed_up else 0
    # What stands beside the old summary, pins say, is told in front again.
    pinned = old[0].tokens - told if summed_up else 0
    gone = strip.sums[drop] - strip.sums[opening] - asked - pinned if drop else 0
    # A tenth of what goes, beside the summary that already stands for what went before.
    limit = min(int(policy.summary * room), told + (gone - told) // 10) if rung.summary and drop else 0
    kept = strip.total - gone + limit - strip.shortened(max(opening, drop), handle)
    if not drop:
        same = strip.sums[strip.first_long(opening, handle)]
    else:
        same = strip.sums[opening] + (asked if request == opening and not limit and not summed_up else 0)
    return Cuts(drop, handle, request, limit, kept, strip.total - kept, same, opening)


def room_of(epoch: Epoch, policy: Policy, head: int | None = None) -> int:
    """What the budget leaves for messages beside what stands in front of them."""
    return max(0, min(policy.ceiling("L4"), policy.limit - (epoch.head_tokens() if head is None else head)))


def _opening_room(strip: History, policy: Policy, rung: Rung, room: int, tail: int) -> float:
    """The tokens that a rung leaves for the opening, where leaves[tail:] stay verbatim."""
    if rung.opening == "none":
        return 0
    most = policy.opening * room
    if rung.opening == "whole":
        return most
    request = strip.turn_of(tail)
    asked = strip.leaves[request].tokens if request is not None else 0
    left = room - (strip.total - strip.sums[tail]) - asked
    # Half of what is left, so that the next request fits as well.
    return max(0, min(most, left / 2))


def opening_within(epoch: Epoch, room: float) -> int:
    """How many of the first leaves stay: chosen at the first cut, and never more from then on."""
    strip = epoch.strip
    if not room or strip.total <= room or not (epoch.opening or epoch.whole):
        return 0
    if epoch.opening and strip.sums[epoch.opening] <= room:
        return epoch.opening
    return strip.front_within(room)


def _verbatim_from(strip: History, policy: Policy, rung: Rung, room: int) -> int:
    """The leaf from which on everything stays as it is."""
    if rung.keeps == "least":
        return strip.deepest_keeping(0, everywhere=True)
    if rung.keeps == "most":
        return strip.longest_within(room - (int(policy.summary * room) if rung.summary else 0))
    floor = policy.floor * room
    whole, deeper = (strip.deepest_keeping(floor, everywhere) for everywhere in (rung.everywhere, True))
    return deeper if strip.sums[deeper] - strip.sums[whole] > policy.slack * room else whole


NO_CUT = Cuts(0, 0, None, 0, 0, 0)


class Built(msgspec.Struct, frozen=True):
    """The fitted prompt of one request; `rebase` is the entry to record before it is sent."""

    prompt: Prompt
    turn: int
    step: int
    rebase: JsonObject | None
    head_tokens: int
    # Tokens of each message, in the prompt's order.
    sizes: tuple[int, ...]
    blocks: tuple[ItemBlock, ...]
    said: UserMessage | None
    # The current user's words, and the place of their message in the prompt.
    query: str
    user: int | None
    left_out: tuple[LeftOut, ...]

    @property
    def epoch(self) -> int:
        return self.prompt.epoch

    @property
    def tokens(self) -> int:
        return self.head_tokens + sum(self.sizes)


def build(
    epoch: Epoch,
    policy: Policy,
    number: tuple[int, int],
    record: JsonObject | None,
    left_out: tuple[LeftOut, ...],
) -> Built:
    """What stands in an epoch, as the request of this turn and step."""
    strip = epoch.strip
    user = strip.turn_starts[-1] if strip.turn_starts else None
    newest = strip.leaves[user].user if user is not None else None
    return Built(
        prompt=epoch.prompt(opening_within(epoch, policy.opening * room_of(epoch, policy))),
        turn=number[0],
        step=number[1],
        rebase=record,
        head_tokens=epoch.head_tokens(),
        sizes=tuple(strip.sizes),
        blocks=epoch.l2,
        said=epoch.said,
        query=newest.entry.text if newest else "",
        user=user,
        left_out=left_out,
    )


class Refused(msgspec.Struct, frozen=True):
    """A request that cannot fit: nothing is sent, and the reason is counted apart."""

    turn: int
    step: int
    error: str
    hint: str = ""


def reused_tokens(before: Built | None, now: Built) -> int:
    """Tokens of the longest common prefix of two requests, by whole messages."""
    if before is None or before.prompt.tools != now.prompt.tools:
        return 0
    if before.prompt.system != now.prompt.system:
        return tools_tokens(now.prompt.tools)
    reused = now.head_tokens
    for old, new, size in zip(before.prompt.messages, now.prompt.messages, now.sizes, strict=False):
        if old is not new and old != new:
            break
        reused += size
    return reused
