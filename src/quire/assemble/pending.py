"""What no request shows: not yet, or no longer and why; and where the round stands between asking and answering."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from enum import Enum
from functools import cache

import msgspec

from quire.assemble import Policy, Promote
from quire.assemble.messages import Epoch, PlacedMessage, assistant, leaf, results
from quire.assemble.user_message import ItemBlock, UserTurn, query_alone
from quire.items import identity
from quire.values import (
    BOOKKEEPING,
    SPOKEN,
    Entry,
    JsonObject,
    LazyRows,
    LeftOut,
    Message,
    Text,
    result_text,
    sha256_hex,
)

# What no request has shown yet: a user turn, the model's messages, late instructions; closed into leaves.

Pair = tuple[Entry, Entry | None]


class OpenMessage(msgspec.Struct):
    """One message of the model while it is still growing, and its calls with their results."""

    entries: list[Entry] = []
    pairs: list[Pair] = []

    def copy(self) -> OpenMessage:
        return OpenMessage(self.entries[:], self.pairs[:])


class Pending:
    """The entries behind a thread's last message; `close` turns them into messages (leaves)."""

    def __init__(self) -> None:
        self.attached: list[tuple[int, JsonObject]] = []
        self.groups: list[OpenMessage] = []
        self.late: list[Message] = []
        self.user: UserTurn | None = None
        self.context: list[Pair] = []
        # Calls that were shown without a result, by id.
        self.interrupted: dict[str, list[Entry]] = {}
        # Messages that a copy has counted already, shared between copies until the request is sent.
        self.counted: dict[tuple[str, tuple[int, ...]], PlacedMessage] = {}

    def copy(self) -> Pending:
        twin = Pending()
        twin.attached, twin.late = self.attached[:], self.late[:]
        twin.groups = [group.copy() for group in self.groups]
        twin.user, twin.context, twin.counted = self.user, self.context[:], self.counted
        return twin

    def is_context(self, entry: Entry) -> bool:
        """Whether this call was made beside the user's words, to give them context."""
        return entry.kind == "call" and entry.meta.get("placement") == "context" and self.user is not None

    def say(self, entry: Entry, blocks: tuple[ItemBlock, ...]) -> None:
        """A user speaks, with what was attached before."""
        self.user = UserTurn(entry, blocks, (), (*(seq for seq, _ in self.attached), entry.seq))
        self.attached = []

    def speak(self, entry: Entry, begins: bool) -> None:
        """The model goes on with its message, or begins another."""
        if self.is_context(entry):
            self.context.append((entry, None))
            return
        if begins or not self.groups:
            self.groups.append(OpenMessage([], []))
        self.groups[-1].entries.append(entry)
        if entry.kind == "call":
            self.groups[-1].pairs.append((entry, None))

    @property
    def waits(self) -> bool:
        """Whether a call of the newest message has no result yet."""
        return bool(self.groups) and any(result is None for _, result in self.groups[-1].pairs)

    def answer(self, entry: Entry) -> bool:
        """Give a result to the nearest earlier unanswered call with its id, if there is one."""
        for pairs in [group.pairs for group in reversed(self.groups)] + [self.context]:
            for index in range(len(pairs) - 1, -1, -1):
                call, result = pairs[index]
                if result is None and call.call_id == entry.call_id:
                    pairs[index] = (call, entry)
                    return True
        return False

    def answer_late(self, entry: Entry) -> bool:
        """Say a late result as a note: its call was already sent as interrupted, and those bytes may not change."""
        waiting = self.interrupted.get(entry.call_id)
        if not waiting:
            return False
        call = waiting.pop()
        text = f"The result of {call.name} ({call.call_id}) arrived late:\n\n{result_text(entry)}"
        self.late.append(Message("note", (Text(text),), (entry.seq,)))
        return True

    def answer_stored(self, entry: Entry) -> None:
        """The provider holds its call: the result stands alone, as it came."""
        if not self.groups:
            self.groups.append(OpenMessage([], []))
        self.groups[-1].pairs.append((entry, entry))

    def close(self, epoch: Epoch, turn: int, policy: Policy, final: bool = False) -> list[LeftOut]:
        """Turn everything into leaves; late instructions join only in front of the model's next words (`final`)."""
        left_out = self._close_user(epoch, turn, policy)
        for group in self.groups:
            left_out += self._close_group(group, epoch, turn, policy)
        self.groups = []
        if final:
            for message in self.late:
                epoch.history.add(leaf(message, turn))
            self.late = []
        return left_out

    def _close_user(self, epoch: Epoch, turn: int, policy: Policy) -> list[LeftOut]:
        if self.user is None:
            return []
        answered = tuple((call, result) for call, result in self.context if result and result_text(result))
        seqs = (*self.user.seqs, *(entry.seq for pair in answered for entry in pair))
        epoch.say(msgspec.structs.replace(self.user, context=answered, seqs=seqs), turn, policy)
        silent = [entry for pair in self.context for entry in pair if entry is not None and entry.seq not in seqs]
        self.user, self.context = None, []
        return [LeftOut(entry.seq, "a tool that gave nothing") for entry in silent]

    def _close_group(self, group: OpenMessage, epoch: Epoch, turn: int, policy: Policy) -> list[LeftOut]:
        message = assistant(group.entries, policy)
        if message.parts:
            spoken = {entry.seq: entry.id for entry in group.entries}
            epoch.history.add(self._leaf(message, turn, spoken, policy))
        if group.pairs:
            answered = {result.seq: result.id for _, result in group.pairs if result is not None}
            epoch.history.add(self._leaf(results(group.pairs), turn, answered, policy))
        for call, result in group.pairs:
            if result is None:
                self.interrupted.setdefault(call.call_id, []).append(call)
        unshown = [entry for entry in group.entries if entry.seq not in message.seqs]
        reasons = {"think": "thinking is not sent in this format"}
        return [LeftOut(entry.seq, reasons.get(entry.kind, "empty message")) for entry in unshown]

    def _leaf(self, message: Message, turn: int, ids: Mapping[int, str], policy: Policy) -> PlacedMessage:
        """A leaf of a pending message, whose tokens are counted once although a request looks ahead first."""
        key = (message.role, message.seqs)
        placed = self.counted.get(key)
        if placed is None or placed.message != message:
            placed = self.counted[key] = leaf(message, turn, ids, model=policy.model)
        return placed


