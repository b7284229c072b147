"""The store on PostgreSQL and in a file, and services on both: appends a second, and how long callers wait.

Durable appends (`store.append`, one entry each, found by the next search) by one process beside plain inserts of rows as
large by one of pgbench, in turns on one server that syncs every commit to the disk; beside them the same plain
inserts by a bare Python process. Then 1 and 3 processes of the service at
1,000 threads with 100 readers of events: how long an append, a request and a search take. Last the request of a
thread of 50,000 entries by a process that has never seen it. With --data, texts are those of the traces.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import httpx
import psycopg

from quire import values
from quire.assemble import Policy
from quire.cli.output import print_json, print_table
from quire.log.entries import encode_row
from quire.log.store import Store
from quire.testing import PostgresServer, postgres_server
from quire.thread import Thread, open_store
from quire.values import Entry, sha256_hex
from traces import WORDS, conversations, files, parser

TARGET = "anthropic:claude-opus-5-5"
# The server as it is installed: every commit is on the disk.
SAFE = {"fsync": "on", "full_page_writes": "on", "wal_level": "replica", "max_wal_senders": "10"}
# Recall goes by words, as where no embedding model is installed: the making of vectors is not what is measured.
SERVE = """
import sys
from quire.recall import placement
from quire.cli.main import main
placement.installed = lambda: None
sys.argv = ["quire", "serve", *sys.argv[1:]]
main()
"""
Row = dict[str, Any]


def sayings(given: list[Path] | None) -> Iterator[str]:
    """Texts without an end: those of the conversations given, or made ones of forty words."""
    if given:
        said = [
            str(m.get("content") or "")[:2000]
            for path in files(given)
            for conversation in conversations(path)
            for m in conversation["messages"]
        ]
        return cycle([text.replace("\0", " ") for text in said if text])
    dice = random.Random(5)
    return (" ".join(dice.choice(WORDS) for _ in range(40)) for _ in count())


# Appends beside plain inserts.


def inserts_per_s(server: PostgresServer, texts: Sequence[str], clients: int, seconds: float) -> float:
    """Plain inserts by one process of pgbench: a row as large as an entry's a transaction, in a table with a key."""
    table = "create table if not exists plain (id bigserial primary key, thread text, body text)"
    tool = [
        str(server.programs / "psql"),
        server.url,
        "-qc",
        f"{table}; create index if not exists plain_thread on plain (thread)",
    ]
    subprocess.run(tool, check=True, capture_output=True)
    body = plain_body(texts).replace("'", "''")
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(f"\\set n random(1, 1000)\ninsert into plain (thread, body) values ('t' || :n, '{body}');\n")
        script.flush()
        bench = [str(server.programs / "pgbench"), server.url, "-n", "-f", script.name, "-c", str(clients), "-j", "1"]
        done = subprocess.run(
            [*bench, "-T", str(max(1, round(seconds))), "-M", "prepared"], check=True, capture_output=True, text=True
        )
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def plain_body(texts: Sequence[str]) -> str:
    """As much as an entry's row has: its body, its id and numbers."""
    usual = min(texts[:50], key=lambda text: abs(len(text) - statistics.mean(map(len, texts[:50]))))
    return sha256_hex(usual) + encode_row(values.user(usual).body)


def bare_inserts_per_s(server: PostgresServer, texts: Sequence[str], clients: int, seconds: float) -> float:
    """The same inserts by so many OS threads of one Python process, with nothing around them: what a client may reach."""
    body, done = plain_body(texts).encode(), [0] * clients
    with ExitStack() as stack:
        conns = [stack.enter_context(psycopg.connect(server.url, autocommit=True)).pgconn for _ in range(clients)]
        for conn in conns:
            conn.prepare(b"plain", b"insert into plain (thread, body) values ($1, $2)")
        until = time.monotonic() + seconds

        def write(client: int) -> None:
            for n in count():
                if time.monotonic() > until:
                    return
                conns[client].exec_prepared(b"plain", [b"t%d" % (n % 1000), body])
                done[client] += 1

        together(write, range(clients))
    return sum(done) / seconds


