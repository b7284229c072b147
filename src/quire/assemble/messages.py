"""The messages that stand in an epoch, each with its size and what it shrinks to in the handle tier."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from quire.assemble import Policy
from quire.assemble.telling import likeliest, telling, telling_behind, tells_failure
from quire.assemble.user_message import ItemBlock, Library, UserMessage, UserTurn, call_text, say
from quire.providers.convert import draft_for, holds_blocks, own_blocks, pairs, takes_words
from quire.tokens import (
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    block_tokens,
    countable,
    counter,
    message_tokens,
    part_tokens,
    text_tokens,
    tools_tokens,
)
from quire.values import (
    INTERRUPTED,
    Call,
    Entry,
    Image,
    JsonObject,
    Message,
    Part,
    Prompt,
    Result,
    Text,
    Think,
    ToolSet,
    cached_property,
    result_text,
)

# A result of up to this many tokens stays: a handle would save next to nothing.
SMALL = 160
_HEAD, _TAIL = 120, 120
# Names that every provider takes as they are; others are spelled anew, with a mark behind, up to 64 characters.
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MARK_TOKENS = 9
# What a handle says of the whole.
_MARK = re.compile(r"\[… \d+ tokens in all; the whole text: recall with handle [\da-f]* …\]")
_CUT = re.compile(r"\n?\[… cut here: (\d+) tokens in all; the whole text: recall with handle ([\da-f]*) …\]\Z")


# Entries, each with the shorter text that may stand for it.
Handles: TypeAlias = tuple[tuple[int, str], ...]


class PlacedMessage(msgspec.Struct, frozen=True, dict=True):
    """One message in place."""

    message: Message
    tokens: int
    turn: int
    # The entries in it that a handle would shorten, each with the text that stands for it, and its tokens with these.
    handles: Handles = ()
    handled_tokens: int = 0
    user: UserTurn | None = None
    # How much of it is the summary of what went before; the rest is pinned.
    summary_tokens: int = 0
    # Of a result's tokens, those of images and files.
    beside: int = 0

    @cached_property
    def id_tokens(self) -> int:
        """What the ids of calls and results take on the wire, which `tokens` leave out."""
        named = (part.call_id for part in self.message.parts if isinstance(part, Call | Result))
        return sum(map(counter().count, named))

    @cached_property
    def used_words(self) -> frozenset[str]:
        """The telling words that calls were made with."""
        calls = (part for part in self.message.parts if isinstance(part, Call))
        return frozenset(word for call in calls for word in telling(call_text(call.name, call.args)))

    @cached_property
    def telling_words(self) -> frozenset[str]:
        """The words of this message that a later call is likely to name: ids, paths, names."""
        parts = (part for part in self.message.parts if not isinstance(part, Call | Image | ToolSet))
        return self.used_words.union(*(telling(part.text) for part in parts))


def leaf(
    message: Message,
    turn: int,
    ids: Mapping[int, str] | None = None,
    user: UserTurn | None = None,
    image_tokens: int = IMAGE_TOKENS,
    model: str = "",
) -> PlacedMessage:
    """A leaf for a message to a model; `ids` are those of its entries, by which handles are named."""
    blocks = own_blocks(message, model) if any(map(holds_blocks, message.parts)) else []
    if message.role == "tool":
        return _results_leaf(message, turn, ids or {}, [sum(map(block_tokens, row)) for row in blocks])
    spelling = sum(_spelling_tokens(part) for part in message.parts)
    tokens = message_tokens(message, image_tokens=image_tokens) + spelling
    if not any(blocks) and not any(isinstance(part, Text) and "cut" in part.wire for part in message.parts):
        return PlacedMessage(message, tokens, turn, (), tokens, user)
    blocks = blocks or [[] for _ in message.parts]
    sizes = [sum(map(block_tokens, row)) for row in blocks]
    tokens += sum(sizes)
    parts, handles = _user_handles(message, user, blocks, sizes) if user else _own_handled(message, ids or {}, blocks)
    if not handles:
        return PlacedMessage(message, tokens, turn, (), tokens, user)
    handled = message_tokens(msgspec.structs.replace(message, parts=parts), image_tokens=image_tokens) + spelling
    handled += sum(size for size, old, new in zip(sizes, message.parts, parts, strict=True) if new is old)
    return PlacedMessage(message, tokens, turn, handles, min(tokens, handled), user)


def _results_leaf(message: Message, turn: int, ids: Mapping[int, str], beside: Sequence[int] = ()) -> PlacedMessage:
    """A leaf of results, each counted once: what it is, and what it shrinks to; `beside` the text, what else it holds."""
    sizes = [part_tokens(part) for part in message.parts]
    if any(beside):
        sizes = [size + more for size, more in zip(sizes, beside, strict=True)]
    framing = MESSAGE_TOKENS * max(1, len(sizes))
    tokens = framing + sum(sizes)
    if tokens <= SMALL:
        return PlacedMessage(message, tokens, turn, (), tokens, beside=sum(beside))
    handles, handled = list[tuple[int, str]](), framing
    for part, size, seq in zip(message.parts, sizes, message.seqs, strict=True):
        text = _result_handle(part, size, ids.get(seq, ""))
        handles += [(seq, text)] if text else []
        handled += counter().count(text) if text else size
    return PlacedMessage(message, tokens, turn, tuple(handles), handled, beside=sum(beside))


def _user_handles(
    message: Message, user: UserTurn, blocks: list[list[JsonObject]], sizes: list[int]
) -> tuple[tuple[Part, ...], Handles]:
    """A user's parts with a handle for what their words came with: documents, or what a cut has left of a text."""
    parts, entry = message.parts, user.entry
    at, part = next((at, part) for at, part in enumerate(parts) if isinstance(part, Text))
    if "cut" in part.wire:
        words = cut_handle(entry.text, entry.wire)
        text = part.text.replace(entry.text, words)
    elif sizes[at] > SMALL and entry.id:
        handle = handle_text(documents_text(blocks[at]), sizes[at], handle_of(entry.id))
        # The message also holds the turn's context; the entry's own words are without.
        text, words = f"{part.text}\n\n{handle}", f"{entry.text}\n\n{handle}"
    else:
        return parts, ()
    return (*parts[:at], Text(text), *parts[at + 1 :]), ((entry.seq, words),)