# How far a request and its answer have come, as one value; each entry gives the next one.

_to = msgspec.structs.replace


class Stage(Enum):
    """How far the newest request has come."""

    ASKED = "nothing was sent for it yet"
    SENT = "it was sent, and its stream has brought nothing"
    SENT_THEN_TOLD = "the same, but entries were added since: sent once more, it would be another request"
    STREAMING = "the words of its answer are coming in"
    INTERRUPTED = "its stream is open, and something else was recorded behind the words that came"
    ANSWERED = "what its answer used is known, its words follow"
    ANSWERING = "the words of an answer that was reported before they came"
    SPEAKING = "the words of an answer that no entry has reported"


S = Stage
_SENT = frozenset({S.SENT, S.SENT_THEN_TOLD, S.ANSWERED})
_STREAMING = frozenset({S.SENT, S.SENT_THEN_TOLD, S.STREAMING, S.INTERRUPTED})
_SPEAKING = frozenset({S.STREAMING, S.ANSWERING, S.SPEAKING})

# For each event, the stage behind a stage; a stage that is not listed stays.
_SPOKE = {
    S.ASKED: S.SPEAKING,
    S.SENT: S.STREAMING,
    S.SENT_THEN_TOLD: S.STREAMING,
    S.INTERRUPTED: S.STREAMING,
    S.ANSWERED: S.ANSWERING,
}
_ENDED = {S.ANSWERING: S.ASKED, S.SPEAKING: S.ASKED}
# A caller who adds instructions has its answer: a stream that broke off counts as ended, and what is added behind an
# answer without words belongs to a new request.
_MORE_TOLD = {**_ENDED, S.SENT: S.SENT_THEN_TOLD, S.STREAMING: S.ASKED, S.ANSWERED: S.ASKED}
_SOMETHING_ELSE = {**_ENDED, S.STREAMING: S.INTERRUPTED}
_STREAM_BEGAN = {S.ASKED: S.INTERRUPTED, S.ANSWERED: S.SENT}
_REPORTED = {S.SENT: S.ANSWERED, S.SENT_THEN_TOLD: S.ANSWERED, S.INTERRUPTED: S.ASKED}
_AGAIN = {S.SENT_THEN_TOLD: S.ASKED, S.STREAMING: S.SENT, S.INTERRUPTED: S.SENT}


