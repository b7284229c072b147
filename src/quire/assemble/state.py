"""The fold over a thread: entries are fed in order, a request can be asked for at any point.

Everything here is derived from the entries and the policy; throwing it away and feeding the log again
gives the same bytes. `request` looks ahead on a copy and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from quire.assemble import Policy
from quire.assemble.fit import Built, build, check_shares
from quire.assemble.messages import Epoch, in_name_order, merge_tools
from quire.assemble.pending import LeftOutLog, Pending, Round
from quire.assemble.rebase import CarriedState, Pin, Rebase, apply, parse_rebase, pins_of
from quire.assemble.rebase_decision import Decision, Rent, decide, effective, rent_owed
from quire.assemble.summary import Summarise, extract
from quire.assemble.user_message import ItemBlock, normal
from quire.assemble.user_message import block as item_block
from quire.errors import BudgetError
from quire.log.entries import usable
from quire.providers.convert import draft_for
from quire.tokens import Calibration, Calibrations
from quire.values import Entry, JsonObject, Kind, LeftOut, Message, Text, ToolSet

# What is known of the models that a thread asked: which was last, when, and how each of them counts.

_to = msgspec.structs.replace


class ModelHistory(msgspec.Struct, frozen=True):
    """What was asked so far; each entry gives the next value. Times are those of the entries."""

    # What each model reported: one that counts otherwise says nothing about the others.
    calibrations: Calibrations = Calibrations()
    model: str = ""
    # Our own count of the newest request.
    estimate: int = 0
    now: int | None = None
    last: int | None = None

    def at(self, entry: Entry) -> ModelHistory:
        return _to(self, now=entry.at) if entry.at is not None else self

    def after_request(self, estimate: int) -> ModelHistory:
        """The history after a request that we count as `estimate` tokens."""
        return _to(self, estimate=estimate, last=self.now)

    def after_report(self, sent: Entry) -> ModelHistory:
        """The history after a report: the provider's count of the newest request corrects ours."""
        usage = sent.body.get("usage")
        total = usage.get("input_total") if isinstance(usage, dict) else None
        model, calibrations = f"{sent.body.get('provider')}:{sent.body.get('model')}", self.calibrations
        if total and self.estimate:
            calibrations = calibrations.observe(model, self.estimate, total)
        return _to(self, model=model, calibrations=calibrations)

    def calibration(self, policy: Policy) -> Calibration:
        """How the policy's model counts; where it names none, the one that was asked last."""
        if policy.model:
            return self.calibrations.of(policy.model)
        return self.calibrations.by_model.get(self.model) or Calibration()

    def is_cold(self, policy: Policy) -> bool:
        """Whether the cache has expired, after a pause, or is another model's."""
        if self.model and policy.model not in ("", self.model):
            return True
        if policy.ttl_s is None or self.now is None or self.last is None:
            return False
        return self.now - self.last > policy.ttl_s * 1000


# How many older entries are read from the log at once.
_PAGE = 64


class FedEntries(Mapping[int, Entry]):
    """Every entry of a thread by its seq: those up to `last` are read when they are asked for, the others are held."""

    def __init__(self, last: int = 0, read: Callable[[int, int], Iterable[Entry]] | None = None) -> None:
        self._last, self._read = last, read
        self._held: dict[int, Entry] = {}

    def add(self, entry: Entry) -> None:
        self._held[entry.seq] = entry

    def __getitem__(self, seq: int) -> Entry:
        if seq not in self._held and self._read is not None and 0 < seq <= self._last:
            after = (seq - 1) // _PAGE * _PAGE
            page = self._read(after, min(_PAGE, self._last - after))
            self._held.update({entry.seq: usable(entry) for entry in page})
        return self._held[seq]

    def __contains__(self, seq: object) -> bool:
        return seq in self._held or (isinstance(seq, int) and 0 < seq <= self._last)

    def __iter__(self) -> Iterator[int]:
        yield from range(1, self._last + 1)
        yield from (seq for seq in self._held if not 0 < seq <= self._last)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return bool(self._held) or self._last > 0


