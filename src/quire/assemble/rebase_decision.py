"""Deciding on a rebase and writing it down: the rule, the rungs, the summary, the pins."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from quire.assemble import Policy
from quire.assemble.fit import NO_CUT, RUNGS, Cuts, Rung
from quire.assemble.fit import plan as plan_cut
from quire.assemble.messages import SUMMARY_TURN, Epoch, PlacedMessage, documents_text, handle_of, own_handle
from quire.assemble.pending import holds_context
from quire.assemble.rebase import Edit, Rebase, Version, apply, fold_library, pinned_words, superseding_edits
from quire.assemble.rebase import edits as edits_of
from quire.assemble.summary import Leaving, Summarise, extract, forgotten
from quire.assemble.telling import lines_that_fit, telling
from quire.assemble.user_message import ItemBlock
from quire.errors import BudgetError
from quire.providers.convert import holds_blocks, own_blocks, pairs, takes_words
from quire.tokens import block_tokens, countable, counter, text_tokens, tools_tokens
from quire.tokens.vocabularies import far_off
from quire.values import Result, Text, result_text

if TYPE_CHECKING:
    from quire.assemble.state import Assembly


_to = msgspec.structs.replace

# A summariser is any caller's code: an answer that is no summary is not used, and the rebase records why.

# A model counts words, not tokens: a summary a little too long is not worth another rung.
_OVER = 1.25


def summed_up(leaving: Leaving, summarise: Summarise) -> tuple[str, list[str]]:
    """The summary of what leaves, by the summariser, else by the built-in one, else none; and what went wrong."""
    fallbacks: list[str] = []
    # With room for the user's demands alone the summariser is not asked.
    for summariser in dict.fromkeys((summarise, extract) if leaving.limit else (extract,)):
        limit = max(leaving.limit, leaving.most) if summariser is extract else leaving.limit
        text, wrong = _answer(summariser, leaving, limit)
        if not wrong and summariser is not extract:
            # A model may forget what the user demanded.
            text = "\n".join(part for part in (text, forgotten(leaving, text)) if part)
        if not wrong:
            return text, fallbacks
        fallbacks.append(wrong)
    return "", fallbacks


def _answer(summarise: Summarise, leaving: Leaving, limit: int) -> tuple[str, str]:
    """What a summariser says, or why it cannot be used."""
    try:
        answer: object = summarise(leaving)
    except Exception as error:  # a summariser is anybody's code, and asks over a network
        return "", f"summary failed: {str(error) or type(error).__name__}"
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        return "", "summary failed: returned a coroutine; pass a plain function"
    if answer is not None and not isinstance(answer, str):
        return "", f"summary was no text but {type(answer).__name__}"
    return _check_summary((answer or "").strip(), limit)


def _check_summary(text: str, limit: int) -> tuple[str, str]:
    if not text:
        return "", "summary was empty"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return "", f"summary was no valid text: {error.reason}"
    return ("", "summary was longer than allowed") if counter().count(text) > limit * _OVER else (text, "")


# When to rebase: as soon as going on costs more a request than the epoch would have cost if it ended here (the rule of
# Silver and Meal for ordering stock), at a moment when a cut is no dearer than usual; at once when the cache is cold; where
# reading is free, when a cut costs no more of the usual price than the epoch has used of its room. bench/moments.py
# compares such rules.

# A cut is worth its break if it frees this share of what would be kept.
LEAST_SHARE = 0.05
# What a model is given in front of its answer.
PRIMING = 3
# What a cut usually leaves and has to write anew: of so many requests at least, and of so many of the newest.
_SAMPLES, _NEWEST = 3, 40
# A cut waits for so many times its price, and for so many times what it writes and what it leaves beyond the usual.
_WAIT, _DEARER, _LARGER = 1.3, 1.5, 0.5


class Rent(msgspec.Struct, frozen=True, array_like=True):
    """What an epoch has paid so far for what a cut would have taken away, and what cuts usually leave and write anew."""

    cost: float = 0.0
    requests: int = 0
    # In tokens: means over the newest requests, and over how many, of all epochs.
    cached_tokens: float = 0.0
    samples: int = 0
    remaining: float = 0.0

    def at_next_epoch(self) -> Rent:
        """At the start of the next epoch, whose first request pays none."""
        return _to(self, cost=0.0, requests=1)


class Moment(msgspec.Struct, frozen=True):
    """What the rule looks at, at one request, all in tokens."""

    fits: bool
    remaining: int
    removed_tokens: int
    # Of what would be kept behind the first changed byte, how much the provider still has cached.
    cached_tokens: int
    # What is left of the budget.
    room: int
    cold: bool
    rent: Rent


def rent_after(moment: Moment, policy: Policy) -> Rent:
    """The rent after this request, which read tokens that a cut would have removed."""
    rent = moment.rent
    if moment.removed_tokens <= 0:
        return _to(rent, requests=rent.requests + 1)
    samples = min(_NEWEST, rent.samples + 1)
    cached = rent.cached_tokens + (moment.cached_tokens - rent.cached_tokens) / samples
    remaining = rent.remaining + (moment.remaining - rent.remaining) / samples
    return Rent(rent.cost + policy.prices[0] * moment.removed_tokens, rent.requests + 1, cached, samples, remaining)


def reason_to_cut(moment: Moment, policy: Policy) -> str:
    """Why to cut now, or '': 'budget', 'cold', 'rent' or 'brim'."""
    if not moment.fits:
        return "budget"
    if policy.when == "full" or moment.removed_tokens < max(1, LEAST_SHARE * moment.remaining):
        return ""
    if moment.cold:
        return "cold"
    (read, write), rent = policy.prices, moment.rent
    owed, dearer, larger = read * moment.removed_tokens, 0.0, 0.0
    if rent.samples:
        # A cheap moment is worth no more than what the cut takes away.
        dearer = (write - read) * max(moment.cached_tokens - rent.cached_tokens, -moment.removed_tokens)
        # What stays beyond the usual is read until the next cut, in about as many requests as there were since the last.
        larger = read * rent.requests * (moment.remaining - rent.remaining)
    price = _WAIT * (write - read) * moment.cached_tokens + _DEARER * dearer + _LARGER * larger
    # Half of this request's rent counts as due already: on average it fell due between the two requests.
    if read and owed * (rent.requests + 0.5) >= rent.cost + price:
        return "rent"
    # Where reading is free, room ends epochs and not rent: a cut now takes away the share of one that was still to come.
    used = moment.removed_tokens / (moment.removed_tokens + moment.room)
    return "brim" if not read and rent.samples >= _SAMPLES and moment.cached_tokens <= used * rent.cached_tokens else ""


_NOTHING_PINNED = "Raise the budget, or put less into the largest of these."


class Decision(msgspec.Struct, frozen=True):
    """The rebase to record, if one is due, and the rent owed after this request."""

    rebase: Rebase | None
    rent: Rent
    # The epoch that was looked at, and the one that the rebase leads to.
    before: Epoch | None = None
    after: Epoch | None = None

    def leads_to(self, epoch: Epoch, rebase: Rebase) -> Epoch | None:
        """The new epoch, where this very rebase of this very epoch was decided upon; None otherwise."""
        if self.before is None or self.after is None or self.rebase is None:
            return None
        same = epoch.history.messages == self.before.history.messages
        return self.after.copy() if same and _to(self.rebase, fallbacks=rebase.fallbacks) == rebase else None


def decide(assembly: Assembly) -> Decision:
    """Decide on a rebase for the request that is about to be made; no entry is pending any more."""
    policy, moving = effective(assembly), _moving(assembly)
    moment = moment_of(assembly.epoch, policy, assembly.rent, cold=assembly.cold or bool(moving))
    cutting = reason_to_cut(moment, policy)
    if not cutting and not moving:
        return Decision(None, rent_after(moment, policy))
    reason = "+".join(part for part in (moving, cutting) if part)
    rebase, after = _fitting(assembly, reason, bool(cutting))
    return Decision(rebase, assembly.rent.at_next_epoch(), assembly.epoch, after)


def rent_owed(assembly: Assembly) -> Rent:
    """The rent after a request that was already sent, so that nothing is decided for it."""
    policy = effective(assembly)
    return rent_after(moment_of(assembly.epoch, policy, assembly.rent, cold=False), policy)


def moment_of(epoch: Epoch, policy: Policy, rent: Rent, cold: bool) -> Moment:
    plan = plan_cut(epoch, policy)
    new = epoch.history.total - epoch.history.sums[epoch.sent]
    return Moment(
        fits=policy.fits(epoch.head_tokens(), epoch.history.total),
        remaining=plan.kept_tokens,
        removed_tokens=plan.removed_tokens,
        cached_tokens=max(0, plan.kept_tokens - plan.same - new),
        room=policy.limit - epoch.total_tokens(),
        cold=cold,
        rent=rent,
    )


def effective(assembly: Assembly) -> Policy:
    """The policy with its budget in our own tokens, where the provider's reports show that it counts otherwise."""
    policy, calibration = assembly.policy, assembly.models.calibration(assembly.policy)
    limit, least = calibration.room(policy.limit), _least(assembly.epoch)
    if not calibration.reported:
        # Before the first report: the model may also count ids, and tokens in front of its answer.
        limit = min(limit, max(least, limit - PRIMING - assembly.epoch.history.ids[-1]))
    if calibration.offset > 0 and limit < least:
        # Tokens that we do not see leave too little room. They may be gone by now: only another request shows it.
        limit = calibration.unseen_apart().room(policy.limit)
        if far_off(calibration.scale * calibration.estimate, calibration.reported):
            # Nobody adds that much unseen: more likely each token of our count is several of the model's.
            pinned = sum(text_tokens(pin.words) for pin in assembly.pins)
            limit = min(limit, max(least + pinned, int(policy.limit * calibration.estimate / calibration.reported)))
    # Even for a model that counts far less, the room at most doubles: the difference may be gone at the next request.
    limit = max(1, min(2 * policy.limit, limit))
    return policy if limit == policy.limit else msgspec.structs.replace(policy, budget=limit, reply=0)


