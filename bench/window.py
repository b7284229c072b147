"""What one add costs, by capacity, and what one item's structure costs, by form.

The window stands against a plain list that is copied without its oldest item.

Every window is full before the clock starts, so that each add evicts; the last column pins half of it. Items are one short text, or in turn the texts of the traces given with --data;
--budget gives every window a limit of tokens too, so that each add is also counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

from quire.assemble.user_message import block
from quire.cli.output import print_json, print_table
from quire.formats import markdown
from quire.items import Window, item, kept_id
from quire.tokens import counter
from quire.values import Item, item_json
from traces import files, parser, texts

ADDS = 100_000
ROUNDS = 10
CAPACITIES = (10, 100, 1000)
CONTENT = "(defun add (a b)\n  (+ a b))"


def microseconds(ways: dict[Any, Callable[[], object]], adds: int) -> dict[Any, float]:
    """CPU time of one add each way. Rounds are interleaved and the best is kept: a busy neighbour is not ours."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, add in ways.items():
            start = time.process_time()
            for _ in range(adds // ROUNDS):
                add()
            best[name] = min(best[name], (time.process_time() - start) / (adds // ROUNDS))
    return {name: round(seconds * 1e6, 2) for name, seconds in best.items()}


# The next item's text.
Text = Callable[[], str]


def full(text: Text, capacity: int, budget: int | None, pinned: int = 0) -> Window:
    window = Window(capacity, max_tokens=budget, clock=lambda: 0)
    for number in range(capacity):
        added = window.add(text(), truncate=True)
        # What is pinned leaves half of the tokens free, or nothing could be added.
        if number < pinned and (budget is None or window.tokens <= budget // 2):
            window.pin(added.id)
    return window


def copying(text: Text, capacity: int) -> Callable[[], object]:
    """Eviction by a new list without the oldest, then the item behind it."""
    items: list[Item] = [item(text())] * capacity

    def add() -> None:
        nonlocal items
        if len(items) >= capacity:
            items = list(items[1:])
        items.append(item(text()))

    return add


def add(window: Window, text: Text) -> None:
    window.add(text(), truncate=True)


def by_capacity(text: Text, adds: int, budget: int | None) -> list[dict[str, Any]]:
    ways: dict[Any, Callable[[], object]] = {}
    for capacity in CAPACITIES:
        plain, pinned = full(text, capacity, budget), full(text, capacity, budget, capacity // 2)
        ways["window_us", capacity] = partial(add, plain, text)
        ways["half_pinned_us", capacity] = partial(add, pinned, text)
        ways["copying_us", capacity] = copying(text, capacity)
    found = microseconds(ways, adds)
    names = ("window_us", "half_pinned_us", "copying_us")
    return [{"capacity": c, "adds": adds, **{n: found[n, c] for n in names}} for c in CAPACITIES]


def by_age(text: Text, adds: int, budget: int | None) -> list[dict[str, Any]]:
    """The cost of an add early and late in a long life, at the default capacity."""
    windows = {age: Window(max_tokens=budget, clock=lambda: 0) for age in (0, adds // 10, adds)}
    for age, window in windows.items():
        for _ in range(max(age, window.max_items)):
            window.add(text(), truncate=True)
    found = microseconds({age: partial(add, window, text) for age, window in windows.items()}, adds // 10)
    return [{"adds_before": age, "window_us": cost} for age, cost in found.items()]


# Where items come from, and what is known of them.
KNOWN: dict[str, dict[str, Any]] = {
    "code with file and lines": {"metadata": {"filename": "src/agent.lisp", "start_line": 42, "end_line": 58}},
    "a whole file": {"type": "file", "metadata": {"filename": "src/agent.lisp"}},
    "an error": {"type": "error"},
}
HELD = 50


def structure(text: Text) -> list[dict[str, Any]]:
    """The tokens that each form adds to one item: those of fifty items, without their content's."""
    count, rows = counter().count, []
    for kind, about in KNOWN.items():
        window = Window(HELD, clock=lambda: 0)
        for number in range(HELD):
            window.add(f"{text()}\n;; {number}", **about)
        content = sum(count(one.content) for one in window)
        told = [{**item_json(one), "id": kept_id(one)} for one in window]
        forms = {
            "seed": markdown.render(markdown.project(window)),
            "markdown": "\n\n".join(block(one, form="markdown").text for one in told),
            "xml": "\n\n".join(block(one).text for one in told),
        }
        each = {name: round((count(whole) - content) / HELD, 1) for name, whole in forms.items()}
        rows.append({"item": kind, **each})
    return rows


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--adds", type=int, default=ADDS)
    options.add_argument("--budget", type=int, help="tokens a window holds at most (default: no limit)")
    given = options.parse_args()
    text = cycle(texts(files(given.data)) if given.data else [CONTENT]).__next__
    told = structure(text)
    rows, aged = by_capacity(text, given.adds, given.budget), by_age(text, given.adds, given.budget)
    if given.json:
        print_json({"by_capacity": rows, "by_age": aged, "structure": told})
        return
    print_table(
        ["capacity", "µs per add", "half of it pinned", "copying a list"],
        [[row["capacity"], row["window_us"], row["half_pinned_us"], row["copying_us"]] for row in rows],
        title=f"Cost of an add into a full window, {given.adds:,} adds",
    )
    print_table(
        ["adds before", "µs per add"],
        [[row["adds_before"], row["window_us"]] for row in aged],
        title="\nCapacity 50, by age",
    )
    print_table(
        ["item", "quire format markdown", "request, markdown", "request, xml"],
        [[row["item"], row["seed"], row["markdown"], row["xml"]] for row in told],
        title="\nTokens of structure, an item",
    )


if __name__ == "__main__":
    main()
