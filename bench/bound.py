"""What nobody could go below at the same kept: a peer's cost beside the least that full knowledge of the thread allows.

All policies that show an opening and a tail of the thread, cut between any two messages at any request, within the
budget, keeping on average at least what the peer kept and falling below the floor no more often than it did. The least
cost of those is bounded from below by a dynamic program with a price on kept tokens and on requests below the floor
(Lagrange); every pair of prices gives a bound, the best of them is shown. Calls and results may part, so no real policy
reaches it.

A second table sweeps the size of tool results from 1 % to 40 % of a budget of 24,000: what Quire's default costs on the
live path beside the cheapest depths and moments for the same kind of cut, beside that bound at its own kept and floor, and
what its settings that only drop cost where they keep exactly as much as cutting to half, beside the cost of that: as it
is, where requests may be invalid and results may go before any request has shown them, and with what is new and the
user's newest words always kept. Several threads are taken together, more where one has only 36 requests.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count, islice
from typing import Any, get_args

import msgspec
import numpy as np

from peers import PEERS, Sizes, cut_to_half_validly, points
from quire import Policy
from quire.assemble import Built, When, reused_tokens
from quire.assemble.hindsight import optimum
from quire.cli.output import print_table
from reuse import PRICES, budgets, change, load, measure_peer
from traces import WORDS, entries, foreseen, live, parser

FLOOR = 0.5
OPENINGS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.49)
COMPARED = ("LangChain trim, exact", "LlamaIndex Memory")
READ, WRITE = PRICES[0]
# Settings that are set beside cutting to half, and depths that are set beside the default's.
FLOORS = [step / 40 for step in range(2, 21)]
DEPTHS = (0.25, 0.3, 0.4)
# So many threads are taken together, and so many where one is short: what a single cut happens to meet is luck.
SEVERAL, MANY = 3, 12
Array = Any


class Talk(msgspec.Struct):
    """A thread in tokens: `sums[n]` of its first n messages, `ends` where its requests stand."""

    sums: Array
    ends: list[int]
    head: int
    first: int

    @classmethod
    def of(cls, messages: list[dict[str, Any]]) -> Talk:
        sizes = Sizes()
        each = [sizes.of(message) for message in messages]
        first = int(messages[0]["role"] == "system")
        return cls(np.concatenate([[0], np.cumsum(each)]), list(points(messages)), sum(each[:first]), first)


def cheapest(talk: Talk, budget: int, opening: float, kept_price: float, below_price: float, floor: float) -> float:
    """The least of cost − price × kept + price × requests below the floor, over every series of cuts."""
    sums, room = talk.sums, budget - talk.head
    start = max(talk.first, int(np.searchsorted(sums, talk.head + opening * room, side="right")) - 1)
    front = float(sums[start])
    # By the first message of the tail: the least so far; nothing is cut while the tail begins behind the opening.
    least = np.full(len(sums), math.inf)
    least[start] = 0.0
    before = 0
    for end in talk.ends:
        places = np.arange(len(sums))
        tail = np.maximum(0, sums[end] - np.maximum(sums, front)) * (places <= end)
        size = min(front, sums[end]) + tail
        whole = float(sums[end] - talk.head)
        same = min(front, sums[before])
        stood = np.maximum(0, sums[before] - np.maximum(sums, front)) * (places <= before)
        moved = np.minimum.accumulate(np.concatenate([[math.inf], least[:-1]]))
        going_on = least + (WRITE - READ) * (size - same - stood)
        cutting = moved + (WRITE - READ) * (size - same)
        suffix = np.where(places == start, size - talk.head, tail)
        below = suffix < min(whole, floor * room) - 1
        prices = READ * size - kept_price * (size - talk.head) / max(1.0, whole) + below_price * below
        least = np.where(size <= budget, np.minimum(going_on, cutting) + prices, math.inf)
        before = end
    return float(least.min())


def least_cost(talk: Talk, budget: int, kept: float, below: int, floor: float = FLOOR) -> float:
    """The best bound over both prices."""

    def dual(kept_price: float, below_price: float) -> float:
        worth = kept_price * kept * len(talk.ends) - below_price * below
        return worth + min(cheapest(talk, budget, opening, kept_price, below_price, floor) for opening in OPENINGS)

    below_prices = [scale * budget for scale in (0.0, 0.2, 1.0, 5.0)]
    return max(peak(partial(dual, below_price=price), 0, 4.0 * budget) for price in below_prices)


def peak(of: Callable[[float], float], low: float, high: float, steps: int = 14) -> float:
    """The highest value of a concave function, by golden sections; any value met is a bound."""
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = of(left), of(right)
    best = max(at_left, at_right)
    for _ in range(steps):
        if at_left > at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = of(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = of(right)
        best = max(best, at_left, at_right)
    return best


def rows(given: Any, budget: int | None) -> Iterable[dict[str, Any]]:
    for thread in load(given):
        if len(thread.whole) < 100 and not given:
            continue
        talk = Talk.of(thread.messages)
        for most in (budget,) if budget else budgets(thread):
            for name in COMPARED:
                print(f"{thread.name} at {most}: {name}", file=sys.stderr)
                tally = measure_peer(PEERS[name](), thread.messages, most)
                kept, cost = tally.kept / tally.requests, tally.cost(READ, WRITE)
                bound = least_cost(talk, most, kept, tally.below)
                yield {
                    "thread": thread.name,
                    "budget": most,
                    "peer": name,
                    "kept": kept,
                    "below": tally.below,
                    "cost": cost,
                    "bound": bound,
                }


def with_results(share: float, budget: int, seed: int) -> list[dict[str, Any]]:
    """An agent's thread whose results take about this share of the budget, by a third more or less."""
    dice = random.Random(seed)

    def prose(tokens: float) -> str:
        lines = (f"{n:4} {' '.join(dice.choice(WORDS) for _ in range(12))}" for n in count())
        return "\n".join(islice(lines, max(1, round(tokens / 14))))

    out: list[dict[str, Any]] = [{"role": "system", "content": prose(300)}]
    asked = max(35, round(3.5 / share))
    for number in range(asked):
        if number % 8 == 0:
            out.append({"role": "user", "content": prose(60)})
        id = f"call_{number}"
        function = {"name": "read", "arguments": json.dumps({"path": id})}
        call = {"id": id, "type": "function", "function": function}
        out.append({"role": "assistant", "content": prose(20), "tool_calls": [call]})
        result = prose(share * budget * (0.7 + 0.6 * dice.random()))
        out.append({"role": "tool", "tool_call_id": id, "content": result})
    return [*out, {"role": "assistant", "content": prose(60)}]


