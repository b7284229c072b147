"""The traces every benchmark reads: one conversation a line, messages in OpenAI Chat form."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from quire import Policy, Thread
from quire.assemble import Built
from quire.assemble.hindsight import Trail, trail
from quire.errors import BudgetError
from quire.providers import import_
from quire.testing import MemoryStore
from quire.tokens import Calibrations
from quire.values import SPOKEN, Entry, Reply, Usage

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT.parent / "shared" / "data" / "traces"


def parser(what: str | None, data: str = "traces") -> argparse.ArgumentParser:
    """The options all benchmarks share; `data` says what their files hold."""
    made = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data", nargs="+", type=Path, metavar="FILE", help=f"{data} to read instead of the default")
    made.add_argument("--json", action="store_true", help="print JSON for machines")
    return made


WORDS = [
    "river",
    "stone",
    "amber",
    "window",
    "engine",
    "ledger",
    "copper",
    "market",
    "winter",
    "signal",
    "garden",
    "harbor",
    "letter",
    "mirror",
    "timber",
]


def synthetic(messages: int = 2_000, seed: int = 7) -> list[dict[str, Any]]:
    """A coding agent's thread: a question now and then, calls with long results, short answers."""
    dice = random.Random(seed)

    def prose(count: int) -> str:
        lines = [" ".join(dice.choice(WORDS) for _ in range(12)) for _ in range(max(1, count // 12))]
        return "\n".join(f"{n:4} {line}" for n, line in enumerate(lines))

    out: list[dict[str, Any]] = [{"role": "system", "content": prose(300)}]
    while len(out) < messages:
        out.append({"role": "user", "content": prose(dice.randint(20, 120))})
        for step in range(dice.randint(2, 8)):
            id = f"call_{len(out)}_{step}"
            call = {"id": id, "type": "function", "function": {"name": "read", "arguments": json.dumps({"path": id})}}
            out.append({"role": "assistant", "content": prose(20), "tool_calls": [call]})
            out.append({"role": "tool", "tool_call_id": id, "content": prose(dice.randint(200, 1_300))})
        out.append({"role": "assistant", "content": prose(dice.randint(30, 200))})
    return out[:messages]


def files(given: list[Path] | None) -> list[Path]:
    """The files to read; none is an exit that says where they were looked for."""
    found = given or sorted(TRACES.glob("*.jsonl"))
    missing = [path for path in found if not path.is_file()]
    if missing or not found:
        raise SystemExit(f"no traces at {missing[0] if missing else TRACES}: give some with --data FILE")
    return found


def conversations(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def said(paths: Iterable[Path], *roles: str) -> Iterator[tuple[str, str]]:
    """Role and words of every message that has any, in order; of all roles when none is named."""
    for message in (message for path in paths for talk in conversations(path) for message in talk["messages"]):
        words = message.get("content")
        if isinstance(words, str) and words and (not roles or message["role"] in roles):
            yield message["role"], words


def texts(paths: Iterable[Path], *roles: str) -> list[str]:
    """The words alone."""
    return [words for _, words in said(paths, *roles)]


def entries(conversation: dict[str, Any]) -> list[Entry]:
    return import_("openai-chat", conversation)


# The target of live threads: a model whose tokens are those that the peers are counted in.
TARGET = "openai-chat:gpt-5"


def live(given: Iterable[Entry], policy: Policy) -> Iterator[Built | None]:
    """The requests of a thread as users run it, one in front of each run of the model's messages.

    Each is made by `thread.request` and its answer recorded by `thread.record`, at the times that the entries have and
    with a report of the tokens that all are counted in; None where the budget cannot hold it.
    """
    now = 0
    thread = Thread(MemoryStore(), "t", policy, clock=lambda: now, observers=())
    asked = False
    for speaks, run in groupby(given, key=lambda entry: entry.kind in SPOKEN):
        some = tuple(run)
        asked = asked or any(entry.kind == "user" for entry in some)
        now = max(entry.at or now for entry in some)
        if not speaks or not asked:
            thread.append(*some)
            continue
        try:
            request = thread.request(TARGET)
            # As it was sent: with the cut that it recorded, and the tool that reads behind handles.
            built = thread.build(TARGET)
        except BudgetError:
            thread.append(*some)
            yield None
        else:
            thread.record(Reply(some, Usage(input_total=built.tokens)), request)
            yield built


def foreseen(given: Iterable[Entry], policy: Policy) -> Trail:
    """The same thread for whoever knows it in advance: `optimum` finds its cheapest cuts, with such a report at hand."""
    found = trail(given, policy)
    reported = Calibrations().observe(TARGET, 1, 1)
    found.start.models = msgspec.structs.replace(found.start.models, model=TARGET, calibrations=reported)
    return found


def with_pauses(given: Iterable[Entry], share: float, seed: int = 7) -> list[Entry]:
    """The entries ten seconds after one another; in front of this share of the user's turns an hour passes."""
    dice, now, out = random.Random(seed), 0, []
    for entry in given:
        now += 3_600_000 if entry.kind == "user" and dice.random() < share else 10_000
        out.append(Entry(entry.kind, {**entry.body, "at": now}))
    return out