def _least(epoch: Epoch) -> int:
    """The tokens that no rebase could take away: the head, the current user's message, the newest group of calls."""
    history = epoch.history
    start = history.last_legal()
    request = history.turn_of(start)
    request_tokens = history.sizes[request] if request is not None else 0
    return epoch.head_tokens() + request_tokens + history.total - history.sums[start]


def _moving(assembly: Assembly) -> str:
    """Why the prefix breaks at this request even if everything fits: 'tools', 'promotion' or ''."""
    if assembly.tools_moved:
        return "tools"
    history = assembly.epoch.history
    if assembly.policy.promote == "each-turn" and any(
        holds_context(history.leaves[place], assembly.turn) for place in history.turn_starts
    ):
        return "promotion"
    return ""


def _fitting(assembly: Assembly, reason: str, cutting: bool) -> tuple[Rebase, Epoch]:
    """The rebase of the first rung whose result fits the budget, and that result."""
    tried, policy = None, effective(assembly)
    too_large = dict[_RebasePlan, Rebase]()
    for rung in RUNGS if cutting else (None, *RUNGS):
        if rung is not None and rung.summary == "none" and tried is not None and tried.summary:
            # The user's demands matter more than the whole of a long result, which recall can bring back.
            with contextlib.suppress(BudgetError):
                return _with_results_cut(assembly, tried)
        planned = _plan(assembly, policy, rung)
        if planned not in too_large:  # many rungs cut what another has cut already
            rebase = _write(assembly, policy, reason, planned)
            after = apply(assembly.epoch, rebase, assembly.policy, assembly.carried)
            if policy.fits(after.head_tokens(), after.history.total):
                return _to(rebase, freed=assembly.epoch.total_tokens() - after.total_tokens()), after
            too_large[planned] = rebase
        tried = too_large[planned]
    assert tried is not None  # RUNGS is not empty
    return _with_results_cut(assembly, tried)