def appends_per_s(store: Store, texts: Sequence[str], clients: int, seconds: float, entries: int = 1) -> float:
    """Appends by so many OS threads of one process, each to threads of its own that are there already."""
    until, done = 0.0, [0] * clients

    def write(client: int) -> None:
        # No two clients say the same: threads that begin alike would share the rows of their words.
        for n, text in enumerate(cycle([*texts[client:], *texts[:client]])):
            if n >= 4 and time.monotonic() > until:
                return
            store.append(f"w{client}-{n % 4}", [values.user(text)] * entries)
            done[client] += 1

    together(write, range(clients))  # connections and threads are made
    until, done = time.monotonic() + seconds, [0] * clients
    together(write, range(clients))
    return sum(done) / seconds


def together(work: Callable[[int], None], of: Sequence[int]) -> None:
    threads = [threading.Thread(target=work, args=(each,)) for each in of]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def appending(server: PostgresServer, folder: Path, texts: Sequence[str], seconds: float, rounds: int) -> list[Row]:
    rows = []
    with open_store(server.url, "bench") as store, open_store(folder / "appends.db") as file:
        logging.getLogger("quire").setLevel(logging.ERROR)  # who waits for a file says so
        for clients in (1, 16, 64):
            # In turns, so that whatever else the machine does falls on both.
            found = [
                (inserts_per_s(server, texts, clients, seconds), appends_per_s(store, texts, clients, seconds))
                for _ in range(rounds)
            ]
            plain, ours = (statistics.median(some) for some in zip(*found, strict=True))
            rows.append({
                "clients": clients,
                "pgbench inserts/s": round(plain),
                "bare Python inserts/s": round(bare_inserts_per_s(server, texts, clients, seconds)),
                "appends/s": round(ours),
                "ratio": f"{statistics.median(b / a for a, b in found):.2f}",
                "entries/s, four an append": round(4 * appends_per_s(store, texts, clients, seconds, 4)),
                "appends/s in a file": round(appends_per_s(file, texts, clients, seconds)),
            })  # fmt: skip
    return rows


# Callers of the service.


