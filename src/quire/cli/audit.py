"""Recorded requests: what they lost of the provider's cache, why, and what it cost (`quire audit`); their prefixes as a committed
file that CI holds (`quire lock`, `quire check`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from quire.cli.output import (
    FILE_PATH,
    Place,
    bar,
    counted,
    db_json_options,
    echo,
    in_line,
    json_option,
    print_json,
    print_table,
    write_page,
)
from quire.entry import sha256_hex
from quire.errors import CallError, FormatError, NotFound, QuireError

if TYPE_CHECKING:
    from quire.archive.sessions import FilePart
    from quire.audit import AuditReport, PolicyOutcome, SentCall, Spent, WatchedConversation

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
@click.option("--top", type=click.IntRange(0), default=10, show_default=True, help="How many conversations to show.")
@click.option("--fail-under", type=click.FloatRange(0, 100), help="Exit with 1 where less of it was read, in percent.")
@click.option("--what-if", is_flag=True, help="Also: what other policies would have cost and kept (simulated).")
@click.option(
    "--budget", type=click.IntRange(1), help="--what-if: tokens a request may hold (default: the model's window)."
)
@click.option("--html", type=FILE_PATH, help="Write the report as a page that stands by itself.")
@click.option("--jobs", type=click.IntRange(1), help="How many processes read (default: all cores, where it is much).")
@click.option("--threads", is_flag=True, help="Read Quire's own threads; --db names their database.")
@click.option("--ray", metavar="ADDRESS", help="Read on a Ray cluster whose nodes see the same files.")
@click.option(
    "--apply",
    "step",
    flag_value="apply",
    help="Change the client's settings that answer a cause, after showing the difference.",
)
@click.option("--verify", "step", flag_value="verify", help="Compare what was lost before and since --apply.")
@click.option(
    "--revert", "step", flag_value="revert", help="Put settings back as they were before --apply, to the byte."
)
@db_json_options
def audit(
    paths: tuple[Path, ...],
    top: int,
    fail_under: float | None,
    what_if: bool,
    budget: int | None,
    html: Path | None,
    jobs: int | None,
    threads: bool,
    ray: str | None,
    step: str | None,
    as_json: bool,
    db: Place | None,
) -> None:
    """Tell what recorded requests could have read from the provider's cache and did not, why, and what to change.

    PATH is a file or a folder of whatever `quire import` reads: requests as JSON (a line each, alone or with replies),
    HAR files, sessions of Claude Code, codex, pi, gemini-cli, opencode and others. Without one, the sessions found in
    your home are read. --threads reads the threads of Quire's own database.

    \b
    Examples:
      quire audit requests.jsonl
      quire audit ~/.claude/projects --top 3 --what-if
      quire audit captured.har --json | jq .causes
      quire audit --threads
      quire audit requests.jsonl --html audit.html --fail-under 90
      quire audit --apply; …; quire audit --verify; quire audit --revert
    """
    from quire.audit import file_parts
    from quire.cli import clients

    if step == "revert":
        clients.revert()
        return
    own_threads = threads or db is not None
    if own_threads and (paths or step or what_if):
        raise CallError(
            "--threads and --db read Quire's own threads alone: no PATH, no settings of clients and no --what-if",
            hint="Leave those out; `quire plan THREAD` compares policies on a thread.",
        )
    places = () if own_threads else paths or _home_stores()
    if step == "verify":
        clients.verify(places)
        return
    parts = [part for place in places for part in file_parts(place)]
    run = _runner(parts, jobs, ray)
    report = _threads_report(db) if own_threads else _report(parts, run, {*paths})
    if not report.total.requests:
        raise _no_request(places)
    _tell(report, _simulated(parts, run, budget) if what_if else [], top, html, as_json)
    if step == "apply":
        clients.apply(report)
    if fail_under is not None and 100 * report.total.reuse < fail_under:
        raise click.exceptions.Exit(1)


def _no_request(places: Sequence[Path]) -> CallError:
    named = f"{', '.join(map(str, places[:3])) or 'the threads'}{' …' * (len(places) > 3)}"
    return CallError(
        f"there is no request in {named}, and no usage of one",
        hint="A session without usage cannot be audited; `quire audit --help` names what is read.",
    )


def _tell(report: AuditReport, outcomes: Sequence[PolicyOutcome], top: int, html: Path | None, as_json: bool) -> None:
    """The report on the screen, and as a page where one is wanted."""
    value = report.as_json()
    if outcomes:
        value["what_if"] = [{**msgspec.structs.asdict(outcome), "reuse": round(outcome.reuse, 4), "grounding": round(outcome.grounding, 4), "simulated": True} for outcome in outcomes]  # fmt: skip
    if html is not None:
        from quire.server.inspector import page

        write_page(html, page({"audit": value}, "Cache audit"))
        echo(f"wrote {html}", err=True)
    print_json(value) if as_json else _show(report, top, outcomes)


# Starting processes takes longer than reading less than this.
_MUCH = 48 * 1024 * 1024
Runner = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


def _runner(parts: Sequence[FilePart], jobs: int | None, ray: str | None) -> Runner:
    from quire.audit import on_cores, on_ray

    if ray is not None:
        return on_ray(ray)
    count = jobs or (os.cpu_count() or 1 if sum(part.size for part in parts) > _MUCH else 1)
    return on_cores(min(count, len(parts))) if min(count, len(parts)) > 1 else map


def _threads_report(db: Place | None) -> AuditReport:
    from quire.audit import audit
    from quire.cli.output import open_db
    from quire.server.inspector import sent_calls

    with open_db(db, create=False) as store:
        return audit(sent_calls(store))


def _report(parts: Sequence[FilePart], run: Runner, named: set[Path]) -> AuditReport:
    """Read everything; of a folder, what is no record of requests is left out and said."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from quire.audit import PartOfAudit, audit_files

    left_out: list[str] = []
    bar = Progress(TextColumn("reading"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())  # fmt: skip
    with bar:
        task = bar.add_task("reading", total=sum(part.size for part in parts))

        def on_part(read: PartOfAudit) -> None:
            bar.advance(task, read.part.size)
            if read.problem is not None:
                if read.part.path in named:
                    raise read.problem
                left_out.append(str(read.problem))

        report = audit_files(parts, run, on_part)
    for problem in left_out:
        echo(f"left out: {problem}", err=True, dim=True)
    return report


def _simulated(parts: Sequence[FilePart], run: Runner, budget: int | None) -> list[PolicyOutcome]:
    """What other policies would have cost; long logs are simulated part by part."""
    from quire.audit.what_if import together

    outcomes = run(partial(simulate_part, budget=budget), parts)
    return together(outcome for of_part in outcomes for outcome in of_part)


def simulate_part(part: FilePart, budget: int | None) -> list[PolicyOutcome]:
    """Every conversation of a file under every policy."""
    from quire import Policy
    from quire.archive.sessions import conversations, recognised
    from quire.audit.what_if import what_if
    from quire.thread_state import policy_for

    out: list[PolicyOutcome] = []
    try:
        file = part.open()
        stored = conversations(file, recognised(file))
    except QuireError:
        return []  # said where it was audited
    for conversation in stored:
        request = conversation.value if isinstance(conversation.value, dict) else {}
        target = f"{conversation.format}:{conversation.model or request.get('model') or ''}"
        policy = policy_for(target, Policy(budget=budget) if budget else None)
        outcomes = what_if(conversation.entries(), policy=policy)
        out += outcomes if outcomes[0].requests > 1 else []
    return out


def _home_stores() -> tuple[Path, ...]:
    places = {name: Path.home() / place for name, place in STORES.items() if (Path.home() / place).exists()}
    if not places:
        raise CallError(
            "no sessions of agent clients are in your home", hint="Name a file or a folder: quire audit PATH."
        )
    for name, place in places.items():
        echo(f"reading {name}: {place}", err=True, dim=True)
    return tuple(places.values())


def _show(report: AuditReport, top: int, outcomes: Sequence[PolicyOutcome]) -> None:
    _show_total(report)
    if report.by_cause:
        _show_causes(report)
    else:
        echo("Nothing to do: no request lost what it could have read.")
    worst = [conversation for conversation in report.conversations if conversation.spent.lost][:top]
    if worst:
        _show_worst(worst)
    if not all(conversation.bodies for conversation in report.conversations):
        echo()
        echo("Where only usage was stored, times, models and sizes tell why; the moved byte needs the requests.")
    if outcomes:
        _show_outcomes(outcomes)


def _show_outcomes(outcomes: Sequence[PolicyOutcome]) -> None:
    rows = [
        [
            outcome.policy,
            outcome.tokens,
            f"{outcome.reuse:.1%}",
            "not known" if outcome.usd is None else f"${outcome.usd:,.2f}",
            f"{outcome.kept:.0%}",
            f"{outcome.grounding:.1%}",
            outcome.over,
        ]
        for outcome in outcomes
    ]
    columns = ["policy", "tokens", "reuse", "input", "kept", "grounded", "over budget"]
    print_table(columns, rows, title="\nThe same conversations under other policies (simulated)")


def _show_total(report: AuditReport) -> None:
    total = report.total
    kinds = [conversation.kind for conversation in report.conversations]
    named = (("side", "side question"), ("agent", "helper"))
    beside = ", ".join(counted(kinds.count(kind), about) for kind, about in named if kind in kinds)
    where = f"{counted(len(kinds), 'conversation')}{f' ({beside})' if beside else ''}"
    echo(
        f"{counted(total.requests, 'request')} in {where}: {total.input:,} tokens in, "
        f"{total.read:,} read from the cache, {total.written:,} written"
    )
    echo(
        f"{total.lost:,} tokens could have been read and were not: ${total.lost_usd:,.2f} of ${total.usd:,.2f}; "
        f"{100 * total.reuse:.0f} % of what could be read was"
    )
    if total.input:
        _show_bar(total)
    for number, lack in ((total.untold, "without usage"), (total.unpriced, "without a known price")):
        if number:
            echo(f"not in these figures: {counted(number, 'request')} {lack}")
    if total.copies:
        echo(f"counted once: {counted(total.copies, 'reply', 'replies')} that stood in several files")


_WIDTH = 72


def _show_bar(total: Spent) -> None:
    """Of all that went in: read from the cache, lost, and new."""
    lost = min(total.lost, total.input - total.read)
    parts = (total.read, "█", "green"), (lost, "▓", "red"), (total.input - total.read - lost, "░", "white")
    echo(*bar(_WIDTH, total.input, parts))
    echo(("█ read  ", "green"), ("▓ could have been  ", "red"), "░ new")


def _show_causes(report: AuditReport) -> None:
    from quire.audit.causes import CAUSES

    rows = [[cause, spent.requests, spent.lost, f"${spent.lost_usd:,.2f}"] for cause, spent in report.by_cause.items()]
    print_table(["why", "times", "tokens", "money"], rows, title="\nWhat it was lost to")
    for cause in report.by_cause:
        about, fix = CAUSES[cause]
        echo()
        echo((f"{cause}: ", "yellow"), f"{about}. {fix}")
        echo(f"  first at {_first(report, cause)}", dim=True)


def _show_worst(worst: Sequence[WatchedConversation]) -> None:
    rows = [
        [
            in_line(conversation.name)[-60:],
            conversation.spent.requests,
            f"{100 * conversation.spent.reuse:.0f} %",
            conversation.spent.lost,
            f"${conversation.spent.lost_usd:,.2f}",
            ", ".join(dict.fromkeys(verdict.cause for verdict in conversation.verdicts)),
        ]
        for conversation in worst
    ]
    columns = ["conversation", "requests", "reuse", "lost", "money", "why"]
    print_table(columns, rows, title="\nWorst conversations")


def _first(report: AuditReport, cause: str) -> str:
    """Where a cause was seen first: the request, the place in it, and what became of what."""
    verdict = next(verdict for talk in report.conversations for verdict in talk.verdicts if verdict.cause == cause)
    place = f", {verdict.path}, {verdict.offset:,} characters in" if verdict.path else ""
    note = f": {verdict.note}" if verdict.note else ""
    sure = "" if verdict.confidence == "certain" else f" ({verdict.confidence})"
    return in_line(f"{Path(verdict.source).name}{place}{note}{sure}")[:200]


# `quire lock` and `quire check`: hashes of what stands at the head of each request. When they move, every user's cache is
# cold once: the file makes that a decision instead of an accident.

LOCK_VERSION = 1


class LockedUnit(msgspec.Struct, frozen=True):
    """A tool, the system prompt or a message: where it stands, and the hash of its bytes without cache marks."""

    path: str
    sha256: str


class LockedRequest(msgspec.Struct, frozen=True):
    """The units of one request, in the order a cache reads them."""

    target: str
    units: tuple[LockedUnit, ...]


class PrefixLock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is locked, and why it moved since it was locked first."""

    requests: tuple[LockedRequest, ...]
    reasons: tuple[str, ...] = ()
    version: int = LOCK_VERSION

    def encode(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"


class MovedPrefix(msgspec.Struct, frozen=True):
    """Where a request is not what was locked: its number from 1, and the first unit that differs."""

    request: int
    path: str
    what: str


def locked(calls: Iterable[SentCall]) -> tuple[LockedRequest, ...]:
    """The requests that were sent, those without a body left out."""
    from quire.audit.first_difference import bytes_of, units_of, where

    bodies = ((call.target, units_of(call)) for call in calls if call.body)
    return tuple(
        LockedRequest(target, tuple(LockedUnit(where(unit), sha256_hex(bytes_of(unit))) for unit in units))
        for target, units in bodies
    )


def read_lock(file: Path) -> PrefixLock:
    """A lock file; one of another shape is an error."""
    hint = "Write it again: quire lock FILE."
    try:
        lock_read = msgspec.json.decode(file.read_bytes(), type=PrefixLock)
    except msgspec.DecodeError as error:
        raise FormatError(f"{file.name} is no lock of prefixes: {error}", hint=hint) from error
    if lock_read.version != LOCK_VERSION:
        raise FormatError(f"{file.name} is of version {lock_read.version}, not {LOCK_VERSION}", hint=hint)
    return lock_read


def moved_prefixes(before: Sequence[LockedRequest], now: Sequence[LockedRequest]) -> list[MovedPrefix]:
    """What is not as it was locked; requests behind the last locked one are no move."""
    out = []
    for number, old in enumerate(before, 1):
        if number > len(now):
            out.append(MovedPrefix(number, "", "is not sent any more"))
        elif (difference := _first_move(old, now[number - 1])) is not None:
            out.append(MovedPrefix(number, *difference))
    return out


def _first_move(old: LockedRequest, now: LockedRequest) -> tuple[str, str] | None:
    if old.target != now.target:
        return "", f"goes to {now.target} instead of {old.target}"
    for was, unit in zip(old.units, now.units, strict=False):
        if was != unit:
            return was.path, "changed" if was.path == unit.path else f"became {unit.path}"
    if len(now.units) < len(old.units):
        return old.units[len(now.units)].path, "is gone"
    if len(now.units) > len(old.units):
        return now.units[len(old.units)].path, "is new"
    return None


_recording = click.argument("file", type=click.Path(path_type=Path))
_lock_option = click.option(
    "--lock",
    "lock_file",
    type=FILE_PATH,
    default=Path("quire.lock"),
    show_default=True,
    help="The file that holds the hashes.",
)


@click.command()
@_recording
@_lock_option
@click.option("--reason", default="", help="Why the prefixes moved; needed where they did.")
def lock(file: Path, lock_file: Path, reason: str) -> None:
    """Write down the prefix hashes of an application's requests, to be committed and held by `quire check`.

    FILE is a recording of the application: what `quire proxy --log` or the pytest fixture `quire_requests` wrote, or
    any log that `quire audit` reads. Cache marks are no part of the hashes.

    \b
    Examples:
      quire lock requests.jsonl
      quire lock requests.jsonl --reason "the search tool is new"
    """
    now, reasons = _recorded(file), tuple[str, ...]()
    if lock_file.exists():
        before = read_lock(lock_file)
        moves = moved_prefixes(before.requests, now)
        if moves and not reason:
            _tell_moves(moves)
            raise CallError(
                f"the prefixes of {counted(len(moves), 'request')} moved",
                hint="Say why with --reason, or mend what moved them.",
            )
        reasons = (*before.reasons, reason) if moves else before.reasons
    lock_file.write_text(PrefixLock(now, reasons).encode(), encoding="utf-8")
    echo(f"{lock_file}: the prefixes of {counted(len(now), 'request')}")


@click.command()
@_recording
@_lock_option
@json_option
def check(file: Path, lock_file: Path, as_json: bool) -> None:
    """Fail where an application's requests are not what `quire lock` wrote down; for CI.

    Requests behind the last locked one may come; those that are locked must be the same, from tools to messages.

    \b
    Examples:
      quire check requests.jsonl
      quire check requests.jsonl --lock prefixes.lock --json
    """
    if not lock_file.exists():
        raise NotFound(f"there is no {str(lock_file)!r}", hint=f"Write it first: quire lock {file}")
    moves = moved_prefixes(read_lock(lock_file).requests, _recorded(file))
    if as_json:
        print_json([msgspec.to_builtins(move) for move in moves])
    elif moves:
        _tell_moves(moves)
        echo(f"If it is meant: quire lock {file} --reason '…', and commit {lock_file.name}.", err=True)
    else:
        echo("the prefixes are as they were locked")
    if moves:
        raise click.exceptions.Exit(1)


def _recorded(file: Path) -> tuple[LockedRequest, ...]:
    from quire.audit import read_calls

    requests = locked(read_calls(file))
    if not requests:
        raise CallError(f"{file} holds no request with its body", hint="Record requests: quire proxy --log FILE.")
    return requests


def _tell_moves(moves: list[MovedPrefix]) -> None:
    for move in moves[:10]:
        place = f", {move.path}," if move.path else ""
        echo(in_line(f"request {move.request}{place} {move.what}"), err=True)
    if len(moves) > 10:
        echo(f"and {len(moves) - 10} more", err=True)
