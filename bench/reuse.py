"""Reuse and cost of fitting real conversations to a budget: Quire beside its peers and the optimum.

One request per recorded model call, one tokenizer for all; Quire's are those of a live thread: `thread.request` and
`thread.record` with the provider's report. Cost = read price × reused tokens + write price × the rest, in plain input tokens. Only requests that are
valid, within budget and end in the newest floor of the thread verbatim count as comparable; the others are counted apart.
Beside each peer stands the cheapest of Quire's drop-only settings that keeps as much; `bench/bound.py` says what nobody
could go below. At the end, Quire's cost over the optimum for every price set, and where a third of the user's turns come
when the cache is cold.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import msgspec

from peers import PEERS, Sizes, points
from quire import Policy
from quire.assemble import DROP_ONLY, Built, reused_tokens
from quire.assemble.hindsight import optimum
from quire.cli.output import print_table
from quire.recall import RECALL_TOOL
from quire.tokens import tools_tokens
from quire.values import Entry
from traces import conversations, entries, files, foreseen, live, parser, synthetic, with_pauses

PRICES = ((0.1, 1.25), (0.05, 2.0), (0.1, 1.0), (0.5, 1.0), (0.0, 1.0))
# The share of the user's turns that come after the cache has gone, and after how many seconds it goes.
COLD_TURNS, TTL_S = 0.35, 300
# Threads of at least so many tokens, and the budgets for them.
BUDGETS = ((500_000, (128_000,)), (50_000, (16_000, 32_000, 64_000)), (0, (4_000,)))
change = msgspec.structs.replace
TOOL = tools_tokens([RECALL_TOOL])
QUIRE = {"Quire": Policy(), "Quire, drop only": DROP_ONLY}
COLD = f"Quire, {COLD_TURNS:.0%} of turns cold"


class Tally(msgspec.Struct):
    """What one strategy did over one thread at one budget."""

    requests: int = 0
    tokens: int = 0
    reused: int = 0
    breaks: int = 0
    invalid: int = 0
    over: int = 0
    below: int = 0
    kept: float = 0.0
    # Requests with the tool that reads behind handles, which the optimum does not count.
    offered: int = 0

    def tool_cost(self, read: float, write: float) -> float:
        """What its definition costs: written once, read from then on."""
        return TOOL * (write + read * (self.offered - 1)) if self.offered else 0.0

    def cost(self, read: float, write: float) -> float:
        return read * self.reused + write * (self.tokens - self.reused)


def measure_quire(
    made: Iterable[Built | None], whole: list[Built], budget: int, share: float, cold: Sequence[bool] = ()
) -> Tally:
    """Count over requests of Quire's.

    One whose verbatim tail is shorter than `share` of what `budget` leaves beside the head is below the floor; where the
    cache was cold nothing is reused.
    """
    tally, before = Tally(), None
    for one, all_, stale in zip(made, whole, cold or [False] * len(whole), strict=True):
        tally.requests += 1
        if one is None:
            tally.over += 1
            continue
        reused = 0 if stale else reused_tokens(before, one)
        full = sum(all_.sizes)
        tally.tokens += one.tokens
        tally.reused += reused
        tally.breaks += before is not None and reused < before.tokens
        tally.over += one.tokens > budget
        tally.kept += sum(one.sizes) / max(1, full)
        floor = share * (budget - one.head_tokens)
        tally.below += verbatim(one, all_) < min(full, floor) - 1
        offered = any(tool["name"] == RECALL_TOOL["name"] for tool in one.prompt.tools)
        tally.offered += offered
        before = one
    return tally


def verbatim(one: Built, whole: Built) -> int:
    """Tokens of the tail that stands exactly as in the whole thread."""
    total = 0
    for mine, theirs, size in zip(
        reversed(one.prompt.messages), reversed(whole.prompt.messages), reversed(one.sizes), strict=False
    ):
        # Entries are numbered otherwise where a cut is recorded.
        if (mine.role, mine.parts) != (theirs.role, theirs.parts):
            break
        total += size
    return total


def measure_peer(peer: Any, messages: list[dict[str, Any]], budget: int) -> Tally:
    tally, sizes, before = Tally(), Sizes(), list[dict[str, Any]]()
    for place, kept in zip(points(messages), peer(messages, budget), strict=True):
        whole = messages[:place]
        head = sizes.of(whole[0]) if whole[0]["role"] == "system" else 0
        size = sum(map(sizes.of, kept))
        same = common(before, kept)
        tally.requests += 1
        tally.tokens += size
        tally.reused += sum(map(sizes.of, kept[:same]))
        tally.breaks += bool(before) and same < len(before)
        tally.over += size > budget
        tally.invalid += not is_valid(kept)
        full = sum(map(sizes.of, whole))
        tally.kept += max(0, size - head) / max(1, full - head)
        tail = common(whole[::-1], kept[::-1])
        tally.below += sum(map(sizes.of, whole[len(whole) - tail :])) < min(full - head, (budget - head) / 2) - 1
        before = kept
    return tally


def common(one: Sequence[Any], other: Sequence[Any]) -> int:
    count = 0
    for a, b in zip(one, other, strict=False):
        if a is not b and a != b:
            break
        count += 1
    return count


def is_valid(messages: list[dict[str, Any]]) -> bool:
    """OpenAI Chat's pairing rules, and a user message somewhere."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return False
            waiting.remove(message["tool_call_id"])
        elif waiting:
            return False
        else:
            waiting = [call["id"] for call in message.get("tool_calls") or ()]
    return not waiting and any(message["role"] == "user" for message in messages)


