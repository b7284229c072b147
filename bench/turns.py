"""What one turn costs as a thread grows: 2,000 messages, about a million tokens, a budget of 128k.

A request is built and rendered for every assistant message; once more through a thread in a file, where each turn is
also stored, watched and recorded. A request's time is the least CPU time of some passes, so that what else the machine
did counts little. The slow peers are asked at evenly spaced points and their total is scaled up from those; the table
says so. A second table: what the next request of a thread costs that was just opened, from its checkpoint and without.
A third: the CPU time of `quire --help` and of the dearest commands' helps, each in a process of its own.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain as joined
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from peers import llama_index_memory, points, size
from quire import Policy, Thread
from quire.assemble import Assembly, Built, reused_tokens
from quire.cli.main import COMMANDS
from quire.cli.output import print_table
from quire.log.sqlite import SqliteStore
from quire.observe import Received, Sending
from quire.providers import import_, rendering
from quire.thread import open_store
from quire.values import SPOKEN, Entry, Reply, Usage, chain
from traces import ROOT, conversations, files, parser, synthetic

BUDGET, MARKS = 128_000, (50, 500, 2_000)
LENGTHS = (500, 50_000)
TARGET = "openai-chat:gpt-5"
# (message index, CPU seconds) for each request.
Turns = list[tuple[int, float]]


def least(passes: int, run: Callable[[], Iterable[tuple[int, float]]]) -> Turns:
    """Each request's least time over some passes."""
    return [
        (pairs[0][0], min(cost for _, cost in pairs))
        for pairs in zip(*(list(run()) for _ in range(passes)), strict=True)
    ]


def quire_turns(messages: list[dict[str, Any]], budget: int) -> Turns:
    """Feeding what is new, fitting, rendering."""
    listed = list(chain(import_("openai-chat", messages)))
    assembly, writer = Assembly(Policy(budget=budget)), rendering(TARGET)
    out, spent, place = [], 0.0, 0
    wanted = iter(list(points(messages)))
    for entry in listed:
        before = time.process_time()
        if assembly.asks(entry):
            writer.request(assembly.request().prompt)
            spent += time.process_time() - before
            place = next(wanted)
            out.append((place, spent))
            spent, before = 0.0, time.process_time()
        assembly.feed(entry)
        spent += time.process_time() - before
    return out


def thread_turns(messages: list[dict[str, Any]], budget: int) -> Turns:
    """The same through a thread in a file: appending what is new, making the request, recording the reply."""
    out = []
    with tempfile.TemporaryDirectory() as folder, open_store(f"{folder}/log.db") as store:
        thread = Thread(store, "t", Policy(budget=budget, ttl_s=None))
        for place, (told, reply) in zip(points(messages), rounds(messages), strict=True):
            before = time.process_time()
            thread.append(*told)
            request = thread.request(TARGET)
            thread.record(Reply(tuple(reply), Usage()), request)
            out.append((place, time.process_time() - before))
    return out


class Counted:
    """Keeps the newest requests, to report for them what a provider with a warm cache would."""

    built: tuple[Built, ...] = ()

    def on_request(self, sending: Sending) -> None:
        self.built = (*self.built[-1:], sending.built)

    def on_reply(self, received: Received) -> None:
        """Nothing is kept of replies."""

    def usage(self) -> Usage:
        before, now = self.built
        return Usage(now.tokens, reused_tokens(before, now), output=20)


def lengths(sizes: list[int], budget: int, turns: int = 30) -> Iterator[dict[str, Any]]:
    """One thread in a file, appended to up to each size: what `request()`, and the whole turn around it, cost there.

    Each turn appends what is new, makes the request, and records a reply whose usage is compared with what the
    simulation predicts.
    """
    with tempfile.TemporaryDirectory() as folder, open_store(f"{folder}/log.db") as store:
        thread, counted = Thread(store, "t", Policy(budget=budget, ttl_s=None)), Counted()
        thread.on_warning = lambda what: None
        thread.observers += (counted,)
        told = rounds(synthetic(max(sizes) + 400))
        seq = 0
        for size in sizes:
            while seq < size - 3 * turns:
                some = [entry for said, reply in islice(told, 50) for entry in (*said, *reply)]
                seq = thread.append(*some)[-1].seq
            thread.request(TARGET)
            asked, whole = [], []
            for said, reply in islice(told, turns):
                times = [time.process_time()]
                thread.append(*said)
                times.append(time.process_time())
                request = thread.request(TARGET)
                times.append(time.process_time())
                usage = counted.usage()
                times.append(time.process_time())
                seq = thread.record(Reply(tuple(reply), usage), request)[-1].seq
                asked.append(times[2] - times[1])
                whole.append(time.process_time() - times[3] + times[2] - times[0])
            yield {
                "entries": seq,
                "request_ms": statistics.median(asked) * 1000,
                "turn_ms": statistics.median(whole) * 1000,
            }


