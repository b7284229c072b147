"""`quire audit`: what recorded requests lost of the provider's cache, why, and what it cost; settings of clients that
answer a cause (`--apply`), compared (`--verify`) and put back to the byte (`--revert`).
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from quire.cli.output import (
    FILE_PATH,
    FileName,
    NumberRange,
    Place,
    answer,
    bar,
    count_of,
    db_json_options,
    echo,
    in_line,
    open_db,
    option,
    print_table,
    progress,
    write_page,
)
from quire.cli.proxy import copy_beside, keep, kept_value, put_back, text_of, write_own
from quire.errors import CallError, ConflictError, FormatError, QuireError
from quire.log import now_ms
from quire.values import JsonObject

if TYPE_CHECKING:
    from quire.archive.sessions import FilePart
    from quire.audit import AuditReport, AuditTotals, PolicyOutcome, WatchedConversation


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=FileName(path_type=Path))
@option("--top", "How many conversations to show.", click.IntRange(0), 10)
@option("--fail-under", "Exit with 1 if a smaller share was read, in percent.", NumberRange(0, 100))
@option("--what-if", "Also: what other policies would have cost and kept (simulated).", bool)
@option("--budget", "--what-if: tokens a request may hold (default: the model's window).", click.IntRange(1))
@option("--html", "Write the report as one self-contained page.", FILE_PATH)
@option("--jobs", "How many processes read (default: all cores for large logs).", click.IntRange(1))
@option("--threads", "Read Quire's own threads; --db names their database.", bool)
@option("--ray", "Read on a Ray cluster whose nodes see the same files.", metavar="ADDRESS")
@option(
    "--apply step",
    "Change the client's settings that answer a cause, after showing the difference.",
    flag_value="apply",
)
@option("--verify step", "Compare what was lost before and since --apply.", flag_value="verify")
@option("--revert step", "Put settings back as they were before --apply, to the byte.", flag_value="revert")
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
    """Find what recorded requests could have read from the provider's cache and did not, why, and what to change.

    PATH is a file or folder that `quire import` can read: requests as JSON (a line each, alone or with replies), HAR
    files, sessions of Claude Code, codex, pi, gemini-cli, opencode and others. Without PATH it reads the sessions
    in your home. --threads reads the threads of Quire's own database.

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

    if step and as_json:
        raise CallError(f"--{step} tells what it does to people alone", hint="Leave --json out.")
    if budget and not what_if:
        raise CallError("--budget is for the simulation", hint="Add --what-if.")
    if step == "revert":
        revert()
        return
    own_threads = threads or db is not None
    if own_threads and (paths or step or what_if):
        raise CallError(
            "--threads and --db read Quire's own threads alone: no PATH, no settings of clients and no --what-if",
            hint="Leave those out; `quire plan THREAD` compares policies on a thread.",
        )
    places = () if own_threads else paths or _home_stores()
    if step == "verify":
        verify(places)
        return
    parts = [part for place in places for part in file_parts(place)]
    run = _runner(parts, jobs, ray)
    report = _threads_report(db) if own_threads else _report(parts, run, {*paths})
    if not report.total.requests:
        named = f"{', '.join(map(str, places[:3])) or 'the threads'}{' …' * (len(places) > 3)}"
        hint = "A session without usage cannot be audited; `quire audit --help` names what is read."
        raise CallError(f"there is no request in {named}, and no usage of one", hint=hint)
    _tell(report, _simulate(parts, run, budget) if what_if else [], top, html, as_json)
    if step == "apply":
        apply(report)
    if fail_under is not None and 100 * report.total.reuse < fail_under:
        raise click.exceptions.Exit(1)


