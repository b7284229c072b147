"""Requests as providers take them: a thread's (`quire render`), anybody's against the rules (`quire lint`), and an
application's prefixes as a committed file that CI holds (`quire lock`, `quire check`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
import msgspec

from quire import assemble, providers
from quire.cli.output import (
    FILE_PATH,
    FileName,
    Place,
    answer,
    console,
    count_of,
    db_json_options,
    echo,
    file_label,
    in_line,
    is_file,
    json_option,
    load_usable,
    option,
    print_bytes,
    print_json,
    print_table,
    progress,
    provider_and_model,
    read_text,
    shorten,
    value_or_lines,
)
from quire.errors import BudgetError, CallError, FormatError, NotFound
from quire.providers.models import resolve
from quire.providers.rules import Finding, ServerMemory, Unchecked, errors, observe, unchecked, validate
from quire.providers.wires import detect
from quire.tokens import counter
from quire.values import BOOKKEEPING, SPOKEN, Entry, Json, JsonObject, Request, sha256_hex

if TYPE_CHECKING:
    from quire.assemble import Built, Policy, Refused
    from quire.audit import SentCall

    # A request of the thread, and when it was or would be made.
    RequestAt: TypeAlias = tuple[int | None, Built | Refused]


# `quire render`: a thread's request as a provider takes it.


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@option("--model -m", "provider:model; the provider may be a wire format.", required=True)
@option("--provider -p", "The provider, where --model names the model alone.")
@option("--turn", "The last request of this turn (default: of the thread).", click.IntRange(1))
@option("--step", "This request of the turn.", click.IntRange(1))
@option("--all every", "Every request, one JSON object a line.", bool)
@option("--budget", "Tokens one request may hold (default: the model's window).", click.IntRange(1))
@option("--marks/--no-marks", "Set cache marks.", default=True)
@option("--bytes as_bytes", "Print the prefix bytes that a cache compares.", bool)
@db_json_options
def render(
    source: str,
    provider: str | None,
    model: str,
    turn: int | None,
    step: int | None,
    every: bool,
    budget: int | None,
    marks: bool,
    as_bytes: bool,
    as_json: bool,
    db: Place | None,
) -> None:
    """Render a thread as a provider's request.

    It is the next request if the model has yet to answer, else the last one. --json prints the body
    for the official SDK's call, --bytes the prefix bytes.

    \b
    Examples:
      quire render demo --model anthropic:claude-opus-5-5
      quire render demo -m openai:gpt-6-sol --json
      quire render entries.jsonl -m vllm:qwen --all > requests.jsonl
    """
    if as_bytes and (every or as_json):
        raise CallError("--bytes prints the prefix of one request", hint="Leave --all and --json out.")
    provider, model = provider_and_model(provider, model)
    target = f"{provider}:{model}"
    entries = load_usable(source, db)
    requests = _requests(entries, provider, model, budget)
    # A thread's name routes its requests to one cache; a file has none.
    draw = providers.rendering(target, providers.Options(key="" if is_file(source) else source))
    if every:
        for at, built in requests:
            if turn in (None, built.turn) and step in (None, built.step):
                print_json(_line(at, built, _render(built, draw, marks)), None)
        return
    last, turns = None, sum(entry.kind == "user" for entry in entries)
    with progress() as tell:
        for _, built in requests:
            tell("turns", built.turn, turns)
            if turn in (None, built.turn) and step in (None, built.step):
                last = built
    if last is None:
        raise NotFound(_nothing(turn, step), hint="quire assemble shows the requests of a thread.")
    rendered = _render(last, draw, marks)
    if as_bytes:
        print_bytes(rendered.prefix)
    elif as_json:
        print_json(rendered.body)
    else:
        _show(rendered, last)


def _requests(entries: list[Entry], provider: str, model: str, budget: int | None) -> Iterator[RequestAt]:
    """The thread's requests as they were sent; with a budget of the caller's, as they would have been."""
    from quire.thread_state import policies, policy_for, policy_of

    target = f"{provider}:{model}"
    log = assemble.unsent(entries) if budget else entries
    usual = policy_for(target, budget=budget, reply=0) if budget else policy_for(target)
    under = policies(log, usual, lambda sent: policy_of({**sent, "provider": provider, "model": model}))
    return _all_requests(log, under)


def _all_requests(entries: list[Entry], under: list[Policy]) -> Iterator[RequestAt]:
    """Every request the thread made, and the one that it would make now."""
    from quire.thread_state import AssemblyPerPolicy

    folds = AssemblyPerPolicy(under)
    for entry, policy in zip(entries, under, strict=True):
        if folds.under(policy).asks(entry):
            yield entry.at, assemble.ask(folds.under(policy), entry)
        folds.feed(entry)
    conversation = [entry for entry in entries if entry.kind not in BOOKKEEPING]
    if conversation and conversation[-1].kind not in SPOKEN and (assembly := folds.under(under[-1])).turn:
        yield conversation[-1].at, assemble.ask(assembly, conversation[-1])


def _nothing(turn: int | None, step: int | None) -> str:
    if turn is None and step is None:
        return "nobody has asked the model anything yet"
    where = " ".join(f"{name} {number}" for name, number in (("turn", turn), ("step", step)) if number)
    return f"there is no request in {where}"


def _render(built: Built | Refused, draw: providers.Rendering, marks: bool) -> Request:
    if isinstance(built, assemble.Refused):
        raise BudgetError(built.error, hint=built.hint)
    request = draw.request(built.prompt)
    return providers.marked(request, built.prompt) if marks else request


def _line(at: int | None, built: Built | Refused, request: Request) -> JsonObject:
    """One request as `quire lint` and `quire simulate` read it."""
    return {
        **({} if at is None else {"at": at}),
        "turn": built.turn,
        "step": built.step,
        "provider": request.provider,
        "model": request.model,
        "headers": request.headers,
        "body": request.body,
        "left_out": list(request.left_out),
    }


def _show(request: Request, built: Built | Refused) -> None:
    """The parts that a cache compares, each with its size, and what could not go along."""
    count = counter(f"{request.provider}:{request.model}").count
    lines = [part.decode() for part in providers.prefix_parts(request.body, request.provider)]
    rows = [(*_part_label(json.loads(line)), count(line)) for line in lines]
    title = f"{request.provider}:{request.model}, turn {built.turn}, step {built.step}"
    print_table(("part", "says", "tokens"), rows, title=title)
    for name, value in request.headers.items():
        console().print(in_line(f"header {name}: {value}"))
    for omission in request.left_out:
        source = f"tool {omission['tool']}" if "tool" in omission else f"entry {omission['entry']}"
        console().print(in_line(f"left out: {source}: {omission['reason']}"))


def _part_label(piece: JsonObject, width: int = 64) -> tuple[str, str]:
    """What a part is, and how it begins: ("user", "Hello")."""
    # A tool of the provider's own is called by its type, or by its only field.
    kind = piece.get("role") or piece.get("type") or next(iter(piece), "part")
    if piece.keys() & {"input_schema", "parameters", "parametersJsonSchema", "function", "toolSpec"}:
        kind = "tool"
    elif piece.keys() & {"text", "instructions"} and piece.keys() <= {"type", "text", "instructions"}:
        kind = "system"
    return str(kind), shorten(" ".join(_texts(piece)), width)


def _texts(value: Json) -> Iterator[str]:
    """The texts in a part, in the order given; its own field names and ids left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for member in value:
            yield from _texts(member)
    elif isinstance(value, dict):
        # A call reads as its name, then its arguments.
        for key, member in sorted(value.items(), key=lambda field: field[0] != "name"):
            if key not in ("type", "role", "id", "call_id", "tool_use_id", "tool_call_id", "toolUseId"):
                yield from _texts(member)