def reopening(messages: list[dict[str, Any]], budget: int, length: int, passes: int) -> dict[str, float]:
    """The next request of a thread of so many entries that was just opened, with its checkpoint and without: ms."""
    given = list(import_("openai-chat", messages))
    body = [entry for entry in given if entry.kind not in ("system", "tools")]
    entries = list(islice(joined(given, cycle(body)), length))
    with tempfile.TemporaryDirectory() as folder, SqliteStore(f"{folder}/log.db") as store:
        policy = Policy(budget=budget, ttl_s=None)
        store.append("t", entries)
        # The newest turns are live: requests and cuts are in the log, and some entries stand behind the checkpoint.
        writer = Thread(store, "t", policy)
        *live, (newest, _) = islice(rounds(messages), 41)
        for told, reply in live:
            writer.append(*told)
            writer.record(Reply(tuple(reply), Usage()), writer.request(TARGET))
        writer.append(*newest)

        def opened() -> float:
            before = time.process_time()
            Thread(store, "t", policy).request(TARGET)
            return (time.process_time() - before) * 1000

        kept = min(opened() for _ in range(passes))
        store.save_checkpoint("t", b"")
        # A request of a long thread writes a checkpoint for the next one, so that it is measured once.
        return {"checkpoint": kept, "without": opened()}


def rounds(messages: list[dict[str, Any]]) -> Iterator[tuple[list[Entry], list[Entry]]]:
    """What was told to the model before each of its messages, and what it then said."""
    told, reply = list[Entry](), list[Entry]()
    for entry in import_("openai-chat", messages):
        speaks = entry.kind in SPOKEN
        if reply and (not speaks or "message" in entry.wire):
            yield told, reply
            told, reply = [], []
        (reply if speaks else told).append(entry)
    if reply:
        yield told, reply


def langchain_turns(
    messages: list[dict[str, Any]], exact: bool, places: list[int], budget: int
) -> Iterator[tuple[int, float]]:
    """As its documentation recommends: the whole history is trimmed before each call."""
    from langchain_core.messages import convert_to_messages, trim_messages
    from langchain_core.messages.utils import count_tokens_approximately

    converted = convert_to_messages(messages)
    by_id = {id(one): message for one, message in zip(converted, messages, strict=True)}

    def counted(listed: list[Any]) -> int:
        return sum(size(by_id.get(id(one)) or _plain(one)) for one in listed)

    for place in places:
        before = time.process_time()
        trim_messages(
            converted[:place],
            max_tokens=budget,
            strategy="last",
            token_counter=counted if exact else count_tokens_approximately,
            start_on="human",
            include_system=True,
        )
        yield place, time.process_time() - before


def _plain(one: Any) -> dict[str, Any]:
    calls = [
        {"function": {"name": c["name"], "arguments": json.dumps(c["args"])}} for c in getattr(one, "tool_calls", ())
    ]
    return {"content": one.content, "tool_calls": calls}


def llama_index_total(messages: list[dict[str, Any]], budget: int) -> float:
    before = time.process_time()
    for _ in llama_index_memory()(messages, budget):
        pass
    return time.process_time() - before


LITELLM = """
import json, sys, time
from litellm.utils import trim_messages
messages, places, budget = json.load(sys.stdin)
for place in places:
    before = time.process_time()
    trim_messages(messages[:place], model="gpt-4o", max_tokens=budget)
    print(json.dumps([place, time.process_time() - before]), flush=True)
"""