def write_rebase(assembly: Assembly, reason: str, rung: Rung | None) -> Rebase:
    """The rebase of one rung; None cuts nothing and only folds."""
    policy = effective(assembly)
    return _write(assembly, policy, reason, _plan(assembly, policy, rung))


class _RebasePlan(NamedTuple):
    """All that a rebase takes from its rung."""

    plan: Cuts
    cutting: bool
    demands_alone: bool


def _plan(assembly: Assembly, policy: Policy, rung: Rung | None) -> _RebasePlan:
    if rung is None:
        return _RebasePlan(_to(NO_CUT, opening=assembly.epoch.opening), cutting=False, demands_alone=False)
    # What stands in front of the messages once the library is folded.
    after = assembly.epoch.copy()
    after.l2 = tuple(_library_after(assembly, policy, cutting=True))
    plan = plan_cut(assembly.epoch, policy, rung, after.head_tokens())
    return _RebasePlan(plan, cutting=True, demands_alone=rung.summary == "demands")


def _library_after(assembly: Assembly, policy: Policy, cutting: bool) -> list[ItemBlock]:
    pinned = {pin.item for pin in assembly.pins if pin.item}
    return fold_library(assembly.epoch, policy, assembly.turn, cutting=cutting, pinned=pinned)


def _write(assembly: Assembly, policy: Policy, reason: str, planned: _RebasePlan) -> Rebase:
    epoch, plan = assembly.epoch, planned.plan
    library = _library_after(assembly, policy, planned.cutting)
    edits = edits_of(epoch, policy, plan, assembly.carried.results, _results_pinned_whole(assembly))
    edits += superseding_edits(epoch, plan, library, assembly.turn)
    staying = [seq for placed in epoch.history.leaves[plan.drop :] for seq in placed.message.seqs]
    summary, fallbacks = _summary(assembly, plan, edits, staying)
    opening = max((seq for leaf in epoch.history.leaves[: plan.opening] for seq in leaf.message.seqs), default=0)
    # Where nothing leaves, the summary before is told again.
    told_before = bool(assembly.rebases) and assembly.rebases[-1].brief
    rebase = Rebase(
        reason,
        # The first entry that stays by place: what stands before it is gone, but for the opening and what edits keep.
        before_seq=min(staying, default=0) if plan.drop else 0,
        versions=tuple(Version(item.id, item.sha256) for item in library),
        edits=tuple(edits),
        summary=summary,
        brief=bool(summary) and (planned.demands_alone if plan.drop else told_before),
        opening=opening,
        fallbacks=tuple(fallbacks),
    )
    return _with_pins(assembly, rebase)


