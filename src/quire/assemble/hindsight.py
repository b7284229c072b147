"""What a finished thread would have cost at best: the cheapest moments for the policy's own kind of cut.

A dynamic program over the requests of a thread. Which cut a rebase makes is fixed by the policy (its floor
and tiers); only when to make it is free. Every cut is really made, on what the cheapest way to it has left, so
sizes are those of real requests; the policy's own moments are among those compared, so it never costs less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import msgspec

from quire.assemble import Policy, When
from quire.assemble.fit import Built, Refused
from quire.assemble.messages import Epoch, PlacedMessage
from quire.assemble.rebase import CarriedState, Pin
from quire.assemble.rebase_decision import decide
from quire.assemble.state import Assembly
from quire.assemble.summary import Summarise, extract
from quire.errors import BudgetError
from quire.providers.prefix import same_start
from quire.tokens import tools_tokens
from quire.values import BOOKKEEPING, Entry, JsonObject, chain

# Along a finished thread: every request that stands in it, as it was sent or as a policy would make it.


def number_entries(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Entries with ids and seqs, given where they are missing."""
    listed = list(entries)
    return iter(listed) if all(entry.id for entry in listed) else chain(listed)


def requests(
    entries: Iterable[Entry], policy: Policy | None = None, summarise: Summarise = extract
) -> Iterator[Built | Refused]:
    """One request at every point where the model spoke, each from everything before it.

    Those that the log marks as sent come as they were sent; for the others the policy decides.
    """
    return along(Assembly(policy, summarise), entries)


def along(assembly: Assembly, entries: Iterable[Entry]) -> Iterator[Built | Refused]:
    """The same while an assembly is fed; at each request it stands in front of what the model said."""
    for entry in number_entries(entries):
        if assembly.asks(entry):
            yield ask(assembly, entry)
        assembly.feed(entry)


def ask(assembly: Assembly, entry: Entry) -> Built | Refused:
    """The request in front of this entry, which is fed next."""
    if entry.kind == "sent":
        return assembly.request_as_sent(passes=True)
    try:
        built = assembly.request(passes=True)
    except BudgetError as error:
        return Refused(assembly.turn, assembly.step + 1, str(error), error.hint)
    return msgspec.structs.replace(built, rebase=built.rebase or assembly.recorded)


def unsent(entries: Iterable[Entry]) -> list[Entry]:
    """The thread as if nothing had been sent or cut yet, to ask what another policy would do."""
    return [entry for entry in entries if entry.kind not in BOOKKEEPING]


_change = msgspec.structs.replace


class Step(msgspec.Struct, frozen=True):
    """One request of the thread: what has come since the one before it."""

    leaves: tuple[PlacedMessage, ...]
    late: dict[int, tuple[str, bool]]
    tools: dict[str, JsonObject]
    pins: list[Pin]
    turn: int
    cold: bool
    # The tools are others now, and whether the prefix may break here whatever the budget says.
    tools_moved: bool
    moves: bool


class Best(msgspec.Struct, frozen=True):
    """The cheapest series of cuts: its cost in plain input tokens, and the requests (by index) that cut."""

    cost: float
    cuts: tuple[int, ...]


class Trail(msgspec.Struct):
    """A thread's requests, and the state in front of the first of them."""

    steps: list[Step]
    start: Assembly


class Run(msgspec.Struct):
    """One way through the thread so far; `when`: the rule it follows, None for a free choice of moments."""

    assembly: Assembly
    when: When | None = None
    cost: float = 0.0
    cuts: tuple[int, ...] = ()


def trail(entries: Iterable[Entry], policy: Policy, summarise: Summarise = extract) -> Trail:
    """The thread's requests under a policy, as they would be if nothing were ever cut."""
    endless = _change(policy, budget=10**12, reply=0, when="full", promote="at-rebase")
    whole, start = Assembly(endless), Assembly(policy, summarise)
    steps, leaves, late = list[Step](), 0, 0
    for entry in number_entries(entries):
        if whole.asks(entry):
            if not steps:
                start.epoch.l1, start.epoch.tools = whole.epoch.l1[:], whole.epoch.tools
            steps.append(_step(whole, policy, leaves, late, steps[-1].turn if steps else 0))
            leaves, late = leaves + len(steps[-1].leaves), late + len(steps[-1].late)
            whole.tools_moved = False
        whole.feed(entry)
    model = policy.model or whole.models.model
    start.models, start.entries = _change(whole.models, model=model, now=None, last=None), whole.entries
    start.carried.results = whole.carried.results
    return Trail(steps, start)


def _step(whole: Assembly, policy: Policy, leaves: int, late: int, turn: int) -> Step:
    return Step(
        leaves=tuple(whole.ahead(passes=True).epoch.history.leaves[leaves:]),
        late=dict(list(whole.carried.late.items())[late:]),
        tools=whole.carried.tools,
        pins=whole.pins[:],
        turn=whole.turn,
        cold=whole.cold,
        tools_moved=whole.tools_moved,
        moves=whole.tools_moved or (policy.promote == "each-turn" and whole.turn > turn),
    )


