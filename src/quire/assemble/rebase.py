"""What one rebase does: which leaves stay, which shrink to handles, which go; recorded, then applied.

`plan` chooses, `record` writes the choice down as the rebase entry's fields, `apply` carries a record
out. Replaying a log runs `apply` alone, so a recorded choice is never made twice.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

import msgspec

from quire.assemble.blocks import Block
from quire.assemble.epoch import SUMMARY_TURN, Epoch, ordered
from quire.assemble.leaves import Leaf, leaf
from quire.assemble.policy import Policy
from quire.assemble.references import Library
from quire.assemble.strip import Strip
from quire.assemble.turn import UserTurn, query_alone
from quire.errors import DataError
from quire.tokens import text_tokens
from quire.values import Call, Entry, JsonObject, Message, Part, Result, Text, Think

SUMMARY_HEADING = "# Summary of the earlier conversation"
PINNED_HEADING = "# Pinned"


class Plan(msgspec.Struct, frozen=True):
    """leaves[:drop] go (but for a kept request), leaves[drop:handle] become handles, the rest is verbatim."""

    drop: int
    handle: int
    # The user leaf of the turn that is cut into, which stays.
    request: int | None
    summary_limit: int
    kept: int
    removed: int
    # Tokens in front of the first byte that the plan changes.
    same: int = 0


class Rung(msgspec.Struct, frozen=True):
    """How hard to cut: what stays verbatim, and whether turns before the current one may be cut into.

    floor: the policy's floor. most: it cannot be had (one group of calls is too large), so the longest tail
    that fits. least: the part that is never cut.
    """

    keeps: Literal["floor", "most", "least"] = "floor"
    everywhere: bool = True
    summary: bool = True
    handles: bool = True


# Tried in order until the request fits: the policy's tiers, then inside older turns, then the floor with nothing
# in front of it, then less than the floor: what is verbatim gives way last.
RUNGS = (
    Rung(everywhere=False),
    Rung(),
    Rung(handles=False),
    Rung(handles=False, summary=False),
    Rung("most", handles=False),
    Rung("least", handles=False),
    Rung("least", handles=False, summary=False),
)


def plan(epoch: Epoch, policy: Policy, rung: Rung = RUNGS[0], head: int | None = None) -> Plan:
    """The deepest legal cut that keeps the floor, and how far back the handle tier reaches."""
    strip = epoch.strip
    room = max(0, min(policy.ceiling("L4"), policy.limit - (epoch.head_tokens() if head is None else head)))
    tier = policy.handles * room if rung.handles else 0
    handle = _verbatim_from(strip, policy, rung, room)
    drop = strip.shallowest_handled(handle, tier, rung.everywhere) if tier else handle
    old = _summary_leaves(strip)
    if drop <= old:
        drop = 0
    request = strip.turn_of(drop) if drop and drop not in strip.turn_starts else None
    gone = strip.sums[drop] - (strip.leaves[request].tokens if request is not None else 0)
    limit = min(int(policy.summary * room), gone // 10) if rung.summary and drop else 0
    kept = strip.total - gone + limit - (strip.sums[handle] - strip.sums[drop])
    kept += strip.handled[handle] - strip.handled[drop]
    same = strip.sums[strip.first_long(0, handle)] if not drop else 0
    if drop and request == 0 and not limit and not old:
        same = strip.leaves[0].tokens
    return Plan(drop, handle, request, limit, kept, strip.total - kept, same)


def _verbatim_from(strip: Strip, policy: Policy, rung: Rung, room: int) -> int:
    """The leaf from which on everything stays as it is."""
    if rung.keeps == "least":
        return strip.deepest_keeping(0, everywhere=True)
    if rung.keeps == "most":
        return strip.longest_within(room - (int(policy.summary * room) if rung.summary else 0))
    floor = policy.floor * room
    whole, deeper = (strip.deepest_keeping(floor, everywhere) for everywhere in (rung.everywhere, True))
    return deeper if strip.sums[deeper] - strip.sums[whole] > policy.slack * room else whole


NO_CUT = Plan(0, 0, None, 0, 0, 0)


def _summary_leaves(strip: Strip) -> int:
    return 1 if strip.leaves and strip.leaves[0].turn == SUMMARY_TURN else 0


def edits(epoch: Epoch, plan: Plan, results: Container[int] = ()) -> list[JsonObject]:
    """Every change of the plan, entry by entry: drop, handle, fold (into L1), with the tokens freed.

    `results` are the entries that are tool results, also those that were said late, as a note: they do not fold.
    """
    out: list[JsonObject] = []
    leaves = epoch.strip.leaves
    again = _repeated(leaves)
    for index in range(_summary_leaves(epoch.strip), plan.handle):
        one = leaves[index]
        if index < plan.drop and index != plan.request:
            folds = one.message.role in ("note", "tools") and one.message.seqs[0] not in results
            out += _drops(one, "fold" if folds else "drop")
        elif one.handled is not None:
            out += _handles(one, again)
    return out + _thoughts(leaves[plan.drop :])


def _drops(one: Leaf, action: str) -> list[JsonObject]:
    seqs = list(dict.fromkeys(one.message.seqs))
    share, rest = divmod(one.tokens, max(1, len(seqs)))
    return [
        {"entry": seq, "action": action, "freed": share + (rest if n == 0 else 0)}
        for n, seq in enumerate(seqs)
    ]


def _handles(one: Leaf, again: dict[int, str]) -> list[JsonObject]:
    assert one.handled is not None  # the caller asked
    out = []
    for part, short, seq in zip(one.message.parts, one.handled.parts, one.message.seqs, strict=True):
        if part != short and isinstance(short, Result) and isinstance(part, Result):
            text = again.get(seq, short.text)
            freed = text_tokens(part.text) - text_tokens(text)
            out.append({"entry": seq, "action": "handle", "replacement": text, "freed": freed})
    return out


def _repeated(leaves: list[Leaf]) -> dict[int, str]:
    """Results that a later call with the same name and arguments gave again, word for word."""
    seen: dict[tuple[str, str, str], int] = {}
    out: dict[int, str] = {}
    asked = dict[str, str]()
    for one in leaves:
        for part, seq in zip(one.message.parts, one.message.seqs, strict=False):
            if isinstance(part, Call):
                asked[part.call_id] = part.arguments or repr(part.args)
            elif isinstance(part, Result):
                key = (part.name, asked.get(part.call_id, ""), part.text)
                if key in seen:
                    out[seen[key]] = f"[{part.name} gave the same result again later; see there]"
                seen[key] = seq
    return out


def _thoughts(leaves: list[Leaf]) -> list[JsonObject]:
    """Thinking is bound to the prefix it was thought behind; after a rebase it may not come back."""
    return [
        {"entry": seq, "action": "drop", "freed": text_tokens(part.text)}
        for one in leaves
        for part, seq in zip(one.message.parts, one.message.seqs, strict=False)
        if isinstance(part, Think)
    ]


def folded(epoch: Epoch, policy: Policy, turn: int, cutting: bool) -> list[Block]:
    """The items that L2 holds after a rebase, in first-seen order; unused ones leave when a cut is made."""
    known: dict[str, Block] = {one.id: one for one in epoch.l2}
    if policy.promote == "at-rebase":
        known.update(epoch.known.has)
    else:
        users = [one.user for one in epoch.strip.leaves if one.user is not None and one.turn < turn]
        known.update({one.id: one for user in users for one in user.blocks})
    blocks = [one for one in known.values() if one.promotable]
    if not cutting:
        return blocks
    oldest = turn - policy.unused_turns
    used = epoch.known.used
    return _within(
        [one for one in blocks if one.pinned or used.get(one.id, turn) >= oldest], policy.ceiling("L2"), used
    )


def _within(blocks: list[Block], limit: int, used: dict[str, int]) -> list[Block]:
    """The library within its share: the items used longest ago leave first, pinned ones never."""
    size = sum(text_tokens(one.text) for one in blocks)
    leaving = set[str]()
    for one in sorted((one for one in blocks if not one.pinned), key=lambda one: used.get(one.id, 0)):
        if size <= limit:
            break
        size -= text_tokens(one.text)
        leaving.add(one.id)
    return [one for one in blocks if one.id not in leaving]


def apply(epoch: Epoch, record: JsonObject, policy: Policy, state: Carried) -> Epoch:
    """The epoch after a recorded rebase: kept leaves said once more behind the folded library."""
    after = Epoch()
    after.number = epoch.number + 1
    edited = {edit["entry"]: edit for edit in record["edits"]}
    after.l1 = [*epoch.l1, *state.folded_texts(edited)]
    after.tools = ordered(state.tools)
    after.l2 = tuple(state.version(one) for one in record["library"])
    after.known = Library()
    after.known.has = {one.id: one for one in after.l2}
    after.known.used = dict(epoch.known.used)
    if front := front_text(record):
        after.strip.add(leaf(Message("user", (Text(front),)), SUMMARY_TURN))
    for one in epoch.strip.leaves[_summary_leaves(epoch.strip) :]:
        _carry(after, one, edited, policy, state)
    after.fold = len(after.strip.leaves)
    return after


class Carried(msgspec.Struct):
    """What outlives an epoch: every tool and item version known, and which notes a rebase folds."""

    tools: dict[str, JsonObject]
    versions: dict[tuple[str, str], Block]
    # Late instructions not yet in L1: seq -> (text, folds at any rebase). System texts always fold.
    late: dict[int, tuple[str, bool]]
    turn: int = 0
    results: dict[int, Entry] = {}

    def version(self, named: JsonObject) -> Block:
        """The content that a rebase's library names."""
        found = self.versions.get((named["id"], named["sha256"]))
        if found is None:
            raise DataError(
                f"a rebase folds {named['id']!r} ({named['sha256'][:12]}), which no entry before it holds",
                hint="The log is not whole: import the entries that attached it too.",
            )
        return found

    def folded_texts(self, edited: dict[int, JsonObject]) -> list[str]:
        return [text for seq, (text, always) in self.late.items() if always or seq in edited]


