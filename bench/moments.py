"""Which rule for the moment of a cut does best: what each choice of its weights costs over the cheapest moments.

Cuts are planned by the engine and made on sizes alone (a summary takes 7 % of what goes, within its limit), so that a
thread costs milliseconds rather than seconds. Threads: the coding session at three budgets, whole, in halves and with
its turns shuffled; the retail runs one by one and ten in a row; made-up agents whose results take 1 % to 40 % of a
budget of 24,000 with four spreads. Five price sets. The weights are how many times a cut waits for its price, for what it
writes anew beyond the usual, and for what it leaves beyond the usual.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from statistics import mean
from typing import Any

import msgspec

from quire import Policy
from quire.assemble import rebase_decision
from quire.assemble.fit import RUNGS, Cuts
from quire.assemble.fit import plan as plan_cut
from quire.assemble.hindsight import trail
from quire.assemble.messages import SUMMARY_TURN, Epoch, PlacedMessage
from quire.assemble.rebase_decision import LEAST_SHARE, Rent, moment_of, reason_to_cut, rent_after
from quire.cli.output import print_table
from quire.values import Message
from reuse import PRICES, TTL_S
from traces import conversations, entries, files, parser, with_pauses

WEIGHTS = ("_WAIT", "_DEARER", "_LARGER")
CHOICES = (
    (1.0, 0.0, 0.0),
    (1.0, 1.0, 0.0),
    (1.0, 1.0, 0.5),
    (1.0, 1.0, 1.0),
    (1.2, 1.5, 0.0),
    (1.2, 1.5, 0.5),
    (1.2, 1.5, 1.0),
    (1.3, 1.5, 0.5),
    (1.4, 2.0, 0.0),
    (1.4, 2.0, 0.5),
    (1.4, 3.0, 1.0),
)
SUMMED_UP = 0.07
Steps = list[tuple[PlacedMessage, ...]]


class Sized(msgspec.Struct):
    """A thread in sizes: what each of its requests brings, and which of them find the cache cold."""

    group: str
    steps: Steps
    budget: int
    head: int
    cold: list[bool]


class SizedEpoch(Epoch):
    """An epoch whose head is a number."""

    head = 0

    def head_tokens(self) -> int:
        return self.head


def cut(epoch: SizedEpoch, policy: Policy) -> tuple[SizedEpoch, Cuts]:
    """What the first rung that fits leaves."""
    for rung in RUNGS:
        plan = plan_cut(epoch, policy, rung)
        after = _applied(epoch, plan)
        if policy.fits(after.head, after.history.total):
            break
    return after, plan


def _applied(epoch: SizedEpoch, plan: Cuts) -> SizedEpoch:
    after = SizedEpoch()
    after.head, after.grown = epoch.head, epoch.growth_so_far()
    leaves = list(enumerate(epoch.history.leaves))
    told = sum(leaf.summary_tokens for _, leaf in leaves)
    stays = [(at, leaf) for at, leaf in leaves if leaf.turn != SUMMARY_TURN]
    kept = [(at, leaf) for at, leaf in stays if at >= plan.drop or at == plan.request]
    if plan.drop:
        gone = sum(leaf.tokens for _, leaf in stays) - sum(leaf.tokens for _, leaf in kept)
        told = min(plan.summary_limit, int(told + SUMMED_UP * gone))
    if told:
        after.history.add(PlacedMessage(Message("user", ()), told, SUMMARY_TURN, (), told, None, told))
    for at, leaf in kept:
        short = at < plan.handle and bool(leaf.handles)
        after.history.add(_handled(leaf) if short else leaf)
    after.fold = len(after.history.leaves)
    return after


def _handled(leaf: PlacedMessage) -> PlacedMessage:
    return msgspec.structs.replace(leaf, tokens=leaf.handled_tokens, handles=())


class Way(msgspec.Struct):
    """One way through a thread: what stands, and what it has cost so far."""

    epoch: SizedEpoch
    cost: float = 0.0

    def add(self, leaves: tuple[PlacedMessage, ...]) -> Way:
        for leaf in leaves:
            self.epoch.history.add(leaf)
        return self

    def fits(self, policy: Policy) -> bool:
        return policy.fits(self.epoch.head, self.epoch.history.total)

    def pay(self, policy: Policy, cold: bool, same: int | None = None) -> Way:
        """Charge a request of which `same` tokens behind the head were cached (None: what was sent)."""
        (read, write), epoch = policy.prices, self.epoch
        standing = epoch.history.sums[epoch.sent] if same is None else same
        size, cached = epoch.head + epoch.history.total, 0 if cold else epoch.head + standing
        epoch.sent = len(epoch.history.leaves)
        self.cost += read * cached + write * (size - cached)
        return self

    def cut(self, policy: Policy, cold: bool) -> Way:
        after, plan = cut(self.epoch, policy)
        return Way(after, self.cost).pay(policy, cold, min(plan.same, self.epoch.history.sums[self.epoch.sent]))


def _requests(thread: Sized, way: Way) -> Iterator[tuple[tuple[PlacedMessage, ...], bool]]:
    way.epoch.head = thread.head
    return ((leaves, cold or not at) for at, (leaves, cold) in enumerate(zip(thread.steps, thread.cold, strict=True)))


def by_rule(thread: Sized, policy: Policy) -> float:
    """The cost with the engine's rule."""
    way, rent = Way(SizedEpoch()), Rent()
    for leaves, cold in _requests(thread, way):
        moment = moment_of(way.add(leaves).epoch, policy, rent, cold)
        if reason_to_cut(moment, policy):
            way, rent = way.cut(policy, cold), rent.at_next_epoch()
        else:
            way, rent = way.pay(policy, cold), rent_after(moment, policy)
    return way.cost