def _others() -> Iterable[tuple[str, float, Policy]]:
    """Ours with more or less kept, to be set beside a peer: (name, share of the budget, policy); all drop only."""
    base = change(DROP_ONLY, when="full")
    fuller = [(floor, opening) for floor in (0.5, 0.55) for opening in (0.0, 0.05, *_steps(0.1, 0.48, 0.02))]
    fuller += [(floor, opening) for floor in (0.6, 0.7, 0.8) for opening in _steps(0.0, 0.35, 0.05)]
    fuller += [(floor, 0.0) for floor in (0.65, 0.75, 0.85, *_steps(0.9, 0.97, 0.01))]
    for floor, opening in fuller:
        if floor + opening <= 0.98:
            yield (f"Quire, floor {floor:.2f}, opening {opening:.2f}", 1.0, change(base, floor=floor, opening=opening))
    for share in _steps(0.5, 1.0, 0.05):
        for floor in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5) if share > 0.75 else (0.2, 0.3, 0.4, 0.5):
            yield f"Quire, {share:.2f} of the budget, floor {floor:.2f}", share, change(base, floor=floor)


def _steps(first: float, last: float, step: float) -> list[float]:
    return [round(first + n * step, 2) for n in range(round((last - first) / step) + 1)]


OTHERS = {name: (share, policy) for name, share, policy in _others()}


def matched(group: list[dict[str, Any]], peer: dict[str, Any]) -> dict[str, Any] | None:
    """The cheapest of ours that keeps as much as a peer did over the same threads, and its floor as often."""
    ours = [
        row
        for row in group
        if row["strategy"] in OTHERS
        and row["kept"] >= peer["kept"] - 1e-9
        and not row["over"]
        and row["below"] <= peer["below"]
    ]
    return min(ours, key=lambda row: row["cost"], default=None)


class Thread(msgspec.Struct):
    name: str
    messages: list[dict[str, Any]]
    entries: list[Entry]
    whole: list[Built]


def threads(given: Any) -> list[tuple[str, list[dict[str, Any]]]]:
    """Name and messages of the threads in the files given; by default the traces, and a synthetic one of 2,000."""
    found = [
        (f"{path.stem}:{number}", one["messages"])
        for path in files(given)
        for number, one in enumerate(conversations(path), 1)
    ]
    return found if given else [*found, ("synthetic:1", synthetic())]


def load(given: Any) -> Iterable[Thread]:
    """The threads in which the model speaks."""
    for name, messages in threads(given):
        yield from _thread(name, messages)


def _thread(name: str, messages: list[dict[str, Any]]) -> Iterable[Thread]:
    listed = entries({"messages": messages})
    whole = [b for b in live(listed, Policy(budget=10**12, when="full", ttl_s=None)) if b is not None]
    if whole:
        yield Thread(name, messages, listed, whole)


