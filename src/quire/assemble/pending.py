"""What no request has shown yet: a user turn, the model's messages, late instructions; closed into leaves."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from quire.assemble.messages import Epoch, PlacedMessage, assistant, leaf, results
from quire.assemble.policy import Policy
from quire.assemble.user_message import ItemBlock, UserTurn
from quire.entry import result_text
from quire.values import Entry, JsonObject, LeftOut, Message, Text

Pair = tuple[Entry, Entry | None]


class OpenMessage(msgspec.Struct):
    """One message of the model while it is still growing, and its calls with their results."""

    entries: list[Entry] = []
    pairs: list[Pair] = []

    def copy(self) -> OpenMessage:
        return OpenMessage(self.entries[:], self.pairs[:])


class Pending:
    """The part of a thread behind its last leaf; `close` turns it into leaves."""

    def __init__(self) -> None:
        self.attached: list[tuple[int, JsonObject]] = []
        self.groups: list[OpenMessage] = []
        self.late: list[Message] = []
        self.user: UserTurn | None = None
        self.context: list[Pair] = []
        # Calls that were shown without a result, by id.
        self.interrupted: dict[str, list[Entry]] = {}
        # What a copy has counted already; shared with it, forgotten when the request is passed.
        self._leaves: dict[tuple[str, tuple[int, ...]], PlacedMessage] = {}

    def copy(self) -> Pending:
        twin = Pending()
        twin.attached, twin.late = self.attached[:], self.late[:]
        twin.groups = [group.copy() for group in self.groups]
        twin.user, twin.context, twin._leaves = self.user, self.context[:], self._leaves
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
        """Its call was already shown as interrupted: those bytes stand, the result is said behind them."""
        waiting = self.interrupted.get(entry.call_id)
        if not waiting:
            return False
        call = waiting.pop()
        text = f"The result of {call.name} ({call.call_id}) arrived late:\n\n{result_text(entry)}"
        self.late.append(Message("note", (Text(text),), (entry.seq,)))
        return True

    def close(self, epoch: Epoch, turn: int, policy: Policy, final: bool = False) -> list[LeftOut]:
        """Turn everything into leaves; late instructions join only in front of the model's next words (`final`)."""
        left_out = self._close_user(epoch, turn, policy)
        for group in self.groups:
            left_out += self._close_group(group, epoch, turn, policy)
        self.groups = []
        if final:
            for message in self.late:
                epoch.strip.add(leaf(message, turn))
            self.late = []
        return left_out

    def forget_counts(self) -> None:
        self._leaves.clear()

    def _close_user(self, epoch: Epoch, turn: int, policy: Policy) -> list[LeftOut]:
        if self.user is None:
            return []
        told = tuple((call, result) for call, result in self.context if result and result_text(result))
        seqs = (*self.user.seqs, *(entry.seq for pair in told for entry in pair))
        epoch.say(msgspec.structs.replace(self.user, context=told, seqs=seqs), turn, policy)
        silent = [
            entry for pair in self.context for entry in pair if entry is not None and entry.seq not in seqs
        ]
        self.user, self.context = None, []
        return [LeftOut(entry.seq, "a tool that gave nothing") for entry in silent]

    def _close_group(self, group: OpenMessage, epoch: Epoch, turn: int, policy: Policy) -> list[LeftOut]:
        message = assistant(group.entries, policy)
        if message.parts:
            epoch.strip.add(self._leaf(message, turn))
        if group.pairs:
            answered = {result.seq: result.id for _, result in group.pairs if result is not None}
            epoch.strip.add(self._leaf(results(group.pairs), turn, answered))
        for call, result in group.pairs:
            if result is None:
                self.interrupted.setdefault(call.call_id, []).append(call)
        return [
            LeftOut(entry.seq, _unshown(entry)) for entry in group.entries if entry.seq not in message.seqs
        ]

    def _leaf(self, message: Message, turn: int, ids: Mapping[int, str] | None = None) -> PlacedMessage:
        """A leaf of the tail; asking for a request and passing it count its tokens once."""
        key = (message.role, message.seqs)
        known = self._leaves.get(key)
        if known is None or known.message != message:
            known = self._leaves[key] = leaf(message, turn, ids)
        return known


def _unshown(entry: Entry) -> str:
    return "thinking is not sent in this format" if entry.kind == "think" else "empty message"
