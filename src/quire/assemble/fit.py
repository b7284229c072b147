"""A request before any provider's format, with what it is made of: layers, sizes, reuse, what was left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from quire.assemble import Policy, Promote
from quire.assemble.messages import SUMMARY_TURN, Epoch, History
from quire.assemble.user_message import ItemBlock, UserMessage, normal, references, user_text
from quire.errors import BudgetError
from quire.providers.prefix import same_start
from quire.tokens import counter, text_tokens, tools_tokens
from quire.values import (
    LAYERS,
    Envelope,
    JsonObject,
    Layer,
    LayerId,
    LeftOut,
    Message,
    Prompt,
    Segment,
    Text,
    canonical,
    sha256_hex,
)

# Which leaves stay at a rebase, which shrink to handles, which go: the deepest legal cut that keeps the floor.


class Cuts(msgspec.Struct, frozen=True):
    """leaves[opening:drop] go (but for a kept request), leaves[drop:handle] become handles, the rest is verbatim."""

    drop: int
    handle: int
    # The user leaf of the turn that is cut into, which stays.
    request: int | None
    # How long the summary may be, and how long with all that the user demanded.
    summary_limit: int
    summary_most: int
    kept_tokens: int
    removed_tokens: int
    # Tokens in front of the first byte that the plan changes.
    same: int = 0
    opening: int = 0


class Rung(msgspec.Struct, frozen=True):
    """How hard to cut: what stays verbatim, and whether the handle tier may begin inside an older turn.

    floor: the policy's floor. most: it cannot be had (one group of calls is too large), so the longest tail
    that fits. least: the part that is never cut. Of the opening, the whole, what still fits, or nothing. Of the
    summary the whole, what the user demanded, or nothing.
    """

    keeps: Literal["floor", "most", "least"] = "floor"
    everywhere: bool = True
    summary: Literal["whole", "demands", "none"] = "whole"
    handles: bool = True
    opening: Literal["whole", "less", "none"] = "whole"


# Tried in order until the request fits: the policy's tiers, then inside older turns, then the floor with nothing
# between it and the opening, then a shorter opening, then less than the floor: what is newest gives way last.
RUNGS = (
    Rung(everywhere=False),
    Rung(),
    Rung(handles=False),
    Rung(handles=False, summary="demands"),
    Rung(handles=False, summary="demands", opening="less"),
    Rung("most", opening="none"),
    Rung("most", handles=False, opening="none"),
    Rung("least", handles=False, opening="none"),
    Rung("least", handles=False, summary="demands", opening="none"),
    Rung("least", handles=False, summary="none", opening="none"),
)
# Beyond this a summary names what is hardly named again; what the user demanded takes at most this share of the messages.
SUMMARY_MOST, DEMANDS = 6_000, 0.5
# Five times the definition of the tool that reads behind handles: it is read with each request, as they are.
_OFFER = 900


def plan(epoch: Epoch, policy: Policy, rung: Rung = RUNGS[0], head: int | None = None) -> Cuts:
    """The deepest legal cut that keeps the floor, and how far back the handle tier reaches."""
    history, room = epoch.history, room_of(epoch, policy, head)
    handle, tier = _tiers(epoch, policy, rung, room)
    opening = opening_within(epoch, _opening_room(history, policy, rung, room, handle))
    handle = max(opening, handle)
    drop = history.shallowest_handled(handle, tier, rung.everywhere) if tier else handle
    old = history.leaves[opening : opening + 1]
    summed_up = bool(old) and old[0].turn == SUMMARY_TURN
    if drop <= opening + summed_up:
        drop = 0
    request = history.turn_of(drop) if drop and drop not in history.turn_starts else None
    if request is not None and request < opening:
        request = None
    request_tokens = history.leaves[request].tokens if request is not None else 0
    summary_tokens = old[0].summary_tokens if summed_up else 0
    # Pinned words beside the old summary are repeated in front.
    pinned = old[0].tokens - summary_tokens if summed_up else 0
    removed = history.sums[drop] - history.sums[opening] - request_tokens - pinned if drop else 0
    limit, most = _summary_limits(policy, rung, room, summary_tokens, removed - summary_tokens) if drop else (0, 0)
    tokens_after = history.total - removed + limit - history.tokens_freed(max(opening, drop), handle)
    if not drop:
        same = history.sums[history.first_long(opening, handle)]
    else:
        same = history.sums[opening] + (request_tokens if request == opening and not limit and not summed_up else 0)
    return Cuts(drop, handle, request, limit, most, tokens_after, history.total - tokens_after, same, opening)


def _handle_tier(epoch: Epoch, policy: Policy, room: int) -> float:
    """The room for handles: the policy's share, or what floor and summary leave of what a cut may keep.

    With the first handle a tool is offered that reads what stands behind it. That writes the head anew, and is read
    with each request from then on: a tier that is smaller than this is not worth it.
    """
    if policy.handles is not None:
        return policy.handles * room
    summary = min(policy.summary_share * room, SUMMARY_MOST)
    rest = (lasting(epoch.growth(), room, policy) - policy.floor) * room - summary
    tier = max(0.0, min(policy.handles_most * room, rest))
    offered = any(tool["name"] == "recall" for tool in epoch.tools)
    return tier if offered or tier > epoch.head_tokens() + _OFFER else 0


def lasting(growth: float, room: int, policy: Policy) -> float:
    """The share of the room that a cut may keep so that the epoch behind it lasts as long as the prices say.

    An epoch that begins at a share k and grows by t with each request until the room is full costs, a request,
    r(1 + k)/2 for being read and (w - r)tk/(1 - k) for its beginning being written anew. Of the last token that is
    kept, the second costs as much as the first at (1 - k)² = 2t(w - r)/r; whatever is kept beyond that costs more.
    """
    read, write = policy.prices
    if write <= read or not room:
        return 1.0
    return 1 - math.sqrt(2 * growth / room * (write / read - 1)) if read else 0.0


def _summary_limits(policy: Policy, rung: Rung, room: int, summary_tokens: int, removed: int) -> tuple[int, int]:
    """How long the summary may be, and how long with all demands: its share, but no more than half of what goes.

    What stands already for what went before is not taken back, where demands have made it longer.
    """
    if not policy.summary or rung.summary == "none":
        return 0, 0
    if rung.summary == "demands":
        return 0, int(DEMANDS * room)
    limit = min(int(policy.summary_share * room), SUMMARY_MOST, summary_tokens + removed // 2)
    return max(limit, min(summary_tokens, int(DEMANDS * room))), int(DEMANDS * room)


def room_of(epoch: Epoch, policy: Policy, head: int | None = None) -> int:
    """What the budget leaves for messages beside what stands in front of them."""
    return max(0, min(policy.ceiling("L4"), policy.limit - (epoch.head_tokens() if head is None else head)))


def _opening_room(history: History, policy: Policy, rung: Rung, room: int, tail: int) -> float:
    """The tokens that a rung leaves for the opening, where leaves[tail:] stay verbatim."""
    if rung.opening == "none":
        return 0
    most = policy.opening * room
    if rung.opening == "whole":
        return most
    request = history.turn_of(tail)
    request_tokens = history.leaves[request].tokens if request is not None else 0
    rest = room - (history.total - history.sums[tail]) - request_tokens
    # Half of what is left, so that the next request fits as well.
    return max(0, min(most, rest / 2))


def opening_within(epoch: Epoch, room: float) -> int:
    """How many of the first leaves stay: chosen at the first cut, and never more from then on."""
    history = epoch.history
    if not room or history.total <= room or not (epoch.opening or epoch.whole):
        return 0
    if epoch.opening and history.sums[epoch.opening] <= room:
        return epoch.opening
    return history.front_within(room)


def _tiers(epoch: Epoch, policy: Policy, rung: Rung, room: int) -> tuple[int, float]:
    """The first leaf of the verbatim part, and the tokens for handles in front of it."""
    history = epoch.history
    tier = _handle_tier(epoch, policy, room) if rung.handles else 0
    if rung.keeps == "floor":
        return history.deepest_keeping(policy.floor * room), tier
    if rung.keeps == "least":
        return history.deepest_keeping(0), tier
    rest = room - int(policy.summary_share * room)
    start = history.longest_within(rest)
    # Only a leaf that is too large to stay, such as a document, becomes a handle.
    large = history.legal_at_or_before(history.last_beyond(rest))
    short = history.handled[start] - history.handled[large]
    if short > policy.handles_most * room * rung.handles or not history.tokens_freed(large, start):
        return start, 0
    start = history.longest_within(rest - short)
    return start, history.handled[start] - history.handled[large]


NO_CUT = Cuts(0, 0, None, 0, 0, 0, 0)


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
    user_message: UserMessage | None
    # The current user's words, and the place of their message in the prompt.
    query: str
    user: int | None
    left_out: Sequence[LeftOut]
    # The budget in the tokens that sizes are counted in: a model that counts otherwise leaves more room, or less.
    limit: int = 0

    @property
    def epoch(self) -> int:
        return self.prompt.epoch

    @property
    def tokens(self) -> int:
        return self.head_tokens + sum(self.sizes)

    def sized_messages(self, start: int = 0) -> Iterator[tuple[Message, int]]:
        """The messages from a place on, each with its tokens."""
        return zip(self.prompt.messages[start:], self.sizes[start:], strict=True)


def build(
    epoch: Epoch, policy: Policy, number: tuple[int, int], record: JsonObject | None, left_out: Sequence[LeftOut]
) -> Built:
    """An epoch's messages as the request of this turn and step."""
    history = epoch.history
    user = history.turn_starts[-1] if history.turn_starts else None
    newest = history.leaves[user].user if user is not None else None
    return Built(
        prompt=epoch.prompt(opening_within(epoch, policy.opening * room_of(epoch, policy))),
        turn=number[0],
        step=number[1],
        rebase=record,
        head_tokens=epoch.head_tokens(),
        sizes=tuple(history.sizes),
        blocks=epoch.l2,
        user_message=epoch.user_message,
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
    return now.head_tokens + sum(now.sizes[: same_start(before.prompt.messages, now.prompt.messages)])


# The five layers of a request as an envelope: segments with hashes, and tokens per layer.


def segment(id: str, content: str, stable: bool = True, **metadata: object) -> Segment:
    return Segment(id, content, sha256_hex(content), stable, dict(metadata))


def layer(id: LayerId, segments: Iterable[Segment]) -> Layer:
    """A layer's text is its non-empty segments with a blank line between."""
    listed = tuple(segments)
    text = "\n\n".join(segment.content for segment in listed if segment.content)
    return Layer(id, listed, text, sha256_hex(text))


def envelope(layers: Iterable[Layer]) -> Envelope:
    """Always five layers; the combined hash is over those that say something."""
    by_id = {layer.id: layer for layer in layers}
    five = tuple(by_id.get(id) or layer(id, ()) for id in LAYERS)
    return Envelope(five, sha256_hex("\n\n".join(layer.text for layer in five if layer.text)))


def enclose(built: Built, messages: Sequence[JsonObject]) -> Envelope:
    """The envelope of a built request; `messages` are its messages in wire form, system message left out."""
    place = current_place(built, messages)
    others = enumerate((message for n, message in enumerate(messages) if n != place), 1)
    history = [segment(f"message-{n}", canonical(message).decode(), role=message.get("role")) for n, message in others]
    # With its place, from which the request can be put together again.
    current = {"place": place, "message": messages[place]} if place >= 0 else {}
    return envelope(
        [
            layer("L1_SYSTEM", [_system_segment(built.prompt)]),
            layer("L2_PREVIOUS", [segment(block.id, block.text, sha256=block.sha256) for block in built.blocks]),
            layer("L3_TURN", _turn_segments(built)),
            layer("L4_STRIP", history),
            layer("L5_USER", [segment("query", built.query, stable=False, **current)]),
        ]
    )


def _system_segment(prompt: Prompt) -> Segment:
    """L1 with the tools, and with the texts that it came as where they are several messages on the wire."""
    system = segment("system", prompt.l1, tools=list(prompt.tools))
    if len(prompt.systems) < 2:
        return system
    return msgspec.structs.replace(system, metadata={**system.metadata, "heads": list(prompt.heads)})


def rebuild(sealed: Envelope) -> tuple[list[JsonObject], list[JsonObject]]:
    """The messages and tools that an envelope was made of, byte for byte."""
    system, library, _, history, query = sealed.layers
    heads = [head for segment in system.segments for head in segment.metadata.get("heads", ())]
    top = Prompt(system.text, library.text, (), (), heads=tuple(heads)).systems
    messages = [msgspec.json.decode(segment.content) for segment in history.segments]
    for segment in query.segments:
        if "message" in segment.metadata:
            messages.insert(segment.metadata["place"], segment.metadata["message"])
    tools = [tool for segment in system.segments for tool in segment.metadata.get("tools", ())]
    return [*({"role": "system", "content": text} for text in top), *messages], tools


def current_place(built: Built, messages: Sequence[JsonObject]) -> int:
    """Which of the messages is the current user's: the last that begins with those words, or the last of a user."""
    parts = built.prompt.messages[built.user].parts if built.user is not None else ()
    text = next((part.text for part in parts if isinstance(part, Text)), "")
    last = -1
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].get("role") == "user":
            last = max(last, place)
            if text and _text(messages[place]).startswith(text):
                return place
    return last