# In a thread of more requests than this, cuts are tried where so much of the budget has come since the last that was
# tried: with thousands of requests the ways between would take minutes and save half a hundredth.
_LONG, _APART = 1_000, 1 / 64


def optimum(thread: Trail, policy: Policy, tell: Callable[[str, int, int], object] = lambda *_: None) -> Best:
    """The cheapest cuts for which every request fits; infinite where one cannot. `tell`: told how many are done."""
    runs = [_begun(thread, policy, when) for when in (None, "rent", "full")]
    new, apart = 0, policy.limit * _APART if len(thread.steps) > _LONG else 0
    for place, step in enumerate(thread.steps):
        tell("optimum", place, len(thread.steps))
        for run in runs:
            _join(run.assembly, step)
        free = [run for run in runs if run.when is None]
        new += sum(leaf.tokens for leaf in step.leaves)
        due = new >= apart or step.cold or step.moves or not any(run.assembly.fits() for run in free)
        cheapest = min(free, key=lambda run: run.cost, default=None)
        cut, new = (_cut(cheapest, place, step), 0) if due and cheapest else (None, new)
        runs = [run for run in runs if _goes_on(run, place, step)] + ([cut] if cut else [])
    best = min(runs, key=lambda run: run.cost, default=None)
    return Best(best.cost, best.cuts) if best else Best(math.inf, ())


def _begun(thread: Trail, policy: Policy, when: When | None) -> Run:
    assembly = thread.start.copy()
    assembly.policy = _change(policy, when=when or "full")
    assembly.carried = CarriedState({}, {}, {}, 0, thread.start.carried.results)
    return Run(assembly, when)


def _join(assembly: Assembly, step: Step) -> None:
    """Add the new messages of a request to a run's state."""
    carried = assembly.carried
    for leaf in step.leaves:
        if leaf.user is not None and leaf.user.blocks:
            # What it refers to depends on what this run's model has been shown.
            assembly.epoch.say(leaf.user, leaf.turn, assembly.policy)
            carried.versions.update({(item.id, item.sha256): item for item in leaf.user.blocks})
        else:
            assembly.epoch.history.add(leaf)
    carried.late.update(step.late)
    carried.tools = step.tools
    carried.turn = step.turn
    assembly.pins = step.pins
    assembly.tools_moved |= step.tools_moved
    # A cold cache is that of a thread without requests.
    assembly.requests = 0 if step.cold else 1


def _goes_on(run: Run, place: int, step: Step) -> bool:
    """Make the request of a run by its rule, or without a cut where it has none; False where it cannot fit."""
    assembly, before = run.assembly, run.assembly.epoch
    if run.when is None and not assembly.fits():
        return False
    if run.when is not None or step.moves:
        try:
            decision = decide(assembly)
        except BudgetError:
            return False
        assembly.rent = decision.rent
        if decision.rebase is not None:
            assembly.begin_epoch(decision.rebase, decision)
            run.cuts += (place,) if run.when else ()
    _pay(run, before, step.cold)
    return True


def _pay(run: Run, before: Epoch, cold: bool) -> None:
    """Charge a run for its request, and mark what the cache now has."""
    epoch, policy = run.assembly.epoch, run.assembly.policy
    reused = 0 if cold else _common_tokens(before, epoch)
    read, write = policy.prices
    run.cost += read * reused + write * (epoch.total_tokens() - reused)
    epoch.sent = len(epoch.history.leaves)


def _common_tokens(before: Epoch, now: Epoch) -> int:
    """Tokens of the longest common prefix of an epoch's newest request and one from now."""
    if before is now:
        return now.head_tokens() + now.history.sums[now.sent]
    if before.tools != now.tools:
        return 0
    if (before.l1, before.l2) != (now.l1, now.l2) and (before.l1_text, before.l2_text) != (now.l1_text, now.l2_text):
        return tools_tokens(now.tools)
    same = same_start(before.history.messages[: before.sent], now.history.messages)
    return now.head_tokens() + now.history.sums[same]


def _cut(run: Run, place: int, step: Step) -> Run | None:
    """A run that goes on from another with the policy's cut here, as if the cache were cold; None where it cannot."""
    assembly, cold = run.assembly.copy(), run.assembly.copy()
    cold.policy, cold.requests = _change(cold.policy, when="rent"), 0
    try:
        decision = decide(cold)
    except BudgetError:
        return None
    if decision.rebase is None:
        return None
    assembly.begin_epoch(decision.rebase, decision)
    assembly.left_out_log = run.assembly.left_out_log  # nobody asks what a run leaves out
    next_run = Run(assembly, None, run.cost, (*run.cuts, place))
    _pay(next_run, run.assembly.epoch, step.cold)
    return next_run
