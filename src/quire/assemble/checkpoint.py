"""A thread's fold written down, so that opening the thread again does not begin at its first entry.

Pure: bytes out, bytes in. What does not fit (other bytes, another format, another version of Quire) is None, and the
fold is made from the log. Entries are not written: those of before are read from the log when they are asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from copy import copy
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from quire.assemble import Policy
from quire.assemble.messages import Epoch, Handles, History, PlacedMessage
from quire.assemble.pending import ItemVersion, LeftOutLog, OpenMessage, Pair, Pending, Round
from quire.assemble.rebase import CarriedState, Pin, Rebase
from quire.assemble.rebase_decision import Rent
from quire.assemble.state import Assembly, FedEntries, ModelHistory
from quire.assemble.summary import Summarise
from quire.assemble.user_message import ItemBlock, UserMessage, UserTurn
from quire.errors import QuireError
from quire.log.entries import decode_row, row_of, split_row
from quire.values import Entry, Json, JsonObject, Message, Result, Text, Think

# Raise this when the written form changes, or when the same entries give another state.
FORMAT = 9
_HASH_BYTES = 32


class LogPosition(msgspec.Struct, array_like=True):
    """How far a log was read, and what of it the next entries and requests depend on besides the fold."""

    # The newest entry; its id names everything before it too.
    seq: int = 0
    entry_id: str = ""
    # When requests were sent, and how many of them before the newest turn: pauses decide how long caches must live.
    times: list[int] = []
    times_before_turn: int = 0
    reply_id: str | None = None
    # The newest `sent` entry of the conversation itself, 0 where there is none.
    sent_seq: int = 0
    # All segment hashes of that entry's request; the log keeps of each request only those that are new.
    segments: list[str] = []
    # The newest system prompt and the tools, by their hash: the same again is no news.
    in_force: dict[str, str] = {}

    def position(self) -> LogPosition:
        """A copy of the position alone, to go on from."""
        return LogPosition(*(copy(getattr(self, name)) for name in LogPosition.__struct_fields__))


class Checkpoint(LogPosition, array_like=True, kw_only=True):
    """Where a fold stood, what it was made under, and the fold itself, read only when it is wanted."""

    policy: Policy
    # Whether a rebase in it was made by a summariser and is in no log.
    unrecorded: bool
    # The messages that were checked against the provider's rules, with nothing wrong in them.
    checked: tuple[str, dict[bytes, int]] = ("", {})
    fold: msgspec.Raw = msgspec.Raw()
    format: int = FORMAT
    quire: str = ""

    def assembly(self, summarise: Summarise, read: Callable[[int, int], Iterable[Entry]]) -> Assembly:
        """The fold; `read(after, limit)` gives entries of the log."""
        return _unpack(_FOLD.decode(self.fold), self.policy, summarise, FedEntries(self.seq, read))


# Fields of the live values are written under their own names; others say how they differ.


class _User(msgspec.Struct, frozen=True, array_like=True):
    """A UserTurn; items are places in the table of blocks."""

    entry: Entry
    blocks: tuple[int, ...]
    context: tuple[Pair, ...]
    seqs: tuple[int, ...]
    repeats: list[Json]


class _Leaf(msgspec.Struct, frozen=True, array_like=True):
    """A PlacedMessage."""

    message: Message
    tokens: int
    turn: int
    handles: Handles
    handled_tokens: int
    user: _User | None
    summary_tokens: int
    beside: int
    # Where the imported message of a part, by its place, held the part's text, which is written once.
    repeats: list[tuple[int, list[Json]]]


class _Epoch(msgspec.Struct, frozen=True, array_like=True):
    """An Epoch; `has` and `used` are its library's."""

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
    """What is Pending."""

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
    carried: CarriedState
    # The versions that a rebase of our own may name, which `carried` leaves out.
    versions: list[int]
    attached_at: dict[ItemVersion, tuple[int, int]]
    step: int
    # Why entries were left out: reasons with the entries that have them, in the order in which they left.
    reasons: list[tuple[str, list[int]]]
    attached: dict[int, ItemVersion]
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
        fold = msgspec.Raw(msgspec.msgpack.encode(_pack(assembly)))
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


_Form = TypeVar("_Form", bound=msgspec.Struct)
_Live = TypeVar("_Live")


def _form_of(kind: type[_Form], live: object, **others: Any) -> _Form:
    """The written form of a live value: its fields as they are, but for the `others`."""
    fields = {name: getattr(live, name) for name in kind.__struct_fields__ if name not in others}
    return kind(**fields, **others)


def _fill(live: _Live, written: msgspec.Struct, *others: str) -> _Live:
    """The live value with the fields of its written form, but for the `others`."""
    for name in written.__struct_fields__:
        if name not in others:
            setattr(live, name, getattr(written, name))
    return live


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


