"""A plan, entry by entry: what is dropped, cut to a handle, folded or superseded, and the library after it."""

from __future__ import annotations

from collections.abc import Container, Iterable

from quire.assemble.blocks import Block
from quire.assemble.epoch import Epoch
from quire.assemble.leaves import Leaf
from quire.assemble.plan import Plan
from quire.assemble.policy import Policy
from quire.tokens import text_tokens
from quire.values import Call, JsonObject, Result, Think


def edits(
    epoch: Epoch, plan: Plan, results: Container[int] = (), spared: Container[int] = ()
) -> list[JsonObject]:
    """Every change of the plan, entry by entry: drop, handle, fold (into L1), with the tokens freed.

    `results` are the entries that are tool results, also those that were said late, as a note: they do not fold.
    `spared` are those that become no handles.
    """
    out: list[JsonObject] = []
    leaves = epoch.strip.leaves
    again = _repeated(leaves)
    for index in range(plan.opening, plan.handle):
        one = leaves[index]
        if index < plan.drop and index != plan.request:
            folds = one.message.role in ("note", "tools") and one.message.seqs[0] not in results
            out += _drops(one, "fold" if folds else "drop")
        elif one.handled is not None:
            out += [edit for edit in _handles(one, again) if edit["entry"] not in spared]
    staying = leaves[: plan.opening] + leaves[plan.drop :] if plan.drop else leaves
    return out + _thoughts(staying)


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


def folded(
    epoch: Epoch, policy: Policy, turn: int, cutting: bool, pinned: Container[str] = ()
) -> list[Block]:
    """The items that L2 holds after a rebase, in first-seen order; unused ones leave when a cut is made."""
    used, oldest = epoch.known.used, turn - policy.unused_turns
    blocks = [
        one
        for one in _newest(epoch, policy, turn)
        if one.promotable and (not cutting or one.id in pinned or used.get(one.id, turn) >= oldest)
    ]
    return _within(blocks, policy.ceiling("L2"), used, pinned)


def _newest(epoch: Epoch, policy: Policy, turn: int) -> Iterable[Block]:
    """The newest version of every item that the model was given up to the turn before."""
    known: dict[str, Block] = {one.id: one for one in epoch.l2}
    if policy.promote == "at-rebase":
        given = list(epoch.known.has.values())
    else:
        users = [one.user for one in epoch.strip.leaves if one.user is not None and one.turn < turn]
        given = [one for user in users for one in user.blocks]
    for one in given:
        old = known.get(one.id)
        # The same content, shown once more with its images, stays in the library without them.
        if old is None or one.promotable or not old.promotable or old.sha256 != one.sha256:
            known[one.id] = one
    return known.values()


def _within(blocks: list[Block], limit: int, used: dict[str, int], pinned: Container[str]) -> list[Block]:
    """The library within its share: the items used longest ago leave first, pinned ones never."""
    size = sum(text_tokens(one.text) for one in blocks)
    leaving = set[str]()
    for one in sorted((one for one in blocks if one.id not in pinned), key=lambda one: used.get(one.id, 0)):
        if size <= limit:
            break
        size -= text_tokens(one.text)
        leaving.add(one.id)
    return [one for one in blocks if one.id not in leaving]


def superseded(epoch: Epoch, plan: Plan, library: list[Block], turn: int) -> list[JsonObject]:
    """The edits that take older versions of the library's items out of the earlier turns that stay."""
    newest = {one.id: one.sha256 for one in library}
    return [
        {"entry": one.user.entry.seq, "action": "supersede", "replacement": block.id}
        for index, one in enumerate(epoch.strip.leaves)
        if one.user is not None and one.turn < turn
        if index < plan.opening or index >= plan.drop or index == plan.request
        for block in one.user.blocks
        if newest.get(block.id, block.sha256) != block.sha256
    ]