def cut_handle(text: str, wire: JsonObject) -> str:
    """The handle of a text that a rebase has cut; so many characters in front of it are words that stay."""
    mark, words = _CUT.search(text), wire.get("cut")
    if mark is None or not isinstance(words, int):
        return text
    short = handle_text(_head(text[words : mark.start()].lstrip("\n")), int(mark[1]), mark[2])
    return f"{text[:words]}\n\n{short}" if words else short


def documents_text(blocks: Iterable[JsonObject]) -> str:
    """What can be read of documents, one behind the other."""
    return "\n\n".join(filter(None, (countable(block)[0] for block in blocks)))


def _own_handled(
    message: Message, ids: Mapping[int, str], blocks: list[list[JsonObject]]
) -> tuple[tuple[Part, ...], Handles]:
    """The model's parts with the provider's own calls as words and their results as handles: in pairs, or not at all."""
    shorter = {
        place: cut_handle(part.text, part.wire)
        for place, part in enumerate(message.parts)
        if isinstance(part, Text) and "cut" in part.wire
    }
    for places in pairs([row[0] if row else None for row in blocks]):
        named = [ids.get(message.seqs[place], "") for place in places]
        sizes = [block_tokens(blocks[place][0]) for place in places]
        if sum(sizes) > SMALL and all(named):
            for place, size, entry_id in zip(places, sizes, named, strict=True):
                shorter[place] = own_handle(blocks[place][0], size, entry_id, place == places[-1])
    parts = tuple(Text(shorter[place]) if place in shorter else part for place, part in enumerate(message.parts))
    return parts, tuple((message.seqs[place], shorter[place]) for place in sorted(shorter))


def own_handle(block: JsonObject, tokens: int, entry_id: str, result: bool) -> str:
    """What stands for a call of the provider's own, or for what it gave."""
    text = countable(block)[0]
    if result or tokens > SMALL:
        return handle_text(text, tokens, handle_of(entry_id))
    return f"[Called {' '.join(text.split())}]"


def _spelling_tokens(part: Part) -> int:
    """Room for a call's name that cannot be sent as it is: what it may take more than its own tokens."""
    if not isinstance(part, Call) or _PLAIN.fullmatch(part.name):
        return 0
    return max(0, min(64, len(part.name)) + _MARK_TOKENS - counter().count(part.name))


def _result_handle(part: Part, tokens: int, entry_id: str) -> str:
    """What stands for a long result; nothing where that would not be shorter, or cannot be."""
    if not isinstance(part, Result) or not entry_id or tokens <= SMALL or not takes_words(part):
        return ""
    if "cut" in part.wire:
        return cut_handle(part.text, part.wire)
    return handle_text(part.text, tokens, handle_of(entry_id))


def handle_of(entry_id: str) -> str:
    """The short name of an entry's original: the first 12 hex digits of its id."""
    return entry_id.removeprefix("sha256:")[:12]


