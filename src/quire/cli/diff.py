"""`quire diff`: where two turns' requests part, down to the byte, and which entry caused it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from quire.assemble import Built, requests
from quire.assemble.monitor import first_difference
from quire.assemble.walk import numbered
from quire.cli.assemble import policy_from, policy_options, seen
from quire.cli.common import db_option, json_option, print_json
from quire.cli.source import load_entries
from quire.errors import NotFound
from quire.providers import prefix_parts, render
from quire.values import Entry, JsonObject


@click.command()
@click.argument("source", metavar="THREAD|FILE")
@click.argument("first", type=click.IntRange(1), metavar="N")
@click.argument("second", type=click.IntRange(1), metavar="M")
@policy_options
@json_option
@db_option
def diff(source: str, first: int, second: int, as_json: bool, db: Path | None, **fields: object) -> None:
    """Find the first byte that differs between the requests of turns N and M.

    Each turn is represented by its first request; the earlier one is always compared with the later.

    \b
    Examples:
      quire diff demo 1 2
      quire diff entries.jsonl 3 9 --promote each-turn
    """
    policy = policy_from(**fields)  # type: ignore[arg-type]  # click has checked the types
    entries, policy = seen(load_entries(source, db), policy)
    entries = list(numbered(entries))
    made = [one for one in requests(entries, policy) if isinstance(one, Built)]
    by_turn = _by_turn(made)
    for turn in (first, second):
        if turn not in by_turn:
            raise NotFound(f"turn {turn} has no request", hint=f"Turns with requests: {_turns(by_turn)}.")
    first, second = sorted((first, second))
    found = compare(by_turn[first], by_turn[second])
    if not found["extends"]:
        between = made[made.index(by_turn[first]) + 1 : made.index(by_turn[second]) + 1]
        found |= _cause(by_turn[first], between, found["byte"], entries)
    print_json(found) if as_json else click.echo(_sentence(found, first, second))


def _by_turn(made: list[Built]) -> dict[int, Built]:
    return {one.turn: one for one in reversed(made)}


def _turns(by_turn: dict[int, Built]) -> str:
    return f"{min(by_turn)} to {max(by_turn)}" if by_turn else "none"


def _parts(built: Built) -> list[bytes]:
    return prefix_parts(render(built.prompt, "openai-chat:").body, "openai-chat")


def compare(one: Built, other: Built) -> JsonObject:
    """Where two requests' prefix bytes part: byte, layer, segment, and the entries of the message there."""
    lines = [_parts(built) for built in (one, other)]
    joined = [b"".join(parts) for parts in lines]
    byte = first_difference(*joined)
    if byte == len(joined[0]):
        return {"byte": None, "added": len(joined[1]) - byte, "extends": True, "cause": None}
    index, start = 0, 0
    while index < len(lines[1]) - 1 and start + len(lines[1][index]) <= byte:
        start += len(lines[1][index])
        index += 1
    tools = len(other.prompt.tools)
    layer, segment = _place(other, index - tools, tools and index < tools, byte - start)
    seqs = _seqs(other, index - tools)
    return {"byte": byte, "extends": False, "layer": layer, "segment": segment, "entries": seqs}


def _place(built: Built, index: int, in_tools: object, offset: int) -> tuple[str, str]:
    if in_tools:
        return "L1", "tools"
    if built.prompt.system:
        if index == 0:
            written = json.dumps(built.prompt.l1, ensure_ascii=False).encode()
            return ("L1", "system") if offset < len('{"content":') + len(written) - 1 else ("L2", "library")
        index -= 1
    return ("L5" if index == _last_user(built) else "L4"), f"message {index + 1}"


def _last_user(built: Built) -> int | None:
    return built.user


def _seqs(built: Built, index: int) -> list[int]:
    index -= 1 if built.prompt.system else 0
    wire = 0
    for message in built.prompt.messages:
        wire += max(1, len(message.parts)) if message.role == "tool" else 1
        if index < wire:
            return list(message.seqs) if index >= 0 else []
    return []


def _cause(before: Built, later: list[Built], byte: int, entries: list[Entry]) -> JsonObject:
    """What changed a byte: the first request in which it is another, its rebase or the entry that stands there."""
    old = b"".join(_parts(before))
    at = next(one for one in later if first_difference(old, b"".join(_parts(one))) <= byte)
    where: JsonObject = {"turn": at.turn, "step": at.step}
    if at.rebase is None:
        seq = next(iter(compare(before, at)["entries"]), None)
        return {"cause": f"entry {seq}" if seq else None, "entry": seq, **where}
    # A rebase that was only reckoned now is no entry of the log.
    seq = next((one.seq for one in entries if one.kind == "rebase" and one.body is at.rebase), None)
    named = f", entry {seq}" if seq else ""
    return {
        "cause": f"rebase ({at.rebase['reason']}) at turn {at.turn}.{at.step}{named}",
        "entry": seq,
        **where,
    }


def _sentence(found: JsonObject, first: int, second: int) -> str:
    if first == second:
        return f"no byte differs: both are turn {first}"
    if found["extends"]:
        return f"no byte differs: turn {second} extends turn {first} by {found['added']:,} bytes"
    cause = f"; cause: {found['cause']}" if found["cause"] else ""
    return f"byte {found['byte']:,} differs, in {found['layer']} ({found['segment']}){cause}"