# `quire lint`: anybody's request against its provider's rules.


class LintReport(msgspec.Struct, frozen=True):
    """What was found in one request; `line` counts from 1 in a file of many, else it is 0."""

    line: int
    provider: str
    model: str
    findings: list[Finding]
    unchecked: list[Unchecked]


@click.command()
@click.argument("file", type=FileName())
@option("--provider -p", "Provider or wire format (default: the line's own, else by the shape of the request).")
@option("--model -m", "provider:model, or the model alone (default: the one the request names).")
@json_option
def lint(file: str, provider: str | None, model: str | None, as_json: bool) -> None:
    """Check requests against their provider's rules, without sending them.

    FILE holds one JSON request, or one a line (- is standard input). A line may also be
    {"body": {...}, "headers": {...}}, so that beta headers are checked too, or {"request": {...}}, as
    quire simulate reads it. The requests of one file count as one conversation, so that changed
    thinking blocks are noticed.
    The exit code is 1 if the provider would refuse a request; warnings alone are advice.

    \b
    Examples:
      quire lint request.json
      quire lint requests.jsonl --model anthropic:claude-opus-5-5
      curl -s localhost/last | quire lint - --provider openai-chat --json
    """
    if provider is None and ":" in (model or ""):
        provider, model = provider_and_model(provider, model)
    reports = list(_reports(numbered_values(file), provider, model))
    answer(as_json, msgspec.to_builtins(reports), partial(_print_findings, reports))
    if any(errors(report.findings) for report in reports):
        raise SystemExit(1)


