"""`quire plan`: what a finished thread cost, what each policy would have cost, and the optimum in hindsight."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING

import click
import msgspec

from quire.cli.assemble import is_chosen, policy_from, policy_options
from quire.cli.output import Place, console, counted, db_json_options, print_json, print_table
from quire.cli.store import load_usable, open_db
from quire.errors import CallError, NotFound
from quire.values import Entry, JsonObject

if TYPE_CHECKING:
    from quire.assemble import Built, Policy, Refused

_WIDTH = 60


@click.command()
@click.argument("thread", required=False)
@db_json_options
def usage(thread: str | None, as_json: bool, db: Place | None) -> None:
    """What the requests of THREAD used and cost, by model; without it, those of all threads.

    \b
    Examples:
      quire usage
      quire usage demo --json
    """
    from quire.server.costs import kept_entries, spending

    with open_db(db, create=False) as store:
        spent = spending(store.read(thread) if thread is not None else kept_entries(store))
    if as_json:
        print_json(msgspec.to_builtins(spent))
        return
    rows = [*spent.models.items(), ("all", {**spent.usage, "requests": spent.requests, "usd": spent.usd})]
    print_table(
        ["model", "requests", "input", "reused", "output", "money"],
        [
            [
                name,
                row["requests"],
                row["input_total"],
                f"{100 * row['cache_read'] / max(1, row['input_total']):.0f}%",
                row["output"],
                f"${row['usd']:,.4f}",
            ]
            for name, row in (rows if len(rows) != 2 else rows[:1])
        ],
    )
    if spent.unpriced:
        console().print(f"{counted(spent.unpriced, 'request')} without a known price")


# The row of the best in hindsight, and the policies that make the same cuts, at other moments.
OPTIMUM, SAME_CUTS = "hindsight optimum", ("as given", "only when full", "hindsight optimum")


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@policy_options
@db_json_options
def plan(source: str, as_json: bool, db: Place | None, **fields: object) -> None:
    """Compare policies on a finished thread: tokens, reuse, cost, cuts on a time line.

    Costs are in plain input tokens: a cached token counts --read, a written one --write; after --ttl seconds
    by the entries' times nothing is cached. The optimum is that of the policy as given: the cheapest series of
    moments for its own cuts, and only policies that make the same cuts stand beside it. Those whose shares do not
    go with the given ones are left out. All of it is by Quire's own count; what was paid is by the provider's.

    \b
    Examples:
      quire plan demo --budget 32000
      quire plan entries.jsonl --budget 16000 --write 2.0 --json
    """
    from quire.assemble import unsent
    from quire.assemble.hindsight import optimum, trail
    from quire.thread_state import policies

    policy = policy_from(**fields)  # type: ignore[arg-type]  # click has checked the types
    logged = load_usable(source, db)
    under = policies(logged, policy) if not is_chosen() else [policy] * len(logged)
    policy = under[-1] if under else policy
    entries = unsent(logged)
    rows = [row for name, item in variants(policy).items() if (row := measure(name, entries, item))]
    if not rows:
        raise NotFound("the thread holds no request to compare", hint="It needs a user entry and an answer.")
    best = optimum(trail(entries, policy), policy)
    # Where a request fits under no plan there is no optimum to compare with.
    cost = round(best.cost) if math.isfinite(best.cost) else None
    rows.append({"policy": OPTIMUM, "of": "as given", "cost": cost, "cuts": list(best.cuts)})
    paid = _paid(logged, under)
    short = _short_epochs(entries, policy)
    if as_json:
        print_json({"requests": rows[0]["requests"], "paid": paid, "policies": rows, "warning": short or None})
        return
    _print(rows, paid)
    if short:
        console().print(f"\nwarning: {short}")


def _short_epochs(entries: list[Entry], policy: Policy) -> str:
    """What a live thread would have warned of under the policy as given: a budget that ends epochs early."""
    from quire.assemble import Built
    from quire.observe import EpochWatch

    warnings: list[object] = []
    watch = EpochWatch(warnings.append)
    for built in _thread_requests(entries, policy)[0]:
        if isinstance(built, Built):
            watch.passed(built, built.rebase["reason"] if built.rebase else "")
    return str(warnings[0]) if warnings else ""


def variants(policy: Policy) -> dict[str, Policy]:
    """The policies to compare, all with the same budget and prices."""
    from quire.assemble import DROP_ONLY

    changes: dict[str, JsonObject] = {
        "as given": {},
        "drop only": {"handles": DROP_ONLY.handles, "summary": DROP_ONLY.summary},
        "only when full": {"when": "full"},
        "promote each turn": {"promote": "each-turn"},
        "never cut": {"budget": 10**12, "reply": 0, "when": "full"},
    }
    tried: dict[str, Policy] = {}
    for name, fields in changes.items():
        with contextlib.suppress(CallError):  # its values do not go together with the rest of the policy
            tried[name] = msgspec.structs.replace(policy, **fields)
    return tried


def measure(name: str, entries: list[Entry], policy: Policy) -> JsonObject:
    """Tokens, reuse, cost and cuts of one policy over a thread."""
    from quire.assemble import Built, reused_tokens

    requests, cold = _thread_requests(entries, policy)
    sent = [(request, stale) for request, stale in zip(requests, cold, strict=True) if isinstance(request, Built)]
    if not requests:
        return {}
    if not sent:
        return {"policy": name, "requests": len(requests), "refused": len(requests), "cost": None, "cuts": []}
    before = [None, *(request for request, _ in sent)]
    pairs = zip(before, sent, strict=False)
    reused = [0 if stale else reused_tokens(old, new) for old, (new, stale) in pairs]
    total = sum(request.tokens for request, _ in sent)
    return {
        "policy": name,
        "requests": len(requests),
        "refused": len(requests) - len(sent),
        "tokens": total,
        "reuse": round(sum(reused) / total, 4),
        "cost": round(policy.prices[0] * sum(reused) + policy.prices[1] * (total - sum(reused))),
        "cuts": [n for n, request in enumerate(requests) if isinstance(request, Built) and request.rebase is not None],
    }


def _thread_requests(entries: list[Entry], policy: Policy) -> tuple[list[Built | Refused], list[bool]]:
    """The requests of a thread, and for each whether the provider's cache was cold."""
    from quire.assemble import Assembly, ask
    from quire.assemble.hindsight import numbered

    assembly = Assembly(policy)
    requests: list[Built | Refused] = []
    cold: list[bool] = []
    for entry in numbered(entries):
        if assembly.asks(entry):
            cold.append(assembly.cold)
            requests.append(ask(assembly, entry))
        assembly.feed(entry)
    return requests, cold


