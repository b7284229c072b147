"""Carrying a recorded rebase out: the kept leaves said once more behind the folded library.

Replaying a log runs `apply` alone, so a recorded choice is never made twice.
"""

from __future__ import annotations

import msgspec

from quire.assemble.blocks import Block
from quire.assemble.epoch import SUMMARY_TURN, Epoch, ordered
from quire.assemble.leaves import Leaf, leaf
from quire.assemble.policy import Policy
from quire.assemble.references import Library
from quire.assemble.turn import UserTurn, query_alone
from quire.errors import DataError
from quire.tokens import counter
from quire.values import Call, Entry, JsonObject, Message, Part, Result, Text, Think

SUMMARY_HEADING = "# Summary of the earlier conversation"
PINNED_HEADING = "# Pinned"


def apply(epoch: Epoch, record: JsonObject, policy: Policy, state: Carried) -> Epoch:
    """The epoch after a recorded rebase: kept leaves said once more behind the folded library."""
    after = Epoch()
    after.number = epoch.number + 1
    edited = _paired({edit["entry"]: edit for edit in record["edits"]}, epoch.strip.messages)
    after.l1 = [*epoch.l1, *state.folded_texts(edited)]
    after.tools = ordered(state.tools)
    after.l2 = tuple(state.version(one) for one in record["library"])
    after.known = Library()
    after.known.has = {one.id: one for one in after.l2}
    after.known.used = dict(epoch.known.used)
    leaves = [one for one in epoch.strip.leaves if one.turn != SUMMARY_TURN]
    begins = _behind_opening(leaves, record)
    for one in leaves[:begins]:
        _carry(after, one, edited, policy, state)
    after.opening = len(after.strip.leaves)
    after.whole = epoch.whole and not record["before_seq"]
    if front := front_text(record):
        told = leaf(Message("user", (Text(front),)), SUMMARY_TURN)
        tokens = counter().count(record.get("summary") or "")
        after.strip.add(msgspec.structs.replace(told, summary_tokens=tokens))
    for one in leaves[begins:]:
        _carry(after, one, edited, policy, state)
    after.fold = len(after.strip.leaves)
    if after.strip.newest_user() is epoch.strip.newest_user():
        after.said = epoch.said
    return after


def _paired(edited: dict[int, JsonObject], messages: list[Message]) -> dict[int, JsonObject]:
    """The edits, with the results of every call that goes."""
    calls = set[str]()
    for message in messages:
        pairs = list(zip(message.parts, message.seqs, strict=False))
        if message.role == "assistant":
            calls = {p.call_id for p, s in pairs if isinstance(p, Call) and s in edited}
        elif message.role == "tool" and calls:
            lost = [s for p, s in pairs if isinstance(p, Result) and p.call_id in calls and s not in edited]
            edited.update({seq: {"entry": seq, "action": "drop"} for seq in lost})
    return edited


def _behind_opening(leaves: list[Leaf], record: JsonObject) -> int:
    """The first leaf that does not belong to the thread's opening, as the record names its last entry."""
    last = record.get("meta", {}).get("opening", 0)
    return next((at for at, one in enumerate(leaves) if max(one.message.seqs, default=0) > last), len(leaves))


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

    def folds_always(self, seq: int) -> bool:
        return self.late.get(seq, ("", False))[1]

    def folded_texts(self, edited: dict[int, JsonObject]) -> list[str]:
        return [text for seq, (text, always) in self.late.items() if always or seq in edited]


def front_text(record: JsonObject) -> str:
    """What stands in place of all that went: what is pinned, verbatim, and the summary."""
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
        _carry_late(after, one, edited, state)
    elif one.user is not None:
        if not _gone(one.user.entry.seq, edited):
            _carry_user(after, one, edited, policy, state)
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


def _carry_late(after: Epoch, one: Leaf, edited: dict[int, JsonObject], state: Carried) -> None:
    """What was said late stays, unless it folds into L1 or goes; a result that came late may be cut."""
    message = one.message
    cut = next((edited[seq] for seq in message.seqs if seq in edited), None)
    if cut is not None and cut["action"] == "cut":
        after.strip.add(leaf(Message("note", (Text(cut["replacement"]),), message.seqs), one.turn))
    elif cut is None and message.role == "note" and not any(map(state.folds_always, message.seqs)):
        after.strip.add(one)


def _carry_user(
    after: Epoch, one: Leaf, edited: dict[int, JsonObject], policy: Policy, state: Carried
) -> None:
    assert one.user is not None  # the caller asked
    context = tuple((call, _cut_result(result, edited)) for call, result in one.user.context)
    if policy.promote == "each-turn" and one.turn < state.turn:
        alone = leaf(query_alone(one.user), one.turn, user=one.user, image_tokens=policy.image_tokens)
        after.strip.add(alone)
    elif one.user.blocks or context != one.user.context:
        user = msgspec.structs.replace(one.user, context=context)
        # What the current turn brings is never older than the library: it may be an update to it.
        after.say(_current(user, after.l2) if one.turn < state.turn else user, one.turn, policy)
    else:
        after.strip.add(one)


def _cut_result(result: Entry | None, edited: dict[int, JsonObject]) -> Entry | None:
    """A result that was given beside the user's words, as a cut leaves it."""
    if result is None or edited.get(result.seq, {}).get("action") != "cut":
        return result
    body = {**result.body, "content": edited[result.seq]["replacement"], "outcome": None}
    return msgspec.structs.replace(result, body=body)


def _current(user: UserTurn, library: tuple[Block, ...]) -> UserTurn:
    """The turn without versions of items that the library now holds newer: they are superseded."""
    newest = {one.id: one.sha256 for one in library}
    blocks = tuple(one for one in user.blocks if newest.get(one.id, one.sha256) == one.sha256)
    return msgspec.structs.replace(user, blocks=blocks)


def _gone(seq: int, edited: dict[int, JsonObject]) -> bool:
    return seq in edited and edited[seq]["action"] == "drop"


def _edited(part: Part, seq: int, edited: dict[int, JsonObject]) -> tuple[Part | None, int]:
    edit = edited.get(seq)
    if edit is None:
        return (None if isinstance(part, Think) else part), seq
    if "replacement" in edit and isinstance(part, Result):
        return msgspec.structs.replace(part, text=edit["replacement"], wire={}), seq
    return None, seq
