"""What models charge (`quire models`) and requests cost: of a finished thread, under each policy and at best (`quire
plan`, `quire usage`); of any file, by what a provider's cache makes of them (`quire simulate`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

import click
import msgspec

from quire import assemble
from quire.cli.assemble import is_chosen, policy_options
from quire.cli.output import (
    FileName,
    Place,
    answer,
    bar,
    console,
    count_of,
    db_json_options,
    echo,
    file_label,
    json_option,
    load_usable,
    open_db,
    option,
    pages,
    print_json,
    print_table,
    progress,
    provider_and_model,
    style,
)
from quire.cli.requests import numbered_values, unwrap_request
from quire.errors import CallError, FormatError, NotFound
from quire.providers.cache_marks import mark
from quire.providers.models import ModelInfo, known_models, model_info, resolve
from quire.providers.rules import malformed
from quire.providers.simulate import Predicted, Simulator
from quire.providers.wires import wire_of
from quire.values import Entry, JsonObject

if TYPE_CHECKING:
    from rich.text import Text

    from quire.assemble import Policy
    from quire.observe import EpochWatch


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
    from quire.server.figures import kept_entries, spending

    with open_db(db, create=False) as store:
        entries = chain.from_iterable(pages(store, thread, 0)) if thread is not None else kept_entries(store)
        spent = spending(entries)
    total = {**spent.usage, "requests": spent.requests, "usd": spent.usd, "unpriced": spent.unpriced}
    rows = [*spent.models.items(), ("all", total)]
    listed = [
        [
            name,
            row["requests"],
            row["input_total"],
            f"{100 * row['cache_read'] / max(1, row['input_total']):.0f}%",
            row["output"],
            "unknown" if row["unpriced"] and row["unpriced"] == row["requests"] else f"${row['usd']:,.4f}",
        ]
        for name, row in (rows if len(rows) != 2 else rows[:1])
    ]
    answer(as_json, msgspec.to_builtins(spent), (["model", "requests", "input", "reused", "output", "money"], listed))
    if spent.unpriced and not as_json:
        console().print(f"{count_of(spent.unpriced, 'request')} without a known price")


# The row of the best in hindsight, and the policies that make the same cuts, at other moments.
OPTIMUM, SAME_CUTS = "hindsight optimum", ("as given", "only when full", "hindsight optimum")


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@policy_options
@db_json_options
def plan(source: str, as_json: bool, db: Place | None, policy: Policy) -> None:
    """Compare policies on a finished thread: tokens, reuse, cost, cuts on a time line.

    Costs are in plain input tokens: a cached token counts --read, a written one --write. Nothing is cached after
    --ttl seconds by the entries' times. The optimum is the cheapest series of moments for the cuts of the given
    policy; only policies that make the same cuts are compared with it. Policies whose shares exceed the budget
    together with the given ones are left out. Quire counts all tokens, except what was paid: that is the provider's count.

    \b
    Examples:
      quire plan demo --budget 32000
      quire plan entries.jsonl --budget 16000 --write 2.0 --json
    """
    from quire.assemble.hindsight import optimum, trail
    from quire.observe import EpochWatch
    from quire.thread_state import policies

    logged = load_usable(source, db)
    under = policies(logged, policy) if not is_chosen() else [policy] * len(logged)
    policy = under[-1] if under else policy
    entries = assemble.unsent(logged)
    # What a live thread would have warned of under the policy as given: a budget that ends epochs early.
    warnings: list[object] = []
    watch = {"as given": EpochWatch(warnings.append)}
    compared, rows = variants(policy), []
    with progress() as tell:
        for number, (name, item) in enumerate(compared.items()):
            tell("policies", number, len(compared) + 1)
            rows += [row] if (row := measure(name, entries, item, watch.get(name))) else []
        if not rows:
            raise NotFound("the thread holds no request to compare", hint="It needs a user entry and an answer.")
        best = optimum(trail(entries, policy), policy, tell)
    # Where a request fits under no plan there is no optimum to compare with.
    cost = round(best.cost) if math.isfinite(best.cost) else None
    rows.append({"policy": OPTIMUM, "of": "as given", "cost": cost, "cuts": list(best.cuts)})
    paid, short = _reported_cost(logged, under), "".join(map(str, warnings[:1]))
    value = {"requests": rows[0]["requests"], "paid": paid, "policies": rows, "warning": short or None}
    answer(as_json, value, partial(_print, rows, paid, short))


def variants(policy: Policy) -> dict[str, Policy]:
    """The policies to compare, all with the same budget and prices."""
    changes: dict[str, JsonObject] = {
        "as given": {},
        "drop only": {"handles": assemble.DROP_ONLY.handles, "summary": assemble.DROP_ONLY.summary},
        "only when full": {"when": "full"},
        "promote each turn": {"promote": "each-turn"},
        "never cut": {"budget": 10**12, "reply": 0, "when": "full"},
    }
    tried: dict[str, Policy] = {}
    for name, fields in changes.items():
        with contextlib.suppress(CallError):  # its values do not go together with the rest of the policy
            tried[name] = msgspec.structs.replace(policy, **fields)
    return tried


def measure(name: str, entries: list[Entry], policy: Policy, watch: EpochWatch | None = None) -> JsonObject:
    """Tokens, reuse, cost and cuts of one policy over a thread, whose requests `watch` hears of."""
    from quire.assemble.hindsight import along

    assembly, before, cuts = assemble.Assembly(policy), None, list[int]()
    requests = refused = total = reused = 0
    for built in along(assembly, entries):
        if isinstance(built, assemble.Refused):
            refused += 1
        else:
            total += built.tokens
            reused += 0 if assembly.cold else assemble.reused_tokens(before, built)
            cuts += [requests] if built.rebase is not None else []
            before = built
            if watch is not None:
                watch.passed(built, built.rebase["reason"] if built.rebase else "")
        requests += 1
    if not requests:
        return {}
    read, write = policy.prices
    cost = round(read * reused + write * (total - reused))
    figures = {"tokens": total, "reuse": round(reused / total, 4), "cost": cost} if total else {"cost": None}
    return {"policy": name, "requests": requests, "refused": refused, **figures, "cuts": cuts}


def _reported_cost(entries: list[Entry], under: list[Policy]) -> JsonObject | None:
    """What providers reported, where the log has it, each at the prices of its own request; and our count of the same."""
    requests = counted = tokens = cache_read = 0
    cost, assembly = 0.0, assemble.Assembly()
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


def _print(rows: list[JsonObject], paid: JsonObject | None, warning: str) -> None:
    best = rows[-1]["cost"]
    print_table(
        ("policy", "tokens", "reuse", "cost", "× optimum", "cuts", "refused"),
        [
            (
                _policy_name(row),
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
    out.print(f"\ncuts over {count_of(count, 'request')}:")
    for row in rows:
        line = ["·"] * min(_WIDTH, count)
        for cut in row["cuts"]:
            line[min(len(line) - 1, cut * len(line) // count)] = "┃"
        out.print(f"  {_policy_name(row):<18} {''.join(line)}")
    if warning:
        out.print(f"\nwarning: {warning}")


def _policy_name(row: JsonObject) -> str:
    """A row's policy; of an optimum, whose."""
    return f"optimum, {row['of']}" if "of" in row else str(row["policy"])


