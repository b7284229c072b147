"""A thread's fold written down, so that opening the thread again does not begin at its first entry.

Pure: bytes out, bytes in. What does not fit (other bytes, another format, another version of Quire) is None, and the
fold is made from the log. Entries are not written: those of before are read from the log when they are asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from quire.assemble import Policy
from quire.assemble.messages import Epoch, History, PlacedMessage
from quire.assemble.pending import OpenMessage, Pair, Pending, Reasons, Round
from quire.assemble.rebase import CarriedState, Pin, Rebase
from quire.assemble.rebase_decision import Rent
from quire.assemble.state import Assembly, FedEntries, ModelHistory
from quire.assemble.summary import Summarise
from quire.assemble.user_message import ItemBlock, UserMessage, UserTurn
from quire.errors import QuireError
from quire.log.entries import decode_row, parted, row_of
from quire.values import Entry, Json, JsonObject, Message, Result, Text, Think

# Raise this when the written form changes, or when the same entries give another state.
FORMAT = 8
_HASH_BYTES = 32


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """Where a fold stood, what it was made under, and the fold itself, read only when it is wanted."""

    # The newest entry in it; its id names everything before it too.
    seq: int
    entry_id: str
    policy: Policy
    # When requests were sent, and how many of them before the newest turn.
    times: list[int]
    times_before_turn: int
    reply_id: str | None
    # The newest `sent` entry of the conversation itself, 0 where there is none.
    sent_seq: int
    # The segment hashes of that request, all of them.
    segments: list[str]
    # What the newest system prompt and each tool are, by their hash.
    standing: dict[str, str]
    # Whether a rebase in it was made by a summariser and is in no log.
    unrecorded: bool
    # The messages that were checked against the provider's rules, with nothing wrong in them.
    checked: tuple[str, dict[bytes, int]] = ("", {})
    fold: msgspec.Raw = msgspec.Raw()
    format: int = FORMAT
    quire: str = ""

    def assembly(self, summarise: Summarise, read: Callable[[int, int], Iterable[Entry]]) -> Assembly:
        """The fold; `read(after, limit)` gives entries of the log."""
        return _unpacked(_FOLD.decode(self.fold), self.policy, summarise, FedEntries(self.seq, read))


class _User(msgspec.Struct, frozen=True, array_like=True):
    """A UserTurn; items are places in the table of blocks."""

    entry: Entry
    blocks: tuple[int, ...]
    context: tuple[Pair, ...]
    seqs: tuple[int, ...]
    repeats: list[Json]


class _Leaf(msgspec.Struct, frozen=True, array_like=True):
    """A PlacedMessage, as a checkpoint stores it."""

    message: Message
    tokens: int
    turn: int
    handled: Message | None
    handled_tokens: int
    user: _User | None
    summary_tokens: int
    beside: int
    # Where the imported message of a part, by its place, held the part's text, which is written once.
    repeats: list[tuple[int, list[Json]]]


class _Epoch(msgspec.Struct, frozen=True, array_like=True):
    number: int
    l1: list[str]
    front: list[JsonObject]
    tools: tuple[JsonObject, ...]
    l2: list[int]
    has: list[int]
    used: dict[str, int]
    leaves: list[_Leaf]
    opening: int
    whole: bool
    fold: int
    grown: tuple[float, float]
    sent: int
    ends: list[int]
    user_message: UserMessage | None
    head_tokens: int


class _Pending(msgspec.Struct, frozen=True, array_like=True):
    attached: list[tuple[int, JsonObject]]
    groups: list[OpenMessage]
    late: list[Message]
    user: _User | None
    context: list[Pair]
    interrupted: dict[str, list[Entry]]


class _Fold(msgspec.Struct, frozen=True, array_like=True):
    """An Assembly without what is derived from the rest of it."""

    # Each item once; others name it by its place here.
    blocks: list[ItemBlock]
    epoch: _Epoch
    pending: _Pending
    tools: dict[str, JsonObject]
    # The versions that a rebase of our own may name.
    versions: list[int]
    attached_at: list[tuple[str, str, int, int]]
    late: dict[int, tuple[str, bool]]
    results: dict[int, str]
    turn: int
    step: int
    # Reasons with the entries that have them, in the order in which they left.
    runs: list[tuple[str, list[int]]]
    attached: dict[int, tuple[str, str]]
    rebases: list[Rebase]
    pins: list[Pin]
    rent: Rent
    requests: int
    tools_moved: bool
    round: Round
    stable: int
    recorded: JsonObject | None
    models: ModelHistory
    fed: int


_FOLD = msgspec.msgpack.Decoder(_Fold)
_CHECKPOINT = msgspec.msgpack.Decoder(Checkpoint)


def encode(checkpoint: Checkpoint, assembly: Assembly) -> bytes | None:
    """The bytes of a checkpoint, their hash in front; None where an entry holds what cannot be written so."""
    try:
        fold = msgspec.Raw(msgspec.msgpack.encode(_packed(assembly)))
        body = msgspec.msgpack.encode(msgspec.structs.replace(checkpoint, fold=fold, quire=_version()))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return hashlib.sha256(body).digest() + body


def decode(data: bytes) -> Checkpoint | None:
    """The checkpoint that was written by this version of Quire; None where it is damaged, or another's."""
    digest, body = data[:_HASH_BYTES], memoryview(data)[_HASH_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        return None
    try:
        checkpoint = _CHECKPOINT.decode(body)
    except (ValueError, RecursionError, QuireError):
        return None
    return checkpoint if (checkpoint.format, checkpoint.quire) == (FORMAT, _version()) else None


def _version() -> str:
    from quire import __version__

    return __version__


class _Blocks:
    """A table of items, each at one place however often it is named."""

    def __init__(self) -> None:
        self.listed: list[ItemBlock] = []
        self._places: dict[int, int] = {}

    def places(self, blocks: Iterable[ItemBlock]) -> list[int]:
        return [self._place(block) for block in blocks]

    def _place(self, block: ItemBlock) -> int:
        # The table holds the object, so that its number stays its own.
        if id(block) not in self._places:
            self._places[id(block)] = len(self.listed)
            self.listed.append(block)
        return self._places[id(block)]


def _packed(assembly: Assembly) -> _Fold:
    blocks, carried, waiting = _Blocks(), assembly.carried, assembly.pending.user
    epoch, pending = _packed_epoch(assembly.epoch, blocks), _packed_pending(assembly.pending, blocks)
    users = [
        *(leaf.user for leaf in assembly.epoch.history.leaves if leaf.user is not None),
        *([waiting] if waiting else []),
    ]
    at_hand = {(block.id, block.sha256) for block in blocks.listed}
    return _Fold(
        epoch=epoch,
        pending=pending,
        tools=carried.tools,
        versions=blocks.places(item for key, item in carried.versions.items() if key in at_hand),
        attached_at=[(*key, *place) for key, place in assembly.attached_at.items()],
        late=carried.late,
        results=_results_in_place(assembly, users),
        turn=assembly.turn,
        step=assembly.step,
        runs=assembly.left_out_log.reasons.runs(),
        attached=assembly.left_out_log.attached,
        rebases=_needed_later(assembly.rebases, assembly.policy),
        pins=assembly.pins,
        rent=assembly.rent,
        requests=assembly.requests,
        tools_moved=assembly.tools_moved,
        round=assembly.round,
        stable=assembly.stable,
        recorded=assembly.recorded,
        models=assembly.models,
        fed=assembly.fed,
        blocks=blocks.listed,
    )


def _packed_epoch(epoch: Epoch, blocks: _Blocks) -> _Epoch:
    return _Epoch(
        epoch.number,
        epoch.l1,
        epoch.front,
        epoch.tools,
        blocks.places(epoch.l2),
        blocks.places(epoch.item_library.has.values()),
        epoch.item_library.used,
        [_packed_once(leaf, blocks) for leaf in epoch.history.leaves],
        epoch.opening,
        epoch.whole,
        epoch.fold,
        epoch.grown,
        epoch.sent,
        epoch.ends,
        epoch.user_message,
        epoch.head_tokens(),
    )


def _packed_once(leaf: PlacedMessage, blocks: _Blocks) -> _Leaf:
    """A leaf as it is written; its bytes, where no table of items decides on them, are kept with it for the next time."""
    if leaf.user is not None and leaf.user.blocks:
        return _packed_leaf(leaf, blocks)
    if "packed" not in leaf.__dict__:
        leaf.__dict__["packed"] = msgspec.Raw(msgspec.msgpack.encode(_packed_leaf(leaf, blocks)))
    raw: _Leaf = leaf.__dict__["packed"]  # bytes of one
    return raw


def _packed_leaf(leaf: PlacedMessage, blocks: _Blocks) -> _Leaf:
    user = _packed_user(leaf.user, blocks)
    handled = leaf.handled, leaf.handled_tokens
    message, repeats = _without_repeats(leaf.message)
    return _Leaf(message, leaf.tokens, leaf.turn, *handled, user, leaf.summary_tokens, leaf.beside, repeats)


def _without_repeats(message: Message) -> tuple[Message, list[tuple[int, list[Json]]]]:
    parts, repeats = list(message.parts), list[tuple[int, list[Json]]]()
    for at, part in enumerate(parts):
        if isinstance(part, Text | Think | Result) and "message" in part.wire:
            body, places = parted(row_of({"text": part.text, "wire": part.wire}))
            if places:
                parts[at] = msgspec.structs.replace(part, wire=body["wire"])
                repeats.append((at, places))
    return (msgspec.structs.replace(message, parts=tuple(parts)) if repeats else message), repeats


def _packed_user(user: UserTurn | None, blocks: _Blocks) -> _User | None:
    if user is None:
        return None
    body, repeats = parted(row_of(user.entry.body))
    entry = msgspec.structs.replace(user.entry, body=body)
    return _User(entry, tuple(blocks.places(user.blocks)), user.context, user.seqs, repeats)


def _packed_pending(pending: Pending, blocks: _Blocks) -> _Pending:
    return _Pending(
        pending.attached,
        pending.groups,
        pending.late,
        _packed_user(pending.user, blocks),
        pending.context,
        pending.interrupted,
    )


def _results_in_place(assembly: Assembly, users: Iterable[UserTurn]) -> dict[int, str]:
    """The results whose ids are still needed: those of messages that stand or are pending."""
    pending, ids = assembly.pending, assembly.carried.results
    seqs = {seq for message in (*assembly.epoch.history.messages, *pending.late) for seq in message.seqs}
    seqs |= {seq for user in users for seq in user.seqs}
    seqs |= {entry.seq for group in pending.groups for entry in group.entries}
    pairs = [pair for group in pending.groups for pair in group.pairs] + pending.context
    seqs |= {result.seq for _, result in pairs if result is not None}
    return {seq: ids[seq] for seq in sorted(seqs) if seq in ids}


def _needed_later(rebases: list[Rebase], policy: Policy) -> list[Rebase]:
    """The rebases that later ones look at: back to the newest summary, or the last alone where there are none."""
    last = len(rebases) - 1
    if policy.summary:
        while last > 0 and (not rebases[last].summary or rebases[last].brief):
            last -= 1
    return rebases[max(0, last) :]


def _unpacked(fold: _Fold, policy: Policy, summarise: Summarise, entries: FedEntries) -> Assembly:
    assembly = Assembly(policy, summarise)
    assembly.entries, assembly.fed = entries, fold.fed
    assembly.epoch = _unpacked_epoch(fold.epoch, fold.blocks)
    assembly.pending = _unpacked_pending(fold.pending, fold.blocks)
    versions = {(block.id, block.sha256): block for block in (fold.blocks[place] for place in fold.versions)}
    assembly.carried = CarriedState(fold.tools, versions, fold.late, fold.turn, fold.results)
    assembly.attached_at = {(id, sha256): (seq, place) for id, sha256, seq, place in fold.attached_at}
    assembly.left_out_log.restore(Reasons(fold.runs), fold.attached)
    assembly.turn, assembly.step = fold.turn, fold.step
    assembly.rebases, assembly.pins = fold.rebases, fold.pins
    assembly.rent = fold.rent
    assembly.requests, assembly.tools_moved = fold.requests, fold.tools_moved
    assembly.round, assembly.stable = fold.round, fold.stable
    assembly.recorded, assembly.models = fold.recorded, fold.models
    return assembly


def _unpacked_epoch(packed: _Epoch, blocks: list[ItemBlock]) -> Epoch:
    epoch = Epoch()
    epoch.number, epoch.l1, epoch.tools = packed.number, packed.l1, packed.tools
    epoch.front = packed.front
    epoch.l2 = tuple(blocks[place] for place in packed.l2)
    epoch.item_library.has = {blocks[place].id: blocks[place] for place in packed.has}
    epoch.item_library.used = packed.used
    epoch.history = History(_unpacked_leaf(leaf, blocks) for leaf in packed.leaves)
    epoch.opening, epoch.whole, epoch.fold = packed.opening, packed.whole, packed.fold
    epoch.grown, epoch.sent = packed.grown, packed.sent
    epoch.ends, epoch.user_message = packed.ends, packed.user_message
    epoch.keep_head_tokens(packed.head_tokens)
    return epoch


def _unpacked_leaf(leaf: _Leaf, blocks: list[ItemBlock]) -> PlacedMessage:
    user = _unpacked_user(leaf.user, blocks)
    handled = leaf.handled, leaf.handled_tokens
    for at, places in leaf.repeats:
        part: Any = leaf.message.parts[at]  # one with a text and a wire
        decode_row([{"text": part.text, "wire": part.wire}, *places])
    return PlacedMessage(leaf.message, leaf.tokens, leaf.turn, *handled, user, leaf.summary_tokens, leaf.beside)


def _unpacked_user(user: _User | None, blocks: list[ItemBlock]) -> UserTurn | None:
    if user is None:
        return None
    decode_row([user.entry.body, *user.repeats])  # in place
    return UserTurn(user.entry, tuple(blocks[place] for place in user.blocks), user.context, user.seqs)


def _unpacked_pending(packed: _Pending, blocks: list[ItemBlock]) -> Pending:
    pending = Pending()
    pending.attached, pending.groups, pending.late = packed.attached, packed.groups, packed.late
    pending.user, pending.context = _unpacked_user(packed.user, blocks), packed.context
    pending.interrupted = packed.interrupted
    return pending