def _text(message: JsonObject) -> str:
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return next((str(part["text"]) for part in parts if part.get("text")), "")


def _turn_segments(built: Built) -> list[Segment]:
    """This turn's context: what was recalled, what tools gave, what is referred to and what is new."""
    message = built.user_message
    if message is None:
        return []
    named = [segment(f"reference:{name}", f"- {name}", stable=False, reference=True) for name in message.references]
    new = [Segment(item.id, item.text, sha256_hex(item.text), False, item.metadata) for item in message.new]
    fixed = [segment("recalled", message.recalled, False), segment("tools", message.tools, False)]
    return [segment for segment in fixed if segment.content] + named + new


def layer_tokens(built: Built) -> dict[str, int]:
    """Tokens by layer (and of the tools); the sum is the whole request."""
    prompt = built.prompt
    system = sum(map(text_tokens, prompt.systems))
    l1 = sum(map(text_tokens, msgspec.structs.replace(prompt, l2="").systems))
    current = built.sizes[built.user] if built.user is not None else 0
    # The message's framing goes with the context where there is any, else with the query.
    l5 = min(current, counter().count(built.query)) if _turn_segments(built) else current
    return {
        "L1": l1,
        "L2": system - l1,
        "L3": current - l5,
        "L4": sum(built.sizes) - current,
        "L5": l5,
        "tools": tools_tokens(prompt.tools),
    }


