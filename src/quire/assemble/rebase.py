"""What a rebase is, and carrying one out: the messages that stay, behind the new library, and what is pinned.

Replaying a log runs `apply` alone, so a recorded choice is never made twice.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from quire.assemble import Policy
from quire.assemble.fit import Cuts
from quire.assemble.messages import SUMMARY_TURN, Epoch, PlacedMessage, in_name_order, leaf, naming_handle
from quire.assemble.telling import telling
from quire.assemble.user_message import ItemBlock, Library, UserTurn, call_text, entry_text, normal, query_alone
from quire.assemble.user_message import block as item_block
from quire.errors import DataError
from quire.items import identity
from quire.log.entries import SHORTENING
from quire.providers.convert import draft_for
from quire.providers.models import Features
from quire.tokens import counter, text_tokens
from quire.values import INSTRUCTIONS, Call, Entry, Image, JsonObject, Message, Part, Result, Text, Think, ToolSet

SUMMARY_HEADING = "# Summary of the earlier conversation"
PINNED_HEADING = "# Pinned"

# fold: into the system prompt. handle, cut: a shorter text stands in its place. supersede: an item's older version goes.
Action = Literal["drop", "fold", "handle", "cut", "supersede"]


class Edit(msgspec.Struct, frozen=True):
    """What a rebase does to one entry; an action that is not known here removes the entry's text."""

    entry: int
    action: Action | str
    replacement: str | None = None
    freed: int | None = None

    @property
    def drops(self) -> bool:
        """Whether the entry goes and nothing stands in its place, a user's words included."""
        return self.action == "drop"

    @property
    def cuts(self) -> bool:
        """Whether a text was cut at a line, in whichever message it stands."""
        return self.action == "cut"

    @property
    def shortens(self) -> bool:
        """Whether a shorter text stands in place of what the entry came with."""
        return self.action in SHORTENING and self.replacement is not None

    def apply_to(self, part: Part) -> Part | None:
        """What is left of a part of the model's or a tool's message."""
        if self.replacement is None or not isinstance(part, Result | Text):
            return None
        if isinstance(part, Text) and not self.shortens:
            return None
        return msgspec.structs.replace(part, text=self.replacement, wire={"cut": 0} if self.cuts else {})


class Version(msgspec.Struct, frozen=True):
    """An item's content, named by its hash."""

    id: str
    sha256: str


class Rebase(msgspec.Struct, frozen=True):
    """The recorded start of a new epoch: parsed once when its entry is fed, written once when it is recorded."""

    reason: str
    # Entries from this seq on stay; of earlier ones only the opening and what edits keep.
    before_seq: int = 0
    # What the context library holds from here on.
    versions: tuple[Version, ...] = ()
    edits: tuple[Edit, ...] = ()
    freed: int = 0
    summary: str = ""
    # The summary had room for the user's demands alone: the next one has to cover the rest of what left.
    brief: bool = False
    # The last entry of the thread's opening, which stays in front of what goes.
    opening: int = 0
    # What is pinned and would have no place otherwise, verbatim.
    pinned: tuple[str, ...] = ()
    # Why another summariser than the one asked wrote the summary.
    fallbacks: tuple[str, ...] = ()

    def drops(self) -> set[int]:
        """The entries that go."""
        return {edit.entry for edit in self.edits if edit.drops}

    def body(self) -> JsonObject:
        """The fields of its entry."""
        edits = map(msgspec.structs.asdict, self.edits)
        written: JsonObject = {
            "kind": "rebase",
            "reason": self.reason,
            "before_seq": self.before_seq,
            "library": [{"id": version.id, "sha256": version.sha256} for version in self.versions],
            "edits": [{key: value for key, value in edit.items() if value is not None} for edit in edits],
            "freed": self.freed,
        }
        if self.summary:
            written["summary"] = self.summary
        meta = {
            "opening": self.opening,
            "brief": self.brief,
            "pinned": list(self.pinned),
            "fallbacks": list(self.fallbacks),
        }
        if values := {key: value for key, value in meta.items() if value}:
            written["meta"] = values
        return written


def parse_rebase(entry: Entry) -> Rebase:
    """The rebase that a checked entry records."""
    body = entry.body
    return Rebase(
        body["reason"],
        body["before_seq"],
        tuple(Version(item["id"], item["sha256"]) for item in body["library"]),
        tuple(
            Edit(edit["entry"], edit["action"], edit.get("replacement"), edit.get("freed")) for edit in body["edits"]
        ),
        body["freed"],
        body.get("summary") or "",
        bool(entry.meta.get("brief")),
        entry.meta.get("opening", 0),
        tuple(entry.meta.get("pinned") or ()),
    )


