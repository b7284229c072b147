"""A request before any provider's format, with what it is made of: layers, sizes, reuse, what was left out."""

from __future__ import annotations

import msgspec

from quire.assemble.blocks import Block
from quire.assemble.epoch import Epoch
from quire.assemble.plan import opening_within, room_of
from quire.assemble.policy import Policy
from quire.assemble.turn import Said
from quire.tokens import tools_tokens
from quire.values import JsonObject, LeftOut, Prompt


class Built(msgspec.Struct, frozen=True):
    """The fitted prompt of one request; `rebase` is the entry to record before it is sent."""

    prompt: Prompt
    turn: int
    step: int
    rebase: JsonObject | None
    head_tokens: int
    # Tokens of each message, in the prompt's order.
    sizes: tuple[int, ...]
    blocks: tuple[Block, ...]
    said: Said | None
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
