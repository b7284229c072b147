"""How fast `quire audit` reads a log of requests, on one core and on all, and how much memory it takes.

The log is made of recorded agent runs: each run sent once more, request by request, with everything that stands before
it, several runs at a time, until the log has the size asked for. The report must be the same however many cores read.
"""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from quire.audit import audit_files, file_parts, on_cores
from quire.cli.output import print_table
from traces import conversations, files, parser


def requests(paths: list[Path]) -> Iterator[dict[str, Any]]:
    """Lines of a log, for ever: four runs take turns, each request with all that was said before it."""
    threads = [conversation["messages"] for path in paths for conversation in conversations(path)]
    places: dict[int, Iterator[dict[str, Any]]] = {n: iter(()) for n in range(4)}
    upcoming = enumerate(cycle(threads))
    at = 1_794_000_000_000
    while True:
        for slot in places:
            found = next(places[slot], None)
            if found is None:
                number, messages = next(upcoming)
                places[slot] = iter(list(run(messages, number)))
                found = next(places[slot], None)
            if found is not None:
                at += 5_000
                yield {**found, "at": at}


def run(messages: list[dict[str, Any]], number: int) -> Iterator[dict[str, Any]]:
    read = 0
    for place, message in enumerate(messages):
        if message["role"] != "assistant" or not place:
            continue
        sent = [{key: value for key, value in message.items() if key[0] != "_"} for message in messages[:place]]
        size = sum(len(str(one.get("content") or "")) for one in sent) // 4 + 100
        used = {"prompt_tokens": size, "prompt_tokens_details": {"cached_tokens": read}, "completion_tokens": 20}
        body = {"model": "gpt-5.4", "messages": sent, "prompt_cache_key": f"run {number}"}
        yield {"request": body, "reply": {"usage": used}}
        read = size


def cpu_seconds() -> float:
    """Of this process and of those that have ended."""
    return sum(os.times()[:4])


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--megabytes", type=int, default=64, help="how long the log is (default: 64)")
    options.add_argument("--cores", type=int, nargs="*", default=sorted({1, os.cpu_count() or 1}))
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log, rows, reports = Path(folder) / "log.jsonl", [], []
        with log.open("w", encoding="utf-8") as out:
            for line in requests(files(arguments.data)):
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
                if out.tell() > arguments.megabytes * 1_000_000:
                    break
        for cores in arguments.cores:
            start, before = time.perf_counter(), cpu_seconds()
            report = audit_files(file_parts(log), on_cores(cores) if cores > 1 else map)
            seconds, busy = time.perf_counter() - start, cpu_seconds() - before
            reports.append(report.as_json())
            kind = resource.RUSAGE_SELF if cores == 1 else resource.RUSAGE_CHILDREN
            peak = resource.getrusage(kind).ru_maxrss / 1024
            speed = log.stat().st_size / 1e6 / seconds
            rows.append({"cores": cores, "seconds": round(seconds, 2), "mb_per_s": round(speed, 1), "cpu_s": round(busy, 1), "requests": report.total.requests, "conversations": len(report.conversations), "peak_mb": round(peak)})  # fmt: skip
        assert all(report == reports[0] for report in reports)
    if arguments.json:
        print(json.dumps(rows))
        return
    print_table(
        ("cores", "seconds", "MB/s", "CPU s", "requests", "conversations", "most memory of a process, MB"),
        [tuple(row.values()) for row in rows],
        title=f"{arguments.megabytes} MB of requests; the reports are the same",
    )


if __name__ == "__main__":
    main()