def apply(epoch: Epoch, rebase: Rebase, policy: Policy, state: CarriedState) -> Epoch:
    """The epoch after a recorded rebase: the messages that stay, behind the new library."""
    after = Epoch()
    after.number, after.grown = epoch.number + 1, epoch.growth_so_far()
    # A user's older items are superseded whatever else is done to the entry.
    by_weight = sorted(rebase.edits, key=lambda edit: edit.action != "supersede")
    thoughts = {seq: Edit(seq, "drop") for seq, _ in _void_thoughts(epoch.history.leaves, policy)}
    edited = _with_results(thoughts | {edit.entry: edit for edit in by_weight}, epoch.history.messages)
    after.l1 = [*epoch.l1, *(text for seq, (text, always) in state.late.items() if always or seq in edited)]
    after.tools = in_name_order(state.tools)
    after.l2 = tuple(map(state.version, rebase.versions))
    after.item_library = Library()
    after.item_library.has = {block.id: block for block in after.l2}
    after.item_library.used = dict(epoch.item_library.used)
    leaves = [placed for placed in epoch.history.leaves if placed.turn != SUMMARY_TURN]
    # The first that does not belong to the thread's opening.
    behind = (at for at, placed in enumerate(leaves) if max(placed.message.seqs, default=0) > rebase.opening)
    begins = next(behind, len(leaves))
    for placed in leaves[:begins]:
        _carry(after, placed, edited, policy, state)
    after.opening = len(after.history.leaves)
    after.whole = epoch.whole and not rebase.before_seq
    if front := front_text(rebase):
        summary = leaf(Message("user", (Text(front),)), SUMMARY_TURN)
        tokens = counter().count(rebase.summary)
        after.history.add(msgspec.structs.replace(summary, summary_tokens=tokens))
    for placed in leaves[begins:]:
        _carry(after, placed, edited, policy, state)
    after.fold = len(after.history.leaves)
    if after.history.newest_user() is epoch.history.newest_user():
        after.user_message = epoch.user_message
    return after


def _with_results(edited: dict[int, Edit], messages: list[Message]) -> dict[int, Edit]:
    """The edits, and a drop for the result of every call that is dropped."""
    calls = set[str]()
    for message in messages:
        pairs = zip(message.parts, message.seqs, strict=False)
        if message.role == "assistant":
            whole = edited.keys().isdisjoint(message.seqs)
            calls = set() if whole else {p.call_id for p, s in pairs if isinstance(p, Call) and s in edited}
        elif message.role == "tool" and calls:
            lost = [s for p, s in pairs if isinstance(p, Result) and p.call_id in calls and s not in edited]
            edited.update({seq: Edit(seq, "drop") for seq in lost})
    return edited


class CarriedState(msgspec.Struct):
    """State that is not of one epoch: all tools and item versions, and the notes that a rebase may fold."""

    tools: dict[str, JsonObject]
    versions: dict[tuple[str, str], ItemBlock]
    # Late instructions not yet in L1: seq -> (text, folds at any rebase). System texts always fold.
    late: dict[int, tuple[str, bool]]
    turn: int = 0
    # The id of each tool result, by which its handle is named.
    results: dict[int, str] = {}

    def version(self, named: Version) -> ItemBlock:
        """The content that a rebase's library names."""
        block = self.versions.get((named.id, named.sha256))
        if block is None:
            raise DataError(
                f"a rebase folds {named.id!r} ({named.sha256[:12]}), which no entry before it holds",
                hint="The log is not whole: import the entries that attached it too.",
            )
        return block


def front_text(rebase: Rebase) -> str:
    """What stands in place of all that went: what is pinned, verbatim, and the summary."""
    parts = []
    if rebase.pinned:
        parts.append("\n\n".join([PINNED_HEADING, *rebase.pinned]))
    if rebase.summary:
        parts.append(f"{SUMMARY_HEADING}\n\n{rebase.summary}")
    return "\n\n".join(parts)