class Assembly:
    """A thread as it would be sent: feed entries, ask for the next request."""

    def __init__(self, policy: Policy | None = None, summarise: Summarise = extract) -> None:
        self.policy = policy or Policy()
        self.summarise = summarise
        self.epoch = Epoch()
        self.carried = CarriedState({}, {}, {})
        self.step = 0
        self.left_out_log = LeftOutLog()
        self.rebases: list[Rebase] = []
        # Whether one of them was decided here and is not in the log: its summary is by the current summariser.
        self.unrecorded = False
        # Whether one of them put a handle in place of a longer text.
        self.has_handles = False
        self.pending = Pending()
        # Every entry fed, for summaries and pins, and how many there are.
        self.entries, self.fed = FedEntries(), 0
        # Where each version of an item was attached: the entry, and its place there.
        self.attached_at: dict[tuple[str, str], tuple[int, int]] = {}
        self.pins: list[Pin] = []
        self.rent = Rent()
        self.requests = 0
        self.tools_moved = False
        self.round = Round()
        self.stable = 0
        # The rebase that the log holds for the request at hand.
        self.recorded: JsonObject | None = None
        self.models = ModelHistory()
        # What looking ahead has decided already; dropped when the request is passed.
        self._memo: tuple[int, Decision] | None = None

    @property
    def turn(self) -> int:
        """How many times the user has spoken."""
        return self.carried.turn

    # Feeding

    def extend(self, entries: Iterable[Entry]) -> Assembly:
        for entry in entries:
            self.feed(entry)
        return self

    def use_summariser(self, summarise: Summarise) -> None:
        """Ask this summariser from now on; a decision that rests on another one's summary is dropped."""
        if summarise is not self.summarise:
            self.summarise, self._memo = summarise, None

    def asks(self, entry: Entry) -> bool:
        """Whether a request stands in front of this entry: it was sent here, or the model begins to speak."""
        return self.turn > 0 and self.round.asks(entry, self.pending.is_context(entry))

    def feed(self, entry: Entry) -> None:
        """Take one entry in; if a request was made right before it, the state moves past that request first."""
        entry = usable(entry)
        if entry.kind == "sent" and entry.meta.get("aside"):
            self._memo = None
            return  # a question beside the conversation: a plan, a summary
        if entry.kind != "sent" and self.asks(entry):
            self._pass()
        before = self.round
        self.round = before.after(entry, self.pending.is_context(entry))
        self.models = self.models.at(entry)
        self.entries.add(entry)
        self.fed += 1
        self.pins += pins_of(entry, self.entries, self.pins, self.policy)
        if entry.kind == "sent":
            self._request_sent(entry, before)
        _FEEDS[entry.kind](self, entry)

    def _feed_system(self, entry: Entry) -> None:
        if not normal(entry.text):
            self.left_out_log.leave(entry.seq, "empty message")
        elif not (self.requests or (self.turn and self.epoch.l1) or self._keeps_its_place(entry)):
            # System entries in front of the user's first words are the system prompt.
            as_sent = self._is_models_message(entry)
            self.epoch.l1.append(entry.text if as_sent else normal(entry.text))
            self.epoch.front.append(entry.wire if as_sent else {})
        else:
            self.pending.late.append(Message("note", (Text(entry.text, entry.wire),), (entry.seq,)))
            self.carried.late[entry.seq] = (normal(entry.text), True)

    def _feed_note(self, entry: Entry) -> None:
        # A note without words may set the effort from here on.
        content = entry.text.strip() or entry.wire.get("effort") or entry.wire.get("blocks")
        if content or self._is_models_message(entry):
            self.pending.late.append(Message("note", (Text(entry.text, entry.wire),), (entry.seq,)))
            self.carried.late[entry.seq] = (normal(entry.text), False)
            if "recalled_ids" in entry.meta:
                # It repeats what was left out: a rebase drops it like a tool's result, and never folds it into L1.
                self.carried.late[entry.seq] = ("", False)
                self.carried.results[entry.seq] = entry.id
        else:
            self.left_out_log.leave(entry.seq, "empty message")

    def _feed_tools(self, entry: Entry) -> None:
        tools_before = self.carried.tools
        self.carried.tools = merge_tools(tools_before, entry)
        if self._keeps_its_place(entry):
            # Imported as an item of its own, which is sent back as such.
            self.pending.late.append(Message("tools", (ToolSet(tuple(entry.tools), entry.wire),), (entry.seq,)))
        elif self.carried.tools == tools_before:
            return
        elif not self.requests:
            self.epoch.tools = in_name_order(self.carried.tools)
        elif self.policy.late_tools and set(tools_before) <= set(self.carried.tools):
            new = tuple(tool for tool in entry.tools if tools_before.get(tool["name"]) != tool)
            self.pending.late.append(Message("tools", (ToolSet(new),), (entry.seq,)))
        else:
            self.tools_moved = True

    def _feed_attach(self, entry: Entry) -> None:
        self.pending.attached.append((entry.seq, entry.body["item"]))

    def _is_models_message(self, entry: Entry) -> bool:
        """Whether it was imported as a message to the model that is asked."""
        imported = bool(self.policy.model) and "message" in entry.wire
        return imported and draft_for(self.policy.model).takes_back(entry.wire)

    def _is_known(self, entry: Entry) -> bool:
        """Whether it came from a conversation with the model that is asked."""
        named = bool(self.policy.model and entry.wire.get("model"))
        return named and draft_for(self.policy.model).knows(entry.wire)

    def _keeps_its_place(self, entry: Entry) -> bool:
        """Whether it was imported as a message behind others, so that it keeps its place."""
        return bool(self.turn or self.pending.groups) and self._is_models_message(entry)

    def _feed_user(self, entry: Entry) -> None:
        late = [self.entries[message.seqs[0]] for message in self.pending.late]
        self._close(final=bool(late) and all(map(self._keeps_its_place, late)))
        self.carried.turn += 1
        self.step = 0
        if "encloses" in entry.wire:
            self.carried.results[entry.seq] = entry.id
        for seq, item in self.pending.attached:
            self.left_out_log.attach(seq, item)
        attached = [(self._block(item), seq, 0) for seq, item in self.pending.attached]
        inline = [(self._block(item), entry.seq, place) for place, item in enumerate(entry.attached)]
        # Of each item the version that was given last, where the first stood.
        newest = {given[0].id: given for given in (*attached, *inline)}
        for block, seq, place in newest.values():
            self.carried.versions[block.id, block.sha256] = block
            self.attached_at[block.id, block.sha256] = seq, place
        blocks = tuple(block for block, _, _ in newest.values())
        older = [seq for block, seq, _ in attached if block not in blocks]
        for seq in older:
            self.left_out_log.leave(seq, "a newer version was attached in the same turn")
        self.pending.attached = [pair for pair in self.pending.attached if pair[0] not in older]
        self.pending.say(entry, blocks)

    def _block(self, item: JsonObject) -> ItemBlock:
        return item_block(item, self.policy.times, self.policy.items)

    def _feed_spoken(self, entry: Entry) -> None:
        """The model goes on with its message, or begins another: an imported one keeps its boundaries.

        While a call waits for its result, they are not kept: the result comes behind all that the model said in a row.
        """
        beside = self.pending.is_context(entry)
        if "block" in entry.wire and not entry.text.strip():
            self.carried.results[entry.seq] = entry.id
        apart = "message" in entry.wire and not self.pending.waits
        self.pending.speak(entry, apart or not self.round.speaking)
        if not beside:
            self.round = self.round.spoke()

    def _feed_result(self, entry: Entry) -> None:
        if self.pending.answer(entry):
            self.carried.results[entry.seq] = entry.id
        elif self.pending.answer_late(entry):
            self.carried.late[entry.seq] = ("", False)
            self.carried.results[entry.seq] = entry.id
        elif entry.wire.get("stored") and self._is_known(entry):
            self.pending.answer_stored(entry)
        else:
            self.left_out_log.leave(entry.seq, "no call waits for this result")

    def _request_sent(self, entry: Entry, before: Round) -> None:
        """A `sent` entry with usage ends the reply it stands behind; any other begins one."""
        begins = "usage" not in entry.body
        if self.turn and before.asks(entry, beside=False):
            # The log says that it was sent: nothing is decided again.
            self.round = self.round.with_decision()
            self._pass(sent=True)
        elif begins and before.streaming:
            self._send_again()
        elif begins:
            self._close()  # words in front of it belong to an earlier answer
        self.round = self.round.streams(begins)

    def _send_again(self) -> None:
        """The reply broke off and its request was sent again: what had come of the first reply is left out."""
        for group in self.pending.groups:
            for entry in group.entries:
                self.left_out_log.leave(entry.seq, "cut off; the request was sent again")
        self.pending.groups = []
        self._close(final=True)
        self.epoch.pass_by()
        self.models, self.round = self.models.after_request(self.models.estimate), self.round.again()

    def _feed_sent(self, entry: Entry) -> None:
        # A request in another layout says nothing of how the model counts ours.
        if "layout" not in entry.meta:
            self.models = self.models.after_report(entry)

    def _feed_rebase(self, entry: Entry) -> None:
        self._close(final=True)
        rebase = parse_rebase(entry)
        self._read_versions(rebase)
        self.begin_epoch(rebase, self._just_decided())
        self.round, self.recorded = self.round.with_decision(), entry.body

    def _read_versions(self, rebase: Rebase) -> None:
        """Read items that a recorded rebase names and that are not in memory from the entries that attached them."""
        for named in rebase.versions:
            key = (named.id, named.sha256)
            if key not in self.carried.versions and key in self.attached_at:
                seq, place = self.attached_at[key]
                self.carried.versions[key] = self._block(self.entries[seq].attached[place])

    # Closing the tail and passing a request

    def _close(self, final: bool = False) -> None:
        for left_out in self.pending.close(self.epoch, self.turn, self.policy, final):
            self.left_out_log.leave(left_out.entry, left_out.reason)

    def _pass(self, sent: bool = False) -> None:
        """Move past a request; a rebase that was due and not recorded is made in memory."""
        self._close(final=True)
        try:
            decision = self._decide()
        except BudgetError:
            decision = Decision(None, self.rent)
        self.rent = decision.rent
        if decision.rebase is not None:
            self.unrecorded = True
            self.begin_epoch(decision.rebase, decision)
        self.stable = self.epoch.sent
        self.epoch.pass_by()
        self.models = self.models.after_request(self.epoch.total_tokens())
        self.requests += 1
        self.step += 1
        self.round = self.round.after_request(sent)
        self._memo, self.recorded = None, None
        self.pending.counted.clear()

    def _decide(self) -> Decision:
        # The same request sent again: nothing is decided twice, unless it no longer fits.
        if self.recorded is not None or (self.round.sent and not self.tools_moved and self.fits()):
            return Decision(None, self.rent)
        if self.round.decided:
            # It was sent without a rebase: it still adds to the rent.
            decision = self._just_decided()
            if decision is not None and decision.rebase is None and decision.rent is not self.rent:
                return decision
            return Decision(None, rent_owed(self))
        if self._memo is not None and self._memo[0] == self.fed:
            return self._memo[1]
        return decide(self)

    def _just_decided(self) -> Decision | None:
        """What was decided for the request that the newest entry records, if this object decided it."""
        return self._memo[1] if self._memo is not None and self._memo[0] == self.fed - 1 else None

    def fits(self) -> bool:
        """Whether a request would keep its budget without a rebase."""
        return effective(self).fits(self.epoch.head_tokens(), self.epoch.history.total)

    def begin_epoch(self, rebase: Rebase, decision: Decision | None = None) -> None:
        """Begin the epoch behind a rebase; `decision` may hold that epoch already."""
        old, carried = self.epoch, self.carried
        decided_epoch = decision.leads_to(old, rebase) if decision is not None else None
        self.epoch = decided_epoch or apply(old, rebase, self.policy, carried)
        edited = {edit.entry for edit in rebase.edits}
        for seq in [s for s, (_, always) in carried.late.items() if always or s in edited]:
            del carried.late[seq]
        self.left_out_log.add_rebase(old, self.epoch, rebase.reason, self.turn, self.policy.promote, carried.results)
        self.rebases.append(rebase)
        self.has_handles = self.has_handles or any(edit.shortens for edit in rebase.edits)
        self.rent, self.tools_moved = self.rent.at_next_epoch(), False

    # Asking

    @property
    def cold(self) -> bool:
        """Whether the provider's cache holds nothing for this thread: the first request, a pause, another model."""
        return self.requests == 0 or self.models.is_cold(self.policy)

    @property
    def left_out(self) -> Sequence[LeftOut]:
        """What no request holds any more, and why."""
        return self.left_out_log.entries()

    def expected_tokens(self, built: Built) -> int:
        """How many tokens the model will count in a request, by what it reported before."""
        return self.models.calibration(self.policy).predict(built.tokens).tokens

    def copy(self) -> Assembly:
        """A copy to look ahead on."""
        twin = Assembly.__new__(Assembly)
        twin.__dict__.update(self.__dict__)
        twin.epoch = self.epoch.copy()
        twin.carried = _to(self.carried, late=dict(self.carried.late))
        twin.left_out_log, twin.rebases = self.left_out_log.copy(), self.rebases[:]
        twin.pending = self.pending.copy()
        return twin

    def ahead(self, passes: bool = False) -> Assembly:
        """The state when the next request is made: a copy, so that this one can still be fed otherwise.

        `passes`: that request is what is fed next, so this state itself moves on where it can.
        """
        if passes and not (self.round.streaming or self.round.sent):
            self._close(final=True)
            return self
        twin = self.copy()
        if self.round.streaming:
            # A request made now repeats the one whose reply is streaming in, without what has come of that reply.
            twin.pending.groups, twin.round = [], self.round.again()
        twin._close(final=True)
        return twin

    def select(self, passes: bool = False) -> Selection:
        """What of the log counts for the request that would be sent now."""
        if self.turn == 0 and not any(map(self._is_known, self.entries.values())):
            raise BudgetError(
                "there is no user entry yet, so there is nothing to ask", hint="Append a user entry first."
            )
        twin = self.ahead(passes)
        if twin.round.sent:
            twin.epoch.sent = self.stable
        return Selection(twin, self)

    def request(self, passes: bool = False) -> Built:
        """The request that would be sent now; with the rebase that has to be recorded first, if one is due."""
        return fit(self.select(passes))

    def request_as_sent(self, passes: bool = False) -> Built:
        """The request that the log says was sent here; only recorded rebases are applied."""
        return self.ahead(passes)._as_built(self.recorded)

    def _as_built(self, record: JsonObject | None) -> Built:
        """The current state as a request; `record` is the rebase to record first."""
        waiting = tuple(LeftOut(seq, "waits for the next user entry") for seq, _ in self.pending.attached)
        step = self.step + (not self.round.sent)
        policy = effective(self)
        built = build(self.epoch, policy, (self.turn, step), record, self.left_out_log.entries(waiting))
        reports = self.models.calibration(self.policy).reports
        return _to(built, limit=policy.limit if reports else self.policy.limit)