def _paid(entries: list[Entry], under: list[Policy]) -> JsonObject | None:
    """What providers reported, where the log has it, each at the prices of its own request; and our count of the same."""
    from quire.assemble import Assembly

    requests = counted = tokens = cache_read = 0
    cost, assembly = 0.0, Assembly()
    for entry, policy in zip(entries, under, strict=True):
        assembly.policy = policy
        assembly.feed(entry)
        if entry.kind == "sent" and (usage := entry.body.get("usage")):
            total, read = (round(usage.get(name) or 0) for name in ("input_total", "cache_read"))
            requests, tokens, cache_read = requests + 1, tokens + total, cache_read + read
            cost += policy.prices[0] * read + policy.prices[1] * (total - read)
            # A question beside the conversation is paid for, and stands in no request.
            counted += 0 if entry.meta.get("aside") else assembly.models.estimate
    paid = {"requests": requests, "counted": counted, "tokens": tokens, "cache_read": cache_read, "cost": round(cost)}
    return paid if requests else None


def _print(rows: list[JsonObject], paid: JsonObject | None) -> None:
    best = rows[-1]["cost"]
    print_table(
        ("policy", "tokens", "reuse", "cost", "× optimum", "cuts", "refused"),
        [
            (
                _named(row),
                row.get("tokens", ""),
                f"{row['reuse']:.1%}" if "reuse" in row else "",
                "none" if row["cost"] is None else row["cost"],
                f"{row['cost'] / best:.2f}" if best and row["cost"] is not None and row["policy"] in SAME_CUTS else "",
                len(row["cuts"]),
                row.get("refused", ""),
            )
            for row in rows
        ],
    )
    out = console()
    if paid:
        out.print(
            f"paid, as the provider counts: {paid['tokens']:,} tokens, {paid['cache_read']:,} from the cache, "
            f"cost {paid['cost']:,}; by the count above {paid['counted']:,} tokens"
        )
    count = max(1, rows[0]["requests"])
    out.print(f"\ncuts over {counted(count, 'request')}:")
    for row in rows:
        line = ["·"] * min(_WIDTH, count)
        for cut in row["cuts"]:
            line[min(len(line) - 1, cut * len(line) // count)] = "┃"
        out.print(f"  {_named(row):<18} {''.join(line)}")


def _named(row: JsonObject) -> str:
    """A row's policy; of an optimum, whose."""
    return f"optimum, {row['of']}" if "of" in row else str(row["policy"])