def check_shares(built: Built, policy: Policy) -> None:
    """Refuse a request whose uncuttable layers outgrow the shares they were given."""
    if policy.shares.keys().isdisjoint({"L1", "L3", "L5"}):
        return
    sizes = layer_tokens(built)
    for name in ("L1", "L3", "L5"):
        if sizes[name] > policy.ceiling(name):
            raise BudgetError(
                f"{name} holds {sizes[name]} tokens but its share of the budget is {policy.ceiling(name)}",
                hint=f"Raise shares[{name!r}] or the budget, or put less into {name}.",
            )


def system_text(
    base: str,
    memory: str | None = None,
    project_prompt: str | None = None,
    project_context: str | None = None,
    tool_text: str | None = None,
) -> str:
    """L1: user memory, the base prompt, the project's prompt and context, tool descriptions; absent ones leave no trace."""
    text = f"{memory}\n{base}" if memory else base
    if project_prompt is not None:
        text += f"\n\n<project_system_prompt>\n{project_prompt}\n</project_system_prompt>"
    if project_context:
        text += f"\n\n<project_context>\n{project_context}\n</project_context>"
    return f"{text}\n\n{tool_text}" if tool_text else text


def messages_of(
    l1: str, l2: Sequence[Segment], l3: Sequence[Segment], l5: str, promote: Promote = "each-turn"
) -> list[JsonObject]:
    """The system and user message of plain layers; an item that L2 already holds is referred to by its id."""
    hashes = {item.id: item.sha256 for item in l2}
    named = [item.id for item in l3 if hashes.get(item.id) == item.sha256]
    texts = [normal(item.content) for item in l3 if hashes.get(item.id) != item.sha256]
    system = Prompt(normal(l1), "\n\n".join(normal(item.content) for item in l2), (), ()).system
    user = {"role": "user", "content": user_text([references(named, promote), *texts], l5)}
    return [{"role": "system", "content": system}, user] if system else [user]