def litellm_turns(messages: list[dict[str, Any]], places: list[int], budget: int, seconds: int) -> Turns:
    """In its own environment, since it pins an older openai; what it finishes within the seconds given."""
    python = ROOT / ".venv-frameworks" / "bin" / "python"
    if not python.exists():
        return []
    try:
        done = subprocess.run(
            [python, "-c", LITELLM],
            input=json.dumps([messages, places, budget]),
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        printed = done.stdout
    except subprocess.TimeoutExpired as late:
        printed = (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else late.stdout or ""
    return [tuple(json.loads(line)) for line in printed.splitlines() if line.startswith("[")]


def scaled(found: Turns, places: list[int]) -> float:
    """The total over all requests, from evenly spaced ones."""
    return sum(cost for _, cost in found) * len(places) / max(1, len(found))


def near(found: Turns, mark: int) -> float | None:
    """The median cost of the twenty requests (or fewer) up to a mark; rebases, rare and dearer, are in the total."""
    costs = [cost for place, cost in found if place <= mark][-20:]
    return statistics.median(costs) if costs and max(p for p, _ in found) >= mark * 0.95 else None


def longest(given: list[Path] | None) -> list[dict[str, Any]]:
    """The longest of the conversations given, or a synthetic one."""
    if not given:
        return synthetic()
    found = [conversation["messages"] for path in files(given) for conversation in conversations(path)]
    plain = [[{k: v for k, v in m.items() if not k.startswith("_")} for m in one] for one in found]
    return [{**m, "content": m.get("content") or ""} for m in max(plain, key=len)]


def helps(passes: int) -> dict[str, float]:
    """The least CPU time, in ms, that each help takes, the dearest first."""
    asked = {"quire": ["--help"], **{f"quire {name}": [name, "--help"] for name in COMMANDS}}
    found = {name: min(help_ms(words) for _ in range(passes)) for name, words in asked.items()}
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def help_ms(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "quire", *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--samples", type=int, default=12, help="points at which the slow peers are asked")
    options.add_argument("--passes", type=int, default=5, help="passes of which the least counts (5)")
    options.add_argument("--quick", action="store_true", help="Quire and LangChain only")
    options.add_argument("--budget", type=int, default=BUDGET, help=f"tokens of a request ({BUDGET:,})")
    options.add_argument(
        "--lengths", type=int, nargs="*", default=[500, 5_000, 50_000], help="entries of the long thread"
    )
    arguments = options.parse_args()
    messages, budget = longest(arguments.data), arguments.budget
    places = list(points(messages))
    some = places[:: max(1, len(places) // arguments.samples)]
    quire_turns(messages[:200], budget)  # vocabularies and code are loaded before anything is measured
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    quire_turns(messages, budget)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024
    passes = arguments.passes
    ours = least(passes, lambda: quire_turns(messages, budget))
    rows: list[dict[str, Any]] = [_row("Quire", ours, places, sum(c for _, c in ours), "every request")]
    stored = least(passes, lambda: thread_turns(messages, budget))
    rows.append(_row("Quire, with its log in a file", stored, places, sum(c for _, c in stored), "every request"))
    list(langchain_turns(messages, True, places[:1], budget))  # loads what it loads lazily
    exact = least(passes, lambda: langchain_turns(messages, True, some, budget))
    rows.append(_row("LangChain trim, exact", exact, places, scaled(exact, places), f"{len(exact)} requests, scaled"))
    approximate = least(passes, lambda: langchain_turns(messages, False, some, budget))
    rows.append(
        _row(
            "LangChain trim, approximate",
            approximate,
            places,
            scaled(approximate, places),
            f"{len(approximate)} requests, scaled",
        )
    )
    if not arguments.quick:
        total = llama_index_total(messages, budget)
        rows.append({"library": "LlamaIndex Memory", "total_s": total, "how": "every request"})
        slow = litellm_turns(messages, some, budget, seconds=60)
        if slow:
            rows.append(
                _row(
                    "litellm trim_messages",
                    slow,
                    places,
                    scaled(slow, places),
                    f"first {len(slow)} of {len(some)} points, scaled",
                )
            )
    reopened = {str(length): reopening(messages, budget, length, passes) for length in LENGTHS}
    result = {
        "requests": len(places),
        "tokens": sum(map(size, messages)),
        "budget": budget,
        "memory_mb": round(grown, 1),
        "rows": rows,
        "lengths": list(lengths(arguments.lengths, budget)) if arguments.lengths else [],
        "reopened": reopened,
        "helps": helps(passes),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    show(result)


def _row(name: str, found: Turns, places: list[int], total: float, how: str) -> dict[str, Any]:
    return {
        "library": name,
        "ms_at": {str(m): (near(found, m) or 0) * 1000 for m in MARKS if near(found, m)},
        "total_s": total,
        "how": how,
    }


def show(result: dict[str, Any]) -> None:
    """The tables, for people."""
    ours = result["rows"][0]["total_s"]
    print_table(
        ("library", *(f"ms at {m}" for m in MARKS), "total s", "× Quire", "measured"),
        [
            (
                row["library"],
                *(
                    f"{row.get('ms_at', {}).get(str(m), 0):.2f}" if row.get("ms_at", {}).get(str(m)) else ""
                    for m in MARKS
                ),
                f"{row['total_s']:.2f}",
                f"{row['total_s'] / ours:,.0f}",
                row["how"],
            )
            for row in result["rows"]
        ],
        title=f"{result['requests']} requests over {result['tokens']:,} tokens, budget {result['budget']:,}; Quire's memory grew by {result['memory_mb']} MB",
    )
    print_table(
        ("entries", "request() ms", "whole turn ms"),
        [(f"{row['entries']:,}", f"{row['request_ms']:.2f}", f"{row['turn_ms']:.2f}") for row in result["lengths"]],
        title=f"one thread in a file, as it grows, budget {result['budget']:,}",
    )
    print_table(
        ("entries", "ms from its checkpoint", "ms without"),
        [(n, f"{ms['checkpoint']:.1f}", f"{ms['without']:,.1f}") for n, ms in result["reopened"].items()],
        title="The next request of a thread that was just opened",
    )
    print_table(
        ("help of", "ms"), [(name, f"{ms:.0f}") for name, ms in result["helps"].items()], title="CPU time of helps"
    )


if __name__ == "__main__":
    main()