def _with_pins(assembly: Assembly, rebase: Rebase) -> Rebase:
    """The rebase with those pinned words in front that no message after it holds."""
    before = assembly.rebases[-1].pinned if assembly.rebases else ()
    if not before and not assembly.pins:
        return rebase
    after = apply(assembly.epoch, _to(rebase, pinned=()), assembly.policy, assembly.carried)
    return _to(rebase, pinned=tuple(pinned_words(assembly.pins, before, assembly.epoch, after)))


def _results_pinned_whole(assembly: Assembly) -> set[int]:
    """Results that are pinned whole: no handle and no cut could free anything."""
    return {pin.seq for pin in assembly.pins if pin.result}


def _summary(assembly: Assembly, plan: Cuts, edits: Sequence[Edit], staying: list[int]) -> tuple[str, list[str]]:
    """The summary of what leaves, and why another than the one asked for; none where nothing leaves."""
    if not plan.drop:
        return (assembly.rebases[-1].summary if assembly.rebases else ""), []
    if not plan.summary_most:
        return "", []
    before, untold = _newest_summary(assembly.rebases)
    dropped = untold.union(edit.entry for edit in edits if edit.drops)
    entries = tuple(assembly.entries[seq] for seq in sorted(dropped) if seq in assembly.entries)
    named_elsewhere = _words_elsewhere(assembly.epoch, plan, edits)
    edited = {edit.entry for edit in edits}
    held = tuple(assembly.entries[seq] for seq in staying if seq in assembly.entries and seq not in edited)
    leaving = Leaving(entries, before, plan.summary_limit, plan.summary_most, named_elsewhere, held)
    return summed_up(leaving, assembly.summarise)