def least(thread: Sized, policy: Policy) -> float:
    """The cost with the cheapest moments, known in advance."""
    ways = [Way(SizedEpoch())]
    for leaves, cold in _requests(thread, ways[0]):
        first = min((way.add(leaves) for way in ways), key=lambda way: way.cost)
        plan = plan_cut(first.epoch, policy)
        worth = plan.removed_tokens >= max(1, LEAST_SHARE * plan.kept_tokens) or not first.fits(policy)
        cuts = [first.cut(policy, cold)] if worth else []
        ways = sorted([*(way.pay(policy, cold) for way in ways if way.fits(policy)), *cuts], key=lambda way: way.cost)
        # What is neither cheaper nor smaller than another will never be.
        smallest = [*range(len(ways))]
        for at in range(1, len(ways)):
            if ways[at].epoch.history.total >= ways[smallest[at - 1]].epoch.history.total:
                smallest[at] = smallest[at - 1]
        ways = [way for at, way in enumerate(ways) if smallest[at] == at]
    return ways[0].cost


def threads(given: Any) -> Iterator[Sized]:
    """What the rules are compared on."""
    for path in files(given):
        runs = [_sized(path.stem, talk) for talk in conversations(path)]
        if len(runs) == 1 and len(runs[0].steps) > 100:
            yield from _variants(runs[0])
            continue
        yield from runs
        for at in range(0, len(runs), 10):
            some = runs[at : at + 10]
            steps, cold = [s for run in some for s in run.steps], [c for run in some for c in run.cold]
            for budget in (4_000, 8_000):
                yield Sized(f"{path.stem}, in a row", steps, budget, some[0].head, cold)
    for share in (0.01, 0.03, 0.1, 0.2, 0.4):
        for spread in SPREADS:
            yield _made(share, spread)


def _sized(group: str, talk: dict[str, Any]) -> Sized:
    found = trail(entries(talk), Policy(ttl_s=None))
    cold = [step.cold for step in trail(with_pauses(entries(talk), 0.35), Policy(ttl_s=TTL_S)).steps]
    steps = [step.leaves for step in found.steps]
    return Sized(group, steps, 4_000, found.start.epoch.head_tokens(), cold)


def _variants(whole: Sized) -> Iterator[Sized]:
    change, half = msgspec.structs.replace, len(whole.steps) // 2
    for budget in (16_000, 32_000, 64_000):
        yield change(whole, budget=budget)
        for part in (slice(0, half), slice(half, None)):
            yield change(
                whole, group=f"{whole.group}, halves", budget=budget, steps=whole.steps[part], cold=whole.cold[part]
            )
        for seed in range(3):
            steps, cold = _shuffled(whole, seed)
            yield change(whole, group=f"{whole.group}, shuffled", budget=budget, steps=steps, cold=cold)