# `quire simulate`: what a list of requests reads from a provider's cache, writes to it, and costs.

# Requests that say no time are taken to follow each other this closely.
STEP_MS = 1000
_BARS = 40


class TimedRequest(msgspec.Struct, frozen=True):
    """One line of the file: a request, when it was made, and which model it is for."""

    line: int
    at_ms: int
    model: str
    body: JsonObject


@click.command()
@click.argument("file", type=FileName())
@option("--provider -p", "Provider or wire format (anthropic, openai, vllm), unless --model names it.")
@option("--model -m", "provider:model, or the model alone (default: the one each request names).")
@option("--mark with_marks", "Set Quire's cache marks first (where there are none).", bool)
@option("--chart/--no-chart", "Draw the chart below the table.", default=True, show_default=False)
@json_option
def simulate(file: str, provider: str | None, model: str | None, with_marks: bool, chart: bool, as_json: bool) -> None:
    """Predict what each request of FILE reads from the cache, writes to it and costs.

    FILE holds one JSON request a line (- is standard input), bare or as {"at": ms, "request": {...}}.
    Requests without a time follow each other by a second.

    \b
    Examples:
      quire simulate requests.jsonl --model anthropic:claude-opus-5-5
      quire simulate requests.jsonl -p openai -m gpt-5.6 --mark --json
    """
    provider, model = provider_and_model(provider, model)
    requests = list(_requests(file, provider, model or None))
    predicted = _predict(requests, provider, with_marks)
    answer(as_json, _json(provider, requests, predicted), partial(_print_predictions, requests, predicted, chart))