def front_text(record: JsonObject) -> str:
    """The first message of the strip: what is pinned, verbatim, and the summary."""
    parts = []
    if pinned := record.get("meta", {}).get("pinned"):
        parts.append("\n\n".join([PINNED_HEADING, *pinned]))
    if record.get("summary"):
        parts.append(f"{SUMMARY_HEADING}\n\n{record['summary']}")
    return "\n\n".join(parts)


def _carry(after: Epoch, one: Leaf, edited: dict[int, JsonObject], policy: Policy, state: Carried) -> None:
    """Take one leaf over into the new epoch, with its edits."""
    message = one.message
    if message.role in ("note", "tools"):
        if not any(seq in edited or state.late.get(seq, ("", False))[1] for seq in message.seqs) and (
            message.role == "note"
        ):
            after.strip.add(one)
    elif one.user is not None:
        if not _gone(one.user.entry.seq, edited):
            _carry_user(after, one, policy, state)
    else:
        kept = [_edited(p, s, edited) for p, s in zip(message.parts, message.seqs, strict=True)]
        pairs = [(part, seq) for part, seq in kept if part is not None]
        if pairs:
            parts = tuple(part for part, _ in pairs)
            if parts == message.parts:
                after.strip.add(one)
                return
            shorter = Message(message.role, parts, tuple(seq for _, seq in pairs))
            entries = [
                state.results[seq] for seq in shorter.seqs if seq in state.results and seq not in edited
            ]
            after.strip.add(leaf(shorter, one.turn, entries))