def _shuffled(thread: Sized, seed: int) -> tuple[Steps, list[bool]]:
    turns: list[list[tuple[tuple[PlacedMessage, ...], bool]]] = []
    for leaves, cold in zip(thread.steps, thread.cold, strict=True):
        if not turns or any(leaf.user is not None for leaf in leaves):
            turns.append([])
        turns[-1].append((leaves, cold))
    random.Random(seed).shuffle(turns)
    flat = [one for turn in turns for one in turn]
    return [leaves for leaves, _ in flat], [cold for _, cold in flat]


SPREADS: tuple[Callable[[random.Random], float], ...] = (
    lambda dice: 0.7 + 0.6 * dice.random(),
    lambda dice: dice.expovariate(1),
    lambda dice: dice.lognormvariate(-0.72, 1.2),
    lambda dice: dice.lognormvariate(-1.6, 1.8),
)


def _made(share: float, spread: Callable[[random.Random], float], budget: int = 24_000) -> Sized:
    dice, steps, turn = random.Random(1), Steps(), 0
    say, gave = Message("assistant", ()), Message("tool", ())
    for number in range(int(max(40, min(350, 6 / share)))):
        size = max(5, int(budget * min(0.6, share * spread(dice))))
        turn += number % 8 == 0
        asked = (PlacedMessage(Message("user", ()), 60, turn, (), 60, _USER),) if number % 8 == 0 else ()
        result = PlacedMessage(gave, size, turn, ((0, "handle"),) if size > 80 else (), min(size, 64))
        spoken = (PlacedMessage(say, 30, turn, (), 30), result) if number else ()
        steps.append((*spoken, *asked))
    cold = [number % 8 == 0 and number > 0 and dice.random() < 0.35 for number in range(len(steps))]
    return Sized("made up", steps, budget, 300, cold)


# Stands for a user's words: the plan asks only whether there are any.
_USER: Any = object()


def rows(given: Any) -> Iterator[dict[str, Any]]:
    """For each choice of weights, the mean and the highest cost over the least, by group of threads."""
    listed = list(threads(given))
    for cold in (False, True):
        cases = [
            (thread if cold else msgspec.structs.replace(thread, cold=[False] * len(thread.steps)), policy)
            for thread in listed
            for policy in _policies(thread, cold)
        ]
        best = [least(thread, policy) for thread, policy in cases]
        for choice in CHOICES:
            for name, weight in zip(WEIGHTS, choice, strict=True):
                setattr(rebase_decision, name, weight)
            groups: dict[str, list[float]] = {}
            for (thread, policy), cost in zip(cases, best, strict=True):
                name = "retail and other short runs" if thread.budget == 4_000 else thread.group
                name = "short runs in a row" if "in a row" in thread.group else name
                groups.setdefault(name, []).append(by_rule(thread, policy) / cost)
            yield {
                "cold": cold,
                "weights": choice,
                **{group: [mean(found), max(found)] for group, found in groups.items()},
            }


def _policies(thread: Sized, cold: bool) -> Iterator[Policy]:
    for read, write in PRICES[:1] if cold else PRICES:
        yield Policy(budget=thread.budget, ttl_s=None, read=read, write=write)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    arguments = options.parse_args()
    found = list(rows(arguments.data))
    if arguments.json:
        print(json.dumps(found))
        return
    for cold in (False, True):
        some = [row for row in found if row["cold"] == cold]
        groups = [key for key in some[0] if key not in ("cold", "weights")]
        header = ("waits for its price", "dearer", "larger", *groups, "mean")
        cells = [
            (
                *map(str, row["weights"]),
                *(f"{row[group][0]:.3f} / {row[group][1]:.2f}" for group in groups),
                f"{mean(row[group][0] for group in groups):.4f}",
            )
            for row in some
        ]
        title = "A third of the user's turns cold" if cold else "Warm, five price sets"
        if arguments.markdown:
            print(f"**{title}**\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
            print("\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n")
        else:
            print_table(header, cells, title=f"\n{title}")


if __name__ == "__main__":
    main()