def handle_text(text: str, tokens: int, handle: str) -> str:
    """Head and tail of a long text around the handle of the whole."""
    head, tail = (_head(text), _tail(text)) if len(text) > _HEAD else (text, "")
    mark = f"[… {tokens} tokens in all; the whole text: recall with handle {handle} …]"
    return "\n".join(part for part in (head, mark, tail) if part)


def naming_handle(text: str, handle: str, used: Container[str], named_elsewhere: Container[str]) -> str:
    """The handle of a text with words that are likely to be named again in place of its tail, and no longer.

    A tail that ends with a failure stays: nothing else in the handle would tell of it.
    """
    head = _head(text)
    mark = _MARK.search(handle, len(head))
    if mark is None or tells_failure(handle.rpartition("\n")[2]):
        return handle
    room = counter().count(handle) - counter().count(f"{head}\n\n{mark[0]}")
    named = likeliest(telling_behind(text, len(head)), room, used, named_elsewhere)
    return "\n".join(part for part in (head, " ".join(named), mark[0]) if part) if named else handle


def _head(text: str) -> str:
    """The first lines that fit, or a cut at white space: never in mid-word where there is a choice."""
    cut = text[:_HEAD]
    end = cut.rfind("\n")
    if end < _HEAD // 2:
        end = max(end, cut.rfind(" "))
    return cut[: end if end > 0 else _HEAD].rstrip()


def _tail(text: str) -> str:
    cut = text[-_TAIL:]
    start = cut.find("\n")
    if start < 0 or start > _TAIL // 2:
        start = min((i for i in (start, cut.find(" ")) if i >= 0), default=-1)
    return cut[start + 1 :].strip()


def assistant(entries: Sequence[Entry], policy: Policy) -> Message:
    """One message of the model from the entries of its run; empty text is left out, unless it was sent so before."""
    imported = bool(entries and policy.model) and "message" in entries[0].wire
    whole = imported and draft_for(policy.model).was_sent(entries[0].wire)
    pairs = [(part, entry.seq) for entry in entries if (part := _spoken_part(entry, policy, whole)) is not None]
    return Message("assistant", tuple(part for part, _ in pairs), tuple(seq for _, seq in pairs))


def _spoken_part(entry: Entry, policy: Policy, whole: bool) -> Part | None:
    if entry.kind == "think":
        return Think(entry.text, entry.wire) if whole or policy.thinking or _is_owed(entry, policy) else None
    if entry.kind == "respond":
        # A blank text may still carry a provider's own block: a signature, a server tool's result.
        content = whole or entry.text.strip() or entry.wire.get("block")
        return Text(entry.text, entry.wire) if content else None
    raw = entry.wire.get("arguments")
    return Call(entry.call_id, entry.name, entry.args, entry.wire, raw if isinstance(raw, str) else "")


def _is_owed(thought: Entry, policy: Policy) -> bool:
    """Whether this thought goes back to the model that is asked: it wrote the thought, or was sent it before."""
    provider, _, model = policy.model.partition(":")
    has_field = "field" in thought.wire or "block" in thought.wire
    named = model in (thought.wire.get("model"), thought.wire.get("asked"))
    returnable = has_field and provider.startswith(("openai", "openrouter"))
    return bool(model) and named and (returnable or "message" in thought.wire)


def results(pairs: Sequence[tuple[Entry, Entry | None]]) -> Message:
    """The results of one group of calls, in the calls' order; a missing one is shown as interrupted."""
    parts = tuple(_result(call, result) for call, result in pairs)
    # An interrupted call has no result entry; its own seq stands for the result it should have had.
    return Message("tool", parts, tuple((result or call).seq for call, result in pairs))


def _result(call: Entry, result: Entry | None) -> Result:
    if result is None:
        return Result(call.call_id, call.name, INTERRUPTED, error=True)
    return Result(call.call_id, call.name, result_text(result), bool(result.body.get("error")), result.wire)


# The leaves of an epoch in order, with running sums, so that a cut is found without walking the thread.