def numbered_values(file: str) -> Iterator[tuple[int, Any]]:
    """One JSON value as number 0; or JSON lines, or a JSON array of requests, each with its number from 1."""
    text = read_text(file)
    whole, lines = value_or_lines(text, file_label(file), "request") if text.strip() else ([], None)
    numbered = lines or (enumerate(whole, start=1) if isinstance(whole, list) else [(0, whole)])
    if whole == []:
        raise FormatError(f"{file_label(file)} holds no request", hint="Write one request a line.")
    for number, value in numbered:
        if isinstance(value, dict) and "role" in value and not value.keys() & {"messages", "input", "contents"}:
            hint = 'Give the whole request: {"model": "…", "messages": […]}.'
            raise FormatError(f"{file_label(file)} holds a message where a request belongs", hint=hint)
        yield number, value


def _reports(requests: Iterator[tuple[int, Any]], provider: str | None, model: str | None) -> Iterator[LintReport]:
    memory = ServerMemory(complete=False)
    for line, request in requests:
        body, headers = unwrap_request(request)
        about = request if body is not request else {}
        name = provider or _known_provider(about) or detect(body)
        if name is None:
            place = f"number {line} of the file" if line else "this"
            raise CallError(f"cannot tell whose request {place} is", hint="Say it with --provider.")
        about_model = about.get("model")
        asked = model or (about_model if isinstance(about_model, str) and about_model else None)
        findings = validate(body, name, asked, seen=memory, headers=headers)
        notes = unchecked(body, name, asked, seen=None, headers=headers)
        fields = body if isinstance(body, dict) else {}
        named = asked or fields.get("model") or fields.get("modelId")
        yield LintReport(line, name, named if isinstance(named, str) else "", findings, notes)
        if fields:
            observe(memory, fields, name)


def _known_provider(about: JsonObject) -> str | None:
    """The provider that a line names beside its request, as `quire render --all` does."""
    name = about.get("provider")
    with contextlib.suppress(CallError):
        if isinstance(name, str):
            resolve(name)
            return name
    return None


def unwrap_request(request: Any) -> tuple[Any, dict[str, str] | None]:
    """A recorded request is {"body", "headers"} or {"at", "request"}; anything else is the body itself."""
    if not isinstance(request, dict) or "messages" in request:
        return request, None
    body = next((request[name] for name in ("body", "request") if isinstance(request.get(name), dict)), None)
    headers = request.get("headers")
    return body or request, headers if body and isinstance(headers, dict) else None


