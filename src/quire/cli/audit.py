"""`quire audit`: what recorded requests lost of the provider's cache, why, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quire.cli.output import counted, echo, in_line, json_option, print_json, print_table
from quire.errors import CallError

if TYPE_CHECKING:
    from quire.audit import AuditReport, WatchedConversation

# Where agent clients keep their sessions, under the user's home.
STORES = {
    "Claude Code": ".claude/projects",
    "codex": ".codex/sessions",
    "codex, archived": ".codex/archived_sessions",
    "pi": ".pi/agent/sessions",
    "gemini-cli": ".gemini/tmp",
    "opencode": ".local/share/opencode/opencode.db",
}


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))
@click.option(
    "--top", type=click.IntRange(0), default=10, show_default=True, help="How many conversations to show."
)
@click.option(
    "--fail-under", type=click.FloatRange(0, 100), help="Exit with 1 where less of it was read, in percent."
)
@json_option
def audit(paths: tuple[Path, ...], top: int, fail_under: float | None, as_json: bool) -> None:
    """Tell what recorded requests could have read from the provider's cache and did not, why, and what to change.

    PATH is a file or a folder: requests as JSON (a line each, alone or with replies), HAR files, sessions of Claude
    Code, codex, pi, gemini-cli and opencode. Without one, the sessions found in your home are read.

    \b
    Examples:
      quire audit requests.jsonl
      quire audit ~/.claude/projects --top 3
      quire audit captured.har --json | jq .causes
      quire audit requests.jsonl --fail-under 90
    """
    from quire.audit import audit as audited
    from quire.audit import read_calls

    places = paths or _found_at_home()
    report = audited(call for place in places for call in read_calls(place))
    if not report.total.requests:
        raise CallError(
            "there is no request in what was given", hint="`quire audit --help` names what is read."
        )
    print_json(report.as_json()) if as_json else _show(report, top)
    if fail_under is not None and 100 * report.total.reuse < fail_under:
        raise click.exceptions.Exit(1)


def _found_at_home() -> tuple[Path, ...]:
    found = {name: Path.home() / place for name, place in STORES.items() if (Path.home() / place).exists()}
    if not found:
        raise CallError(
            "no sessions of agent clients are in your home", hint="Name a file or a folder: quire audit PATH."
        )
    for name, place in found.items():
        echo(f"reading {name}: {place}", err=True, dim=True)
    return tuple(found.values())


def _show(report: AuditReport, top: int) -> None:
    _show_total(report)
    if report.by_cause:
        _show_causes(report)
    worst = [each for each in report.conversations if each.spent.lost][:top]
    if worst:
        _show_worst(worst)
    if not all(each.bodies for each in report.conversations):
        echo()
        echo(
            "Where only usage was stored, times, models and sizes tell why; the moved byte needs the requests."
        )


def _show_total(report: AuditReport) -> None:
    total = report.total
    kinds = [conversation.kind for conversation in report.conversations]
    named = (("side", "side question"), ("agent", "helper"))
    beside = ", ".join(counted(kinds.count(kind), what) for kind, what in named if kind in kinds)
    where = f"{counted(len(kinds), 'conversation')}{f' ({beside})' if beside else ''}"
    echo(
        f"{counted(total.requests, 'request')} in {where}: {total.input:,} tokens in, "
        f"{total.read:,} read from the cache, {total.written:,} written"
    )
    echo(
        f"{total.lost:,} tokens could have been read and were not: ${total.lost_usd:,.2f} of ${total.usd:,.2f}; "
        f"{100 * total.reuse:.0f} % of what could be read was"
    )
    for number, what in (
        (total.untold, "said nothing of their usage"),
        (total.unpriced, "have no known price"),
    ):
        if number:
            echo(f"{counted(number, 'request')} {what}, and count for nothing above")


def _show_causes(report: AuditReport) -> None:
    from quire.audit.causes import CAUSES

    rows = [
        [cause, spent.requests, spent.lost, f"${spent.lost_usd:,.2f}"]
        for cause, spent in report.by_cause.items()
    ]
    print_table(["why", "times", "tokens", "money"], rows, title="\nWhat it was lost to")
    for cause in report.by_cause:
        what, fix = CAUSES[cause]
        echo()
        echo((f"{cause}: ", "yellow"), f"{what}. {fix}")
        echo(f"  first at {_first(report, cause)}", dim=True)


def _show_worst(worst: Sequence[WatchedConversation]) -> None:
    rows = [
        [
            in_line(each.name)[-60:],
            each.spent.requests,
            f"{100 * each.spent.reuse:.0f} %",
            each.spent.lost,
            f"${each.spent.lost_usd:,.2f}",
            ", ".join(dict.fromkeys(found.cause for found in each.verdicts)),
        ]
        for each in worst
    ]
    columns = ["conversation", "requests", "reuse", "lost", "money", "why"]
    print_table(columns, rows, title="\nWorst conversations")


def _first(report: AuditReport, cause: str) -> str:
    """Where a cause was seen first: the request, the place in it, and what became of what."""
    found = next(found for each in report.conversations for found in each.verdicts if found.cause == cause)
    place = f", {found.path}, {found.offset:,} characters in" if found.path else ""
    note = f": {found.note}" if found.note else ""
    sure = "" if found.confidence == "certain" else f" ({found.confidence})"
    return in_line(f"{Path(found.source).name}{place}{note}{sure}")[:200]
