"""`quire plan`: what a finished thread cost, what each policy would have cost, and the optimum in hindsight."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click
import msgspec

from quire.cli.assemble import is_chosen, policy_from, policy_options
from quire.cli.output import Place, console, counted, db_option, json_option, print_json, print_table
from quire.cli.store import load_usable
from quire.errors import CallError, NotFound
from quire.values import Entry, JsonObject

if TYPE_CHECKING:
    from quire.assemble import Built, Policy, Refused

_WIDTH = 60


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@policy_options
@json_option
@db_option
def plan(source: str, as_json: bool, db: Place | None, **fields: object) -> None:
    """Compare policies on a finished thread: tokens, reuse, cost, cuts on a time line.

    Costs are in plain input tokens: a cached token counts --read, a written one --write; after --ttl seconds
    by the entries' times nothing is cached. The optimum is the cheapest series of moments for the cuts of the
    policy as given; policies with other cuts may cost less. Those whose shares do not go with the given ones
    are left out.

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
    rows.append({"policy": "hindsight optimum", "cost": cost, "cuts": list(best.cuts)})
    paid = _paid(logged, under)
    if as_json:
        print_json({"requests": rows[0]["requests"], "paid": paid, "policies": rows})
        return
    _print(rows, paid)


def variants(policy: Policy) -> dict[str, Policy]:
    """The policies to compare, all with the same budget and prices."""
    from quire.assemble import DROP_ONLY

    changes: dict[str, JsonObject] = {
        "as given": {},
        "drop only": _tiers(DROP_ONLY, "handles", "summary"),
        "only when full": {"when": "full"},
        "promote each turn": {"promote": "each-turn"},
        "never cut": {"budget": 10**12, "reply": 0, "when": "full"},
    }
    tried = {name: _changed(policy, fields) for name, fields in changes.items()}
    return {name: item for name, item in tried.items() if item is not None}


def _tiers(policy: Policy, *names: str) -> JsonObject:
    return {name: getattr(policy, name) for name in names}


def _changed(policy: Policy, fields: JsonObject) -> Policy | None:
    """The policy with other values, if they go together with the rest of it."""
    try:
        return msgspec.structs.replace(policy, **fields)
    except CallError:
        return None


def measure(name: str, entries: list[Entry], policy: Policy) -> JsonObject:
    """Tokens, reuse, cost and cuts of one policy over a thread."""
    from quire.assemble import Built, reused_tokens

    made, cold = _made(entries, policy)
    sent = [(each, stale) for each, stale in zip(made, cold, strict=True) if isinstance(each, Built)]
    if not made:
        return {}
    if not sent:
        return {"policy": name, "requests": len(made), "refused": len(made), "cost": None, "cuts": []}
    before = [None, *(each for each, _ in sent)]
    pairs = zip(before, sent, strict=False)
    reused = [0 if stale else reused_tokens(old, new) for old, (new, stale) in pairs]
    total = sum(each.tokens for each, _ in sent)
    return {
        "policy": name,
        "requests": len(made),
        "refused": len(made) - len(sent),
        "tokens": total,
        "reuse": round(sum(reused) / total, 4),
        "cost": round(policy.read * sum(reused) + policy.write * (total - sum(reused))),
        "cuts": [n for n, each in enumerate(made) if isinstance(each, Built) and each.rebase is not None],
    }


def _made(entries: list[Entry], policy: Policy) -> tuple[list[Built | Refused], list[bool]]:
    """The requests of a thread, and for each whether the provider's cache was cold."""
    from quire.assemble import Assembly, ask
    from quire.assemble.hindsight import numbered

    assembly = Assembly(policy)
    made: list[Built | Refused] = []
    cold: list[bool] = []
    for entry in numbered(entries):
        if assembly.asks(entry):
            cold.append(assembly.cold)
            made.append(ask(assembly, entry))
        assembly.feed(entry)
    return made, cold


def _paid(entries: list[Entry], under: list[Policy]) -> JsonObject | None:
    """What providers reported, where the log has it, each at the prices of its own request."""
    paid = [
        (RequestCost.of(entry.body["usage"]), policy)
        for entry, policy in zip(entries, under, strict=True)
        if entry.kind == "sent" and entry.body.get("usage")
    ]
    if not paid:
        return None
    return {
        "requests": len(paid),
        "tokens": sum(each.total for each, _ in paid),
        "cache_read": sum(each.read for each, _ in paid),
        "cost": round(sum(p.read * each.read + p.write * (each.total - each.read) for each, p in paid)),
    }


class RequestCost(msgspec.Struct, frozen=True):
    """What one request took in, and how much of it was read from the cache."""

    total: int
    read: int

    @classmethod
    def of(cls, usage: JsonObject) -> RequestCost:
        return cls(round(usage.get("input_total") or 0), round(usage.get("cache_read") or 0))


def _print(rows: list[JsonObject], paid: JsonObject | None) -> None:
    best = rows[-1]["cost"]
    print_table(
        ("policy", "tokens", "reuse", "cost", "× optimum", "cuts", "refused"),
        [
            (
                row["policy"],
                row.get("tokens", ""),
                f"{row['reuse']:.1%}" if "reuse" in row else "",
                "none" if row["cost"] is None else row["cost"],
                f"{row['cost'] / best:.2f}" if best and row["cost"] is not None else "",
                len(row["cuts"]),
                row.get("refused", ""),
            )
            for row in rows
        ],
    )
    out = console()
    if paid:
        out.print(
            f"paid: {paid['tokens']:,} tokens, {paid['cache_read']:,} from the cache, cost {paid['cost']:,}"
        )
    count = max(1, rows[0]["requests"])
    out.print(f"\ncuts over {counted(count, 'request')}:")
    for row in rows:
        line = ["·"] * min(_WIDTH, count)
        for cut in row["cuts"]:
            line[min(len(line) - 1, cut * len(line) // count)] = "┃"
        out.print(f"  {row['policy']:<18} {''.join(line)}")