def _carry(after: Epoch, placed: PlacedMessage, edited: dict[int, Edit], policy: Policy, state: CarriedState) -> None:
    """Add one message, with its edits, to the new epoch."""
    message = placed.message
    if message.role in ("note", "tools"):
        _carry_late(after, placed, edited, state)
    elif placed.user is not None:
        if not (placed.user.entry.seq in edited and edited[placed.user.entry.seq].drops):
            _carry_user(after, placed, edited, policy, state)
    elif message.parts and edited.keys().isdisjoint(message.seqs):
        after.history.add(placed)
    else:
        parts_said = zip(message.parts, message.seqs, strict=True)
        edited_parts = [(edited[seq].apply_to(part) if seq in edited else part, seq) for part, seq in parts_said]
        pairs = [(part, seq) for part, seq in edited_parts if part is not None]
        if pairs:
            parts = tuple(part for part, _ in pairs)
            if message.role == "assistant" and any(seq in edited for _, seq in pairs):
                # Citations point into results that are gone.
                parts = tuple(
                    Text(part.text) if isinstance(part, Text) and "cut" not in part.wire else part for part in parts
                )
            if parts == message.parts:
                after.history.add(placed)
                return
            shorter = Message(message.role, parts, tuple(seq for _, seq in pairs))
            handled = {seq for seq in shorter.seqs if seq in edited and not edited[seq].cuts}
            ids = {s: state.results[s] for s in shorter.seqs if s in state.results and s not in handled}
            after.history.add(leaf(shorter, placed.turn, ids, model=policy.model))


def _carry_late(after: Epoch, placed: PlacedMessage, edited: dict[int, Edit], state: CarriedState) -> None:
    """Add a late note or late tools, unless a rebase folds them into L1 or drops them; a late result may be cut."""
    message = placed.message
    cut = next((edited[seq] for seq in message.seqs if seq in edited), None)
    folds = any(state.late.get(seq, ("", False))[1] for seq in message.seqs)
    if cut is not None and cut.cuts:
        after.history.add(leaf(Message("note", (Text(cut.replacement or ""),), message.seqs), placed.turn))
    elif cut is None and message.role == "note" and not folds:
        after.history.add(placed)


def _carry_user(
    after: Epoch, placed: PlacedMessage, edited: dict[int, Edit], policy: Policy, state: CarriedState
) -> None:
    assert placed.user is not None  # the caller asked
    context = tuple((call, _cut_result(result, edited)) for call, result in placed.user.context)
    user = msgspec.structs.replace(placed.user, entry=_with_handle(placed.user.entry, edited), context=context)
    if policy.promote == "each-turn" and placed.turn < state.turn:
        alone = leaf(query_alone(user), placed.turn, user=user, image_tokens=policy.image_tokens, model=policy.model)
        after.history.add(alone)
    elif user.blocks or user != placed.user:
        # The current turn's items are at least as new as the library's, so none of them is left out.
        after.say(_current(user, after.l2) if placed.turn < state.turn else user, placed.turn, policy)
    else:
        after.history.add(placed)


def _with_handle(entry: Entry, edited: dict[int, Edit]) -> Entry:
    """A user's entry with its words and the handle of what they came with."""
    edit = edited.get(entry.seq)
    if edit is None or not edit.shortens:
        return entry
    wire = {"cut": len(entry.text)} if edit.cuts else {}
    return msgspec.structs.replace(entry, body={**entry.body, "text": edit.replacement, "wire": wire})


def _cut_result(result: Entry | None, edited: dict[int, Edit]) -> Entry | None:
    """A result that was given beside the user's words, as a cut leaves it."""
    edit = edited.get(result.seq) if result is not None else None
    if result is None or edit is None or not edit.cuts:
        return result
    body = {**result.body, "content": edit.replacement, "outcome": None}
    return msgspec.structs.replace(result, body=body)


def _current(user: UserTurn, library: tuple[ItemBlock, ...]) -> UserTurn:
    """The turn without items of which the library holds a newer version."""
    newest = {item.id: item.sha256 for item in library}
    blocks = tuple(block for block in user.blocks if newest.get(block.id, block.sha256) == block.sha256)
    return msgspec.structs.replace(user, blocks=blocks)


# A plan, entry by entry: what is dropped, cut to a handle, folded or superseded, and the library after it.


