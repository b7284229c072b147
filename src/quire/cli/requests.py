"""Anybody's requests: against their provider's rules (`quire lint`), and what its cache makes of them (`quire simulate`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

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
    styled,
    value_or_lines,
)
from quire.errors import CallError, FormatError
from quire.values import JsonObject

if TYPE_CHECKING:
    from rich.text import Text

    from quire.providers.rules import Finding, Unchecked
    from quire.providers.simulate import Predicted, Simulator


# `quire lint`: anybody's request against its provider's rules.


class Report(msgspec.Struct, frozen=True):
    """What was found in one request; `line` counts from 1 in a file of many, else it is 0."""

    line: int
    provider: str
    model: str
    findings: list[Finding]
    unchecked: list[Unchecked]


@click.command()
@click.argument("file")
@click.option("--provider", "-p", help="Provider or wire format (default: by the shape of the request).")
@click.option("--model", "-m", help="provider:model, or the model alone (default: the one the request names).")
@json_option
def lint(file: str, provider: str | None, model: str | None, as_json: bool) -> None:
    """Check requests against their provider's rules, without sending them.

    FILE holds one JSON request, or one a line (- is standard input). A line may also be
    {"body": {...}, "headers": {...}}: then beta headers are checked too; or {"request": {...}}, as
    quire simulate reads it. Requests of one file are taken as one conversation, so that changed
    thinking blocks are noticed.
    Exit code 1 when anything would be refused; warnings alone are advice.

    \b
    Examples:
      quire lint request.json
      quire lint requests.jsonl --model anthropic:claude-opus-5-5
      curl -s localhost/last | quire lint - --provider openai-chat --json
    """
    from quire.providers.rules import errors

    if provider is None and ":" in (model or ""):
        provider, model = provider_and_model(provider, model)
    reports = list(_reports(_numbered(file), provider, model))
    if as_json:
        print_json(msgspec.to_builtins(reports))
    else:
        _print_findings(reports)
    if any(errors(report.findings) for report in reports):
        raise SystemExit(1)


def _numbered(file: str) -> Iterator[tuple[int, Any]]:
    """One JSON value as number 0; or JSON lines, or a JSON array of requests, each with its number from 1."""
    text = read_text(file)
    whole, lines = value_or_lines(text, called(file), "request") if text.strip() else ([], None)
    if lines is not None:
        yield from lines
    elif whole == []:
        raise FormatError(f"{called(file)} holds no request", hint="Write one request a line.")
    elif isinstance(whole, list):
        yield from enumerate(whole, start=1)
    else:
        yield 0, whole


def _reports(requests: Iterator[tuple[int, Any]], provider: str | None, model: str | None) -> Iterator[Report]:
    from quire.providers.rules import ServerMemory, observe, unchecked, validate
    from quire.providers.wires import detect

    memory = ServerMemory(complete=False)
    for line, request in requests:
        body, headers = _unwrapped(request)
        name = provider or detect(body)
        if name is None:
            place = f"number {line} of the file" if line else "this"
            raise CallError(f"cannot tell whose request {place} is", hint="Say it with --provider.")
        findings = validate(body, name, model, seen=memory, headers=headers)
        notes = unchecked(body, name, model, seen=None, headers=headers)
        yield Report(line, name, model or _model(body), findings, notes)
        if isinstance(body, dict):
            observe(memory, body, name)


def _unwrapped(request: Any) -> tuple[Any, dict[str, str] | None]:
    """A recorded request is {"body", "headers"} or {"at", "request"}; anything else is the body itself."""
    if not isinstance(request, dict) or "messages" in request:
        return request, None
    body = next((request[name] for name in ("body", "request") if isinstance(request.get(name), dict)), None)
    headers = request.get("headers")
    return body or request, headers if body and isinstance(headers, dict) else None


def _model(body: Any) -> str:
    named = (body.get("model") or body.get("modelId")) if isinstance(body, dict) else None
    return named if isinstance(named, str) else ""


def _print_findings(reports: list[Report]) -> None:
    from quire.providers.rules import errors

    for report in reports:
        place = f"line {report.line}: " if report.line else ""
        for finding in report.findings:
            advised = finding.severity == "warning"
            colour = "yellow" if advised else "red"
            echo(place, (finding.row, colour), f" {finding.path}{' (warning)' * advised}")
            echo(f"  {finding.message}")
            echo("  ", ("fix:", "green"), f" {finding.fix}")
        for note in report.unchecked:
            echo(f"{place}not checked, {note.row}: {note.why}", err=True)
    findings = [finding for report in reports for finding in report.findings]
    refused = len(errors(findings))
    warned = len(findings) - refused
    names = ", ".join(dict.fromkeys(f"{report.provider} {report.model}".strip() for report in reports))
    also = f", {counted(warned, 'warning')}" * bool(warned)
    echo(f"{counted(len(reports), 'request')} ({names}): {refused or 'no'} finding{'s' * (refused != 1)}{also}")


# `quire simulate`: what a list of requests reads from a provider's cache, writes to it, and costs.

# Requests that say no time are taken to follow each other this closely.
STEP_MS = 1000
_BARS = 40
_WIDTH = 60


class TimedRequest(msgspec.Struct, frozen=True):
    """One line of the file: a request, when it was made, and which model it is for."""

    line: int
    at_ms: int
    model: str
    body: JsonObject


@click.command()
@click.argument("file")
@click.option("--provider", "-p", help="Provider or wire format (anthropic, openai, vllm), unless --model names it.")
@click.option("--model", "-m", help="provider:model, or the model alone (default: the one each request names).")
@click.option("--mark", "with_marks", is_flag=True, help="Place Quire's cache marks first (where there are none).")
@click.option("--chart/--no-chart", default=True, help="Draw the chart behind the table.")
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
    if as_json:
        print_json(_json(provider, requests, predicted))
        return
    _print_predictions(requests, predicted, chart)


def _predict(requests: list[TimedRequest], provider: str, with_marks: bool) -> list[Predicted]:
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


def _requests(file: str, provider: str, model: str | None) -> Iterator[TimedRequest]:
    from quire.providers.rules import malformed
    from quire.providers.wires import wire_of

    at_ms = 0
    for number, value in _numbered(file):
        line, fields = number or 1, value if isinstance(value, dict) else {}
        body = next((fields[name] for name in ("request", "body") if isinstance(fields.get(name), dict)), fields)
        if wrong := malformed(body, provider, model):
            wire = wire_of(provider, body).name
            raise FormatError(
                f"{called(file)} has no {wire} request here: {wrong[0].message}",
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
            f"{called(file)}: {at!r} is no time", line=line, column=1, hint='"at" is in milliseconds: {"at": 1000}.'
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
    echo(f"{counted(len(predicted), 'request')}, {tokens}, {_usd(total['usd'])}{guessed}")
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
    out.print(styled(("█ read  ", "green"), ("▓ written  ", "yellow"), ("░ plain", "red"), of_each))


def _bar(name: str, group: list[Predicted], longest: int) -> Text:
    read = sum(member.read for member in group)
    written = sum(member.write_5m + member.write_1h for member in group)
    total = sum(member.total for member in group)
    # Ends, not lengths, are rounded: the parts then always add up to the whole bar.
    ends = [round(tokens * _WIDTH / longest) for tokens in (read, read + written, total)]
    return styled(
        f"{name:>9} ",
        ("█" * ends[0], "green"),
        ("▓" * (ends[1] - ends[0]), "yellow"),
        ("░" * (ends[2] - ends[1]), "red"),
        f" {total:,}",
    )