def _predict(requests: list[TimedRequest], provider: str, with_marks: bool) -> list[Predicted]:
    """Each model has a cache of its own; with marks, pauses decide about their lives."""
    simulators: dict[tuple[str, str], Simulator] = {}
    times: list[int] = []
    out = []
    for request in requests:
        info = model_info(f"{provider}:{request.model}")
        info = msgspec.structs.replace(info, wire=wire_of(provider, request.body).name)
        times.append(request.at_ms)
        body = mark(request.body, None, info, times=times, key="simulated") if with_marks else request.body
        simulator = simulators.setdefault((request.model, info.wire), Simulator(info))
        out.append(simulator.step(request.at_ms, body))
    return out


def _requests(file: str, provider: str, model: str | None) -> Iterator[TimedRequest]:
    at_ms = 0
    for number, value in numbered_values(file):
        line, fields = number or 1, value if isinstance(value, dict) else {}
        body, _ = unwrap_request(fields)
        if wrong := malformed(body, provider, model):
            wire = wire_of(provider, body).name
            raise FormatError(
                f"{file_label(file)} has no {wire} request here: {wrong[0].message}",
                line=line,
                column=1,
                hint=f"{wrong[0].fix} Or check --provider; quire lint says all that is wrong.",
            )
        at_ms = _time(fields, file, line, at_ms + STEP_MS)
        yield TimedRequest(line, at_ms, model or str(body.get("model") or fields.get("model") or ""), body)


def _time(fields: JsonObject, file: str, line: int, otherwise: int) -> int:
    """When a request was made, in ms; those that do not say follow each other by a second."""
    at = next((fields[name] for name in ("at", "at_ms") if fields.get(name) is not None), otherwise)
    if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):
        raise FormatError(
            f"{file_label(file)}: {at!r} is no time", line=line, column=1, hint='"at" is in milliseconds: {"at": 1000}.'
        )
    return int(at)


_AMOUNTS = ("read", "write_5m", "write_1h", "plain")


def _total(predicted: list[Predicted]) -> JsonObject:
    """All requests together; usd is None when any price is not known."""
    sums = {name: sum(getattr(prediction, name) for prediction in predicted) for name in _AMOUNTS}
    amounts = [prediction.money.amount_usd for prediction in predicted]
    known_amounts = [amount for amount in amounts if amount is not None]
    usd = sum(known_amounts) if len(known_amounts) == len(amounts) else None
    return {"tokens": sum(sums.values()), "requests": len(predicted), **sums, "usd": usd}


def _json(provider: str, requests: list[TimedRequest], predicted: list[Predicted]) -> JsonObject:
    rows = [
        {
            "line": request.line,
            "at": request.at_ms,
            "model": request.model,
            "tokens": prediction.total,
            **{name: getattr(prediction, name) for name in _AMOUNTS},
            "usd": prediction.money.amount_usd,
            "exact": prediction.exact,
            "cause": prediction.cause,
            "note": prediction.note,
        }
        for request, prediction in zip(requests, predicted, strict=True)
    ]
    return {"provider": provider, "requests": rows, "total": _total(predicted)}


def _print_predictions(requests: list[TimedRequest], predicted: list[Predicted], chart: bool) -> None:
    columns = ["#", "at s", "tokens", "read", "write", "long write", "plain", "USD", "lost by"]
    start = requests[0].at_ms if requests else 0
    rows = [
        [
            number,
            round((request.at_ms - start) / 1000, 1),
            prediction.total,
            *(getattr(prediction, name) for name in _AMOUNTS),
            _usd(prediction.money.amount_usd),
            "" if prediction.cause == "first" else prediction.cause,
        ]
        for number, (request, prediction) in enumerate(zip(requests, predicted, strict=True), start=1)
    ]
    print_table(columns, rows)
    total = _total(predicted)
    share = total["read"] / total["tokens"] if total["tokens"] else 0.0
    guessed = "" if all(prediction.exact for prediction in predicted) else "; tokens are estimates"
    tokens = f"{total['tokens']:,} tokens, {share:.1%} read from the cache"
    echo(f"{count_of(len(predicted), 'request')}, {tokens}, {_usd(total['usd'])}{guessed}")
    for line in _reasons(predicted):
        echo(line)
    if chart and predicted:
        echo()
        _draw(predicted)