class Round(msgspec.Struct, frozen=True):
    """One round: the user or a tool has spoken, a request is decided and sent, the model answers."""

    stage: Stage = Stage.ASKED
    # Whether the log holds what was decided for the current request.
    decided: bool = False

    @property
    def sent(self) -> bool:
        """Whether the current request was sent, so that its answer belongs to no new request."""
        return self.stage in _SENT

    @property
    def streaming(self) -> bool:
        """Whether the answer is being streamed and has not ended."""
        return self.stage in _STREAMING

    @property
    def speaking(self) -> bool:
        """Whether the model's words go on."""
        return self.stage in _SPEAKING

    def asks(self, entry: Entry, beside: bool) -> bool:
        """Whether a request stands in front of this entry: it was sent here, or the model begins to speak.

        `beside`: a call made beside the user's words, to give them context.
        """
        if entry.kind == "sent":
            return not entry.meta.get("aside") and self._sends("usage" not in entry.body)
        return entry.kind in SPOKEN and not (beside or self.sent or self.speaking)

    def _sends(self, begins: bool) -> bool:
        """Whether a `sent` entry records a new request: not the end of a stream, nor the report of an answer.

        A stream that begins while one is open is the same request once more, unless entries were added since.
        """
        if self.stage is S.SENT_THEN_TOLD:
            return begins
        return self.stage in (S.ASKED, S.ANSWERED, S.ANSWERING)

    def after(self, entry: Entry, beside: bool) -> Round:
        """The round behind an entry: a user's or a tool's begins a new one, any but the model's ends an answer."""
        if entry.kind in ("user", "result"):
            return Round(decided=self.decided)
        if entry.kind in SPOKEN and not beside:
            return self
        return self._step(_SOMETHING_ELSE if entry.kind in SPOKEN | BOOKKEEPING else _MORE_TOLD)

    def spoke(self) -> Round:
        return self._step(_SPOKE)

    def after_request(self, sent: bool = False) -> Round:
        """The round behind a request; what was decided for it is used up."""
        stage = S.SENT if sent else S.INTERRUPTED if self.streaming else S.ASKED
        return Round(stage)

    def with_decision(self) -> Round:
        return _to(self, decided=True)

    def streams(self, going_on: bool) -> Round:
        """A `sent` entry opens the answer's stream, or reports what the answer used."""
        return self._step(_STREAM_BEGAN if going_on else _REPORTED)

    def again(self) -> Round:
        """The round if a request is made now, while an answer streams in: the same one again, or a new one."""
        return self._step(_AGAIN)

    def _step(self, table: dict[Stage, Stage]) -> Round:
        return _to(self, stage=table.get(self.stage, self.stage))


# Nothing that is left out goes unexplained: the entries that no request holds any more, each with its reason.

# An item's identity and the hash of its content.
ItemVersion = tuple[str, str]


class SharedRows:
    """Rows that only grow, and the place of each entry's."""

    def __init__(self, rows: Iterable[LeftOut]) -> None:
        self.rows = list(rows)
        self.places = {row.entry: place for place, row in enumerate(self.rows)}


class LeftOutRows(LazyRows[LeftOut]):
    """The first rows of those that a thread's requests share, and `more` that are left out of one request alone."""

    def __init__(self, shared: Callable[[], SharedRows], count: int, more: tuple[LeftOut, ...]) -> None:
        super().__init__(lambda: count + len(more), lambda: (*shared().rows[:count], *more))
        self.shared, self.end, self.more = shared, count, more