def _words_elsewhere(epoch: Epoch, plan: Cuts, edits: Sequence[Edit]) -> frozenset[str]:
    """The telling words that the request holds whatever its summary says."""
    leaves = epoch.history.leaves
    handled = {edit.entry for edit in edits if edit.replacement is not None}
    staying = [*leaves[: plan.opening], *leaves[plan.drop :]]
    whole = (placed.telling_words for placed in staying if handled.isdisjoint(placed.message.seqs))
    texts = [epoch.l1_text, *(edit.replacement or "" for edit in edits)]
    return frozenset[str]().union(*whole, *map(telling, texts))


def _newest_summary(rebases: Sequence[Rebase]) -> tuple[str, set[int]]:
    """The newest summary, and what has left since at rebases that had no room for one."""
    untold = set[int]()
    for rebase in reversed(rebases):
        if rebase.summary and not rebase.brief:
            return rebase.summary, untold
        untold |= rebase.drops()
    return "", untold


def _with_results_cut(assembly: Assembly, rebase: Rebase) -> tuple[Rebase, Epoch]:
    """The last rung: the largest results of the current turn cut at a line boundary, or a clear refusal."""
    policy = effective(assembly)
    while True:
        rebase = _with_pins(assembly, rebase)
        after = apply(assembly.epoch, rebase, policy, assembly.carried)
        over = max(after.total_tokens() - policy.limit, after.history.total - policy.ceiling("L4"))
        if over <= 0:
            return _to(rebase, freed=assembly.epoch.total_tokens() - after.total_tokens()), after
        spared = {edit.entry for edit in rebase.edits if edit.cuts} | _results_pinned_whole(assembly)
        largest = _largest_result(after.history.leaves, assembly, spared)
        if largest is None:
            raise BudgetError(_too_large(assembly, after), hint="" if assembly.pins else _NOTHING_PINNED)
        cut = _cut(assembly.carried.results, largest, over)
        others = tuple(edit for edit in rebase.edits if edit.entry not in {shorter.entry for shorter in cut})
        rebase = _to(rebase, edits=(*others, *cut))


class LongPart(msgspec.Struct, frozen=True):
    """What a tool, the provider's own or not, gave, or a document: it can be cut at a line."""

    seq: int
    text: str
    tokens: int
    # The user's words, behind which a document stands.
    words: str = ""
    # The edits that go with it: the provider's own call becomes words where its result does.
    beside: tuple[Edit, ...] = ()


def _largest_result(leaves: list[PlacedMessage], assembly: Assembly, spared: Container[int]) -> LongPart | None:
    long_parts = [
        long_part
        for placed in leaves
        if placed.turn == assembly.turn
        for long_part in _long_parts(placed, assembly)
        if long_part.seq not in spared
    ]
    largest = max(long_parts, key=lambda part: (part.tokens, part.seq), default=None)
    return largest if largest is not None and largest.tokens > 48 else None