def edits(
    epoch: Epoch, policy: Policy, plan: Cuts, results: Container[int] = (), spared: Container[int] = ()
) -> list[Edit]:
    """Every change of the plan, entry by entry: drop, handle, fold (into L1), with the tokens freed.

    `results` are the entries that are tool results, also those that were said late, as a note: they do not fold.
    `spared` are those that become no handles.
    """
    out: list[Edit] = []
    leaves = epoch.history.leaves
    shorter = _Shorter(leaves, plan)
    for index in range(plan.opening, plan.handle):
        placed = leaves[index]
        if index < plan.drop and index != plan.request:
            folds = placed.message.role in ("note", "tools") and placed.message.seqs[0] not in results
            out += _drops(placed, "fold" if folds else "drop")
        else:
            out += [edit for edit in _handles(placed, shorter) if edit.entry not in spared]
    staying = leaves[: plan.opening] + leaves[plan.drop :] if plan.drop else leaves
    thoughts = _void_thoughts(staying, policy)
    return out + [Edit(seq, "drop", freed=text_tokens(part.text)) for seq, part in thoughts]


def _drops(placed: PlacedMessage, action: Action) -> list[Edit]:
    seqs = list(dict.fromkeys(placed.message.seqs))
    share, rest = divmod(placed.tokens, max(1, len(seqs)))
    return [Edit(seq, action, freed=share + (rest if n == 0 else 0)) for n, seq in enumerate(seqs)]


class _Shorter:
    """Writes handles of long results, without words that stand elsewhere in the request or in another handle."""

    def __init__(self, leaves: list[PlacedMessage], plan: Cuts) -> None:
        self._leaves, self._from = leaves, plan.handle
        self._again = _repeated_results(leaves)
        self._used: set[str] | None = None
        self._known = set[str]()

    def text(self, seq: int, whole: str, handle: str) -> str:
        if seq in self._again:
            return self._again[seq]
        if self._used is None:
            self._used = set[str]().union(*(placed.used_words for placed in self._leaves))
            self._known.update(*(placed.telling_words for placed in self._leaves[self._from :]))
        text = naming_handle(whole, handle, self._used, self._known)
        self._known.update(telling(text))
        return text


def _handles(placed: PlacedMessage, shorter: _Shorter) -> list[Edit]:
    by_seq = zip(placed.message.seqs, placed.message.parts, strict=False)
    results = {seq: part for seq, part in by_seq if isinstance(part, Result)}
    # What is freed of others than results is counted for the message as a whole.
    out, freed = list[Edit](), placed.tokens - placed.handled_tokens
    for seq, text in placed.handles:
        if (result := results.get(seq)) is not None:
            text = shorter.text(seq, result.text, text)
            out.append(Edit(seq, "handle", text, _result_tokens(placed, result) - text_tokens(text)))
        else:
            out.append(Edit(seq, "handle", text, 0 if out else freed))
    return out


def _result_tokens(placed: PlacedMessage, part: Result) -> int:
    """The tokens of a result's words; of one that stands alone they were counted when it was placed."""
    alone = len(placed.message.parts) == 1
    return placed.tokens - placed.beside if alone else text_tokens(part.text)


def _repeated_results(leaves: list[PlacedMessage]) -> dict[int, str]:
    """Results that a later call with the same name and arguments gave again, word for word."""
    newest: dict[tuple[str, str, str], int] = {}
    out: dict[int, str] = {}
    arguments = dict[str, str]()
    for placed in leaves:
        for part, seq in zip(placed.message.parts, placed.message.seqs, strict=False):
            if isinstance(part, Call):
                arguments[part.call_id] = part.arguments or repr(part.args)
            elif isinstance(part, Result):
                key = (part.name, arguments.get(part.call_id, ""), part.text)
                if key in newest:
                    out[newest[key]] = f"[{part.name} gave the same result again later; see there]"
                newest[key] = seq
    return out


def _void_thoughts(leaves: list[PlacedMessage], policy: Policy) -> Iterator[tuple[int, Think]]:
    """All thinking: it is signed for the old prefix, so a provider would refuse it behind the new one.

    But Claude, where it does not bind it to a prefix, wants it back in front of the calls that are being answered.
    """
    newest = next((placed for placed in reversed(leaves) if placed.message.role in ("user", "assistant")), None)
    for placed in (placed for placed in leaves if placed.message.role == "assistant"):
        pairs = zip(placed.message.seqs, placed.message.parts, strict=False)
        thoughts = [(seq, part) for seq, part in pairs if isinstance(part, Think)]
        if thoughts and not (placed is newest and _wants_thinking(placed.message, policy)):
            yield from thoughts