def _pack(assembly: Assembly) -> _Fold:
    blocks, carried, pending, left_out = _Blocks(), assembly.carried, assembly.pending, assembly.left_out_log
    epoch = _packed_epoch(assembly.epoch, blocks)
    waiting = _form_of(_Pending, pending, user=_packed_user(pending.user, blocks))
    at_hand = {(block.id, block.sha256) for block in blocks.listed}
    return _form_of(
        _Fold,
        assembly,
        epoch=epoch,
        pending=waiting,
        carried=msgspec.structs.replace(carried, versions={}, results=_results_in_place(assembly)),
        versions=blocks.places(item for key, item in carried.versions.items() if key in at_hand),
        reasons=[(why, [row.entry for row in run]) for why, run in groupby(left_out.entries(), attrgetter("reason"))],
        attached=left_out.attached,
        rebases=_needed_later(assembly.rebases, assembly.policy),
        blocks=blocks.listed,
    )


def _packed_epoch(epoch: Epoch, blocks: _Blocks) -> _Epoch:
    return _form_of(
        _Epoch,
        epoch,
        l2=blocks.places(epoch.l2),
        has=blocks.places(epoch.item_library.has.values()),
        used=epoch.item_library.used,
        leaves=[_packed_once(leaf, blocks) for leaf in epoch.history.leaves],
        head_tokens=epoch.head_tokens(),
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
    message, repeats = _without_repeats(leaf.message)
    return _form_of(_Leaf, leaf, message=message, user=_packed_user(leaf.user, blocks), repeats=repeats)


def _without_repeats(message: Message) -> tuple[Message, list[tuple[int, list[Json]]]]:
    parts, repeats = list(message.parts), list[tuple[int, list[Json]]]()
    for at, part in enumerate(parts):
        if isinstance(part, Text | Think | Result) and "message" in part.wire:
            body, places = split_row(row_of({"text": part.text, "wire": part.wire}))
            if places:
                parts[at] = msgspec.structs.replace(part, wire=body["wire"])
                repeats.append((at, places))
    return (msgspec.structs.replace(message, parts=tuple(parts)) if repeats else message), repeats


def _packed_user(user: UserTurn | None, blocks: _Blocks) -> _User | None:
    if user is None:
        return None
    body, repeats = split_row(row_of(user.entry.body))
    entry = msgspec.structs.replace(user.entry, body=body)
    return _form_of(_User, user, entry=entry, blocks=tuple(blocks.places(user.blocks)), repeats=repeats)


def _results_in_place(assembly: Assembly) -> dict[int, str]:
    """The results whose ids are still needed: those of messages that stand or are pending."""
    history, pending, ids = assembly.epoch.history, assembly.pending, assembly.carried.results
    users = [*(history.leaves[at].user for at in history.turn_starts), pending.user]
    seqs = {seq for message in (*history.messages, *pending.late) for seq in message.seqs}
    seqs |= {seq for user in users if user is not None for seq in user.seqs}
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


def _unpack(fold: _Fold, policy: Policy, summarise: Summarise, entries: FedEntries) -> Assembly:
    apart = ("blocks", "epoch", "pending", "versions", "reasons", "attached")
    assembly = _fill(Assembly(policy, summarise), fold, *apart)
    assembly.entries = entries
    assembly.has_handles = any(edit.shortens for rebase in fold.rebases for edit in rebase.edits)
    assembly.epoch = _unpacked_epoch(fold.epoch, fold.blocks)
    assembly.pending = _fill(Pending(), fold.pending, "user")
    assembly.pending.user = _unpacked_user(fold.pending.user, fold.blocks)
    versions = (fold.blocks[place] for place in fold.versions)
    assembly.carried.versions = {(block.id, block.sha256): block for block in versions}
    assembly.left_out_log = LeftOutLog(fold.reasons)
    assembly.left_out_log.attached = fold.attached
    return assembly


def _unpacked_epoch(packed: _Epoch, blocks: list[ItemBlock]) -> Epoch:
    epoch = _fill(Epoch(), packed, "l2", "has", "used", "leaves", "head_tokens")
    epoch.l2 = tuple(blocks[place] for place in packed.l2)
    epoch.item_library.has = {blocks[place].id: blocks[place] for place in packed.has}
    epoch.item_library.used = packed.used
    epoch.history = History(_unpacked_leaf(leaf, blocks) for leaf in packed.leaves)
    epoch.keep_head_tokens(packed.head_tokens)
    return epoch


def _unpacked_leaf(leaf: _Leaf, blocks: list[ItemBlock]) -> PlacedMessage:
    user = _unpacked_user(leaf.user, blocks)
    handled = leaf.handles, leaf.handled_tokens
    for at, places in leaf.repeats:
        part: Any = leaf.message.parts[at]  # one with a text and a wire
        decode_row([{"text": part.text, "wire": part.wire}, *places])
    return PlacedMessage(leaf.message, leaf.tokens, leaf.turn, *handled, user, leaf.summary_tokens, leaf.beside)


def _unpacked_user(user: _User | None, blocks: list[ItemBlock]) -> UserTurn | None:
    if user is None:
        return None
    decode_row([user.entry.body, *user.repeats])  # in place
    return UserTurn(user.entry, tuple(blocks[place] for place in user.blocks), user.context, user.seqs)