def _reasons(predicted: list[Predicted]) -> Iterator[str]:
    """Why less was read than the request before had left, each cause once with its first instance."""
    first: dict[str, tuple[int, str]] = {}
    for number, prediction in enumerate(predicted, start=1):
        if prediction.cause not in ("", "first"):
            first.setdefault(prediction.cause, (number, prediction.note))
    for cause, (number, note) in first.items():
        yield f"  {cause}: {note} (request {number})" if note else f"  {cause} (request {number})"


def _usd(amount: float | None) -> str:
    return "not known" if amount is None else f"${amount:.6f}"


def _draw(predicted: list[Predicted]) -> None:
    """A bar a request (or a group of requests): read, written, plain, to one scale."""
    size = -(-len(predicted) // _BARS)
    groups = [predicted[start : start + size] for start in range(0, len(predicted), size)]
    longest = max(sum(member.total for member in group) for group in groups) or 1
    out = console()
    for number, group in enumerate(groups):
        first, last = number * size + 1, number * size + len(group)
        out.print(_bar(f"{first}" if size == 1 else f"{first}–{last}", group, longest))
    of_each = f", {size} requests a bar" if size > 1 else ""
    out.print(style(("█ read  ", "green"), ("▓ written  ", "yellow"), ("░ plain", "red"), of_each))


def _bar(name: str, group: list[Predicted], longest: int) -> Text:
    sums = _total(group)
    read, written, total = sums["read"], sums["write_5m"] + sums["write_1h"], sums["tokens"]
    parts = (read, "█", "green"), (written, "▓", "yellow"), (total - read - written, "░", "red")
    return style(f"{name:>9} ", *bar(_WIDTH, longest, parts), f" {total:,}")


# `quire models`: what is known of each.


@click.command()
@click.argument("model", required=False)
@json_option
def models(model: str | None, as_json: bool) -> None:
    """What is known of each model: window, vocabulary, prices, cache minimum, with dates.

    MODEL is a provider, a provider:model, or a part of a model's name. Prices are USD per million
    tokens; "-" is not known, "~" an estimate, "+" costs more for long prompts.

    \b
    Examples:
      quire models
      quire models anthropic
      quire models anthropic:claude-opus-5-5 --json
    """
    chosen = _choose_models(model)
    if as_json:
        print_json([_facts(info) for info in chosen])
        return
    for provider, rows in groupby(chosen, key=lambda info: info.provider):
        print_table(_COLUMNS, [_row(info) for info in rows], title=provider)
        echo()
    dates = ", ".join(dict.fromkeys(info.as_of for info in chosen))
    echo(f"{count_of(len(chosen), 'model')}; prices in USD per million tokens, as of {dates}")


def _choose_models(target: str | None) -> list[ModelInfo]:
    if not target:
        return known_models()
    if ":" in target:
        return [model_info(target)]
    listed = known_models()
    provider = resolve(target)[0] if target.lower() in {info.provider for info in listed} else target
    matching = [info for info in listed if info.provider == provider]
    matching = matching or [info for info in listed if target.lower() in info.model.lower()]
    if not matching:
        raise NotFound(f"no model known by {target!r}", hint="`quire models` lists all; provider:model shows defaults.")
    return matching


_COLUMNS = ("model", "window", "vocabulary", "minimum", "in", "read", "write", "out")


def _row(info: ModelInfo) -> tuple[object, ...]:
    """One line: "~" is an estimate, "+" a higher price for long prompts, "/" a longer cache life."""
    prices = info.prices.tier(0)
    more = "+" if len(info.prices.tiers) > 1 else ""
    writes = [price for price in (prices.write_5m, prices.write_1h) if price is not None]
    return (
        info.model + ("" if info.known else " (defaults)"),
        f"{info.window // 1000:,}k",
        info.vocabulary.removesuffix("_base") if info.vocabulary_exact else f"~{info.vocabulary.removesuffix('_base')}",
        ("~" if "min_tokens" in info.cache.unsure else "") + str(info.min_cache_tokens),
        _price(prices.input) + more,
        _price(prices.read),
        "/".join(map(_price, writes)) or "-",
        _price(prices.output) + more,
    )


def _price(price: float | None) -> str:
    return "-" if price is None else f"{price:g}"


def _facts(info: ModelInfo) -> dict[str, Any]:
    """Every fact, and the two ratios that caching policies use."""
    facts: dict[str, Any] = msgspec.to_builtins(info)
    ratios = {"read_ratio": info.r, "write_ratio": info.w, "write_long_ratio": info.w_long}
    return {**facts, "engine": info.engine, **ratios}