def _tell(report: AuditReport, outcomes: Sequence[PolicyOutcome], top: int, html: Path | None, as_json: bool) -> None:
    """The report on the screen, and as a page where one is wanted."""
    value = report.as_json()
    if outcomes:
        value["what_if"] = [{**msgspec.structs.asdict(outcome), "reuse": round(outcome.reuse, 4), "grounding": round(outcome.grounding, 4), "simulated": True} for outcome in outcomes]  # fmt: skip
    if html is not None:
        from quire.server.inspector import page

        write_page(html, page({"audit": value}, "Cache audit"))
        echo(f"wrote {html}", err=True)
    answer(as_json, value, partial(_show, report, top, outcomes))


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
    from quire.server.inspector import sent_calls

    with open_db(db, create=False) as store:
        return audit(sent_calls(store))


def _report(parts: Sequence[FilePart], run: Runner, named: set[Path]) -> AuditReport:
    """Read everything; of a folder, what is no record of requests is left out and said."""
    from quire.audit import PartOfAudit, audit_files

    left_out: list[str] = []
    size, total = 0, sum(part.size for part in parts)
    with progress(in_bytes=True) as tell:
        tell("reading", size, total)

        def on_part(read: PartOfAudit) -> None:
            nonlocal size
            size += read.part.size
            tell("reading", size, total)
            if read.problem is not None:
                if read.part.path in named:
                    raise read.problem
                left_out.append(str(read.problem))

        report = audit_files(parts, run, on_part)
    for problem in left_out:
        echo(f"left out: {problem}", err=True, dim=True)
    return report