class History:
    """Leaves only join at the end; `sums` and `handled` are running totals in front of each leaf."""

    def __init__(self, leaves: Iterable[PlacedMessage] = ()) -> None:
        self.leaves: list[PlacedMessage] = []
        # The same leaves' messages and sizes, as a request shows them.
        self.messages: list[Message] = []
        self.sizes: list[int] = []
        self.sums: list[int] = [0]
        self.handled: list[int] = [0]
        self.turn_starts: list[int] = []
        self.group_starts: list[int] = []
        # Leaves that the handle tier would shorten.
        self.long: list[int] = []
        # Running totals of what the ids take on the wire.
        self.ids: list[int] = [0]
        for placed in leaves:
            self.add(placed)

    def add(self, leaf: PlacedMessage) -> None:
        index = len(self.leaves)
        if leaf.user is not None:
            self.turn_starts.append(index)
        elif leaf.message.role == "assistant":
            self.group_starts.append(index)
        if leaf.handles:
            self.long.append(index)
        self.leaves.append(leaf)
        self.messages.append(leaf.message)
        self.sizes.append(leaf.tokens)
        self.sums.append(self.sums[-1] + leaf.tokens)
        self.handled.append(self.handled[-1] + leaf.handled_tokens)
        self.ids.append(self.ids[-1] + leaf.id_tokens)

    def copy(self) -> History:
        twin = History.__new__(History)
        twin.__dict__ = {name: places[:] for name, places in self.__dict__.items()}
        return twin

    @property
    def total(self) -> int:
        return self.sums[-1]

    def newest_user(self) -> PlacedMessage | None:
        return self.leaves[self.turn_starts[-1]] if self.turn_starts else None

    def last_legal(self) -> int:
        """Where the part that is never cut begins: the newest group, or the user who has just spoken."""
        user = self.turn_starts[-1] if self.turn_starts else 0
        return max(user, self.group_starts[-1]) if self.group_starts else user

    def legal_at_or_before(self, index: int) -> int:
        """The deepest place at or before `index` where a kept part may begin (0: nothing goes): a turn, a group."""
        index = min(index, self.last_legal())
        return max(self._below(self.turn_starts, index), self._below(self.group_starts, index))

    def legal_at_or_after(self, index: int, everywhere: bool) -> int:
        """The first legal place at or after `index`; the never-cut part's start when there is none before it.

        A turn's start always; a group of calls in the current turn, or in any turn when `everywhere`.
        """
        index = min(index, self.last_legal())
        turns = bisect_left(self.turn_starts, index)
        candidates = [self.turn_starts[turns]] if turns < len(self.turn_starts) else []
        current = self.turn_starts[-1] if self.turn_starts else 0
        groups = bisect_left(self.group_starts, index if everywhere else max(index, current + 1))
        if groups < len(self.group_starts):
            candidates.append(self.group_starts[groups])
        return min(candidates, default=self.last_legal())

    def deepest_keeping(self, tokens: float) -> int:
        """The deepest legal start whose tail still holds at least `tokens`."""
        index = bisect_right(self.sums, self.total - tokens) - 1
        return self.legal_at_or_before(index) if index > 0 else 0

    def front_within(self, room: float) -> int:
        """The last legal place that leaves at most `room` tokens in front of it."""
        return self.legal_at_or_before(bisect_right(self.sums, room) - 1)

    def tokens_freed(self, start: int, end: int) -> int:
        """The tokens freed when the leaves in [start, end) become handles."""
        return self.sums[end] - self.sums[start] - (self.handled[end] - self.handled[start])

    def longest_within(self, room: float) -> int:
        """The earliest legal start whose tail, with the request of the turn it cuts into, fits into `room`."""
        start = self._tail_within(room)
        request = self.turn_of(start)
        return start if request is None else self._tail_within(room - self.leaves[request].tokens)

    def last_beyond(self, room: float) -> int:
        """The last leaf that does not fit into `room` with all behind it."""
        return max(0, bisect_left(self.sums, self.total - room) - 1)

    def _tail_within(self, room: float) -> int:
        return self.legal_at_or_after(bisect_left(self.sums, self.total - room), everywhere=True)

    def shallowest_handled(self, end: int, room: float, everywhere: bool) -> int:
        """The earliest legal start whose leaves up to `end`, as handles, fit into `room`."""
        index = bisect_left(self.handled, self.handled[end] - room)
        return min(end, self.legal_at_or_after(index, everywhere)) if index < end else end

    def first_long(self, start: int, end: int) -> int:
        """The first leaf in [start, end) that a handle would shorten; `end` when there is none."""
        at = bisect_left(self.long, start)
        return min(self.long[at], end) if at < len(self.long) else end

    def turn_of(self, index: int) -> int | None:
        """The user leaf of the turn that a group at `index` belongs to, if it stands before it."""
        at = bisect_right(self.turn_starts, index) - 1
        return self.turn_starts[at] if at >= 0 and self.turn_starts[at] < index else None

    @staticmethod
    def _below(places: list[int], index: int) -> int:
        at = bisect_right(places, index) - 1
        return places[at] if at >= 0 else 0