def _carry_user(after: Epoch, one: Leaf, policy: Policy, state: Carried) -> None:
    assert one.user is not None  # the caller asked
    if policy.promote == "each-turn" and one.turn < state.turn:
        after.strip.add(leaf(query_alone(one.user), one.turn, user=one.user))
    elif one.user.blocks:
        # What the current turn brings is never older than the library: it may be an update to it.
        user = _current(one.user, after.l2) if one.turn < state.turn else one.user
        after.say(user, one.turn, policy)
    else:
        after.strip.add(one)


def _current(user: UserTurn, library: tuple[Block, ...]) -> UserTurn:
    """The turn without versions of items that the library now holds newer: they are superseded."""
    newest = {one.id: one.sha256 for one in library}
    blocks = tuple(one for one in user.blocks if newest.get(one.id, one.sha256) == one.sha256)
    return msgspec.structs.replace(user, blocks=blocks)


def superseded(epoch: Epoch, plan: Plan, library: list[Block], turn: int) -> list[JsonObject]:
    """The edits that take older versions of the library's items out of the earlier turns that stay."""
    newest = {one.id: one.sha256 for one in library}
    return [
        {"entry": one.user.entry.seq, "action": "supersede", "replacement": block.id}
        for index, one in enumerate(epoch.strip.leaves)
        if one.user is not None and one.turn < turn and (index >= plan.drop or index == plan.request)
        for block in one.user.blocks
        if newest.get(block.id, block.sha256) != block.sha256
    ]


def _gone(seq: int, edited: dict[int, JsonObject]) -> bool:
    return seq in edited and edited[seq]["action"] == "drop"


def _edited(part: Part, seq: int, edited: dict[int, JsonObject]) -> tuple[Part | None, int]:
    edit = edited.get(seq)
    if edit is None:
        return (None if isinstance(part, Think) else part), seq
    if "replacement" in edit and isinstance(part, Result):
        return msgspec.structs.replace(part, text=edit["replacement"], wire={}), seq
    return None, seq