def _print_findings(reports: list[LintReport]) -> None:
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
    also = f", {count_of(warned, 'warning')}" * bool(warned)
    echo(f"{count_of(len(reports), 'request')} ({names}): {refused or 'no'} finding{'s' * (refused != 1)}{also}")


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


def lock_requests(calls: Iterable[SentCall]) -> tuple[LockedRequest, ...]:
    """The requests that were sent as a lock holds them, those without a body left out."""
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
    for was, unit in zip_longest(old.units, now.units):
        if was is None or unit is None:
            return (unit.path, "is new") if was is None else (was.path, "is gone")
        if was != unit:
            return was.path, "changed" if was.path == unit.path else f"became {unit.path}"
    return None


_recording = click.argument("file", type=FileName(path_type=Path))
_lock_option = option("--lock lock_file", "The file that holds the hashes.", FILE_PATH, Path("quire.lock"))


@click.command()
@_recording
@_lock_option
@option("--reason", "Why the prefixes moved; required if they did.", default="")
def lock(file: Path, lock_file: Path, reason: str) -> None:
    """Write the prefix hashes of an application's requests to a file to commit; `quire check` compares with it.

    FILE is a recording of the application: what `quire proxy --log` or the pytest fixture `quire_requests` wrote, or
    any log that `quire audit` reads. Cache marks are no part of the hashes.

    \b
    Examples:
      quire lock requests.jsonl
      quire lock requests.jsonl --reason "the search tool is new"
    """
    now, reasons = _read_requests(file), tuple[str, ...]()
    if lock_file.exists():
        before = read_lock(lock_file)
        moves = moved_prefixes(before.requests, now)
        if moves and not reason:
            _tell_moves(moves)
            raise CallError(
                f"the prefixes of {count_of(len(moves), 'request')} moved",
                hint="Say why with --reason, or mend what moved them.",
            )
        reasons = (*before.reasons, reason) if moves else before.reasons
    lock_file.write_text(PrefixLock(now, reasons).encode(), encoding="utf-8")
    echo(f"{lock_file}: the prefixes of {count_of(len(now), 'request')}")


@click.command()
@_recording
@_lock_option
@json_option
def check(file: Path, lock_file: Path, as_json: bool) -> None:
    """Fail if an application's requests differ from what `quire lock` wrote; for CI.

    New requests may follow the last locked one; locked requests must be the same, from tools to messages.

    \b
    Examples:
      quire check requests.jsonl
      quire check requests.jsonl --lock prefixes.lock --json
    """
    if not lock_file.exists():
        raise NotFound(f"there is no {str(lock_file)!r}", hint=f"Write it first: quire lock {file}")
    moves = moved_prefixes(read_lock(lock_file).requests, _read_requests(file))
    if as_json:
        print_json([msgspec.to_builtins(move) for move in moves])
    elif moves:
        _tell_moves(moves)
        echo(f"If it is meant: quire lock {file} --reason '…', and commit {lock_file.name}.", err=True)
    else:
        echo("the prefixes are as they were locked")
    if moves:
        raise click.exceptions.Exit(1)


def _read_requests(file: Path) -> tuple[LockedRequest, ...]:
    from quire.audit import read_calls

    requests = lock_requests(read_calls(file))
    if not requests:
        raise CallError(f"{file} holds no request with its body", hint="Record requests: quire proxy --log FILE.")
    return requests


def _tell_moves(moves: list[MovedPrefix]) -> None:
    for move in moves[:10]:
        place = f", {move.path}," if move.path else ""
        echo(in_line(f"request {move.request}{place} {move.what}"), err=True)
    if len(moves) > 10:
        echo(f"and {len(moves) - 10} more", err=True)
