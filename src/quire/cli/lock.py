"""`quire lock` and `quire check`: an application's prefixes as a committed file, held in CI.

The file holds hashes of what stands at the head of each request. When they move, every user's cache is cold once: the
file makes that a decision instead of an accident.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from quire.cli.output import FILE_PATH, counted, echo, in_line, json_option, print_json
from quire.entry import sha256_hex
from quire.errors import CallError, FormatError, NotFound

if TYPE_CHECKING:
    from quire.audit import SentCall
    from quire.providers.prefix import Unit

VERSION = 1


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
    version: int = VERSION

    def encode(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"


class MovedPrefix(msgspec.Struct, frozen=True):
    """Where a request is not what was locked: its number from 1, and the first unit that differs."""

    request: int
    path: str
    what: str


def locked(calls: Iterable[SentCall]) -> tuple[LockedRequest, ...]:
    """The requests that were sent, those without a body left out."""
    from quire.audit.first_difference import units_of
    from quire.providers.prefix import written

    def locked_unit(unit: Unit) -> LockedUnit:
        compared = b"\n".join(map(written, unit.compared))
        return LockedUnit(".".join(map(str, unit.path)) or "system", sha256_hex(compared))

    return tuple(
        LockedRequest(f"{call.provider}:{call.model}", tuple(map(locked_unit, units_of(call))))
        for call in calls
        if call.body
    )


def read_lock(data: bytes, name: str) -> PrefixLock:
    """A lock file; one of another shape is an error."""
    hint = "Write it again: quire lock FILE."
    try:
        lock_read = msgspec.json.decode(data, type=PrefixLock)
    except msgspec.DecodeError as error:
        raise FormatError(f"{name} is no lock of prefixes: {error}", hint=hint) from error
    if lock_read.version != VERSION:
        raise FormatError(f"{name} is of version {lock_read.version}, not {VERSION}", hint=hint)
    return lock_read


def moved(before: Sequence[LockedRequest], now: Sequence[LockedRequest]) -> list[MovedPrefix]:
    """What is not as it was locked; requests behind the last locked one are no move."""
    out = []
    for number, old in enumerate(before, 1):
        if number > len(now):
            out.append(MovedPrefix(number, "", "is not sent any more"))
        elif (difference := _first(old, now[number - 1])) is not None:
            out.append(MovedPrefix(number, *difference))
    return out


def _first(old: LockedRequest, now: LockedRequest) -> tuple[str, str] | None:
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


_file = click.argument("file", type=click.Path(path_type=Path))
_lock = click.option(
    "--lock",
    "lock_file",
    type=FILE_PATH,
    default=Path("quire.lock"),
    show_default=True,
    help="The file that holds the hashes.",
)


@click.command()
@_file
@_lock
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
        before = read_lock(lock_file.read_bytes(), lock_file.name)
        moves = moved(before.requests, now)
        if moves and not reason:
            _tell(moves)
            raise CallError(
                f"the prefixes of {counted(len(moves), 'request')} moved",
                hint="Say why with --reason, or mend what moved them.",
            )
        reasons = (*before.reasons, reason) if moves else before.reasons
    lock_file.write_text(PrefixLock(now, reasons).encode(), encoding="utf-8")
    echo(f"{lock_file}: the prefixes of {counted(len(now), 'request')}")


@click.command()
@_file
@_lock
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
    moves = moved(read_lock(lock_file.read_bytes(), lock_file.name).requests, _recorded(file))
    if as_json:
        print_json([msgspec.to_builtins(move) for move in moves])
    elif moves:
        _tell(moves)
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


def _tell(moves: list[MovedPrefix]) -> None:
    for move in moves[:10]:
        place = f", {move.path}," if move.path else ""
        echo(in_line(f"request {move.request}{place} {move.what}"), err=True)
    if len(moves) > 10:
        echo(f"and {len(moves) - 10} more", err=True)