def _simulate(parts: Sequence[FilePart], run: Runner, budget: int | None) -> list[PolicyOutcome]:
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
    from quire.archive.stored_turns import clients

    homes = {name: Path.home() / place for row in clients().values() for name, place in row["homes"].items()}
    places = {name: place for name, place in homes.items() if place.exists()}
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
    beside = ", ".join(count_of(kinds.count(kind), about) for kind, about in named if kind in kinds)
    where = f"{count_of(len(kinds), 'conversation')}{f' ({beside})' if beside else ''}"
    echo(
        f"{count_of(total.requests, 'request')} in {where}: {total.input:,} tokens in, "
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
            echo(f"not in these figures: {count_of(number, 'request')} {lack}")
    if total.copies:
        echo(f"counted once: {count_of(total.copies, 'reply', 'replies')} that stood in several files")


_WIDTH = 72


def _show_bar(total: AuditTotals) -> None:
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


# What answers a cause, as its client documents it.


class ClientSetting(msgspec.Struct, frozen=True):
    """What to set for a cause: a key in a file under the user's home."""

    client: str
    cause: str
    file: str
    key: tuple[str, ...]
    value: str | int | float | bool
    # What it does, and where its client says so.
    does: str
    documented: str


def _in_json(text: str, setting: ClientSetting) -> str:
    """A configuration file with the setting in it; the same text where it has it already."""
    try:
        settings = json.loads(text) if text.strip() else {}
        if not isinstance(settings, dict):
            raise ValueError("no object")
    except ValueError as error:
        hint = f"Set {'.'.join(setting.key)} to {json.dumps(setting.value)} there yourself."
        raise FormatError(f"~/{setting.file} is not plain JSON: {error}", hint=hint) from error
    inner: JsonObject = settings
    for name in setting.key[:-1]:
        value = inner.setdefault(name, {})
        if not isinstance(value, dict):
            raise FormatError(f"{name} of ~/{setting.file} is no object", hint="Mend the file first.")
        inner = value
    if inner.get(setting.key[-1]) == setting.value:
        return text
    inner[setting.key[-1]] = setting.value
    return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"


def _in_toml(text: str, setting: ClientSetting) -> str:
    """The same for TOML: keys of the root stand in front of the first table."""
    line = f"{setting.key[0]} = {json.dumps(setting.value)}"
    table = re.search(r"^\s*\[", text, re.M)
    root, rest = (text[: table.start()], text[table.start() :]) if table else (text, "")
    pattern = re.compile(rf"^{re.escape(setting.key[0])}\s*=.*$", re.M)
    if pattern.search(root):
        return pattern.sub(line, root, count=1) + rest
    return f"{line}\n{root}{rest}"


# What was changed, and how it is put back.


class AppliedSetting(msgspec.Struct, frozen=True):
    """A file that was changed: as it was (None: it was not there), as it was left, and when."""

    client: str
    cause: str
    path: str
    before: str | None
    after: str
    at_ms: int


def _applied_settings() -> list[AppliedSetting]:
    return kept_value("applied_settings.json", list[AppliedSetting]) or []


def apply(report: AuditReport) -> None:
    """Set what answers the causes that were found; each difference is shown."""
    from quire.archive.stored_turns import clients

    causes = {(verdict.store, verdict.cause) for talk in report.conversations for verdict in talk.verdicts}
    known = [{"client": client, **row} for client, facts in clients().items() for row in facts.get("settings", ())]
    settings = [row for row in msgspec.convert(known, list[ClientSetting]) if (row.client, row.cause) in causes]
    if not settings:
        echo("No setting of a client answers what was found; the fixes above are changes of requests.")
    for setting in settings:
        path = Path.home() / setting.file
        before = text_of(path)
        after = (_in_toml if setting.file.endswith(".toml") else _in_json)(before or "", setting)
        if after == before:
            echo(f"~/{setting.file} has {'.'.join(setting.key)} already")
            continue
        echo(f"{setting.client}, for {setting.cause}: {setting.does} ({setting.documented})")
        old, new = (text.splitlines(keepends=True) for text in (before or "", after))
        name = f"~/{setting.file}"
        echo("".join(difflib.unified_diff(old, new, fromfile=name, tofile=name)), nl=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        if before is not None:
            write_own(copy_beside(path), before.encode())
        change = AppliedSetting(setting.client, setting.cause, str(path), before, after, now_ms())
        # Stored before the file is written, so that the change can always be undone.
        keep("applied_settings.json", [*_applied_settings(), change])
        path.write_text(after, "utf-8")
    if settings:
        echo("`quire audit --verify` compares what is lost from now on; `quire audit --revert` puts it back.")


def _applied_before() -> list[AppliedSetting]:
    if not (applied := _applied_settings()):
        raise CallError("no setting was applied", hint="`quire audit --apply` changes settings.")
    return applied


def revert() -> None:
    """Put every changed file back, the newest change first; one that was changed since is left alone."""
    applied = _applied_before()
    while applied:
        change = applied[-1]
        path = Path(change.path)
        if text_of(path) not in (change.after, change.before):
            raise ConflictError(
                f"{path} was changed since", hint=f"Its text before --apply is in {path.name}.before-quire."
            )
        put_back(path, change.before)
        copy_beside(path).unlink(missing_ok=True)
        applied.pop()
        keep("applied_settings.json", applied)
        echo(f"put back: {path}")


def verify(places: Sequence[Path]) -> None:
    """What each cause lost before its setting was applied, and since."""
    from quire.audit import audit, read_calls

    applied = _applied_before()
    calls = [call for place in places for call in read_calls(place) if call.at_ms is not None]
    for change in applied:
        of_client = [call for call in calls if call.store == change.client]
        before = audit(call for call in of_client if (call.at_ms or 0) < change.at_ms)
        since = audit(call for call in of_client if (call.at_ms or 0) >= change.at_ms)
        name = f"{change.client}, {change.cause}"
        if not since.total.requests:
            echo(f"{name}: no request since; use the client, then ask again")
            continue
        was, now = (_share(report, change.cause) for report in (before, since))
        verdict = "it helps" if now < was else "it does not help" if now else "nothing was lost before either"
        echo(
            f"{name}: {was:.2%} of the tokens lost in {count_of(before.total.requests, 'request')} before, "
            f"{now:.2%} in {count_of(since.total.requests, 'request')} since: {verdict}"
        )


def _share(report: AuditReport, cause: str) -> float:
    """What a cause lost, of all that went in."""
    lost = report.by_cause.get(cause)
    return lost.lost / max(1, report.total.input) if lost is not None else 0.0
