"""What a search costs at 10,000 and 100,000 entries: time, memory, building and loading.

Beside it in the same run: a plain numpy search (every cosine, BM25 over dense postings with neighbours), and
the exact scan with the graph switched off. Texts are made from a vocabulary with the frequencies of
real text; vectors are mixed from those of LoCoMo's turns (or of such texts), because making 100,000 of them would
take half an hour. Every size has a process of its own, so that its memory is its own.
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
from quire.log.sqlite import SqliteStore
from quire.recall import Recall
from quire.recall.meaning import APPROXIMATE_ABOVE, Meaning, packed
from quire.recall.query import Query, ask
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


def fill(store: SqliteStore, size: int) -> float:
    """Append `size` entries, user and assistant in turn; seconds it took."""
    begun = time.perf_counter()
    made = (
        values.user(text) if at % 2 == 0 else values.respond(text) for at, text in enumerate(sentences(size))
    )
    for number in range(0, size, PER_THREAD):
        batch: list[Entry] = [
            entry for entry, _ in zip(made, range(min(PER_THREAD, size - number)), strict=False)
        ]
        store.append(f"t{number // PER_THREAD}", batch)
    return time.perf_counter() - begun


def give_vectors(store: SqliteStore, embedder: Remembered, seeds: Any) -> None:
    """Vectors for all entries, scattered around real ones, and for words."""
    rng = np.random.default_rng(11)
    ids = [change.entry.id for change in store.changes()]
    for begin in range(0, len(ids), 5000):
        some = ids[begin : begin + 5000]
        one, other = (seeds[rng.integers(0, len(seeds), len(some))] for _ in range(2))
        near = one + rng.uniform(0.2, 0.7, (len(some), 1)).astype(np.float32) * other
        made = packed(near / np.linalg.norm(near, axis=1, keepdims=True))
        store.index.add_vectors("entry", embedder.name, dict(zip(some, made, strict=True)))
    words = {word for text in store.index.all_words() for word in text.split()}
    kept = sorted(word for word in words if word.isalpha())
    made = _noise(rng, len(kept), seeds.shape[1])
    made = packed(made / np.linalg.norm(made, axis=1, keepdims=True))
    store.index.add_vectors("word", embedder.name, dict(zip(kept, made, strict=True)))


def _noise(rng: Any, rows: int, width: int) -> Any:
    return rng.standard_normal((rows, width)).astype(np.float32) / np.sqrt(np.float32(width))


def timed(run: Callable[[str], Any], queries: list[str]) -> list[tuple[float, float]]:
    """Milliseconds a query, by the clock and of the processor (other programs may be running)."""
    out = []
    for query in queries:
        clock, processor = time.perf_counter(), time.thread_time()
        run(query)
        out.append((1000 * (time.perf_counter() - clock), 1000 * (time.thread_time() - processor)))
    return out


class Prototype:
    """The plain way: dense cosines over everything, BM25 with neighbours by shifting whole columns."""

    def __init__(self, recall: Recall, matrix: Any) -> None:
        self.collection = recall._scope(None).collection
        self.postings = self.collection._wording.postings
        self.matrix = matrix

    def search(self, query: str, vector: Any) -> Any:
        size = len(self.collection.ids)
        score = np.zeros(size)
        for _, stemmed, _ in ask(Query(query), {}).words:
            number = self.postings.vocabulary.find(stemmed)
            if number is None:
                continue
            rows, counts = self.postings.of(number)
            own = np.zeros(size)
            own[rows] = counts
            wide = own.copy()
            for step in range(1, 6):
                wide[step:] += 0.6**step * own[:-step]
                wide[:-step] += 0.3 * 0.6 ** (step - 1) * own[step:]
            holders = np.count_nonzero(wide)
            score += np.log1p((size - holders + 0.5) / (holders + 0.5)) * wide * 2.2 / (wide + 1.2)
        near = self.matrix @ vector
        for step, weight in ((1, 0.3), (2, 0.09)):
            near[step:] += weight * near[:-step]
        total = (score - score.mean()) / score.std() + (near - near.mean()) / near.std()
        return np.argsort(-total, kind="stable")[:5]


def real_texts(files: list[Path] | None) -> tuple[list[str], list[str]]:
    """Texts whose vectors are mixed, and texts whose vectors are asked for."""
    if not files and not DATA.exists():
        return list(sentences(400, seed=3)), list(sentences(QUERIES, seed=4))
    talk = load(*files or ())
    asked = [question.text for conversation in talk for question in conversation.questions]
    said = [turn.text for conversation in talk for turn in conversation.turns if turn.text]
    return said, list(islice(cycle(asked or said), QUERIES))


def one(size: int, folder: Path, files: list[Path] | None) -> dict[str, Any]:
    embedder, (said, questions) = Remembered(), real_texts(files)
    seeds = embedder.encode(said)
    file = folder / f"{size}.db"
    store = open_store(file)
    append_s = fill(store, size)
    give_vectors(store, embedder, seeds)
    before = _memory()
    recall = Recall(store, embedder, approximate_above=10**9)
    queries = [" ".join(text.split()[:7]) for text in sentences(QUERIES, seed=99)]
    vectors_of = dict(zip(queries, embedder.encode(questions), strict=True))
    loaded = timed(lambda query: recall.search(query), queries[:1])[0]
    recall._scope(None).collection._meaning._above = APPROXIMATE_ABOVE
    graphed = timed(lambda query: recall.search(query), queries[:1])[0]
    memory = _memory() - before
    held = recall._scope(None).collection
    fixed = _Fixed(embedder, vectors_of)
    held.embedder = fixed
    ours = timed(lambda query: recall.search(query), queries)
    grown = timed(lambda query: _append_and_search(store, recall, query), queries)
    words = timed(lambda query: held._wording.scores(ask(Query(query), {}), {}, held._alive.all), queries)
    texts = list(sentences(50, seed=5))
    matrix = held._meaning._vectors.all
    exact = Meaning(384, approximate_above=10**9)
    exact.grow(len(matrix))
    exact.put(np.arange(len(matrix)), matrix)
    everyone = held._alive.all
    graph = timed(lambda query: held._meaning.near(vectors_of[query], everyone, 200), queries)
    scan = timed(lambda query: exact.near(vectors_of[query], everyone, 200), queries)
    plain = Prototype(recall, matrix)
    prototype = timed(lambda query: plain.search(query, vectors_of[query]), queries)
    real = timed(lambda query: embedder.fresh(query), queries[:25])
    return {
        "entries": size,
        "append, us an entry": round(1e6 * append_s / size),
        "load, s": _seconds(loaded),
        "making the graph, s": _seconds(graphed) if size > APPROXIMATE_ABOVE else "none",
        "search besides embedding, p50 / p95 ms": _at(ours),
        "  its words": _at(words),
        "  its nearest vectors": _at(graph),
        "embedding a query of 7 words": _at(real),
        "embedding an entry of 5 to 60 words": _at(timed(embedder.fresh, texts)),
        "search with embedding": _at(
            [(a + c, b + d) for (a, b), (c, d) in zip(ours, real * 4, strict=False)]
        ),
        "plain numpy besides embedding": _at(prototype),
        "exact scan of all vectors": _at(scan),
        "append one, then search": _at(grown),
        "memory, MB": round(memory),
        "file, MB": round(file.stat().st_size / 1e6),
        "of the nearest 100, found": _found(held._meaning, exact, list(vectors_of.values())),
    }


def _append_and_search(store: SqliteStore, recall: Recall, query: str) -> None:
    store.append("t0", [values.user(query)])
    recall.search(query)


class _Fixed:
    """An embedder whose queries are known beforehand, to time everything besides embedding."""

    def __init__(self, embedder: Remembered, known: dict[str, Any]) -> None:
        self.name, self.dimensions, self.known, self.embedder = (
            embedder.name,
            embedder.dimensions,
            known,
            embedder,
        )

    def encode(self, texts: Any) -> Any:
        return np.array(
            [self.known[text] if text in self.known else np.ones(384, np.float32) / 20 for text in texts]
        )


def _found(graph: Meaning, exact: Meaning, queries: list[Any]) -> str:
    shares = []
    for query in queries[:50]:
        everyone = exact.known
        rows, _ = graph.near(query, everyone, 200)
        _, cosines = exact.near(query, everyone, 200)
        shares.append(np.isin(np.argsort(-cosines)[:100], rows).mean())
    return f"{100 * np.mean(shares):.1f} %"


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
        rows = list(alone.map(one, args.sizes, repeat(Path(folder)), repeat(args.data)))
    if args.json:
        print(json.dumps(rows))
        return
    names = list(rows[0])
    print_table(
        ["", *(f"{row['entries']:,}" for row in rows)],
        [[name, *(row[name] for row in rows)] for name in names[1:]],
    )


if __name__ == "__main__":
    main()