class Selection(msgspec.Struct, frozen=True):
    """What of the log counts for the next request, laid out in its layers; the budget is not looked at yet."""

    standing: Assembly
    # The state that it was taken from, which remembers the decision made for this request.
    source: Assembly


def fit(selection: Selection) -> Built:
    """The selection inside its budget; with the rebase that has to be recorded first, if one is due.

    May be called again with the same result: a rebase changes a copy alone.
    """
    standing = selection.standing
    decision = standing._decide()
    selection.source._memo = (standing.fed, decision)
    if decision.rebase is None:
        built = standing._as_built(None)
    else:
        standing = standing.copy()
        standing.begin_epoch(decision.rebase, decision)
        built = standing._as_built(decision.rebase.body())
    check_shares(built, standing.policy)
    return built


# What each kind of entry does to the thread.
_FEEDS: dict[Kind, Callable[[Assembly, Entry], None]] = {
    "system": Assembly._feed_system,
    "tools": Assembly._feed_tools,
    "attach": Assembly._feed_attach,
    "user": Assembly._feed_user,
    "think": Assembly._feed_spoken,
    "call": Assembly._feed_spoken,
    "respond": Assembly._feed_spoken,
    "result": Assembly._feed_result,
    "note": Assembly._feed_note,
    "rebase": Assembly._feed_rebase,
    "sent": Assembly._feed_sent,
}