def left_out_since(before: Sequence[LeftOut], now: Sequence[LeftOut]) -> list[LeftOut]:
    """What a request leaves out that an earlier one did not; of rows that they share only the new ones are read."""
    known: Iterable[LeftOut] = before
    rows: Iterable[LeftOut] = now
    if isinstance(before, LeftOutRows) and isinstance(now, LeftOutRows) and before.shared is now.shared:
        known, rows = before.more, [*now.shared().rows[before.end : now.end], *now.more]
    known = {*known}
    return [row for row in rows if row not in known]


class LeftOutLog:
    """One reason for each entry; what an entry attached counts as shown while the library holds it."""

    def __init__(self, runs: Sequence[tuple[str, Sequence[int]]] = ()) -> None:
        # `runs` are reasons with their entries; a long thread has many, so they are gone through when somebody asks.
        # Copies share the rows, each has the first so many of them: what one leaves, the others mostly leave next.
        load = cache(lambda: SharedRows(LeftOut(seq, reason) for reason, seqs in runs for seq in seqs))
        self._shared: Callable[[], SharedRows] = load
        self._count = sum(len(seqs) for _, seqs in runs)
        # The item that each `attach` entry brought.
        self.attached: dict[int, ItemVersion] = {}

    def copy(self) -> LeftOutLog:
        twin = LeftOutLog.__new__(LeftOutLog)
        twin.__dict__.update(self.__dict__)
        return twin

    def entries(self, more: tuple[LeftOut, ...] = ()) -> LeftOutRows:
        """All that was left out so far, and `more`, which is left out of one request alone."""
        return LeftOutRows(self._shared, self._count, more)

    def leave(self, seq: int, reason: str) -> None:
        if self._is_left(seq):
            return
        row, rows = LeftOut(seq, reason), self._shared().rows
        if rows[self._count : self._count + 1] != [row]:
            if self._count < len(rows):
                self._use(rows[: self._count])  # a copy has left others
            shared = self._shared()
            shared.places[seq] = self._count
            shared.rows.append(row)
        self._count += 1

    def _is_left(self, seq: int) -> bool:
        return self._shared().places.get(seq, self._count) < self._count

    def _use(self, rows: list[LeftOut]) -> None:
        shared = SharedRows(rows)
        self._shared, self._count = (lambda: shared), len(rows)

    def attach(self, seq: int, item: JsonObject) -> None:
        """Note which item version an `attach` entry brought, once a user entry has taken it in."""
        self.attached[seq] = identity(item), item.get("sha256") or sha256_hex(item["content"])

    def add_rebase(
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
        # The entries whose items a message may still show: each-turn keeps them in the newest turn alone.
        leaves = [placed for placed in new.history.leaves if promote == "at-rebase" or placed.turn == turn]
        showing = {seq for placed in leaves for seq in placed.message.seqs}
        self._follow_library(_versions(old), library, showing)

    def _follow_library(self, before: set[ItemVersion], library: set[ItemVersion], in_messages: set[int]) -> None:
        """Items that left the library are explained, unless a message shows them; those back in it need not be."""
        if back := {seq for seq, version in self.attached.items() if version in library and self._is_left(seq)}:
            self._use([row for row in self.entries() if row.entry not in back])
        for seq, version in self.attached.items():
            if version in before and version not in library and seq not in in_messages:
                self.leave(seq, "its item left the library: unused for long, changed, or beyond its share")

    def _leave_context(self, old: Epoch, in_messages: set[int], library: set[ItemVersion], turn: int) -> None:
        """Each-turn keeps an earlier turn's query alone: its tool outputs and unpromoted items are explained."""
        for user in (placed.user for placed in old.history.leaves if placed.user and holds_context(placed, turn)):
            for seq in user.seqs if user.entry.seq in in_messages else ():
                if seq not in in_messages and self.attached.get(seq) not in library:
                    self.leave(seq, "context of an earlier turn, which keeps its query alone")


def holds_context(placed: PlacedMessage, turn: int) -> bool:
    """Whether an earlier turn's message still says more than its query."""
    return placed.user is not None and placed.turn < turn and placed.message != query_alone(placed.user)


def _versions(epoch: Epoch) -> set[ItemVersion]:
    return {(block.id, block.sha256) for block in epoch.l2}