@contextmanager
def services(place: str, replicas: int) -> Iterator[list[str]]:
    """The addresses of so many processes of `quire serve` on one database."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SERVE, "--db", place, "--port", "0", "--rate", "0"],
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(replicas)
    ]
    try:
        yield [_address(each) for each in started]
    finally:
        for each in started:
            each.terminate()
            each.communicate()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://\S+", line):
            return found[0]
    raise RuntimeError("a service did not start")


@contextmanager
def readers(urls: Sequence[str], threads: Sequence[str], number: int) -> Iterator[list[int]]:
    """So many readers of events in an OS thread of their own; counts what they are told."""
    told, stop = [0], threading.Event()

    async def read(client: httpx.AsyncClient, url: str) -> None:
        with suppress(httpx.HTTPError):
            async with client.stream("GET", url) as reply:
                async for piece in reply.aiter_raw():
                    told[0] += piece.count(b"\ndata:")

    async def all_of_them() -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=None, limits=limits) as client:
            paths = [f"{urls[n % len(urls)]}/api/threads/{threads[n % len(threads)]}/events" for n in range(number)]
            tasks = [asyncio.create_task(read(client, path)) for path in paths]
            while not stop.is_set():
                await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    runs = threading.Thread(target=lambda: asyncio.run(all_of_them()))
    runs.start()
    try:
        yield told
    finally:
        stop.set()
        runs.join()


def fill(store: Store, texts: Iterator[str], threads: int, entries: int) -> list[str]:
    """So many threads, each with a talk in it."""
    names = [f"t{n}" for n in range(threads)]
    for name in names:
        said = islice(texts, entries)
        store.append(name, [values.respond(text) if n % 2 else values.user(text) for n, text in enumerate(said)])
    return names


def calling(place: str, replicas: int, names: Sequence[str], texts: Sequence[str], seconds: float, clients: int) -> Row:
    """How long callers wait who append, ask for a request and search, one after the other, each in any thread.

    Timed are services that have been called before, though not for most of the threads.
    """
    took: dict[str, list[float]] = {"append": [], "request": [], "recall": []}
    with services(place, replicas) as urls, readers(urls, names[:100], 100) as told:
        until = 0.0

        def call(number: int) -> None:
            dice = random.Random(number)
            with httpx.Client(timeout=60) as client:
                for n in count():
                    if n >= 2 and time.monotonic() > until:
                        return
                    url = f"{dice.choice(urls)}/api/threads/{dice.choice(names)}"
                    text = dice.choice(texts)
                    asked: list[tuple[str, str, str, dict[str, Any]]] = [
                        ("append", "POST", "/entries", {"json": {"entries": [{"kind": "user", "text": text}]}}),
                        ("request", "POST", "/requests", {"json": {"model": TARGET}}),
                        ("recall", "GET", "/recall", {"params": {"q": text[:60]}}),
                    ]
                    for what, method, path, body in asked:
                        began = time.perf_counter()
                        reply = client.request(method, url + path, **body)
                        assert reply.status_code < 300, (what, reply.status_code, reply.text[:300])
                        took[what].append((time.perf_counter() - began) * 1000)

        together(call, range(clients))  # what is loaded once is loaded
        settled = -1
        while settled < told[0]:  # readers are told first of what stands there
            settled = told[0]
            time.sleep(0.5)
        for times in took.values():
            times.clear()
        began, before = time.monotonic(), told[0]
        until = began + seconds
        together(call, range(clients, 2 * clients))
        spent = time.monotonic() - began
    row: Row = {"replicas": replicas, "calls/s": round(sum(map(len, took.values())) / spent)}
    for what, times in took.items():
        row[f"{what} p50"] = f"{statistics.median(times):.0f}"
        row[f"{what} p99"] = f"{statistics.quantiles(times, n=100)[98]:.0f}"
    return {**row, "events told": told[0] - before}


# A long thread that a process has never seen.


def reopening(store: Store, texts: Iterator[str], entries: int, budget: int) -> Row:
    """CPU until the next request of a long thread is there, from its checkpoint; the least of five processes' worth."""
    policy = Policy(budget=budget, ttl_s=None, summary=0, handles=0)
    writer = Thread(store, "long", policy, observers=())
    written = 0
    while written < entries - 1:
        # As a program leaves it: at last turn by turn, each with its request.
        at_once = 200 if written < entries - 600 else 2
        said = list[Entry]()
        for text in islice(texts, min(at_once, entries - 1 - written)):
            said.append(values.respond(text) if (written + len(said)) % 2 else values.user(text))
        writer.append(*said)
        written += len(said)
        if at_once == 2 or written % 2000 == 0:
            writer.request(TARGET)
    writer.append(values.user("And now?"))
    used, waited = [], []
    for _ in range(5):
        before, began = time.process_time(), time.perf_counter()
        Thread(store, "long", policy, observers=()).request(TARGET)
        used.append(time.process_time() - before)
        waited.append(time.perf_counter() - began)
    return {
        "entries": store.info("long").seq,
        "budget": budget,
        "CPU ms": f"{min(used) * 1000:.0f}",
        "ms": f"{min(waited) * 1000:.0f}",
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=8, help="how long each figure is measured")
    options.add_argument("--rounds", type=int, default=3, help="how often appends and inserts take turns")
    options.add_argument("--threads", type=int, default=1000, help="threads that the service holds")
    options.add_argument("--clients", type=int, default=8, help="callers of the service at once")
    options.add_argument("--entries", type=int, default=50_000, help="entries of the long thread")
    args = options.parse_args()
    texts = sayings(args.data)
    some = list(islice(texts, 500))
    tables: dict[str, list[Row]] = {}

    def show(title: str, rows: list[Row]) -> None:
        tables[title] = rows
        if not args.json:
            print_table(list(rows[0]), [list(row.values()) for row in rows], title=title)
            print(flush=True)

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(postgres_server(**SAFE))
        show("durable appends", appending(server, folder, some, args.seconds, args.rounds))
        for kind, place in (("PostgreSQL", server.url), ("a file", str(folder / "service.db"))):
            with open_store(place) as store:
                names = fill(store, texts, args.threads, 40)
            title = f"a service on {kind}, {args.threads:,} threads, 100 readers, {args.clients} callers: milliseconds"
            show(title, [calling(place, each, names, some, args.seconds, args.clients) for each in (1, 3)])
        with open_store(server.url, "long") as store:
            show("a long thread from its checkpoint", [reopening(store, texts, args.entries, 128_000)])
    if args.json:
        print_json(tables)


if __name__ == "__main__":
    main()
