"""`quire diff`: where two turns' requests part, down to the byte, and which entry caused it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quire.cli.assemble import policy_from, policy_options, seen
from quire.cli.output import Place, db_option, echo, in_line, json_option, print_json
from quire.cli.store import load_usable
from quire.errors import NotFound
from quire.values import JsonObject

if TYPE_CHECKING:
    from quire.assemble import Built


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@click.argument("first", type=click.IntRange(1), metavar="N")
@click.argument("second", type=click.IntRange(1), metavar="M")
@policy_options
@json_option
@db_option
def diff(source: str, first: int, second: int, as_json: bool, db: Place | None, **fields: object) -> None:
    """Find the first byte that differs between the requests of turns N and M.

    Each turn is represented by its first request; the earlier one is always compared with the later.

    \b
    Examples:
      quire diff demo 1 2
      quire diff entries.jsonl 3 9 --promote each-turn
    """
    from quire.assemble import Built
    from quire.server.compare import moved
    from quire.thread_state import requests_under

    policy = policy_from(**fields)  # type: ignore[arg-type]  # click has checked the types
    entries, under = seen(load_usable(source, db), policy)
    asked = [(each, how.model) for each, how in requests_under(entries, under) if isinstance(each, Built)]
    made = [each for each, _ in asked]
    by_turn = _by_turn(made)
    for turn in (first, second):
        if turn not in by_turn:
            raise NotFound(f"turn {turn} has no request", hint=f"Turns with requests: {_turns(by_turn)}.")
    first, second = sorted((first, second))
    start, end = (made.index(by_turn[turn]) for turn in (first, second))
    found = moved(asked[start : end + 1], entries)
    print_json(found) if as_json else echo(_sentence(found, first, second))


def _by_turn(made: list[Built]) -> dict[int, Built]:
    return {each.turn: each for each in reversed(made)}


def _turns(by_turn: dict[int, Built]) -> str:
    return f"{min(by_turn)} to {max(by_turn)}" if by_turn else "none"


def _sentence(found: JsonObject, first: int, second: int) -> str:
    if first == second:
        return f"no byte differs: both are turn {first}"
    if found["extends"]:
        cold = f", but nothing of it is cached: {in_line(found['cause'])}" if found["cause"] else ""
        return f"no byte differs: turn {second} extends turn {first} by {found['added']:,} bytes{cold}"
    cause = f"; cause: {in_line(found['cause'])}" if found["cause"] else ""
    return f"byte {found['byte']:,} differs, in {found['layer']} ({in_line(found['segment'])}){cause}"
