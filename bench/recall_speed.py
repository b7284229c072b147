"""What a search costs at 10,000 and 100,000 entries: time, memory, building and loading.

Texts are made from a vocabulary with the frequencies of
real text; vectors are mixed from those of LoCoMo's turns (or of such texts), because making 100,000 of them would
take half an hour. A store is filled by one process and searched by another, which has loaded nothing before.
Times are by the clock, and of the processor in brackets: other programs may be running.

    bench/recall_speed.py [--data FILE …] [--sizes 10000 100000] [--json]
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle, islice, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from embedded import Remembered
from locomo import DATA, load
from quire import values
from quire.cli.output import print_table
from quire.log.store import Store
from quire.recall import Indexer, Recall
from quire.recall.meaning import pack
from quire.thread import open_store
from quire.values import Entry
from traces import parser

PER_THREAD = 1000
VOCABULARY = 40_000
QUERIES = 100


def sentences(count: int, seed: int = 7) -> Iterator[str]:
    """Texts of 5 to 60 words drawn by Mandelbrot's law, as content words are (the commonest in 9 % of texts)."""
    rng = np.random.default_rng(seed)
    weights = 1 / (np.arange(1, VOCABULARY + 1) + 50) ** 1.05
    cumulated = np.cumsum(weights / weights.sum())
    parts = ["ba", "de", "fi", "go", "lu", "ma", "ne", "po", "ri", "ta", "vo", "ze"]
    words = [
        parts[n % 12] + parts[n // 12 % 12] + parts[n // 144 % 12] + parts[n // 1728 % 12] + parts[n // 20736]
        for n in range(VOCABULARY)
    ]
    for _ in range(count):
        size = int(rng.integers(5, 60))
        yield " ".join(words[at] for at in np.searchsorted(cumulated, rng.random(size)))


def fill(store: Store, size: int) -> float:
    """Append `size` entries, user and assistant in turn; seconds it took."""
    begun = time.perf_counter()
    made = (values.user(text) if at % 2 == 0 else values.respond(text) for at, text in enumerate(sentences(size)))
    for number in range(0, size, PER_THREAD):
        batch: list[Entry] = [entry for entry, _ in zip(made, range(min(PER_THREAD, size - number)), strict=False)]
        store.append(f"t{number // PER_THREAD}", batch)
    return time.perf_counter() - begun


def give_vectors(store: Store, embedder: Remembered, seeds: Any) -> None:
    """Vectors for all entries, scattered around real ones."""
    rng = np.random.default_rng(11)
    ids = [change.entry.id for change in store.changes()]
    for begin in range(0, len(ids), 5000):
        some = ids[begin : begin + 5000]
        one, other = (seeds[rng.integers(0, len(seeds), len(some))] for _ in range(2))
        near = one + rng.uniform(0.2, 0.7, (len(some), 1)).astype(np.float32) * other
        unit = near / np.linalg.norm(near, axis=1, keepdims=True)
        store.index.add_vectors(
            embedder.name, embedder.dimensions, {id: pack(row) for id, row in zip(some, unit, strict=True)}
        )


def timed(run: Callable[[str], Any], queries: list[str]) -> list[tuple[float, float]]:
    """Milliseconds a query, by the clock and of the processor (other programs may be running)."""
    out = []
    for query in queries:
        clock, processor = time.perf_counter(), time.thread_time()
        run(query)
        out.append((1000 * (time.perf_counter() - clock), 1000 * (time.thread_time() - processor)))
    return out


def real_texts(files: list[Path] | None) -> tuple[list[str], list[str]]:
    """Texts whose vectors are mixed, and texts whose vectors are asked for."""
    if not files and not DATA.exists():
        return list(sentences(400, seed=3)), list(sentences(QUERIES, seed=4))
    talk = load(*files or ())
    asked = [question.text for conversation in talk for question in conversation.questions]
    said = [turn.text for conversation in talk for turn in conversation.turns if turn.text]
    return said, list(islice(cycle(asked or said), QUERIES))


def filled(size: int, folder: Path, files: list[Path] | None) -> float:
    """A store of so many entries with their vectors; microseconds that an append took, by the entry."""
    embedder, (said, _) = Remembered(), real_texts(files)
    with open_store(folder / f"{size}.db") as store:
        append_s = fill(store, size)
        give_vectors(store, embedder, embedder.encode(said))
        Indexer(store, embedder).run()
        Recall(store, embedder).search("once")
    return 1e6 * append_s / size


def one(size: int, folder: Path, files: list[Path] | None, append_us: float) -> dict[str, Any]:
    """What a process of its own pays for a store that was filled by another."""
    embedder, (_, questions) = Remembered(), real_texts(files)
    file = folder / f"{size}.db"
    store = open_store(file)
    queries = [" ".join(text.split()[:7]) for text in sentences(QUERIES, seed=99)]
    fixed = _Fixed(embedder, dict(zip(queries, embedder.encode(questions), strict=True)))
    before = _memory()
    firsts = {}
    for name, with_ in (("words", None), ("words and meaning", fixed)):
        recall = Recall(store, with_)
        firsts[name] = timed(recall.search, queries[:1])[0]
    memory = _memory() - before
    ours = timed(recall.search, queries)
    thread = timed(lambda query: recall.search(query, thread="t0"), queries)
    grown = timed(lambda query: _append_and_search(store, recall, query), queries)
    real = timed(embedder.fresh, queries[:25])
    return {
        "entries": size,
        "append, us an entry": round(append_us),
        "first search of a process, by words, s": _seconds(firsts["words"]),
        "first search of a process, s": _seconds(firsts["words and meaning"]),
        "search besides embedding, p50 / p95 ms": _at(ours),
        "  in one thread of 1,000": _at(thread),
        "append one, then search": _at(grown),
        "embedding a query of 7 words": _at(real),
        "embedding an entry of 5 to 60 words": _at(timed(embedder.fresh, list(sentences(50, seed=5)))),
        "memory, MB": round(memory),
        "file, MB": round(file.stat().st_size / 1e6),
    }


def _append_and_search(store: Store, recall: Recall, query: str) -> None:
    store.append("t0", [values.user(query)])
    recall.search(query)


class _Fixed:
    """An embedder whose queries are known beforehand, to time everything besides embedding."""

    def __init__(self, embedder: Remembered, known: dict[str, Any]) -> None:
        self.name, self.dimensions, self.known, self.embedder = (embedder.name, embedder.dimensions, known, embedder)

    def encode(self, texts: Any) -> Any:
        return np.array([self.known[text] if text in self.known else np.ones(384, np.float32) / 20 for text in texts])


def _at(times: list[tuple[float, float]]) -> str:
    """p50 / p95 by the clock, and of the processor in brackets."""
    clock, processor = zip(*times, strict=True)
    shown = [f"{np.percentile(some, 50):.1f} / {np.percentile(some, 95):.1f}" for some in (clock, processor)]
    return f"{shown[0]} ({shown[1]})"


def _seconds(once: tuple[float, float]) -> str:
    return f"{once[0] / 1000:.1f} ({once[1] / 1000:.1f})"


def _memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    options = parser(__doc__, "conversations in LoCoMo's form")
    options.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    args = options.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as alone,
    ):
        given = repeat(Path(folder)), repeat(args.data)
        appended = list(alone.map(filled, args.sizes, *given))
        rows = list(alone.map(one, args.sizes, *given, appended))
    if args.json:
        print(json.dumps(rows))
        return
    names = list(rows[0])
    print_table(
        ["", *(f"{row['entries']:,}" for row in rows)], [[name, *(row[name] for row in rows)] for name in names[1:]]
    )


if __name__ == "__main__":
    main()