# What stands in one epoch: L1, tools, the library folded into L2, and the leaves behind them.

SUMMARY_TURN = -1


class Epoch:
    """The derived state of an epoch; a function of the entries and the policy, kept to be extended."""

    def __init__(self) -> None:
        self.number = 1
        self.l1: list[str] = []
        # The `wire` of what L1 is made of, as far as it came from the model that is asked.
        self.front: list[JsonObject] = []
        self.tools: tuple[JsonObject, ...] = ()
        self.l2: tuple[ItemBlock, ...] = ()
        self.item_library = Library()
        self.history = History()
        # How many of the first leaves are the thread's opening, which every rebase lets stand.
        self.opening = 0
        # Whether no rebase has dropped anything yet.
        self.whole = True
        # How many leaves stood when the epoch began, and how many were in the newest request.
        self.fold = 0
        self.sent = 0
        # What earlier epochs grew by, in tokens, and with how many answers of the model; the older, the less it counts.
        self.grown = (0.0, 0.0)
        # How many leaves each of its requests had that went by.
        self.ends: list[int] = []
        # The newest turn's L3, for the envelope.
        self.user_message: UserMessage | None = None
        self._head: tuple[object, int] = ((), 0)

    def copy(self) -> Epoch:
        twin = Epoch.__new__(Epoch)
        twin.__dict__.update(self.__dict__)
        twin.l1, twin.item_library, twin.history = self.l1[:], self.item_library.copy(), self.history.copy()
        twin.ends, twin.front = self.ends[:], self.front[:]
        return twin

    def growth_so_far(self) -> tuple[float, float]:
        """The tokens that have joined, and how many answers of the model are among them; earlier epochs count half."""
        history, (tokens, answers) = self.history, self.grown
        begun = min(self.fold, len(history.leaves))
        new = len(history.group_starts) - bisect_left(history.group_starts, begun)
        return tokens / 2 + history.total - history.sums[begun], answers / 2 + new

    def growth(self) -> float:
        """How many tokens a request brings."""
        tokens, answers = self.growth_so_far()
        return tokens / max(1, answers)

    def pass_by(self) -> None:
        """Note that a request held everything so far."""
        self.sent = len(self.history.leaves)
        if self.ends[-1:] != [self.sent]:
            self.ends.append(self.sent)

    @property
    def l1_text(self) -> str:
        return "\n\n".join(part for part in self.l1 if part)

    @property
    def l2_text(self) -> str:
        return "\n\n".join(block.text for block in self.l2)

    def prompt(self, opening: int = 0) -> Prompt:
        """Everything that the request at this point says."""
        return Prompt(
            self.l1_text,
            self.l2_text,
            self.tools,
            tuple(self.history.messages),
            epoch=self.number,
            fold=self.fold,
            stable=self.sent,
            opening=opening,
            ends=tuple(self.ends[: bisect_right(self.ends, self.sent)]),
            heads=tuple(self.l1) if len(self.l1) > 1 and self.number == 1 else (),
            front=tuple(self.front) if any(self.front) else (),
        )

    def head_tokens(self) -> int:
        """Tokens in front of the messages: tools, system prompt, library; counted again only when they change."""
        if self._head[0] != (tuple(self.l1), self.l2, self.tools):
            systems = self.prompt().systems
            self.keep_head_tokens(sum(map(text_tokens, systems)) + tools_tokens(self.tools))
        return self._head[1]

    def keep_head_tokens(self, tokens: int) -> None:
        """What stands in front of the messages now has been counted."""
        self._head = ((tuple(self.l1), self.l2, self.tools), tokens)

    def total_tokens(self) -> int:
        return self.head_tokens() + self.history.total

    def say(self, turn: UserTurn, number: int, policy: Policy) -> PlacedMessage:
        """Place a user turn, referring to what the model has."""
        spoken = self.user_message = say(turn, self.item_library, number, policy.promote)
        placed = leaf(spoken.message, number, user=turn, image_tokens=policy.image_tokens, model=policy.model)
        self.history.add(placed)
        return placed


def in_name_order(tools: dict[str, JsonObject]) -> tuple[JsonObject, ...]:
    """Tools in name order, as they are frozen for an epoch."""
    return tuple(tools[name] for name in sorted(tools))


def merge_tools(tools: dict[str, JsonObject], entry: Entry) -> dict[str, JsonObject]:
    """The tools after a `tools` entry: they join by name; meta.replace makes them the whole set."""
    joined = {} if entry.meta.get("replace") else dict(tools)
    joined.update({tool["name"]: tool for tool in entry.tools})
    return joined
