"""What leaves a request is explained, and what is pinned stands verbatim in every request after it was first shown.

A rebase that removes pinned words from their place, by whichever edit, repeats them in front of the history. Words that
are pinned after they have left (`meta.pins`) come back at the next rebase: adding them earlier would move sent bytes.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

import msgspec

from quire.assemble.messages import Epoch, PlacedMessage
from quire.assemble.policy import Policy, Promote
from quire.assemble.user_message import block, call_text, entry_text, normal, query_alone
from quire.entry import sha256_hex
from quire.items import identity
from quire.values import INSTRUCTIONS, Call, Entry, Image, JsonObject, LeftOut, Message, ToolSet


class Pin(msgspec.Struct, frozen=True):
    """Words that stay, of the entry `seq`, pinned by the entry `by`."""

    seq: int
    by: int
    words: str
    # The identity of a pinned item: a newer version takes the older one's place.
    item: str = ""
    # A whole tool result: a handle would free nothing, since the pin repeats all of it.
    result: bool = False
    # A late instruction, which a rebase may fold into the system prompt.
    folds: bool = False


def pins_of(entry: Entry, entries: Mapping[int, Entry], pins: Sequence[Pin], policy: Policy) -> Iterator[Pin]:
    """What an entry pins: itself or a span of it (`meta.pin`), its items, earlier entries (`meta.pins`)."""
    pin = entry.meta.get("pin")
    if pin and entry.kind != "attach":
        yield from _entry_pin(entry, entry.seq, pin)
    yield from _item_pins(entry, pin, pins, policy)
    for seq in entry.meta.get("pins") or ():
        if seq in entries:
            yield from _named(entries[seq], entry.seq, policy)


def _entry_pin(entry: Entry, by: int, pin: object = True) -> Iterator[Pin]:
    whole = entry_text(entry)
    # Where the entry does not hold the span that was named, all of it is pinned.
    words = pin if isinstance(pin, str) and pin in whole else whole
    if words.strip():
        result = entry.kind == "result" and words == whole
        yield Pin(entry.seq, by, words, result=result, folds=entry.kind in INSTRUCTIONS)


def _item_pins(entry: Entry, pin: object, pins: Sequence[Pin], policy: Policy) -> Iterator[Pin]:
    """Pinned items, and new versions of items that were pinned before."""
    attach_pin = pin if entry.kind == "attach" else None
    for item in [entry.body["item"]] if entry.kind == "attach" else list(entry.attached):
        id = identity(item)
        if attach_pin or (item.get("metadata") or {}).get("pin") or any(pin.item == id for pin in pins):
            text = block(item, policy.times, policy.items).text
            span = isinstance(attach_pin, str) and attach_pin in text
            yield Pin(entry.seq, entry.seq, str(attach_pin)) if span else Pin(entry.seq, entry.seq, text, id)


def _named(entry: Entry, by: int, policy: Policy) -> Iterator[Pin]:
    if entry.kind == "attach":
        yield Pin(
            entry.seq, by, block(entry.body["item"], policy.times, policy.items).text, identity(entry.body["item"])
        )
    else:
        yield from _entry_pin(entry, by)


def pinned_words(pins: Sequence[Pin], before: Sequence[str], old: Epoch, new: Epoch) -> list[str]:
    """The words that stood in the old epoch, or in front of it (`before`), and have no place in the new one."""
    newest = {pin.item: pin for pin in pins if pin.item}
    current = [pin for pin in pins if not pin.item or newest[pin.item].words == pin.words]
    stale = {pin.words for pin in pins} - {pin.words for pin in current}
    was, now = _PinnedText(old, current), _PinnedText(new, current)
    due = [pin.words for pin in current if pin.by != pin.seq or was.shows(pin)]
    standing = {pin.words for pin in current if now.holds(pin)}
    return [words for words in dict.fromkeys([*before, *due]) if words not in standing and words not in stale]


class _PinnedText:
    """What one epoch says of pinned entries, in their places."""

    def __init__(self, epoch: Epoch, pins: Sequence[Pin]) -> None:
        self._texts_by_seq: dict[int, list[str]] = {}
        self._library = [block.text for block in epoch.l2]
        self._system = epoch.l1
        pinned = {pin.seq for pin in pins}
        for message in epoch.history.messages:
            for seq in pinned.intersection(message.seqs):
                self._texts_by_seq.setdefault(seq, []).extend(_texts(message))

    def shows(self, pin: Pin) -> bool:
        """Whether the entry has a place, if only as a reference or a change."""
        return pin.seq in self._texts_by_seq or self.holds(pin)

    def holds(self, pin: Pin) -> bool:
        """Whether a request shows the pinned words verbatim."""
        if any(pin.words in text for text in [*self._texts_by_seq.get(pin.seq, ()), *self._library]):
            return True
        return pin.folds and any(normal(pin.words) in text for text in self._system)


def _texts(message: Message) -> Iterator[str]:
    for part in message.parts:
        if isinstance(part, Call):
            yield call_text(part.name, part.args)
        elif not isinstance(part, Image | ToolSet):
            yield part.text


# Nothing that is left out goes unexplained: the entries that no request holds any more, each with its reason.

Version = tuple[str, str]


class LeftOutLog:
    """One reason for each entry; what an entry attached counts as shown while the library holds it."""

    def __init__(self) -> None:
        self.reasons: dict[int, LeftOut] = {}
        # Whether a copy shares the dictionary, which must then be copied before it changes.
        self._shared = False
        self._all: tuple[LeftOut, ...] | None = ()
        # The item that each `attach` entry brought.
        self.attached: dict[int, Version] = {}

    def restore(self, reasons: dict[int, LeftOut], attached: dict[int, Version]) -> None:
        """Go on from reasons that were found before."""
        self.reasons, self.attached, self._all = reasons, attached, None

    def copy(self) -> LeftOutLog:
        self._all = self.all
        self._shared = True
        twin = LeftOutLog()
        twin.__dict__.update(self.__dict__)
        return twin

    @property
    def all(self) -> tuple[LeftOut, ...]:
        if self._all is None:
            self._all = tuple(self.reasons.values())
        return self._all

    def leave(self, seq: int, reason: str) -> None:
        if seq not in self.reasons:
            self._own_reasons()[seq] = LeftOut(seq, reason)

    def _own_reasons(self) -> dict[int, LeftOut]:
        """The reasons as a dictionary of our own, which may be changed; a copy where it was shared."""
        if self._shared:
            self.reasons, self._shared = dict(self.reasons), False
        self._all = None
        return self.reasons

    def attach(self, seq: int, item: JsonObject) -> None:
        """Note which item version an `attach` entry brought, once a user entry has taken it in."""
        self.attached[seq] = identity(item), item.get("sha256") or sha256_hex(item["content"])

    def rebased(
        self, old: Epoch, new: Epoch, reason: str, turn: int, promote: Promote, results: Container[int]
    ) -> None:
        """What a rebase took away, in messages and in the library; `results` do not fold into L1, as notes do."""
        seqs_after = {seq for message in new.history.messages for seq in message.seqs}
        library = _versions(new)
        if promote == "each-turn":
            self._leave_context(old, seqs_after, library, turn)
        for message in old.history.messages:
            for seq in message.seqs:
                folds = message.role in ("note", "tools") and seq not in results
                if seq not in seqs_after and not folds and self.attached.get(seq) not in library:
                    self.leave(seq, f"rebase into epoch {new.number} ({reason})")
        self._follow_library(_versions(old), library, _showing(new, turn, promote))

    def _follow_library(self, before: set[Version], library: set[Version], in_messages: set[int]) -> None:
        """Items that left the library are explained, unless a message shows them; those back in it need not be."""
        for seq, version in self.attached.items():
            if version in library:
                self._own_reasons().pop(seq, None)
            elif version in before and seq not in in_messages:
                self.leave(seq, "its item left the library: unused for long, changed, or beyond its share")

    def _leave_context(self, old: Epoch, in_messages: set[int], library: set[Version], turn: int) -> None:
        """Each-turn keeps an earlier turn's query alone: its tool outputs and unpromoted items are explained."""
        for user in (placed.user for placed in old.history.leaves if placed.user and holds_context(placed, turn)):
            for seq in user.seqs if user.entry.seq in in_messages else ():
                if seq not in in_messages and self.attached.get(seq) not in library:
                    self.leave(seq, "context of an earlier turn, which keeps its query alone")


def holds_context(placed: PlacedMessage, turn: int) -> bool:
    """Whether an earlier turn's message still says more than its query."""
    return placed.user is not None and placed.turn < turn and placed.message != query_alone(placed.user)


def _versions(epoch: Epoch) -> set[Version]:
    return {(block.id, block.sha256) for block in epoch.l2}


def _showing(epoch: Epoch, turn: int, promote: Promote) -> set[int]:
    """The entries whose items a message may still show: each-turn keeps them in the newest turn alone."""
    leaves = [placed for placed in epoch.history.leaves if promote == "at-rebase" or placed.turn == turn]
    return {seq for placed in leaves for seq in placed.message.seqs}
