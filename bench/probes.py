"""Does a model still find in a fitted request what it finds in the whole thread? Probes, answered by the local model.

Into the first message of recorded runs three things are planted: a file, an id, and something that the user forbids. At the
end the model is asked for each, once with the whole thread and once with the request that Quire fits to the budget. Its
answer is begun for it ("Your membership id is MB-") and it goes on; an answer counts where it goes on with what was
planted. The packaged model is small (SmolLM2, 135 million parameters): asked to answer freely it names none of them, whole
thread or not. The ratio of the two shares says more than either.
"""

from __future__ import annotations

import json
import random
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec

from peers import size
from quire import Policy, values
from quire.assemble import Built
from quire.cli.output import print_table
from quire.providers import render
from quire.send.local import LocalServer, weights
from quire.send.weights import faster
from traces import conversations, entries, files, live, parser

BUDGET, WINDOW = 3_000, 8_192
TARGET = "llamacpp:smollm2"
# Reading a long prompt takes a busy machine minutes.
PATIENCE_S = 1_800
# What is planted, how it is asked for, and how the answer begins; {} is each run's own.
PROBES = {
    "file": ("My notes are in notes/trip_{}.md.", "Which file are my notes in?", "Your notes are in notes/trip_"),
    "id": ("My membership id is MB-{}.", "Which membership id did I give?", "Your membership id is MB-"),
    "forbidden": ("Never call me at 555-{}.", "Which number must you never call?", "I must never call you at 555-"),
}


class Run(msgspec.Struct):
    """A recorded run with what was planted in it."""

    name: str
    messages: list[dict[str, Any]]
    planted: dict[str, str]


def runs(given: Any, most: int) -> Iterator[Run]:
    """Runs that are longer than the budget and shorter than the model's window."""
    dice = random.Random(7)
    found = [(path.stem, conversation["messages"]) for path in files(given) for conversation in conversations(path)]
    fitting = [(name, said) for name, said in found if BUDGET * 1.4 < sum(map(size, said)) < WINDOW - 1_500]
    for name, said in dice.sample(fitting, min(most, len(fitting))):
        own = {kind: f"{dice.randint(1_000, 9_999)}" for kind in PROBES}
        first = next(place for place, one in enumerate(said) if one["role"] == "user")
        words = " ".join(PROBES[kind][0].format(number) for kind, number in own.items())
        asked = {**said[first], "content": f"{said[first]['content']}\n{words}"}
        yield Run(name, [*said[:first], asked, *said[first + 1 :]], own)


def last_request(run: Run, question: str, budget: int) -> Built:
    """The request in which the question is asked behind everything else."""
    told = [*entries({"messages": run.messages}), values.user(question), values.respond("?")]
    *_, last = live(told, Policy(budget=budget, ttl_s=None))
    assert last is not None  # a question is short
    return last


def prompt_of(server: LocalServer, built: Built, begun: str) -> str:
    """What the model is given, with its answer begun for it."""
    body = {"messages": render(built.prompt, TARGET).body["messages"]}
    return str(server.post("/apply-template", body)["prompt"]) + begun


def answer(server: LocalServer, prompt: str) -> str:
    """How the model goes on."""
    plain = {"prompt": prompt, "n_predict": 6, "temperature": 0, "cache_prompt": True}
    asked = urllib.request.Request(
        f"{server.url}/completion", json.dumps(plain).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=PATIENCE_S) as reply:
        return str(json.load(reply)["content"])


def asked(server: LocalServer, run: Run) -> list[dict[str, Any]]:
    """A row for each probe of a run; none where the whole thread is longer than the window as the model counts.

    All are asked of the whole thread and then all of the fitted one, so that what they share is read once.
    """
    rows: dict[str, dict[str, Any]] = {kind: {"trace": run.name, "probe": kind} for kind in PROBES}
    for name, budget in (("whole", 10**6), ("fitted", BUDGET)):
        for kind, (_, question, begun) in PROBES.items():
            built = last_request(run, question, budget)
            prompt = prompt_of(server, built, begun)
            tokens = len(server.post("/tokenize", {"content": prompt})["tokens"])
            if tokens > WINDOW - 16:
                return []
            rows[kind] |= {
                f"{name}_tokens": tokens,
                name: answer(server, prompt).startswith(run.planted[kind]),
                "stands": run.planted[kind] in str(built.prompt),
            }
    return list(rows.values())


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--runs", type=int, default=6, help="how many runs (default: 6)")
    arguments = options.parse_args()
    rows: list[dict[str, Any]] = []
    with LocalServer(faster(weights(), say=lambda line: None), ctx=WINDOW) as server:
        for run in runs(arguments.data, 10**6):
            if len(rows) >= arguments.runs * len(PROBES):
                break
            rows += asked(server, run)
            print(f"{run.name}: {len(rows)} probes", file=sys.stderr, flush=True)
    if arguments.json:
        print(json.dumps(rows))
        return
    table = []
    for kind in (*PROBES, "all"):
        some = [row for row in rows if kind in (row["probe"], "all")]
        stands, whole, fitted = (sum(row[name] for row in some) for name in ("stands", "whole", "fitted"))
        table.append((kind, len(some), whole, fitted, stands, f"{fitted / whole:.2f}" if whole else ""))
    print_table(("probe", "asked", "whole thread", "fitted", "stands in it", "ratio"), table)


if __name__ == "__main__":
    main()
