"""What nobody could go below at the same kept: a peer's cost beside the least that full knowledge of the thread allows.

All policies that show an opening and a tail of the thread, cut between any two messages at any request, within the
budget, keeping on average at least what the peer kept and falling below the floor no more often than it did. The least
cost of those is bounded from below by a dynamic program with a price on kept tokens and on requests below the floor
(Lagrange); every pair of prices gives a bound, the best of them is shown. Calls and results may part, so no real policy
reaches it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
import numpy as np

from peers import PEERS, Sizes, points
from quire.cli.output import print_table
from reuse import PRICES, budgets, load, measure_peer
from traces import parser

FLOOR = 0.5
OPENINGS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.49)
COMPARED = ("LangChain trim, exact", "LlamaIndex Memory")
READ, WRITE = PRICES[0]
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


def cheapest(talk: Talk, budget: int, opening: float, kept_price: float, below_price: float) -> float:
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
        below = suffix < min(whole, FLOOR * room) - 1
        prices = READ * size - kept_price * (size - talk.head) / max(1.0, whole) + below_price * below
        least = np.where(size <= budget, np.minimum(going_on, cutting) + prices, math.inf)
        before = end
    return float(least.min())


def least_cost(talk: Talk, budget: int, kept: float, below: int) -> float:
    """The best bound over both prices."""

    def dual(kept_price: float, below_price: float) -> float:
        worth = kept_price * kept * len(talk.ends) - below_price * below
        return worth + min(cheapest(talk, budget, one, kept_price, below_price) for one in OPENINGS)

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


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--budget", type=int, help="one budget for every thread")
    arguments = options.parse_args()
    found = list(rows(arguments.data, arguments.budget))
    if arguments.json:
        print(json.dumps(found))
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


if __name__ == "__main__":
    main()
