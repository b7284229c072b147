"""`quire simulate`: what a list of requests reads from a provider's cache, writes to it, and costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.text import Text

from quire.cli.output import (
    called,
    console,
    counted,
    echo,
    json_option,
    print_json,
    print_table,
    provider_and_model,
    read_text,
    value_of,
)
from quire.errors import FormatError
from quire.values import JsonObject

if TYPE_CHECKING:
    from quire.providers.simulate import Predicted, Simulator

# Requests that say no time are taken to follow each other this closely.
STEP_MS = 1000
_BARS = 40
_WIDTH = 60


class Timed(msgspec.Struct, frozen=True):
    """One line of the file: a request, when it was made, and which model it is for."""

    line: int
    at_ms: int
    model: str
    body: JsonObject


@click.command()
@click.argument("file")
@click.option(
    "--provider", "-p", help="Provider or wire format (anthropic, openai, vllm), unless --model names it."
)
@click.option(
    "--model", "-m", help="provider:model, or the model alone (default: the one each request names)."
)
@click.option(
    "--mark", "with_marks", is_flag=True, help="Place Quire's cache marks first (where there are none)."
)
@click.option("--chart/--no-chart", default=True, help="Draw the chart behind the table.")
@json_option
def simulate(
    file: str, provider: str | None, model: str | None, with_marks: bool, chart: bool, as_json: bool
) -> None:
    """Predict what each request of FILE reads from the cache, writes to it and costs.

    FILE holds one JSON request a line (- is standard input), bare or as {"at": ms, "request": {...}}.
    Requests without a time follow each other by a second.

    \b
    Examples:
      quire simulate requests.jsonl --model anthropic:claude-opus-5-5
      quire simulate requests.jsonl -p openai -m gpt-5.6 --mark --json
    """
    provider, model = provider_and_model(provider, model)
    requests = list(_requests(read_text(file), file, provider, model or None))
    if not requests:
        raise FormatError(f"{called(file)} holds no request", hint="Write one request a line.")
    predicted = _predict(requests, provider, with_marks)
    if as_json:
        print_json(_json(provider, requests, predicted))
        return
    _print(requests, predicted, chart)


def _predict(requests: list[Timed], provider: str, with_marks: bool) -> list[Predicted]:
    """Each model has a cache of its own; with marks, pauses decide about their lives."""
    from quire.providers.cache_marks import mark
    from quire.providers.models import model_info
    from quire.providers.simulate import Simulator
    from quire.providers.wires import wire_of

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


def _requests(text: str, file: str, provider: str, model: str | None) -> Iterator[Timed]:
    from quire.providers.rules import malformed
    from quire.providers.wires import wire_of

    at_ms = 0
    for line, value in _values(text, file):
        given = value if isinstance(value, dict) else {}
        body = next((given[name] for name in ("request", "body") if isinstance(given.get(name), dict)), given)
        if wrong := malformed(body, provider, model):
            wire = wire_of(provider, body).name
            raise FormatError(
                f"{called(file)} has no {wire} request here: {wrong[0].message}",
                line=line,
                column=1,
                hint=f"{wrong[0].fix} Or check --provider; quire lint says all that is wrong.",
            )
        at_ms = _time(given, file, line, at_ms + STEP_MS)
        yield Timed(line, at_ms, model or str(body.get("model") or given.get("model") or ""), body)


def _time(given: JsonObject, file: str, line: int, otherwise: int) -> int:
    """When a request was made, in ms; those that do not say follow each other by a second."""
    said = next((given[name] for name in ("at", "at_ms") if given.get(name) is not None), otherwise)
    if isinstance(said, bool) or not isinstance(said, int | float) or not math.isfinite(said):
        raise FormatError(
            f"{called(file)}: {said!r} is no time",
            line=line,
            column=1,
            hint='"at" is in milliseconds: {"at": 1000}.',
        )
    return int(said)


def _values(text: str, file: str) -> Iterator[tuple[int, Any]]:
    """The JSON values of the lines; an array in the file counts as one line each."""
    if text.lstrip().startswith("["):
        yield from enumerate(value_of(text, called(file)), start=1)
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, value_of(line, called(file), number, "Write one request a line.")


class Total(msgspec.Struct, frozen=True):
    """All requests together; usd is None when any price is not known."""

    requests: int
    read: int
    write_5m: int
    write_1h: int
    plain: int
    usd: float | None

    @property
    def tokens(self) -> int:
        return self.read + self.write_5m + self.write_1h + self.plain


def _total(predicted: list[Predicted]) -> Total:
    amounts = [each.money.amount_usd for each in predicted]
    known = [amount for amount in amounts if amount is not None]
    return Total(
        requests=len(predicted),
        read=sum(each.read for each in predicted),
        write_5m=sum(each.write_5m for each in predicted),
        write_1h=sum(each.write_1h for each in predicted),
        plain=sum(each.plain for each in predicted),
        usd=sum(known) if len(known) == len(amounts) else None,
    )


def _json(provider: str, requests: list[Timed], predicted: list[Predicted]) -> JsonObject:
    rows = [
        {
            "line": request.line,
            "at": request.at_ms,
            "model": request.model,
            "tokens": each.total,
            "read": each.read,
            "write_5m": each.write_5m,
            "write_1h": each.write_1h,
            "plain": each.plain,
            "usd": each.money.amount_usd,
            "exact": each.exact,
            "cause": each.cause,
            "note": each.note,
        }
        for request, each in zip(requests, predicted, strict=True)
    ]
    total = _total(predicted)
    return {
        "provider": provider,
        "requests": rows,
        "total": {"tokens": total.tokens, **msgspec.structs.asdict(total)},
    }


def _print(requests: list[Timed], predicted: list[Predicted], chart: bool) -> None:
    columns = ["#", "at s", "tokens", "read", "write", "long write", "plain", "USD", "lost by"]
    start = requests[0].at_ms if requests else 0
    rows = [
        [
            number,
            round((request.at_ms - start) / 1000, 1),
            each.total,
            each.read,
            each.write_5m,
            each.write_1h,
            each.plain,
            _usd(each.money.amount_usd),
            "" if each.cause == "first" else each.cause,
        ]
        for number, (request, each) in enumerate(zip(requests, predicted, strict=True), start=1)
    ]
    print_table(columns, rows)
    echo(_summary(_total(predicted), all(each.exact for each in predicted)))
    for line in _reasons(predicted):
        echo(line)
    if chart and predicted:
        echo()
        _draw(predicted)


def _summary(total: Total, exact: bool) -> str:
    share = total.read / total.tokens if total.tokens else 0.0
    guessed = "" if exact else "; tokens are estimates"
    requests = counted(total.requests, "request")
    return f"{requests}, {total.tokens:,} tokens, {share:.1%} read from the cache, {_usd(total.usd)}{guessed}"


def _reasons(predicted: list[Predicted]) -> Iterator[str]:
    """Why less was read than the request before had left, each cause once with its first instance."""
    first: dict[str, tuple[int, str]] = {}
    for number, each in enumerate(predicted, start=1):
        if each.cause not in ("", "first"):
            first.setdefault(each.cause, (number, each.note))
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
        out.print(_bar(_name(number, size, len(predicted)), group, longest))
    of_each = f", {size} requests a bar" if size > 1 else ""
    out.print(Text.assemble(("█ read  ", "green"), ("▓ written  ", "yellow"), ("░ plain", "red"), of_each))


def _name(number: int, size: int, count: int) -> str:
    first, last = number * size + 1, min((number + 1) * size, count)
    return f"{first}" if size == 1 else f"{first}–{last}"


def _bar(name: str, group: list[Predicted], longest: int) -> Text:
    read = sum(member.read for member in group)
    written = sum(member.write_5m + member.write_1h for member in group)
    total = sum(member.total for member in group)
    # Ends, not lengths, are rounded: the parts then always add up to the whole bar.
    ends = [round(tokens * _WIDTH / longest) for tokens in (read, read + written, total)]
    return Text.assemble(
        f"{name:>9} ",
        ("█" * ends[0], "green"),
        ("▓" * (ends[1] - ends[0]), "yellow"),
        ("░" * (ends[2] - ends[1]), "red"),
        f" {total:,}",
    )