def measured(named: tuple[str, list[dict[str, Any]]], budget: int | None, peers: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of one thread, in a process of its own."""
    chosen = {name: make() for name, make in PEERS.items() if name in peers}
    rows: list[dict[str, Any]] = []
    for thread in _thread(*named):
        for most in (budget,) if budget else budgets(thread):
            print(f"{thread.name} at {most}", file=sys.stderr, flush=True)
            rows += measure(thread, most, chosen)
    return rows


def budgets(thread: Thread) -> tuple[int, ...]:
    """Budgets that bite."""
    size = thread.whole[-1].tokens
    return next(some for least, some in BUDGETS if size >= least)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--budget", type=int, help="one budget for every thread")
    options.add_argument("--peers", nargs="*", default=list(PEERS), help="which peers (default: all)")
    options.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    arguments = options.parse_args()
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as workers:
        work = partial(measured, budget=arguments.budget, peers=tuple(arguments.peers))
        rows = [row for found in workers.map(work, threads(arguments.data)) for row in found]
    if arguments.json:
        print(json.dumps({"rows": rows, "summary": summary(rows)}))
        return
    show(rows, arguments.markdown)


def measure(thread: Thread, budget: int, peers: dict[str, Any]) -> list[dict[str, Any]]:
    """Every strategy on one thread at one budget, as rows."""
    # The recorded times are left aside: every strategy is judged by the same warm cache.
    common_ = {"budget": budget, "ttl_s": None}
    rows = []
    for name, policy in QUIRE.items():
        seen = foreseen(thread.entries, change(policy, **common_))
        for prices in PRICES if name == "Quire" else PRICES[:1]:
            ours = change(policy, **common_, read=prices[0], write=prices[1])
            tally = measure_quire(live(thread.entries, ours), thread.whole, budget, policy.floor)
            rows.append(_row(thread, budget, name, tally, prices, optimum(seen, ours).cost))
    rows.append(_with_cold_turns(thread, budget))
    for name, peer in peers.items():
        rows.append(_row(thread, budget, name, measure_peer(peer, thread.messages, budget), PRICES[0], None))
    for name, (share, policy) in OTHERS.items() if peers else ():
        ours = change(policy, budget=int(share * budget), ttl_s=None)
        tally = measure_quire(live(thread.entries, ours), thread.whole, budget, 0.5)
        rows.append(_row(thread, budget, name, tally, PRICES[0], None))
    return rows


def _with_cold_turns(thread: Thread, budget: int) -> dict[str, Any]:
    policy = Policy(budget=budget, ttl_s=TTL_S, read=PRICES[0][0], write=PRICES[0][1])
    paused = with_pauses(thread.entries, COLD_TURNS)
    seen = foreseen(paused, policy)
    cold = [step.cold for step in seen.steps]
    tally = measure_quire(live(paused, policy), thread.whole, budget, policy.floor, cold)
    return _row(thread, budget, COLD, tally, PRICES[0], optimum(seen, policy).cost)


def _row(
    thread: Thread, budget: int, name: str, tally: Tally, prices: tuple[float, float], best: float | None
) -> dict[str, Any]:
    return {
        "thread": thread.name,
        "budget": budget,
        "strategy": name,
        "read": prices[0],
        "write": prices[1],
        **{key: getattr(tally, key) for key in ("requests", "tokens", "reused", "breaks", "invalid", "over", "below")},
        "kept": tally.kept / max(1, tally.requests),
        "cost": tally.cost(*prices),
        # Infinite where a budget is so small that cuts between requests alone cannot keep to it.
        "optimum": best + tally.tool_cost(*prices) if best is not None and math.isfinite(best) else None,
    }


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Totals by group of threads (file and budget), strategy and price set."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = (row["thread"].split(":")[0], row["budget"], row["strategy"], row["read"], row["write"])
        groups.setdefault(key, []).append(row)
    out = []
    for (trace, budget, strategy, read, write), found in groups.items():
        total = {
            k: sum(r[k] for r in found)
            for k in ("requests", "tokens", "reused", "breaks", "invalid", "over", "below", "cost")
        }
        made: dict[str, Any] = {
            "trace": trace,
            "budget": budget,
            "strategy": strategy,
            "read": read,
            "write": write,
            **total,
        }
        made["threads"] = len(found)
        made["reuse"] = total["reused"] / max(1, total["tokens"])
        made["uncached"] = total["tokens"] - total["reused"]
        made["kept"] = sum(r["kept"] for r in found) / len(found)
        if all(r["optimum"] is not None for r in found):
            made["of_optimum"] = total["cost"] / sum(r["optimum"] for r in found)
            made["worst"] = max(r["cost"] / r["optimum"] for r in found)
        out.append(made)
    for row in out:
        if (
            row["strategy"] in PEERS
            and not row["strategy"].startswith("append")
            and (row["read"], row["write"]) == PRICES[0]
        ):
            group = [r for r in out if (r["trace"], r["budget"]) == (row["trace"], row["budget"])]
            if ours := matched(group, row):
                row["ours_at_same_kept"], row["ours_kept"] = ours["cost"], ours["kept"]
                row["ours"] = ours["strategy"]
    return out


Table = tuple[str, tuple[str, ...], list[tuple[object, ...]]]


def tables(rows: list[dict[str, Any]]) -> Iterable[Table]:
    """(title, header, rows): one table of strategies and one of prices per group, and the means at the end."""
    summed = [row for row in summary(rows) if row["strategy"] not in OTHERS]
    for trace, budget in dict.fromkeys((row["trace"], row["budget"]) for row in summed):
        mine = [r for r in summed if (r["trace"], r["budget"]) == (trace, budget)]
        first = [r for r in mine if (r["read"], r["write"]) == PRICES[0]]
        named = f"{trace}, {first[0]['threads']} thread{'s' * (first[0]['threads'] > 1)}, {first[0]['requests']:,} requests, budget {budget:,}"
        yield named, HEADER, [_cells(row) for row in first]
    ours = [row for row in summed if row["strategy"] == "Quire"]
    cold = [row for row in summed if row["strategy"] == COLD]
    yield ("Quire's cost over the optimum", ("", *map(_priced, PRICES), "cold turns"), _over_optimum(ours, cold))


HEADER = (
    "strategy",
    "reuse",
    "uncached, thousands",
    "breaks",
    "invalid",
    "over",
    "below floor",
    "kept",
    "cost, thousands",
    "× optimum",
    "worst thread",
    "ours at same kept",
)


def _priced(prices: tuple[float, float]) -> str:
    return f"{prices[0]} / {prices[1]}"


def _over_optimum(ours: list[dict[str, Any]], cold: list[dict[str, Any]]) -> list[tuple[object, ...]]:
    """A row for each group of threads, and the mean and the highest of each price set."""
    columns = [[row for row in ours if (row["read"], row["write"]) == prices] for prices in PRICES] + [cold]
    out = [
        (f"{rows[0]['trace']}, {rows[0]['budget']:,}", *(_ratio(row.get("of_optimum")) for row in rows))
        for rows in zip(*columns, strict=True)
    ]
    for name, figure in (("mean", lambda some: sum(some) / len(some)), ("highest", max)):
        found = [[row["of_optimum"] for row in column if "of_optimum" in row] for column in columns]
        out.append((name, *(_ratio(figure(some)) if some else "" for some in found)))
    single = [[row["worst"] for row in column if "worst" in row] for column in columns]
    return [*out, ("highest of a single thread", *(_ratio(max(some)) if some else "" for some in single))]


def _ratio(of: float | None) -> str:
    return f"{of:.3f}" if of is not None else ""


def show(rows: list[dict[str, Any]], markdown: bool) -> None:
    for title, header, cells in tables(rows):
        if markdown:
            print(f"**{title}**\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
            print("\n".join(f"| {' | '.join(map(str, row))} |" for row in cells) + "\n")
        else:
            print_table(header, cells, title=f"\n{title}")


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["strategy"],
        f"{row['reuse']:.1%}",
        f"{row['uncached'] / 1000:,.0f}",
        row["breaks"],
        row["invalid"],
        row["over"],
        row["below"],
        f"{row['kept']:.0%}",
        f"{row['cost'] / 1000:,.0f}",
        f"{row['of_optimum']:.3f}" if "of_optimum" in row else "",
        f"{row['worst']:.3f}" if "worst" in row else "",
        _beside(row),
    )


def _beside(row: dict[str, Any]) -> str:
    """Our cost at the same kept against the peer's."""
    return f"{row['ours_at_same_kept'] / row['cost'] - 1:+.0%}" if "ours_at_same_kept" in row else ""


if __name__ == "__main__":
    main()
