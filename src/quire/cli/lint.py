"""`quire lint`: anybody's request against its provider's rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from quire.cli.output import (
    called,
    echo,
    json_option,
    print_json,
    provider_and_model,
    read_text,
    value_or_lines,
)
from quire.errors import CallError, FormatError

if TYPE_CHECKING:
    from quire.providers.rules import Finding, Unchecked


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
@click.option(
    "--model", "-m", help="provider:model, or the model alone (default: the one the request names)."
)
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
    reports = list(_reports(_requests(read_text(file), file), provider, model))
    if as_json:
        print_json(msgspec.to_builtins(reports))
    else:
        _print(reports)
    if any(errors(report.findings) for report in reports):
        raise SystemExit(1)


def _requests(text: str, file: str) -> Iterator[tuple[int, Any]]:
    """One JSON value, or JSON lines; a JSON array of requests counts as many."""
    whole, lines = value_or_lines(text, called(file), "request")
    if lines is not None:
        yield from lines
    elif whole == []:
        raise FormatError(f"{called(file)} holds no request", hint="Give one request, or one a line.")
    elif isinstance(whole, list):
        yield from enumerate(whole, start=1)
    else:
        yield 0, whole


def _reports(
    requests: Iterator[tuple[int, Any]], provider: str | None, model: str | None
) -> Iterator[Report]:
    from quire.providers.rules import ServerMemory, detect, observe, unchecked, validate

    seen = ServerMemory(complete=False)
    for line, request in requests:
        body, headers = _unwrapped(request)
        name = provider or detect(body)
        if name is None:
            place = f"number {line} of the file" if line else "this"
            raise CallError(f"cannot tell whose request {place} is", hint="Say it with --provider.")
        findings = validate(body, name, model, seen=seen, headers=headers)
        notes = unchecked(body, name, model, seen=None, headers=headers)
        yield Report(line, name, model or _model(body), findings, notes)
        if isinstance(body, dict):
            observe(seen, body, name)


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


def _print(reports: list[Report]) -> None:
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
    found = [finding for report in reports for finding in report.findings]
    refused = len(errors(found))
    warned = len(found) - refused
    names = ", ".join(dict.fromkeys(f"{report.provider} {report.model}".strip() for report in reports))
    count = f"{len(reports)} request{'s' * (len(reports) != 1)}"
    also = f", {warned} warning{'s' * (warned != 1)}" * bool(warned)
    echo(f"{count} ({names}): {refused or 'no'} finding{'s' * (refused != 1)}{also}")