class Kept(msgspec.Struct):
    """Of some threads together: the mean share of a thread in its requests, and what all of them cost."""

    share: float
    cost: float


def measured(threads: list[list[dict[str, Any]]], policy: Policy) -> tuple[Kept, list[list[Built]]]:
    """What a policy keeps and costs on the live path, and its requests."""
    found, out = Kept(0.0, 0.0), []
    for messages in threads:
        made = [one for one in live(entries({"messages": messages}), policy) if one is not None]
        sums = Talk.of(messages).sums
        wholes = [sums[end] - sums[1] for end in points(messages)]
        reused = sum(reused_tokens(*pair) for pair in zip([None, *made], made, strict=False))
        shares = [min(1, sum(b.sizes) / whole) for b, whole in zip(made, wholes, strict=True)]
        found.share += sum(shares) / len(shares) / len(threads)
        found.cost += READ * reused + WRITE * (sum(built.tokens for built in made) - reused)
        out.append(made)
    return found, out


def settings(threads: list[list[dict[str, Any]]], policy: Policy) -> Iterable[Kept]:
    """Quire's settings that only drop."""
    for floor in FLOORS:
        for when in get_args(When):
            yield measured(threads, change(policy, floor=floor, handles=0, summary=0, when=when))[0]


def cost_at(share: float, found: list[Kept]) -> float:
    """The least that a setting costs that keeps so much, or two of them, each for a part of the threads."""
    pairs = [(one, other) for one in found for other in found if one.share <= share <= other.share]
    return min(
        (
            one.cost + (other.cost - one.cost) * (share - one.share) / max(1e-9, other.share - one.share)
            for one, other in pairs
        ),
        default=min((one.cost for one in found if one.share >= share), default=math.nan),
    )