def _wants_thinking(message: Message, policy: Policy) -> bool:
    kinds = {type(part) for part in message.parts if isinstance(part, Call) or "block" in getattr(part, "wire", {})}
    features = draft_for(policy.model).info.features if policy.model and kinds >= {Call, Think} else Features()
    return features.signed_thinking and features.thinking_bound == "no"


def fold_library(
    epoch: Epoch, policy: Policy, turn: int, cutting: bool, pinned: Container[str] = ()
) -> list[ItemBlock]:
    """The items of L2 after a rebase, in the order they were first seen; unused ones leave when history is cut."""
    used, oldest = epoch.item_library.used, turn - policy.unused_turns
    blocks = [
        block
        for block in _newest(epoch, policy, turn)
        if block.promotable and (not cutting or block.id in pinned or used.get(block.id, turn) >= oldest)
    ]
    return _within(blocks, policy.ceiling("L2"), used, pinned)


def _newest(epoch: Epoch, policy: Policy, turn: int) -> Iterable[ItemBlock]:
    """The newest version of every item that the model was given up to the turn before."""
    newest: dict[str, ItemBlock] = {block.id: block for block in epoch.l2}
    if policy.promote == "at-rebase":
        shown_blocks = list(epoch.item_library.has.values())
    else:
        users = [placed.user for placed in epoch.history.leaves if placed.user is not None and placed.turn < turn]
        shown_blocks = [block for user in users for block in user.blocks]
    for block in shown_blocks:
        old = newest.get(block.id)
        # The same content, shown once more with its images, stays in the library without them.
        if old is None or block.promotable or not old.promotable or old.sha256 != block.sha256:
            newest[block.id] = block
    return newest.values()


def _within(blocks: list[ItemBlock], limit: int, used: dict[str, int], pinned: Container[str]) -> list[ItemBlock]:
    """The library within its share: the items used longest ago leave first, pinned ones never."""
    size = sum(text_tokens(block.text) for block in blocks)
    leaving = set[str]()
    for block in sorted((block for block in blocks if block.id not in pinned), key=lambda block: used.get(block.id, 0)):
        if size <= limit:
            break
        size -= text_tokens(block.text)
        leaving.add(block.id)
    return [block for block in blocks if block.id not in leaving]


def superseding_edits(epoch: Epoch, plan: Cuts, library: list[ItemBlock], turn: int) -> list[Edit]:
    """The edits that take older versions of the library's items out of the earlier turns that stay."""
    newest = {item.id: item.sha256 for item in library}
    return [
        Edit(placed.user.entry.seq, "supersede", block.id)
        for index, placed in enumerate(epoch.history.leaves)
        if placed.user is not None and placed.turn < turn
        if index < plan.opening or index >= plan.drop or index == plan.request
        for block in placed.user.blocks
        if newest.get(block.id, block.sha256) != block.sha256
    ]


# What is pinned stands verbatim in every request after it was first shown. A rebase that removes pinned words from their
# place, by whichever edit, repeats them in front of the history. Words that are pinned after they have left (`meta.pins`)
# come back at the next rebase: adding them earlier would move sent bytes.


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
            yield from _pinned_later(entries[seq], entry.seq, policy)


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
            text = item_block(item, policy.times, policy.items).text
            span = isinstance(attach_pin, str) and attach_pin in text
            yield Pin(entry.seq, entry.seq, str(attach_pin)) if span else Pin(entry.seq, entry.seq, text, id)


def _pinned_later(entry: Entry, by: int, policy: Policy) -> Iterator[Pin]:
    if entry.kind == "attach":
        yield Pin(
            entry.seq, by, item_block(entry.body["item"], policy.times, policy.items).text, identity(entry.body["item"])
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
                self._texts_by_seq.setdefault(seq, []).extend(_texts_in(message))

    def shows(self, pin: Pin) -> bool:
        """Whether the entry has a place, if only as a reference or a change."""
        return pin.seq in self._texts_by_seq or self.holds(pin)

    def holds(self, pin: Pin) -> bool:
        """Whether a request shows the pinned words verbatim."""
        if any(pin.words in text for text in [*self._texts_by_seq.get(pin.seq, ()), *self._library]):
            return True
        return pin.folds and any(normal(pin.words) in text for text in self._system)


def _texts_in(message: Message) -> Iterator[str]:
    for part in message.parts:
        if isinstance(part, Call):
            yield call_text(part.name, part.args)
        elif not isinstance(part, Image | ToolSet):
            yield part.text