def _long_parts(placed: PlacedMessage, assembly: Assembly) -> Iterator[LongPart]:
    """What tools gave in a message, as results, beside the user's words, or late, as a note; and documents."""
    message, ids = placed.message, assembly.carried.results
    owned = any(map(holds_blocks, message.parts))
    blocks = own_blocks(message, assembly.policy.model) if owned else [[]] * len(message.parts)
    sizes = [sum(map(block_tokens, row)) for row in blocks]
    if placed.user is not None:
        for result in (result for _, result in placed.user.context if result is not None):
            yield LongPart(result.seq, result_text(result), counter().count(result_text(result)))
        if any(blocks) and (entry := placed.user.entry).seq in ids:
            text = documents_text(block for row in blocks for block in row)
            yield LongPart(entry.seq, text, sum(sizes), entry.text)
        return
    for part, seq, size in zip(message.parts, message.seqs, sizes, strict=True):
        if isinstance(part, Result) and not takes_words(part):
            continue
        if isinstance(part, Result) or (isinstance(part, Text) and seq in ids and part.text):
            yield LongPart(seq, part.text, counter().count(part.text) + size)
    for *calls, result_at in pairs([row[0] if row else None for row in blocks]) if message.role == "assistant" else ():
        handles = [own_handle(blocks[at][0], sizes[at], ids.get(message.seqs[at], ""), result=False) for at in calls]
        beside = tuple(Edit(message.seqs[at], "cut", text) for at, text in zip(calls, handles, strict=True))
        yield LongPart(message.seqs[result_at], countable(blocks[result_at][0])[0], sizes[result_at], beside=beside)


def _cut(results: dict[int, str], largest: LongPart, over: int) -> tuple[Edit, ...]:
    tokens = largest.tokens
    tokens_after = max(0, tokens - over - 40)
    handle = handle_of(results.get(largest.seq, ""))
    mark = f"[… cut here: {tokens} tokens in all; the whole text: recall with handle {handle} …]"
    # Characters per token of this very text, with a little air; its first lines may hold more than its last.
    characters = int(len(largest.text) / tokens * tokens_after * 0.95)
    while True:
        text = "\n".join(filter(None, (lines_that_fit(largest.text, characters), mark)))
        freed = tokens - counter().count(text)
        if freed >= over or not characters:
            break
        characters = characters * 9 // 10
    return Edit(largest.seq, "cut", f"{largest.words}\n\n{text}" if largest.words else text, freed), *largest.beside


def _too_large(assembly: Assembly, after: Epoch) -> str:
    """Names what may not be cut, with its size."""
    prompt, pinned = after.prompt(), _pinned_results(assembly, after)
    parts = {
        "system prompt": text_tokens(prompt.l1) if prompt.l1 else 0,
        "context library": text_tokens(prompt.l2) if prompt.l2 else 0,
        "tools": tools_tokens(prompt.tools),
        "the user's message": sum(
            o.tokens for o in after.history.leaves if o.user is not None and o.turn == assembly.turn
        ),
        "pinned text": sum(o.tokens for o in after.history.leaves if o.turn == SUMMARY_TURN),
        "pinned results": pinned,
        "the newest calls and results": sum(
            o.tokens for o in after.history.leaves if o.user is None and o.turn == assembly.turn
        )
        - pinned,
    }
    named = ", ".join(f"{name} {size}" for name, size in sorted(parts.items(), key=lambda p: -p[1]) if size)
    limit, ours = assembly.policy.limit, effective(assembly).limit
    # A model may count more than we do: then fewer of our tokens fit.
    counted = f" ({ours} by this count)" if ours != limit else ""
    return f"{after.total_tokens()} tokens may not be cut but the budget is {limit}{counted}: {named}"


def _pinned_results(assembly: Assembly, after: Epoch) -> int:
    spared = _results_pinned_whole(assembly)
    return sum(
        long_part.tokens
        for placed in after.history.leaves
        if placed.turn == assembly.turn and placed.user is None
        for long_part in _long_parts(placed, assembly)
        if long_part.seq in spared
    )