def sweep(budget: int = 24_000) -> Iterable[dict[str, Any]]:
    policy = Policy(budget=budget, ttl_s=None, read=READ, write=WRITE)
    for share in (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4):
        print(f"results of {share:.0%}", file=sys.stderr, flush=True)
        threads = [with_results(share, budget, 7 + n) for n in range(MANY if share >= 0.1 else SEVERAL)]
        ours, made = measured(threads, policy)
        best = sum(
            min(optimum(foreseen(entries({"messages": thread}), deep), deep).cost for deep in _depths(policy))
            for thread in threads
        )
        least = sum(least_cost(Talk.of(thread), budget, ours.share, 0, policy.floor) for thread in threads)
        plain, half = (
            [measure_peer(peer, thread, budget) for thread in threads]
            for peer in (PEERS["cut to half"](), cut_to_half_validly)
        )
        plain_kept, half_kept = (
            Kept(sum(t.kept / t.requests for t in some) / len(some), sum(t.cost(READ, WRITE) for t in some))
            for some in (plain, half)
        )
        yield {
            "results": share,
            "threads": len(threads),
            "requests": sum(map(len, made)),
            "rebases": sum(one[-1].epoch - 1 for one in made),
            "kept": ours.share,
            "cost": ours.cost,
            "of_best": ours.cost / best,
            "of_bound": ours.cost / least,
            "plain_kept": plain_kept.share,
            "plain_cost": plain_kept.cost,
            "plain_invalid": sum(tally.invalid for tally in plain),
            "half_kept": half_kept.share,
            "half_cost": half_kept.cost,
            "half_breaks": sum(tally.breaks for tally in half),
            "at_its_kept": cost_at(half_kept.share, list(settings(threads, policy))) / half_kept.cost,
        }


def _depths(policy: Policy) -> list[Policy]:
    """The policy with deeper and shallower cuts that keep its floor."""
    return [change(policy, floor=floor) for floor in DEPTHS]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--budget", type=int, help="one budget for every thread")
    options.add_argument("--results", action="store_true", help="only the sweep of result sizes")
    arguments = options.parse_args()
    found = [] if arguments.results else list(rows(arguments.data, arguments.budget))
    swept = list(sweep())
    if arguments.json:
        print(json.dumps({"peers": found, "results": swept}))
        return
    print_table(
        ("thread", "budget", "peer", "kept", "below floor", "cost, thousands", "least with hindsight"),
        [
            (
                row["thread"],
                f"{row['budget']:,}",
                row["peer"],
                f"{row['kept']:.0%}",
                row["below"],
                f"{row['cost'] / 1000:,.0f}",
                f"{row['bound'] / row['cost'] - 1:+.0%}",
            )
            for row in found
        ],
    )
    print_table(
        (
            "results",
            "requests",
            "rebases",
            "kept",
            "cost, thousands",
            "× best",
            "× least",
            "cut to half: kept",
            "cost",
            "invalid",
            "made valid: kept",
            "cost",
            "cuts",
            "ours at its kept",
        ),
        [
            (
                f"{row['results']:.0%}",
                row["requests"],
                row["rebases"],
                f"{row['kept']:.0%}",
                f"{row['cost'] / 1000:,.0f}",
                f"{row['of_best']:.2f}",
                f"{row['of_bound']:.2f}",
                f"{row['plain_kept']:.0%}",
                f"{row['plain_cost'] / 1000:,.0f}",
                row["plain_invalid"],
                f"{row['half_kept']:.0%}",
                f"{row['half_cost'] / 1000:,.0f}",
                row["half_breaks"],
                f"{row['at_its_kept'] - 1:+.1%}",
            )
            for row in swept
        ],
        title="\nResults of a share of the budget of 24,000",
    )


if __name__ == "__main__":
    main()
